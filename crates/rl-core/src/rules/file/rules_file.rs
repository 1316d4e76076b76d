//! A rule file that services follow, and its builder.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use super::disk::{Disk, MAX_LEN, RealDisk};
use super::error::{FileFailure, RulesFileError};
use super::followed::{FollowedFile, RulesFileStatus, unstable_error};
use super::parse::{Additions, Content};
use super::reader::{FileReader, Timing};
use super::scalars::Secret;
use super::stored_rules::StoredRule;
use super::thread::ReaderThread;
use crate::key::{KeyExtractor, KeySecret, Tier};
use crate::model::Subject;
use crate::observe::{self, EventKind};
use crate::rules::invalid_rules::InvalidRules;
use crate::rules::rule_list::Rules;
use crate::rules::rule_set::RuleSet;
use crate::source::PolicySource;
use crate::stats::RulesFileStats;
use crate::store::Namespace;

/// A rule file that is read again when it changes.
///
/// [`RateLimiterBuilder::rules`](crate::RateLimiterBuilder::rules) takes it. After a change, every
/// limiter that was built with it decides under the new rules. A limit keeps its counters if the
/// new rule of the same name still has it. Clones are handles of the same file. The file is read
/// until the last handle and the last limiter are dropped.
///
/// # When the file is read
///
/// * Each second. New content is applied when two readings a second apart had the same content,
///   length and times. The file may change in place, by a rename, or by a symbolic link, as in a
///   volume of Kubernetes, and on any file system.
/// * On SIGHUP, if [`watch`](Self::watch) was called in a tokio runtime that still runs. Secrets in
///   files of their own (`file:PATH`) are read again too.
/// * On [`reload`](Self::reload).
///
/// SIGHUP and `reload` also need two equal readings, a second apart. A start does not wait for the
/// second one if the file was changed last at least a second ago, by the clock of this machine.
///
/// A file of known keys, which `keys:` names, is read in the same way. The same applies to secrets
/// in files of their own, when the rule file has changed or SIGHUP or `reload` asks for them.
///
/// **A file that is being written is not applied** if the gaps between the writes are shorter than
/// a second. If they may be longer, write another file beside it and rename that, or end the file
/// with `end: true`. Once an applied version has this last line, a version without it is refused.
/// In TOML the last line is `[end]`.
///
/// **A file that is not valid changes nothing.** The last valid rules continue to apply, the error
/// is logged, and [`status`](Self::status) returns it. The same applies to a file that does not
/// exist, is not a regular file or has more than [`MAX_LEN`](Self::MAX_LEN) bytes. It also applies
/// to a file that keeps changing, or whose file system hangs, for thirty seconds. During a hang,
/// [`RulesFileStatus::hanging_since`] returns the time at which the reading began.
///
/// # Examples
///
/// ```
/// use rl_core::RateLimiter;
/// use rl_core::rules::RulesFile;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = std::env::temp_dir().join(format!("rl-rules-{}.yaml", std::process::id()));
/// std::fs::write(&path, "rules: { fleet: { limits: 5000/second } }")?;
/// let file = RulesFile::watch(&path)?;
/// let limiter = RateLimiter::builder().rules(&file).build()?;
/// assert_eq!(file.status().applied(), 1);
/// # std::fs::remove_file(&path)?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RulesFile(Arc<Handle>);

struct Handle {
    file: Arc<FollowedFile>,
    store: Option<Secret>,
}

/// Builds a [`RulesFile`], with extractors, sources of limits and tiers that the service registers.
#[must_use]
pub struct RulesFileBuilder {
    path: PathBuf,
    additions: Additions,
    pub(super) timing: Timing,
    pub(super) disk: Arc<dyn Disk>,
}

impl RulesFileBuilder {
    /// Registers an extractor that rules name in `per`. The name consists of `a-z`, `0-9`, `-` and
    /// `_`.
    pub fn extractor(mut self, name: &str, key: impl KeyExtractor) -> Self {
        self.additions.extractors.push((name.to_owned(), Arc::new(key)));
        self
    }

    /// Registers a source of limits that rules name in `limits`, such as `limits: records` for the
    /// records of a database. The name begins with `a-z`, and consists of `a-z`, `0-9`, `-` and
    /// `_`. A change of the file keeps the source and its cache.
    pub fn source(mut self, name: &str, source: impl PolicySource) -> Self {
        self.additions.sources.push((name.to_owned(), Arc::new(source)));
        self
    }

    /// Sets the function that returns the tier of a subject, as [`Rules::tier_by`] does. For a
    /// subject without a tier, the tier in the file of keys applies.
    pub fn tier_by(
        mut self,
        tier_by: impl Fn(&Subject) -> Option<Tier> + Send + Sync + 'static,
    ) -> Self {
        self.additions.tier_by = Some(Arc::new(tier_by));
        self
    }

