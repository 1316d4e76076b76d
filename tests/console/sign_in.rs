//! The login with a provider of OpenID Connect, on a real provider.

use std::sync::Arc;

use rl_admin::console::ConsoleBuilder;
use rl_admin::oidc::Oidc;
use rl_core::time::{Clock, ManualClock, SystemClock, Timestamp};
use rl_tests::web::{Answer, Fetch, eventually};
use rl_tests::{Browser, OpenIdProvider};
use url::Url;

use super::browser::{barriers, picture};
use super::{House, OWNER, Visitor, field_of};
use crate::redis::failure::log::Log;

const ROLES: &str = r#"{
    "limits-admins": { "roles": ["CanReadCallLimits", "CanGetRateLimits", "CanCreateRateLimits"] },
    "shop-team": {
        "roles": ["CanReadCallLimits", "CanGetRateLimits"],
        "applications": ["shop"]
    }
}"#;

/// Returns the settings of a console whose people this provider knows.
pub(super) fn oidc(provider: &OpenIdProvider) -> Oidc {
    let (id, secret) = (OpenIdProvider::CLIENT_ID, OpenIdProvider::CLIENT_SECRET);
    Oidc::new(&provider.issuer(), id, secret, ROLES).unwrap().label("Canaille")
}

impl House {
    /// Creates a service whose people this provider knows.
    async fn with_provider(provider: &mut OpenIdProvider, clock: Arc<dyn Clock>) -> Self {
        let settings = |console: ConsoleBuilder| console.without_tls().oidc(oidc(provider));
        let house = Self::with(None, clock, settings).await;
        provider.allow(&house.site.url("/console/login/oidc/return"));
        house
    }

    /// Begins a login. Returns the address of the provider, and the cookie.
    pub(super) async fn begin_login(&self, next: &str) -> (String, String) {
        let answer = self.site.get(&format!("/console/login/oidc?next={next}")).fetch().await;
        assert_eq!(answer.status, 303, "{}", answer.body);
        (answer.header("location").unwrap().to_owned(), cookie_of(&answer, "rl-oidc"))
    }

    /// Opens the page to which the provider has sent the browser.
    pub(super) async fn come_back(&self, address: &str, cookie: &str) -> Answer {
        let address: Url = address.parse().unwrap();
        let path = format!("{}?{}", address.path(), address.query().unwrap_or_default());
        self.site.get(&path).header("cookie", cookie).fetch().await
    }

    /// Logs in as a person whom the provider knows.
    async fn sign_in(&self, provider: &OpenIdProvider, person: &str) -> Visitor<'_> {
        let (address, cookie) = self.begin_login("/console").await;
        let back = provider.sign_in(&address, person).await;
        let answer = self.come_back(&back, &cookie).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let cookie = cookie_of(&answer, "rl-console");
        let mut visitor = Visitor { house: self, cookie, form_token: String::new() };
        visitor.form_token = field_of(&visitor.get("/console").await.body, "form_token");
        visitor
    }
}

/// Returns the pair of the cookie that a response sets and whose name begins like this.
pub(super) fn cookie_of(answer: &Answer, name: &str) -> String {
    let mut lines = answer.lines("set-cookie").into_iter();
    let line = lines.find(|line| line.starts_with(name));
    let line = line.unwrap_or_else(|| panic!("no cookie {name}: {}", answer.body));
    line.split(';').next().unwrap().to_owned()
}

