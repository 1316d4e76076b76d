//! Files that change while a server uses their rules.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::Server;
use crate::domains::gateway_files::{GatewayFiles, GatewayFilesStatus, GatewaySource};

const PAUSE: Duration = Duration::from_millis(20);

const REQUEST: [&[(&str, &str)]; 1] = [&[("user", "alice")]];

fn file(limit: u32) -> String {
    format!(
        "domain: edge\ndescriptors:\n  - key: user\n    rate_limit: {{ unit: day, requests_per_unit: {limit} }}\n"
    )
}

fn watch(folder: &Path) -> GatewayFiles {
    let source = GatewaySource::Envoy { path: folder.to_owned(), merge: false };
    GatewayFiles::watch_with(source, PAUSE).unwrap()
}

/// Waits until the status of the files satisfies a condition.
async fn wait_for(files: &GatewayFiles, is_met: impl Fn(&GatewayFilesStatus) -> bool) {
    let mut ticks = tokio::time::interval(Duration::from_millis(5));
    let met = async {
        while !is_met(&files.status()) {
            ticks.tick().await;
        }
    };
    let met = tokio::time::timeout(Duration::from_secs(60), met).await;
    met.unwrap_or_else(|_| panic!("{:?}", files.status()));
}

#[tokio::test]
async fn a_change_is_applied_and_counters_survive() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("edge.yaml"), file(3)).unwrap();
    fs::write(folder.path().join(".hidden.yaml"), "not: valid").unwrap();
    fs::write(folder.path().join("notes.txt"), "not: valid").unwrap();
    let files = watch(folder.path());
    let server = Server::following(files.rules());
    assert_eq!(server.allowed("edge", &REQUEST, 2).await, 2);
    let before = files.status();
    assert_eq!((before.applied, before.refused, before.error.as_ref()), (1, 0, None));

    fs::write(folder.path().join("edge.yaml"), file(5)).unwrap();
    wait_for(&files, |status| status.applied > 1).await;
    assert_ne!(files.status().version, before.version);
    assert_eq!(server.allowed("edge", &REQUEST, 9).await, 3, "two of five are used");
    let applied = files.status().applied;
    fs::write(folder.path().join("more.yml"), file(1).replace("edge", "more")).unwrap();
    wait_for(&files, |status| status.applied > applied).await;
    assert_eq!(server.allowed("more", &REQUEST, 9).await, 1);
    assert_eq!(server.allowed("edge", &REQUEST, 9).await, 0);
}

#[tokio::test]
async fn a_file_that_is_not_valid_changes_nothing_and_a_valid_one_applies_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("edge.yaml");
    fs::write(&path, file(3)).unwrap();
    let files = watch(folder.path());
    let server = Server::following(files.rules());
    let version = files.status().version;
    let whole = file(9);
    for (bad, expected) in [
        // A half-written file.
        (&whole[..whole.len() - 8], "edge.yaml:4:"),
        ("", "edge.yaml: the file is empty"),
        ("domain: edge\ndescriptors: [{ key: user, limit: 3 }]", "edge.yaml:2:28: unknown field"),
    ] {
        let refused = files.status().refused;
        fs::write(&path, bad).unwrap();
        wait_for(&files, |status| status.refused > refused).await;
        let error = files.reload().unwrap_err();
        assert!(error.contains(expected), "{error}");
        assert_eq!(files.status().error, Some(error));
    }
    fs::remove_file(&path).unwrap();
    let error = files.reload().unwrap_err();
    assert!(error.ends_with("expected at least one file *.yaml"), "{error}");
    assert_eq!((files.status().applied, files.status().version), (1, version.clone()));
    assert_eq!(server.allowed("edge", &REQUEST, 9).await, 3);

    fs::write(&path, file(3)).unwrap();
    wait_for(&files, |status| status.error.is_none()).await;
    assert_eq!(files.status().version, version);
    assert_eq!(server.allowed("edge", &REQUEST, 1).await, 0, "the counters are the same");
}

#[cfg(unix)]
#[tokio::test]
async fn a_swapped_link_to_a_folder_is_followed() {
    use std::os::unix::fs::symlink;

    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (version, limit) in [("..1", 2), ("..2", 4)] {
        fs::create_dir(at(version)).unwrap();
        fs::write(at(version).join("edge.yaml"), file(limit)).unwrap();
    }
    symlink("..1", at("..data")).unwrap();
    symlink("..data/edge.yaml", at("edge.yaml")).unwrap();
    let files = watch(folder.path());
    let server = Server::following(files.rules());
    assert_eq!(server.allowed("edge", &REQUEST, 9).await, 2);
    symlink("..2", at("..data_tmp")).unwrap();
    fs::rename(at("..data_tmp"), at("..data")).unwrap();
    wait_for(&files, |status| status.applied >= 2).await;
    assert_eq!(server.allowed("edge", &REQUEST, 9).await, 2, "two of four are used");
}

#[tokio::test]
async fn reload_applies_the_file_of_limitador_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.yaml");
    let limits = |max| format!("- {{ namespace: edge, max_value: {max}, seconds: 60 }}");
    fs::write(&path, limits(1)).unwrap();
    let source = GatewaySource::Limitador { path: path.clone() };
    let files = GatewayFiles::watch(source).unwrap();
    let server = Server::following(files.rules());
    assert_eq!(server.allowed("edge", &REQUEST, 9).await, 1);
    fs::write(&path, limits(3)).unwrap();
    files.reload().unwrap();
    assert_eq!(server.allowed("edge", &REQUEST, 9).await, 2);
    assert_eq!(files.status().differences.len(), 1);
}

#[test]
fn files_that_cannot_be_read_fail_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.yaml");
    let source = GatewaySource::Limitador { path: path.clone() };
    let error = GatewayFiles::watch_with(source.clone(), PAUSE).unwrap_err();
    assert!(error.starts_with(&format!("{}: ", path.display())), "{error}");
    fs::create_dir(&path).unwrap();
    let error = source.read().unwrap_err();
    assert!(error.ends_with("expected a regular file"), "{error}");
    fs::remove_dir(&path).unwrap();
    fs::write(&path, [0xff]).unwrap();
    let error = source.read().unwrap_err();
    assert!(error.ends_with("expected UTF-8"), "{error}");
}
