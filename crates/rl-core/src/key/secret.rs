use std::fmt;

use crate::model::{Realm, Subject};

/// The secret with which API keys and tokens are hashed.
///
/// A hash without a secret can be reversed by trying: there are few addresses, and keys leak. Take
/// it from the configuration. All processes that share counters need the same one, and a new one
/// starts all counters of hashed keys afresh.
///
/// # Examples
///
/// ```
/// use rl_core::Realm;
/// use rl_core::key::KeySecret;
///
/// let secret = KeySecret::new(b"read me from the configuration")?;
/// let subject = secret.subject(Realm::Key, b"sk_live_51H8");
/// assert_eq!(subject, secret.subject(Realm::Key, b"sk_live_51H8"));
/// assert_eq!(subject.id().as_text(), None);
/// # Ok::<(), rl_core::key::InvalidSecret>(())
/// ```
#[derive(Clone)]
pub struct KeySecret([u8; 32]);

impl KeySecret {
    /// The fewest bytes that make a secret.
    pub const MIN_LEN: usize = 16;

    /// The secret that is made from `bytes`, of any length from [`KeySecret::MIN_LEN`].
    ///
    /// # Errors
    ///
    /// Returns an error if there are fewer bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, InvalidSecret> {
        if bytes.len() < Self::MIN_LEN {
            return Err(InvalidSecret { len: bytes.len() });
        }
        Ok(Self(blake3::derive_key("rl-core 2026 secret for hashed subjects", bytes)))
    }

    /// A secret that nobody else has.
    ///
    /// Good for counters in memory. Counters in Redis cannot be shared with other processes under
    /// it, nor found again after a restart.
    ///
    /// # Panics
    ///
    /// If the operating system has no randomness to give.
    #[must_use]
    pub fn random() -> Self {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).expect("the operating system gives randomness");
        Self(bytes)
    }

    /// The subject that is known by `bytes` in `realm`: 128 bits of a hash keyed with this secret.
    ///
    /// The realm is hashed too, so digests in two realms have nothing in common.
    #[must_use]
    pub fn subject(&self, realm: Realm, bytes: &[u8]) -> Subject {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        // The names of realms contain no zero byte.
        hasher.update(realm.as_str().as_bytes()).update(b"\0").update(bytes);
        let mut digest = [0; 16];
        digest.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Subject::digest(realm, digest)
    }
}

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySecret(…)")
    }
}

/// A secret that is too short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidSecret {
    len: usize,
}

impl fmt::Display for InvalidSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "secret for hashing keys, of {} bytes: expected {} at least",
            self.len,
            KeySecret::MIN_LEN
        )
    }
}

impl std::error::Error for InvalidSecret {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn realm_secret_and_key_each_make_a_subject() {
        let one = KeySecret::new(&[1; 16]).unwrap();
        let subjects = [
            one.subject(Realm::Key, b"a"),
            one.subject(Realm::Key, b"b"),
            one.subject(Realm::User, b"a"),
            KeySecret::new(&[1; 17]).unwrap().subject(Realm::Key, b"a"),
            KeySecret::random().subject(Realm::Key, b"a"),
            KeySecret::random().subject(Realm::Key, b"a"),
        ];
        for (i, subject) in subjects.iter().enumerate() {
            let bytes = subject.id().as_bytes();
            assert_eq!(bytes.len(), 16);
            assert!(subjects[..i].iter().all(|other| other.id().as_bytes() != bytes), "{i}");
        }
        assert_eq!(subjects[0], KeySecret::new(&[1; 16]).unwrap().subject(Realm::Key, b"a"));
    }

    #[test]
    fn short_secrets_are_refused() {
        let error = KeySecret::new(b"correct horse").unwrap_err();
        assert_eq!(error.to_string(), "secret for hashing keys, of 13 bytes: expected 16 at least");
    }

    #[test]
    fn debug_shows_no_secret() {
        assert_eq!(format!("{:?}", KeySecret::random()), "KeySecret(…)");
    }
}