/// Checks that a login was refused with this status and text, and that no session began.
fn assert_refused(answer: &Answer, status: u16, text: &str) {
    assert_eq!(answer.status, status, "{}", answer.body);
    assert!(answer.body.contains(text), "{}", answer.body);
    let begins = |line: &&str| line.starts_with("rl-console");
    assert!(!answer.lines("set-cookie").iter().any(begins), "{:?}", answer.lines("set-cookie"));
    assert!(!answer.body.contains(OpenIdProvider::CLIENT_SECRET));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_logs_in_on_the_pages_of_the_provider() {
    let mut provider = OpenIdProvider::start();
    let house = House::with_provider(&mut provider, Arc::new(SystemClock)).await;
    house.record("acme-mobile", 600, 20_000).await;
    let browser = Browser::start().await;
    browser.open(&house.site.url("/console/consumer?id=acme-mobile")).await;
    assert_eq!(browser.text("#sign-in").await, "Log in with Canaille");
    for (width, is_dark) in [(1200, false), (1200, true), (375, false)] {
        assert_eq!(barriers(&browser, width, is_dark).await, [""; 0], "{width} {is_dark}");
    }
    browser.picture(&picture("sign-in-light.png"), 1200, false).await;
    browser.press("#sign-in").await;
    browser.fill("#login", "alice").await;
    browser.press("button[type=submit]").await;
    browser.fill("#password", "password of alice").await;
    browser.press("button[type=submit]").await;
    browser.press("#accept").await;
    // The cookie of the session is not sent after a redirect from another site, so this also shows
    // that the page in between works.
    browser.until_text("h1", |text| text == "acme-mobile").await;
    let place = provider.issuer().replace("http://", "");
    assert_eq!(browser.text(".who .name").await, format!("alice@example.com <alice@{place}>"));

    // The roles are those of the group: alice may add limits, and delete none.
    assert_eq!(browser.count(".head .main").await, 1);
    browser.open(&house.site.url("/console/login/oidc/return?state=x&code=y")).await;
    browser.until_text("h1", |text| text == "Not logged in").await;
    browser.open(&house.site.url("/console")).await;
    browser.press(".who button").await;
    browser.until_text("h1", |text| text == "Log in").await;
    assert_eq!(browser.complaints().await, [""; 0]);
    browser.close().await;
}

#[tokio::test]
async fn a_login_grants_the_roles_of_the_group_and_the_history_shows_the_name() {
    let mut provider = OpenIdProvider::start();
    let house = House::with_provider(&mut provider, Arc::new(SystemClock)).await;
    for id in ["shop", "bank"] {
        house.record(id, 60, 1_000).await;
    }
    let sam = house.sign_in(&provider, "sam").await;
    assert!(sam.get("/console/consumer?id=shop").await.body.contains("60/minute"));
    assert_eq!(sam.get("/console/consumer?id=bank").await.status, 404);
    assert_eq!(sam.get("/console/resources").await.status, 404);
    let list = sam.get("/console/consumers").await.body;
    assert!(list.contains(">shop<") && !list.contains("bank"), "{list}");
    let answer = sam.post("/console/block", &[("id", "shop"), ("reason", "x"), ("end", "day")]);
    assert_eq!(answer.await.status, 403);
    let changes = house.log_in(OWNER).await.get("/console/changes").await.body;
    let place = provider.issuer().replace("http://", "");
    assert!(changes.contains(&format!("sam@example.com &lt;sam@{place}&gt;")), "{changes}");

    let (address, cookie) = house.begin_login("").await;
    let back = provider.sign_in(&address, "nora").await;
    let answer = house.come_back(&back, &cookie).await;
    assert_refused(&answer, 403, "none of your groups may use this console");
}

#[tokio::test]
async fn a_login_counts_only_in_the_browser_that_began_it_and_only_once() {
    let mut provider = OpenIdProvider::start();
    let house = House::with_provider(&mut provider, Arc::new(SystemClock)).await;
    let not_begun = "This login was not begun in this browser";
    let (log, _guard) = Log::capture();
    // The page does not show the cause, so operators have to find it in the log.
    let assert_logged = |cause: &str| {
        let lines = log.lines();
        let refused = lines.iter().rfind(|(_, line)| line.contains("sign-in refused"));
        assert!(refused.is_some_and(|(_, line)| line.contains(cause)), "{cause}: {lines:?}");
    };

    // This comes first, because the provider remembers a consent.
    let (address, cookie) = house.begin_login("").await;
    let back = provider.decline(&address, "alice").await;
    assert_refused(&house.come_back(&back, &cookie).await, 403, "Canaille is access_denied");

    let (address, cookie) = house.begin_login("/console/changes").await;
    let back = provider.sign_in(&address, "alice").await;
    let state = address.split("state=").nth(1).unwrap().split('&').next().unwrap();
    let other_state = back.replace(state, "another-state");
    assert_ne!(other_state, back);
    assert_refused(&house.come_back(&other_state, &cookie).await, 400, not_begun);
    assert_refused(&house.come_back(&back, "").await, 400, not_begun);
    // The signature covers the content, and the content is not the signature of another one.
    for changed in [cookie.replacen('=', "=e", 1), cookie.replace('.', "A."), format!("{cookie}A")]
    {
        assert_refused(&house.come_back(&back, &changed).await, 400, not_begun);
    }
    let (_, other_cookie) = house.begin_login("").await;
    assert_refused(&house.come_back(&back, &other_cookie).await, 400, not_begun);
    let other_issuer = back.replace("iss=http", "iss=https");
    assert_ne!(other_issuer, back);
    assert_refused(&house.come_back(&other_issuer, &cookie).await, 403, "configured issuer");

    let answer = house.come_back(&back, &cookie).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.header("refresh"), Some("0; url=/console/changes"));
    let removed = answer.lines("set-cookie").into_iter().find(|line| line.starts_with("rl-oidc"));
    assert!(removed.unwrap().contains("Max-Age=0"), "{removed:?}");
    // The cookie and the code again.
    let answer = house.come_back(&back, &cookie).await;
    assert_refused(&answer, 403, "The answer of Canaille is not valid, or was used before");
    assert_logged("invalid_grant: Invalid 'code' in request.");

    // The provider signs another nonce than that of the cookie.
    let (address, cookie) = house.begin_login("").await;
    let nonce = address.split("nonce=").nth(1).unwrap().split('&').next().unwrap();
    let back = provider.sign_in(&address.replace(nonce, "another-nonce"), "alice").await;
    assert_refused(&house.come_back(&back, &cookie).await, 403, "is not valid");
    assert_logged("nonce");
    // The code was issued for another verifier. This comes last: Canaille keeps the code that it has
    // refused, and its memory backend combines the conditions of a query by "or". So when it looks
    // for the code of the next login by code and client, it finds both codes of the client, and takes
    // the first of an unordered set. If that is the old code, it refuses a valid login too.
    let (address, cookie) = house.begin_login("").await;
    let challenge = address.split("code_challenge=").nth(1).unwrap().split('&').next().unwrap();
    let back = provider.sign_in(&address.replace(challenge, &"A".repeat(43)), "alice").await;
    assert_refused(&house.come_back(&back, &cookie).await, 403, "is not valid");
    assert_logged("invalid_grant: Code challenge failed.");
}

