use std::sync::LazyLock;

use super::{AmbiguousKey, KeyExtractor, RequestInfo};
use crate::model::{Realm, Subject};

static ROUTE: LazyLock<Realm> =
    LazyLock::new(|| Realm::custom("route").expect("the name fits a realm"));

/// Counts by the pattern of the route that matched, such as `/users/{id}`, in the realm `route`.
///
/// The path itself is never used: `/a//b`, `/%61/b` and `/a/b?` reach the same handler, and each would
/// have a quota of its own.
///
/// Requests that matched no route count together, as [`Route::UNMATCHED`], and get the service's own 404.
/// So do requests whose route the framework does not report: in tower services other than axum, and
/// outside of axum's `Router::layer`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route;

impl Route {
    /// The id of all requests that matched no route. It cannot be a pattern, because patterns begin with `/`.
    pub const UNMATCHED: &'static str = "unmatched";
}

impl KeyExtractor for Route {
    fn subject<R: RequestInfo>(&self, request: &R) -> Result<Option<Subject>, AmbiguousKey> {
        let pattern = request.route().unwrap_or(Self::UNMATCHED);
        Ok(Some(Subject::new(ROUTE.clone(), pattern)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake_request::FakeRequest;
    use super::*;

    #[test]
    fn the_pattern_counts_and_never_the_path() {
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
}
