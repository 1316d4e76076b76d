//! Charts for the documents. They show how costs grow, and compare our limiter with others.
//!
//! A chart contains all its numbers and texts, so that it can be drawn again from the JSON of a
//! run.

mod bars;
mod chart;
mod frame;
mod lines;
mod scale;

use std::error::Error;
use std::path::{Path, PathBuf};

pub(crate) use chart::{Axis, Bar, Bars, Chart, Line, Lines, Plot};
use serde_json::Value;

impl Chart {
    fn svg(&self) -> String {
        match &self.plot {
            Plot::Lines(lines) => lines::draw(self, lines),
            Plot::Bars(bars) => bars::draw(self, bars),
        }
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../rl-core/docs/charts")
}

/// Draws the charts of a run.
pub(crate) fn draw(charts: &[Chart]) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(folder())?;
    for chart in charts {
        let file = folder().join(&chart.name).with_extension("svg");
        std::fs::write(&file, chart.svg())?;
        println!("![{}](crates/rl-core/docs/charts/{}.svg)", chart.title, chart.name);
    }
    Ok(())
}

/// Draws the charts of an earlier run from its JSON file.
pub(crate) fn draw_from(file: &str) -> Result<(), Box<dyn Error>> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let mut report: Value =
        serde_json::from_str(&text).map_err(|error| format!("{file}: {error}"))?;
    let charts: Vec<Chart> = serde_json::from_value(report["charts"].take())
        .map_err(|error| format!("{file}: expected charts as --json writes them: {error}"))?;
    draw(&charts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        let lines = vec![
            Line::new("ours & all", [(1.0, 25.0), (1e4, 40.0), (1e7, 310.5)]),
            Line::new("theirs", [(1.0, 26.0), (1e4, 60.0), (1e7, 500.0)]),
        ];
        let plot =
            Plot::Lines(Lines { x: Axis::logarithmic("subjects"), y: Axis::linear("ns"), lines });
        Chart { name: "subjects".into(), title: "Cost".into(), note: "note".into(), plot }
    }

    #[test]
    fn a_chart_is_the_same_when_it_is_drawn_from_json() {
        let text = serde_json::to_string(&chart()).unwrap();
        let again: Chart = serde_json::from_str(&text).unwrap();
        assert_eq!(again.svg(), chart().svg());
    }

    #[test]
    fn every_point_is_marked_and_every_line_named() {
        let svg = chart().svg();
        assert_eq!(svg.matches("<circle ").count(), 6);
        assert!(svg.contains(">ours &amp; all</text>") && svg.contains(">theirs</text>"), "{svg}");
    }

    #[test]
    fn the_page_on_performance_shows_every_chart_and_no_other() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rl-core/docs/PERFORMANCE.md");
        let page = std::fs::read_to_string(page).unwrap();
        let mut drawn = 0;
        for file in std::fs::read_dir(folder()).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            let link = format!("](charts/{name})");
            assert!(page.contains(&link), "PERFORMANCE.md lacks {link}");
            drawn += 1;
        }
        assert_eq!(page.matches("](charts/").count(), drawn);
    }
}
