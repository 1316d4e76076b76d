use axum::http::header;
use axum::response::IntoResponse;

/// Asked for again each time: a page and its style are of one version.
const KEEP: (header::HeaderName, &str) = (header::CACHE_CONTROL, "no-cache");

pub(super) async fn style() -> impl IntoResponse {
    let kind = (header::CONTENT_TYPE, "text/css; charset=utf-8");
    ([kind, KEEP], include_str!("assets/console.css"))
}

pub(super) async fn script() -> impl IntoResponse {
    let kind = (header::CONTENT_TYPE, "text/javascript; charset=utf-8");
    ([kind, KEEP], include_str!("assets/console.js"))
}

pub(super) async fn icon() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "image/svg+xml"), KEEP], include_str!("assets/icon.svg"))
}
