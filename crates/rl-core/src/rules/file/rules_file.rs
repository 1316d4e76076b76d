use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::time::Instant;

use super::error::{FileFailure, RulesFileError};
use super::parse::{Additions, Content, parse};
use super::scalars::Secret;
use super::status::RulesFileStatus;
use super::subscription::{Subscription, event_of};
use super::watcher::{Reload, Watcher};
use crate::key::{KeyExtractor, KeySecret, Tier};
use crate::model::Subject;
use crate::observe::{self, EventKind};
use crate::rules::invalid_rules::InvalidRules;
use crate::rules::rule_list::Rules;
use crate::rules::rule_set::RuleSet;
use crate::source::PolicySource;
use crate::store::Namespace;

/// A file of rules that is read again when it changes.
///
/// [`RateLimiterBuilder::rules`](crate::RateLimiterBuilder::rules) takes it. After a change, every
/// limiter that was built with it decides under the new rules. A limit keeps its counters if the
/// new rule of the same name still has it. Clones are handles of the same file. The file is
/// watched until the last handle and the last limiter are dropped.
///
/// # When the file is read
///
/// * When it changes: it may be written in place, replaced by a rename, or reached through a
///   symbolic link that changes, as in a volume of Kubernetes. The directory is watched, and the
///   content is compared. Every 30 seconds the content is compared in any case, for file systems
///   that report no changes.
/// * On SIGHUP, if [`watch`](Self::watch) was called in a tokio runtime that still runs. Secrets in
///   files of their own (`file:PATH`) are read again too.
/// * On [`reload`](Self::reload).
///
/// **A file that is not valid changes nothing.** The last valid rules continue to apply, the error
/// is logged, and [`status`](Self::status) returns it.
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
pub struct RulesFile(Arc<File>);

pub(super) struct File {
    path: PathBuf,
    additions: Additions,
    state: Mutex<FileState>,
    status: watch::Sender<RulesFileStatus>,
    store: Option<Secret>,
    watcher: Mutex<Option<Watcher>>,
}

struct FileState {
    /// The content that was read last, valid or not; `None` if the file could not be read.
    bytes: Option<Vec<u8>>,
    rules: Rules,
    limiters: Vec<Subscription>,
}

/// Builds a [`RulesFile`], with extractors, sources of limits and tiers that the service registers.
#[must_use]
pub struct RulesFileBuilder {
    path: PathBuf,
    additions: Additions,
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

    /// Sets the function that returns the tier of a subject, as [`Rules::tier_by`] does.
    pub fn tier_by(
        mut self,
        tier_by: impl Fn(&Subject) -> Option<Tier> + Send + Sync + 'static,
    ) -> Self {
        self.additions.tier_by = Some(Arc::new(tier_by));
        self
    }

    /// Reads the file once.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read or is not valid.
    pub fn read(self) -> Result<Rules, RulesFileError> {
        let bytes = read(&self.path)?;
        parse(&self.path, &bytes, &self.additions).map(|content| content.rules)
    }

    /// Reads the file, and watches it.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, is not valid, or cannot be watched.
    ///
    /// # Panics
    ///
    /// Panics if it is called in a tokio runtime without an I/O driver, which delivers signals.
    pub fn watch(self) -> Result<RulesFile, RulesFileError> {
        let Self { path, additions } = self;
        let bytes = read(&path)?;
        let Content { rules, store } = parse(&path, &bytes, &additions)?;
        let version = version(&bytes);
        let status = RulesFileStatus { applied: 1, version, ..RulesFileStatus::default() };
        let state = FileState { bytes: Some(bytes), rules, limiters: Vec::new() };
        let file = Arc::new(File {
            path,
            additions,
            state: Mutex::new(state),
            status: watch::Sender::new(status),
            store,
            watcher: Mutex::new(None),
        });
        let weak = Arc::downgrade(&file);
        let watcher = Watcher::start(&file.path, move |reload| {
            let Some(file) = weak.upgrade() else { return false };
            // Watch the targets of symbolic links before the file is read, so that every later
            // change is noticed.
            file.follow_links();
            file.reload_and_log(reload);
            true
        });
        let watcher = watcher
            .map_err(|error| RulesFileError::new(&file.path, None, FileFailure::Watch(error)))?;
        *file.watcher.lock().unwrap_or_else(PoisonError::into_inner) = Some(watcher);
        // A change between the first reading and the start of the watch was not reported, so the
        // file is compared once more.
        file.reload_and_log(Reload::IfChanged);
        Ok(RulesFile(file))
    }
}

