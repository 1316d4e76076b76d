//! Records of any subject with any limits, under one rule or under every rule.

use std::time::Duration;

use rl_core::key::Identified;
use rl_core::rules::{Rule, Rules, RulesFile};
use rl_core::source::PolicySource;
use rl_core::time::{Clock, SystemClock};
use rl_core::{RateLimiter, RateLimiterBuilder, Realm, Subject};
use rl_records::{
    AuditEvent, AuditQuery, Author, ChangeError, Expected, HistoryQuery, Limits, RecordContent,
    RecordQuery, RecordSource,
};
use rl_tests::RedisServer;

use super::{Database, GIVE_UP, HOUR, NEVER, NOON, on_every_database, patient, per_hour};

/// Returns a record that begins at noon, and whose end no test reaches.
fn record(realm: Realm, id: &str, rule: Option<&str>, limits: &str) -> RecordContent {
    let (from, to) = (NOON, NOON.plus_micros(1_000_000 * HOUR));
    let limits: Limits = limits.parse().unwrap();
    let rule = rule.map(ToOwned::to_owned);
    RecordContent { realm, rule, ..RecordContent::new(id, from, to, limits) }
}

async fn text_of(source: &impl PolicySource, subject: &Subject) -> String {
    let policy = source.policy(subject).await.unwrap();
    policy.map_or_else(|| "-".to_owned(), |policy| policy.to_string())
}

#[tokio::test]
async fn a_record_limits_the_subject_of_any_realm_and_no_other() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        let source = patient(&records).poll_every(NEVER).start();
        let tenant = Realm::custom("tenant").unwrap();
        let key = Subject::digest(Realm::Key, [0xab; 16]);
        let subjects = [
            (Subject::ip([192, 0, 2, 7]), "192.0.2.7", Subject::ip([192, 0, 2, 8])),
            (Subject::new(Realm::Ip, "2001:db8::/64"), "2001:db8::/64", Subject::consumer("::")),
            (Subject::user("alice"), "alice", Subject::consumer("alice")),
            (Subject::new(tenant.clone(), "acme"), "acme", Subject::user("acme")),
            (key.clone(), &key.id().to_string(), Subject::digest(Realm::Key, [1; 16])),
            (Subject::global(), "-", Subject::consumer("-")),
        ];
        for (subject, id, other) in &subjects {
            let (before, others) = (text_of(&source, subject).await, text_of(&source, other).await);
            let content = record(subject.realm().clone(), id, None, "7/hour:gcra");
            let stored = records.create(content.clone(), "alice").await.unwrap();
            assert_eq!(records.read(stored.id).await.unwrap().unwrap().content, content);
            assert_eq!(text_of(&source, subject).await, "hour=7/hour:gcra", "{id}");
            assert_eq!(text_of(&source, other).await, others, "{id}");
            let block = RecordContent { blocks: true, ..content };
            let block = records.create(block, "alice").await.unwrap();
            let policy = source.policy(subject).await.unwrap().unwrap();
            assert!(policy.block().is_some(), "{id}");
            records.delete(block.id, 1, "alice").await.unwrap();
            records.delete(stored.id, 1, "alice").await.unwrap();
            assert_eq!(text_of(&source, subject).await, before, "{id}");
        }
    })
    .await;
}

/// A look-up for each address would let clients that change addresses keep the database busy.
#[tokio::test]
async fn addresses_are_looked_up_only_while_one_has_a_record() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        let source = patient(&records).start();
        let address = |last: u8| Subject::ip([192, 0, 2, last]);
        assert_eq!(text_of(&source, &address(7)).await, "hour=1000/hour");
        let looked_up = |source: &RecordSource| {
            let stats = source.stats();
            stats.waited + stats.cached
        };
        for last in 0..100 {
            assert_eq!(text_of(&source, &address(last)).await, "hour=1000/hour");
        }
        assert_eq!(looked_up(&source), 0);

        // Another instance creates the first record of an address.
        let other = if database.is_shared { database.connect().await } else { records.clone() };
        let content = record(Realm::Ip, "192.0.2.7", None, "3/minute");
        let first = other.create(content, "alice").await.unwrap();
        let began = tokio::time::Instant::now();
        while text_of(&source, &address(7)).await != "minute=3/minute" {
            assert!(began.elapsed() < GIVE_UP);
            tokio::task::yield_now().await;
        }
        assert_eq!(text_of(&source, &address(8)).await, "hour=1000/hour");
        assert!(looked_up(&source) > 0);

        records.delete(first.id, 1, "alice").await.unwrap();
        assert_eq!(text_of(&source, &address(7)).await, "hour=1000/hour");
        let before = looked_up(&source);
        assert_eq!(text_of(&source, &address(9)).await, "hour=1000/hour");
        assert_eq!(looked_up(&source), before);
    })
    .await;
}

