//! Learning of the changes that other instances make.
//!
//! One task looks at the changes since the last that it knows, at an interval and whenever it is
//! woken. Announcements only wake it: one that is lost, or a connection that breaks, costs time and
//! loses no change.

use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use rl_core::FailureKind;
use sqlx::postgres::PgListener;
use tokio::sync::Notify;
use tokio::time::{Interval, MissedTickBehavior};

use super::Inner;
use crate::database::{CHANNEL, Listener, Since};
use crate::{DatabaseError, Records};

/// How long is waited before a broken connection is made again.
const RECONNECT: Duration = Duration::from_secs(1);

/// How long a look at the changes may take.
const LONGEST: Duration = Duration::from_secs(5);

pub(super) fn start(inner: &Arc<Inner>, poll_every: Duration) {
    let wake = Arc::new(Notify::new());
    let watch = tokio::spawn(watch(Arc::downgrade(inner), wake.clone(), poll_every));
    let mut tasks = vec![watch.abort_handle()];
    if let Some(url) = inner.records.postgres_url() {
        let listen = tokio::spawn(listen_on_postgres(url.to_owned(), wake.clone()));
        tasks.push(listen.abort_handle());
    }
    #[cfg(feature = "redis")]
    if let Some(client) = inner.records.redis() {
        let listen = tokio::spawn(listen_on_redis(client.clone(), wake));
        tasks.push(listen.abort_handle());
    }
    *inner.tasks.lock().unwrap_or_else(PoisonError::into_inner) = tasks;
}

async fn watch(inner: Weak<Inner>, wake: Arc<Notify>, every: Duration) {
    let mut ticks = ticks(every);
    let mut last = None;
    let mut is_down = false;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = wake.notified() => {}
        }
        let Some(inner) = inner.upgrade() else { return };
        let looking = tokio::time::timeout(LONGEST, look(&inner, last));
        let looked = looking.await.unwrap_or(Err(DatabaseError::new(FailureKind::TimedOut)));
        match looked {
            Ok(newest) => {
                if is_down {
                    tracing::info!(target: "rl_records", "the database of records answers again");
                }
                (last, is_down) = (Some(newest), false);
            }
            Err(error) => {
                if !is_down {
                    let (kind, cause) = (error.kind().as_str(), std::error::Error::source(&error));
                    let cause = cause.map(tracing::field::display);
                    tracing::warn!(target: "rl_records", kind, cause, "{error}; the last limits hold");
                }
                is_down = true;
            }
        }
    }
}

/// Marks what changed after `last`; tells the newest change.
async fn look(inner: &Inner, last: Option<i64>) -> Result<i64, DatabaseError> {
    let records: &Records = &inner.records;
    let Some(last) = last else {
        let newest = records.last_change().await?;
        // Whatever was looked up before is from an unknown time.
        inner.all_changed();
        return Ok(newest);
    };
    match records.changes_since(last).await? {
        Since::Changes(changes, newest) => {
            changes.iter().for_each(|(kind, owner)| inner.changed(*kind, owner));
            Ok(newest)
        }
        Since::TooMany(newest) => {
            inner.all_changed();
            Ok(newest)
        }
    }
}

fn ticks(every: Duration) -> Interval {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

async fn listen_on_postgres(url: String, wake: Arc<Notify>) {
    let mut attempts = ticks(RECONNECT);
    loop {
        attempts.tick().await;
        let Ok(mut listener) = PgListener::connect(&url).await else { continue };
        if listener.listen(CHANNEL).await.is_err() {
            continue;
        }
        // What was announced before, or while a connection was broken, was not heard.
        wake.notify_one();
        while let Ok(_announced) = listener.try_recv().await {
            wake.notify_one();
        }
    }
}

#[cfg(feature = "redis")]
async fn listen_on_redis(client: redis::Client, wake: Arc<Notify>) {
    use futures::StreamExt;

    let mut attempts = ticks(RECONNECT);
    loop {
        attempts.tick().await;
        let Ok(mut connection) = client.get_async_pubsub().await else { continue };
        if connection.subscribe(CHANNEL).await.is_err() {
            continue;
        }
        wake.notify_one();
        let mut announced = connection.into_on_message();
        while announced.next().await.is_some() {
            wake.notify_one();
        }
    }
}
