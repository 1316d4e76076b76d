//! The view of an actix-web request that the limiter reads.

use std::any::Any;
use std::cell::{OnceCell, Ref, RefMut};
use std::net::{IpAddr, SocketAddr};

use actix_web::HttpMessage;
use actix_web::dev::{Extensions, Payload, ServiceRequest};
use actix_web::http::uri::Authority;
use rl_core::key::{IntoSubject, KeyExtractor, RequestInfo, Tier};
use rl_core::{Subject, adapter};

/// Lets a closure that takes a `&dyn RequestInfo` read the extensions of the request. Some settings
/// of [`RateLimit`](crate::RateLimit) are such closures.
///
/// # Examples
///
/// ```
/// use rl_actix::{Cost, Limit, RateLimit, RateLimiter, RequestExt};
///
/// /// Inserted by an outer middleware that has read the body.
/// struct Estimate { tokens: u64 }
///
/// let limiter = RateLimiter::builder().limit(Limit::per_minute(10_000)).build()?;
/// let limit = RateLimit::new(limiter).cost(|request| {
///     request.extension::<Estimate>().map_or(Cost::ONE, |estimate| Cost::new(estimate.tokens))
/// });
/// # Ok::<(), rl_actix::BuildError>(())
/// ```
pub trait RequestExt: RequestInfo {
    /// Returns the value of type `T` that an outer middleware put into the extensions of the
    /// request.
    ///
    /// Returns `None` for a request of another framework.
    fn extension<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.extensions().downcast_ref::<Extensions>()?.get()
    }
}

impl<R: RequestInfo + ?Sized> RequestExt for R {}

/// Returns an extractor that counts by a value of type `T`, which an outer middleware has left in
/// the extensions of the request.
///
/// `read` returns a [`Subject`] for the value, or another type that implements [`IntoSubject`]. A
/// request without such a value has no key.
///
/// # Examples
///
/// ```
/// use rl_actix::key::{KeyExtractor, Method};
/// use rl_actix::{Subject, from_extension};
///
/// struct CurrentUser { id: String }
///
/// let extractor = from_extension(|user: &CurrentUser| Subject::user(&user.id)).and(Method);
/// ```
pub fn from_extension<T, S>(read: impl Fn(&T) -> S + Send + Sync + 'static) -> impl KeyExtractor
where
    T: Send + Sync + 'static,
    S: IntoSubject,
{
    move |request: &dyn RequestInfo| {
        request.extension().map_or(Ok(None), |value| read(value).into_subject())
    }
}

/// Gives the limiter access to a request.
pub(crate) struct ActixRequest<'a> {
    request: &'a ServiceRequest,
    // Borrowed for as long as this view lives, so that the view can return references into the
    // extensions.
    extensions: Ref<'a, Extensions>,
    // Cached, because actix-web creates this text anew with each call.
    route: OnceCell<Option<String>>,
}

impl<'a> ActixRequest<'a> {
    pub(crate) fn new(request: &'a ServiceRequest) -> Self {
        Self { request, extensions: request.extensions(), route: OnceCell::new() }
    }
}

/// Returns the pattern of the resource that the request reaches.
fn pattern_of(request: &ServiceRequest) -> Option<String> {
    let path = request.match_info();
    if path.unprocessed().is_empty() {
        return request.match_pattern();
    }
    // actix-web has not chosen the resource yet. It will compare the decoded path, so that
    // `/%75sers` reaches `/users`. `request.match_pattern()` would compare the path as it was sent,
    // so the resource map gets the decoded path here.
    request.resource_map().match_pattern(path.as_str())
}

impl RequestInfo for ActixRequest<'_> {
    fn method(&self) -> &str {
        self.request.method().as_str()
    }

    /// Returns whether a body may follow. Over HTTP/2, actix-web does not know it, and returns
    /// true.
    fn may_have_body(&self) -> bool {
        !matches!(self.request.parts().1, Payload::None)
    }

    fn path(&self) -> &str {
        self.request.path()
    }

    fn routed_path(&self) -> &str {
        self.request.match_info().as_str()
    }

    fn query(&self) -> Option<&str> {
        self.request.uri().query()
    }

    fn route(&self) -> Option<&str> {
        self.route.get_or_init(|| pattern_of(self.request)).as_deref()
    }

    fn header_lines<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        self.request.headers().get_all(name).for_each(|value| each(value.as_bytes()));
    }

    fn peer(&self) -> Option<IpAddr> {
        self.request.peer_addr().map(|peer: SocketAddr| peer.ip())
    }

    fn extensions(&self) -> &dyn Any {
        &*self.extensions
    }

    fn identified_subject(&self) -> Option<&Subject> {
        self.extensions.get()
    }

    fn tier(&self) -> Option<&Tier> {
        self.extensions.get()
    }

    fn authority(&self) -> Option<&str> {
        self.request.uri().authority().map(Authority::as_str)
    }
}

/// Gives the limiter access to the extensions of a request or a response.
pub(crate) struct ActixExtensions<'a>(pub(crate) RefMut<'a, Extensions>);

impl adapter::Extensions for ActixExtensions<'_> {
    fn get<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.0.get()
    }

    fn insert<T: Clone + Send + Sync + 'static>(&mut self, value: T) {
        self.0.insert(value);
    }

    fn remove<T: Clone + Send + Sync + 'static>(&mut self) -> Option<T> {
        self.0.remove()
    }
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    struct CurrentUser(&'static str);

    #[test]
    fn extension_is_read_by_a_function() {
        let members = from_extension(|CurrentUser(id): &CurrentUser| {
            (*id != "guest").then(|| Subject::user(id))
        });
        let request = TestRequest::default().to_srv_request();
        let subject = || members.subject(&ActixRequest::new(&request));
        assert_eq!(subject(), Ok(None));
        request.extensions_mut().insert(CurrentUser("alice"));
        assert_eq!(subject(), Ok(Some(Subject::user("alice"))));
        request.extensions_mut().insert(CurrentUser("guest"));
        assert_eq!(subject(), Ok(None));
    }
}
