use std::time::Duration;

use http::{Request, Response, StatusCode};
use reqwest::Body;
use rl_tower::client::{BoxError, ThrottleLayer};
use rl_tower::store::Store;
use rl_tower::{BuildError, Limit, OnFailure, RateLimiter, ResponseBody};
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service, ServiceExt, service_fn};

type Client = BoxCloneSyncService<Request<Body>, Response<ResponseBody<Body>>, BoxError>;

/// Limits the calls to each host, for example to `10/second:gcra:burst=1`. Instances that share a
/// store on Redis share the limit.
fn limiter(limit: Limit, store: impl Store) -> Result<RateLimiter, BuildError> {
    let limiter = RateLimiter::builder().namespace("outgoing").limit(limit).store(store);
    limiter.on_store_failure(OnFailure::Reject).build()
}

fn paced(client: reqwest::Client, limiter: RateLimiter) -> Client {
    let send = service_fn(move |request: Request<Body>| {
        let client = client.clone();
        async move { Ok::<_, BoxError>(client.execute(request.try_into()?).await?.into()) }
    });
    let throttle = ThrottleLayer::new(limiter).wait(Duration::from_secs(30), 1_000);
    BoxCloneSyncService::new(throttle.layer(send))
}

/// Sends a request when the limit allows it. Sends it again if the partner rejects it for now.
async fn get(client: &Client, url: &str) -> Result<Response<ResponseBody<Body>>, BoxError> {
    let mut client = client.clone();
    for _ in 0..3 {
        let request = Request::get(url).body(Body::default())?;
        let response = client.ready().await?.call(request).await?;
        match response.status() {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {}
            _ => return Ok(response),
        }
    }
    Err("the partner rejected the call three times".into())
}

#[cfg(test)]
mod tests;
