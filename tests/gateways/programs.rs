//! The programs of these tests: gateways, the decision server, and a service.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{Path as PathOf, State};
use axum::http::{Method, StatusCode, Uri};
use axum::response::Response;
use axum::routing::any;
use reqwest::Client;
use rl_tests::free_port;
use rl_tests::web::eventually;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gateway {
    Nginx,
    Caddy,
    Traefik,
    HaProxy,
    Envoy,
}

/// The treatment of requests while the decision server does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnOutage {
    Allow,
    Reject,
}

impl Gateway {
    /// Returns whether clients see the headers of allowed requests.
    pub(super) fn shows_headers(self) -> bool {
        // forwardAuth passes headers of the decision to the service only.
        self != Self::Traefik
    }

    /// Returns whether the gateway can be configured so.
    pub(super) fn can(self, outage: OnOutage) -> bool {
        // forwardAuth rejects what it cannot ask about.
        self != Self::Traefik || outage == OnOutage::Reject
    }

    const fn file(self) -> &'static str {
        match self {
            Self::Nginx => "nginx.conf",
            Self::Caddy => "Caddyfile",
            Self::Traefik => "traefik-dynamic.yaml",
            Self::HaProxy => "haproxy.cfg",
            Self::Envoy => "envoy.yaml",
        }
    }

    /// Returns the changes that a comment of the configuration names for rejecting requests.
    fn rejecting(self, text: &str) -> String {
        match self {
            Self::Nginx => {
                let (before, undecided) = text.split_once("location @undecided").unwrap();
                let undecided = undecided.replacen("proxy_pass http://service;", "return 503;", 1);
                format!("{before}location @undecided{undecided}")
            }
            Self::Caddy => text.split_once("\thandle_errors").unwrap().0.to_owned() + "}\n",
            Self::Traefik => text.to_owned(),
            Self::HaProxy => {
                text.replace("# http-request return status 503", "http-request return status 503")
            }
            Self::Envoy => text.replace("failure_mode_deny: false", "failure_mode_deny: true"),
        }
    }

    fn command(self, folder: &Path, web: u16) -> Command {
        let file = folder.join(self.file());
        let mut command = match self {
            Self::Nginx => {
                let mut command = Command::new("nginx");
                let global = format!(
                    "daemon off; master_process off; pid {0}/nginx.pid; error_log {0}/error.log;",
                    folder.display()
                );
                command.arg("-c").arg(file).arg("-p").arg(folder).args(["-g", &global]);
                command
            }
            Self::Caddy => {
                let mut command = Command::new("caddy");
                command.args(["run", "--adapter", "caddyfile", "--config"]).arg(file);
                command.env("XDG_CONFIG_HOME", folder).env("XDG_DATA_HOME", folder);
                command
            }
            Self::Traefik => {
                let mut command = Command::new(program("RL_TRAEFIK", "traefik"));
                command.arg(format!("--entryPoints.web.address=127.0.0.1:{web}"));
                command.arg(format!("--providers.file.filename={}", file.display()));
                command
            }
            Self::HaProxy => {
                let mut command = Command::new("haproxy");
                command.arg("-db").arg("-f").arg(file);
                command
            }
            Self::Envoy => {
                let mut command = Command::new(program("RL_ENVOY", "envoy"));
                command.args(["--concurrency", "2", "--log-level", "error", "--base-id"]);
                // Envoys on one machine need different ids.
                command.arg(web.to_string()).arg("-c").arg(file);
                command
            }
        };
        command.current_dir(folder);
        command
    }
}

/// Returns the program that an environment variable names, or else the one on the PATH.
fn program(variable: &str, name: &str) -> PathBuf {
    std::env::var_os(variable).map_or_else(|| name.into(), PathBuf::from)
}

/// A process that is killed at the end of a test.
pub(super) struct Process {
    child: Child,
    log: PathBuf,
    folder: TempDir,
}

impl Process {
    fn start(mut command: Command, folder: TempDir) -> Self {
        let log = folder.path().join("output.log");
        let output = fs::File::create(&log).unwrap();
        command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
        let child = command.spawn();
        let child = child.unwrap_or_else(|error| panic!("{:?}: {error}", command.get_program()));
        Self { child, log, folder }
    }

