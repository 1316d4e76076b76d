use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rl_core::time::Timestamp;
use rl_records::{ConsoleSession, DatabaseError, Records};
use sha2::{Digest, Sha256};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::access::{Actor, hex};
use crate::error::ApiError;
use crate::outage::OutageLog;

/// The maximum number of sessions. Beyond it, a new session replaces the one that has been idle the
/// longest.
const MAX_SESSIONS: usize = 10_000;

/// The age at which a copy is compared with the database again, in microseconds. A logout at
/// another instance takes effect after this time at the latest. After a failure, the database is
/// not called for the same time.
const CHECK_EVERY: u64 = 5_000_000;

/// The longest wait of a page for the database of sessions.
const WAIT: Duration = Duration::from_secs(1);

/// The interval between attempts to store a logout.
const RETRY: Duration = Duration::from_secs(1);

/// The sessions of the console, in the database of records. Each instance has copies of those that
/// it has seen, and serves them while the database is down.
///
/// Tables contain only the digests of session ids, so that a leak of them reveals no id.
pub(super) struct Sessions {
    records: Records,
    outages: Arc<OutageLog>,
    copies: Mutex<Copies>,
    max: usize,
    idle_micros: u64,
    longest_micros: u64,
}

#[derive(Default)]
struct Copies {
    by_digest: HashMap<String, Copy>,
    // The sessions that ended here, with the time. The database may still contain them.
    ended: HashMap<String, Timestamp>,
    // The database is not read before this time.
    paused_until: Timestamp,
}

/// A session in the memory of this instance.
#[derive(Clone)]
struct Copy {
    session: ConsoleSession,
    actor: Actor,
    checked: Timestamp,
    /// The last click that is in the database. `None` if the session is not.
    stored: Option<Timestamp>,
}

/// The session of an actor.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) actor: Actor,
    pub(super) form_token: String,
}

impl Sessions {
    pub(super) fn new(
        records: Records,
        outages: Arc<OutageLog>,
        idle: Duration,
        longest: Duration,
    ) -> Self {
        let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        Self {
            records,
            outages,
            copies: Mutex::default(),
            max: MAX_SESSIONS,
            idle_micros: micros(idle),
            longest_micros: micros(longest),
        }
    }

    fn copies(&self) -> MutexGuard<'_, Copies> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a session. Returns its id. If the database fails, the session is stored later.
    pub(super) async fn begin(&self, actor: Actor, now: Timestamp) -> String {
        let id = random_text();
        let session = ConsoleSession::new(actor.to_json(), now, now);
        let copy = Copy { session, actor, checked: now, stored: None };
        {
            let copies = &mut *self.copies();
            copies.by_digest.retain(|_, copy| self.is_alive(&copy.session, now));
            copies.ended.retain(|_, ended| now.micros_since(*ended) < self.longest_micros);
            copies.insert(digest(&id), copy.clone(), self.max);
        }
        if !self.is_paused(now) {
            self.store(&digest(&id), &copy.session, now).await;
        }
        id
    }

    /// Returns the session with this id, if it has not ended. A click extends the session.
    ///
    /// Reads the database if this instance has no recent copy. If the database fails, the copy is
    /// used.
    pub(super) async fn find(&self, id: &str, now: Timestamp, is_click: bool) -> Option<Session> {
        let key = digest(id);
        let copy = self.copies().by_digest.get(&key).cloned();
        let is_recent = |copy: &Copy| now.micros_since(copy.checked) < CHECK_EVERY;
        if !copy.as_ref().is_some_and(is_recent) && !self.is_paused(now) {
            match self.ask(now, self.records.console_sessions().find(&key)).await {
                Some(Some(session)) => self.keep(&key, session, now),
                Some(None) if copy.as_ref().is_some_and(|copy| copy.stored.is_some()) => {
                    self.copies().by_digest.remove(&key);
                }
                // The session began while the database was down.
                Some(None) => {
                    if let Some(copy) = copy {
                        self.store(&key, &copy.session, now).await;
                    }
                }
                None => {}
            }
        }
        let (actor, unnoted) = self.used_copy(&key, now, is_click)?;
        if unnoted && !self.is_paused(now) {
            let noted = self.ask(now, self.records.console_sessions().note_use(&key, now)).await;
            if let (Some(()), Some(copy)) = (noted, self.copies().by_digest.get_mut(&key)) {
                copy.stored = Some(now);
            }
        }
        Some(Session { actor, form_token: form_token(id) })
    }

    /// Ends the session with this id. If the database fails, a task removes the session from it
    /// later.
    pub(super) async fn end(&self, id: &str, now: Timestamp) {
        let key = digest(id);
        {
            let copies = &mut *self.copies();
            copies.by_digest.remove(&key);
            copies.ended.insert(key.clone(), now);
        }
        let is_paused = self.is_paused(now);
        if is_paused || self.ask(now, self.records.console_sessions().end(&key)).await.is_none() {
            tokio::spawn(end_later(self.records.clone(), key, self.longest_micros));
        }
    }

