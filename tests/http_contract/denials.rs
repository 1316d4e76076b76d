//! Responses to rejected requests.

use rl_core::MissingKey;
use rl_core::adapter::HttpLimiter;
use rl_core::denial::{Denial, DenialBody};
use rl_core::key::{ClientAddress, Identified, KeyExtractor};
use rl_core::time::Clock;
use rl_core::{Cost, Limit, Policy, RateLimiter, Realm, Subject};
use rl_tests::web::{Answer, Fetch, Target, limiter, new_year};

/// Returns a limiter that allows one request per minute.
fn one() -> RateLimiter {
    limiter(&new_year(), &["1/minute"])
}

/// Makes two requests to a site that allows one. Returns the response to the second request.
async fn denied<T: Target>(http: HttpLimiter) -> Answer {
    let site = T::serve(vec![http]);
    assert_eq!(site.get("/").fetch().await.status, 200);
    site.get("/").fetch().await
}

/// Returns the headers that describe a body: its type, its length, and whether it may be cached.
fn about_the_body(answer: &Answer) -> [Option<&str>; 3] {
    ["content-type", "content-length", "cache-control"].map(|name| answer.header(name))
}

pub(super) async fn a_denial_says_what_is_allowed_and_when_to_retry<T: Target>() {
    let answer = denied::<T>(HttpLimiter::new(one())).await;
    let body = r#"{"code":429,"message":"Too many requests: 1 per minute. Try again in 60 seconds.","limit":"minute"}"#;
    assert_eq!((answer.standing().as_str(), answer.body.as_str()), ("429 1-0-60, retry 60", body));
    let length = body.len().to_string();
    assert_eq!(
        about_the_body(&answer),
        [Some("application/json"), Some(length.as_str()), Some("no-store")]
    );
}

pub(super) async fn anonymous_callers_are_denied_in_the_words_of_open_bank<T: Target>() {
    let http = HttpLimiter::new(one()).denial_body(DenialBody::open_bank());
    let body = r#"{"code":429,"message":"Too Many Requests. We only allow 1 requests per minute for anonymous access."}"#;
    assert_eq!(denied::<T>(http).await.body, body);
}

pub(super) async fn the_preset_of_the_open_bank_project_sets_words_codes_and_fields<T: Target>() {
    let limiter = RateLimiter::builder()
        .policies(|subject: &Subject| {
            let limited = *subject.realm() == Realm::Consumer;
            limited.then(|| Policy::new([Limit::per_minute(1)]).unwrap())
        })
        .build()
        .unwrap();
    let http = HttpLimiter::new(limiter).key(Identified.or(ClientAddress::default())).open_bank();
    let site = T::serve(vec![http]);
    assert_eq!(site.get("/").fetch().await.standing(), "200 -1--1--1");
    let get = || site.get("/").header("x-consumer", "abc123").fetch();
    assert_eq!(get().await.standing(), "200 1-0-60");
    let body = r#"{"code":429,"message":"OBP-10018: Too Many Requests. We only allow 1 requests per minute for this Consumer (consumer_id: abc123)."}"#;
    assert_eq!(get().await.body, body);
}

pub(super) async fn consumers_are_denied_in_the_words_of_open_bank<T: Target>() {
    let limiter = limiter(&new_year(), &["100/hour", "2/second"]);
    let body = DenialBody::open_bank().prefix("OBP-10018: ");
    let site = T::serve(vec![HttpLimiter::new(limiter).key(Identified).denial_body(body)]);
    let get = || site.get("/").header("x-consumer", "abc123").fetch();
    get().await;
    get().await;
    let answer = get().await;
    let body = r#"{"code":429,"message":"OBP-10018: Too Many Requests. We only allow 2 requests per second for this Consumer."}"#;
    assert_eq!((answer.standing().as_str(), answer.body.as_str()), ("429 2-0-1, retry 1", body));
}

pub(super) async fn problem_details<T: Target>() {
    let answer = denied::<T>(HttpLimiter::new(one()).denial_body(DenialBody::problem())).await;
    let body = concat!(
        r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
        r#""title":"Request cannot be satisfied as assigned quota has been exceeded","#,
        r#""status":429,"detail":"Too many requests: 1 per minute. Try again in 60 seconds.","#,
        r#""violated-policies":["minute"]}"#,
    );
    assert_eq!((answer.status, answer.body.as_str()), (429, body));
    assert_eq!(about_the_body(&answer)[0], Some("application/problem+json"));
}

pub(super) async fn plain_text<T: Target>() {
    let body = DenialBody::text().without_no_store();
    let answer = denied::<T>(HttpLimiter::new(one()).denial_body(body)).await;
    let words = "Too many requests: 1 per minute. Try again in 60 seconds.";
    assert_eq!((answer.status, answer.body.as_str()), (429, words));
    let length = words.len().to_string();
    assert_eq!(
        about_the_body(&answer),
        [Some("text/plain; charset=utf-8"), Some(length.as_str()), None]
    );
}

