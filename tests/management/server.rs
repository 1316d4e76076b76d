//! The server `rl-admin` and the services that it manages, as separate processes.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::{Client, Method};
use rl_core::key::Identified;
use rl_core::rules::{Rule, Rules};
use rl_core::{OnFailure, RateLimiter, Subject};
use rl_tests::web::{Answer, Fetch, client};
use rl_tests::{RedisCluster, RedisServer, Sentinels, free_port, on_every_server};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::{ALICE, PATIENCE, RATE_LIMITS, message, only_rule, parse, record, until};

/// A running program, which is stopped when it is dropped.
pub(super) struct Process {
    child: Child,
    // The log output of the process so far.
    log: Arc<Mutex<String>>,
}

impl Process {
    pub(super) fn start(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::<Mutex<String>>::default();
        let (lines, all) = (BufReader::new(child.stderr.take().unwrap()), log.clone());
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                let mut all = all.lock().unwrap();
                all.push_str(&line);
                all.push('\n');
            }
        });
        Self { child, log }
    }

    pub(super) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args(["-s", signal, &self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    async fn ended(&mut self) -> ExitStatus {
        let mut looks = tokio::time::interval(Duration::from_millis(10));
        loop {
            looks.tick().await;
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The management as a process.
pub(super) struct Server {
    process: Process,
    place: String,
    client: Client,
}

fn tokens() -> String {
    let roles: Vec<&str> = rl_admin::Role::ALL.map(rl_admin::Role::as_str).to_vec();
    json!([{ "name": "alice", "token": ALICE, "roles": roles }]).to_string()
}

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_admin-server"));
    // The environment of the test run must not affect the server.
    command.env_clear().stdout(Stdio::null());
    command
}

impl Server {
    pub(super) async fn start(database: &str, settings: &[(&str, &str)]) -> Self {
        let place = format!("127.0.0.1:{}", free_port());
        let mut command = program();
        command.env("DATABASE_URL", database).env("RL_ADMIN_LISTEN", &place);
        command.env("RL_ADMIN_TOKENS", tokens()).envs(settings.iter().copied());
        let process = Process::start(&mut command);
        let server = Self { process, place, client: client() };
        until(async || TcpStream::connect(&server.place).await.is_ok()).await;
        server
    }

    pub(super) fn log(&self) -> String {
        self.process.log()
    }

    pub(super) async fn call(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = self.client.request(method, format!("http://{}{path}", self.place));
        let request = request.bearer_auth(ALICE);
        match body {
            Some(body) => request.json(&body).fetch().await,
            None => request.fetch().await,
        }
    }
}

#[tokio::test]
async fn the_server_does_not_start_without_tokens_and_names_the_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens.json");
    std::fs::write(&file, "[{\"name\": \"bob\", \"token\": \"swordfish\", \"roles\": []}]")
        .unwrap();
    let (tokens, short) = (tokens(), file.to_str().unwrap());
    let good = [("DATABASE_URL", "sqlite::memory:"), ("RL_ADMIN_TOKENS", &*tokens)];
    let unknown_role = tokens.replace("CanSetCallLimits", "CanDoAnything");
    #[rustfmt::skip]
    let table: [(&[(&str, &str)], &str); 14] = [
        (&[good[1]], "DATABASE_URL: expected postgres://"),
        (&[good[0]], "RL_ADMIN_TOKENS: no actor could use this API: expected a list such as"),
        (&[good[0], ("RL_ADMIN_TOKENS", "[]")], "RL_ADMIN_TOKENS: expected at least one token"),
        (&[good[0], ("RL_ADMIN_TOKENS_FILE", short)], "the token of \"bob\": expected 20 random bytes or more"),
        (&[good[0], ("RL_ADMIN_TOKENS", &unknown_role)], "role \"CanDoAnything\": expected one of CanRead"),
        (&[good[1], ("DATABASE_URL", "oracle://root:swordfish@host/x")], "DATABASE_URL: unknown kind of database"),
        (&[good[1], ("DATABASE_URL", "postgres://rl:swordfish@127.0.0.1:1/x")], "DATABASE_URL: the database"),
        (&[good[0], good[1], ("RL_REDIS_URL", "swordfish")], "RL_REDIS_URL: "),
        (&[good[0], good[1], ("RL_LOG_SECRET", "swordfish")], "RL_LOG_SECRET: log secret is too short: expected at least 16 bytes"),
        (&[good[0], good[1], ("RL_IPV6_PREFIX", "31")], "RL_IPV6_PREFIX: \"31\": expected 32 to 128 bits"),
        (&[good[0], good[1], ("RL_REALMS", "a b")], "RL_REALMS: realm \"a b\": expected 1 to 32 characters"),
        (&[good[0], good[1], ("RL_ADMIN_WEBHOOK_SECRET", "swordfish")], "RL_ADMIN_WEBHOOK_URLS and RL_ADMIN_WEBHOOK_SECRET: expected both"),
        (&[good[0], good[1], ("RL_ADMIN_WEBHOOK_URLS", "https://a.example/swordfish"), ("RL_ADMIN_WEBHOOK_SECRET", "swordfish")], "RL_ADMIN_WEBHOOK_URLS, RL_ADMIN_WEBHOOK_SECRET: secret of webhooks: expected at least 16 bytes"),
        (&[good[0], good[1], ("RL_ADMIN_LISTEN", "256.0.0.1:80")], "RL_ADMIN_LISTEN 256.0.0.1:80: "),
    ];
    for (settings, expected) in table {
        let mut process = Process::start(program().envs(settings.iter().copied()));
        let status = tokio::time::timeout(PATIENCE, process.ended()).await.unwrap();
        assert_eq!(status.code(), Some(1), "{expected}");
        until(async || process.log().contains(expected)).await;
        assert!(!process.log().contains("swordfish"), "{}", process.log());
    }
}

#[tokio::test]
async fn the_server_finishes_what_it_has_begun_and_keeps_what_was_stored() {
    let folder = tempfile::tempdir().unwrap();
    let database = format!("sqlite://{}/limits.db", folder.path().display());
    let mut server = Server::start(&database, &[("RL_ADMIN_PREFIX", "/obp/v6.0.0")]).await;
    let path = format!("/obp/v6.0.0{RATE_LIMITS}");
    assert_eq!(server.call("POST", &path, Some(record([1; 6]))).await.status, 201);
    assert_eq!(server.call("GET", RATE_LIMITS, None).await.status, 404, "without the prefix");

    // This request is in progress at shutdown: its second half arrives after the signal.
    let body = record([2; 6]).to_string();
    let (half, rest) = body.split_at(20);
    let mut slow = TcpStream::connect(&server.place).await.unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ALICE}\r\ncontent-length: {}\r\n\
         content-type: application/json\r\nconnection: close\r\nexpect: 100-continue\r\n\r\n",
        body.len()
    );
    slow.write_all(head.as_bytes()).await.unwrap();
    // The server asks for the body. This shows that it is handling the request.
    let mut asked = [0; 25];
    slow.read_exact(&mut asked).await.unwrap();
    assert!(asked.starts_with(b"HTTP/1.1 100"), "{}", String::from_utf8_lossy(&asked));
    slow.write_all(half.as_bytes()).await.unwrap();
    server.process.signal("TERM");
    until(async || TcpStream::connect(&server.place).await.is_err()).await;
    slow.write_all(rest.as_bytes()).await.unwrap();
    let mut answer = String::new();
    slow.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 201 Created"), "{answer}");
    let status = tokio::time::timeout(PATIENCE, server.process.ended()).await.unwrap();
    assert_eq!(status.code(), Some(0));
    let changed = "rl_admin::audit: record changed actor=\"alice\" action=\"created\" subject=";
    // The last output of a process may arrive after the process has ended.
    until(async || server.process.log().contains("rl_admin: stopped")).await;
    let log = server.process.log();
    assert_eq!(log.matches(changed).count(), 2, "{log}");
    assert!(!log.contains(ALICE), "a token is in the log");
    assert!(!log.contains("abc"), "the id of a consumer is in the log: {log}");

    let server = Server::start(&database, &[]).await;
    let listed = parse(&server.call("GET", RATE_LIMITS, None).await);
    assert_eq!(listed["limits"].as_array().unwrap().len(), 2);
}

