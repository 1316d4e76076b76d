//! Captures the log lines of the library.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Dispatch, Level, Metadata, span, subscriber};

use super::PASSWORD;

/// The log lines of this thread, captured until the guard that `capture` returns is dropped. Clones
/// share the lines.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    lines: Arc<Mutex<Vec<(Level, String)>>>,
    // The number of lines at level `info` or more severe.
    count: Arc<AtomicUsize>,
    least: Level,
}

impl Log {
    pub(crate) fn capture() -> (Self, subscriber::DefaultGuard) {
        Self::capture_from(Level::TRACE)
    }

    /// Captures lines of this level and of more severe ones, until the guard is dropped. Capturing
    /// other lines would take measurable time.
    pub(crate) fn capture_from(least: Level) -> (Self, subscriber::DefaultGuard) {
        Witness::register();
        let log = Self { lines: Arc::default(), count: Arc::default(), least };
        let guard = subscriber::set_default(log.clone());
        (log, guard)
    }

    /// Returns all lines, including those at level `debug`.
    pub(crate) fn all(&self) -> Vec<(Level, String)> {
        self.lines.lock().unwrap().clone()
    }

    /// Returns the lines above level `debug`.
    pub(crate) fn lines(&self) -> Vec<(Level, String)> {
        self.all().into_iter().filter(|(level, _)| *level <= Level::INFO).collect()
    }

    /// Returns the number of lines above level `debug`.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Discards the captured lines.
    pub(super) fn forget(&self) {
        self.lines.lock().unwrap().clear();
        self.count.store(0, Ordering::SeqCst);
    }

    /// Asserts that these are the captured lines: their levels, and words that they contain.
    pub(crate) fn assert_lines(&self, expected: &[(Level, &str)]) {
        let lines = self.lines();
        let as_expected = lines.len() == expected.len()
            && lines.iter().zip(expected).all(|((level, line), (expected, words))| {
                level == expected && line.contains(words)
            });
        assert!(as_expected, "{lines:#?}\nexpected {expected:#?}");
        self.assert_no_secret();
    }

    pub(crate) fn assert_no_secret(&self) {
        let leak = self.all().into_iter().find(|(_, line)| line.contains(PASSWORD));
        assert_eq!(leak, None);
    }
}

/// A subscriber that captures nothing and is registered until the process ends.
///
/// `tracing` remembers for each call site whether a subscriber wants its lines. If only one
/// subscriber is registered, it asks that of the thread that runs the call site first. Another test
/// in a thread without a subscriber would so disable the call site for the test that captures.
/// With this second subscriber, `tracing` asks all of them, and the answer is never a lasting no.
struct Witness;

impl Witness {
    fn register() {
        static REGISTERED: OnceLock<Dispatch> = OnceLock::new();
        REGISTERED.get_or_init(|| Dispatch::new(Self));
    }
}

impl tracing::Subscriber for Witness {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        false
    }

    fn event(&self, _: &tracing::Event<'_>) {}

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.least
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.least.into())
    }

    fn event(&self, event: &tracing::Event<'_>) {
        struct Line(String);

        impl Visit for Line {
            fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                if field.name() == "message" {
                    self.0.insert_str(0, &format!("{value:?}"));
                } else {
                    self.0.push_str(&format!(" {field}={value:?}"));
                }
            }
        }

        let mut line = Line(String::new());
        event.record(&mut line);
        let level = *event.metadata().level();
        self.count.fetch_add(usize::from(level <= Level::INFO), Ordering::SeqCst);
        self.lines.lock().unwrap().push((level, line.0));
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[test]
fn a_line_is_captured_although_a_thread_without_a_subscriber_logs_it_first() {
    fn log_line() {
        tracing::warn!("a line");
    }
    let (log, _guard) = Log::capture();
    std::thread::spawn(log_line).join().unwrap();
    log_line();
    log.assert_lines(&[(Level::WARN, "a line")]);
}
