//! A service on axum with counters on Redis, under a constant load.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use rl_core::adapter::HttpLimiter;
use rl_core::key::Identified;
use rl_core::{Limit, RateLimiter, RateLimiterBuilder, RedisStore, RedisStoreBuilder, Subject};
use rl_tests::RedisServer;
use rl_tests::is_soak;
use rl_tests::web::{Axum, Site, Target};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, MutexGuard, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at, timeout};

use tracing::Level;

use super::log::Log;
use super::{GIVE_UP, url};

/// Returns the number of requests per second. With `tests/run --soak`, the machine must have no
/// other load.
pub(super) fn rate() -> usize {
    if is_soak() { 2_000 } else { 400 }
}

/// The time between two requests on one connection. It is longer than the longest acceptable time
/// of a response, so that slow responses do not lower the rate.
const EVERY: Duration = Duration::from_millis(250);

/// The limit of a consumer in requests per second. Each consumer sends twice that.
pub(super) const LIMIT: u32 = 100;

fn subjects() -> usize {
    rate() / (2 * LIMIT as usize)
}

/// The longest acceptable time in a soak test: the deadline of a decision, and the time for the
/// response to reach the client.
pub(super) const IN_TIME: Duration = Duration::from_millis(100 + 50);

/// Only one load runs at a time. Two loads would disturb each other's measurements.
static ALONE: Mutex<()> = Mutex::const_new(());

pub(super) fn subject(number: usize) -> Subject {
    Subject::consumer(&format!("c{number}"))
}

/// Returns the builder of a limiter of 100 requests per second. Its daily limit is never reached,
/// and counts all charges.
pub(super) fn limits(store: RedisStore) -> RateLimiterBuilder {
    let builder = RateLimiter::builder().store(store);
    builder.limit(Limit::per_second(LIMIT)).limit(Limit::per_day(100_000_000))
}

/// A service with its own thread, so that its clients disturb it as little as possible.
pub(super) struct Service {
    pub(super) limiter: RateLimiter,
    pub(super) store: RedisStore,
    pub(super) log: Log,
    site: Site,
    stall: Arc<Stall>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Starts a service with the [`limits`] on `redis`, with the default settings.
    pub(super) fn start(redis: &RedisServer) -> Self {
        Self::with(redis, |store| store, |limits| limits)
    }

    /// Starts a service with long deadlines. Even on a busy machine, its store makes every
    /// decision.
    pub(super) fn patient(redis: &RedisServer) -> Self {
        let wait = |store: RedisStoreBuilder| store.connection_wait(GIVE_UP);
        Self::with(redis, wait, |limits| limits.deadline(GIVE_UP))
    }

    /// Starts a service with other settings.
    pub(super) fn with(
        redis: &RedisServer,
        store: impl FnOnce(RedisStoreBuilder) -> RedisStoreBuilder + Send + 'static,
        settings: impl FnOnce(RateLimiterBuilder) -> RateLimiterBuilder + Send + 'static,
    ) -> Self {
        let (ready, is_ready) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let url = url(redis);
        let thread = std::thread::spawn(move || {
            let (log, _until_the_end) = Log::capture_from(Level::INFO);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let store =
                    store(RedisStore::builder(&url).local_denial(false)).connect().await.unwrap();
                let limiter = settings(limits(store.clone())).build().unwrap();
                let site = Axum::serve(vec![
                    HttpLimiter::new(limiter.clone()).key(Identified).expose_decision(),
                ]);
                let stall = Stall::watch();
                ready.send((limiter, store, log, site, stall)).unwrap();
                let _ = stopped.await;
            });
        });
        let (limiter, store, log, site, stall) = is_ready.recv().expect("the service starts");
        Self { limiter, store, log, site, stall, stop: Some(stop), thread: Some(thread) }
    }

    pub(super) fn address(&self) -> String {
        self.site.url("").trim_start_matches("http://").to_owned()
    }

    /// Returns the charged units of each subject.
    pub(super) async fn charged(&self) -> Vec<u64> {
        let mut charged = Vec::new();
        for number in 0..subjects() {
            let usage = self.limiter.usage(&subject(number)).await.unwrap();
            charged.push(usage.limits().nth(1).unwrap().used());
        }
        charged
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))), "the service panicked");
    }
}

