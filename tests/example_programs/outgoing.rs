//! The client that keeps to the limit of a host.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::routing::get;
use http::StatusCode;
use http::header::RETRY_AFTER;
use rl_tests::web;
use tokio::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_example-outgoing");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_sends_its_calls_until_the_partner_asks_for_a_long_pause() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let handler = async move || match counted.fetch_add(1, Ordering::SeqCst) {
        0..9 => (StatusCode::OK, [(RETRY_AFTER, "3600")]),
        _ => (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, "3600")]),
    };
    let site = web::axum::serve(Router::new().route("/", get(handler)));
    let output = Command::new(PROGRAM).arg(site.url("/")).env_clear().output().await.unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{printed} {:?}", String::from_utf8(output.stderr));
    let count = |text: &str| printed.matches(text).count();
    // The calls that are in flight when the pause begins are sent too.
    let denied = count("429 Too Many Requests");
    assert_eq!((count("200 OK"), denied), (9, calls.load(Ordering::SeqCst) - 9));
    assert_eq!(count("call not sent: the limit of its destination"), 21 - denied, "{printed}");
    assert!((1..21).contains(&denied), "{printed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_says_what_it_expects() {
    let output = Command::new(PROGRAM).env_clear().output().await.unwrap();
    assert!(!output.status.success());
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error, "error: no URL: expected one, such as http://127.0.0.1:3000/\n");
}
