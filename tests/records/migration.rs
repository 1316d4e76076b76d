//! The upgrade of databases of the version before, whose records and tiers had six numbers.

use rl_core::time::Timestamp;
use rl_core::{Realm, Subject};
use rl_records::{
    HistoryQuery, Permits, RecordId, RecordQuery, SubscriptionQuery, SubscriptionStatus,
};
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor, SqlSafeStr};

use super::{Database, NOON, on_every_database, patient, per_hour, policy_text};

macro_rules! files {
    ($($folder:literal: [$($name:literal $file:literal),*]),*) => {
        [$(($folder, &[$(($name, include_str!(concat!(
            "../../crates/rl-records/migrations/", $folder, "/", $file, "_", $name, ".sql"
        )))),*] as &[_])),*]
    };
}

/// The files of the version before, for each kind of database.
const FILES: [(&str, &[(&str, &str)]); 3] = files![
    "sqlite": ["records" "0001", "blocks" "0002", "tiers" "0003", "audit" "0004", "subscriptions" "0005"],
    "postgres": ["records" "0001", "blocks" "0002", "tiers" "0003", "audit" "0004", "subscriptions" "0005"],
    "mysql": ["records" "0001", "subscriptions" "0002"]
];

/// Creates the tables of the version before, and rows as that version wrote them.
async fn create_old(database: &Database) -> AnyConnection {
    sqlx::any::install_default_drivers();
    let url = match database.url.starts_with("sqlite:") {
        true => format!("{}?mode=rwc", database.url),
        false => database.url.clone(),
    };
    let mut connection = AnyConnection::connect(&url).await.unwrap();
    let folder = match connection.backend_name() {
        "PostgreSQL" => "postgres",
        "MySQL" => "mysql",
        _ => "sqlite",
    };
    if folder == "mysql" {
        let standard = "SET SESSION sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT', autocommit = 1";
        connection.execute(standard).await.unwrap();
    }
    let (_, files) = FILES.iter().find(|(known, _)| *known == folder).unwrap();
    let migrations = (1..).zip(*files).map(|(version, &(name, sql))| {
        Migration::new(version, name.into(), MigrationType::Simple, sql.into_sql_str(), false)
    });
    let mut migrator = Migrator::with_migrations(migrations.collect());
    migrator.dangerous_set_table_name("rl_migrations");
    migrator.set_locking(false);
    migrator.run_direct(None, &mut connection, false).await.unwrap();
    let noon = NOON.as_micros();
    let columns = "per_second_call_limit, per_minute_call_limit, per_hour_call_limit, \
                   per_day_call_limit, per_week_call_limit, per_month_call_limit";
    let written = "created_by, updated_by, created_at, updated_at, revision";
    let record = |id: u8, consumer: &str, limits: &str, blocks: u8| {
        format!(
            "INSERT INTO rl_records (rate_limiting_id, consumer_id, api_name, from_date, to_date, \
             blocks, {columns}, {written}) VALUES ('{id:08}-0000-4000-8000-000000000000', \
             '{consumer}', 'getBanks', {noon}, {}, {blocks}, {limits}, 'alice', 'bob', 1, 2, 3); ",
            noon + 1_000
        )
    };
    let six = r#""per_second_call_limit": 10, "per_minute_call_limit": -1, "per_hour_call_limit": 0,
        "per_day_call_limit": -1, "per_week_call_limit": -1, "per_month_call_limit": 7"#;
    let old_record = format!(
        r#"{{"consumer_id": "all", "api_name": null, "api_version": null, "bank_id": null,
            "from_date": {noon}, "to_date": {noon}, "blocks": false, {six}}}"#
    );
    let history = |change: u8, kind: &str, owner: &str, item: &str, after: &str| {
        format!(
            "INSERT INTO rl_history (\"change\", kind, owner, item, changed_at, changed_by, \
             \"before\", \"after\") VALUES ({change}, '{kind}', '{owner}', '{item}', {change}, \
             'alice', NULL, '{after}'); "
        )
    };
    let resource = |name: &str, max_permits: u64, rate: u64| {
        format!(
            "INSERT INTO rl_resource_limits (name, apps, max_permits, rate, {written}) \
             VALUES ('{name}', 'shop', {max_permits}, {rate}, 'alice', 'bob', 1, 2, 3); "
        )
    };
    let rows = [
        record(1, "all", "10, 20, 30, 40, 50, 60", 0),
        record(2, "none", "-1, -1, -1, -1, -1, -1", 0),
        record(3, "some", "-1, 100, -1, 0, -1, 9007199254740991", 0),
        record(4, "blocked", "0, 0, 0, 0, 0, 0", 1),
        record(5, "subscriber", "-1, -1, 5, -1, -1, -1", 0),
        format!(
            "INSERT INTO rl_tiers (name, {columns}, {written}) \
             VALUES ('gold', -1, -1, 5, -1, -1, -1, 'alice', 'bob', 1, 2, 3); "
        ),
        "INSERT INTO rl_tier_members (realm, id, tier, updated_by, updated_at, revision) \
         VALUES ('consumer', 'member', 'gold', 'bob', 2, 3); "
            .to_owned(),
        format!(
            "INSERT INTO rl_subscriptions (subscription_id, consumer_id, tier, status, from_date, \
             record_id, {written}) VALUES ('00000009-0000-4000-8000-000000000000', 'subscriber', \
             'gold', 'active', {noon}, '00000005-0000-4000-8000-000000000000', 'a', 'b', 1, 2, 3); "
        ),
        history(1, "record", "all", "00000001-0000-4000-8000-000000000000", &old_record),
        history(2, "tier", "gold", "gold", &format!(r#"{{"name": "gold", {six}}}"#)),
        resource("bucket", 50, 10),
        resource("empty", 0, 10),
        resource("dry", 50, 0),
        resource("plain", 9, 9),
        history(
            3,
            "resource",
            "bucket",
            "bucket",
            r#"{"name": "bucket", "apps": ["shop"], "max_permits": 50, "rate": 10}"#,
        ),
        "UPDATE rl_changes SET \"change\" = 3".to_owned(),
    ];
    connection.execute(AssertSqlSafe(rows.concat())).await.unwrap();
    connection
}

async fn check_upgraded(database: &Database) {
    let records = database.connect().await;
    let at = |id: u8| format!("{id:08}-0000-4000-8000-000000000000").parse::<RecordId>().unwrap();
    for (id, consumer, limits, blocks) in [
        (1, "all", "10/second, 20/minute, 30/hour, 40/day, 50/week, 60/month", false),
        (2, "none", "", false),
        (3, "some", "100/minute, 0/day, 9007199254740991/month", false),
        (4, "blocked", "0/second, 0/minute, 0/hour, 0/day, 0/week, 0/month", true),
        (5, "subscriber", "5/hour", false),
    ] {
        let record = records.read(at(id)).await.unwrap().unwrap();
        let content = &record.content;
        assert_eq!((&content.realm, &*content.subject_id), (&Realm::Consumer, consumer));
        assert_eq!((&content.rule, content.limits.to_string()), (&None, limits.to_owned()));
        assert_eq!((content.blocks, content.api_name.as_deref()), (blocks, Some("getBanks")));
        assert_eq!((content.from_date, content.to_date), (NOON, NOON.plus_micros(1_000)));
        assert_eq!(
            (&*record.created_by, &*record.updated_by, record.revision),
            ("alice", "bob", 3)
        );
        let times = (Timestamp::from_micros(1), Timestamp::from_micros(2));
        assert_eq!((record.created_at, record.updated_at), times);
        let active = records.active_limits(consumer, NOON).await.unwrap();
        assert_eq!(active.considered_ids().collect::<Vec<_>>(), [at(id)]);
    }
    assert_eq!(records.list(&RecordQuery::default()).await.unwrap().records.len(), 5);

    let gold = records.tiers().read("gold").await.unwrap().unwrap();
    assert_eq!((gold.content.limits.to_string(), gold.revision), ("5/hour".to_owned(), 3));
    let member = records.tiers().member(&Subject::consumer("member")).await.unwrap().unwrap();
    assert_eq!((&*member.tier, member.revision), ("gold", 3));
    let subscriptions = records.subscriptions().list(&SubscriptionQuery::default()).await.unwrap();
    let subscriptions = subscriptions.subscriptions;
    assert_eq!(subscriptions[0].content.status, SubscriptionStatus::Active);
    assert_eq!(subscriptions[0].record_id, Some(at(5)));

    let old = "10/second, 0/hour, 7/month";
    let history = records.history(&HistoryQuery::default()).await.unwrap();
    assert_eq!(history[0].after.as_ref().unwrap().limits.to_string(), old);
    let history = records.tiers().history(&HistoryQuery::default()).await.unwrap();
    assert_eq!(history[0].after.as_ref().unwrap().limits.to_string(), old);

    for (name, limit, max_permits, rate) in [
        ("bucket", "10/second:token-bucket:capacity=50", 50, 10),
        ("empty", "0/second", 0, 0),
        ("dry", "0/second:token-bucket:capacity=50", 50, 0),
        ("plain", "9/second:token-bucket", 9, 9),
    ] {
        let resource = records.resources().read(name).await.unwrap().unwrap();
        let content = &resource.content;
        assert_eq!(
            (content.limits.to_string(), resource.revision),
            (limit.to_owned(), 3),
            "{name}"
        );
        assert_eq!(Permits::of(&content.limits), Some(Permits { max_permits, rate }), "{name}");
        let policy = content.policy_for("shop").unwrap();
        assert_eq!(policy.to_string(), format!("resource={limit}"));
    }
    let history = records.resources().history(&HistoryQuery::default()).await.unwrap();
    let bucket = records.resources().read("bucket").await.unwrap().unwrap().content;
    assert_eq!(history[0].after, Some(bucket));

    // The upgraded tables accept changes.
    let source = patient(&records).start();
    records.create(per_hour("member", 7), "alice").await.unwrap();
    assert_eq!(policy_text(&source, "member").await, "hour=7/hour");
    database.connect().await;
}

#[tokio::test]
async fn a_database_of_the_version_before_keeps_its_records_tiers_subscriptions_and_history() {
    on_every_database(async |database: Database| {
        if database.is_shared {
            drop(create_old(&database).await);
            check_upgraded(&database).await;
        }
    })
    .await;
}

/// MariaDB commits each step on its own, so the upgrade may be interrupted before the conversion.
#[tokio::test]
async fn an_interrupted_upgrade_is_completed_by_the_next_start() {
    let database = Database::mariadb();
    let mut connection = create_old(&database).await;
    let file = include_str!("../../crates/rl-records/migrations/mysql/0003_limits.sql");
    let (first, _) = file.split_once("-- The old columns are dropped last").unwrap();
    connection.execute(first).await.unwrap();
    let file =
        include_str!("../../crates/rl-records/migrations/mysql/0009_limits_of_resources.sql");
    let (first, _) = file.split_once("SET @is_old").unwrap();
    connection.execute(first).await.unwrap();
    drop(connection);
    check_upgraded(&database).await;
}
