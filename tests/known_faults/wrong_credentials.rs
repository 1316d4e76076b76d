//! Guesses of tokens for the management API and the console, one after the other and concurrently.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::http::request::Parts;
use rl_admin::access::{Actor, Authorize, Authorized};
use rl_admin::console::Console;
use rl_admin::{Admin, AdminBuilder, ApiError, BearerTokens, FailedAttempts, Roles};
use rl_core::client_ip::ClientIp;
use rl_core::time::{ManualClock, Timestamp};
use rl_core::{MaybeReady, RateLimiter};
use rl_records::{RecordSource, Records};
use rl_tests::web::{Fetch, Site};
use tokio::sync::Semaphore;

const ALICE: &str = "token-of-alice-who-may-do-all";
const PATH: &str = "/management/rate-limiting";

async fn builder() -> AdminBuilder {
    let records = Records::connect("sqlite::memory:").await.unwrap();
    let source = RecordSource::start(&records);
    let limiter = RateLimiter::builder().policies(source.clone()).build().unwrap();
    let tokens = BearerTokens::new().with("alice", ALICE, Roles::all()).unwrap();
    Admin::builder(records, limiter).authorize(tokens)
}

/// Returns a site with the API and the console of one `Admin`. Also returns its clock, which only
/// the test advances.
async fn site(attempts: FailedAttempts) -> (Site, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_767_188_040)));
    let admin = builder().await.failed_attempts(attempts).clock(clock.clone()).build();
    let console = Console::builder(admin.clone()).without_tls().build();
    (rl_tests::web::axum::serve(admin.router().merge(console.router())), clock)
}

/// Sends a token to the API.
async fn call(site: &Site, token: &str) -> (u16, Option<String>) {
    let answer = site.get(PATH).bearer_auth(token).fetch().await;
    (answer.status, answer.header("retry-after").map(ToOwned::to_owned))
}

/// Sends a token to the login of the console.
async fn log_in(site: &Site, token: &str) -> u16 {
    let own = site.url("").trim_end_matches('/').to_owned();
    let form = site.post("/console/login").header("origin", own);
    form.body(format!("token={token}")).fetch().await.status
}

#[tokio::test]
async fn wrong_tokens_to_the_api_and_the_console_count_together() {
    let (site, clock) = site(FailedAttempts::default()).await;
    for _ in 0..10 {
        assert_eq!(call(&site, "a-guess-at-the-api").await, (401, None));
        assert_eq!(log_in(&site, "a-guess-at-the-console").await, 401);
    }
    assert_eq!(call(&site, "one-guess-too-many").await, (429, Some("60".to_owned())));
    assert_eq!(log_in(&site, "one-guess-too-many").await, 429);
    // The correct token is rejected too. Otherwise a client could go on guessing, and would notice
    // when it finds the token.
    assert_eq!(call(&site, ALICE).await.0, 429);
    assert_eq!(log_in(&site, ALICE).await, 429);
    clock.advance(Duration::from_secs(60));
    assert_eq!(call(&site, ALICE).await.0, 200);
    assert_eq!(log_in(&site, ALICE).await, 303);
}

#[tokio::test]
async fn requests_without_credentials_and_right_ones_are_never_limited() {
    let (site, _clock) = site(FailedAttempts::per_minute(1)).await;
    for _ in 0..50 {
        assert_eq!(site.get(PATH).fetch().await.status, 401);
        assert_eq!(call(&site, ALICE).await, (200, None));
    }
}

#[tokio::test]
async fn the_loopback_is_limited_unless_a_setting_exempts_it() {
    let (site, _clock) = site(FailedAttempts::per_minute(1).exempt_loopback(true)).await;
    for _ in 0..50 {
        assert_eq!(call(&site, "a-guess-at-the-api").await, (401, None));
    }
    assert_eq!(call(&site, ALICE).await.0, 200);
}

#[tokio::test]
async fn a_client_behind_a_trusted_proxy_locks_only_itself() {
    let rule = ClientIp::with_proxies("127.0.0.0/8".parse().unwrap());
    let (site, _clock) = site(FailedAttempts::per_minute(2).client_address(rule)).await;
    let call = async |from: &str, token: &str| {
        site.get(PATH).header("x-forwarded-for", from).bearer_auth(token).fetch().await.status
    };
    for (guesser, same, other) in [
        ("198.51.100.7", "6.6.6.6, 198.51.100.7", "198.51.100.8"),
        ("2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1"),
    ] {
        let statuses = [(); 3].map(|()| "wrong-token-of-a-guesser");
        let mut answers = Vec::new();
        for token in statuses {
            answers.push(call(guesser, token).await);
        }
        assert_eq!(answers, [401, 401, 429], "{guesser}");
        for (from, status) in [(guesser, 429), (same, 429), (other, 200)] {
            assert_eq!(call(from, ALICE).await, status, "{from}");
        }
    }
}

