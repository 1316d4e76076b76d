//! The trait of key extractors, and their combinations.

use std::sync::Arc;

use super::request::{AmbiguousKey, RequestInfo};
use crate::model::Subject;

/// Finds the subject that a request is counted under.
///
/// Closures over `&dyn RequestInfo` are extractors too. They return a [`Subject`], an `Option` of
/// one, or a `Result` as [`subject`](Self::subject) does.
pub trait KeyExtractor: Send + Sync + 'static {
    /// Returns the subject that `request` is counted under, or `None` if it has no key.
    ///
    /// # Errors
    ///
    /// Returns an error if two parsers of the request could find different keys.
    fn subject(&self, request: &dyn RequestInfo) -> Result<Option<Subject>, AmbiguousKey>;

    /// Returns whether this extractor counts by the address at the other end of the connection.
    ///
    /// If it does, and the server does not know that address, the server is at fault for a request
    /// without a key, which is rejected with 500 in place of 403. The default returns false. An
    /// extractor that calls another one returns the value of that one.
    /// So a closure that calls a [`ClientAddress`](super::ClientAddress) itself gets 403 for an
    /// unknown address; combine extractors with [`or`](Self::or), or implement this trait, to get
    /// 500.
    fn needs_peer(&self) -> bool {
        false
    }

    /// Returns how the extractor may count `subject`, for reports about the subject. The default is
    /// [`CountedAs::Itself`], which suits extractors that may return any subject. An extractor that
    /// returns the subjects of another one unchanged returns the value of that one.
    fn counts(&self, subject: &Subject) -> CountedAs {
        let _ = subject;
        CountedAs::Itself
    }

    /// Uses `other` for requests in which this extractor finds no key, as in
    /// `Identified.or(ClientAddress::default())`.
    ///
    /// An ambiguous key rejects the request, and `other` is not called.
    fn or(self, other: impl KeyExtractor) -> impl KeyExtractor
    where
        Self: Sized,
    {
        EitherKey { first: self, second: other }
    }

    /// Counts each pair of subjects separately, such as each consumer on each route:
    /// `Identified.and(Route)`. A request in which one of the two is missing has no key.
    ///
    /// The pair is in the realm of the first subject, which is its [owner](Subject::owner). A map
    /// of policies looks up the owner, so the policy of the first subject applies to the pair. The
    /// id of a pair is a digest, so it differs from every other pair and every single subject.
    fn and(self, other: impl KeyExtractor) -> impl KeyExtractor
    where
        Self: Sized,
    {
        BothKeys { first: self, second: other }
    }

    /// Accepts only subjects that the service knows; a request with any other subject has no key.
    ///
    /// A client can invent any number of API keys. With `known` and [`or`](Self::or), invented keys
    /// gain it no quota: known keys are counted as keys, and all other requests by address.
    ///
    /// `recognize` returns whether the subject is known. It may instead return the subject to
    /// count, such as the consumer to which a key belongs.
    ///
    /// ```
    /// use std::collections::HashMap;
    ///
    /// use rl_core::key::{ApiKey, ClientAddress, KeyExtractor, KeySecret};
    /// use rl_core::{Realm, Subject};
    ///
    /// let secret = KeySecret::new(b"read me from the configuration")?;
    /// let sold = secret.subject(Realm::Key, b"sk_live_51H8");
    /// let consumers = HashMap::from([(sold, Subject::consumer("alice"))]);
    /// let by_consumer = ApiKey::header("x-api-key", secret)?
    ///     .known(move |key| consumers.get(key).cloned())
    ///     .or(ClientAddress::default());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn known<S: Recognized>(
        self,
        recognize: impl Fn(&Subject) -> S + Send + Sync + 'static,
    ) -> impl KeyExtractor
    where
        Self: Sized,
    {
        KnownKey { key: self, recognize }
    }
}

/// How an extractor or a rule counts a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum CountedAs {
    /// It never counts the subject.
    Nothing,
    /// It counts the subject only together with another one, such as each consumer on each route:
    /// see [`KeyExtractor::and`]. These counters cannot be found by the subject alone.
    Pair,
    /// It may count the subject alone.
    Itself,
}

