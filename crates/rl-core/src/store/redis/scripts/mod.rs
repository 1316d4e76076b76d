//! The scripts that run on the server: their composition, their texts and their hashes.
//!
//! A script is the concatenation of these files of this folder:
//!
//! | script | files, after the one that sets the time |
//! |---|---|
//! | `decide` of a shape | `arguments`, `shape` (composed), packed states, `decide` |
//! | `decide` | `arguments`, packed states, `decide` |
//! | `refund` of a shape | `arguments`, `refund_shape` (composed), packed states, `change` |
//! | `reset` | `reset` |
//! | `notes` | `notes` |
//! | `reserve` | `arguments`, packed states, `reserve` with `decide` in a function |
//! | `reservation` | `arguments`, packed states, `reservation`, `change` |
//! | `readable` of a shape | `readable_shape` (composed), a function of `readable_counters` and `readable_part`, `parts` |
//! | `readable` | the same without `readable_shape` |
//! | `parts` of a list of shapes | `parts_shape` (composed), `parts_arguments`, a function of `arguments`, packed states and `part`, `parts` |
//! | `settle` | a function of `arguments`, packed states and `change`, `settle` |
//! | `readable_settle` | a function of `readable_counters` and `readable_change`, `settle` |
//!
//! *Packed states* are the algorithms and `slots`, which reads and writes the key of a subject. In
//! the script of a shape with logs, `sliding_log` precedes the fast path, which calls its
//! functions. `decide` and `part` both begin with `limits`.
//!
//! No number is part of a script's text: limits and costs are arguments. A script of a shape
//! depends on the kinds of a policy's limits, so policies share it. Scripts are hashed once. An
//! operator can load them before the service starts, and grant it the permission for `EVALSHA`
//! alone.
//!
//! The scripts run in Lua 5.1, the version of Redis, and in Lua 5.4, that of some servers with the
//! protocol of Redis. There `unpack` is a field of `table`, and to read an unknown global variable
//! is an error.

mod composer;
mod shapes;

use std::fmt;
use std::sync::LazyLock;

pub(super) use shapes::{ShapeScripts, of_shapes};

use super::encoding::Layout;
use super::encoding::kind::{LimitKind, ScriptShape, script_name};

/// The version of the scripts. It increases with every change of their behaviour.
const VERSION: u32 = 14;

/// The default for the maximum number of shapes with scripts of their own.
pub(super) const MAX_SHAPES: usize = 64;

/// The purpose of a script that is composed for the shapes of one policy, or of several parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Purpose {
    /// Checks in the packed layout.
    Decide,
    /// Refunds in the packed layout.
    Refund,
    /// Checks in the readable layout.
    DecideReadable,
    /// Checks of several parts in the packed layout.
    Parts,
}

impl Purpose {
    /// Returns the purposes for which a layout has scripts of one policy.
    pub(super) const fn of_layout(layout: Layout) -> &'static [Self] {
        match layout {
            Layout::Packed => &[Self::Decide, Self::Refund],
            Layout::Readable => &[Self::DecideReadable],
        }
    }
}

/// The source of the time in a script.
#[derive(Clone, Copy)]
struct TimeSource {
    /// Lua code that sets the variable `now`.
    time: &'static str,
    /// Lua code that defines when the keys of the readable layout expire.
    windows: &'static str,
}

impl TimeSource {
    /// Reads the two parts of a file, which a marker separates.
    fn new(text: &'static str) -> Self {
        let (time, windows) = text.split_once("--@ windows").expect("each file has two parts");
        Self { time, windows }
    }
}

/// The clock of the server.
const SERVER_TIME: &str = include_str!("lib/server_time.lua");

/// The time that the caller passes as the last argument, for tests that control the time.
#[cfg(feature = "conformance")]
const MANUAL_TIME: &str = include_str!("lib/manual_time.lua");

const RESET_TEXT: &str = include_str!("reset.lua");
const READABLE_COUNTERS: &str = include_str!("lib/readable_counters.lua");
const CHANGE: &str = include_str!("change.lua");
/// The last line of the scripts that change the counts of one subject.
const MAKE_CHANGE: &str = "return change()";
const ARGUMENTS: &str = include_str!("lib/arguments.lua");
const DECIDE_ANY: &str = concat!(include_str!("lib/limits.lua"), "\n", include_str!("decide.lua"));

