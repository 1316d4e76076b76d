//! The combined limits of a consumer's records.

use serde_json::json;

use super::{ACTIVE, Bank, RATE_LIMITS, active_numbers, dated, in_every_world, message, record};

/// A record is created, returned with its limits as text, and deleted.
#[tokio::test]
async fn a_record_is_created_and_echoed_and_deleted() {
    in_every_world(async |bank: Bank| {
        let mut written = record([10, 100, 1_000, -1, -1, -1]);
        written["api_name"] = json!("getBanks");
        written["api_version"] = json!("v6.0.0");
        written["bank_id"] = json!("");
        let created = bank.manage("POST", RATE_LIMITS, Some(written.clone())).await;
        assert_eq!(created.status, 201, "{}", created.body);
        let created = super::parse(&created);
        written["bank_id"] = json!(null);
        for (field, value) in written.as_object().unwrap() {
            assert_eq!(created[field], *value, "{field}");
        }
        assert_eq!(
            (&created["consumer_id"], &created["created_by"]),
            (&json!("abc"), &json!("alice"))
        );
        assert_eq!(created["created_at"], super::NOW);
        let id = created["rate_limiting_id"].as_str().unwrap();
        assert_eq!(bank.get(&format!("{RATE_LIMITS}/{id}")).await, created);
        assert_eq!(bank.get(RATE_LIMITS).await, json!({ "limits": [created], "next": null }));

        bank.remove(id).await;
        assert_eq!(bank.get(RATE_LIMITS).await["limits"], json!([]));
        assert_eq!(bank.manage("DELETE", &format!("{RATE_LIMITS}/{id}"), None).await.status, 404);
    })
    .await;
}

/// Limits may be numbers or texts, and fields may have their alternative names. Responses always
/// have the same form.
#[tokio::test]
async fn numbers_and_both_spellings_are_read() {
    in_every_world(async |bank: Bank| {
        let mixed = json!({
            "from_date": "2025-06-01T02:00:00+02:00", "to_date": "2026-06-01T00:00:00Z",
            "per_second_rate_limit": 10, "per_minute_call_limit": "100", "per_hour_rate_limit": "-1",
            "per_day_call_limit": -1, "per_week_call_limit": 0, "per_month_call_limit": "0",
        });
        let created = bank.manage("POST", RATE_LIMITS, Some(mixed)).await;
        assert_eq!(created.status, 201, "{}", created.body);
        let created = super::parse(&created);
        assert_eq!(super::written_numbers(&created), [10, 100, -1, -1, 0, 0]);
        assert_eq!(created["from_date"], "2025-06-01T00:00:00Z");
    })
    .await;
}

/// The limits of an hour include each record that is active at any time within the hour.
#[tokio::test]
async fn a_record_is_active_in_every_hour_that_it_touches() {
    in_every_world(async |bank: Bank| {
        let within =
            dated([10, -1, -1, -1, -1, -1], "2025-12-31T13:20:00Z", "2025-12-31T14:00:00Z");
        let created = bank.manage("POST", RATE_LIMITS, Some(within)).await;
        let id = super::parse(&created)["rate_limiting_id"].clone();
        for (hour, per_second) in [(12, -1), (13, 10), (14, 10), (15, -1)] {
            let active = bank.get(&format!("{ACTIVE}/2025-12-31-{hour}")).await;
            assert_eq!(active_numbers(&active), [per_second, -1, -1, -1, -1, -1], "{hour}");
            assert_eq!(active["active_at_date"], format!("2025-12-31T{hour}:00:00Z"));
            let expected = if per_second > 0 { json!([id]) } else { json!([]) };
            assert_eq!(active["considered_rate_limit_ids"], expected);
        }
        let now = bank.get(ACTIVE).await;
        assert_eq!((active_numbers(&now)[0], &now["active_at_date"]), (10, &json!(super::NOW)));
    })
    .await;
}

/// Two records overlap. At a time in both of them, the sums of their limits apply.
#[tokio::test]
async fn records_that_overlap_add_up() {
    in_every_world(async |bank: Bank| {
        let (from, to) = ("2025-12-31T00:00:00Z", "2026-01-02T00:00:00Z");
        for numbers in [[10, 100, 1_000, 5_000, -1, -1], [5, 50, 500, 2_500, -1, -1]] {
            let created = bank.manage("POST", RATE_LIMITS, Some(dated(numbers, from, to))).await;
            assert_eq!(created.status, 201);
        }
        let active = bank.get(&format!("{ACTIVE}/2026-01-01-13")).await;
        assert_eq!(active_numbers(&active), [15, 150, 1_500, 7_500, -1, -1]);
        assert_eq!(active["considered_rate_limit_ids"].as_array().unwrap().len(), 2);
        let later = bank.get(&format!("{ACTIVE}/2026-01-02-01")).await;
        assert_eq!(active_numbers(&later), [-1; 6]);
    })
    .await;
}

/// Without a record, no record is listed, and nothing is limited.
#[tokio::test]
async fn without_a_record_nothing_is_limited() {
    in_every_world(async |bank: Bank| {
        let active = bank.get(ACTIVE).await;
        assert_eq!(active["considered_rate_limit_ids"], json!([]));
        assert_eq!(active_numbers(&active), [-1; 6]);
        assert_eq!(bank.call().await.standing(), "200 -1--1--1");
    })
    .await;
}

/// A record with limits of 0 and without other limits blocks the consumer. The denial names the
/// consumer.
#[tokio::test]
async fn a_record_of_zero_blocks_until_it_is_deleted() {
    in_every_world(async |bank: Bank| {
        let id = bank.add([0, 0, 0, -1, -1, -1]).await;
        assert_eq!(active_numbers(&bank.get(ACTIVE).await), [0, 0, 0, -1, -1, -1]);
        let denied = bank.call().await;
        assert_eq!((denied.status, denied.header("retry-after")), (429, None));
        assert_eq!(denied.standing(), "429 0-0");
        let words = message(&denied);
        assert!(words.starts_with("OBP-10018: Too Many Requests."), "{words}");
        assert!(words.contains("blocked") && words.contains("abc"), "{words}");
        assert_eq!(bank.counted().await, [0; 6], "a denial is not counted");

        bank.remove(&id).await;
        assert_eq!(bank.call().await.status, 200);
        assert_eq!(bank.get(ACTIVE).await["considered_rate_limit_ids"], json!([]));
    })
    .await;
}

/// A limit of 0 adds nothing to a positive one. When it is the only limit again, it blocks.
#[tokio::test]
async fn zero_beside_others_adds_nothing() {
    in_every_world(async |bank: Bank| {
        let positive = bank.add([10, 100, 1_000, -1, -1, -1]).await;
        bank.add([0, -1, -1, -1, -1, -1]).await;
        assert_eq!(active_numbers(&bank.get(ACTIVE).await), [10, 100, 1_000, -1, -1, -1]);
        assert_eq!(bank.call().await.status, 200);
        bank.remove(&positive).await;
        assert_eq!(active_numbers(&bank.get(ACTIVE).await), [0, -1, -1, -1, -1, -1]);
        assert_eq!(bank.call().await.status, 429);
    })
    .await;
}

/// A record without limits is listed, but limits nothing.
#[tokio::test]
async fn a_record_of_minus_one_limits_nothing() {
    in_every_world(async |bank: Bank| {
        let id = bank.add([-1; 6]).await;
        let active = bank.get(ACTIVE).await;
        assert_eq!(active["considered_rate_limit_ids"], json!([id]));
        assert_eq!(active_numbers(&active), [-1; 6]);
        assert_eq!(bank.call().await.status, 200);
    })
    .await;
}
