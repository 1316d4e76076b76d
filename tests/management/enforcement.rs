//! A change through the API applies to the next request of the service.

use std::time::Duration;

use serde_json::json;

use super::{
    ALICE, Bank, CALL_LIMITS, RATE_LIMITS, Role, in_every_world, message, parse, record, token_of,
    written_numbers,
};

/// Limits are set with one role, and read with another.
#[tokio::test]
async fn call_limits_are_set_and_read() {
    in_every_world(async |bank: Bank| {
        let mut written = record([10, 100, 1_000, 10_000, 50_000, 200_000]);
        let setter = token_of(Role::CanSetCallLimits);
        let set = bank.as_who(&setter, "PUT", CALL_LIMITS, Some(written.clone())).await;
        assert_eq!(set.status, 200, "{}", set.body);
        let set = parse(&set);
        for (field, value) in written.as_object().unwrap() {
            assert_eq!(set[field], *value, "{field}");
        }
        assert_eq!((&set["current_state"], &set["revision"]), (&json!(null), &json!(1)));

        bank.call().await;
        bank.clock.advance(Duration::from_millis(400));
        let reader = token_of(Role::CanReadCallLimits);
        let read = parse(&bank.as_who(&reader, "GET", CALL_LIMITS, None).await);
        assert_eq!(written_numbers(&read), [10, 100, 1_000, 10_000, 50_000, 200_000]);
        for state in ["current_state", "redis_call_limit"] {
            let minute = json!({ "calls_made": 1, "reset_in_seconds": 60 });
            assert_eq!(read[state]["per_minute"], minute);
            assert_eq!(read[state]["per_second"]["reset_in_seconds"], 1, "rounded up");
            assert_eq!(read[state]["per_month"]["reset_in_seconds"], 2_592_000);
        }

        // This request is for the same consumer, API and bank, so it updates the same record.
        written["per_second_call_limit"] = json!("11");
        let again = parse(&bank.manage("PUT", CALL_LIMITS, Some(written)).await);
        assert_eq!(again["rate_limiting_id"], set["rate_limiting_id"]);
        assert_eq!((&again["revision"], &again["updated_by"]), (&json!(2), &json!("alice")));
        assert_eq!(bank.get(RATE_LIMITS).await["limits"].as_array().unwrap().len(), 1);
    })
    .await;
}

/// Tests a limit of one call, for each of the six periods in turn. A denial never reports a wait of
/// 0 seconds.
#[tokio::test]
async fn a_limit_of_one_in_any_period_allows_one_call() {
    in_every_world(async |bank: Bank| {
        for (place, (name, seconds)) in [
            ("second", 1),
            ("minute", 60),
            ("hour", 3_600),
            ("day", 86_400),
            ("week", 604_800),
            ("month", 2_592_000),
        ]
        .into_iter()
        .enumerate()
        {
            let mut numbers = [-1; 6];
            numbers[place] = 1;
            let gone = bank.manage("DELETE", "/management/consumers/abc/call-counters", None).await;
            assert_eq!(gone.status, 204);
            let set = bank.manage("PUT", CALL_LIMITS, Some(record(numbers))).await;
            assert_eq!(set.status, 200, "{}", set.body);
            assert_eq!(bank.call().await.standing(), format!("200 1-0-{seconds}"), "{name}");
            let denied = bank.call().await;
            assert_eq!(denied.standing(), format!("429 1-0-{seconds}, retry {seconds}"), "{name}");
            assert!(message(&denied).contains(&format!("per {name}")), "{}", denied.body);
        }
    })
    .await;
}

/// The record names an endpoint and a version. When its limits are removed, calls are unlimited
/// again.
#[tokio::test]
async fn a_limit_for_an_endpoint_holds_until_it_is_removed() {
    in_every_world(async |bank: Bank| {
        for place in [0, 1, 2, 4, 5] {
            let mut numbers = [-1; 6];
            numbers[place] = 1;
            let with_name = |numbers| {
                let mut written = record(numbers);
                written["api_name"] = json!("OBPv4.0.0-dynamicEndpoint_GET_accounts");
                written["api_version"] = json!("v4.0.0");
                Some(written)
            };
            bank.manage("DELETE", "/management/consumers/abc/call-counters", None).await;
            assert_eq!(bank.manage("PUT", CALL_LIMITS, with_name(numbers)).await.status, 200);
            assert_eq!([bank.call().await.status, bank.call().await.status], [200, 429]);
            assert_eq!(bank.manage("PUT", CALL_LIMITS, with_name([-1; 6])).await.status, 200);
            assert_eq!([bank.call().await.status, bank.call().await.status], [200, 200]);
        }
        assert_eq!(bank.get(RATE_LIMITS).await["limits"].as_array().unwrap().len(), 1);
    })
    .await;
}

