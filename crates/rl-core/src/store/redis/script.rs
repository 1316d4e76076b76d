//! The scripts: what they are made of, under which SHA the server knows them, and how they get
//! there.
//!
//! A script is composed from files: the time, the algorithms, a layout and a driver. Its
//! text never depends on a request, so it is hashed once, and an operator can load it ahead of the
//! service and grant `EVALSHA` alone.

use std::fmt;
use std::sync::LazyLock;

use super::connection::Connection;
use super::{Layout, error};
use crate::store::StoreError;

const SERVER_TIME: &str = include_str!("lua/server_time.lua");
#[cfg(feature = "conformance")]
const MANUAL_TIME: &str = include_str!("lua/manual_time.lua");
const READABLE_COUNTERS: &str = include_str!("lua/readable_counters.lua");
const STORED: &str = include_str!("lua/stored.lua");
/// The algorithms, and the layout that keeps their states.
const PACKED: &str = concat!(
    include_str!("lua/algorithms.lua"),
    include_str!("lua/fixed_window.lua"),
    include_str!("lua/sliding_window_counter.lua"),
    include_str!("lua/sliding_window.lua"),
    include_str!("lua/gcra.lua"),
    include_str!("lua/token_bucket.lua"),
    include_str!("lua/sliding_log.lua"),
    include_str!("lua/slots.lua"),
);

/// Raised with every change that makes a script behave otherwise.
const VERSION: u32 = 2;

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
    let fixed = include_str!("lua/decide_fixed.lua");
    Script::new("decide", &[], &[STORED, fixed, PACKED, include_str!("lua/decide.lua")])
});
static AMEND: LazyLock<Script> =
    LazyLock::new(|| Script::new("amend", &[], &[STORED, PACKED, include_str!("lua/amend.lua")]));
static READABLE: LazyLock<Script> = LazyLock::new(|| {
    Script::new("readable", &[READABLE_COUNTERS], &[include_str!("lua/readable.lua")])
});
static READABLE_REFUND: LazyLock<Script> = LazyLock::new(|| {
    let refund = include_str!("lua/readable_refund.lua");
    Script::new("readable_refund", &[READABLE_COUNTERS], &[refund])
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

/// All scripts of a layout.
pub(super) fn of(layout: Layout) -> [&'static Script; 2] {
    [decide(layout), amend(layout)]
}

impl Script {
    /// A script of the parts that come before the time is read, and those that come after.
    fn new(name: &'static str, before: &[&str], after: &[&str]) -> Self {
        let compose = |time: &str| {
            let text = [before, &[time], after].concat().join("\n");
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
    ) -> Result<Vec<u8>, StoreError> {
        let mut call = redis::cmd("EVALSHA");
        call.arg(&self.sha).arg(keys.len()).arg(keys);
        for argument in arguments {
            call.arg(argument.as_slice());
        }
        let reply: redis::RedisResult<Option<Vec<u8>>> = connection.query(&call).await;
        let reply = match reply {
            Err(failure) if error::is_unknown_script(&failure) => {
                let mut load = redis::cmd("SCRIPT");
                load.arg("LOAD").arg(&self.text);
                let _: String = connection.query(&load).await.map_err(error::classify)?;
                connection.query(&call).await
            }
            reply => reply,
        };
        reply.map(Option::unwrap_or_default).map_err(error::classify)
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Script({} v{VERSION} {})", self.name, self.sha)
    }
}
