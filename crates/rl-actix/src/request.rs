//! A request of actix-web as the limiter sees it.

use std::cell::OnceCell;
use std::net::{IpAddr, SocketAddr};

use actix_web::HttpMessage;
use actix_web::dev::ServiceRequest;
use rl_core::key::RequestInfo;

pub(crate) struct ActixRequest<'a> {
    request: &'a ServiceRequest,
    // actix-web makes the text anew each time.
    route: OnceCell<Option<String>>,
}

impl<'a> ActixRequest<'a> {
    pub(crate) const fn new(request: &'a ServiceRequest) -> Self {
        Self { request, route: OnceCell::new() }
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

    fn extension<T, U>(&self, read: impl FnOnce(&T) -> U) -> Option<U>
    where
        T: Send + Sync + 'static,
    {
        self.request.extensions().get().map(read)
    }
}
