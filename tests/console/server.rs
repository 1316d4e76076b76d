//! The console of the server `rl-admin`, which runs as a separate process.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rl_tests::free_port;
use rl_tests::web::{Answer, Fetch, client};
use tokio::net::TcpStream;

use super::{GIVE_UP, OWNER};

pub(super) struct Server {
    child: Child,
    pub(super) place: String,
}

impl Server {
    pub(super) async fn start(settings: &[(&str, &str)]) -> Self {
        let tokens = format!(
            r#"[{{"name": "olivia", "token": "{OWNER}",
            "roles": ["CanReadCallLimits", "CanGetRateLimits"]}}]"#
        );
        let defaults = [("DATABASE_URL", "sqlite::memory:"), ("RL_ADMIN_TOKENS", &tokens)];
        Self::start_with(&[], &[&defaults, settings].concat()).await
    }

    /// Starts a server with these arguments and variables.
    pub(super) async fn start_with(arguments: &[&str], settings: &[(&str, &str)]) -> Self {
        let place = format!("127.0.0.1:{}", free_port());
        let child = Command::new(env!("CARGO_BIN_EXE_admin-server"))
            .args(arguments)
            // The environment of the test run must not affect the server.
            .env_clear()
            .env("RL_ADMIN_LISTEN", &place)
            .envs(settings.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self { child, place };
        let began = tokio::time::Instant::now();
        let mut looks = tokio::time::interval(Duration::from_millis(10));
        while TcpStream::connect(&server.place).await.is_err() {
            looks.tick().await;
            assert!(began.elapsed() < GIVE_UP, "the server does not come up");
        }
        server
    }

    /// Returns the output of a server that cannot start with these arguments.
    pub(super) fn error_with(arguments: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_admin-server"));
        let output = command.args(arguments).env_clear().output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    }

    /// Returns the status of the first page for a browser with the session of this id.
    pub(super) async fn page(&self, id: &str) -> u16 {
        let port = self.place.rsplit(':').next().unwrap_or_default();
        let request = client().get(format!("http://{}/console", self.place));
        request.header("cookie", format!("rl-console-{port}={id}")).fetch().await.status
    }

    /// Sends a signal to the process.
    pub(super) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    async fn get(&self, path: &str) -> Answer {
        client().get(format!("http://{}{path}", self.place)).fetch().await
    }

    pub(super) async fn log_in(&self, origin: &str, path: &str) -> Answer {
        let request = client().post(format!("http://{}{path}", self.place));
        let form = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("token", OWNER)
            .finish();
        request.header("origin", origin).body(form).fetch().await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn on_the_loopback_the_console_needs_no_setting() {
    let server = Server::start(&[]).await;
    assert_eq!(server.get("/console/login").await.status, 200);
    let answer = server.log_in(&format!("http://{}", server.place), "/console/login").await;
    let cookie = answer.header("set-cookie").unwrap_or_default();
    assert!(cookie.starts_with("rl-console-") && !cookie.contains("Secure"), "{cookie}");
    assert_eq!(server.get("/management/rate-limiting").await.status, 401, "the API is there, too");
}

/// The login comes from an HTTPS page, but the console is not configured for TLS, so the browser
/// could send its cookie without TLS. The console must refuse such a login, except on a local host.
#[tokio::test]
async fn a_login_under_another_host_needs_a_configured_origin() {
    let server = Server::start(&[]).await;
    let log_in = async |host: &str| {
        let request = client().post(format!("http://{}/console/login", server.place));
        let request = request.header("host", host).header("origin", format!("https://{host}"));
        request.body(format!("token={OWNER}")).fetch().await
    };
    for host in
        ["limits.example.com", "localhost.example.com", "10.0.0.1", "127.0.0.1.example.com:443"]
    {
        let answer = log_in(host).await;
        assert_eq!((answer.status, answer.header("set-cookie")), (403, None), "{host}");
        assert!(answer.body.contains("RL_ADMIN_ORIGIN"), "{host}: {}", answer.body);
    }
    for host in ["localhost", "LOCALHOST:8090", "127.0.0.1", "127.1.2.3:80", "[::1]:8090"] {
        let answer = log_in(host).await;
        assert_eq!(answer.status, 303, "{host}: {}", answer.body);
    }
}

#[tokio::test]
async fn forwarded_addresses_of_configured_proxies_are_trusted() {
    let server = Server::start(&[("RL_ADMIN_TRUSTED_PROXIES", "127.0.0.1")]).await;
    let log_in = async |from: &str, token: &str| {
        let request = client().post(format!("http://{}/console/login", server.place));
        let request = request.header("origin", format!("http://{}", server.place));
        let request = request.header("x-forwarded-for", from).body(format!("token={token}"));
        request.fetch().await.status
    };
    for _ in 0..25 {
        log_in("198.51.100.7", "wrong-token-of-a-guesser").await;
    }
    assert_eq!(log_in("198.51.100.7", OWNER).await, 429);
    assert_eq!(log_in("198.51.100.8", OWNER).await, 303);
}

#[tokio::test]
async fn behind_a_proxy_the_configured_origin_is_required_of_forms() {
    let origin = "https://limits.example.com";
    let settings = [
        ("RL_ADMIN_ORIGIN", origin),
        ("RL_ADMIN_CONSOLE", "/limits/pages"),
        ("RL_ADMIN_PREFIX", "/obp/v6.0.0"),
    ];
    let server = Server::start(&settings).await;
    let answer = server.log_in(origin, "/limits/pages/login").await;
    let cookie = answer.header("set-cookie").unwrap_or_default();
    assert!(cookie.starts_with("__Host-rl-console=") && cookie.contains("; Secure"), "{cookie}");
    assert_eq!(answer.header("location"), Some("/limits/pages"));
    let own = format!("http://{}", server.place);
    assert_eq!(server.log_in(&own, "/limits/pages/login").await.status, 403);
    assert_eq!(server.get("/console/login").await.status, 404);
}

#[tokio::test]
async fn it_can_be_left_out() {
    let server = Server::start(&[("RL_ADMIN_CONSOLE", "off")]).await;
    assert_eq!(server.get("/console/login").await.status, 401, "a path of the API like any other");
    assert_eq!(
        server.log_in(&format!("http://{}", server.place), "/console/login").await.status,
        401
    );
}
