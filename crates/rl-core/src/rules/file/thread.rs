//! The thread that reads a rule file. No other thread reads it, so a reading that hangs blocks no
//! caller.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::error::RulesFileError;
use super::parse::Content;
use super::reader::{FileReader, IsChecking, ReadStep, Timing};
use super::stability::Trigger;

/// A request to apply the file now, even if it has not changed.
pub(super) struct ReloadRequest {
    requested_at: Instant,
    /// The channel for the result; `None` if the result is only logged.
    reply: Option<SyncSender<Result<(), RulesFileError>>>,
}

impl ReloadRequest {
    /// Creates a request, and the receiver of its result.
    fn with_reply() -> (Self, Receiver<Result<(), RulesFileError>>) {
        let (reply, result) = mpsc::sync_channel(1);
        (Self { requested_at: Instant::now(), reply: Some(reply) }, result)
    }

    pub(super) fn of_signal() -> Self {
        Self { requested_at: Instant::now(), reply: None }
    }
}

/// Sends requests to the thread of a rule file.
pub(super) struct Requests {
    sender: Sender<ReloadRequest>,
    is_checking: IsChecking,
}

impl Requests {
    /// Applies the file now. Returns `None` if the file was not stable or not read in time.
    pub(super) fn reload(&self, deadline: Duration) -> Option<Result<(), RulesFileError>> {
        let (request, result) = ReloadRequest::with_reply();
        self.sender.send(request).ok()?;
        wait(&result, deadline, &self.is_checking)
    }
}

/// Waits for a result of the thread. Returns `None` if the file is not read by the deadline.
/// Content that has been read is checked to the end, however long that takes.
pub(super) fn wait<T>(
    result: &Receiver<T>,
    deadline: Duration,
    is_checking: &IsChecking,
) -> Option<T> {
    loop {
        match result.recv_timeout(deadline) {
            Err(RecvTimeoutError::Timeout) if is_checking.load(Ordering::Acquire) => {}
            result => return result.ok(),
        }
    }
}

/// Handles the readings of a rule file that is in use.
pub(super) trait ReadingHandler: Send + Sync + 'static {
    /// Handles valid content or an error. `is_logged` is false if only callers get the result.
    ///
    /// # Errors
    ///
    /// Returns an error if the content is refused.
    fn handle(
        &self,
        result: Result<Content, RulesFileError>,
        begun: Instant,
        is_logged: bool,
    ) -> Result<(), RulesFileError>;

    /// Returns the error for a file that did not become stable within this time.
    fn unstable_error(&self, within: Duration) -> RulesFileError;

    /// Records that the thread begins to read the file.
    fn begin(&self);

    /// Records that the thread has read and applied the file. Returns whether it was reported that
    /// the thread hangs.
    fn end(&self) -> bool;

    /// Refuses the file if the thread has hung for [`Timing::overdue`]. Does so once in each hang.
    fn report_hang(&self);
}

/// The thread of a rule file, which has read the file for the first time.
pub(super) struct ReaderThread<H> {
    handler: Sender<Weak<H>>,
    requests: Sender<ReloadRequest>,
    is_checking: IsChecking,
}

impl<H: ReadingHandler> ReaderThread<H> {
    /// Starts the thread, and waits for valid content. Returns `None` if the file was not stable
    /// or not read in time.
    ///
    /// # Errors
    ///
    /// Returns an error if no thread can be started.
    pub(super) fn start(
        mut reader: FileReader,
    ) -> io::Result<Option<(Self, Result<Content, RulesFileError>)>> {
        let (deadline, is_checking) = (reader.timing().deadline, reader.is_checking());
        let (requests, received) = mpsc::channel();
        let (handler, handlers) = mpsc::channel::<Weak<H>>();
        let (sender, content) = mpsc::sync_channel(1);
        thread::Builder::new().name("rl-rules-file".to_owned()).spawn(move || {
            let Some(content) = first_content(&mut reader, &received) else { return };
            if sender.send(content).is_err() {
                return;
            }
            if let Ok(handler) = handlers.recv() {
                run(&mut reader, &received, &handler);
            }
        })?;
        let content = wait(&content, deadline, &is_checking);
        Ok(content.map(|content| (Self { handler, requests, is_checking }, content)))
    }

    pub(super) fn requests(&self) -> Requests {
        Requests { sender: self.requests.clone(), is_checking: Arc::clone(&self.is_checking) }
    }

    /// Continues to read the file for `handler`, until it is dropped. Returns the handle of the
    /// task that forwards signals, if there is one.
    pub(super) fn follow(self, handler: &Arc<H>, pause: Duration) -> Option<AbortHandle> {
        // This fails only if the thread has ended.
        let _ = self.handler.send(Arc::downgrade(handler));
        report_hangs(Arc::downgrade(handler), pause);
        forward_signals(self.requests)
    }
}

