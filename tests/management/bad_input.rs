//! Invalid input is rejected with the name of the field and the expected value, and nothing is
//! stored.

use reqwest::Method;
use rl_tests::web::{Answer, Fetch};
use serde_json::{Value, json};

use super::{
    ACTIVE, ALICE, Bank, CALL_LIMITS, PREFIX, RATE_LIMITS, in_every_world, message, parse, record,
    stored,
};

const HOSTILE: [&str; 9] = [
    "'; DROP TABLE rl_records; --",
    "\" OR \"\"=\"",
    "1 UNION SELECT * FROM rl_history",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "a\r\nset-cookie: b",
    "a\u{0}b",
    "\u{202e}cba",
    "{{7*7}} ${jndi:ldap://x} %s%n",
];

#[tokio::test]
async fn every_field_of_a_record_is_checked() {
    in_every_world(async |bank: Bank| {
        let mut wrong: Vec<(&str, Value)> = vec![
            ("from_date", json!("2026-07-01T00:00:00Z")),
            ("to_date", json!("2024-06-01T00:00:00Z")),
            ("to_date", json!("10000-01-01T00:00:00Z")),
            ("per_second_call_limit", json!("9007199254740992")),
            ("per_second_call_limit", json!(-2)),
            ("per_day_call_limit", json!("")),
            ("per_day_call_limit", json!([1])),
            ("api_name", json!(5)),
            ("api_name", json!("a".repeat(251))),
            ("rate_limiting_id", json!("00000000-0000-4000-8000-000000000000")),
            ("to_date", json!("2026-06-01T00:00:00Z[Europe/Berlin]")),
            ("blocks", json!(true)),
            ("consumer_id", json!("mallory")),
        ];
        let fields = [
            "from_date",
            "to_date",
            "api_name",
            "api_version",
            "bank_id",
            "per_second_call_limit",
            "per_minute_call_limit",
            "per_hour_call_limit",
            "per_day_call_limit",
            "per_week_call_limit",
            "per_month_call_limit",
        ];
        wrong.extend(fields.iter().flat_map(|field| HOSTILE.map(|text| (*field, json!(text)))));
        wrong.extend(fields.iter().map(|field| (*field, json!({}))));
        for (method, path) in [("POST", RATE_LIMITS), ("PUT", CALL_LIMITS)] {
            for (field, value) in &wrong {
                let mut body = record([1, -1, -1, -1, -1, -1]);
                body[*field] = value.clone();
                let answer = bank.manage(method, path, Some(body)).await;
                refused(&answer, field, value);
            }
            for field in fields.iter().filter(|field| field.ends_with("date")) {
                let mut body = record([1, -1, -1, -1, -1, -1]);
                body.as_object_mut().unwrap().remove(*field);
                let answer = bank.manage(method, path, Some(body)).await;
                refused(&answer, field, &json!("missing"));
            }
        }
        assert_eq!(stored(&bank.records).await, 0);
        let changes = bank.get("/management/history").await;
        assert_eq!(changes["changes"], json!([]));
    })
    .await;
}

/// Checks that the response names the field and the expected value, and repeats no part of the
/// input.
fn refused(answer: &Answer, field: &str, value: &Value) {
    assert_eq!(answer.status, 400, "{field} {value}: {}", answer.body);
    let body = parse(answer);
    // If the two dates contradict each other, the response may name either of them.
    let named = body["field"].as_str().unwrap();
    let is_date = field.ends_with("_date") && named.ends_with("_date");
    assert!(named == field || is_date, "{field} {value}: {}", answer.body);
    assert!(!body["expected"].as_str().unwrap().is_empty());
    assert!(!["script", "DROP", "UNION", "onerror"].iter().any(|word| answer.body.contains(word)));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
}

