//! A real Prometheus scrapes a service under load, with the rules and the dashboard of `ops`.

mod fleet;
mod otlp;
mod prometheus;
mod traces;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use prometheus::Prometheus;
use rl_core::rules::RulesFile;
use rl_core::{Limit, MemoryStore, OnFailure, RateLimiter, Subject};
use rl_metrics::{CATALOGUE, ConsumerCounts, Metrics, SeriesKind};
use rl_records::{RecordSource, Records};
use rl_tests::RedisServer;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

/// The rules of the service.
const RULES: &str = "\
rules:
  keys:
    per: identified
    limits: [5/second, 100/hour]
";

fn ops() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops")
}

/// Limiters of all kinds, and the metrics of all of them.
struct Service {
    limiters: Vec<RateLimiter>,
    metrics: Metrics,
    _folder: tempfile::TempDir,
}

impl Service {
    async fn new(redis: &RedisServer) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("limits.yaml");
        std::fs::write(&file, RULES).unwrap();
        let file = RulesFile::builder(file);
        let file = file.pause(Duration::from_millis(10)).watch().unwrap();
        assert_eq!((file.status().applied(), file.status().refused()), (1, 0));
        let named = |name: &str| RateLimiter::builder().namespace(name);
        let consumers = ConsumerCounts::new([("shop", Subject::consumer("consumer-1"))]);
        let source = RecordSource::start(&Records::connect("sqlite::memory:").await.unwrap());
        let limiters = vec![
            named("memory")
                .limit(Limit::per_second(20))
                .limit(Limit::per_day(5_000))
                .build()
                .unwrap(),
            named("redis")
                .limit(Limit::per_second(20))
                .store(redis.patient_store().connect().await.unwrap())
                .build()
                .unwrap(),
            named("rules").rules(&file).observer(consumers.clone()).build().unwrap(),
            named("records")
                .policies(source.clone())
                .store(MemoryStore::builder().capacity(64).build())
                .build()
                .unwrap(),
            named("places").limit(Limit::concurrency(2).unwrap()).build().unwrap(),
        ];
        let metrics = limiters.iter().fold(Metrics::new(), Metrics::limiter);
        let metrics = metrics.consumers(&consumers);
        Self { metrics: metrics.records("records", &source), limiters, _folder: folder }
    }

    /// Sends a request of each kind to each limiter.
    async fn send(&self, number: u64) {
        let consumer = Subject::consumer(&format!("consumer-{}", number % 5));
        for limiter in &self.limiters[..2] {
            limiter.check(&consumer, 1).await;
        }
        self.limiters[2].rule("keys").of(&consumer).check().await;
        self.limiters[3].check(&Subject::consumer(&format!("consumer-{number}")), 1).await;
        let permits = [(); 3].map(|()| self.limiters[4].acquire(&consumer, 1));
        for permit in permits {
            drop(permit.await);
        }
    }

    /// Serves `/metrics`, and returns the address.
    async fn serve(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let app = Router::new().route("/metrics", rl_metrics::axum::handler(&self.metrics));
        tokio::spawn(async move { axum::serve(listener, app).await });
        address
    }
}

