use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rl_core::time::Timestamp;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::read::Asked;
use crate::{Actor, Admin};

/// The most people who are logged in at the same time; whoever was idle longest makes room.
const MOST: usize = 10_000;

/// Who is logged in.
///
/// The id of a session is kept as its digest: what leaks from here opens nothing.
pub(super) struct Sessions {
    known: Mutex<HashMap<[u8; 32], Session>>,
    idle_micros: u64,
    longest_micros: u64,
}

#[derive(Clone)]
struct Session {
    actor: Actor,
    form_token: String,
    began: Timestamp,
    used: Timestamp,
}

/// A session that was found.
pub(super) struct Found {
    pub(super) actor: Actor,
    pub(super) form_token: String,
}

/// Somebody who is logged in, as a page sees them.
#[derive(Clone)]
pub(super) struct Visitor {
    pub(super) actor: Actor,
    /// Stands in every form of this session: no other site knows it.
    pub(super) form_token: String,
    /// Where refusals are written.
    pub(super) admin: Admin,
    /// The request, as a refusal of it is written.
    pub(super) asked: Asked,
}

impl Visitor {
    /// Whether a form has the token of this session.
    pub(super) fn wrote(&self, form_token: &str) -> bool {
        form_token.as_bytes().ct_eq(self.form_token.as_bytes()).into()
    }
}

impl Sessions {
    pub(super) fn new(idle: Duration, longest: Duration) -> Self {
        let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        Self { known: Mutex::default(), idle_micros: micros(idle), longest_micros: micros(longest) }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<[u8; 32], Session>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a session; tells its id.
    pub(super) fn begin(&self, actor: Actor, now: Timestamp) -> String {
        let id = random_text();
        let session = Session { actor, form_token: random_text(), began: now, used: now };
        let mut known = self.known();
        known.retain(|_, session| self.is_alive(session, now));
        if known.len() >= MOST {
            let idlest = known.iter().min_by_key(|(_, session)| session.used);
            if let Some(idlest) = idlest.map(|(id, _)| *id) {
                known.remove(&idlest);
            }
        }
        known.insert(digest(&id), session);
        id
    }

    /// Whose session this is. It is used, unless the page asks by itself.
    pub(super) fn find(&self, id: &str, now: Timestamp, is_click: bool) -> Option<Found> {
        let mut known = self.known();
        let key = digest(id);
        let session = known.get_mut(&key)?;
        if !self.is_alive(session, now) {
            known.remove(&key);
            return None;
        }
        if is_click {
            session.used = now;
        }
        let Session { actor, form_token, .. } = session.clone();
        Some(Found { actor, form_token })
    }

    pub(super) fn end(&self, id: &str) {
        self.known().remove(&digest(id));
    }

    const fn is_alive(&self, session: &Session, now: Timestamp) -> bool {
        now.micros_since(session.used) < self.idle_micros
            && now.micros_since(session.began) < self.longest_micros
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("count", &self.known().len()).finish_non_exhaustive()
    }
}

fn digest(id: &str) -> [u8; 32] {
    Sha256::digest(id.as_bytes()).into()
}

/// 256 random bits as hexadecimal digits.
fn random_text() -> String {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).expect("the operating system gives randomness");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Roles;

    const SECOND: u64 = 1_000_000;

    fn at(secs: u64) -> Timestamp {
        Timestamp::from_secs(1_000_000 + secs)
    }

    #[test]
    fn a_session_ends_when_it_is_idle_too_old_or_logged_out() {
        let sessions = Sessions::new(Duration::from_secs(10), Duration::from_secs(25));
        let begin = || sessions.begin(Actor::new("alice", Roles::all()), at(0));
        let (idle, old, out) = (begin(), begin(), begin());
        assert_eq!(sessions.find(&idle, at(9), true).unwrap().actor.name(), "alice");
        // A page that asks by itself keeps nobody logged in.
        assert!(sessions.find(&idle, at(18), false).is_some());
        assert!(sessions.find(&idle, at(19), false).is_none());
        assert!(sessions.find(&idle, at(9), true).is_none(), "it is gone");

        for secs in [8, 16, 24] {
            assert!(sessions.find(&old, at(secs), true).is_some(), "{secs}");
        }
        assert!(sessions.find(&old, at(25), true).is_none());

        sessions.end(&out);
        assert!(sessions.find(&out, at(1), true).is_none());
        assert!(sessions.find("", at(1), true).is_none());
    }

    #[test]
    fn ids_and_tokens_are_long_and_never_the_same() {
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
    fn there_is_a_most_and_who_was_idle_longest_makes_room() {
        let sessions = Sessions::new(Duration::from_secs(100), Duration::from_secs(100));
        let begin = |secs| sessions.begin(Actor::new("alice", Roles::all()), at(secs));
        let (first, second) = (begin(1), begin(0));
        for _ in 2..=MOST {
            begin(2);
        }
        assert_eq!(sessions.known().len(), MOST);
        assert!(sessions.find(&first, at(2), true).is_some());
        assert!(sessions.find(&second, at(2), true).is_none());
        let after = Timestamp::from_micros(at(102).as_micros() + SECOND);
        sessions.begin(Actor::new("alice", Roles::all()), after);
        assert_eq!(sessions.known().len(), 1, "those that have ended take no room");
    }
}
