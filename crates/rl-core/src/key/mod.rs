//! Who is counted: from a request to a [`Subject`].

mod request;

pub use request::RequestInfo;

use crate::Subject;

/// Finds out who is counted.
///
/// Closures over `&dyn RequestInfo` are extractors too.
pub trait KeyExtractor: Send + Sync + 'static {
    /// Who is counted for `request`; `None` if it does not say.
    fn subject<R: RequestInfo>(&self, request: &R) -> Option<Subject>;
}

impl<F> KeyExtractor for F
where
    F: Fn(&dyn RequestInfo) -> Option<Subject> + Send + Sync + 'static,
{
    fn subject<R: RequestInfo>(&self, request: &R) -> Option<Subject> {
        self(request)
    }
}