/// The longest time for which the machine did not run a task. Responses may be delayed by the same
/// time.
#[derive(Debug, Default)]
struct Stall(AtomicU64);

impl Stall {
    fn watch() -> Arc<Self> {
        const TICK: Duration = Duration::from_millis(2);

        let stall = Arc::<Self>::default();
        let watched = Arc::clone(&stall);
        tokio::spawn(async move {
            let mut ticks = interval(TICK);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                let due = ticks.tick().await;
                let late = u64::try_from(due.elapsed().as_micros()).unwrap();
                watched.0.fetch_max(late, Ordering::Relaxed);
            }
        });
        stall
    }

    fn take(&self) -> Duration {
        Duration::from_micros(self.0.swap(0, Ordering::Relaxed))
    }
}

/// The response to one request.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) subject: usize,
    /// The time at which the request was sent, since the load began.
    pub(super) sent: Duration,
    pub(super) took: Duration,
    pub(super) status: u16,
    /// The origin of the decision.
    pub(super) origin: String,
}

impl Answer {
    pub(super) fn is_by_store(&self) -> bool {
        self.origin == "store"
    }

    pub(super) fn passed(&self) -> bool {
        self.status == 200
    }
}

/// The numbers of requests that were sent, and that the store decided.
#[derive(Debug, Default)]
struct Progress {
    sent: AtomicUsize,
    by_store: AtomicUsize,
}

/// Requests at a constant [`rate`] over many connections, until they are stopped.
pub(super) struct Load {
    begun: Instant,
    progress: Arc<Progress>,
    stop: Arc<AtomicBool>,
    clients: JoinSet<io::Result<Vec<Answer>>>,
    stalls: Vec<Arc<Stall>>,
    _alone: MutexGuard<'static, ()>,
}

impl Load {
    /// Starts a load on several instances of a service, which receive the requests in turn.
    pub(super) async fn on(fleet: &[Service]) -> Self {
        let alone = ALONE.lock().await;
        let connections = rate() * EVERY.as_millis() as usize / 1_000;
        let mut streams = Vec::new();
        for service in fleet.iter().cycle().take(connections) {
            streams.push(TcpStream::connect(service.address()).await.unwrap());
        }
        let begun = Instant::now();
        let mut load = Self {
            begun,
            progress: Arc::default(),
            stop: Arc::default(),
            clients: JoinSet::new(),
            stalls: fleet.iter().map(|service| Arc::clone(&service.stall)).collect(),
            _alone: alone,
        };
        load.stalls.push(Stall::watch());
        for (number, connection) in streams.into_iter().enumerate() {
            let client = Client {
                begun,
                subject: number / fleet.len() % subjects(),
                connection: BufReader::new(connection),
                answers: Vec::new(),
            };
            let (progress, stop) = (Arc::clone(&load.progress), Arc::clone(&load.stop));
            let first = begun + EVERY * number as u32 / connections as u32;
            load.clients.spawn(client.ask(first, progress, stop));
        }
        for stall in &load.stalls {
            stall.take();
        }
        load
    }

    /// Returns the time since the load began.
    pub(super) fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Waits until requests have been sent for `tenths` tenths of a second.
    pub(super) async fn run_for_tenths(&self, tenths: usize) {
        self.run_for_requests(rate() * tenths / 10).await;
    }

    /// Waits until this number of further requests has been sent.
    pub(super) async fn run_for_requests(&self, requests: usize) {
        Self::run_for(&self.progress.sent, requests).await;
    }

    /// Waits until the store has decided this number of further requests.
    pub(super) async fn run_for_decisions(&self, requests: usize) {
        Self::run_for(&self.progress.by_store, requests).await;
    }