/// Returns the expressions of the dashboard, with values in place of its variables.
fn expressions_of_dashboard() -> Vec<String> {
    fn collect(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                for (name, field) in fields {
                    match field {
                        Value::String(text) if name == "expr" => found.push(text.clone()),
                        field => collect(field, found),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
            _ => {}
        }
    }
    let text = std::fs::read_to_string(ops().join("grafana/rate-limits.json")).unwrap();
    let mut found = Vec::new();
    collect(&serde_json::from_str(&text).unwrap(), &mut found);
    let replaced = found
        .into_iter()
        .map(|expression| expression.replace("$__rate_interval", "5m").replace("$limiter", ".*"));
    replaced.collect()
}

/// Runs promtool. If it fails, returns its output as the error.
fn promtool(arguments: &[&str], input: &str) -> Result<(), String> {
    let mut child = Command::new("promtool")
        .args(arguments)
        .current_dir(ops())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool can be started: tests/run installs it");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(text.into_owned()) }
}

#[test]
fn the_rules_and_alerts_are_valid_and_pass_their_tests() {
    promtool(&["check", "rules", "prometheus/rules.yml", "prometheus/alerts.yml"], "").unwrap();
    promtool(&["test", "rules", "prometheus/tests.yml"], "").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_reads_every_series_and_the_dashboard_shows_data() {
    let redis = RedisServer::start();
    let service = Arc::new(Service::new(&redis).await);
    let prometheus = Prometheus::start(&service.serve().await, &ops().join("prometheus"));
    let load = {
        let service = Arc::clone(&service);
        async move {
            // Fifty requests at a time, so that Redis and Prometheus get the processor in between.
            let mut pace = interval(Duration::from_millis(20));
            pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
            for number in 0.. {
                service.send(number).await;
                if number % 50 == 0 {
                    pace.tick().await;
                }
            }
        }
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(load);

    // Each query is repeated until it has a result. A rate needs two scrapes, and the recording
    // rules need one more evaluation after them.
    let mut looks = interval(Duration::from_millis(100));
    let mut empty = expressions_of_dashboard();
    assert!(empty.len() >= 12, "{empty:#?}");
    for _ in 0..600 {
        looks.tick().await;
        let mut still_empty = Vec::new();
        for expression in empty {
            if prometheus.query(&expression).await == 0 {
                still_empty.push(expression);
            }
        }
        empty = still_empty;
        if empty.is_empty() {
            break;
        }
    }
    assert_eq!(empty, [""; 0], "expressions without data");

    let names: BTreeSet<String> = prometheus.names().await;
    let mut catalogue = BTreeSet::new();
    for series in CATALOGUE {
        match series.kind {
            SeriesKind::Histogram => {
                let suffixes = ["_bucket", "_count", "_sum"];
                catalogue.extend(suffixes.map(|suffix| format!("{}{suffix}", series.name)));
            }
            _ => {
                catalogue.insert(series.name.to_owned());
            }
        }
    }
    let read: BTreeSet<String> = names.into_iter().filter(|name| name.starts_with("rl_")).collect();
    assert_eq!(read, catalogue);

    tasks.shutdown().await;
    promtool(&["check", "metrics"], &service.metrics.render()).unwrap();
}

/// The alerts of an outage of the store. The other alerts are about denials, refused rules and
/// evictions.
const OUTAGE: [&str; 4] = [
    "RateLimitFailingOpen",
    "RateLimitRejectingUndecided",
    "RateLimitStoreDown",
    "RateLimitStoreSlow",
];

/// Returns the alerts of `ops/prometheus` without their waits, and with windows of two seconds. So
/// a real Prometheus reports an outage immediately. `prometheus/tests.yml` tests the original waits
/// and windows.
fn prompt_alerts() -> String {
    let rules = std::fs::read_to_string(ops().join("prometheus/alerts.yml")).unwrap();
    rules.replace("for: 1m", "for: 0s").replace("for: 5m", "for: 0s").replace("[5m]", "[2s]")
}

/// Sends requests until all `expected` alerts fire. If `expected` is empty, sends requests until no
/// alert of an outage fires. Returns the firing alerts of an outage.
async fn alerts_of_outage(
    prometheus: &Prometheus,
    service: &Service,
    expected: &[&str],
) -> Vec<&'static str> {
    let mut looks = interval(Duration::from_millis(50));
    let mut firing = Vec::new();
    for _ in 0..600 {
        looks.tick().await;
        for limiter in &service.limiters {
            limiter.check(&Subject::global(), 1).await;
        }
        let is_scraped = prometheus.query("rl_store_up").await == service.limiters.len();
        firing.clear();
        for alert in OUTAGE {
            let query = format!("ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"}}");
            if prometheus.query(&query).await > 0 {
                firing.push(alert);
            }
        }
        let is_as_expected = expected.iter().all(|alert| firing.contains(alert));
        if is_scraped && is_as_expected && firing.is_empty() == expected.is_empty() {
            break;
        }
    }
    firing
}

#[tokio::test(flavor = "multi_thread")]
async fn the_alerts_of_an_outage_fire_and_resolve_while_redis_is_killed_or_frozen() {
    let mut redis = RedisServer::start();
    let store = redis.patient_store().connect().await.unwrap();
    let limiter = |name: &str, on_failure: OnFailure| {
        let builder = RateLimiter::builder().namespace(name).limit(Limit::per_day(9));
        builder.store(store.clone()).on_store_failure(on_failure).build().unwrap()
    };
    let limiters = vec![limiter("open", OnFailure::Allow), limiter("closed", OnFailure::Reject)];
    let service = Service {
        metrics: limiters.iter().fold(Metrics::new(), Metrics::limiter),
        limiters,
        _folder: tempfile::tempdir().unwrap(),
    };
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("alerts.yml"), prompt_alerts()).unwrap();
    let prometheus = Prometheus::start(&service.serve().await, folder.path());
    let calm = async || alerts_of_outage(&prometheus, &service, &[]).await;
    let during = async |expected: &[&str]| {
        let firing = alerts_of_outage(&prometheus, &service, expected).await;
        assert!(expected.iter().all(|alert| firing.contains(alert)), "{firing:?}");
    };

    assert_eq!(calm().await, [""; 0]);
    redis.stop();
    during(&OUTAGE[..3]).await;
    redis.restart();
    assert_eq!(calm().await, [""; 0], "after the restart");
    redis.signal("STOP");
    during(&OUTAGE).await;
    redis.signal("CONT");
    assert_eq!(calm().await, [""; 0], "after the server continued");
}

/// `tests.yml` has at least two cases for each alert of `alerts.yml`. The alert fires in one of
/// them. In the last one, it has resolved or has not fired. The guide says what to do.
#[test]
fn the_tests_of_rules_cover_each_alert() {
    let read = |name: &str| std::fs::read_to_string(ops().join("prometheus").join(name)).unwrap();
    let (alerts, tests) = (read("alerts.yml"), read("tests.yml"));
    let alerts: Vec<_> = alerts
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("- alert: "))
        .map(str::to_owned)
        .collect();
    assert!(alerts.len() >= 7, "{alerts:?}");
    let guide = include_str!("../crates/rl-core/docs/OBSERVABILITY.md");
    for alert in alerts {
        assert!(guide.contains(&format!("\n| `{alert}` |")), "{alert} has no row in the guide");
        let cases: Vec<_> = tests.split(&format!("alertname: {alert}\n")).skip(1).collect();
        let is_calm = |case: &&&str| case.trim_start().starts_with("exp_alerts: []");
        let calm = cases.iter().filter(is_calm).count();
        assert!(calm < cases.len(), "{alert} fires in no test");
        let last = cases.last().unwrap();
        assert!(is_calm(&last), "{alert} resolves in no test");
    }
}
