//! The example `observability`: its demonstration, which sends requests to itself and runs a
//! Prometheus server, and its compose file.

use std::path::Path;
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_example-observability");

/// Runs the program in a temporary folder. Returns its output and the number of files that it has
/// left there.
fn run(arguments: &[&str], path: &str) -> (Output, usize) {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(PROGRAM)
        .args(arguments)
        .env_clear()
        .env("PATH", path)
        .env("TMPDIR", folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (output, std::fs::read_dir(folder.path()).unwrap().count())
}

#[test]
fn the_demonstration_prints_the_numbers_of_prometheus_and_leaves_nothing() {
    let path = std::env::var("PATH").unwrap();
    let (output, files) = run(&["demo", "6"], &path);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    let number = |name: &str| -> f64 {
        let last = text.lines().last().unwrap();
        let found = last.split(", ").find_map(|part| part.strip_prefix(name)?.strip_prefix(": "));
        found.unwrap_or_else(|| panic!("{name}: {text}")).parse().unwrap()
    };
    assert!(number("allowed per second") > 1.0, "{text}");
    assert!(number("denied per second") > 0.1, "{text}");
    assert!(number("denied by the limit of a second") > 0.1, "{text}");
    assert!((number("store up") - 1.0).abs() < 1e-9, "{text}");
    let prometheus =
        text.lines().find_map(|line| line.strip_prefix("Prometheus  http://")).unwrap();
    let address = prometheus.split('/').next().unwrap();
    assert!(std::net::TcpStream::connect(address).is_err(), "Prometheus still runs at {address}");
    assert_eq!(files, 0);
}

#[test]
fn the_demonstration_names_the_package_if_prometheus_is_missing() {
    let (output, files) = run(&["demo", "1"], "/nowhere");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("error: prometheus (apt-get install prometheus): "), "{text}");
    assert_eq!((output.status.code(), files), (Some(1), 0));
    for arguments in [&["demo", "soon"][..], &["show"]] {
        let (output, _) = run(arguments, "/nowhere");
        assert!(String::from_utf8(output.stderr).unwrap().contains("expected"));
        assert_eq!(output.status.code(), Some(1));
    }
}

#[test]
fn the_files_that_the_composition_mounts_exist() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/observability");
    let text = std::fs::read_to_string(folder.join("compose.yaml")).unwrap();
    let mut number = 0;
    for line in text.lines().map(str::trim).filter(|line| line.starts_with("- .")) {
        let path = line.trim_start_matches("- ").split(':').next().unwrap();
        assert!(folder.join(path).exists(), "{path}");
        number += 1;
    }
    assert!(number >= 5, "{number}");
}