pub(super) async fn nothing_but_the_status<T: Target>() {
    let answer = denied::<T>(HttpLimiter::new(one()).denial_body(DenialBody::empty())).await;
    assert_eq!((answer.standing().as_str(), answer.body.as_str()), ("429 1-0-60, retry 60", ""));
    assert_eq!(about_the_body(&answer), [None, Some("0"), Some("no-store")]);
}

pub(super) async fn a_responder_of_the_users<T: Target>() {
    let http = HttpLimiter::new(one()).deny_with(|reason, default| {
        let mut denial = Denial::new(default.status - 9).header("x-mood", "tired");
        denial.content_type = Some("text/html");
        let realm = reason.subject().unwrap().realm().as_str();
        let wait = reason.decision().unwrap().retry_after();
        denial.body = format!("<p>{realm} calm down: {wait:?}").into();
        denial
    });
    let answer = denied::<T>(http).await;
    assert_eq!(answer.standing(), "420 1-0-60, retry 60");
    assert_eq!(answer.body, "<p>ip calm down: In(60s)");
    assert_eq!(
        (answer.header("x-mood"), about_the_body(&answer)[0]),
        (Some("tired"), Some("text/html"))
    );
}

/// A responder may put data of the request into a header. Here one value contains a line break, and
/// one name contains spaces. Both headers are omitted.
pub(super) async fn a_responder_cannot_break_the_response<T: Target>() {
    let http = HttpLimiter::new(one()).deny_with(|_, _| {
        let mut denial = Denial::new(7);
        denial.headers.push(("x-split", "a\r\nset-cookie: b".into()));
        denial.headers.push(("not a name", "a".into()));
        denial.headers.push(("x-whole", "c".into()));
        denial
    });
    let answer = denied::<T>(http).await;
    assert_eq!(answer.standing(), "429 1-0-60, retry 60");
    let names = ["x-split", "set-cookie", "x-whole"];
    assert_eq!(names.map(|name| answer.header(name)), [None, None, Some("c")]);
}

