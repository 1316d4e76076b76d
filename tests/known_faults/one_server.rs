//! One server of a cluster is silent, or late, while another one works. Or all of them are late.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use rl_core::{FailureKind, Limit, Origin, RateLimiter, RedisStore, Subject};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::advance;

use super::fake_redis::FakeRedis;

/// A paused clock that only the test advances, and the cluster that runs on it.
struct Cluster {
    servers: Vec<Arc<FakeRedis>>,
    /// The subjects of each server. Requests of one subject wait for each other, so there are
    /// many.
    subjects: [Vec<Subject>; 2],
    limiter: RateLimiter,
    echo: TcpStream,
    // While a blocking task runs, tokio does not advance the clock by itself.
    _stops_clock: mpsc::Sender<()>,
}

/// The number of subjects of both servers.
const SUBJECTS: usize = 200;

type Origins = Arc<Mutex<Vec<Origin>>>;

impl Cluster {
    async fn start(coalesce: bool) -> Self {
        let (stops_clock, stopped) = mpsc::channel();
        tokio::task::spawn_blocking(move || stopped.recv());
        let servers = FakeRedis::cluster(2).await;
        let urls = servers.iter().map(|server| server.url());
        let store = RedisStore::cluster(urls.collect::<Vec<_>>()).coalesce(coalesce);
        // The connections to the silent server are kept, so that only its silence is judged.
        let store = store.response_timeout(Duration::from_secs(3_600));
        let store = store.connect().await.unwrap();
        let limiter = RateLimiter::builder().limit(Limit::per_hour(1_000_000)).store(store);
        let limiter = limiter.build().unwrap();
        let mut subjects = [Vec::new(), Vec::new()];
        for number in 0..SUBJECTS {
            let subject = Subject::consumer(&number.to_string());
            let before = servers[0].calls();
            assert_eq!(limiter.check(&subject, 1).await.origin(), Origin::Store);
            subjects[usize::from(servers[0].calls() == before)].push(subject);
        }
        assert!(subjects.iter().all(|subjects| subjects.len() > SUBJECTS / 4));
        Self { servers, subjects, limiter, echo: echo().await, _stops_clock: stops_clock }
    }

    /// Lets this number of milliseconds pass. Sends a request to the first server in every fifth
    /// one, and a request to the second server in every `others`. Returns the origins of the
    /// decisions of each server. `each_milli` is called in each millisecond, with its number.
    async fn run(
        &mut self,
        millis: u64,
        others: u64,
        each_milli: impl Fn(&Self, u64),
    ) -> [Vec<Origin>; 2] {
        self.run_at([5, others], millis, each_milli).await
    }

    /// As [`run`](Self::run), with the interval between two requests to each server.
    async fn run_at(
        &mut self,
        intervals: [u64; 2],
        millis: u64,
        each_milli: impl Fn(&Self, u64),
    ) -> [Vec<Origin>; 2] {
        let origins = [Origins::default(), Origins::default()];
        for milli in 0..millis {
            each_milli(self, milli);
            for (server, interval) in intervals.into_iter().enumerate() {
                if milli % interval == 0 {
                    let decision = self.limiter.check(self.subject(server, milli), 1);
                    let origins = Arc::clone(&origins[server]);
                    tokio::spawn(async move {
                        let origin = decision.await.origin();
                        origins.lock().unwrap().push(origin);
                    });
                }
            }
            self.settle().await;
            advance(Duration::from_millis(1)).await;
        }
        self.settle().await;
        origins.map(|origins| std::mem::take(&mut *origins.lock().unwrap()))
    }

    fn subject(&self, server: usize, number: u64) -> &Subject {
        let subjects = &self.subjects[server];
        &subjects[number as usize % subjects.len()]
    }

    /// Waits until what was sent before has been received. Data on the loopback arrives in the
    /// order in which it was sent.
    async fn settle(&mut self) {
        for _ in 0..3 {
            self.echo.write_all(b"?").await.unwrap();
            self.echo.read_u8().await.unwrap();
        }
    }
}

/// Returns the position and the origin of the first decisions that the store has not made.
fn wrong_of(origins: &[Origin]) -> Vec<(usize, Origin)> {
    let origins = origins.iter().copied().enumerate();
    origins.filter(|(_, origin)| *origin != Origin::Store).take(10).collect()
}

/// Returns a connection to a server that returns what it receives.
async fn echo() -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    stream.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    tokio::spawn(async move {
        while let Ok(byte) = server.read_u8().await {
            let _ = server.write_u8(byte).await;
        }
    });
    stream
}