    async fn run_for(count: &AtomicUsize, requests: usize) {
        let until = count.load(Ordering::Relaxed) + requests;
        let going_on = async {
            let mut look = interval(Duration::from_millis(1));
            while count.load(Ordering::Relaxed) < until {
                look.tick().await;
            }
        };
        timeout(GIVE_UP, going_on).await.expect("the load goes on");
    }

    /// Stops the load, and waits until every request has got a response.
    pub(super) async fn finish(mut self) -> Report {
        self.stop.store(true, Ordering::Relaxed);
        let mut answers = Vec::new();
        while let Some(client) = self.clients.join_next().await {
            answers.append(&mut client.unwrap().expect("every request is answered"));
        }
        let took = self.begun.elapsed();
        answers.sort_by_key(|answer| answer.sent);
        let stall = self.stalls.iter().map(|stall| stall.take()).sum();
        Report { answers, took, stall }
    }
}

struct Client {
    begun: Instant,
    subject: usize,
    connection: BufReader<TcpStream>,
    answers: Vec<Answer>,
}

impl Client {
    async fn ask(
        mut self,
        first: Instant,
        progress: Arc<Progress>,
        stop: Arc<AtomicBool>,
    ) -> io::Result<Vec<Answer>> {
        let mut due = interval_at(first, EVERY);
        while !stop.load(Ordering::Relaxed) {
            due.tick().await;
            progress.sent.fetch_add(1, Ordering::Relaxed);
            let answer = self.ask_once().await?;
            progress.by_store.fetch_add(usize::from(answer.is_by_store()), Ordering::Relaxed);
            self.answers.push(answer);
        }
        Ok(self.answers)
    }

    async fn ask_once(&mut self) -> io::Result<Answer> {
        let asked = Instant::now();
        let request = request("/", self.subject);
        self.connection.get_mut().write_all(request.as_bytes()).await?;
        let (mut status, mut origin, mut length) = (0, String::new(), 0);
        let mut line = String::new();
        loop {
            line.clear();
            self.connection.read_line(&mut line).await?;
            let text = line.trim_end();
            if text.is_empty() {
                break;
            } else if let Some((name, value)) = text.split_once(": ") {
                match name {
                    "content-length" => length = value.parse().unwrap(),
                    "x-outer-sees" => origin = value.split(' ').next().unwrap().to_owned(),
                    _ => {}
                }
            } else {
                status = text.split(' ').nth(1).unwrap().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        self.connection.read_exact(&mut body).await?;
        let (sent, took) = (asked.duration_since(self.begun), asked.elapsed());
        Ok(Answer { subject: self.subject, sent, took, status, origin })
    }
}

pub(super) fn request(path: &str, subject: usize) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nx-consumer: c{subject}\r\n\r\n")
}

/// The responses of a load.
pub(super) struct Report {
    /// The responses, sorted by the time of their requests.
    pub(super) answers: Vec<Answer>,
    took: Duration,
    stall: Duration,
}

impl Report {
    pub(super) fn count(&self, is_such: impl Fn(&Answer) -> bool) -> usize {
        self.answers.iter().filter(|answer| is_such(answer)).count()
    }

    /// Returns for each subject how many of its requests the store allowed.
    pub(super) fn passed_by_store(&self) -> Vec<u64> {
        self.passed(|answer| answer.is_by_store())
    }

    /// Returns for each subject how many of its requests were allowed without the store.
    pub(super) fn passed_otherwise(&self) -> Vec<u64> {
        self.passed(|answer| !answer.is_by_store())
    }

    fn passed(&self, is_such: impl Fn(&Answer) -> bool) -> Vec<u64> {
        let mut passed = vec![0; subjects()];
        for answer in self.answers.iter().filter(|answer| answer.passed() && is_such(answer)) {
            passed[answer.subject] += 1;
        }
        passed
    }

