//! Reads a rule file and its file of keys until both are stable, and turns them into rules.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::disk::{Disk, FileContent, Reading, are_equal};
use super::error::{FileFailure, RulesFileError};
use super::parse::{Additions, Content, convert, read_text};
use super::schema::FileText;
use super::stability::{Trigger, Watched};

/// The times that bound readings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// The time between two readings that have to agree.
    pub(super) pause: Duration,
    /// The longest time that a start or a reload waits for a file that is stable. To check its
    /// content may take longer.
    pub(super) deadline: Duration,
}

impl Timing {
    /// Waits for three pauses, but at least for three seconds, because a busy machine may be late.
    pub(super) fn with_pause(pause: Duration) -> Self {
        let pause = pause.max(Duration::from_millis(10));
        Self { pause, deadline: (3 * pause).max(Duration::from_secs(3)) }
    }

    /// Returns the time after which a file that is never stable, or whose reading hangs, is
    /// reported: thirty pauses, but at least thirty seconds, because a busy machine may be late.
    pub(super) fn overdue(&self) -> Duration {
        (30 * self.pause).max(Duration::from_secs(30))
    }
}

/// Reads a rule file and the file of keys that it names.
pub(super) struct FileReader {
    disk: Arc<dyn Disk>,
    additions: Arc<Additions>,
    timing: Timing,
    rules: Watched,
    keys: Option<WatchedKeys>,
    /// The files with secrets that the rule file names.
    secrets: Vec<Watched>,
    /// The readings that were applied or refused last.
    handled: Option<(Reading, Option<Reading>)>,
    /// The time since which no reading was stable, and whether that was reported.
    unstable: Option<(Instant, bool)>,
    /// Whether every version of the file must end with `end: true`.
    must_end: bool,
    is_checking: IsChecking,
}

/// Whether the last reading is complete. Its content is then being checked, or has been checked.
pub(super) type IsChecking = Arc<AtomicBool>;

/// The file of keys.
struct WatchedKeys {
    file: Watched,
    /// The path as errors show it, in which variables are not replaced.
    shown: PathBuf,
}

/// The result of a step of a [`FileReader`].
pub(super) enum ReadStep {
    /// The files are stable, and were applied or refused before.
    Unchanged,
    /// A file may still be written.
    Unstable,
    Refused(RulesFileError),
    Valid(Box<Content>),
}

impl FileReader {
    pub(super) fn new(
        path: PathBuf,
        additions: Arc<Additions>,
        disk: Arc<dyn Disk>,
        timing: Timing,
    ) -> Self {
        Self {
            disk,
            additions,
            timing,
            rules: Watched::new(path),
            keys: None,
            secrets: Vec::new(),
            handled: None,
            unstable: None,
            must_end: false,
            is_checking: IsChecking::default(),
        }
    }

    pub(super) const fn timing(&self) -> Timing {
        self.timing
    }

    pub(super) fn is_checking(&self) -> IsChecking {
        Arc::clone(&self.is_checking)
    }

    pub(super) fn now(&self) -> Instant {
        self.disk.monotonic()
    }

    /// Requires `end: true` in every later version of the file.
    pub(super) const fn require_end(&mut self) {
        self.must_end = true;
    }

    /// Returns the time until the files are stable, if they do not change.
    pub(super) fn remaining(&self) -> Duration {
        let now = self.now();
        let keys = self.keys.iter().map(|keys| &keys.file);
        let files = keys.chain(&self.secrets).chain([&self.rules]);
        files.map(|file| file.remaining(now, self.timing.pause)).max().unwrap_or_default()
    }

    /// Forgets which content was applied or refused, so that the next stable content is handled.
    pub(super) fn forget(&mut self) {
        self.handled = None;
    }

    /// Reports that the files have not been stable for [`Timing::overdue`]. Returns true once,
    /// until they are stable again.
    pub(super) fn report_overdue(&mut self) -> bool {
        let now = self.now();
        let Some((since, is_reported)) = &mut self.unstable else { return false };
        let is_overdue = now.saturating_duration_since(*since) >= self.timing.overdue();
        let is_new = is_overdue && !std::mem::replace(is_reported, is_overdue);
        if is_new {
            // The report counts as a refusal, which ends when the content is applied.
            self.forget();
        }
        is_new
    }

    /// Reads the files once. If they are stable and have changed, checks their content. At a start
    /// or a request, the content is checked even if it has not changed.
    pub(super) fn step(&mut self, trigger: Trigger) -> ReadStep {
        let step = self.read(trigger);
        self.unstable = match step {
            ReadStep::Unstable => self.unstable.or_else(|| Some((self.now(), false))),
            _ => None,
        };
        step
    }

