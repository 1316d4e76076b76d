//! Several people who change the same object, and the history of the changes.

use futures::future::join_all;
use reqwest::Method;
use rl_tests::web::{Answer, Fetch};
use serde_json::{Value, json};

use super::{
    ACTIVE, ALICE, Bank, CALL_LIMITS, PREFIX, RATE_LIMITS, active_numbers, in_every_world, message,
    parse, record,
};

async fn put_if(bank: &Bank, method: Method, path: &str, tag: &str, body: Value) -> Answer {
    let request = bank.site.request(method, &format!("{PREFIX}{path}")).bearer_auth(ALICE);
    request.header("if-match", tag).json(&body).fetch().await
}

#[tokio::test]
async fn an_edit_of_a_changed_record_conflicts() {
    in_every_world(async |bank: Bank| {
        let id = bank.add([1, -1, -1, -1, -1, -1]).await;
        let path = format!("{RATE_LIMITS}/{id}");
        let read = bank.manage("GET", &path, None).await;
        let tag = read.header("etag").unwrap().to_owned();
        assert_eq!(tag, "\"1\"");

        let two = put_if(&bank, Method::PUT, &path, &tag, record([2, -1, -1, -1, -1, -1])).await;
        assert_eq!((two.status, two.header("etag")), (200, Some("\"2\"")));
        let three = put_if(&bank, Method::PUT, &path, &tag, record([3, -1, -1, -1, -1, -1])).await;
        assert_eq!((three.status, three.header("etag")), (412, Some("\"2\"")));
        let text = message(&three);
        assert!(text.contains("it is 2 and was written by \"alice\""), "{text}");
        let gone = put_if(&bank, Method::DELETE, &path, &tag, json!(null)).await;
        assert_eq!(gone.status, 412);
        assert_eq!(active_numbers(&bank.get(ACTIVE).await)[0], 2, "nothing of it was stored");
        for tag in ["\"of something else\"", "W/\"2\"", "\"1\", \"3\""] {
            let answer = put_if(&bank, Method::PUT, &path, tag, record([4; 6])).await;
            assert_eq!(answer.status, 412, "{tag}");
        }
        let wrong = put_if(&bank, Method::PUT, &path, "2", record([4; 6])).await;
        assert_eq!((wrong.status, &parse(&wrong)["field"]), (400, &json!("If-Match")));
        for tag in ["\"1\", \"2\"", "*"] {
            let answer = put_if(&bank, Method::PUT, &path, tag, record([4; 6])).await;
            assert_eq!(answer.status, 200, "{tag}");
        }
        let gone = put_if(&bank, Method::DELETE, &path, "\"4\"", json!(null)).await;
        assert_eq!(gone.status, 204);
    })
    .await;
}

/// One of several concurrent changes succeeds; the others conflict.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_concurrent_edit_is_lost() {
    in_every_world(async |bank: Bank| {
        let id = bank.add([1, -1, -1, -1, -1, -1]).await;
        let path = format!("{RATE_LIMITS}/{id}");
        let edit = async |calls: i64| {
            put_if(&bank, Method::PUT, &path, "\"1\"", record([calls; 6])).await.status
        };
        let mut statuses = join_all((2..10).map(edit)).await;
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 412, 412, 412, 412, 412, 412, 412]);

        // A change without a precondition applies to every revision.
        let any =
            async |calls: i64| bank.manage("PUT", &path, Some(record([calls; 6]))).await.status;
        assert_eq!(join_all((10..18).map(any)).await, [200; 8]);
        let changes = bank.get(&format!("{path}/history")).await;
        assert_eq!(changes["changes"].as_array().unwrap().len(), 10, "each is remembered");

        // Concurrent requests that set limits create only one record.
        let set = async |calls: i64| {
            let path = CALL_LIMITS.replace("abc", "other");
            bank.manage("PUT", &path, Some(record([calls; 6]))).await.status
        };
        let statuses = join_all((1..9).map(set)).await;
        assert_eq!(statuses, [200; 8]);
        let records = bank.get(&RATE_LIMITS.replace("abc", "other")).await;
        assert_eq!(records["limits"].as_array().unwrap().len(), 1);
        assert_eq!(records["limits"][0]["revision"], 8);
    })
    .await;
}

