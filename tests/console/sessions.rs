//! Sessions that several instances of the console share, on real databases.

use std::sync::Arc;
use std::time::Duration;

use rl_admin::console::ConsoleBuilder;
use rl_core::time::{Clock, ManualClock, SystemClock};
use rl_records::Records;
use rl_tests::web::{Answer, Fetch, eventually};
use rl_tests::{DatabaseServer, OpenIdProvider, on_every_server};

use super::server::Server;
use super::sign_in::{cookie_of, oidc};
use super::{House, OWNER, VIEWER};

/// Creates an instance on a database.
async fn instance(url: &str, clock: &Arc<ManualClock>) -> House {
    let records = Records::connect(url).await.unwrap();
    House::on(records, None, clock.clone(), ConsoleBuilder::without_tls).await
}

/// Logs in at an instance. Returns the id of the session.
async fn log_in(house: &House, token: &str) -> String {
    let answer = house.post_form("/console/login", None, &[("token", token)]).await;
    assert_eq!(answer.status, 303, "{}", answer.body);
    id_of(&answer)
}

fn id_of(answer: &Answer) -> String {
    cookie_of(answer, "rl-console").split_once('=').unwrap().1.to_owned()
}

/// Returns the cookie with which a browser sends the id of a session to an instance. Behind a load
/// balancer, all instances have the same cookie.
fn cookie(house: &House, id: &str) -> String {
    let address = house.site.url("");
    let port = address.trim_end_matches('/').rsplit(':').next().unwrap();
    format!("rl-console-{port}={id}")
}

/// Returns the status of the first page for a browser with this session: 200, or 303 to the login.
async fn page(house: &House, id: &str) -> u16 {
    house.site.get("/console").header("cookie", cookie(house, id)).fetch().await.status
}

async fn log_out(house: &House, id: &str) {
    let own = cookie(house, id);
    let page = house.site.get("/console").header("cookie", &own).fetch().await;
    let token = super::field_of(&page.body, "form_token");
    let answer = house.post_form("/console/logout", Some(&own), &[("form_token", &token)]).await;
    assert_eq!(answer.status, 303, "{}", answer.body);
}

async fn share(url: &str) {
    let clock = Arc::new(ManualClock::at(SystemClock.now()));
    let [one, two] = [instance(url, &clock).await, instance(url, &clock).await];
    let (olivia, victor) = (log_in(&one, OWNER).await, log_in(&two, VIEWER).await);
    for house in [&one, &two] {
        assert_eq!((page(house, &olivia).await, page(house, &victor).await), (200, 200));
        assert_eq!(page(house, &"0".repeat(64)).await, 303);
    }
    log_out(&one, &olivia).await;
    assert_eq!(page(&one, &olivia).await, 303);
    clock.advance(Duration::from_secs(5));
    assert_eq!((page(&two, &olivia).await, page(&two, &victor).await), (303, 200));
    // Clicks at one instance keep the session alive at the other.
    for _ in 0..3 {
        clock.advance(Duration::from_secs(25 * 60));
        assert_eq!(page(&one, &victor).await, 200);
    }
    assert_eq!(page(&two, &victor).await, 200);
    let restarted = instance(url, &clock).await;
    assert_eq!((page(&restarted, &olivia).await, page(&restarted, &victor).await), (303, 200));
    clock.advance(Duration::from_secs(30 * 60));
    assert_eq!((page(&one, &victor).await, page(&restarted, &victor).await), (303, 303));
}

