use super::{AmbiguousKey, KeyExtractor, RequestInfo};
use crate::model::Subject;

/// Uses a second extractor for requests without a key of the first; made by [`KeyExtractor::or`].
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
    fn subject(&self, request: &dyn RequestInfo) -> Result<Option<Subject>, AmbiguousKey> {
        match self.first.subject(request)? {
            Some(subject) => Ok(Some(subject)),
            None => self.second.subject(request),
        }
    }
}

/// Counts each pair of subjects separately; made by [`KeyExtractor::and`].
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
    fn subject(&self, request: &dyn RequestInfo) -> Result<Option<Subject>, AmbiguousKey> {
        // The second extractor runs even if the first finds no key. An ambiguous second key must reject
        // the request, not lead to the next extractor of an outer `or`.
        let first = self.first.subject(request)?;
        let second = self.second.subject(request)?;
        Ok(first.zip(second).map(|(first, second)| pair(&first, &second)))
    }
}

/// The key of the hash of pairs, which separates their digests from all others. It is not a secret.
const PAIR: &[u8; 32] = b"rl-core: two subjects as one, v1";

/// Combines two subjects into one, which is in the realm of the first and is [owned](Subject::owner) by it.
///
/// The id is a digest, because any text could be the id of a subject that is counted alone.
fn pair(first: &Subject, second: &Subject) -> Subject {
    let mut hasher = blake3::Hasher::new_keyed(PAIR);
    for subject in [first, second] {
        let (realm, id) = (subject.realm().as_str(), subject.id());
        // Lengths first: otherwise bytes could move from one part into the next without changing the hash.
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
    fn or_takes_the_first_that_finds() {
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

        /// Splits one text at two places, so that only the lengths of the ids differ.
        #[test]
        fn bytes_cannot_move_between_the_subjects_of_a_pair(id in "[ab]{0,6}", one in 0..=6_usize, two in 0..=6_usize) {
            let (one, two) = (one.min(id.len()), two.min(id.len()));
            let split = |at: usize| pair(&Subject::user(&id[..at]), &Subject::user(&id[at..]));
            prop_assert_eq!(split(one) == split(two), one == two);
        }
    }
}
