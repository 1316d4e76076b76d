//! The management API and the service that it manages, called over HTTP.
//!
//! Every test runs in three setups. The *embedded* one has SQLite, and counters in memory. The
//! *fleet* has PostgreSQL, and counters on Redis. The third one has MariaDB, and counters in memory.
//! In all of them, time moves only when a test moves it.

mod access;
mod aggregation;
mod applications;
mod auditing;
mod bad_input;
mod blocking;
mod counters;
mod editing;
mod effects;
mod enforcement;
mod explaining;
mod limits;
mod lists;
mod preconditions;
mod program_with_rules;
mod resources;
mod rules;
mod schema;
mod server;
mod stored_rules;
mod subjects;
mod subscriptions;
mod tiers;
mod top_subjects;
mod usage;
mod webhooks;

use std::sync::Arc;
use std::time::Duration;

use ::axum::extract::Request;
use ::axum::middleware::{Next, from_fn};
use ::axum::response::Response;
use ::axum::{Router, routing::get};
use reqwest::Method;
use rl_admin::{Admin, Backend, BearerTokens, FailedAttempts, Role, Roles};
use rl_core::adapter::HttpLimiter;
use rl_core::key::{ClientAddress, Identified, KeyExtractor};
use rl_core::rules::RulesFile;
use rl_core::time::{ManualClock, Timestamp};
use rl_core::{MemoryStore, OnFailure, RateLimiter, RateLimiterBuilder, RedisStore, Subject};
use rl_records::{RecordSource, Records, RecordsOptions};
use rl_tests::RedisServer;
use rl_tests::web::{Answer, Fetch, Site, axum};
use rl_tower::RateLimitLayer;
use serde_json::{Value, json};

use crate::records::Database;

/// A timeout that is long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// 13:34 on the last day of a year.
const NOW: &str = "2025-12-31T13:34:00Z";
const NOW_SECONDS: u64 = 1_767_188_040;

const PREFIX: &str = "/obp/v6.0.0";

/// The token of a user with all roles.
const ALICE: &str = "token-of-alice-who-may-do-all";
/// The token of a user with all roles, who owns only one application.
const OWNER_OF_SHOP: &str = "token-of-who-owns-the-shop";
/// A valid token without roles.
const WITHOUT_ROLES: &str = "token-without-roles-for-tests";

/// Returns the token of a user who has only this role.
fn token_of(role: Role) -> String {
    format!("token-of-who-has-{role}")
}

/// Builds a limiter with a store on `redis`, or in memory. Returns it with its store as the
/// management shows it.
async fn with_store(
    limiter: RateLimiterBuilder,
    redis: Option<&RedisServer>,
    clock: &Arc<ManualClock>,
    wait: Duration,
) -> (RateLimiter, Backend) {
    let (limiter, backend) = match redis {
        Some(server) => {
            let store = RedisStore::builder(&server.url()).manual_clock(clock.clone());
            let store = store.connection_wait(wait).response_timeout(wait);
            (limiter.store(store.connect().await.unwrap()), Backend::redis(&server.url()))
        }
        None => {
            let store = MemoryStore::builder().clock(clock.clone()).build();
            (limiter.store(store), Backend::Memory)
        }
    };
    (limiter.build().unwrap(), backend)
}

/// A service with its management, which runs until it is dropped.
struct Bank {
    site: Site,
    clock: Arc<ManualClock>,
    records: Records,
    /// The Redis server of the fleet; `None` if the counters are in memory.
    redis: Option<RedisServer>,
    _database: Database,
    /// The folder of the file of rules, beside which the management keeps rules.
    _folder: tempfile::TempDir,
}

impl Bank {
    async fn embedded() -> Self {
        Self::open(Database::memory(), None, PATIENCE).await
    }

    async fn fleet() -> Self {
        Self::open(Database::postgres(), Some(RedisServer::start()), PATIENCE).await
    }

    async fn on_mariadb() -> Self {
        Self::open(Database::mariadb(), None, PATIENCE).await
    }

