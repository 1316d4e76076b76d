//! Rate limits as a middleware for actix-web.
//!
//! ```no_run
//! use actix_web::{App, HttpServer, web};
//! use rl_actix::{Limit, RateLimit, RateLimiter};
//!
//! #[actix_web::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // Outside the closure, which runs for each worker, so that all workers share the counters.
//!     let limiter = RateLimiter::builder()
//!         .limit(Limit::per_second(10))
//!         .limit(Limit::per_minute(100))
//!         .build()?;
//!     HttpServer::new(move || {
//!         App::new()
//!             .wrap(RateLimit::new(limiter.clone()))
//!             .route("/", web::get().to(async || "hello"))
//!     })
//!     .bind(("127.0.0.1", 8080))?
//!     .run()
//!     .await?;
//!     Ok(())
//! }
//! ```
//!
//! By default clients are counted by the address of the peer, and responses have the fields
//! `x-rate-limit-limit`, `x-rate-limit-remaining` and `x-rate-limit-reset`. A denial is a 429 with
//! the message "Too many requests: 10 per second. Try again in 1 second." [`RateLimit`] has
//! settings for all of this. The fields `RateLimit` and `RateLimit-Policy` of the IETF need one
//! call:
//!
//! ```
//! use rl_actix::denial::DenialBody;
//! use rl_actix::headers::{HeaderFamily, Headers};
//! use rl_actix::key::{ApiKey, ClientAddress, KeyExtractor, KeySecret};
//! use rl_actix::{Limit, RateLimit, RateLimiter, Realm};
//!
//! # let limiter = RateLimiter::builder().limit(Limit::per_second(10)).build()?;
//! let secret = KeySecret::new(b"from your configuration")?;
//! let sold = secret.subject(Realm::Key, b"key-of-alice");
//! let key = ApiKey::header("x-api-key", secret)?
//!     .known(move |key| *key == sold) // a client cannot invent keys
//!     .or(ClientAddress::default());
//! let limit = RateLimit::new(limiter)
//!     .key(key)
//!     .headers(Headers::new(HeaderFamily::IetfDraft11))
//!     .denial_body(DenialBody::problem());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This crate re-exports all of [`rl_core`]: limits, stores, the limiter, keys and headers. An
//! application needs no other crate.
//!
//! # Decisions in handlers
//!
//! A handler may call the limiter itself, for example because the cost depends on the body. It
//! returns a denial as [`Denied`], with the status, body and headers that a middleware would send.
//!
//! ```
//! use actix_web::web;
//! use rl_actix::{Denied, RateLimiter, Subject};
//!
//! async fn complete(limiter: web::Data<RateLimiter>, prompt: String) -> Result<String, Denied> {
//!     let subject = Subject::user("alice");
//!     let decision = limiter.check(&subject, prompt.len() as u64).await;
//!     Denied::check(decision, &subject)?;
//!     Ok(format!("{prompt}, and so on"))
//! }
//! # let _: actix_web::Route = web::post().to(complete);
//! ```
//!
//! # Tests
//!
//! A request of `actix_web::test` has no connection, so its client has no address. It is rejected
//! with 500, "The service does not know the address of its client", unless the test sets an
//! address:
//!
//! ```
//! use std::net::SocketAddr;
//!
//! use actix_web::test::TestRequest;
//!
//! let address: SocketAddr = "192.0.2.7:50000".parse()?;
//! let request = TestRequest::get().uri("/").peer_addr(address).to_request();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The path of a request
//!
//! The middleware can wrap an `App`, a `scope` or a `resource`. A denied request does not reach the
//! inner service. An allowed request contains the [`Decision`] in its extensions, where handlers
//! find it as [`web::ReqData<Decision>`](actix_web::web::ReqData). Middlewares outside the limiter
//! find it in the extensions of the response if
//! [`expose_decision`](RateLimit::expose_decision) is set. The [rules](adapter#rules) describe each
//! step.
//!
//! If an inner middleware returns an error instead of a response, actix-web creates the response
//! outside all middlewares. This response has no rate limit headers.
//!
//! A request is settled when the body of its response has ended. actix-web detects that a client
//! has disconnected only when it writes to the connection.
//!
//! In actix-web, the middleware that was wrapped last runs first. Authentication belongs in a
//! `.wrap` *after* a limiter that counts by consumer, and CORS after all others. If CORS is inside
//! the limiter, browsers report a denial as a network error. Preflights are then counted like any
//! other request, unless [`exempt_preflights`](RateLimit::exempt_preflights) is set.
//!
//! # Features
//!
//! | Name | Description | Default? |
//! |---|---|---|
//! | `tracing` | Log lines through the `tracing` facade | Yes |
//! | `redis` | Counters on Redis, shared by every instance | No |
//! | `redis-tls` | Redis over TLS and mutual TLS | No |
//! | `redis-sentinel` | The primary server, found through Redis Sentinel | No |
//! | `redis-cluster` | Redis Cluster | No |
//! | `rules-file` | [Rules](rules) from YAML and TOML files, which are read again when they change | No |
//! | `serde` | Limits, periods and policies in configuration files | No |

#![cfg_attr(docsrs, feature(doc_cfg))]

mod degrade;
mod denied;
mod future;
mod middleware;
mod request;
mod response;

pub use degrade::{Degrade, DegradeMiddleware};
pub use denied::Denied;
pub use future::ResponseFuture;
pub use middleware::{RateLimit, RateLimitMiddleware};
pub use request::{RequestExt, from_extension};
pub use response::ResponseBody;
#[doc(inline)]
pub use rl_core::*;