/// Calls of all paths count under one limit. Each request is one unit, however deep its path is.
#[tokio::test]
async fn calls_of_every_path_count_together_and_once() {
    in_every_world(async |bank: Bank| {
        bank.add([-1, 2, -1, -1, -1, -1]).await;
        let deep = "/v2/banks/gh.29.uk/accounts/8ca8a7e4/views";
        let mut statuses = Vec::new();
        for path in ["/v1/banks", deep, deep] {
            let answer = bank.call_at(path).await;
            statuses.push(answer.status);
            if answer.status == 429 {
                let words = message(&answer);
                assert!(words.contains("per minute") && words.contains("abc"), "{words}");
            }
        }
        assert_eq!(statuses, [200, 200, 429]);
        assert_eq!(bank.counted().await, [2; 6], "denied requests are not counted");
    })
    .await;
}

/// Nothing is limited. The headers report that, and calls are still counted.
#[tokio::test]
async fn unlimited_requests_are_counted() {
    in_every_world(async |bank: Bank| {
        for (calls, path) in [(1, "/banks"), (2, "/v1/banks"), (3, "/v2/banks/a/accounts/b/views")]
        {
            assert_eq!(bank.call_at(path).await.standing(), "200 -1--1--1");
            assert_eq!(bank.counted().await, [calls; 6]);
        }
        // A limit also counts the calls that were made before it was set.
        bank.add([-1, 4, -1, -1, -1, -1]).await;
        assert_eq!(bank.call().await.standing(), "200 4-0-60");
        assert_eq!(bank.call().await.status, 429);
    })
    .await;
}

/// The headers describe the shortest period that has a limit.
#[tokio::test]
async fn headers_are_those_of_the_shortest_limit() {
    in_every_world(async |bank: Bank| {
        bank.add([-1, 100, 1_000, -1, -1, -1]).await;
        assert_eq!(bank.call().await.standing(), "200 100-99-60");
        assert_eq!(bank.call().await.standing(), "200 100-98-60");
        assert_eq!(bank.counted().await, [2; 6], "seconds are counted although they have no limit");
    })
    .await;
}

/// A window and a record both end at their exact times.
#[tokio::test]
async fn windows_and_records_end_on_time() {
    in_every_world(async |bank: Bank| {
        let dated = super::dated([-1, 1, -1, -1, -1, -1], super::NOW, "2025-12-31T13:40:00Z");
        assert_eq!(bank.manage("POST", RATE_LIMITS, Some(dated)).await.status, 201);
        assert_eq!([bank.call().await.status, bank.call().await.status], [200, 429]);
        bank.clock.advance(Duration::from_micros(59_999_999));
        assert_eq!(bank.call().await.standing(), "429 1-0-1, retry 1");
        bank.clock.advance(Duration::from_micros(1));
        assert_eq!([bank.call().await.status, bank.call().await.status], [200, 429]);
        // It is 13:35 now, and the record is active until 13:40, inclusive.
        bank.clock.advance(Duration::from_secs(300) + Duration::from_micros(1));
        assert_eq!([bank.call().await.status, bank.call().await.status], [200, 200]);
        assert_eq!(bank.call().await.standing(), "200 -1--1--1");
    })
    .await;
}

/// A consumer has two matching records, and a client sets its call limits. The server refuses,
/// instead of choosing a record to overwrite.
#[tokio::test]
async fn setting_call_limits_where_there_are_several_records_is_refused() {
    in_every_world(async |bank: Bank| {
        let one = bank.add([1, -1, -1, -1, -1, -1]).await;
        let other = bank.add([2, -1, -1, -1, -1, -1]).await;
        let set = bank.as_who(ALICE, "PUT", CALL_LIMITS, Some(record([9; 6]))).await;
        assert_eq!(set.status, 409, "{}", set.body);
        let text = message(&set);
        assert!(text.contains(&one) && text.contains(&other), "it names them: {text}");
        assert!(text.contains("change or delete one of them by its id"), "{text}");
        assert_eq!(super::active_numbers(&bank.get(super::ACTIVE).await)[0], 3);
    })
    .await;
}