    /// Creates a service with SQLite and Redis. It waits for an unreachable Redis for at most
    /// `wait`.
    async fn impatient(wait: Duration) -> Self {
        Self::open(Database::memory(), Some(RedisServer::start()), wait).await
    }

    async fn open(database: Database, redis: Option<RedisServer>, wait: Duration) -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(NOW_SECONDS)));
        let options = RecordsOptions::new(&database.url).clock(clock.clone());
        let records = Records::connect_with(options).await.unwrap();
        let source =
            RecordSource::builder(&records).deadline(PATIENCE).count_unlimited(true).start();
        // If the store fails, requests are rejected. So an undecided request cannot be mistaken for
        // an allowed one.
        let limiter = RateLimiter::builder().policies(source.clone()).deadline(PATIENCE);
        let limiter = limiter.on_store_failure(OnFailure::Reject).clock(clock.clone());
        let (limiter, _) = with_store(limiter, redis.as_ref(), &clock, wait).await;
        let folder = tempfile::tempdir().unwrap();
        let rules = folder.path().join("limits.yaml");
        std::fs::write(&rules, "rules: { fleet: { limits: 9000/second } }").unwrap();
        let admin = Admin::builder(records.clone(), limiter.clone())
            .authorize(tokens())
            // The limit of failed attempts is switched off. The tests of that limit create their
            // own services.
            .failed_attempts(FailedAttempts::per_minute(u32::MAX))
            .rules_file(&RulesFile::watch(rules).unwrap())
            .clock(clock.clone())
            .build();
        let site = axum::serve(service(limiter).nest(PREFIX, admin.router()));
        Self { site, clock, records, redis, _database: database, _folder: folder }
    }

    /// Calls the management with this token.
    async fn as_who(&self, token: &str, method: &str, path: &str, body: Option<Value>) -> Answer {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = self.site.request(method, &format!("{PREFIX}{path}"));
        let request = if token.is_empty() { request } else { request.bearer_auth(token) };
        match body {
            Some(body) => request.json(&body).fetch().await,
            None => request.fetch().await,
        }
    }

    /// Calls the management as Alice, who has all roles.
    async fn manage(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        self.as_who(ALICE, method, path, body).await
    }

    /// Sends a `GET`, and returns the response.
    async fn get(&self, path: &str) -> Value {
        let answer = self.manage("GET", path, None).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        parse(&answer)
    }

    /// Creates a record of consumer `abc` for a year around now, and returns its id.
    async fn add(&self, numbers: [i64; 6]) -> String {
        let created = self.manage("POST", RATE_LIMITS, Some(record(numbers))).await;
        assert_eq!(created.status, 201, "{}", created.body);
        parse(&created)["rate_limiting_id"].as_str().unwrap().to_owned()
    }

    /// Deletes a record of consumer `abc`.
    async fn remove(&self, id: &str) {
        let gone = self.manage("DELETE", &format!("{RATE_LIMITS}/{id}"), None).await;
        assert_eq!((gone.status, &*gone.body), (204, ""));
    }

    /// Sends a request of consumer `abc` to the service.
    async fn call(&self) -> Answer {
        self.call_at("/banks").await
    }

    async fn call_at(&self, path: &str) -> Answer {
        self.site.get(path).header("x-consumer", "abc").fetch().await
    }

    /// Returns the number of calls that are counted in each period.
    async fn counted(&self) -> [u64; 6] {
        let counters = self.get("/management/consumers/abc/call-counters").await;
        let names = ["second", "minute", "hour", "day", "week", "month"];
        names.map(|name| counters[format!("per_{name}")]["calls_made"].as_u64().unwrap())
    }
}

const CALL_LIMITS: &str = "/management/consumers/abc/consumer/call-limits";
const RATE_LIMITS: &str = "/management/consumers/abc/consumer/rate-limits";
const ACTIVE: &str = "/management/consumers/abc/active-rate-limits";

