//! Counts instructions and allocations. Their number does not depend on how busy the machine is.

use std::process::Command;
use std::sync::LazyLock;

/// The number of repetitions over which the instructions are averaged.
const TIMES: u64 = 3_000;

/// The path of the optimised program that repeats the operation whose instructions are counted.
static PROGRAM: LazyLock<String> = LazyLock::new(|| {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let arguments = ["build", "--release", "-p", "rl-instructions", "--message-format=json"];
    let output = Command::new(cargo).args(arguments).output().expect("cargo can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let messages = String::from_utf8_lossy(&output.stdout);
    let mut messages = messages.lines().map(|line| {
        serde_json::from_str::<serde_json::Value>(line).expect("cargo was asked for JSON")
    });
    let path = messages.find_map(|message| Some(message.get("executable")?.as_str()?.to_owned()));
    path.expect("a program is built")
});

/// Returns the number of instructions that the program takes for one repetition of `what`.
fn instructions(what: &str) -> u64 {
    instructions_under(what, &[])
}

/// Returns the number of instructions that the program takes for one repetition of `what` under
/// `limits`.
fn instructions_under(what: &str, limits: &[String]) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .args(["--toggle-collect=rl_instructions::counted*", &PROGRAM, what])
        .arg(TIMES.to_string())
        .args(limits)
        .output()
        .expect("valgrind can be started: tests/run installs it");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let count = text.lines().find_map(|line| line.split("Collected :").nth(1)?.trim().parse().ok());
    let count: u64 = count.unwrap_or_else(|| panic!("expected a count: {text}"));
    assert!(count > TIMES, "nothing was counted: {text}");
    count / TIMES
}

/// Returns the largest count that a test accepts: a tenth above the count that was measured when
/// the figure was written. A smaller change can come from the compiler or from random hash keys.
fn at_most(measured: u64) -> u64 {
    measured + measured / 10
}

#[test]
#[rustfmt::skip]
fn decisions_and_responses_take_few_instructions() {
    let paths = [
        ("allowed",        690, "six fixed windows of a known subject"),
        ("observed",       690, "the same with an observer that receives no decisions"),
        ("observing",    2_603, "the same with an observer that receives each decision"),
        ("logged",      26_099, "the same with a log line for each decision"),
        ("denied",       1_267, "the same, used up"),
        ("too-much",     1_143, "more than any of six allows"),
        ("clock",          737, "windows on the clock, whose ends are computed and not stored"),
        ("one",            689, "one fixed window"),
        ("newcomer",     2_715, "a new subject under six of them, which evicts another"),
        ("gcra",         2_252, "six of another algorithm"),
        ("log",            1_237, "a sliding log"),
        ("one-part",       820, "a list of one part with six windows, under a rule"),
        ("three-parts",  3_975, "three parts, each under a rule: six windows, one and one"),
        ("three-parts-denied", 5_851, "the same, denied by the first part"),
        ("three-parts-gcra", 7_179, "three parts of another algorithm"),
        ("http-allowed", 5_104, "a request through the layer, its response made and dropped"),
        ("http-denied", 10_157, "a request that the layer rejects"),
        ("axum-denied", 18_392, "the same with six windows on axum, and all that axum does"),
    ];
    let mut beyond = Vec::new();
    for (what, measured, described) in paths {
        let (count, limit) = (instructions(what), at_most(measured));
        println!("{described}: {count} instructions, {limit} at most");
        if count > limit {
            beyond.push(format!("{described}: {count} instructions, expected {limit} at most"));
        }
    }
    assert!(beyond.is_empty(), "{beyond:#?}");
}