/// The extractor of [`KeyExtractor::or`].
struct EitherKey<A, B> {
    first: A,
    second: B,
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for EitherKey<A, B> {
    fn subject(&self, request: &dyn RequestInfo) -> Result<Option<Subject>, AmbiguousKey> {
        match self.first.subject(request)? {
            Some(subject) => Ok(Some(subject)),
            None => self.second.subject(request),
        }
    }

    fn needs_peer(&self) -> bool {
        self.first.needs_peer() || self.second.needs_peer()
    }

    fn counts(&self, subject: &Subject) -> CountedAs {
        self.first.counts(subject).max(self.second.counts(subject))
    }
}

/// The extractor of [`KeyExtractor::and`].
struct BothKeys<A, B> {
    first: A,
    second: B,
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for BothKeys<A, B> {
    fn subject(&self, request: &dyn RequestInfo) -> Result<Option<Subject>, AmbiguousKey> {
        // The second extractor runs even if the first finds no key. If the second key is ambiguous,
        // the request must be rejected, not passed to the next extractor of an outer `or`.
        let first = self.first.subject(request)?;
        let second = self.second.subject(request)?;
        Ok(first.zip(second).map(|(first, second)| pair(&first, &second)))
    }

    fn needs_peer(&self) -> bool {
        self.first.needs_peer() || self.second.needs_peer()
    }

    fn counts(&self, subject: &Subject) -> CountedAs {
        if subject.owner() != subject {
            return self.first.counts(subject.owner());
        }
        self.first.counts(subject).max(self.second.counts(subject)).min(CountedAs::Pair)
    }
}

/// The extractor of [`KeyExtractor::known`].
struct KnownKey<K, F> {
    key: K,
    recognize: F,
}

impl<K, F, S> KeyExtractor for KnownKey<K, F>
where
    K: KeyExtractor,
    F: Fn(&Subject) -> S + Send + Sync + 'static,
    S: Recognized,
{
    fn subject(&self, request: &dyn RequestInfo) -> Result<Option<Subject>, AmbiguousKey> {
        let found = self.key.subject(request)?;
        Ok(found.and_then(|found| (self.recognize)(&found).into_recognized(found)))
    }

    fn needs_peer(&self) -> bool {
        self.key.needs_peer()
    }

    fn counts(&self, subject: &Subject) -> CountedAs {
        if S::REPLACES {
            return CountedAs::Itself;
        }
        let counted = self.key.counts(subject);
        // A pair is recognized as a whole, so its parts say nothing about it.
        let is_known = || (self.recognize)(subject).into_recognized(subject.clone()).is_some();
        if counted != CountedAs::Itself || is_known() { counted } else { CountedAs::Nothing }
    }
}

impl KeyExtractor for Arc<dyn KeyExtractor> {
    fn subject(&self, request: &dyn RequestInfo) -> Result<Option<Subject>, AmbiguousKey> {
        (**self).subject(request)
    }

    fn needs_peer(&self) -> bool {
        (**self).needs_peer()
    }

    fn counts(&self, subject: &Subject) -> CountedAs {
        (**self).counts(subject)
    }
}

impl<F, S> KeyExtractor for F
where
    F: Fn(&dyn RequestInfo) -> S + Send + Sync + 'static,
    S: IntoSubject,
{
    fn subject(&self, request: &dyn RequestInfo) -> Result<Option<Subject>, AmbiguousKey> {
        self(request).into_subject()
    }
}

/// The key for the hash of pairs, which makes their digests differ from all others. It is not a
/// secret.
const PAIR: &[u8; 32] = b"rl-core: two subjects as one, v1";

/// Combines two subjects into one, which is in the realm of the first and is
/// [owned](Subject::owner) by it.
///
/// The id is a digest, because any text could be the id of a subject that is counted alone.
fn pair(first: &Subject, second: &Subject) -> Subject {
    let mut hasher = blake3::Hasher::new_keyed(PAIR);
    for subject in [first, second] {
        let (realm, id) = (subject.realm().as_str(), subject.id());
        // The lengths come first. Without them, two pairs whose realms and ids join to the same
        // bytes would have the same hash.
        let lengths = [realm.len(), id.as_text().is_some().into(), id.as_bytes().len()];
        for length in lengths {
            hasher.update(&(length as u64).to_le_bytes());
        }
        hasher.update(realm.as_bytes()).update(id.as_bytes());
    }
    let mut digest = [0; 16];
    digest.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    Subject::combined(first, digest)
}

/// The types that a function for [`KeyExtractor::known`] may return.
///
/// A `bool` says whether the subject is known. An `Option<Subject>` replaces a known subject with
/// another one.
pub trait Recognized {
    /// Whether the result may be another subject than the one that was found.
    const REPLACES: bool;

    /// Returns the subject to count, or `None` if `found` is not known.
    fn into_recognized(self, found: Subject) -> Option<Subject>;
}

impl Recognized for bool {
    const REPLACES: bool = false;

    fn into_recognized(self, found: Subject) -> Option<Subject> {
        self.then_some(found)
    }
}

impl Recognized for Option<Subject> {
    const REPLACES: bool = true;