#[tokio::test]
async fn addresses_have_the_policies_of_others_if_they_cannot_be_looked_up() {
    let records = Database::memory().connect().await;
    records.create(record(Realm::Ip, "192.0.2.7", None, "3/minute"), "alice").await.unwrap();
    let known = patient(&records).start();
    assert_eq!(text_of(&known, &Subject::ip([192, 0, 2, 7])).await, "minute=3/minute");
    let never_read = patient(&records).tiers_of_keys().start();
    records.close().await;
    assert_eq!(text_of(&known, &Subject::ip([192, 0, 2, 7])).await, "minute=3/minute");
    assert_eq!(text_of(&known, &Subject::ip([192, 0, 2, 8])).await, "hour=1000/hour");
    assert_eq!(text_of(&never_read, &Subject::ip([192, 0, 2, 7])).await, "hour=1000/hour");
    for subject in [Subject::consumer("abc"), Subject::digest(Realm::Key, [1; 16])] {
        assert!(never_read.policy(&subject).await.is_err());
    }
}

/// Returns a limiter with two rules that take their limits from records, in code and in a file.
fn limiters(source: &RecordSource, path: &std::path::Path) -> [RateLimiterBuilder; 2] {
    let rule = |name: &str| Rule::named(name).per(Identified).policies(source.clone());
    let rules = Rules::new().rule(rule("api")).rule(rule("login"));
    let content = "rules:\n  api: { per: identified, limits: records }\n  \
                   login: { per: identified, limits: records }\n";
    std::fs::write(path, content).unwrap();
    let file = RulesFile::builder(path).source("records", source.clone());
    let file = file.pause(Duration::from_millis(10)).watch().unwrap();
    [RateLimiter::builder().rules(rules), RateLimiter::builder().rules(&file)]
}

#[tokio::test]
async fn a_record_under_a_rule_is_added_to_the_others_under_this_rule_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("limits.yaml");
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        records.create(per_hour("abc", 3), "alice").await.unwrap();
        let login = record(Realm::Consumer, "abc", Some("login"), "1/minute, 2/hour");
        let login = records.create(login, "alice").await.unwrap();
        let source = patient(&records).start();
        assert_eq!(text_of(&source, &Subject::consumer("abc")).await, "hour=3/hour");
        let login_source = source.for_rule("login");
        let both = text_of(&login_source, &Subject::consumer("abc")).await;
        assert_eq!(both, "minute=1/minute, hour=5/hour");
        for limiter in limiters(&source, &path) {
            let limiter = limiter.deadline(GIVE_UP).build().unwrap();
            let abc = Subject::consumer("abc");
            let allowed = async |rule: &str| {
                let mut allowed = 0;
                while limiter.rule(rule).of(&abc).check().await.is_allowed() {
                    allowed += 1;
                }
                allowed
            };
            assert_eq!((allowed("api").await, allowed("login").await), (3, 1));
        }
        // Under the rule alone, the record blocks, and the change applies to the next request.
        let block = RecordContent { blocks: true, ..login.content.clone() };
        records.update(login.id, block, 1, "alice").await.unwrap();
        let found = login_source.policy(&Subject::consumer("abc")).await.unwrap();
        assert!(found.unwrap().block().is_some());
        assert_eq!(text_of(&source, &Subject::consumer("abc")).await, "hour=3/hour");
        let blocks = records.blocks_of(&Subject::consumer("abc")).await.unwrap();
        let under: Vec<_> = blocks.iter().map(|block| block.content.rule.as_deref()).collect();
        assert_eq!(under, [Some("login")]);
        let active = records.active_limits("abc", NOON).await.unwrap();
        assert_eq!(active.limits().to_string(), "3/hour");
    })
    .await;
}

