//! Tiers, their members, and the list of consumers.

use reqwest::Method;
use rl_core::key::KeySecret;
use rl_core::{Realm, Subject};
use rl_tests::web::Fetch;
use serde_json::{Value, json};

use super::{ACTIVE, ALICE, Bank, PREFIX, active_numbers, in_every_world, parse};

const GOLD: &str = "/management/tiers/gold";
const MEMBER: &str = "/management/subjects/consumer/abc/tier";

fn per_minute(calls: i64) -> Option<Value> {
    let mut limits = super::record([-1, calls, -1, -1, -1, -1]);
    limits.as_object_mut().unwrap().retain(|field, _| field.ends_with("_limit"));
    Some(limits)
}

#[tokio::test]
async fn a_tier_binds_its_members_until_a_record_puts_it_aside() {
    in_every_world(async |bank: Bank| {
        let created = bank.manage("POST", GOLD, per_minute(2)).await;
        assert_eq!(created.status, 201, "{}", created.body);
        assert_eq!(bank.manage("POST", GOLD, per_minute(3)).await.status, 409);
        assert_eq!(bank.manage("GET", MEMBER, None).await.status, 404);
        let into = |tier: &str| Some(json!({ "tier": tier }));
        let unknown = bank.manage("PUT", MEMBER, into("silver")).await;
        assert_eq!((unknown.status, &parse(&unknown)["field"]), (400, &json!("tier")));
        let member = bank.manage("PUT", MEMBER, into("gold")).await;
        assert_eq!(
            (member.status, &parse(&member)["tier"]),
            (200, &json!("gold")),
            "{}",
            member.body
        );
        assert_eq!(active_numbers(&bank.get(ACTIVE).await), [-1, 2, -1, -1, -1, -1]);
        assert_eq!(bank.call().await.standing(), "200 2-1-60");
        let explained = bank.get("/management/consumers/abc/explain").await;
        assert_eq!((&explained["source"], &explained["tier"]), (&json!("tier"), &json!("gold")));

        assert_eq!(bank.manage("PUT", GOLD, per_minute(5)).await.status, 200);
        assert_eq!(bank.call().await.standing(), "200 5-3-60", "a change binds its members");
        let tag = member.header("etag").unwrap();
        let taken =
            bank.site.request(Method::DELETE, &format!("{PREFIX}{GOLD}")).bearer_auth(ALICE);
        assert_eq!(
            taken.header("if-match", tag).fetch().await.status,
            412,
            "the tag of something else"
        );
        assert_eq!(bank.manage("DELETE", GOLD, None).await.status, 409, "it has a member");

        bank.add([-1, 9, -1, -1, -1, -1]).await;
        assert_eq!(bank.call().await.standing(), "200 9-6-60");
        let consumers = bank.get("/management/consumers?search=ab").await;
        let abc = json!({ "consumer_id": "abc", "records": 1, "active": 1, "tier": "gold" });
        assert_eq!(consumers, json!({ "consumers": [abc], "next": null }));
        assert_eq!(
            bank.get("/management/consumers?search=a&after=abc").await["consumers"],
            json!([])
        );

        assert_eq!(bank.manage("DELETE", MEMBER, None).await.status, 204);
        for seen in [tag, "*"] {
            let late = bank.site.request(Method::PUT, &format!("{PREFIX}{MEMBER}"));
            let late = late.bearer_auth(ALICE).header("if-match", seen).json(&into("gold"));
            assert_eq!(late.fetch().await.status, 412, "it was taken out meanwhile: {seen}");
        }
        assert_eq!(bank.manage("DELETE", GOLD, None).await.status, 204);
        assert_eq!(bank.get("/management/tiers").await, json!({ "tiers": [], "next": null }));
    })
    .await;
}

/// A key is identified by its hash, and the key itself is stored nowhere.
#[tokio::test]
async fn keys_are_in_tiers_by_their_hash() {
    in_every_world(async |bank: Bank| {
        assert_eq!(bank.manage("POST", GOLD, per_minute(2)).await.status, 201);
        let key: Subject = KeySecret::new(b"from the configuration")
            .unwrap()
            .subject(Realm::Key, b"key of a client");
        let path = format!("/management/subjects/key/{}/tier", key.id());
        let member = bank.manage("PUT", &path, Some(json!({ "tier": "gold" }))).await;
        assert_eq!(member.status, 200, "{}", member.body);
        let stored = bank.records.tiers().member(&key).await.unwrap().unwrap();
        assert_eq!((&*stored.tier, &*stored.updated_by), ("gold", "alice"));
        for who in ["ip/192.0.2.7", "key/plain", "user/alice"] {
            let path = format!("/management/subjects/{who}/tier");
            let refused = bank.manage("PUT", &path, Some(json!({ "tier": "gold" }))).await;
            assert_eq!(
                (refused.status, &parse(&refused)["field"]),
                (400, &json!("realm")),
                "{who}"
            );
        }
    })
    .await;
}
