//! The scripts: what they are made of, under which SHA the server knows them, and how they get
//! there.
//!
//! A script is composed from files: the time, the algorithms, a layout and a driver; what
//! decides the common case is written out once for each number of limits. The
//! text never depends on a request or a policy, so it is hashed once, and an operator can load it ahead
//! of the service and grant `EVALSHA` alone.

use std::fmt;
use std::sync::LazyLock;

use super::connection::Connection;
use super::{Layout, error};

/// Where a script has the time from.
#[derive(Clone, Copy)]
struct Prologue {
    time: &'static str,
    /// How windows end that are kept as keys.
    windows: &'static str,
}

const OF_SERVER: Prologue = Prologue {
    time: include_str!("scripts/lib/server_time.lua"),
    windows: include_str!("scripts/lib/server_windows.lua"),
};
/// The time comes with the call.
#[cfg(feature = "conformance")]
const OF_CALLER: Prologue = Prologue {
    time: include_str!("scripts/lib/manual_time.lua"),
    windows: include_str!("scripts/lib/manual_windows.lua"),
};
const READABLE_COUNTERS: &str = include_str!("scripts/lib/readable_counters.lua");
const STORED: &str = include_str!("scripts/lib/stored.lua");
const FORGET: &str = include_str!("scripts/lib/forget.lua");
/// The algorithms, and the layout that keeps their states.
const PACKED: &str = concat!(
    include_str!("scripts/lib/arithmetic.lua"),
    include_str!("scripts/algorithms/fixed_window.lua"),
    include_str!("scripts/algorithms/sliding_window_counter.lua"),
    include_str!("scripts/algorithms/sliding_window.lua"),
    include_str!("scripts/algorithms/gcra.lua"),
    include_str!("scripts/algorithms/token_bucket.lua"),
    include_str!("scripts/algorithms/sliding_log.lua"),
    include_str!("scripts/lib/slots.lua"),
);

/// The most limits that a check is written out for; more are decided in a loop.
const MOST_UNROLLED: usize = 12;

/// Raised with every change that makes a script behave otherwise.
const VERSION: u32 = 6;

/// A script that the store runs.
pub struct Script {
    name: &'static str,
    text: String,
    sha: String,
    // The same script with a time that comes with the call.
    #[cfg(feature = "conformance")]
    manual: Option<Box<Script>>,
}

static DECIDE: LazyLock<Script> = LazyLock::new(|| {
    let unrolled = unrolled(include_str!("scripts/fixed_unrolled.lua"));
    let fixed = include_str!("scripts/decide_fixed.lua");
    let decide = include_str!("scripts/decide.lua");
    Script::new("decide", |prologue| vec![prologue.time, &unrolled, fixed, STORED, PACKED, decide])
});
static AMEND: LazyLock<Script> = LazyLock::new(|| {
    let amend = include_str!("scripts/amend.lua");
    Script::new("amend", |prologue| vec![prologue.time, FORGET, STORED, PACKED, amend])
});
static RESERVE: LazyLock<Script> = LazyLock::new(|| {
    let (expired, reserve) =
        (include_str!("scripts/lib/expired.lua"), include_str!("scripts/reserve.lua"));
    // Wrapped in a function, because decide.lua returns its reply.
    let decide =
        format!("local reply = (function()\n{}\nend)()", include_str!("scripts/decide.lua"));
    Script::new("reserve", |prologue| {
        vec![prologue.time, STORED, PACKED, expired, &decide, reserve]
    })
});
static RESERVATION: LazyLock<Script> = LazyLock::new(|| {
    let (reservation, amend) =
        (include_str!("scripts/reservation.lua"), include_str!("scripts/amend.lua"));
    Script::new("reservation", |prologue| vec![prologue.time, STORED, PACKED, reservation, amend])
});
static READABLE: LazyLock<Script> = LazyLock::new(|| {
    let (decide, reply) =
        (include_str!("scripts/readable.lua"), include_str!("scripts/readable_reply.lua"));
    Script::new("readable", |prologue| {
        vec![prologue.windows, READABLE_COUNTERS, decide, prologue.time, reply]
    })
});
static READABLE_REFUND: LazyLock<Script> = LazyLock::new(|| {
    let refund = include_str!("scripts/readable_refund.lua");
    // The time first: a window must not seem to begin after the charge that began it.
    Script::new("readable_refund", |prologue| {
        vec![prologue.windows, prologue.time, READABLE_COUNTERS, refund]
    })
});

/// The script that decides.
pub(super) fn decide(layout: Layout) -> &'static Script {
    match layout {
        Layout::Packed => &DECIDE,
        Layout::Readable => &READABLE,
    }
}

