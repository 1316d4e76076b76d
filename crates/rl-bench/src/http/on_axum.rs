//! Services on axum, with and without limits.

use std::error::Error;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use axum::routing::get;
use axum_governor::extractor::PeerIp;
use rl_core::RateLimiter;
use rl_tower::RateLimitLayer;
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tower::util::MapResponseLayer;
use tower::{Layer, Service};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::PeerIpKeyExtractor;

use super::fixtures::policy;

fn plain() -> Router {
    Router::new().route("/", get(async || "Hello"))
}

/// Starts a service without a layer.
pub(super) async fn bare() -> Result<SocketAddr, Box<dyn Error>> {
    start(plain()).await
}

/// Starts a service with a layer that does nothing. It shows what every layer costs.
pub(super) async fn no_op() -> Result<SocketAddr, Box<dyn Error>> {
    start(plain().layer(NoOpLayer)).await
}

/// Starts a service with a layer that adds three constant header lines.
pub(super) async fn lines() -> Result<SocketAddr, Box<dyn Error>> {
    start(plain().layer(MapResponseLayer::new(|mut response: Response| {
        for name in &LINES {
            response.headers_mut().insert(name.clone(), HeaderValue::from_static("1000"));
        }
        response
    })))
    .await
}

static LINES: [HeaderName; 3] = [
    HeaderName::from_static("x-rate-limit-limit"),
    HeaderName::from_static("x-rate-limit-remaining"),
    HeaderName::from_static("x-rate-limit-reset"),
];

/// Starts a service with our limiter, for six periods and by client address.
pub(super) async fn ours(max: u32) -> Result<SocketAddr, Box<dyn Error>> {
    let limiter = RateLimiter::builder().policy(policy(max)?).build()?;
    start(plain().layer(RateLimitLayer::new(limiter))).await
}

/// Starts a service with tower_governor, for one period.
pub(super) async fn tower_governor(max: u32) -> Result<SocketAddr, Box<dyn Error>> {
    let config = GovernorConfigBuilder::default()
        .period(Duration::from_secs(3_600) / max)
        .burst_size(max)
        .key_extractor(PeerIpKeyExtractor)
        .use_headers()
        .finish()
        .ok_or("a rate and a burst above 0")?;
    start(plain().layer(GovernorLayer::new(Arc::new(config)))).await
}

/// Starts a service with axum_governor, for one period.
pub(super) async fn axum_governor(max: u32) -> Result<SocketAddr, Box<dyn Error>> {
    let max = NonZeroU32::new(max).ok_or("a limit above 0")?;
    let config = axum_governor::GovernorConfigBuilder::default()
        .with_extractor(PeerIp::default())
        .expect_connect_info()
        .quota_default(axum_governor::Quota::requests_per_hour(max))
        .finish()
        .map_err(|error| error.to_string())?;
    start(plain().layer(axum_governor::GovernorLayer::new(config))).await
}

async fn start(router: Router) -> Result<SocketAddr, Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    // The server stops when the runtime is dropped.
    tokio::spawn(async move { axum::serve(listener, service).await });
    Ok(address)
}

#[derive(Clone, Debug)]
struct NoOpLayer;

impl<S> Layer<S> for NoOpLayer {
    type Service = NoOp<S>;

    fn layer(&self, inner: S) -> NoOp<S> {
        NoOp(inner)
    }
}

#[derive(Clone, Debug)]
struct NoOp<S>(S);

impl<S: Service<R>, R> Service<R> for NoOp<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: R) -> S::Future {
        self.0.call(request)
    }
}
