//! A service with rules, its API and its console, as a program of its own.

use std::process::{Command, Stdio};

use reqwest::Method;
use rl_tests::free_port;
use rl_tests::web::{Fetch, client};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::server::Process;
use super::{dated, parse, until};

/// Fault: beside rules, the use of a consumer that was denied was 0, no decision could be
/// explained, a reset did nothing and was answered with 204, the console said that calls are
/// rejected with 503, and the log contained an outage.
#[tokio::test]
async fn a_denied_consumer_is_shown_explained_and_reset_in_a_program_with_rules() {
    let place = format!("127.0.0.1:{}", free_port());
    let mut command = Command::new(env!("CARGO_BIN_EXE_management-with-rules"));
    let process = Process::start(command.arg(&place).env_clear().stdout(Stdio::null()));
    until(async || TcpStream::connect(&place).await.is_ok()).await;
    let (client, place) = (client(), format!("http://{place}"));
    let manage = async |method: Method, path: &str, body: Option<Value>| {
        let request = client.request(method, format!("{place}/admin/management{path}"));
        let request = request.bearer_auth("a-long-and-random-token");
        match body {
            Some(body) => request.json(&body).fetch().await,
            None => request.fetch().await,
        }
    };
    let get = async |path: &str| {
        let answer = manage(Method::GET, path, None).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        parse(&answer)
    };
    let call = async || client.get(&place).header("x-consumer", "abc123").fetch().await.status;

    // The limit is that of an hour, so that no window ends during the test.
    let limits = dated([-1, -1, 3, -1, -1, -1], "2020-01-01T00:00:00Z", "2120-01-01T00:00:00Z");
    let set = manage(Method::PUT, "/consumers/abc123/consumer/call-limits", Some(limits)).await;
    assert_eq!(set.status, 200, "{}", set.body);
    assert_eq!(parse(&set)["warning"], json!(null), "a rule enforces the record");
    for expected in [200, 200, 200, 429] {
        assert_eq!(call().await, expected);
    }
    let counters = get("/consumers/abc123/call-counters").await;
    assert_eq!((&counters["rule"], &counters["note"]), (&json!("consumers"), &json!(null)));
    let hour = &counters["per_hour"];
    assert_eq!((&hour["calls_made"], &hour["status"]), (&json!(3), &json!("ACTIVE")));
    let consumer = get("/consumers/abc123").await;
    assert_eq!(consumer["call_counters"]["per_hour"]["calls_made"], 3);
    assert_eq!(consumer["active_rate_limits"]["applied_by"], json!(["consumers"]));
    let explained = get("/consumers/abc123/explain").await;
    assert_eq!(explained["allowed"], false);
    let reason = explained["reason"].as_str().unwrap();
    assert!(reason.starts_with("consumers: hour: 3 of 3 used, allowed again in "), "{explained}");
    let usage = get("/subjects/consumer/abc123/usage").await;
    let rule = &usage["rules"][0];
    assert_eq!((&rule["rule"], &rule["limits"][0]["used"]), (&json!("consumers"), &json!(3)));

    let login = client.post(format!("{place}/console/login")).header("origin", &place);
    let login = login.body("token=a-long-and-random-token").fetch().await;
    let cookie = login.header("set-cookie").unwrap().split(';').next().unwrap();
    let page = client.get(format!("{place}/console/consumer?id=abc123")).header("cookie", cookie);
    let page = page.fetch().await;
    assert!(page.body.contains("3 of 3") && page.body.contains("used up"), "{}", page.body);
    for wrong in ["unavailable", "rejected with 503", "without limits", "enforces the own limits"] {
        assert!(!page.body.contains(wrong), "{wrong}: {}", page.body);
    }

    let reset = manage(Method::DELETE, "/consumers/abc123/call-counters", None).await;
    assert_eq!((reset.status, &*reset.body), (204, ""));
    assert_eq!(get("/consumers/abc123/call-counters").await["per_hour"]["calls_made"], 0);
    assert_eq!(call().await, 200, "the reset took effect");
    // A thread reads the log of the process.
    super::until(async || process.log().contains("counters reset")).await;
    let log = process.log();
    for wrong in ["ERROR", "WARN", "policy of subject unreadable"] {
        assert!(!log.contains(wrong), "{log}");
    }
}