#[tokio::test]
async fn records_of_tokens_of_gcra_and_of_an_address_decide_in_memory_and_on_redis() {
    let server = RedisServer::start();
    let records = Database::memory().connect().await;
    let source = patient(&records).start();
    for content in [
        record(Realm::Consumer, "llm", None, "1000/hour:unit=tokens, 3/hour:requests"),
        record(Realm::Consumer, "bursty", None, "1/hour:gcra:burst=4"),
        record(Realm::Ip, "192.0.2.7", None, "2/hour:sliding-log"),
        record(Realm::User, "watched", None, "1/hour:shadow"),
    ] {
        records.create(content, "alice").await.unwrap();
    }
    let memory = RateLimiter::builder();
    let redis = RateLimiter::builder().store(server.patient_store().connect().await.unwrap());
    for limiter in [memory, redis] {
        let limiter = limiter.policies(source.clone()).deadline(GIVE_UP).build().unwrap();
        let check = async |subject: &Subject, cost: u64| limiter.check(subject, cost).await;
        let llm = Subject::consumer("llm");
        assert!(check(&llm, 900).await.is_allowed());
        let denied = check(&llm, 101).await;
        let over: Vec<_> = denied.limits().filter(|limit| limit.is_over()).collect();
        assert_eq!((over.len(), over[0].name(), over[0].limit().unit()), (1, "hour", "tokens"));
        assert!(check(&llm, 50).await.is_allowed() && check(&llm, 50).await.is_allowed());
        assert!(!check(&llm, 1).await.is_allowed(), "three requests");
        let bursty = Subject::consumer("bursty");
        assert!(check(&bursty, 4).await.is_allowed() && !check(&bursty, 1).await.is_allowed());
        let address = Subject::ip([192, 0, 2, 7]);
        assert!(check(&address, 2).await.is_allowed() && !check(&address, 1).await.is_allowed());
        let watched = Subject::user("watched");
        assert!(check(&watched, 1).await.is_allowed());
        let second = check(&watched, 1).await;
        assert!(second.is_allowed() && second.over_in_shadow().next().is_some());
    }
}

#[tokio::test]
async fn limits_of_records_that_overlap_form_one_policy_or_are_refused() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        let of = |rule, limits: &str| record(Realm::User, "alice", rule, limits);
        let many = |from: u64, to: u64| {
            let texts: Vec<_> = (from..to).map(|hours| format!("{hours}/{hours}hours")).collect();
            texts.join(", ")
        };
        records.create(of(None, &many(2, 10)), "alice").await.unwrap();
        records.create(of(Some("login"), &many(10, 18)), "alice").await.unwrap();
        // Sixteen limits under one rule, and as many under another.
        records.create(of(Some("api"), &many(20, 28)), "alice").await.unwrap();
        for rule in [None, Some("login")] {
            let error = records.create(of(rule, "1/day:gcra"), "alice").await.unwrap_err();
            let error = error.to_string();
            assert!(error.starts_with("limits \"1/day:gcra\": expected together with"), "{error}");
            assert!(error.contains("policy has 17 limits: expected at most 16"), "{error}");
        }
        records.create(of(Some("other"), "1/day:gcra"), "alice").await.unwrap();
        records.create(of(None, "5/2hours"), "alice").await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_change_that_blocks_under_any_rule_needs_the_right_to_block() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        let alice = Author::new("alice").may_block(false);
        let of = |rule, limits: &str| record(Realm::Ip, "192.0.2.7", rule, limits);
        let refused = |error: ChangeError<_>| matches!(error, ChangeError::MayNotBlock);
        assert!(refused(records.create(of(Some("login"), "0/day:gcra"), alice).await.unwrap_err()));
        let day = records.create(of(Some("login"), "9/day:gcra"), "bob").await.unwrap();
        records.create(of(Some("login"), "0/day:gcra, 0/day:shadow"), alice).await.unwrap();
        assert!(refused(records.create(of(None, "0/day:gcra"), alice).await.unwrap_err()));
        assert!(refused(records.delete(day.id, 1, alice).await.unwrap_err()));
        let block = RecordContent { blocks: true, ..day.content.clone() };
        assert!(refused(records.update(day.id, block, 1, alice).await.unwrap_err()));
    })
    .await;
}

