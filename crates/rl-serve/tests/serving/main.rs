//! The server on real connections.

#![allow(clippy::unwrap_used, reason = "a test that cannot unwrap has failed")]

mod clients;
mod limits;
mod shutdown;
#[cfg(feature = "tls")]
mod tls;

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use rl_serve::{HttpServer, Shutdown, Timeouts};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// The time after which a test fails.
const GIVE_UP: Duration = Duration::from_secs(60);

/// A server of a test.
struct Running {
    address: SocketAddr,
    shutdown: Shutdown,
    task: JoinHandle<std::io::Result<()>>,
}

impl Running {
    async fn start(app: Router, settings: impl FnOnce(HttpServer) -> HttpServer) -> Self {
        Self::start_with(Shutdown::new(), app, settings).await
    }

    async fn start_with(
        shutdown: Shutdown,
        app: Router,
        settings: impl FnOnce(HttpServer) -> HttpServer,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = settings(HttpServer::new(app));
        let stop = shutdown.clone();
        let task = tokio::spawn(async move { server.serve(listener, &stop).await });
        Self { address, shutdown, task }
    }

    /// Stops the server, and waits until its connections have ended.
    async fn stop(self) {
        self.shutdown.start();
        self.ended().await;
    }

    async fn ended(self) {
        tokio::time::timeout(GIVE_UP, self.task).await.unwrap().unwrap().unwrap();
    }
}

/// Returns time limits that end the tests of slow clients early.
fn short_timeouts() -> Timeouts {
    let mut timeouts = Timeouts::default();
    timeouts.head = Duration::from_millis(300);
    timeouts.notice = Duration::from_millis(200);
    timeouts
}
