//! Composes scripts from the parts of the algorithms.
//!
//! Each file of `algorithms/` describes an algorithm once, in parts. The composer makes two things
//! of the parts:
//!
//! * the *fast path* of a shape: `shape.lua`, written out for the limits of a policy, without a
//!   loop, a table or a closure over them
//! * the *table of algorithms*, with which the other scripts handle any policy
//!
//! ```text
//! part        left_i = left_i - gone
//!             if left_i <= 0 then left_i, used_i = 0, 0 end
//!
//! fast path   left_1 = left_1 - gone
//!             if left_1 <= 0 then left_1, used_1 = 0, 0 end
//!             left_2 = left_2 - gone
//!             if left_2 <= 0 then left_2, used_2 = 0, 0 end
//!
//! table       algorithms[0] = function(operation, slot, units, when)
//!               local period_i, max_i = slot.period, slot.max
//!               local left_i, used_i = slot[1], slot[2]
//!               …
//!               left_i = left_i - gone
//! ```

use std::sync::LazyLock;

use super::super::encoding::kind::{Kind, LimitKind, ScriptShape};

const FAST_PATH: &str = include_str!("shape.lua");
const READABLE_FAST_PATH: &str = include_str!("readable_shape.lua");
const PARTS_FAST_PATH: &str = include_str!("parts_shape.lua");
const REFUND_FAST_PATH: &str = include_str!("refund_shape.lua");

/// The maximum number of registers that the cells and constants of a fast path may take. A function
/// in Lua has 250, of which 200 may hold local variables. The rest of a fast path needs about 45.
const MAX_REGISTERS: usize = 190;

/// The operations of an algorithm, with the variable that each returns.
///
/// The function of an algorithm compares them in this order, so the most frequent ones come first.
const OPERATIONS: [(&str, &str); 6] = [
    ("available", "available"),
    ("charge", ""),
    ("advance", ""),
    ("valid", "is_ours"),
    ("refund", ""),
    ("lasts", "lasts"),
];

/// The parts of the algorithms, in the order of their kinds.
static ALGORITHMS: LazyLock<Vec<AlgorithmParts>> =
    LazyLock::new(|| Kind::ALL.into_iter().map(AlgorithmParts::new).collect());

/// The parts of an algorithm.
struct AlgorithmParts {
    kind: Kind,
    cells: Vec<&'static str>,
    constants: Vec<&'static str>,
    /// The lines of each part, without comments.
    parts: Vec<(&'static str, Vec<String>)>,
}

impl AlgorithmParts {
    fn new(kind: Kind) -> Self {
        let (text, window_end) = match kind {
            Kind::FixedWindow => (include_str!("algorithms/fixed_window.lua"), ""),
            Kind::ClockWindow => (
                include_str!("algorithms/clock_window.lua"),
                "now - (now + alignment_i) % period_i + period_i",
            ),
            Kind::MonthWindow => (
                include_str!("algorithms/clock_window.lua"),
                "month_end(now - alignment_i) + alignment_i",
            ),
            Kind::WindowCounter => (include_str!("algorithms/sliding_window_counter.lua"), ""),
            Kind::SlidingWindow => (include_str!("algorithms/sliding_window.lua"), ""),
            Kind::Gcra => (include_str!("algorithms/gcra.lua"), ""),
            Kind::IntervalBucket => (include_str!("algorithms/token_bucket.lua"), ""),
            Kind::SlidingLog | Kind::Concurrency => (include_str!("algorithms/short_log.lua"), ""),
        };
        let (mut cells, mut constants, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        for line in text.lines() {
            match line.strip_prefix("--@ ").map(|words| words.split_once(' ')) {
                Some(Some(("cells", names))) => cells = names.split(' ').collect(),
                Some(Some((_, names))) => constants = names.split(' ').collect(),
                Some(None) => parts.push((&line["--@ ".len()..], Vec::new())),
                None if is_code(line) => {
                    if let Some((_, lines)) = parts.last_mut() {
                        lines.push(line.replace("WINDOW_END", window_end));
                    }
                }
                None => {}
            }
        }
        Self { kind, cells, constants, parts }
    }

    fn of(kind: Kind) -> &'static Self {
        &ALGORITHMS[kind as usize]
    }

    fn part(&self, name: &str) -> &[String] {
        self.parts.iter().find(|(part, _)| *part == name).map_or(&[], |(_, lines)| lines)
    }

