//! The limiters of the open banking example that run before authentication.

use std::sync::Arc;
use std::time::Duration;

use rl_core::store::Store;
use rl_core::time::ManualClock;
use rl_core::{MemoryStore, Period};
use rl_tests::web::{Answer, Fetch, client, eventually, new_year};

use super::running_programs::Program;
use self_service::{Mode, Outcome, SCOPES, SelfService, Window, limits, tightest};

#[path = "../../examples/open-bank/src/self_service.rs"]
mod self_service;

const OFF: i64 = -1;

struct Fixture {
    clock: Arc<ManualClock>,
    store: Arc<MemoryStore<Arc<ManualClock>>>,
    limiter: SelfService,
}

fn signup(mode: Mode, limits: [i64; 4]) -> Fixture {
    let clock = new_year();
    let store = Arc::new(MemoryStore::builder().clock(clock.clone()).build());
    let shared: Arc<dyn Store> = store.clone();
    let limiter = SelfService::new("signup", mode, limits, &shared).unwrap();
    Fixture { clock, store, limiter }
}

impl Fixture {
    async fn check(&self, address: &str) -> Outcome {
        self.limiter.check(Some(address)).await
    }

    async fn blocked(&self, address: &str) -> Window {
        match self.check(address).await {
            Outcome::Blocked(window) => window,
            other => panic!("{other:?}"),
        }
    }

    async fn allowed(&self, address: &str) -> Vec<Window> {
        match self.check(address).await {
            Outcome::Allowed(windows) => windows,
            other => panic!("{other:?}"),
        }
    }
}

/// A limiter that is switched off allows each request, and counts nothing.
#[tokio::test]
async fn a_self_service_limiter_that_is_off_counts_nothing() {
    let bank = signup(Mode::Off, [0, 0, 0, 0]);
    assert!(matches!(bank.check("192.0.2.7").await, Outcome::Skipped));
    assert!(bank.store.is_empty());
}

/// A limiter in shadow mode allows requests over the limit, and returns a warning.
#[tokio::test]
async fn a_request_over_a_limit_in_shadow_passes_with_a_warning() {
    let bank = signup(Mode::Shadow, [1, OFF, OFF, OFF]);
    bank.allowed("192.0.2.7").await;
    for current in 2..5 {
        let Outcome::Warned(window) = bank.check("192.0.2.7").await else { panic!("no warning") };
        assert_eq!((window.limit, window.current), (1, current));
        assert_eq!(
            bank.limiter.warning(&window),
            "OBP-10059: Could conflict with a Future Rate Limit: This request might exceed the rate \
             limit for signup (1 per minute) in the future."
        );
    }
}

#[tokio::test]
async fn a_request_over_an_enforced_limit_is_rejected_until_the_window_ends() {
    let bank = signup(Mode::Enforce, [2, 5, OFF, OFF]);
    bank.allowed("192.0.2.7").await;
    bank.clock.advance(Duration::from_millis(500));
    bank.allowed("192.0.2.7").await;
    let window = bank.blocked("192.0.2.7").await;
    assert_eq!((window.limit, window.current, window.remaining, window.reset), (2, 3, 0, 60));
    assert_eq!(
        bank.limiter.rejection(&window),
        "OBP-10060: Too Many Requests. The rate limit for signup is 2 per minute. Try again in 60 seconds."
    );
    bank.clock.advance(Duration::from_millis(59_500));
    bank.allowed("192.0.2.7").await;
}

/// Each address has its own counters.
#[tokio::test]
async fn each_address_has_its_own_count() {
    let bank = signup(Mode::Enforce, [1, OFF, OFF, OFF]);
    bank.allowed("192.0.2.7").await;
    bank.allowed("192.0.2.8").await;
    bank.blocked("192.0.2.7").await;
}

/// A limit of -1 disables a window, and a limit of 0 blocks.
#[tokio::test]
async fn minus_one_switches_a_window_off_and_zero_blocks() {
    let bank = signup(Mode::Enforce, [OFF; 4]);
    for _ in 0..20 {
        assert!(matches!(bank.check("192.0.2.7").await, Outcome::Skipped));
    }
    assert!(bank.store.is_empty(), "the store was not called");
    let bank = signup(Mode::Enforce, [OFF, 0, OFF, OFF]);
    let window = bank.blocked("192.0.2.7").await;
    let message = "OBP-10060: Too Many Requests. The rate limit for signup is 0 per hour.";
    assert_eq!(bank.limiter.rejection(&window), message);
}

/// A request that is rejected by the window of its address does not use up the global window.
#[tokio::test]
async fn the_global_window_holds_over_many_addresses_and_cannot_be_drained_by_one() {
    let bank = signup(Mode::Enforce, [1, OFF, OFF, 3]);
    for _ in 0..50 {
        bank.check("192.0.2.1").await;
    }
    bank.allowed("192.0.2.2").await;
    bank.allowed("192.0.2.3").await;
    let window = bank.blocked("192.0.2.4").await;
    assert_eq!((window.limit, window.period), (3, Period::HOUR));
    // A request that the global window rejects is not charged to the window of its address either.
    bank.clock.advance(Duration::from_secs(3_600));
    bank.allowed("192.0.2.4").await;
}