    fn into_recognized(self, _: Subject) -> Option<Subject> {
        self
    }
}

/// The types that a closure may return to be a [`KeyExtractor`].
///
/// They are [`Subject`], an `Option` of one, and a `Result` whose error is [`AmbiguousKey`].
pub trait IntoSubject {
    /// Converts the value into the result of
    /// [`KeyExtractor::subject`](KeyExtractor::subject).
    ///
    /// # Errors
    ///
    /// Returns an error if the key is ambiguous.
    fn into_subject(self) -> Result<Option<Subject>, AmbiguousKey>;
}

impl IntoSubject for Subject {
    fn into_subject(self) -> Result<Option<Subject>, AmbiguousKey> {
        Ok(Some(self))
    }
}

impl IntoSubject for Option<Subject> {
    fn into_subject(self) -> Result<Option<Subject>, AmbiguousKey> {
        Ok(self)
    }
}

impl IntoSubject for Result<Option<Subject>, AmbiguousKey> {
    fn into_subject(self) -> Result<Option<Subject>, AmbiguousKey> {
        self
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fake_request::FakeRequest;
    use super::super::{ApiKey, ClientAddress, Constant, Header, Identified, KeySecret, Route};
    use super::*;
    use crate::model::Realm;

    fn finds(id: &'static str) -> impl KeyExtractor {
        move |_: &dyn RequestInfo| Some(Subject::user(id))
    }

    fn finds_nothing() -> impl KeyExtractor {
        |_: &dyn RequestInfo| None
    }

    fn is_ambiguous() -> impl KeyExtractor {
        |_: &dyn RequestInfo| Err(AmbiguousKey)
    }

    #[test]
    fn or_uses_the_first_extractor_that_finds_a_key() {
        let request = FakeRequest::get("/");
        let chain = finds_nothing().or(finds("alice")).or(finds("bob"));
        assert_eq!(chain.subject(&request), Ok(Some(Subject::user("alice"))));
        assert_eq!(finds_nothing().or(finds_nothing()).subject(&request), Ok(None));
    }

    #[test]
    fn an_ambiguous_key_reaches_no_other_extractor() {
        let request = FakeRequest::get("/");
        let (ambiguous, found) = (Err(AmbiguousKey), Ok(Some(Subject::user("alice"))));
        assert_eq!(is_ambiguous().or(finds("alice")).subject(&request), ambiguous);
        assert_eq!(finds_nothing().or(is_ambiguous()).or(finds("a")).subject(&request), ambiguous);
        assert_eq!(is_ambiguous().and(finds("a")).or(finds("a")).subject(&request), ambiguous);
        assert_eq!(finds("a").and(is_ambiguous()).or(finds("a")).subject(&request), ambiguous);
        assert_eq!(finds_nothing().and(is_ambiguous()).or(Constant).subject(&request), ambiguous);
        assert_eq!(finds("alice").or(is_ambiguous()).subject(&request), found);
    }

    #[test]
    fn and_needs_both_and_stays_in_the_realm_of_the_first() {
        let request = FakeRequest::get("/users/7").route("/users/{id}");
        let extractor = Identified.and(Route);
        assert_eq!(extractor.subject(&request), Ok(None));
        let alice = request.identified(Subject::consumer("alice"));
        let on_route = extractor.subject(&alice).unwrap().unwrap();
        assert_eq!(on_route.realm(), &Realm::Consumer);
        assert_eq!(on_route.owner(), &Subject::consumer("alice"));
        assert_ne!(on_route, Subject::consumer("alice"));
        assert_eq!(finds("alice").and(finds_nothing()).subject(&alice), Ok(None));
        assert_ne!(Route.and(Identified).subject(&alice), Ok(Some(on_route)));
    }

    #[test]
    fn combinations_need_the_peer_if_one_of_their_extractors_does() {
        let address = ClientAddress::default;
        assert!(address().needs_peer() && !Identified.needs_peer());
        assert!(Identified.or(address()).needs_peer() && Route.and(address()).needs_peer());
        assert!(address().known(|_: &Subject| true).or(Identified).needs_peer());
        assert!(!Identified.or(Route).and(Constant).needs_peer());
        let shared: Arc<dyn KeyExtractor> = Arc::new(address());
        assert!(shared.or(Constant).needs_peer());
    }

    #[test]
    fn an_extractor_names_the_subjects_that_it_may_count() {
        use CountedAs::{Itself, Nothing, Pair};
        let secret = KeySecret::new(b"a secret for tests").unwrap();
        let sold = secret.subject(Realm::Key, b"sold");
        let key = || ApiKey::header("x-api-key", secret.clone()).unwrap();
        let known = sold.clone();
        let consumer = Subject::consumer("abc");
        let header = || Header::new("x-consumer", Realm::Consumer).unwrap();
        let address = Subject::ip([192, 0, 2, 7]);
        let request = FakeRequest::get("/").route("/").header("x-consumer", b"abc");
        let on_route = header().and(Route).subject(&request).unwrap().unwrap();
        #[rustfmt::skip]
        let table: [(Box<dyn KeyExtractor>, &Subject, CountedAs); 17] = [
            (Box::new(Identified),                           &consumer,  Itself),
            (Box::new(finds("alice")),                       &consumer,  Itself),
            (Box::new(header()),                             &consumer,  Itself),
            (Box::new(header()),                             &address,   Nothing),
            (Box::new(ClientAddress::default()),             &address,   Itself),
            (Box::new(ClientAddress::default()),             &consumer,  Nothing),
            (Box::new(Constant),                             &consumer,  Nothing),
            (Box::new(Constant),                             &Subject::global(), Itself),
            (Box::new(Route),                                &consumer,  Nothing),
            (Box::new(header().or(ClientAddress::default())), &address,  Itself),
            (Box::new(header().or(ClientAddress::default())), &sold,     Nothing),
            (Box::new(header().and(Route)),                  &consumer,  Pair),
            (Box::new(Route.and(header())),                  &consumer,  Pair),
            (Box::new(header().and(Route)),                  &on_route,  Itself),
            (Box::new(header().and(Route)),                  &address,   Nothing),
            (Box::new(key().known(move |key| *key == known)), &sold,     Itself),
            (Box::new(key().known(|_| false)),               &sold,      Nothing),
        ];
        for (index, (extractor, subject, expected)) in table.iter().enumerate() {
            assert_eq!(extractor.counts(subject), *expected, "{index}");
        }
        let replaced = key().known(|_| Some(Subject::consumer("abc")));
        assert_eq!(replaced.counts(&consumer), Itself);
    }

    #[test]
    fn nested_pairs_differ() {
        let request = FakeRequest::get("/");
        let left = finds("a").and(finds("b")).and(Constant).subject(&request);
        let right = finds("a").and(finds("b").and(Constant)).subject(&request);
        assert_ne!(left, right);
    }

    fn any_subject() -> impl Strategy<Value = Subject> {
        let realms = [Realm::Ip, Realm::Key, Realm::User, Realm::custom("us").unwrap()];
        let id = prop_oneof![
            "[ab:]{0,3}".prop_map(Some),
            "[a-z0-9:{}]{0,300}".prop_map(Some),
            Just(None),
        ];
        (prop::sample::select(realms.to_vec()), id, 0..3_u8).prop_map(
            |(realm, id, byte)| match id {
                Some(id) => Subject::new(realm, &id),
                None => Subject::digest(realm, [byte; 16]),
            },
        )
    }

    proptest! {
        #[test]
        fn and_is_injective(a in any_subject(), b in any_subject(), c in any_subject(), d in any_subject()) {
            let same = a == c && b == d;
            prop_assert_eq!(pair(&a, &b) == pair(&c, &d), same);
            prop_assert_ne!(pair(&a, &b), c);
        }

        /// Splits a text into two ids, at two places. The two pairs of ids have the same bytes in
        /// the same order, but must be different subjects.
        #[test]
        fn bytes_cannot_move_between_the_subjects_of_a_pair(id in "[ab]{0,6}", one in 0..=6_usize, two in 0..=6_usize) {
            let (one, two) = (one.min(id.len()), two.min(id.len()));
            let split = |at: usize| pair(&Subject::user(&id[..at]), &Subject::user(&id[at..]));
            prop_assert_eq!(split(one) == split(two), one == two);
        }
    }

    #[test]
    fn unknown_keys_count_by_the_next_extractor() {
        let secret = KeySecret::new(b"a secret for tests").unwrap();
        let sold = secret.subject(Realm::Key, b"sold");
        let (known, consumer) = (sold.clone(), Subject::consumer("alice"));
        let key = || ApiKey::header("x-api-key", secret.clone()).unwrap();
        let by_key = key().known(move |key| *key == known).or(ClientAddress::default());
        let known = sold.clone();
        let by_consumer = key().known(move |key| (*key == known).then(|| consumer.clone()));
        let with = |value: &str| {
            FakeRequest::get("/").peer("192.0.2.7").header("x-api-key", value.as_bytes())
        };
        assert_eq!(by_key.subject(&with("sold")), Ok(Some(sold)));
        assert_eq!(by_consumer.subject(&with("sold")), Ok(Some(Subject::consumer("alice"))));
        for invented in ["a", "b", ""] {
            assert_eq!(by_key.subject(&with(invented)), Ok(Some(Subject::ip([192, 0, 2, 7]))));
            assert_eq!(by_consumer.subject(&with(invented)), Ok(None));
        }
        let twice = with("sold").header("x-api-key", b"a");
        assert_eq!(by_key.subject(&twice), Err(AmbiguousKey));
    }
}
