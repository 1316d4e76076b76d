//! The scripts that decide requests of several parts, and in the readable layout all requests.
//!
//! ```text
//! packed     time · fast path of a list of shapes
//!            · parts_arguments · read_part { arguments, stored, packed states, limits, part } · parts
//! readable   fast path of a shape · read_part { windows, readable limits, readable_part } · parts · time
//! ```

use std::sync::LazyLock;

use super::composer;
use super::{ARGUMENTS, PACKED_STATES, READABLE_LIMITS, STORED, Script};
use crate::store::redis::encoding::Layout;
use crate::store::redis::encoding::kind::{LimitKind, ScriptShape, script_name};

const DECIDE_PARTS: &str = include_str!("parts.lua");
const PARTS_ARGUMENTS: &str = include_str!("parts_arguments.lua");
const PART: &str = concat!(include_str!("lib/limits.lua"), "\n", include_str!("part.lua"));
const READABLE_PART: &str = include_str!("readable_part.lua");

/// The first line of a script of several parts: the local variables that the code of all parts
/// uses.
const HEAD: &str = "local server_time, MAX_UNITS, LATEST = now, 9007199254740991, 4503599627370496";

static ANY_PARTS: LazyLock<Script> = LazyLock::new(|| packed(&[]));
static READABLE: LazyLock<Script> = LazyLock::new(|| readable(&[]));

/// Returns the script that decides requests with parts of any shapes.
pub(crate) fn of_any_parts(layout: Layout) -> &'static Script {
    match layout {
        Layout::Packed => &ANY_PARTS,
        Layout::Readable => &READABLE,
    }
}

/// Creates the script of the packed layout with a fast path for parts of these shapes. It has no
/// fast path if there are no shapes.
pub(super) fn packed(shapes: &[ScriptShape]) -> Script {
    let fast_path = composer::parts_fast_path(shapes);
    let name =
        shapes.iter().fold("parts".to_owned(), |name, shape| script_name(&name, shape) + ";");
    Script::new(&name, |source| {
        [
            source.time,
            HEAD,
            &fast_path,
            PARTS_ARGUMENTS,
            "local function read_part(KEYS, ARGV, now)",
            ARGUMENTS,
            STORED,
            &PACKED_STATES,
            PART,
            "end",
            DECIDE_PARTS,
            "return table.concat(replies)",
        ]
        .join("\n")
    })
}

/// Creates the script of the readable layout with a fast path for one part of this shape. It has no
/// fast path if there is no limit.
pub(super) fn readable(shape: &[LimitKind]) -> Script {
    Script::new(&script_name("readable", shape), |source| {
        [
            source.windows,
            // The time is read last. Otherwise a charge could seem older than the window that it
            // opened.
            &composer::readable_fast_path(shape, source.time),
            "local server_time, flags = 0, ARGV[1]",
            "local function arguments_of(p) return { unpack(ARGV, 4 * p - 2, 4 * p + 1) } end",
            "local function read_part(KEYS, ARGV)",
            source.windows,
            READABLE_LIMITS,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::encoding::kind::Kind;

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
        let script = packed(&[of(Kind::FixedWindow, 2), of(Kind::Gcra, 1)]);
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