/// The server must explain a subject with the limits that the services apply: for an address those
/// of `RL_ANONYMOUS_PER_HOUR`, and for a key those of its tier.
#[tokio::test]
async fn the_server_explains_keys_and_addresses_as_the_services_decide() {
    let redis = RedisServer::start();
    let url = redis.url();
    let settings = [("RL_REDIS_URL", &*url), ("RL_ANONYMOUS_PER_HOUR", "7")];
    let server = Server::start("sqlite::memory:", &settings).await;
    let explained = async |who: &str| {
        let path = format!("/management/subjects/{who}/explain");
        parse(&server.call("GET", &path, None).await)
    };
    let address = explained("ip/192.0.2.7").await;
    assert_eq!(only_rule(&address)["limits"][0]["max"], 7, "{address}");
    assert_eq!(address["policies_of"], "this_server");
    assert!(address["note"].as_str().unwrap().starts_with("This server is not the service"));

    let key = "key/0123456789abcdef0123456789abcdef";
    let mut limits = record([-1, 3, -1, -1, -1, -1]);
    limits.as_object_mut().unwrap().retain(|field, _| field.ends_with("_limit"));
    assert_eq!(server.call("POST", "/management/tiers/gold", Some(limits)).await.status, 201);
    let path = format!("/management/subjects/{key}/tier");
    let put = server.call("PUT", &path, Some(json!({ "tier": "gold" }))).await;
    assert_eq!(put.status, 200, "{}", put.body);
    let key = explained(key).await;
    assert_eq!(only_rule(&key)["limits"][0]["max"], 3, "{key}");

    let settings = [("RL_REDIS_URL", &*url), ("RL_ANONYMOUS_PER_HOUR", "-1")];
    let server = Server::start("sqlite::memory:", &settings).await;
    let path = "/management/subjects/ip/192.0.2.7/explain";
    let free = parse(&server.call("GET", path, None).await);
    assert_eq!(
        (&free["allowed"], &only_rule(&free)["limits"]),
        (&json!(true), &json!([])),
        "{free}"
    );

    // Only the program of a service has the limits of other subjects.
    let user = "/management/subjects/user/alice";
    let explained = parse(&server.call("GET", &format!("{user}/explain"), None).await);
    let unknown = (&explained["allowed"], &only_rule(&explained)["policy"]);
    assert_eq!(unknown, (&Value::Null, &Value::Null), "{explained}");
    assert_eq!(explained["reason"], "the program of each service sets the limits of this subject");
    let usage = parse(&server.call("GET", &format!("{user}/usage"), None).await);
    assert_eq!(only_rule(&usage)["policy"], Value::Null, "{usage}");
    let reset = server.call("DELETE", &format!("{user}/usage"), None).await;
    assert_eq!(reset.status, 404, "{}", reset.body);
    assert!(message(&reset).contains("This server is not the service"), "{}", reset.body);
}