/// A request with two `Authorization` lines identifies no caller.
#[tokio::test]
async fn two_authorization_lines_are_a_bad_request() {
    let (site, _clock) = site(FailedAttempts::default()).await;
    let request = site.get(PATH).bearer_auth(ALICE);
    let answer = request.header("authorization", format!("Bearer {ALICE}")).fetch().await;
    assert_eq!(answer.status, 400, "{}", answer.body);
    let answer = site.get(PATH).header("authorization", format!("bearer {ALICE}")).fetch().await;
    assert_eq!(answer.status, 200, "the scheme may be in small letters: {}", answer.body);
}

/// A source of tokens that answers only when the test permits it, like a slow database.
struct SlowTokens(Arc<Semaphore>);

impl Authorize for SlowTokens {
    fn authorize(&self, request: &Parts) -> MaybeReady<Authorized> {
        let is_right = request.headers["authorization"] == "Bearer right";
        let cues = self.0.clone();
        MaybeReady::later(async move {
            cues.acquire().await.unwrap().forget();
            if is_right {
                Authorized::As(Actor::new("alice", Roles::all()))
            } else {
                Authorized::Wrong
            }
        })
    }
}

/// A source of tokens that is unavailable.
struct Absent;

impl Authorize for Absent {
    fn authorize(&self, _: &Parts) -> MaybeReady<Authorized> {
        MaybeReady::ready(Authorized::Unavailable)
    }
}

/// Fault: while a source of tokens was unavailable, a guess got a 503 and was not counted, and the
/// correct token got a 200.
#[tokio::test]
async fn wrong_tokens_are_counted_while_another_source_of_tokens_is_unavailable() {
    let records = Records::connect("sqlite::memory:").await.unwrap();
    let source = RecordSource::start(&records);
    let limiter = RateLimiter::builder().policies(source.clone()).build().unwrap();
    let tokens = BearerTokens::new().with("alice", ALICE, Roles::all()).unwrap();
    let admin = Admin::builder(records, limiter).authorize(tokens).authorize(Absent);
    let admin = admin.clock(ManualClock::at(Timestamp::from_secs(1_000))).build();
    let mut statuses = Vec::new();
    for guess in 0..=20 {
        let (mut parts, ()) = axum::http::Request::new(()).into_parts();
        let token = if guess == 20 { ALICE } else { "a-guess-at-the-api" };
        parts.headers.insert("authorization", format!("Bearer {token}").parse().unwrap());
        let peer: SocketAddr = "192.0.2.7:1".parse().unwrap();
        parts.extensions.insert(ConnectInfo(peer));
        let status =
            admin.actor(&parts).await.map_or_else(|error| error.status().as_u16(), |_| 200);
        statuses.push(status);
    }
    assert_eq!((statuses[0], statuses[19], statuses[20]), (401, 401, 429));
}

/// Fault: the limiter peeked before a look-up and charged after it. All concurrent guesses passed
/// the peek before one of them was charged.
#[tokio::test]
async fn concurrent_guesses_gain_nothing_over_sequential_ones() {
    let cues = Arc::new(Semaphore::new(0));
    let records = Records::connect("sqlite::memory:").await.unwrap();
    let source = RecordSource::start(&records);
    let limiter = RateLimiter::builder().policies(source.clone()).build().unwrap();
    let admin = Admin::builder(records, limiter).authorize(SlowTokens(cues.clone()));
    let admin = admin.clock(ManualClock::at(Timestamp::from_secs(1_000))).build();
    let request = |token: &str| {
        let (mut parts, ()) = axum::http::Request::new(()).into_parts();
        let value = format!("Bearer {token}").parse().unwrap();
        parts.headers.insert("authorization", value);
        let peer: SocketAddr = "192.0.2.7:1".parse().unwrap();
        parts.extensions.insert(ConnectInfo(peer));
        parts
    };
    // All guesses wait for the source of tokens. The correct guess is the last one.
    let guesses = (0..200).map(|guess| if guess == 199 { "right" } else { "wrong" });
    let guesses = guesses.map(|token| {
        let (admin, parts) = (admin.clone(), request(token));
        tokio::spawn(async move { admin.actor(&parts).await })
    });
    let guesses: Vec<_> = guesses.collect();
    tokio::task::yield_now().await;
    cues.add_permits(200);
    let answers = futures::future::join_all(guesses).await;
    let status = |answer: &Result<Actor, ApiError>| {
        answer.as_ref().map_or_else(|error| error.status().as_u16(), |_| 200)
    };
    let statuses: Vec<u16> =
        answers.iter().map(|answer| status(answer.as_ref().unwrap())).collect();
    let count = |status| statuses.iter().filter(|other| **other == status).count();
    assert_eq!((count(200), count(401), count(429)), (0, 20, 180));
}

/// Correct credentials do not count as failed attempts, even while their look-ups wait.
#[tokio::test]
async fn concurrent_right_credentials_are_never_limited() {
    let (site, _clock) = site(FailedAttempts::per_minute(1)).await;
    let calls = (0..100).map(|_| call(&site, ALICE));
    let answers = futures::future::join_all(calls).await;
    assert!(answers.iter().all(|(status, _)| *status == 200));
}
