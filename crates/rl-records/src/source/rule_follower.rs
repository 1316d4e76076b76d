//! Applies the rules of a database to limiters.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use rl_core::FailureKind;
use rl_core::observe::Transition;
use rl_core::rules::{RulesFile, StoredRule};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::database::{
    ChangesSince, Kind, Listener, Position, Records, changes_since, last_change,
};
use crate::error::DatabaseError;

/// The time limit for a poll, and for the wait of a change.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// Applies the rules of a database to the limiters of a rule file, and follows their changes.
///
/// A change by this process applies before the call that makes it returns, unless that takes more
/// than five seconds. A change by another instance applies after the next poll of the change log:
/// every half second, or every 200 milliseconds on MySQL and MariaDB.
///
/// While the database is down, the last known rules apply. If it is down at the start, only the
/// rules of the file apply until it answers. A rule that is not valid beside those of the file does
/// not apply: see [`RulesFile::apply_stored_rules`].
///
/// The rules stay as they are when the follower is dropped.
#[derive(Debug)]
pub struct RuleFollower {
    task: AbortHandle,
    // The database and the task have weak handles.
    _changes: Arc<RuleChanges>,
}

/// The changes that were seen, and those that were applied.
#[derive(Debug, Default)]
struct RuleChanges {
    wake: Notify,
    /// The number of changes of rules that this process made.
    made: watch::Sender<u64>,
    /// The number of these changes that were applied.
    applied: watch::Sender<u64>,
}

impl Listener for RuleChanges {
    fn changed(&self, kind: Kind, _: &str) {
        if kind == Kind::Rule {
            self.made.send_modify(|made| *made += 1);
            self.wake.notify_one();
        }
    }

    fn refresh(&self, kind: Kind, _: &str) -> Option<BoxFuture<'static, ()>> {
        let made = *self.made.borrow();
        let mut applied = self.applied.subscribe();
        let wait = async move {
            let _ = timeout(TIME_LIMIT, applied.wait_for(|applied| *applied >= made)).await;
        };
        (kind == Kind::Rule).then(|| wait.boxed())
    }
}

impl RuleFollower {
    /// Starts to apply the rules of `records` to the limiters of `file`.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    #[must_use]
    pub fn start(records: &Records, file: &RulesFile) -> Self {
        let changes = Arc::new(RuleChanges::default());
        let listener: Arc<dyn Listener> = changes.clone();
        records.database().add_listener(Arc::downgrade(&listener));
        let task = follow(records.clone(), file.clone(), Arc::downgrade(&changes));
        Self { task: tokio::spawn(task).abort_handle(), _changes: changes }
    }
}

impl Drop for RuleFollower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn follow(records: Records, file: RulesFile, changes: Weak<RuleChanges>) {
    let (mut last, mut present) = (None, None);
    let outage = Transition::new(Duration::from_secs(2));
    loop {
        let Some(changes) = changes.upgrade() else { return };
        let made = *changes.made.borrow();
        let is_own = made > *changes.applied.borrow();
        let mut pause = records.database().poll_every();
        let polling = timeout(TIME_LIMIT, poll(&records, last.as_ref(), is_own));
        match polling.await.unwrap_or(Err(DatabaseError::new(FailureKind::TimedOut))) {
            Ok((newest, rules)) => {
                if outage.ended().is_some() {
                    tracing::info!(target: "rl_records", "rules of the database read again");
                }
                let new = rules.filter(|rules| present.as_ref() != Some(rules));
                let is_applied = match &new {
                    Some(rules) => apply(&file, rules).await,
                    None => true,
                };
                if !is_applied {
                    // The next poll reads the rules again.
                    pause = TIME_LIMIT;
                }
                last = is_applied.then_some(newest);
                present = if is_applied { new.or(present) } else { None };
                if is_applied {
                    changes.applied.send_modify(|applied| *applied = made.max(*applied));
                }
            }
            Err(error) => {
                if outage.occurred() {
                    let kind = error.kind().as_str();
                    let cause = tracing::field::display(&error);
                    let consequence = "the last rules apply";
                    tracing::warn!(target: "rl_records", kind, cause, consequence, "rules of the database unreadable");
                }
            }
        }
        let _ = timeout(pause, changes.wake.notified()).await;
    }
}

/// Returns the end of the change log, and the rules if they may have changed after `last`.
async fn poll(
    records: &Records,
    last: Option<&Position>,
    is_own: bool,
) -> Result<(Position, Option<Vec<StoredRule>>), DatabaseError> {
    let database = records.database();
    let changes = match last {
        Some(last) => changes_since(database, last, None).await?,
        None => ChangesSince::Unknown,
    };
    // The position comes first. A change between the two reads is then read once more.
    let (newest, is_changed) = match changes {
        ChangesSince::Known(changes, newest) => {
            (newest, is_own || changes.iter().any(|(kind, _)| *kind == Kind::Rule))
        }
        ChangesSince::Unknown => (last_change(database).await?, true),
    };
    if !is_changed {
        return Ok((newest, None));
    }
    let rules = records.rules().all().await?;
    Ok((newest, Some(rules.iter().map(|rule| rule.content.to_rule()).collect())))
}

/// Applies the rules on a thread that may block. Returns whether that succeeded.
async fn apply(file: &RulesFile, rules: &[StoredRule]) -> bool {
    let (file, stored) = (file.clone(), rules.to_vec());
    let applied = tokio::task::spawn_blocking(move || file.apply_stored_rules(stored)).await;
    match applied {
        Ok(Ok(())) => {
            tracing::info!(target: "rl_records", rules = rules.len(), "rules of the database applied");
            true
        }
        Ok(Err(error)) => {
            tracing::error!(target: "rl_records", %error, "rules of the database refused");
            false
        }
        Err(error) => {
            tracing::error!(target: "rl_records", %error, "rules of the database not applied");
            false
        }
    }
}