/// With the same settings, servers and services use the same name for a subject, and write the same
/// hash of it into their logs.
#[tokio::test]
async fn the_server_knows_the_prefix_the_realms_and_the_log_secret_of_the_services() {
    let redis = RedisServer::start();
    let url = redis.url();
    let settings = [
        ("RL_REDIS_URL", &*url),
        ("RL_IPV6_PREFIX", "56"),
        ("RL_REALMS", "tenant, partner"),
        ("RL_LOG_SECRET", "sixteen bytes or more"),
    ];
    let servers = [
        Server::start("sqlite::memory:", &settings).await,
        Server::start("sqlite::memory:", &settings).await,
    ];
    let usage = |who: &str| format!("/management/subjects/{who}/usage");
    let address = parse(&servers[0].call("GET", &usage("ip/2001:db8:0:1ff::1"), None).await);
    assert_eq!(address["subject"], "ip/2001:db8:0:100::/56");
    for realm in ["tenant", "partner", "resource"] {
        let answer = servers[0].call("GET", &usage(&format!("{realm}/acme")), None).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    let other = servers[0].call("GET", &usage("user-group/acme"), None).await;
    assert_eq!(other.status, 400, "{}", other.body);

    let mut digits = Vec::new();
    for server in &servers {
        assert_eq!(server.call("DELETE", &usage("ip/192.0.2.7"), None).await.status, 200);
        let subject = || {
            let log = server.process.log();
            let line = log.lines().find(|line| line.contains("counters reset"))?;
            line.split_whitespace().find(|field| field.starts_with("subject=")).map(str::to_owned)
        };
        until(async || subject().is_some()).await;
        digits.push(subject().unwrap());
    }
    assert_eq!(digits[0], digits[1]);
}

/// The server reads and resets counters behind sentinels and on a cluster, by their URLs alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_works_with_the_url_of_sentinels_and_of_a_cluster() {
    let (sentinels, cluster) = (Sentinels::start().await, RedisCluster::start().await);
    let cluster_place = format!("cluster 127.0.0.1:{}", cluster.servers[0].port());
    for (url, place) in [
        (sentinels.url(""), format!("{}, by sentinels", Sentinels::NAME)),
        (cluster.url(""), cluster_place),
    ] {
        let server = Server::start("sqlite::memory:", &[("RL_REDIS_URL", &url)]).await;
        let limited =
            super::dated([-1, 2, -1, -1, -1, -1], "2020-01-01T00:00:00Z", "2120-01-01T00:00:00Z");
        assert_eq!(server.call("PUT", super::CALL_LIMITS, Some(limited)).await.status, 200);
        let store = rl_core::RedisStore::builder(&url).connection_wait(PATIENCE);
        let store = store.response_timeout(PATIENCE).connect().await.unwrap();
        let limiter = RateLimiter::builder().limit("2/minute".parse().unwrap()).store(store);
        let limiter = limiter.deadline(PATIENCE).build().unwrap();
        assert!(limiter.check(&Subject::consumer("abc"), 1).await.is_allowed(), "{url}");

        let path = "/management/consumers/abc/call-counters";
        let made = async || {
            let counters = parse(&server.call("GET", path, None).await);
            counters["per_minute"]["calls_made"].as_i64()
        };
        until(async || made().await == Some(1)).await;
        assert_eq!(server.call("DELETE", path, None).await.status, 200, "{url}");
        assert_eq!(made().await, Some(0), "{url}");

        let health = server.call("GET", "/health/redis", None).await;
        assert_eq!(health.status, 200, "{}", health.body);
        let expected = json!({ "redis_ready": true, "url": place, "port": 0 });
        assert_eq!(parse(&health), expected);
        assert!(!server.log().contains(Sentinels::PASSWORD), "{}", server.log());
    }
}