#[tokio::test]
async fn the_subject_and_the_rule_of_a_record_never_change_and_are_in_the_history() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        let content = record(Realm::User, "alice", Some("login"), "5/minute");
        let stored = records.create(content.clone(), "otto").await.unwrap();
        for (field, changed) in [
            ("subject", RecordContent { subject_id: "bob".into(), ..content.clone() }),
            ("consumer_id", RecordContent { realm: Realm::Consumer, ..content.clone() }),
            ("rule", RecordContent { rule: None, ..content.clone() }),
        ] {
            let error = records.update(stored.id, changed, 1, "otto").await.unwrap_err();
            assert!(error.to_string().starts_with(&format!("{field} ")), "{error}");
        }
        records.create(per_hour("alice", 1), "otto").await.unwrap();
        let all = records.history(&HistoryQuery::default()).await.unwrap();
        assert_eq!((all.len(), all[1].after.as_ref()), (2, Some(&content)));
        let of_consumer = HistoryQuery { owner: Some("alice".into()), ..HistoryQuery::default() };
        assert_eq!(records.history(&of_consumer).await.unwrap().len(), 1);
        let entries = records.audit_log().entries(&AuditQuery::default()).await.unwrap();
        let AuditEvent::Record { after, .. } = &entries[1].event else { panic!("{entries:?}") };
        assert_eq!(after.as_ref(), Some(&content));
        let consumer = AuditQuery { consumer: Some("alice".into()), ..AuditQuery::default() };
        assert_eq!(records.audit_log().entries(&consumer).await.unwrap().len(), 1);

        let count = async |query| records.list(&query).await.unwrap().records.len();
        assert_eq!(
            count(RecordQuery { realm: Some(Realm::User), ..RecordQuery::default() }).await,
            1
        );
        assert_eq!(
            count(RecordQuery { rule: Some("login".into()), ..RecordQuery::default() }).await,
            1
        );
        assert_eq!(
            count(RecordQuery { subject: Some("alice".into()), ..RecordQuery::default() }).await,
            2
        );
        assert_eq!(count(RecordQuery::of_consumer("alice")).await, 1);
        let first = RecordQuery { limit: 1, ..RecordQuery::default() };
        let after = records.list(&first).await.unwrap().next.unwrap().to_string().parse().unwrap();
        let second = RecordQuery { after: Some(after), ..RecordQuery::default() };
        let second = records.list(&second).await.unwrap().records;
        assert_eq!((second.len(), &second[0].content), (1, &content));
    })
    .await;
}

#[tokio::test]
async fn a_block_and_its_reason_belong_to_one_subject_and_one_rule() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        let end = SystemClock.now().plus_micros(HOUR);
        let key = Subject::digest(Realm::Key, [0xab; 16]);
        let subjects = [Subject::ip([192, 0, 2, 7]), Subject::consumer("abc"), key];
        let cases: Vec<_> = subjects
            .iter()
            .flat_map(|subject| [None, Some("login")].map(|rule| (subject, rule)))
            .collect();
        for (subject, rule) in &cases {
            let block = records.block(subject, *rule, end, Expected::Nothing, "alice").await;
            let block = block.unwrap();
            assert!(block.content.subject() == **subject && block.content.blocks);
            assert_eq!(records.audit_log().reason_of(&block).await.unwrap(), None);
            let reason = format!("{} {rule:?}", subject.id());
            for reason in ["at first", &reason] {
                records.audit_log().note_reason(&block, reason, "alice").await.unwrap();
            }
            let longer = end.plus_micros(1);
            let block =
                records.block(subject, *rule, longer, Expected::Any, "alice").await.unwrap();
            assert_eq!(records.audit_log().reason_of(&block).await.unwrap(), Some(reason));
        }
        let active = records.active_limits_by_rule(&subjects[1], SystemClock.now()).await.unwrap();
        let rules: Vec<_> = active.keys().map(Option::as_deref).collect();
        assert_eq!(rules, [None, Some("login")]);
        let mut expected = records.active_blocks(100).await.unwrap();
        assert_eq!(expected.len(), cases.len());
        for (subject, rule) in &cases {
            let gone = records.unblock(subject, *rule, Expected::Any, "alice").await.unwrap();
            expected.retain(|block| block.id != gone.id);
            assert_eq!(records.active_blocks(100).await.unwrap(), expected);
            let again = records.unblock(subject, *rule, Expected::Any, "alice").await;
            assert!(matches!(again, Err(ChangeError::NotFound)));
        }
        // An id that is counted as a hash can have no block.
        let long = Subject::user(&"x".repeat(300));
        let refused = records.block(&long, None, end, Expected::Any, "alice").await;
        assert!(matches!(refused, Err(ChangeError::Invalid(_))));
        assert!(records.blocks_of(&long).await.unwrap().is_empty());
    })
    .await;
}