    /// Returns the Lua functions that the parts call.
    fn helpers(&self) -> String {
        let month = if self.kind == Kind::MonthWindow { self.part("month") } else { &[] };
        [self.part("helpers"), month].concat().join("\n")
    }

    /// Returns the entry of the algorithm in the table of algorithms: a Lua function that takes an
    /// operation.
    fn function(&self) -> String {
        let with_suffix = |names: &[&str]| {
            names.iter().map(|name| format!("{name}_i")).collect::<Vec<_>>().join(", ")
        };
        let constants =
            ["slot.period", "slot.max", "slot.extra"][..self.constants.len()].join(", ");
        let slot: Vec<_> = (1..=self.cells.len()).map(|cell| format!("slot[{cell}]")).collect();
        let (names, slot) = (with_suffix(&self.cells), slot.join(", "));
        let mut lines = vec![
            format!("cell_counts[{}] = {}", self.kind as u8, self.cells.len()),
            format!("algorithms[{}] = function(operation, slot, units, when)", self.kind as u8),
            format!("local {} = {constants}", with_suffix(&self.constants)),
            format!("local {names} = {slot}"),
            "local is_ours, available, lasts = true, 0, 0".to_owned(),
        ];
        for (operation, result) in OPERATIONS {
            lines.push(format!("if operation == '{operation}' then"));
            if matches!(operation, "charge" | "refund") {
                lines.extend_from_slice(self.part("exact"));
            }
            lines.extend_from_slice(self.part(operation));
            // The other operations only read the cells.
            if matches!(operation, "advance" | "charge" | "refund") {
                lines.push(format!("{slot} = {names}"));
            }
            lines.push(format!("return {result}"));
            lines.push("end".to_owned());
        }
        lines.push("end".to_owned());
        lines.join("\n")
    }
}

/// Returns the functions of all algorithms except logs, with the functions that they call.
/// `sliding_log.lua` has those of logs.
pub(super) fn table_of_algorithms() -> String {
    let kinds: Vec<_> = Kind::ALL.into_iter().filter(|kind| !kind.is_log()).collect();
    let functions = kinds.iter().map(|kind| AlgorithmParts::of(*kind).function());
    helpers(&kinds) + &functions.collect::<Vec<_>>().join("\n")
}

/// Returns the functions that the parts of these algorithms call, without repetitions.
fn helpers(kinds: &[Kind]) -> String {
    let mut helpers: Vec<String> = Vec::new();
    for text in kinds.iter().map(|kind| AlgorithmParts::of(*kind).helpers()) {
        if !text.is_empty() && !helpers.contains(&text) {
            helpers.push(text);
        }
    }
    helpers.iter().map(|text| format!("{text}\n")).collect()
}

/// Returns whether Lua can compile a fast path for limits of these kinds.
pub(super) fn can_compose(limits: &[LimitKind]) -> bool {
    let registers = |limit: &LimitKind| {
        let AlgorithmParts { cells, constants, .. } = AlgorithmParts::of(limit.kind);
        let of_entries = if limit.kind.is_log() { 3 } else { 0 };
        // A cell takes two registers: one as a variable, and one as an argument of `struct.pack`.
        2 * cells.len() + constants.len() + of_entries
    };
    limits.iter().map(registers).sum::<usize>() <= MAX_REGISTERS
}

/// Returns the fast path of checks for limits of these kinds, or an empty text if `limits` is
/// empty.
pub(super) fn fast_path(limits: &[LimitKind]) -> String {
    with_helpers(FAST_PATH, limits)
}

/// Returns the fast path of refunds for limits of these kinds, or an empty text if `limits` is
/// empty.
pub(super) fn refund_fast_path(limits: &[LimitKind]) -> String {
    with_helpers(REFUND_FAST_PATH, limits)
}

fn with_helpers(template: &str, limits: &[LimitKind]) -> String {
    let kinds: Vec<_> = limits.iter().map(|limit| limit.kind).collect();
    if limits.is_empty() {
        String::new()
    } else {
        helpers(&kinds) + &written_out(template, limits, 1)
    }
}

/// Returns the fast path of checks in the readable layout. `time` are the lines that read the time.
pub(super) fn readable_fast_path(limits: &[LimitKind], time: &str) -> String {
    match limits {
        [] => String::new(),
        _ => written_out(READABLE_FAST_PATH, limits, 1).replace("--@ time", time),
    }
}

/// Returns whether Lua can compile a fast path for parts with these shapes. Parts with logs have no
/// fast path.
pub(super) fn fits_parts_fast_path(shapes: &[ScriptShape]) -> bool {
    const MAX_VARIABLES: usize = 150;
    let limits = || shapes.iter().flatten().map(|limit| AlgorithmParts::of(limit.kind));
    let of_limits = limits().map(|parts| parts.cells.len() + parts.constants.len()).sum::<usize>();
    let variables = of_limits + 8 * shapes.len();
    // The cells of a part are also arguments of one call of `struct.pack`, and each argument takes
    // a register. The calls follow one another, so only the part with the most cells counts.
    let cells = |shape: &ScriptShape| -> usize {
        shape.iter().map(|limit| AlgorithmParts::of(limit.kind).cells.len()).sum()
    };
    let arguments = shapes.iter().map(cells).max().unwrap_or(0);
    variables <= MAX_VARIABLES
        && variables + arguments <= MAX_REGISTERS
        && !limits().any(|parts| parts.kind.is_log())
}

/// Returns the fast path for checks of parts with these shapes, or an empty text if `shapes` is
/// empty.
pub(super) fn parts_fast_path(shapes: &[ScriptShape]) -> String {
    if shapes.is_empty() {
        return String::new();
    }
    let kinds: Vec<_> = shapes.iter().flatten().map(|limit| limit.kind).collect();
    let mut script = helpers(&kinds);
    let is_read = |line: &&str| is_code(line) || line.trim_start().starts_with("--@");
    let lines: Vec<_> = PARTS_FAST_PATH.lines().filter(is_read).map(str::trim).collect();
    let template = lines.join("\n").replace("PARTS", &shapes.len().to_string()) + "\n";
    for (index, section) in template.split("--@ parts\n").enumerate() {
        let (of_parts, rest) = match section.split_once("--@ end parts\n") {
            Some((of_parts, rest)) if index > 0 => (of_parts, rest),
            _ => ("", section),
        };
        let mut first = 1;
        for (number, shape) in (1..).zip(shapes) {
            let has_buckets = shape.iter().any(|limit| limit.kind == Kind::SlidingWindow);
            let bucket_size = if has_buckets { "string.byte(shape_pPART, 2)" } else { "0" };
            let of_part = of_parts.replace("BUCKET_SIZE", bucket_size);
            let of_part = of_part.replace("PART", &number.to_string());
            script.push_str(&written_out(&of_part, shape, first));
            first += shape.len();
        }
        script.push_str(rest);
    }
    script
}

/// Writes a template out for these limits. `first` is the number of the first limit.
fn written_out(template: &str, limits: &[LimitKind], first: usize) -> String {
    let logs = limits.iter().filter(|limit| limit.kind.is_log()).count();
    let has_buckets = limits.iter().any(|limit| limit.kind == Kind::SlidingWindow);
    let mut script = String::new();
    let is_read = |line: &&str| is_code(line) || line.trim_start().starts_with("--@");
    let mut lines = template.lines().filter(is_read);
    while let Some(line) = lines.next() {
        if line.trim() == "--@ each" {
            let block: Vec<_> =
                lines.by_ref().take_while(|line| line.trim() != "--@ end").collect();
            // The first key is that of the subject's state. The keys of logs follow.
            let mut log_key = 2;
            for (number, limit) in (first..).zip(limits) {
                push_block(&mut script, &block, *limit, number, log_key);
                log_key += usize::from(limit.kind.is_log());
            }
        } else {
            let line = line.trim();
            let line = match line.strip_prefix("--@ ").and_then(|line| line.split_once(' ')) {
                Some(("logs", line)) if logs > 0 => line,
                Some(("buckets", line)) if has_buckets => line,
                Some(("logs" | "buckets", _)) => continue,
                _ => line,
            };
            let line = line.replace("LIMITS", &limits.len().to_string());
            let line = line.replace("LOGS", &logs.to_string());
            script.push_str(&with_lists(&line, limits, first));
            script.push('\n');
        }
    }
    script
}

/// Appends the lines of a block for the limit with this number. If it is a log, `log_key` is the
/// index of the key of its sealed blocks.
fn push_block(
    script: &mut String,
    block: &[&str],
    limit: LimitKind,
    number: usize,
    log_key: usize,
) {
    let (cost, text) = if limit.counts_requests { ("1", "'1'") } else { ("cost", "units") };
    for line in block {
        let part = line.trim().strip_prefix("--@ part ");
        let part = part.map(|part| AlgorithmParts::of(limit.kind).part(part));
        let line = [(*line).to_owned()];
        for line in part.unwrap_or(&line) {
            let line = line.replace("COST", cost).replace("TEXT", text);
            let line = line.replace("INDEX", &number.to_string());
            let line = line.replace("LOG_KEY", &log_key.to_string());
            script.push_str(&with_number(&line, number));
            script.push('\n');
        }
    }
}

/// Writes out the lists of a line, which stand between `<<` and `>>`. A list is written once for
/// each limit, with the number of the limit after each name.
///
/// * `<<used, left>>` becomes `used_1, left_1, used_2, left_2`.
/// * `<<cells>>` and `<<constants>>` become the names that the algorithms list, and `<<zeros>>` a 0
///   for each cell.
/// * `<<I7 cells>>` becomes the format `I7` for each name.
/// * `<<.. text>>` becomes Lua code that joins the values, with commas between them.
fn with_lists(line: &str, limits: &[LimitKind], first: usize) -> String {
    let mut parts = line.split("<<");
    let mut written = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (list, rest) = part.split_once(">>").unwrap_or((part, ""));
        let (kind, list) = match list.split_once(' ') {
            Some((kind @ ("I7" | ".."), list)) => (kind, list),
            _ => ("", list),
        };
        let mut items = Vec::new();
        for (number, limit) in (first..).zip(limits) {
            let parts = AlgorithmParts::of(limit.kind);
            let names = match list {
                "cells" => parts.cells.clone(),
                "constants" => parts.constants.clone(),
                "zeros" => vec!["0"; parts.cells.len()],
                names => names.split(", ").collect(),
            };
            let is_number = list == "zeros";
            items.extend(names.iter().map(|name| match is_number {
                true => (*name).to_owned(),
                false => format!("{name}_{number}"),
            }));
        }
        match kind {
            "I7" => written.push_str(&"I7".repeat(items.len())),
            ".." => written.push_str(&items.join(" .. ',' .. ")),
            _ => written.push_str(&items.join(", ")),
        }
        written.push_str(rest);
    }
    written
}

