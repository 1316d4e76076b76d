//! Counts the cost of a decision: instructions and allocations do not depend on how busy the machine
//! is.

use std::process::Command;
use std::sync::LazyLock;

/// How often each is done: enough that what is not counted does not show.
const TIMES: u64 = 3_000;

/// The program that does it, optimised.
static PROGRAM: LazyLock<String> = LazyLock::new(|| {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let arguments = ["build", "--release", "-p", "rl-instructions", "--message-format=json"];
    let output = Command::new(cargo).args(arguments).output().expect("cargo can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let messages = String::from_utf8_lossy(&output.stdout);
    let mut messages = messages.lines().map(|line| {
        serde_json::from_str::<serde_json::Value>(line).expect("cargo was asked for JSON")
    });
    let path = messages.find_map(|message| Some(message.get("executable")?.as_str()?.to_owned()));
    path.expect("a program is built")
});

/// Instructions for each time that the program does `what`.
fn instructions(what: &str) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .args(["--toggle-collect=rl_instructions::counted*", &PROGRAM, what])
        .arg(TIMES.to_string())
        .output()
        .expect("valgrind can be started: tests/run installs it");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let count = told.lines().find_map(|line| line.split("Collected :").nth(1)?.trim().parse().ok());
    let count: u64 = count.unwrap_or_else(|| panic!("expected a count: {told}"));
    assert!(count > TIMES, "nothing was counted: {told}");
    count / TIMES
}

/// A limit leaves room for the next compiler. `PERFORMANCE.md` lists the goals that are missed.
#[test]
#[rustfmt::skip]
fn decisions_and_responses_take_few_instructions() {
    let limits = [
        ("allowed",        560, "six fixed windows of a known subject"),
        ("denied",         542, "the same, used up"),
        ("too-much",       925, "more than any of six allows"),
        ("clock",          605, "windows on the clock, whose ends are computed and not stored"),
        ("one",            560, "one fixed window"),
        ("newcomer",     1_480, "a newcomer to six of them, who takes another's place"),
        ("gcra",         5_800, "six of another algorithm that is kept compactly"),
        ("log",          1_920, "a sliding log"),
        ("http-allowed", 6_085, "a request through the layer, its response made and dropped"),
        ("http-denied",  8_686, "a request that the layer rejects"),
        ("axum-denied", 15_600, "the same with six windows on axum, and all that axum does"),
    ];
    let mut beyond = Vec::new();
    for (what, limit, described) in limits {
        let count = instructions(what);
        println!("{described}: {count} instructions, {limit} at most");
        if count > limit {
            beyond.push(format!("{described}: {count} instructions, expected {limit} at most"));
        }
    }
    assert!(beyond.is_empty(), "{beyond:#?}");
}

/// As above, of what our layer adds to a request, six periods and numbers of ten digits in the headers:
/// beside a layer that does nothing, and one that adds three header lines.
#[test]
fn a_layer_adds_few_instructions_to_a_request() {
    for (framework, limit) in [("axum", 7_539), ("actix", 6_751)] {
        let [ours, plain, lines] =
            ["", "-plain", "-lines"].map(|around| instructions(&format!("{framework}{around}")));
        let (added, of_lines) = (ours.saturating_sub(plain), lines.saturating_sub(plain));
        println!("{framework}: {added} instructions, {limit} at most; three lines {of_lines}");
        assert!(of_lines > 0, "{framework}: three lines cost something");
        assert!(added <= limit, "{framework}: {added} instructions, expected {limit} at most");
    }
}
