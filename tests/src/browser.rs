use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use fantoccini::wd::{Capabilities, WebDriverCompatibleCommand};
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::free_port;
use crate::web::GIVE_UP;

/// A headless Chromium with an empty profile, driven by its `chromedriver`. It ends with the test.
#[derive(Debug)]
pub struct Browser {
    client: Client,
    driver: Child,
    folder: TempDir,
}

impl Browser {
    /// Starts a browser with an empty page.
    ///
    /// # Panics
    ///
    /// Panics if `chromium` or `chromedriver` is not on the `PATH`, or does not start.
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let port = free_port();
        let mut driver = Command::new("chromedriver")
            .arg(format!("--port={port}"))
            .current_dir(folder.path())
            .env("TMPDIR", folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver: tests/run installs it");
        let mut log = BufReader::new(driver.stdout.take().expect("it is piped"));
        let mut line = String::new();
        while !line.contains("started successfully") {
            line.clear();
            assert_ne!(log.read_line(&mut line).expect("a line"), 0, "chromedriver ended");
        }
        // A thread reads the output, because the driver would block on a full pipe.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));

        let profile = folder.path().join("profile");
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--no-proxy-server",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--force-color-profile=srgb",
            "--lang=en-GB",
            &format!("--user-data-dir={}", profile.display()),
        ];
        let mut wanted = Capabilities::new();
        wanted.insert("goog:chromeOptions".to_owned(), json!({ "args": arguments }));
        wanted.insert("goog:loggingPrefs".to_owned(), json!({ "browser": "ALL" }));
        let client = ClientBuilder::new(HttpConnector::new())
            .capabilities(wanted)
            .connect(&format!("http://127.0.0.1:{port}"))
            .await
            .expect("a session");
        Self { client, driver, folder }
    }

    /// Returns the client of the driver.
    #[must_use]
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// Opens the page at `url`.
    ///
    /// # Panics
    ///
    /// Panics if the page does not load.
    pub async fn open(&self, url: &str) {
        self.client.goto(url).await.expect("the page loads");
    }

    /// Clicks the element that `css` selects. Waits until the element exists.
    ///
    /// # Panics
    ///
    /// Panics if the element does not appear.
    pub async fn press(&self, css: &str) {
        let found = self.client.wait().at_most(GIVE_UP).for_element(Locator::Css(css)).await;
        let found = found.unwrap_or_else(|why| panic!("{css}: {why}"));
        found.click().await.unwrap_or_else(|why| panic!("{css}: {why}"));
    }

    /// Replaces the text of the field that `css` selects by `text`.
    ///
    /// # Panics
    ///
    /// Panics if the field does not exist.
    pub async fn fill(&self, css: &str, text: &str) {
        let found = self.client.wait().at_most(GIVE_UP).for_element(Locator::Css(css)).await;
        let found = found.unwrap_or_else(|why| panic!("{css}: {why}"));
        found.clear().await.expect("a field");
        found.send_keys(text).await.expect("a field");
    }

    /// Returns the text of the element that `css` selects.
    ///
    /// # Panics
    ///
    /// Panics if the element does not appear.
    pub async fn text(&self, css: &str) -> String {
        let found = self.client.wait().at_most(GIVE_UP).for_element(Locator::Css(css)).await;
        let found = found.unwrap_or_else(|why| panic!("{css}: {why}"));
        found.text().await.expect("a text")
    }

    /// Waits until the text of the element that `css` selects satisfies the condition. Returns the
    /// text.
    ///
    /// # Panics
    ///
    /// Panics if the condition is not met in time.
    pub async fn until_text(&self, css: &str, is_so: impl Fn(&str) -> bool) -> String {
        let mut looks = tokio::time::interval(std::time::Duration::from_millis(20));
        let began = tokio::time::Instant::now();
        loop {
            looks.tick().await;
            // The page may replace the element between finding and reading it.
            let found = self.client.find(Locator::Css(css)).await;
            let text = match found {
                Ok(found) => found.text().await.unwrap_or_default(),
                Err(_) => String::new(),
            };
            if is_so(&text) {
                return text;
            }
            assert!(began.elapsed() < GIVE_UP, "{css}: {text:?}");
        }
    }

    /// Returns the number of elements that `css` selects.
    ///
    /// # Panics
    ///
    /// Panics if the browser has ended.
    pub async fn count(&self, css: &str) -> usize {
        self.client.find_all(Locator::Css(css)).await.expect("an answer").len()
    }

    /// Returns the result of a script.
    ///
    /// # Panics
    ///
    /// Panics if the script fails.
    pub async fn script(&self, script: &str) -> Value {
        self.client.execute(script, Vec::new()).await.expect("a script")
    }

    /// Sends a command of the Chrome DevTools Protocol, and returns its result.
    ///
    /// # Panics
    ///
    /// Panics if the command fails.
    pub async fn tool(&self, command: &'static str, parameters: Value) -> Value {
        let command = Tool { command, parameters };
        self.client.issue_cmd(command).await.expect("an answer")
    }

    /// Returns the errors in the browser's log: script errors, and violations of the page's content
    /// security policy.
    ///
    /// # Panics
    ///
    /// Panics if the browser has ended.
    pub async fn complaints(&self) -> Vec<String> {
        let entries = self.client.issue_cmd(Log).await.expect("an answer");
        let entries = entries.as_array().cloned().unwrap_or_default();
        let is_grave = |entry: &&Value| {
            // Tests cause responses with error statuses. The browser logs them under `network`, so
            // these entries are ignored.
            entry["source"] != "network"
                && (entry["level"] == "SEVERE" || entry["level"] == "WARNING")
        };
        let grave = entries.iter().filter(is_grave);
        grave.map(|entry| entry["message"].to_string()).collect()
    }

    /// Saves a screenshot of the whole page, with this width, in the light or the dark scheme.
    ///
    /// # Panics
    ///
    /// Panics if the screenshot cannot be taken or stored.
    pub async fn picture(&self, file: &Path, width: u32, is_dark: bool) {
        let scheme = if is_dark { "dark" } else { "light" };
        // Animations are drawn in their final state.
        let features = json!([
            { "name": "prefers-color-scheme", "value": scheme },
            { "name": "prefers-reduced-motion", "value": "reduce" },
        ]);
        self.tool("Emulation.setEmulatedMedia", json!({ "features": features })).await;
        let is_narrow = width < 600;
        let size = |height: u64| json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_narrow });
        self.tool("Emulation.setDeviceMetricsOverride", size(800)).await;
        let height = self.script("return document.documentElement.scrollHeight").await;
        let height = height.as_u64().unwrap_or(800).max(600);
        self.tool("Emulation.setDeviceMetricsOverride", size(height)).await;
        let shot = self.tool("Page.captureScreenshot", json!({ "format": "png" })).await;
        let image = BASE64_STANDARD.decode(shot["data"].as_str().unwrap_or_default());
        fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        fs::write(file, image.expect("a picture")).expect("a file");
        self.tool("Emulation.clearDeviceMetricsOverride", json!({})).await;
    }

    /// Ends the browser.
    ///
    /// # Panics
    ///
    /// Panics if the browser has already ended.
    pub async fn close(self) {
        self.client.clone().close().await.expect("the browser ends");
    }

    /// Returns the processes that use the folder of this browser.
    fn processes(&self) -> Vec<PathBuf> {
        let folder = self.folder.path().to_string_lossy().into_owned();
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let own = all.map(|process| process.path()).filter(|process| {
            let line = fs::read(process.join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&folder)
        });
        own.collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.driver.kill();
        let _ = self.driver.wait();
        // A failed test has not closed the browser. Its processes are killed here.
        for process in self.processes() {
            let id = process.file_name().unwrap_or_default();
            let _ = Command::new("kill").arg("-9").arg(id).stderr(Stdio::null()).status();
        }
    }
}

#[derive(Debug)]
struct Tool {
    command: &'static str,
    parameters: Value,
}

impl WebDriverCompatibleCommand for Tool {
    fn endpoint(
        &self,
        base_url: &url::Url,
        session: Option<&str>,
    ) -> Result<url::Url, url::ParseError> {
        base_url.join(&format!("session/{}/goog/cdp/execute", session.unwrap_or_default()))
    }

    fn method_and_body(&self, _: &url::Url) -> (http::Method, Option<String>) {
        let body = json!({ "cmd": self.command, "params": self.parameters });
        (http::Method::POST, Some(body.to_string()))
    }
}

#[derive(Debug)]
struct Log;

impl WebDriverCompatibleCommand for Log {
    fn endpoint(
        &self,
        base_url: &url::Url,
        session: Option<&str>,
    ) -> Result<url::Url, url::ParseError> {
        base_url.join(&format!("session/{}/se/log", session.unwrap_or_default()))
    }

    fn method_and_body(&self, _: &url::Url) -> (http::Method, Option<String>) {
        (http::Method::POST, Some(json!({ "type": "browser" }).to_string()))
    }
}