async fn in_every_world(test: impl AsyncFn(Bank)) {
    test(Bank::embedded().await).await;
    test(Bank::fleet().await).await;
    test(Bank::on_mariadb().await).await;
}

fn tokens() -> BearerTokens {
    let roles = Role::ALL.map(Role::as_str);
    let owner = json!({
        "name": "owner", "token": OWNER_OF_SHOP, "roles": roles, "applications": ["shop"],
    });
    let tokens = BearerTokens::from_json(&json!([owner]).to_string()).unwrap();
    let tokens = tokens.with("alice", ALICE, Roles::all()).unwrap();
    let tokens = tokens.with("guest", WITHOUT_ROLES, Roles::NONE).unwrap();
    Role::ALL.into_iter().fold(tokens, |tokens, role| {
        tokens.with(role.as_str(), &token_of(role), Roles::NONE.with(role)).unwrap()
    })
}

/// Creates a service that limits consumers. An outer authentication layer has identified them.
fn service(limiter: RateLimiter) -> Router {
    let http = HttpLimiter::new(limiter).key(Identified.or(ClientAddress::default())).open_bank();
    Router::new()
        .route("/banks", get(async || "{\"banks\":[]}"))
        .route("/v1/banks", get(async || "{\"banks\":[]}"))
        .route("/v2/banks/{bank}/accounts/{account}/views", get(async || "{\"views\":[]}"))
        .layer(RateLimitLayer::from(http))
        .layer(from_fn(authenticate))
}

async fn authenticate(mut request: Request, next: Next) -> Response {
    let consumer = request.headers().get("x-consumer").and_then(|value| value.to_str().ok());
    if let Some(subject) = consumer.map(Subject::consumer) {
        request.extensions_mut().insert(subject);
    }
    next.run(request).await
}

/// Returns a record as JSON, for a year around now. The numbers are written as texts.
fn record(numbers: [i64; 6]) -> Value {
    dated(numbers, "2025-06-01T00:00:00Z", "2026-06-01T00:00:00Z")
}

fn dated(numbers: [i64; 6], from: &str, to: &str) -> Value {
    let [second, minute, hour, day, week, month] = numbers.map(|number| number.to_string());
    json!({
        "from_date": from, "to_date": to,
        "per_second_call_limit": second, "per_minute_call_limit": minute,
        "per_hour_call_limit": hour, "per_day_call_limit": day,
        "per_week_call_limit": week, "per_month_call_limit": month,
    })
}

fn parse(answer: &Answer) -> Value {
    serde_json::from_str(&answer.body).unwrap_or_else(|why| panic!("{why}: {}", answer.body))
}

fn message(answer: &Answer) -> String {
    parse(answer)["message"].as_str().unwrap().to_owned()
}

/// Returns the entry of a limiter without rules.
fn only_rule(answer: &Value) -> &Value {
    let rules = answer["rules"].as_array().unwrap();
    assert!(rules.len() == 1 && rules[0]["rule"].is_null(), "{answer}");
    &rules[0]
}

/// Returns the six numbers in a response about active limits.
fn active_numbers(active: &Value) -> [i64; 6] {
    let names = ["second", "minute", "hour", "day", "week", "month"];
    names.map(|name| active[format!("active_per_{name}_rate_limit")].as_i64().unwrap())
}

/// Returns the six limits in a response about a record or about call limits. The response contains
/// them as texts.
fn written_numbers(limits: &Value) -> [i64; 6] {
    let names = ["second", "minute", "hour", "day", "week", "month"];
    names.map(|name| limits[format!("per_{name}_call_limit")].as_str().unwrap().parse().unwrap())
}

/// Returns the number of stored records of all consumers.
async fn stored(records: &Records) -> usize {
    records.list(&rl_records::RecordQuery::default()).await.unwrap().records.len()
}

/// Waits until the condition is met.
async fn until(is_so: impl AsyncFn() -> bool) {
    let mut looks = tokio::time::interval(Duration::from_millis(10));
    let wait = async {
        while !is_so().await {
            looks.tick().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("it comes about");
}
