//! Pictures for the documents. They show the decisions of each algorithm on the same requests, as
//! SVG: the requests at the top, and the usage of the limit at the bottom.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rl_core::time::{ManualClock, Timestamp};
use rl_core::{Algorithm, Limit, MaybeReady, MemoryStore, RateLimiter, Subject};

use crate::Result;
use crate::algorithms::{ALGORITHMS, CONCURRENCY, with_max};
use crate::report::Table;
use crate::svg::Svg;

/// The pictures: a name, which is also a heading in `ALGORITHMS.md`, and the limit that decides.
const PICTURES: [(&str, &str); 7] = [
    ("fixed-window", "10/minute"),
    ("sliding-log", "10/minute:sliding-log"),
    ("sliding-window", "10/minute:sliding-window:precision=10s"),
    ("sliding-window-counter", "10/minute:sliding-window-counter"),
    ("token-bucket", "10/minute:token-bucket"),
    ("gcra", "10/minute:gcra:burst=3"),
    ("concurrency", "4:concurrency"),
];

/// Seven in the evening, in seconds since the epoch.
const START: u64 = 1_769_886_000;
/// The step of a timeline in ms. Requests arrive at multiples of it, and the usage is read at
/// multiples of it.
const TICK: u64 = 100;
/// The period of every limit on rates that is drawn, in ms.
const MINUTE: u64 = 60_000;

/// The edges of the timeline, in px.
const LEFT: f64 = 48.0;
const RIGHT: f64 = 700.0;
/// The y position of the lowest request, and the distance between two in a column, in px.
const REQUESTS: f64 = 174.0;
const PITCH: f64 = 12.0;
/// The number of columns of requests.
const COLUMNS: u64 = 60;
/// The lower edge and the height of the area that shows the usage, in px.
const LEVELS: f64 = 310.0;
const HEIGHT: f64 = 110.0;

