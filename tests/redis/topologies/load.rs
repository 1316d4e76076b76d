//! Many requests while servers fail, and the results of all requests.

#![expect(clippy::print_stdout, reason = "the documentation quotes the figures")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rl_core::time::{Clock, SystemClock, Timestamp};
use rl_core::{Decision, FailureKind, Limit, Origin, RateLimiterBuilder, RedisStore, Subject};
use rl_tests::{Bystander, RedisServer, is_soak};
use tokio::sync::{Mutex, MutexGuard, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::PATIENCE;

/// The default deadline of a decision.
const DEADLINE: Duration = Duration::from_millis(100);

/// The longest acceptable time of a decision in a soak test: the deadline, and a delay of the
/// machine.
const IN_TIME: Duration = DEADLINE.saturating_add(Duration::from_millis(150));

/// A timer that fires with a longer delay than this shows that the machine is busy. The limiter
/// tolerates the same delay of its time-outs: an eighth of the deadline.
const LATE_TIMER: Duration = DEADLINE.checked_div(8).unwrap();

/// If a decision of a healthy server takes longer than this, the machine is busy with other work.
const STALL: Duration = Duration::from_millis(50);

/// Returns the number of subjects. Each of them sends about 150 requests per second.
pub(super) fn subjects() -> usize {
    if is_soak() { 20 } else { 4 }
}

/// The limit of a subject per second.
const PER_SECOND: u32 = 100;

/// The limit of a subject per hour. It is used up after the fail-over. Every count that the
/// fail-over loses therefore allows one more request.
const PER_HOUR: u32 = 240;

/// Returns the number of requests that are sent every five milliseconds. This makes six hundred per
/// second, or three thousand in a soak test.
fn at_once() -> usize {
    subjects() * 3 / 4
}

/// Requests at a constant rate, which continue while servers fail.
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    sent: watch::Receiver<usize>,
    /// The number of requests that the store has decided.
    decided: watch::Receiver<usize>,
    /// The subjects for which a store has decided that the limit of an hour is used up.
    exhausted: watch::Receiver<BTreeSet<usize>>,
    running: JoinHandle<Outcome>,
    // Only one load runs at a time. Two loads would disturb each other's measurements.
    _alone: MutexGuard<'static, ()>,
}

/// A decision and its subject, with the times at which the request was sent and the decision
/// arrived.
pub(super) struct Answer {
    pub(super) sent: Timestamp,
    pub(super) came: Timestamp,
    pub(super) subject: usize,
    pub(super) decision: Decision,
}

pub(super) fn subject(number: usize) -> Subject {
    Subject::consumer(&format!("load-{number}"))
}

/// Returns whether the store has found that nothing is left of the limit of an hour.
fn is_exhausted(decision: &Decision) -> bool {
    let hour = decision.limits().nth(1);
    decision.origin() == Origin::Store && hour.is_some_and(|status| status.remaining() == 0)
}

impl Load {
    /// Starts a load on a limiter with limits of [`PER_SECOND`] and [`PER_HOUR`].
    pub(super) async fn start(limiter: RateLimiterBuilder, store: RedisStore) -> Self {
        static ALONE: Mutex<()> = Mutex::const_new(());
        let alone = ALONE.lock().await;
        let limiter = limiter.limit(Limit::per_second(PER_SECOND)).limit(Limit::per_hour(PER_HOUR));
        let limiter = limiter.store(store).build().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (count, sent) = watch::channel(0);
        let (found, exhausted) = watch::channel(BTreeSet::new());
        let (by_store, decided) = watch::channel(0);
        let running = tokio::spawn(async move {
            let mut requests = JoinSet::new();
            let mut ticks = interval(Duration::from_millis(5));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let mut numbers = (0..subjects()).cycle();
            let mut stall = Duration::ZERO;
            while !stopped.load(Ordering::Relaxed) {
                stall = stall.max(ticks.tick().await.elapsed());
                count.send_modify(|sent| *sent += at_once());
                for number in numbers.by_ref().take(at_once()) {
                    let (limiter, found) = (limiter.clone(), found.clone());
                    let by_store = by_store.clone();
                    requests.spawn(async move {
                        let sent = SystemClock.now();
                        let decision = limiter.check(&subject(number), 1).await;
                        if decision.origin() == Origin::Store {
                            by_store.send_modify(|decided| *decided += 1);
                        }
                        if is_exhausted(&decision) {
                            found.send_if_modified(|subjects| subjects.insert(number));
                        }
                        Answer { sent, came: SystemClock.now(), subject: number, decision }
                    });
                }
            }
            let mut answers = requests.join_all().await;
            answers.sort_by_key(|answer| answer.sent);
            Outcome { answers, stall }
        });
        Self { stop, sent, decided, exhausted, running, _alone: alone }
    }