pub(super) async fn a_responder_answers_callers_without_a_key<T: Target>() {
    let http = HttpLimiter::new(one()).key(Identified).deny_with(|reason, default| {
        let is_counted = reason.decision().is_some();
        Denial::json(default.status, format!(r#"{{"counted":{is_counted}}}"#))
    });
    let site = T::serve(vec![http]);
    let stranger = site.get("/").fetch().await;
    assert_eq!((stranger.status, stranger.body.as_str()), (403, r#"{"counted":false}"#));
    let known = || site.get("/").header("x-consumer", "a").fetch();
    known().await;
    let denied = known().await;
    assert_eq!((denied.status, denied.body.as_str()), (429, r#"{"counted":true}"#));
}

pub(super) async fn a_responder_cannot_make_a_grpc_call_unreadable<T: Target>() {
    let http =
        HttpLimiter::new(one()).deny_with(|_, _| Denial::json(429, r#"{"error":"slow down"}"#));
    let site = T::serve(vec![http]);
    let call = || site.post("/").header("content-type", "application/grpc").fetch();
    call().await;
    let denied = call().await;
    assert_eq!((denied.status, denied.header("grpc-status")), (200, Some("8")));
    assert_eq!(
        (denied.header("content-type"), denied.body.as_str()),
        (Some("application/grpc"), "")
    );
    assert_eq!(site.get("/").fetch().await.body, r#"{"error":"slow down"}"#);
}

/// Returns a limiter of nine requests per minute that is blocked from the beginning of the year.
/// The block lasts for `seconds`, or for ever.
fn blocked(seconds: Option<u64>) -> RateLimiter {
    let clock = new_year();
    let until = seconds.map(|seconds| clock.now().plus_micros(seconds * 1_000_000));
    let policy = Policy::new([Limit::per_minute(9)]).unwrap().blocked_until(until);
    RateLimiter::builder().policy(policy).clock(clock).build().unwrap()
}

pub(super) async fn a_blocked_consumer_gets_the_reason_and_the_end_of_the_block<T: Target>() {
    let body = DenialBody::open_bank().prefix("OBP-10018: ").name_consumer();
    let http = HttpLimiter::new(blocked(Some(90))).key(Identified).denial_body(body);
    let site = T::serve(vec![http]);
    let denied = site.get("/").header("x-consumer", "abc\"123").fetch().await;
    assert_eq!((denied.standing().as_str(), site.handled()), ("429 0-0-90, retry 90", 0));
    assert_eq!(
        denied.body,
        r#"{"code":429,"message":"OBP-10018: Too Many Requests. This Consumer is blocked (consumer_id: abc\"123)."}"#
    );
}

pub(super) async fn a_denial_has_no_retry_after_when_the_block_has_no_end<T: Target>() {
    let site = T::serve(vec![HttpLimiter::new(blocked(None)).denial_body(DenialBody::text())]);
    let denied = site.get("/").fetch().await;
    assert_eq!(denied.standing(), "429 0-0");
    assert_eq!(denied.body, "Blocked: no requests are allowed.");
}

pub(super) async fn a_denial_reports_a_cost_that_is_never_granted<T: Target>() {
    let limiter = limiter(&new_year(), &["10000/minute:unit=tokens"]);
    let http =
        HttpLimiter::new(limiter).cost(|_| Cost::new(20_000)).denial_body(DenialBody::text());
    let site = T::serve(vec![http]);
    let denied = site.get("/").fetch().await;
    assert_eq!(
        (denied.status, denied.limit_lines()),
        (429, vec!["x-rate-limit-limit: 10000".to_owned()])
    );
    let words =
        "Request too large: it counts as 20000 tokens, but at most 10000 are ever allowed at once.";
    assert_eq!(denied.body, words);
}

pub(super) async fn a_denial_names_the_unit_of_its_limit<T: Target>() {
    let limiter = limiter(&new_year(), &["10000/minute:unit=tokens"]);
    let http = HttpLimiter::new(limiter).cost(|_| Cost::new(6_000)).denial_body(DenialBody::text());
    let site = T::serve(vec![http]);
    assert_eq!(site.get("/").fetch().await.status, 200);
    let denied = site.get("/").fetch().await;
    let words = "Too many requests: 10000 tokens per minute. Try again in 60 seconds.";
    assert_eq!(
        (denied.standing().as_str(), denied.body.as_str()),
        ("429 10000-4000-60, retry 60", words)
    );
}

pub(super) async fn grpc_calls_are_denied_with_a_grpc_status<T: Target>() {
    let site = T::serve(vec![HttpLimiter::new(one())]);
    let call = |kind: &'static str| site.post("/").header("content-type", kind).fetch();
    assert_eq!(call("application/grpc").await.header("grpc-status"), None);
    for kind in ["application/grpc", "application/grpc+proto", "Application/GRPC"] {
        let answer = call(kind).await;
        assert_eq!(
            (answer.standing().as_str(), answer.body.as_str()),
            ("200 1-0-60, retry 60", "")
        );
        let fields = ["content-type", "grpc-status", "grpc-message", "grpc-retry-pushback-ms"];
        let words = "Too many requests: 1 per minute. Try again in 60 seconds.";
        assert_eq!(
            fields.map(|name| answer.header(name)),
            [Some("application/grpc"), Some("8"), Some(words), Some("60000")]
        );
    }
    // A denied gRPC-Web call gets an HTTP status, not a gRPC status. gRPC-Web has another format of
    // responses, into which a proxy between the client and the service may translate them.
    assert_eq!(call("application/grpc-web").await.status, 429);
    assert_eq!(site.handled(), 1);

    let site = T::serve(vec![HttpLimiter::new(one()).key(Identified)]);
    let answer = site.post("/").header("content-type", "application/grpc").fetch().await;
    assert_eq!((answer.status, answer.header("grpc-status")), (200, Some("7")));
}

pub(super) async fn a_request_without_a_key_is_rejected<T: Target>() {
    let site = T::serve(vec![HttpLimiter::new(one()).key(Identified)]);
    for _ in 0..2 {
        let answer = site.get("/").fetch().await;
        let body = r#"{"code":403,"message":"Forbidden. The request has no rate limit key that the service knows."}"#;
        assert_eq!((answer.standing().as_str(), answer.body.as_str()), ("403", body));
    }
    assert_eq!(site.handled(), 0);
    assert_eq!(site.get("/").header("x-consumer", "a").fetch().await.status, 200);
}

pub(super) async fn a_request_without_a_key_is_allowed_if_configured<T: Target>() {
    let site =
        T::serve(vec![HttpLimiter::new(one()).key(Identified).on_missing_key(MissingKey::Allow)]);
    for _ in 0..3 {
        let answer = site.get("/").fetch().await;
        assert_eq!((answer.standing().as_str(), answer.body.as_str()), ("200", "no decision"));
    }
    assert_eq!(site.get("/").header("x-consumer", "a").fetch().await.standing(), "200 1-0-60");
}

pub(super) async fn callers_without_a_key_share_a_count_if_set<T: Target>() {
    let site =
        T::serve(vec![HttpLimiter::new(one()).key(Identified).on_missing_key(MissingKey::Share)]);
    assert_eq!(site.get("/").fetch().await.standing(), "200 1-0-60");
    let denied = site.get("/users/7").fetch().await;
    assert_eq!(denied.standing(), "429 1-0-60, retry 60");
    assert_eq!(site.get("/").header("x-consumer", "a").fetch().await.standing(), "200 1-0-60");
}
