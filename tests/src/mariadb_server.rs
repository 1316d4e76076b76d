use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tempfile::TempDir;

use crate::database_server::{DatabaseServer, send};
use crate::free_port;

/// The name of the user in each URL. This user has all rights, and no password.
const USER: &str = "rl";

/// A MariaDB server for a single test, with its own port, socket and folder. It is killed at the
/// end.
#[derive(Debug)]
pub struct MariadbServer {
    user: Option<&'static str>,
    port: u16,
    folder: TempDir,
    tls: Option<[PathBuf; 2]>,
    child: Option<Child>,
}

impl MariadbServer {
    /// Starts an empty server, and waits until it accepts connections.
    ///
    /// # Panics
    ///
    /// Panics if MariaDB is not installed, or does not start.
    #[must_use]
    pub fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        // MariaDB runs as root only with this option.
        let is_root = folder.path().metadata().expect("it is there").uid() == 0;
        let user = is_root.then_some("--user=root");
        let mut server = Self { user, port: free_port(), folder, tls: None, child: None };
        let made = server
            .program("mariadb-install-db")
            .args(["--auth-root-authentication-method=normal", "--skip-test-db"])
            .arg("--skip-name-resolve")
            .output()
            .expect("mariadb-install-db");
        let log = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "mariadb-install-db: {log}");
        server.restart();
        server.run(&format!(
            "CREATE USER {USER}@'127.0.0.1'; \
             GRANT ALL ON *.* TO {USER}@'127.0.0.1' WITH GRANT OPTION; CREATE DATABASE first"
        ));
        server
    }

    /// Starts an empty server that accepts TLS with this certificate and key, both as PEM. Returns
    /// it with the path of the certificate.
    ///
    /// # Panics
    ///
    /// Panics as [`start`](Self::start) does.
    #[must_use]
    pub fn with_tls(certificate: &str, key: &str) -> (Self, PathBuf) {
        let mut server = Self::start();
        let paths = [("certificate.pem", certificate), ("key.pem", key)].map(|(name, pem)| {
            let path = server.folder.path().join(name);
            std::fs::write(&path, pem).expect("a file in the folder");
            path
        });
        let [certificate, _] = paths.clone();
        server.tls = Some(paths);
        server.restart();
        (server, certificate)
    }

    /// Returns the server that concurrent tests share. It is killed when the last of them has
    /// ended.
    ///
    /// # Panics
    ///
    /// Panics as [`start`](Self::start) does.
    #[must_use]
    pub fn shared() -> Arc<Self> {
        static RUNNING: Mutex<Weak<MariadbServer>> = Mutex::new(Weak::new());
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        running.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Self::start());
            *running = Arc::downgrade(&server);
            server
        })
    }

    /// Returns the command of a program that reads and writes the data folder.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        // At its start, a server deletes the temporary tables of all others in the same folder.
        command.current_dir(self.folder.path()).env("TMPDIR", self.folder.path());
        // This option has to be the first one.
        command.arg("--no-defaults").args(self.user);
        command.arg(format!("--datadir={}", self.folder.path().join("data").display()));
        // A killed process loses nothing that it has written, so no write has to reach the disk.
        command.args(["--innodb-flush-method=nosync", "--innodb-flush-log-at-trx-commit=2"]);
        command.args(["--skip-sync-frm", "--innodb-log-file-size=8M"]);
        command
    }

    /// Runs statements as the administrator.
    fn run(&self, statements: &str) {
        let ran = Command::new("mariadb")
            .args(["--no-defaults", "--user=root", "--socket"])
            .arg(self.folder.path().join("socket"))
            .args(["--execute", statements])
            .output()
            .expect("mariadb");
        assert!(ran.status.success(), "{statements}: {}", String::from_utf8_lossy(&ran.stderr));
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
        // As in many databases, text without a collation of its own ignores its case.
        self.run(&format!("CREATE DATABASE {name} COLLATE utf8mb4_general_ci"));
        self.url_of(&name)
    }

    fn url_of(&self, database: &str) -> String {
        format!("mysql://{USER}@127.0.0.1:{}/{database}", self.port)
    }
}

impl DatabaseServer for MariadbServer {
    fn url(&self) -> String {
        self.url_of("first")
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn restart(&mut self) {
        self.stop();
        // On Debian, only the PATH of administrators contains this folder.
        let installed = "/usr/sbin/mariadbd";
        let is_installed = Path::new(installed).exists();
        let mut command = self.program(if is_installed { installed } else { "mariadbd" });
        if let Some([certificate, key]) = &self.tls {
            command.arg("--ssl-cert").arg(certificate).arg("--ssl-key").arg(key);
        }
        let mut child = command
            .args(["--bind-address=127.0.0.1", "--port", &self.port.to_string()])
            .args(["--skip-name-resolve", "--max-connections=500", "--lc-messages=en_US"])
            // Newer versions have this by default.
            .arg("--innodb-snapshot-isolation=ON")
            // The strictness of a change must not depend on the server.
            .args(["--sql-mode=", "--autocommit=OFF", "--transaction-isolation=READ-UNCOMMITTED"])
            .arg("--socket")
            .arg(self.folder.path().join("socket"))
            .arg("--pid-file")
            .arg(self.folder.path().join("pid"))
            .stderr(Stdio::piped())
            .spawn()
            .expect("mariadbd");
        let log = child.stderr.take().expect("it is piped");
        self.child = Some(child);

        let mut log = BufReader::new(log);
        let mut line = String::new();
        let mut all = String::new();
        while log.read_line(&mut line).is_ok_and(|length| length > 0) {
            if line.contains("ready for connections") {
                // A thread reads the output, because the server would block on a full pipe.
                std::thread::spawn(move || io::copy(&mut log, &mut io::sink()));
                return;
            }
            all.push_str(&std::mem::take(&mut line));
        }
        self.stop();
        panic!("mariadbd did not come up: {all}");
    }

    fn hang(&self) {
        send("STOP", &self.process());
    }

    fn go_on(&self) {
        send("CONT", &self.process());
    }
}

impl Drop for MariadbServer {
    fn drop(&mut self) {
        self.stop();
    }
}
