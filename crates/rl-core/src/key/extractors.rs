//! Extractors that each read one property of a request.

use std::sync::LazyLock;

use super::{AmbiguousKey, CountedAs, KeyExtractor, MAX_VALUE_LEN, RequestInfo};
use crate::client_ip::InvalidHeaderName;
use crate::client_ip::header_name;
use crate::model::{Realm, Subject};

static METHOD: LazyLock<Realm> =
    LazyLock::new(|| Realm::custom("method").expect("the name fits a realm"));

static ROUTE: LazyLock<Realm> =
    LazyLock::new(|| Realm::custom("route").expect("the name fits a realm"));

/// Counts by the [`Subject`] that an authentication layer has left in the extensions of the
/// request.
///
/// The authentication layer must run before the limiter. A request without a `Subject` in its
/// extensions has no key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identified;

impl KeyExtractor for Identified {
    fn subject(&self, request: &dyn RequestInfo) -> Result<Option<Subject>, AmbiguousKey> {
        Ok(request.identified_subject().cloned())
    }
}

/// Counts by the plain value of a header in which a gateway identifies the client.
///
/// The gateway must overwrite the header in every request, and clients must not be able to bypass
/// it. Otherwise a client chooses its own identity. Secrets belong in [`ApiKey`](super::ApiKey),
/// which hashes them.
///
/// A request without the header, or with an empty one, has no key. A value is
/// [ambiguous](AmbiguousKey) if the header occurs twice, or if the value is padded, longer than
/// 65536 bytes or not UTF-8. Another parser could find another client in such a value.
///
/// # Examples
///
/// ```
/// use rl_core::Realm;
/// use rl_core::key::Header;
///
/// let extractor = Header::new("x-consumer-id", Realm::Consumer)?;
/// # Ok::<(), rl_core::client_ip::InvalidHeaderName>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    name: Box<str>,
    realm: Realm,
}

impl Header {
    /// Creates an extractor that uses the value of the header `name`, in any case, as an id in
    /// `realm`.
    ///
    /// # Errors
    ///
    /// Returns an error if `name` is not a valid header name.
    pub fn new(name: &str, realm: Realm) -> Result<Self, InvalidHeaderName> {
        Ok(Self { name: header_name(name)?, realm })
    }
}

impl KeyExtractor for Header {
    fn subject(&self, request: &dyn RequestInfo) -> Result<Option<Subject>, AmbiguousKey> {
        let Some(value) = request.only_header(&self.name)? else { return Ok(None) };
        if value.len() > MAX_VALUE_LEN {
            return Err(AmbiguousKey);
        }
        let id = std::str::from_utf8(value).map_err(|_| AmbiguousKey)?;
        Ok(Some(Subject::new(self.realm.clone(), id)))
    }

    fn counts(&self, subject: &Subject) -> CountedAs {
        of_realm(&self.realm, subject)
    }
}

/// Counts by the pattern of the route that matched, such as `/users/{id}`, in the realm `route`.
///
/// The path itself is never used: `/a//b`, `/%61/b` and `/a/b?` reach the same handler, but each
/// would have its own quota.
///
/// Requests that matched no route are counted together, as [`Route::UNMATCHED`], and get the 404 of
/// the service. The same applies to requests whose route the framework does not report: in tower
/// services other than axum, and outside of axum's `Router::layer`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route;

impl Route {
    /// The id of all requests that matched no route. It cannot be a pattern, because patterns begin
    /// with `/`.
    pub const UNMATCHED: &'static str = "unmatched";
}

impl KeyExtractor for Route {
    fn subject(&self, request: &dyn RequestInfo) -> Result<Option<Subject>, AmbiguousKey> {
        let pattern = request.route().unwrap_or(Self::UNMATCHED);
        Ok(Some(Subject::new(ROUTE.clone(), pattern)))
    }

    fn counts(&self, subject: &Subject) -> CountedAs {
        of_realm(&ROUTE, subject)
    }
}

/// Counts by method, in the realm `method`.
///
/// The nine standard methods are counted separately. All others are counted together as `other`,
/// because clients can invent any number of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Method;

impl Method {
    const KNOWN: [&'static str; 9] =
        ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
}

impl KeyExtractor for Method {
    fn subject(&self, request: &dyn RequestInfo) -> Result<Option<Subject>, AmbiguousKey> {
        let method = request.method();
        let known = Self::KNOWN.into_iter().find(|known| *known == method);
        Ok(Some(Subject::new(METHOD.clone(), known.unwrap_or("other"))))
    }

    fn counts(&self, subject: &Subject) -> CountedAs {
        of_realm(&METHOD, subject)
    }
}

/// Counts all requests together.
///
/// It suits a limit for the whole service. As the last extractor of [`KeyExtractor::or`], it gives
/// one quota to all clients that cannot be identified; any of them can use it up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Constant;

impl KeyExtractor for Constant {
    fn subject(&self, _: &dyn RequestInfo) -> Result<Option<Subject>, AmbiguousKey> {
        Ok(Some(Subject::global()))
    }

    fn counts(&self, subject: &Subject) -> CountedAs {
        of_realm(&Realm::Global, subject)
    }
}

/// Returns how an extractor counts `subject` whose subjects are all in `realm`, and no pairs.
pub(super) fn of_realm(realm: &Realm, subject: &Subject) -> CountedAs {
    let is_counted = subject.realm() == realm && subject.owner() == subject;
    if is_counted { CountedAs::Itself } else { CountedAs::Nothing }
}

#[cfg(test)]
mod tests {
    use super::super::fake_request::FakeRequest;
    use super::*;

    #[test]
    fn subject_in_the_extensions_is_counted() {
        let request = FakeRequest::get("/");
        assert_eq!(Identified.subject(&request), Ok(None));
        let consumer = Subject::consumer("abc123");
        let identified = request.identified(consumer.clone());
        assert_eq!(Identified.subject(&identified), Ok(Some(consumer)));
    }

    #[test]
    fn header_value_is_the_id() {
        let by_header = Header::new("X-Consumer-Id", Realm::Consumer).unwrap();
        let one =
            |value: &[u8]| by_header.subject(&FakeRequest::get("/").header("x-consumer-id", value));
        for id in ["abc123", "CN=a b, O=c", "é", "a".repeat(65_536).as_str()] {
            assert_eq!(one(id.as_bytes()), Ok(Some(Subject::consumer(id))));
        }
        assert_eq!(one(b""), Ok(None));
        for value in [&b" a"[..], b"a\t", b"\xff", &[b'a'; 65_537]] {
            assert_eq!(one(value), Err(AmbiguousKey));
        }
        assert_eq!(by_header.subject(&FakeRequest::get("/")), Ok(None));
        let twice =
            FakeRequest::get("/").header("x-consumer-id", b"a").header("x-consumer-id", b"a");
        assert_eq!(by_header.subject(&twice), Err(AmbiguousKey));
    }

    #[test]
    fn route_is_counted_by_its_pattern_and_never_by_the_path() {
        let counted = |request: &FakeRequest| Route.subject(request).unwrap().unwrap();
        let subject = counted(&FakeRequest::get("/users/7").route("/users/{id}"));
        assert_eq!(
            (subject.realm().as_str(), &*subject.id().to_string()),
            ("route", "/users/{id}")
        );
        let unmatched = counted(&FakeRequest::get("/users/7"));
        assert_eq!(unmatched.id().as_text(), Some(Route::UNMATCHED));
        assert_eq!(unmatched, counted(&FakeRequest::get("/nowhere")));
    }

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
