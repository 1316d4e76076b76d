//! A Prometheus server for a single test.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rl_tests::free_port;
use serde_json::Value;
use tempfile::TempDir;

/// A Prometheus process with its own port and folder. It is killed at the end.
pub(super) struct Prometheus {
    child: Child,
    url: String,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts a server that scrapes `target` five times in a second, with the rule files in the
    /// folder `rules`.
    pub(super) fn start(target: &str, rules: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let files: Vec<_> = ["rules.yml", "alerts.yml"]
            .into_iter()
            .map(|name| rules.join(name).display().to_string())
            .filter(|path| Path::new(path).exists())
            .collect();
        let configuration = format!(
            "global: {{scrape_interval: 200ms, evaluation_interval: 200ms}}\n\
             rule_files: {files:?}\n\
             scrape_configs:\n  - job_name: service\n    static_configs: [{{targets: [{target:?}]}}]\n"
        );
        let file = folder.path().join("prometheus.yml");
        fs::write(&file, configuration).unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=error")
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("prometheus can be started: tests/run installs it");
        Self { child, url: format!("http://{address}/api/v1"), _folder: folder }
    }

    /// Returns how many series of `expression` have a value other than NaN.
    pub(super) async fn query(&self, expression: &str) -> usize {
        let form = form_urlencoded::Serializer::new(String::new())
            .append_pair("query", expression)
            .finish();
        let Some(reply) = self.get(&format!("query?{form}")).await else { return 0 };
        assert_eq!(reply["status"], "success", "{expression}: {reply}");
        let series = reply["data"]["result"].as_array().unwrap();
        series.iter().filter(|one| one["value"][1] != "NaN").count()
    }

    /// Returns the names of all series.
    pub(super) async fn names(&self) -> BTreeSet<String> {
        let reply = self.get("label/__name__/values").await.unwrap();
        let names = reply["data"].as_array().unwrap().iter();
        names.map(|name| name.as_str().unwrap().to_owned()).collect()
    }

    /// Returns the reply to a request; `None` until the server is ready.
    async fn get(&self, path: &str) -> Option<Value> {
        let reply = reqwest::get(format!("{}/{path}", self.url)).await.ok()?;
        reply.json().await.ok()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
