//! The view of an `http` request that the limiter reads.

use std::any::Any;
use std::net::{IpAddr, SocketAddr};

#[cfg(feature = "axum")]
use axum::extract::connect_info::MockConnectInfo;
use http::uri::Authority;
use http::{Method, Request};
use http_body::Body;
use rl_core::Subject;
use rl_core::adapter::Extensions;
use rl_core::key::{IntoSubject, KeyExtractor, NestedPrefix, RequestInfo, Tier};

use crate::grpc::may_reach_grpc;
#[cfg(feature = "axum")]
use crate::nested_prefix;

/// Lets a closure that takes a `&dyn RequestInfo` read the extensions of the request. Some settings
/// of [`RateLimitLayer`](crate::RateLimitLayer) are such closures.
///
/// # Examples
///
/// ```
/// use rl_tower::{Cost, Limit, RateLimitLayer, RateLimiter, RequestExt};
///
/// /// Inserted by an outer layer that has read the body.
/// #[derive(Clone)]
/// struct Estimate { tokens: u64 }
///
/// let limiter = RateLimiter::builder().limit(Limit::per_minute(10_000)).build()?;
/// let layer = RateLimitLayer::new(limiter).cost(|request| {
///     request.extension::<Estimate>().map_or(Cost::ONE, |estimate| Cost::new(estimate.tokens))
/// });
/// # Ok::<(), rl_tower::BuildError>(())
/// ```
pub trait RequestExt: RequestInfo {
    /// Returns the value of type `T` that an outer layer put into the extensions of the request.
    ///
    /// Returns `None` if there is no such value, or if the request is of another framework.
    fn extension<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.extensions().downcast_ref::<http::Extensions>()?.get()
    }
}

impl<R: RequestInfo + ?Sized> RequestExt for R {}

/// Returns an extractor that counts by a value of type `T`, which an outer layer has put into the
/// extensions of the request.
///
/// `read` returns a [`Subject`] for the value, or another type that implements [`IntoSubject`]. A
/// request without such a value has no key.
///
/// # Examples
///
/// ```
/// use rl_tower::key::{KeyExtractor, Method};
/// use rl_tower::{Subject, from_extension};
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

/// The limiter's view of a request.
pub(crate) struct HttpRequest<'a, B>(pub(crate) &'a Request<B>);

impl<B: Body + 'static> RequestInfo for HttpRequest<'_, B> {
    fn method(&self) -> &str {
        if self.0.method() != Method::POST && may_reach_grpc(self.0) {
            return Method::POST.as_str();
        }
        self.sent_method()
    }

    fn sent_method(&self) -> &str {
        self.0.method().as_str()
    }

    fn may_have_body(&self) -> bool {
        !self.0.body().is_end_stream()
    }

    fn path(&self) -> &str {
        // A nested router of axum removes its prefix from the path, and keeps the whole one here.
        #[cfg(feature = "axum")]
        if let Some(axum::extract::OriginalUri(uri)) = self.0.extensions().get() {
            return uri.path();
        }
        self.0.uri().path()
    }

    fn routed_path(&self) -> &str {
        self.0.uri().path()
    }

    fn nested_prefix(&self) -> NestedPrefix<'_> {
        #[cfg(feature = "axum")]
        if let Some(prefix) = self.0.extensions().get::<axum::extract::NestedPath>() {
            return nested_prefix::with_values(prefix.as_str(), self.0.extensions());
        }
        NestedPrefix::None
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

    /// Returns the peer's address that axum or tonic reports, or else the `SocketAddr` that a
    /// server has put into the extensions, or else that of axum's `MockConnectInfo` for tests.
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
        if let Some(peer) = extensions.get::<SocketAddr>() {
            return Some(peer.ip());
        }
        #[cfg(feature = "axum")]
        if let Some(mock) = extensions.get::<MockConnectInfo<SocketAddr>>() {
            return Some(mock.0.ip());
        }
        None
    }

    fn extensions(&self) -> &dyn Any {
        self.0.extensions()
    }

    fn identified_subject(&self) -> Option<&Subject> {
        self.0.extensions().get()
    }

    fn tier(&self) -> Option<&Tier> {
        self.0.extensions().get()
    }

    fn authority(&self) -> Option<&str> {
        self.0.uri().authority().map(Authority::as_str)
    }
}

