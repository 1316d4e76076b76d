use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// A redis-server of this test alone: a port of its own, a folder of its own, killed at the end.
#[derive(Debug)]
pub struct RedisServer {
    port: u16,
    arguments: Vec<String>,
    folder: TempDir,
    child: Option<Child>,
}

impl RedisServer {
    /// A server that accepts connections.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// A server with settings of its own, as on its command line.
    ///
    /// # Panics
    ///
    /// Panics if there is no `redis-server` on the `PATH`, or if it does not come up.
    #[must_use]
    pub fn start_with(arguments: &[&str]) -> Self {
        let mut server = Self::stopped();
        server.arguments = arguments.iter().map(ToString::to_string).collect();
        server.restart();
        server
    }

    /// A port on which no server listens yet.
    ///
    /// # Panics
    ///
    /// Panics if there is no free port or no temporary folder.
    #[must_use]
    pub fn stopped() -> Self {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        Self {
            port: free.local_addr().expect("it is bound").port(),
            arguments: Vec::new(),
            folder: tempfile::tempdir().expect("a temporary folder"),
            child: None,
        }
    }

    /// Starts the server, empty, on the same port; stops it first if it runs.
    ///
    /// # Panics
    ///
    /// Panics if there is no `redis-server` on the `PATH`, or if it does not come up.
    pub fn restart(&mut self) {
        self.stop();
        let mut child = Command::new("redis-server")
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .arg("--dir")
            .arg(self.folder.path())
            .args(&self.arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("redis-server is on the PATH; `tests/run` installs it");
        let mut log = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        while log.read_line(&mut line).expect("redis-server writes text") > 0 {
            if line.contains("Ready to accept connections") {
                // Somebody has to read on, or the server stops when the pipe is full.
                std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
                self.child = Some(child);
                return;
            }
        }
        panic!("redis-server did not come up:\n{line}");
    }

    /// Kills the server, as a crash would.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Sends a signal to the server by its name, such as `STOP` or `CONT`.
    ///
    /// # Panics
    ///
    /// Panics if the server does not run, or if there is no `kill`.
    pub fn signal(&self, name: &str) {
        let child = self.child.as_ref().expect("the server runs");
        let sent = Command::new("kill")
            .args(["-s", name, &child.id().to_string()])
            .status();
        assert!(sent.expect("kill").success());
    }

    /// The URL of the server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The port of the server.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// A connection of a bystander: an operator, or another client.
    ///
    /// # Panics
    ///
    /// Panics if the server does not run.
    pub async fn connection(&self) -> redis::aio::MultiplexedConnection {
        let client = redis::Client::open(self.url()).expect("a URL");
        client
            .get_multiplexed_async_connection()
            .await
            .expect("the server runs")
    }

    /// Sends a command, given as words, and returns the answer.
    ///
    /// # Panics
    ///
    /// Panics if the server answers with an error, or with something else.
    pub async fn query<T: redis::FromRedisValue>(&self, command: &str) -> T {
        let mut words = command.split(' ');
        let mut query = redis::cmd(words.next().unwrap_or_default());
        query.arg(words.collect::<Vec<_>>());
        query
            .query_async(&mut self.connection().await)
            .await
            .expect(command)
    }

    /// Every key that has no expiry.
    pub async fn keys_without_expiry(&self) -> Vec<String> {
        let keys: Vec<String> = self.query("KEYS *").await;
        let mut lasting = Vec::new();
        for key in keys {
            if self.query::<i64>(&format!("PTTL {key}")).await == -1 {
                lasting.push(key);
            }
        }
        lasting
    }

    /// How often a command ran since the server started, by `INFO commandstats`.
    pub async fn calls(&self, command: &str) -> u64 {
        let stats: String = self.query("INFO commandstats").await;
        let name = format!("cmdstat_{command}:calls=");
        stats
            .lines()
            .find_map(|line| line.strip_prefix(&name)?.split(',').next()?.parse().ok())
            .unwrap_or(0)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.stop();
    }
}
