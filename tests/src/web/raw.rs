//! Requests that no client library sends.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{GIVE_UP, Site};

impl Site {
    /// Sends these bytes over a new connection. Returns all that the server sends until it closes
    /// the connection. The last request should ask the server to close it.
    ///
    /// # Panics
    ///
    /// Panics if the server does not close the connection.
    pub async fn send(&self, request: impl AsRef<[u8]>) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.address).await.expect("the server listens");
        let mut answer = Vec::new();
        let (mut from, mut to) = stream.split();
        // The client reads while it writes, because a server may respond before it has read
        // everything.
        let exchange = async {
            let (read, _) =
                tokio::join!(from.read_to_end(&mut answer), to.write_all(request.as_ref()));
            // A read error is ignored. Even if the connection is cut, earlier requests may have got
            // responses.
            let _ = read;
        };
        timeout(GIVE_UP, exchange).await.expect("the server ends the connection");
        answer
    }
}

/// Returns the statuses of all responses in the bytes that a server sent.
#[must_use]
pub fn statuses(answers: &[u8]) -> Vec<u16> {
    let text = String::from_utf8_lossy(answers);
    let heads = text.split("HTTP/1.1 ").skip(1);
    heads.filter_map(|head| head.get(..3)?.parse().ok()).collect()
}
