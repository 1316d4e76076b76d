//! Invalidates the caches after changes by other instances.
//!
//! One task polls the change log, at an interval and after announcements. An announcement only
//! triggers a poll. So a lost announcement or a broken connection delays a change, but never loses
//! it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use rl_core::FailureKind;
use rl_core::observe::{Event, EventKind, EventLocation, Observer, Transition};
use sqlx::postgres::PgListener;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior, timeout};

use super::caches::Caches;
use crate::database::{
    CHANNEL, ChangesSince, Database, Listener, Position, changes_since, last_change,
};
use crate::error::DatabaseError;

/// The pause before another attempt to connect or to poll.
const RETRY: Duration = Duration::from_secs(1);

/// The time limit for a poll, and for connecting to the channel of announcements.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// The time without announcements after which the connection is replaced. If the other end has
/// disappeared without closing the connection, nothing else would show it.
const QUIET: Duration = Duration::from_secs(60);

/// Starts the tasks that poll the change log and listen for announcements.
pub(super) fn start(
    database: &Arc<Database>,
    caches: &Arc<Caches>,
    poll_every: Duration,
    observers: Vec<Arc<dyn Observer>>,
) -> Vec<AbortHandle> {
    let wake = Arc::new(Notify::new());
    let watched = Arc::downgrade(caches);
    let poll = poll(database.clone(), watched, wake.clone(), poll_every, observers);
    let mut tasks = vec![tokio::spawn(poll).abort_handle()];
    if let Some(url) = database.postgres_url() {
        let url: Arc<str> = url.into();
        let connect = move || on_postgres(url.clone()).boxed();
        tasks.push(tokio::spawn(listen("PostgreSQL", wake.clone(), connect)).abort_handle());
    }
    #[cfg(feature = "redis")]
    if let Some(client) = database.redis().cloned() {
        let connect = move || on_redis(client.clone()).boxed();
        tasks.push(tokio::spawn(listen("Redis", wake, connect)).abort_handle());
    }
    tasks
}

async fn poll(
    database: Arc<Database>,
    caches: Weak<Caches>,
    wake: Arc<Notify>,
    every: Duration,
    observers: Vec<Arc<dyn Observer>>,
) {
    let mut last = None;
    let outage = Transition::new(2 * RETRY);
    loop {
        let Some(watched) = caches.upgrade() else { return };
        let begun = Instant::now();
        let polling = timeout(TIME_LIMIT, poll_once(&database, &watched, last.as_ref()));
        let polled = polling.await.unwrap_or(Err(DatabaseError::new(FailureKind::TimedOut)));
        if polled.is_ok() {
            watched.record_poll();
        }
        drop(watched);
        match polled {
            Ok((newest, changes)) => {
                // The first poll only finds the position at which the changes begin.
                if last.is_some() && changes != Some(0) {
                    observe_changes(&observers, changes, begun.elapsed());
                }
                if let Some(ended) = outage.ended() {
                    let outage_ms = u64::try_from(ended.lasted.as_millis()).unwrap_or(u64::MAX);
                    tracing::info!(target: "rl_records", outage_ms, "database recovered");
                }
                last = Some(newest);
            }
            Err(error) => {
                if outage.occurred() {
                    let kind = error.kind().as_str();
                    let cause = tracing::field::display(&error);
                    let consequence = "the last limits apply";
                    tracing::warn!(target: "rl_records", kind, cause, consequence, "database failing");
                }
            }
        }
        // After a failed poll the next one comes soon, because the announcement that triggered it
        // is not repeated.
        let pause = if outage.is_on() { every.min(RETRY) } else { every };
        let _ = timeout(pause, wake.notified()).await;
    }
}

fn observe_changes(observers: &[Arc<dyn Observer>], changes: Option<usize>, duration: Duration) {
    let kind = EventKind::PoliciesChanged { changes, duration };
    let event = Event::new(EventLocation::new("", "records"), kind);
    observers.iter().for_each(|observer| observer.observe(&event));
}

