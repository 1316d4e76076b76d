//! Pictures for the documents. They show the decisions of each algorithm on the same requests.

mod bars;
mod edge;
mod in_flight;
mod svg;
mod timeline;

use std::error::Error;
use std::path::{Path, PathBuf};

use in_flight::InFlight;
use timeline::Timeline;

use crate::algorithms::{ALGORITHMS, Algorithm, CONCURRENCY, PICTURES, with_max};
use crate::table::Table;

pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(folder())?;
    for picture in Picture::all()? {
        std::fs::write(picture.file(), &picture.svg)?;
        println!("{}", picture.embedding);
    }
    println!("\n{}", bursts()?);
    Ok(())
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../rl-core/docs/pictures")
}

struct Picture {
    name: &'static str,
    svg: String,
    /// The HTML that embeds the picture, with its numbers as a text.
    embedding: String,
}

impl Picture {
    fn all() -> Result<Vec<Self>, Box<dyn Error>> {
        let mut all = Vec::new();
        for (name, limit) in PICTURES {
            let timeline = Timeline::of(limit)?;
            all.push(Self::new(name, limit, svg::draw(limit, &timeline), &timeline.summary()));
        }
        let (name, limit) = CONCURRENCY;
        let in_flight = InFlight::of(limit)?;
        all.push(Self::new(name, limit, bars::draw(limit, &in_flight), &in_flight.summary()));
        Ok(all)
    }

    fn new(name: &'static str, limit: &str, svg: String, summary: &str) -> Self {
        Self { name, svg, embedding: format!("![{limit}: {summary}](pictures/{name}.svg)") }
    }

    fn file(&self) -> PathBuf {
        folder().join(self.name).with_extension("svg")
    }
}

/// Returns all algorithms except the one for concurrency, which has no window edge, each with a
/// limit of 240.
fn with_edges() -> impl Iterator<Item = (&'static Algorithm, String)> {
    let rates = ALGORITHMS.iter().filter(|algorithm| !algorithm.is_held);
    rates.map(|algorithm| (algorithm, with_max(algorithm.limit, 240)))
}

/// Returns a table of how many requests are allowed in two bursts around the edge of an hour.
fn bursts() -> Result<Table, Box<dyn Error>> {
    let mut table = Table::new(
        "240 per hour: 200 requests at 6:59, 240 at 7:00",
        ["", "pass at 6:59", "at 7:00", "in all"],
    );
    for (algorithm, limit) in with_edges() {
        let [first, second] = edge::passed(&limit)?;
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
        for picture in Picture::all().unwrap() {
            let there = std::fs::read_to_string(picture.file()).unwrap();
            assert!(there == picture.svg, "{}: draw it again", picture.name);
            let Picture { embedding, .. } = picture;
            assert!(document().contains(&embedding), "the document lacks {embedding}");
        }
    }

    #[test]
    fn the_document_states_how_much_of_two_bursts_is_allowed() {
        for (algorithm, limit) in with_edges() {
            let [first, second] = edge::passed(&limit).unwrap();
            let row = format!("| {} | `{limit}` | {} |", algorithm.name, first + second);
            assert!(document().contains(&row), "the document lacks {row}");
        }
    }
}
