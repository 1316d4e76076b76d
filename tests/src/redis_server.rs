use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::future::pending;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rl_core::store::{DecideRequest, Mode, Namespace, Part, Store};
use rl_core::time::Timestamp;
use rl_core::{Cost, Limit, Policy, RedisStore, RedisStoreBuilder, Subject};
use tempfile::TempDir;
use tokio::time::timeout;

use crate::free_port;
use crate::web::eventually;

/// Returns the program of every Redis server that the tests start. Sentinels and members of
/// clusters run it too.
#[must_use]
pub fn redis_program() -> OsString {
    std::env::var_os("RL_REDIS_SERVER").unwrap_or_else(|| "redis-server".into())
}

/// A redis-server process for a single test, with its own port and folder. It is killed at the end.
#[derive(Debug)]
pub struct RedisServer {
    port: u16,
    arguments: Vec<String>,
    // The initial configuration, if the server is a sentinel. The sentinel rewrites its file while
    // it runs.
    sentinel: Option<String>,
    folder: TempDir,
    child: Option<Child>,
}

impl RedisServer {
    /// Starts a server, and waits until it accepts connections.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server, and waits until it accepts connections.
    ///
    /// # Errors
    ///
    /// Returns an error if `redis-server` is not on the `PATH`, or does not start.
    pub fn try_start() -> io::Result<Self> {
        let mut server = Self::stopped();
        server.try_restart()?;
        Ok(server)
    }

    /// Starts a server with these command-line arguments.
    ///
    /// # Panics
    ///
    /// Panics if `redis-server` is not on the `PATH`, or does not start.
    #[must_use]
    pub fn start_with(arguments: &[&str]) -> Self {
        let mut server = Self::stopped_with(arguments);
        server.restart();
        server
    }

    /// Reserves a port for a server that is not started yet.
    #[must_use]
    pub fn stopped() -> Self {
        Self::stopped_with(&[])
    }

    /// Reserves a port for a server that is started later, with these command-line arguments.
    ///
    /// # Panics
    ///
    /// Panics if there is no free port or no temporary folder.
    #[must_use]
    pub fn stopped_with(arguments: &[&str]) -> Self {
        Self::stopped_on(free_port(), arguments)
    }

    /// Reserves a folder for a server that is started later on this port, with these command-line
    /// arguments.
    ///
    /// # Panics
    ///
    /// Panics if there is no temporary folder.
    #[must_use]
    pub fn stopped_on(port: u16, arguments: &[&str]) -> Self {
        Self {
            port,
            arguments: arguments.iter().map(ToString::to_string).collect(),
            sentinel: None,
            folder: tempfile::tempdir().expect("a temporary folder"),
            child: None,
        }
    }

    /// Starts a sentinel. Its port and address are added to `configuration`.
    ///
    /// # Panics
    ///
    /// Panics if `redis-server` is not on the `PATH`, or does not start.
    #[must_use]
    pub fn start_sentinel(configuration: &str) -> Self {
        let mut server = Self::stopped();
        server.sentinel = Some(configuration.to_owned());
        server.restart();
        server
    }

    /// Starts the server on the same port without data. If it is running, stops it first.
    ///
    /// # Panics
    ///
    /// Panics if `redis-server` is not on the `PATH`, or does not start.
    pub fn restart(&mut self) {
        self.try_restart().expect("a redis-server");
    }