/// Starts a thread that reports hangs, because a thread that hangs cannot report that itself. If no
/// thread can be started, hangs are not reported.
fn report_hangs<H: ReadingHandler>(handler: Weak<H>, pause: Duration) {
    let watchdog = move || {
        while let Some(handler) = handler.upgrade() {
            handler.report_hang();
            drop(handler);
            thread::park_timeout(pause);
        }
    };
    let _ = thread::Builder::new().name("rl-rules-hangs".to_owned()).spawn(watchdog);
}

/// Reads the file until it is stable. Returns `None` if it is not stable in time.
fn first_content(
    reader: &mut FileReader,
    requests: &Receiver<ReloadRequest>,
) -> Option<Result<Content, RulesFileError>> {
    let Timing { deadline, .. } = reader.timing();
    let begun = reader.now();
    loop {
        match reader.step(Trigger::Start) {
            ReadStep::Valid(content) => {
                if content.has_end {
                    reader.require_end();
                }
                return Some(Ok(*content));
            }
            ReadStep::Refused(error) => return Some(Err(error)),
            ReadStep::Unstable | ReadStep::Unchanged => {}
        }
        if reader.now().saturating_duration_since(begun) >= deadline {
            return None;
        }
        // No reload is requested before the first reading has ended. The channel is closed if the
        // caller of `start` stops waiting.
        if let Err(RecvTimeoutError::Disconnected) = requests.recv_timeout(reader.remaining()) {
            return None;
        }
    }
}

/// Reads the file after each pause and after each request, until the handler is dropped.
fn run<H: ReadingHandler>(
    reader: &mut FileReader,
    requests: &Receiver<ReloadRequest>,
    handler: &Weak<H>,
) {
    let mut pending = Vec::new();
    let mut wait = reader.timing().pause;
    loop {
        match requests.recv_timeout(wait) {
            Ok(request) => pending.push(request),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        pending.extend(requests.try_iter());
        let Some(handler) = handler.upgrade() else { return };
        handler.begin();
        // The thread must outlive an observer that panics, so that later changes are applied.
        let result =
            catch_unwind(AssertUnwindSafe(|| read_and_handle(reader, &mut pending, &*handler)));
        if handler.end() {
            // The content was refused, so it is handled again even if it has not changed.
            reader.forget();
        }
        wait = result.unwrap_or(reader.timing().pause);
    }
}

/// Reads the file once, and handles the result and the pending requests. Returns the time until the
/// next reading.
pub(super) fn read_and_handle<H: ReadingHandler>(
    reader: &mut FileReader,
    pending: &mut Vec<ReloadRequest>,
    handler: &H,
) -> Duration {
    let Timing { pause, deadline } = reader.timing();
    let begun = reader.now();
    let trigger = if pending.is_empty() { Trigger::Pause } else { Trigger::Request };
    let step = reader.step(trigger);
    if reader.report_overdue() {
        let _ = handler.handle(Err(handler.unstable_error(reader.timing().overdue())), begun, true);
    }
    let result = match step {
        ReadStep::Valid(content) => Ok(*content),
        ReadStep::Refused(error) => Err(error),
        ReadStep::Unchanged => return pause,
        ReadStep::Unstable if pending.is_empty() => return pause,
        ReadStep::Unstable => {
            // The callers of expired requests have got an error, and wait no longer.
            let expired = |request: &mut ReloadRequest| begun >= request.requested_at + deadline;
            let expired: Vec<ReloadRequest> = pending.extract_if(.., expired).collect();
            if expired.iter().any(|request| request.reply.is_none()) {
                let _ = handler.handle(Err(handler.unstable_error(deadline)), begun, true);
            }
            return if pending.is_empty() { pause } else { reader.remaining() };
        }
    };
    let requests = std::mem::take(pending);
    let is_logged = requests.is_empty() || requests.iter().any(|one| one.reply.is_none());
    let has_end = result.as_ref().is_ok_and(|content| content.has_end);
    let result = handler.handle(result, begun, is_logged);
    if result.is_ok() && has_end {
        reader.require_end();
    }
    for reply in requests.into_iter().filter_map(|request| request.reply) {
        // This fails if the caller waits no longer.
        let _ = reply.try_send(result.clone());
    }
    pause
}

/// Starts a task that requests a reload on each SIGHUP. Returns `None` if that is not possible,
/// such as outside a tokio runtime.
#[cfg(unix)]
fn forward_signals(requests: Sender<ReloadRequest>) -> Option<AbortHandle> {
    use tokio::signal::unix::{SignalKind, signal};

    let runtime = tokio::runtime::Handle::try_current().ok()?;
    let mut hangup = signal(SignalKind::hangup()).ok()?;
    let task = runtime.spawn(async move {
        while hangup.recv().await.is_some() {
            if requests.send(ReloadRequest::of_signal()).is_err() {
                return;
            }
        }
    });
    Some(task.abort_handle())
}

/// Ignores signals, because the platform has no SIGHUP.
#[cfg(not(unix))]
fn forward_signals(_: Sender<ReloadRequest>) -> Option<AbortHandle> {
    None
}
