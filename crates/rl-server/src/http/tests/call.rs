//! A call of the router, and its response.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{fs, process};

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, Response, StatusCode};
use rl_core::adapter::HttpLimiter;
use rl_core::rules::RulesFile;
use rl_core::{RateLimiter, RateLimiterBuilder};
use rl_metrics::Metrics;
use serde_json::Value;
use tower::ServiceExt;

use crate::domains::{DomainRule, Domains, compile};
use crate::http::{BearerToken, HttpSettings, router};
use crate::service::DecisionService;

/// The address of a gateway that is trusted.
pub(super) const GATEWAY: &str = "10.0.0.1";
/// The address of a caller on this machine.
pub(super) const LOCAL: &str = "127.0.0.1";
/// The address of any other peer.
pub(super) const STRANGER: &str = "192.0.2.66";

pub(super) const TOKEN: &str = "a-long-and-random-token";

/// Returns the rules of a file, and the rule `user` of the domain `edge`: ten per minute.
pub(super) fn limiter(yaml: &str) -> RateLimiterBuilder {
    static FILES: AtomicUsize = AtomicUsize::new(0);

    let name = format!("rl-http-{}-{}.yaml", process::id(), FILES.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(name);
    fs::write(&path, format!("proxies: [10.0.0.0/8]\n{yaml}")).unwrap();
    let rules = RulesFile::builder(&path).pause(Duration::from_millis(10)).read();
    fs::remove_file(&path).unwrap();
    let rules = rules.unwrap();
    let user = DomainRule {
        descriptor: vec!["user".into()],
        limits: vec!["10/minute".into()],
        ..DomainRule::default()
    };
    let edge = [("user".to_owned(), user)].into_iter().collect();
    let domains: Domains = [("edge".to_owned(), edge)].into_iter().collect();
    RateLimiter::builder().rules(compile(&domains, rules, None).unwrap())
}

pub(super) fn settings() -> HttpSettings {
    HttpSettings { proxies: "10.0.0.0/8".parse().unwrap(), ..HttpSettings::default() }
}

pub(super) fn with_token() -> HttpSettings {
    HttpSettings { token: Some(BearerToken::new(TOKEN).unwrap()), ..settings() }
}

/// Returns a router for these rules.
pub(super) fn app(yaml: &str) -> Router {
    app_of(&limiter(yaml).build().unwrap(), settings())
}

pub(super) fn app_of(limiter: &RateLimiter, settings: HttpSettings) -> Router {
    let metrics = Metrics::new().limiter(limiter);
    let service = DecisionService::new(HttpLimiter::new(limiter.clone()));
    router(service, HttpSettings { metrics, ..settings })
}

/// The headers of a call.
pub(super) type SentHeaders<'a> = &'a [(&'a str, &'a str)];

/// A response whose body was read.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) response: Response<()>,
    pub(super) body: String,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name).map(|value| value.to_str().unwrap())
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// Returns the message of an error.
    pub(super) fn message(&self) -> String {
        self.json()["message"].as_str().unwrap().to_owned()
    }
}

/// Calls the router from this peer.
pub(super) async fn call(
    app: &Router,
    peer: &str,
    target: &str,
    headers: SentHeaders<'_>,
    body: impl Into<Body>,
) -> Answer {
    let (method, target) = target.split_once(' ').unwrap();
    let mut request = Request::builder().method(method).uri(target);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    call_with(app, peer, request.body(body.into()).unwrap()).await
}

pub(super) async fn call_with(app: &Router, peer: &str, mut request: Request<Body>) -> Answer {
    let peer: IpAddr = peer.parse().unwrap();
    request.extensions_mut().insert(ConnectInfo(SocketAddr::new(peer, 40_000)));
    let (head, body) = app.clone().oneshot(request).await.unwrap().into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let body = String::from_utf8(body.to_vec()).unwrap();
    Answer { status: head.status, response: Response::from_parts(head, ()), body }
}

/// Posts JSON from a caller on this machine.
pub(super) async fn post(app: &Router, path: &str, json: &str) -> Answer {
    let headers = [("content-type", "application/json")];
    call(app, LOCAL, &format!("POST {path}"), &headers, json.to_owned()).await
}
