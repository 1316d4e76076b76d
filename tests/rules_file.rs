//! A file of rules that changes while requests are decided.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rl_core::rules::{RulesFile, RulesFileStatus};
use rl_core::{MemoryStore, RateLimiter, Subject};
use rl_tests::web::new_year;
use tokio::time::{interval, timeout};

/// A directory that is removed with all files in it.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rl-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(fs::canonicalize(path).unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.join("limits.yaml")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A way in which an operator changes the file of rules.
#[derive(Clone, Copy, Debug)]
enum Way {
    InPlace,
    Rename,
    /// The file is reached through a link to a directory. The link is replaced, as in a volume of
    /// Kubernetes.
    SwapLink,
    /// The file is rewritten in place, and the process gets SIGHUP.
    Signal,
}

impl Way {
    const ALL: [Self; 4] = [Self::InPlace, Self::Rename, Self::SwapLink, Self::Signal];

    /// Changes the file. `version` is different for each change.
    fn change(self, directory: &Path, content: &str, version: u64) {
        let file = directory.join("limits.yaml");
        match self {
            Self::InPlace => fs::write(file, content).unwrap(),
            Self::Rename => {
                fs::write(directory.join("limits.tmp"), content).unwrap();
                fs::rename(directory.join("limits.tmp"), file).unwrap();
            }
            Self::SwapLink => {
                let data = directory.join(format!("..{version}"));
                fs::create_dir(&data).unwrap();
                fs::write(data.join("limits.yaml"), content).unwrap();
                std::os::unix::fs::symlink(&data, directory.join("..data_tmp")).unwrap();
                fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
                if !file.is_symlink() {
                    let link = directory.join("link_tmp");
                    std::os::unix::fs::symlink("..data/limits.yaml", &link).unwrap();
                    fs::rename(link, file).unwrap();
                }
            }
            Self::Signal => {
                fs::write(file, content).unwrap();
                let this = std::process::id().to_string();
                assert!(Command::new("kill").args(["-HUP", &this]).status().unwrap().success());
            }
        }
    }
}

/// Returns rules that differ only in a limit that no request reaches.
fn content(version: u64) -> String {
    let other = version + 1;
    format!(
        "rules:\n  a: {{ limits: [1000000/hour, {other}000000/day], disclosed: true }}\n  \
         b: {{ limits: 2000000/hour }}\n"
    )
}

/// Waits until the status of the file satisfies `is_reached`.
async fn until(file: &RulesFile, is_reached: impl Fn(&RulesFileStatus) -> bool) -> RulesFileStatus {
    let mut status = file.status();
    while !is_reached(&status) {
        let next = timeout(Duration::from_secs(20), file.changed_since(&status)).await;
        status = next.unwrap_or_else(|_| panic!("no change is noticed: {:?}", file.status()));
    }
    status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn changes_under_load_fail_no_request_and_lose_no_count() {
    const ROUNDS: u64 = 5;

    let directory = Directory::new("rules-under-load");
    fs::write(directory.path(), content(0)).unwrap();
    let file = RulesFile::watch(directory.path()).unwrap();
    let store = MemoryStore::builder().clock(new_year()).build();
    let limiter = RateLimiter::builder().rules(&file).store(store).build().unwrap();

    let (is_over, allowed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let subject = Subject::global();
    let clients = (0..3).map(|_| {
        let (limiter, is_over, allowed) = (limiter.clone(), is_over.clone(), allowed.clone());
        // About ten thousand requests per second in all, below the limits of the rules.
        let mut pace = interval(Duration::from_micros(300));
        tokio::spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                let decision = limiter.check_rule("a", &Subject::global(), 1).await;
                assert!(decision.is_allowed(), "{decision:?}");
                allowed.fetch_add(1, Ordering::Relaxed);
                pace.tick().await;
            }
        })
    });
    let clients: Vec<_> = clients.collect();
    let mut version = 0;
    for way in Way::ALL {
        for _ in 0..ROUNDS {
            version += 1;
            let before = file.status();
            way.change(&directory.0, &content(version), version);
            until(&file, |status| status.version() != before.version()).await;
            let usage = limiter.usage_of_rule("a", &subject).await.unwrap();
            let max: Vec<u64> = usage.limits().map(|limit| limit.max()).collect();
            assert_eq!(max, [1_000_000, (version + 1) * 1_000_000], "{way:?}");

            let before = file.status();
            way.change(&directory.0, "rules: { a: { limits: none } }", version + 1_000);
            let refused = until(&file, |status| status.refused() > before.refused()).await;
            assert_eq!(refused.version(), before.version(), "{way:?}");
            let error = refused.error().unwrap().to_string();
            assert!(error.contains("limits.yaml:1:23: limit \"none\""), "{error}");
        }
    }
    is_over.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    // The counters of both limits have counted every request, although each new version of the file
    // has changed the second limit.
    let allowed = allowed.load(Ordering::Relaxed);
    let usage = limiter.usage_of_rule("a", &subject).await.unwrap();
    assert_eq!(usage.limits().map(|limit| limit.used()).collect::<Vec<_>>(), [allowed; 2]);
    assert!(allowed > 1_000, "{allowed}");
}
