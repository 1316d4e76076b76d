//! Checks that the API behaves as its OpenAPI document says.

use std::path::PathBuf;

use tokio::process::Command;

use super::subscriptions::subscribe;
use super::{ALICE, Bank, PREFIX};

/// Returns the path of schemathesis, which tests an API against its OpenAPI document. `tests/run`
/// installs it.
fn schemathesis() -> PathBuf {
    let named = std::env::var_os("RL_SCHEMATHESIS").map(PathBuf::from);
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).map(|folder| folder.join("schemathesis"));
    let found = named.into_iter().chain(found).find(|program| program.exists());
    found.expect("there is no schemathesis on the PATH: `tests/run` installs it")
}

/// schemathesis generates valid and invalid requests from the document. The responses must be as
/// documented.
///
/// The server rejects some requests that match the schema. For example, a record must not end
/// before it begins, but a schema cannot express this.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_does_what_its_document_says() {
    let bank = Bank::fleet().await;
    // Creates some objects and counts a call, so that responses contain data.
    bank.add([10, -1, -1, -1, -1, -1]).await;
    bank.call().await;
    subscribe(&bank, "active").await;
    let folder = tempfile::tempdir().unwrap();
    let tried = Command::new(schemathesis())
        .arg("run")
        .arg(bank.site.url(&format!("{PREFIX}/openapi.json")))
        .args(["--header", &format!("Authorization: Bearer {ALICE}")])
        .args(["--checks", "all", "--exclude-checks", "positive_data_acceptance"])
        .args(["--phases", "coverage,fuzzing", "--max-examples", "10", "--seed", "1"])
        .args(["--suppress-health-check", "all", "--no-color"])
        .current_dir(folder.path())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let printed = String::from_utf8_lossy(&tried.stdout);
    assert!(tried.status.success(), "{printed}\n{}", String::from_utf8_lossy(&tried.stderr));
    let document = bank.get("/openapi.json").await;
    let paths = document["paths"].as_object().unwrap();
    let operations: usize = paths.values().map(|path| path.as_object().unwrap().len()).sum();
    assert!(printed.contains(&format!("Tested: {operations}")), "{printed}");
}

/// Clients that are generated from the document could not send an undocumented header.
#[tokio::test]
async fn the_document_lists_if_match_exactly_where_it_is_checked() {
    let bank = Bank::embedded().await;
    let document = bank.get("/openapi.json").await;
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let none = Vec::new();
            let parameters = operation["parameters"].as_array().unwrap_or(&none);
            let named = parameters.iter().filter(|parameter| parameter["name"] == "If-Match");
            let named: Vec<_> = named.collect();
            let resets = path.ends_with("/usage")
                || path.contains("usage/{")
                || path.contains("call-counters");
            let is_heeded = matches!(&**method, "put" | "delete") && !resets;
            assert_eq!(named.len(), usize::from(is_heeded), "{method} {path}");
            for parameter in named {
                assert_eq!(
                    (&parameter["in"], &parameter["required"]),
                    (&"header".into(), &false.into())
                );
            }
        }
    }
}

/// The document contains the path at which the routes are nested.
#[tokio::test]
async fn the_document_names_the_place_where_it_is_mounted() {
    let bank = Bank::embedded().await;
    let document = bank.get("/openapi.json").await;
    assert_eq!(document["servers"][0]["url"], PREFIX);
    assert_eq!(document["openapi"], "3.1.0");
}