/// Fault: the server spoke for the services. It said what calls do in an outage, and reported that
/// a consumer had used nothing that the services counted under a rule.
#[tokio::test]
async fn the_server_says_only_what_it_knows_about_the_services() {
    let mut redis = RedisServer::start();
    let url = redis.url();
    let folder = tempfile::tempdir().unwrap();
    let database = format!("sqlite://{}/limits.db", folder.path().display());
    let settings = [("RL_REDIS_URL", &*url), ("RL_RECORDS_RULE", "consumers")];
    let server = Server::start(&database, &settings).await;
    let limited =
        super::dated([-1, 2, -1, -1, -1, -1], "2020-01-01T00:00:00Z", "2120-01-01T00:00:00Z");
    assert_eq!(server.call("PUT", super::CALL_LIMITS, Some(limited)).await.status, 200);

    // A service with rules, whose failure policy differs from the default.
    let records = rl_records::Records::connect(&database).await.unwrap();
    let source = rl_records::RecordSource::builder(&records).deadline(PATIENCE).start();
    let rule = Rule::named("consumers").per(Identified).policies(source);
    let store = rl_core::RedisStore::builder(&url).connection_wait(PATIENCE);
    let store = store.response_timeout(PATIENCE).connect().await.unwrap();
    let limiter = RateLimiter::builder().rules(Rules::new().rule(rule)).store(store);
    let limiter = limiter.deadline(PATIENCE).on_store_failure(OnFailure::Reject).build().unwrap();
    let abc = Subject::consumer("abc");
    for expected in [true, true, false] {
        assert_eq!(limiter.rule("consumers").of(&abc).check().await.is_allowed(), expected);
    }
    let explained =
        async || parse(&server.call("GET", "/management/consumers/abc/explain", None).await);
    let denied = explained().await;
    assert_eq!(
        (&denied["allowed"], &denied["policies_of"]),
        (&json!(false), &json!("this_server"))
    );
    assert!(
        denied["reason"].as_str().unwrap().starts_with("consumers: minute: 2 of 2"),
        "{denied}"
    );
    let counters = "/management/consumers/abc/call-counters";
    let reset = server.call("DELETE", counters, None).await;
    assert_eq!(reset.status, 200, "other rules of the service may count the consumer");
    let reset = parse(&reset);
    assert_eq!((&reset["reset"], &reset["not_reset"]), (&json!(["consumers"]), &json!([])));
    let note = "It reads and resets only counters under consumers, and no other rules of services.";
    assert!(reset["note"].as_str().unwrap().ends_with(note), "{reset}");
    // The limiter remembers a denial for at most a second.
    until(async || limiter.rule("consumers").of(&abc).check().await.is_allowed()).await;

    redis.stop();
    let usage = server.call("GET", "/management/subjects/consumer/abc/usage", None).await;
    assert_eq!(usage.status, 503);
    assert!(message(&usage).ends_with("the counters cannot be reached"), "{}", usage.body);
    let unknown = explained().await;
    assert_eq!(unknown["allowed"], Value::Null, "{unknown}");
    let reason = "The program of each service sets how it decides now.";
    assert!(unknown["reason"].as_str().unwrap().ends_with(reason), "{unknown}");

    let form = format!("token={ALICE}");
    let place = format!("http://{}", server.place);
    let login = server.client.post(format!("{place}/console/login")).header("origin", &place);
    let login = login.body(form).fetch().await;
    let cookie = login.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    for path in ["/console/consumer?id=abc", "/console/store", "/console/last-hour"] {
        let page = server.client.get(format!("{place}{path}")).header("cookie", &cookie);
        let page = page.fetch().await;
        assert_eq!(page.status, 200, "{path}");
        let is_outage = page.body.contains("unavailable");
        assert_eq!(is_outage, !path.ends_with("last-hour"), "{path}: {}", page.body);
        assert!(!is_outage || page.body.contains(reason), "{path}: {}", page.body);
        for wrong in ["allowed without limits", "rejected with 503", "Calls beyond the limits"] {
            assert!(!page.body.contains(wrong), "{path}: {}", page.body);
        }
    }
}

