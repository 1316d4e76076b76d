//! Fault T31 of `README.md`: connections to Redis that break, hang, or carry only one request at a
//! time.

use std::io;
use std::pin::pin;
use std::time::Duration;

use futures::future::join_all;
use rl_core::{Decision, Limit, OnFailure, Origin, RateLimiter, RedisStore, Subject};
use rl_tests::{Bystander, RedisServer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use super::GIVE_UP;

/// A timeout that is long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

async fn store(redis: &RedisServer, connections: u32) -> RedisStore {
    let builder = RedisStore::builder(&redis.url()).connections(connections);
    builder.connection_wait(PATIENCE).connect().await.unwrap()
}

/// Returns a limiter with a high limit per day and a long deadline.
fn limiter(store: RedisStore) -> RateLimiter {
    let builder = RateLimiter::builder().limit(Limit::per_day(10_000)).store(store);
    builder.deadline(PATIENCE).build().unwrap()
}

async fn check(limiter: &RateLimiter) -> Decision {
    limiter.check(&Subject::global(), 1).await
}

fn used(decision: &Decision) -> u64 {
    assert_eq!(decision.origin(), Origin::Store);
    decision.limits().next().unwrap().used()
}

/// A multiplexed connection that is lost does not restore itself. Some pools never check their
/// connections. Such a pool returns the dead connection until it reaches its maximum age, half an
/// hour later.
#[tokio::test]
async fn t31_a_lost_connection_is_replaced_at_once() {
    let redis = RedisServer::start();
    let mut operator = Bystander::new(&redis).await;
    for connections in [1, 4] {
        let limiter = limiter(store(&redis, connections).await);
        // These requests open all connections of the pool.
        join_all((0..32).map(|_| check(&limiter))).await;
        let before = used(&check(&limiter).await);

        let killed: u64 = operator.query("CLIENT KILL TYPE normal SKIPME yes").await;
        assert!(killed >= 1);
        // At most one command fails, the one that finds the connection dead. It is not repeated,
        // because it may have been executed.
        let first = check(&limiter).await;
        let lost = u64::from(first.origin() != Origin::Store);
        for n in 1..=20 {
            assert_eq!(used(&check(&limiter).await), before + 1 - lost + n);
        }
    }
}

/// If a pool sends `PING` before each command, every request needs two round trips.
#[tokio::test]
async fn t31_a_decision_is_one_command() {
    let redis = RedisServer::start();
    let limiter = limiter(store(&redis, 4).await);
    check(&limiter).await;
    let mut operator = Bystander::new(&redis).await;
    let before = operator.calls().await;
    for _ in 0..50 {
        check(&limiter).await;
    }
    let asked = operator.calls().await["evalsha"];
    // Concurrent requests for one subject may share a call, so fifty requests make 1 to 50 calls.
    join_all((0..50).map(|_| check(&limiter))).await;
    let after = operator.calls().await;
    let made = |command: &str| {
        after.get(command).copied().unwrap_or(0) - before.get(command).copied().unwrap_or(0)
    };
    assert_eq!((asked - before["evalsha"], made("ping"), made("eval")), (50, 0, 0));
    assert!((51..=100).contains(&made("evalsha")), "{}", made("evalsha"));
}

/// If a pool lends a connection to one request at a time, no more requests can be in flight than
/// there are connections.
#[tokio::test]
async fn t31_one_connection_carries_many_decisions_at_once() {
    let redis = RedisServer::start();
    let way = Way::to(&redis).await;
    let store = RedisStore::builder(&way.url).connections(1).connection_wait(PATIENCE);
    // Each request is sent in a call of its own, although all are for one subject.
    let limiter = limiter(store.coalesce(false).connect().await.unwrap());
    check(&limiter).await;

    way.let_through(Traffic::Held);
    let mut decisions = pin!(join_all((0..50).map(|_| check(&limiter))));
    // All fifty requests are sent before the first one gets a reply.
    tokio::select! {
        decisions = &mut decisions => panic!("{decisions:?}"),
        () = way.holds(50) => {}
    }
    way.let_through(Traffic::Flows);
    let mut counts: Vec<_> = decisions.await.iter().map(used).collect();
    counts.sort_unstable();
    assert_eq!(counts, (2..=51).collect::<Vec<_>>());
}

/// With default settings, some pools wait for 30 seconds, for every request during an outage.
#[tokio::test]
async fn t31_waits_are_bounded() {
    // The first address is bound but does not listen, so connections are refused. The second one
    // listens but never accepts, so connections get no reply.
    let refusing = TcpSocket::new_v4().unwrap();
    refusing.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for address in [refusing.local_addr(), silent.local_addr()] {
        let outage = async {
            let store = RedisStore::connect(&format!("redis://{}/", address.unwrap())).await;
            let limit = RateLimiter::builder().limit(Limit::per_day(1));
            let limiter = limit.store(store.unwrap()).build().unwrap();
            for _ in 0..20 {
                let origin = check(&limiter).await.origin();
                assert!(matches!(origin, Origin::FailedOpen(_)), "{origin:?}");
            }
        };
        timeout(GIVE_UP, outage).await.expect("in time");
    }
}

/// When the machine of a server loses power, the server closes no connection. A limiter that
/// continues to use the connection fails until the operating system gives up, after a quarter of an
/// hour.
#[tokio::test]
async fn t31_a_connection_that_does_not_answer_is_replaced() {
    let redis = RedisServer::start();
    let way = Way::to(&redis).await;
    let store = RedisStore::connect(&way.url).await.unwrap();
    // On a busy machine, this process may get too little CPU time. The limiter may then take the
    // outage for an overload, and would reject requests by default.
    let limit = RateLimiter::builder().limit(Limit::per_day(10_000)).on_overload(OnFailure::Allow);
    let limiter = limit.store(store).build().unwrap();
    let answered = async || while check(&limiter).await.origin() != Origin::Store {};
    answered().await;
    way.let_through(Traffic::Lost);
    let origin = check(&limiter).await.origin();
    assert!(matches!(origin, Origin::FailedOpen(_)), "{origin:?}");
    timeout(GIVE_UP, answered()).await.expect("answers again");
}

/// Fault: a server or a proxy closed an idle connection, and the next request was allowed without a
/// decision. With pauses longer than the idle timeout, this affected every second request.
#[tokio::test]
async fn a_connection_that_was_closed_while_it_was_idle_costs_no_decision() {
    let redis = RedisServer::start();
    let mut operator = Bystander::new(&redis).await;
    let store = redis.patient_store().connect().await.unwrap();
    let limiter = RateLimiter::builder().limit(Limit::per_day(100)).store(store);
    let limiter = limiter.deadline(PATIENCE).build().unwrap();
    for asked in 1..=10 {
        assert_eq!(used(&check(&limiter).await), asked);
        operator.query::<u64>("CLIENT KILL TYPE normal SKIPME yes").await;
        // These commands give the client time to notice that its connection was closed.
        for _ in 0..3 {
            operator.query::<String>("PING").await;
        }
    }
}

/// The way in which a relay treats the commands to the server.
#[derive(Clone, Copy, PartialEq)]
enum Traffic {
    Flows,
    /// The commands are held until they are released.
    Held,
    /// Data on open connections is lost without an error. New connections work.
    Lost,
}

/// A relay between clients and a server.
struct Way {
    url: String,
    traffic: watch::Sender<Traffic>,
    held: watch::Sender<usize>,
}

impl Way {
    async fn to(redis: &RedisServer) -> Self {
        let entrance = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}/", entrance.local_addr().unwrap());
        let way =
            Self { url, traffic: watch::Sender::new(Traffic::Flows), held: watch::Sender::new(0) };
        let (port, traffic, held) = (redis.port(), way.traffic.clone(), way.held.clone());
        tokio::spawn(async move {
            loop {
                let (here, _) = entrance.accept().await.unwrap();
                let there = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                tokio::spawn(carry(here, there, traffic.subscribe(), held.clone()));
            }
        });
        way
    }

    fn let_through(&self, traffic: Traffic) {
        self.traffic.send_replace(traffic);
    }

    /// Waits until the relay holds this number of script calls.
    async fn holds(&self, calls: usize) {
        let mut held = self.held.subscribe();
        let held = timeout(GIVE_UP, held.wait_for(|held| *held == calls)).await;
        held.expect("the relay holds the calls in time").expect("the relay runs");
    }
}

/// Forwards replies to the client, and treats commands to the server as `traffic` requires.
async fn carry(
    mut here: TcpStream,
    mut there: TcpStream,
    mut traffic: watch::Receiver<Traffic>,
    held: watch::Sender<usize>,
) -> io::Result<()> {
    let ((mut from, mut back), (mut replies, mut on)) = (here.split(), there.split());
    let forth = async {
        let mut commands = Vec::new();
        loop {
            tokio::select! {
                biased;
                _ = traffic.changed() => {
                    if *traffic.borrow_and_update() == Traffic::Lost {
                        return std::future::pending().await;
                    }
                }
                read = from.read_buf(&mut commands) => if read? == 0 { return Ok(()) },
            }
            if *traffic.borrow() == Traffic::Held {
                held.send_replace(commands.windows(7).filter(|word| word == b"EVALSHA").count());
            } else {
                on.write_all(&std::mem::take(&mut commands)).await?;
            }
        }
    };
    tokio::select! {
        ended = forth => ended,
        ended = tokio::io::copy(&mut replies, &mut back) => ended.map(drop),
    }
}
