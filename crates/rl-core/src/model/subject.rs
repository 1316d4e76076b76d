use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use arrayvec::ArrayString;

/// The kind of a subject. Subjects of different realms are always different, for example the
/// consumer `10.0.0.1` and the address `10.0.0.1`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Realm {
    /// A client address, for unidentified clients.
    Ip,
    /// An API key.
    Key,
    /// A consumer: an application that calls the service.
    Consumer,
    /// A person.
    User,
    /// All clients together.
    Global,
    /// All unidentified clients together.
    Unknown,
    /// A custom realm; see [`Realm::custom`].
    Custom(CustomRealm),
}

impl Realm {
    /// Creates a custom realm.
    ///
    /// # Errors
    ///
    /// Returns an error unless `name` is 1 to 32 characters of `a-z`, `0-9`, `_` and `-`. The names
    /// of the built-in realms are errors too.
    pub fn custom(name: &str) -> Result<Self, InvalidRealm> {
        let known = [Self::Ip, Self::Key, Self::Consumer, Self::User, Self::Global, Self::Unknown];
        let fits = (1..=32).contains(&name.len())
            && name
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-".contains(&b));
        if !fits || known.iter().any(|realm| realm.as_str() == name) {
            return Err(InvalidRealm { name: name.chars().take(64).collect() });
        }
        Ok(Self::Custom(CustomRealm(name.into())))
    }

    /// Returns the name of the realm, which is part of store keys.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Ip => "ip",
            Self::Key => "key",
            Self::Consumer => "consumer",
            Self::User => "user",
            Self::Global => "global",
            Self::Unknown => "unknown",
            Self::Custom(CustomRealm(name)) => name,
        }
    }

    /// Returns whether the subjects of the realm are identified. This is true for all realms except
    /// [`Realm::Ip`] and [`Realm::Unknown`].
    #[must_use]
    pub const fn is_identified(&self) -> bool {
        !matches!(self, Self::Ip | Self::Unknown)
    }
}

/// The validated name of a realm that [`Realm::custom`] created.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CustomRealm(Arc<str>);

/// The error for an invalid name of a realm.
#[derive(Clone, PartialEq, Eq)]
pub struct InvalidRealm {
    name: String,
}

debug_as_display!(InvalidRealm);

impl fmt::Display for InvalidRealm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "realm {:?}: expected 1 to 32 characters of a-z, 0-9, \"_\" and \"-\", \
             other than ip, key, consumer, user, global and unknown",
            self.name
        )
    }
}

impl std::error::Error for InvalidRealm {}

/// The subject that a request is counted under: a [`Realm`] and an id in it.
///
/// Ids of up to 40 bytes (addresses, UUIDs) need no allocation. An id of more than
/// [`Subject::MAX_ID_LEN`] bytes is replaced by its 128-bit BLAKE3 digest, so that no client can
/// create long keys. `Debug` never shows the id.
///
/// Secrets (API keys, tokens) belong in [`Subject::digest`] as a *keyed* hash, which
/// [`KeySecret`](crate::key::KeySecret) creates.
///
/// # Examples
///
/// ```
/// use rl_core::Subject;
///
/// let subject = Subject::consumer("consumer_abc123");
/// assert_eq!(subject.id().to_string(), "consumer_abc123");
/// assert!(!format!("{subject:?}").contains("abc123"));
/// assert_ne!(Subject::consumer("10.0.0.1"), Subject::ip([10, 0, 0, 1]));
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Subject {
    realm: Realm,
    id: SubjectId,
}

/// The id of a [`Subject`].
#[derive(Clone)]
pub struct SubjectId(IdRepr);

#[derive(Clone)]
enum IdRepr {
    Short(ArrayString<{ Subject::SHORT }>),
    Long(Arc<str>),
    // The digest of a text longer than `MAX_ID_LEN`.
    TooLong([u8; 16]),
    Digest([u8; 16]),
    // A digest of several subjects, and the first of these subjects.
    Combined([u8; 16], Arc<Subject>),
}

impl Subject {
    /// The length in bytes of the longest id that is stored as text.
    pub const MAX_ID_LEN: usize = 256;

    /// The length in bytes of the longest id that needs no allocation.
    pub(crate) const SHORT: usize = 40;

