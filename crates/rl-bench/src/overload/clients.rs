//! The clients of a flood, which pause after each response. They are entries in a queue instead of
//! tasks.

use std::collections::VecDeque;
use std::fmt::Write;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use rl_core::{MaybeReady, Origin, RateLimiter, Subject};
use tokio::time::{Instant, sleep_until};

/// The pause of a flooding client after each response.
const PAUSE: Duration = Duration::from_millis(20);
/// The number of requests after which other tasks get a chance to run.
const BATCH: usize = 64;

/// A client, and the number of requests that it has made.
#[derive(Clone, Copy, Debug)]
struct FloodClient {
    number: usize,
    requests: u64,
}

/// The clients of one task.
#[derive(Debug)]
pub(super) struct Clients {
    // The clients that pause, ordered by the end of their pauses. The order holds because all
    // pauses are equal.
    pausing: VecDeque<(Instant, FloodClient)>,
    id: String,
}

impl Clients {
    /// Returns every `step`-th of `count` clients. Their first requests are spread over one pause.
    pub(super) fn new(first: usize, count: usize, step: usize) -> Self {
        let now = Instant::now();
        let client = |number| {
            let start = now + PAUSE.mul_f64(number as f64 / count as f64);
            (start, FloodClient { number, requests: 0 })
        };
        Self { pausing: (first..count).step_by(step).map(client).collect(), id: String::new() }
    }

    /// Returns a client whose pause is over.
    fn next(&mut self, now: Instant) -> Option<FloodClient> {
        let (_, mut client) = self.pausing.pop_front_if(|(end, _)| *end <= now)?;
        client.requests += 1;
        Some(client)
    }

    fn pause(&mut self, client: FloodClient, now: Instant) {
        self.pausing.push_back((now + PAUSE, client));
    }

    /// Returns a subject that was not used before.
    fn subject(&mut self, client: FloodClient) -> Subject {
        self.id.clear();
        let FloodClient { number, requests } = client;
        write!(self.id, "{number}-{requests}").expect("a string can be written to");
        Subject::consumer(&self.id)
    }

    /// Makes the requests of all clients until the flood has ended.
    pub(super) async fn request(
        mut self,
        limiter: RateLimiter,
        found: Arc<Found>,
        has_ended: Arc<AtomicBool>,
    ) {
        let mut waiting = FuturesUnordered::new();
        let mut timer = pin!(sleep_until(Instant::now()));
        poll_fn(|cx| {
            let (now, has_ended) = (Instant::now(), has_ended.load(Ordering::Relaxed));
            let mut asked = 0;
            while asked < BATCH && !has_ended {
                let Some(client) = self.next(now) else { break };
                asked += 1;
                match limiter.check(&self.subject(client), 1) {
                    MaybeReady::Ready(decision) => {
                        found.note(decision.expect("the decision was taken before").origin());
                        self.pause(client, now);
                    }
                    later => waiting.push(async move { (client, later.await.origin()) }),
                }
            }
            while let Poll::Ready(Some((client, origin))) = waiting.poll_next_unpin(cx) {
                found.note(origin);
                self.pause(client, now);
            }
            if has_ended && waiting.is_empty() {
                return Poll::Ready(());
            }
            let Some((next, _)) = self.pausing.front() else { return Poll::Pending };
            timer.as_mut().reset(*next);
            if asked == BATCH || timer.as_mut().poll(cx).is_ready() {
                cx.waker().wake_by_ref();
            }
            Poll::Pending
        })
        .await;
    }
}

/// The results of the flood's requests.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) decided: AtomicU64,
    pub(super) rejected: AtomicU64,
    pub(super) open: AtomicU64,
}

impl Found {
    fn note(&self, origin: Origin) {
        let count = match origin {
            Origin::FailedOpen(_) => &self.open,
            Origin::FailedClosed(_) => &self.rejected,
            _ => &self.decided,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}
