//! A rule file that changes while requests are decided.

use std::convert::Infallible;
use std::fs;
use std::future::ready;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Request, Response};
use rl_core::rules::{RulesFile, RulesFileStatus};
use rl_core::{MemoryStore, RateLimiter, Subject};
use rl_tests::is_soak;
use rl_tests::web::{GIVE_UP, new_year};
use rl_tower::RateLimitLayer;
use tokio::time::{Instant, interval, timeout};
use tower::{Layer, Service, service_fn};

/// The address of the client that sends requests.
const PEER: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 7), 50_000));

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

/// A way in which an operator changes the rule file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    InPlace,
    Rename,
    /// The path of the file contains a link to a directory. The link is replaced, as in a volume of
    /// Kubernetes.
    SwapLink,
    /// The file is written in place. Then the process gets SIGHUP, and reads the file again.
    Signal,
}

impl Way {
    const ALL: [Self; 4] = [Self::InPlace, Self::Rename, Self::SwapLink, Self::Signal];

    /// Changes the file.
    fn change(self, directory: &Path, content: &str) {
        let file = directory.join("limits.yaml");
        match self {
            Self::InPlace | Self::Signal => fs::write(file, content).unwrap(),
            Self::Rename => {
                fs::write(directory.join("limits.tmp"), content).unwrap();
                fs::rename(directory.join("limits.tmp"), file).unwrap();
            }
            Self::SwapLink => {
                let link = directory.join("..data");
                let old = fs::read_link(&link).ok();
                let is_first = old.as_ref().is_none_or(|old| old.ends_with("..data-2"));
                let data = directory.join(if is_first { "..data-1" } else { "..data-2" });
                fs::create_dir(&data).unwrap();
                fs::write(data.join("limits.yaml"), content).unwrap();
                symlink(&data, directory.join("..data_tmp")).unwrap();
                fs::rename(directory.join("..data_tmp"), link).unwrap();
                if !file.is_symlink() {
                    symlink("..data/limits.yaml", directory.join("link_tmp")).unwrap();
                    fs::rename(directory.join("link_tmp"), file).unwrap();
                }
                if let Some(old) = old {
                    fs::remove_dir_all(old).unwrap();
                }
            }
        }
    }
}

/// Returns a version of the rules. Versions differ only in a limit that no request reaches.
fn content(version: u64) -> String {
    let other = version + 1;
    format!(
        "rules:\n  clients: {{ per: address, limits: [100000000/hour, {other}00000/day] }}\n  \
         fleet: {{ limits: 200000000/hour }}\n"
    )
}

/// Waits until the status of the file satisfies `is_reached`.
pub(crate) async fn until(
    file: &RulesFile,
    is_reached: impl Fn(&RulesFileStatus) -> bool,
) -> RulesFileStatus {
    let mut status = file.status();
    while !is_reached(&status) {
        let next = timeout(GIVE_UP, file.changed_since(&status)).await;
        status = next.unwrap_or_else(|_| panic!("no change is noticed: {:?}", file.status()));
    }
    status
}

/// Sends requests through a layer until `is_over` is set. Each of them must be allowed. Returns
/// their number.
async fn send_requests(limiter: RateLimiter, is_over: Arc<AtomicBool>) -> u64 {
    let handler = service_fn(|_| ready(Ok::<_, Infallible>(Response::new(String::new()))));
    let mut service = RateLimitLayer::new(limiter).layer(handler);
    let mut pace = interval(Duration::from_micros(600));
    let mut allowed = 0;
    while !is_over.load(Ordering::Relaxed) {
        let request = Request::get("/").extension(PEER).body(String::new()).unwrap();
        let response = service.call(request).await.unwrap();
        assert_eq!(response.status(), 200, "{:?}", response.headers());
        allowed += 1;
        pace.tick().await;
    }
    allowed
}

/// Returns the max and the used units of each limit.
async fn status(limiter: &RateLimiter, rule: &str, subject: &Subject) -> Vec<(u64, u64)> {
    let usage = limiter.rule(rule).of(subject).usage().await.unwrap();
    usage.limits().map(|limit| (limit.max(), limit.used())).collect()
}

/// Sends SIGHUP, and waits until the file is applied again although it has not changed.
async fn hang_up(file: &RulesFile) {
    let before = file.status();
    let this = std::process::id().to_string();
    assert!(Command::new("kill").args(["-HUP", &this]).status().unwrap().success());
    let after = until(file, |status| status.applied() > before.applied()).await;
    assert_eq!(after.version(), before.version());
}

/// Changes the file five times in each [`Way`], or a thousand times in each with `RL_SOAK=1`.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn changes_under_load_fail_no_request_and_lose_no_count() {
    let (rounds, rounds_of_bad_file) = if is_soak() { (1_000, 10) } else { (5, 1) };

    let directory = Directory::new("rules-under-load");
    fs::write(directory.path(), content(0)).unwrap();
    let file = RulesFile::builder(directory.path());
    let file = file.pause(Duration::from_millis(20)).watch().unwrap();
    let store = MemoryStore::builder().clock(new_year()).build();
    let limiter = RateLimiter::builder().rules(&file).store(store).build().unwrap();

    let is_over = Arc::new(AtomicBool::new(false));
    let client = |_| tokio::spawn(send_requests(limiter.clone(), is_over.clone()));
    // Three clients make about five thousand requests per second in all.
    let clients: Vec<_> = (0..3).map(client).collect();
    let (client, began) = (Subject::ip(PEER.ip()), Instant::now());
    let (mut version, mut refused) = (0, 0);
    for way in Way::ALL {
        for round in 0..rounds {
            version += 1;
            let before = file.status();
            way.change(&directory.0, &content(version));
            until(&file, |status| status.version() != before.version()).await;
            let [(_, _), (max, _)] = *status(&limiter, "clients", &client).await else { panic!() };
            assert_eq!(max, (version + 1) * 100_000, "{way:?}");
            if way == Way::Signal {
                hang_up(&file).await;
            }
            if round % rounds_of_bad_file == 0 {
                refused += 1;
                let before = file.status();
                way.change(&directory.0, "rules: { clients: { limits: none } }");
                // A file that is written in place is empty for a moment, which may be refused
                // first.
                let is_reached = |status: &RulesFileStatus| {
                    let error = status.error().map(ToString::to_string).unwrap_or_default();
                    error.contains("limits.yaml:1:29: limit \"none\"")
                };
                let after = until(&file, is_reached).await;
                assert_eq!(after.version(), before.version(), "{way:?}");
            }
        }
    }
    is_over.store(true, Ordering::Relaxed);
    let mut allowed = 0;
    for client in clients {
        allowed += client.await.unwrap();
    }
    eprintln!(
        "{version} changes, {refused} refused, {allowed} requests, all allowed, in {:?}",
        began.elapsed()
    );
    // Each reload changed the second limit of the rule `clients`. Nevertheless all limits have
    // counted every request.
    let max = (version + 1) * 100_000;
    let of_client = status(&limiter, "clients", &client).await;
    assert_eq!(of_client, [(100_000_000, allowed), (max, allowed)]);
    let of_fleet = status(&limiter, "fleet", &Subject::global()).await;
    assert_eq!(of_fleet, [(200_000_000, allowed)]);
    assert!(allowed > 1_000, "{allowed}");
}
