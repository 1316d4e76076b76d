//! Rate limits as a middleware for actix-web.
//!
//! ```no_run
//! use actix_web::{App, HttpServer, web};
//! use rl_actix::{Limit, RateLimit, RateLimiter};
//!
//! #[actix_web::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // Outside the closure, which runs once for each worker: all workers count together.
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
//! By default clients are counted by the address at the other end of the connection. A [`Gate`] has
//! other ways to count, and everything else that can be set:
//!
//! ```
//! use rl_actix::{Gate, Limit, RateLimit, RateLimiter};
//! use rl_core::headers::{HeaderFamily, Headers};
//! use rl_core::key::{ApiKey, KeySecret};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let limiter = RateLimiter::builder().limit(Limit::per_second(10)).build()?;
//! let secret = KeySecret::new(b"from your configuration")?;
//! let limit = RateLimit::new(
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
//! denial as [`Denied`], with the status, body and headers that the middleware would send.
//!
//! ```
//! use actix_web::web;
//! use rl_actix::{Denied, RateLimiter, Subject};
//!
//! async fn complete(limiter: web::Data<RateLimiter>, prompt: String) -> Result<String, Denied> {
//!     let caller = Subject::user("alice");
//!     let decision = limiter.check(&caller, prompt.len() as u64).await;
//!     Denied::unless_allowed(decision, &caller)?;
//!     Ok(format!("{prompt}, and so on"))
//! }
//! # let _: actix_web::Route = web::post().to(complete);
//! ```
//!
//! # What happens to a request
//!
//! The middleware works around an `App`, a `scope` and a `resource`. A request that is denied does
//! not reach what is inside. One that is allowed carries the [`Decision`] in its extensions, where
//! handlers find it as [`web::ReqData<Decision>`](actix_web::web::ReqData).
//!
//! Where a middleware further in answers with an error instead of a response, actix-web makes the
//! response of it outside of all middlewares: it has no headers of the limiter.
//!
//! A request is settled when its response has ended, its body included. Of a client that goes away in
//! the middle, actix-web learns when it writes next.
//!
//! actix-web runs the middleware that was wrapped last first: authentication belongs in a `.wrap`
//! *after* a limiter that counts by consumer, and CORS after all. Otherwise browsers report a denial as a
//! network error, and the limiter counts preflights like any other request
//! ([`Gate::exempt_preflights`] changes that).

#![cfg_attr(docsrs, feature(doc_cfg))]

mod degrade;
mod denied;
mod future;
mod headers;
mod middleware;
mod request;
mod response;

pub use degrade::{Degrade, DegradeMiddleware};
pub use denied::Denied;
pub use future::ResponseFuture;
pub use middleware::{RateLimit, RateLimitMiddleware};
pub use request::RequestExt;
pub use response::ResponseBody;
pub use rl_core::{Decision, Gate, Limit, Permit, Policy, RateLimiter, Subject};
