//! On MariaDB: the comparison of texts, locks, the steps that create the tables, rights, errors and
//! TLS.

use rl_core::{FailureKind, Subject};
use rl_records::{
    ChangeError, HistoryQuery, Limits, RecordQuery, Records, ResourceLimitContent, TierContent,
};
use rl_tests::{DatabaseServer, MariadbServer};
use sqlx::{AssertSqlSafe, Executor};

use super::{Database, on_every_database, patient, per_hour, policy_text};

/// Collations of MariaDB take such ids for the same: they ignore case, accents, trailing spaces or
/// the form of a character.
#[tokio::test]
async fn ids_that_differ_in_any_byte_are_different_on_every_database() {
    let ids =
        ["shop", "Shop", "SHOP", "shöp", "sho\u{308}p", "shop ", "shop  ", " shop", "shop\u{a0}"];
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        let source = patient(&records).start();
        for (calls, id) in (1..).zip(ids) {
            records.create(per_hour(id, calls), id).await.unwrap();
            let limits = format!("{calls}/second").parse().unwrap();
            let tier = TierContent { name: id.into(), limits };
            records.tiers().create(tier, "alice").await.unwrap();
            let member = Subject::consumer(&format!("member {id}"));
            records.tiers().set_member(&member, Some(id), 0, "alice").await.unwrap();
            let (name, apps) = (id.into(), vec![id.to_owned()]);
            let resource = ResourceLimitContent { name, apps, limits: Limits::UNLIMITED };
            records.resources().create(resource, "alice").await.unwrap();
        }
        for (calls, id) in (1..).zip(ids) {
            assert_eq!(policy_text(&source, id).await, format!("hour={calls}/hour"), "{id:?}");
            let member = policy_text(&source, &format!("member {id}")).await;
            assert_eq!(member, format!("second={calls}/second"), "{id:?}");
            let query = RecordQuery::of_consumer(id);
            let page = records.list(&query).await.unwrap();
            assert_eq!(page.records.len(), 1, "{id:?}");
            let used =
                records.resources().list_for_applications(&[id.into()], None, 10).await.unwrap();
            let names: Vec<_> = used.iter().map(|limit| &*limit.content.name).collect();
            assert_eq!(names, [id]);
        }
        for (text, found) in
            [("shop", 4), ("sho", 5), ("Shop", 1), ("SHÖ", 0), ("shop ", 2), ("", 9)]
        {
            let query = RecordQuery { search: Some(text.into()), ..RecordQuery::default() };
            let page = records.list(&query).await.unwrap();
            assert_eq!(page.records.len(), found, "{text:?}");
        }
    })
    .await;
}

/// A server that is not strict cuts a text that is too long for its column.
#[tokio::test]
async fn the_longest_texts_are_stored_whole_on_every_database() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        let id = "👩".repeat(62);
        let stored = records.create(per_hour(&id, 1), id.as_str()).await.unwrap();
        assert_eq!(records.read(stored.id).await.unwrap(), Some(stored));
        let apps: Vec<_> =
            (0..1_000).map(|number| format!("{number:03}{}", "é".repeat(123))).collect();
        let content = ResourceLimitContent { name: id, apps, limits: Limits::UNLIMITED };
        let stored = records.resources().create(content.clone(), "alice").await.unwrap();
        let last = content.apps.last().unwrap();
        let found = records
            .resources()
            .list_for_applications(std::slice::from_ref(last), None, 10)
            .await
            .unwrap();
        assert_eq!(found, [stored]);
        let history = records.resources().history(&rl_records::HistoryQuery::default()).await;
        assert_eq!(history.unwrap()[0].after, Some(content));
        let search = RecordQuery { search: Some("a".repeat(100_000)), ..RecordQuery::default() };
        assert!(records.list(&search).await.unwrap().records.is_empty());
    })
    .await;
}

