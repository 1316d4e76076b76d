//! The decision server on each of its stores, with two instances, and without the store.

use reqwest::{Client, StatusCode};
use rl_tests::{RedisCluster, RedisServer, Sentinels};
use serde_json::{Value, json};

use super::programs::{DecisionServer, decision_server};

/// Rules that deny, that are undisclosed, and that are in shadow.
fn limits(on_store_failure: &str) -> String {
    format!(
        "\
proxies: [127.0.0.1]
server: {{ deadline: 10s, on_store_failure: {on_store_failure} }}
rules:
  clients: {{ per: address, limits: [3/hour, 1000/day] }}
  trial: {{ per: address, limits: 1/hour, shadow: true }}
  fleet: {{ match: {{ path: /login }}, limits: 2/hour }}
domains:
  edge:
    users: {{ descriptor: [user], limits: 2/hour }}
    fleet: {{ descriptor: [fleet], limits: 3/hour, disclosed: false }}
    trial: {{ descriptor: [trial], limits: 1/hour, shadow: true }}
"
    )
}

/// Asks about a request of this client. Returns the status, the limit and what is left of it.
async fn decide(server: &DecisionServer, address: &str, path: &str) -> String {
    let request = Client::new().get(format!("{}/decide", server.url()));
    let request = request.header("x-forwarded-for", address).header("x-forwarded-method", "GET");
    let response = request.header("x-forwarded-uri", path).send().await.unwrap();
    let shown = |name: &str| {
        let value = response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        value.unwrap_or_else(|| "-".to_owned())
    };
    let (limit, remaining) = (shown("x-rate-limit-limit"), shown("x-rate-limit-remaining"));
    format!("{} {limit} {remaining}", response.status().as_u16())
}

/// Asks about a request with these descriptors. Returns the status, and the code of each
/// descriptor with what is left of it.
async fn ask(server: &DecisionServer, descriptors: &[(&str, &str)]) -> String {
    let descriptors = descriptors
        .iter()
        .map(|(key, value)| json!({ "entries": [{ "key": key, "value": value }] }));
    let request = json!({ "domain": "edge", "descriptors": descriptors.collect::<Vec<_>>() });
    let request = Client::new().post(format!("{}/json", server.url())).json(&request);
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let answer: Value = response.json().await.unwrap();
    let statuses = answer["statuses"].as_array().unwrap().iter();
    let statuses = statuses.map(|one| {
        let remaining = one["limitRemaining"].as_u64().unwrap_or(0);
        format!("{} {remaining}", one["code"].as_str().unwrap())
    });
    format!("{status}: {}", statuses.collect::<Vec<_>>().join(", "))
}

/// The counters of a server, which are lost when this is dropped.
enum Counters {
    Memory,
    Server(RedisServer),
    Sentinels(Sentinels),
    Cluster(RedisCluster),
}

impl Counters {
    fn url(&self) -> String {
        match self {
            Self::Memory => "memory".to_owned(),
            Self::Server(server) => server.url(),
            Self::Sentinels(group) => group.url(""),
            Self::Cluster(cluster) => cluster.url(""),
        }
    }
}

#[tokio::test]
async fn answers_are_the_same_on_each_store_and_those_of_the_failure_policy_without_it() {
    for counters in [
        Counters::Memory,
        Counters::Server(RedisServer::start()),
        Counters::Sentinels(Sentinels::start().await),
        Counters::Cluster(RedisCluster::start().await),
    ] {
        let url = counters.url();
        let first = decision_server(&limits("reject"), Some(&url)).await;
        let second = match counters {
            Counters::Memory => None,
            _ => Some(decision_server(&limits("allow"), Some(&url)).await),
        };
        // Both instances count together.
        let second_or_first = second.as_ref().unwrap_or(&first);

        assert_eq!(decide(&first, "192.0.2.1", "/").await, "200 3 2", "{url}");
        assert_eq!(decide(second_or_first, "192.0.2.1", "/login").await, "200 3 1", "{url}");
        assert_eq!(decide(&first, "192.0.2.1", "/").await, "200 3 0", "{url}");
        assert_eq!(decide(second_or_first, "192.0.2.1", "/").await, "429 3 0", "{url}");
        assert_eq!(decide(&first, "192.0.2.2", "/login").await, "200 3 2", "{url}");
        // The fleet's limit denies. Its numbers are not shown, and it charges no other rule.
        assert_eq!(decide(second_or_first, "192.0.2.2", "/login").await, "429 - -", "{url}");
        assert_eq!(decide(&first, "192.0.2.2", "/").await, "200 3 1", "{url}");

        let all = [("user", "alice"), ("fleet", "a"), ("trial", "b")];
        assert_eq!(ask(&first, &all).await, "200: OK 1, OK 0, OK 0", "{url}");
        assert_eq!(ask(second_or_first, &all).await, "200: OK 0, OK 0, OK 0", "{url}");
        assert_eq!(ask(&first, &all).await, "429: OVER_LIMIT 0, OK 0, OK 0", "{url}");
        let bob = [("user", "bob"), ("fleet", "a")];
        assert_eq!(ask(second_or_first, &bob).await, "200: OK 1, OK 0", "{url}");
        assert_eq!(ask(&first, &bob).await, "429: OK 1, OVER_LIMIT 0", "{url}");

        let Some(second) = second else { continue };
        drop(counters);
        assert_eq!(decide(&first, "192.0.2.9", "/").await, "503 - -", "{url}");
        assert_eq!(decide(&second, "192.0.2.9", "/").await, "200 - -", "{url}");
        let carol = [("user", "carol")];
        assert_eq!(ask(&first, &carol).await, "503: OVER_LIMIT 0", "{url}");
        assert_eq!(ask(&second, &carol).await, "200: OK 0", "{url}");
        let ready = Client::new().get(format!("{}/healthz", first.url())).send().await.unwrap();
        assert_eq!(ready.status(), StatusCode::OK, "{url}");
    }
}
