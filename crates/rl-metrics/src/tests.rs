use std::any::Any;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use rl_core::adapter::{Admission, HttpLimiter};
use rl_core::client_ip::ClientIp;
use rl_core::key::{ApiKey, ClientAddress, KeySecret, RequestInfo};
use rl_core::rules::{Match, Rule, Rules, RulesFile};
use rl_core::{Limit, RateLimiter, Subject};

use super::*;

/// A request in which the client chooses everything.
struct Invented {
    number: u32,
    method: String,
    path: String,
    key: String,
}

impl Invented {
    fn new(number: u32) -> Self {
        let method = format!("M{number}");
        let (path, key) = (format!("/route-{number}/x"), format!("key-{number}"));
        Self { number, method, path, key }
    }
}

impl RequestInfo for Invented {
    fn method(&self) -> &str {
        &self.method
    }

    fn path(&self) -> &str {
        &self.path
    }

    fn query(&self) -> Option<&str> {
        None
    }

    fn route(&self) -> Option<&str> {
        None
    }

    fn header_lines<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        // A third of the requests has no key, and some have two.
        if name == "x-api-key" && !self.number.is_multiple_of(3) {
            each(self.key.as_bytes());
            if self.number.is_multiple_of(7) {
                each(b"another");
            }
        }
    }

    fn peer(&self) -> Option<IpAddr> {
        Some(Ipv4Addr::from_bits(self.number).into())
    }

    fn extensions(&self) -> &dyn Any {
        &()
    }

    fn identified_subject(&self) -> Option<&Subject> {
        None
    }
}

/// Returns the names of all series with their labels, as the text format writes them.
fn series_of(metrics: &Metrics) -> BTreeSet<String> {
    let text = metrics.render();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect()
}

fn key() -> ApiKey {
    ApiKey::header("x-api-key", KeySecret::random()).unwrap()
}

fn send(limiter: &HttpLimiter, request: &Invented) {
    if let Admission::Counted(context) = limiter.admit(request, None) {
        drop(limiter.decide(request, &context));
    }
}

#[test]
fn a_hundred_thousand_invented_keys_routes_methods_and_headers_add_no_series() {
    let rule = |name: &str| Rule::named(name).limit(Limit::per_hour(1_000));
    let rules = Rules::new()
        .rule(rule("keys").per(key()).per(ClientAddress::new(ClientIp::peer())))
        .rule(rule("routes").matching(Match::new().path("/route-{id}/{rest}")))
        .rule(rule("fleet"));
    let with_rules = RateLimiter::builder().rules(rules).namespace("rules").build().unwrap();
    let alone = RateLimiter::builder().limit(Limit::per_hour(1)).build().unwrap();
    let metrics = Metrics::new().limiter(&with_rules).limiter(&alone);
    let limiters = [with_rules, alone].map(|limiter| HttpLimiter::new(limiter).key(key()));
    let before = series_of(&metrics);
    assert!(before.len() > 100, "{}", before.len());
    for number in 0..100_000 {
        let request = Invented::new(number);
        limiters.iter().for_each(|limiter| send(limiter, &request));
    }
    assert_eq!(series_of(&metrics), before);
    let text = metrics.render();
    for invented in ["key-", "M99", "another"] {
        assert!(!text.contains(invented), "{invented}");
    }
    // The requests have reached the limiters: a third of them had no key.
    let missing = "rl_uncounted_requests_total{limiter=\"default\",reason=\"missing_key\"} 33334";
    assert!(text.contains(missing), "{text}");
}

#[test]
fn names_are_sorted_and_follow_the_conventions() {
    assert!(CATALOGUE.is_sorted_by_key(|series| series.name));
    for Series { name, kind, labels, help } in CATALOGUE {
        assert!(name.starts_with("rl_"), "{name}");
        assert_eq!(name.ends_with("_total"), *kind == SeriesKind::Counter, "{name}");
        let is_histogram = *kind == SeriesKind::Histogram;
        let has_unit = name.ends_with("_seconds") || name.ends_with("_ratio");
        assert!(!is_histogram || has_unit, "{name}: no base unit");
        assert!(labels.is_sorted() && help.ends_with('.'), "{name}");
    }
}