    /// Waits until the requests of this many seconds have been sent.
    pub(super) async fn run_for(&mut self, seconds: f64) {
        let now = *self.sent.borrow();
        let end = now + (seconds * 200.0) as usize * at_once();
        self.sent.wait_for(|sent| *sent >= end).await.unwrap();
    }

    /// Waits until the store has decided further requests: as many as are sent in `seconds`. On a
    /// busy machine, this takes longer than `seconds`.
    pub(super) async fn decide_for(&mut self, seconds: f64) {
        let now = *self.decided.borrow();
        let end = now + (seconds * 200.0) as usize * at_once();
        let decided = timeout(2 * PATIENCE, self.decided.wait_for(|decided| *decided >= end)).await;
        decided.expect("the store decides in the end").unwrap();
    }

    /// Waits until each subject has used up its limit per hour. Only then does a lost count show as
    /// a request above the limit. Then stops the load, and returns the outcomes in the order of
    /// sending.
    pub(super) async fn stop(mut self) -> Outcome {
        let are_exhausted = self.exhausted.wait_for(|found| found.len() == subjects());
        timeout(PATIENCE, are_exhausted).await.expect("the limits are used up").unwrap();
        self.stop.store(true, Ordering::Relaxed);
        self.running.await.unwrap()
    }
}

pub(super) struct Outcome {
    pub(super) answers: Vec<Answer>,
    /// The longest time for which the machine did not run the task that sends the requests.
    /// Decisions may be delayed by the same time.
    stall: Duration,
}

/// The measurements of a fail-over.
#[derive(Debug)]
pub(super) struct Figures {
    sent: usize,
    requests_per_second: f64,
    answered_in_time: usize,
    /// The number of requests that were allowed while no server could be reached.
    passed_without_limit: usize,
    /// The number of requests that were rejected as an overload, because this process got too
    /// little CPU time.
    rejected_as_overload: usize,
    above_the_limit: u64,
    /// The number of requests whose counts may be lost. The failed server allowed them after its
    /// replicas had last confirmed that they had received all counts.
    admitted_at_risk: u64,
    outage: Duration,
    after_promotion: Duration,
    /// Whether the machine was so busy that the limiter may take the outage for an overload. A late
    /// timer or a late decision shows this.
    was_late: bool,
    /// Whether the machine was too busy for the times to be meaningful.
    is_busy: bool,
}

/// The times of the steps of a fail-over.
pub(super) struct FailOver {
    /// The replicas have received all counts of decisions that arrived before this time.
    pub(super) replicated: Timestamp,
    /// The old primary had failed.
    pub(super) failed: Timestamp,
    /// Clients had stopped using the old primary.
    pub(super) left: Timestamp,
    /// The new primary was promoted.
    pub(super) promoted: Timestamp,
    /// The new primary made its first decision.
    pub(super) asked: Timestamp,
}

/// Waits until this number of replicas has received all counts of a primary. Returns the time at
/// which the wait began.
pub(super) async fn replicated(primary: &RedisServer, replicas: u32) -> Timestamp {
    let (mut operator, begun) = (Bystander::new(primary).await, SystemClock.now());
    // `WAIT` waits for the writes of its own connection, and so for all writes before them. This
    // write changes nothing, and needs no slot of a cluster. Redis before 7.0 has no functions, but
    // there any command serves as well.
    let has_functions = operator.query::<Vec<redis::Value>>("COMMAND INFO function").await;
    let has_functions = has_functions != [redis::Value::Nil];
    operator.query::<()>(if has_functions { "FUNCTION FLUSH" } else { "PING" }).await;
    let received: u32 = operator.query(&format!("WAIT {replicas} 0")).await;
    assert!(received >= replicas, "{received}");
    begun
}

