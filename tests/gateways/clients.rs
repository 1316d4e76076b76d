//! The clients of `docs/clients/` in other languages, by the commands and the rules that the book
//! prints.

use std::fs;
use std::path::Path;
use std::process::Command;

use rl_tests::RedisServer;

use super::programs::{DecisionServer, decision_server, printed};

const TOKEN: &str = "a-token-of-the-clients";

/// A client of the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Sh,
    Python,
    Node,
    Go,
}

const PROGRAMS: [Program; 4] = [Program::Sh, Program::Python, Program::Node, Program::Go];

impl Program {
    const fn name(self) -> &'static str {
        match self {
            Self::Sh => "sh",
            Self::Python => "python3",
            Self::Node => "node",
            Self::Go => "go",
        }
    }

    /// Returns whether the program is installed. The tests need no compiler or runtime of other
    /// languages.
    fn is_installed(self) -> bool {
        let argument = if self == Self::Go { "version" } else { "--version" };
        Command::new(self.name()).arg(argument).output().is_ok()
    }

    /// Runs the command that the book prints, for this consumer. Returns the standard output, the
    /// standard error, and whether the command succeeded.
    fn run(self, consumer: &str, url: &str, token: Option<&str>) -> (String, String, bool) {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let page = fs::read_to_string(root.join("docs/src/clients.md")).unwrap();
        let start = format!("{} ", self.name());
        let line = page.lines().find(|line| line.starts_with(&start) && line.ends_with(" alice"));
        let words: Vec<&str> = line.unwrap().split(' ').collect();
        let mut command = Command::new(words[0]);
        command.current_dir(root).args(&words[1..words.len() - 1]).arg(consumer);
        command.env("RL_SERVER", url).env_remove("RL_TOKEN");
        command.envs(token.map(|token| ("RL_TOKEN", token)));
        let output = command.output().unwrap_or_else(|error| panic!("{self:?}: {error}"));
        let text = |bytes| String::from_utf8(bytes).unwrap().trim().to_owned();
        (text(output.stdout), text(output.stderr), output.status.success())
    }

    fn assert_prints(self, expected: &str, consumer: &str, url: &str, token: Option<&str>) {
        let (printed, error, succeeded) = self.run(consumer, url, token);
        assert_eq!(printed, expected, "{self:?}: {error}");
        assert_eq!(succeeded, expected == "allowed", "{self:?}: {error}");
    }

    /// Checks that the client prints no decision, but an error.
    fn assert_fails(self, expected: &str, consumer: &str, url: &str, token: Option<&str>) {
        let (printed, error, succeeded) = self.run(consumer, url, token);
        assert_eq!((printed.as_str(), succeeded), ("", false), "{self:?}: {error}");
        assert!(error.contains(expected), "{self:?}: {error}");
    }
}

fn installed() -> impl Iterator<Item = Program> {
    PROGRAMS.into_iter().filter(|program| program.is_installed())
}

async fn server_of_the_book() -> DecisionServer {
    decision_server(&printed("limits.yaml"), None).await
}

#[tokio::test]
async fn printed_commands_of_clients_are_denied_over_the_printed_limit() {
    for program in installed() {
        let server = server_of_the_book().await;
        for _ in 0..5 {
            program.assert_prints("allowed", "alice", &server.url(), None);
        }
        program.assert_prints("denied", "alice", &server.url(), None);
        program.assert_prints("allowed", "bob", &server.url(), None);
    }
}

#[tokio::test]
async fn clients_allow_requests_while_the_server_does_not_answer() {
    for program in installed() {
        let mut server = server_of_the_book().await;
        server.kill();
        program.assert_prints("allowed", "alice", &server.url(), None);
        // The system accepts the connection, and no program reads from it.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        program.assert_prints("allowed", "alice", &url, None);
    }
}

#[tokio::test]
async fn clients_deny_requests_that_the_failure_policy_rejects() {
    let redis = RedisServer::stopped();
    let limits = format!("server: {{ on_store_failure: reject }}\n{}", printed("limits.yaml"));
    let server = decision_server(&limits, Some(&redis.url())).await;
    for program in installed() {
        program.assert_prints("denied", "alice", &server.url(), None);
    }
}

#[tokio::test]
async fn clients_fail_without_the_token_of_the_server() {
    let limits = format!("server: {{ token: {TOKEN} }}\n{}", printed("limits.yaml"));
    for program in installed() {
        let server = decision_server(&limits, None).await;
        program.assert_fails("RL_TOKEN", "alice", &server.url(), None);
        program.assert_fails("RL_TOKEN", "alice", &server.url(), Some("of-another-server"));
        program.assert_prints("allowed", "alice", &server.url(), Some(TOKEN));
    }
}

#[tokio::test]
async fn names_of_consumers_are_not_read_as_json() {
    let forged = r#"eve","path":"/other"#;
    for program in installed() {
        let server = server_of_the_book().await;
        let url = server.url();
        if program == Program::Sh {
            for consumer in [forged, r"a\", "a b", ""] {
                program.assert_fails("CONSUMER", consumer, &url, None);
            }
            continue;
        }
        program.assert_prints("allowed", forged, &url, None);
        // The server answers 400.
        program.assert_prints("denied", "", &url, None);
    }
}
