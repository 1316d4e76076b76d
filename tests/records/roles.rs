//! The rights that a service requires on a server.

use rl_core::FailureKind;
use rl_records::Records;
use sqlx::{AnyConnection, AssertSqlSafe, Executor};

use super::{Database, per_hour};

/// Creates a role without the right to create tables. Returns its name and its URL.
async fn role(database: &Database, owner: &mut AnyConnection) -> (String, String) {
    let role = format!("{}_app", database.url.rsplit('/').next().unwrap());
    let create = format!("CREATE ROLE {role} LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC");
    owner.execute(AssertSqlSafe(create)).await.unwrap();
    let url = database.url.replace("rl@", &format!("{role}@"));
    (role, url)
}

/// Fault: every start created the tables, which only their owner may do.
#[tokio::test]
async fn a_role_that_may_only_read_and_write_the_tables_can_connect() {
    let database = Database::postgres();
    database.connect().await;
    let mut owner = database.connect_directly().await;
    let (role, url) = role(&database, &mut owner).await;
    let rights =
        format!("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}");
    owner.execute(AssertSqlSafe(rights)).await.unwrap();
    let records = Records::connect(&url).await.unwrap();
    let record = records.create(per_hour("abc", 1), "alice").await.unwrap();
    assert_eq!(database.connect().await.read(record.id).await.unwrap(), Some(record));
}

#[tokio::test]
async fn a_role_without_the_right_to_create_missing_tables_gets_an_error() {
    let database = Database::postgres();
    Database::memory().connect().await;
    let mut owner = database.connect_directly().await;
    let (_, url) = role(&database, &mut owner).await;
    let refused = Records::connect(&url).await.unwrap_err();
    assert_eq!(refused.kind(), FailureKind::Refused, "{refused:?}");
}
