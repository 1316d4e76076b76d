use super::{AmbiguousKey, KeyExtractor, RequestInfo};
use crate::model::Subject;

/// The first extractor, or the second for requests without a key of the first; made by [`KeyExtractor::or`].
#[derive(Clone, Copy, Debug)]
pub struct Or<A, B> {
    first: A,
    second: B,
}

impl<A, B> Or<A, B> {
    pub(super) const fn new(first: A, second: B) -> Self {
        Self { first, second }
    }
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for Or<A, B> {
    fn subject<R: RequestInfo>(&self, request: &R) -> Result<Option<Subject>, AmbiguousKey> {
        match self.first.subject(request)? {
            Some(subject) => Ok(Some(subject)),
            None => self.second.subject(request),
        }
    }
}

/// Both extractors together; made by [`KeyExtractor::and`].
#[derive(Clone, Copy, Debug)]
pub struct And<A, B> {
    first: A,
    second: B,
}

impl<A, B> And<A, B> {
    pub(super) const fn new(first: A, second: B) -> Self {
        Self { first, second }
    }
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for And<A, B> {
    fn subject<R: RequestInfo>(&self, request: &R) -> Result<Option<Subject>, AmbiguousKey> {
        // Both are asked, even without a first subject: an ambiguous second one must not reach an outer
        // `or`.
        let (first, second) = (self.first.subject(request)?, self.second.subject(request)?);
        Ok(first.zip(second).map(|(first, second)| pair(&first, &second)))
    }
}

/// Keeps the digests of pairs apart from all other digests; it is no secret.
const PAIR: &[u8; 32] = b"rl-core: two subjects as one, v1";

/// Returns both as one subject, in the realm of the first and [its](Subject::owner).
///
/// The id is a digest, because every text is the id of a subject that is counted alone.
fn pair(first: &Subject, second: &Subject) -> Subject {
    let mut hasher = blake3::Hasher::new_keyed(PAIR);
    for subject in [first, second] {
        let (realm, id) = (subject.realm().as_str(), subject.id());
        // Each part says how long it is, so that no bytes can move from one into the next.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fake_request::FakeRequest;
    use super::super::{Constant, Identified, Route};
    use super::*;
    use crate::model::Realm;

    fn says(id: &'static str) -> impl KeyExtractor {
        move |_: &dyn RequestInfo| Some(Subject::user(id))
    }

    fn says_nothing() -> impl KeyExtractor {
        |_: &dyn RequestInfo| None
    }

    fn is_ambiguous() -> impl KeyExtractor {
        |_: &dyn RequestInfo| Err(AmbiguousKey)
    }

    #[test]
    fn or_takes_the_first_that_says() {
        let request = FakeRequest::get("/");
        let chain = says_nothing().or(says("alice")).or(says("bob"));
        assert_eq!(chain.subject(&request), Ok(Some(Subject::user("alice"))));
        assert_eq!(says_nothing().or(says_nothing()).subject(&request), Ok(None));
    }

    #[test]
    fn an_ambiguous_key_reaches_no_other_extractor() {
        let request = FakeRequest::get("/");
        let (ambiguous, found) = (Err(AmbiguousKey), Ok(Some(Subject::user("alice"))));
        assert_eq!(is_ambiguous().or(says("alice")).subject(&request), ambiguous);
        assert_eq!(says_nothing().or(is_ambiguous()).or(says("a")).subject(&request), ambiguous);
        assert_eq!(is_ambiguous().and(says("a")).or(says("a")).subject(&request), ambiguous);
        assert_eq!(says("a").and(is_ambiguous()).or(says("a")).subject(&request), ambiguous);
        assert_eq!(says_nothing().and(is_ambiguous()).or(Constant).subject(&request), ambiguous);
        assert_eq!(says("alice").or(is_ambiguous()).subject(&request), found);
    }

    #[test]
    fn and_needs_both_and_stays_in_the_realm_of_the_first() {
        let request = FakeRequest::get("/users/7").route("/users/{id}");
        let who = Identified.and(Route);
        assert_eq!(who.subject(&request), Ok(None));
        let alice = request.extension_value(Subject::consumer("alice"));
        let on_route = who.subject(&alice).unwrap().unwrap();
        assert_eq!(on_route.realm(), &Realm::Consumer);
        assert_eq!(on_route.owner(), &Subject::consumer("alice"));
        assert_ne!(on_route, Subject::consumer("alice"));
        assert_eq!(says("alice").and(says_nothing()).subject(&alice), Ok(None));
        assert_ne!(Route.and(Identified).subject(&alice), Ok(Some(on_route)));
    }

    #[test]
    fn nested_pairs_are_kept_apart() {
        let request = FakeRequest::get("/");
        let left = says("a").and(says("b")).and(Constant).subject(&request);
        let right = says("a").and(says("b").and(Constant)).subject(&request);
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

        /// Ids whose ends can be moved from one into the other.
        #[test]
        fn the_parts_of_a_pair_do_not_run_together(id in "[ab]{0,6}", one in 0..=6_usize, two in 0..=6_usize) {
            let (one, two) = (one.min(id.len()), two.min(id.len()));
            let split = |at: usize| pair(&Subject::user(&id[..at]), &Subject::user(&id[at..]));
            prop_assert_eq!(split(one) == split(two), one == two);
        }
    }
}
