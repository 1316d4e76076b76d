use std::error::Error;
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tempfile::TempDir;

/// A redis-server of this measurement alone: a port of its own, a folder of its own, nothing
/// written to disk, killed at the end.
#[derive(Debug)]
pub(super) struct Server {
    port: u16,
    child: Child,
    // Goes after the server.
    _folder: TempDir,
}

impl Server {
    /// A server that accepts connections.
    pub(super) fn start() -> Result<Self, Box<dyn Error>> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let folder = tempfile::tempdir()?;
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .arg("--dir")
            .arg(folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| match error.kind() {
                ErrorKind::NotFound => {
                    "there is no redis-server on the PATH; `tests/run` installs it".to_owned()
                }
                _ => format!("redis-server could not be started: {error}"),
            })?;
        let mut server = Self { port, child, _folder: folder };
        let log = server.child.stdout.take().ok_or("its output is piped")?;
        let mut log = BufReader::new(log);
        let mut line = String::new();
        while log.read_line(&mut line)? > 0 {
            if line.contains("Ready to accept connections") {
                // Somebody has to read on, or the server stops when the pipe is full.
                std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
                return Ok(server);
            }
        }
        Err(format!("redis-server did not come up:\n{line}").into())
    }

    /// The URL of one of its sixteen databases.
    pub(super) fn url(&self, database: usize) -> String {
        format!("redis://127.0.0.1:{}/{database}", self.port)
    }

    /// A connection like the one that our store makes: without a timer for each command.
    pub(super) async fn connect(
        &self,
        database: usize,
    ) -> Result<MultiplexedConnection, Box<dyn Error>> {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let client = redis::Client::open(self.url(database))?;
        Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
