//! The time limits of a server, and the versions of HTTP that it accepts.

use std::time::Duration;

use tokio::time::sleep;

/// The time limits of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timeouts {
    /// The time limit for the head of a request, for a TLS handshake, and for an idle connection.
    /// An idle connection over HTTP/2 may last twice as long. Defaults to 10 s.
    pub head: Duration,
    /// The time limit for the rest of a request: its body, the wait queue, and the handler. The
    /// response is 408. Defaults to 30 s.
    pub request: Duration,
    /// The time limit for a client that reads nothing, although a response waits for it. Defaults
    /// to 30 s.
    ///
    /// Linux reports free space only when a third of the send buffer is free. A client that reads
    /// less than that in this time also loses its connection. The buffer of a fast connection grows
    /// to 4 MB.
    pub unread: Duration,
    /// The time in which responses announce that their connections close, before idle connections
    /// are closed. Defaults to 1 s.
    pub notice: Duration,
    /// The time after `notice` within which the requests in progress must end. Defaults to 10 s.
    pub drain: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(10),
            request: Duration::from_secs(30),
            unread: Duration::from_secs(30),
            notice: Duration::from_secs(1),
            drain: Duration::from_secs(10),
        }
    }
}

/// The versions of HTTP that a server accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
    Both,
}

#[expect(clippy::disallowed_methods, reason = "clients and connections end in real time")]
pub(crate) async fn pause(duration: Duration) {
    sleep(duration).await;
}