    fn read(&mut self, trigger: Trigger) -> ReadStep {
        self.is_checking.store(false, Ordering::Release);
        let (disk, pause) = (&*self.disk, self.timing.pause);
        let is_stable = self.rules.read(disk, pause, trigger);
        let keys = self.keys.as_mut().map(|keys| keys.file.read(disk, pause, trigger));
        if !is_stable {
            return ReadStep::Unstable;
        }
        if trigger == Trigger::Pause && self.is_handled() {
            return ReadStep::Unchanged;
        }
        match self.check(trigger, keys.unwrap_or(true)) {
            Ok(Some(content)) => {
                self.set_handled();
                ReadStep::Valid(Box::new(content))
            }
            Ok(None) => ReadStep::Unstable,
            Err(error) => {
                self.set_handled();
                ReadStep::Refused(error)
            }
        }
    }

    /// Checks the content of the rule file. Returns `None` if its file of keys, or a file with a
    /// secret, is not stable.
    fn check(
        &mut self,
        trigger: Trigger,
        are_keys_stable: bool,
    ) -> Result<Option<Content>, RulesFileError> {
        let path = self.rules.path().to_owned();
        let of_file = |error: &Arc<std::io::Error>| {
            RulesFileError::new(&path, None, FileFailure::Read(Arc::clone(error)))
        };
        let Some(rules) = self.rules.last().cloned() else { return Ok(None) };
        let FileContent { bytes, .. } = rules.map_err(|error| of_file(&error))?;
        let text = read_text(&path, &bytes, self.must_end)?;
        match text.path_of_keys(&path) {
            None => self.keys = None,
            Some((keys, shown)) => {
                let known = self.keys.as_ref().filter(|known| known.file.path() == keys);
                let is_stable = if known.is_some() {
                    are_keys_stable
                } else {
                    let mut file = Watched::new(keys);
                    let is_stable = file.read(&*self.disk, self.timing.pause, trigger);
                    self.keys = Some(WatchedKeys { file, shown });
                    is_stable
                };
                if !is_stable {
                    return Ok(None);
                }
            }
        }
        if !self.are_secrets_stable(&text, trigger) {
            return Ok(None);
        }
        let keys = match self.keys.as_ref().and_then(|keys| Some((keys, keys.file.last()?))) {
            None => None,
            Some((keys, Ok(content))) => Some((&*keys.shown, &*content.bytes)),
            Some((keys, Err(error))) => {
                let failure = FileFailure::Read(Arc::clone(error));
                return Err(RulesFileError::new(&keys.shown, None, failure));
            }
        };
        self.is_checking.store(true, Ordering::Release);
        convert(&path, &bytes, text, keys, &self.additions).map(Some)
    }

    /// Reads the files with the secrets of `text` once. Returns whether all are stable, and have
    /// the content that `text` has.
    fn are_secrets_stable(&mut self, text: &FileText, trigger: Trigger) -> bool {
        self.secrets.retain(|known| text.secret_files().any(|file| file.path == known.path()));
        let mut are_stable = true;
        for file in text.secret_files() {
            let known = self.secrets.iter().position(|known| known.path() == file.path);
            let place = known.unwrap_or_else(|| {
                self.secrets.push(Watched::new(file.path.clone()));
                self.secrets.len() - 1
            });
            let secret = &mut self.secrets[place];
            let is_stable = secret.read(&*self.disk, self.timing.pause, trigger);
            let last = secret.last().and_then(|reading| reading.as_ref().ok());
            are_stable &= is_stable && last.is_some_and(|last| last.bytes == file.bytes);
        }
        are_stable
    }

    /// Returns whether the content of the last readings has been applied or refused.
    fn is_handled(&self) -> bool {
        // A file is not applied again if only its times have changed.
        let has_same_content = |one: &Reading, other: &Reading| match (one, other) {
            (Ok(one), Ok(other)) => one.bytes == other.bytes,
            (one, other) => are_equal(one, other),
        };
        let Some((rules, keys)) = &self.handled else { return false };
        let is_same = self.rules.last().is_some_and(|last| has_same_content(last, rules));
        let last_keys = self.keys.as_ref().and_then(|keys| keys.file.last());
        is_same
            && match (last_keys, keys) {
                (None, None) => true,
                (Some(last), Some(keys)) => has_same_content(last, keys),
                _ => false,
            }
    }

    fn set_handled(&mut self) {
        let keys = self.keys.as_ref().and_then(|keys| keys.file.last().cloned());
        self.handled = self.rules.last().cloned().map(|rules| (rules, keys));
    }
}
