//! The gRPC example: its server, and the output of its client.

use std::process::Command;

use crate::known_faults::running_programs::Program;

const PROGRAM: &str = env!("CARGO_BIN_EXE_example-tonic-quickstart");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_gets_denials_of_calls_and_of_streams() {
    let server = Program::start(PROGRAM, &[]).await;
    let mut client = Command::new(PROGRAM);
    let client = client.arg("client").env_clear().env("RL_LISTEN", &server.address);
    let output = String::from_utf8(client.output().unwrap().stdout).unwrap();
    let lines: Vec<&str> = output.lines().collect();
    let [first, denied_stream, _, calls @ .., denied_call, delay] = &*lines else {
        panic!("{output}")
    };
    assert_eq!(*first, "first stream: hello 1, Ada");
    let message =
        "second stream: ResourceExhausted: Too many requests: at most 1 at the same time.";
    assert!(denied_stream.starts_with(message), "{output}");
    let expected = (2..=5).map(|call| format!("call {call}: hello, Ada, {} left", 5 - call));
    assert_eq!(*calls, expected.collect::<Vec<_>>());
    let message = "call 6: ResourceExhausted: Too many requests: 5 per 10 seconds. Try again in ";
    assert!(denied_call.starts_with(message), "{output}");
    let delay =
        delay.trim().strip_prefix("repeat after ").and_then(|rest| rest.strip_suffix(" ms"));
    assert!((1..=10_000).contains(&delay.unwrap().parse::<u32>().unwrap()), "{output}");
}
