//! Reads the files that an operator has set, without waiting for other processes and with a bound.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use tokio::time::Instant;

use crate::time::{Clock, SystemClock, Timestamp};

/// The maximum length of a rule file and of a file of keys, in bytes.
pub(super) const MAX_LEN: u64 = 8 * 1024 * 1024;

/// The content of a file, and the time of its last change.
#[derive(Clone, Debug)]
pub(super) struct FileContent {
    pub(super) bytes: Arc<[u8]>,
    /// The time of the last write, or of the last change of the file's name or other attributes if
    /// that is later. `None` if the platform does not report it.
    pub(super) changed: Option<Timestamp>,
}

impl PartialEq for FileContent {
    fn eq(&self, other: &Self) -> bool {
        self.changed == other.changed && self.bytes == other.bytes
    }
}

/// The result of reading a file once.
pub(super) type Reading = Result<FileContent, Arc<io::Error>>;

/// Returns whether two readings had the same result.
pub(super) fn are_equal(one: &Reading, other: &Reading) -> bool {
    match (one, other) {
        (Ok(one), Ok(other)) => one == other,
        (Err(one), Err(other)) => one.to_string() == other.to_string(),
        _ => false,
    }
}

/// The files of a machine and its clocks, which tests replace.
pub(super) trait Disk: Send + Sync + 'static {
    /// Reads a file.
    fn read(&self, path: &Path) -> Reading;

    /// Returns the time of a clock that never steps.
    fn monotonic(&self) -> Instant;

    /// Returns the time of the clock that dates changes of files.
    fn wall(&self) -> Timestamp;
}

/// The real files and clocks.
pub(super) struct RealDisk;

impl Disk for RealDisk {
    fn read(&self, path: &Path) -> Reading {
        read_regular(path, MAX_LEN).map_err(Arc::new)
    }

    fn monotonic(&self) -> Instant {
        Instant::now()
    }

    fn wall(&self) -> Timestamp {
        SystemClock.now()
    }
}

/// Reads a regular file of at most `max` bytes.
///
/// A pipe or a device could make the reader wait for ever, or never end.
///
/// # Errors
///
/// Returns an error if the file cannot be read, is not a regular file, or is longer. The error
/// contains no path.
pub(super) fn read_regular(path: &Path, max: u64) -> io::Result<FileContent> {
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
    let file = open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        let kind = if metadata.is_dir() { "a directory" } else { "a pipe, socket or device" };
        return Err(invalid(format!("{kind}: expected a regular file")));
    }
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(invalid(format!("a file of more than {max} bytes")));
    }
    Ok(FileContent { bytes: bytes.into(), changed: changed(&metadata) })
}

/// Opens a file. A pipe without a writer is opened too, without waiting for one.
#[cfg(unix)]
fn open(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;

    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

#[cfg(not(unix))]
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).open(path)
}

/// Returns the time of the last change of a file. A program can set the time of the last write to
/// any value, but not the time of the last change of attributes.
#[cfg(unix)]
fn changed(metadata: &std::fs::Metadata) -> Option<Timestamp> {
    use std::os::unix::fs::MetadataExt;

    let time = |seconds: i64, nanos: i64| {
        let [seconds, nanos] = [seconds, nanos].map(|part| u64::try_from(part).unwrap_or_default());
        Timestamp::from_secs(seconds).plus_micros(nanos / 1_000)
    };
    let written = time(metadata.mtime(), metadata.mtime_nsec());
    Some(written.max(time(metadata.ctime(), metadata.ctime_nsec())))
}

#[cfg(not(unix))]
fn changed(metadata: &std::fs::Metadata) -> Option<Timestamp> {
    let since_epoch = metadata.modified().ok()?.duration_since(std::time::SystemTime::UNIX_EPOCH);
    since_epoch.ok().map(Timestamp::from)
}