#[tokio::test]
async fn setting_call_limits_respects_if_match() {
    in_every_world(async |bank: Bank| {
        let set = async |tag: &str, calls| {
            put_if(&bank, Method::PUT, CALL_LIMITS, tag, record([calls; 6])).await
        };
        for tag in ["\"1\"", "*"] {
            assert_eq!(set(tag, 1).await.status, 412, "there is none yet: {tag}");
        }
        let first = bank.manage("PUT", CALL_LIMITS, Some(record([1; 6]))).await;
        assert_eq!((first.status, first.header("etag")), (200, Some("\"1\"")));
        assert_eq!(set("\"1\"", 2).await.status, 200);
        assert_eq!(set("\"1\"", 3).await.status, 412);
        assert_eq!(set("\"of another system\"", 3).await.status, 412);
        assert_eq!(active_numbers(&bank.get(ACTIVE).await), [2; 6]);
        assert_eq!(set("\"1\", \"2\"", 3).await.status, 200, "they have seen both");
        assert_eq!(active_numbers(&bank.get(ACTIVE).await), [3; 6]);
    })
    .await;
}

#[tokio::test]
async fn the_history_names_each_change_and_its_actor() {
    in_every_world(async |bank: Bank| {
        let id = bank.add([1, -1, -1, -1, -1, -1]).await;
        let path = format!("{RATE_LIMITS}/{id}");
        bank.manage("PUT", &path, Some(record([2, -1, -1, -1, -1, -1]))).await;
        bank.remove(&id).await;
        bank.manage("PUT", &CALL_LIMITS.replace("abc", "other"), Some(record([7; 6]))).await;

        let of_record = bank.get(&format!("{path}/history")).await;
        let of_consumer = bank.get("/management/consumers/abc/history").await;
        assert_eq!(of_record, of_consumer);
        let changes = of_record["changes"].as_array().unwrap();
        let listed: Vec<_> = changes
            .iter()
            .map(|change| {
                let calls = |side: &str| change[side]["per_second_call_limit"].as_str();
                (change["kind"].as_str().unwrap(), calls("before"), calls("after"))
            })
            .collect();
        let expected = [
            ("deleted", Some("2"), None),
            ("updated", Some("1"), Some("2")),
            ("created", None, Some("1")),
        ];
        assert_eq!(listed, expected);
        assert!(changes.iter().all(|change| change["by"] == "alice" && change["at"] == super::NOW));

        let first = bank.get("/management/history?limit=3").await;
        let next = first["next"].as_i64().unwrap();
        let rest = bank.get(&format!("/management/history?limit=3&before={next}")).await;
        let numbers = |page: &Value| -> Vec<i64> {
            let changes = page["changes"].as_array().unwrap().iter();
            changes.map(|change| change["number"].as_i64().unwrap()).collect()
        };
        assert_eq!((numbers(&first), numbers(&rest)), (vec![4, 3, 2], vec![1]));
        assert_eq!(rest["next"], json!(null));
    })
    .await;
}

#[tokio::test]
async fn a_missing_precondition_is_reported_where_it_is_required() {
    let records = rl_records::Records::connect("sqlite::memory:").await.unwrap();
    let source = rl_records::RecordSource::start(&records);
    let limiter = rl_core::RateLimiter::builder().policies(source.clone()).build().unwrap();
    let admin = rl_admin::Admin::builder(records, limiter);
    let admin = admin.authorize(super::tokens()).require_if_match(true).build();
    let site = rl_tests::web::axum::serve(admin.router());
    let call = async |method: Method, path: &str, tag: Option<&str>| {
        let request = site.request(method, path).bearer_auth(ALICE).json(&record([1; 6]));
        match tag {
            Some(tag) => request.header("if-match", tag).fetch().await,
            None => request.fetch().await,
        }
    };
    let created = call(Method::POST, RATE_LIMITS, None).await;
    assert_eq!(created.status, 201, "a new record has no revision to match");
    let path = format!("{RATE_LIMITS}/{}", parse(&created)["rate_limiting_id"].as_str().unwrap());
    for method in [Method::PUT, Method::DELETE] {
        let answer = call(method.clone(), &path, None).await;
        assert_eq!(
            (answer.status, &parse(&answer)["field"]),
            (428, &json!("If-Match")),
            "{method}"
        );
    }
    let set = call(Method::PUT, CALL_LIMITS, None).await;
    assert_eq!(set.status, 428);
    assert_eq!(call(Method::PUT, CALL_LIMITS, Some("*")).await.status, 200);
    assert_eq!(call(Method::PUT, &path, Some("\"2\"")).await.status, 200);
    assert_eq!(call(Method::DELETE, &path, Some("\"3\"")).await.status, 204);
}
