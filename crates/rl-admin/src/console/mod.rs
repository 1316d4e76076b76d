//! A console for people: pages under `/console` to see and change limits.
//!
//! 1. **Log in** with a token that one of the [`Authorize`](crate::Authorize) of the [`Admin`] knows. A
//!    session is a random id in a cookie that no script and no other site can use, kept in this process;
//!    it ends after half an hour without a click, after twelve hours, and when one logs out.
//! 2. **Who sees and who edits** is decided by the [`Role`](crate::Role)s of the token: reading asks for
//!    `CanReadCallLimits` and `CanGetRateLimits`; creating, changing, deleting and resetting for the role
//!    of that name. What somebody may not do is not shown, and is refused with 403 all the same.
//! 3. **Nothing is lost** when two people edit: whoever saves second is shown what the first one did,
//!    with their own text still in the form.
//! 4. **Looking never charges a counter.**
//! 5. It works without scripts, without other hosts, and with a content security policy that allows
//!    neither inline scripts nor inline styles. All that people wrote is escaped.
//!
//! Sessions live in one process: behind a load balancer, send a browser to the same instance.
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
//! let limiter = RateLimiter::builder().policies(source.clone()).build()?;
//! let tokens = BearerTokens::new().with("alice", "a-long-and-random-token", Roles::all())?;
//! let admin = Admin::builder(records, source, limiter).authorize(tokens).build();
//!
//! let app: axum::Router = axum::Router::new()
//!     .nest("/obp/v6.0.0", admin.router())
//!     .merge(Console::builder(admin).build().router());
//! # Ok(()) }
//! ```

mod active;
mod assets;
mod changes;
mod consumer;
mod consumers;
mod failure;
mod fields;
mod guard;
mod login;
mod page;
mod record_form;
mod records;
mod session;
mod store;
mod text;
mod tiers;
mod timeline;
mod usage;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::get;

use crate::Admin;
use failure::Failure;
use session::Sessions;

/// The pages, and who is logged in. A cheap handle: clones share the sessions.
#[derive(Clone)]
pub struct Console {
    inner: Arc<Inner>,
}

struct Inner {
    admin: Admin,
    path: String,
    origin: Option<String>,
    is_secure: bool,
    // Whether browsers that see it under another name are refused.
    is_local: bool,
    sessions: Sessions,
}

impl Console {
    /// A console over what `admin` manages, for those whom `admin` knows.
    pub fn builder(admin: Admin) -> ConsoleBuilder {
        ConsoleBuilder {
            admin,
            path: "/console".to_owned(),
            origin: None,
            is_secure: true,
            is_local: false,
            idle: Duration::from_secs(30 * 60),
            longest: Duration::from_secs(12 * 3_600),
        }
    }

    /// The routes, with the [path](ConsoleBuilder::path) that they begin with: to be merged, not nested.
    pub fn router(&self) -> Router {
        let path = |rest: &str| format!("{}{rest}", self.inner.path);
        Router::new()
            .route(&path(""), get(consumers::list))
            .route(&path("/"), get(consumers::list))
            .route(&path("/login"), get(login::form).post(login::log_in))
            .route(&path("/logout"), axum::routing::post(login::log_out))
            .route(&path("/consumer"), get(consumer::show))
            .route(&path("/usage"), get(usage::fragment))
            .route(&path("/record/new"), get(records::new).post(records::create))
            .route(&path("/record/edit"), get(records::edit).post(records::update))
            .route(&path("/record/delete"), get(records::ask).post(records::delete))
            .route(&path("/tiers"), get(tiers::list))
            .route(&path("/tier/new"), get(tiers::new).post(tiers::create))
            .route(&path("/tier/edit"), get(tiers::edit).post(tiers::update))
            .route(&path("/tier/delete"), axum::routing::post(tiers::delete))
            .route(&path("/consumer/tier"), axum::routing::post(tiers::put))
            .route(&path("/consumer/reset"), axum::routing::post(usage::reset))
            .route(&path("/changes"), get(changes::list))
            .route(&path("/store"), get(store::show))
            .route(&path("/console.css"), get(assets::style))
            .route(&path("/console.js"), get(assets::script))
            .route(&path("/icon.svg"), get(assets::icon))
            .route(&path("/{*rest}"), axum::routing::any(async || Failure::no_page()))
            .method_not_allowed_fallback(async || Failure::no_page())
            // Of these routes alone: what the application has elsewhere is its own.
            .route_layer(from_fn_with_state(self.clone(), guard::guard))
            .with_state(self.clone())
    }

    fn admin(&self) -> &Admin {
        &self.inner.admin
    }

    fn path(&self) -> &str {
        &self.inner.path
    }
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console")
            .field("admin", &self.inner.admin)
            .field("path", &self.inner.path)
            .field("sessions", &self.inner.sessions)
            .finish_non_exhaustive()
    }
}

/// Settings of a [`Console`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ConsoleBuilder {
    admin: Admin,
    path: String,
    origin: Option<String>,
    is_secure: bool,
    is_local: bool,
    idle: Duration,
    longest: Duration,
}

impl ConsoleBuilder {
    /// The path that all pages begin with, such as `/console`, which is the default.
    ///
    /// # Panics
    ///
    /// Panics unless it is one or more parts of `a-z`, `A-Z`, `0-9`, `_`, `-` and `.`, each after a `/`.
    pub fn path(mut self, path: &str) -> Self {
        let fits = |part: &str| {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
            !part.is_empty() && part.bytes().all(allowed)
        };
        let is_path = path.strip_prefix('/').is_some_and(|rest| rest.split('/').all(fits));
        assert!(is_path, "the path of the console is {path:?}: expected a path such as /console");
        path.clone_into(&mut self.path);
        self
    }

    /// Where browsers see the console, such as `https://limits.example.com`: forms that come from
    /// elsewhere are refused. Unless this is said it is what the `Host` line says, which is right unless
    /// a proxy in front changes that.
    pub fn origin(mut self, origin: &str) -> Self {
        self.origin = Some(origin.trim_end_matches('/').to_ascii_lowercase());
        self
    }

    /// Lets the cookie travel without TLS: for a console that is looked at on the same machine, without
    /// a proxy that speaks TLS.
    pub fn without_tls(mut self) -> Self {
        self.is_secure = false;
        self
    }

    /// As [`without_tls`](Self::without_tls), for browsers that see the console at `localhost`,
    /// `127.0.0.0/8` or `[::1]`: a login under another name has come through a proxy, which would hand
    /// the cookie on without TLS, and is refused.
    pub fn on_this_machine(mut self) -> Self {
        (self.is_secure, self.is_local) = (false, true);
        self
    }

    /// After how long without a click a session ends, and after how long in any case. Defaults to half
    /// an hour and twelve hours. What a page looks up by itself is no click.
    pub fn sessions(mut self, idle: Duration, longest: Duration) -> Self {
        (self.idle, self.longest) = (idle, longest);
        self
    }

    /// Returns the console.
    #[must_use]
    pub fn build(self) -> Console {
        let Self { admin, path, origin, is_secure, is_local, idle, longest } = self;
        let sessions = Sessions::new(idle, longest);
        let inner = Inner { admin, path, origin, is_secure, is_local, sessions };
        Console { inner: Arc::new(inner) }
    }
}