    /// Creates a subject with a text as its id.
    #[must_use]
    pub fn new(realm: Realm, id: &str) -> Self {
        let id = match ArrayString::from(id) {
            Ok(short) => IdRepr::Short(short),
            Err(_) if id.len() <= Self::MAX_ID_LEN => IdRepr::Long(id.into()),
            Err(_) => {
                let mut digest = [0; 16];
                digest.copy_from_slice(&blake3::hash(id.as_bytes()).as_bytes()[..16]);
                IdRepr::TooLong(digest)
            }
        };
        Self { realm, id: SubjectId(id) }
    }

    /// Creates a subject with a short text as its id.
    pub(crate) const fn short(realm: Realm, id: ArrayString<{ Self::SHORT }>) -> Self {
        Self { realm, id: SubjectId(IdRepr::Short(id)) }
    }

    /// Creates a subject whose id is a 128-bit digest.
    #[must_use]
    pub const fn digest(realm: Realm, digest: [u8; 16]) -> Self {
        Self { realm, id: SubjectId(IdRepr::Digest(digest)) }
    }

    /// Combines several subjects into one with `digest` as its id, and with the owner of `first`.
    pub(crate) fn combined(first: &Self, digest: [u8; 16]) -> Self {
        let owner = match &first.id.0 {
            IdRepr::Combined(_, owner) => owner.clone(),
            _ => Arc::new(first.clone()),
        };
        Self { realm: first.realm.clone(), id: SubjectId(IdRepr::Combined(digest, owner)) }
    }

    /// Creates the subject of a client address, in its canonical text form.
    ///
    /// [`ClientAddress`](crate::key::ClientAddress) counts IPv6 clients by network. The subject of
    /// a network is `Subject::new(Realm::Ip, "2001:db8::/64")`.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::{Realm, Subject};
    ///
    /// assert_eq!(Subject::ip([192, 0, 2, 7]), Subject::new(Realm::Ip, "192.0.2.7"));
    /// ```
    #[must_use]
    pub fn ip(address: impl Into<IpAddr>) -> Self {
        Self::new(Realm::Ip, &address.into().to_string())
    }

    /// Creates the subject of a consumer.
    #[must_use]
    pub fn consumer(id: &str) -> Self {
        Self::new(Realm::Consumer, id)
    }

    /// Creates the subject of an API key from its id as it is displayed: 32 hexadecimal digits of a
    /// keyed hash, in lower case, or any other text for a key that is not hashed.
    #[must_use]
    pub fn displayed_key(id: &str) -> Self {
        let digest = u128::from_str_radix(id, 16).ok();
        match digest.filter(|digest| format!("{digest:032x}") == id) {
            Some(digest) => Self::digest(Realm::Key, digest.to_be_bytes()),
            None => Self::new(Realm::Key, id),
        }
    }

    /// Creates the subject of a person.
    #[must_use]
    pub fn user(id: &str) -> Self {
        Self::new(Realm::User, id)
    }

    /// Creates the subject of all clients together.
    #[must_use]
    pub fn global() -> Self {
        Self::new(Realm::Global, "")
    }

    /// Returns the realm.
    #[must_use]
    pub const fn realm(&self) -> &Realm {
        &self.realm
    }

    /// Returns the id.
    #[must_use]
    pub const fn id(&self) -> &SubjectId {
        &self.id
    }

    /// Returns the owner of this subject. If [`and`](crate::key::KeyExtractor::and) combined
    /// several subjects into this one, the owner is the first of them; otherwise it is the subject
    /// itself. Use the owner to look up a policy by consumer or key.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::collections::HashMap;
    ///
    /// use rl_core::{Limit, Policy, RateLimiter, Subject};
    ///
    /// let premium = Policy::new([Limit::per_minute(1_000)])?;
    /// let tiers = HashMap::from([(Subject::consumer("alice"), premium)]);
    /// // The policy of the consumer applies to the consumer, and to its pairs with routes.
    /// let limiter = RateLimiter::builder()
    ///     .policies(move |subject: &Subject| tiers.get(subject.owner()).cloned())
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn owner(&self) -> &Self {
        match &self.id.0 {
            IdRepr::Combined(_, owner) => owner,
            _ => self,
        }
    }

