//! The ways to install a limiter in actix-web.

use std::sync::Arc;

use actix_web::body::BoxBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::middleware::{Condition, DefaultHeaders, Logger, Next, NormalizePath, from_fn};
use actix_web::{App, HttpRequest, web};
use futures::StreamExt;
use rl_actix::{Degrade, Denied, RateLimit};
use rl_core::OverLimit;
use rl_core::adapter::HttpLimiter;
use rl_core::denial::DenialBody;
use rl_core::key::Route;
use rl_core::{Cost, Subject};
use rl_tests::web::actix::{application, serve};
use rl_tests::web::{Fetch, limiter, new_year};

use super::settling::settles_at;

fn limit(limit: &str) -> RateLimit {
    RateLimit::new(limiter(&new_year(), &[limit]))
}

fn routes(app: &mut web::ServiceConfig) {
    application(app, &Arc::default());
}

#[tokio::test]
async fn around_an_app_all_routes_and_the_default_count_together() {
    let limit = limit("3/minute");
    let site = serve(move || App::new().configure(routes).wrap(limit.clone()));
    assert_eq!(site.get("/").fetch().await.standing(), "200 3-2-60");
    assert_eq!(site.get("/users/7").fetch().await.standing(), "200 3-1-60");
    assert_eq!(site.get("/nowhere").fetch().await.standing(), "404 3-0-60");
    assert_eq!(site.get("/health").fetch().await.status, 429);
}

#[tokio::test]
async fn around_a_scope_only_the_scope_counts() {
    let http = HttpLimiter::new(limiter(&new_year(), &["2/minute"])).key(Route);
    let limit = RateLimit::from(http);
    let site = serve(move || {
        let scope = web::scope("/api").configure(routes).wrap(limit.clone());
        App::new().configure(routes).service(scope)
    });
    assert_eq!(site.get("/users/1").fetch().await.standing(), "200");
    assert_eq!(site.get("/api/users/1").fetch().await.standing(), "200 2-1-60");
    assert_eq!(site.get("/api/users/2").fetch().await.standing(), "200 2-0-60");
    assert_eq!(site.get("/api/users/3").fetch().await.status, 429);
    assert_eq!(site.get("/api/health").fetch().await.standing(), "200 2-1-60");
    assert_eq!(site.get("/users/1").fetch().await.standing(), "200");
}

#[tokio::test]
async fn around_a_resource_only_the_resource_counts() {
    let limit = limit("1/minute");
    let site = serve(move || {
        let handler = web::get().to(async || "limited");
        let limited = web::resource("/limited").wrap(limit.clone()).route(handler);
        App::new().configure(routes).service(limited)
    });
    assert_eq!(site.get("/limited").fetch().await.standing(), "200 1-0-60");
    assert_eq!(site.get("/limited").fetch().await.status, 429);
    assert_eq!(site.get("/").fetch().await.standing(), "200");
}

#[tokio::test]
async fn the_middleware_wrapped_last_runs_first() {
    let (inner, outer) = (limit("2/minute"), limit("5/hour"));
    let site = serve(move || App::new().configure(routes).wrap(inner.clone()).wrap(outer.clone()));
    let answer = site.get("/").fetch().await;
    assert_eq!(answer.body, "store minute 1/2 < store hour 1/5");
}

#[tokio::test]
async fn a_condition_that_is_false_disables_the_middleware() {
    for (on, standing) in [(true, "200 1-0-60"), (false, "200")] {
        let limit = limit("1/minute");
        let site =
            serve(move || App::new().configure(routes).wrap(Condition::new(on, limit.clone())));
        assert_eq!(site.get("/").fetch().await.standing(), standing);
    }
}

#[tokio::test]
async fn it_works_between_other_middlewares() {
    let limit = limit("1/minute");
    let site = serve(move || {
        App::new()
            .configure(routes)
            .wrap(DefaultHeaders::new().add(("x-inside", "1")))
            .wrap(limit.clone())
            .wrap(NormalizePath::trim())
            .wrap(DefaultHeaders::new().add(("x-outside", "1")))
            .wrap(Logger::default())
    });
    let seen = |answer: &rl_tests::web::Answer| {
        (answer.status, answer.header("x-inside").is_some(), answer.header("x-outside").is_some())
    };
    assert_eq!(seen(&site.get("/users/7/").fetch().await), (200, true, true));
    assert_eq!(seen(&site.get("/").fetch().await), (429, false, true));
}

