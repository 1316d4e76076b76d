//! The effect of a change on a consumer determines which roles it requires, and whether the
//! response contains a warning.

use rl_admin::Role;
use rl_tests::web::Answer;
use serde_json::json;

use super::{
    Bank, CALL_LIMITS, RATE_LIMITS, dated, in_every_world, message, parse, record, token_of,
};

fn refused(answer: &Answer, role: Role) {
    assert_eq!(answer.status, 403, "{}", answer.body);
    assert!(message(answer).ends_with(&role.to_string()), "{}", answer.body);
}

/// Fault: a limit of 0 blocks a consumer, but required no role for blocking.
#[tokio::test]
async fn a_limit_of_zero_needs_the_roles_of_a_block() {
    in_every_world(async |bank: Bank| {
        let setter = token_of(Role::CanSetCallLimits);
        let updater = token_of(Role::CanUpdateRateLimits);
        let creator = token_of(Role::CanCreateRateLimits);
        let deleter = token_of(Role::CanDeleteRateLimits);
        let (block, unblock) = (Role::CanCreateRateLimits, Role::CanDeleteRateLimits);
        let zero = || Some(record([0, -1, -1, -1, -1, -1]));
        let some = || Some(record([10, -1, -1, -1, -1, -1]));

        refused(&bank.as_who(&setter, "PUT", CALL_LIMITS, zero()).await, block);
        assert_eq!(bank.call().await.status, 200);
        let set = bank.as_who(&setter, "PUT", CALL_LIMITS, some()).await;
        assert_eq!(set.status, 200, "{}", set.body);
        let path = format!("{RATE_LIMITS}/{}", parse(&set)["rate_limiting_id"].as_str().unwrap());
        refused(&bank.as_who(&updater, "PUT", &path, zero()).await, block);
        assert_eq!(bank.manage("PUT", &path, zero()).await.status, 200);
        assert_eq!(bank.call().await.status, 429);

        // The role for unblocking is required, whatever operation unblocks.
        refused(&bank.as_who(&updater, "PUT", &path, some()).await, unblock);
        refused(&bank.as_who(&setter, "PUT", CALL_LIMITS, some()).await, unblock);
        refused(&bank.as_who(&creator, "POST", RATE_LIMITS, some()).await, unblock);
        assert_eq!(bank.call().await.status, 429);
        let other = bank.manage("POST", RATE_LIMITS, some()).await;
        assert_eq!(bank.call().await.status, 200);
        let other =
            format!("{RATE_LIMITS}/{}", parse(&other)["rate_limiting_id"].as_str().unwrap());
        refused(&bank.as_who(&deleter, "DELETE", &other, None).await, block);
        assert_eq!(bank.as_who(&deleter, "DELETE", &path, None).await.status, 204);

        // Records in the past have no effect. They require neither the role for blocking nor the
        // one for unblocking.
        let past = dated([0; 6], "2024-01-01T00:00:00Z", "2024-02-01T00:00:00Z");
        assert_eq!(bank.manage("POST", RATE_LIMITS, Some(past)).await.status, 201);
        assert_eq!(bank.as_who(&updater, "PUT", &other, some()).await.status, 200);
    })
    .await;
}

#[tokio::test]
async fn a_tier_of_zero_needs_the_roles_of_a_block() {
    in_every_world(async |bank: Bank| {
        let setter = token_of(Role::CanSetCallLimits);
        let updater = token_of(Role::CanUpdateRateLimits);
        let (block, unblock) = (Role::CanCreateRateLimits, Role::CanDeleteRateLimits);
        let (none, gold) = ("/management/tiers/none", "/management/tiers/gold");
        let limits = |calls: i64| Some(json!({ "per_minute_call_limit": calls }));
        let into = |tier: &str| Some(json!({ "tier": tier }));
        let member = "/management/subjects/consumer/abc/tier";
        assert_eq!(bank.manage("POST", none, limits(0)).await.status, 201);
        assert_eq!(bank.manage("POST", gold, limits(9)).await.status, 201);
        refused(&bank.as_who(&setter, "PUT", member, into("none")).await, block);
        assert_eq!(bank.as_who(&setter, "PUT", member, into("gold")).await.status, 200);
        refused(&bank.as_who(&updater, "PUT", gold, limits(0)).await, block);
        assert_eq!(
            bank.as_who(&updater, "PUT", none, limits(1)).await.status,
            200,
            "the tier has no members"
        );
        assert_eq!(bank.manage("PUT", gold, limits(0)).await.status, 200);
        assert_eq!(bank.call().await.status, 429);
        refused(&bank.as_who(&updater, "PUT", gold, limits(9)).await, unblock);
        refused(&bank.as_who(&setter, "DELETE", member, None).await, unblock);
        let setter_too = token_of(Role::CanCreateRateLimits);
        refused(
            &bank.as_who(&setter_too, "POST", RATE_LIMITS, Some(record([5; 6]))).await,
            unblock,
        );
    })
    .await;
}