    /// Returns the actor of a live copy, and whether the time of its last click must be stored. A
    /// click is stored once in a thirtieth of the idle time, which is a minute by default.
    fn used_copy(&self, key: &str, now: Timestamp, is_click: bool) -> Option<(Actor, bool)> {
        let mut copies = self.copies();
        let copy = copies.by_digest.get_mut(key)?;
        if !self.is_alive(&copy.session, now) {
            copies.by_digest.remove(key);
            return None;
        }
        if is_click {
            copy.session.used = now;
        }
        let is_old = |noted| copy.session.used.micros_since(noted) >= self.idle_micros / 30;
        Some((copy.actor.clone(), copy.stored.is_some_and(is_old)))
    }

    /// Replaces the copy of a session with the one in the database, but keeps a later click.
    fn keep(&self, key: &str, stored: ConsoleSession, now: Timestamp) {
        let copies = &mut *self.copies();
        let Some(actor) = Actor::from_json(&stored.actor) else { return };
        if copies.ended.contains_key(key) {
            return;
        }
        let used = copies.by_digest.get(key).map_or(stored.used, |copy| copy.session.used);
        let noted = Some(stored.used);
        let session = ConsoleSession::new(stored.actor, stored.began, stored.used.max(used));
        copies.insert(
            key.to_owned(),
            Copy { session, actor, checked: now, stored: noted },
            self.max,
        );
    }

    async fn store(&self, key: &str, session: &ConsoleSession, now: Timestamp) {
        let before = |micros| Timestamp::from_micros(now.as_micros().saturating_sub(micros));
        let (idle_since, oldest) = (before(self.idle_micros), before(self.longest_micros));
        let max = u32::try_from(self.max).unwrap_or(u32::MAX);
        let sessions = self.records.console_sessions();
        let stored = self.ask(now, sessions.begin(key, session, max, idle_since, oldest)).await;
        if let (Some(()), Some(copy)) = (stored, self.copies().by_digest.get_mut(key)) {
            (copy.checked, copy.stored) = (now, Some(session.used));
        }
    }

    fn is_paused(&self, now: Timestamp) -> bool {
        now < self.copies().paused_until
    }

    /// Returns the answer of the database. Returns `None` if it fails or takes too long.
    async fn ask<T>(
        &self,
        now: Timestamp,
        question: impl Future<Output = Result<T, DatabaseError>>,
    ) -> Option<T> {
        let error = match timeout(WAIT, question).await {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) => Some(error),
            Err(_) => None,
        };
        self.copies().paused_until = now.plus_micros(CHECK_EVERY);
        if let Some(failure) = error.and_then(|error| ApiError::from(error).take_failure()) {
            self.outages.note(&failure);
        }
        None
    }

    const fn is_alive(&self, session: &ConsoleSession, now: Timestamp) -> bool {
        now.micros_since(session.used) < self.idle_micros
            && now.micros_since(session.began) < self.longest_micros
    }
}

impl Copies {
    /// Inserts a copy, in place of the idlest one if there are `max`.
    fn insert(&mut self, digest: String, copy: Copy, max: usize) {
        let sessions = &mut self.by_digest;
        if sessions.len() >= max && !sessions.contains_key(&digest) {
            let idlest = sessions.iter().min_by_key(|(_, copy)| copy.session.used);
            if let Some(idlest) = idlest.map(|(digest, _)| digest.clone()) {
                sessions.remove(&idlest);
            }
        }
        sessions.insert(digest, copy);
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.copies().by_digest.len();
        f.debug_struct("Sessions").field("copies", &count).finish_non_exhaustive()
    }
}

/// Removes a session from the database, with retries until the session would have ended anyway.
async fn end_later(records: Records, digest: String, longest_micros: u64) {
    let mut ticks = interval(RETRY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let retry = async {
        loop {
            ticks.tick().await;
            if records.console_sessions().end(&digest).await.is_ok() {
                return;
            }
        }
    };
    let _ = timeout(Duration::from_micros(longest_micros), retry).await;
}

fn digest(id: &str) -> String {
    hex(&Sha256::digest(id.as_bytes()))
}

/// Returns the secret that the forms of a session contain. It depends on the id, so that no table
/// contains it.
fn form_token(id: &str) -> String {
    hex(&Sha256::new().chain_update("form token of ").chain_update(id).finalize())
}

/// Returns 256 random bits as hexadecimal digits.
pub(super) fn random_text() -> String {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).expect("the operating system supplies randomness");
    hex(&bytes)
}

#[cfg(test)]
mod tests {
    use rl_core::{Limit, RateLimiter};

    use super::*;
    use crate::access::Roles;

    const SECOND: u64 = 1_000_000;

    fn at(secs: u64) -> Timestamp {
        Timestamp::from_secs(1_000_000 + secs)
    }