/// Fault: an error of an inner middleware left the request with its estimated cost, because only a
/// response determined the final one.
#[tokio::test]
async fn an_error_of_an_inner_middleware_determines_the_final_cost() {
    let limiter = limiter(&new_year(), &["10/minute"]);
    let limit = RateLimit::new(limiter.clone())
        .cost(|_| Cost::new(6))
        .response_cost(|response| (response.status() == 401).then_some(Cost::new(2)));
    let site = serve(move || {
        let refuse = |_: ServiceRequest, _: Next<BoxBody>| async {
            Err::<ServiceResponse, _>(actix_web::error::ErrorUnauthorized("no key"))
        };
        App::new().configure(routes).wrap(from_fn(refuse)).wrap(limit.clone())
    });
    for used in [2, 4, 6] {
        let answer = site.get("/").fetch().await;
        assert_eq!((answer.status, answer.body.as_str()), (401, "no key"));
        settles_at(&limiter, used).await;
    }
}

#[tokio::test]
async fn another_handler_answers_degraded_requests() {
    let http =
        HttpLimiter::new(limiter(&new_year(), &["1/minute"])).on_over_limit(OverLimit::Degrade);
    let limit = RateLimit::from(http);
    let site = serve(move || {
        let cached = async |uri: actix_web::http::Uri| format!("{uri} from the cache");
        App::new().configure(routes).wrap(Degrade::new(cached)).wrap(limit.clone())
    });
    assert_eq!(site.get("/").fetch().await.body, "store minute 1/1");
    let degraded = site.get("/").fetch().await;
    assert_eq!((degraded.standing().as_str(), &*degraded.body), ("200 1-0-60", "/ from the cache"));
}

/// For actix-web, the messages of a web socket are the body of the response, and the body holds the
/// permit.
#[tokio::test]
async fn a_web_socket_holds_its_permit_until_it_is_closed() {
    let limiter = limiter(&new_year(), &["1:concurrency"]);
    let limit = RateLimit::new(limiter.clone());
    let site = serve(move || {
        let chat = async |request: HttpRequest, body: web::Payload| {
            let (response, session, mut messages) = actix_ws::handle(&request, body)?;
            actix_web::rt::spawn(async move {
                while let Some(Ok(message)) = messages.next().await {
                    if let actix_ws::Message::Close(reason) = message {
                        let _ = session.close(reason).await;
                        return;
                    }
                }
            });
            Ok::<_, actix_web::Error>(response)
        };
        App::new().configure(routes).route("/chat", web::get().to(chat)).wrap(limit.clone())
    });
    let address = site.url("/chat").replacen("http", "ws", 1);
    let (mut socket, _) = tokio_tungstenite::connect_async(address).await.unwrap();
    assert_eq!(site.get("/").fetch().await.status, 429);
    socket.close(None).await.unwrap();
    settles_at(&limiter, 0).await;
    assert_eq!(site.get("/").fetch().await.status, 200);
}

#[tokio::test]
async fn a_denied_decision_is_returned_from_a_handler() {
    let limiter = limiter(&new_year(), &["1/minute"]);
    let site = serve(move || {
        let (as_error, as_answer) = (limiter.clone(), limiter.clone());
        let as_error = move || {
            let limiter = as_error.clone();
            async move {
                let caller = Subject::user("alice");
                let decision = limiter.check(&caller, 1).await;
                Denied::check(decision, &caller).map(|_| "allowed")
            }
        };
        let as_answer = move || {
            let limiter = as_answer.clone();
            async move {
                let caller = Subject::user("alice");
                Denied::new(limiter.check(&caller, 1).await, &caller)
            }
        };
        App::new()
            .route("/error", web::get().to(as_error))
            .route("/answer", web::get().to(as_answer))
    });
    assert_eq!(site.get("/error").fetch().await.standing(), "200");
    for path in ["/error", "/answer"] {
        let denied = site.get(path).fetch().await;
        assert_eq!(denied.standing(), "429 1-0-60, retry 60", "{path}");
        assert_eq!(
            denied.body,
            r#"{"code":429,"message":"Too many requests: 1 per minute. Try again in 60 seconds.","limit":"minute"}"#
        );
        assert_eq!(denied.header("cache-control"), Some("no-store"));
    }
}

/// The inner decision is stricter than the outer one, because it denies. The response shows the
/// values of the inner decision.
#[tokio::test]
async fn a_denied_decision_of_a_handler_survives_the_middleware_around_it() {
    let (inner, outer) = (limiter(&new_year(), &["0/minute"]), limit("9/hour"));
    let http = HttpLimiter::new(inner).denial_body(DenialBody::text());
    let site = serve(move || {
        let http = http.clone();
        let handler = move || {
            let http = http.clone();
            async move {
                let caller = Subject::user("alice");
                let decision = http.limiter().check(&caller, 1).await;
                Err::<String, Denied>(http.denied(decision, &caller).into())
            }
        };
        App::new().route("/", web::get().to(handler)).wrap(outer.clone())
    });
    let denied = site.get("/").fetch().await;
    assert_eq!(denied.body, "Blocked: no requests are allowed.");
    assert_eq!(denied.standing(), "429 0-0");
}