/// Colours for light and dark pages. The background is painted, so that text is readable on both.
const STYLE: &str = "\
text{font:13px system-ui,sans-serif;fill:#59636e}.name{font-size:17px;font-weight:600;fill:#1f2328}
.ground{fill:#fff}.grid{stroke:#d1d9e0}.max{stroke:#59636e;stroke-dasharray:5 4}
.edge{stroke:#59636e;stroke-dasharray:1 4;stroke-width:2}
.pass{fill:#0969da}.deny{fill:none;stroke:#cf222e;stroke-width:1.8}
.used{fill:#0969da;fill-opacity:.22}.minute{fill:none;stroke:#9a6700;stroke-width:2}
@media(prefers-color-scheme:dark){text{fill:#9198a1}.name{fill:#f0f6fc}.ground{fill:#0d1117}
.grid{stroke:#3d444d}.max,.edge{stroke:#9198a1}.pass{fill:#4493f8}.deny{stroke:#f85149}
.used{fill:#4493f8;fill-opacity:.3}.minute{stroke:#d29922}}";

/// The key to the marks of a picture.
const KEY: &str = r#"<circle class="pass" cx="21" cy="77" r="4.5"/><text x="31" y="82">admitted</text>
<circle class="deny" cx="107" cy="77" r="4"/><text x="117" y="82">denied</text>
<rect class="used" x="179" y="71" width="18" height="12"/><text x="202" y="82">used</text>"#;
const KEY_OF_MINUTE: &str = r#"<path class="minute" d="M250 77h18"/><text x="273" y="82">admitted in the last minute</text>"#;
const KEY_OF_MAX: &str =
    r#"<path class="max" d="M471 77h19"/><text x="495" y="82">most at once</text>"#;
const KEY_OF_EDGES: &str =
    r#"<path class="edge" d="M611 70v16"/><text x="620" y="82">window ends</text>"#;

/// Draws all pictures, and prints how they are embedded.
pub(crate) fn run() -> Result {
    for (name, limit) in PICTURES {
        let timeline = Timeline::new(limit)?;
        std::fs::write(file(name), timeline.svg())?;
        println!("{}", timeline.embedding(name));
    }
    println!("\n{}", bursts()?);
    Ok(())
}

fn file(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rl-core/docs/pictures");
    folder.join(name).with_extension("svg")
}

/// Returns all algorithms except the one for concurrency, which has no window edge, each with a
/// limit of 240.
fn with_edges() -> impl Iterator<Item = (&'static str, String)> {
    let rates = ALGORITHMS.into_iter().filter(|(name, _)| *name != CONCURRENCY);
    rates.map(|(name, limit)| (name, with_max(limit, 240)))
}

/// Returns a table of how many requests are allowed in two bursts around the edge of an hour.
fn bursts() -> Result<Table> {
    let title = "240 per hour: 200 requests at 6:59, 240 at 7:00";
    let mut table = Table::new(title, ["", "pass at 6:59", "at 7:00", "in all"]);
    for (name, limit) in with_edges() {
        let [first, second] = passed(&limit)?;
        table.row(name, [first, second, first + second].map(|count| count as f64));
    }
    Ok(table)
}

/// Makes 200 requests at 6:59 and 240 at 7:00 under `limit`. Returns how many of the 200 and of the
/// 240 are allowed.
fn passed(limit: &str) -> Result<[usize; 2]> {
    let simulated = SimulatedLimiter::new(limit)?;
    Ok([(START - 60, 200), (START, 240)].map(|(second, requests)| {
        simulated.set(second * 1_000);
        let check =
            |_: &usize| at_once(simulated.limiter.check(&simulated.subject, 1)).is_allowed();
        (0..requests).filter(check).count()
    }))
}

/// A limiter with one limit and one subject, on a manual clock.
struct SimulatedLimiter {
    clock: Arc<ManualClock>,
    limiter: RateLimiter,
    subject: Subject,
}

impl SimulatedLimiter {
    fn new(limit: &str) -> Result<Self> {
        let clock = Arc::new(ManualClock::default());
        let store = MemoryStore::builder().clock(Arc::clone(&clock)).build();
        let limiter = RateLimiter::builder().limit(limit.parse()?).store(store).build()?;
        Ok(Self { clock, limiter, subject: Subject::consumer("alice") })
    }

    /// Sets the clock to a time in ms since the epoch.
    fn set(&self, millis: u64) {
        self.clock.set(Timestamp::from_micros(millis * 1_000));
    }
}

fn at_once<T>(answer: MaybeReady<T>) -> T {
    match answer {
        MaybeReady::Ready(Some(answer)) => answer,
        _ => unreachable!("decisions in memory are there at once"),
    }
}

/// A request. Times are milliseconds since the beginning.
#[derive(Clone, Copy, Debug)]
struct TimedRequest {
    at: u64,
    /// The time at which the request ends, or its process dies.
    until: u64,
    dies: bool,
    passed: bool,
}

/// A group of requests: a name, the times at which they arrive, and their duration. Times are in
/// ms.
type Group = (&'static str, Vec<u64>, u64);

const DIES: &str = "one whose process dies after two seconds";

/// Returns the requests under a limit on rates, or under a limit on concurrency.
fn groups(is_rate: bool) -> Vec<Group> {
    let times = |begin: u64, step, count| (begin..).step_by(step).take(count).collect();
    if is_rate {
        return vec![
            ("the first request", vec![0], 0),
            ("a burst before 1:00", times(54_300, 600, 10), 0),
            ("a burst after 1:00", times(60_300, 600, 10), 0),
            ("steady traffic of twice the rate", times(73_500, 3_000, 36), 0),
        ];
    }
    // Every request is shorter than a lease, because leases are not renewed on a manual clock.
    vec![
        ("requests that are over before the next one comes", times(1_000, 2_000, 5), 1_500),
        ("ten within two seconds", times(13_000, 200, 10), 3_000),
        ("one each second, of six seconds", times(18_000, 1_000, 12), 6_000),
        (DIES, times(36_000, 1, 1), 2_000),
        ("one each second, of three and a half", times(37_000, 1_000, 20), 3_500),
    ]
}

/// A number over time: pairs of a time, and the number from this time on.
type Levels = Vec<(u64, u64)>;

/// The requests, the decisions, and the usage of the limit.
struct Timeline {
    limit: Limit,
    text: String,
    /// The duration in ms.
    end: u64,
    requests: Vec<TimedRequest>,
    used: Levels,
    /// The number of requests that were allowed in the last minute.
    in_minute: Levels,
    /// The times at which fixed windows end.
    edges: Vec<u64>,
}

impl Timeline {
    /// Decides the requests under `limit`.
    fn new(text: &str) -> Result<Self> {
        let (limit, simulated): (Limit, _) = (text.parse()?, SimulatedLimiter::new(text)?);
        let is_rate = !matches!(limit.algorithm(), Algorithm::Concurrency);
        let end = if is_rate { 3 * MINUTE } else { MINUTE };
        let (requests, used, in_minute, edges) = Default::default();
        let mut timeline =
            Self { limit, text: text.to_owned(), end, requests, used, in_minute, edges };
        let mut permits = Vec::new();
        for at in (0..=end).step_by(TICK as usize) {
            simulated.set(START * 1_000 + at);
            for (request, permit) in
                permits.extract_if(.., |(request, _): &mut (TimedRequest, _)| request.until <= at)
            {
                if request.dies {
                    // Forgetting the permit simulates a process that dies without releasing it.
                    std::mem::forget(permit);
                }
            }
            for (name, times, lasts) in groups(is_rate) {
                for _ in times.iter().filter(|time| **time == at) {
                    let permit = at_once(simulated.limiter.acquire(&simulated.subject, 1));
                    let passed = permit.decision().is_allowed();
                    let request =
                        TimedRequest { at, until: at + lasts, dies: name == DIES, passed };
                    timeline.requests.push(request);
                    permits.push((request, permit));
                }
            }
            let usage = at_once(simulated.limiter.usage(&simulated.subject))?;
            let limit = usage.limits().next().ok_or("a policy has a limit")?;
            let is_recent = |request: &&TimedRequest| request.passed && at - request.at < MINUTE;
            push_change(&mut timeline.used, at, limit.used());
            let recent = timeline.requests.iter().filter(is_recent).count() as u64;
            push_change(&mut timeline.in_minute, at, recent);
            let edge = at + u64::try_from(limit.reset_after().as_millis()).unwrap_or(u64::MAX);
            let has_edges = matches!(timeline.limit.algorithm(), Algorithm::FixedWindow { .. });
            if has_edges && limit.is_active() && edge <= end && timeline.edges.last() != Some(&edge)
            {
                timeline.edges.push(edge);
            }
        }
        Ok(timeline)
    }

    const fn is_rate(&self) -> bool {
        self.end > MINUTE
    }

    /// Returns the numbers of the picture in a sentence.
    fn summary(&self) -> String {
        let passed = self.requests.iter().filter(|request| request.passed).count();
        let (levels, span) = if self.is_rate() {
            (&self.in_minute, "in any minute")
        } else {
            (&self.used, "at once")
        };
        let most = levels.iter().map(|(_, level)| *level).max().unwrap_or_default();
        format!("{passed} of {} requests admitted, at most {most} {span}", self.requests.len())
    }

    /// Returns the numbers of each group of requests.
    fn details(&self) -> String {
        let mut requests = self.requests.iter();
        let detail = |(name, times, _): Group| {
            let passed = requests.by_ref().take(times.len()).filter(|request| request.passed);
            format!("{name}, {} of {} admitted", passed.count(), times.len())
        };
        groups(self.is_rate()).into_iter().map(detail).collect::<Vec<_>>().join("; ")
    }

    fn embedding(&self, name: &str) -> String {
        format!("![{}: {}](pictures/{name}.svg)", self.text, self.summary())
    }

    /// Returns the horizontal position of a time, in px.
    fn x(&self, at: u64) -> f64 {
        LEFT + (RIGHT - LEFT) * at as f64 / self.end as f64
    }

    /// Returns the vertical position of a level, in px.
    fn y(&self, level: u64) -> f64 {
        LEVELS - HEIGHT * level as f64 / (2 * self.limit.capacity().max(self.limit.max())) as f64
    }

    /// Draws a line of steps: vertical at each change, horizontal in between.
    fn steps(&self, levels: &Levels) -> String {
        let step = |(at, level): &(u64, u64)| format!("H{:.1}V{:.1}", self.x(*at), self.y(*level));
        levels.iter().map(step).collect::<String>() + &format!("H{RIGHT}")
    }

    fn svg(&self) -> String {
        let (limit, summary) = (&self.text, self.summary());
        let (title, seconds) = (format!("{limit}: {summary}"), self.end / 1_000);
        let described = format!("Requests over {seconds} s: {}.", self.details());
        let mut svg = Svg::new((720.0, 340.0), &title, &described, STYLE, limit);
        svg.text(16.0, 51.0, &summary);
        svg.add(KEY);
        let minute = if self.is_rate() { KEY_OF_MINUTE } else { "" };
        svg.add(format_args!("{minute}{KEY_OF_MAX}"));
        svg.add(if self.edges.is_empty() { "" } else { KEY_OF_EDGES });
        for at in (0..=self.end).step_by(self.end as usize / 6) {
            let (x, seconds) = (self.x(at), at / 1_000);
            svg.path("grid", format_args!("M{x:.1} 104V{LEVELS}"));
            svg.below(x, 330.0, format_args!("{}:{:02}", seconds / 60, seconds % 60));
        }
        let most = self.limit.capacity().max(self.limit.max());
        for level in [0, most, 2 * most] {
            svg.path("grid", format_args!("M{LEFT} {:.1}H{RIGHT}", self.y(level)));
            svg.level(40.0, self.y(level), level);
        }
        let top = self.y(2 * most);
        for edge in &self.edges {
            svg.path("edge", format_args!("M{:.1} {top}V{LEVELS}", self.x(*edge)));
        }
        // Requests in the same column are stacked, with the first one at the bottom.
        let width = self.end / COLUMNS;
        for requests in self.requests.chunk_by(|one, other| one.at / width == other.at / width) {
            let x = self.x(requests[0].at / width * width + width / 2);
            for (below, request) in requests.iter().enumerate() {
                let (class, r) = if request.passed { ("pass", 4.5) } else { ("deny", 4.0) };
                svg.circle(class, x, REQUESTS - PITCH * below as f64, r);
            }
        }
        let (used, max) = (self.steps(&self.used), self.y(self.limit.capacity()));
        svg.path("used", format_args!("M{LEFT} {LEVELS}{used}V{LEVELS}Z"));
        svg.path("max", format_args!("M{LEFT} {max:.1}H{RIGHT}"));
        if self.is_rate() {
            svg.path("minute", format_args!("M{LEFT} {LEVELS}{}", self.steps(&self.in_minute)));
        }
        svg.finish()
    }
}

/// Adds a level if it differs from the last one.
fn push_change(levels: &mut Levels, at: u64, level: u64) {
    if levels.last().is_none_or(|(_, last)| *last != level) {
        levels.push((at, level));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> String {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../rl-core/docs/ALGORITHMS.md");
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn the_document_shows_the_pictures_of_the_algorithms() {
        for (name, limit) in PICTURES {
            let timeline = Timeline::new(limit).unwrap();
            let there = std::fs::read_to_string(file(name)).unwrap();
            assert!(there == timeline.svg(), "{name}: draw it again");
            let embedding = timeline.embedding(name);
            assert!(document().contains(&embedding), "the document lacks {embedding}");
        }
    }

    #[test]
    fn the_document_states_how_much_of_two_bursts_is_allowed() {
        for (name, limit) in with_edges() {
            let [first, second] = passed(&limit).unwrap();
            let row = format!("| {name} | `{limit}` | {} |", first + second);
            assert!(document().contains(&row), "the document lacks {row}");
        }
        assert_eq!(passed("240/hour:gcra:burst=20").unwrap(), [20, 4]);
    }

    #[test]
    fn a_fixed_window_allows_twice_its_max_around_an_edge() {
        let timeline = Timeline::new("10/minute").unwrap();
        assert_eq!((timeline.requests.len(), &timeline.edges[..]), (57, &[60_000, 120_300][..]));
        // Nine requests of the burst before the edge are allowed, because the first request has
        // used one unit. All ten of the burst after the edge are allowed.
        assert!(timeline.summary().ends_with("at most 19 in any minute"));
    }

    #[test]
    fn a_permit_of_a_dead_process_is_free_when_its_lease_ends() {
        let timeline = Timeline::new("4:concurrency").unwrap();
        let denied = |from: u64, to: u64| {
            let came =
                |request: &&TimedRequest| (from..to).contains(&request.at) && !request.passed;
            timeline.requests.iter().filter(came).count()
        };
        assert_eq!((denied(37_000, 46_000), denied(46_000, MINUTE)), (2, 0));
    }
}
