//! What is logged, for tests.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::subscriber::{self, DefaultGuard};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// Keeps what operators read of the log lines of this thread, until it is dropped.
pub(crate) struct Capture {
    lines: Arc<Mutex<Vec<String>>>,
    _until_dropped: DefaultGuard,
}

impl Capture {
    pub(crate) fn start() -> Self {
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let guard = subscriber::set_default(Log(Arc::clone(&lines)));
        Self { lines, _until_dropped: guard }
    }

    /// The lines so far, as `WARN message; field=value`.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

struct Log(Arc<Mutex<Vec<String>>>);

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "rl_core" && *metadata.level() <= Level::INFO
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line { message: String::new(), fields: String::new() };
        event.record(&mut line);
        let line = format!("{} {}{}", event.metadata().level(), line.message, line.fields);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        } else {
            self.fields.push_str(&format!("; {field}={value:?}"));
        }
    }
}
