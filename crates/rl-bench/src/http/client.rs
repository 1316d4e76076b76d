//! A client that does as little work as possible, so that the measured time is the server's.

use std::io::{self, Error, ErrorKind, Read, Write};
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The size of the buffer, which is more than the longest response.
const ROOM: usize = 4_096;

/// Returns the status and the length of the response at the beginning of `bytes`, or `None` if the
/// response is not complete yet.
fn answer(bytes: &[u8]) -> Option<(u16, usize)> {
    let head = bytes.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&bytes[..head]).ok()?;
    let status = text.get(9..12)?.parse().ok()?;
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let all = head + length.unwrap_or(0);
    (bytes.len() >= all).then_some((status, all))
}

fn request(address: SocketAddr) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nhost: {address}\r\n\r\n").into_bytes()
}

fn too_long() -> Error {
    Error::new(ErrorKind::InvalidData, "the response is longer than the buffer")
}

/// One of many connections that share a runtime.
#[derive(Debug)]
pub(super) struct Client {
    stream: TcpStream,
    request: Vec<u8>,
}

impl Client {
    pub(super) async fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, request: request(address) })
    }

    /// Sends a request and returns the status of the response.
    pub(super) async fn ask(&mut self) -> io::Result<u16> {
        self.stream.write_all(&self.request).await?;
        let (mut buffer, mut read) = ([0; ROOM], 0);
        loop {
            match self.stream.read(&mut buffer[read..]).await? {
                0 => return Err(too_long()),
                more => read += more,
            }
            if let Some((status, _)) = answer(&buffer[..read]) {
                return Ok(status);
            }
        }
    }
}

/// A connection on a thread of its own, without a runtime.
#[derive(Debug)]
pub(super) struct LoneClient {
    stream: std::net::TcpStream,
    request: Vec<u8>,
}

impl LoneClient {
    pub(super) fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = std::net::TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, request: request(address) })
    }

    /// Sends a request and returns the status of the response.
    pub(super) fn ask(&mut self) -> io::Result<u16> {
        self.stream.write_all(&self.request)?;
        let (mut buffer, mut read) = ([0; ROOM], 0);
        loop {
            match self.stream.read(&mut buffer[read..])? {
                0 => return Err(too_long()),
                more => read += more,
            }
            if let Some((status, _)) = answer(&buffer[..read]) {
                return Ok(status);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_ends_with_its_body() {
        let text = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 5\r\nx: y\r\n\r\nHello";
        assert_eq!(answer(text), Some((429, text.len())));
        for cut in 0..text.len() {
            assert_eq!(answer(&text[..cut]), None, "{cut}");
        }
        let empty = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        assert_eq!(answer(empty), Some((200, empty.len())));
    }
}
