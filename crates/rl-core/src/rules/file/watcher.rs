//! Notices changes of a file.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::task::AbortHandle;

/// The time without events after which the file is read. Earlier, a file that is written in place
/// may be incomplete.
const PAUSE: Duration = Duration::from_millis(50);

/// The number of times that further events may restart the pause. Without this bound, events of
/// other files in the directory could delay the reading for ever.
const PAUSES: usize = 20;

/// The time after which the content of the file is compared with the last one even though no event
/// was reported.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// The condition under which the file is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reload {
    /// If its content has changed.
    IfChanged,
    /// In any case.
    Always,
}

/// Watches the directories of a file until it is dropped.
pub(super) struct Watcher {
    path: PathBuf,
    watcher: RecommendedWatcher,
    directories: BTreeSet<PathBuf>,
    signals: Option<AbortHandle>,
}

impl Watcher {
    /// Starts to watch the file at `path`. A thread calls `reload` after each change until it
    /// returns false.
    ///
    /// # Errors
    ///
    /// Returns an error if the directory cannot be watched.
    pub(super) fn start(
        path: &Path,
        reload: impl FnMut(Reload) -> bool + Send + 'static,
    ) -> Result<Self, notify::Error> {
        let (sender, changes) = mpsc::channel();
        let events = sender.clone();
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.as_ref().map_or(true, is_change) {
                // This fails only if the thread that reloads the file has ended.
                let _ = events.send(Reload::IfChanged);
            }
        })?;
        let directories = directories(path);
        for directory in &directories {
            watcher.watch(directory, RecursiveMode::NonRecursive)?;
        }
        let name = "rl-rules-file".to_owned();
        thread::Builder::new()
            .name(name)
            .spawn(move || run(&changes, reload))
            .map_err(notify::Error::io)?;
        let signals = forward_signals(sender);
        Ok(Self { path: path.to_owned(), watcher, directories, signals })
    }

    /// Watches the directories to which symbolic links lead now, instead of the previous ones.
    pub(super) fn follow_links(&mut self) {
        let now = directories(&self.path);
        for directory in self.directories.difference(&now) {
            // This fails if the directory no longer exists.
            let _ = self.watcher.unwatch(directory);
        }
        for directory in &now {
            // Watch every directory again, even if it is watched already: it may have been replaced
            // by another of the same name. If this fails, the file is still compared at intervals.
            let _ = self.watcher.watch(directory, RecursiveMode::NonRecursive);
        }
        self.directories = now;
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some(signals) = &self.signals {
            signals.abort();
        }
    }
}

/// Returns the directory of the path, and that of the file to which symbolic links lead.
fn directories(path: &Path) -> BTreeSet<PathBuf> {
    let parent = |path: &Path| match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Some(PathBuf::from(".")),
        parent => parent.map(Path::to_owned),
    };
    let target = fs::canonicalize(path).ok();
    let target = target.as_deref().and_then(parent);
    let parent = parent(path);
    // The same directory under two names would be watched twice.
    let is_same = parent.as_ref().and_then(|parent| fs::canonicalize(parent).ok()) == target;
    parent.into_iter().chain(target.filter(|_| !is_same)).collect()
}

/// Returns whether an event may have changed the file. Reading it is not a change.
fn is_change(event: &Event) -> bool {
    match event.kind {
        EventKind::Access(access) => access == AccessKind::Close(AccessMode::Write),
        _ => true,
    }
}

/// Calls `reload` after each change, until it returns false or the watcher is dropped.
fn run(changes: &Receiver<Reload>, mut reload: impl FnMut(Reload) -> bool) {
    loop {
        let mut next = match changes.recv_timeout(POLL_INTERVAL) {
            Ok(next) => next,
            Err(RecvTimeoutError::Timeout) => Reload::IfChanged,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        for _ in 0..PAUSES {
            match changes.recv_timeout(PAUSE) {
                Ok(Reload::Always) => next = Reload::Always,
                Ok(Reload::IfChanged) => {}
                Err(_) => break,
            }
        }
        // The thread must outlive an observer that panics, so that later changes are applied.
        if matches!(catch_unwind(AssertUnwindSafe(|| reload(next))), Ok(false)) {
            return;
        }
    }
}

/// Starts a task that requests a reload on each SIGHUP. Returns `None` if that is not possible,
/// such as outside a tokio runtime.
#[cfg(unix)]
fn forward_signals(sender: Sender<Reload>) -> Option<AbortHandle> {
    use tokio::signal::unix::{SignalKind, signal};

    let runtime = tokio::runtime::Handle::try_current().ok()?;
    let mut hangup = signal(SignalKind::hangup()).ok()?;
    let task = runtime.spawn(async move {
        while hangup.recv().await.is_some() {
            if sender.send(Reload::Always).is_err() {
                return;
            }
        }
    });
    Some(task.abort_handle())
}

/// Ignores signals, because the platform has no SIGHUP.
#[cfg(not(unix))]
fn forward_signals(_: Sender<Reload>) -> Option<AbortHandle> {
    None
}