impl fmt::Debug for RulesFileBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RulesFileBuilder").field("path", &self.path).finish_non_exhaustive()
    }
}

impl RulesFile {
    /// Returns a builder for the file at `path`. Its name must end with `.yaml`, `.yml`, `.json` or
    /// `.toml`.
    pub fn builder(path: impl AsRef<Path>) -> RulesFileBuilder {
        let secret = KeySecret::random();
        let additions =
            Additions { extractors: Vec::new(), sources: Vec::new(), tier_by: None, secret };
        RulesFileBuilder { path: path.as_ref().to_owned(), additions }
    }

    /// Reads the file at `path`, and watches it.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, is not valid, or cannot be watched.
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
        self.0.store.as_ref().map(|Secret(url)| &**url)
    }

    /// Returns how often the file was applied and refused, the last error, and the version that
    /// applies.
    #[must_use]
    pub fn status(&self) -> RulesFileStatus {
        self.0.status.borrow().clone()
    }

    /// Waits until the file has been applied or refused again since `status` was returned.
    pub async fn changed_since(&self, status: &RulesFileStatus) -> RulesFileStatus {
        let readings = |status: &RulesFileStatus| (status.applied, status.refused);
        let mut current = self.0.status.subscribe();
        match current.wait_for(|current| readings(current) != readings(status)).await {
            Ok(current) => current.clone(),
            // Never happens, because the sender lives as long as this handle.
            Err(_) => self.status(),
        }
    }

    /// Reads the file now, even if it has not changed.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read or is not valid. The last valid rules continue
    /// to apply.
    pub fn reload(&self) -> Result<(), RulesFileError> {
        self.0.reload(Reload::Always).map(drop)
    }

    /// Returns the rules of a limiter with this namespace. They change with the file.
    ///
    /// # Errors
    ///
    /// Returns an error if the rules are not valid.
    pub(crate) fn subscribe(
        &self,
        namespace: &Namespace,
    ) -> Result<Arc<ArcSwap<RuleSet>>, InvalidRules> {
        let mut state = self.0.state();
        let rules = Arc::new(ArcSwap::from_pointee(RuleSet::new(&state.rules, namespace)?));
        let (namespace, weak) = (namespace.clone(), Arc::downgrade(&rules));
        let (on_change, on_reading) = Default::default();
        state.limiters.push(Subscription { namespace, rules: weak, on_change, on_reading });
        Ok(rules)
    }

    /// Sets the function that gets the new rules after each change of the file. `rules` are the
    /// rules of the limiter, which [`subscribe`](Self::subscribe) returned.
    pub(crate) fn on_change(
        &self,
        rules: &Arc<ArcSwap<RuleSet>>,
        on_change: impl Fn(&RuleSet) + Send + 'static,
    ) {
        let mut state = self.0.state();
        if let Some(limiter) = state.subscription(rules) {
            limiter.on_change = Some(Box::new(on_change));
        }
    }

    /// Sets the function that gets the events of the file for the limiter with these `rules`: one
    /// event after each reading that applied or refused the file, none if the file has not changed.
    pub(crate) fn on_reading(
        &self,
        rules: &Arc<ArcSwap<RuleSet>>,
        on_reading: impl Fn(EventKind<'_>) + Send + Sync + 'static,
    ) {
        let mut state = self.0.state();
        if let Some(limiter) = state.subscription(rules) {
            limiter.on_reading = Some(Arc::new(on_reading));
        }
    }
}