    fn alice() -> Actor {
        Actor::new("alice", Roles::all()).of_applications(["shop"])
    }

    async fn sessions(idle: u64, longest: u64) -> Sessions {
        let records = Records::connect("sqlite::memory:").await.unwrap();
        instance(&records, idle, longest)
    }

    fn instance(records: &Records, idle: u64, longest: u64) -> Sessions {
        let limiter = RateLimiter::builder().limit(Limit::per_minute(1)).build().unwrap();
        let outages = OutageLog::new(records.clone(), limiter, None);
        let [idle, longest] = [idle, longest].map(Duration::from_secs);
        Sessions::new(records.clone(), outages, idle, longest)
    }

    #[tokio::test]
    async fn a_session_ends_when_it_is_idle_or_too_old_or_after_a_logout() {
        let sessions = sessions(10, 25).await;
        let begin = || sessions.begin(alice(), at(0));
        let (idle, old, out) = (begin().await, begin().await, begin().await);
        assert_eq!(sessions.find(&idle, at(9), true).await.unwrap().actor, alice());
        // An automatic refresh does not extend the session.
        assert!(sessions.find(&idle, at(18), false).await.is_some());
        assert!(sessions.find(&idle, at(19), false).await.is_none());
        assert!(sessions.find(&idle, at(19), true).await.is_none(), "it was removed");

        for secs in [8, 16, 24] {
            assert!(sessions.find(&old, at(secs), true).await.is_some(), "{secs}");
        }
        assert!(sessions.find(&old, at(25), true).await.is_none());

        sessions.end(&out, at(1)).await;
        assert!(sessions.find(&out, at(1), true).await.is_none());
        assert!(sessions.find("", at(1), true).await.is_none());
    }

    #[tokio::test]
    async fn ids_and_tokens_are_long_and_unique() {
        let sessions = sessions(10, 25).await;
        let mut seen = std::collections::HashSet::new();
        for _ in 0..100 {
            let id = sessions.begin(alice(), at(0)).await;
            let token = sessions.find(&id, at(0), true).await.unwrap().form_token;
            assert_eq!((id.len(), token.len()), (64, 64));
            assert!(seen.insert(id) && seen.insert(token));
        }
    }

    #[tokio::test]
    async fn a_new_session_replaces_the_idlest_one_at_the_maximum() {
        let sessions = Sessions { max: 5, ..sessions(100, 100).await };
        let begin = |secs| sessions.begin(alice(), at(secs));
        let (first, second) = (begin(1).await, begin(0).await);
        for _ in 2..=5 {
            begin(2).await;
        }
        assert_eq!(sessions.copies().by_digest.len(), 5);
        let restarted = instance(&sessions.records, 100, 100);
        for sessions in [&sessions, &restarted] {
            assert!(sessions.find(&first, at(2), true).await.is_some());
            assert!(sessions.find(&second, at(2), true).await.is_none());
        }
        let after = Timestamp::from_micros(at(102).as_micros() + SECOND);
        sessions.begin(alice(), after).await;
        assert_eq!(sessions.copies().by_digest.len(), 1, "ended sessions are removed");
    }

    #[tokio::test]
    async fn instances_share_sessions_and_learn_of_a_logout_after_five_seconds() {
        let one = sessions(3_000, 9_000).await;
        let two = instance(&one.records, 3_000, 9_000);
        let id = one.begin(alice(), at(0)).await;
        let token = one.find(&id, at(0), true).await.unwrap().form_token;
        assert_eq!(two.find(&id, at(1), true).await.unwrap().form_token, token);
        // A click at the other instance keeps the session alive here.
        assert!(two.find(&id, at(2_900), true).await.is_some());
        assert!(one.find(&id, at(3_001), true).await.is_some());
        one.end(&id, at(3_002)).await;
        assert!(one.find(&id, at(3_002), true).await.is_none());
        assert!(two.find(&id, at(2_904), true).await.is_some(), "the copy is recent");
        assert!(two.find(&id, at(3_003), true).await.is_none());
    }

    #[tokio::test]
    async fn copies_count_while_the_database_is_down_and_new_sessions_are_stored_later() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", folder.path().join("sessions.db").display());
        let one = instance(&Records::connect(&url).await.unwrap(), 3_000, 9_000);
        let seen = one.begin(alice(), at(0)).await;
        let records = one.records.clone();
        records.close().await;
        assert!(one.find(&seen, at(10), true).await.is_some());
        let new = one.begin(alice(), at(11)).await;
        assert!(one.find(&new, at(20), true).await.is_some());

        let two = Sessions { records: Records::connect(&url).await.unwrap(), ..one };
        assert!(two.find(&new, at(30), true).await.is_some(), "and it is stored");
        let three = instance(&two.records, 3_000, 9_000);
        assert!(three.find(&new, at(31), true).await.is_some());
        assert!(three.find(&seen, at(31), true).await.is_some());
    }
}
