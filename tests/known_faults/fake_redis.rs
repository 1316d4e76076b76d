//! A server of the test's own that speaks as much of the protocol of Redis as the store needs.
//!
//! It runs in the runtime of the test, on its paused clock. It allows every request, and decides
//! when it replies.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};

/// A server in a cluster of several.
#[derive(Debug)]
pub(super) struct FakeRedis {
    port: u16,
    /// Whether the server still receives commands, but replies to none, like a process that is
    /// stopped.
    is_silent: AtomicBool,
    /// The time after which the server replies, in microseconds.
    delay: AtomicU64,
    /// Whether replies are held back.
    is_held: watch::Sender<bool>,
    /// The number of script calls.
    calls: AtomicUsize,
    /// The number of replies to script calls that were sent.
    replies: AtomicUsize,
    /// The reply to `CLUSTER SLOTS`.
    slots: Mutex<String>,
}

impl FakeRedis {
    /// Starts a cluster of `count` servers, each with an equal part of the slots.
    pub(super) async fn cluster(count: u16) -> Vec<Arc<Self>> {
        let mut servers = Vec::new();
        for _ in 0..count {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let server = Arc::new(Self {
                port: listener.local_addr().unwrap().port(),
                is_silent: AtomicBool::new(false),
                delay: AtomicU64::new(0),
                is_held: watch::Sender::new(false),
                calls: AtomicUsize::new(0),
                replies: AtomicUsize::new(0),
                slots: Mutex::default(),
            });
            tokio::spawn(Arc::clone(&server).accept(listener));
            servers.push(server);
        }
        let share = 16_384 / count;
        let range = |(index, server): (u16, &Arc<Self>)| {
            let (first, last) = (index * share, (index + 1) * share - 1);
            let port = server.port;
            format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n")
        };
        let ranges: String = (0..).zip(&servers).map(range).collect();
        for server in &servers {
            *server.slots.lock().unwrap() = format!("*{count}\r\n{ranges}");
        }
        servers
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Stops all replies.
    pub(super) fn fall_silent(&self) {
        self.is_silent.store(true, Ordering::SeqCst);
    }

    /// Sets the time after which the server replies.
    pub(super) fn set_delay(&self, delay: Duration) {
        self.delay.store(delay.as_micros() as u64, Ordering::SeqCst);
    }

    /// Holds all replies back, or sends those that were held back.
    pub(super) fn hold_replies(&self, is_held: bool) {
        self.is_held.send_replace(is_held);
    }

    /// Returns the number of replies to script calls that were sent.
    pub(super) fn replies(&self) -> usize {
        self.replies.load(Ordering::SeqCst)
    }

    /// Returns the number of script calls.
    pub(super) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    async fn accept(self: Arc<Self>, listener: TcpListener) {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(Arc::clone(&self).serve(stream));
        }
    }

    /// Reads the commands of a connection, and replies to them in their order.
    async fn serve(self: Arc<Self>, stream: TcpStream) {
        let (reader, mut writer) = stream.into_split();
        let (sender, mut replies) = mpsc::unbounded_channel::<(Instant, Vec<u8>, bool)>();
        let server = Arc::clone(&self);
        tokio::spawn(async move {
            let mut is_held = server.is_held.subscribe();
            while let Some((at, reply, is_call)) = replies.recv().await {
                let _ = timeout_at(at, std::future::pending::<()>()).await;
                let _ = is_held.wait_for(|is_held| !is_held).await;
                if !server.is_silent.load(Ordering::SeqCst) {
                    let _ = writer.write_all(&reply).await;
                    server.replies.fetch_add(usize::from(is_call), Ordering::SeqCst);
                }
            }
        });
        let mut reader = BufReader::new(reader);
        while let Some(command) = read_command(&mut reader).await {
            let (reply, is_call) = (self.reply(&command), command[0] == b"EVALSHA");
            let delay = Duration::from_micros(self.delay.load(Ordering::SeqCst));
            let _ = sender.send((Instant::now() + delay, reply, is_call));
        }
    }

    fn reply(&self, command: &[Vec<u8>]) -> Vec<u8> {
        match &command[0].to_ascii_uppercase()[..] {
            b"EVALSHA" => {
                self.calls.fetch_add(1, Ordering::SeqCst);
                let subjects: usize = String::from_utf8_lossy(&command[2]).parse().unwrap();
                bulk(&allowed().repeat(subjects))
            }
            b"CLUSTER" => self.slots.lock().unwrap().clone().into_bytes(),
            b"INFO" => bulk(b"maxmemory:0\r\n"),
            b"SCRIPT" => bulk(&[b'0'; 40]),
            _ => b"+OK\r\n".to_vec(),
        }
    }
}

/// Returns the state of a subject whose limit per hour has been charged one unit: version, width
/// of counts, named period, time, remaining time of the window, used units.
fn allowed() -> Vec<u8> {
    let mut state = vec![6, 7, 4];
    state.extend(&1_750_000_000_000_000_u64.to_be_bytes()[1..]);
    state.extend(3_600_000_000_u32.to_be_bytes());
    state.extend(&1_u64.to_be_bytes()[1..]);
    state
}

fn bulk(bytes: &[u8]) -> Vec<u8> {
    let mut reply = format!("${}\r\n", bytes.len()).into_bytes();
    reply.extend(bytes);
    reply.extend(b"\r\n");
    reply
}

/// Reads an array of bulk strings. Returns `None` at the end of the connection.
async fn read_command(reader: &mut (impl AsyncBufReadExt + Unpin)) -> Option<Vec<Vec<u8>>> {
    let count = read_number(reader, '*').await?;
    let mut command = Vec::new();
    for _ in 0..count {
        let length = read_number(reader, '$').await?;
        let mut argument = vec![0; length + 2];
        reader.read_exact(&mut argument).await.ok()?;
        argument.truncate(length);
        command.push(argument);
    }
    Some(command)
}

async fn read_number(reader: &mut (impl AsyncBufReadExt + Unpin), first: char) -> Option<usize> {
    let mut line = String::new();
    reader.read_line(&mut line).await.ok()?;
    line.strip_prefix(first)?.trim_end().parse().ok()
}