    /// Returns the form of the subject for logs: sixteen hexadecimal digits. They are 64 bits of a
    /// hash that is keyed with the [secret of the log](Self::set_log_secret).
    ///
    /// An attacker without the secret cannot find the subject by hashing all candidates. With
    /// another secret, the same subject has other digits.
    #[must_use]
    pub fn redacted(&self) -> Redacted {
        let mut hasher = blake3::Hasher::new_keyed(log_secret());
        // The zero byte ends the realm, whose name contains no zero byte. The next byte marks a
        // digest.
        let (id, is_digest) = self.id.parts();
        let separator = if is_digest { b"\0\x01" } else { b"\0\0" };
        hasher.update(self.realm.as_str().as_bytes()).update(separator).update(id);
        let mut tag = [0; 8];
        tag.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        Redacted(u64::from_be_bytes(tag))
    }

    /// Sets the secret with which [`redacted`](Self::redacted) hashes subjects for the log, for the
    /// whole process. If it is not set, each process uses a random secret.
    ///
    /// Set the same secret on all instances of a service before they write log lines. A subject
    /// then has the same digits in all logs, also after a restart.
    ///
    /// # Errors
    ///
    /// Returns an error if `secret` is shorter than 16 bytes, or if another one is in use.
    pub fn set_log_secret(secret: &[u8]) -> Result<(), InvalidLogSecret> {
        if secret.len() < 16 {
            return Err(InvalidLogSecret::TooShort);
        }
        let key = blake3::derive_key("rl-core 2026 secret for subjects in logs", secret);
        LOG_SECRET.set(key).map_err(|_| InvalidLogSecret::InUse)
    }
}

static LOG_SECRET: OnceLock<[u8; 32]> = OnceLock::new();

fn log_secret() -> &'static [u8; 32] {
    LOG_SECRET.get_or_init(|| {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).expect("the operating system provides random bytes");
        secret
    })
}

/// The error for a secret of the log that cannot be set.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidLogSecret {
    /// The secret is shorter than 16 bytes.
    TooShort,
    /// Another secret is already in use, either a random one or one that was set before.
    InUse,
}

debug_as_display!(InvalidLogSecret);

impl fmt::Display for InvalidLogSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooShort => "log secret is too short: expected at least 16 bytes",
            Self::InUse => "a log secret is in use already: set it before anything is logged",
        })
    }
}

impl std::error::Error for InvalidLogSecret {}

impl SubjectId {
    /// Returns the bytes of the text or the digest, and whether they are a digest.
    pub(crate) fn parts(&self) -> (&[u8], bool) {
        match &self.0 {
            IdRepr::Short(id) => (id.as_bytes(), false),
            IdRepr::Long(id) => (id.as_bytes(), false),
            IdRepr::TooLong(digest) | IdRepr::Digest(digest) | IdRepr::Combined(digest, _) => {
                (digest, true)
            }
        }
    }

    /// Returns the id as text; `None` if the id is a digest.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match &self.0 {
            IdRepr::Short(id) => Some(id),
            IdRepr::Long(id) => Some(id),
            IdRepr::TooLong(_) | IdRepr::Digest(_) | IdRepr::Combined(..) => None,
        }
    }

    /// Returns whether the id is the digest of a text longer than [`Subject::MAX_ID_LEN`] bytes.
    #[must_use]
    pub const fn is_of_long_text(&self) -> bool {
        matches!(self.0, IdRepr::TooLong(_))
    }

    /// Returns the bytes of the text or the digest. A text and a digest may have the same bytes;
    /// [`SubjectId::as_text`] distinguishes them.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            IdRepr::Short(id) => id.as_bytes(),
            IdRepr::Long(id) => id.as_bytes(),
            IdRepr::TooLong(digest) | IdRepr::Digest(digest) | IdRepr::Combined(digest, _) => {
                digest
            }
        }
    }
}

// Stores count by the bytes of a digest, so the source of a digest does not matter.
impl PartialEq for SubjectId {
    fn eq(&self, other: &Self) -> bool {
        self.as_text().is_some() == other.as_text().is_some() && self.as_bytes() == other.as_bytes()
    }
}

impl Eq for SubjectId {}

impl Hash for SubjectId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_text().is_some().hash(state);
        self.as_bytes().hash(state);
    }
}

/// The text, or the digest as 32 hexadecimal digits.
impl fmt::Display for SubjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_text() {
            Some(text) => f.write_str(text),
            None => self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}")),
        }
    }
}