    fn try_restart(&mut self) -> io::Result<()> {
        self.stop();
        let program = redis_program();
        let mut command = Command::new(&program);
        if let Some(configuration) = &self.sentinel {
            let file = self.folder.path().join("sentinel.conf");
            fs::write(&file, configuration)?;
            command.arg(file).arg("--sentinel");
        } else {
            command.args(["--save", "", "--appendonly", "no"]);
        }
        let mut child = command
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
            .args(["--daemonize", "no", "--dir"])
            .arg(self.folder.path())
            .args(&self.arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(|why| io::Error::new(why.kind(), format!("{}: {why}", program.display())))?;
        let log = child.stdout.take().expect("it is piped");
        self.child = Some(child);

        let mut log = BufReader::new(log);
        let mut line = String::new();
        let mut last = String::new();
        while log.read_line(&mut line)? > 0 {
            if line.contains("Ready to accept connections") || line.contains("Sentinel ID is") {
                // A thread reads the output, because the server would block on a full pipe.
                std::thread::spawn(move || io::copy(&mut log, &mut io::sink()));
                return Ok(());
            }
            last = std::mem::take(&mut line);
        }
        self.stop();
        let why = format!("{} did not come up: {}", program.display(), last.trim_end());
        Err(io::Error::other(why))
    }

    /// Kills the server as in a crash.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Sends a signal to the server, given by its name, such as `STOP` or `CONT`.
    ///
    /// # Panics
    ///
    /// Panics if the server is not running, or if there is no program `kill`.
    pub fn signal(&self, name: &str) {
        let child = self.child.as_ref().expect("the server runs");
        let sent = Command::new("kill").args(["-s", name, &child.id().to_string()]).status();
        assert!(sent.expect("kill").success());
    }

    /// Returns the URL of the server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Returns the builder of a store on the server, which waits up to a minute for a connection
    /// and for each reply. On a busy machine, both may take longer than the default waits. Under a
    /// clock of the test, pages of logs are small.
    pub fn patient_store(&self) -> RedisStoreBuilder {
        let patience = Duration::from_secs(60);
        let store = RedisStore::builder(&self.url()).connection_wait(patience);
        store.connect_timeout(patience).response_timeout(patience).small_log_pages()
    }

    /// Returns the URL of the server with a user and a password.
    #[must_use]
    pub fn url_of(&self, user: &str, password: &str) -> String {
        format!("redis://{user}:{password}@127.0.0.1:{}/", self.port)
    }

    /// Returns the folder in which the server works.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the port of the server.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Returns the number of bytes that clients have sent and the server has not read yet.
    ///
    /// # Panics
    ///
    /// Panics if the system is not Linux.
    #[must_use]
    pub fn unread_bytes(&self) -> u64 {
        let sockets = fs::read_to_string("/proc/net/tcp").expect("the sockets of Linux");
        let port = format!(":{:04X}", self.port);
        // The fields of a line: number, local address, remote address, state, queues, and others.
        let unread = |line: &str| {
            let mut fields = line.split_whitespace().skip(1);
            let is_ours = fields.next()?.ends_with(&port);
            let is_connected = fields.nth(1)? == "01";
            let (_, received) = fields.next()?.split_once(':')?;
            (is_ours && is_connected).then(|| u64::from_str_radix(received, 16).ok())?
        };
        sockets.lines().filter_map(unread).sum()
    }

    /// Opens a connection for an operator or another client.
    ///
    /// # Panics
    ///
    /// Panics if the server is not running.
    pub async fn connection(&self) -> redis::aio::MultiplexedConnection {
        connect(&self.url()).await
    }
    /// Sends a command, given as words, and returns the reply.
    ///
    /// # Panics
    ///
    /// Panics if the reply is an error, or has another type.
    pub async fn query<T: redis::FromRedisValue>(&self, command: &str) -> T {
        Bystander::new(self).await.query(command).await
    }

    /// Returns the program that runs, as the server itself reports it.
    pub async fn engine(&self) -> Engine {
        Bystander::new(self).await.engine().await
    }

    /// Returns every key that has no expiry.
    pub async fn keys_without_expiry(&self) -> Vec<String> {
        Bystander::new(self).await.keys_without_expiry().await
    }

    /// Returns how often a command ran since the server started, from `INFO commandstats`.
    pub async fn calls(&self, command: &str) -> u64 {
        let calls = Bystander::new(self).await.calls().await;
        calls.get(command).copied().unwrap_or(0)
    }

    /// Returns how often scripts were loaded since the server started. Redis before 7.0 does not
    /// count subcommands, so there the number includes other calls of `SCRIPT`.
    pub async fn script_loads(&self) -> u64 {
        let calls = Bystander::new(self).await.calls().await;
        calls.get("script|load").or(calls.get("script")).copied().unwrap_or(0)
    }

    /// Returns how often a command failed since the server started, from `INFO commandstats`.
    ///
    /// # Panics
    ///
    /// Panics if the server does not count failures, as Redis before 6.2.
    pub async fn failed_calls(&self, command: &str) -> u64 {
        let stats: String = self.query("INFO commandstats").await;
        let prefix = format!("cmdstat_{command}:");
        let line = stats.lines().find(|line| line.starts_with(&prefix));
        let count = |line: &str| {
            let (_, rest) =
                line.split_once("failed_calls=").expect("it is counted since Redis 6.2");
            rest.trim().parse().expect("a number")
        };
        line.map_or(0, count)
    }
}

/// Returns a store that has opened a connection, which later decisions share.
///
/// A decision waits only briefly for a connection. On a busy machine, a first decision with the
/// default wait would therefore be made without the store.
///
/// # Panics
///
/// Panics if the server does not decide within a minute.
pub async fn connected(store: RedisStoreBuilder) -> RedisStore {
    let store = store.connect().await.expect("the settings are valid");
    let policy = Policy::new([Limit::per_day(1)]).expect("a policy");
    let (namespace, subject) = (Namespace::default(), Subject::global());
    let parts = [Part::new(&subject, &policy, Cost::ONE)];
    let request = || DecideRequest::new(&namespace, &parts, Mode::Peek);
    eventually(|| async { store.decide(request()).await.is_ok() }).await;
    store
}

/// Opens a connection with a long response time-out.
async fn connect(url: &str) -> redis::aio::MultiplexedConnection {
    let client = redis::Client::open(url).expect("a URL");
    // The default time-out of half a second may be too short on a busy machine.
    let patient =
        redis::AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    client.get_multiplexed_async_connection_with_config(&patient).await.expect("the server runs")
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A separate connection, for an operator or another client.
#[derive(Clone, Debug)]
pub struct Bystander(redis::aio::MultiplexedConnection);

impl Bystander {
    /// Connects to the server.
    ///
    /// # Panics
    ///
    /// Panics if the server is not running.
    pub async fn new(server: &RedisServer) -> Self {
        Self(server.connection().await)
    }

    /// Connects to the server at a URL.
    ///
    /// # Panics
    ///
    /// Panics if the server is not running.
    pub async fn at(url: &str) -> Self {
        Self(connect(url).await)
    }

    /// Sends a command, given as words, and returns the reply.
    ///
    /// # Panics
    ///
    /// Panics if the reply is an error, or has another type.
    pub async fn query<T: redis::FromRedisValue>(&mut self, command: &str) -> T {
        let mut words = command.split(' ');
        let mut query = redis::cmd(words.next().unwrap_or_default());
        query.arg(words.collect::<Vec<_>>());
        self.send(&query).await
    }

    /// Sends a command, and returns the reply.
    ///
    /// # Panics
    ///
    /// Panics if the reply is an error, or has another type.
    pub async fn send<T: redis::FromRedisValue>(&mut self, command: &redis::Cmd) -> T {
        command.query_async(&mut self.0).await.expect("the server answers")
    }

    /// Returns the time on the server's clock.
    pub async fn now(&mut self) -> Timestamp {
        let (seconds, micros): (u64, u64) = self.query("TIME").await;
        Timestamp::from_secs(seconds).plus_micros(micros)
    }

    /// Waits until the server's clock shows `time`.
    pub async fn wait_until(&mut self, time: Timestamp) {
        let left = Duration::from_micros(time.micros_since(self.now().await));
        // A timer is late by up to some milliseconds, so it waits for all but the last ones.
        let _ = timeout(left.saturating_sub(Duration::from_millis(3)), pending::<()>()).await;
        while self.now().await < time {
            tokio::task::yield_now().await;
        }
    }

    /// Returns every key that has no expiry.
    pub async fn keys_without_expiry(&mut self) -> Vec<String> {
        let keys: Vec<String> = self.query("KEYS *").await;
        let mut lasting = Vec::new();
        for key in keys {
            if self.send::<i64>(redis::cmd("PTTL").arg(&key)).await == -1 {
                lasting.push(key);
            }
        }
        lasting
    }

    /// Returns every key with its stored value, and with its expiry in milliseconds since the
    /// epoch.
    pub async fn contents(&mut self) -> BTreeMap<String, (Vec<u8>, i64)> {
        let keys: Vec<String> = self.query("KEYS *").await;
        let mut contents = BTreeMap::new();
        for key in keys {
            let value = self.send(redis::cmd("DUMP").arg(&key)).await;
            let expiry = self.expiry_of(&key).await;
            contents.insert(key, (value, expiry));
        }
        contents
    }

    /// Returns the expiry of a key in milliseconds since the epoch, or a negative number if it has
    /// none.
    pub async fn expiry_of(&mut self, key: &str) -> i64 {
        // PEXPIRETIME exists since Redis 7.0. In older versions, time may pass during a script.
        let script = "local function millis()
              local time = redis.call('TIME')
              return time[1] * 1000 + math.floor(time[2] / 1000)
            end
            local before, ttl
            repeat
              before, ttl = millis(), redis.call('PTTL', KEYS[1])
            until before == millis()
            return ttl < 0 and ttl or before + ttl";
        self.send(redis::cmd("EVAL").arg(script).arg(1).arg(key)).await
    }

    /// Returns the program that runs, as the server itself reports it.
    pub async fn engine(&mut self) -> Engine {
        let info: String = self.query("INFO server").await;
        Engine::of_info(&info)
    }

    /// Returns how often each command ran since the server started, from `INFO commandstats`.
    pub async fn calls(&mut self) -> BTreeMap<String, u64> {
        let stats: String = self.query("INFO commandstats").await;
        let calls = |line: &str| {
            let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let calls = rest.split(',').next()?.parse().ok()?;
            Some((command.to_owned(), calls))
        };
        stats.lines().filter_map(calls).collect()
    }
}

/// The program that serves Redis, such as `Redis 7.0.15`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engine {
    /// The name, such as `Redis` or `Valkey`.
    pub name: String,
    /// The version, which differs from the version of Redis that Valkey claims for old clients.
    pub version: String,
}

impl Engine {
    /// Reads the engine from the reply of `INFO server`.
    ///
    /// # Panics
    ///
    /// Panics if the reply contains no version.
    fn of_info(info: &str) -> Self {
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
        let (name, version) = field("valkey_version:")
            .map(|version| ("Valkey", version))
            .or_else(|| field("redis_version:").map(|version| ("Redis", version)))
            .expect("INFO has a version");
        Self { name: name.to_owned(), version: version.to_owned() }
    }

    /// Returns the engine that `RL_REDIS_SERVER` names, from the first line of its `--version`.
    ///
    /// # Panics
    ///
    /// Panics if the program does not run, or does not print its name and version.
    #[must_use]
    pub fn of_program() -> Self {
        let output = Command::new(redis_program()).arg("--version").output();
        let text = String::from_utf8(output.expect("the program runs").stdout).expect("a text");
        // "Redis server v=7.0.15 sha=00000000:0 …"
        let mut words = text.split_whitespace();
        let name = words.next().expect("a name").to_owned();
        let version = words.find_map(|word| word.strip_prefix("v=")).expect("a version").to_owned();
        Self { name, version }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}
