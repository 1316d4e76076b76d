use std::sync::LazyLock;

use super::{KeyExtractor, RequestInfo};
use crate::{Realm, Subject};

static ROUTE: LazyLock<Realm> =
    LazyLock::new(|| Realm::custom("route").expect("the name fits a realm"));

/// Counts by the pattern of the route that matched, such as `/users/{id}`, in the realm `route`.
///
/// A request that matched no route says nothing. The path itself is never taken: `/a//b`, `/%61/b`
/// and `/a/b?` reach the same handler, and each would have a quota of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route;

impl KeyExtractor for Route {
    fn subject<R: RequestInfo>(&self, request: &R) -> Option<Subject> {
        request.route().map(|pattern| Subject::new(ROUTE.clone(), pattern))
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake_request::FakeRequest;
    use super::*;

    #[test]
    fn the_pattern_counts_and_never_the_path() {
        let request = FakeRequest::get("/users/7");
        assert_eq!(Route.subject(&request), None);
        let subject = Route.subject(&request.route("/users/{id}")).unwrap();
        assert_eq!(
            (subject.realm().as_str(), &*subject.id().to_string()),
            ("route", "/users/{id}")
        );
    }
}
