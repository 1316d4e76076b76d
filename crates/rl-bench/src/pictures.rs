//! What each algorithm makes of the same requests, drawn for the documents from its own decisions.

mod edge;
mod svg;
mod timeline;

use std::error::Error;
use std::path::{Path, PathBuf};

use timeline::Timeline;

use crate::algorithms::{ALGORITHMS, PICTURES, with_max};
use crate::table::Table;

pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(folder())?;
    for (name, limit) in PICTURES {
        let timeline = Timeline::of(limit)?;
        let file = folder().join(name).with_extension("svg");
        std::fs::write(file, svg::draw(limit, &timeline))?;
        println!("{}", embedding(name, limit, &timeline));
    }
    println!("\n{}", bursts()?);
    Ok(())
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../rl-core/docs/pictures")
}

/// How a document shows a picture, to those who do not see it as well.
fn embedding(name: &str, limit: &str, timeline: &Timeline) -> String {
    format!("![{limit}: {}](pictures/{name}.svg)", timeline.summary())
}

/// How many pass of two bursts at an hour's edge.
fn bursts() -> Result<Table, Box<dyn Error>> {
    let mut table = Table::new(
        "240 per hour: 200 requests at 6:59, 240 at 7:00",
        ["", "pass at 6:59", "at 7:00", "in all"],
    );
    for algorithm in ALGORITHMS {
        let [first, second] = edge::passed(&with_max(algorithm.limit, 240))?;
        let numbers = [first, second, first + second].map(|number| number.to_string());
        table.row([algorithm.name.to_owned()].into_iter().chain(numbers));
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> String {
        std::fs::read_to_string(folder().join("../ALGORITHMS.md")).unwrap()
    }

    #[test]
    fn the_pictures_are_those_of_the_algorithms_and_the_document_shows_them() {
        for (name, limit) in PICTURES {
            let timeline = Timeline::of(limit).unwrap();
            let there = std::fs::read_to_string(folder().join(name).with_extension("svg")).unwrap();
            assert!(there == svg::draw(limit, &timeline), "{name}: draw it again");
            let embedding = embedding(name, limit, &timeline);
            assert!(document().contains(&embedding), "the document lacks {embedding}");
        }
    }

    #[test]
    fn the_document_tells_how_much_of_two_bursts_passes() {
        for algorithm in ALGORITHMS {
            let limit = with_max(algorithm.limit, 240);
            let [first, second] = edge::passed(&limit).unwrap();
            let row = format!("| {} | `{limit}` | {} |", algorithm.name, first + second);
            assert!(document().contains(&row), "the document lacks {row}");
        }
    }
}
