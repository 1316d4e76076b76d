//! Requests of several parts: all are charged, or none.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;

use super::{HOUR, invented, is_allowed, ready, store, two};
use crate::decision::{Decision, RetryAfter};
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, FailureKind, Limit, Mode, Subject};
use crate::policy::{LimitSet, Policy};
use crate::store::memory::{MemoryStore, SHARDS};
use crate::store::{DecideRequest, Namespace, Part, Refund, RefundOf, Store};
use crate::time::{Clock, Timestamp};

fn decide<C: Clock>(store: &MemoryStore<C>, parts: &[Part<'_>], mode: Mode) -> Decision {
    static NAMESPACE: LazyLock<Namespace> = LazyLock::new(Namespace::default);
    ready(store.decide(DecideRequest::new(&NAMESPACE, parts, mode)))
}

fn used<C: Clock>(store: &MemoryStore<C>, part: Part<'_>) -> u64 {
    let usage = decide(store, &[Part { cost: Cost::ZERO, ..part }], Mode::Peek);
    usage.limits().next().unwrap().used()
}

/// The windows of one subject in the model: for each limit, the beginning of its window and the
/// used units.
type Windows = Vec<Option<(u64, u64)>>;

/// A part of a random request: the rule, the subject and the cost.
type RandomPart = (usize, usize, u64);

/// A model of the store, with fixed windows that begin with the first request. It grants a request
/// as a whole, or denies it.
#[derive(Default)]
struct Model(BTreeMap<(usize, usize), Windows>);

impl Model {
    /// Returns the used units of each limit of a subject at `now`.
    fn used(&self, rules: &[Rule], rule: usize, subject: usize, now: u64) -> Vec<u64> {
        let limits = rules[rule].limits.iter().enumerate();
        let windows = self.0.get(&(rule, subject));
        let open = |index: usize, seconds: u64| {
            let (begin, used) = windows?[index]?;
            (now < begin + seconds * 1_000_000).then_some(used)
        };
        limits.map(|(index, (_, seconds))| open(index, *seconds).unwrap_or(0)).collect()
    }

    /// Decides a request, and returns the units charged to each part; `None` if it is denied.
    fn decide(
        &mut self,
        rules: &[Rule],
        parts: &[RandomPart],
        mode: Mode,
        now: u64,
    ) -> Option<Vec<u64>> {
        let mut costs: BTreeMap<(usize, usize), u64> = BTreeMap::new();
        for (rule, subject, cost) in parts {
            *costs.entry((*rule, *subject)).or_default() += cost;
        }
        let available = |model: &Self, rule: usize, subject: usize| {
            let used = model.used(rules, rule, subject, now).into_iter();
            let limits = rules[rule].limits.iter().zip(used);
            limits.map(|((max, _), used)| max.saturating_sub(used)).min().unwrap_or(u64::MAX)
        };
        let scarce = |model: &Self| {
            let enforced = costs.iter().filter(|((rule, _), _)| !rules[*rule].is_shadow);
            let left =
                enforced.map(|((rule, subject), cost)| (available(model, *rule, *subject), cost));
            left.filter(|(left, cost)| left < cost).map(|(left, _)| left).min()
        };
        let common = match (mode, scarce(self)) {
            (Mode::Charge, _) | (_, None) => u64::MAX,
            (Mode::CheckUpTo, Some(left)) if left > 0 => left,
            _ => return None,
        };
        let mut charged = BTreeMap::new();
        for ((rule, subject), cost) in &costs {
            let units = common.min(*cost);
            let is_granted = units <= available(self, *rule, *subject) || mode == Mode::Charge;
            let units = if is_granted && mode != Mode::Peek { units } else { 0 };
            charged.insert((*rule, *subject), units);
            if units > 0 {
                let used = self.used(rules, *rule, *subject, now);
                let empty = || vec![None; rules[*rule].limits.len()];
                let windows = self.0.entry((*rule, *subject)).or_insert_with(empty);
                for (index, window) in windows.iter_mut().enumerate() {
                    let seconds = rules[*rule].limits[index].1;
                    let is_open =
                        window.is_some_and(|(begin, _)| now < begin + seconds * 1_000_000);
                    let begin = window.filter(|_| is_open).map_or(now, |(begin, _)| begin);
                    *window = Some((begin, used[index] + units));
                }
            }
        }
        let share = |(rule, subject, cost): &RandomPart| {
            let left = charged.get_mut(&(*rule, *subject)).unwrap();
            let share = (*left).min(*cost);
            *left -= share;
            share
        };
        Some(parts.iter().map(share).collect::<Vec<_>>())
    }
}

/// A rule with its limits, each as the maximum and the seconds of the period.
#[derive(Clone, Debug)]
struct Rule {
    limits: Vec<(u64, u64)>,
    is_shadow: bool,
}

impl Rule {
    fn policy(&self) -> Policy {
        let limit =
            |(max, seconds): &(u64, u64)| format!("{max}/{seconds}seconds").parse().unwrap();
        Policy::new(self.limits.iter().map(limit)).unwrap()
    }
}

/// Generates rules of one to nine windows, so that some records are packed and some are not.
fn rules() -> impl Strategy<Value = Vec<Rule>> {
    let periods = [1, 2, 3, 5, 7, 11, 13, 17, 60];
    let limits = prop::sample::subsequence(periods.to_vec(), 1..=9);
    let limits = limits.prop_flat_map(|periods| {
        let maxima = prop::collection::vec(1..12_u64, periods.len());
        maxima.prop_map(move |maxima| maxima.into_iter().zip(periods.clone()).collect())
    });
    let rule = (limits, prop::bool::weighted(0.2));
    let rule = rule.prop_map(|(limits, is_shadow)| Rule { limits, is_shadow });
    prop::collection::vec(rule, 1..4)
}

fn modes() -> impl Strategy<Value = Mode> {
    prop_oneof![
        6 => Just(Mode::Check),
        3 => Just(Mode::CheckUpTo),
        1 => Just(Mode::Peek),
        1 => Just(Mode::Charge),
    ]
}

proptest! {
    #[test]
    fn random_requests_of_parts_are_charged_whole_or_not_at_all(
        rules in rules(),
        steps in prop::collection::vec(
            (prop::collection::vec((0..3_usize, 0..3_usize, 0..5_u64), 1..=8), modes(), 0..3_000_u64),
            1..80,
        ),
    ) {
        let (store, clock) = store(10_000);
        let policies: Vec<_> = rules.iter().map(Rule::policy).collect();
        let name = |index: usize| Namespace::default().rule(&format!("rule-{index}")).unwrap();
        let namespaces: Vec<_> = (0..rules.len()).map(name).collect();
        let subjects = [0, 1, 2].map(invented);
        let mut model = Model::default();
        for (random, mode, millis) in steps {
            clock.advance(Duration::from_millis(millis));
            let random: Vec<_> =
                random.into_iter().map(|(rule, s, cost)| (rule % rules.len(), s, cost)).collect();
            let part = |(rule, subject, cost): &RandomPart| {
                let part = Part::new(&subjects[*subject], &policies[*rule], Cost::new(*cost));
                let part = part.with_namespace(&namespaces[*rule]);
                if rules[*rule].is_shadow { part.shadow() } else { part }
            };
            let parts: Vec<_> = random.iter().map(part).collect();
            let now = clock.now().as_micros();
            let expected = model.decide(&rules, &random, mode, now);
            let decision = decide(&store, &parts, mode);
            prop_assert_eq!(decision.is_allowed(), expected.is_some(), "{:?}", decision);
            let nothing = vec![0; parts.len()];
            let charged: Vec<_> = decision.parts().map(|part| part.charged()).collect();
            prop_assert_eq!(&charged, expected.as_ref().unwrap_or(&nothing));
            for ((rule, subject, _), part) in random.iter().zip(decision.parts()) {
                let used: Vec<_> = part.limits().map(|limit| limit.used()).collect();
                prop_assert_eq!(used, model.used(&rules, *rule, *subject, now));
            }
        }
    }
}

/// Limits of every kind. Some windows end and some buckets are full between the steps of a test.
const ANY_LIMITS: [&str; 12] = [
    "3/second",
    "9/2seconds:clock",
    "8/3seconds",
    "9/5seconds",
    "9/7seconds",
    "9/11seconds",
    "9/13seconds",
    "5/second:gcra:burst=3",
    "6/2seconds:token-bucket:refill=interval",
    "7/second:sliding-window-counter",
    "8/2seconds:sliding-window:precision=second",
    "6/second:sliding-log",
];

/// A denied request must not change any state, even where a refund of its charges would not restore
/// it: a window that a charge opens, a bucket that was full, an entry of a log, a place, and a new
/// subject.
#[test]
fn a_denied_request_leaves_no_trace_in_any_state() {
    let denied_by = ["1/week", "1/week:gcra", "1/week:sliding-log"];
    let limits = prop_oneof![
        4 => prop::sample::subsequence(ANY_LIMITS.to_vec(), 1..=4),
        1 => prop::sample::subsequence(ANY_LIMITS[..7].to_vec(), 7),
        1 => Just(vec!["2:concurrency:lease=2seconds", "9/second"]),
    ];
    let steps = prop::collection::vec((0..1_500_u64, 1..4_u64, 0..3_usize, any::<bool>()), 1..40);
    proptest!(|(limits in limits, steps in steps)| {
        let [(disturbed, its_clock), (other, other_clock)] = [store(1_000), store(1_000)];
        let policy = Policy::new(limits.iter().map(|limit| limit.parse().unwrap())).unwrap();
        let full = denied_by.map(|limit| Policy::new([limit.parse().unwrap()]).unwrap());
        let (subject, denying) = (invented(0), [1, 2, 3].map(invented));
        for (policy, one) in full.iter().zip(&denying) {
            assert!(is_allowed(&disturbed, policy, one));
        }
        for (millis, cost, by, comes_first) in steps {
            its_clock.advance(Duration::from_millis(millis));
            other_clock.advance(Duration::from_millis(millis));
            let part = Part::new(&subject, &policy, Cost::new(cost));
            let mut parts = [part, Part::new(&denying[by], &full[by], Cost::ONE)];
            if comes_first {
                parts.reverse();
            }
            prop_assert!(!decide(&disturbed, &parts, Mode::Check).is_allowed());
            let status = |store, mode| {
                let decision = decide(store, &[part], mode);
                let limits = decision.limits().map(|limit| {
                    (limit.used(), limit.reset_after(), limit.retry_after())
                });
                (decision.is_allowed(), decision.at(), limits.collect::<Vec<_>>())
            };
            for mode in [Mode::Peek, Mode::Check] {
                prop_assert_eq!(status(&disturbed, mode), status(&other, mode));
            }
        }
    });
}

#[test]
fn requests_of_known_subjects_allocate_nothing_allowed_or_denied() {
    let (store, _) = store(1_000);
    let policies = ["9000/hour", "9000/minute:gcra", "1/week"];
    let policies = policies.map(|limit| Policy::new([limit.parse().unwrap()]).unwrap());
    let subjects = [0, 1, 2].map(invented);
    let part = |index: usize| Part::new(&subjects[index], &policies[index], Cost::ONE);
    let allowed = [part(0), part(1)];
    let denied = [part(0), part(1), part(2)];
    let allocated = |parts: &[Part<'_>]| {
        allocation_counter::measure(|| drop(decide(&store, parts, Mode::Check))).count_total
    };
    // The first decisions allocate the entries, and the boxes that the thread recycles.
    assert_ne!(allocated(&denied) + allocated(&denied) + allocated(&allowed), 0);
    assert_eq!((allocated(&allowed), allocated(&denied)), (0, 0));
}

/// All parts of a request are judged and charged at the same time. This time is never before the
/// last change of a part.
#[test]
fn a_clock_that_steps_back_gives_all_parts_one_time() {
    let (store, clock) = store(1_000);
    let (policy, [one, other]) = (two(), [1, 2].map(invented));
    let late = clock.now().plus_micros(5_000_000);
    clock.set(late);
    assert!(is_allowed(&store, &policy, &one));
    clock.set(Timestamp::from_micros(late.as_micros() - 3_000_000));
    let parts = [&other, &one].map(|subject| Part::new(subject, &policy, Cost::ONE));
    let decision = decide(&store, &parts, Mode::Check);
    assert!(decision.is_allowed());
    let times: Vec<_> = (0..2).map(|index| decision.of_part(index).unwrap().at()).collect();
    assert_eq!(times, [late, late]);
    assert!(decision.parts().all(|part| {
        part.limits().all(|limit| limit.reset_after() == HOUR + Duration::from_secs(3))
    }));
}

#[test]
fn requests_that_no_store_can_decide_are_refused() {
    let (store, _) = store(1_000);
    let (two, three) = (two(), Policy::new([Limit::per_hour(3)]).unwrap());
    let subjects: Vec<_> = (0..9).map(invented).collect();
    let nine: Vec<_> = subjects.iter().map(|one| Part::new(one, &two, Cost::ONE)).collect();
    let unequal = [&two, &three].map(|policy| Part::new(&subjects[0], policy, Cost::ONE));
    for (parts, expected) in [
        (&[][..], "a request of 0 parts: expected 1 to 8"),
        (&nine, "a request of 9 parts: expected 1 to 8"),
        (&unequal, "part 1 counts the subject of another part in one namespace, but under other"),
    ] {
        let namespace = Namespace::default();
        let request = DecideRequest::new(&namespace, parts, Mode::Check);
        let MaybeReady::Ready(Some(Err(error))) = store.decide(request) else { panic!() };
        assert_eq!(error.kind(), FailureKind::Unsupported);
        assert!(error.detail().unwrap().starts_with(expected), "{error:?}");
    }
    assert!(store.is_empty());
}

/// In a store that is full of denied subjects, new subjects are counted in a shared entry. If that
/// entry denies one part of a request, the other parts must not stay charged.
#[test]
fn a_request_with_a_newcomer_that_finds_no_room_is_charged_whole_or_not_at_all() {
    let (store, _) = store(64);
    let policy = two();
    // After this loop, every shard holds a subject that is denied, and so cannot be evicted.
    for n in 0..5_000 {
        while is_allowed(&store, &policy, &invented(n)) {}
    }
    let known: Vec<_> = (0..5_000)
        .map(invented)
        .filter(|one| used(&store, Part::new(one, &policy, Cost::ZERO)) == 2)
        .collect();
    assert!(known.len() >= 64, "one for each shard");
    // Under this policy, each shared entry has room for eight units.
    let roomy = Policy::new([Limit::per_hour(8)]).unwrap();
    let mut allowed = 0;
    for n in 0..400 {
        let newcomers = [0, 1, 2].map(|part| Subject::consumer(&format!("{n}-{part}")));
        let parts = newcomers.each_ref().map(|one| Part::new(one, &roomy, Cost::new(3)));
        let before: u64 = parts.iter().map(|part| used(&store, *part)).sum();
        let decision = decide(&store, &parts, Mode::Check);
        let charged: Vec<_> = decision.parts().map(|part| part.charged()).collect();
        assert_eq!(charged, [if decision.is_allowed() { 3 } else { 0 }; 3]);
        assert_eq!(before, 0, "a peek of a newcomer reports an unused limit");
        allowed += u64::from(decision.is_allowed());
    }
    // Each of the 64 shared entries has room for two parts of three units. A request has three
    // parts.
    assert!((1..=64 * 2 / 3).contains(&allowed), "{allowed}");
    for one in &known {
        assert_eq!(used(&store, Part::new(one, &policy, Cost::ZERO)), 2);
    }
}

/// Returns the first `count` consumers whose entries are in the same shard.
fn consumers_of_one_shard<C: Clock>(store: &MemoryStore<C>, count: usize) -> Vec<Subject> {
    let namespace = Namespace::default();
    let shard = |one: &Subject| store.fingerprinter.fingerprint(&namespace, one).spread(SHARDS);
    let all = (0..).map(|n| Subject::consumer(&n.to_string()));
    all.filter(|one| shard(one) == 0).take(count).collect()
}

/// Fault: to make room for the new subject, the store removed the expired entry of the known one.
/// It then reported that the known subject was charged, although it was not.
#[test]
fn a_known_subject_is_charged_although_a_new_one_of_the_request_needs_room() {
    let (store, clock) = store(64);
    let policy = Policy::new([Limit::per_minute(1)]).unwrap();
    let [known, new] = consumers_of_one_shard(&store, 2).try_into().unwrap();
    assert!(is_allowed(&store, &policy, &known));
    clock.advance(Duration::from_secs(60));
    let parts = [&new, &known].map(|one| Part::new(one, &policy, Cost::ONE));
    assert!(decide(&store, &parts, Mode::Check).is_allowed());
    assert!(!is_allowed(&store, &policy, &known));
}

/// Faults: the denied request evicted a subject. When its charges were undone, units that another
/// request had charged to the shared entry were refunded too.
#[test]
fn a_denied_request_with_newcomers_changes_no_counter() {
    let (store, _) = store(64);
    let (small, roomy) = (two(), Policy::new([Limit::per_hour(8)]).unwrap());
    let subjects = consumers_of_one_shard(&store, 6);
    let part = |index: usize, cost| Part::new(&subjects[index], &roomy, Cost::new(cost));
    // The victim is the only subject of the shard, and has no units left. Therefore the next
    // subject is counted in the shared entry, and fills it.
    let victim = Part::new(&subjects[0], &small, Cost::ONE);
    let charged = decide(&store, &[Part { cost: Cost::new(2), ..victim }], Mode::Check);
    assert!(decide(&store, &[part(1, 8)], Mode::Check).is_allowed());
    assert_eq!(used(&store, part(1, 0)), 0, "it is counted in the shared entry");
    // Refund a unit of the victim, so that it may be evicted.
    let refund = Refund {
        namespace: &Namespace::default(),
        subject: victim.subject,
        policy: &small,
        charged: charged.at(),
        units: 1,
        of: RefundOf::All,
        uncharged: LimitSet::EMPTY,
    };
    ready(store.settle(&[refund.into()]));

    let denied = decide(&store, &[part(2, 1), part(3, 8), part(4, 1)], Mode::Check);
    assert!(!denied.is_allowed());
    assert_eq!((used(&store, victim), used(&store, part(3, 0))), (1, 0));
    // The victim uses its last unit. From now on it is denied, so it cannot be evicted, and a new
    // subject is counted in the shared entry, which is full.
    assert!(is_allowed(&store, &small, &subjects[0]));
    assert!(!decide(&store, &[part(5, 1)], Mode::Check).is_allowed());
}

/// Faults: the shared entry granted all units or none, and the statuses of the other parts said
/// that they never grant the request.
#[test]
fn a_check_up_to_is_granted_what_the_shared_entry_has_left() {
    let (store, _) = store(64);
    let (small, roomy) = (two(), Policy::new([Limit::per_hour(8)]).unwrap());
    let subjects = consumers_of_one_shard(&store, 5);
    let part = |index: usize, cost| Part::new(&subjects[index], &roomy, Cost::new(cost));
    decide(&store, &[Part::new(&subjects[0], &small, Cost::new(2))], Mode::Check);
    assert!(decide(&store, &[part(1, 3)], Mode::Check).is_allowed());
    for (costs, expected) in [([20, 3], [2, 2]), ([20, 20], [0, 0]), ([1, 0], [1, 0])] {
        let parts = [part(2, costs[0]), part(3, costs[1])];
        let decision = decide(&store, &parts, Mode::CheckUpTo);
        let charged: Vec<_> = decision.parts().map(|part| part.charged()).collect();
        assert_eq!(charged, expected, "{costs:?}");
        assert_ne!(decision.retry_after(), RetryAfter::Never, "{costs:?}");
    }
}

/// Fault: new subjects of one request that share an entry were judged apart if their policies
/// differ, so together they were charged more than the limit that both policies have.
#[test]
fn new_subjects_under_different_policies_share_what_the_shared_entry_has_left() {
    let (store, _) = store(64);
    let [eight, six] = [8, 6].map(|max| Policy::new([Limit::per_hour(max)]).unwrap());
    let subjects = consumers_of_one_shard(&store, 3);
    let full = two();
    decide(&store, &[Part::new(&subjects[0], &full, Cost::new(2))], Mode::Check);
    for (costs, is_allowed) in [([5, 4], false), ([4, 3], false), ([4, 2], true), ([1, 1], false)] {
        let parts = [(1, &eight), (2, &six)].map(|(index, policy): (usize, _)| {
            Part::new(&subjects[index], policy, Cost::new(costs[index - 1]))
        });
        assert_eq!(decide(&store, &parts, Mode::Check).is_allowed(), is_allowed, "{costs:?}");
    }
}

/// Fault: the states of new subjects that share an entry were counted apart. The last charge of a
/// request then failed, after the others had been made.
#[test]
fn a_request_with_too_many_states_for_the_shared_entry_charges_nothing() {
    let (store, _) = store(64);
    let policies = [0, 12, 24].map(|first| {
        let hours = first + 1..=first + 12;
        Policy::new(hours.map(|hours| format!("1/{hours}h").parse().unwrap())).unwrap()
    });
    let subjects = consumers_of_one_shard(&store, 4);
    let full = two();
    decide(&store, &[Part::new(&subjects[0], &full, Cost::new(2))], Mode::Check);
    let parts: Vec<_> =
        (0..3).map(|n| Part::new(&subjects[n + 1], &policies[n], Cost::ONE)).collect();
    let namespace = Namespace::default();
    let request = DecideRequest::new(&namespace, &parts, Mode::Check);
    let MaybeReady::Ready(Some(Err(error))) = store.decide(request) else {
        panic!("expected an error at once")
    };
    assert_eq!(error.kind(), FailureKind::Unsupported);
    assert!(decide(&store, &parts[..1], Mode::Check).is_allowed(), "nothing was charged");
}

#[test]
fn eight_threads_with_overlapping_parts_charge_exactly_the_allowed_requests() {
    const THREADS: usize = 8;
    const REQUESTS: usize = 4_000;
    const SUBJECTS: usize = 12;

    let (store, _) = store(10_000);
    let store = Arc::new(store);
    let policies = ["300/hour", "900/hour:gcra:burst=900", "700/hour:sliding-log"];
    let policies = policies.map(|limit| Policy::new([limit.parse().unwrap()]).unwrap());
    let names = ["a", "b", "c"].map(|name| Namespace::default().rule(name).unwrap());
    let subjects: Vec<_> = (0..SUBJECTS).map(invented).collect();
    let charged: Vec<[[u64; SUBJECTS]; 3]> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (store, policies, names, subjects) = (&store, &policies, &names, &subjects);
                scope.spawn(move || {
                    let mut charged = [[0; SUBJECTS]; 3];
                    let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(thread as u64 + 1);
                    let mut next = |below: usize| {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        (random >> 33) as usize % below
                    };
                    for _ in 0..REQUESTS {
                        let chosen: Vec<_> = (0..=next(8))
                            .map(|_| (next(3), next(SUBJECTS), next(3) as u64))
                            .collect();
                        let chosen = &chosen[..chosen.len().min(Part::MAX)];
                        let parts: Vec<_> = chosen
                            .iter()
                            .map(|(rule, subject, cost)| {
                                Part::new(&subjects[*subject], &policies[*rule], Cost::new(*cost))
                                    .with_namespace(&names[*rule])
                            })
                            .collect();
                        let decision = decide(store, &parts, Mode::Check);
                        for ((rule, subject, cost), part) in chosen.iter().zip(decision.parts()) {
                            let expected = if decision.is_allowed() { *cost } else { 0 };
                            assert_eq!(part.charged(), expected);
                            charged[*rule][*subject] += expected;
                        }
                    }
                    charged
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (rule, policy) in policies.iter().enumerate() {
        for (subject, of_subject) in subjects.iter().enumerate() {
            let total: u64 = charged.iter().map(|charged| charged[rule][subject]).sum();
            let part = Part::new(of_subject, policy, Cost::ZERO).with_namespace(&names[rule]);
            assert_eq!(used(&store, part), total, "{policy} {subject}");
            assert!(total <= policy.limits()[0].limit().capacity());
        }
    }
}
