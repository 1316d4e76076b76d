//! A demonstration: the service, a load on it, and a Prometheus server. All ports are free ones,
//! and the folder of Prometheus is removed at the end.

use std::error::Error;
use std::fs;
use std::future::{Future, pending};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use axum::Router;
use form_urlencoded::Serializer;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use crate::serve;

/// The rules and alerts that Prometheus evaluates.
const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ops/prometheus");

/// The time within which Prometheus must have started.
const START: Duration = Duration::from_secs(30);

/// The numbers that the demonstration prints: their names, and their Prometheus expressions.
const SHOWN: [(&str, &str); 5] = [
    ("allowed per second", "sum(rate(rl_decisions_total{outcome=\"allowed\"}[10s]))"),
    ("denied per second", "sum(rate(rl_decisions_total{outcome=\"denied\"}[10s]))"),
    ("denied by the limit of a second", "sum(rate(rl_limit_denials_total{limit=\"second\"}[10s]))"),
    ("store up", "min(rl_store_up)"),
    ("alerts that fire", "count(ALERTS{alertstate=\"firing\"}) or vector(0)"),
];

/// Runs the demonstration for a time, or until Ctrl-C.
pub(crate) async fn run(
    app: impl Future<Output = Result<Router, Box<dyn Error>>>,
    time: Option<Duration>,
) -> Result<(), Box<dyn Error>> {
    let app = app.await?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let service = listener.local_addr()?;
    let prometheus = Prometheus::start(service).await?;
    println!("service     http://{service}/metrics");
    println!("Prometheus  http://{}/graph", prometheus.address);
    let mut load = JoinSet::new();
    for client in 0..8 {
        load.spawn(send(service, client));
    }
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let ended = async {
        match time {
            Some(time) => drop(timeout(time, pending::<()>()).await),
            None => pending().await,
        }
    };
    let result = tokio::select! {
        served = serve::serve(listener, app) => served,
        () = show(&prometheus) => Ok(()),
        () = ended => Ok(()),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    load.shutdown().await;
    prometheus.stop().await;
    Ok(result?)
}

/// Sends requests as one client. The first two clients send more requests than the limit allows.
async fn send(service: SocketAddr, client: u32) {
    let requests = reqwest::Client::new();
    let mut pauses = interval(Duration::from_millis(if client < 2 { 40 } else { 250 }));
    loop {
        pauses.tick().await;
        for _ in 0..=fastrand::u32(..2) {
            let request = requests.get(format!("http://{service}/"));
            let _ = request.header("x-client", format!("client-{client}")).send().await;
        }
    }
}

/// Prints the numbers every five seconds, once Prometheus has all of them.
async fn show(prometheus: &Prometheus) {
    let mut ticks = interval(Duration::from_secs(5));
    loop {
        ticks.tick().await;
        let mut line = Vec::new();
        for (name, expression) in SHOWN {
            if let Some(value) = prometheus.query(expression).await {
                line.push(format!("{name}: {value:.1}"));
            }
        }
        if line.len() == SHOWN.len() {
            println!("{}", line.join(", "));
        }
    }
}

/// A Prometheus server with a port and a folder of its own.
struct Prometheus {
    child: Child,
    address: SocketAddr,
    folder: PathBuf,
}

impl Prometheus {
    /// Starts a server that reads the metrics of `service`, and waits until it is ready.
    async fn start(service: SocketAddr) -> Result<Self, Box<dyn Error>> {
        let folder = std::env::temp_dir().join(format!("rl-observability-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("prometheus.yml"), configuration(service))?;
        // The listener finds a free port, and is dropped immediately. So Prometheus can use the
        // port.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?.local_addr()?;
        let started = Command::new("prometheus")
            .arg(format!("--config.file={}", folder.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=error")
            .current_dir(&folder)
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn();
        let child = match started {
            Ok(child) => child,
            Err(error) => {
                remove(&folder);
                return Err(format!("prometheus (apt-get install prometheus): {error}").into());
            }
        };
        let prometheus = Self { child, address, folder };
        match timeout(START, prometheus.is_ready()).await {
            Ok(()) => Ok(prometheus),
            Err(_) => {
                prometheus.stop().await;
                Err("prometheus has not started within 30 seconds".into())
            }
        }
    }

    async fn is_ready(&self) {
        let mut ticks = interval(Duration::from_millis(50));
        loop {
            ticks.tick().await;
            let ready = reqwest::get(format!("http://{}/-/ready", self.address)).await;
            if ready.is_ok_and(|ready| ready.status().is_success()) {
                return;
            }
        }
    }

    /// Returns the value of an expression; `None` if there is none yet.
    async fn query(&self, expression: &str) -> Option<f64> {
        let query = Serializer::new(String::new()).append_pair("query", expression).finish();
        let reply = reqwest::get(format!("http://{}/api/v1/query?{query}", self.address)).await;
        let reply: Value = reply.ok()?.json().await.ok()?;
        reply["data"]["result"][0]["value"][1].as_str()?.parse().ok()
    }

    /// Kills the server, and removes its folder.
    async fn stop(mut self) {
        let _ = self.child.kill().await;
        remove(&self.folder);
    }
}

fn remove(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder) {
        eprintln!("warning: {}: {error}", folder.display());
    }
}

fn configuration(service: SocketAddr) -> String {
    format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
         rule_files: ['{RULES}/rules.yml', '{RULES}/alerts.yml']\n\
         scrape_configs:\n  - job_name: shop\n    static_configs: [{{targets: ['{service}']}}]\n"
    )
}
