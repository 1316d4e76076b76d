use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use url::Url;

use crate::free_port;
use crate::web::{Answer, Fetch, client};

/// An OpenID provider for a single test: Canaille, with a database in memory. It is killed at the
/// end.
///
/// It knows `alice` of the group `limits-admins`, `sam` of `shop-team`, and `nora` of `cooks`. The
/// password of `alice` is `password of alice`.
#[derive(Debug)]
pub struct OpenIdProvider {
    port: u16,
    running: Option<(Child, BufReader<ChildStdout>)>,
    return_to: Vec<String>,
}

impl OpenIdProvider {
    /// The id of the client that the provider knows.
    pub const CLIENT_ID: &str = "rl-console";

    /// The secret of that client.
    pub const CLIENT_SECRET: &str = "secret-of-the-console";

    /// Starts a provider, and waits until it accepts connections.
    ///
    /// # Panics
    ///
    /// Panics if Canaille is not installed, or does not start.
    #[must_use]
    pub fn start() -> Self {
        let mut provider = Self::stopped();
        provider.restart();
        provider
    }

    /// Returns a provider that does not run yet, but whose issuer is known.
    #[must_use]
    pub fn stopped() -> Self {
        Self { port: free_port(), running: None, return_to: Vec::new() }
    }

    /// Starts the provider on the same port, with other keys. If it is running, stops it first.
    ///
    /// # Panics
    ///
    /// Panics as [`start`](Self::start) does.
    pub fn restart(&mut self) {
        self.stop();
        let python = std::env::var_os("RL_CANAILLE").expect("tests/run sets RL_CANAILLE");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/openid_provider.py");
        let mut child = Command::new(python)
            .arg(script)
            .arg(self.port.to_string())
            // The environment of the test run must not affect the provider.
            .env_clear()
            .current_dir(std::env::temp_dir())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the python of Canaille");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        self.running = Some((child, output));
        self.until_ready();
        for address in self.return_to.clone() {
            self.send(&address);
        }
    }

    /// Ends the provider immediately.
    pub fn stop(&mut self) {
        if let Some((mut child, _)) = self.running.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Returns the issuer. It is at another site than a console at 127.0.0.1.
    #[must_use]
    pub fn issuer(&self) -> String {
        format!("http://localhost:{}", self.port)
    }

    /// Allows the client to send people back to this address.
    ///
    /// # Panics
    ///
    /// Panics if the provider has ended.
    pub fn allow(&mut self, address: &str) {
        self.return_to.push(address.to_owned());
        if self.running.is_some() {
            self.send(address);
        }
    }

    fn send(&mut self, address: &str) {
        let (child, _) = self.running.as_mut().expect("it runs");
        writeln!(child.stdin.as_mut().expect("it is piped"), "{address}").expect("it reads");
        self.until_ready();
    }

    fn until_ready(&mut self) {
        let (_, output) = self.running.as_mut().expect("it runs");
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n", "Canaille ended");
    }

    /// Signs in as a person, with the forms that the provider shows at `address`. Returns the
    /// address to which it sends the browser back.
    ///
    /// # Panics
    ///
    /// Panics if the provider shows another page than expected.
    pub async fn sign_in(&self, address: &str, person: &str) -> String {
        self.answer(address, person, "accept").await
    }

    /// Signs in as a person, but gives no consent. Returns the address to which the provider sends
    /// the browser back.
    ///
    /// # Panics
    ///
    /// Panics as [`sign_in`](Self::sign_in) does.
    pub async fn decline(&self, address: &str, person: &str) -> String {
        self.answer(address, person, "deny").await
    }

    async fn answer(&self, address: &str, person: &str, answer: &str) -> String {
        let mut visit = Visit { address: self.url(address), cookies: BTreeMap::new() };
        let login = visit.follow(None).await.expect("a form");
        let password = visit.follow(Some(&[("login", person), form(&login)])).await;
        let (password, secret) = (password.expect("a form"), format!("password of {person}"));
        match visit.follow(Some(&[("password", &secret), form(&password)])).await {
            Ok(consent) => {
                let fields = [("answer", answer), form(&consent)];
                visit.follow(Some(&fields)).await.expect_err("the address of the console")
            }
            // The provider remembers the consent.
            Err(back) => back,
        }
    }

    fn url(&self, address: &str) -> Url {
        let base: Url = self.issuer().parse().expect("a URL");
        base.join(address).expect("a URL")
    }
}

impl Drop for OpenIdProvider {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A client at a page of the provider, with its cookies.
struct Visit {
    address: Url,
    cookies: BTreeMap<String, String>,
}

impl Visit {
    /// Sends a form, or loads the page. Follows redirects, and returns the last page. Returns an
    /// address of another server as an error.
    async fn follow(&mut self, form: Option<&[(&str, &str)]>) -> Result<String, String> {
        let mut answer = self.step(form).await;
        while let Some(next) = answer.header("location") {
            let next = self.address.join(next).expect("a URL");
            if next.origin() != self.address.origin() {
                return Err(next.into());
            }
            self.address = next;
            answer = self.step(None).await;
        }
        assert_eq!(answer.status, 200, "{}: {}", self.address, answer.body);
        Ok(answer.body)
    }

    async fn step(&mut self, form: Option<&[(&str, &str)]>) -> Answer {
        let cookies: Vec<_> =
            self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let request = match form {
            Some(fields) => {
                let mut body = url::form_urlencoded::Serializer::new(String::new());
                let kind = "application/x-www-form-urlencoded";
                let body = body.extend_pairs(fields).finish();
                client().post(self.address.clone()).header("content-type", kind).body(body)
            }
            None => client().get(self.address.clone()),
        };
        let answer = request.header("cookie", cookies.join("; ")).fetch().await;
        for line in answer.lines("set-cookie") {
            let pair = line.split(';').next().unwrap_or_default();
            let (name, value) = pair.split_once('=').unwrap_or_default();
            self.cookies.insert(name.to_owned(), value.to_owned());
        }
        answer
    }
}

/// Returns the field with which a page of the provider protects its forms.
fn form(page: &str) -> (&str, &str) {
    let field = page.split("name=\"csrf_token\" value=\"").nth(1);
    let field = field.unwrap_or_else(|| panic!("no form: {page}"));
    ("csrf_token", field.split('"').next().unwrap_or_default())
}
