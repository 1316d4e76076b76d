//! A rule file and the limiters that follow it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::disk::Disk;
use super::error::{FileFailure, RulesFileError};
use super::parse::{Content, FileRules};
use super::reader::Timing;
use super::stored_rules::{RefusedRule, StoredRule, with_stored};
use super::thread::{ReadingHandler, Requests};
use crate::key::KeySecret;
use crate::observe::{self, Event, EventKind, EventLocation};
use crate::rules::invalid_rules::InvalidRules;
use crate::rules::live_rules::LiveRules;
use crate::rules::rule_list::Rules;
use crate::rules::rule_set::RuleSet;
use crate::store::Namespace;
use crate::time::Timestamp;

/// The results of reading a [`RulesFile`](super::RulesFile) so far.
#[derive(Clone, Debug, Default)]
pub struct RulesFileStatus {
    pub(super) applied: u64,
    pub(super) refused: u64,
    pub(super) error: Option<RulesFileError>,
    pub(super) version: String,
    pub(super) warnings: Vec<String>,
    pub(super) refused_rules: Vec<RefusedRule>,
    pub(super) hanging_since: Option<Timestamp>,
}

impl RulesFileStatus {
    /// Returns how often the file was applied, at least once.
    #[must_use]
    pub const fn applied(&self) -> u64 {
        self.applied
    }

    /// Returns how often the file was refused because it was not valid or could not be read.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns the error of the last reading; `None` if the rules in the file apply.
    #[must_use]
    pub const fn error(&self) -> Option<&RulesFileError> {
        self.error.as_ref()
    }

    /// Returns the version of the rules that apply: sixteen hexadecimal digits of a hash of the
    /// content, with that of the file of keys. Instances with the same version have the same files.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns the warnings about the rules that apply. Each is about a value that is valid, but
    /// probably not intended, such as a rule that counts each key on its own although clients can
    /// invent keys. The log has the same lines.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the stored rules that do not apply, because they are not valid with those of the
    /// file. The log has a line about each.
    #[must_use]
    pub fn refused_rules(&self) -> &[RefusedRule] {
        &self.refused_rules
    }

    /// Returns the time at which the present reading began, if it has lasted longer than the pause
    /// between two readings, probably because the file system hangs. Meanwhile the last valid rules
    /// continue to apply.
    #[must_use]
    pub const fn hanging_since(&self) -> Option<Timestamp> {
        self.hanging_since
    }
}

/// A rule file that is in use: the rules that apply, and the limiters that follow it.
pub(super) struct FollowedFile {
    path: PathBuf,
    timing: Timing,
    disk: Arc<dyn Disk>,
    rules: LiveRules,
    /// Locked while rules are replaced, so that a change of the file and a change of the stored
    /// rules apply one after the other.
    combined: Mutex<CombinedRules>,
    state: Mutex<FollowedState>,
    status: watch::Sender<RulesFileStatus>,
    /// The present reading; `None` while the thread waits.
    busy: Mutex<Option<Busy>>,
    requests: Requests,
    signals: Mutex<Option<AbortHandle>>,
}

/// A reading that has not ended.
#[derive(Clone, Copy)]
struct Busy {
    begun: Instant,
    wall: Timestamp,
    /// Whether it was reported that the reading hangs.
    is_reported: bool,
}

/// The rules of the file, and the rules that the service stores outside it.
struct CombinedRules {
    file: FileRules,
    stored: Vec<StoredRule>,
}

struct FollowedState {
    secret: KeySecret,
    /// The warnings of the content, and the one about its secret, if counters are shared.
    warnings: Vec<String>,
    warning_if_shared: Option<String>,
    limiters: Vec<Subscription>,
}

/// A limiter whose rules change with the file.
struct Subscription {
    rules: Weak<ArcSwap<RuleSet>>,
    /// Whether the limiter shares its counters with other processes.
    is_shared: bool,
    on_reading: Option<OnReading>,
}

