//! Timelines on which all stores must make the same decisions, and the program that runs them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rl_tests::scenario::{Stores, Verdict, read};

fn vectors(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors").join(file)
}

/// Runs the scenarios of a file on every store. Returns the id of each scenario, the store and the
/// result.
async fn verdicts(file: &str) -> Vec<(String, &'static str, Verdict)> {
    verdicts_on(&Stores::start().await.unwrap(), file).await
}

async fn verdicts_on(stores: &Stores, file: &str) -> Vec<(String, &'static str, Verdict)> {
    let mut verdicts = Vec::new();
    for scenario in read(&vectors(file)).unwrap() {
        for (store, verdict) in stores.run(&scenario).await {
            verdicts.push((scenario.id.clone(), store, verdict));
        }
    }
    verdicts
}

#[tokio::test]
async fn six_windows_are_decided_as_written_in_memory_and_on_redis() {
    let verdicts = verdicts("six-windows.json").await;
    let on = |store: &str| verdicts.iter().filter(|(_, other, _)| *other == store).count();
    // Only three of the eleven scenarios run on the readable layout. The others have clock-aligned
    // windows, which it does not support.
    assert_eq!((on("memory"), on("redis-packed"), on("redis-readable")), (11, 11, 3));
    for (id, store, verdict) in &verdicts {
        assert_eq!(*verdict, Verdict::Passed, "{id} {store} {verdict}");
    }
}

#[tokio::test]
async fn every_operation_is_answered_alike_in_memory_and_in_both_layouts() {
    for (id, store, verdict) in verdicts("operations.json").await {
        assert_eq!(verdict, Verdict::Passed, "{id} {store} {verdict}");
    }
}

/// The timeline consists of the fifteen steps of redis-cell's own test, and one more step.
#[tokio::test]
async fn gcra_decides_as_redis_cell_does() {
    for (id, store, verdict) in verdicts("gcra.json").await {
        assert_eq!(verdict, Verdict::Passed, "{id} {store} {verdict}");
    }
}

/// The sliding log replaces an earlier limiter that kept a list of calls. The timeline is the test
/// of that limiter.
#[tokio::test]
async fn a_log_decides_like_a_list_of_all_calls() {
    for (id, store, verdict) in verdicts("sliding-log.json").await {
        assert_eq!(verdict, Verdict::Passed, "{id} {store} {verdict}");
    }
}

#[tokio::test]
async fn requests_of_several_subjects_are_decided_as_written() {
    let stores = Stores::start().await.unwrap().with_cluster().await.unwrap();
    let verdicts = verdicts_on(&stores, "several-subjects.json").await;
    let on = |store: &str| verdicts.iter().filter(|(_, other, _)| *other == store).count();
    assert_eq!((on("memory"), on("redis-packed"), on("redis-cluster")), (6, 6, 6));
    for (id, store, verdict) in &verdicts {
        assert_eq!(*verdict, Verdict::Passed, "{id} {store} {verdict}");
    }
}

/// Writes files with these contents, and runs the program on them. Returns the output and the
/// folder of the files.
fn scenarios(files: &[&str]) -> (Output, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_scenarios"));
    for (text, number) in files.iter().zip(1..) {
        let path = folder.path().join(format!("file{number}.json"));
        std::fs::write(&path, text).unwrap();
        program.arg(path);
    }
    (program.output().unwrap(), folder)
}

fn lines(bytes: &[u8]) -> Vec<&str> {
    std::str::from_utf8(bytes).unwrap().lines().collect()
}