/// Replaces the suffix `_i` of names by the number of a limit.
fn with_number(line: &str, number: usize) -> String {
    let mut rest = line;
    let mut numbered = String::with_capacity(line.len() + 8);
    while let Some(place) = rest.find("_i") {
        let (before, after) = rest.split_at(place + "_i".len());
        let is_suffix =
            !after.starts_with(|next: char| next.is_ascii_alphanumeric() || next == '_');
        match before.strip_suffix("_i") {
            Some(name) if is_suffix => {
                numbered.push_str(name);
                numbered.push_str(&format!("_{number}"));
            }
            _ => numbered.push_str(before),
        }
        rest = after;
    }
    numbered + rest
}

/// Returns whether a line contains code.
pub(super) fn is_code(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !line.starts_with("--")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fast_path_has_the_parts_of_each_limit_in_order() {
        let window = LimitKind { kind: Kind::FixedWindow, counts_requests: false };
        let gcra = LimitKind { kind: Kind::Gcra, counts_requests: true };
        let script = fast_path(&[window, gcra]);
        for line in [
            "local times, least, cost, size, period_1, max_1, period_2, max_2, burst_2 = struct.unpack('>I2I2I7I2I7I7I7I7I7', plan, 6)",
            "head, last, left_1, used_1, micros_2, fraction_2, since_2 = read(format, stored)",
            "available = max_1 - used_1",
            "if available < cost * allowed then allowed = (available - available % cost) / cost end",
            "if available < 1 * allowed then allowed = (available - available % 1) / 1 end",
        ] {
            let found = script.lines().filter(|found| found.trim() == line).count();
            assert_eq!(found, 1, "{line}\n{script}");
        }
        assert!(
            !script.contains("--") && !script.contains("<<") && !script.contains("_i "),
            "{script}"
        );
        assert_eq!(script.matches("local function gcra_available").count(), 1);
    }

    #[test]
    fn only_whole_suffixes_are_numbered() {
        assert_eq!(
            with_number("a_i, is_ours = b_i(x_id, _i_i)", 3),
            "a_3, is_ours = b_3(x_id, _i_3)"
        );
    }

    #[test]
    fn each_algorithm_has_all_parts() {
        for algorithm in ALGORITHMS.iter().filter(|algorithm| !algorithm.kind.is_log()) {
            for part in ["advance", "available", "charge", "refund", "lasts"] {
                assert!(!algorithm.part(part).is_empty(), "{:?}: {part}", algorithm.kind);
            }
        }
    }
}
