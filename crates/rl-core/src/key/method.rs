use std::sync::LazyLock;

use super::{AmbiguousKey, KeyExtractor, RequestInfo};
use crate::model::{Realm, Subject};

static METHOD: LazyLock<Realm> =
    LazyLock::new(|| Realm::custom("method").expect("the name fits a realm"));

const KNOWN: [&str; 9] =
    ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

/// Counts by method, in the realm `method`.
///
/// The nine methods of HTTP's registry that services use are told apart. Any other is `other`:
/// clients can invent as many as they like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Method;

impl KeyExtractor for Method {
    fn subject<R: RequestInfo>(&self, request: &R) -> Result<Option<Subject>, AmbiguousKey> {
        let method = request.method();
        let known = KNOWN.into_iter().find(|known| *known == method);
        Ok(Some(Subject::new(METHOD.clone(), known.unwrap_or("other"))))
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake_request::FakeRequest;
    use super::*;

    #[test]
    fn invented_methods_are_one_subject() {
        let subject =
            |method: &str| Method.subject(&FakeRequest::get("/").method(method)).unwrap().unwrap();
        assert_eq!(subject("PATCH").id().as_text(), Some("PATCH"));
        assert_eq!(subject("BREW"), subject("X1"));
        assert_eq!(subject("get").id().as_text(), Some("other"));
        assert_eq!(subject("GET").realm().as_str(), "method");
    }
}
