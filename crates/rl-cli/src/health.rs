//! Asks a server whether it is ready.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The time limit for the answer.
const LIMIT: Duration = Duration::from_secs(3);

/// The longest answer that is read, in bytes.
const MAX_ANSWER: u64 = 16 * 1024;

/// Asks the server at `url` whether it is ready.
///
/// # Errors
///
/// Returns the reason why it is not ready, or cannot be asked.
pub(crate) async fn check(url: &str) -> Result<(), String> {
    let authority = authority(url)?;
    let answer = timeout(LIMIT, ask(&authority)).await;
    let answer = answer.map_err(|_| format!("{authority}: no answer within 3 seconds"))?;
    let answer = answer.map_err(|error| format!("{authority}: {error}"))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    match head.split(' ').nth(1) {
        Some("200") => Ok(()),
        Some(status) => Err(format!("{authority}: not ready: status {status}: {}", body.trim())),
        None => Err(format!("{authority}: expected an answer over HTTP")),
    }
}

/// Returns the host and port of a URL. An address on which a server listens for all hosts is asked
/// on this one.
fn authority(url: &str) -> Result<String, String> {
    let expected = || format!("{url:?}: expected http://HOST:PORT");
    let rest = url.strip_prefix("http://").ok_or_else(expected)?;
    let authority = rest.split('/').next().unwrap_or(rest);
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() => (host, port),
        Some((_, port)) if !port.ends_with(']') => return Err(expected()),
        _ => (authority, "80"),
    };
    Ok(match host {
        "" => return Err(expected()),
        "0.0.0.0" => format!("127.0.0.1:{port}"),
        "[::]" => format!("[::1]:{port}"),
        host => format!("{host}:{port}"),
    })
}

async fn ask(authority: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(authority).await?;
    let request = format!("GET /readyz HTTP/1.1\r\nhost: {authority}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use super::authority;

    #[test]
    fn the_host_and_port_of_a_url_are_asked_and_wildcards_on_this_machine() {
        for (url, expected) in [
            ("http://127.0.0.1:8080", "127.0.0.1:8080"),
            ("http://0.0.0.0:8080/readyz", "127.0.0.1:8080"),
            ("http://[::]:8080", "[::1]:8080"),
            ("http://limits", "limits:80"),
            ("http://[2001:db8::1]", "[2001:db8::1]:80"),
        ] {
            assert_eq!(authority(url).unwrap(), expected);
        }
        for url in ["https://x", "x:80", "http://", "http://x:y"] {
            assert!(authority(url).unwrap_err().contains("expected http://HOST:PORT"), "{url}");
        }
    }
}
