//! Services on axum, with and without limits.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::HeaderValue;
use axum::response::Response;
use axum::routing::get;
use axum_governor::extractor::PeerIp;
use rl_core::RateLimiter;
use rl_tower::RateLimitLayer;
use tokio::net::TcpListener;
use tower::util::MapResponseLayer;
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::PeerIpKeyExtractor;

use super::LINES;
use crate::Result;
use crate::algorithms::{ENDLESS, six};

fn plain() -> Router {
    Router::new().route("/", get(async || "Hello"))
}

/// Starts a service with a layer that does nothing. It shows what every layer costs.
pub(super) async fn no_op() -> Result<SocketAddr> {
    start(plain().layer(MapResponseLayer::new(|response: Response| response))).await
}

/// Starts a service with a layer that adds three constant header lines.
pub(super) async fn lines() -> Result<SocketAddr> {
    start(plain().layer(MapResponseLayer::new(|mut response: Response| {
        for name in LINES {
            response.headers_mut().insert(name, HeaderValue::from_static("1000"));
        }
        response
    })))
    .await
}

/// Starts a service with our limiter, for six periods and by client address.
pub(super) async fn ours() -> Result<SocketAddr> {
    let limiter = RateLimiter::builder().policy(six(ENDLESS)?).build()?;
    start(plain().layer(RateLimitLayer::new(limiter))).await
}

/// Starts a service with tower_governor, for one period.
pub(super) async fn tower_governor() -> Result<SocketAddr> {
    let config = GovernorConfigBuilder::default()
        .period(Duration::from_secs(3_600) / ENDLESS)
        .burst_size(ENDLESS)
        .key_extractor(PeerIpKeyExtractor)
        .use_headers()
        .finish()
        .ok_or("a rate and a burst above 0")?;
    start(plain().layer(GovernorLayer::new(Arc::new(config)))).await
}

/// Starts a service with axum_governor, for one period.
pub(super) async fn axum_governor() -> Result<SocketAddr> {
    let max = NonZeroU32::new(ENDLESS).ok_or("a limit above 0")?;
    let config = axum_governor::GovernorConfigBuilder::default()
        .with_extractor(PeerIp::default())
        .expect_connect_info()
        .quota_default(axum_governor::Quota::requests_per_hour(max))
        .finish()
        .map_err(|error| error.to_string())?;
    start(plain().layer(axum_governor::GovernorLayer::new(config))).await
}

async fn start(router: Router) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    // The server stops when the runtime is dropped.
    tokio::spawn(async move { axum::serve(listener, service).await });
    Ok(address)
}
