//! Tests of requests across slots. The slots are stores in memory whose calls are delayed and fail
//! at random.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use tokio::task::JoinSet;

use super::*;
use crate::model::{Limit, Subject};
use crate::policy::Policy;
use crate::store::memory::MemoryStore;
use crate::store::part_groups::PartGroups;
use crate::store::redis::give_back::REPEAT_FOR;
use crate::store::redis::test_layer::keyed;
use crate::store::{DecideRequest, Namespace, Part, Reservations, Store};
use crate::time::{ManualClock, Timestamp as Time};

/// Slots in memory. The slot of a subject is the first character of its id.
#[derive(Clone)]
struct TestSlots {
    stores: Arc<[MemoryStore<Arc<ManualClock>>; 4]>,
    state: Arc<Mutex<State>>,
}

struct State {
    random: u64,
    /// One of this number of calls fails; 0 means none.
    faults: u64,
    /// The slot and the mode of each call, in the order of arrival.
    calls: Vec<(usize, Mode)>,
    /// The units that were charged by calls whose replies were lost.
    lost: HashMap<Subject, u64>,
}

impl State {
    /// Returns a random number below `bound`, by xorshift.
    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound
    }

    fn fails(&mut self) -> bool {
        self.faults > 0 && self.below(self.faults) == 0
    }
}

fn slot_of(subject: &Subject) -> usize {
    usize::from(subject.id().as_bytes()[0] - b'0')
}

impl TestSlots {
    fn new(seed: u64, faults: u64) -> Self {
        let clock = Arc::new(ManualClock::at(Time::from_secs(1_000)));
        let store = |_| MemoryStore::builder().clock(clock.clone()).build();
        let state = State { random: seed + 1, faults, calls: Vec::new(), lost: HashMap::new() };
        Self { stores: Arc::new([0; 4].map(store)), state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    async fn delay(&self) {
        let steps = self.state().below(6);
        for _ in 0..steps {
            tokio::task::yield_now().await;
        }
    }

    /// Runs `execute` after a random delay. At random, the call fails before `execute` runs, or
    /// after it, as if the reply were lost.
    async fn call<T>(
        &self,
        execute: impl Future<Output = Result<T, StoreError>>,
        lose: impl FnOnce(&mut State, &T),
    ) -> Result<T, StoreError> {
        self.delay().await;
        let failure = StoreError::new(FailureKind::Unavailable);
        if self.state().fails() {
            return Err(failure.before_execution());
        }
        let result = execute.await?;
        let is_lost = self.state().fails();
        if is_lost {
            lose(&mut self.state(), &result);
            return Err(failure);
        }
        self.delay().await;
        Ok(result)
    }

    fn used(&self, subject: &Subject, policy: &Policy) -> u64 {
        let parts = [Part::new(subject, policy, Cost::ZERO)];
        let namespace = Namespace::default();
        let request = DecideRequest::new(&namespace, &parts, Mode::Peek);
        let MaybeReady::Ready(Some(Ok(usage))) = self.stores[slot_of(subject)].decide(request)
        else {
            panic!("a store in memory decides at once")
        };
        usage.limits().next().unwrap().used()
    }
}

fn part_of(part: &RequestPart) -> Part<'_> {
    let RequestPart { subject, policy, cost, is_shadow } = part;
    let part = Part::new(&subject.subject, policy, *cost);
    if *is_shadow { part.shadow() } else { part }
}

impl SlotCalls for TestSlots {
    fn decide(&self, request: Arc<Request>) -> StoreFuture<GroupDecisions> {
        let slot = |part: &RequestPart| slot_of(&part.subject.subject);
        let (this, mode, of_first) = (self.clone(), request.mode, slot(&request.parts[0]));
        assert!(request.parts.iter().all(|part| slot(part) == of_first));
        MaybeReady::later(async move {
            this.state().calls.push((of_first, mode));
            let execute = async {
                let parts: Vec<_> = request.parts.iter().map(part_of).collect();
                let namespace = Namespace::default();
                let request = DecideRequest::new(&namespace, &parts, mode);
                let decision = this.stores[of_first].decide(request).await?;
                Ok((0..parts.len()).filter_map(|index| decision.of_part(index)).collect())
            };
            let lose = |state: &mut State, decisions: &GroupDecisions| {
                for (part, decision) in request.parts.iter().zip(decisions) {
                    let subject = part.subject.subject.clone();
                    *state.lost.entry(subject).or_default() += decision.charged();
                }
            };
            this.call(execute, lose).await
        })
    }

