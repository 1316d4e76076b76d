//! A handler for axum.

use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get};

use crate::registry::Metrics;
use crate::text;

/// Returns the handler of `GET /metrics`.
///
/// # Examples
///
/// ```
/// use axum::Router;
/// use rl_metrics::Metrics;
///
/// let app: Router = Router::new().route("/metrics", rl_metrics::axum::handler(&Metrics::new()));
/// ```
pub fn handler<S: Clone + Send + Sync + 'static>(metrics: &Metrics) -> MethodRouter<S> {
    let metrics = metrics.clone();
    get(move || std::future::ready(response(&metrics)))
}

fn response(metrics: &Metrics) -> impl IntoResponse + use<> {
    ([(CONTENT_TYPE, text::CONTENT_TYPE)], metrics.render())
}
