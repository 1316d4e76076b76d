//! Learning of the changes that other instances make.
//!
//! One task looks at the changes since the last that it knows, at an interval and whenever it is
//! woken. Announcements only wake it: one that is lost, or a connection that breaks, costs time and
//! loses no change.

use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use rl_core::FailureKind;
use rl_core::observe::Transition;
use sqlx::postgres::PgListener;
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, timeout};

use super::Inner;
use crate::database::{CHANNEL, Listener, Mark, Since};
use crate::{DatabaseError, Records};

/// How long is waited before a broken connection is made again, or a look that failed is repeated.
const AGAIN: Duration = Duration::from_secs(1);

/// How long a look at the changes, or a connection for announcements, may take.
const LONGEST: Duration = Duration::from_secs(5);

/// For how long nothing may be announced before the connection is made anew: one whose other end has
/// gone without a word is as quiet as one on which nothing happens.
const QUIET: Duration = Duration::from_secs(60);

pub(super) fn start(inner: &Arc<Inner>, poll_every: Duration) {
    let wake = Arc::new(Notify::new());
    let watch = tokio::spawn(watch(Arc::downgrade(inner), wake.clone(), poll_every));
    let mut tasks = vec![watch.abort_handle()];
    if let Some(url) = inner.records.postgres_url() {
        let url: Arc<str> = url.into();
        let connect = move || on_postgres(url.clone()).boxed();
        tasks.push(tokio::spawn(listen("PostgreSQL", wake.clone(), connect)).abort_handle());
    }
    #[cfg(feature = "redis")]
    if let Some(client) = inner.records.redis().cloned() {
        let connect = move || on_redis(client.clone()).boxed();
        tasks.push(tokio::spawn(listen("Redis", wake, connect)).abort_handle());
    }
    *inner.tasks.lock().unwrap_or_else(PoisonError::into_inner) = tasks;
}

async fn watch(inner: Weak<Inner>, wake: Arc<Notify>, every: Duration) {
    let mut last = None;
    let outage = Transition::new(2 * AGAIN);
    loop {
        let Some(watched) = inner.upgrade() else { return };
        let looking = timeout(LONGEST, look(&watched, last.as_ref()));
        let looked = looking.await.unwrap_or(Err(DatabaseError::new(FailureKind::TimedOut)));
        drop(watched);
        match looked {
            Ok(newest) => {
                if let Some(ended) = outage.ended() {
                    let outage_ms = u64::try_from(ended.lasted.as_millis()).unwrap_or(u64::MAX);
                    tracing::info!(target: "rl_records", outage_ms, "database recovered");
                }
                last = Some(newest);
            }
            Err(error) => {
                if outage.occurred() {
                    let (kind, cause) = (error.kind().as_str(), tracing::field::display(&error));
                    let consequence = "the last limits hold";
                    tracing::warn!(target: "rl_records", kind, cause, consequence, "database failing");
                }
            }
        }
        // A failed look-up is repeated soon, because the announcement that caused it is not repeated.
        let pause = if outage.is_on() { every.min(AGAIN) } else { every };
        let _ = timeout(pause, wake.notified()).await;
    }
}

/// Marks what changed after `last`; tells the newest change.
async fn look(inner: &Inner, last: Option<&Mark>) -> Result<Mark, DatabaseError> {
    let records: &Records = &inner.records;
    if let Some(last) = last
        && let Since::Changes(changes, newest) = records.changes_since(last).await?
    {
        changes.iter().for_each(|(kind, owner)| inner.changed(*kind, owner));
        return Ok(newest);
    }
    let newest = records.last_change().await?;
    // Whatever was looked up before is from an unknown time.
    inner.all_changed();
    Ok(newest)
}

/// An item for each announcement; ends with the connection.
type Announced = BoxStream<'static, ()>;

/// Wakes when something is announced, and when something may have been that was not heard.
async fn listen(
    of: &'static str,
    wake: Arc<Notify>,
    connect: impl Fn() -> BoxFuture<'static, Option<Announced>>,
) {
    let mut attempts = tokio::time::interval(AGAIN);
    attempts.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_deaf = false;
    loop {
        attempts.tick().await;
        let Some(mut announced) = timeout(LONGEST, connect()).await.ok().flatten() else {
            if !is_deaf {
                tracing::warn!(target: "rl_records", of, "announcements unavailable; changes are polled");
            }
            is_deaf = true;
            continue;
        };
        if is_deaf {
            tracing::info!(target: "rl_records", of, "announcements recovered");
        }
        is_deaf = false;
        // What was announced before, or while a connection was broken, was not heard.
        wake.notify_one();
        while let Ok(Some(())) = timeout(QUIET, announced.next()).await {
            wake.notify_one();
        }
    }
}

async fn on_postgres(url: Arc<str>) -> Option<Announced> {
    let mut listener = PgListener::connect(&url).await.ok()?;
    listener.eager_reconnect(false);
    listener.listen(CHANNEL).await.ok()?;
    let next = |mut listener: PgListener| async move {
        let announced = listener.try_recv().await.ok()?;
        announced.map(|_| ((), listener))
    };
    Some(stream::unfold(listener, next).boxed())
}

#[cfg(feature = "redis")]
async fn on_redis(client: redis::Client) -> Option<Announced> {
    let mut connection = client.get_async_pubsub().await.ok()?;
    connection.subscribe(CHANNEL).await.ok()?;
    Some(connection.into_on_message().map(|_| ()).boxed())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Connections on which nothing is ever heard, as many as are asked for.
    fn silent(made: Arc<AtomicUsize>) -> impl Fn() -> BoxFuture<'static, Option<Announced>> {
        move || {
            made.fetch_add(1, Ordering::SeqCst);
            async { Some(stream::pending().boxed()) }.boxed()
        }
    }

    /// A connection that had ended without a word was listened to for ever.
    #[tokio::test(start_paused = true)]
    async fn a_connection_that_says_nothing_is_made_anew_and_changes_are_looked_for() {
        let (wake, made) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        let listening = tokio::spawn(listen("nobody", wake.clone(), silent(made.clone())));
        for connections in 1..5 {
            wake.notified().await;
            assert_eq!(made.load(Ordering::SeqCst), connections);
        }
        listening.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn each_announcement_wakes_and_a_connection_that_ends_or_hangs_is_made_again() {
        let (wake, made) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        let (say, said) = tokio::sync::mpsc::unbounded_channel();
        let said = std::sync::Mutex::new(Some(said));
        let counted = made.clone();
        let connect = move || -> BoxFuture<'static, Option<Announced>> {
            counted.fetch_add(1, Ordering::SeqCst);
            match said.lock().unwrap().take() {
                Some(said) => {
                    let next = |mut said: tokio::sync::mpsc::UnboundedReceiver<()>| async move {
                        said.recv().await.map(|()| ((), said))
                    };
                    let announced: Announced = stream::unfold(said, next).boxed();
                    std::future::ready(Some(announced)).boxed()
                }
                None => std::future::pending().boxed(),
            }
        };
        let listening = tokio::spawn(listen("somebody", wake.clone(), connect));
        wake.notified().await;
        for _ in 0..3 {
            say.send(()).unwrap();
            wake.notified().await;
        }
        assert_eq!(made.load(Ordering::SeqCst), 1);
        drop(say);
        while made.load(Ordering::SeqCst) < 4 {
            tokio::time::advance(AGAIN).await;
        }
        listening.abort();
    }
}
