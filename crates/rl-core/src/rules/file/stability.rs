//! Decides when a file is no longer being written.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use super::disk::{Disk, Reading, are_equal};
use crate::time::Timestamp;

/// A file that is read again and again.
///
/// A file is stable if all readings within a pause were equal: the same bytes, length and times.
/// A writer whose gaps are shorter than the pause writes between two readings, so its unfinished
/// file is never stable.
pub(super) struct Watched {
    path: PathBuf,
    last: Option<Last>,
}

/// The reason for a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trigger {
    /// The service starts.
    Start,
    /// SIGHUP, or a call of `reload`.
    Request,
    /// A pause has passed since the last reading.
    Pause,
}

/// The last reading.
struct Last {
    reading: Reading,
    /// The end of the first of the consecutive readings that are equal to this one.
    since: Instant,
}

impl Watched {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, last: None }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file, and returns whether it is stable.
    ///
    /// The file is stable without a pause in two more cases:
    ///
    /// * At a start, two readings are equal, and the last change was at least a pause ago.
    /// * At a start or a request, the file cannot be read, because an error replaces no rules.
    pub(super) fn read(&mut self, disk: &dyn Disk, pause: Duration, trigger: Trigger) -> bool {
        let (begun, wall) = (disk.monotonic(), disk.wall());
        let since = self.read_once(disk);
        if since.is_some_and(|since| begun.saturating_duration_since(since) >= pause) {
            return true;
        }
        match self.last.as_ref().map(|last| &last.reading) {
            // The times of changes come from the clock of a file server, which may be wrong. Only a
            // start relies on them, because services should not wait.
            Some(Ok(content)) if trigger == Trigger::Start => {
                let is_old = content.changed.is_some_and(|changed| is_old(changed, wall, pause));
                is_old && (since.is_some() || self.read_once(disk).is_some())
            }
            Some(Err(_)) => trigger != Trigger::Pause,
            _ => false,
        }
    }

    /// Reads the file once. Returns the end of the first of the consecutive readings that are equal
    /// to this one, or `None` if the reading before differs.
    fn read_once(&mut self, disk: &dyn Disk) -> Option<Instant> {
        let reading = disk.read(&self.path);
        if let Some(last) = &self.last
            && are_equal(&last.reading, &reading)
        {
            return Some(last.since);
        }
        self.last = Some(Last { reading, since: disk.monotonic() });
        None
    }

    /// Returns the last reading; `None` before the first one.
    pub(super) fn last(&self) -> Option<&Reading> {
        self.last.as_ref().map(|last| &last.reading)
    }

    /// Returns the time until the file is stable, if it does not change.
    pub(super) fn remaining(&self, now: Instant, pause: Duration) -> Duration {
        let since = self.last.as_ref().map_or(now, |last| last.since);
        (since + pause).saturating_duration_since(now)
    }
}

/// Returns whether the time of a change is at least a pause ago.
fn is_old(changed: Timestamp, now: Timestamp, pause: Duration) -> bool {
    let age = now.micros_since(changed);
    Duration::from_micros(age) >= pause
}
