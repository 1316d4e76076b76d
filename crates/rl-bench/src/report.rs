//! The goals of all measurements, as one table and as a file for other programs.

use std::error::Error;

use serde_json::{Value, json};

use crate::goals::{Goal, Unit, table};
use crate::{http, machine, memory, redis};

/// Measures everything that has goals, and prints these once more in one table.
pub(crate) fn all() -> Result<Vec<Goal>, Box<dyn Error>> {
    let mut goals = memory::run()?;
    goals.extend(http::run()?);
    goals.extend(redis::run()?);
    println!("{}", table(&goals));
    Ok(goals)
}

/// Writes the goals to a file.
pub(crate) fn write(goals: &[Goal], file: &str) -> Result<(), Box<dyn Error>> {
    let report = json!({
        "machine": machine::cores(),
        "profile": machine::profile(),
        "versions": [
            machine::library("rl-core"),
            machine::library("redis"),
            machine::program("redis-server"),
            machine::program("rustc"),
        ],
        "goals": goals.iter().map(line).collect::<Vec<_>>(),
    });
    let text = serde_json::to_string_pretty(&report)?;
    std::fs::write(file, text + "\n").map_err(|error| format!("{file}: {error}").into())
}

fn line(goal: &Goal) -> Value {
    let Goal { name, what, floor, moon, unit, measured, interval } = goal;
    let unit = match unit {
        Unit::Times => "times",
        Unit::AtMost(name) => name,
    };
    json!({
        "name": name,
        "what": what,
        "floor": floor,
        "moon": moon,
        "unit": unit,
        "measured": measured,
        "interval": interval.map(|(low, high)| [low, high]),
        "verdict": goal.verdict().to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_says_how_it_turned_out() {
        let goal = Goal::counted("R12", "too many", (0.0, 0.0, Unit::AtMost("")), 0.0);
        let told = line(&goal);
        assert_eq!((&told["name"], &told["verdict"]), (&json!("R12"), &json!("moon")));
        assert_eq!((&told["measured"], &told["interval"]), (&json!(0.0), &Value::Null));
    }
}
