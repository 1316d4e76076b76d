//! Records of any subject with any limits, beside the six numbers of open banking systems.

use reqwest::Method;
use rl_tests::web::{Answer, Fetch};
use serde_json::{Value, json};

use super::{
    ACTIVE, ALICE, Bank, CALL_LIMITS, PREFIX, RATE_LIMITS, active_numbers, in_every_world, message,
    parse, record, written_numbers,
};

const LIMITS: &str = "/management/limits";

fn content(realm: &str, subject: &str, limits: &[&str]) -> Value {
    json!({
        "realm": realm, "subject": subject, "limits": limits,
        "from_date": "2025-06-01T00:00:00Z", "to_date": "2026-06-01T00:00:00Z",
    })
}

fn dated(limits: &[&str]) -> Value {
    let mut content = content("", "", limits);
    content.as_object_mut().unwrap().retain(|field, _| !["realm", "subject"].contains(&&**field));
    content
}

async fn create(bank: &Bank, content: Value) -> Value {
    let created = bank.manage("POST", LIMITS, Some(content)).await;
    assert_eq!(created.status, 201, "{}", created.body);
    parse(&created)
}

fn id_of(record: &Value) -> &str {
    record["rate_limiting_id"].as_str().unwrap()
}

#[tokio::test]
async fn a_grant_is_added_to_the_limits_that_apply_and_keeps_its_kind() {
    in_every_world(async |bank: Bank| {
        let own = create(&bank, content("consumer", "abc", &["1/hour:sliding-log"])).await;
        assert_eq!([bank.call().await.status, bank.call().await.status], [200, 429]);
        let mut grant = content("consumer", "abc", &["2/hour:sliding-log"]);
        grant["grants"] = json!(true);
        let granted = create(&bank, grant.clone()).await;
        assert!(granted["warning"].is_null(), "{granted}");
        assert_eq!((&granted["grants"], &own["grants"]), (&json!(true), &json!(false)));
        let statuses =
            [bank.call().await.status, bank.call().await.status, bank.call().await.status];
        assert_eq!(statuses, [200, 200, 429]);
        let path = format!("{LIMITS}/{}", id_of(&granted));
        let more = bank.manage("PUT", &path, Some(dated(&["3/hour:sliding-log"]))).await;
        assert_eq!((more.status, &parse(&more)["grants"]), (200, &json!(true)), "{}", more.body);
        assert_eq!([bank.call().await.status, bank.call().await.status], [200, 429]);
        assert_eq!(bank.manage("DELETE", &path, None).await.status, 204);
        assert_eq!(bank.call().await.status, 429);
        grant["limits"] = json!(["5000/month"]);
        let useless = create(&bank, grant.clone()).await;
        let warning =
            "the grant of 5000/month adds to no limit: those that apply are 1/hour:sliding-log";
        assert_eq!(useless["warning"], warning);
        grant["blocks"] = json!(true);
        let wrong = bank.manage("POST", LIMITS, Some(grant)).await;
        assert_eq!((wrong.status, message(&wrong).contains("a grant cannot block")), (400, true));
    })
    .await;
}

#[tokio::test]
async fn limits_of_any_algorithm_bind_the_next_request_and_have_revisions_and_a_history() {
    in_every_world(async |bank: Bank| {
        let limits = ["2/hour:sliding-log", "5/day:requests"];
        let created = create(&bank, content("consumer", "abc", &limits)).await;
        assert_eq!((&created["limits"], &created["rule"]), (&json!(limits), &Value::Null));
        assert_eq!(
            (&created["consumer_id"], &created["realm"]),
            (&json!("abc"), &json!("consumer"))
        );
        assert_eq!(written_numbers(&created), [-1; 6], "no six numbers");
        let statuses =
            [bank.call().await.status, bank.call().await.status, bank.call().await.status];
        assert_eq!(statuses, [200, 200, 429]);

        let path = format!("{LIMITS}/{}", id_of(&created));
        let change = |tag: &str, limits: &[&str]| {
            let url = format!("{PREFIX}{path}");
            let request = bank.site.request(Method::PUT, &url).bearer_auth(ALICE);
            request.header("if-match", tag).json(&dated(limits)).fetch()
        };
        assert_eq!(change("\"9\"", &["9/hour:sliding-log"]).await.status, 412);
        let changed: Answer = change("\"1\"", &["9/hour:sliding-log"]).await;
        assert_eq!(
            (changed.status, changed.header("etag")),
            (200, Some("\"2\"")),
            "{}",
            changed.body
        );
        assert_eq!(bank.call().await.status, 200);
        assert_eq!(bank.get(&path).await, parse(&changed));
        let history = bank.get(&format!("{path}/history")).await;
        let entry = &history["changes"][0];
        assert_eq!(
            (&entry["before"]["limits"], &entry["after"]["limits"]),
            (&json!(limits), &json!(["9/hour:sliding-log"]))
        );
        assert_eq!((&entry["subject"], &entry["by"]), (&json!("consumer/abc"), &json!("alice")));

        assert_eq!(bank.manage("DELETE", &path, None).await.status, 204);
        assert_eq!(bank.manage("GET", &path, None).await.status, 404);
        assert_eq!(bank.manage("PUT", &path, Some(dated(&[]))).await.status, 404);
        assert_eq!(bank.call().await.status, 200);
    })
    .await;
}

