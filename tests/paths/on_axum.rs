//! Services on axum.

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::{RawPathParams, Request};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Extension, Router};
use http::Uri;
use rl_core::{Decision, RateLimiter};
use rl_tower::RateLimitLayer;
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_http::normalize_path::NormalizePathLayer;

use super::{Case, Normalizer, Place, Served, for_each_case};

type App = BoxCloneSyncService<Request, Response, Infallible>;

async fn route(values: RawPathParams, decision: Option<Extension<Decision>>) -> &'static str {
    // The rule is for one value of the parameter of the nested router.
    let by_route = values.iter().all(|(name, value)| name != "space" || value == "api");
    Served { by_route, is_counted: decision.is_some() }.body()
}

async fn other(decision: Option<Extension<Decision>>) -> &'static str {
    Served { by_route: false, is_counted: decision.is_some() }.body()
}

/// Puts the middleware of the case around a service.
fn normalized(normalizer: Normalizer, inner: App) -> App {
    match normalizer {
        Normalizer::Trim | Normalizer::Merge => {
            App::new(NormalizePathLayer::trim_trailing_slash().layer(inner))
        }
        Normalizer::Append => App::new(NormalizePathLayer::append_trailing_slash().layer(inner)),
        Normalizer::Steps(..) | Normalizer::Url(_) | Normalizer::Version | Normalizer::Moved(_) => {
            App::new(inner.map_request(move |mut request: Request| {
                if let Some(uri) = normalizer.rewrite(request.uri()) {
                    *request.uri_mut() = uri;
                }
                request
            }))
        }
    }
}

fn app(case: &Case, limiter: RateLimiter) -> App {
    let routes = Router::new().route(&case.template.for_rule(), get(route));
    let router = routes.clone().fallback(any(other));
    let limit = RateLimitLayer::new(limiter);
    let limited = || router.clone().layer(limit.clone());
    // axum refuses to nest a router with a fallback below a parameter.
    let inner = if case.nest.contains('{') { routes } else { router.clone() };
    let inner = inner.layer(limit.clone());
    let nested = || Router::new().nest(case.nest, inner.clone()).fallback(any(other));
    // `Router` has a body of its own, and the layers of tower keep that of their service.
    let outside = || {
        let inner = normalized(case.normalizer, App::new(router.clone()));
        ServiceBuilder::new().layer(limit.clone()).service(inner).map_response(|response| {
            let (head, body) = Response::into_parts(response);
            Response::from_parts(head, Body::new(body))
        })
    };
    match case.place {
        Place::Alone => App::new(limited()),
        Place::Outside => App::new(outside()),
        Place::Inside => normalized(case.normalizer, App::new(limited())),
        Place::BehindRouter => {
            let inner = normalized(case.normalizer, App::new(limited()));
            App::new(Router::new().fallback_service(inner))
        }
        Place::Nested => normalized(case.normalizer, App::new(nested())),
        Place::NestedBehindRouter => {
            let inner = normalized(case.normalizer, App::new(nested()));
            let outer = Router::new().fallback_service(inner.clone());
            App::new(Router::new().nest("/outer", outer).fallback_service(inner))
        }
        Place::AroundNested => {
            let inner = normalized(case.normalizer, App::new(router.clone()));
            let inner = inner.map_response(IntoResponse::into_response);
            App::new(Router::new().nest_service(case.nest, inner).layer(limit.clone()))
        }
    }
}

async fn serve(case: &Case, limiter: RateLimiter) -> Vec<Option<Served>> {
    let app = app(case, limiter);
    let mut all = Vec::new();
    for path in &case.paths {
        let Ok(uri) = path.parse::<Uri>() else { panic!("{path:?} is not a target") };
        let request = Request::builder().uri(uri).body(Body::empty()).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        let body = axum::body::to_bytes(response.into_body(), 100).await.unwrap();
        all.push(Served::from_body(&body));
    }
    all
}

#[test]
fn requests_that_reach_a_handler_are_counted_and_no_other_handler_is_exempt() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for_each_case(|case| {
        runtime.block_on(async {
            let of_route = serve(case, case.limiter_of_route()).await;
            let mut of_others = serve(case, case.limiter_of_others()).await;
            // Outside of the nested router, there is no limiter.
            if let Place::Nested | Place::NestedBehindRouter = case.place {
                of_others.iter_mut().for_each(|it| *it = it.filter(|served| served.by_route));
            }
            case.check(&of_route, &of_others)
        })
    });
}
