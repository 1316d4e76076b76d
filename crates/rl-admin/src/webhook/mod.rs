//! Sends events of limiters to other systems, as JSON over HTTP.
//!
//! 1. **A receiver never slows decisions.** An event is put into a bounded queue of each receiver,
//!    without waiting. A full queue drops the event, and [`WebhookStats::dropped`] counts it.
//! 2. **Delivery is tried several times**, with growing pauses of random length, and a time limit
//!    for each attempt. It is tried again after a failed connection, a timeout, 408, 429 and 5xx.
//! 3. **Every delivery is signed**, as below. A receiver can verify its origin and its age.
//! 4. **Nothing personal or secret is sent or logged.** Subjects are shown as the same keyed
//!    hash as in the log. Log lines name only the host of a receiver, because its path may be a
//!    secret.
//!
//! # The signature
//!
//! ```text
//! POST /limits
//! content-type: application/json
//! rl-webhook-id: 5f0c6f7e9a3b4d21-17            the same for all attempts of one event
//! rl-webhook-timestamp: 1795440840              seconds since 1970, of this attempt
//! rl-webhook-signature: v1=<hexadecimal digits of HMAC-SHA256(secret, timestamp "." body)>
//!
//! {"at":"2026-11-23T13:34:00Z","detail":{"failure":"unavailable","on_failure":"fallback"},
//!  "event":"store_failing","id":"5f0c6f7e9a3b4d21-17","limiter":"api","store":"redis 127.0.0.1:6379"}
//! ```
//!
//! A receiver verifies a delivery in four steps:
//!
//! 1. It rejects a timestamp that differs from its clock by more than five minutes.
//! 2. It computes the HMAC of the timestamp as it was received, a full stop, and the bytes of the
//!    body.
//! 3. It compares the result with the signature in constant time.
//! 4. It ignores an id that it has processed before.
//!
//! ```sh
//! printf '%s.%s' "$TIMESTAMP" "$BODY" | openssl dgst -sha256 -hmac "$SECRET"
//! ```
//!
//! # Where requests go
//!
//! Only settings name receivers, never data of a request. Redirects are not followed, no proxy of
//! the environment is used, and the body of the response is not read. The address that was checked
//! is the address that is used:
//!
//! | address of the receiver | `https://` | `http://` |
//! |---|---|---|
//! | public | yes | no |
//! | private, loopback | yes | yes |
//! | link-local (metadata of cloud hosts), unspecified, multicast, broadcast | no | no |
//!
//! # Events
//!
//! The names are those of [`EventKind`](rl_core::observe::EventKind), and `detail` has its values:
//! a subject as its `realm` and `hash`, an error of a store as the kind of `failure`, and a time in
//! `seconds`. `rule` is present if the event concerns one.
//!
//! Events that occur for each call are not sent. Of the `would_deny` events in a window, only the
//! first is sent.
//! [`Webhooks::watch`] adds `denial_burst_began` and `denial_burst_ended`.
//!
//! `near_limit` must be [switched on](WebhooksBuilder::near_limit). For a limit with a period of an
//! hour or more, it is sent once for each subject, threshold and window. Subjects reach the
//! thresholds of shorter periods in window after window. So a limit with a shorter period has at
//! most one event in a minute for each threshold, for all subjects together. `suppressed` is the
//! number of events that were left out before.
//!
//! # Example
//!
//! ```
//! use rl_admin::webhook::Webhooks;
//! use rl_core::{Limit, RateLimiter};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let webhooks = Webhooks::builder("a secret of 32 random characters")
//!     .url("https://hooks.example.com/limits")
//!     .start()?;
//! let limiter =
//!     RateLimiter::builder().limit(Limit::per_hour(100)).observer(webhooks.clone()).build()?;
//! webhooks.watch(&limiter);
//! # Ok(()) }
//! ```

mod address;
mod builder;
mod bursts;
mod connection;
mod delivery;
mod near_limits;
mod payload;
mod receiver;
mod signature;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::body::Bytes;
pub use builder::{InvalidWebhook, WebhooksBuilder};
use bursts::{BurstDetector, BurstThreshold};
use connection::Connector;
pub(crate) use connection::client_config;
use delivery::{Deliverer, Delivering, DeliveryCounts, Message};
use jiff::Timestamp;
use near_limits::NearLimitSampler;
use payload::Payload;
use receiver::Receiver;
use rl_core::observe::{Event, EventLocation, Observer};
use rl_core::{RateLimiter, WeakRateLimiter};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

/// The interval between readings of the counts of a limiter.
const READING_INTERVAL: Duration = Duration::from_secs(1);

/// Sends the events of limiters to receivers, as the [module](self) describes.
///
/// Clones are cheap, and share the queues. After the last clone is dropped, the events that wait
/// are still delivered, as long as the runtime runs.
#[derive(Clone)]
pub struct Webhooks(Arc<Queues>);

#[derive(Debug)]
struct Queues {
    /// The queue of each receiver, with the results of its deliveries.
    queues: Vec<(mpsc::Sender<Message>, Arc<DeliveryCounts>)>,
    delivering: Arc<Delivering>,
    /// Random digits with which the ids of the events of this process begin.
    prefix: String,
    last: AtomicU64,
    burst: BurstThreshold,
    is_near_limit_sent: bool,
    near_limits: NearLimitSampler,
}

