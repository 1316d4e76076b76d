//! Runs every example and the server of rl-admin as processes. Checks their start, output, time
//! limits and shutdown.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rl_tests::{RedisServer, free_port};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, interval, timeout};

use super::GIVE_UP;

/// The programs that need no other server, each with the path to request.
const PROGRAMS: [(&str, &str); 9] = [
    (env!("CARGO_BIN_EXE_example-axum-quickstart"), "/"),
    (env!("CARGO_BIN_EXE_example-actix-quickstart"), "/"),
    (env!("CARGO_BIN_EXE_example-axum-api-keys"), "/"),
    (env!("CARGO_BIN_EXE_example-axum-metered"), "/words/9"),
    (env!("CARGO_BIN_EXE_example-behind-proxy"), "/"),
    (env!("CARGO_BIN_EXE_example-open-bank"), "/obp/v6.0.0/banks"),
    (env!("CARGO_BIN_EXE_example-axum-rules"), "/"),
    (env!("CARGO_BIN_EXE_example-llm-gateway"), "/health"),
    (env!("CARGO_BIN_EXE_example-observability"), "/metrics"),
];
/// The path of the rule file for the example `axum-rules`.
const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/axum-rules/limits.yaml");
const SHARED_REDIS: &str = env!("CARGO_BIN_EXE_example-shared-redis");
const ADMIN_SERVER: &str = env!("CARGO_BIN_EXE_admin-server");

/// A process that listens at `address`. Dropping this value stops the process.
pub(crate) struct Program {
    child: Child,
    pub(crate) address: String,
    output: Arc<Mutex<String>>,
}

impl Program {
    /// Starts a program, and waits until it prints the address at which it listens.
    ///
    /// The system chooses the port. A port that is free before the program starts may be that of
    /// another process afterwards, whose responses the test would read.
    pub(crate) async fn start(program: &str, settings: &[(&str, &str)]) -> Self {
        let mut program = Self::spawn(program, "127.0.0.1:0", settings);
        let mut listens_at = None;
        until(async || {
            assert!(program.child.try_wait().unwrap().is_none(), "{}", program.output());
            listens_at = program.printed_address();
            listens_at.is_some()
        })
        .await;
        program.address = listens_at.expect("a printed address");
        program
    }