    /// Lets the service read the sections `server` and `domains` of the file, which are refused
    /// otherwise. `read` gets the path and the text of each version, and returns the rules with
    /// those that the sections add. An error is the reason for which the version is refused.
    pub fn sections(
        mut self,
        read: impl Fn(&Path, &str, Rules) -> Result<Rules, String> + Send + Sync + 'static,
    ) -> Self {
        self.additions.sections = Some(Arc::new(read));
        self
    }

    /// Sets a check of the name and the definition of each [stored rule](StoredRule), in addition
    /// to those of the file. An error is the reason for which the rule does not apply.
    pub fn check_stored_rules(
        mut self,
        check: impl Fn(&str, &str) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.additions.check_stored = Some(Arc::new(check));
        self
    }

    /// Sets the time between two readings that have to agree, at least 10 ms. Defaults to a second.
    ///
    /// A file that is written with shorter gaps is never applied half-written. A longer pause suits
    /// slower writers, and a shorter one suits tests.
    pub fn pause(mut self, pause: Duration) -> Self {
        self.timing = Timing::with_pause(pause);
        self
    }

    /// Reads the file once. Blocks the thread for up to three pauses, but usually not at all: only
    /// if the file was changed within the last [pause](Self::pause).
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, is not valid, or is still being written.
    pub fn read(self) -> Result<Rules, RulesFileError> {
        let path = self.path.clone();
        let (_, mut content) = self.start()?;
        observe::rules_warned(&path, &content.warnings);
        let rules = &mut content.file.rules;
        rules.warning_if_shared = content.warning_if_shared.map(|text| (path, text));
        Ok(content.file.rules)
    }

    /// Reads the file as [`read`](Self::read) does, and continues to read it in a thread of its
    /// own.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, is not valid, or is still being written, or if
    /// no thread can be started.
    ///
    /// # Panics
    ///
    /// Panics if it is called in a tokio runtime without an I/O driver, which delivers signals.
    pub fn watch(self) -> Result<RulesFile, RulesFileError> {
        let (path, timing, disk) = (self.path.clone(), self.timing, Arc::clone(&self.disk));
        let (thread, mut content) = self.start()?;
        let store = content.store.take();
        let requests = thread.requests();
        let file = Arc::new(FollowedFile::new(path, content, timing, disk, requests));
        file.set_signals(thread.follow(&file, timing.pause));
        Ok(RulesFile(Arc::new(Handle { file, store })))
    }

    /// Starts the thread that reads the file, and waits for its first valid content.
    fn start(self) -> Result<(ReaderThread<FollowedFile>, Content), RulesFileError> {
        let Self { path, additions, timing, disk } = self;
        let reader = FileReader::new(path.clone(), Arc::new(additions), disk, timing);
        let started = ReaderThread::start(reader)
            .map_err(|error| RulesFileError::new(&path, None, FileFailure::Thread(error)))?;
        let (thread, content) =
            started.ok_or_else(|| unstable_error(&path, timing, timing.deadline))?;
        Ok((thread, content?))
    }
}

impl fmt::Debug for RulesFileBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RulesFileBuilder").field("path", &self.path).finish_non_exhaustive()
    }
}

impl RulesFile {
    /// The maximum length of the file, and of its file of keys, in bytes. A file of keys of this
    /// length has about 80 000 keys.
    pub const MAX_LEN: u64 = MAX_LEN;

    /// Returns a builder for the file at `path`. Its name must end with `.yaml`, `.yml`, `.json` or
    /// `.toml`.
    pub fn builder(path: impl AsRef<Path>) -> RulesFileBuilder {
        RulesFileBuilder {
            path: path.as_ref().to_owned(),
            additions: Additions::new(KeySecret::random()),
            timing: Timing::with_pause(Duration::from_secs(1)),
            disk: Arc::new(RealDisk),
        }
    }

    /// Reads the file at `path`, and continues to read it: see [`RulesFileBuilder::watch`].
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, is not valid, or is still being written, or if
    /// no thread can be started.
    ///
    /// # Panics
    ///
    /// Panics if it is called in a tokio runtime without an I/O driver, which delivers signals.
    pub fn watch(path: impl AsRef<Path>) -> Result<Self, RulesFileError> {
        Self::builder(path).watch()
    }

    /// Returns the value that `store` had when the file was first read: the URL to which the
    /// service connects. Returns `None` if the file did not set it.
    ///
    /// The URL contains the password, if there is one. If the URL changes later, the service uses
    /// the new one after a restart.
    #[must_use]
    pub fn store(&self) -> Option<&str> {
        self.0.store.as_ref().map(|url| &*url.text)
    }

    /// Returns the secret with which the rules that apply hash API keys: that of `secret`, or else
    /// a random one. With it, a service finds the subject of a key
    /// ([`KeySecret::subject`]), such as for [`tier_by`](RulesFileBuilder::tier_by).
    #[must_use]
    pub fn secret(&self) -> KeySecret {
        self.0.file.secret()
    }

