//! The console, driven by a browser and by hostile programs.

mod applications;
mod blocking;
mod browser;
mod day;
mod hostile;
mod last_hour;
mod many_consumers;
mod now;
mod pages;
mod rules;
mod server;
mod sessions;
mod sign_in;
mod subscriptions;
mod usage;

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use reqwest::StatusCode;
use rl_admin::console::{Console, ConsoleBuilder};
use rl_admin::{Admin, AdminBuilder, Backend, BearerTokens, FailedAttempts, Role, Roles};
use rl_core::adapter::HttpLimiter;
use rl_core::key::Header;
use rl_core::rules::RulesFile;
use rl_core::time::{Clock, SystemClock, Timestamp};
use rl_core::{RateLimiter, Realm, RedisStore};
use rl_records::{CallLimits, Record, RecordContent, RecordSource, Records, RuleFollower};
use rl_tests::web::{Answer, Fetch, GIVE_UP, Site};
use rl_tests::{RedisServer, connected};
use rl_tower::RateLimitLayer;

const HOUR: u64 = 3_600_000_000;

const OWNER: &str = "a token that only olivia knows";
const VIEWER: &str = "a token that only victor knows";
/// The token of a user with all roles, who owns one application.
const OWNER_OF_SHOP: &str = "a token that only the shop knows";

/// The roles needed to edit records.
const EDITORS: [Role; 3] =
    [Role::CanCreateRateLimits, Role::CanUpdateRateLimits, Role::CanDeleteRateLimits];

/// Returns the token of a user who may read everything, and who has this additional role.
fn token_of(role: Role) -> String {
    format!("a token of who has {role} alone")
}

/// A service that limits calls by consumer, and the console that manages it.
struct House {
    site: Site,
    records: Records,
    limiter: RateLimiter,
}

impl House {
    /// Creates a service with counters in memory, and a console without TLS.
    async fn new() -> Self {
        Self::with(None, Arc::new(SystemClock), ConsoleBuilder::without_tls).await
    }

    /// Creates a service whose console expects a proxy in front of it that terminates TLS.
    async fn behind_tls() -> Self {
        Self::with(None, Arc::new(SystemClock), |console| console).await
    }

    /// Creates a service with counters on this Redis server.
    async fn connected_to(redis: &RedisServer) -> Self {
        Self::with(Some(redis), Arc::new(SystemClock), ConsoleBuilder::without_tls).await
    }

    async fn with(
        redis: Option<&RedisServer>,
        clock: Arc<dyn Clock>,
        settings: impl FnOnce(ConsoleBuilder) -> ConsoleBuilder,
    ) -> Self {
        let records = Records::connect("sqlite::memory:").await.unwrap();
        Self::on(records, redis, clock, settings).await
    }

    /// Creates a service on a database, of which there may be several instances.
    async fn on(
        records: Records,
        redis: Option<&RedisServer>,
        clock: Arc<dyn Clock>,
        settings: impl FnOnce(ConsoleBuilder) -> ConsoleBuilder,
    ) -> Self {
        let source = RecordSource::builder(&records).deadline(GIVE_UP).start();
        let mut limiter = RateLimiter::builder().policies(source.clone()).deadline(GIVE_UP);
        let mut backend = Backend::Memory;
        if let Some(redis) = redis {
            let store = RedisStore::builder(&redis.url()).response_timeout(GIVE_UP);
            limiter = limiter.store(connected(store).await);
            backend = Backend::redis(&redis.url());
        }
        let limiter = limiter.build().unwrap();
        Self::serve(records, limiter, |admin| admin.backend(backend).clock(clock), settings)
    }

    /// Creates a service with the rules of a file, and those of its database. They apply as long as
    /// the second value lives.
    async fn with_rules(rules: &str) -> (Self, impl Sized) {
        let records = Records::connect("sqlite::memory:").await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("limits.yaml");
        std::fs::write(&path, rules).unwrap();
        let source = RecordSource::builder(&records).deadline(GIVE_UP).start();
        let file = RulesFile::builder(&path).source("records", source).watch().unwrap();
        let limiter = RateLimiter::builder().rules(&file).deadline(GIVE_UP).build().unwrap();
        let tenant = Realm::custom("tenant").unwrap();
        let of_admin = |admin: AdminBuilder| admin.rules_file(&file).realm(tenant);
        let follower = RuleFollower::start(&records, &file);
        let house = Self::serve(records, limiter, of_admin, ConsoleBuilder::without_tls);
        (house, (folder, follower))
    }

