use std::fmt;

use crate::model::{Realm, Subject};

/// The secret with which API keys and tokens are hashed.
///
/// Without a secret, a hash could be reversed by hashing candidates, such as leaked keys. Read the
/// secret from the configuration. All processes that share counters need the same secret. A new
/// secret resets the counters of all hashed keys.
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
    /// The minimum length of a secret, in bytes.
    pub const MIN_LEN: usize = 16;

    /// Creates a secret from at least [`KeySecret::MIN_LEN`] bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if `bytes` is shorter.
    pub fn new(bytes: &[u8]) -> Result<Self, InvalidSecret> {
        if bytes.len() < Self::MIN_LEN {
            return Err(InvalidSecret { len: bytes.len() });
        }
        Ok(Self(blake3::derive_key("rl-core 2026 secret for hashed subjects", bytes)))
    }

    /// Creates a random secret.
    ///
    /// It suits counters in memory. With counters in Redis, other processes would count the same
    /// key separately, and a restart would lose the counts.
    ///
    /// # Panics
    ///
    /// Panics if the operating system provides no randomness.
    #[must_use]
    pub fn random() -> Self {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).expect("the operating system provides randomness");
        Self(bytes)
    }

    /// Returns the subject for the key `bytes` in `realm`. Its id is 128 bits of a hash keyed with
    /// this secret.
    ///
    /// The realm is hashed too, so the digests of one key in two realms are unrelated.
    #[must_use]
    pub fn subject(&self, realm: Realm, bytes: &[u8]) -> Subject {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        // The zero byte ends the realm, whose name contains no zero byte.
        hasher.update(realm.as_str().as_bytes()).update(b"\0").update(bytes);
        let mut digest = [0; 16];
        digest.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Subject::digest(realm, digest)
    }

    /// Returns the partition key of a subject: a hash keyed with this secret, by which a client
    /// distinguishes its quotas.
    pub(crate) fn partition_key(&self, subject: &Subject) -> [u8; 16] {
        let key = blake3::derive_key("rl-core 2026 partition keys", &self.0);
        let mut hasher = blake3::Hasher::new_keyed(&key);
        // The zero byte ends the realm. The next byte marks a digest.
        let (id, is_digest) = subject.id().parts();
        let separator = if is_digest { b"\0\x01" } else { b"\0\0" };
        hasher.update(subject.realm().as_str().as_bytes()).update(separator).update(id);
        let mut hash = [0; 16];
        hash.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        hash
    }
}

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySecret(…)")
    }
}

/// A secret that is too short.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct InvalidSecret {
    len: usize,
}

debug_as_display!(InvalidSecret);

impl fmt::Display for InvalidSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "secret for hashing keys has {} bytes: expected at least {}",
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
    fn subjects_differ_by_realm_secret_and_key() {
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
    fn short_secrets_are_rejected() {
        let error = KeySecret::new(b"correct horse").unwrap_err();
        assert_eq!(error.to_string(), "secret for hashing keys has 13 bytes: expected at least 16");
    }

    #[test]
    fn debug_output_hides_the_secret() {
        assert_eq!(format!("{:?}", KeySecret::random()), "KeySecret(…)");
    }
}