/// Fault: without the name of the rule, the server answered a reset with 204 that reset nothing,
/// and reported that the consumer had used nothing and that limits were enforced.
#[tokio::test]
async fn the_server_says_that_services_may_count_under_rules() {
    let redis = RedisServer::start();
    let server = Server::start("sqlite::memory:", &[("RL_REDIS_URL", &redis.url())]).await;
    let get = async |path: &str| {
        let answer = server.call("GET", &format!("/management/{path}"), None).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        parse(&answer)
    };
    let words = "It reads and resets only counters that services keep without rules.";
    let has_note =
        |answer: &Value| answer["note"].as_str().is_some_and(|note| note.contains(words));
    for path in [
        "consumers/abc/call-counters",
        "consumers/abc/consumer/call-limits",
        "consumers/abc/active-rate-limits",
        "consumers/abc/active-rate-limits/2026-01-01-00",
        "consumers/abc/explain",
        "subjects/consumer/abc/usage",
    ] {
        let answer = get(path).await;
        assert!(has_note(&answer), "{path}: {answer}");
    }
    let consumer = get("consumers/abc").await;
    assert!(has_note(&consumer["call_counters"]), "{consumer}");
    for path in [
        "consumers/abc/call-counters",
        "consumers/abc/call-counters/minute",
        "subjects/consumer/abc/usage",
        "subjects/consumer/abc/usage/per_hour",
        "subjects/ip/192.0.2.7/usage",
    ] {
        let reset = server.call("DELETE", &format!("/management/{path}"), None).await;
        assert_eq!(reset.status, 200, "{path}: {}", reset.body);
        assert!(has_note(&parse(&reset)), "{path}: {}", reset.body);
    }
    let info = get("rate-limiting").await;
    let of_service = (&info["enabled"], &info["currently_active"], &info["is_active"]);
    assert_eq!(of_service, (&Value::Null, &Value::Null, &Value::Null), "{info}");
    assert_eq!((&info["technology"], &info["service_available"]), (&json!("REDIS"), &json!(true)));
}