/// A request without a known address is counted only by the global window.
#[tokio::test]
async fn without_a_known_address_the_global_window_alone_counts() {
    let bank = signup(Mode::Enforce, [1, 1, 1, 3]);
    for address in [Some("unknown"), Some(""), None] {
        assert!(
            matches!(bank.limiter.check(address).await, Outcome::Allowed(windows) if windows.len() == 1)
        );
    }
    assert!(
        matches!(bank.limiter.check(None).await, Outcome::Blocked(window) if window.limit == 3)
    );
}

/// The setting of a scope replaces the setting of all scopes, and that replaces the default.
#[test]
fn a_limit_comes_from_the_scope_then_from_all_scopes_then_from_the_defaults() {
    let resolve = |scope: &str, settings: &[(&str, &str)]| {
        limits(scope, |name| {
            settings.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    };
    assert_eq!(resolve("something", &[]).unwrap(), [10, 60, 200, -1], "built in for all");
    for (scope, built_in) in SCOPES {
        assert_eq!(resolve(scope, &[]).unwrap(), built_in, "built in for the scope");
    }
    let all = ("RL_SELF_SERVICE_PER_HOUR", "7");
    assert_eq!(resolve("signup", &[all]).unwrap(), [3, 7, 10, 500], "set for all");
    let scope = ("RL_SELF_SERVICE_SIGNUP_PER_HOUR", "-1");
    assert_eq!(resolve("signup", &[all, scope]).unwrap(), [3, -1, 10, 500], "set for the scope");
    assert_eq!(resolve("lookup", &[all, scope]).unwrap(), [20, 7, 200, -1]);
    let error = resolve("signup", &[("RL_SELF_SERVICE_PER_HOUR", "many")]).unwrap_err();
    assert_eq!(error, "RL_SELF_SERVICE_PER_HOUR \"many\": expected -1 to 1000000000");
}

/// The headers describe the window with the fewest requests left. If several windows have the
/// fewest, they describe the one with the earliest reset.
#[tokio::test]
async fn headers_describe_the_window_with_the_fewest_left_then_the_soonest_reset() {
    let bank = signup(Mode::Enforce, [3, 2, 2, 5]);
    let windows = bank.allowed("192.0.2.7").await;
    assert_eq!(windows.len(), 4);
    let window = tightest(&windows).unwrap();
    assert_eq!((window.limit, window.remaining, window.period), (2, 1, Period::HOUR));
}

/// Wrong tokens are counted by address, and rejected with the code of the Open Bank Project.
#[tokio::test]
async fn the_example_limits_failed_authentication_by_address() {
    let settings = [("RL_PROXIES", "127.0.0.1")];
    let bank = Program::start(env!("CARGO_BIN_EXE_example-open-bank"), &settings).await;
    let url = format!("http://{}/obp/v6.0.0/banks", bank.address);
    let call = async |from: &str, lines: &[&str]| -> Answer {
        let mut request = client().get(&url).header("x-forwarded-for", from);
        for line in lines {
            request = request.header("authorization", *line);
        }
        request.fetch().await
    };
    let guesser = "198.51.100.7";
    for guess in 0..10 {
        let answer = call(guesser, &[&format!("Bearer guess-{guess}")]).await;
        assert_eq!(answer.status, 401);
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        assert_eq!(answer.header("content-type"), Some("application/json"));
    }
    for line in ["Bearer one-too-many", "Bearer token-of-abc", "Basic YTpi"] {
        let answer = call(guesser, &[line]).await;
        assert_eq!(answer.status, 429, "{line}");
        assert!(answer.body.contains("OBP-10061: Too Many Requests."), "{}", answer.body);
        let wait: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=60).contains(&wait), "{wait}");
    }
    assert_eq!(call(guesser, &[]).await.status, 200, "an anonymous call guesses nothing");
    for line in ["Bearer token-of-abc", "bearer token-of-abc", "BEARER  token-of-abc"] {
        let answer = call("198.51.100.8", &[line]).await;
        assert_eq!(answer.status, 200, "{line}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
    }
    let answer = call("198.51.100.8", &["Bearer token-of-abc", "Bearer token-of-abc"]).await;
    assert_eq!(answer.status, 400, "{}", answer.body);
    // A thread copies the output, so it may be late.
    let line = format!("the console is at http://{}/console", bank.address);
    eventually(async || bank.output().contains(&line)).await;
}

#[tokio::test]
async fn the_example_limits_sign_ups_by_its_settings() {
    let program = env!("CARGO_BIN_EXE_example-open-bank");
    let sign_up = async |bank: &Program| {
        client().post(format!("http://{}/obp/v6.0.0/users", bank.address)).fetch().await
    };
    let bank = Program::start(program, &[("RL_SELF_SERVICE", "enforce")]).await;
    for remaining in ["2", "1", "0"] {
        let answer = sign_up(&bank).await;
        assert_eq!(
            (answer.status, answer.header("x-rate-limit-remaining")),
            (201, Some(remaining))
        );
    }
    let answer = sign_up(&bank).await;
    assert_eq!((answer.status, answer.header("x-rate-limit-limit")), (429, Some("3")));
    assert!(answer.body.contains("OBP-10060: ") && answer.header("retry-after").is_some());

    let bank = Program::start(program, &[("RL_SELF_SERVICE_SIGNUP_PER_MINUTE", "1")]).await;
    assert_eq!(sign_up(&bank).await.header("x-rate-limit-warning"), None);
    let answer = sign_up(&bank).await;
    assert!(answer.header("x-rate-limit-warning").unwrap().starts_with("OBP-10059: "));
    assert_eq!(answer.status, 201, "in shadow");
}
