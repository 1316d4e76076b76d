//! The console of the server, as a process of its own.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rl_tests::free_port;
use rl_tests::web::{Answer, Fetch, client};
use tokio::net::TcpStream;

use super::{GIVE_UP, OWNER};

struct Server {
    child: Child,
    place: String,
}

impl Server {
    async fn start(settings: &[(&str, &str)]) -> Self {
        let place = format!("127.0.0.1:{}", free_port());
        let tokens = format!(r#"[{{"name": "olivia", "token": "{OWNER}", "roles": []}}]"#);
        let child = Command::new(env!("CARGO_BIN_EXE_admin-server"))
            // Nothing of the environment of whoever runs the tests.
            .env_clear()
            .env("DATABASE_URL", "sqlite::memory:")
            .env("RL_ADMIN_LISTEN", &place)
            .env("RL_ADMIN_TOKENS", tokens)
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

    async fn get(&self, path: &str) -> Answer {
        client().get(format!("http://{}{path}", self.place)).fetch().await
    }

    async fn log_in(&self, origin: &str, path: &str) -> Answer {
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
async fn on_the_loopback_it_is_there_without_more_ado() {
    let server = Server::start(&[]).await;
    assert_eq!(server.get("/console/login").await.status, 200);
    let answer = server.log_in(&format!("http://{}", server.place), "/console/login").await;
    let cookie = answer.header("set-cookie").unwrap_or_default();
    assert!(cookie.starts_with("rl-console=") && !cookie.contains("Secure"), "{cookie}");
    assert_eq!(server.get("/management/rate-limiting").await.status, 401, "the API is there, too");
}

#[tokio::test]
async fn behind_a_proxy_it_knows_where_browsers_come_from() {
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
