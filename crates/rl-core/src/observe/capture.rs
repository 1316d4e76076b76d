//! Captures log lines for tests.

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Once;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span, subscriber};

thread_local! {
    static LINES: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Captures the log lines of this thread until it is dropped.
///
/// One subscriber serves all threads. If each thread had its own, `tracing` would lose lines while
/// threads start and end, because it caches whether any subscriber is interested.
pub(crate) struct Capture {
    // This marker makes the type `!Send`: a value captures the lines of its own thread only.
    _not_send: PhantomData<*const ()>,
}

impl Capture {
    pub(crate) fn start() -> Self {
        static SUBSCRIBER: Once = Once::new();
        SUBSCRIBER.call_once(|| {
            subscriber::set_global_default(CapturedLog).expect("no other test sets one");
        });
        LINES.set(Some(Vec::new()));
        Self { _not_send: PhantomData }
    }

    /// Returns the lines that have been captured, in the form `WARN message; field=value`.
    pub(crate) fn lines(&self) -> Vec<String> {
        LINES.with_borrow(|lines| lines.clone().unwrap_or_default())
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        LINES.set(None);
    }
}

struct CapturedLog;

impl Subscriber for CapturedLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "rl_core" && *metadata.level() <= Level::INFO
    }

    fn event(&self, event: &Event<'_>) {
        LINES.with_borrow_mut(|lines| {
            let Some(lines) = lines else { return };
            let mut line = Line { message: String::new(), fields: String::new() };
            event.record(&mut line);
            lines.push(format!("{} {}{}", event.metadata().level(), line.message, line.fields));
        });
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