/// The script that gives back, and in the packed layout renews and forgets.
pub(super) fn amend(layout: Layout) -> &'static Script {
    match layout {
        Layout::Packed => &AMEND,
        Layout::Readable => &READABLE_REFUND,
    }
}

/// Returns the script that decides where units are reserved, in the packed layout.
pub(super) fn reserve() -> &'static Script {
    &RESERVE
}

/// Returns the script that renews and settles reservations, in the packed layout.
pub(super) fn change_reservation() -> &'static Script {
    &RESERVATION
}

/// All scripts of a layout.
pub(super) fn of(layout: Layout) -> Vec<&'static Script> {
    let mut scripts = vec![decide(layout), amend(layout)];
    if layout == Layout::Packed {
        scripts.extend([reserve(), change_reservation()]);
    }
    scripts
}

/// The pattern written out for each number of limits. Without a loop and a table over them, a check
/// takes two thirds of the time.
fn unrolled(pattern: &str) -> String {
    let code: Vec<&str> = pattern.lines().filter(|line| !line.starts_with("--")).collect();
    let mut text = String::from(
        "local clock, shape, plan, format, told, passed = now, ARGV[1], ARGV[2], ARGV[3], {}, 0\n",
    );
    text.push_str("local kind = struct.unpack('>I2', plan)\n");
    for count in 1..=MOST_UNROLLED {
        let lines: Vec<String> = code
            .iter()
            .map(|line| with_lists(&line.replace("COUNT", &count.to_string()), count))
            .collect();
        // Lines with names of limits that follow each other stay together.
        for block in lines.chunk_by(|one, next| one.contains("_i") == next.contains("_i")) {
            let times = if block[0].contains("_i") { count } else { 1 };
            for limit in 1..=times {
                for line in block {
                    text += numbered(line.trim_start(), limit).as_str();
                    text.push('\n');
                }
            }
        }
    }
    text
}

/// The line with what stands between `<<` and `>>` once for each limit: names with commas between them,
/// formats without.
fn with_lists(line: &str, count: usize) -> String {
    let mut parts = line.split("<<");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (list, rest) = part.split_once(">>").expect("a list has an end");
        let separator = if list.contains("_i") { ", " } else { "" };
        let items: Vec<String> = (1..=count).map(|limit| numbered(list, limit)).collect();
        text += &items.join(separator);
        text += rest;
    }
    text
}

/// The text with the names of this limit.
fn numbered(text: &str, limit: usize) -> String {
    text.replace("_i", &format!("_{limit}"))
}

impl Script {
    /// A script of these parts.
    fn new<'a>(name: &'static str, parts: impl Fn(Prologue) -> Vec<&'a str>) -> Self {
        let compose = |prologue| {
            let text = parts(prologue).join("\n");
            let sha = redis::Script::new(&text).get_hash().to_owned();
            (text, sha)
        };
        let (text, sha) = compose(OF_SERVER);
        #[cfg(feature = "conformance")]
        let manual = {
            let (text, sha) = compose(OF_CALLER);
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

    /// What it does, in a word.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The version of what it does; scripts of one version may run side by side.
    #[must_use]
    pub const fn version(&self) -> u32 {
        VERSION
    }

    /// The text, as `SCRIPT LOAD` takes it.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The SHA-1 of the text in hexadecimal, as `EVALSHA` takes it.
    #[must_use]
    pub fn sha(&self) -> &str {
        &self.sha
    }

    #[cfg(feature = "conformance")]
    pub(super) fn with_manual_time(&self) -> &Self {
        self.manual.as_deref().unwrap_or(self)
    }

    /// Runs the script by its SHA. Only if the server says that it does not know it, which means
    /// that nothing has happened, it is loaded and run again on the same connection.
    pub(super) async fn run(
        &self,
        connection: &mut Connection,
        keys: &[String],
        arguments: &[Vec<u8>],
    ) -> redis::RedisResult<Vec<u8>> {
        let bytes =
            keys.iter().map(String::len).chain(arguments.iter().map(Vec::len)).sum::<usize>();
        // Beside those the command's name, the SHA and a number.
        let mut call = redis::Cmd::with_capacity(3 + keys.len() + arguments.len(), 64 + bytes);
        call.arg("EVALSHA").arg(&self.sha).arg(keys.len()).arg(keys);
        for argument in arguments {
            call.arg(argument.as_slice());
        }
        let reply: redis::RedisResult<Option<Vec<u8>>> = connection.query(&call).await;
        let reply = match reply {
            Err(failure) if error::is_unknown_script(&failure) => {
                let mut load = redis::cmd("SCRIPT");
                load.arg("LOAD").arg(&self.text);
                let _: String = connection.query(&load).await?;
                connection.query(&call).await
            }
            reply => reply,
        };
        reply.map(Option::unwrap_or_default)
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Script({} v{VERSION} {})", self.name, self.sha)
    }
}