/// Fault: a resource limit of 0 tokens blocked the applications of the resource, but required no
/// role for blocking.
#[tokio::test]
async fn a_resource_limit_of_zero_needs_the_roles_of_a_block() {
    in_every_world(async |bank: Bank| {
        let updater = token_of(Role::CanUpdateRateLimits);
        let block = Role::CanCreateRateLimits;
        let unblock = Role::CanDeleteRateLimits;
        let path = "/management/resources/payments";
        let limit = |apps: &[&str], max_permits: u64, rate: u64| {
            Some(json!({ "apps": apps, "max_permits": max_permits, "rate": rate }))
        };
        let created = json!({ "name": "payments", "apps": ["shop"], "max_permits": 3, "rate": 1 });
        let created = bank.manage("POST", "/management/resources", Some(created)).await;
        assert_eq!(created.status, 201, "{}", created.body);

        refused(&bank.as_who(&updater, "PUT", path, limit(&["shop"], 0, 1)).await, block);
        refused(&bank.as_who(&updater, "PUT", path, limit(&["shop"], 3, 0)).await, block);
        let updated = bank.as_who(&updater, "PUT", path, limit(&["shop"], 2, 1)).await;
        assert_eq!(updated.status, 200, "{}", updated.body);
        assert_eq!(bank.manage("PUT", path, limit(&["shop"], 0, 1)).await.status, 200);

        // While the limit is 0, listing another application blocks it, and removing an application
        // unblocks it.
        refused(&bank.as_who(&updater, "PUT", path, limit(&["shop", "app"], 0, 1)).await, block);
        refused(&bank.as_who(&updater, "PUT", path, limit(&[], 0, 1)).await, unblock);
        refused(&bank.as_who(&updater, "PUT", path, limit(&["shop"], 3, 1)).await, unblock);
        let same = bank.as_who(&updater, "PUT", path, limit(&["shop"], 5, 0)).await;
        assert_eq!(same.status, 200, "{}", same.body);
    })
    .await;
}

/// A record without limits replaces the tier, and is easily created by mistake.
#[tokio::test]
async fn a_record_that_lifts_a_tier_is_answered_with_a_warning() {
    in_every_world(async |bank: Bank| {
        let empty = || {
            Some(json!({
                "from_date": "2025-01-01T00:00:00Z", "to_date": "9999-12-31T23:59:59Z",
            }))
        };
        let plain = bank.manage("PUT", CALL_LIMITS, empty()).await;
        assert_eq!((plain.status, parse(&plain).get("warning")), (200, None), "{}", plain.body);
        let free = json!({ "per_minute_call_limit": "20" });
        assert_eq!(bank.manage("POST", "/management/tiers/free", Some(free)).await.status, 201);
        let member = "/management/subjects/consumer/abc/tier";
        let free = Some(json!({ "tier": "free" }));
        assert_eq!(bank.manage("PUT", member, free).await.status, 200);
        let warning =
            "the record has no limit: while it is active, the limits of the tier free do not hold";
        for (method, path) in [("PUT", CALL_LIMITS), ("POST", RATE_LIMITS)] {
            let answer = bank.manage(method, path, empty()).await;
            assert!(answer.status < 300, "{}", answer.body);
            assert_eq!(parse(&answer)["warning"], json!(warning), "{method} {path}");
        }
        let limited = bank.manage("POST", RATE_LIMITS, Some(record([5; 6]))).await;
        assert_eq!(parse(&limited).get("warning"), None, "{}", limited.body);
    })
    .await;
}