/// Invalidates the values that have changed after `last`. Returns the position of the newest
/// change, and the number of changes. If the changes are unknown, invalidates everything, and
/// returns `None` as their number.
async fn poll_once(
    database: &Database,
    caches: &Caches,
    last: Option<&Position>,
) -> Result<(Position, Option<usize>), DatabaseError> {
    // This is read before the log, so the log contains it, unless the database went back since.
    let seen = caches.seen.get();
    let changes = match last {
        Some(last) => changes_since(database, last, seen.as_ref()).await?,
        None => ChangesSince::Unknown,
    };
    let polled = match changes {
        ChangesSince::Known(changes, newest) => {
            changes.iter().for_each(|(kind, owner)| caches.changed(*kind, owner));
            (newest, Some(changes.len()))
        }
        ChangesSince::Unknown => {
            let newest = last_change(database).await?;
            // The changes between the cached values and this position are unknown, so everything is
            // invalidated.
            caches.invalidate_all();
            (newest, None)
        }
    };
    caches.seen.forget(seen);
    Ok(polled)
}

/// A stream with one item for each announcement. It ends when the connection ends.
type Announcements = BoxStream<'static, ()>;

/// Triggers a poll after each announcement, and after each reconnection.
async fn listen(
    channel: &'static str,
    wake: Arc<Notify>,
    connect: impl Fn() -> BoxFuture<'static, Option<Announcements>>,
) {
    let mut attempts = tokio::time::interval(RETRY);
    attempts.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_unavailable = false;
    loop {
        attempts.tick().await;
        let Some(mut announced) = timeout(TIME_LIMIT, connect()).await.ok().flatten() else {
            if !is_unavailable {
                tracing::warn!(target: "rl_records", channel, "announcements unavailable; changes are polled");
            }
            is_unavailable = true;
            continue;
        };
        if is_unavailable {
            tracing::info!(target: "rl_records", channel, "announcements recovered");
        }
        is_unavailable = false;
        // Announcements before this connection may have been missed, so a poll is due.
        wake.notify_one();
        while let Ok(Some(())) = timeout(QUIET, announced.next()).await {
            wake.notify_one();
        }
    }
}

async fn on_postgres(url: Arc<str>) -> Option<Announcements> {
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
async fn on_redis(client: redis::Client) -> Option<Announcements> {
    let mut connection = client.get_async_pubsub().await.ok()?;
    connection.subscribe(CHANNEL).await.ok()?;
    Some(connection.into_on_message().map(|_| ()).boxed())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Returns a function that opens connections on which no announcement arrives. It counts them
    /// in `made`.
    fn silent(made: Arc<AtomicUsize>) -> impl Fn() -> BoxFuture<'static, Option<Announcements>> {
        move || {
            made.fetch_add(1, Ordering::SeqCst);
            async { Some(stream::pending().boxed()) }.boxed()
        }
    }

    /// Fault: a connection whose other end had disappeared was never replaced.
    #[tokio::test(start_paused = true)]
    async fn a_quiet_connection_is_replaced_and_the_changes_are_polled() {
        let (wake, made) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        let listening = tokio::spawn(listen("silent", wake.clone(), silent(made.clone())));
        for connections in 1..5 {
            wake.notified().await;
            assert_eq!(made.load(Ordering::SeqCst), connections);
        }
        listening.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn each_announcement_wakes_and_a_lost_connection_is_replaced() {
        let (wake, made) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        let (announce, announcements) = tokio::sync::mpsc::unbounded_channel();
        let announcements = std::sync::Mutex::new(Some(announcements));
        let counted = made.clone();
        let connect = move || -> BoxFuture<'static, Option<Announcements>> {
            counted.fetch_add(1, Ordering::SeqCst);
            match announcements.lock().unwrap().take() {
                Some(receiver) => {
                    let next = |mut receiver: tokio::sync::mpsc::UnboundedReceiver<()>| async move {
                        receiver.recv().await.map(|()| ((), receiver))
                    };
                    let announced: Announcements = stream::unfold(receiver, next).boxed();
                    std::future::ready(Some(announced)).boxed()
                }
                None => std::future::pending().boxed(),
            }
        };
        let listening = tokio::spawn(listen("talking", wake.clone(), connect));
        wake.notified().await;
        for _ in 0..3 {
            announce.send(()).unwrap();
            wake.notified().await;
        }
        assert_eq!(made.load(Ordering::SeqCst), 1);
        drop(announce);
        while made.load(Ordering::SeqCst) < 4 {
            tokio::time::advance(RETRY).await;
        }
        listening.abort();
    }
}