const DECIDE_PARTS: &str = include_str!("parts.lua");
const PARTS_ARGUMENTS: &str = include_str!("parts_arguments.lua");
const PART: &str = concat!(include_str!("lib/limits.lua"), "\n", include_str!("part.lua"));
const READABLE_PART: &str = include_str!("readable_part.lua");

/// The first line of a script of several parts: the local variables that the code of all parts
/// uses.
const HEAD_OF_PARTS: &str =
    "local server_time, MAX_UNITS, LATEST = now, 9007199254740991, 4503599627370496";

/// The functions of logs. The fast path of a shape with logs needs them too.
const LOGS: &str = include_str!("algorithms/sliding_log.lua");

/// The algorithms, and the packed layout of their states.
static PACKED_STATES: LazyLock<String> =
    LazyLock::new(|| [LOGS, &PACKED_STATES_AFTER_LOGS].join("\n"));

/// The packed states without the functions of logs, for scripts that contain these already.
static PACKED_STATES_AFTER_LOGS: LazyLock<String> = LazyLock::new(|| {
    let algorithms = include_str!("lib/algorithms.lua");
    let algorithms = algorithms.replace("--@ table", &composer::table_of_algorithms());
    algorithms + include_str!("lib/slots.lua")
});

static DECIDE: LazyLock<Script> = LazyLock::new(|| Script::composed(Purpose::Decide, &[]));
static RESET: LazyLock<Script> =
    LazyLock::new(|| Script::new("reset", |source| [source.time, RESET_TEXT].join("\n")));
static NOTES: LazyLock<Script> = LazyLock::new(|| {
    Script::new("notes", |source| [source.time, include_str!("notes.lua")].join("\n"))
});
static RESERVE: LazyLock<Script> = LazyLock::new(|| {
    // `decide.lua` returns its reply, so `reserve.lua` has it in a function.
    let reserve = include_str!("reserve.lua").replace("--@ decide", DECIDE_ANY);
    Script::new("reserve", |source| [source.time, ARGUMENTS, &PACKED_STATES, &reserve].join("\n"))
});
static RESERVATION: LazyLock<Script> = LazyLock::new(|| {
    let reservation = include_str!("reservation.lua");
    Script::new("reservation", |source| {
        [source.time, ARGUMENTS, &PACKED_STATES, reservation, CHANGE, MAKE_CHANGE].join("\n")
    })
});
static SETTLE: LazyLock<Script> =
    LazyLock::new(|| settlement("settle", 3, |_| [ARGUMENTS, &PACKED_STATES, CHANGE].join("\n")));
static READABLE_SETTLE: LazyLock<Script> = LazyLock::new(|| {
    let change = include_str!("readable_change.lua");
    settlement("readable_settle", 2, |source| {
        [source.windows, READABLE_COUNTERS, change].join("\n")
    })
});
static ANY_PARTS: LazyLock<Script> = LazyLock::new(|| Script::composed(Purpose::Parts, &[]));
static READABLE: LazyLock<Script> =
    LazyLock::new(|| Script::composed(Purpose::DecideReadable, &[]));

/// Creates the script that makes changes of several subjects. `change` returns the code that reads
/// one of them, from this number of arguments.
///
/// The time is read before the counters. Otherwise the computed beginning of a readable window
/// could be later than the charge that opened it.
fn settlement(name: &str, arguments: usize, change: impl Fn(TimeSource) -> String) -> Script {
    let head = format!("local server_time, ARGUMENTS_OF_CHANGE = now, {arguments}");
    Script::new(name, |source| {
        [
            source.time,
            &head,
            "local function read_change(KEYS, ARGV, now)",
            &change(source),
            "return change",
            "end",
            include_str!("settle.lua"),
        ]
        .join("\n")
    })
}

/// Returns the script that decides one part under any policy, in the packed layout.
pub(super) fn decide() -> &'static Script {
    &DECIDE
}

/// Returns the script that decides requests with parts of any shapes.
pub(super) fn of_any_parts(layout: Layout) -> &'static Script {
    match layout {
        Layout::Packed => &ANY_PARTS,
        Layout::Readable => &READABLE,
    }
}

/// Returns the script that changes the counts of subjects outside a decision.
pub(super) fn settle(layout: Layout) -> &'static Script {
    match layout {
        Layout::Packed => &SETTLE,
        Layout::Readable => &READABLE_SETTLE,
    }
}

