//! Rate limits as a [`Layer`](tower_layer::Layer), for axum, tonic and every other tower service.
//!
//! ```
//! use axum::{Router, routing::get};
//! use rl_tower::{Limit, RateLimitLayer, RateLimiter};
//!
//! let limiter = RateLimiter::builder()
//!     .limit(Limit::per_second(10))
//!     .limit(Limit::per_minute(100))
//!     .build()?;
//! let app: Router = Router::new()
//!     .route("/", get(async || "hello"))
//!     .layer(RateLimitLayer::new(limiter));
//! # Ok::<(), rl_core::limiter::BuildError>(())
//! ```
//!
//! By default clients are counted by the address at the other end of the connection, which axum
//! tells only if the service is served with
//! `app.into_make_service_with_connect_info::<SocketAddr>()`. A [`Gate`] has other ways to count,
//! and everything else that can be set:
//!
//! ```
//! use rl_core::headers::{HeaderFamily, Headers};
//! use rl_core::key::{ApiKey, KeySecret};
//! use rl_tower::{Gate, Limit, RateLimitLayer, RateLimiter};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let limiter = RateLimiter::builder().limit(Limit::per_second(10)).build()?;
//! let secret = KeySecret::new(b"from your configuration")?;
//! let layer = RateLimitLayer::new(
//!     Gate::new(limiter)
//!         .key(ApiKey::header("x-api-key", secret)?)
//!         .headers(Headers::new(HeaderFamily::Ietf)),
//! );
//! # Ok(()) }
//! ```
//!
//! # Decisions in handlers
//!
//! A handler may ask the limiter itself, for instance because the cost is in the body. It returns a
//! denial as [`Denied`], with the status, body and headers that the layer would send.
//!
//! ```
//! use axum::extract::State;
//! use rl_tower::{Denied, RateLimiter, Subject};
//!
//! async fn complete(State(limiter): State<RateLimiter>, prompt: String) -> Result<String, Denied> {
//!     let caller = Subject::user("alice");
//!     let decision = limiter.check(&caller, prompt.len() as u64).await;
//!     Denied::unless_allowed(decision, &caller)?;
//!     Ok(format!("{prompt}, and so on"))
//! }
//! # let _: axum::routing::MethodRouter<RateLimiter> = axum::routing::post(complete);
//! ```
//!
//! # Tests
//!
//! A test that calls the router without a connection, as with tower's `oneshot`, has no client address.
//! Every request is then rejected with 403, "No rate limit key was found in the request". Put an address
//! into the extensions of the request, as a server does:
//!
//! ```
//! use std::net::SocketAddr;
//!
//! let address: SocketAddr = "192.0.2.7:50000".parse()?;
//! let request = http::Request::get("/").extension(address).body(())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What happens to a request
//!
//! ```text
//!            request
//!               │
//!        ┌──────▼───────┐  denied: 429, the inner service is not called
//!        │  rate limit  ├──────────────────────────────► response
//!        └──────┬───────┘
//!               │ allowed: the Decision is in the request's extensions
//!        ┌──────▼───────┐
//!        │    inner     │
//!        └──────┬───────┘
//!               │ headers are added; the Decision is in the response's extensions
//!               ▼
//!            response
//! ```
//!
//! A CORS layer belongs *outside*. Browsers report a denial without `Access-Control-Allow-Origin` as a
//! network error, and the limiter counts preflights like any other request ([`Gate::exempt_preflights`]
//! changes that). While the layer waits for a remote store, it holds the ready inner service, as tower's
//! contract demands. A layer whose readiness is scarce, such as a concurrency limit, belongs *outside* too,
//! or everything that waits for the store holds one of its places.
//!
//! The error type is that of the inner service: a denial is a response, so the layer works in
//! axum's `Router::layer`, `route_layer` and `ServiceBuilder` alike.
//!
//! # Features
//!
//! | Name | Description | Default? |
//! |---|---|---|
//! | `axum` | The peer address and the matched route as axum knows them | Yes |
//! | `tonic` | The peer address as tonic knows it | No |

#![cfg_attr(docsrs, feature(doc_cfg))]

mod degrade;
mod denied;
mod future;
mod headers;
mod layer;
mod request;
mod response;
mod service;

pub use degrade::{Degrade, DegradeFuture, DegradeLayer};
pub use denied::Denied;
pub use future::ResponseFuture;
pub use layer::RateLimitLayer;
pub use request::RequestExt;
pub use response::ResponseBody;
pub use rl_core::{Decision, Gate, Limit, Permit, Policy, RateLimiter, Subject};
pub use service::RateLimit;
