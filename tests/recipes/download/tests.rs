use std::time::Duration;

use axum::body::{Body, to_bytes};
use futures::StreamExt;
use rl_core::time::TokioClock;
use rl_core::{MemoryStore, RateLimiter, Subject};
use tokio::time::Instant;

use super::{downloads, paced};

static FILE: [u8; 1_000_000] = [7; 1_000_000];

fn limiter() -> RateLimiter {
    downloads(MemoryStore::builder().clock(TokioClock::new()).build()).unwrap()
}

/// Receives a download, and returns the time that has passed since `begin`.
async fn receive(body: Body, begin: Instant) -> Duration {
    let received = to_bytes(body, usize::MAX).await.unwrap();
    assert!(received == FILE[..], "{} bytes", received.len());
    begin.elapsed()
}

/// Asserts that this number of bytes took the time that the rate of a megabyte per second gives
/// them. The first two chunks do not wait. Timers have a resolution of a millisecond.
fn assert_at_rate(bytes: u64, elapsed: Duration) {
    let exact = Duration::from_micros(bytes - 131_072);
    let late = elapsed.checked_sub(exact).unwrap_or_else(|| panic!("{elapsed:?} < {exact:?}"));
    assert!(late <= Duration::from_millis(2), "{elapsed:?} > {exact:?}");
}

#[tokio::test(start_paused = true)]
async fn a_download_takes_the_time_that_its_bytes_need_at_the_rate() {
    let (begin, client) = (Instant::now(), Subject::user("alice"));
    assert_at_rate(1_000_000, receive(paced(&FILE[..], limiter(), client), begin).await);
}

#[tokio::test(start_paused = true)]
async fn downloads_of_one_client_share_the_rate_and_those_of_others_do_not() {
    let (begin, limiter) = (Instant::now(), limiter());
    let download =
        |client| receive(paced(&FILE[..], limiter.clone(), Subject::user(client)), begin);
    let times = futures::join!(download("alice"), download("alice"), download("bob"));
    assert_at_rate(2_000_000, times.0.max(times.1));
    assert!(times.0.min(times.1) > Duration::from_millis(1_700), "they alternate: {times:?}");
    assert_at_rate(1_000_000, times.2);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_disconnects_is_charged_for_the_chunks_that_were_read() {
    let (limiter, client) = (limiter(), Subject::user("alice"));
    let mut chunks = paced(&FILE[..], limiter.clone(), client.clone()).into_data_stream();
    assert_eq!(chunks.next().await.unwrap().unwrap().len(), 65_536);
    drop(chunks);
    let usage = limiter.usage(&client).await.unwrap();
    assert_eq!(usage.limits().next().map(|limit| limit.used()), Some(65_536));
}