/// A function that gets an event after each reading that applied or refused the file.
type OnReading = Arc<dyn Fn(EventKind<'_>) + Send + Sync>;

impl FollowedState {
    /// Returns the warnings that apply to the limiters that follow the file.
    fn warnings(&self) -> Vec<String> {
        let is_shared = self.limiters.iter().any(|limiter| limiter.is_shared);
        let of_secret = self.warning_if_shared.iter().filter(|_| is_shared);
        self.warnings.iter().chain(of_secret).cloned().collect()
    }
}

impl FollowedFile {
    /// Creates the file with its first content.
    pub(super) fn new(
        path: PathBuf,
        content: Content,
        timing: Timing,
        disk: Arc<dyn Disk>,
        requests: Requests,
    ) -> Self {
        let Content { file, warnings, warning_if_shared, version, .. } = content;
        observe::rules_warned(&path, &warnings);
        let status = RulesFileStatus {
            applied: 1,
            version,
            warnings: warnings.clone(),
            ..RulesFileStatus::default()
        };
        let (limiters, secret) = (Vec::new(), file.secret.clone());
        Self {
            path,
            timing,
            disk,
            rules: LiveRules::new(file.rules.clone()),
            combined: Mutex::new(CombinedRules { file, stored: Vec::new() }),
            state: Mutex::new(FollowedState { secret, warnings, warning_if_shared, limiters }),
            status: watch::Sender::new(status),
            busy: Mutex::default(),
            requests,
            signals: Mutex::default(),
        }
    }

    /// Stores the task that forwards signals, which ends with the file.
    pub(super) fn set_signals(&self, signals: Option<AbortHandle>) {
        *self.signals.lock().unwrap_or_else(PoisonError::into_inner) = signals;
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Applies the file now.
    pub(super) fn reload(&self) -> Result<(), RulesFileError> {
        let deadline = self.timing.deadline;
        self.requests.reload(deadline).unwrap_or_else(|| Err(self.unstable_error(deadline)))
    }

    pub(super) fn secret(&self) -> KeySecret {
        self.state().secret.clone()
    }

    pub(super) fn status(&self) -> RulesFileStatus {
        let busy = *self.busy();
        let now = self.disk.monotonic();
        let hangs = |busy: &Busy| now.saturating_duration_since(busy.begun) > self.timing.pause;
        let hanging_since = busy.filter(hangs).map(|busy| busy.wall);
        RulesFileStatus { hanging_since, ..self.status.borrow().clone() }
    }

    pub(super) fn changes(&self) -> watch::Receiver<RulesFileStatus> {
        self.status.subscribe()
    }

    /// Returns the rules of a limiter with this namespace, which change with the file.
    ///
    /// # Errors
    ///
    /// Returns an error if the rules are not valid.
    pub(super) fn subscribe(
        &self,
        namespace: &Namespace,
        is_shared: bool,
    ) -> Result<Arc<ArcSwap<RuleSet>>, InvalidRules> {
        let rules = self.rules.subscribe(namespace)?;
        let mut state = self.state();
        let limiter = Subscription { rules: Arc::downgrade(&rules), is_shared, on_reading: None };
        state.limiters.push(limiter);
        self.set_warnings(state.warnings());
        Ok(rules)
    }

    pub(super) fn on_change(
        &self,
        rules: &Arc<ArcSwap<RuleSet>>,
        on_change: impl Fn(&RuleSet) + Send + 'static,
    ) {
        self.rules.on_change(rules, on_change);
    }

    pub(super) fn on_reading(&self, rules: &Arc<ArcSwap<RuleSet>>, on_reading: OnReading) {
        let is_same = |limiter: &&mut Subscription| limiter.rules.as_ptr() == Arc::as_ptr(rules);
        if let Some(limiter) = self.state().limiters.iter_mut().find(is_same) {
            limiter.on_reading = Some(on_reading);
        }
    }

    fn busy(&self) -> MutexGuard<'_, Option<Busy>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, FollowedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies valid content to all limiters, or to none of them.
    fn apply(&self, content: Content) -> Result<(), RulesFileError> {
        let Content { file, warnings, warning_if_shared, version, .. } = content;
        let mut combined = self.combined();
        let (rules, refused) = with_stored(&file, &combined.stored);
        self.replace(rules)?;
        let secret = file.secret.clone();
        combined.file = file;
        self.set_refused(refused);
        let mut state = self.state();
        state.limiters.retain(|limiter| limiter.rules.strong_count() > 0);
        state.secret = secret;
        (state.warnings, state.warning_if_shared) = (warnings, warning_if_shared);
        let warnings = state.warnings();
        self.set_warnings(warnings);
        drop(state);
        self.status.send_modify(|status| {
            status.applied += 1;
            status.error = None;
            status.version = version;
        });
        Ok(())
    }

    /// Replaces the stored rules. Those that are not valid with the rules of the file are left out.
    pub(super) fn apply_stored(&self, stored: Vec<StoredRule>) -> Result<(), RulesFileError> {
        let mut combined = self.combined();
        let (rules, refused) = with_stored(&combined.file, &stored);
        self.replace(rules)?;
        combined.stored = stored;
        self.set_refused(refused);
        Ok(())
    }

    /// Checks a stored rule beside those of the file and the other stored rules.
    pub(super) fn check_stored(&self, rule: &StoredRule) -> Result<(), String> {
        let combined = self.combined();
        let others = combined.stored.iter().filter(|other| other.name() != rule.name());
        let stored: Vec<_> = others.chain([rule]).cloned().collect();
        let (_, refused) = with_stored(&combined.file, &stored);
        match refused.into_iter().find(|refused| refused.name == rule.name()) {
            Some(refused) => Err(refused.reason),
            None => Ok(()),
        }
    }

    fn combined(&self) -> MutexGuard<'_, CombinedRules> {
        self.combined.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn replace(&self, rules: Rules) -> Result<(), RulesFileError> {
        let replaced = self.rules.replace(rules);
        replaced.map_err(|error| RulesFileError::new(&self.path, None, FileFailure::Rules(error)))
    }

    /// Logs the stored rules that are newly refused.
    fn set_refused(&self, refused: Vec<RefusedRule>) {
        let mut new = refused.clone();
        self.status.send_if_modified(|status| {
            new.retain(|one| !status.refused_rules.contains(one));
            status.refused_rules = refused;
            // A change of these alone does not wake the tasks that wait for another status.
            false
        });
        let line = |one: &RefusedRule| {
            format!("stored rule {:?} does not apply: {}", one.name, one.reason)
        };
        observe::rules_warned(&self.path, &new.iter().map(line).collect::<Vec<_>>());
    }

    /// Logs the warnings that are new.
    fn set_warnings(&self, warnings: Vec<String>) {
        let mut new = Vec::new();
        self.status.send_if_modified(|status| {
            new = warnings.clone();
            new.retain(|warning| !status.warnings.contains(warning));
            status.warnings = warnings;
            // No task waits for warnings alone.
            false
        });
        observe::rules_warned(&self.path, &new);
    }

    fn refuse(&self, error: RulesFileError) -> RulesFileError {
        self.status.send_modify(|status| {
            status.refused += 1;
            status.error = Some(error.clone());
        });
        error
    }
}

impl ReadingHandler for FollowedFile {
    fn handle(
        &self,
        result: Result<Content, RulesFileError>,
        begun: Instant,
        is_logged: bool,
    ) -> Result<(), RulesFileError> {
        let result = result.and_then(|content| self.apply(content));
        let result = result.map_err(|error| self.refuse(error));
        let version = self.status.borrow().version.clone();
        let took = self.disk.monotonic().saturating_duration_since(begun);
        let event = event_of(&self.path, &result, &version, took);
        if is_logged {
            observe::emit(None, &Event::new(EventLocation::default(), event));
        }
        // An observer may call methods of this file, so no observer is called under the lock.
        let observers: Vec<_> =
            self.state().limiters.iter().filter_map(|one| one.on_reading.clone()).collect();
        for observer in observers {
            // A panic of one observer must not keep the event from others, and the result from
            // callers.
            let _ = catch_unwind(AssertUnwindSafe(|| observer(event)));
        }
        result
    }

    fn unstable_error(&self, within: Duration) -> RulesFileError {
        unstable_error(&self.path, self.timing, within)
    }

    fn begin(&self) {
        let (begun, wall) = (self.disk.monotonic(), self.disk.wall());
        *self.busy() = Some(Busy { begun, wall, is_reported: false });
    }

    fn end(&self) -> bool {
        self.busy().take().is_some_and(|busy| busy.is_reported)
    }

    fn report_hang(&self) {
        let (now, overdue) = (self.disk.monotonic(), self.timing.overdue());
        let begun = match &mut *self.busy() {
            Some(Busy { begun, is_reported, .. })
                if !*is_reported && now.saturating_duration_since(*begun) >= overdue =>
            {
                *is_reported = true;
                *begun
            }
            _ => return,
        };
        let _ = self.handle(Err(self.unstable_error(overdue)), begun, true);
    }
}

/// Returns the error for a file that is not stable, or not read, within this time.
pub(super) fn unstable_error(path: &Path, timing: Timing, within: Duration) -> RulesFileError {
    let pause = timing.pause;
    let text = format!(
        "no two equal readings {pause:?} apart within {within:?}: the file is still being \
         written, or its file system hangs"
    );
    RulesFileError::new(path, None, FileFailure::Text(text))
}

impl Drop for FollowedFile {
    fn drop(&mut self) {
        let signals = self.signals.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(signals) = signals {
            signals.abort();
        }
    }
}

/// Returns the event of a reading that applied or refused the file.
fn event_of<'a>(
    path: &'a Path,
    applied: &'a Result<(), RulesFileError>,
    version: &'a str,
    duration: Duration,
) -> EventKind<'a> {
    match applied {
        Ok(()) => EventKind::RulesApplied { path, version, duration },
        Err(error) => EventKind::RulesRefused { path, error, duration },
    }
}
