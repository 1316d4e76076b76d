//! Serves an axum [`Router`] with time limits, and without losing requests when it stops.
//!
//! `axum::serve` sets no time limit for the head of a request, and closes connections on which
//! requests have arrived but are not read yet. [`serve`] sets the limits of [`Timeouts`] and stops
//! on SIGTERM or Ctrl-C:
//!
//! 1. It accepts the connections that wait in the backlog, and closes the listener.
//! 2. Each response over HTTP/1 announces that its connection closes, for
//!    [`Timeouts::notice`]. Requests that have arrived are answered.
//! 3. Idle connections are closed. Over HTTP/2 a GOAWAY frame announces it.
//! 4. Requests in progress have [`Timeouts::drain`] to end.
//!
//! [`HttpServer`] has more settings. Several servers can share a [`Shutdown`].
//!
//! # Examples
//!
//! ```no_run
//! use axum::{Router, routing::get};
//! use tokio::net::TcpListener;
//!
//! # async fn example() -> std::io::Result<()> {
//! let app = Router::new().route("/", get(async || "Hello!\n"));
//! rl_serve::serve(TcpListener::bind("127.0.0.1:3000").await?, app).await
//! # }
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

mod connection;
mod http_server;
mod limits;
mod memory;
mod request;
mod service;
mod shares;
mod shutdown;
#[cfg(feature = "tls")]
mod tls;

use axum::Router;
use tokio::net::TcpListener;

pub use http_server::HttpServer;
pub use limits::Timeouts;
pub use request::RequestBody;
pub use service::HttpService;
pub use shares::{PeerShares, Share};
pub use shutdown::Shutdown;
#[cfg(feature = "tls")]
pub use tls::{Tls, TlsError, TlsFiles, read_regular_file};

/// Runs the program of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Serves `app` over HTTP/1 until the process gets SIGTERM or Ctrl-C.
///
/// Handlers can extract `ConnectInfo<SocketAddr>`.
///
/// # Errors
///
/// Returns an error if the handlers of the signals cannot be installed.
pub async fn serve(listener: TcpListener, app: Router) -> std::io::Result<()> {
    HttpServer::new(app).serve(listener, &Shutdown::on_signal()?).await
}
