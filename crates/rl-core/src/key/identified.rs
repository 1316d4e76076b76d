use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;

use super::{AmbiguousKey, IntoSubject, KeyExtractor, RequestInfo};
use crate::model::Subject;

/// Counts the [`Subject`] that an authentication layer has left in the extensions of the request.
///
/// The limiter must come after that layer, nearer to the handlers. Without a `Subject` there, the request
/// has no key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identified;

impl KeyExtractor for Identified {
    fn subject<R: RequestInfo>(&self, request: &R) -> Result<Option<Subject>, AmbiguousKey> {
        Ok(request.find_extension().cloned())
    }
}

/// Counts by what an earlier layer left in the extensions of the request under the type `T`.
///
/// `read` makes a [`Subject`] of it, or anything else that is [`IntoSubject`].
///
/// # Examples
///
/// ```
/// use rl_core::Subject;
/// use rl_core::key::{KeyExtractor, Method, from_extension};
///
/// struct CurrentUser { id: String }
///
/// let who = from_extension(|user: &CurrentUser| Subject::user(&user.id)).and(Method);
/// ```
pub fn from_extension<T, S, F>(read: F) -> Extension<T, F>
where
    T: Send + Sync + 'static,
    S: IntoSubject,
    F: Fn(&T) -> S + Send + Sync + 'static,
{
    Extension { read, of: PhantomData }
}

/// Reads one type of the request's extensions; made by [`from_extension`].
pub struct Extension<T, F> {
    read: F,
    of: PhantomData<fn(&T)>,
}

impl<T, S, F> KeyExtractor for Extension<T, F>
where
    T: Send + Sync + 'static,
    S: IntoSubject,
    F: Fn(&T) -> S + Send + Sync + 'static,
{
    fn subject<R: RequestInfo>(&self, request: &R) -> Result<Option<Subject>, AmbiguousKey> {
        let found = request.find_extension().map(|value| (self.read)(value).into_subject());
        found.unwrap_or(Ok(None))
    }
}

// Derived, it would ask for a `T` that can be cloned.
impl<T, F: Clone> Clone for Extension<T, F> {
    fn clone(&self) -> Self {
        Self { read: self.read.clone(), of: PhantomData }
    }
}

impl<T, F> fmt::Debug for Extension<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extension({})", type_name::<T>())
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake_request::FakeRequest;
    use super::*;

    struct CurrentUser {
        id: String,
    }

    #[test]
    fn subject_in_the_extensions_counts() {
        let request = FakeRequest::get("/");
        assert_eq!(Identified.subject(&request), Ok(None));
        let consumer = Subject::consumer("abc123");
        let identified = request.extension_value(consumer.clone());
        assert_eq!(Identified.subject(&identified), Ok(Some(consumer)));
    }

    #[test]
    fn other_values_are_read_by_a_function() {
        let always = from_extension(|user: &CurrentUser| Subject::user(&user.id));
        let known = from_extension(|user: &CurrentUser| {
            (user.id != "guest").then(|| Subject::user(&user.id))
        });
        let nobody = FakeRequest::get("/");
        assert_eq!(always.subject(&nobody), Ok(None));
        let guest = nobody.extension_value(CurrentUser { id: "guest".into() });
        assert_eq!(always.clone().subject(&guest), Ok(Some(Subject::user("guest"))));
        assert_eq!(known.subject(&guest), Ok(None));
        assert!(format!("{always:?}").contains("CurrentUser"));
    }
}
