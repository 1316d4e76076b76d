//! The history names actors, actions and subjects.

use std::time::Duration;

use rl_admin::Role;
use serde_json::{Value, json};

use super::{ACTIVE, Bank, in_every_world, record, token_of, until};

const HISTORY: &str = "/management/history";
const OF_ABC: &str = "/management/consumers/abc/history";

async fn entries(bank: &Bank, path: &str) -> Vec<Value> {
    let page = bank.get(&format!("{path}?limit=1000")).await;
    let mut entries = page["changes"].as_array().unwrap().clone();
    entries.reverse();
    entries
}

fn summary(entry: &Value) -> (&str, &str, &str) {
    let text = |field: &str| entry[field].as_str().unwrap_or("-");
    (text("about"), text("kind"), text("subject"))
}

/// Fault: assignments of tiers and resets of counters were in no history.
#[tokio::test]
async fn tiers_their_members_and_resets_are_in_the_history() {
    in_every_world(async |bank: Bank| {
        let (gold, member) = ("/management/tiers/gold", "/management/subjects/consumer/abc/tier");
        let limits = |calls: i64| Some(json!({ "per_minute_call_limit": calls }));
        let into_gold = || Some(json!({ "tier": "gold" }));
        for (method, path, body) in [
            ("POST", gold, limits(5)),
            ("PUT", gold, limits(6)),
            ("PUT", member, into_gold()),
            ("DELETE", "/management/consumers/abc/call-counters", None),
            ("DELETE", "/management/consumers/abc/call-counters/per_day", None),
            ("DELETE", "/management/subjects/consumer/abc/usage/minute", None),
            ("DELETE", "/management/subjects/ip/::1/usage", None),
            ("DELETE", member, None),
            ("DELETE", gold, None),
        ] {
            let answer = bank.manage(method, path, body).await;
            assert!((200..300).contains(&answer.status), "{method} {path}: {}", answer.body);
        }
        let all = entries(&bank, HISTORY).await;
        let of_abc = entries(&bank, OF_ABC).await;
        let abc = "consumer/abc";
        let expected = [
            ("tier", "created", "-"),
            ("tier", "updated", "-"),
            ("tier_member", "created", abc),
            ("counters", "reset", abc),
            ("counters", "reset", abc),
            ("counters", "reset", abc),
            ("counters", "reset", "ip/::/64"),
            ("tier_member", "deleted", abc),
            ("tier", "deleted", "-"),
        ];
        assert_eq!(all.iter().map(summary).collect::<Vec<_>>(), expected);
        assert!(all.iter().all(|entry| entry["by"] == "alice" && entry["at"] == super::NOW));
        let own: Vec<_> = expected.into_iter().filter(|(.., subject)| *subject == abc).collect();
        assert_eq!(of_abc.iter().map(summary).collect::<Vec<_>>(), own);
        assert_eq!(all[1]["before"]["per_minute_call_limit"], json!("5"));
        assert_eq!(all[1]["after"]["per_minute_call_limit"], json!("6"));
        assert_eq!((&all[2]["before"], &all[2]["after"]["tier"]), (&json!(null), &json!("gold")));
        let limits: Vec<_> =
            all[3..6].iter().map(|entry| entry["after"]["limit"].clone()).collect();
        assert_eq!(limits, [json!(null), json!("day"), json!("minute")]);

        // A page may begin in the middle of the list, which mixes all kinds of entries.
        let first = bank.get(&format!("{HISTORY}?limit=4")).await;
        let rest = bank.get(&format!("{HISTORY}?limit=1000&before={}", first["next"])).await;
        assert_eq!(rest["changes"].as_array().unwrap().len(), 5);
    })
    .await;
}

/// Fault: an entry about a refusal named the actor and the role, but neither the path nor the
/// consumer.
#[tokio::test]
async fn refused_requests_are_sampled_in_the_history() {
    in_every_world(async |bank: Bank| {
        let viewer = token_of(Role::CanReadCallLimits);
        let path = "/management/consumers/abc/consumer/call-limits";
        let refused = async || {
            let answer = bank.as_who(&viewer, "PUT", path, Some(record([1; 6]))).await;
            assert_eq!(answer.status, 403);
        };
        let written = async || entries(&bank, OF_ABC).await.len();
        for _ in 0..30 {
            refused().await;
        }
        until(async || written().await == 10).await;
        let first = entries(&bank, OF_ABC).await.remove(0);
        assert_eq!(summary(&first), ("request", "refused", "consumer/abc"));
        assert_eq!(
            (&first["by"], &first["item"]),
            (&json!("CanReadCallLimits"), &json!("CanSetCallLimits"))
        );
        let request = json!({ "method": "PUT", "path": path, "count": 1 });
        assert_eq!(first["after"], request);

        bank.clock.advance(Duration::from_secs(60));
        refused().await;
        until(async || written().await == 11).await;
        let last = entries(&bank, OF_ABC).await.pop().unwrap();
        assert_eq!(last["after"]["count"], json!(21), "it stands for those that were not written");
        assert_eq!(bank.get(ACTIVE).await["considered_rate_limit_ids"], json!([]));
    })
    .await;
}
