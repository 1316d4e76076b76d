//! Lists: their pages and their searches.

use rl_core::time::Clock;
use rl_records::{Limits, RecordContent, TierContent};
use serde_json::{Value, json};

use super::{Bank, dated, in_every_world, parse};

async fn pages(bank: &Bank, path: &str) -> Vec<Vec<String>> {
    let mut pages = Vec::new();
    let mut after = String::new();
    loop {
        let page = bank.get(&format!("{path}{after}")).await;
        let limits = page["limits"].as_array().unwrap().iter();
        let consumer = |limit: &Value| limit["consumer_id"].as_str().unwrap().to_owned();
        pages.push(limits.map(consumer).collect());
        let Some(next) = page["next"].as_str() else { return pages };
        after = format!("&after={}", next.replace('@', "%40"));
    }
}

#[tokio::test]
async fn records_are_listed_in_pages_and_searched() {
    in_every_world(async |bank: Bank| {
        let numbers = [1, -1, -1, -1, -1, -1];
        let (from, to) = ("2025-06-01T00:00:00Z", "2026-06-01T00:00:00Z");
        for consumer in ["app-1", "app-2", "shop@example.org", "App-10", "app_3"] {
            let path = format!("/management/consumers/{consumer}/consumer/rate-limits");
            let past = dated(numbers, from, "2025-07-01T00:00:00Z");
            for body in [dated(numbers, from, to), past] {
                assert_eq!(bank.manage("POST", &path, Some(body)).await.status, 201);
            }
        }
        let all = pages(&bank, "/management/rate-limits?limit=3").await;
        assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3, 3, 1]);
        let mut seen = all.concat();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 5);

        let found = |found: Vec<Vec<String>>| {
            let mut found = found.concat();
            found.sort_unstable_by_key(|name| name.to_ascii_lowercase());
            found
        };
        let now = "active_at=2025-12-31T13:34:00Z";
        let apps = found(
            pages(&bank, &format!("/management/rate-limits?search=app-&limit=1&{now}")).await,
        );
        assert_eq!(apps, ["app-1", "app-2"]);
        let literal =
            found(pages(&bank, &format!("/management/rate-limits?search=app_&{now}")).await);
        assert_eq!(literal, ["app_3"], "an underscore is itself");
        let none = pages(&bank, "/management/rate-limits?search=unknown").await;
        assert_eq!(none, [Vec::<String>::new()]);
        let own = pages(&bank, "/management/consumers/app-1/consumer/rate-limits?limit=1").await;
        assert_eq!(own, [["app-1"], ["app-1"]]);
    })
    .await;
}

/// The console accepts any text as a name. So the lists of consumers and tiers must continue after
/// any name.
#[tokio::test]
async fn a_list_continues_after_any_name() {
    in_every_world(async |bank: Bank| {
        let now = bank.clock.now();
        for name in ["Apfel", "K\u{e4}se & \"Brot\"", "Zucker"] {
            let content = RecordContent::new(name, now, now, Limits::UNLIMITED);
            bank.records.create(content, "otto").await.unwrap();
            bank.records
                .tiers()
                .create(TierContent { name: name.into(), limits: Limits::UNLIMITED }, "otto")
                .await
                .unwrap();
        }
        for (list, items, name) in
            [("consumers", "consumers", "consumer_id"), ("tiers", "tiers", "name")]
        {
            let (mut found, mut after) = (Vec::new(), String::new());
            loop {
                let page = bank.get(&format!("/management/{list}?limit=1{after}")).await;
                found.extend(page[items].as_array().unwrap().iter().map(|item| item[name].clone()));
                let Some(next) = page["next"].as_str() else { break };
                let mut query = url::form_urlencoded::Serializer::new(String::new());
                after = format!("&{}", query.append_pair("after", next).finish());
            }
            assert_eq!(found, ["Apfel", "K\u{e4}se & \"Brot\"", "Zucker"], "{list}");
        }
    })
    .await;
}

#[tokio::test]
async fn an_invalid_query_of_a_list_is_named() {
    in_every_world(async |bank: Bank| {
        for (query, field) in [
            ("limit=0", "limit"),
            ("limit=1001", "limit"),
            ("limit=ten", "limit"),
            ("limit=1&limit=2", "limit"),
            ("page=2", "page"),
            ("after=x", "after"),
            ("after=", "after"),
            ("active_at=yesterday", "active_at"),
            ("search=%27%20OR%20%271%27%3D%271", "search"),
            ("search=%3Cscript%3E", "search"),
            ("search=", "search"),
        ] {
            let wrong = bank.manage("GET", &format!("/management/rate-limits?{query}"), None).await;
            assert_eq!((wrong.status, &parse(&wrong)["field"]), (400, &json!(field)), "{query}");
        }
        // An entry of these lists may contain a thousand applications, so the pages are small.
        for list in ["resources", "resources/a/history", "applications/shop/resources"] {
            let many = bank.manage("GET", &format!("/management/{list}?limit=51"), None).await;
            assert_eq!(
                (many.status, &parse(&many)["expected"]),
                (400, &json!("1 to 50")),
                "{list}"
            );
            let most = bank.manage("GET", &format!("/management/{list}?limit=50"), None).await;
            assert_eq!(most.status, 200, "{list}");
        }
        for list in ["resources", "tiers", "consumers"] {
            let after = format!("/management/{list}?after={}", "a".repeat(251));
            let wrong = bank.manage("GET", &after, None).await;
            assert_eq!((wrong.status, &parse(&wrong)["field"]), (400, &json!("after")), "{list}");
            let any = bank.manage("GET", &format!("/management/{list}?after=%00%22"), None).await;
            assert_eq!(any.status, 200, "{list}");
        }
        for query in ["before=0", "before=x", "before=-1", "limit=0", "of=x"] {
            let wrong = bank.manage("GET", &format!("/management/history?{query}"), None).await;
            assert_eq!(wrong.status, 400, "{query}");
        }
    })
    .await;
}