    fn amend(&self, amendment: Amendment) -> StoreFuture<Vec<u8>> {
        assert!(amendment.is_refund(), "charges are given back by refunds");
        let this = self.clone();
        MaybeReady::later(async move {
            let Amendment { subject: keyed, policy, charged, units, .. } = &amendment;
            // The policies of these tests have one limit, which counts units.
            let refund = Refund {
                namespace: &keyed.namespace,
                subject: &keyed.subject,
                policy,
                charged: *charged,
                units: units[0].refunded,
                of: RefundOf::All,
                uncharged: LimitSet::default(),
            };
            let execute =
                async { this.stores[slot_of(&keyed.subject)].settle(&[refund.into()]).await };
            // If only the reply of a refund is lost, the refund was made, so no unit stays charged,
            // and there is nothing to record.
            this.call(execute, |_, _| {}).await.map(|_| Vec::new())
        })
    }
}

/// Creates the component with the default of the status wait.
fn across_slots(slots: &TestSlots, give_back: &GiveBack) -> AcrossSlots<TestSlots> {
    AcrossSlots::new(slots.clone(), give_back.clone(), Duration::from_millis(20))
}

fn test_part((subject, policy, cost, is_shadow): &TestPart) -> Part<'_> {
    let part = Part::new(subject, policy, Cost::new(*cost));
    if *is_shadow { part.shadow() } else { part }
}

struct Fixture {
    slots: TestSlots,
    give_back: GiveBack,
    across: AcrossSlots<TestSlots>,
}

/// A part of a request: the subject, its limit, the cost, and whether it is in shadow.
type TestPart = (Subject, Policy, u64, bool);

impl Fixture {
    fn new(seed: u64, faults: u64) -> Self {
        Self::of(TestSlots::new(seed, faults))
    }

    fn of(slots: TestSlots) -> Self {
        let give_back = GiveBack::new("test", Duration::from_secs(1));
        Self { across: across_slots(&slots, &give_back), slots, give_back }
    }

    /// Begins a request. Returns it when its last part is charged, and the others are not yet
    /// called.
    async fn charge_last_part(&self, parts: &[TestPart]) -> StoreFuture<Decision> {
        let mut request = self.decide(parts, Mode::Check);
        let (subject, policy, ..) = parts.last().unwrap();
        while self.slots.used(subject, policy) == 0 {
            assert!(tokio::time::timeout(Duration::ZERO, &mut request).await.is_err());
        }
        request
    }

    fn decide(&self, parts: &[TestPart], mode: Mode) -> StoreFuture<Decision> {
        let namespace = Namespace::default();
        let parts: Vec<_> = parts.iter().map(test_part).collect();
        let request = DecideRequest::new(&namespace, &parts, mode);
        let key = |namespace: &Namespace, subject: &Subject| keyed(namespace, subject).key;
        let grouped = PartGroups::new(&request, key).unwrap();
        let mut slots = [const { Slot::new_const() }; 4];
        let mut parts = smallvec![];
        for (index, group) in grouped.groups().iter().enumerate() {
            slots[slot_of(group.subject)].push(index);
            let subject = keyed(group.namespace, group.subject);
            let (policy, cost, is_shadow) = (group.policy.clone(), group.cost, group.is_shadow);
            parts.push(RequestPart { subject, policy, cost, is_shadow });
        }
        let slots = slots.into_iter().filter(|slot| !slot.is_empty()).collect();
        let request = Request { parts, mode, reservations: Reservations::Ignore };
        let join = grouped.join();
        let decided = self.across.decide(Arc::new(request), slots);
        decided.map(move |decided| Ok(join.decision(decided?.into_iter().collect())))
    }