impl Outcome {
    /// Computes the measurements.
    pub(super) fn figures(&self, times: &FailOver) -> Figures {
        let &FailOver { replicated, failed, left, promoted, asked } = times;
        let micros = Duration::from_micros;
        let took = |answer: &Answer| micros(answer.came.micros_since(answer.sent));
        let mut without = Vec::new();
        let mut rejected_as_overload = 0;
        for answer in &self.answers {
            match answer.decision.origin() {
                Origin::Store => {}
                Origin::FailedOpen(FailureKind::Unavailable | FailureKind::TimedOut) => {
                    without.push(answer.sent);
                }
                Origin::FailedClosed(FailureKind::Overloaded) => rejected_as_overload += 1,
                other => panic!("{other:?}"),
            }
        }
        let is_in_time = |answer: &&Answer| took(answer) <= IN_TIME;
        let mut before = self.answers.iter().take_while(|answer| answer.came < failed).map(took);
        let last = without.last().copied().unwrap_or(failed);
        let (begin, end) = (self.answers[0].sent, self.answers[self.answers.len() - 1].sent);
        let is_at_risk = |answer: &&Answer| {
            (answer.sent <= left && answer.came >= replicated)
                && answer.decision.origin() == Origin::Store
                && answer.decision.is_allowed()
        };
        Figures {
            sent: self.answers.len(),
            requests_per_second: self.answers.len() as f64
                / micros(end.micros_since(begin)).as_secs_f64(),
            answered_in_time: self.answers.iter().filter(is_in_time).count(),
            passed_without_limit: without.len(),
            rejected_as_overload,
            above_the_limit: self.above_the_limit(),
            admitted_at_risk: self.answers.iter().filter(is_at_risk).count() as u64,
            outage: micros(last.micros_since(failed)),
            after_promotion: micros(last.max(asked).micros_since(promoted)),
            was_late: self.stall > LATE_TIMER
                || self.answers.iter().any(|answer| took(answer) > DEADLINE + LATE_TIMER),
            is_busy: self.stall > STALL || before.any(|took| took > STALL),
        }
    }

    /// Returns how many requests the store allowed above the limit per second, or above the limit
    /// per hour if these are more.
    pub(super) fn above_the_limit(&self) -> u64 {
        let mut seconds = BTreeMap::<_, u64>::new();
        // No window of an hour ends during the test, so all requests of a subject count in one
        // window.
        let mut hours = BTreeMap::<_, u64>::new();
        for answer in &self.answers {
            let decision = &answer.decision;
            if decision.origin() == Origin::Store && decision.is_allowed() {
                let left = decision.limits().next().unwrap().reset_after();
                let end = decision.at().plus_micros(u64::try_from(left.as_micros()).unwrap());
                *seconds.entry((answer.subject, end)).or_default() += 1;
                *hours.entry(answer.subject).or_default() += 1;
            }
        }
        let (second, hour) = (u64::from(PER_SECOND), u64::from(PER_HOUR));
        let above = |windows: &mut dyn Iterator<Item = &u64>, max| {
            windows.map(|admitted| admitted.saturating_sub(max)).sum::<u64>()
        };
        above(&mut seconds.values(), second).max(above(&mut hours.values(), hour))
    }
}

impl Figures {
    /// Asserts the documented bounds of a fail-over.
    pub(super) fn assert_bounds(&self, what: &str) {
        let Self { sent, requests_per_second, answered_in_time, .. } = self;
        let Self { passed_without_limit, rejected_as_overload, above_the_limit, .. } = self;
        let Self { admitted_at_risk, .. } = self;
        let Self { outage, after_promotion, was_late, is_busy, .. } = self;
        println!(
            "{what}: {sent} sent at {requests_per_second:.0}/s, {answered_in_time} answered in \
             time, {passed_without_limit} passed without limit, {rejected_as_overload} rejected as \
             overload, {above_the_limit} above the limit \
             ({admitted_at_risk} at risk), outage {outage:?}, \
             {after_promotion:?} after the promotion"
        );
        // Only the counts at risk may be lost, however slow the replication is.
        assert!(above_the_limit <= admitted_at_risk, "{self:?}");
        if !is_soak() {
            return;
        }
        assert!(*rejected_as_overload == 0 || *was_late, "{self:?}");
        if *is_busy {
            println!("{what}: the machine is too busy for measuring time");
        } else {
            assert!(*requests_per_second >= 2_000.0, "{self:?}");
            assert_eq!(answered_in_time, sent, "{self:?}");
            assert!(*after_promotion < Duration::from_secs(1), "{self:?}");
        }
    }
}

/// Returns the time of the first decision on this server.
pub(super) async fn first_decision(server: &RedisServer) -> Timestamp {
    let mut operator = Bystander::new(server).await;
    let mut ticks = interval(Duration::from_millis(2));
    let asked = async {
        while !operator.calls().await.contains_key("evalsha") {
            ticks.tick().await;
        }
        SystemClock.now()
    };
    timeout(PATIENCE, asked).await.expect("a decision in the end")
}