/// Returns the script that resets all limits of several subjects, in the packed layout.
pub(super) fn reset() -> &'static Script {
    &RESET
}

/// Returns the script that publishes and reads the notes of instances.
pub(super) fn notes() -> &'static Script {
    &NOTES
}

/// Returns the script that decides and reserves units, in the packed layout.
pub(super) fn reserve() -> &'static Script {
    &RESERVE
}

/// Returns the script that renews and settles reservations, in the packed layout.
pub(super) fn change_reservation() -> &'static Script {
    &RESERVATION
}

/// Returns the scripts of a layout that are not composed for a shape.
pub(super) fn of_layout(layout: Layout) -> Vec<&'static Script> {
    let mut scripts = vec![of_any_parts(layout), settle(layout), notes()];
    if layout == Layout::Packed {
        scripts.extend([decide(), reset(), reserve(), change_reservation()]);
    }
    scripts
}

/// A script that the store runs.
pub struct Script {
    name: String,
    text: String,
    sha: String,
    /// The same script with [`MANUAL_TIME`].
    #[cfg(feature = "conformance")]
    manual: Option<Box<Script>>,
}

impl Script {
    /// Joins the parts of a script, once for each source of time.
    fn new(name: &str, parts: impl Fn(TimeSource) -> String) -> Self {
        let name = name.to_owned();
        let compose = |source| {
            let parts = parts(source);
            let lines = parts.lines().map(str::trim);
            // Comments are removed, because the server keeps the text in its memory.
            let text: Vec<_> = lines.filter(|line| composer::is_code(line)).collect();
            let text = text.join("\n");
            let sha = redis::Script::new(&text).get_hash().to_owned();
            (text, sha)
        };
        let (text, sha) = compose(TimeSource::new(SERVER_TIME));
        #[cfg(feature = "conformance")]
        let manual = {
            let (text, sha) = compose(TimeSource::new(MANUAL_TIME));
            Some(Box::new(Self { name: name.clone(), text, sha, manual: None }))
        };
        Self {
            name,
            text,
            sha,
            #[cfg(feature = "conformance")]
            manual,
        }
    }

    /// Creates a script for these shapes: that of a policy, or one for each part. It has no fast
    /// path if there is no shape.
    fn composed(purpose: Purpose, shapes: &[ScriptShape]) -> Self {
        let shape = shapes.first().map_or(&[][..], |shape| shape);
        let has_logs = shape.iter().any(|limit| limit.kind.is_log());
        let (logs, states) =
            if has_logs { (LOGS, &PACKED_STATES_AFTER_LOGS) } else { ("", &PACKED_STATES) };
        match purpose {
            Purpose::Decide => {
                let fast_path = composer::fast_path(shape);
                Self::new(&script_name("decide", shape), |source| {
                    [source.time, ARGUMENTS, logs, &fast_path, states, DECIDE_ANY].join("\n")
                })
            }
            Purpose::Refund => {
                let fast_path = composer::refund_fast_path(shape);
                Self::new(&script_name("refund", shape), |source| {
                    let before = [source.time, ARGUMENTS, logs, &fast_path, states];
                    [&before.join("\n"), CHANGE, MAKE_CHANGE].join("\n")
                })
            }
            Purpose::DecideReadable => Self::readable(shape),
            Purpose::Parts => Self::of_parts(shapes),
        }
    }

    /// Creates the script of the packed layout with a fast path for parts of these shapes. It has
    /// no fast path if there are no shapes.
    fn of_parts(shapes: &[ScriptShape]) -> Self {
        let fast_path = composer::parts_fast_path(shapes);
        let name =
            shapes.iter().fold("parts".to_owned(), |name, shape| script_name(&name, shape) + ";");
        Self::new(&name, |source| {
            [
                source.time,
                HEAD_OF_PARTS,
                &fast_path,
                PARTS_ARGUMENTS,
                "local function read_part(KEYS, ARGV, now)",
                ARGUMENTS,
                &PACKED_STATES,
                PART,
                "end",
                DECIDE_PARTS,
                "return table.concat(replies)",
            ]
            .join("\n")
        })
    }