#[tokio::test]
async fn an_address_has_limits_and_a_block_of_its_own() {
    in_every_world(async |bank: Bank| {
        let call = async || bank.site.get("/banks").fetch().await.status;
        assert_eq!(call().await, 200);
        // In any notation, as in the paths of subjects.
        let created =
            create(&bank, content("ip", "::ffff:127.0.0.1", &["1/hour:sliding-log"])).await;
        assert_eq!((&created["subject"], created.get("consumer_id")), (&json!("127.0.0.1"), None));
        assert_eq!([call().await, call().await], [200, 429]);
        let listed = bank.get(&format!("{LIMITS}?realm=ip&subject=::ffff:127.0.0.1")).await;
        assert_eq!(listed["limits"], json!([created]));
        let usage = bank.get("/management/subjects/ip/127.0.0.1/usage").await;
        assert!(usage.to_string().contains("1/hour:sliding-log"), "{usage}");

        let path = format!("{LIMITS}/{}", id_of(&created));
        let mut block = dated(&["1/hour:sliding-log"]);
        block["blocks"] = json!(true);
        assert_eq!(bank.manage("PUT", &path, Some(block)).await.status, 200);
        assert_eq!(call().await, 429);
        // A change that does not mention the block keeps it.
        let kept = bank.manage("PUT", &path, Some(dated(&["9/hour"]))).await;
        assert_eq!(parse(&kept)["blocks"], json!(true));
        assert_eq!(bank.manage("DELETE", &path, None).await.status, 204);
        assert_eq!(call().await, 200);
        assert_eq!(bank.get("/management/consumers/127.0.0.1/history").await["changes"], json!([]));
    })
    .await;
}

#[tokio::test]
async fn six_numbers_are_a_view_and_never_replace_what_they_cannot_express() {
    in_every_world(async |bank: Bank| {
        let six = bank.add([-1, 5, -1, -1, -1, -1]).await;
        assert_eq!(bank.get(&format!("{LIMITS}/{six}")).await["limits"], json!(["5/minute"]));
        let tokens = create(&bank, content("consumer", "abc", &["9000/hour:unit=tokens"])).await;
        let active = bank.get(ACTIVE).await;
        assert_eq!(active["active_limits"], json!(["5/minute", "9000/hour:unit=tokens"]));
        assert_eq!(active_numbers(&active), [-1; 6]);
        let same_window = content("consumer", "abc", &["9000/minute:unit=tokens"]);
        let refused = bank.manage("POST", LIMITS, Some(same_window)).await;
        assert_eq!((refused.status, &parse(&refused)["field"]), (400, &json!("limits")));
        let gcra = create(&bank, content("consumer", "abc", &["7/minute:gcra"])).await;
        let active = bank.get(ACTIVE).await;
        assert_eq!(
            active["active_limits"],
            json!(["5/minute", "7/minute:gcra", "9000/hour:unit=tokens"])
        );
        assert_eq!(active_numbers(&active), [-1; 6]);

        for id in [id_of(&tokens), id_of(&gcra)] {
            let path = format!("{RATE_LIMITS}/{id}");
            assert_eq!(written_numbers(&bank.get(&path).await), [-1; 6]);
            let refused = bank.manage("PUT", &path, Some(record([1, -1, -1, -1, -1, -1]))).await;
            assert_eq!(refused.status, 409, "{}", refused.body);
            assert!(message(&refused).contains(&format!("/management/limits/{id}")));
        }
        // The one record with six numbers is replaced, and the others stay.
        let put = bank.manage("PUT", CALL_LIMITS, Some(record([-1, 6, -1, -1, -1, -1]))).await;
        assert_eq!((put.status, parse(&put)["rate_limiting_id"].as_str()), (200, Some(&*six)));
        assert_eq!(bank.get(LIMITS).await["limits"].as_array().unwrap().len(), 3);

        let too_many = record([-1, 9_007_199_254_740_991, -1, -1, -1, -1]);
        let refused = bank.manage("POST", RATE_LIMITS, Some(too_many)).await;
        assert_eq!(parse(&refused)["field"], json!("per_minute_call_limit"), "{}", refused.body);
    })
    .await;
}