    /// Asserts in a soak test that the rate was kept, and that every response arrived in time. On a
    /// machine that runs other tests, both depend on its load.
    pub(super) fn assert_in_time(&self) {
        if !is_soak() {
            return;
        }
        let sent = self.answers.len() as f64 / self.took.as_secs_f64();
        assert!(sent > rate() as f64 * 0.95, "{sent} requests per second");
        let slowest = self.answers.iter().max_by_key(|answer| answer.took).unwrap();
        assert!(slowest.took <= IN_TIME, "stalled {:?}, {slowest:?}", self.stall);
    }

    /// Asserts that the store allowed each subject at most its limit in each window that may have
    /// begun. `emptied` more windows began because counters were lost.
    pub(super) fn assert_limits(&self, emptied: u64) {
        let windows = self.windows() + emptied;
        for (subject, passed) in self.passed_by_store().iter().enumerate() {
            assert!(*passed <= windows * u64::from(LIMIT), "c{subject}: {passed} of {windows}");
        }
    }

    /// Returns how many windows of one second may have begun.
    pub(super) fn windows(&self) -> u64 {
        self.took.as_secs() + 2
    }

    /// Asserts that no request was charged twice. Returns the number of requests that were charged
    /// although the store's reply was lost.
    ///
    /// A subject is charged at least for the requests that the store allowed. It may also be
    /// charged for its requests without a reply, whether they were allowed or rejected: on a busy
    /// machine, a late reply is taken for an overload, and its request is rejected.
    pub(super) fn assert_charged_once(&self, charged: &[u64]) -> u64 {
        let passed = self.passed_by_store();
        let mut unanswered = 0;
        for (subject, charged) in charged.iter().enumerate() {
            let without_reply =
                |answer: &Answer| answer.subject == subject && !answer.is_by_store();
            let least = passed[subject];
            let most = least + self.count(without_reply) as u64;
            assert!((least..=most).contains(charged), "c{subject}: {charged} of {least} to {most}");
            unanswered += charged - least;
        }
        unanswered
    }

    /// Returns the time from `back`, when the server was running again, to the first decision of
    /// the store. If there is none, returns `Duration::MAX`.
    pub(super) fn recovery(&self, back: Duration) -> Duration {
        let mut after = self.answers.iter().filter(|answer| answer.sent >= back);
        let first = after.find(|answer| answer.is_by_store());
        first.map_or(Duration::MAX, |first| first.sent + first.took - back)
    }

    /// Asserts in a soak test that the store decided every request that was sent more than one
    /// second after `back`.
    pub(super) fn assert_recovered(&self, back: Duration) {
        if !is_soak() {
            return;
        }
        let limits_hold = back + Duration::from_secs(1);
        let mut after = self.answers.iter().filter(|answer| answer.sent > limits_hold).peekable();
        assert!(after.peek().is_some(), "the load has ended too early");
        let late = after.find(|answer| !answer.is_by_store());
        assert!(late.is_none(), "{late:?}, back at {back:?}");
    }

    /// Prints a line of the tables in REDIS.md.
    pub(super) fn print(&self, fault: &str, more: &str) {
        let took = |percent: usize| {
            let mut times: Vec<_> = self.answers.iter().map(|answer| answer.took).collect();
            times.sort_unstable();
            times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e3
        };
        let mut origins = BTreeMap::<_, usize>::new();
        for answer in &self.answers {
            *origins.entry(format!("{} {}", answer.origin, answer.status)).or_default() += 1;
        }
        let mut words = String::new();
        origins.iter().for_each(|(origin, n)| write!(words, ", {origin}: {n}").unwrap());
        let late = self.count(|answer| answer.took > IN_TIME);
        print_measurement(&format!(
            "{fault}: {} sent in {:.1} s, {late} late (50 % {:.1} ms, 99 % {:.1} ms, slowest {:.1} ms, \
             machine stalled {:.1} ms){words}{more}",
            self.answers.len(),
            self.took.as_secs_f64(),
            took(50),
            took(99),
            took(100),
            self.stall.as_secs_f64() * 1e3,
        ));
    }
}

/// Prints a measurement that the documentation quotes.
#[expect(clippy::print_stdout, reason = "shown by --nocapture")]
pub(super) fn print_measurement(figures: &str) {
    println!("figures | {figures}");
}
