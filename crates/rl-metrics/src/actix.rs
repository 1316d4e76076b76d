//! A handler for actix-web.

use actix_web::{HttpResponse, Route, web};

use crate::registry::Metrics;
use crate::text;

/// Returns the handler of `GET /metrics`.
///
/// # Examples
///
/// ```
/// use actix_web::App;
/// use rl_metrics::Metrics;
///
/// let app = App::new().route("/metrics", rl_metrics::actix::handler(&Metrics::new()));
/// ```
#[must_use]
pub fn handler(metrics: &Metrics) -> Route {
    let metrics = metrics.clone();
    web::get().to(move || {
        let text = metrics.render();
        async move { HttpResponse::Ok().content_type(text::CONTENT_TYPE).body(text) }
    })
}