#[tokio::test]
async fn a_login_leads_to_no_page_outside_of_the_console() {
    let mut provider = OpenIdProvider::start();
    let house = House::with_provider(&mut provider, Arc::new(SystemClock)).await;
    let (address, cookie) = house.begin_login("//evil.example/console").await;
    let back = provider.sign_in(&address, "alice").await;
    let answer = house.come_back(&back, &cookie).await;
    assert_eq!(answer.header("refresh"), Some("0; url=/console"), "{}", answer.body);
}

#[tokio::test]
async fn a_login_has_to_end_within_ten_minutes() {
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_900_000_000)));
    let mut provider = OpenIdProvider::start();
    let house = House::with_provider(&mut provider, clock.clone()).await;
    let (address, cookie) = house.begin_login("").await;
    let back = provider.sign_in(&address, "alice").await;
    clock.advance(std::time::Duration::from_secs(600));
    let answer = house.come_back(&back, &cookie).await;
    assert_refused(&answer, 400, "was begun more than ten minutes ago");
}

/// The cookie of a login is sent when the provider sends the browser back, and that of a session is
/// not sent with any link of another site.
#[tokio::test]
async fn cookies_of_a_login_have_the_flags_that_keep_them_safe() {
    let mut provider = OpenIdProvider::start();
    let settings = |console: ConsoleBuilder| {
        console.oidc(oidc(&provider)).origin("https://limits.example.com")
    };
    let house = House::with(None, Arc::new(SystemClock), settings).await;
    provider.allow("https://limits.example.com/console/login/oidc/return");
    let answer = house.site.get("/console/login/oidc").fetch().await;
    let line = answer.header("set-cookie").unwrap();
    let (pair, flags) = line.split_once("; ").unwrap();
    assert_eq!(flags, "Path=/; HttpOnly; SameSite=Lax; Secure; Max-Age=600");
    assert!(pair.starts_with("__Host-rl-oidc="), "{pair}");
    let back = provider.sign_in(answer.header("location").unwrap(), "alice").await;
    let answer = house.come_back(&back, pair).await;
    let lines = answer.lines("set-cookie");
    assert!(
        lines[0].starts_with("__Host-rl-console=") || lines[1].starts_with("__Host-rl-console=")
    );
    assert!(lines.iter().any(|line| line.ends_with("; SameSite=Strict; Secure")), "{lines:?}");
}

#[tokio::test]
async fn tokens_work_while_the_provider_is_down_and_people_when_it_is_back() {
    let clock = Arc::new(ManualClock::at(SystemClock.now()));
    let mut provider = OpenIdProvider::stopped();
    let house = House::with_provider(&mut provider, clock.clone()).await;
    let begin = || house.site.get("/console/login/oidc").fetch();
    let answer = begin().await;
    assert_refused(&answer, 503, "Canaille cannot be reached");
    assert!(answer.body.contains("log in with a token"), "{}", answer.body);
    assert_eq!(house.log_in(OWNER).await.get("/console").await.status, 200);

    provider.restart();
    assert_eq!(begin().await.status, 503, "it is left alone for five seconds");
    // The pause begins when the attempt has failed, which may take five seconds.
    clock.advance(std::time::Duration::from_secs(15));
    eventually(async || begin().await.status == 303).await;
    let alice = house.sign_in(&provider, "alice").await;

    // After a restart, the provider signs with other keys.
    provider.restart();
    clock.advance(std::time::Duration::from_secs(60));
    house.sign_in(&provider, "alice").await;
    provider.stop();
    assert_eq!(alice.get("/console").await.status, 200, "a session does not need the provider");
    let (address, cookie) = house.begin_login("").await;
    let state = address.split("state=").nth(1).unwrap().split('&').next().unwrap();
    let back = house.site.url(&format!("/console/login/oidc/return?code=x&state={state}"));
    assert_refused(&house.come_back(&back, &cookie).await, 503, "Canaille cannot be reached");
}
