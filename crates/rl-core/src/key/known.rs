use std::fmt;

use super::{AmbiguousKey, KeyExtractor, RequestInfo};
use crate::model::Subject;

/// Accepts only subjects that the service knows; made by [`KeyExtractor::known`].
#[derive(Clone, Copy)]
pub struct Known<E, F> {
    extractor: E,
    recognize: F,
}

impl<E, F> Known<E, F> {
    pub(super) const fn new(extractor: E, recognize: F) -> Self {
        Self { extractor, recognize }
    }
}

/// The return types of functions for [`KeyExtractor::known`].
///
/// A `bool` says whether the subject is known. An `Option<Subject>` replaces a known subject by another one.
pub trait Recognized {
    /// Returns the subject to count, or `None` if `found` is not known.
    fn into_recognized(self, found: Subject) -> Option<Subject>;
}

impl Recognized for bool {
    fn into_recognized(self, found: Subject) -> Option<Subject> {
        self.then_some(found)
    }
}

impl Recognized for Option<Subject> {
    fn into_recognized(self, _: Subject) -> Option<Subject> {
        self
    }
}

impl<E, F, S> KeyExtractor for Known<E, F>
where
    E: KeyExtractor,
    F: Fn(&Subject) -> S + Send + Sync + 'static,
    S: Recognized,
{
    fn subject(&self, request: &dyn RequestInfo) -> Result<Option<Subject>, AmbiguousKey> {
        let found = self.extractor.subject(request)?;
        Ok(found.and_then(|found| (self.recognize)(&found).into_recognized(found)))
    }
}

impl<E: fmt::Debug, F> fmt::Debug for Known<E, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Known").field(&self.extractor).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake_request::FakeRequest;
    use super::super::{ApiKey, ClientAddress, KeySecret};
    use super::*;
    use crate::model::Realm;

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
        assert!(format!("{by_key:?}").starts_with("Or { first: Known(ApiKey"));
    }
}
