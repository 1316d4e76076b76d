use std::process::Command;

use crate::{MariadbServer, PostgresServer};

/// A database server for a single test, which can fail.
pub trait DatabaseServer: Send {
    /// Returns the URL of a database that exists from the start.
    fn url(&self) -> String;

    /// Ends the server and all its connections immediately.
    fn stop(&mut self);

    /// Starts the server on the same port with the same data. If it is running, stops it first.
    ///
    /// # Panics
    ///
    /// Panics if the server does not start.
    fn restart(&mut self);

    /// Stops the server and all its processes without closing any connection, so that it hangs.
    ///
    /// # Panics
    ///
    /// Panics if the server is not running.
    fn hang(&self);

    /// Continues the server after a [`hang`](Self::hang).
    ///
    /// # Panics
    ///
    /// Panics as [`hang`](Self::hang) does.
    fn go_on(&self);
}

/// Runs a test on an empty server of each kind, one after the other.
///
/// # Panics
///
/// Panics if a server is not installed or does not start, or if the test does.
pub async fn on_every_server(test: impl AsyncFn(Box<dyn DatabaseServer>)) {
    test(Box::new(PostgresServer::start())).await;
    test(Box::new(MariadbServer::start())).await;
}

/// Sends a signal to a process.
pub(crate) fn send(signal: &str, process: &str) {
    let sent = Command::new("kill").args(["-s", signal, process]).status();
    assert!(sent.expect("kill").success(), "{signal} {process}");
}
