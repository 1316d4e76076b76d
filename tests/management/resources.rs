//! Limits of resources, by application.

use reqwest::Method;
use rl_tests::web::Fetch;
use serde_json::{Value, json};

use super::{ALICE, Bank, PREFIX, in_every_world, parse};

const RESOURCES: &str = "/management/resources";

fn payments(apps: &[&str]) -> Value {
    json!({ "name": "payments", "apps": apps, "max_permits": 3, "rate": 1 })
}

fn names(page: &Value) -> Vec<&str> {
    let resources = page["resources"].as_array().unwrap().iter();
    resources.map(|resource| resource["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn limits_of_resources_are_managed_by_application() {
    in_every_world(async |bank: Bank| {
        let created =
            bank.manage("POST", RESOURCES, Some(payments(&["shop", "wallet", "shop"]))).await;
        assert_eq!(created.status, 201, "{}", created.body);
        let tag = created.header("etag").unwrap().to_owned();
        let created = parse(&created);
        assert_eq!(tag, format!("\"{}\"", created["revision"]));
        assert_eq!(created["apps"], json!(["shop", "wallet"]));
        assert_eq!(created["created_by"], "alice");
        let path = "/management/resources/payments";
        assert_eq!(bank.get(path).await, created);
        let again = bank.manage("POST", RESOURCES, Some(payments(&[]))).await;
        assert_eq!(again.status, 409);

        for name in ["a", "b", "c"] {
            let body = json!({ "name": name, "apps": ["Shop"], "max_permits": 0, "rate": 0 });
            assert_eq!(bank.manage("POST", RESOURCES, Some(body)).await.status, 201);
        }
        let page = bank.get(&format!("{RESOURCES}?limit=2")).await;
        assert_eq!(names(&page), ["a", "b"]);
        let after = page["next"].as_str().unwrap();
        assert_eq!(
            names(&bank.get(&format!("{RESOURCES}?after={after}")).await),
            ["c", "payments"]
        );
        for (app, expected) in [
            ("shop", &["payments"][..]),
            ("Shop", &["a", "b", "c"]),
            ("sho", &[]),
            ("wallet", &["payments"]),
        ] {
            let found = bank.get(&format!("/management/applications/{app}/resources")).await;
            assert_eq!(names(&found), expected, "{app}");
        }

        let body = json!({ "apps": ["shop"], "max_permits": 10, "rate": 5 });
        let put = async |tag: &str| {
            let put = bank.site.request(Method::PUT, &format!("{PREFIX}{path}")).bearer_auth(ALICE);
            put.header("if-match", tag).json(&body).fetch().await.status
        };
        assert_eq!(put("\"7000\"").await, 412);
        assert_eq!(bank.manage("DELETE", path, None).await.status, 204);
        assert_eq!(bank.manage("POST", RESOURCES, Some(payments(&["shop"]))).await.status, 201);
        assert_eq!(put(&tag).await, 412, "another one of the same name");
        let updated = bank.manage("PUT", path, Some(body.clone())).await;
        assert_eq!((updated.status, &parse(&updated)["max_permits"]), (200, &json!(10)));
        assert_eq!(bank.manage("DELETE", path, None).await.status, 204);
        assert_eq!(bank.manage("GET", path, None).await.status, 404);
        let history = bank.get(&format!("{path}/history")).await;
        let kinds =
            history["changes"].as_array().unwrap().iter().map(|change| change["kind"].clone());
        assert_eq!(
            kinds.collect::<Vec<_>>(),
            ["deleted", "updated", "created", "deleted", "created"]
        );
    })
    .await;
}

/// Two numbers, as gateways write them, and limits as text are views of the same content.
#[tokio::test]
async fn limits_of_a_resource_are_two_numbers_or_texts() {
    in_every_world(async |bank: Bank| {
        let path = "/management/resources/payments";
        let view = |found: &Value| {
            (found["limits"].clone(), found["max_permits"].clone(), found["rate"].clone())
        };
        let created = bank.manage("POST", RESOURCES, Some(payments(&["shop"]))).await;
        let bucket = json!(["1/second:token-bucket:capacity=3"]);
        assert_eq!(view(&parse(&created)), (bucket.clone(), json!(3), json!(1)));
        for (body, limits, max_permits, rate) in [
            (
                json!({ "limits": ["100/day", "5/second"] }),
                json!(["5/second", "100/day"]),
                json!(null),
                json!(null),
            ),
            (json!({ "limits": [] }), json!([]), json!(null), json!(null)),
            (
                json!({ "limits": bucket, "max_permits": null, "rate": null }),
                bucket.clone(),
                json!(3),
                json!(1),
            ),
            (json!({ "max_permits": 0, "rate": 9 }), json!(["0/second"]), json!(0), json!(0)),
            (
                json!({ "max_permits": 2, "rate": 2 }),
                json!(["2/second:token-bucket"]),
                json!(2),
                json!(2),
            ),
        ] {
            let mut body = body;
            body["apps"] = json!(["shop"]);
            let put = bank.manage("PUT", path, Some(body.clone())).await;
            assert_eq!(put.status, 200, "{body}: {}", put.body);
            assert_eq!(view(&bank.get(path).await), (limits, max_permits, rate), "{body}");
        }
        let history = bank.get(&format!("{path}/history")).await;
        let last = &history["changes"][0];
        assert_eq!(view(&last["after"]), (json!(["2/second:token-bucket"]), json!(2), json!(2)));
        for (body, field) in [
            (json!({ "apps": [] }), "limits"),
            (json!({ "apps": [], "max_permits": 1 }), "rate"),
            (json!({ "apps": [], "rate": 1 }), "max_permits"),
            (json!({ "apps": [], "limits": ["1/day"], "max_permits": 1, "rate": 1 }), "limits"),
            (json!({ "apps": [], "limits": ["1/day"], "rate": 1 }), "limits"),
            (json!({ "apps": [], "limits": ["1/fortnight"] }), "limits"),
            (json!({ "apps": [], "limits": ["1/day", "2/day"] }), "limits"),
            (
                json!({ "apps": [], "max_permits": 9_007_199_254_740_991_u64, "rate": 2 }),
                "max_permits",
            ),
        ] {
            let wrong = bank.manage("PUT", path, Some(body.clone())).await;
            assert_eq!((wrong.status, &parse(&wrong)["field"]), (400, &json!(field)), "{body}");
        }
    })
    .await;
}

#[tokio::test]
async fn the_remaining_units_of_a_resource_are_shown() {
    in_every_world(async |bank: Bank| {
        bank.manage("POST", RESOURCES, Some(payments(&["shop"]))).await;
        let path = "/management/resources/payments/usage";
        let usage = bank.get(path).await;
        let bucket = &usage["limits"][0];
        assert_eq!((&bucket["max"], &bucket["used"]), (&json!(3), &json!(0)));
        assert_eq!(bucket["limit"], "1/second:token-bucket:capacity=3");
        let limits = json!({ "apps": ["shop"], "limits": ["5/second", "100/day"] });
        assert_eq!(
            bank.manage("PUT", "/management/resources/payments", Some(limits)).await.status,
            200
        );
        let usage = bank.get(path).await;
        let limits = usage["limits"].as_array().unwrap().iter().map(|limit| &limit["limit"]);
        assert_eq!(limits.collect::<Vec<_>>(), ["5/second", "100/day"]);
        assert_eq!(bank.manage("GET", "/management/resources/other/usage", None).await.status, 404);
    })
    .await;
}

#[tokio::test]
async fn an_invalid_field_of_a_resource_is_named() {
    in_every_world(async |bank: Bank| {
        let with = |field: &str, value: Value| {
            let mut body = payments(&["shop"]);
            body[field] = value;
            body
        };
        for (field, value) in [
            ("name", json!("a b")),
            ("name", json!("'; DROP TABLE rl_resource_limits; --")),
            ("name", json!(null)),
            ("apps", json!(["<b>"])),
            ("apps", json!("shop")),
            (
                "apps",
                json!(
                    vec!["a"; 1_001]
                        .iter()
                        .enumerate()
                        .map(|(n, a)| format!("{a}{n}"))
                        .collect::<Vec<_>>()
                ),
            ),
            ("max_permits", json!(-1)),
            ("max_permits", json!("3")),
            ("max_permits", json!(9_007_199_254_740_992_u64)),
            ("rate", json!(1.5)),
            ("owner", json!("mallory")),
        ] {
            let wrong = bank.manage("POST", RESOURCES, Some(with(field, value.clone()))).await;
            assert_eq!(wrong.status, 400, "{field}: {value}");
            let named = parse(&wrong)["field"].as_str().unwrap().to_owned();
            assert!(named.starts_with(field), "{field}: {named}");
        }
        assert_eq!(bank.get(RESOURCES).await["resources"], json!([]));
    })
    .await;
}

/// Owners may edit and delete only the limits of their own applications.
#[tokio::test]
async fn owners_edit_only_limits_of_their_own_applications() {
    in_every_world(async |bank: Bank| {
        let as_owner = async |method: &str, path: &str, body: Option<Value>| {
            bank.as_who(super::OWNER_OF_SHOP, method, path, body).await.status
        };
        assert_eq!(as_owner("POST", RESOURCES, Some(payments(&["shop", "wallet"]))).await, 403);
        assert_eq!(as_owner("POST", RESOURCES, Some(payments(&[]))).await, 403, "no owner");
        assert_eq!(as_owner("POST", RESOURCES, Some(payments(&["shop"]))).await, 201);
        let path = "/management/resources/payments";
        let update = |apps: &[&str]| Some(json!({ "apps": apps, "max_permits": 1, "rate": 1 }));
        assert_eq!(as_owner("PUT", path, update(&["shop", "wallet"])).await, 403);
        assert_eq!(as_owner("PUT", path, update(&["shop"])).await, 200);
        assert_eq!(as_owner("PUT", path, update(&[])).await, 403);
        assert_eq!(bank.manage("PUT", path, update(&[])).await.status, 200);
        assert_eq!(
            as_owner("PUT", path, update(&["shop"])).await,
            404,
            "a resource without an owner is not theirs"
        );
        assert_eq!(as_owner("DELETE", path, None).await, 404);
        assert_eq!(bank.manage("PUT", path, update(&["shop", "wallet"])).await.status, 200);
        assert_eq!(as_owner("GET", path, None).await, 200, "looking is not owning");
        assert_eq!(
            as_owner("PUT", path, update(&["shop"])).await,
            403,
            "nor is taking it from others"
        );
        assert_eq!(as_owner("DELETE", path, None).await, 403);
        assert_eq!(bank.get(path).await["apps"], json!(["shop", "wallet"]));
        assert_eq!(bank.manage("PUT", path, update(&["shop"])).await.status, 200);
        assert_eq!(as_owner("DELETE", path, None).await, 204);
    })
    .await;
}