#[test]
fn the_program_reports_every_scenario_on_every_store() {
    let right = r#"{"scenarios": [{"id": "A", "limits": {"hour": "1/hour"}, "unit": "s", "steps": [
        {"t": 0, "expect": {"remaining": 0}}]}]}"#;
    let clock = right.replace(r#""A""#, r#""B""#).replace("1/hour", "1/hour:clock");
    let unknown = right.replace(r#""A""#, r#""C""#).replace("1/hour", "1/hour:leaky");
    let (output, _folder) = scenarios(&[right, &clock, &unknown]);
    assert_eq!(
        lines(&output.stdout),
        [
            "A memory ok",
            "A redis-packed ok",
            "A redis-readable ok",
            "B memory ok",
            "B redis-packed ok",
            "C memory cannot: limit \"1/hour:leaky\", column 8: expected one of clock, sliding-log, sliding-window, sliding-window-counter, token-bucket, gcra, requests, unit=NAME, shadow",
            "C redis-packed cannot: limit \"1/hour:leaky\", column 8: expected one of clock, sliding-log, sliding-window, sliding-window-counter, token-bucket, gcra, requests, unit=NAME, shadow",
            "C redis-readable cannot: limit \"1/hour:leaky\", column 8: expected one of clock, sliding-log, sliding-window, sliding-window-counter, token-bucket, gcra, requests, unit=NAME, shadow",
            "5 passed, 0 failed, 3 cannot",
        ]
    );
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_wrong_expectation_is_reported_with_its_step_and_ends_with_status_1() {
    let with = |expect: &str| {
        format!(
            r#"{{"scenarios": [{{"id": "W", "limits": {{"minute": "2/minute", "hour": "9/hour"}},
            "unit": "s", "steps": [{{"t": 0}}, {{"t": 0, "cost": 2, "expect": {{{expect}}}}}]}}]}}"#
        )
    };
    let cases = [
        // expectation                | reported
        (r#""allowed": true"#, "allowed true, got allowed false"),
        (r#""granted": 2"#, "granted 2, got granted 0"),
        (r#""remaining": {"hour": 6}"#, "remaining hour 6, got remaining hour 8"),
        (r#""retry_after": 59"#, "retry_after 59, got retry_after 60"),
        (r#""retry_after": "never""#, "retry_after never, got retry_after 60"),
        (r#""reset_after": {"minute": 61}"#, "reset_after minute 61, got reset_after minute 60"),
        (r#""over": []"#, "over [], got over [minute]"),
        (r#""over": ["minute", "hour"]"#, "over [minute hour], got over [minute]"),
        (
            r#""allowed": true, "over": []"#,
            "allowed true and over [], got allowed false and over [minute]",
        ),
    ];
    let files: Vec<String> = cases.iter().map(|(expect, _)| with(expect)).collect();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let (output, _folder) = scenarios(&files);
    let mut expected = Vec::new();
    for (_, reported) in cases {
        for store in ["memory", "redis-packed", "redis-readable"] {
            expected.push(format!("W {store} FAILED: step 2, expected {reported}"));
        }
    }
    expected.push(format!("0 passed, {} failed, 0 cannot", expected.len()));
    assert_eq!(lines(&output.stdout), expected);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
#[rustfmt::skip]
fn malformed_files_are_refused_by_place_and_field_with_status_2() {
    let scenario = |fields: &str| format!(r#"{{"scenarios": [{{{fields}}}]}}"#);
    let head = r#""id": "M", "unit": "s", "limits": {"second": "2/second", "minute": "3/minute"}"#;
    let step = |fields: &str| scenario(&format!(r#"{head}, "steps": [{{"t": 0}}, {{{fields}}}]"#));
    let expect = |fields: &str| step(&format!(r#""t": 0, "expect": {{{fields}}}"#));
    let cases = [
        ("".into(),                              ": expected JSON: EOF"),
        ("[1, 2".into(),                         ": expected JSON: EOF"),
        ("[]".into(),                            ": expected an object, got []"),
        ("{}".into(),                            r#": field "scenarios": expected a list, got nothing"#),
        (r#"{"scenario": []}"#.into(),           r#": field "scenario": expected one of scenarios, note"#),
        (scenario(""),                           r#": scenario number 1: field "id": expected a text, got nothing"#),
        (scenario(r#""id": "M", "unit": "h""#),  r#": scenario M: field "unit": expected one of "us", "ms", "s", got "h""#),
        (scenario(r#""id": "M", "unit": "s""#),  r#": scenario M: field "limits": expected a map of names to limits"#),
        (scenario(r#""id": "M", "unit": "s", "limits": {}"#),
                                                 r#": scenario M: field "limits": a policy needs at least one limit"#),
        (scenario(r#""id": "M", "unit": "s", "limits": {"a": 1}"#),
                                                 r#": scenario M: field "limits": expected a map of names"#),
        (scenario(head),                         r#": scenario M: field "steps": expected a list, got nothing"#),
        (scenario(&format!(r#"{head}, "start": -1"#)),
                                                 r#": scenario M: field "start": expected a whole number, 0 or more, got -1"#),
        (scenario(&format!(r#"{head}, "speed": 1"#)),
                                                 r#": scenario M: field "speed": expected one of id, note"#),
        (step(""),                               r#": scenario M, step 2: field "t": expected a whole number"#),
        (step(r#""t": 0.5"#),                    r#": scenario M, step 2: field "t": expected a whole number"#),
        (step(r#""t": 99999999999999"#),         r#": scenario M, step 2: field "t": expected a whole number"#),
        (step(r#""t": 0, "cost": -1"#),          r#": scenario M, step 2: field "cost": expected a whole number, 0 or more, got -1"#),
        (step(r#""t": 0, "op": "chekc""#),       r#": scenario M, step 2: field "op": expected one of check, check_up_to"#),
        (step(r#""t": 0, "repeat": 0"#),         r#": scenario M, step 2: field "repeat": expected a whole number, 1 or more"#),
        (step(r#""t": 0, "subject": 7"#),        r#": scenario M, step 2: field "subject": expected a text, got 7"#),
        (step(r#""t": 0, "expects": {}"#),       r#": scenario M, step 2: field "expects": expected one of t, op"#),
        (step(r#""t": 0, "limit": "second""#),   r#": scenario M, step 2: field "limit": expected no such field"#),
        (step(r#""t": 0, "op": "reset", "limit": "day""#),
                                                 r#": scenario M, step 2: field "limit": expected one of second, minute, got "day""#),
        (step(r#""t": 0, "limits": {}"#),        r#": scenario M, step 2: field "limits": expected no such field"#),
        (step(r#""t": 0, "op": "set_limits""#),  r#": scenario M, step 2: field "limits": expected a map"#),
        (expect(r#""alowed": true"#),            r#": scenario M, step 2, expect: field "alowed": expected one of allowed"#),
        (expect(r#""allowed": 1"#),              r#": scenario M, step 2, expect: field "allowed": expected true or false, got 1"#),
        (expect(r#""remaining": 1"#),            r#": scenario M, step 2, expect: field "remaining": expected a map of names"#),
        (expect(r#""remaining": {"day": 1}"#),   r#": scenario M, step 2, expect: field "remaining": expected a map of names"#),
        (expect(r#""reset_after": {"second": "1"}"#),
                                                 r#": scenario M, step 2, expect: field "reset_after": expected a map of names"#),
        (expect(r#""retry_after": "soon""#),     r#": scenario M, step 2, expect: field "retry_after": expected a whole number, 0 or more, or "never""#),
        (expect(r#""over": ["day"]"#),           r#": scenario M, step 2, expect: field "over": expected a list of names, each one of second, minute"#),
    ];
    let right = step(r#""t": 0"#);
    for (text, message) in cases {
        // The mistake is in the second file. Nevertheless the program does not run the first one.
        let (output, folder) = scenarios(&[&right, &text]);
        let file = folder.path().join("file2.json").display().to_string();
        let errors = lines(&output.stderr).join("\n");
        assert!(errors.starts_with(&format!("{file}{message}")), "{text}\n{errors}");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{text}");
    }
}

#[test]
fn a_missing_file_and_no_file_at_all_end_with_status_2() {
    let run = |arguments: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_scenarios"));
        let output = program.args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let missing = run(&["no/such/file.json"]);
    assert!(missing.starts_with("no/such/file.json: "), "{missing}");
    assert_eq!(run(&[]), "usage: scenarios [--cluster] FILE…\n");
}
