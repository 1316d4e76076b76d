//! A console for people: pages under `/console` that show and change limits.
//!
//! 1. **Login** takes a token that an [`Authorize`](crate::Authorize) of the [`Admin`](crate::Admin) accepts.
//!    The session has a random id in a cookie that neither scripts nor other sites can use. It ends after half
//!    an hour without a click, after twelve hours, and with a logout.
//! 2. **Roles** of the token decide what is shown. Reading needs `CanReadCallLimits` and `CanGetRateLimits`.
//!    Creating, changing, deleting and resetting need the [`Role`](crate::Role) of that name. Without it,
//!    the control is hidden and the request is refused with 403.
//! 3. **No edit is lost** if two people edit the same object. The second one sees the changes of the first,
//!    and their own text is still in the form.
//! 4. **Reading charges no counter.**
//! 5. **No scripts are needed**, and no other hosts. The content security policy allows neither inline
//!    scripts nor inline styles. All text from people is escaped.
//!
//! Sessions belong to one process. Behind a load balancer, send a browser to the same instance.
//!
//! # Why sessions, form tokens and their checks are written here
//!
//! SECURITY.md promises sessions with two time limits, of which only digests are kept, in a bounded number.
//! `tower-sessions` has one time limit for each session, and its stores keep the ids themselves. The `csrf`
//! layer of tower-http accepts requests without `Origin` and `Sec-Fetch-Site`, which the console refuses.
//!
//! # Example
//!
//! ```
//! use rl_admin::console::Console;
//! use rl_admin::{Admin, BearerTokens, Roles};
//! use rl_core::RateLimiter;
//! use rl_records::{RecordSource, Records};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let records = Records::connect("sqlite::memory:").await?;
//! let source = RecordSource::start(&records);
//! let limiter = RateLimiter::builder().policies(source).build()?;
//! let tokens = BearerTokens::new().with("alice", "a-long-and-random-token", Roles::all())?;
//! let admin = Admin::builder(records, limiter).authorize(tokens).build();
//!
//! let app: axum::Router = axum::Router::new()
//!     .nest("/obp/v6.0.0", admin.router())
//!     .merge(Console::builder(admin).build().router());
//! # Ok(()) }
//! ```

mod active;
mod assets;
mod builder;
mod changes;
mod consumer;
mod consumer_id;
mod consumers;
mod edit_page;
mod failure;
mod fields;
mod guard;
mod login;
mod page;
mod record_form;
mod records;
mod session;
mod site;
mod store;
mod text;
mod tiers;
mod timeline;
mod usage;
mod visitor;

pub use builder::{Console, ConsoleBuilder};