    /// Returns how often the file was applied and refused, the last error, the version that
    /// applies, and warnings about it.
    #[must_use]
    pub fn status(&self) -> RulesFileStatus {
        self.0.file.status()
    }

    pub(crate) fn stats(&self) -> RulesFileStats {
        let status = self.status();
        RulesFileStats {
            path: self.0.file.path().display().to_string(),
            applied: status.applied,
            refused: status.refused,
            is_refused: status.error.is_some(),
        }
    }

    /// Waits until the file has been applied or refused again since `status` was returned.
    pub async fn changed_since(&self, status: &RulesFileStatus) -> RulesFileStatus {
        let readings = |status: &RulesFileStatus| (status.applied, status.refused);
        let mut changes = self.0.file.changes();
        // This fails only without a sender, which lives as long as this handle.
        let _ = changes.wait_for(|current| readings(current) != readings(status)).await;
        self.status()
    }

    /// Applies the file now, even if it has not changed.
    ///
    /// Blocks the thread until the file is applied:
    ///
    /// * a moment, if the last readings of the file had this content for a
    ///   [pause](RulesFileBuilder::pause);
    /// * otherwise about a pause;
    /// * at most three pauses, or three seconds if that is longer, and then as long as the check of
    ///   the content takes.
    ///
    /// An [observer](crate::observe::Observer) must not call it.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, is not valid, or was not stable or not read in
    /// time. The last valid rules continue to apply. After the time has run out, the file is
    /// applied when it has been read.
    pub fn reload(&self) -> Result<(), RulesFileError> {
        self.0.file.reload()
    }

    /// Replaces the stored rules of all limiters. They apply together with those of the file, and
    /// stay when the file changes.
    ///
    /// A rule that is not valid, or has the name of a rule in the file, is left out:
    /// [`RulesFileStatus::refused_rules`] returns it with the reason. Blocks the thread while the
    /// rules are checked.
    ///
    /// # Errors
    ///
    /// Returns an error if the rules are not valid for a limiter. The present rules continue to
    /// apply.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::RateLimiter;
    /// use rl_core::rules::{RulesFile, StoredRule};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let path = std::env::temp_dir().join(format!("rl-stored-{}.yaml", std::process::id()));
    /// std::fs::write(&path, "rules: { fleet: { limits: 5000/second } }")?;
    /// let file = RulesFile::watch(&path)?;
    /// let limiter = RateLimiter::builder().rules(&file).build()?;
    /// let login = StoredRule::new("login", "{ match: { path: /login }, per: address, limits: 5/minute }");
    /// file.check_stored_rule(&login)?;
    /// file.apply_stored_rules(vec![login])?;
    /// assert_eq!(limiter.rule_names().unwrap(), ["fleet", "login"]);
    /// # std::fs::remove_file(&path)?;
    /// # Ok(()) }
    /// ```
    pub fn apply_stored_rules(&self, rules: Vec<StoredRule>) -> Result<(), RulesFileError> {
        self.0.file.apply_stored(rules)
    }

    /// Checks a rule as [`apply_stored_rules`](Self::apply_stored_rules) would, in place of the
    /// stored rule of the same name or in addition to the present ones.
    ///
    /// # Errors
    ///
    /// Returns the reason for which the rule would not apply.
    pub fn check_stored_rule(&self, rule: &StoredRule) -> Result<(), String> {
        self.0.file.check_stored(rule)
    }

    /// Returns the rules of a limiter with this namespace. They change with the file. `is_shared`
    /// says whether the limiter shares its counters with other processes.
    ///
    /// # Errors
    ///
    /// Returns an error if the rules are not valid.
    pub(crate) fn subscribe(
        &self,
        namespace: &Namespace,
        is_shared: bool,
    ) -> Result<Arc<ArcSwap<RuleSet>>, InvalidRules> {
        self.0.file.subscribe(namespace, is_shared)
    }

    /// Sets the function that gets the new rules after each change of the file. `rules` are the
    /// rules of the limiter, which [`subscribe`](Self::subscribe) returned.
    pub(crate) fn on_change(
        &self,
        rules: &Arc<ArcSwap<RuleSet>>,
        on_change: impl Fn(&RuleSet) + Send + 'static,
    ) {
        self.0.file.on_change(rules, on_change);
    }

    /// Sets the function that gets the events of the file, for the limiter with these `rules`. It
    /// is called after each reading that applied or refused the file, and not if the file is
    /// unchanged.
    pub(crate) fn on_reading(
        &self,
        rules: &Arc<ArcSwap<RuleSet>>,
        on_reading: impl Fn(EventKind<'_>) + Send + Sync + 'static,
    ) {
        self.0.file.on_reading(rules, Arc::new(on_reading));
    }
}

impl Rules {
    /// Reads the rules in the file at `path`, once. [`RulesFile`] also follows its changes.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, is not valid, or is still being written.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, RulesFileError> {
        RulesFile::builder(path).read()
    }
}

impl fmt::Debug for RulesFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RulesFile")
            .field("path", &self.0.file.path())
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}