impl FileState {
    /// Returns the subscription of the limiter with these rules.
    fn subscription(&mut self, rules: &Arc<ArcSwap<RuleSet>>) -> Option<&mut Subscription> {
        let is_same = |limiter: &&mut Subscription| limiter.rules.as_ptr() == Arc::as_ptr(rules);
        self.limiters.iter_mut().find(is_same)
    }
}

impl File {
    fn state(&self) -> MutexGuard<'_, FileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the file, applies it to all limiters if it is valid, and reports the result to their
    /// observers. Returns whether it was applied.
    fn reload(&self, reload: Reload) -> Result<bool, RulesFileError> {
        let begun = Instant::now();
        let applied = self.apply(reload);
        let version = self.status.borrow().version.clone();
        if let Some(event) = event_of(&self.path, &applied, &version, begun.elapsed()) {
            // An observer may call methods of this file, so no observer is called under the lock.
            let observers: Vec<_> =
                self.state().limiters.iter().filter_map(|one| one.on_reading.clone()).collect();
            observers.iter().for_each(|observer| observer(event));
        }
        applied
    }

    fn apply(&self, reload: Reload) -> Result<bool, RulesFileError> {
        let mut state = self.state();
        let bytes = match read(&self.path) {
            Ok(bytes) if reload == Reload::IfChanged && state.bytes.as_ref() == Some(&bytes) => {
                return Ok(false);
            }
            Ok(bytes) => bytes,
            // A file that stays missing is reported only once.
            Err(_) if reload == Reload::IfChanged && state.bytes.is_none() => return Ok(false),
            Err(error) => {
                state.bytes = None;
                return Err(self.refuse(error));
            }
        };
        let parsed = parse(&self.path, &bytes, &self.additions);
        let version = version(&bytes);
        state.bytes = Some(bytes);
        let Content { rules, .. } = parsed.map_err(|error| self.refuse(error))?;
        state.limiters.retain(|limiter| limiter.rules.strong_count() > 0);
        for Subscription { namespace, rules: current, on_change, .. } in &state.limiters {
            let valid = RuleSet::new(&rules, namespace).map_err(|error| {
                self.refuse(RulesFileError::new(&self.path, None, FileFailure::Rules(error)))
            })?;
            if let Some(on_change) = on_change {
                on_change(&valid);
            }
            if let Some(current) = current.upgrade() {
                current.store(Arc::new(valid));
            }
        }
        state.rules = rules;
        self.status.send_modify(|status| {
            status.applied += 1;
            status.error = None;
            status.version = version;
        });
        Ok(true)
    }

    fn refuse(&self, error: RulesFileError) -> RulesFileError {
        self.status.send_modify(|status| {
            status.refused += 1;
            status.error = Some(error.clone());
        });
        error
    }

    fn reload_and_log(&self, reload: Reload) {
        match self.reload(reload) {
            Ok(true) => observe::rules_applied(&self.path, &self.status.borrow().version),
            Ok(false) => {}
            Err(error) => observe::rules_refused(&self.path, &error),
        }
    }

    /// Watches the directories to which symbolic links lead now.
    fn follow_links(&self) {
        let mut watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watcher) = &mut *watcher {
            watcher.follow_links();
        }
    }
}

impl Rules {
    /// Reads the rules in the file at `path`, once. [`RulesFile`] also follows its changes.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read or is not valid.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, RulesFileError> {
        RulesFile::builder(path).read()
    }
}

fn read(path: &Path) -> Result<Vec<u8>, RulesFileError> {
    fs::read(path).map_err(|error| RulesFileError::new(path, None, FileFailure::Read(error)))
}

/// Returns sixteen hexadecimal digits of a hash of the content.
fn version(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex()[..16].to_owned()
}

impl fmt::Debug for RulesFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RulesFile")
            .field("path", &self.0.path)
            .field("status", &*self.0.status.borrow())
            .finish_non_exhaustive()
    }
}
