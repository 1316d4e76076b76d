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
//! // Serve `app.into_make_service_with_connect_info::<SocketAddr>()`. Without the address of the
//! // client, every request is rejected with 500.
//! # Ok::<(), rl_tower::BuildError>(())
//! ```
//!
//! By default clients are counted by the address of the peer, and responses have the fields
//! `x-rate-limit-limit`, `x-rate-limit-remaining` and `x-rate-limit-reset`. A denial is a 429 with
//! the message "Too many requests: 10 per second. Try again in 1 second." [`RateLimitLayer`] has
//! settings for all of this. The fields `RateLimit` and `RateLimit-Policy` of the IETF need one
//! call:
//!
//! ```
//! use rl_tower::denial::DenialBody;
//! use rl_tower::headers::{HeaderFamily, Headers};
//! use rl_tower::key::{ApiKey, ClientAddress, KeyExtractor, KeySecret};
//! use rl_tower::{Limit, RateLimitLayer, RateLimiter, Realm};
//!
//! # let limiter = RateLimiter::builder().limit(Limit::per_second(10)).build()?;
//! let secret = KeySecret::new(b"from your configuration")?;
//! let sold = secret.subject(Realm::Key, b"key-of-alice");
//! let key = ApiKey::header("x-api-key", secret)?
//!     .known(move |key| *key == sold) // a client cannot invent keys
//!     .or(ClientAddress::default());
//! let layer = RateLimitLayer::new(limiter)
//!     .key(key)
//!     .headers(Headers::new(HeaderFamily::IetfDraft11))
//!     .denial_body(DenialBody::problem());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This crate re-exports all of [`rl_core`]: limits, stores, the limiter, keys and headers. An
//! application needs no other crate.
//!
//! # tonic
//!
//! With the feature `tonic`, clients are counted by the address of the peer that tonic reports. The
//! path of a gRPC call consists of its service and its method. A denial is a response with the
//! status `RESOURCE_EXHAUSTED`.
//!
//! ```
//! use rl_tower::key::ClientAddress;
//! use rl_tower::rules::{Match, Rule, Rules};
//! use rl_tower::{Limit, RateLimitLayer, RateLimiter};
//! use tonic::service::Routes;
//! use tonic::transport::Server;
//!
//! let streams = Rule::named("streams")
//!     .matching(Match::new().path("/hello.Greeter/Count"))
//!     .per(ClientAddress::default())
//!     .limit(Limit::concurrency(1)?);
//! let calls = Rule::named("calls").per(ClientAddress::default()).limit(Limit::per_second(10));
//! let limiter = RateLimiter::builder().rules(Rules::new().rule(streams).rule(calls)).build()?;
//! let services = Routes::default(); // or `Routes::new(GreeterServer::new(greeter))`
//! let server = Server::builder().layer(RateLimitLayer::new(limiter)).add_routes(services);
//! // Run `server.serve(address)`.
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! tonic ignores the method of a request, so with the feature `tonic` the limiter does too: rules,
//! exemptions and closures see `POST`, and a rule or an exemption also sees what the client sent.
//! The limiter recognizes services inside a server of tonic, and routes of axum that end with
//! `/package.Service/…` or `/Service/{*rest}`, as tonic adds them. Where the route does not name
//! the service (`/{*rest}`, `/{service}/{method}`), and where axum reports no route, such as
//! outside a router, it recognizes the path `/package.Service/Method`. For a service without a
//! package there, write rules without a method.
//!
//! Browsers use gRPC-Web. The layer of `tonic-web` belongs *outside* the limiter, so that it
//! translates the denials.
//!
//! The example `tonic-quickstart` adds a client, which reads the denials.
//!
//! # Decisions in handlers
//!
//! A handler reads the decision of the layer with axum's `Extension`. Layers outside the limiter
//! find it in the extensions of the response if
//! [`expose_decision`](RateLimitLayer::expose_decision) is set.
//!
//! ```
//! use axum::Extension;
//! use rl_tower::Decision;
//!
//! async fn show(Extension(decision): Extension<Decision>) -> String {
//!     let remaining = decision.limits().map(|limit| limit.remaining()).min();
//!     format!("{} requests remaining", remaining.unwrap_or(u64::MAX))
//! }
//! # let _: axum::routing::MethodRouter = axum::routing::get(show);
//! ```
//!
//! A handler may call the limiter itself, for example because the cost depends on the body. It
//! returns a denial as [`Denied`], with the status, body and headers that a layer would send.
//!
//! ```
//! use axum::extract::State;
//! use rl_tower::{Denied, RateLimiter, Subject};
//!
//! async fn complete(State(limiter): State<RateLimiter>, prompt: String) -> Result<String, Denied> {
//!     let subject = Subject::user("alice");
//!     let decision = limiter.check(&subject, prompt.len() as u64).await;
//!     Denied::check(decision, &subject)?;
//!     Ok(format!("{prompt}, and so on"))
//! }
//! # let _: axum::routing::MethodRouter<RateLimiter> = axum::routing::post(complete);
//! ```
//!
//! # Tests
//!
//! A test may call the router without a connection, for example with tower's `oneshot`. Clients
//! then have no address, and every request is rejected with 500, "The service does not know the
//! address of its client". Insert an address into the extensions of the request, as a server does,
//! or add axum's layer `MockConnectInfo`:
//!
//! ```
//! use std::net::SocketAddr;
//!
//! let address: SocketAddr = "192.0.2.7:50000".parse()?;
//! let request = http::Request::get("/").extension(address).body(String::new())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The path of a request
//!
//! ```text
//!            request
//!               │
//!        ┌──────▼───────┐  denied: 429 without a call of the inner service
//!        │  rate limit  ├──────────────────────────────► response
//!        └──────┬───────┘
//!               │ allowed: the Decision is in the request's extensions
//!        ┌──────▼───────┐
//!        │    inner     │
//!        └──────┬───────┘
//!               │ headers are added
//!               ▼
//!            response
//! ```
//!
//! The [rules](adapter#rules) describe each step.
//!
//! A CORS layer belongs *outside* the limiter. Otherwise browsers report a denial, which lacks
//! `Access-Control-Allow-Origin`, as a network error. Preflights are then counted like any other
//! request, unless [`exempt_preflights`](RateLimitLayer::exempt_preflights) is set.
//!
//! While the layer waits for a remote store, it holds the inner service that was ready, as tower
//! requires. A layer that is ready for few requests only, such as tower's concurrency limit,
//! belongs *outside* too. Otherwise each request that waits for the store holds one of its permits.
//!
//! The error type is that of the inner service, because a denial is a response. The layer therefore
//! works in axum's `Router::layer` and `route_layer`, and in `ServiceBuilder`.
//!
//! # Features
//!
//! | Name | Description | Default? |
//! |---|---|---|
//! | `axum` | The peer address and the matched route that axum reports | Yes |
//! | `tonic` | The peer address that tonic reports, and rules that a method cannot avoid | No |
//! | `client` | [A limiter around a client](client), for calls to other services | No |
//! | `tracing` | Log lines through the `tracing` facade | Yes |
//! | `redis` | Counters on Redis, shared by every instance | No |
//! | `redis-tls` | Redis over TLS and mutual TLS | No |
//! | `redis-sentinel` | The primary server, found through Redis Sentinel | No |
//! | `redis-cluster` | Redis Cluster | No |
//! | `rules-file` | [Rules](rules) from YAML and TOML files, which are read again when they change | No |
//! | `serde` | Limits, periods and policies in configuration files | No |

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "client")]
pub mod client;
mod degrade;
mod denied;
mod future;
mod grpc;
mod layer;
#[cfg(feature = "axum")]
mod nested_prefix;
mod request;
mod response;
mod service;
mod usage;

pub use degrade::{Degrade, DegradeFuture, DegradeLayer};
pub use denied::Denied;
pub use future::ResponseFuture;
pub use layer::RateLimitLayer;
pub use request::{RequestExt, from_extension};
pub use response::ResponseBody;
#[doc(inline)]
pub use rl_core::*;
pub use service::RateLimit;
pub use usage::{UsageFuture, UsageService};