impl fmt::Debug for SubjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SubjectId(…)")
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Subject({}:{})", self.realm.as_str(), self.redacted())
    }
}

/// The form of a [`Subject`] for logs; see [`Subject::redacted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Redacted(u64);

impl fmt::Display for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_every_length_are_kept_apart() {
        const SHORT: usize = Subject::SHORT;

        for len in [0, 1, SHORT, SHORT + 1, Subject::MAX_ID_LEN, Subject::MAX_ID_LEN + 1, 5_000] {
            let subject = Subject::consumer(&"a".repeat(len));
            assert_ne!(subject, Subject::consumer(&"a".repeat(len + 1)), "{len}");
            assert_eq!(subject, Subject::consumer(&"a".repeat(len)), "{len}");
        }
    }

    #[test]
    fn an_id_that_spells_a_digest_is_not_that_digest() {
        let digest = Subject::digest(Realm::Key, [0x61; 16]);
        assert_ne!(digest, Subject::new(Realm::Key, &"a".repeat(16)));
        assert_ne!(digest, Subject::new(Realm::Key, &digest.id().to_string()));
    }

    #[test]
    fn subjects_as_one_belong_to_the_first_and_are_known_by_their_digest() {
        let alice = Subject::consumer("alice");
        let pair = Subject::combined(&alice, [1; 16]);
        let nested = Subject::combined(&pair, [2; 16]);
        for both in [&pair, &nested] {
            assert_eq!((both.owner(), both.realm()), (alice.owner(), alice.realm()));
            assert_eq!((both.id().as_text(), both.id().is_of_long_text()), (None, false));
        }
        assert_eq!(alice.owner().id().as_text(), Some("alice"));
        assert_ne!(pair, nested);
        // The pair equals a subject with the same digest: a store sees only the digest, not the
        // owner.
        assert_eq!(pair, Subject::digest(Realm::Consumer, [1; 16]));
        let long = Subject::consumer(&"a".repeat(Subject::MAX_ID_LEN + 1));
        assert!(long.id().is_of_long_text());
        assert!(!Subject::digest(Realm::Consumer, [1; 16]).id().is_of_long_text());
        assert_eq!(size_of::<SubjectId>(), 48, "what every request copies");
    }

    #[test]
    fn custom_realms_are_checked() {
        assert_eq!(Realm::custom("tenant").unwrap().as_str(), "tenant");
        let long = "a".repeat(33);
        for name in ["", "ip", "consumer", "unknown", "Tenant", "a:b", "a{b}", "ü", long.as_str()]
        {
            assert!(Realm::custom(name).is_err(), "{name}");
        }
    }

    /// Fault: the hash had no key, and all IPv4 addresses can be tried within a minute.
    #[test]
    fn redacted_is_a_keyed_hash_that_distinguishes_subjects() {
        let subjects = [
            Subject::ip([192, 0, 2, 7]),
            Subject::ip([192, 0, 2, 8]),
            Subject::user("192.0.2.7"),
            Subject::digest(Realm::Key, [0x61; 16]),
            Subject::new(Realm::Key, &"a".repeat(16)),
        ];
        let tags: std::collections::HashSet<_> =
            subjects.iter().map(|subject| subject.redacted().to_string()).collect();
        assert_eq!(tags.len(), subjects.len());
        let subject = &subjects[0];
        assert_eq!(subject.redacted(), subject.clone().redacted());
        for text in ["ip\x00192.0.2.7", "ip\0\x00192.0.2.7", "192.0.2.7"] {
            let unkeyed = blake3::hash(text.as_bytes()).to_hex();
            assert_ne!(subject.redacted().to_string(), unkeyed[..16], "{text:?}");
        }
        assert_eq!(Subject::set_log_secret(b"short"), Err(InvalidLogSecret::TooShort));
        // The first call of `redacted` has set a random secret.
        assert_eq!(Subject::set_log_secret(&[7; 16]), Err(InvalidLogSecret::InUse));
    }

    #[test]
    fn debug_shows_no_id() {
        let subject = Subject::user("alice@example.org");
        let shown = format!("{subject:?} {:?} {}", subject.id(), subject.redacted());
        assert!(!shown.contains("alice"), "{shown}");
    }
}