/// The results of all deliveries since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WebhookStats {
    /// The deliveries that a receiver has accepted.
    pub delivered: u64,
    /// The deliveries whose last attempt has failed.
    pub failed: u64,
    /// The deliveries that were dropped because the queue was full.
    pub dropped: u64,
}

impl Webhooks {
    /// Returns a builder. Deliveries are signed with `secret`, which must have 16 bytes or more.
    pub fn builder(secret: impl AsRef<[u8]>) -> WebhooksBuilder {
        WebhooksBuilder::new(secret.as_ref())
    }

    fn start(
        receivers: Vec<Receiver>,
        delivering: Delivering,
        queue: usize,
        burst: BurstThreshold,
        is_near_limit_sent: bool,
    ) -> Self {
        let delivering = Arc::new(delivering);
        let connector = Connector::new(receivers.iter().any(|receiver| receiver.is_tls));
        let start = |receiver: Receiver| {
            let (sender, messages) = mpsc::channel(queue);
            let counts = Arc::<DeliveryCounts>::default();
            let deliverer = Deliverer {
                receiver,
                connector: connector.clone(),
                delivering: delivering.clone(),
                counts: counts.clone(),
            };
            tokio::spawn(deliverer.run(messages));
            (sender, counts)
        };
        let queues = Queues {
            queues: receivers.into_iter().map(start).collect(),
            prefix: format!("{:016x}", fastrand::u64(..)),
            last: AtomicU64::new(0),
            delivering,
            burst,
            is_near_limit_sent,
            near_limits: NearLimitSampler::default(),
        };
        Self(Arc::new(queues))
    }

    /// Starts to send an event when a burst of denials of `limiter` begins, and when it ends.
    ///
    /// A task reads the counts of the limiter each second, so decisions pay nothing for it. The
    /// task ends when the last handle of the limiter or of the webhooks is dropped.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub fn watch(&self, limiter: &RateLimiter) {
        tokio::spawn(watch(Arc::downgrade(&self.0), limiter.downgrade(), self.0.burst));
    }

    /// Returns the results of all deliveries.
    #[must_use]
    pub fn stats(&self) -> WebhookStats {
        let sum = |count: fn(&DeliveryCounts) -> &AtomicU64| {
            let counts = self.0.queues.iter().map(|(_, counts)| count(counts));
            counts.map(|count| count.load(Ordering::Relaxed)).sum()
        };
        WebhookStats {
            delivered: sum(|counts| &counts.delivered),
            failed: sum(|counts| &counts.failed),
            dropped: sum(|counts| &counts.dropped),
        }
    }

    /// Sends an event about the database or the counters, which concerns no limiter.
    pub(crate) fn send_event(&self, event: &'static str, detail: Value) {
        self.send(Payload::new(event, &EventLocation::default(), detail));
    }

    /// Puts an event into each queue, without waiting.
    fn send(&self, payload: Payload) {
        let queues = &*self.0;
        let number = queues.last.fetch_add(1, Ordering::Relaxed) + 1;
        let id: Arc<str> = format!("{}-{number}", queues.prefix).into();
        let micros = queues.delivering.clock.now().as_micros();
        let at = i64::try_from(micros).ok().and_then(|at| Timestamp::from_microsecond(at).ok());
        let mut body = Map::new();
        body.insert("id".to_owned(), (*id).into());
        body.insert("event".to_owned(), payload.event.into());
        body.insert("at".to_owned(), at.map_or(Value::Null, |at| at.to_string().into()));
        body.extend(payload.values);
        let message = Message { id, body: Bytes::from(Value::Object(body).to_string()) };
        for (queue, counts) in &queues.queues {
            if queue.try_send(message.clone()).is_err() {
                counts.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl Observer for Webhooks {
    fn observe(&self, event: &Event<'_>) {
        let queues = &*self.0;
        let sampled = queues.near_limits.sample(event, queues.delivering.clock.now());
        if let Some(payload) = sampled.as_ref().and_then(Payload::of) {
            self.send(payload);
        }
    }

    fn observes_decisions(&self) -> bool {
        self.0.is_near_limit_sent
    }
}

impl fmt::Debug for Webhooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhooks").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// Reads the counts of a limiter each second, and sends an event when a burst of denials begins or
/// ends.
///
/// The limiter may have the webhooks as its observer. So the task must keep neither of them alive.
async fn watch(queues: Weak<Queues>, limiter: WeakRateLimiter, threshold: BurstThreshold) {
    let mut detector = BurstDetector::new(threshold);
    let mut ticks = interval(READING_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let (Some(webhooks), Some(limiter)) = (queues.upgrade().map(Webhooks), limiter.upgrade())
        else {
            return;
        };
        let stats = limiter.stats();
        let Some((is_burst, denials)) = detector.read(stats.denied()) else { continue };
        let event = if is_burst { "denial_burst_began" } else { "denial_burst_ended" };
        let location = EventLocation::new(&stats.name, &stats.store_name);
        let detail = json!({ "denials": denials, "seconds": threshold.seconds });
        webhooks.send(Payload::new(event, &location, detail));
    }
}
