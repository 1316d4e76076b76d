//! The command as a process: its output and its exit status.

#![allow(clippy::unwrap_used, reason = "a test that cannot unwrap has failed")]

use std::fs;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use rcgen::CertifiedKey;

const RULES: &str = "rules: { clients: { per: address, limits: 2/minute } }\n";

const ENVOY: &str = "\
domain: edge
descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 3 }
";

fn rl(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rl"));
    command.env_clear().args(arguments);
    command
}

/// Runs a command, and returns its exit status, stdout and stderr.
fn run(arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = rl(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_valid_file_is_confirmed_and_errors_have_one_line_and_status_1() {
    let folder = tempfile::tempdir().unwrap();
    let valid = write(folder.path(), "valid.yaml", RULES);
    assert_eq!(run(&["check", &valid]), (0, format!("{valid}: valid\n"), String::new()));
    let wrong = write(folder.path(), "wrong.yaml", "rules: { all: { limits: x } }");
    for command in ["check", "serve"] {
        let (status, stdout, stderr) = run(&[command, &wrong]);
        assert_eq!((status, &*stdout), (1, ""), "{command}");
        assert!(stderr.starts_with("error: ") && stderr.lines().count() == 1, "{stderr}");
        assert!(stderr.contains("wrong.yaml:1:"), "{stderr}");
    }
}

#[test]
fn wrong_usage_is_reported_with_status_2() {
    for arguments in [
        &[][..],
        &["serve"],
        &["serve", "a", "--envoy", "b"],
        &["chek", "a"],
        &["import", "x", "y"],
    ] {
        let (status, stdout, stderr) = run(arguments);
        assert_eq!((status, &*stdout), (2, ""), "{arguments:?}: {stderr}");
    }
}

#[test]
fn an_imported_file_is_valid() {
    let folder = tempfile::tempdir().unwrap();
    let envoy = write(folder.path(), "envoy.yaml", ENVOY);
    let (status, rules, _) = run(&["import", "envoy", &envoy]);
    assert_eq!(status, 0);
    assert!(rules.contains("3/minute"), "{rules}");
    let imported = write(folder.path(), "imported.yaml", &rules);
    assert_eq!(run(&["check", &imported]).0, 0);
}

/// Starts a server. Returns its URL for HTTP, and the lines that it prints after those of its
/// listeners for decisions.
fn serve(arguments: &[&str]) -> (Child, String, Lines<BufReader<ChildStdout>>) {
    let mut command = rl(arguments);
    command.env("RL_LISTEN", "127.0.0.1:0").env("RL_LISTEN_GRPC", "127.0.0.1:0");
    let mut server = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let mut line = || lines.next().expect("a line").unwrap();
    let http = line().strip_prefix("listening on ").unwrap().to_owned();
    assert!(line().ends_with(" for gRPC"));
    (server, http, lines)
}

fn stop(server: &Child) {
    let sent = Command::new("kill").args(["-s", "TERM", &server.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

#[test]
fn a_server_prints_its_addresses_and_ends_with_status_0_at_sigterm() {
    let folder = tempfile::tempdir().unwrap();
    let rules = write(folder.path(), "limits.yaml", RULES);
    let envoy = write(folder.path(), "envoy.yaml", ENVOY);
    let tokens = r#"[{"name": "alice", "token": "a-long-and-random-token", "roles": []}]"#;
    let admin = format!("server: {{ admin: {{ listen: 127.0.0.1:0, tokens: '{tokens}' }} }}\n");
    let managed = write(folder.path(), "managed.yaml", &format!("{RULES}{admin}"));
    for arguments in [&["serve", &*rules][..], &["serve", "--envoy", &envoy], &["serve", &managed]]
    {
        let (mut server, http, mut lines) = serve(arguments);
        assert!(
            arguments[1] != managed || lines.next().unwrap().unwrap().ends_with(" for management")
        );
        assert_eq!(run(&["health", &http]).0, 0);
        stop(&server);
        assert_eq!(server.wait().unwrap().code(), Some(0));
        let (status, _, stderr) = run(&["health", &http]);
        assert!(status == 1 && stderr.contains("Connection refused"), "{stderr}");
    }
}

/// Fault: each connection whose streams the client resets caused a warning of h2, so a client could
/// fill the log.
#[test]
fn a_client_that_resets_its_streams_causes_no_log_line() {
    let folder = tempfile::tempdir().unwrap();
    let rules = write(folder.path(), "limits.yaml", RULES);
    let (mut server, http, _) = serve(&["serve", &rules]);
    let mut frames = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    for stream in (1..=199).step_by(2) {
        // GET http:/, and its reset.
        frames.extend([0, 0, 3, 1, 5, 0, 0, 0, stream, 0x82, 0x86, 0x84]);
        frames.extend([0, 0, 4, 3, 0, 0, 0, 0, stream, 0, 0, 0, 8]);
    }
    let mut client = TcpStream::connect(http.strip_prefix("http://").unwrap()).unwrap();
    client.write_all(&frames).unwrap();
    // Until the server has closed the connection.
    let _ = client.read_to_end(&mut Vec::new());
    stop(&server);
    assert!(server.wait().unwrap().success());
    let mut log = String::new();
    server.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(log.contains("shutdown ended") && !log.contains("h2::"), "{log}");
}

#[test]
fn the_health_of_a_server_with_mutual_tls_is_read_with_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let cert = write(folder.path(), "tls.crt", &cert.pem());
    let key = write(folder.path(), "tls.key", &signing_key.serialize_pem());
    let tls = format!("server: {{ tls: {{ cert: {cert}, key: {key}, client_ca: {cert} }} }}\n");
    let rules = write(folder.path(), "limits.yaml", &format!("{tls}{RULES}"));
    let (mut server, http, _) = serve(&["serve", &rules]);
    let url = http.replace("127.0.0.1", "localhost");
    let health = |options: &[&str]| run(&[&["health", &*url], options].concat());

    assert_eq!(health(&["--ca", &cert, "--cert", &cert, "--key", &key]).0, 0);
    for (options, expected) in [
        (&[][..], "UnknownIssuer"),
        (&["--ca", &cert], "CertificateRequired"),
        (&["--ca", &key], "tls.key: expected a certificate in PEM"),
        (&["--ca", "/none"], "/none: No such file"),
        (&["--ca", &cert, "--cert", &key, "--key", &key], "tls.key"),
    ] {
        let (status, _, stderr) = health(options);
        assert!(status == 1 && stderr.contains(expected), "{options:?}: {stderr}");
    }
    stop(&server);
    assert_eq!(server.wait().unwrap().code(), Some(0));
}