    fn calls(&self) -> Vec<(usize, Mode)> {
        std::mem::take(&mut self.slots.state().calls)
    }

    /// Waits until no request and no refund is pending.
    async fn quiet(&self) {
        self.give_back.finish().await;
    }
}

fn per_hour(max: u32) -> Policy {
    Policy::new([Limit::per_hour(max)]).unwrap()
}

fn part(id: &str, max: u32, cost: u64) -> TestPart {
    (Subject::user(id), per_hour(max), cost, false)
}

fn used(decision: &Decision) -> Vec<Option<u64>> {
    decision.parts().map(|part| part.limits().next().map(|limit| limit.used())).collect()
}

#[tokio::test(start_paused = true)]
async fn a_denial_by_the_scarcest_part_charges_no_other_part() {
    let fixture = Fixture::new(1, 0);
    let parts = [part("0-fleet", 100, 1), part("1-key", 2, 1)];
    for _ in 0..2 {
        assert!(fixture.decide(&parts, Mode::Check).await.unwrap().is_allowed());
    }
    fixture.calls();
    let denied = fixture.decide(&parts, Mode::Check).await.unwrap();
    assert_eq!((denied.is_allowed(), denied.denying_part()), (false, Some(1)));
    assert_eq!(used(&denied), [Some(2), Some(2)], "the other part is reported, too");
    assert_eq!(fixture.calls(), [(1, Mode::Check), (0, Mode::Peek)]);
}

#[tokio::test(start_paused = true)]
async fn a_denial_by_a_later_part_gives_back_the_earlier_charges() {
    let fixture = Fixture::new(2, 0);
    let (key, fleet) = (part("1-key", 2, 1), part("0-fleet", 3, 1));
    // Another process uses up the fleet's limit. This process has not seen the limit since.
    let other = Fixture::of(fixture.slots.clone());
    let user = part("2-user", 9, 3);
    assert!(other.decide(&[user, part("0-fleet", 3, 3)], Mode::Check).await.unwrap().is_allowed());
    fixture.calls();
    let denied = fixture.decide(&[fleet.clone(), key.clone()], Mode::Check).await.unwrap();
    assert_eq!((denied.is_allowed(), denied.denying_part()), (false, Some(0)));
    assert_eq!(used(&denied), [Some(3), Some(0)]);
    assert_eq!(denied.parts().map(|part| part.charged()).sum::<u64>(), 0);
    let calls = [(1, Mode::Check), (0, Mode::Check), (1, Mode::Peek)];
    assert_eq!(fixture.calls(), calls, "the key has fewer units per hour than the fleet");
    // The replies to the previous request show that the fleet is the scarcest part, so it is
    // called first.
    assert!(!fixture.decide(&[fleet, key], Mode::Check).await.unwrap().is_allowed());
    assert_eq!(fixture.calls(), [(0, Mode::Check), (1, Mode::Peek)]);
}

#[tokio::test(start_paused = true)]
async fn plentiful_parts_are_charged_at_once() {
    let fixture = Fixture::new(3, 0);
    let parts = [part("0-fleet", 100, 1), part("1-key", 10, 1), part("2-user", 20, 1)];
    assert!(fixture.decide(&parts, Mode::Check).await.unwrap().is_allowed());
    assert_eq!(fixture.calls()[0], (1, Mode::Check), "unknown parts are charged in two stages");
    let mut future = fixture.decide(&parts, Mode::Check);
    for _ in 0..2 {
        assert!(tokio::time::timeout(Duration::ZERO, &mut future).await.is_err());
    }
    tokio::task::yield_now().await;
    assert_eq!(fixture.calls().len(), 3, "no call waits for the reply of another");
    assert!(future.await.unwrap().is_allowed());
}

