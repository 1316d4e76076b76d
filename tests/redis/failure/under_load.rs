//! Faults of Redis while a service handles hundreds or thousands of requests per second.

use std::time::Duration;

use rl_core::{MemoryStore, RateLimiterBuilder, Share};
use rl_tests::web::eventually;
use rl_tests::{Bystander, is_soak};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::load::{LIMIT, Load, Report, Service, rate};
use super::{ALLOWING, RECOVERED, restart, server, stopped_server};

/// A server loses its scripts in a restart, and through `SCRIPT FLUSH`. Newer versions also evict
/// scripts when clients load many.
#[tokio::test]
async fn scripts_flushed_under_load_fail_no_request() {
    let server = server();
    let mut operator = Bystander::new(&server).await;
    for script in 0..600 {
        operator.send::<u64>(redis::cmd("EVAL").arg(format!("return {script}")).arg(0)).await;
    }
    let service = Service::patient(&server);
    let load = Load::on(std::slice::from_ref(&service)).await;
    for _ in 0..5 {
        load.run_for_tenths(5).await;
        operator.query::<()>("SCRIPT FLUSH").await;
    }
    load.run_for_tenths(5).await;
    let report = load.finish().await;

    report.print("SCRIPT FLUSH, 5 times, after 600 foreign scripts", "");
    report.assert_limits(0);
    let by_store = report.count(|answer| answer.is_by_store());
    assert_eq!(by_store, report.answers.len(), "no error reaches a client");
    assert_eq!(service.charged().await, report.passed_by_store(), "counts are exact");
    assert!(report.count(|answer| answer.status == 429) > 0);
    service.log.assert_lines(&[]);
}

#[tokio::test]
async fn connections_killed_with_replies_in_flight_charge_no_request_twice() {
    let server = server();
    let service = Service::start(&server);
    let load = Load::on(std::slice::from_ref(&service)).await;
    let mut operator = TcpStream::connect(("127.0.0.1", server.port())).await.unwrap();
    assert_eq!(send(&mut operator, "PING", || {}).await, "+PONG");
    let (mut cuts, mut killed) = (Vec::new(), 0);
    for _ in 0..8 {
        load.run_for_tenths(5).await;
        // Requests accumulate while the server is stopped. When it continues, it reads them
        // together with the command that closes their connections. It executes the requests, but
        // their replies are lost.
        let begun = load.now();
        server.signal("STOP");
        load.run_for_requests(rate() / 50).await;
        eventually(|| async { server.unread_bytes() > 0 }).await;
        let kill = "CLIENT KILL TYPE normal USER rl";
        let reply = send(&mut operator, kill, || server.signal("CONT")).await;
        killed += reply.trim_start_matches(':').parse::<u64>().unwrap();
        cuts.push(begun..load.now());
    }
    load.run_for_decisions(rate() * 3 / 2).await;
    let report = load.finish().await;

    let unanswered = report.assert_charged_once(&service.charged().await);
    let lost = report.count(|answer| !answer.is_by_store());
    let more = format!("; of {lost} without an answer of Redis {unanswered} were charged");
    report.print(&format!("CLIENT KILL of all connections, {} times", cuts.len()), &more);
    report.assert_in_time();
    report.assert_limits(0);
    assert!(killed > 0 && lost > 0, "no reply was cut off");
    // A lost connection is replaced, so a cut affects only the requests that are sent shortly
    // before or after it.
    let is_near = |sent| cuts.iter().any(|cut| cut.start <= sent + NEAR && sent <= cut.end + NEAR);
    let others = report.count(|answer| !answer.is_by_store() && !is_near(answer.sent));
    assert!(others == 0 || !is_soak(), "{others} of {lost}");
}

/// The time around a cut in which requests may be affected: the deadline, and the longest wait
/// between two probes.
const NEAR: Duration = Duration::from_millis(100 + 200);

/// Sends an inline command, calls `sent` when the server has received it, and returns the reply.
async fn send(operator: &mut TcpStream, command: &str, sent: impl FnOnce()) -> String {
    operator.write_all(format!("{command}\r\n").as_bytes()).await.unwrap();
    sent();
    let mut reply = String::new();
    BufReader::new(operator).read_line(&mut reply).await.unwrap();
    reply.trim_end().to_owned()
}