#[test]
fn the_document_lists_the_catalogue() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/METRICS.md");
    let expected = catalogue_as_markdown();
    if std::env::var_os("UPDATE_METRICS").is_some() {
        std::fs::write(path, &expected).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(written, expected, "run this test with UPDATE_METRICS=1");
}

#[test]
fn limiters_with_one_name_get_different_ones_and_a_shared_store_is_reported_once() {
    let store = Arc::new(rl_core::MemoryStore::new());
    let limiter = || {
        let builder = RateLimiter::builder().limit(Limit::per_hour(1)).store(store.clone());
        builder.build().unwrap()
    };
    let metrics = Metrics::new().limiter(&limiter()).limiter(&limiter());
    let text = metrics.render();
    assert!(text.contains("rl_in_flight{limiter=\"default\"} 0"));
    assert!(text.contains("rl_in_flight{limiter=\"default-2\"} 0"));
    assert_eq!(text.matches("\nrl_memory_subjects{").count(), 1);
}

#[test]
fn a_limiter_reports_the_readings_of_its_rule_file_once() {
    let path = std::env::temp_dir().join(format!("rl-metrics-{}.yaml", std::process::id()));
    std::fs::write(&path, "rules: { fleet: { limits: 5/second } }").unwrap();
    let file = RulesFile::builder(&path).pause(Duration::from_millis(10)).watch().unwrap();
    let limiter = || RateLimiter::builder().rules(&file).build().unwrap();
    let metrics = Metrics::new().limiter(&limiter()).limiter(&limiter());
    let lines = |applied: u32, refused: u32| {
        let file = format!("file=\"{}\"", path.display());
        let is_refused = u32::from(refused > 0);
        vec![
            format!("rl_config_refused{{{file}}} {is_refused}"),
            format!("rl_config_reloads_total{{{file},result=\"applied\"}} {applied}"),
            format!("rl_config_reloads_total{{{file},result=\"refused\"}} {refused}"),
        ]
    };
    let read = || {
        let text = metrics.render();
        let lines = text.lines().filter(|line| line.starts_with("rl_config_"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(read(), lines(1, 0));
    std::fs::write(&path, "rules: { fleet: { limits: 5/secnd } }").unwrap();
    let before = file.status().refused();
    let error = file.reload().unwrap_err();
    std::fs::remove_file(&path).unwrap();
    assert!(format!("{error:?}").contains(".yaml:1:27: limit"), "{error:?}");
    assert!(read()[0].ends_with(" 1") && file.status().refused() > before, "{:?}", read());
}

#[test]
fn limiters_beyond_the_cap_are_added_up_under_one_name() {
    let limiter = |n: u32| {
        let builder = RateLimiter::builder().namespace(&format!("limiter-{n}"));
        let limiter = builder.limit(Limit::per_hour(1)).limit(Limit::per_day(n + 9)).build();
        let limiter = limiter.unwrap();
        for _ in 0..3 {
            drop(limiter.check(&Subject::global(), 1));
        }
        limiter
    };
    let of = |count: u32| (0..count).fold(Metrics::new(), |all, n| all.limiter(&limiter(n)));
    let (few, many) = (of(101), of(400));
    assert_eq!(series_of(&few), series_of(&many), "further limiters add no series");
    let text = many.render();
    for line in [
        "rl_decisions_total{limiter=\"limiter-99\",origin=\"store\",outcome=\"denied\"} 2",
        "rl_decisions_total{limiter=\"(other)\",origin=\"store\",outcome=\"denied\"} 600",
        "rl_units_total{kind=\"granted\",limiter=\"(other)\"} 300",
        "rl_store_up{limiter=\"(other)\",store=\"(other)\"} 1",
        "rl_limit_utilization_ratio_bucket{limit=\"(other)\",limiter=\"(other)\",rule=\"(other)\",le=\"0.25\"}",
        "rl_memory_subjects{store=\"(other)\"} 300",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let denials = "rl_limit_denials_total{limit=\"(other)\",limiter=\"(other)\",mode=\"enforced\"";
    assert!(text.contains(&format!("{denials},rule=\"(other)\"}} 600")), "{text}");
    assert!(!text.contains("limiter-100"));
    let sum: u64 = text
        .lines()
        .filter(|line| line.starts_with("rl_decisions_total{"))
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum();
    assert_eq!(sum, 1_200, "each decision is counted once");
}

#[tokio::test]
async fn consumers_of_several_lists_with_one_name_are_one_series() {
    let lists = [["abc", "def"], ["abc", "ghi"]]
        .map(|ids| ConsumerCounts::new(ids.map(|id| ("shop", Subject::consumer(id)))));
    for list in &lists {
        let limiter = RateLimiter::builder().limit(Limit::per_hour(9)).observer(list.clone());
        let limiter = limiter.build().unwrap();
        for id in ["abc", "def", "ghi", "unknown"] {
            limiter.check(&Subject::consumer(id), 1).await;
        }
    }
    let [one, other] = &lists;
    let text = Metrics::new().consumers(one).consumers(other).consumers(one).render();
    let series: Vec<_> =
        text.lines().filter(|line| line.starts_with("rl_consumer_decisions_total{")).collect();
    assert_eq!(
        series,
        [
            r#"rl_consumer_decisions_total{consumer="(other)",outcome="allowed"} 4"#,
            r#"rl_consumer_decisions_total{consumer="(other)",outcome="denied"} 0"#,
            r#"rl_consumer_decisions_total{consumer="shop",outcome="allowed"} 4"#,
            r#"rl_consumer_decisions_total{consumer="shop",outcome="denied"} 0"#,
        ]
    );
}

#[test]
fn no_series_occurs_twice_whatever_names_limiters_have() {
    let limiter = || RateLimiter::builder().limit(Limit::per_hour(1)).build().unwrap();
    let names = ["(other)", "default-2", "default", "default", "a\"b"];
    let metrics =
        names.iter().fold(Metrics::new(), |all, name| all.named_limiter(name, &limiter()));
    let metrics = (0..100).fold(metrics, |all, _| all.limiter(&limiter()));
    let lines = metrics.render().lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(lines, series_of(&metrics).len());
}

/// Returns a limiter that has allowed one request and denied two.
#[cfg(any(feature = "prometheus", feature = "opentelemetry", feature = "metrics"))]
fn limiter_with_two_denials() -> RateLimiter {
    let limiter = RateLimiter::builder().limit(Limit::per_hour(1)).build().unwrap();
    for _ in 0..3 {
        drop(limiter.check(&Subject::global(), 1));
    }
    limiter
}

/// Checks that the collector exports every series of the text, and the right number of denials.
#[cfg(feature = "prometheus")]
#[test]
fn the_collector_reports_each_series() {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    let metrics = Metrics::new().limiter(&limiter_with_two_denials());
    let mut registry = Registry::default();
    registry.register_collector(Box::new(metrics.clone()));
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let of_registry: BTreeSet<&str> =
        text.lines().filter_map(|line| line.split(['{', ' ']).next()).collect();
    for series in series_of(&metrics) {
        let name = series.split('{').next().unwrap_or_default();
        assert!(of_registry.contains(name), "{name}: {text}");
    }
    let denied = r#"rl_decisions_total{limiter="default",origin="store",outcome="denied"} 2"#;
    assert!(text.contains(denied), "{text}");
}

#[cfg(feature = "opentelemetry")]
#[test]
fn opentelemetry_reads_the_same_counts() {
    use ::opentelemetry::metrics::MeterProvider;
    use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData};
    use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};

    let limiter = limiter_with_two_denials();
    let exporter = InMemoryMetricExporter::default();
    let reader = PeriodicReader::builder(exporter.clone()).build();
    let provider = SdkMeterProvider::builder().with_reader(reader).build();
    super::opentelemetry::register(&Metrics::new().limiter(&limiter), &provider.meter("rl"));
    provider.force_flush().unwrap();
    let finished = exporter.get_finished_metrics().unwrap();
    let mut denied = Vec::new();
    for metric in finished.iter().flat_map(|m| m.scope_metrics()).flat_map(|s| s.metrics()) {
        if metric.name() != "rl_decisions_total" {
            continue;
        }
        if let AggregatedMetrics::F64(MetricData::Sum(sum)) = metric.data() {
            let points = sum.data_points().filter(|point| {
                let attributes: BTreeSet<_> =
                    point.attributes().map(|a| a.value.to_string()).collect();
                attributes.contains("denied") && attributes.contains("store")
            });
            denied.extend(points.map(|point| point.value()));
        }
    }
    assert_eq!(denied, [2.0]);
}

#[cfg(feature = "metrics")]
#[test]
fn the_facade_gets_the_same_counts() {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    let limiter = limiter_with_two_denials();
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    ::metrics::with_local_recorder(&recorder, || Metrics::new().limiter(&limiter).record());
    let denied = snapshotter.snapshot().into_vec().into_iter().find(|(key, ..)| {
        let labels: BTreeSet<_> = key.key().labels().map(|label| label.value()).collect();
        key.key().name() == "rl_decisions_total"
            && labels.contains("denied")
            && labels.contains("store")
    });
    assert_eq!(denied.map(|(.., value)| value), Some(DebugValue::Counter(2)));
}

/// Fault: a limit whose tiers differ had no series.
#[test]
fn each_tier_of_a_limit_has_a_series_if_the_tiers_differ() {
    let keys = Rule::named("keys")
        .per(key())
        .limits([Limit::per_minute(5), Limit::per_day(900)])
        .tier("free", [Limit::per_minute(10), Limit::per_day(900)])
        .tier("pro", [Limit::per_minute(20), Limit::per_day(900), Limit::per_second(2)]);
    let limiter = RateLimiter::builder().rules(Rules::new().rule(keys)).build().unwrap();
    let text = Metrics::new().limiter(&limiter).render();
    let lines = |series: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(series));
        let mut lines: Vec<_> =
            lines.map(|line| line.replace("limiter=\"default\",", "")).collect();
        lines.sort();
        lines
    };
    let max = |limit: &str, tier: &str, max: u64| {
        format!("{{limit=\"{limit}\",rule=\"keys\",tier=\"{tier}\"}} {max}")
    };
    let expected = [
        max("day", "", 900),
        max("minute", "", 5),
        max("minute", "free", 10),
        max("minute", "pro", 20),
        max("second", "pro", 2),
    ];
    assert_eq!(lines("rl_limit_max"), expected);
    let periods = [
        ("day", "", 86_400),
        ("minute", "", 60),
        ("minute", "free", 60),
        ("minute", "pro", 60),
        ("second", "pro", 1),
    ];
    assert_eq!(
        lines("rl_limit_period_seconds"),
        periods.map(|(limit, tier, s)| max(limit, tier, s))
    );
}

#[test]
fn five_hundred_limits_are_rendered_without_an_excess_of_text() {
    let rules = (0..100).map(|rule| {
        let path = format!("/rule-{rule}");
        let rule = Rule::named(format!("rule-{rule}")).matching(Match::new().path(&path));
        rule.limit(Limit::per_second(9))
            .limit(Limit::per_minute(99))
            .limit(Limit::per_hour(999))
            .limit(Limit::per_day(9_999))
            .limit("9/second:gcra".parse().unwrap())
    });
    let rules = rules.fold(Rules::new(), Rules::rule);
    let limiter = RateLimiter::builder().rules(rules).build().unwrap();
    let metrics = Metrics::new().limiter(&limiter);
    let series =
        metrics.samples().iter().filter(|sample| sample.series.name == "rl_limit_max").count();
    assert_eq!(series, 500);
}