/// Fault: a server without Redis reported counters of 0, which no service had counted, and answered
/// resets with 204.
#[tokio::test]
async fn a_server_without_redis_has_no_counters() {
    let server = Server::start("sqlite::memory:", &[]).await;
    let limited =
        super::dated([-1, 2, -1, -1, -1, -1], "2020-01-01T00:00:00Z", "2120-01-01T00:00:00Z");
    assert_eq!(server.call("PUT", super::CALL_LIMITS, Some(limited)).await.status, 200);
    let get = async |path: &str| parse(&server.call("GET", path, None).await);
    let counters = get("/management/consumers/abc/call-counters").await;
    let minute = &counters["per_minute"];
    assert_eq!(
        (&minute["calls_made"], &minute["status"]),
        (&Value::Null, &json!("REDIS_UNAVAILABLE"))
    );
    let limits = get(super::CALL_LIMITS).await;
    assert_eq!(
        (&limits["per_minute_call_limit"], &limits["current_state"]),
        (&json!("2"), &Value::Null)
    );
    for (method, path) in [
        ("DELETE", "/management/consumers/abc/call-counters"),
        ("DELETE", "/management/subjects/consumer/abc/usage/minute"),
        ("GET", "/management/subjects/consumer/abc/usage"),
    ] {
        let answer = server.call(method, path, None).await;
        assert_eq!(answer.status, 503, "{method} {path}: {}", answer.body);
        let words =
            "the counters cannot be reached: this server has no counters without RL_REDIS_URL";
        assert!(message(&answer).contains(words), "{}", answer.body);
    }
    let explained = get("/management/consumers/abc/explain").await;
    assert_eq!(explained["allowed"], Value::Null, "{explained}");
    let info = get("/management/rate-limiting").await;
    assert_eq!((&info["technology"], &info["service_available"]), (&Value::Null, &json!(false)));

    // A block needs no counter.
    let until = Some(json!({ "until": "2100-01-01T00:00:00Z" }));
    let blocked = server.call("PUT", "/management/consumers/abc/block", until).await;
    assert_eq!(blocked.status, 200, "{}", blocked.body);
    let explained = get("/management/consumers/abc/explain").await;
    assert_eq!(
        (&explained["allowed"], &explained["reason"]),
        (&json!(false), &json!("the subject is blocked"))
    );
    let limit = &only_rule(&explained)["limits"][0];
    assert_eq!((&limit["max"], &limit["used"]), (&json!(0), &Value::Null), "{limit}");
    assert!(!server.log().contains("counters failing"), "no outage: {}", server.log());
}

