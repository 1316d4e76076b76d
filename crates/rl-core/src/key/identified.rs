use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;

use super::{KeyExtractor, RequestInfo};
use crate::Subject;

/// Counts whom an authentication layer has identified: it leaves a [`Subject`] in the extensions of
/// the request.
///
/// The limiter must come after it, nearer to the handlers. Without a `Subject` there, the request
/// does not say who is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identified;

impl KeyExtractor for Identified {
    fn subject<R: RequestInfo>(&self, request: &R) -> Option<Subject> {
        request.extension(Subject::clone)
    }
}

/// Counts by what an earlier layer left in the extensions of the request under the type `T`.
///
/// `read` makes a [`Subject`] of it, or an `Option<Subject>`.
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
    S: Into<Option<Subject>>,
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
    S: Into<Option<Subject>>,
    F: Fn(&T) -> S + Send + Sync + 'static,
{
    fn subject<R: RequestInfo>(&self, request: &R) -> Option<Subject> {
        request.extension(|value| (self.read)(value).into()).flatten()
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
        assert_eq!(Identified.subject(&request), None);
        let consumer = Subject::consumer("abc123");
        assert_eq!(Identified.subject(&request.extension_value(consumer.clone())), Some(consumer));
    }

    #[test]
    fn other_values_are_read_by_a_function() {
        let always = from_extension(|user: &CurrentUser| Subject::user(&user.id));
        let known = from_extension(|user: &CurrentUser| {
            (user.id != "guest").then(|| Subject::user(&user.id))
        });
        let nobody = FakeRequest::get("/");
        assert_eq!(always.subject(&nobody), None);
        let guest = nobody.extension_value(CurrentUser { id: "guest".into() });
        assert_eq!(always.clone().subject(&guest), Some(Subject::user("guest")));
        assert_eq!(known.subject(&guest), None);
        assert!(format!("{always:?}").contains("CurrentUser"));
    }
}
