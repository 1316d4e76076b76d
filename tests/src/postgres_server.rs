use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tempfile::TempDir;

use crate::database_server::{DatabaseServer, send};
use crate::free_port;

/// A PostgreSQL server for a single test, with its own port and folder. It is killed at the end.
///
/// PostgreSQL refuses to run as root. In that case it runs as the user `postgres`, or else as
/// `nobody`.
#[derive(Debug)]
pub struct PostgresServer {
    programs: PathBuf,
    user: Option<(&'static str, &'static str)>,
    port: u16,
    folder: TempDir,
    child: Option<Child>,
}

impl PostgresServer {
    /// Starts an empty server, and waits until it accepts connections.
    ///
    /// # Panics
    ///
    /// Panics if PostgreSQL is not installed, or does not start.
    #[must_use]
    pub fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let owner = folder.path().metadata().expect("it is there").uid();
        let user = (owner == 0).then(|| {
            let known = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
            let has_own = known.lines().any(|line| line.starts_with("postgres:"));
            if has_own { ("postgres", "postgres") } else { ("nobody", "nogroup") }
        });
        let server = Self { programs: programs(), user, port: free_port(), folder, child: None };
        if let Some((user, _)) = user {
            let given = Command::new("chown").arg(user).arg(server.folder.path()).status();
            assert!(given.expect("chown").success());
        }
        // Text is sorted by the rules of a language instead of by bytes, as in many databases.
        let made = server
            .program("initdb")
            .args(["--auth=trust", "--username=rl", "--no-sync", "--wal-segsize=1"])
            .args(["--encoding=UTF8", "--locale=C", "--locale-provider=icu", "--icu-locale=en-US"])
            .arg("--pgdata")
            .arg(server.data())
            .output()
            .expect("initdb");
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let mut server = server;
        server.restart();
        server
    }

    /// Returns the server that concurrent tests share. It is killed when the last of them has
    /// ended.
    ///
    /// # Panics
    ///
    /// Panics as [`start`](Self::start) does.
    #[must_use]
    pub fn shared() -> Arc<Self> {
        static RUNNING: Mutex<Weak<PostgresServer>> = Mutex::new(Weak::new());
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        running.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Self::start());
            *running = Arc::downgrade(&server);
            server
        })
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn program(&self, name: &str) -> Command {
        let program = self.programs.join(name);
        let mut command = match self.user {
            // `setpriv` changes the user and then becomes the server. Killing its process therefore
            // kills the server.
            Some((user, group)) => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid", user, "--regid", group, "--clear-groups", "--"]);
                command.arg(program);
                command
            }
            None => Command::new(program),
        };
        command.current_dir(self.folder.path());
        command
    }

    fn process(&self) -> String {
        self.child.as_ref().expect("it runs").id().to_string()
    }

    /// Creates an empty database, and returns its URL.
    ///
    /// # Panics
    ///
    /// Panics if the server is not running.
    #[must_use]
    pub fn new_database(&self) -> String {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        let name = format!("test{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let port = self.port.to_string();
        let made = self
            .program("createdb")
            .args(["--host=127.0.0.1", "--username=rl", "--port", &port, &name])
            .status();
        assert!(made.expect("createdb").success());
        self.url_of(&name)
    }

    fn url_of(&self, database: &str) -> String {
        format!("postgres://rl@127.0.0.1:{}/{database}", self.port)
    }
}

impl DatabaseServer for PostgresServer {
    fn url(&self) -> String {
        self.url_of("postgres")
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Killing the server would leave its child processes running. SIGQUIT ends all of them.
            let signaled =
                Command::new("kill").args(["-s", "QUIT", &child.id().to_string()]).status();
            if !signaled.is_ok_and(|status| status.success()) {
                let _ = child.kill();
            }
            let _ = child.wait();
        }
    }

    fn restart(&mut self) {
        self.stop();
        let mut child = self
            .program("postgres")
            .arg("-D")
            .arg(self.data())
            .args(["-p", &self.port.to_string(), "-c", "listen_addresses=127.0.0.1"])
            .args(["-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "lc_messages=C"])
            .stderr(Stdio::piped())
            .spawn()
            .expect("postgres");
        let log = child.stderr.take().expect("it is piped");
        self.child = Some(child);

        let mut log = BufReader::new(log);
        let mut line = String::new();
        let mut all = String::new();
        while log.read_line(&mut line).is_ok_and(|length| length > 0) {
            if line.contains("ready to accept connections") {
                // A thread reads the output, because the server would block on a full pipe.
                std::thread::spawn(move || io::copy(&mut log, &mut io::sink()));
                return;
            }
            all.push_str(&std::mem::take(&mut line));
        }
        self.stop();
        panic!("postgres did not come up: {all}");
    }

    fn hang(&self) {
        let server = self.process();
        // The server is stopped before its child processes. Otherwise it could start further ones
        // after the list of its children was read.
        send("STOP", &server);
        children(&server).iter().for_each(|child| send("STOP", child));
    }

    fn go_on(&self) {
        let server = self.process();
        children(&server).iter().for_each(|child| send("CONT", child));
        send("CONT", &server);
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn children(process: &str) -> Vec<String> {
    let found = Command::new("ps").args(["-o", "pid=", "--ppid", process]).output();
    let found = String::from_utf8(found.expect("ps").stdout).expect("numbers");
    found.split_whitespace().map(ToOwned::to_owned).collect()
}

/// Returns the folder of the newest version of PostgreSQL that Debian has installed. Returns an
/// empty path if there is none, so that the programs are found through the `PATH`.
fn programs() -> PathBuf {
    let installed = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let version = |path: &Path| {
        let name = path.file_name().and_then(OsStr::to_str);
        name.and_then(|name| name.parse::<u32>().ok()).unwrap_or_default()
    };
    installed
        .map(|folder| folder.path())
        .filter(|folder| folder.join("bin/initdb").exists())
        .max_by_key(|folder| version(folder))
        .map(|folder| folder.join("bin"))
        .unwrap_or_default()
}