/// Counts the instructions of a decision on one known subject, for each algorithm and for several
/// limits together.
#[test]
#[rustfmt::skip]
fn each_algorithm_takes_few_instructions() {
    let mixed = [
        "90000/hour", "90000/hour:clock", "90000/hour:sliding-window:precision=minute",
        "90000/hour:sliding-window-counter", "90000/hour:token-bucket:refill=interval", "90000/hour:gcra",
    ];
    let windows = |count: u64| (1..=count).map(|hours| format!("90000/{hours}h")).collect();
    let one = |limit: &str| vec![limit.to_owned()];
    let many = |count: u64, max: u64, rest: &str| -> Vec<String> {
        (1..=count).map(|hours| format!("{max}/{hours}h{rest}")).collect()
    };
    let cases: [(&str, &str, Vec<String>, u64); 25] = [
        ("fixed window",                  "decide",  one("90000/hour"),                                  689),
        ("fixed window on the clock",     "decide",  one("90000/hour:clock"),                            736),
        ("GCRA",                          "decide",  one("90000/hour:gcra"),                           1_131),
        ("token bucket",                  "decide",  one("90000/hour:token-bucket"),                   1_131),
        ("token bucket, interval refill", "decide",  one("90000/hour:token-bucket:refill=interval"),     1_099),
        ("sliding window counter",        "decide",  one("90000/hour:sliding-window-counter"),         1_114),
        ("sliding window, 10 buckets",    "decide",  one("90000/hour:sliding-window:precision=6minutes"), 1_036),
        ("sliding window, 60 buckets",    "decide",  one("90000/hour:sliding-window:precision=minute"), 1_036),
        ("sliding log",                   "decide",  one("90000/hour:sliding-log"),                    1_237),
        ("concurrency, and the release",  "acquire", one("1000:concurrency"),                          3_188),
        ("six of different kinds",        "decide",  mixed.map(str::to_owned).to_vec(),                1_970),
        ("16 of GCRA",                    "decide",  many(16, 90000, ":gcra"),                       4_534),
        ("denied: GCRA",                  "decide",  one("1/hour:gcra"),                             1_252),
        ("denied: interval refill",       "decide",  one("1/hour:token-bucket:refill=interval"),     1_269),
        ("denied: window counter",        "decide",  one("1/hour:sliding-window-counter"),           1_326),
        ("denied: 60 buckets",            "decide",  one("1/hour:sliding-window:precision=minute"),    1_239),
        ("denied: sliding log",           "decide",  one("1/hour:sliding-log"),                        1_291),
        ("denied: concurrency",           "decide",  one("1:concurrency:lease=1h"),                    1_291),
        ("denied: 7 fixed windows",       "decide",  many(7, 1, ""),                                 2_558),
        ("denied: 16 fixed windows",      "decide",  many(16, 1, ""),                                4_587),
        ("denied: 16 of GCRA",            "decide",  many(16, 1, ":gcra"),                           5_739),
        ("7 fixed windows",               "decide",  windows(7),                                     1_793),
        ("8 fixed windows",               "decide",  windows(8),                                     1_916),
        ("12 fixed windows",              "decide",  windows(12),                                   2_409),
        ("16 fixed windows",              "decide",  windows(16),                                   2_901),
    ];
    let mut beyond = Vec::new();
    for (name, operation, limits, measured) in cases {
        let (count, limit) = (instructions_under(operation, &limits), at_most(measured));
        println!("{name}: {count} instructions, {limit} at most");
        if count > limit {
            beyond.push(format!("{name}: {count} instructions, expected {limit} at most"));
        }
    }
    assert!(beyond.is_empty(), "{beyond:#?}");
}

/// Returns the number of allocations that the program makes for one repetition of `what`.
fn allocations(what: &str) -> u64 {
    // The first repetitions allocate what later ones reuse.
    let [some, more] = [TIMES, 2 * TIMES].map(|times| blocks(what, times));
    (more - some) / TIMES
}

/// Returns the number of allocations that the program makes in all for `times` repetitions.
fn blocks(what: &str, times: u64) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=dhat", "--dhat-out-file=/dev/null", &PROGRAM, what, &times.to_string()])
        .output()
        .expect("valgrind can be started: tests/run installs it");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let total = text.lines().find_map(|line| line.split("Total:").nth(1)?.split(" in ").nth(1));
    let count = total.and_then(|blocks| blocks.split(' ').next()?.replace(',', "").parse().ok());
    count.unwrap_or_else(|| panic!("expected a count: {text}"))
}

/// Counts the instructions and the allocations that our layer adds to a request, compared with an
/// app without a layer. The limits have six periods, and the headers have numbers of ten digits.
/// The test also prints what a layer adds that only sets three headers.
#[test]
fn a_layer_adds_few_instructions_and_allocations_to_a_request() {
    for (framework, measured, allocated) in [("axum", 5_952, 5), ("actix", 5_157, 2)] {
        let added = |around: &str| {
            let [with, without] = [around, "-plain"].map(|around| format!("{framework}{around}"));
            let instructions = instructions(&with).saturating_sub(instructions(&without));
            (instructions, allocations(&with).saturating_sub(allocations(&without)))
        };
        let ((instructions, allocations), lines) = (added(""), added("-lines"));
        let limit = at_most(measured);
        println!("{framework}: {instructions} instructions, {limit} at most");
        println!("{framework}: {allocations} allocations, {allocated} at most");
        println!("{framework}: three lines alone: {lines:?}");
        assert!(lines.0 > 0, "{framework}: three lines cost something");
        assert!(instructions <= limit, "{framework}: {instructions}, expected {limit} at most");
        assert!(allocations <= allocated, "{framework}: {allocations}, expected {allocated}");
    }
}