#[tokio::test]
async fn every_part_of_a_path_is_checked() {
    in_every_world(async |bank: Bank| {
        let encode =
            |text: &str| -> String { text.bytes().map(|byte| format!("%{byte:02X}")).collect() };
        let long = "a".repeat(251);
        for text in HOSTILE.into_iter().chain([&*long, " "]) {
            let text = encode(text);
            let uuid = "00000000-0000-4000-8000-000000000000";
            for (method, path, field) in [
                (
                    "POST",
                    format!("/management/consumers/{text}/consumer/rate-limits"),
                    "CONSUMER_ID",
                ),
                (
                    "PUT",
                    format!("/management/consumers/{text}/consumer/call-limits"),
                    "CONSUMER_ID",
                ),
                (
                    "PUT",
                    format!("/management/consumers/{text}/consumer/rate-limits/{uuid}"),
                    "CONSUMER_ID",
                ),
                ("DELETE", format!("{RATE_LIMITS}/{text}"), "RATE_LIMITING_ID"),
                ("GET", format!("/management/consumers/{text}/call-counters"), "CONSUMER_ID"),
                ("GET", format!("/management/subjects/{text}/1/usage"), "REALM"),
                ("GET", format!("/management/subjects/ip/{text}/usage"), "SUBJECT_ID"),
                ("DELETE", format!("/management/subjects/user/1/usage/{text}"), "LIMIT"),
                ("GET", format!("/management/resources/{text}"), "RESOURCE"),
                ("GET", format!("/management/applications/{text}/resources"), "APPLICATION"),
            ] {
                let body = (method != "GET" && method != "DELETE").then(|| record([1; 6]));
                let answer = bank.manage(method, &path, body).await;
                assert_eq!(
                    (answer.status, &parse(&answer)["field"]),
                    (400, &json!(field)),
                    "{path}"
                );
            }
        }
        let bytes = bank.manage("GET", "/management/consumers/%ff%fe/call-counters", None).await;
        assert_eq!(bytes.status, 400, "{}", bytes.body);
        assert_eq!(stored(&bank.records).await, 0);
    })
    .await;
}

/// The text of the error is the one that clients of open banking systems expect.
#[tokio::test]
async fn an_hour_has_only_one_valid_form() {
    in_every_world(async |bank: Bank| {
        for hour in [
            "2025-12-31",
            "2025-12-31-24",
            "2025-13-01-00",
            "2025-12-31T13:34:46Z",
            "now",
            "20251231",
        ] {
            let answer = bank.manage("GET", &format!("{ACTIVE}/{hour}"), None).await;
            assert_eq!(answer.status, 400);
            assert_eq!(
                message(&answer),
                format!(
                    "Current date format is: {hour}. Please use this format: YYYY-MM-DD-HH in UTC \
                     (e.g. 2025-12-31-13 for hour 13:00-13:59 UTC on Dec 31, 2025)"
                )
            );
        }
    })
    .await;
}

#[tokio::test]
async fn bodies_that_are_no_objects_or_too_long_are_refused() {
    in_every_world(async |bank: Bank| {
        let send = async |media: &str, body: Vec<u8>| {
            let request = bank.site.request(Method::POST, &format!("{PREFIX}{RATE_LIMITS}"));
            request.bearer_auth(ALICE).header("content-type", media).body(body).fetch().await
        };
        let good = record([1; 6]).to_string();
        for body in
            ["", "{", "[]", "null", "1", "\"x\"", "{}{}", &format!("{good}x"), "{\"from_date\":"]
        {
            let answer = send("application/json", body.into()).await;
            assert_eq!(answer.status, 400, "{body}: {}", answer.body);
        }
        let deep = "[".repeat(10_000);
        assert_eq!(send("application/json", deep.into()).await.status, 400);
        let bytes = b"{\"from_date\":\"\xff\"}".to_vec();
        assert_eq!(send("application/json", bytes).await.status, 400);
        let twice = good.replacen('{', "{\"per_day_call_limit\":\"5\",", 1);
        let answer = send("application/json", twice.into()).await;
        assert_eq!((answer.status, &parse(&answer)["field"]), (400, &json!("per_day_call_limit")));
        for media in ["text/plain", "application/x-www-form-urlencoded", "application/xml", ""] {
            assert_eq!(send(media, good.clone().into()).await.status, 415, "{media}");
        }
        let long = format!("{good}{}", " ".repeat(16 * 1_024));
        let answer = send("application/json", long.into()).await;
        assert_eq!(answer.status, 413);
        assert_eq!(message(&answer), "body: expected at most 16384 bytes");
        assert_eq!(stored(&bank.records).await, 0);
        let media = "application/json; charset=utf-8";
        assert_eq!(send(media, good.into()).await.status, 201);
    })
    .await;
}

/// Limits that a store cannot count, alone or together, are refused before they are stored.
#[tokio::test]
async fn limits_that_cannot_be_added_up_are_refused() {
    in_every_world(async |bank: Bank| {
        let most = 9_007_199_254_740_991;
        bank.add([most, -1, -1, -1, -1, -1]).await;
        let answer = bank.manage("POST", RATE_LIMITS, Some(record([1, -1, -1, -1, -1, -1]))).await;
        refused(&answer, "per_second_call_limit", &json!(1));
        assert_eq!(stored(&bank.records).await, 1);
    })
    .await;
}

