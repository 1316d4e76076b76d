//! Requests of several parts: both twins decide them alike, and charge all parts or none.

use super::*;

/// The number of random requests on one timeline.
const REQUESTS_PER_TIMELINE: usize = 25;
const SUBJECTS: usize = 3;

/// A rule: its limits, and whether it is in shadow.
type Rule = (Policy, bool);

/// A part of a random request: the rule, the subject and the cost.
type RandomPart = (usize, usize, u64);

/// A random request: the time since the one before, the mode and the parts.
type Request = (i64, Mode, Vec<RandomPart>);

fn rules() -> impl Strategy<Value = Vec<Rule>> {
    let mixed = prop::collection::vec(limit(ALGORITHMS.to_vec()), 1..=5);
    let mixed =
        mixed.prop_filter_map("two limits that share a state", |limits| Policy::new(limits).ok());
    let simple = prop::sample::select(vec![
        "3/minute",
        "5/second",
        "7/minute:gcra",
        "20/minute:token-bucket:capacity=9",
        "6/hour:sliding-window-counter",
        "9/hour:clock",
        "4/minute:requests",
    ]);
    let simple = simple.prop_map(|limit| Policy::new([limit.parse().unwrap()]).unwrap());
    let policy = prop_oneof![2 => fixed_windows(), 2 => mixed, 3 => simple];
    prop::collection::vec((policy, prop::bool::weighted(0.15)), 1..=4)
}

/// Generates random requests. Their times never step back: the store in memory drops the states of
/// a subject when all have expired, and the tests let Redis keep them for longer.
fn requests() -> impl Strategy<Value = Vec<Request>> {
    let advance = prop_oneof![
        2 => Just(0_i64),
        4 => 0..3_000_000_i64,
        2 => 0..90_000_000_i64,
    ];
    let mode = prop_oneof![
        6 => Just(Mode::Check),
        2 => Just(Mode::CheckUpTo),
        1 => Just(Mode::Peek),
        1 => Just(Mode::Charge),
    ];
    let cost = prop_oneof![8 => 0..4_u64, 1 => 0..30_u64];
    let parts = prop::collection::vec((0..4_usize, 0..SUBJECTS, cost), 1..=5);
    prop::collection::vec((advance, mode, parts), 1..=REQUESTS_PER_TIMELINE)
}

impl Twins {
    async fn decide_parts(&self, timeline: u64, rules: &[Rule], (advance, mode, parts): &Request) {
        let now = self.clock.now().as_micros().saturating_add_signed(*advance);
        self.clock.set(Timestamp::from_micros(now));
        let subject = |index| Subject::consumer(&format!("{timeline}-{index}"));
        let subjects: Vec<_> = (0..SUBJECTS).map(subject).collect();
        let name = |index: usize| self.namespace.rule(&format!("rule-{index}")).unwrap();
        let namespaces: Vec<_> = (0..rules.len()).map(name).collect();
        let part = |(rule, subject, cost): &RandomPart| {
            let rule = rule % rules.len();
            let (policy, is_shadow) = &rules[rule];
            let part = Part::new(&subjects[*subject], policy, Cost::new(*cost));
            let part = part.with_namespace(&namespaces[rule]);
            if *is_shadow { part.shadow() } else { part }
        };
        let parts: Vec<_> = parts.iter().map(part).collect();
        let request = DecideRequest::new(&self.namespace, &parts, *mode);
        let (rust, lua) = (self.memory.decide(request).await, self.redis.decide(request).await);
        if is_refused(&rust) && is_refused(&lua) {
            return;
        }
        let (rust, lua) = (rust.unwrap(), lua.unwrap());
        assert_eq!(format!("{rust:#?}"), format!("{lua:#?}"), "{rules:?} {mode:?} {parts:?}");
        let charged: u64 = rust.parts().map(|part| part.charged()).sum();
        assert!(rust.is_allowed() || charged == 0, "{rust:?}");
    }
}

#[test]
fn requests_of_parts_are_decided_alike_in_memory_and_on_redis() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = RedisServer::start();
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)));
    let redis = RedisStore::builder(&server.url()).script_shapes(usize::MAX);
    let twins = Twins {
        memory: MemoryStore::builder().clock(clock.clone()).build(),
        redis: runtime.block_on(redis.manual_clock(clock.clone()).connect()).unwrap(),
        clock,
        namespace: Namespace::default(),
    };
    let timelines = u32::try_from(steps() / REQUESTS_PER_TIMELINE).unwrap();
    let config = Config { cases: timelines, failure_persistence: None, ..Config::default() };
    let number = std::cell::Cell::new(0_u64);
    TestRunner::new(config)
        .run(&(rules(), requests()), |(rules, requests)| {
            number.set(number.get() + 1);
            runtime.block_on(async {
                for request in &requests {
                    twins.decide_parts(number.get(), &rules, request).await;
                }
            });
            Ok(())
        })
        .unwrap();
}
