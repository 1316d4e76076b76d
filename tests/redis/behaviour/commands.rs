//! The commands that the server executes for each decision.

use std::collections::BTreeMap;

use rl_core::store::Layout;
use rl_core::{Cost, Limit, Origin, Part, PartStatus, Policy, RedisStore, Subject};
use rl_tests::{Bystander, RedisServer};

use super::{check, limiter, six_limits, store_of, used};

/// Returns how often each command was called since `before`, except for the `INFO` of the
/// bystander.
async fn commands_since(
    operator: &mut Bystander,
    before: &BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
    let mut since = operator.calls().await;
    for (command, calls) in before {
        if let Some(count) = since.get_mut(command) {
            *count -= calls;
        }
    }
    since.retain(|command, calls| command != "info" && *calls > 0);
    since
}

fn commands(counts: &[(&str, u64)]) -> BTreeMap<String, u64> {
    let counts = counts.iter();
    counts.map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

/// Each decision on all six periods takes one call of `EVALSHA`, which runs four commands. Nothing
/// else is sent, not even a `PING`.
#[tokio::test]
async fn a_decision_is_one_script_call_of_four_commands() {
    const DECISIONS: u64 = 5_000;

    let server = RedisServer::start();
    let store = store_of(&server, Layout::Packed).await;
    let generous = limiter(&store, &six_limits());
    let strict = limiter(&store, &six_limits().map(|limit| Limit::new(1, limit.period()).unwrap()));
    let mut operator = Bystander::new(&server).await;
    let subject = Subject::user("alice");
    assert!(check(&generous, &subject).await.is_allowed());

    let before = operator.calls().await;
    for _ in 0..DECISIONS {
        assert!(check(&generous, &subject).await.is_allowed());
    }
    let mut since = commands_since(&mut operator, &before).await;
    // If the server has to wait for a processor between TIME and PTTL, it finds a shorter expiry
    // than it expects, and sets it again.
    let set_again = since.remove("set").unwrap_or(0);
    assert!(set_again <= DECISIONS / 50, "{set_again} expiries were set again");
    assert_eq!(
        since,
        commands(&[
            ("evalsha", DECISIONS),
            ("time", DECISIONS),
            ("get", DECISIONS),
            // The end of the month is the expiry of the key, and no charge changes it.
            ("pttl", DECISIONS),
            ("setrange", DECISIONS - set_again),
        ])
    );

    let before = operator.calls().await;
    for _ in 0..DECISIONS {
        assert!(!check(&strict, &subject).await.is_allowed());
    }
    assert_eq!(
        commands_since(&mut operator, &before).await,
        commands(&[
            ("evalsha", DECISIONS),
            ("time", DECISIONS),
            ("get", DECISIONS),
            ("pttl", DECISIONS),
        ])
    );
    assert_eq!(operator.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn a_decision_in_the_readable_layout_is_one_script_call() {
    const DECISIONS: u64 = 500;

    let server = RedisServer::start();
    let store = store_of(&server, Layout::Readable).await;
    // There is no limit per second, because its window would end during the test.
    let limiter = limiter(&store, &six_limits()[1..]);
    let mut operator = Bystander::new(&server).await;
    let subject = Subject::user("alice");
    assert!(check(&limiter, &subject).await.is_allowed());

    let before = operator.calls().await;
    for _ in 0..DECISIONS {
        assert!(check(&limiter, &subject).await.is_allowed());
    }
    let since = commands_since(&mut operator, &before).await;
    assert_eq!(since["evalsha"], DECISIONS, "{since:?}");
    for (command, calls) in &since {
        let most = match &**command {
            "evalsha" | "mget" => DECISIONS,
            // The script reads the clock once or twice in each call.
            "time" => 2 * DECISIONS,
            "get" | "pttl" | "incrby" => 5 * DECISIONS,
            _ => 0,
        };
        assert!(*calls <= most, "{command}: {since:?}");
    }
    assert_eq!(operator.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn usage_and_peeks_write_nothing() {
    let server = RedisServer::start();
    let mut operator = Bystander::new(&server).await;
    for layout in super::LAYOUTS {
        operator.query::<()>("FLUSHALL").await;
        let store = store_of(&server, layout).await;
        let limiter = limiter(&store, &[Limit::per_minute(2), Limit::per_hour(9)]);
        let (known, unknown) = (Subject::user("known"), Subject::user("unknown"));
        check(&limiter, &known).await;

        let (contents, expiries) = super::denials::snapshot(&mut operator).await;
        let before = operator.calls().await;
        for subject in [&known, &unknown] {
            for cost in 0..4 {
                limiter.peek(subject, cost).await;
            }
            limiter.usage(subject).await.unwrap();
            limiter.check(subject, 0).await;
        }
        let since = commands_since(&mut operator, &before).await;
        let reading = ["evalsha", "time", "get", "pttl"];
        assert!(since.keys().all(|command| reading.contains(&&**command)), "{layout:?}: {since:?}");
        // Ten of the twelve requests call the server. The two peeks of three units need no call,
        // because a limit of two per minute never grants them.
        assert_eq!(since["evalsha"], 10);
        let (contents_after, expiries_after) = super::denials::snapshot(&mut operator).await;
        assert_eq!(contents_after, contents, "{layout:?}");
        assert!(expiries_after <= expiries, "{layout:?}");
    }
}

/// Lua limits the number of variables in a function. A policy that needs more variables is decided
/// by the script for all policies.
#[tokio::test]
async fn the_longest_policies_are_decided_and_their_scripts_can_be_loaded() {
    let server = RedisServer::start();
    let store = store_of(&server, Layout::Packed).await;
    let mut operator = Bystander::new(&server).await;
    let window = |hours: usize| format!("3/{hours}h:sliding-window:precision={}m", 6 * hours);
    let policies: [Vec<String>; 4] = [
        (1..=16).map(window).collect(),
        (1..=14).map(window).collect(),
        (1..=6).map(|hours| format!("3/{hours}h:sliding-log")).chain((1..=6).map(window)).collect(),
        (1..=6).map(|hours| format!("3:concurrency:lease={hours}h")).collect(),
    ];
    for (number, limits) in policies.iter().enumerate() {
        let limits: Vec<Limit> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
        let policy = Policy::new(limits.clone()).unwrap();
        for script in RedisStore::scripts(Layout::Packed, [&policy]) {
            let mut load = redis::cmd("SCRIPT");
            let sha: String = operator.send(load.arg("LOAD").arg(script.text())).await;
            assert_eq!(sha, script.sha(), "{}", script.name());
        }
        let limiter = limiter(&store, &limits);
        let subjects = [1, 2].map(|n| Subject::user(&format!("user-{number}-{n}")));
        let mut allowed = 0;
        for _ in 0..4 {
            // The two requests are in flight together, so they may share a call.
            let (one, two) = (check(&limiter, &subjects[0]), check(&limiter, &subjects[1]));
            for decision in <[_; 2]>::from(tokio::join!(one, two)) {
                assert_eq!(decision.origin(), Origin::Store, "policy {number}");
                allowed += u32::from(decision.is_allowed());
            }
        }
        assert_eq!(allowed, 6, "policy {number}");
    }
}

/// An operator loads the scripts that `RedisStore::scripts` and `scripts_of_parts` list. They are
/// enough for requests of several parts, alone and in batches.
#[tokio::test]
async fn listed_scripts_decide_requests_of_parts_without_loading_others() {
    let server = RedisServer::start();
    let policy = |limits: &[&str]| Policy::new(limits.iter().map(|l| l.parse().unwrap())).unwrap();
    let (of_key, of_fleet) = (policy(&["9/minute", "90/day"]), policy(&["900/day:clock"]));
    let listed = RedisStore::scripts_of_parts([[&of_key, &of_fleet]]);
    assert_eq!(listed.len(), 1);
    let mut operator = Bystander::new(&server).await;
    for script in RedisStore::scripts(Layout::Packed, []).into_iter().chain(listed) {
        let mut load = redis::cmd("SCRIPT");
        let sha: String = operator.send(load.arg("LOAD").arg(script.text())).await;
        assert_eq!(sha, script.sha(), "{}", script.name());
    }
    let store = store_of(&server, Layout::Packed).await;
    let limiter = limiter(&store, &[Limit::per_hour(1)]);
    // The first call loads the scripts that do not depend on the policy.
    check(&limiter, &Subject::user("first")).await;
    let loaded = server.script_loads().await;
    let fleet = limiter.namespace().rule("fleet").unwrap();
    let (subjects, all) = ([1, 2, 3].map(|n| Subject::user(&n.to_string())), Subject::global());
    let parts = |key| {
        let of_fleet = Part::new(&all, &of_fleet, Cost::ONE).with_namespace(&fleet);
        [Part::new(key, &of_key, Cost::ONE), of_fleet]
    };
    for key in &subjects {
        assert_eq!(limiter.request(&parts(key)).check().await.origin(), Origin::Store);
    }
    let together = subjects.iter().cycle().take(24).map(|key| limiter.request(&parts(key)).check());
    for decision in futures::future::join_all(together).await {
        assert_eq!(decision.origin(), Origin::Store);
    }
    let usage = limiter.request(&parts(&all)[1]).usage().await.unwrap();
    assert_eq!(usage.limits().map(|limit| limit.used()).collect::<Vec<_>>(), [27]);
    assert_eq!(server.script_loads().await, loaded, "another script was loaded");
}

/// Fault: some scripts for parts with many sliding windows needed more registers than a function in
/// Lua has. The server refused them, and a store that preloaded them opened no connection.
#[tokio::test]
async fn the_server_compiles_the_scripts_of_all_lists_of_parts() {
    let server = RedisServer::start();
    let suffixes = [
        "",
        ":clock",
        ":sliding-window-counter",
        ":sliding-window:precision=hour",
        ":gcra",
        ":token-bucket:refill=interval",
        ":requests",
    ];
    let policy = |suffix: &str, limits: u64| {
        let limit = |hours| format!("9/{hours}hours{suffix}").parse::<Limit>().unwrap();
        Policy::new((1..=limits).map(limit)).unwrap()
    };
    let windows = [1, 2, 8, 14, 16].map(|limits| policy("", limits));
    let mut lists = Vec::new();
    for suffix in suffixes {
        let policies = [8, 12, 13, 14, 15, 16].map(|limits| policy(suffix, limits));
        for (of_key, of_all) in
            policies.iter().flat_map(|one| windows.iter().map(move |w| (one, w)))
        {
            lists.push(vec![of_key.clone(), of_all.clone()]);
            lists.push(vec![of_all.clone(), of_key.clone(), windows[0].clone()]);
        }
    }
    let scripts = RedisStore::scripts_of_parts(&lists);
    assert!(scripts.len() > 100, "{} scripts", scripts.len());
    let store = server.patient_store().connections(1).preload(scripts).connect().await.unwrap();
    let limiter = limiter(&store, &[Limit::per_hour(1)]);
    assert_eq!(check(&limiter, &Subject::user("first")).await.origin(), Origin::Store);
}

/// A store that preloads the scripts of rules needs no other script for requests under them.
#[tokio::test]
async fn preloaded_scripts_decide_requests_under_rules_without_loading_others() {
    let server = RedisServer::start();
    let login = Policy::new([Limit::per_minute(5)]).unwrap();
    let fleet = Policy::new([Limit::per_second(50), Limit::per_day(5_000)]).unwrap();
    let lists = [vec![login, fleet.clone()], vec![fleet]];
    let scripts = RedisStore::scripts_of_parts(&lists);
    let store = server.patient_store().connections(1).preload(scripts.clone());
    let store = store.connect().await.unwrap();
    let limiter = limiter(&store, &[Limit::per_hour(1)]);
    // Connecting has tested the server on a separate connection. This call opens the connection of
    // the pool. Both load the scripts.
    check(&limiter, &Subject::user("first")).await;
    let loaded = server.script_loads().await;
    let of_layout = RedisStore::scripts(Layout::Packed, []);
    assert!(loaded >= (of_layout.len() + scripts.len()) as u64, "{loaded}");
    let (rules, all) = (["login", "fleet"], Subject::global());
    let namespaces = rules.map(|rule| limiter.namespace().rule(rule).unwrap());
    for list in &lists {
        let parts = list.iter().zip(&namespaces[2 - list.len()..]).map(|(policy, namespace)| {
            Part::new(&all, policy, Cost::ONE).with_namespace(namespace)
        });
        let parts: Vec<_> = parts.collect();
        let together = (0..3).map(|_| limiter.request(&parts).check());
        for decision in futures::future::join_all(together.collect::<Vec<_>>()).await {
            assert_eq!(decision.origin(), Origin::Store);
        }
    }
    assert_eq!(server.script_loads().await, loaded, "another script was loaded");
}

/// The usage of several parts takes one call, and so does their reset.
#[tokio::test]
async fn the_usage_and_the_reset_of_several_parts_take_one_call_each() {
    let server = RedisServer::start();
    let policy = |limits: &[&str]| Policy::new(limits.iter().map(|l| l.parse().unwrap())).unwrap();
    for layout in super::LAYOUTS {
        let (of_key, of_fleet) = match layout {
            Layout::Readable => (policy(&["9/minute", "90/day"]), policy(&["900/hour"])),
            _ => (policy(&["9/minute", "90/day:sliding-log"]), policy(&["900/hour"])),
        };
        let store = store_of(&server, layout).await;
        let limiter = limiter(&store, &[Limit::per_hour(1)]);
        let fleet = limiter.namespace().rule("fleet").unwrap();
        let (subjects, all) = ([1, 2].map(|n| Subject::user(&n.to_string())), Subject::global());
        let of_key = |key| Part::new(key, &of_key, Cost::ONE);
        let of_fleet = Part::new(&all, &of_fleet, Cost::ONE).with_namespace(&fleet);
        for key in &subjects {
            let decision = limiter.request(&[of_key(key), of_fleet]).check().await;
            assert!(decision.is_allowed(), "{layout:?}");
        }
        // The list contains one part twice. Both of its entries have the same status.
        let parts = [of_key(&subjects[0]), of_key(&subjects[1]), of_fleet, of_fleet];
        let used = async || {
            let usage = limiter.request(&parts).usage().await.unwrap();
            let used = |part: PartStatus<'_>| part.limits().map(|limit| limit.used()).collect();
            usage.parts().map(used).collect::<Vec<Vec<u64>>>()
        };
        assert_eq!(used().await, [vec![1, 1], vec![1, 1], vec![2], vec![2]], "{layout:?}");
        let mut operator = Bystander::new(&server).await;
        let before = operator.calls().await;
        used().await;
        assert_eq!(commands_since(&mut operator, &before).await.get("evalsha"), Some(&1));
        let before = operator.calls().await;
        limiter.request(&parts).reset().await.unwrap();
        let calls = commands_since(&mut operator, &before).await;
        let evalsha = if layout == Layout::Readable { None } else { Some(&1) };
        assert_eq!(calls.get("evalsha"), evalsha, "{layout:?}");
        assert_eq!(used().await, [vec![0, 0], vec![0, 0], vec![0], vec![0]], "{layout:?}");
        // Fault: one call reset any number of subjects, and blocked the server meanwhile.
        let before = operator.calls().await;
        limiter.request(&[of_key(&subjects[0]); 300]).reset().await.unwrap();
        let calls = commands_since(&mut operator, &before).await;
        let name = if layout == Layout::Readable { "unlink" } else { "evalsha" };
        assert_eq!(calls.get(name), Some(&3), "{layout:?} {calls:?}");
        limiter.request(&[]).reset().await.unwrap();
        assert_eq!(limiter.request(&[]).usage().await.unwrap().limits().count(), 0);
    }
}

/// A server may lose its scripts through a restart, a fail-over or `SCRIPT FLUSH`. They are loaded
/// again. No call fails, and none is counted twice.
#[tokio::test]
async fn no_call_and_no_count_is_lost_when_scripts_are_flushed_under_load() {
    const CALLERS: usize = 8;
    const CALLS: usize = 500;
    const LIMIT: u32 = 3_000;

    let server = RedisServer::start();
    for layout in super::LAYOUTS {
        let store = store_of(&server, layout).await;
        let limiter = limiter(&store, &[Limit::per_hour(LIMIT), Limit::per_day(LIMIT + 1)]);
        let subject = Subject::user(&format!("{layout:?}"));
        let (answered, mut answers) = tokio::sync::mpsc::unbounded_channel();
        for _ in 0..CALLERS {
            let (limiter, subject, answered) = (limiter.clone(), subject.clone(), answered.clone());
            tokio::spawn(async move {
                for _ in 0..CALLS {
                    answered.send(limiter.check(&subject, 1).await).unwrap();
                }
            });
        }
        drop(answered);

        let mut operator = Bystander::new(&server).await;
        let (mut count, mut allowed) = (0, 0);
        while let Some(decision) = answers.recv().await {
            assert_eq!(decision.origin(), Origin::Store);
            count += 1;
            allowed += u32::from(decision.is_allowed());
            if count % 100 == 0 {
                operator.query::<()>("SCRIPT FLUSH").await;
            }
        }
        assert_eq!((count, allowed), (CALLERS * CALLS, LIMIT), "{layout:?}");
        assert_eq!(used(&limiter, &subject).await, [u64::from(LIMIT); 2]);
    }
    assert_eq!(server.calls("eval").await, 0);
    // Every request was decided, so each of these calls was repeated after its script was loaded.
    assert!(server.failed_calls("evalsha").await > 20, "scripts were unknown");
    assert_eq!(server.keys_without_expiry().await, [""; 0]);
}
