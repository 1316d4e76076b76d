use std::ffi::OsString;
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tempfile::TempDir;

use crate::Result;

/// Returns the program of every Redis server that the measurements start.
pub(crate) fn redis_program() -> OsString {
    std::env::var_os("RL_REDIS_SERVER").unwrap_or_else(|| "redis-server".into())
}

/// A redis-server process for this measurement. It has its own port and folder, writes nothing to
/// disk, and is killed at the end.
#[derive(Debug)]
pub(crate) struct Server {
    port: u16,
    /// The number of databases in use.
    databases: AtomicUsize,
    child: Child,
    // This field is last, so that the folder is removed after the server has stopped.
    _folder: TempDir,
}

impl Server {
    /// Starts a server and waits until it accepts connections.
    pub(crate) fn start() -> Result<Self> {
        Self::start_with(&[])
    }

    /// Starts a server with further arguments.
    pub(super) fn start_with(arguments: &[&str]) -> Result<Self> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let folder = tempfile::tempdir()?;
        let program = redis_program();
        let child = Command::new(&program)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .args(if arguments.is_empty() { &["--databases", "99"][..] } else { arguments })
            .arg("--dir")
            .arg(folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| match error.kind() {
                ErrorKind::NotFound => {
                    format!("there is no {}; `tests/run` installs redis-server", program.display())
                }
                _ => format!("{} could not be started: {error}", program.display()),
            })?;
        let mut server = Self { port, databases: AtomicUsize::new(0), child, _folder: folder };
        let log = server.child.stdout.take().ok_or("its output is piped")?;
        let mut log = BufReader::new(log);
        let mut line = String::new();
        while log.read_line(&mut line)? > 0 {
            if line.contains("Ready to accept connections") {
                // The server would block on a full pipe, so a thread reads the rest.
                std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
                return Ok(server);
            }
        }
        Err(format!("{} did not start:\n{line}", program.display()).into())
    }

    /// Returns the URL of a database.
    pub(crate) fn url(&self, database: usize) -> String {
        format!("redis://127.0.0.1:{}/{database}", self.port)
    }

    /// Returns the URL of a database that is not used yet.
    pub(crate) fn next_url(&self) -> String {
        self.url(self.databases.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) const fn port(&self) -> u16 {
        self.port
    }

    /// Opens a connection for monitoring, separate from those that are measured.
    pub(crate) async fn monitor(&self) -> Result<Monitor> {
        Ok(Monitor(Self::connect(&self.url(0)).await?))
    }

    /// Copies the keys whose names contain `id`. Each of `others` replaces the id in the names of
    /// one copy.
    pub(super) async fn copy(&self, id: &str, others: impl Iterator<Item = String>) -> Result {
        let mut connection = Self::connect(&self.url(0)).await?;
        let keys: Vec<String> =
            redis::cmd("KEYS").arg(format!("*{id}*")).query_async(&mut connection).await?;
        for other in others {
            for key in &keys {
                let mut copy = redis::cmd("COPY");
                copy.arg(key).arg(key.replace(id, &other)).arg("REPLACE");
                copy.query_async::<()>(&mut connection).await?;
            }
        }
        Ok(())
    }

    /// Opens a connection like those of our store, but without a timer for each command.
    pub(crate) async fn connect(url: &str) -> Result<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let client = redis::Client::open(url)?;
        Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) struct Monitor(MultiplexedConnection);

impl Monitor {
    pub(super) async fn forget_commands(&mut self) -> Result {
        Ok(redis::cmd("CONFIG").arg("RESETSTAT").query_async(&mut self.0).await?)
    }

    /// Returns the number of calls of these commands since the statistics were reset, and the µs
    /// that the calls took.
    pub(super) async fn commands(&mut self, commands: &[&str]) -> Result<(f64, f64)> {
        let mut sums = (0.0, 0.0);
        for command in commands {
            // A command that was never called is not in the list.
            let fields = self.info("commandstats", &format!("cmdstat_{command}")).await;
            for field in fields.unwrap_or_default().split(',') {
                match field.split_once('=') {
                    Some(("calls", count)) => sums.0 += count.parse::<f64>()?,
                    Some(("usec", micros)) => sums.1 += micros.parse::<f64>()?,
                    _ => {}
                }
            }
        }
        Ok(sums)
    }

    /// Returns the number of bytes that the server has allocated.
    pub(super) async fn memory(&mut self) -> Result<f64> {
        Ok(self.info("memory", "used_memory").await?.parse()?)
    }

    /// Closes all connections except this one.
    pub(super) async fn kill_connections(&mut self) -> Result {
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg("TYPE").arg("normal").arg("SKIPME").arg("yes");
        Ok(kill.query_async(&mut self.0).await?)
    }

    /// Runs a command. Spaces separate its words.
    pub(crate) async fn ask(&mut self, words: &str) -> Result<String> {
        let mut words = words.split(' ');
        let mut command = redis::cmd(words.next().unwrap_or_default());
        for word in words {
            command.arg(word);
        }
        Ok(command.query_async(&mut self.0).await?)
    }

    /// Returns the processor time of the server since its start.
    pub(crate) async fn processor_time(&mut self) -> Result<Duration> {
        let mut sum = 0.0;
        for kind in ["used_cpu_user", "used_cpu_sys"] {
            sum += self.info("cpu", kind).await?.parse::<f64>()?;
        }
        Ok(Duration::from_secs_f64(sum))
    }

    async fn info(&mut self, section: &str, field: &str) -> Result<String> {
        let info: String = redis::cmd("INFO").arg(section).query_async(&mut self.0).await?;
        let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        Ok(value.ok_or_else(|| format!("INFO has no {field}"))?.to_owned())
    }
}
