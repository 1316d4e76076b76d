//! A request of `http` as the limiter sees it.

use std::any::Any;
use std::net::{IpAddr, SocketAddr};

use http::{Extensions, Request};
use rl_core::key::RequestInfo;

/// Reads the extensions of a request in the closures of a [`Gate`](crate::Gate), which get it as
/// `&dyn RequestInfo`: its settings, and closures that are key extractors.
///
/// # Examples
///
/// ```
/// use rl_core::Cost;
/// use rl_tower::{Gate, Limit, RateLimitLayer, RateLimiter, RequestExt};
///
/// /// Left by an outer layer that has read the body.
/// #[derive(Clone)]
/// struct Estimate { tokens: u64 }
///
/// let limiter = RateLimiter::builder().limit(Limit::per_minute(10_000)).build()?;
/// let layer = RateLimitLayer::new(Gate::new(limiter).cost(|request| {
///     request.extension::<Estimate>().map_or(Cost::ONE, |estimate| Cost::new(estimate.tokens))
/// }));
/// # Ok::<(), rl_core::limiter::BuildError>(())
/// ```
pub trait RequestExt: RequestInfo {
    /// Returns what an earlier layer put into the request's extensions under the type `T`; `None` for a
    /// request of another framework.
    fn extension<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.extensions().downcast_ref::<Extensions>()?.get()
    }
}

impl<R: RequestInfo + ?Sized> RequestExt for R {}

pub(crate) struct HttpRequest<'a, B>(pub(crate) &'a Request<B>);

impl<B> RequestInfo for HttpRequest<'_, B> {
    fn method(&self) -> &str {
        self.0.method().as_str()
    }

    fn path(&self) -> &str {
        self.0.uri().path()
    }

    fn query(&self) -> Option<&str> {
        self.0.uri().query()
    }

    fn route(&self) -> Option<&str> {
        #[cfg(feature = "axum")]
        if let Some(path) = self.0.extensions().get::<axum::extract::MatchedPath>() {
            return Some(path.as_str());
        }
        None
    }

    fn header_lines<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        self.0.headers().get_all(name).iter().for_each(|value| each(value.as_bytes()));
    }

    /// What axum or tonic know of the connection, or a `SocketAddr` that the server has put into
    /// the extensions.
    fn peer(&self) -> Option<IpAddr> {
        let extensions = self.0.extensions();
        #[cfg(feature = "axum")]
        if let Some(info) = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>() {
            return Some(info.0.ip());
        }
        #[cfg(feature = "tonic")]
        if let Some(peer) = tonic_peer(extensions) {
            return Some(peer.ip());
        }
        extensions.get::<SocketAddr>().map(SocketAddr::ip)
    }

    fn extensions(&self) -> &dyn Any {
        self.0.extensions()
    }

    fn find_extension<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.0.extensions().get()
    }
}

/// The peer of a connection that tonic accepted without TLS. With TLS its type depends on the TLS
/// library; put the `SocketAddr` into the extensions instead.
#[cfg(feature = "tonic")]
fn tonic_peer(extensions: &http::Extensions) -> Option<SocketAddr> {
    use tonic::transport::server::TcpConnectInfo;

    extensions.get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr)
}