/// Asserts the properties that every outage must have. `back` is the time at which the server was
/// running again.
async fn assert_outage(service: &Service, report: &Report, back: Duration, fault: &str) {
    let recovery = report.recovery(back);
    let open = report.count(|answer| answer.origin == "failed_open");
    let more = format!(
        "; {open} passed without limits; Redis decides again {:.0} ms after its return",
        recovery.as_secs_f64() * 1e3
    );
    report.print(fault, &more);
    report.assert_in_time();
    report.assert_recovered(back);
    // If this process gets too little CPU time, the limiter takes a late reply for an overload
    // instead of an outage, and rejects its request with 503.
    let is_expected = |status| [200, 429].contains(&status) || !is_soak() && status == 503;
    assert_eq!(report.count(|answer| !is_expected(answer.status)), 0);
    assert!(open > 0);
    if is_soak() {
        service.log.assert_lines(&[ALLOWING, RECOVERED]);
    }
}

#[tokio::test]
async fn a_server_frozen_under_load_is_not_called_and_decides_again_within_a_second() {
    let server = server();
    let service = Service::start(&server);
    let mut operator = Bystander::new(&server).await;
    let load = Load::on(std::slice::from_ref(&service)).await;
    load.run_for_tenths(5).await;
    let calls = operator.calls().await["evalsha"];
    let connections = connections_made(&mut operator).await;
    let before = load.now();
    server.signal("STOP");
    load.run_for_tenths(50).await;
    server.signal("CONT");
    let back = load.now();
    load.run_for_decisions(2 * rate()).await;
    let report = load.finish().await;

    // When the server runs again, it executes the commands that it has already received. Their
    // callers no longer wait for the replies.
    let asked = operator.calls().await["evalsha"] - calls;
    let answered = report.count(|answer| answer.sent >= before && answer.is_by_store()) as u64;
    let unanswered = asked.saturating_sub(answered);
    let connected = connections_made(&mut operator).await - connections;
    let away = (back - before).as_secs_f64();
    let fault =
        format!("frozen for {away:.1} s ({unanswered} calls and {connected} connections failed)");
    assert_outage(&service, &report, back, &fault).await;
    // The breaker opens after three timeouts in a row. So only requests that were sent within about
    // three deadlines, and a few probes, get no reply.
    assert!(unanswered <= (rate() / 2) as u64 || !is_soak(), "{unanswered} calls have failed");
    // Five attempts per second, and some more when the outage begins and ends.
    assert!(connected as f64 <= 15.0 + 5.0 * away, "{connected} connections");
    report.assert_limits(0);
    report.assert_charged_once(&service.charged().await);
}

async fn connections_made(operator: &mut Bystander) -> u64 {
    let stats: String = operator.query("INFO stats").await;
    let line = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    line.unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_server_restarted_empty_under_load_decides_within_a_second() {
    let mut server = server();
    let service = Service::start(&server);
    let load = Load::on(std::slice::from_ref(&service)).await;
    load.run_for_tenths(5).await;
    server.stop();
    load.run_for_tenths(20).await;
    let server = restart(server).await;
    let back = load.now();
    load.run_for_decisions(2 * rate()).await;
    let report = load.finish().await;

    report.assert_limits(1);
    drop(server);
    assert_outage(&service, &report, back, "killed for 2 s and restarted empty").await;
}

#[tokio::test]
async fn a_service_started_without_redis_enforces_limits_within_a_second() {
    let server = stopped_server();
    let service = Service::start(&server);
    service.log.forget();
    let load = Load::on(std::slice::from_ref(&service)).await;
    load.run_for_tenths(10).await;
    let server = restart(server).await;
    let back = load.now();
    load.run_for_decisions(2 * rate()).await;
    let report = load.finish().await;

    report.assert_limits(0);
    drop(server);
    assert_outage(&service, &report, back, "down when the service starts").await;
}

/// The shared store is down, and each of four instances decides with its fallback. Together they
/// allow no more than the limit.
#[tokio::test]
async fn four_instances_with_a_fallback_together_allow_the_limit() {
    let mut server = server();
    let fleet: Vec<_> = (0..4)
        .map(|_| {
            let share = Share::with_instances(4);
            let fall_back =
                move |limits: RateLimiterBuilder| limits.fallback(MemoryStore::new(), share);
            Service::with(&server, |store| store, fall_back)
        })
        .collect();
    server.stop();
    let load = Load::on(&fleet).await;
    load.run_for_tenths(30).await;
    let report = load.finish().await;

    let others = report.count(|answer| answer.origin != "fallback");
    assert_eq!(others, 0, "a fallback decides from the first request on");
    let most = 4 * u64::from(LIMIT / 4) * report.windows();
    let passed = report.passed_otherwise();
    let more =
        format!("; at most {} of one consumer passed, of {most}", passed.iter().max().unwrap());
    report.print("down, four instances fall back on a quarter each", &more);
    report.assert_in_time();
    assert!(passed.iter().all(|passed| *passed <= most), "{passed:?} of {most}");
}
