use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{any, get, post};
use rl_records::{ResourceLimitContent, RuleContent, TierContent};

use super::failure::Failure;
use super::session::Sessions;
use super::site::Site;
use super::{
    assets, block, blocks, changes, consumer, consumers, daily, explain, guard, last_hour, login,
    months, named_form, now, raise, records, resources, rule_form, rules, sign_in, store,
    subscriptions, templates, tiers, usage,
};
use crate::admin::Admin;
use crate::oidc::{Oidc, Provider};

/// The console: its pages and its sessions.
///
/// Clones are cheap, and share the sessions.
#[derive(Clone)]
pub struct Console {
    site: Arc<Site>,
}

impl Console {
    /// Returns a builder for a console that manages the objects of `admin`, for its actors.
    pub fn builder(admin: Admin) -> ConsoleBuilder {
        ConsoleBuilder {
            admin,
            path: "/console".to_owned(),
            origin: None,
            is_secure: true,
            is_local: false,
            idle: Duration::from_secs(30 * 60),
            longest: Duration::from_secs(12 * 3_600),
            oidc: None,
        }
    }

    /// Returns the routes, which begin with the [path](ConsoleBuilder::path). Add them with
    /// `merge`, not with `nest`.
    pub fn router(&self) -> Router {
        let path = |rest: &str| format!("{}{rest}", self.site.path());
        Router::new()
            .route(&path(""), get(now::show))
            .route(&path("/"), get(now::show))
            .route(&path("/now"), get(now::fragment))
            .route(&path("/subject"), get(usage::show))
            .route(&path("/explain"), get(explain::show))
            .route(&path("/reset"), post(usage::reset))
            .route(&path("/raise"), get(raise::form).post(raise::raise))
            .route(&path("/block"), get(block::form).post(block::block))
            .route(&path("/unblock"), post(block::unblock))
            .route(&path("/consumers"), get(consumers::list))
            .route(&path("/rules"), get(rules::list))
            .route(&path("/rule/templates"), get(templates::list))
            .merge(named_form::routes::<RuleContent>(&path))
            .route(&path("/rule/shadow"), post(rule_form::set_shadow))
            .route(&path("/resources"), get(resources::list))
            .merge(named_form::routes::<ResourceLimitContent>(&path))
            .route(&path("/blocks"), get(blocks::list))
            .route(&path("/login"), get(login::form).post(login::log_in))
            .route(&path("/login/oidc"), get(sign_in::begin))
            .route(&path("/login/oidc/return"), get(sign_in::finish))
            .route(&path("/logout"), post(login::log_out))
            .route(&path("/consumer"), get(consumer::show))
            .route(&path("/consumer/export"), get(daily::export))
            .route(&path("/months"), get(months::list))
            .route(&path("/months/export"), get(months::export))
            .route(&path("/usage"), get(usage::fragment))
            .route(&path("/record/new"), get(records::new).post(records::create))
            .route(&path("/record/edit"), get(records::edit).post(records::update))
            .route(&path("/record/delete"), get(records::confirm_delete).post(records::delete))
            .route(&path("/tiers"), get(tiers::list))
            .merge(named_form::routes::<TierContent>(&path))
            .route(&path("/subscriptions"), get(subscriptions::list))
            .route(&path("/subscription/new"), get(subscriptions::new).post(subscriptions::create))
            .route(&path("/subscription/status"), post(subscriptions::set_status))
            .route(&path("/consumer/tier"), post(tiers::set_member))
            .route(&path("/changes"), get(changes::list))
            .route(&path("/store"), get(store::show))
            .route(&path("/last-hour"), get(last_hour::show))
            .route(&path("/console.css"), get(assets::style))
            .route(&path("/console.js"), get(assets::script))
            .route(&path("/icon.svg"), get(assets::icon))
            .route(&path("/{*rest}"), any(async || Failure::no_page()))
            .method_not_allowed_fallback(async || Failure::no_page())
            // `layer` would apply the guard to the fallback too. After a merge with the routes of
            // an application, that fallback serves every unknown path of the application.
            .route_layer(from_fn_with_state(self.site.clone(), guard::guard))
            .with_state(self.site.clone())
    }
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console")
            .field("path", &self.site.path)
            .field("sessions", &self.site.sessions)
            .finish_non_exhaustive()
    }
}

/// The settings of a [`Console`].
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
    oidc: Option<Oidc>,
}

impl ConsoleBuilder {
    /// Sets the path with which all pages begin. Defaults to `/console`.
    ///
    /// # Panics
    ///
    /// Panics unless the path consists of one or more segments, each after a `/`. A segment
    /// contains only `a-z`, `A-Z`, `0-9`, `_`, `-` and `.`.
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

    /// Sets the origin under which browsers see the console, such as `https://limits.example.com`.
    /// Forms from another origin are refused. Defaults to the `Host` of the request.
    ///
    /// Set it if a proxy in front of the console changes `Host`.
    pub fn origin(mut self, origin: &str) -> Self {
        self.origin = Some(origin.trim_end_matches('/').to_ascii_lowercase());
        self
    }

    /// Allows the session cookie without TLS, for a console that is only used on the same machine.
    pub fn without_tls(mut self) -> Self {
        self.is_secure = false;
        self
    }

    /// Allows the session cookie without TLS like [`without_tls`](Self::without_tls), but only if
    /// browsers see the console at `localhost`, `127.0.0.0/8` or `[::1]`.
    ///
    /// A login under another host name is refused. It came through a proxy, which may send the
    /// cookie without TLS.
    pub fn on_this_machine(mut self) -> Self {
        self.is_secure = false;
        self.is_local = true;
        self
    }

    /// Sets the time without a click after which a session ends, and the maximum age of a session.
    /// Defaults to half an hour and twelve hours. The automatic refresh of a page does not count as
    /// a click.
    pub fn sessions(mut self, idle: Duration, longest: Duration) -> Self {
        self.idle = idle;
        self.longest = longest;
        self
    }

    /// Lets people log in with a provider of OpenID Connect, too. By default only tokens are
    /// accepted.
    ///
    /// The provider must know the address to which it returns people: the origin of the console,
    /// its path, and `/login/oidc/return`.
    pub fn oidc(mut self, oidc: Oidc) -> Self {
        self.oidc = Some(oidc);
        self
    }

    /// Builds the console.
    #[must_use]
    pub fn build(self) -> Console {
        let context = self.admin.context().clone();
        let (records, outages) = (context.records.clone(), context.outages.clone());
        let site = Site {
            context,
            path: self.path,
            origin: self.origin,
            is_secure: self.is_secure,
            is_local: self.is_local,
            sessions: Sessions::new(records, outages, self.idle, self.longest),
            provider: self.oidc.map(Provider::new),
        };
        Console { site: Arc::new(site) }
    }
}
