//! Odd rule files, and the errors for them.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rl_core::rules::RulesFile;
use rl_core::{RateLimiter, Subject};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::GIVE_UP;
use crate::rules_file::until;

/// Returns a file with one rule, `a`, of this number of requests per day.
fn rules(max: u64) -> String {
    format!("rules: {{ a: {{ limits: {max}/day }} }}")
}

/// Replaces the file in one step, as `mv` does.
fn replace(path: &Path, content: &str) {
    fs::write(path.with_extension("tmp"), content).unwrap();
    fs::rename(path.with_extension("tmp"), path).unwrap();
}

async fn max(limiter: &RateLimiter) -> u64 {
    let usage = limiter.rule("a").of(&Subject::global()).usage().await.unwrap();
    usage.limits().next().unwrap().max()
}

/// Fault: a pipe in place of the file blocked every later reload, and limiters that were built with
/// the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipe_or_device_in_place_of_rules_blocks_nothing_and_a_good_file_is_applied_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.yaml");
    replace(&path, &rules(1));
    let file = RulesFile::builder(&path).pause(Duration::from_millis(20)).watch().unwrap();
    let limiter = RateLimiter::builder().rules(&file).build().unwrap();
    let odd: [fn(&Path); 4] = [
        |_| {},
        |path| fs::create_dir(path).unwrap(),
        |path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
        |path| std::os::unix::fs::symlink("/dev/zero", path).unwrap(),
    ];
    for (number, make) in (1..).zip(odd) {
        let before = file.status();
        fs::remove_file(&path).unwrap();
        make(&path);
        let refused = until(&file, |status| status.refused() > before.refused()).await;
        assert_eq!(refused.version(), before.version());
        assert_eq!(max(&limiter).await, number);
        let reloaded = file.clone();
        let reload = timeout(GIVE_UP, spawn_blocking(move || reloaded.reload())).await;
        let error = reload.expect("it ends").unwrap().unwrap_err().to_string();
        assert!(error.starts_with(&path.display().to_string()), "{error}");
        let other = RateLimiter::builder().rules(&file).namespace("other").build().unwrap();
        assert_eq!(max(&other).await, number);

        if path.is_dir() {
            fs::remove_dir(&path).unwrap();
        }
        let before = file.status();
        replace(&path, &rules(number + 1));
        until(&file, |status| status.applied() > before.applied()).await;
        assert_eq!((max(&limiter).await, max(&other).await), (number + 1, number + 1));
    }
}

/// Fault: errors contained what variables were replaced with, and the text after `file:`.
#[test]
fn a_service_that_does_not_start_shows_no_value_of_a_variable() {
    const SECRET: &str = "hunter2-hunter2-hunter2";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.yaml");
    let program = env!("CARGO_BIN_EXE_example-axum-rules");
    for (content, expected) in [
        ("secret: file:${SECRET}\nrules: { a: { limits: 1/day } }", "file:${SECRET}: No such file"),
        ("secret: file:hunter2\nrules: { a: { limits: 1/day } }", "file:…: No such file"),
        ("store: file:${SECRET}\nrules: { a: { limits: 1/day } }", "file:${SECRET}: No such file"),
        ("rules: { a: { limits: \"${SECRET}\" } }", "limit \"${SECRET}\" with its variables"),
        ("proxies: ${SECRET}\nrules: { a: { limits: 1/day } }", "\"${SECRET}\" with its variables"),
        (
            "exempt: [{ path: \"${SECRET}\" }]\nrules: { a: { limits: 1/day } }",
            "path \"${SECRET}\"",
        ),
        (
            "exempt: [{ host: \"a ${SECRET}\" }]\nrules: { a: { limits: 1/day } }",
            "host \"a ${SECRET}\"",
        ),
    ] {
        fs::write(&path, content).unwrap();
        let started = Command::new(program)
            .env_clear()
            .envs([("RL_LISTEN", "127.0.0.1:0"), ("SECRET", SECRET)])
            .env("RL_RULES", &path)
            .output()
            .unwrap();
        let output = [started.stdout, started.stderr].concat();
        let output = String::from_utf8(output).unwrap();
        assert!(!started.status.success(), "{content}");
        assert!(output.contains(expected) && !output.contains("hunter2"), "{content}\n{output}");
    }
}
