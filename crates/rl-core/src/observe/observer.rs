//! The trait of observers.

use std::fmt;
use std::sync::Arc;

use super::{DecisionEvent, Event, EventKind};

/// Receives decisions and events. Its methods run as part of the request, so they should be quick.
///
/// # Examples
///
/// An observer that collects messages for operators:
///
/// ```
/// use std::sync::{Arc, Mutex};
///
/// use rl_core::observe::{Event, EventKind, Observer};
/// use rl_core::{Limit, RateLimiter, Subject};
///
/// #[derive(Debug, Default)]
/// struct Messages(Mutex<Vec<String>>);
///
/// impl Observer for Messages {
///     fn observe(&self, event: &Event<'_>) {
///         let limiter = event.location.limiter;
///         let message = match event.kind {
///             EventKind::NearLimit { subject, limit, percent, .. } => {
///                 format!("{limiter}: {} has used {percent} % of {}", subject.redacted(), limit.name())
///             }
///             kind => format!("{limiter}: {}", kind.as_str()),
///         };
///         self.0.lock().unwrap().push(message);
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let messages = Arc::new(Messages::default());
/// let limiter =
///     RateLimiter::builder().limit(Limit::per_hour(10)).observer(messages.clone()).build()?;
/// for _ in 0..20 {
///     limiter.check(&Subject::user("alice"), 1).await;
/// }
/// let messages = messages.0.lock().unwrap();
/// assert_eq!(messages.len(), 3, "at 80, 90 and 100 %");
/// assert!(messages[0].ends_with("has used 80 % of hour"));
/// # Ok(()) }
/// ```
pub trait Observer: fmt::Debug + Send + Sync + 'static {
    /// Receives a decision, whichever component made it. Its
    /// [`origin`](crate::Decision::origin) names that component.
    fn decided(&self, event: &DecisionEvent<'_>) {
        let _ = event;
    }

    /// Receives any other event.
    fn observe(&self, event: &Event<'_>) {
        let _ = event;
    }

    /// Returns whether the observer receives decisions. Defaults to `true`. The limiter calls it
    /// once, when it is built.
    ///
    /// An observer that returns false gets neither [`decided`](Self::decided) nor the events
    /// [`EventKind::NearLimit`] and [`EventKind::Settled`]. Decisions in memory then cost as little
    /// as without an observer.
    fn observes_decisions(&self) -> bool {
        true
    }
}

/// Ignores all events.
impl Observer for () {
    fn observes_decisions(&self) -> bool {
        false
    }
}

/// Two observers of one limiter, each with whether it observes decisions.
#[derive(Debug)]
struct Both([(Arc<dyn Observer>, bool); 2]);

impl Observer for Both {
    fn decided(&self, event: &DecisionEvent<'_>) {
        for (observer, _) in self.0.iter().filter(|(_, observes_decisions)| *observes_decisions) {
            observer.decided(event);
        }
    }

    fn observe(&self, event: &Event<'_>) {
        let needs_decisions =
            matches!(event.kind, EventKind::NearLimit { .. } | EventKind::Settled { .. });
        for (observer, observes_decisions) in &self.0 {
            if *observes_decisions || !needs_decisions {
                observer.observe(event);
            }
        }
    }

    fn observes_decisions(&self) -> bool {
        self.0.iter().any(|(_, observes_decisions)| *observes_decisions)
    }
}

/// Returns an observer that passes each event to `added`, after `existing` if there is one.
pub(crate) fn add(
    existing: Option<Arc<dyn Observer>>,
    added: Arc<dyn Observer>,
) -> Arc<dyn Observer> {
    let Some(existing) = existing else { return added };
    Arc::new(Both([existing, added].map(|one| (Arc::clone(&one), one.observes_decisions()))))
}

impl<O: Observer + ?Sized> Observer for Arc<O> {
    fn decided(&self, event: &DecisionEvent<'_>) {
        (**self).decided(event);
    }

    fn observe(&self, event: &Event<'_>) {
        (**self).observe(event);
    }

    fn observes_decisions(&self) -> bool {
        (**self).observes_decisions()
    }
}