/// A service in a separate process.
struct Member {
    _process: Process,
    url: String,
    client: Client,
}

impl Member {
    fn start(database: &str, redis: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_member"));
        let mut process = Process::start(command.args([database, redis]).stdout(Stdio::piped()));
        let mut url = String::new();
        let mut output = BufReader::new(process.child.stdout.take().unwrap());
        output.read_line(&mut url).unwrap();
        assert!(url.starts_with("http://"), "{}", process.log());
        // The rest of the output is read and discarded, so that the process never blocks.
        std::thread::spawn(move || output.read_to_end(&mut Vec::new()));
        Self { _process: process, url: url.trim_end().to_owned(), client: client() }
    }

    /// Makes a request. Returns the limit per hour that applies to it, or `None` if its response
    /// shows no limit.
    async fn limit(&self) -> Option<i64> {
        let answer = self.client.get(&self.url).header("x-consumer", "abc").fetch().await;
        answer.header("x-rate-limit-limit").map(|limit| limit.parse().unwrap())
    }

    /// Sends requests until one of them has this limit. Returns the time that this took.
    async fn bound_by(&self, limit: i64) -> Duration {
        let begun = Instant::now();
        while self.limit().await != Some(limit) {
            assert!(begun.elapsed() < PATIENCE, "still {:?} and not {limit}", self.limit().await);
        }
        begun.elapsed()
    }
}

/// Two services, the management, the database and Redis each run in separate processes. A changed
/// limit must take effect in both services. While the database is down, the last known limit
/// applies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_limit_applies_in_every_process_and_while_the_database_is_down() {
    on_every_server(async |mut database| {
        let redis = RedisServer::start();
        let (url, redis) = (database.url(), redis.url());
        let admin = Server::start(&url, &[("RL_REDIS_URL", &redis)]).await;
        let members = [Member::start(&url, &redis), Member::start(&url, &redis)];
        let dated = |calls: i64| {
            let numbers = [-1, -1, calls, -1, -1, -1];
            Some(super::dated(numbers, "2020-01-01T00:00:00Z", "2120-01-01T00:00:00Z"))
        };
        let set =
            async |calls: i64| admin.call("PUT", super::CALL_LIMITS, dated(calls)).await.status;
        for member in &members {
            assert_eq!(member.limit().await, None, "there is no record yet");
        }

        let mut waits = Vec::new();
        for calls in 1_001..1_021 {
            assert_eq!(set(calls).await, 200);
            let [one, other] = &members;
            let (one, other) = tokio::join!(one.bound_by(calls), other.bound_by(calls));
            waits.extend([one, other]);
        }
        waits.sort_unstable();
        let (median, longest) = (waits[waits.len() / 2], waits[waits.len() - 1]);
        println!(
            "a change binds the next request within {median:?} (median), {longest:?} (longest)"
        );

        // The services share counters: each service also counts the requests that the other one has
        // allowed.
        let counters = "/management/consumers/abc/call-counters";
        assert_eq!(admin.call("DELETE", counters, None).await.status, 200);
        assert_eq!(set(5).await, 200);
        for member in &members {
            member.bound_by(5).await;
        }
        let counted = parse(&admin.call("GET", counters, None).await);
        assert!(counted["per_hour"]["calls_made"].as_u64() >= Some(2), "{counted}");

        database.stop();
        for _ in 0..20 {
            for member in &members {
                assert_eq!(member.limit().await, Some(5), "the last limit holds");
            }
        }
        assert_eq!(set(6).await, 503, "it is not said to be done");
        let exhausted =
            members[0].client.get(&members[0].url).header("x-consumer", "abc").fetch().await;
        assert_eq!(exhausted.status, 429, "and it denies");

        database.restart();
        until(async || set(7).await == 200).await;
        for member in &members {
            member.bound_by(7).await;
        }
    })
    .await;
}
