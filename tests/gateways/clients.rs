//! The clients of `docs/clients/` in other languages, which ask the decision server.

use std::process::Command;

use super::programs::{DecisionServer, decision_server};

const LIMITS: &str = "rules: { consumers: { per: identified, limits: 2/hour } }";

/// Runs a client three times, and compares what it prints.
async fn assert_third_request_is_denied(program: &str, arguments: &[&str]) {
    let server = decision_server(LIMITS, None).await;
    for expected in ["allowed", "allowed", "denied"] {
        assert_eq!(run(program, arguments, &server), expected, "{program}");
    }
}

fn run(program: &str, arguments: &[&str], server: &DecisionServer) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/clients");
    let mut command = Command::new(program);
    command.current_dir(folder).args(arguments).arg("alice").env("RL_SERVER", server.url());
    let output = command.output().unwrap_or_else(|error| panic!("{program}: {error}"));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Returns whether a program is on the PATH. The tests need no compiler or runtime of other languages.
fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
        || Command::new(program).arg("version").output().is_ok()
}

#[tokio::test]
async fn the_client_for_the_shell_is_denied_over_the_limit() {
    assert_third_request_is_denied("sh", &["check.sh"]).await;
}

#[tokio::test]
async fn the_client_in_python_is_denied_over_the_limit() {
    assert_third_request_is_denied("python3", &["check.py"]).await;
}

#[tokio::test]
async fn the_client_in_node_is_denied_over_the_limit_where_node_is_installed() {
    if is_there("node") {
        assert_third_request_is_denied("node", &["check.mjs"]).await;
    }
}

#[tokio::test]
async fn the_client_in_go_is_denied_over_the_limit_where_go_is_installed() {
    if is_there("go") {
        assert_third_request_is_denied("go", &["run", "check.go"]).await;
    }
}
