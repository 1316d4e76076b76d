use std::fmt;

use crate::model::Subject;

/// The error for a credential that two parsers could read differently, because the request contains
/// it twice, or in a form that only some parsers accept.
///
/// The adapters reject such a request with 400, and do not count it. They never continue with the
/// next extractor of [`or`](super::KeyExtractor::or), and no variant of
/// [`MissingKey`](crate::MissingKey) allows it. Otherwise the client could show one value to the
/// limiter and another to the service, and thus choose its bucket.
///
/// # Examples
///
/// ```
/// use rl_core::key::{AmbiguousKey, KeyExtractor, RequestInfo};
/// use rl_core::{Realm, Subject};
///
/// /// Counts by the tenant in a header of a gateway; `?` rejects a request with two such headers.
/// fn by_tenant(realm: Realm) -> impl KeyExtractor {
///     move |request: &dyn RequestInfo| {
///         let Some(tenant) = request.only_header("x-tenant")? else { return Ok(None) };
///         let tenant = std::str::from_utf8(tenant).map_err(|_| AmbiguousKey)?;
///         Ok(Some(Subject::new(realm.clone(), tenant)))
///     }
/// }
/// # let _ = by_tenant(Realm::User);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AmbiguousKey;

debug_as_display!(AmbiguousKey);

impl fmt::Display for AmbiguousKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the credential occurs more than once, or can be read in several ways")
    }
}

impl std::error::Error for AmbiguousKey {}

/// The types that a closure may return to be a [`KeyExtractor`](super::KeyExtractor).
///
/// They are [`Subject`], an `Option` of one, and a `Result` whose error is [`AmbiguousKey`].
pub trait IntoSubject {
    /// Converts the value into the result of
    /// [`KeyExtractor::subject`](super::KeyExtractor::subject).
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
