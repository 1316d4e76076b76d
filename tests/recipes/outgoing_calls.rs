use std::error::Error;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use reqwest::header::RETRY_AFTER;
use reqwest::{Client, Response, StatusCode};
use rl_tower::store::Store;
use rl_tower::{BuildError, Limit, OnFailure, RateLimiter, Subject};
use tokio::time::{Instant, sleep_until};

type CallError = Box<dyn Error + Send + Sync>;

/// The longest wait of a call, and the most calls that wait.
const AT_MOST: Duration = Duration::from_secs(30);
const QUEUE: usize = 1_000;

/// The calls to one partner.
struct Partner {
    limiter: RateLimiter,
    paused_until: Mutex<Instant>,
}

impl Partner {
    /// Limits the calls, for example to `10/second:gcra:burst=1`. Instances that share a store on
    /// Redis share the limit.
    fn new(name: &str, limit: Limit, store: impl Store) -> Result<Self, BuildError> {
        let limiter = RateLimiter::builder().namespace(name).limit(limit).store(store);
        let limiter = limiter.on_store_failure(OnFailure::Reject).build()?;
        Ok(Self { limiter, paused_until: Mutex::new(Instant::now()) })
    }

    /// Sends a request when the limit allows it. Sends it again if the partner rejects it for now.
    async fn get(&self, client: &Client, url: &str) -> Result<Response, CallError> {
        for _ in 0..3 {
            self.wait_for_turn().await?;
            let response = client.get(url).send().await?;
            match retry_after(&response) {
                Some(pause) => self.pause(pause),
                None => return Ok(response),
            }
        }
        Err("the partner rejected the call three times".into())
    }

    async fn wait_for_turn(&self) -> Result<(), CallError> {
        let give_up = Instant::now() + AT_MOST;
        loop {
            let pause = self.paused_until();
            if pause > give_up {
                return Err("the partner has asked for a longer pause than a call may wait".into());
            }
            sleep_until(pause).await;
            let at_most = give_up.duration_since(Instant::now());
            let decision =
                self.limiter.request(&Subject::global()).wait(at_most, QUEUE).check().await;
            if !decision.is_allowed() {
                return Err("the limiter did not allow the call in time".into());
            }
            // The partner may have asked for a pause while this call was in the queue.
            if self.paused_until() <= Instant::now() {
                return Ok(());
            }
        }
    }

    fn pause(&self, pause: Duration) {
        let end = Instant::now() + pause.min(Duration::from_secs(86_400));
        let mut until = self.paused_until.lock().unwrap_or_else(PoisonError::into_inner);
        *until = end.max(*until);
    }

    fn paused_until(&self) -> Instant {
        *self.paused_until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the seconds of `Retry-After`, if the partner rejects the call for now.
fn retry_after(response: &Response) -> Option<Duration> {
    let rejections = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];
    if !rejections.contains(&response.status()) {
        return None;
    }
    let seconds = response.headers().get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests;
