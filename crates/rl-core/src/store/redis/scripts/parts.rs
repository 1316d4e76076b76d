//! The scripts that decide requests of several parts.
//!
//! ```text
//! batch      time · several requests of a list of shapes
//! packed     time · fast path of a list of shapes
//!            · parts_arguments · read_part { arguments, stored, packed states, limits, part } · parts
//! readable   read_part { windows, readable limits, readable_part } · parts · time
//! ```

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError, RwLock};

use super::composer;
use super::{ARGUMENTS, PACKED_STATES, READABLE_LIMITS, STORED, Script};
use crate::store::redis::encoding::Layout;
use crate::store::redis::encoding::kind::{ScriptShape, script_name};

/// The shapes of the parts of a request, in their order.
pub(crate) type PartShapes = Vec<ScriptShape>;

const DECIDE_PARTS: &str = include_str!("parts.lua");
const PARTS_ARGUMENTS: &str = include_str!("parts_arguments.lua");
const PART: &str = concat!(include_str!("lib/limits.lua"), "\n", include_str!("part.lua"));
const READABLE_PART: &str = include_str!("readable_part.lua");

/// The first line of a script of several parts: the local variables that the code of all parts
/// uses.
const HEAD: &str = "local server_time, MAX_UNITS, LATEST = now, 9007199254740991, 4503599627370496";

static ANY_PARTS: LazyLock<Script> = LazyLock::new(|| packed(&[]));
static READABLE_PARTS: LazyLock<Script> = LazyLock::new(|| {
    Script::new("readable_parts", |source| {
        [
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
});

/// Scripts by the shapes for which they are composed.
type Composed = LazyLock<Mutex<HashMap<PartShapes, &'static Script>>>;
/// Returns the script for a list of shapes.
pub(crate) type ComposeScript = fn(&PartShapes) -> &'static Script;

static OF_SHAPES: Composed = LazyLock::new(Mutex::default);
static BATCHES: Composed = LazyLock::new(Mutex::default);

/// Returns the script that decides requests with parts of any shapes.
pub(crate) fn of_any_parts(layout: Layout) -> &'static Script {
    match layout {
        Layout::Packed => &ANY_PARTS,
        Layout::Readable => &READABLE_PARTS,
    }
}

/// Creates the script of the packed layout with a fast path for parts of these shapes. It has no
/// fast path if there are no shapes.
fn packed(shapes: &[ScriptShape]) -> Script {
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

/// Creates the script of the packed layout that decides several requests with parts of these
/// shapes.
fn batch(shapes: &[ScriptShape]) -> Script {
    let code = composer::parts_batch(shapes);
    let name =
        shapes.iter().fold("batch".to_owned(), |name, shape| script_name(&name, shape) + ";");
    Script::new(&name, |source| [source.time, HEAD, &code].join("\n"))
}

/// The scripts that a store uses for parts with certain shapes. Their number is bounded, because a
/// server keeps every script. Requests with other shapes are decided by the script for any shapes.
#[derive(Debug)]
pub(crate) struct PartScripts {
    most: usize,
    compose: ComposeScript,
    scripts: RwLock<HashMap<PartShapes, &'static Script>>,
}

impl PartScripts {
    /// Creates an empty set of scripts for at most `most` lists of shapes. `compose` creates each
    /// script when it is first needed.
    pub(crate) fn new(most: usize, compose: ComposeScript) -> Self {
        Self { most, compose, scripts: RwLock::default() }
    }

    /// Returns the script with a fast path for these shapes, or `None` if the maximum number of
    /// scripts is reached.
    pub(crate) fn get(&self, shapes: &PartShapes) -> Option<&'static Script> {
        let scripts = self.scripts.read().unwrap_or_else(PoisonError::into_inner);
        match scripts.get(shapes) {
            Some(script) => Some(script),
            None if scripts.len() >= self.most => None,
            None => {
                drop(scripts);
                self.add(shapes)
            }
        }
    }

    #[cold]
    fn add(&self, shapes: &PartShapes) -> Option<&'static Script> {
        let mut scripts = self.scripts.write().unwrap_or_else(PoisonError::into_inner);
        // Check again: before this lock was taken, another thread may have added this script, or
        // the last one that is allowed.
        let has_room = scripts.len() < self.most || scripts.contains_key(shapes);
        has_room.then(|| *scripts.entry(shapes.clone()).or_insert_with(|| (self.compose)(shapes)))
    }
}

/// Returns the scripts that decide one request, and several requests, with parts of these shapes.
/// There are none if Lua has no room for the variables.
pub(crate) fn of_parts(shapes: &PartShapes) -> Vec<&'static Script> {
    let fits = !shapes.is_empty() && composer::fits_parts_fast_path(shapes);
    if fits { vec![of_shapes(shapes), batch_of_shapes(shapes)] } else { Vec::new() }
}

/// Returns the script that decides a request with parts of these shapes.
pub(crate) fn of_shapes(shapes: &PartShapes) -> &'static Script {
    composed(&OF_SHAPES, shapes, |shapes| packed(shapes))
}

/// Returns the script that decides several requests with parts of these shapes.
pub(crate) fn batch_of_shapes(shapes: &PartShapes) -> &'static Script {
    composed(&BATCHES, shapes, |shapes| batch(shapes))
}

fn composed(
    scripts: &Composed,
    shapes: &PartShapes,
    compose: impl FnOnce(&PartShapes) -> Script,
) -> &'static Script {
    let mut scripts = scripts.lock().unwrap_or_else(PoisonError::into_inner);
    // Leaked, because scripts are used as long as the process runs. Each store bounds their number.
    let new = || -> &'static Script { Box::leak(Box::new(compose(shapes))) };
    scripts.entry(shapes.clone()).or_insert_with(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::encoding::kind::{Kind, LimitKind};

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
        for line in
            ["used_2 = used_2 + units", "local last_p2, expires_p2, micros_3, fraction_3, since_3"]
        {
            assert!(script.text().contains(line), "{}", script.text());
        }
        assert!(!script.text().contains("* PART") && !script.text().contains("--@"));
    }
}
