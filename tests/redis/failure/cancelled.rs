//! Clients that disconnect before they have received a response.

use std::time::Duration;

use rl_core::adapter::HttpLimiter;
use rl_core::key::Identified;
use rl_core::{Limit, OverLimit, RateLimiter, RedisStore, Subject};
use rl_tests::web::{Axum, Target, eventually};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::load::{print_measurement, request};
use super::{GIVE_UP, server, url};

const CLIENTS: usize = 10_000;
const AT_ONCE: usize = 200;
const PLACES: u64 = 20;

/// A request can end in several ways. In each of them it must release its permit and its ticket in
/// the wait queue, and must no longer count as a decision in flight.
#[tokio::test]
async fn ten_thousand_disconnected_clients_leave_nothing_behind() {
    let server = server();
    let store = RedisStore::builder(&url(&server)).connection_wait(GIVE_UP).connect().await;
    let builder = RateLimiter::builder().limit(Limit::concurrency(PLACES).unwrap());
    let limiter = builder.store(store.unwrap()).deadline(GIVE_UP).build().unwrap();
    let line = OverLimit::Wait { at_most: GIVE_UP, queue: AT_ONCE };
    let http = HttpLimiter::new(limiter.clone()).key(Identified).on_over_limit(line);
    let site = Axum::serve(vec![http]);
    let address = site.url("");
    let address = address.trim_start_matches("http://");
    let alice = Subject::consumer("c0");

    let pending = || {
        let stats = limiter.stats();
        stats.in_flight + stats.waiting
    };
    let mut handled = 0;
    for round in 0..CLIENTS / AT_ONCE {
        let is_frozen = round % 2 == 0;
        if is_frozen {
            server.signal("STOP");
        }
        let mut clients = Vec::with_capacity(AT_ONCE);
        for _ in 0..AT_ONCE {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(request("/waits", 0).as_bytes()).await.unwrap();
            clients.push(client);
        }
        if is_frozen {
            // These clients disconnect while their requests wait for the frozen server.
            eventually(|| async { pending() >= AT_ONCE as u64 / 2 }).await;
            drop(clients);
            server.signal("CONT");
        } else {
            // These clients disconnect while their requests are handled, or wait in the queue.
            site.reached(handled + 1).await;
            drop(clients);
        }
        eventually(|| async { pending() == 0 }).await;
        handled = site.handled();
    }

    let used = || async {
        let usage = limiter.usage(&alice).await.unwrap();
        usage.limits().next().unwrap().used()
    };
    eventually(|| async { used().await == 0 }).await;
    assert_eq!(pending(), 0);
    let mut permits = Vec::new();
    for _ in 0..PLACES {
        let permit = limiter.acquire(&alice, 1).await;
        assert!(permit.decision().is_allowed());
        permits.push(permit);
    }
    // The queue has a maximum of one. If it still contained a cancelled request, it would be full.
    let waiting = limiter.request(&alice).wait(GIVE_UP, 1).check();
    let waiting = tokio::spawn(waiting);
    permits.pop();
    let decision = tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap().unwrap();
    assert!(decision.is_allowed());
    print_measurement(&format!(
        "{CLIENTS} clients hang up: {handled} were handled; afterwards 0 decisions in flight, 0 \
         places taken, 0 waiting"
    ));
}
