//! A demonstration: the service, a load on it, and a Prometheus server. All ports are free ones,
//! and the folder of Prometheus is removed at the end.

use std::error::Error;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{fs, io};

use axum::Router;
use form_urlencoded::Serializer;
use reqwest::Client;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, interval_at, timeout};

/// The rules and alerts that Prometheus evaluates.
const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ops/prometheus");

/// The time within which Prometheus must have started, and the time within which it must then have
/// all numbers.
const START: Duration = Duration::from_secs(30);

/// The time between two lines of numbers.
const PAUSE: Duration = Duration::from_secs(5);

/// The time limit for a request.
const REQUEST: Duration = Duration::from_secs(5);

/// The numbers that the demonstration prints: their names, and their Prometheus expressions.
const SHOWN: [(&str, &str); 5] = [
    ("allowed per second", "sum(rate(rl_decisions_total{outcome=\"allowed\"}[10s]))"),
    ("denied per second", "sum(rate(rl_decisions_total{outcome=\"denied\"}[10s]))"),
    ("denied by the limit of a second", "sum(rate(rl_limit_denials_total{limit=\"second\"}[10s]))"),
    ("store up", "min(rl_store_up)"),
    ("alerts that fire", "count(ALERTS{alertstate=\"firing\"}) or vector(0)"),
];

/// Runs the demonstration until Ctrl-C, or for a time after the first numbers.
pub(crate) async fn run(
    app: impl Future<Output = Result<Router, Box<dyn Error>>>,
    time: Option<Duration>,
) -> Result<(), Box<dyn Error>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        ended = demonstrate(app, time) => ended,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

async fn demonstrate(
    app: impl Future<Output = Result<Router, Box<dyn Error>>>,
    time: Option<Duration>,
) -> Result<(), Box<dyn Error>> {
    let app = app.await?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let service = listener.local_addr()?;
    // A proxy of the environment would not reach this machine.
    let requests = Client::builder().no_proxy().timeout(REQUEST).build()?;
    let prometheus = Prometheus::start(service, requests.clone()).await?;
    println!("service     http://{service}/metrics");
    println!("Prometheus  http://{}/graph", prometheus.address);
    let mut load = JoinSet::new();
    for client in 0..8 {
        load.spawn(send(requests.clone(), service, client));
    }
    tokio::select! {
        served = rl_serve::serve(listener, app) => Ok(served?),
        shown = show(&prometheus, time) => shown,
    }
}

/// Sends requests as one client. The first two clients send more requests than the limit allows.
async fn send(requests: Client, service: SocketAddr, client: u32) {
    let mut pauses = interval(Duration::from_millis(if client < 2 { 40 } else { 250 }));
    loop {
        pauses.tick().await;
        for _ in 0..=fastrand::u32(..2) {
            let request = requests.get(format!("http://{service}/"));
            let _ = request.header("x-client", format!("client-{client}")).send().await;
        }
    }
}

/// Prints the numbers as soon as Prometheus has all of them, and then every five seconds. If there
/// is a `time`, ends this long after the first numbers.
async fn show(prometheus: &Prometheus, time: Option<Duration>) -> Result<(), Box<dyn Error>> {
    let first = timeout(START, first_numbers(prometheus)).await;
    println!("{}", first.map_err(|_| "prometheus has not read all numbers within 30 seconds")?);
    let lines = async {
        let mut ticks = interval_at(Instant::now() + PAUSE, PAUSE);
        loop {
            ticks.tick().await;
            if let Some(line) = numbers(prometheus).await {
                println!("{line}");
            }
        }
    };
    match time {
        Some(time) => drop(timeout(time, lines).await),
        None => lines.await,
    }
    Ok(())
}

/// Waits until Prometheus has all numbers, and returns them.
async fn first_numbers(prometheus: &Prometheus) -> String {
    let mut ticks = interval(Duration::from_millis(200));
    loop {
        ticks.tick().await;
        if let Some(line) = numbers(prometheus).await {
            return line;
        }
    }
}

/// Returns the numbers as a line; `None` if Prometheus lacks one of them.
async fn numbers(prometheus: &Prometheus) -> Option<String> {
    let mut line = Vec::new();
    for (name, expression) in SHOWN {
        line.push(format!("{name}: {:.1}", prometheus.query(expression).await?));
    }
    Some(line.join(", "))
}

/// A Prometheus server with a port and a folder of its own. It is killed when it is dropped.
struct Prometheus {
    address: SocketAddr,
    requests: Client,
    child: Child,
    _folder: Folder,
}

impl Prometheus {
    /// Starts a server that reads the metrics of `service`, and waits until it is ready.
    async fn start(service: SocketAddr, requests: Client) -> Result<Self, Box<dyn Error>> {
        let folder = Folder::create()?;
        let file = folder.0.join("prometheus.yml");
        fs::write(&file, configuration(service))?;
        // The listener finds a free port, and is dropped immediately. So Prometheus can use the
        // port.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?.local_addr()?;
        let started = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.0.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=error")
            .current_dir(&folder.0)
            .stdout(Stdio::null())
            .spawn();
        let child =
            started.map_err(|error| format!("prometheus (apt-get install prometheus): {error}"))?;
        let mut prometheus = Self { address, requests, child, _folder: folder };
        let ready = timeout(START, prometheus.is_ready()).await;
        ready.map_err(|_| "prometheus has not started within 30 seconds")??;
        Ok(prometheus)
    }

    /// Waits until the server answers that it is ready. Fails if the process ends.
    async fn is_ready(&mut self) -> Result<(), Box<dyn Error>> {
        let mut ticks = interval(Duration::from_millis(50));
        loop {
            ticks.tick().await;
            if let Some(status) = self.child.try_wait()? {
                return Err(format!("prometheus has ended: {status}").into());
            }
            let ready = self.requests.get(format!("http://{}/-/ready", self.address)).send().await;
            if ready.is_ok_and(|ready| ready.status().is_success()) {
                return Ok(());
            }
        }
    }

    /// Returns the value of an expression; `None` if there is none yet.
    async fn query(&self, expression: &str) -> Option<f64> {
        let query = Serializer::new(String::new()).append_pair("query", expression).finish();
        let url = format!("http://{}/api/v1/query?{query}", self.address);
        let reply: Value = self.requests.get(url).send().await.ok()?.json().await.ok()?;
        reply["data"]["result"][0]["value"][1].as_str()?.parse().ok()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // The folder is removed next. A process that still runs would write into it again.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A temporary folder that is removed when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn create() -> io::Result<Self> {
        let folder = std::env::temp_dir().join(format!("rl-observability-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("warning: {}: {error}", self.0.display());
        }
    }
}

fn configuration(service: SocketAddr) -> String {
    format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
         rule_files: ['{RULES}/rules.yml', '{RULES}/alerts.yml']\n\
         scrape_configs:\n  - job_name: shop\n    static_configs: [{{targets: ['{service}']}}]\n"
    )
}