    /// Serves a service on this limiter, and its console.
    fn serve(
        records: Records,
        limiter: RateLimiter,
        of_admin: impl FnOnce(AdminBuilder) -> AdminBuilder,
        settings: impl FnOnce(ConsoleBuilder) -> ConsoleBuilder,
    ) -> Self {
        let viewer = Roles::from_iter([Role::CanReadCallLimits, Role::CanGetRateLimits]);
        let roles = Role::ALL.map(Role::as_str);
        let owner = serde_json::json!([{
            "name": "owner", "token": OWNER_OF_SHOP, "roles": roles, "applications": ["shop"],
        }]);
        let tokens = BearerTokens::from_json(&owner.to_string()).unwrap();
        let tokens = tokens.with("olivia", OWNER, Roles::all()).unwrap();
        let tokens = tokens.with("victor", VIEWER, viewer).unwrap();
        let tokens = EDITORS.into_iter().fold(tokens, |tokens, role| {
            tokens.with(role.as_str(), &token_of(role), viewer.with(role)).unwrap()
        });
        let tokens = tokens.with("guest", "a token that may do nothing", Roles::NONE).unwrap();
        let admin = Admin::builder(records.clone(), limiter.clone());
        let admin = of_admin(admin.authorize(tokens));
        // The limit of failed attempts is tested in `known_faults`. Here it is switched off, so
        // that it affects no other test.
        let admin = admin.failed_attempts(FailedAttempts::per_minute(u32::MAX)).build();
        let consumer = Header::new("x-consumer", Realm::Consumer).unwrap();
        let http = HttpLimiter::new(limiter.clone()).key(consumer);
        let app = Router::new()
            .route("/api", get(async || "hello"))
            .layer(RateLimitLayer::from(http))
            .merge(settings(Console::builder(admin)).build().router());
        Self { site: rl_tests::web::axum::serve(app), records, limiter }
    }

    /// Makes a call as a consumer, and returns its status.
    async fn call(&self, consumer: &str) -> u16 {
        self.site.get("/api").header("x-consumer", consumer).fetch().await.status
    }

    /// Creates a record with this number of calls per minute and per hour. The record begins with
    /// the previous hour, and lasts for ten hours.
    async fn record(&self, consumer: &str, per_minute: i64, per_hour: i64) -> Record {
        let now = SystemClock.now();
        let from = Timestamp::from_micros(now.as_micros() / HOUR * HOUR - HOUR);
        let limits = CallLimits::from_numbers([-1, per_minute, per_hour, -1, -1, -1]).unwrap();
        let content = RecordContent::new(consumer, from, from.plus_micros(10 * HOUR), limits);
        self.records.create(content, "olivia").await.unwrap()
    }

    /// Logs in with this token.
    async fn log_in(&self, token: &str) -> Visitor<'_> {
        let answer = self.post_form("/console/login", None, &[("token", token)]).await;
        assert_eq!(answer.status, StatusCode::SEE_OTHER.as_u16(), "{}", answer.body);
        let cookie = answer.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
        let mut visitor = Visitor { house: self, cookie, form_token: String::new() };
        let page = visitor.get("/console").await;
        visitor.form_token = field_of(&page.body, "form_token");
        visitor
    }

    async fn post_form(&self, path: &str, cookie: Option<&str>, fields: &[(&str, &str)]) -> Answer {
        let origin = self.site.url("").trim_end_matches('/').to_owned();
        let form =
            url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let kind = "application/x-www-form-urlencoded";
        let request = self.site.post(path).header("origin", origin).header("content-type", kind);
        let mut request = request.body(form);
        if let Some(cookie) = cookie {
            request = request.header("cookie", cookie);
        }
        request.fetch().await
    }
}

/// A logged-in client, like a browser that runs no scripts.
struct Visitor<'a> {
    house: &'a House,
    cookie: String,
    form_token: String,
}

impl Visitor<'_> {
    async fn get(&self, path: &str) -> Answer {
        self.house.site.get(path).header("cookie", &self.cookie).fetch().await
    }

    async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let token = [("form_token", &*self.form_token)];
        let fields: Vec<_> = token.iter().chain(fields).copied().collect();
        self.house.post_form(path, Some(&self.cookie), &fields).await
    }
}

/// Returns the value of the first field with this name on a page.
fn field_of(page: &str, name: &str) -> String {
    let is_named = |field: &&str| field.contains(&format!("name=\"{name}\""));
    if let Some(area) = page
        .split("<textarea")
        .skip(1)
        .find(|area| is_named(&area.split('>').next().unwrap_or_default()))
    {
        let text = area.split('>').nth(1).unwrap_or_default();
        return text.split('<').next().unwrap_or_default().to_owned();
    }
    let field = page.split("<input").find(is_named);
    let field = field.unwrap_or_else(|| panic!("no field {name}: {page}"));
    let value = field.split("value=\"").nth(1).unwrap_or_default();
    value.split('"').next().unwrap_or_default().to_owned()
}
