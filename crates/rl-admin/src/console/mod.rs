//! A console for operators: pages under `/console` that show which subjects are denied now, at all
//! instances, and that show and change limits.
//!
//! 1. **Login** takes a token that an [`Authorize`](crate::Authorize) of the
//!    [`Admin`](crate::Admin) accepts. The cookie contains a random session id, which neither
//!    scripts nor other sites can use. A session ends after half an hour without a click, after
//!    twelve hours, with a logout, or when its token is removed or gets other roles or
//!    applications. People may also log in with a [provider of OpenID Connect](crate::oidc).
//! 2. **Roles** of the token determine what is shown. Reading requires `CanReadCallLimits` and
//!    `CanGetRateLimits`. Creating, changing, deleting and resetting each require the corresponding
//!    [`Role`](crate::Role). Without the role, the control is hidden, and the request is refused
//!    with 403.
//! 3. **No edit is lost** if two people edit the same object. The second person sees the changes of
//!    the first, and the form still contains the text that the second person typed.
//! 4. **Reading charges no counter.**
//! 5. **No scripts are needed**, and no other hosts. The content security policy allows neither
//!    inline scripts nor inline styles. All text from people is escaped.
//!
//! All instances on the same database share the sessions, and a restart keeps them. Each instance
//! compares its copy of a session with the database every five seconds, so a logout at one instance
//! takes effect at the others within that time. While the database is down, an instance serves the
//! sessions that it has seen. A logout then takes effect at the others when the database is back,
//! if the instance of the logout still runs.
//! Clicks are stored once in a minute, so a session may end a minute early at another instance.
//!
//! # Why sessions and form tokens are implemented here
//!
//! SECURITY.md promises sessions with two time limits, in a bounded number, of which only digests
//! are stored, and which outlast an outage. `tower-sessions` has one time limit for each session,
//! its stores contain the ids themselves, and none supports MariaDB with this version of sqlx. The
//! `csrf` layer of tower-http accepts requests without `Origin` and `Sec-Fetch-Site`, which the
//! console refuses.
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
mod block;
mod blocks;
mod builder;
mod changes;
mod chart;
mod consumer;
mod consumer_id;
mod consumers;
mod daily;
mod edit_page;
mod explain;
mod failure;
mod fields;
mod guard;
mod last_hour;
mod login;
mod months;
mod named_form;
mod now;
mod page;
mod raise;
mod record_form;
mod records;
mod resource_form;
mod resources;
mod rule_form;
mod rules;
mod scope;
mod session;
mod sign_in;
mod site;
mod store;
mod subject;
mod subscriptions;
mod templates;
mod text;
mod tier_form;
mod tiers;
mod timeline;
mod top;
mod usage;
mod visitor;

pub use builder::{Console, ConsoleBuilder};

/// An hour in microseconds.
const HOUR: u64 = 3_600_000_000;