/// Fault: replies of all servers were judged together. A reply of another server in the middle of
/// the wait made the outage of one server an overload, and each wrong verdict caused the next one,
/// until the end of the outage: requests were rejected instead of allowed.
#[tokio::test(start_paused = true)]
async fn a_silent_server_is_an_outage_for_as_long_as_it_is_silent_and_others_decide() {
    // The intervals of the calls to the other server bring them to every phase of the waits.
    for (coalesce, others) in [(true, 7), (true, 51), (false, 49)] {
        let mut cluster = Cluster::start(coalesce).await;
        for origins in cluster.run(500, others, |_, _| ()).await {
            assert!(origins.iter().all(|origin| *origin == Origin::Store), "{origins:?}");
        }
        cluster.servers[0].fall_silent();
        let [silent, other] = cluster.run(10_000, others, |_, _| ()).await;
        let is_outage = |origin: &&Origin| matches!(origin, Origin::FailedOpen(_));
        let undecided = silent.iter().filter(is_outage).count();
        assert_eq!(undecided, silent.len(), "{others}: {:?}", silent.last());
        assert!(silent.len() > 1_900, "{others}: {}", silent.len());
        assert_eq!(wrong_of(&other), [], "{others}, after {} decisions", other.len());
        assert!(other.len() as u64 >= 10_000 / others, "{others}: {}", other.len());
    }
}

/// Fault: late replies of one server were overtaken by those of a faster one, which was taken for
/// an outage: requests were allowed undecided.
#[tokio::test(start_paused = true)]
async fn a_server_that_replies_late_but_steadily_is_overloaded_and_others_decide() {
    for (coalesce, others) in [(true, 51), (false, 7)] {
        let mut cluster = Cluster::start(coalesce).await;
        cluster.run(500, others, |_, _| ()).await;
        // The delay grows to 150 ms within 300 ms, so the server replies at half of its rate.
        let slow_down = |cluster: &Cluster, milli: u64| {
            cluster.servers[0].set_delay(Duration::from_millis((milli / 2).min(150)));
        };
        let [late, other] = cluster.run(3_000, others, slow_down).await;
        let overloaded = Origin::FailedClosed(FailureKind::Overloaded);
        let wrong = |origin: &&Origin| **origin != Origin::Store && **origin != overloaded;
        assert_eq!(late.iter().find(wrong), None, "{others}: allowed without limits");
        let rejected = late.iter().filter(|origin| **origin == overloaded).count();
        assert!(rejected > 500, "{others}: {rejected} of {}", late.len());
        assert_eq!(wrong_of(&other), [], "{others}, after {} decisions", other.len());
    }
}

/// Fault: while the map of the cluster was read, replies on the same connection did not count. Each
/// time-out starts to read it, so if all servers were late, none of their replies counted, which
/// was taken for an outage: requests were allowed undecided.
#[tokio::test(start_paused = true)]
async fn servers_that_all_reply_late_but_steadily_are_overloaded() {
    for coalesce in [true, false] {
        let mut cluster = Cluster::start(coalesce).await;
        cluster.run(500, 5, |_, _| ()).await;
        let slow_down = |cluster: &Cluster, milli: u64| {
            for server in &cluster.servers {
                server.set_delay(Duration::from_millis((milli / 2).min(150)));
            }
        };
        let overloaded = Origin::FailedClosed(FailureKind::Overloaded);
        let wrong = |origin: &&Origin| **origin != Origin::Store && **origin != overloaded;
        for late in cluster.run(3_000, 5, slow_down).await {
            let allowed = late.iter().filter(wrong).count();
            assert_eq!(allowed, 0, "of {}, coalesce: {coalesce}", late.len());
            let rejected = late.iter().filter(|origin| **origin == overloaded).count();
            assert!(rejected > 500, "{rejected} of {}", late.len());
        }
    }
}

/// Fault: the bound of an overload applied until a request was refused by a server that answered.
/// If the load fell, it still applied when the server failed days later, and the requests beyond it
/// were rejected until the end of the outage.
#[tokio::test(start_paused = true)]
async fn a_server_that_falls_silent_after_an_old_overload_is_an_outage_for_every_request() {
    let mut cluster = Cluster::start(false).await;
    // A thousand requests per second, some of which are late, while a hundred are in flight.
    let overload = |cluster: &Cluster, milli: u64| {
        let delay = if milli % 100 < 50 { 90 } else { 120 };
        cluster.servers[0].set_delay(Duration::from_millis(delay));
    };
    let [late, _] = cluster.run_at([1, 51], 2_000, overload).await;
    let overloaded = Origin::FailedClosed(FailureKind::Overloaded);
    let rejected = late.iter().filter(|origin| **origin == overloaded).count();
    assert!(rejected > 500, "{rejected} of {}", late.len());

    cluster.servers[0].set_delay(Duration::ZERO);
    let [calm, _] = cluster.run(5_000, 51, |_, _| ()).await;
    assert_eq!(wrong_of(&calm[calm.len() / 2..]), []);

    cluster.servers[0].fall_silent();
    let [silent, other] = cluster.run_at([1, 51], 10_000, |_, _| ()).await;
    let is_outage = |origin: &&Origin| matches!(origin, Origin::FailedOpen(_));
    let undecided = silent.iter().filter(is_outage).count();
    assert_eq!(undecided, silent.len(), "{:?}", silent.last());
    assert!(silent.len() > 9_800, "{}", silent.len());
    assert_eq!(wrong_of(&other), []);
}
