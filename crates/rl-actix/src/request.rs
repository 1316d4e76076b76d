//! A request of actix-web as the limiter sees it.

use std::any::Any;
use std::cell::{OnceCell, Ref};
use std::net::{IpAddr, SocketAddr};

use actix_web::HttpMessage;
use actix_web::dev::{Extensions, ServiceRequest};
use rl_core::key::RequestInfo;

/// Reads the extensions of a request in the closures of a [`Gate`](crate::Gate), which get it as
/// `&dyn RequestInfo`: its settings, and closures that are key extractors.
///
/// # Examples
///
/// ```
/// use rl_actix::{Gate, Limit, RateLimit, RateLimiter, RequestExt};
/// use rl_core::Cost;
///
/// /// Left by an outer middleware that has read the body.
/// struct Estimate { tokens: u64 }
///
/// let limiter = RateLimiter::builder().limit(Limit::per_minute(10_000)).build()?;
/// let limit = RateLimit::new(Gate::new(limiter).cost(|request| {
///     request.extension::<Estimate>().map_or(Cost::ONE, |estimate| Cost::new(estimate.tokens))
/// }));
/// # Ok::<(), rl_core::limiter::BuildError>(())
/// ```
pub trait RequestExt: RequestInfo {
    /// Returns what an earlier middleware put into the request's extensions under the type `T`; `None` for
    /// a request of another framework.
    fn extension<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.extensions().downcast_ref::<Extensions>()?.get()
    }
}

impl<R: RequestInfo + ?Sized> RequestExt for R {}

pub(crate) struct ActixRequest<'a> {
    request: &'a ServiceRequest,
    // Borrowed for as long as this view lives, so that references into it can be handed out.
    extensions: Ref<'a, Extensions>,
    // actix-web makes the text anew each time.
    route: OnceCell<Option<String>>,
}

impl<'a> ActixRequest<'a> {
    pub(crate) fn new(request: &'a ServiceRequest) -> Self {
        Self { request, extensions: request.extensions(), route: OnceCell::new() }
    }
}

impl RequestInfo for ActixRequest<'_> {
    fn method(&self) -> &str {
        self.request.method().as_str()
    }

    fn path(&self) -> &str {
        self.request.path()
    }

    fn query(&self) -> Option<&str> {
        self.request.uri().query()
    }

    fn route(&self) -> Option<&str> {
        self.route.get_or_init(|| self.request.match_pattern()).as_deref()
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

    fn find_extension<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.extensions.get()
    }
}