/// Fault: clients use the last second of the year 9999 for records without an end, but it was
/// rejected with "a time from 1970 to 9999".
#[tokio::test]
async fn a_record_may_last_to_the_end_of_the_year_9999() {
    in_every_world(async |bank: Bank| {
        let mut body = record([5; 6]);
        for (given, shown) in [
            ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59Z"),
            ("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999Z"),
            ("2016-12-31T23:59:60Z", "2016-12-31T23:59:59Z"),
        ] {
            body["to_date"] = json!(given);
            body["from_date"] = json!("2016-12-31T23:59:59Z");
            let created = bank.manage("POST", RATE_LIMITS, Some(body.clone())).await;
            assert_eq!(created.status, 201, "{}", created.body);
            assert_eq!(parse(&created)["to_date"], json!(shown));
        }
        let last = bank.get(&format!("{ACTIVE}/9999-12-31-23")).await;
        assert_eq!(last["active_at_date"], json!("9999-12-31T23:00:00Z"));
        assert_eq!(super::active_numbers(&last), [10; 6]);
        let block = json!({ "until": "9999-12-31T23:59:59Z" });
        let block = bank.manage("PUT", "/management/consumers/abc/block", Some(block)).await;
        assert_eq!(parse(&block)["to_date"], json!("9999-12-31T23:59:59Z"));
    })
    .await;
}

/// Fault: a response reported only one of the missing fields, in a text of two joined sentences.
#[tokio::test]
async fn all_missing_and_unknown_fields_are_named_at_once() {
    in_every_world(async |bank: Bank| {
        let answer = bank.manage("POST", RATE_LIMITS, Some(json!({}))).await;
        assert_eq!(message(&answer), "missing fields: from_date, to_date");
        assert_eq!(parse(&answer)["missing"], json!(["from_date", "to_date"]));
        let answer =
            bank.manage("POST", "/management/resources", Some(json!({ "limit": 1 }))).await;
        let expected = "unknown field: limit; missing fields: name, apps; did you mean limits?";
        assert_eq!(message(&answer), expected);
        let answer = bank.manage("GET", "/management/consumers/abc/explain?foo=1", None).await;
        assert_eq!(
            message(&answer),
            "unknown field: foo; expected one of cost, rule, tier, method, path, host, address"
        );
        let mistyped = json!({ "per_minut_call_limit": 1 });
        let answer = bank.manage("POST", RATE_LIMITS, Some(mistyped)).await;
        assert_eq!(parse(&answer)["expected"], "per_minute_call_limit");
        assert!(
            message(&answer).ends_with("; did you mean per_minute_call_limit?"),
            "{}",
            answer.body
        );
        let block = "/management/consumers/abc/block";
        let answer = bank.manage("PUT", block, Some(json!({}))).await;
        let expected = "a value such as {\"until\": \"2026-01-01T00:00:00Z\"}";
        assert_eq!(parse(&answer)["expected"], expected);
        let resource = json!({ "name": "a", "apps": {}, "max_permits": -1, "rate": 1 });
        let answer = bank.manage("POST", "/management/resources", Some(resource)).await;
        assert_eq!(message(&answer), "apps: expected a list");
    })
    .await;
}

/// Fault: the server waited for a body although its announced length was too long.
#[tokio::test]
async fn a_body_whose_announced_length_is_too_long_is_refused_without_reading_it() {
    let bank = Bank::embedded().await;
    let head = format!(
        "POST {PREFIX}{RATE_LIMITS} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ALICE}\r\n\
         content-type: application/json\r\ncontent-length: 10000000\r\nconnection: close\r\n\r\n"
    );
    let answer = bank.site.send(head).await;
    assert_eq!(rl_tests::web::statuses(&answer), [413]);
}

/// Browsers and proxies remove `.` and `..` from a path, so no request could reach a consumer with
/// such a name.
#[tokio::test]
async fn names_that_vanish_from_paths_are_refused() {
    in_every_world(async |bank: Bank| {
        for name in [".", ".."] {
            let body = json!({ "name": name, "apps": [], "max_permits": 1, "rate": 1 });
            let answer = bank.manage("POST", "/management/resources", Some(body)).await;
            assert_eq!(answer.status, 400, "{}", answer.body);
            let path = format!("{PREFIX}/management/consumers/{name}/block");
            let request = format!(
                "GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ALICE}\r\n\
                 connection: close\r\n\r\n"
            );
            let answer = bank.site.send(request).await;
            assert_eq!(rl_tests::web::statuses(&answer), [400], "{path}");
        }
    })
    .await;
}
