//! Records as the limits of a decision server, and the management on its own address, on real
//! databases and Redis.

use std::net::SocketAddr;
use std::{fs, io};

use reqwest::Method;
use rl_core::RateLimiter;
use rl_core::time::{Clock, SystemClock};
use rl_records::{Day, Records, UsageQuery, UsageRow};
use rl_serve::Shutdown;
use rl_server::grpc::messages::Code;
use rl_server::{Server, Source};
use rl_tests::web::{Answer, Fetch, client, eventually};
use rl_tests::{DatabaseServer, PostgresServer, RedisServer};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};

use super::{SHOULD_RATE_LIMIT, call, descriptor, request};
use crate::records::Database;

const TOKEN: &str = "token-of-alice-who-may-do-all";

/// Requests of consumers over HTTP and gRPC, and all requests.
const RULES: &str = "\
proxies: [127.0.0.1]
rules:
  consumers: { per: [identified, \"trusted-header:x-consumer\"], missing: allow, limits: records }
  all: { limits: 1000/day }
domains:
  edge: { consumers: { descriptor: [consumer], limits: records } }
";

/// A running server, whose task ends with the test.
struct Running {
    http: SocketAddr,
    admin: SocketAddr,
    channel: Channel,
    limiter: RateLimiter,
    stop: Shutdown,
    task: JoinHandle<io::Result<()>>,
    _folder: TempDir,
}

impl Running {
    /// Starts a server with counters on Redis. `settings` are added to its section `server`.
    async fn start(database: &str, redis: &RedisServer, settings: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let roles = rl_admin::Role::ALL.map(rl_admin::Role::as_str);
        let tokens = json!([{ "name": "alice", "token": TOKEN, "roles": roles }]);
        fs::write(folder.path().join("tokens.json"), tokens.to_string()).unwrap();
        let text = format!(
            "store: {}\n{RULES}server:\n  deadline: 30s\n  records: {{ database: {database:?} }}\n  \
             admin: {{ listen: 127.0.0.1:0, tokens: file:tokens.json }}\n{settings}",
            redis.url()
        );
        let file = folder.path().join("limits.yaml");
        fs::write(&file, text).unwrap();
        let variable = |name: &str| name.starts_with("RL_LISTEN").then(|| "127.0.0.1:0".to_owned());
        let server = Server::start(&Source::RuleFile(file), variable).await.unwrap();
        let (http, grpc) = (server.http_addr(), server.grpc_addr());
        let (admin, limiter) = (server.admin_addr().unwrap(), server.limiter().clone());
        let stop = Shutdown::new();
        let task = tokio::spawn({
            let stop = stop.clone();
            async move { server.run(&stop).await }
        });
        let endpoint = Endpoint::from_shared(format!("http://{grpc}")).unwrap();
        let channel = endpoint.connect().await.unwrap();
        Self { http, admin, channel, limiter, stop, task, _folder: folder }
    }

    /// Stops the server, and waits for its end.
    async fn stop(self) {
        drop(self.channel);
        self.stop.start();
        self.task.await.unwrap().unwrap();
    }

    /// Asks as Envoy does, and returns whether the consumer is allowed.
    async fn envoy(&self, consumer: &str) -> bool {
        let response: rl_server::grpc::messages::RateLimitResponse =
            call(&self.channel, SHOULD_RATE_LIMIT, request([descriptor("consumer", consumer)]))
                .await
                .unwrap();
        response.overall_code() == Code::Ok
    }

    /// Asks as nginx does, and returns whether the consumer is allowed.
    async fn nginx(&self, consumer: &str) -> bool {
        let call = client().get(format!("http://{}/decide", self.http));
        let call = call.header("x-forwarded-for", "192.0.2.1").header("x-consumer", consumer);
        let call = call.header("x-forwarded-method", "GET").header("x-forwarded-uri", "/");
        is_allowed(&call.fetch().await)
    }

    /// Asks as a program does, and returns whether the consumer is allowed.
    async fn program(&self, consumer: &str) -> bool {
        let call = client().post(format!("http://{}/v1/check", self.http));
        is_allowed(&call.json(&json!({ "request": { "consumer": consumer } })).fetch().await)
    }

    async fn manage(&self, method: Method, path: &str, body: Option<Value>) -> Answer {
        let request = client().request(method, format!("http://{}/management{path}", self.admin));
        let request = request.bearer_auth(TOKEN);
        match body {
            Some(body) => request.json(&body).fetch().await,
            None => request.fetch().await,
        }
    }

    async fn get(&self, path: &str) -> Value {
        let answer = self.manage(Method::GET, path, None).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        serde_json::from_str(&answer.body).unwrap()
    }

    /// Sets the number of requests of a consumer in a day.
    async fn per_day(&self, consumer: &str, max: i64) {
        let body = json!({
            "from_date": "2020-01-01T00:00:00Z", "to_date": "2120-01-01T00:00:00Z",
            "per_day_call_limit": max,
        });
        let path = format!("/consumers/{consumer}/consumer/call-limits");
        let answer = self.manage(Method::PUT, &path, Some(body)).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert!(!answer.body.contains("warning"), "{}", answer.body);
    }

    /// Returns the units that a subject has used under a rule.
    async fn used(&self, subject: &str, rule: &str) -> Value {
        let usage = self.get(&format!("/subjects/{subject}/usage?rule={rule}")).await;
        usage["rules"][0]["limits"][0]["used"].clone()
    }
}

fn is_allowed(answer: &Answer) -> bool {
    assert!([200, 429].contains(&answer.status), "{}: {}", answer.status, answer.body);
    answer.status == 200
}

/// The record of one rule is added under this rule only: each rule of the file passes its name.
#[tokio::test]
async fn a_record_under_a_rule_of_the_file_limits_the_requests_of_this_rule_only() {
    let redis = RedisServer::start();
    let database = Database::file();
    let server = Running::start(&database.url, &redis, "").await;
    server.per_day("abc", 3).await;
    for (rule, limit) in [("consumers", "1/hour:gcra"), ("edge.consumers", "2/hour:gcra")] {
        let content = json!({
            "realm": "consumer", "subject": "abc", "rule": rule, "limits": [limit],
            "from_date": "2020-01-01T00:00:00Z", "to_date": "2120-01-01T00:00:00Z",
        });
        let answer = server.manage(Method::POST, "/limits", Some(content)).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
        assert!(!answer.body.contains("warning"), "{}", answer.body);
    }
    assert_eq!([server.nginx("abc").await, server.program("abc").await], [true, false]);
    let envoy = [server.envoy("abc").await, server.envoy("abc").await, server.envoy("abc").await];
    assert_eq!(envoy, [true, true, false]);
}

/// The calls since the last write are written at the end of the server.
#[tokio::test]
async fn calls_of_consumers_are_recorded_by_rule_and_day() {
    let redis = RedisServer::start();
    let database = Database::file();
    let server = Running::start(&database.url, &redis, "").await;
    server.per_day("abc", 1).await;
    assert_eq!([server.nginx("abc").await, server.nginx("abc").await], [true, false]);
    assert!(server.envoy("abc").await);
    server.stop().await;
    let records = Records::connect(&database.url).await.unwrap();
    let today = Day::of(SystemClock.now());
    // The day may change during the test.
    let query = UsageQuery::new(today.plus(-1), today);
    let page = records.usage().days(&query).await.unwrap();
    let row = |row: &UsageRow| {
        (row.rule.clone().unwrap(), row.counts.allowed, row.counts.denied, row.counts.units)
    };
    let rows: Vec<_> = page.rows.iter().map(row).collect();
    let expected = [("consumers".to_owned(), 1, 1, 1), ("edge.consumers".to_owned(), 1, 0, 1)];
    assert_eq!(rows, expected);
}

#[tokio::test]
async fn records_limit_consumers_of_all_gateways_and_a_change_binds_the_next_request() {
    for database in [Database::file(), Database::postgres()] {
        let redis = RedisServer::start();
        let server = Running::start(&database.url, &redis, "").await;
        server.per_day("abc", 2).await;
        for expected in [true, true, false, false] {
            assert_eq!(server.envoy("abc").await, expected);
        }
        for expected in [true, true, false] {
            assert_eq!(server.nginx("abc").await, expected);
        }
        assert!(!server.program("abc").await, "a program is counted under the rule of nginx");
        server.per_day("abc", 3).await;
        assert!(server.envoy("abc").await && server.program("abc").await);
        assert!(!server.envoy("abc").await && !server.nginx("abc").await);
        assert!(server.envoy("other").await && server.nginx("other").await, "no record, no limit");

        // A denied request was charged under no rule, and all views agree.
        assert_eq!(server.used("consumer/abc", "edge.consumers").await, 3);
        assert_eq!(server.used("consumer/abc", "consumers").await, 3);
        assert_eq!(server.used("global/-", "all").await, 8);
        let stats = server.limiter.stats();
        assert_eq!((stats.allowed(), stats.denied()), (8, 6));
        let metrics = client().get(format!("http://{}/metrics", server.http)).fetch().await.body;
        for (rule, count) in [("consumers", 3), ("edge.consumers", 3)] {
            let denials = metrics.lines().find(|line| {
                line.starts_with("rl_limit_denials_total{limit=\"day\"")
                    && line.contains(&format!("rule=\"{rule}\""))
            });
            let denials = denials.unwrap_or_else(|| panic!("{rule}: {metrics}"));
            assert!(denials.ends_with(&format!(" {count}")), "{denials}");
        }
        assert!(metrics.contains("rl_records_cached{source=\"records\"}"), "{metrics}");
        let explained = server.get("/consumers/abc/explain").await;
        assert_eq!(explained["allowed"], false, "{explained}");
    }
}

#[tokio::test]
async fn two_servers_on_one_database_and_one_redis_share_limits_and_counters() {
    let (database, redis) = (Database::postgres(), RedisServer::start());
    let servers = [
        Running::start(&database.url, &redis, "").await,
        Running::start(&database.url, &redis, "").await,
    ];
    servers[0].per_day("abc", 5).await;
    for number in 0..8 {
        // The second server learns of the record by its first look-up.
        assert_eq!(servers[number % 2].envoy("abc").await, number < 5, "{number}");
    }
    servers[0].per_day("abc", 6).await;
    eventually(async || servers[1].envoy("abc").await).await;
    assert!(!servers[0].envoy("abc").await);
    for server in &servers {
        assert_eq!(server.used("consumer/abc", "edge.consumers").await, 6);
    }
}

#[tokio::test]
async fn known_limits_apply_without_the_database_and_the_failure_policy_without_redis() {
    let (mut database, mut redis) = (PostgresServer::start(), RedisServer::start());
    let url = database.new_database();
    let server = Running::start(&url, &redis, "  on_store_failure: reject\n").await;
    server.per_day("abc", 2).await;
    assert!(server.envoy("abc").await);
    database.stop();
    assert!(server.envoy("abc").await);
    assert!(!server.envoy("abc").await, "the limit of the record");
    assert!(!server.envoy("unknown").await, "the failure policy");
    database.restart();
    eventually(async || server.envoy("unknown").await).await;
    server.per_day("abc", 3).await;
    assert!(server.envoy("abc").await && !server.envoy("abc").await);

    redis.stop();
    assert!(!server.envoy("other").await, "the failure policy");
    let denied = server.limiter.stats().denied();
    assert!(!server.envoy("other").await);
    assert_eq!(server.limiter.stats().denied(), denied + 1);
    redis.restart();
    eventually(async || server.envoy("other").await).await;
}

#[tokio::test]
async fn a_server_that_starts_without_the_database_applies_records_after_the_outage() {
    let (mut database, redis) = (PostgresServer::start(), RedisServer::start());
    let url = database.new_database();
    Running::start(&url, &redis, "").await.per_day("abc", 0).await;
    database.stop();
    let server = Running::start(&url, &redis, "").await;
    assert!(server.envoy("abc").await, "the failure policy allows it");
    database.restart();
    eventually(async || !server.envoy("abc").await).await;
    assert_eq!(server.get("/consumers/abc/explain").await["allowed"], false);
}

#[tokio::test]
async fn the_management_answers_on_its_own_address_only() {
    let (database, redis) = (Database::file(), RedisServer::start());
    let server = Running::start(&database.url, &redis, "").await;
    let at = async |address: SocketAddr, path: &str| {
        client().get(format!("http://{address}{path}")).fetch().await.status
    };
    for (path, of_management, of_clients) in [
        ("/console/login", 200, 404),
        ("/management/rate-limiting", 401, 404),
        ("/metrics", 401, 200),
    ] {
        let statuses = (at(server.admin, path).await, at(server.http, path).await);
        assert_eq!(statuses, (of_management, of_clients), "{path}");
    }
    let login = client().post(format!("http://{}/console/login", server.admin));
    let login = login.header("origin", format!("http://{}", server.admin));
    let answer = login.body(format!("token={TOKEN}")).fetch().await;
    assert_eq!(answer.status, 303, "{}", answer.body);

    // The page of a consumer shows what clients of gateways have used.
    server.per_day("abc", 3).await;
    assert!(server.nginx("abc").await);
    let cookie = answer.header("set-cookie").unwrap().split(';').next().unwrap();
    let page = client().get(format!("http://{}/console/consumer?id=abc", server.admin));
    let page = page.header("cookie", cookie).fetch().await;
    assert!(page.status == 200 && page.body.contains("consumers"), "{}", page.body);
    assert!(page.body.contains("edge.consumers"), "{}", page.body);
}

/// Rules of the file, rules of the database and records decide together, for every gateway.
#[tokio::test]
async fn a_rule_of_the_database_limits_gateways_beside_the_file_and_the_records() {
    let (database, redis) = (Database::postgres(), RedisServer::start());
    let servers = [
        Running::start(&database.url, &redis, "").await,
        Running::start(&database.url, &redis, "").await,
    ];
    let [here, there] = &servers;
    let definition =
        "per: \"trusted-header:x-consumer\"\nmissing: allow\nmatch: { method: GET }\nlimits: 2/day";
    let rule = json!({ "definition": definition });
    let created = here.manage(Method::POST, "/rules/reads", Some(rule)).await;
    assert_eq!(created.status, 201, "{}", created.body);
    here.per_day("abc", 3).await;
    eventually(|| async { there.limiter.rule_names().unwrap().contains(&"reads".to_owned()) })
        .await;
    // The record would allow a third request.
    assert_eq!([here.nginx("abc").await, here.nginx("abc").await], [true, true]);
    assert_eq!([here.nginx("abc").await, there.nginx("abc").await], [false, false]);
    assert!(there.envoy("abc").await, "the rule matches requests of a method");

    // The server holds no request, so it refuses rules that would wait.
    let waiting = json!({ "definition": "match: { path: /a }\nlimits: 1/day\nover: degrade" });
    let refused = here.manage(Method::POST, "/rules/waits", Some(waiting)).await;
    assert_eq!(refused.status, 400, "{}", refused.body);
    assert!(
        refused.body.contains("over: expected reject, because the gateway"),
        "{}",
        refused.body
    );
}

/// The start page of one server shows the denials of a server without a management.
#[tokio::test]
async fn a_server_without_a_management_publishes_its_denials() {
    let (database, redis) = (Database::postgres(), RedisServer::start());
    let managed = Running::start(&database.url, &redis, "").await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.yaml");
    let (url, store) = (&database.url, redis.url());
    let text = format!(
        "store: {store}\n{RULES}server: {{ deadline: 30s, records: {{ database: {url:?} }} }}\n"
    );
    fs::write(&file, text).unwrap();
    let variable = |name: &str| name.starts_with("RL_LISTEN").then(|| "127.0.0.1:0".to_owned());
    let server = Server::start(&Source::RuleFile(file), variable).await.unwrap();
    let http = server.http_addr();
    tokio::spawn(async move { server.run(&Shutdown::new()).await });
    managed.per_day("abc", 1).await;
    let request = json!({ "request": { "consumer": "abc" } });
    let check = client().post(format!("http://{http}/v1/check"));
    eventually(|| async { !is_allowed(&check.try_clone().unwrap().json(&request).fetch().await) })
        .await;
    let login = client().post(format!("http://{}/console/login", managed.admin));
    let login = login.header("origin", format!("http://{}", managed.admin));
    let answer = login.body(format!("token={TOKEN}")).fetch().await;
    let cookie = answer.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    eventually(|| async {
        let page = client().get(format!("http://{}/console", managed.admin));
        page.header("cookie", &cookie).fetch().await.body.contains(">abc</a>")
    })
    .await;
}