#[tokio::test(start_paused = true)]
async fn a_check_up_to_the_cost_charges_each_part_what_all_parts_grant() {
    let fixture = Fixture::new(4, 0);
    let parts =
        [part("0-fleet", 7, 9), part("1-key", 5, 9), part("2-user", 3, 2), part("1-other", 9, 6)];
    let granted = fixture.decide(&parts, Mode::CheckUpTo).await.unwrap();
    assert!(granted.is_allowed());
    assert_eq!(granted.parts().map(|part| part.charged()).collect::<Vec<_>>(), [5, 5, 2, 5]);
    assert_eq!(used(&granted), [Some(5), Some(5), Some(2), Some(5)]);
    for (subject, policy, ..) in &parts {
        let used = fixture.slots.used(subject, policy);
        assert_eq!(used, if slot_of(subject) == 2 { 2 } else { 5 }, "{subject:?}");
    }
}

/// A part in shadow and a limit in shadow are charged as by a store that decides all parts at once:
/// the number of units that the enforced parts grant, or nothing.
#[tokio::test(start_paused = true)]
async fn a_check_up_to_the_cost_charges_shadow_once_the_common_number_is_known() {
    for seed in 0..100 {
        let fixture = Fixture::new(seed, 0);
        let clock = Arc::new(ManualClock::at(Time::from_secs(1_000)));
        let memory = MemoryStore::builder().clock(clock).build();
        let below = |most: u64| fixture.slots.state().below(most);
        let shadow_limit = Limit::per_minute(below(9) as u32 + 1).shadow();
        let limits = [Limit::per_hour(below(20) as u32 + 4), shadow_limit];
        let mut parts = vec![
            (Subject::user("0-mixed"), Policy::new(limits).unwrap(), 0, false),
            (Subject::user("1-key"), per_hour(below(20) as u32 + 4), 0, false),
            (Subject::user("2-shadow"), per_hour(below(12) as u32 + 1), 0, true),
            (Subject::user("3-user"), per_hour(below(20) as u32 + 4), 0, false),
            (Subject::user("3-shadow"), per_hour(below(12) as u32 + 1), 0, true),
        ];
        // One slot of a request has limits or parts in shadow beside enforced ones.
        parts.remove(if seed % 2 == 0 { 0 } else { 4 });
        for _ in 0..6 {
            for (_, _, cost, _) in &mut parts {
                *cost = below(9) + 1;
            }
            let namespace = Namespace::default();
            let all: Vec<_> = parts.iter().map(test_part).collect();
            let request = DecideRequest::new(&namespace, &all, Mode::CheckUpTo);
            let together = memory.decide(request).await.unwrap();
            let across = fixture.decide(&parts, Mode::CheckUpTo).await.unwrap();
            fixture.give_back.finish().await;
            let charged = |decision: &Decision| {
                let parts = decision.parts().map(|part| part.charged());
                (decision.is_allowed(), parts.collect::<Vec<_>>())
            };
            assert_eq!(charged(&across), charged(&together), "{seed}: {parts:?}");
            for (subject, policy, ..) in &parts {
                let peeked = [Part::new(subject, policy, Cost::ZERO)];
                let request = DecideRequest::new(&namespace, &peeked, Mode::Peek);
                let used = |decision: Decision| decision.limits().map(|l| l.used()).collect();
                let expected: Vec<_> = used(memory.decide(request).await.unwrap());
                let store = &fixture.slots.stores[slot_of(subject)];
                let of_slot: Vec<_> = used(store.decide(request).await.unwrap());
                assert_eq!(of_slot, expected, "{seed}: {subject:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_cancelled_between_its_calls_leaves_no_charge() {
    let fixture = Fixture::new(5, 0);
    let parts = [part("0-fleet", 100, 1), part("1-key", 10, 1)];
    drop(fixture.charge_last_part(&parts).await);
    fixture.quiet().await;
    assert_eq!(fixture.calls(), [(1, Mode::Check)], "the other slot is not called any more");
    for (subject, policy, ..) in &parts {
        assert_eq!(fixture.slots.used(subject, policy), 0, "{subject:?}");
    }
    assert_eq!(fixture.give_back.unreturned(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_closed_store_waits_until_charges_are_given_back() {
    let fixture = Fixture::new(5, 0);
    let parts = [part("0-fleet", 100, 1), part("1-key", 10, 1)];
    drop(fixture.charge_last_part(&parts).await);
    fixture.give_back.finish().await;
    assert_eq!(fixture.slots.used(&parts[1].0, &parts[1].1), 0);

    // If no refund can be executed, the store gives up after `REPEAT_FOR`, and counts the charge.
    let owed = fixture.charge_last_part(&parts).await;
    fixture.slots.state().faults = 1;
    drop(owed);
    let begun = tokio::time::Instant::now();
    fixture.quiet().await;
    assert!((REPEAT_FOR..2 * REPEAT_FOR).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    assert_eq!(fixture.give_back.unreturned(), 1);
}

/// Makes many requests at once, with random parts, costs, faults and cancellations. Then compares
/// the used units of each subject with those of the allowed requests.
#[tokio::test(start_paused = true)]
async fn no_part_exceeds_its_limit_and_only_lost_replies_leave_charges() {
    let (mut allowed_requests, mut lost_units, mut denied_requests) = (0, 0, 0);
    for seed in 0..300 {
        let faults = [0, 0, 12, 30][seed as usize % 4];
        let fixture = Arc::new(Fixture::new(seed, faults));
        let subjects: Vec<(Subject, Policy)> = (0..4)
            .flat_map(|slot| (0..2).map(move |number| format!("{slot}-{number}")))
            .map(|id| (Subject::user(&id), per_hour(fixture.slots.state().below(12) as u32 + 4)))
            .collect();
        let mut requests = JoinSet::new();
        for _ in 0..24 {
            let mut state = fixture.slots.state();
            let mut parts = Vec::new();
            for (subject, policy) in &subjects {
                if state.below(3) == 0 {
                    let is_shadow = state.below(8) == 0;
                    parts.push((subject.clone(), policy.clone(), state.below(4), is_shadow));
                }
            }
            let mode = if state.below(3) == 0 { Mode::CheckUpTo } else { Mode::Check };
            let patience = if state.below(6) == 0 { state.below(20) } else { u64::MAX };
            drop(state);
            if parts.is_empty() {
                continue;
            }
            let fixture = Arc::clone(&fixture);
            requests.spawn(async move {
                fixture.slots.delay().await;
                let mut future = fixture.decide(&parts, mode);
                for _ in 0..patience {
                    if let Ok(decided) = tokio::time::timeout(Duration::ZERO, &mut future).await {
                        return (parts, Some(decided));
                    }
                    tokio::task::yield_now().await;
                }
                (parts, None)
            });
        }
        let (mut allowed, mut cancelled) = (HashMap::<_, u64>::new(), HashMap::<_, u64>::new());
        for (parts, decided) in requests.join_all().await {
            match decided {
                Some(Ok(decision)) if decision.is_allowed() => {
                    allowed_requests += 1;
                    for ((subject, ..), part) in parts.iter().zip(decision.parts()) {
                        *allowed.entry(subject.clone()).or_default() += part.charged();
                    }
                }
                Some(Ok(decision)) => {
                    denied_requests += 1;
                    assert_eq!(decision.parts().map(|part| part.charged()).sum::<u64>(), 0);
                    assert!(decision.denying_part().is_some());
                }
                Some(Err(_)) => {}
                // A request that is cancelled after its last call stays charged.
                None => {
                    for (subject, _, cost, _) in parts {
                        *cancelled.entry(subject.clone()).or_default() += cost;
                    }
                }
            }
        }
        fixture.quiet().await;
        for (subject, policy) in &subjects {
            let of = |units: &HashMap<Subject, u64>| units.get(subject).copied().unwrap_or(0);
            let used = fixture.slots.used(subject, policy);
            let (allowed, cancelled) = (of(&allowed), of(&cancelled));
            let lost = of(&fixture.slots.state().lost);
            lost_units += lost;
            let max = policy.limits()[0].limit().max();
            assert!(allowed <= used && used <= max, "{seed}: {allowed} {used} {max}");
            assert!(
                used <= allowed + lost + cancelled,
                "{seed}: {used} {allowed} {lost} {cancelled}"
            );
        }
    }
    assert!(allowed_requests > 1_000 && denied_requests > 1_000 && lost_units > 100);
}
