//! Delivers events to one receiver, one after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Request, StatusCode, header};
use http_body_util::Full;
use rl_core::time::{Clock, Timestamp};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::connection::Connector;
use super::receiver::Receiver;
use super::signature::SigningKey;

/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// How deliveries are signed and repeated.
#[derive(Clone, Debug)]
pub(super) struct Delivering {
    pub(super) key: SigningKey,
    pub(super) attempts: u32,
    pub(super) timeout: Duration,
    pub(super) backoff: Duration,
    pub(super) clock: Arc<dyn Clock>,
}

/// An event that waits for delivery.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) id: Arc<str>,
    pub(super) body: Bytes,
}

/// The results of all deliveries to one receiver.
#[derive(Debug, Default)]
pub(super) struct DeliveryCounts {
    pub(super) delivered: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) dropped: AtomicU64,
}

/// Delivers to one receiver.
#[derive(Debug)]
pub(super) struct Deliverer {
    pub(super) receiver: Receiver,
    pub(super) connector: Connector,
    pub(super) delivering: Arc<Delivering>,
    pub(super) counts: Arc<DeliveryCounts>,
}

/// The result of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Attempt {
    Delivered,
    /// Another attempt may succeed.
    Failed(String),
    /// The receiver refuses the event, so another attempt is useless.
    Refused(StatusCode),
}

impl Attempt {
    fn of_status(status: StatusCode) -> Self {
        match status {
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
                Self::Failed(status.to_string())
            }
            status if status.is_success() => Self::Delivered,
            status if status.is_server_error() => Self::Failed(status.to_string()),
            status => Self::Refused(status),
        }
    }
}

impl Deliverer {
    /// Delivers messages until the queue is closed. Logs one line when events begin to be lost, and
    /// one when they no longer are.
    pub(super) async fn run(self, mut queue: mpsc::Receiver<Message>) {
        let (counts, receiver) = (&self.counts, &self.receiver);
        let (mut failed, mut dropped) = (0, 0);
        // The number of lost events before those of the current failure.
        let mut lost_before = None;
        while let Some(message) = queue.recv().await {
            let lost = failed + dropped;
            let result = self.deliver(&message).await;
            let count = if result.is_ok() { &counts.delivered } else { &counts.failed };
            count.fetch_add(1, Ordering::Relaxed);
            failed = counts.failed.load(Ordering::Relaxed);
            let dropped_before =
                std::mem::replace(&mut dropped, counts.dropped.load(Ordering::Relaxed));
            let cause = match result {
                Err(cause) => Some(cause),
                Ok(()) if dropped > dropped_before => Some("the queue is full".to_owned()),
                Ok(()) => None,
            };
            match (cause, lost_before) {
                (Some(cause), None) => {
                    tracing::warn!(target: "rl_admin", %receiver, cause, "webhook failing");
                    lost_before = Some(lost);
                }
                (None, Some(before)) => {
                    let lost = failed + dropped - before;
                    tracing::info!(target: "rl_admin", %receiver, lost, "webhook recovered");
                    lost_before = None;
                }
                _ => {}
            }
        }
    }

    /// Delivers a message, with several attempts. If all of them fail, returns the cause of the
    /// last failure.
    #[expect(clippy::disallowed_methods, reason = "the pause between two attempts")]
    async fn deliver(&self, message: &Message) -> Result<(), String> {
        for attempt in 1.. {
            match self.attempt(message).await {
                Attempt::Delivered => return Ok(()),
                Attempt::Refused(status) => return Err(status.to_string()),
                Attempt::Failed(cause) if attempt >= self.delivering.attempts => return Err(cause),
                Attempt::Failed(_) => sleep(self.pause(attempt)).await,
            }
        }
        Ok(())
    }

    /// Returns the pause after an attempt: a random time between half and all of a time that
    /// doubles with each attempt.
    fn pause(&self, attempt: u32) -> Duration {
        let doubled = self.delivering.backoff.saturating_mul(1 << (attempt - 1).min(16));
        doubled.min(LONGEST_PAUSE).mul_f64(fastrand::f64().mul_add(0.5, 0.5))
    }

    async fn attempt(&self, message: &Message) -> Attempt {
        let request = match self.request(message, self.delivering.clock.now()) {
            Ok(request) => request,
            Err(error) => return Attempt::Failed(error.to_string()),
        };
        let time = self.delivering.timeout;
        let sent = self.connector.send(&self.receiver, request, time);
        match timeout(time, sent).await {
            Ok(Ok(status)) => Attempt::of_status(status),
            Ok(Err(error)) => Attempt::Failed(error.to_string()),
            Err(_) => Attempt::Failed("timeout".to_owned()),
        }
    }

    fn request(
        &self,
        message: &Message,
        now: Timestamp,
    ) -> Result<Request<Full<Bytes>>, axum::http::Error> {
        let timestamp = (now.as_micros() / 1_000_000).to_string();
        Request::post(&self.receiver.path)
            .header(header::HOST, self.receiver.authority())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::USER_AGENT, concat!("rl-admin/", env!("CARGO_PKG_VERSION")))
            .header("rl-webhook-id", &*message.id)
            .header("rl-webhook-signature", self.delivering.key.sign(&timestamp, &message.body))
            .header("rl-webhook-timestamp", timestamp)
            .body(Full::new(message.body.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_that_may_pass_are_tried_again() {
        for (status, is_tried_again) in [
            (500, true),
            (503, true),
            (429, true),
            (408, true),
            (400, false),
            (301, false),
            (410, false),
        ] {
            let attempt = Attempt::of_status(StatusCode::from_u16(status).unwrap());
            assert_eq!(matches!(attempt, Attempt::Failed(_)), is_tried_again, "{status}");
            assert_ne!(attempt, Attempt::Delivered, "{status}");
        }
        assert_eq!(Attempt::of_status(StatusCode::ACCEPTED), Attempt::Delivered);
    }
}
