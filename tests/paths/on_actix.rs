//! Services on actix-web.

use actix_web::dev::{Service, ServiceRequest};
use actix_web::http::Uri;
use actix_web::middleware::{NormalizePath, TrailingSlash};
use actix_web::test::{TestRequest, init_service, read_body};
use actix_web::{App, HttpMessage, HttpRequest, guard, web};
use rl_actix::RateLimit;
use rl_core::rules::{Match, Rules};
use rl_core::{Decision, RateLimiter};

use super::{Case, Normalizer, Place, Served, all, build, for_each_case};

fn served(request: &HttpRequest, by_route: bool) -> &'static str {
    let is_counted = request.extensions().get::<Decision>().is_some();
    Served { by_route, is_counted }.body()
}

async fn route(request: HttpRequest) -> &'static str {
    // The rule is for one value of the parameter of the scope.
    served(&request, request.match_info().get("space").is_none_or(|value| value == "api"))
}

async fn other(request: HttpRequest) -> &'static str {
    served(&request, false)
}

/// Returns the route's pattern, which actix-web compares with a path that is decoded except for
/// slashes, plus signs and percent signs. `rest` is the last segment of a template for all further
/// segments.
fn pattern(case: &Case, rest: &str) -> String {
    case.template.write(rest).replace("caf%C3%A9", "café")
}

fn rewrite(normalizer: Normalizer, request: &mut ServiceRequest) {
    // actix-web and axum use different versions of `http`.
    let uri = request.uri().to_string().parse().ok();
    let rewritten = uri.and_then(|uri| normalizer.rewrite(&uri));
    if let Some(uri) = rewritten.and_then(|uri| uri.to_string().parse::<Uri>().ok()) {
        request.match_info_mut().get_mut().update(&uri);
        request.head_mut().uri = uri;
    }
}

/// Sends the requests of the case to the application.
macro_rules! answers {
    ($case:ident, $app:expr) => {{
        let app = init_service($app).await;
        let mut all = Vec::new();
        for path in &$case.paths {
            let request = TestRequest::with_uri(path).to_request();
            let response = app.call(request).await.unwrap();
            all.push(Served::from_body(&read_body(response).await));
        }
        all
    }};
}

async fn serve(case: &Case, rest: &str, limiter: RateLimiter) -> Vec<Option<Served>> {
    let limit = || RateLimit::new(limiter.clone());
    let services = |app: &mut web::ServiceConfig| {
        app.route(&pattern(case, rest), web::get().to(route)).default_service(web::to(other));
    };
    let merge = match case.normalizer {
        Normalizer::Trim => TrailingSlash::Trim,
        Normalizer::Append => TrailingSlash::Always,
        _ => TrailingSlash::MergeOnly,
    };
    let normalize = || NormalizePath::new(merge);
    let scope = || web::scope(case.nest).wrap(limit()).configure(services);
    let normalizer = case.normalizer;
    // The last middleware that is added is the outermost.
    match (case.place, case.normalizer) {
        (Place::Alone, _) => answers!(case, App::new().configure(services).wrap(limit())),
        (
            Place::Outside,
            Normalizer::Steps(..) | Normalizer::Url(_) | Normalizer::Version | Normalizer::Moved(_),
        ) => {
            answers!(
                case,
                App::new()
                    .configure(services)
                    .wrap_fn(move |mut request, inner| {
                        rewrite(normalizer, &mut request);
                        inner.call(request)
                    })
                    .wrap(limit())
            )
        }
        (Place::Outside, _) => {
            answers!(case, App::new().configure(services).wrap(normalize()).wrap(limit()))
        }
        (
            Place::Inside | Place::BehindRouter,
            Normalizer::Steps(..) | Normalizer::Url(_) | Normalizer::Version | Normalizer::Moved(_),
        ) => {
            answers!(
                case,
                App::new().configure(services).wrap(limit()).wrap_fn(move |mut request, inner| {
                    rewrite(normalizer, &mut request);
                    inner.call(request)
                })
            )
        }
        (Place::Inside | Place::BehindRouter, _) => {
            answers!(case, App::new().configure(services).wrap(limit()).wrap(normalize()))
        }
        (
            Place::Nested | Place::NestedBehindRouter,
            Normalizer::Steps(..) | Normalizer::Url(_) | Normalizer::Version | Normalizer::Moved(_),
        ) => answers!(
            case,
            App::new().service(scope()).wrap_fn(move |mut request, inner| {
                rewrite(normalizer, &mut request);
                inner.call(request)
            })
        ),
        (Place::AroundNested, _) => {
            let scope = web::scope(case.nest).configure(services);
            answers!(case, App::new().service(scope).wrap(limit()))
        }
        (Place::Nested | Place::NestedBehindRouter, _) => {
            answers!(case, App::new().service(scope()).wrap(normalize()))
        }
    }
}

#[test]
fn requests_that_reach_a_handler_are_counted_and_no_other_handler_is_exempt() {
    for_each_case(|case| {
        actix_web::rt::System::new().block_on(async {
            // The route of a scope or a resource often has an empty tail.
            let of_route = serve(case, "{rest:.*}", case.limiter_of_route()).await;
            let of_others = serve(case, "{rest:.+}", case.limiter_of_others()).await;
            case.check(&of_route, &of_others)
        })
    });
}

/// Fault: actix-web parses the `Host` header as an address, and a rule compared it as a name.
#[test]
fn a_request_that_passes_the_guard_of_a_host_is_counted_by_the_rule_of_this_host() {
    actix_web::rt::System::new().block_on(async {
        let limiter = build(Rules::new().rule(all("api").matching(Match::new().host("api.org"))));
        let route = web::get().guard(guard::Host("api.org")).to(route);
        let app = App::new().route("/", route).default_service(web::to(other));
        let app = init_service(app.wrap(RateLimit::new(limiter))).await;
        let mut reached = 0;
        for host in [
            "api.org",
            "api.org:80",
            "api.org:",
            "api.org:x",
            "u@api.org",
            "u:p@api.org:80",
            "api.org.",
            "http://api.org",
            "http://u@api.org:80/?a",
            "API.org",
            "api.org/",
            "%61pi.org",
            "//api.org",
        ] {
            let request = TestRequest::get().insert_header(("host", host)).to_request();
            let body = read_body(app.call(request).await.unwrap()).await;
            let served = Served::from_body(&body).unwrap();
            assert!(!served.by_route || served.is_counted, "{host}");
            reached += usize::from(served.by_route);
        }
        assert!(reached >= 5, "{reached}");
    });
}
