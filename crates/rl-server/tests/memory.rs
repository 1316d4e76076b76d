//! The memory that a hostile peer takes. The test is alone in its process, whose memory it reads.

#![allow(clippy::unwrap_used, reason = "a test that cannot unwrap has failed")]

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use rl_server::{Server, Source};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The time after which the test fails.
const GIVE_UP: Duration = Duration::from_secs(60);
/// The streams that a connection may have.
const STREAMS: u32 = 256;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The kinds of frames, and the flags of `HEADERS`.
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Returns the resident memory of this process, in MiB.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().split(' ').next().unwrap().parse::<usize>().unwrap() / 1024
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    frame.extend(payload);
    frame
}

/// Returns an encoded head (RFC 7541) with these lines after the path.
fn head(method: u8, path: &str, lines: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut head = vec![method, 0x86, 0x04, u8::try_from(path.len()).unwrap()];
    head.extend(path.as_bytes());
    head.extend(lines.flatten());
    head
}

/// Returns a line whose value has 15 000 bytes.
fn long_line() -> Vec<u8> {
    [&[0, 1, b'a', 127, 0x99, 0x74][..], &[b'x'; 15_000]].concat()
}

/// Opens a connection, sends the frames, and waits until the server has read them. Reads no response
/// if the window for them is empty.
async fn send(address: SocketAddr, window: u32, frames: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let settings = [&[0, 4][..], &window.to_be_bytes()].concat();
    let start = [PREFACE, &frame(SETTINGS, 0, 0, &settings)].concat();
    stream.write_all(&start).await.unwrap();
    let pong = frame(PING, 1, 0, &[7; 8]);
    let (mut from, mut to) = stream.split();
    let write = async {
        to.write_all(frames).await.unwrap();
        to.write_all(&frame(PING, 0, 0, &[7; 8])).await.unwrap();
    };
    let read = async {
        let mut all = Vec::new();
        while !all.windows(pong.len()).any(|part| part == pong) {
            all.drain(..all.len().saturating_sub(pong.len()));
            assert!(from.read_buf(&mut all).await.unwrap() > 0, "the connection was closed");
        }
    };
    timeout(GIVE_UP, async { tokio::join!(write, read) }).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_memory_that_a_hostile_peer_takes_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.yaml");
    fs::write(&file, "rules: { clients: { per: address, limits: 1000000/minute } }\n").unwrap();
    let variable = |name: &str| name.starts_with("RL_LISTEN").then(|| "127.0.0.1:0".to_owned());
    let server = Server::start(&Source::RuleFile(file), variable).await.unwrap();
    let (http, grpc) = (server.http_addr(), server.grpc_addr());
    let reserve = "/kuadrant.service.ratelimit.v1.RateLimitService/Reserve";
    let (get, post) = (0x82, 0x83);
    let distinct = (0..1_500).map(|number| {
        let name = format!("{number:x}");
        [&[0, u8::try_from(name.len()).unwrap()], name.as_bytes(), &[0]].concat()
    });
    let same = std::iter::repeat_n(vec![0x8f], 1_300);
    let none = || std::iter::empty();
    // In turn: heads with many lines or long ones, whose bodies do not arrive; responses that are
    // not read; and responses that are read.
    let attacks = [
        (grpc, head(post, reserve, distinct), END_HEADERS, 65_535),
        (grpc, head(post, reserve, same), END_HEADERS, 65_535),
        (grpc, head(post, reserve, std::iter::once(long_line())), END_HEADERS, 65_535),
        (http, head(get, "/metrics", none()), END_HEADERS | END_STREAM, 0),
        (http, head(get, "/healthz", none()), END_HEADERS | END_STREAM, 65_535),
    ];
    // A connection whose head is not complete.
    let count = 100;
    let begun = frame(HEADERS, 0, 1, &head(get, "/", none()));
    let rest: Vec<u8> = (0..3).flat_map(|_| frame(CONTINUATION, 0, 1, &long_line())).collect();
    let half = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &begun, &rest].concat();
    let long = format!("GET / HTTP/1.1\r\nhost: x\r\nx: {}", "x".repeat(60_000)).into_bytes();
    let before = resident();
    let mut open = Vec::new();
    for (address, sent) in [(grpc, half), (http, long)] {
        for _ in 0..count {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(&sent).await.unwrap();
            open.push(stream);
        }
    }
    // The server answers after what has arrived before.
    open.push(send(grpc, 0, &[]).await);
    let more = (resident().saturating_sub(before)) * 1024 / (2 * count);
    println!("{more} KiB for each connection with half a head");
    assert!(more < 128, "{more} KiB");

    let before = resident();
    for (address, head, flags, window) in &attacks {
        let streams = (0..STREAMS).flat_map(|number| frame(HEADERS, *flags, 2 * number + 1, head));
        let streams: Vec<u8> = streams.collect();
        for _ in 0..20 {
            open.push(send(*address, *window, &streams).await);
        }
        println!("{} MiB after {} connections", resident() - before, open.len());
    }
    let requests = resident() - before;
    assert!(requests < 400, "{requests} MiB: a peer may take 98 MiB, more with overhead");
}
