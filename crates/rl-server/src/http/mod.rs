//! The decision server over HTTP.
//!
//! | path | for | allowed to |
//! |---|---|---|
//! | `/decide/…`, `/authz/…` | nginx, Caddy, Traefik, APISIX, Envoy's `ext_authz` | peers in [`proxies`](HttpSettings::proxies) |
//! | `/json` | the JSON form of Envoy's rate limit service | these peers, and callers of `/v1/…` |
//! | `/v1/check`, `peek`, `charge` | programs in any language | callers with the token; without one, callers on this machine |
//! | `/v1/acquire`, `settle`, `refund` | requests whose cost is known at their end | callers, as above |
//! | `/healthz`, `/readyz`, `/metrics`, `/openapi.json` | operators | every peer |
//!
//! # Gateways
//!
//! A gateway asks before it passes a request on. 200 lets the request pass, and the response has the
//! rate limit headers for the client. Any other status is the response for the client.
//!
//! `/decide` reads `X-Forwarded-Method`, `X-Forwarded-Uri` and `X-Forwarded-Host`, and
//! `/decide/original` reads `X-Original-Method`, `X-Original-URI` and the `Host` of the call. No path
//! reads both families, because a gateway replaces the headers of its own family, and passes on those
//! of the other that a client has added. Envoy sends the method, path and host of the client to
//! `/authz/…`. In all cases, the address of the client is in `X-Forwarded-For`, which the gateway has
//! to set.
//!
//! nginx passes on only 401 and 403. With `/403` at the end of the path, any denial has the status
//! 403. The query of `/decide` is ignored, because some gateways append the query of the client.
//!
//! # Callers
//!
//! Without a [token](HttpSettings::token), a caller on this machine is a loopback peer whose request
//! has no header that proxies add. A gateway on this machine that passes requests on with such a
//! header opens nothing to its clients. nginx adds none by default: set a token if it passes requests
//! on to this server. The request has no `Origin`, and its host is an IP address or `localhost`: a
//! page in a browser, whose name may resolve to this machine, is no caller.

mod access;
mod check_answer;
mod check_input;
mod decide;
mod envoy_json;
mod gateway_call;
mod health;
mod json_body;
mod problem;
mod settings;
mod store_check;
mod subject_text;
#[cfg(test)]
mod tests;
mod v1;

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::{self, CONTENT_TYPE};
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::{any, get};
use rl_serve::PeerShares;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ComponentsBuilder, InfoBuilder, OpenApi, OpenApiBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use access::{require_caller, require_gateway_or_caller};
use problem::Problem;
use settings::HttpState;
pub use settings::{BearerToken, HttpSettings, InvalidBearerToken, Readiness};

use crate::permits::PermitTable;
use crate::service::DecisionService;

/// Builds the router.
///
/// Serve it with `into_make_service_with_connect_info::<SocketAddr>()`. Without the address of its
/// peer, a connection can call only the paths for operators.
///
/// # Examples
///
/// ```
/// use rl_core::adapter::HttpLimiter;
/// use rl_core::{Limit, RateLimiter};
/// use rl_metrics::Metrics;
/// use rl_server::DecisionService;
/// use rl_server::http::{HttpSettings, router};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
/// let settings = HttpSettings {
///     proxies: "10.0.0.0/8".parse()?,
///     metrics: Metrics::new().limiter(&limiter),
///     ..HttpSettings::default()
/// };
/// let app = router(DecisionService::new(HttpLimiter::new(limiter)), settings);
/// # let _ = app;
/// # Ok(()) }
/// ```
///
/// # Panics
///
/// Never panics, because the document has no other keys than text.
pub fn router(service: DecisionService, settings: HttpSettings) -> Router {
    let state = Arc::new(HttpState::new(service, settings));
    let calls = OpenApiRouter::new()
        .routes(routes!(v1::check))
        .routes(routes!(v1::peek))
        .routes(routes!(v1::charge))
        .routes(routes!(v1::acquire))
        .routes(routes!(v1::settle))
        .routes(routes!(v1::refund))
        .route_layer(from_fn_with_state(Arc::clone(&state), require_caller));
    let json = OpenApiRouter::new()
        .routes(routes!(envoy_json::decide_json))
        .route_layer(from_fn_with_state(Arc::clone(&state), require_gateway_or_caller));
    let (routes, document) = OpenApiRouter::with_openapi(about())
        .routes(routes!(decide::by_forwarded))
        .routes(routes!(decide::by_forwarded_with_403))
        .routes(routes!(decide::by_original))
        .routes(routes!(decide::by_original_with_403))
        .merge(json)
        .merge(calls)
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .split_for_parts();
    // Clients may leave responses unread, which then share one text.
    let document = Bytes::from(document.to_json().expect("a document has no other keys than text"));
    let openapi = async move || ([(CONTENT_TYPE, "application/json")], document);
    routes
        .route("/authz", any(decide::under_authz))
        .route("/authz/", any(decide::under_authz))
        .route("/authz/{*path}", any(decide::under_authz))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(openapi))
        .fallback(async || Problem::no_such_path())
        .method_not_allowed_fallback(async || Problem::no_such_method())
        .with_state(state)
}

/// Returns the metrics of the limiter, and those of the server itself.
async fn metrics(State(state): State<Arc<HttpState>>) -> impl IntoResponse {
    const NAME: &str = "rl_server_unknown_domain_requests_total";
    let HttpSettings { metrics, records, permits, shares, .. } = &state.settings;
    let mut text = match records.get() {
        Some(source) => metrics.clone().records("records", source).render(),
        None => metrics.render(),
    };
    text.push_str(&format!(
        "# HELP {NAME} Requests with descriptors of a domain that has no rules.\n\
         # TYPE {NAME} counter\n{NAME} {}\n",
        state.service.unknown_domains()
    ));
    let of_tables = [permits, state.service.reservations()].map(PermitTable::shares);
    let shares: Vec<&PeerShares> = of_tables.into_iter().chain(shares).collect();
    for (name, kind, help, value) in [
        ("held", "gauge", "Units that peers hold", PeerShares::held as fn(&PeerShares) -> u64),
        (
            "refused_total",
            "counter",
            "Refusals of a peer that holds its share",
            PeerShares::refused,
        ),
    ] {
        let name = format!("rl_server_shares_{name}");
        text.push_str(&format!("# HELP {name} {help}.\n# TYPE {name} {kind}\n"));
        for resource in &shares {
            let line = format!("{name}{{resource=\"{}\"}} {}\n", resource.name(), value(resource));
            text.push_str(&line);
        }
    }
    ([(header::CONTENT_TYPE, rl_metrics::CONTENT_TYPE)], text)
}

fn about() -> OpenApi {
    let info = InfoBuilder::new()
        .title("Rate limit decisions")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some("Decisions for gateways, and for programs in any language."));
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    let components =
        ComponentsBuilder::new().security_scheme("bearer", SecurityScheme::Http(bearer));
    OpenApiBuilder::new().info(info).components(Some(components.build())).build()
}
