use std::fmt;

use crate::model::Subject;

/// A credential that two readers could read differently: the request holds it twice, or writes it so that
/// one reader accepts what another does not.
///
/// A gate rejects such a request with 400 and counts it nowhere. It never asks the next extractor of
/// [`or`](super::KeyExtractor::or), and no [`MissingKey`](crate::gate::MissingKey) lets it pass: the
/// client could show one value to the limiter and another to the service, and thereby choose its bucket.
///
/// # Examples
///
/// ```
/// use rl_core::key::{AmbiguousKey, KeyExtractor, RequestInfo};
/// use rl_core::{Realm, Subject};
///
/// /// Counts by the tenant that a gateway names; `?` rejects a request that names two.
/// fn by_tenant(realm: Realm) -> impl KeyExtractor {
///     move |request: &dyn RequestInfo| {
///         let Some(tenant) = request.only_header("x-tenant")? else { return Ok(None) };
///         let tenant = std::str::from_utf8(tenant).map_err(|_| AmbiguousKey)?;
///         Ok(Some(Subject::new(realm.clone(), tenant)))
///     }
/// }
/// # let _ = by_tenant(Realm::User);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AmbiguousKey;

impl fmt::Display for AmbiguousKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the credential is given more than once, or cannot be read in one way only")
    }
}

impl std::error::Error for AmbiguousKey {}

/// The return types of closures that are a [`KeyExtractor`](super::KeyExtractor): a [`Subject`], an
/// `Option` of one, or a `Result` whose error is [`AmbiguousKey`].
pub trait IntoSubject {
    /// Returns the answer of an extractor.
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