    /// Waits until the process accepts connections at this port.
    async fn listens(&mut self, port: u16) {
        let child = Mutex::new(&mut self.child);
        eventually(async || {
            let exited = child.lock().unwrap().try_wait().unwrap();
            assert!(exited.is_none(), "{exited:?}: {}", fs::read_to_string(&self.log).unwrap());
            TcpStream::connect(("127.0.0.1", port)).await.is_ok()
        })
        .await;
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A running decision server.
pub(super) struct DecisionServer {
    process: Process,
    http: u16,
    grpc: u16,
}

impl DecisionServer {
    pub(super) fn kill(&mut self) {
        self.process.kill();
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.http)
    }

    /// Replaces the rules.
    pub(super) fn change(&self, limits: &str) {
        fs::write(self.process.folder.path().join("limits.yaml"), limits).unwrap();
    }

    /// Asks the server to stop, and waits until it has.
    pub(super) async fn stop(&mut self) {
        let id = self.process.child.id().to_string();
        assert!(Command::new("kill").args(["-s", "TERM", &id]).status().unwrap().success());
        let child = Mutex::new(&mut self.process.child);
        eventually(async || child.lock().unwrap().try_wait().unwrap().is_some()).await;
    }
}

/// Starts the decision server with these limits, and its counters in memory or on this Redis.
pub(super) async fn decision_server(limits: &str, redis: Option<&str>) -> DecisionServer {
    decision_server_with(limits, redis, &[]).await
}

/// Starts the decision server with files beside its limits.
pub(super) async fn decision_server_with(
    limits: &str,
    redis: Option<&str>,
    files: &[(&str, &str)],
) -> DecisionServer {
    let folder = TempDir::new().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let file = folder.path().join("limits.yaml");
    let store = redis.map(|url| format!("store: {url}\n")).unwrap_or_default();
    fs::write(&file, store + limits).unwrap();
    let (http, grpc) = (free_port(), free_port());
    let mut command = Command::new(env!("CARGO_BIN_EXE_rl-command"));
    command.arg("serve").arg(file);
    command.env("RL_LISTEN", format!("127.0.0.1:{http}"));
    command.env("RL_LISTEN_GRPC", format!("127.0.0.1:{grpc}"));
    let mut process = Process::start(command, folder);
    process.listens(http).await;
    process.listens(grpc).await;
    DecisionServer { process, http, grpc }
}

/// A gateway to start, with the configuration of the book.
pub(super) struct Setup {
    kind: Gateway,
    outage: OnOutage,
    service: u16,
    http: u16,
    grpc: u16,
    keeps_time_limits: bool,
    /// Texts of the configuration, and those that replace them.
    replaced: Vec<(&'static str, String)>,
    /// Further files in the folder of the configuration.
    files: Vec<(&'static str, String)>,
}

impl Setup {
    pub(super) fn new(
        kind: Gateway,
        outage: OnOutage,
        service: &Service,
        server: &DecisionServer,
    ) -> Self {
        Self {
            kind,
            outage,
            service: service.port,
            http: server.http,
            grpc: server.grpc,
            keeps_time_limits: false,
            replaced: Vec::new(),
            files: Vec::new(),
        }
    }

    /// Sets the port of the decision server, for HTTP and gRPC.
    pub(super) fn server_port(self, port: u16) -> Self {
        Self { http: port, grpc: port, ..self }
    }

    /// Sets the port of the service.
    pub(super) fn service_port(self, port: u16) -> Self {
        Self { service: port, ..self }
    }

    /// Keeps the time limits of the book, which may be too short on a busy machine.
    pub(super) fn keep_time_limits(self) -> Self {
        Self { keeps_time_limits: true, ..self }
    }

    /// Replaces a text of the configuration.
    pub(super) fn replace(mut self, text: &'static str, new: impl Into<String>) -> Self {
        self.replaced.push((text, new.into()));
        self
    }

    /// Adds a file to the folder of the configuration.
    pub(super) fn file(mut self, name: &'static str, text: impl Into<String>) -> Self {
        self.files.push((name, text.into()));
        self
    }

    /// Starts the gateway, and waits until it listens.
    pub(super) async fn listening(self) -> RunningGateway {
        let (kind, outage) = (self.kind, self.outage);
        let folder = TempDir::new().unwrap();
        let web = free_port();
        let ports = [
            (8000, web),
            (8001, free_port()),
            (8080, self.http),
            (8081, self.grpc),
            (3000, self.service),
        ];
        for name in [kind.file(), "rate_limit.lua"] {
            let mut text = printed(name);
            if name == kind.file() {
                if outage == OnOutage::Reject {
                    text = kind.rejecting(&text);
                }
                for (old, new) in &self.replaced {
                    assert!(text.contains(old), "{kind:?}: {old} is not in the configuration");
                    text = text.replace(old, new);
                }
            }
            if !self.keeps_time_limits {
                let limits = [
                    ("50ms", "10s"),
                    ("200ms", "10s"),
                    ("0.1s", "10s"),
                    ("= 1000 --", "= 20000 --"),
                ];
                text = limits.iter().fold(text, |text, (short, long)| text.replace(short, long));
            }
            // Our port may begin with one of the book, so all of these are replaced first.
            for (port, _) in ports {
                for before in ["127.0.0.1:", "http://:", "port_value: "] {
                    text = text.replace(&format!("{before}{port}"), &format!("{before}<{port}>"));
                }
            }
            for (port, ours) in ports {
                text = text.replace(&format!("<{port}>"), &ours.to_string());
            }
            fs::write(folder.path().join(name), text).unwrap();
        }
        for (name, text) in self.files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let mut process = Process::start(kind.command(folder.path(), web), folder);
        process.listens(web).await;
        let gateway = RunningGateway { kind, _process: process, web, outage };
        // Traefik listens before it has read its file.
        if kind == Gateway::Traefik {
            let request = async || Client::new().get(gateway.url("/ready")).send().await.unwrap();
            eventually(async || request().await.status() != StatusCode::NOT_FOUND).await;
        }
        gateway
    }

    /// Starts the gateway, and waits until it reaches the decision server.
    pub(super) async fn start(self) -> RunningGateway {
        let gateway = self.listening().await;
        gateway.asks_the_server().await;
        gateway
    }
}

/// Returns the text of a file in `docs/gateways/`.
pub(super) fn printed(name: &str) -> String {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/gateways"));
    fs::read_to_string(folder.join(name)).unwrap()
}

/// A running gateway.
pub(super) struct RunningGateway {
    kind: Gateway,
    _process: Process,
    web: u16,
    outage: OnOutage,
}

impl RunningGateway {
    pub(super) async fn start(
        kind: Gateway,
        outage: OnOutage,
        service: &Service,
        server: &DecisionServer,
    ) -> Self {
        Setup::new(kind, outage, service, server).start().await
    }

    /// Returns the port that clients call.
    pub(super) const fn port(&self) -> u16 {
        self.web
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.web)
    }

    /// Waits until the gateway reaches the decision server. It may listen before that.
    async fn asks_the_server(&self) {
        // A client of its own, so that the counters of the test are not touched.
        let address = std::net::Ipv4Addr::new(127, 0, 0, 200);
        let client = Client::builder().local_address(Some(address.into())).build().unwrap();
        eventually(async || {
            let response = client.get(self.url("/ready")).send().await.unwrap();
            // A gateway that shows no headers answers only if it has asked.
            match self.kind.shows_headers() {
                true => {
                    let names = ["x-rate-limit-remaining", "ratelimit"];
                    names.iter().any(|name| response.headers().contains_key(*name))
                }
                false => response.status() == StatusCode::OK,
            }
        })
        .await;
    }

    /// Waits until the gateway answers without the decision server, which was killed.
    pub(super) async fn notices_outage(&self, client: &Client) {
        eventually(async || {
            let status = client.get(self.url("/")).send().await.unwrap().status();
            match self.outage {
                OnOutage::Allow => status == StatusCode::OK,
                OnOutage::Reject => status.is_server_error(),
            }
        })
        .await;
    }
}

/// The service behind the gateways. It returns what it has received.
pub(super) struct Service {
    port: u16,
    requests: Arc<AtomicUsize>,
}

impl Service {
    pub(super) async fn start() -> Self {
        let requests = Arc::new(AtomicUsize::new(0));
        let app = Router::new()
            .route("/ready", any(|| async { "ready" }))
            .route("/status/{status}", any(status))
            .route("/socket", any(socket))
            .fallback(echo)
            .with_state(Arc::clone(&requests));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { port, requests }
    }

    /// Returns the number of requests, without those for `/ready`.
    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

async fn echo(
    State(requests): State<Arc<AtomicUsize>>,
    method: Method,
    uri: Uri,
    body: Bytes,
) -> String {
    requests.fetch_add(1, Ordering::Relaxed);
    format!("{method} {uri} {}", String::from_utf8_lossy(&body))
}

/// Sends each message of a WebSocket back.
async fn socket(upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(async |mut socket| {
        while let Some(Ok(message)) = socket.recv().await {
            if socket.send(message).await.is_err() {
                return;
            }
        }
    })
}

async fn status(
    State(requests): State<Arc<AtomicUsize>>,
    PathOf(status): PathOf<u16>,
) -> (StatusCode, &'static str) {
    requests.fetch_add(1, Ordering::Relaxed);
    (StatusCode::from_u16(status).unwrap(), "of the service")
}