/// MariaDB also locks the gaps between rows. Two changes that did so at the same time would end in a
/// deadlock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_changes_of_two_instances_lose_no_update_and_end_in_no_deadlock() {
    for database in Database::shared() {
        let instances = [database.connect().await, database.connect().await];
        let shared = instances[0].create(per_hour("abc", 0), "alice").await.unwrap();
        let gold = TierContent { name: "gold".into(), limits: Limits::UNLIMITED };
        instances[0].tiers().create(gold, "alice").await.unwrap();
        let tasks = (0..8).map(|task| {
            let records = instances[task % 2].clone();
            tokio::spawn(async move {
                for round in 0..5 {
                    let own = format!("{task}-{round}");
                    let record = records.create(per_hour(&own, 1), "alice").await.unwrap();
                    let member = Subject::consumer(&own);
                    records.tiers().set_member(&member, Some("gold"), 0, "alice").await.unwrap();
                    records.delete(record.id, 1, "alice").await.unwrap();
                    loop {
                        let current = records.read(shared.id).await.unwrap().unwrap();
                        let content = per_hour("abc", current.revision);
                        match records.update(shared.id, content, current.revision, "bob").await {
                            Ok(_) => break,
                            Err(ChangeError::Conflict { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            })
        });
        for task in futures::future::join_all(tasks).await {
            task.unwrap();
        }
        let all = instances[1].read(shared.id).await.unwrap().unwrap();
        assert_eq!((all.revision, all.content), (41, per_hour("abc", 40)));
    }
}

/// The server commits each table on its own. So a start that was interrupted leaves some of them.
#[tokio::test]
async fn tables_are_completed_after_an_interrupted_start() {
    let database = Database::mariadb();
    let record = database.connect().await.create(per_hour("abc", 5), "alice").await.unwrap();
    let mut other_program = database.connect_directly().await;
    let interrupted = "DROP TABLE rl_history; UPDATE rl_changes SET \"change\" = 0; \
                       UPDATE rl_migrations SET success = FALSE";
    other_program.execute(interrupted).await.unwrap();
    let starting = (0..4).map(|_| database.connect());
    let handles = futures::future::join_all(starting).await;
    assert_eq!(handles[1].read(record.id).await.unwrap(), Some(record.clone()));
    handles[2].update(record.id, per_hour("abc", 6), 1, "bob").await.unwrap();
    let history = handles[3].history(&HistoryQuery::default()).await.unwrap();
    assert_eq!((history.len(), history[0].number), (1, 1));

    // A later version has migrated the database. This version must not write to it.
    let later = "INSERT INTO rl_migrations (version, description, success, checksum, execution_time) \
                 VALUES (99, 'later', TRUE, '', 0)";
    other_program.execute(later).await.unwrap();
    let error = Records::connect(&database.url).await.unwrap_err();
    assert_eq!(error.kind(), FailureKind::Corrupt, "{error}");
}

/// Creates a user with these rights on the database. Returns the URL of the user.
async fn user(database: &Database, rights: &str) -> String {
    let mut owner = database.connect_directly().await;
    let name = database.url.rsplit('/').next().unwrap();
    let create = format!(
        "CREATE USER {name}_app@'127.0.0.1' IDENTIFIED BY 'hunter2'; \
         GRANT {rights} ON {name}.* TO {name}_app@'127.0.0.1'"
    );
    owner.execute(AssertSqlSafe(create)).await.unwrap();
    database.url.replace("rl@", &format!("{name}_app:hunter2@"))
}

#[tokio::test]
async fn a_user_who_may_only_read_and_write_the_tables_can_connect() {
    let database = Database::mariadb();
    let url = user(&database, "SELECT, INSERT, UPDATE, DELETE").await;
    let refused = Records::connect(&url).await.unwrap_err();
    assert_eq!(refused.kind(), FailureKind::Refused, "there are no tables yet: {refused}");
    assert!(refused.to_string().contains("MySQL error 1142, a permission is missing"), "{refused}");

    database.connect().await;
    // The other name of the scheme is for the same driver.
    let records = Records::connect(&url.replace("mysql:", "mariadb:")).await.unwrap();
    let record = records.create(per_hour("abc", 1), "alice").await.unwrap();
    assert_eq!(database.connect().await.read(record.id).await.unwrap(), Some(record));
}

#[tokio::test]
async fn a_refused_login_is_reported_with_its_cause_and_without_the_login() {
    let database = Database::mariadb();
    let url = user(&database, "ALL").await;
    let elsewhere = |url: &str| format!("{}/missing", url.rsplit_once('/').unwrap().0);
    for (url, words) in [
        (url.replace("hunter2", "swordfish"), "MySQL error 1045, the login was refused"),
        (elsewhere(&url), "MySQL error 1044, a permission is missing"),
        (elsewhere(&database.url), "MySQL error 1049, no database of this name"),
        (format!("{url}?ssl-mode=REQUIRED"), "the TLS connection is not trusted"),
    ] {
        let error = Records::connect(&url).await.unwrap_err();
        let text = format!("{error} {error:?}");
        assert_eq!(error.kind(), FailureKind::Refused, "{text}");
        assert!(text.contains(words), "{text}");
        for secret in ["hunter2", "swordfish", "_app"] {
            assert!(!text.contains(secret), "{text}");
        }
    }
}

#[tokio::test]
async fn a_connection_uses_tls_and_checks_the_certificate() {
    let certified = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let key = certified.signing_key.serialize_pem();
    let (server, certificate) = MariadbServer::with_tls(&certified.cert.pem(), &key);
    let url = format!("{}?ssl-mode=VERIFY_IDENTITY", server.url());
    let trusting = format!("{url}&ssl-ca={}", certificate.display());
    Records::connect(&trusting).await.unwrap().create(per_hour("abc", 1), "al").await.unwrap();
    for url in [url, trusting.replace("127.0.0.1", "localhost")] {
        let error = Records::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), FailureKind::Refused, "{error}");
        assert!(error.to_string().contains("invalid peer certificate: "), "{error}");
    }
}
