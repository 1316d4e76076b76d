use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rl_core::time::Timestamp;
use sha2::{Digest, Sha256};

use crate::access::Actor;

/// The maximum number of sessions. Beyond it, a new session replaces the one that has been idle the
/// longest.
const MAX_SESSIONS: usize = 10_000;

/// The sessions of the console.
///
/// The map contains only the digests of session ids, so that a leak of it reveals no id.
pub(super) struct Sessions {
    by_digest: Mutex<HashMap<[u8; 32], Session>>,
    idle_micros: u64,
    longest_micros: u64,
}

/// The session of an actor.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) actor: Actor,
    pub(super) form_token: String,
    began: Timestamp,
    used: Timestamp,
}

impl Sessions {
    pub(super) fn new(idle: Duration, longest: Duration) -> Self {
        let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        Self {
            by_digest: Mutex::default(),
            idle_micros: micros(idle),
            longest_micros: micros(longest),
        }
    }

    fn by_digest(&self) -> MutexGuard<'_, HashMap<[u8; 32], Session>> {
        self.by_digest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a session. Returns its id.
    pub(super) fn begin(&self, actor: Actor, now: Timestamp) -> String {
        let id = random_text();
        let session = Session { actor, form_token: random_text(), began: now, used: now };
        let mut sessions = self.by_digest();
        sessions.retain(|_, session| self.is_alive(session, now));
        if sessions.len() >= MAX_SESSIONS {
            let idlest = sessions.iter().min_by_key(|(_, session)| session.used);
            if let Some(idlest) = idlest.map(|(id, _)| *id) {
                sessions.remove(&idlest);
            }
        }
        sessions.insert(digest(&id), session);
        id
    }

    /// Returns the session with this id, if it has not ended. A click extends the session.
    pub(super) fn find(&self, id: &str, now: Timestamp, is_click: bool) -> Option<Session> {
        let mut sessions = self.by_digest();
        let key = digest(id);
        let session = sessions.get_mut(&key)?;
        if !self.is_alive(session, now) {
            sessions.remove(&key);
            return None;
        }
        if is_click {
            session.used = now;
        }
        Some(session.clone())
    }

    /// Ends the session with this id.
    pub(super) fn end(&self, id: &str) {
        self.by_digest().remove(&digest(id));
    }

    const fn is_alive(&self, session: &Session, now: Timestamp) -> bool {
        now.micros_since(session.used) < self.idle_micros
            && now.micros_since(session.began) < self.longest_micros
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("count", &self.by_digest().len()).finish_non_exhaustive()
    }
}

fn digest(id: &str) -> [u8; 32] {
    Sha256::digest(id.as_bytes()).into()
}

/// Returns 256 random bits as hexadecimal digits.
fn random_text() -> String {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).expect("the operating system supplies randomness");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Roles;

    const SECOND: u64 = 1_000_000;

    fn at(secs: u64) -> Timestamp {
        Timestamp::from_secs(1_000_000 + secs)
    }

    #[test]
    fn a_session_ends_when_it_is_idle_or_too_old_or_after_a_logout() {
        let sessions = Sessions::new(Duration::from_secs(10), Duration::from_secs(25));
        let begin = || sessions.begin(Actor::new("alice", Roles::all()), at(0));
        let (idle, old, out) = (begin(), begin(), begin());
        assert_eq!(sessions.find(&idle, at(9), true).unwrap().actor.name(), "alice");
        // An automatic refresh does not extend the session.
        assert!(sessions.find(&idle, at(18), false).is_some());
        assert!(sessions.find(&idle, at(19), false).is_none());
        assert!(sessions.find(&idle, at(9), true).is_none(), "it was removed");

        for secs in [8, 16, 24] {
            assert!(sessions.find(&old, at(secs), true).is_some(), "{secs}");
        }
        assert!(sessions.find(&old, at(25), true).is_none());

        sessions.end(&out);
        assert!(sessions.find(&out, at(1), true).is_none());
        assert!(sessions.find("", at(1), true).is_none());
    }

    #[test]
    fn ids_and_tokens_are_long_and_unique() {
        let sessions = Sessions::new(Duration::from_secs(10), Duration::from_secs(25));
        let mut seen = std::collections::HashSet::new();
        for _ in 0..100 {
            let id = sessions.begin(Actor::new("alice", Roles::all()), at(0));
            let token = sessions.find(&id, at(0), true).unwrap().form_token;
            assert_eq!((id.len(), token.len()), (64, 64));
            assert!(seen.insert(id) && seen.insert(token));
        }
    }

    #[test]
    fn a_new_session_replaces_the_idlest_one_at_the_maximum() {
        let sessions = Sessions::new(Duration::from_secs(100), Duration::from_secs(100));
        let begin = |secs| sessions.begin(Actor::new("alice", Roles::all()), at(secs));
        let (first, second) = (begin(1), begin(0));
        for _ in 2..=MAX_SESSIONS {
            begin(2);
        }
        assert_eq!(sessions.by_digest().len(), MAX_SESSIONS);
        assert!(sessions.find(&first, at(2), true).is_some());
        assert!(sessions.find(&second, at(2), true).is_none());
        let after = Timestamp::from_micros(at(102).as_micros() + SECOND);
        sessions.begin(Actor::new("alice", Roles::all()), after);
        assert_eq!(sessions.by_digest().len(), 1, "ended sessions are removed");
    }
}