    fn printed_address(&self) -> Option<String> {
        let output = self.output();
        let (_, printed) = output.split_once("listening on http://")?;
        let end = printed.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ':'))?;
        Some(printed[..end].to_owned())
    }

    fn spawn(program: &str, address: &str, settings: &[(&str, &str)]) -> Self {
        let mut child = Command::new(program)
            .env_clear()
            .env("RL_LISTEN", address)
            .env("RL_RULES", RULES)
            .envs(settings.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = Arc::<Mutex<String>>::default();
        collect(child.stdout.take().unwrap(), output.clone());
        collect(child.stderr.take().unwrap(), output.clone());
        let address = address.split(',').next().unwrap().to_owned();
        Self { child, address, output }
    }

    /// Returns what the program has written so far.
    pub(crate) fn output(&self) -> String {
        self.output.lock().unwrap().clone()
    }

    /// Returns the printed lines that begin with `curl`, once all of them have been printed.
    async fn curl_lines(&self) -> Vec<String> {
        until(async || self.output().contains("\ncurl ")).await;
        let output = self.output();
        output.lines().filter(|line| line.starts_with("curl ")).map(ToOwned::to_owned).collect()
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    async fn ended(&mut self) -> ExitStatus {
        until(async || self.child.try_wait().unwrap().is_some()).await;
        self.child.try_wait().unwrap().unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(lines: impl std::io::Read + Send + 'static, output: Arc<Mutex<String>>) {
    std::thread::spawn(move || {
        for line in BufReader::new(lines).lines().map_while(Result::ok) {
            let mut output = output.lock().unwrap();
            output.push_str(&line);
            output.push('\n');
        }
    });
}

async fn until(mut is_true: impl AsyncFnMut() -> bool) {
    let mut looks = interval(Duration::from_millis(5));
    let began = Instant::now();
    while !is_true().await {
        looks.tick().await;
        assert!(began.elapsed() < GIVE_UP, "the condition did not come true in time");
    }
}

/// Reads one response. Returns its status and whether it closes the connection, or `None` if the
/// connection ended before the response was complete.
async fn read_response(stream: &mut TcpStream) -> Option<(u16, bool)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let field = |name: &str| head.split("\r\n").find_map(|line| line.strip_prefix(name));
    let length = field("content-length: ").map_or(0, |length| length.parse().unwrap());
    stream.read_exact(&mut vec![0; length]).await.ok()?;
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Some((status, field("connection: ") == Some("close")))
}

/// The numbers of responses and of lost requests, for clients that send one request after the
/// other.
#[derive(Debug, Default)]
struct Load {
    answered: AtomicUsize,
    lost: AtomicUsize,
}

/// Sends requests over one connection until the server accepts no more connections. If the server
/// closes the connection, a new one is opened.
async fn send_requests(address: String, path: &'static str, load: Arc<Load>) {
    while let Ok(mut stream) = TcpStream::connect(&address).await {
        loop {
            let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n");
            let response = match stream.write_all(request.as_bytes()).await {
                Ok(()) => read_response(&mut stream).await,
                Err(_) => None,
            };
            let Some((_, closes)) = response else {
                load.lost.fetch_add(1, Ordering::Relaxed);
                break;
            };
            load.answered.fetch_add(1, Ordering::Relaxed);
            if closes {
                break;
            }
        }
    }
}

/// Stops a program while clients send requests, and while other connections have sent only half a
/// request head.
async fn stop_under_load(program: &mut Program, path: &'static str, signal: &str) {
    let address = program.address.clone();
    let mut halves = Vec::new();
    for _ in 0..10 {
        let mut half = TcpStream::connect(&address).await.unwrap();
        half.write_all(format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n").as_bytes())
            .await
            .unwrap();
        halves.push(half);
    }
    let load = Arc::new(Load::default());
    let client = |_| tokio::spawn(send_requests(address.clone(), path, Arc::clone(&load)));
    let clients: Vec<_> = (0..20).map(client).collect();
    until(async || load.answered.load(Ordering::Relaxed) >= 100).await;
    // The server accepts connections in order. Once a later connection gets a response, the server
    // has accepted those with incomplete heads.
    let mut later = TcpStream::connect(&address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    later.write_all(request.as_bytes()).await.unwrap();
    assert!(read_response(&mut later).await.is_some());

    program.signal(signal);
    until(async || TcpStream::connect(&address).await.is_err()).await;
    for mut half in halves {
        half.write_all(b"\r\n").await.unwrap();
        let (_, closes) = read_response(&mut half)
            .await
            .expect("a response, because its head began before the signal");
        assert!(closes);
    }
    for client in clients {
        timeout(GIVE_UP, client).await.unwrap().unwrap();
    }
    assert_eq!(load.lost.load(Ordering::Relaxed), 0, "{load:?}");
    assert_eq!(program.ended().await.code(), Some(0), "{}", program.output());
}

/// Starts the server of rl-admin, and waits until it listens.
async fn admin_server() -> Program {
    let listen = format!("127.0.0.1:{}", free_port());
    let settings = [
        ("DATABASE_URL", "sqlite::memory:"),
        ("RL_ADMIN_LISTEN", &*listen),
        ("RL_ADMIN_TOKENS", r#"[{"name":"a","token":"a-long-and-random-token","roles":[]}]"#),
    ];
    let program = Program::spawn(ADMIN_SERVER, &listen, &settings);
    until(async || TcpStream::connect(&listen).await.is_ok()).await;
    program
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn examples_lose_no_request_when_they_are_stopped_under_load() {
    for (name, path) in PROGRAMS {
        for signal in ["TERM", "INT"] {
            let mut program = Program::start(name, &[]).await;
            stop_under_load(&mut program, path, signal).await;
        }
    }
    let redis = RedisServer::start();
    let listen = format!("127.0.0.1:{}, 127.0.0.1:{}", free_port(), free_port());
    let url = redis.url();
    let mut program = Program::spawn(SHARED_REDIS, &listen, &[("RL_REDIS_URL", &url)]);
    program.curl_lines().await;
    stop_under_load(&mut program, "/", "TERM").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_admin_server_loses_no_request_when_it_is_stopped_under_load() {
    let mut program = admin_server().await;
    stop_under_load(&mut program, "/management/rate-limiting", "TERM").await;
}

#[tokio::test]
async fn the_commands_that_examples_print_succeed() {
    let redis = RedisServer::start();
    let url = redis.url();
    let listen = format!("127.0.0.1:{}, 127.0.0.1:{}", free_port(), free_port());
    let shared = Program::spawn(SHARED_REDIS, &listen, &[("RL_REDIS_URL", &url)]);
    let mut programs = vec![shared];
    for (name, _) in PROGRAMS {
        programs.push(Program::start(name, &[]).await);
    }
    for program in &programs {
        let lines = program.curl_lines().await;
        assert!(!lines.is_empty(), "{}", program.output());
        for line in lines {
            let output = Command::new("sh").args(["-c", &format!("{line} -s -S -f")]).output();
            let output = output.expect("curl: tests/run installs it");
            let answer = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && !answer.is_empty(), "{line}: {answer}");
        }
    }
}

/// Fault: a connection whose head was never complete cost the server a file descriptor and memory
/// for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_with_half_a_head_are_closed_after_ten_seconds() {
    let mut programs = Vec::new();
    for (name, _) in [PROGRAMS[0], PROGRAMS[1]] {
        programs.push(Program::start(name, &[]).await);
    }
    programs.push(admin_server().await);
    let began = Instant::now();
    let mut slow = Vec::new();
    for program in &programs {
        for count in 0..200 {
            let mut stream = TcpStream::connect(&program.address).await.unwrap();
            // The connections send, in turn, half a request head, nothing, and the beginning of an
            // HTTP/2 preface.
            let sent: &[u8] =
                [&b"GET / HTTP/1.1\r\nhost: x\r\nx-slow: "[..], b"", b"PRI * HT"][count % 3];
            stream.write_all(sent).await.unwrap();
            slow.push(tokio::spawn(async move {
                let mut rest = Vec::new();
                let ended = timeout(GIVE_UP, stream.read_to_end(&mut rest)).await;
                ended.is_ok()
            }));
        }
    }
    for connection in slow {
        assert!(connection.await.unwrap(), "it is still open");
    }
    assert!(began.elapsed() > Duration::from_secs(4), "slow clients are given some time");
}

/// Sends requests without end, and reads half a megabyte of the responses every five seconds.
async fn read_slowly(address: String, requests: String) {
    let (mut from, mut to) = TcpStream::connect(address).await.unwrap().into_split();
    let write = async { while to.write_all(requests.as_bytes()).await.is_ok() {} };
    let read = async {
        let (mut pauses, mut responses) = (interval(Duration::from_secs(5)), vec![0; 500_000]);
        loop {
            pauses.tick().await;
            from.read_exact(&mut responses).await.expect("a client that reads stays connected");
        }
    };
    tokio::select! { () = write => panic!("the connection was closed"), () = read => {} }
}

/// Fault: a client that sent requests and read no response kept its connection for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_whose_client_reads_nothing_are_closed() {
    let programs = [Program::start(PROGRAMS[0].0, &[]).await, admin_server().await];
    let requests = "GET / HTTP/1.1\r\nhost: x\r\n\r\n".repeat(100);
    let began = Instant::now();
    let clients = programs.each_ref().map(|program| {
        let (address, requests) = (program.address.clone(), requests.clone());
        tokio::spawn(async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // The server stops reading requests when it can write no more responses. It resets the
            // connection when it closes it, because it has not read all that has arrived.
            while stream.write_all(requests.as_bytes()).await.is_ok() {}
        })
    });
    let slow = tokio::spawn(read_slowly(programs[0].address.clone(), requests));
    for client in clients {
        timeout(GIVE_UP, client).await.expect("the connection is still open").unwrap();
    }
    assert!(began.elapsed() > Duration::from_secs(20), "slow clients are given some time");
    assert!(!slow.is_finished(), "{:?}", slow.await);
    slow.abort();
}

#[tokio::test]
async fn a_wrong_setting_is_reported_in_one_plain_line() {
    let token = ("RL_ADMIN_TOKENS", "[]");
    let bank = PROGRAMS[5].0;
    for (program, setting, expected) in [
        (PROGRAMS[0].0, ("RL_REDIS_URL", "nonsense"), "error: RL_REDIS_URL: Redis URL"),
        (PROGRAMS[1].0, ("RL_REDIS_URL", "nonsense"), "error: RL_REDIS_URL: Redis URL"),
        (PROGRAMS[0].0, ("RL_LISTEN", "256.0.0.1:80"), "error: RL_LISTEN 256.0.0.1:80: "),
        (PROGRAMS[1].0, ("RL_LISTEN", "256.0.0.1:80"), "error: RL_LISTEN 256.0.0.1:80: "),
        (PROGRAMS[4].0, ("RL_PROXIES", "10.0.0.0/33"), "error: RL_PROXIES: trusted proxy"),
        (bank, ("DATABASE_URL", "oracle://x"), "error: DATABASE_URL: "),
        (
            bank,
            ("RL_SELF_SERVICE", "loud"),
            "error: RL_SELF_SERVICE \"loud\": expected off, shadow",
        ),
        (bank, token, "error: RL_ADMIN_TOKENS: expected at least one token"),
    ] {
        let mut process = Program::spawn(program, "127.0.0.1:0", &[setting]);
        assert_eq!(process.ended().await.code(), Some(1), "{expected}");
        until(async || process.output().ends_with('\n')).await;
        let output = process.output();
        assert!(output.starts_with(expected) && output.lines().count() == 1, "{output}");
        assert!(!output.contains("Error(") && !output.contains('\\'), "{output}");
    }
}

#[tokio::test]
async fn an_empty_setting_is_unset_and_a_log_file_has_no_colours() {
    let empty =
        ["RL_REDIS_URL", "DATABASE_URL", "RL_ADMIN_TOKENS", "RL_PROXIES"].map(|name| (name, ""));
    for (name, path) in PROGRAMS {
        let program = Program::start(name, &empty).await;
        let url = format!("http://{}{path}", program.address);
        let answer = rl_tests::web::client().get(url).send().await.unwrap();
        assert!(answer.status().is_success(), "{name}");
        assert!(!program.output().contains('\u{1b}'), "{}", program.output());
    }
}
