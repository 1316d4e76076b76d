//! The scripts that run on the server: their composition, their texts and their hashes.
//!
//! A script is the concatenation of the files of this folder that it needs:
//!
//! | script | files, after the one that sets the time |
//! |---|---|
//! | `decide` | `fixed_windows/unrolled` (expanded), `fixed_windows/loop`, `stored`, packed states, `decide` |
//! | `amend` | `forget`, `stored`, packed states, `amend` |
//! | `reserve` | `stored`, packed states, `expired`, `decide` (as a function), `reserve` |
//! | `reservation` | `stored`, packed states, `reservation`, `amend` |
//! | `readable` | `readable_counters`, `readable`, `readable_reply` |
//! | `readable_refund` | `readable_counters`, `readable_refund` |
//!
//! *Packed states* stands for the algorithms and `slots`, which reads and writes the key of a
//! subject. The text of a script depends on no request and no policy. So it is hashed once, and an
//! operator can load it ahead of the service and grant `EVALSHA` alone.

mod unrolling;

use std::fmt;
use std::sync::LazyLock;

use super::encoding::Layout;

/// The version of the scripts. Increased with every change of their behaviour.
const VERSION: u32 = 6;

/// Where a script takes the time from.
#[derive(Clone, Copy)]
struct TimeSource {
    /// Sets the variable `now`.
    time: &'static str,
    /// Defines when the keys of the readable layout expire.
    windows: &'static str,
}

/// The clock of the server.
const SERVER_TIME: TimeSource = TimeSource {
    time: include_str!("lib/server_time.lua"),
    windows: include_str!("lib/server_windows.lua"),
};

/// The last argument of the call, for tests with an invented time.
#[cfg(feature = "conformance")]
const MANUAL_TIME: TimeSource = TimeSource {
    time: include_str!("lib/manual_time.lua"),
    windows: include_str!("lib/manual_windows.lua"),
};

const READABLE_COUNTERS: &str = include_str!("lib/readable_counters.lua");
const STORED: &str = include_str!("lib/stored.lua");
const FORGET: &str = include_str!("lib/forget.lua");
/// The algorithms, and the packed layout of their states.
const PACKED_STATES: &str = concat!(
    include_str!("lib/arithmetic.lua"),
    include_str!("algorithms/fixed_window.lua"),
    include_str!("algorithms/sliding_window_counter.lua"),
    include_str!("algorithms/sliding_window.lua"),
    include_str!("algorithms/gcra.lua"),
    include_str!("algorithms/token_bucket.lua"),
    include_str!("algorithms/sliding_log.lua"),
    include_str!("lib/slots.lua"),
);

static DECIDE: LazyLock<Script> = LazyLock::new(|| {
    let unrolled = unrolling::expand(include_str!("fixed_windows/unrolled.lua"));
    let fixed = include_str!("fixed_windows/loop.lua");
    let decide = include_str!("decide.lua");
    Script::new("decide", |source| {
        vec![source.time, &unrolled, fixed, STORED, PACKED_STATES, decide]
    })
});
static AMEND: LazyLock<Script> = LazyLock::new(|| {
    let amend = include_str!("amend.lua");
    Script::new("amend", |source| vec![source.time, FORGET, STORED, PACKED_STATES, amend])
});
static RESERVE: LazyLock<Script> = LazyLock::new(|| {
    let expired = include_str!("lib/expired.lua");
    let reserve = include_str!("reserve.lua");
    // Wrapped in a function, because `decide.lua` returns its reply.
    let decide = format!("local reply = (function()\n{}\nend)()", include_str!("decide.lua"));
    Script::new("reserve", |source| {
        vec![source.time, STORED, PACKED_STATES, expired, &decide, reserve]
    })
});
static RESERVATION: LazyLock<Script> = LazyLock::new(|| {
    let reservation = include_str!("reservation.lua");
    let amend = include_str!("amend.lua");
    Script::new("reservation", |source| {
        vec![source.time, STORED, PACKED_STATES, reservation, amend]
    })
});
static READABLE: LazyLock<Script> = LazyLock::new(|| {
    let decide = include_str!("readable.lua");
    let reply = include_str!("readable_reply.lua");
    // Reads the time last. Otherwise a charge could seem older than the window that it opened.
    Script::new("readable", |source| {
        vec![source.windows, READABLE_COUNTERS, decide, source.time, reply]
    })
});
static READABLE_REFUND: LazyLock<Script> = LazyLock::new(|| {
    let refund = include_str!("readable_refund.lua");
    // Reads the time first. Otherwise a window could seem newer than the charge that opened it.
    Script::new("readable_refund", |source| {
        vec![source.windows, source.time, READABLE_COUNTERS, refund]
    })
});

/// Returns the script that decides.
pub(super) fn decide(layout: Layout) -> &'static Script {
    match layout {
        Layout::Packed => &DECIDE,
        Layout::Readable => &READABLE,
    }
}

/// Returns the script that refunds units. In the packed layout it also renews and resets.
pub(super) fn amend(layout: Layout) -> &'static Script {
    match layout {
        Layout::Packed => &AMEND,
        Layout::Readable => &READABLE_REFUND,
    }
}

/// Returns the script that decides and reserves units, in the packed layout.
pub(super) fn reserve() -> &'static Script {
    &RESERVE
}

/// Returns the script that renews and settles reservations, in the packed layout.
pub(super) fn change_reservation() -> &'static Script {
    &RESERVATION
}

/// Returns all scripts of a layout.
pub(super) fn of_layout(layout: Layout) -> Vec<&'static Script> {
    let mut scripts = vec![decide(layout), amend(layout)];
    if layout == Layout::Packed {
        scripts.extend([reserve(), change_reservation()]);
    }
    scripts
}

/// A script that the store runs.
pub struct Script {
    name: &'static str,
    text: String,
    sha: String,
    /// The same script with [`MANUAL_TIME`].
    #[cfg(feature = "conformance")]
    manual: Option<Box<Script>>,
}

impl Script {
    /// Joins the parts of a script for each source of time.
    fn new<'a>(name: &'static str, parts: impl Fn(TimeSource) -> Vec<&'a str>) -> Self {
        let compose = |source| {
            let text = parts(source).join("\n");
            let sha = redis::Script::new(&text).get_hash().to_owned();
            (text, sha)
        };
        let (text, sha) = compose(SERVER_TIME);
        #[cfg(feature = "conformance")]
        let manual = {
            let (text, sha) = compose(MANUAL_TIME);
            Some(Box::new(Self { name, text, sha, manual: None }))
        };
        Self {
            name,
            text,
            sha,
            #[cfg(feature = "conformance")]
            manual,
        }
    }

    /// Returns the name of the script, one word for what it does.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the version of its behaviour. Scripts of one version may run side by side.
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

    /// Returns the same script with the time of the caller.
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