/// The limiter's view of the extensions of a request or a response.
pub(crate) struct HttpExtensions<'a>(pub(crate) &'a mut http::Extensions);

impl Extensions for HttpExtensions<'_> {
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

/// Returns the peer's address of a connection that tonic accepted without TLS, or else `None`.
///
/// With TLS, the type of the peer depends on the TLS library, so the server has to insert a
/// `SocketAddr` instead.
#[cfg(feature = "tonic")]
fn tonic_peer(extensions: &http::Extensions) -> Option<SocketAddr> {
    use tonic::transport::server::TcpConnectInfo;

    extensions.get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone)]
    struct CurrentUser(&'static str);

    #[test]
    fn extension_is_read_by_a_function() {
        let members = from_extension(|CurrentUser(id): &CurrentUser| {
            (*id != "guest").then(|| Subject::user(id))
        });
        let subject_of = |request: &Request<String>| members.subject(&HttpRequest(request));
        let mut request = Request::new(String::new());
        assert_eq!(subject_of(&request), Ok(None));
        request.extensions_mut().insert(CurrentUser("alice"));
        assert_eq!(subject_of(&request), Ok(Some(Subject::user("alice"))));
        request.extensions_mut().insert(CurrentUser("guest"));
        assert_eq!(subject_of(&request), Ok(None));
    }

    #[cfg(feature = "axum")]
    #[test]
    fn peer_of_a_test_is_that_of_the_mock_unless_there_is_a_connection() {
        let mut request = Request::new(String::new());
        assert_eq!(HttpRequest(&request).peer(), None);
        let [mock, real] = [[192, 0, 2, 1], [192, 0, 2, 2]].map(|ip| SocketAddr::from((ip, 1)));
        request.extensions_mut().insert(MockConnectInfo(mock));
        assert_eq!(HttpRequest(&request).peer(), Some(mock.ip()));
        request.extensions_mut().insert(real);
        assert_eq!(HttpRequest(&request).peer(), Some(real.ip()));
    }

    /// Returns a router with the route `/login`, and a rule that allows one `GET` of `path` in an
    /// hour.
    #[cfg(feature = "axum")]
    fn login_under_rule_for(path: &str) -> axum::Router {
        use rl_core::rules::{Rule, Rules};
        use rl_core::{Limit, RateLimiter};

        let login = Rule::named("login").on("GET", path).limit(Limit::per_hour(1));
        let limiter = RateLimiter::builder().rules(Rules::new().rule(login)).build().unwrap();
        let layer = crate::RateLimitLayer::new(limiter);
        axum::Router::new().route("/login", axum::routing::get(async || "in")).layer(layer)
    }

    /// Fault: a rule for `/acme/login` counted nothing if a middleware had put this path in place
    /// of another one before a nested router with a parameter.
    #[cfg(feature = "axum")]
    #[tokio::test]
    async fn a_rewritten_path_avoids_no_rule_in_a_nested_router_with_a_parameter() {
        use axum::Router;
        use axum::body::Body;
        use tower_service::Service;

        for (pattern, rewritten, limited) in [
            ("/{tenant}", "/acme/login", true),
            ("/{tenant}", "/other/login", false),
            ("/{tenant}", "/%61cme/login", true),
            ("/{tenant}", "/{{tenant}}/login", false),
            ("/a{rest}", "/acme/login", true),
            ("/{tenant}/{tenant2}", "/acme/login/login", false),
            // The value is not UTF-8, so the path is not known.
            ("/{tenant}", "/%FF/login", true),
        ] {
            let mut nested = Router::new().nest(pattern, login_under_rule_for("/acme/login"));
            let mut app = Router::new().fallback(async move |mut request: Request<Body>| {
                *request.uri_mut() = rewritten.parse().unwrap();
                nested.call(request).await
            });
            for expected in [200, if limited { 429 } else { 200 }] {
                let request = Request::builder().uri("/x").body(Body::empty()).unwrap();
                let status = app.call(request).await.unwrap().status();
                assert_eq!(status, expected, "{pattern} {rewritten}");
            }
        }
    }

    /// Fault: a path that a middleware had rewritten before nested routers avoided the rule, if the
    /// routers had left a part of their prefix in it, or if a value in the prefix was empty.
    #[cfg(feature = "axum")]
    #[tokio::test]
    async fn a_rewritten_path_avoids_no_rule_in_routers_that_are_nested_twice() {
        use axum::Router;
        use axum::body::Body;
        use tower_service::Service;

        for (outer, inner, rule, sent, rewritten, limited) in [
            ("/api", "/v{n}", "/api/v{n}/login", "/v1/login", "/api/v1/login", true),
            ("/api", "/v{n}", "/api/v{n}/login", "/API/v1/login", "/api/v1/login", true),
            ("/api", "/v{n}", "/v{n}/other", "/API/v1/login", "/api/v1/login", false),
            ("/v{n}", "/{t}", "/v{n}/{t}/login", "/acme/login", "/v1/acme/login", true),
            ("/t/{a}", "/{b}", "/t/{a}/{b}/login", "/T/x//login", "/t/x//login", true),
            ("/{t}", "/v{n}", "/acme/v{n}/login", "/acme/v1/login", "/acme/v1/login", true),
            ("/{t}", "/v{n}", "/{t}/{t2}/v{n}/login", "/acme/v1/login", "/acme/v1/login", false),
        ] {
            let nested = Router::new().nest(inner, login_under_rule_for(rule));
            let mut nested = Router::new().nest(outer, nested);
            let mut app = Router::new().fallback(async move |mut request: Request<Body>| {
                *request.uri_mut() = rewritten.parse().unwrap();
                nested.call(request).await
            });
            for nth in 1..=2 {
                let request = Request::builder().uri(sent).body(Body::empty()).unwrap();
                let status = app.call(request).await.unwrap().status();
                assert_eq!(status == 429, limited && nth == 2, "{outer}{inner} {sent}: {status}");
            }
        }
    }

    /// Fault: a request that a handler of a nested router passed on to another router avoided the
    /// rule for the path there.
    #[cfg(feature = "axum")]
    #[tokio::test]
    async fn a_request_that_a_handler_passes_to_another_router_avoids_no_rule() {
        use axum::Router;
        use axum::body::Body;
        use axum::routing::get;
        use tower_service::Service;

        for (route, sent) in [("/signin", "/old/signin"), ("/{*rest}", "/old/api/login")] {
            let site = Router::new().nest("/api", login_under_rule_for("/api/login"));
            let pass_on = get(async move |mut request: Request<Body>| {
                *request.uri_mut() = "/api/login".parse().unwrap();
                site.clone().call(request).await
            });
            let mut app = Router::new().nest("/old", Router::new().route(route, pass_on));
            for expected in [200, 429] {
                let request = Request::builder().uri(sent).body(Body::empty()).unwrap();
                assert_eq!(app.call(request).await.unwrap().status(), expected, "{sent}");
            }
        }
    }

    /// Fault: if a router before the nested one had a parameter of the same name, its value was
    /// taken for the prefix, so a rule for the rewritten path counted nothing.
    #[cfg(feature = "axum")]
    #[tokio::test]
    async fn a_parameter_whose_name_occurs_twice_avoids_no_rule() {
        use axum::Router;
        use axum::body::Body;
        use axum::routing::get;
        use tower_service::Service;

        let nested = Router::new().nest("/{tenant}", login_under_rule_for("/acme/login"));
        let rewrite = get(async move |mut request: Request<Body>| {
            *request.uri_mut() = request.uri().path().to_ascii_lowercase().parse().unwrap();
            nested.clone().call(request).await
        });
        let mut app = Router::new().route("/{tenant}/{*rest}", rewrite);
        for expected in [200, 429] {
            let request = Request::builder().uri("/ACME/login").body(Body::empty()).unwrap();
            assert_eq!(app.call(request).await.unwrap().status(), expected);
        }
    }

    /// Fault: under a nested router, rules and exemptions saw the path without its prefix, so a
    /// rule for `/api/login` counted nothing.
    #[cfg(feature = "axum")]
    #[tokio::test]
    async fn a_nested_router_does_not_change_the_path() {
        use axum::Router;
        use axum::body::Body;
        use tower_service::Service;

        let mut app = Router::new().nest("/api", login_under_rule_for("/api/login"));
        for expected in [200, 429] {
            let request = Request::builder().uri("/api/login").body(Body::empty()).unwrap();
            assert_eq!(app.call(request).await.unwrap().status(), expected);
        }
    }
}
