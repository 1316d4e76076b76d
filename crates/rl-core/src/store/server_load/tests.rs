use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::advance;

use super::replies::DRAINING;
use super::*;
use crate::model::FailureKind;

const DEADLINE: Duration = Duration::from_millis(100);
const BOUNDS: CallBounds = CallBounds { max_in_flight: 4_096, deadline: DEADLINE };

async fn pass(millis: u64) {
    advance(Duration::from_millis(millis)).await;
}

fn enter(load: &Arc<ServerLoad>, max_in_flight: usize) -> Result<ServerSlots, FullServer> {
    ServerLoads::from(load).enter(CallBounds { max_in_flight, ..BOUNDS })
}

fn bound(load: &ServerLoad) -> usize {
    load.bound(BOUNDS)
}

/// A server that answers `each_deadline` decisions within the time of one deadline. It answers all
/// of them in order, even those that have timed out.
struct Remote {
    load: Arc<ServerLoad>,
    each_deadline: usize,
    queue: VecDeque<Option<ServerSlots>>,
    in_time: usize,
    late: usize,
}

impl Remote {
    /// Simulates `clients` clients for `millis` milliseconds. Each of them sends a request again
    /// when its last one was answered or has timed out.
    async fn flood(&mut self, clients: usize, millis: usize) {
        (self.in_time, self.late) = (0, 0);
        for _ in 0..millis {
            pass(1).await;
            let answers = (self.each_deadline / 100).min(self.queue.len());
            for slots in self.queue.drain(..answers).flatten() {
                slots.finish();
                self.in_time += 1;
            }
            for slots in &mut self.queue {
                if let Some(late) = slots.take_if(|slots| slots.sent_at().elapsed() >= DEADLINE) {
                    assert_eq!(late.record_timeout(DEADLINE), FailureKind::Overloaded);
                    self.late += 1;
                }
            }
            for _ in self.load.in_flight()..clients {
                match enter(&self.load, 4_096) {
                    Ok(slots) => self.queue.push_back(Some(slots)),
                    Err(_) => break,
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_bound_follows_what_the_server_answers_within_the_deadline() {
    let (queue, load) = (VecDeque::new(), Arc::new(ServerLoad::of_decisions()));
    let mut remote = Remote { load, each_deadline: 0, queue, in_time: 0, late: 0 };
    for each_deadline in [1_000, 200, 3_000, 1_000] {
        remote.each_deadline = each_deadline;
        // During the first flood, the bound adapts, and the server finishes the calls that timed
        // out. Only the second flood is measured.
        remote.flood(20_000, 3_000).await;
        remote.flood(20_000, 1_000).await;
        let (bound, share) = (bound(&remote.load), remote.in_time * 10 / each_deadline);
        let least = each_deadline / 2;
        assert!((least..=each_deadline).contains(&bound), "{each_deadline}: {bound}");
        assert!(share >= 90, "{each_deadline}: {} answered, {} late", remote.in_time, remote.late);
    }
}

/// The server makes 60 of 200 decisions in time, then none for as long as the test lasts. It
/// answers other calls in the first seconds, or none.
#[tokio::test(start_paused = true)]
async fn a_bound_that_is_not_needed_for_some_seconds_is_lifted() {
    for answers_for in [0, 10] {
        let load = Arc::new(ServerLoad::new());
        std::mem::forget(load.begin_call());
        let mut waiting: Vec<_> = (0..200).flat_map(|_| enter(&load, 4_096)).collect();
        pass(100).await;
        load.record_reply();
        waiting.drain(..60).for_each(ServerSlots::finish);
        assert_eq!(waiting[0].record_timeout(DEADLINE), FailureKind::Overloaded);
        assert_eq!(bound(&load), 64);
        for _ in 0..answers_for {
            pass(1_000).await;
            load.record_reply();
            enter(&load, 4_096).unwrap_err();
        }
        // The server is silent, so these refusals do not renew the bound.
        for _ in 0..QUIET_PERIOD.as_millis() / 100 {
            enter(&load, 4_096).unwrap_err();
            pass(100).await;
        }
        enter(&load, 4_096).unwrap();
        assert_eq!(bound(&load), 4_096);
    }
}

/// The server makes 10 000 decisions per second.
#[tokio::test(start_paused = true)]
async fn limiters_with_different_deadlines_have_bounds_of_their_own_on_one_server() {
    let load = Arc::new(ServerLoad::of_decisions());
    let [quick, patient] = [20, 2_000].map(Duration::from_millis);
    let [quick, patient] = [quick, patient].map(|deadline| CallBounds { deadline, ..BOUNDS });
    let loads = ServerLoads::from(&load);
    let mut late: Vec<_> = (0..1_000).map(|_| loads.enter(quick).unwrap()).collect();
    pass(20).await;
    late.drain(..200).for_each(ServerSlots::finish);
    assert_eq!(late[0].record_timeout(quick.deadline), FailureKind::Overloaded);
    drop(late);
    pass(1_000).await;
    let waiting: Vec<_> = (0..1_000).flat_map(|_| loads.enter(quick)).collect();
    assert!(waiting.len() <= 400, "{}", waiting.len());
    loads.enter(patient).unwrap();
    assert_eq!(load.bound(patient), 4_096);
}

#[tokio::test(start_paused = true)]
async fn a_few_late_calls_shrink_nothing() {
    let load = Arc::new(ServerLoad::of_decisions());
    for _ in 0..10 {
        let late: Vec<_> = (0..10).flat_map(|_| enter(&load, 4_096)).collect();
        advance(DEADLINE * 3 / 4).await;
        for _ in 0..8 {
            enter(&load, 4_096).unwrap().finish();
        }
        advance(DEADLINE / 4).await;
        assert!(late.iter().all(|slots| slots.record_timeout(DEADLINE) == FailureKind::Overloaded));
    }
    assert_eq!(bound(&load), 4_096);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_gets_no_time_shrinks_nothing() {
    let load = Arc::new(ServerLoad::of_decisions());
    let late: Vec<_> = (0..1_000).flat_map(|_| enter(&load, 4_096)).collect();
    advance(DEADLINE * 3 / 4).await;
    // The calls time out late, because the operating system has suspended this process. Then the
    // replies that were waiting are read.
    advance(DEADLINE).await;
    (0..100).for_each(|_| enter(&load, 4_096).unwrap().finish());
    assert!(late.iter().all(|slots| slots.record_timeout(DEADLINE) == FailureKind::Overloaded));
    assert_eq!(bound(&load), 4_096);
}

#[tokio::test(start_paused = true)]
async fn the_time_by_which_a_timer_is_late_is_not_a_silence_of_the_server() {
    for (reply_at, verdict) in [(60, FailureKind::Overloaded), (0, FailureKind::TimedOut)] {
        let load = Arc::new(ServerLoad::new());
        let late = enter(&load, 4_096).unwrap();
        std::mem::forget(load.begin_call());
        pass(reply_at).await;
        load.record_reply();
        // The operating system suspends this process for 100 ms.
        pass(200 - reply_at).await;
        assert_eq!(late.record_timeout(DEADLINE), verdict, "{reply_at}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_slot_is_free_again() {
    let load = Arc::new(ServerLoad::of_decisions());
    let (first, second) = (enter(&load, 2).unwrap(), enter(&load, 2).unwrap());
    let refusal = enter(&load, 2).unwrap_err();
    assert_eq!((refusal.in_flight, refusal.bound), (2, 2));
    drop(first);
    let third = enter(&load, 2).unwrap();
    advance(DEADLINE).await;
    assert_eq!(second.record_timeout(DEADLINE), FailureKind::TimedOut, "nothing was ever answered");
    drop((second, third));
    assert_eq!((load.in_flight(), bound(&load)), (0, 4_096));
}

/// One server is silent, another one answers after 1 ms. The requests to both have every phase to
/// each other, for ten seconds each.
#[tokio::test(start_paused = true)]
async fn the_silence_of_one_server_is_an_outage_whenever_the_others_answer() {
    let [silent, other] = [(); 2].map(|()| Arc::new(ServerLoad::new()));
    for interval in [7, 10, 50, 51, 101] {
        for phase in 0..interval.min(10) {
            let (mut late, mut judged) = (VecDeque::<ServerSlots>::new(), 0);
            for milli in 0..10_000 / interval * interval {
                pass(1).await;
                if milli % 5 == 0 {
                    std::mem::forget(silent.begin_call());
                    late.push_back(enter(&silent, 4_096).unwrap());
                }
                if milli % interval == phase {
                    let slots = enter(&other, 4_096).unwrap();
                    let call = other.begin_call();
                    pass(0).await;
                    call.finish();
                    slots.finish();
                }
                while late.front().is_some_and(|slots| slots.sent_at().elapsed() >= DEADLINE) {
                    let slots = late.pop_front().unwrap();
                    assert_eq!(slots.record_timeout(DEADLINE), FailureKind::TimedOut);
                    judged += 1;
                }
            }
            assert!(judged > 1_900, "{judged}");
        }
    }
}

/// A server answers each call after 150 ms, so no decision is made in time. It replies at every
/// multiple of the interval, or once for each call.
#[tokio::test(start_paused = true)]
async fn a_server_that_answers_late_but_steadily_is_overloaded() {
    for interval in [1, 5, 10, 25, 49] {
        for phase in 0..interval.min(10) {
            let load = Arc::new(ServerLoad::new());
            let (mut late, mut judged) = (VecDeque::<ServerSlots>::new(), 0);
            for milli in 0..2_000 {
                pass(1).await;
                if milli % interval == phase {
                    late.push_back(enter(&load, 4_096).unwrap());
                    std::mem::forget(load.begin_call());
                    if milli >= 150 {
                        load.record_reply();
                    }
                }
                while late.front().is_some_and(|slots| slots.sent_at().elapsed() >= DEADLINE) {
                    let verdict = late.pop_front().unwrap().record_timeout(DEADLINE);
                    // Before its first reply, the server looks like one that is down.
                    assert!(milli < 200 || verdict == FailureKind::Overloaded, "{milli}");
                    judged += 1;
                }
            }
            assert!(judged > 1_800 / interval, "{judged}");
        }
    }
}

/// A thousand decisions are sent within 30 ms. The server is busy with the first of them.
#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_reply_at_the_start_of_a_flood_is_overloaded_for_a_second() {
    for idle in [0, 3_600_000] {
        let load = Arc::new(ServerLoad::new());
        for _ in 0..300 {
            enter(&load, 4_096).unwrap().finish();
            let call = load.begin_call();
            pass(10).await;
            call.finish();
        }
        pass(idle).await;
        std::mem::forget(load.begin_call());
        let mut flood = VecDeque::new();
        for _ in 0..20 {
            flood.extend((0..50).map(|_| enter(&load, 4_096).unwrap()));
            pass(1).await;
        }
        pass(80).await;
        for _ in 0..20 {
            for slots in flood.drain(..50) {
                assert_eq!(slots.record_timeout(DEADLINE), FailureKind::Overloaded);
            }
            pass(1).await;
        }
        // If the silence lasts, it is an outage, even if the flood continues.
        let flood: Vec<_> = (0..1_000).map(|_| enter(&load, 4_096).unwrap()).collect();
        pass(1_000).await;
        assert!(flood.iter().all(|slots| slots.record_timeout(DEADLINE) == FailureKind::TimedOut));
    }
}

/// The server makes 5 000 decisions per second, then none.
#[tokio::test(start_paused = true)]
async fn the_silence_of_a_server_under_its_usual_load_is_an_outage_from_the_first_time_out_on() {
    for answers_for in [1_000, 1_500, 2_999] {
        let load = Arc::new(ServerLoad::new());
        for _ in 0..answers_for {
            (0..5).for_each(|_| enter(&load, 4_096).unwrap().finish());
            load.begin_call().finish();
            pass(1).await;
        }
        let mut late = VecDeque::new();
        for _ in 0..3_000 {
            std::mem::forget(load.begin_call());
            late.extend((0..5).map(|_| enter(&load, 4_096).unwrap()));
            while late.front().is_some_and(|slots| slots.sent_at().elapsed() >= DEADLINE) {
                let verdict = late.pop_front().unwrap().record_timeout(DEADLINE);
                assert_eq!(verdict, FailureKind::TimedOut);
            }
            pass(1).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn only_refusals_of_a_server_that_answers_mark_it_as_behind() {
    let load = Arc::new(ServerLoad::new());
    let call = |load: &ServerLoad| std::mem::forget(load.begin_call());
    call(&load);
    load.record_reply();
    let late = enter(&load, 1).unwrap();
    pass(50).await;
    // The server has answered within the last 50 ms, so it is behind for a second. Later refusals
    // find it silent, and do not renew that time.
    enter(&load, 1).unwrap_err();
    pass(100).await;
    for elapsed in (100..DRAINING.as_millis()).step_by(100) {
        assert_eq!(late.record_timeout(DEADLINE), FailureKind::Overloaded, "{elapsed}");
        enter(&load, 1).unwrap_err();
        pass(100).await;
    }
    assert_eq!(late.record_timeout(DEADLINE), FailureKind::TimedOut);
    enter(&load, 1).unwrap_err();
    assert_eq!(late.record_timeout(DEADLINE), FailureKind::TimedOut, "not renewed");
}

/// The first server answers after 95 ms. The second one has been called for 5 ms only.
#[tokio::test(start_paused = true)]
async fn a_request_on_several_servers_is_judged_by_those_that_owe_it_a_reply() {
    let servers = [(); 2].map(|()| Arc::new(ServerLoad::new()));
    let both: ServerLoads<'_> = servers.iter().cloned().collect();
    let request = both.enter(BOUNDS).unwrap();
    let first = servers[0].begin_call();
    pass(95).await;
    first.finish();
    let second = servers[1].begin_call();
    pass(5).await;
    assert_eq!(request.record_timeout(DEADLINE), FailureKind::Overloaded);
    pass(100).await;
    assert_eq!(request.record_timeout(DEADLINE * 2), FailureKind::TimedOut);
    drop((second, request));
    assert!(servers.iter().all(|load| load.in_flight() == 0));
}

#[cfg(feature = "redis-cluster")]
#[tokio::test(start_paused = true)]
async fn a_failure_concerns_a_part_of_the_store_while_another_server_answers() {
    let group = Arc::new(ServerGroup::default());
    let runtime = tokio::runtime::Handle::current();
    let servers = [(); 2].map(|()| Arc::new(ServerLoad::in_group(&group, &runtime)));
    group.set(servers.iter().map(|load| Arc::downgrade(load.replies())).collect());
    let request = enter(&servers[0], 1).unwrap();
    assert!(!request.has_other_server(), "no server is connected");
    servers[1].record_connection();
    assert!(request.has_other_server());
    let owed = servers[1].begin_call();
    pass(51).await;
    assert!(!request.has_other_server(), "the other one is silent as well");
    owed.finish();
    assert!(request.has_other_server());
    servers[1].record_connection_failure();
    assert!(!request.has_other_server());
}

/// The only caller stops waiting, and a new call is sent. The server still owes the first reply.
#[tokio::test(start_paused = true)]
async fn a_call_after_an_abandoned_one_does_not_hide_the_silence_of_the_server() {
    let load = Arc::new(ServerLoad::new());
    let first = load.begin_call();
    pass(10).await;
    let queued = enter(&load, 2).unwrap();
    pass(60).await;
    drop(first);
    let _second = load.begin_call();
    pass(40).await;
    assert_eq!(queued.record_timeout(DEADLINE), FailureKind::TimedOut);
}