#[tokio::test]
async fn a_tier_has_limits_as_text_or_as_six_numbers() {
    in_every_world(async |bank: Bank| {
        let gold = "/management/tiers/gold";
        let limits = json!({ "limits": ["2/hour:gcra", "10:concurrency"] });
        let created = bank.manage("POST", gold, Some(limits.clone())).await;
        assert_eq!(
            (created.status, &parse(&created)["limits"]),
            (201, &json!(["10:concurrency", "2/hour:gcra"]))
        );
        assert_eq!(written_numbers(&bank.get(gold).await), [-1; 6]);
        let both = json!({ "limits": ["1/hour"], "per_hour_call_limit": 5 });
        let refused = bank.manage("PUT", gold, Some(both)).await;
        assert_eq!((refused.status, &parse(&refused)["field"]), (400, &json!("limits")));
        let member = json!({ "tier": "gold" });
        let path = "/management/subjects/consumer/abc/tier";
        assert_eq!(bank.manage("PUT", path, Some(member)).await.status, 200);
        let statuses =
            [bank.call().await.status, bank.call().await.status, bank.call().await.status];
        assert_eq!(statuses, [200, 200, 429]);
    })
    .await;
}

#[tokio::test]
async fn an_invalid_field_of_limits_is_named_with_what_was_expected() {
    let bank = Bank::embedded().await;
    let with = |field: &str, value: Value| {
        let mut content = content("consumer", "abc", &["1/hour"]);
        content[field] = value;
        content
    };
    for (body, field, words) in [
        (
            with("limits", json!(["1/hour", "5/fortnight"])),
            "limits",
            "limits \"5/fortnight\": expected at column 3 ",
        ),
        (with("limits", json!(["1/hour", "2/hour"])), "limits", "would share one counter"),
        (with("limits", json!("1/hour")), "limits", "expected a list"),
        (with("realm", json!("Key")), "realm", "expected ip, key, consumer"),
        (with("realm", json!("tenant")), "realm", "realm \"tenant\": expected one of ip, key"),
        (with("realm", json!("key")), "subject", "expected the keyed hash of a key"),
        (with("realm", json!("ip")), "subject", "subject \"abc\": expected an address"),
        (with("realm", json!("global")), "subject", "expected -"),
        (with("subject", json!("a b")), "subject", "expected 1 to 250 characters"),
        (with("rule", json!("a/b")), "rule", "expected the name of a rule"),
        (with("from_date", json!("soon")), "from_date", "expected a time"),
        (with("other", json!(1)), "other", "unknown field: other"),
    ] {
        let refused = bank.manage("POST", LIMITS, Some(body)).await;
        assert_eq!(
            (refused.status, &parse(&refused)["field"]),
            (400, &json!(field)),
            "{}",
            refused.body
        );
        assert!(message(&refused).contains(words), "{}", refused.body);
    }
    for query in ["realm=K", "limit=0", "rule=%00&x=1", "after=x"] {
        assert_eq!(
            bank.manage("GET", &format!("{LIMITS}?{query}"), None).await.status,
            400,
            "{query}"
        );
    }
    assert_eq!(bank.get(&format!("{LIMITS}?rule=%00")).await["limits"], json!([]));
}

#[tokio::test]
async fn a_record_of_a_rule_that_does_not_exist_is_answered_with_a_warning() {
    let bank = Bank::embedded().await;
    let mut login = content("consumer", "abc", &["1/hour"]);
    login["rule"] = json!("login");
    let created = create(&bank, login).await;
    let warning = "No rule of the name login takes the limits of this subject from records, so the \
                   record limits nothing.";
    assert_eq!((&created["warning"], &created["rule"]), (&json!(warning), &json!("login")));
    assert_eq!([bank.call().await.status, bank.call().await.status], [200, 200]);
    let listed = bank.get(&format!("{LIMITS}?rule=login")).await;
    assert_eq!(listed["limits"][0]["rate_limiting_id"], created["rate_limiting_id"]);
    // A write of six numbers keeps the rule.
    let path = format!("{RATE_LIMITS}/{}", id_of(&created));
    let put = bank.manage("PUT", &path, Some(record([1, -1, -1, -1, -1, -1]))).await;
    assert_eq!((put.status, &parse(&put)["rule"]), (200, &json!("login")), "{}", put.body);
}