#[tokio::test]
async fn instances_share_sessions_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    share(&format!("sqlite://{}", folder.path().join("limits.db").display())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_share_sessions_on_every_server_and_keep_them_while_it_is_down() {
    on_every_server(async |mut server: Box<dyn DatabaseServer>| {
        share(&server.url()).await;
        let clock = Arc::new(ManualClock::at(SystemClock.now()));
        let url = server.url();
        let [one, two] = [instance(&url, &clock).await, instance(&url, &clock).await];
        let (seen, ended) = (log_in(&one, OWNER).await, log_in(&one, OWNER).await);
        assert_eq!(page(&two, &ended).await, 200);
        server.stop();
        clock.advance(Duration::from_secs(6));
        assert_eq!(page(&one, &seen).await, 200, "this instance has seen the session");
        assert_eq!(page(&two, &seen).await, 303, "and this one has not");
        let new = log_in(&one, VIEWER).await;
        assert_eq!(page(&one, &new).await, 200);
        log_out(&one, &ended).await;
        assert_eq!(page(&one, &ended).await, 303);
        server.restart();
        // The first page at the first instance stores the new session, and a task the logout.
        eventually(async || {
            clock.advance(Duration::from_secs(6));
            assert_eq!(page(&one, &new).await, 200);
            page(&two, &new).await == 200 && page(&two, &ended).await == 303
        })
        .await;
        assert_eq!((page(&one, &seen).await, page(&two, &seen).await), (200, 200));
        assert_eq!(page(&one, &ended).await, 303);
    })
    .await;
}

#[tokio::test]
async fn a_login_at_the_provider_may_end_at_another_instance() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("limits.db").display());
    let mut provider = OpenIdProvider::start();
    let origin = "http://limits.localhost";
    provider.allow(&format!("{origin}/console/login/oidc/return"));
    let instance = async || {
        let settings =
            |console: ConsoleBuilder| console.without_tls().origin(origin).oidc(oidc(&provider));
        let records = Records::connect(&url).await.unwrap();
        House::on(records, None, Arc::new(SystemClock), settings).await
    };
    let [one, two] = [instance().await, instance().await];
    let (address, begun) = one.begin_login("").await;
    let back = provider.sign_in(&address, "alice").await;
    let (_, begun) = begun.split_once('=').unwrap();
    let begun = cookie(&two, begun).replace("rl-console", "rl-oidc");
    let id = id_of(&two.come_back(&back, &begun).await);
    assert_eq!((page(&two, &id).await, page(&one, &id).await), (200, 200));
    // A console without this provider does not accept its people.
    let clock = Arc::new(ManualClock::at(SystemClock.now()));
    let without = self::instance(&url, &clock).await;
    assert_eq!(page(&without, &id).await, 303);
    assert_eq!(page(&instance().await, &id).await, 303, "and that ends the session");
}

#[tokio::test]
async fn a_restart_keeps_the_sessions_except_those_of_tokens_that_were_removed_or_changed() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("limits.db").display());
    let roles = r#"["CanReadCallLimits", "CanGetRateLimits"]"#;
    let tokens = |token: &str, roles: &str| {
        format!(
            r#"[{{"name": "olivia", "token": "{token}", "roles": {roles}}},
            {{"name": "victor", "token": "{VIEWER}", "roles": []}}]"#
        )
    };
    let start = async |tokens: &str| {
        Server::start(&[("DATABASE_URL", &url), ("RL_ADMIN_TOKENS", tokens)]).await
    };
    for changed in [
        // A new token of the same actor ends the sessions that the old token began.
        tokens("another token of olivia", roles),
        tokens(OWNER, r#"["CanReadCallLimits", "CanGetRateLimits", "CanResetCallCounters"]"#),
        tokens(OWNER, &format!(r#"{roles}, "applications": ["shop"]"#)),
        format!(r#"[{{"name": "victor", "token": "{VIEWER}", "roles": []}}]"#),
    ] {
        let same = tokens(OWNER, roles);
        let server = start(&same).await;
        let answer = server.log_in(&format!("http://{}", server.place), "/console/login").await;
        let id = id_of(&answer);
        drop(server);
        for (tokens, expected) in [(&same, 200), (&changed, 303), (&same, 303)] {
            let server = start(tokens).await;
            assert_eq!(server.page(&id).await, expected, "{tokens}");
        }
    }
}

#[tokio::test]
async fn the_program_reads_a_settings_file_and_variables_override_it() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = format!(
        r#"[{{"name": "olivia", "token": "{OWNER}", "roles": ["CanReadCallLimits", "CanGetRateLimits"]}}]"#
    );
    std::fs::write(folder.path().join("tokens.json"), tokens).unwrap();
    let file = folder.path().join("admin.yaml");
    let text = "server:\n  records: { database: 'sqlite::memory:' }\n  \
                admin: { listen: 127.0.0.1:1, tokens: file:tokens.json, console: /limits }\n";
    std::fs::write(&file, text).unwrap();
    // The address of the environment overrides that of the file.
    let server = Server::start_with(&[file.to_str().unwrap()], &[]).await;
    let answer = server.log_in(&format!("http://{}", server.place), "/limits/login").await;
    assert_eq!(answer.header("location"), Some("/limits"));

    std::fs::write(&file, text.replace("console: /limits", "console: limits")).unwrap();
    let error = Server::error_with(&[file.to_str().unwrap()]);
    let place = format!("{}: server: admin: console: expected off, or", file.display());
    assert!(error.contains(&place), "{error}");
}