    /// Creates the script of the readable layout with a fast path for one part of this shape. It
    /// has no fast path if there is no limit.
    fn readable(shape: &[LimitKind]) -> Self {
        Self::new(&script_name("readable", shape), |source| {
            [
                source.windows,
                // The time is read last. Otherwise a charge could seem older than the window that
                // it opened.
                &composer::readable_fast_path(shape, source.time),
                "local server_time, flags = 0, ARGV[1]",
                "local function arguments_of(p)",
                "return { (table.unpack or unpack)(ARGV, 4 * p - 2, 4 * p + 1) }",
                "end",
                "local function read_part(KEYS, ARGV)",
                source.windows,
                READABLE_COUNTERS,
                READABLE_PART,
                "end",
                DECIDE_PARTS,
                source.time,
                "for p, part in ipairs(parts) do replies[p + 1] = part.reply(now) end",
                "return table.concat(replies)",
            ]
            .join("\n")
        })
    }

    /// Returns the name of the script: a word for its purpose, followed by its shape.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the version of the script's behaviour. Instances whose scripts have the
    /// same version may use one Redis server at the same time.
    #[must_use]
    pub const fn version(&self) -> u32 {
        VERSION
    }

    /// Returns the text, for `SCRIPT LOAD`.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the SHA-1 of the text in hexadecimal, for `EVALSHA`.
    #[must_use]
    pub fn sha(&self) -> &str {
        &self.sha
    }

    /// Returns the same script with the caller's time in place of the server's.
    #[cfg(feature = "conformance")]
    pub(super) fn with_manual_time(&self) -> &Self {
        self.manual.as_deref().unwrap_or(self)
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Script({} v{VERSION} {})", self.name, self.sha)
    }
}

#[cfg(test)]
mod tests {
    use super::super::encoding::kind::Kind;
    use super::super::encoding::policy;
    use super::*;

    /// `reset.lua` reads the states without the policies that they were stored under.
    #[test]
    fn a_reset_reads_states_of_the_present_version() {
        let comparison = format!("string.byte(found, 1) == {} ", policy::VERSION);
        assert!(RESET_TEXT.contains(&comparison), "{comparison}");
    }

    #[test]
    fn scripts_use_no_unpack_that_is_missing_in_lua_5_4() {
        let of = |kind| -> ScriptShape {
            [LimitKind { kind, counts_requests: false }].into_iter().collect()
        };
        let purposes = [Purpose::Decide, Purpose::Refund, Purpose::DecideReadable, Purpose::Parts];
        let of_shapes = Kind::ALL.into_iter().flat_map(|kind| {
            purposes.map(|purpose| Script::composed(purpose, &[of(kind)]).text().to_owned())
        });
        let of_layouts = [Layout::Packed, Layout::Readable].into_iter().flat_map(of_layout);
        for text in of_shapes.chain(of_layouts.map(|script| script.text().to_owned())) {
            let rest = text.replace("(table.unpack or unpack)", "").replace("struct.unpack", "");
            assert!(!rest.contains("unpack"), "{text}");
        }
    }

    #[test]
    fn parts_have_a_fast_path_as_far_as_lua_has_room_for_their_variables() {
        let of = |kind, limits: usize| -> ScriptShape {
            (0..limits).map(|_| LimitKind { kind, counts_requests: false }).collect()
        };
        for (shapes, fits) in [
            (vec![of(Kind::FixedWindow, 6), of(Kind::FixedWindow, 1), of(Kind::Gcra, 1)], true),
            (vec![of(Kind::FixedWindow, 14); 2], true),
            (vec![of(Kind::FixedWindow, 16); 3], false),
            (vec![of(Kind::SlidingWindow, 13), of(Kind::FixedWindow, 1)], true),
            (vec![of(Kind::SlidingWindow, 14), of(Kind::FixedWindow, 1)], false),
            (vec![of(Kind::Concurrency, 1), of(Kind::FixedWindow, 1)], false),
        ] {
            assert_eq!(composer::fits_parts_fast_path(&shapes), fits, "{shapes:?}");
        }
        let script = Script::of_parts(&[of(Kind::FixedWindow, 2), of(Kind::Gcra, 1)]);
        assert_eq!(script.name(), "parts 2*fixed_window; 1*gcra;");
        for line in [
            "used_2 = used_2 + units",
            "held_p2, last_p2, expires_p2, micros_3, fraction_3, since_3",
        ] {
            assert!(script.text().contains(line), "{}", script.text());
        }
        assert!(!script.text().contains("* PART") && !script.text().contains("--@"));
    }
}
