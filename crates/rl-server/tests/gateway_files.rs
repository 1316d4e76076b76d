//! The log and the signals of a process with files of gateways. Both belong to the whole process,
//! so this test has one of its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot unwrap has failed")]

use std::fs;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rl_server::domains::{GatewayFiles, GatewayFilesStatus, GatewaySource};

/// The lines of the log.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    /// Returns the lines that contain a text.
    fn with(&self, text: &str) -> Vec<String> {
        let bytes = self.0.lock().unwrap();
        let lines = std::str::from_utf8(&bytes).unwrap().lines();
        lines.filter(|line| line.contains(text)).map(str::to_owned).collect()
    }
}

/// Waits until the status of the files satisfies a condition.
async fn wait_for(files: &GatewayFiles, is_met: impl Fn(&GatewayFilesStatus) -> bool) {
    let mut ticks = tokio::time::interval(Duration::from_millis(5));
    let met = async {
        while !is_met(&files.status()) {
            ticks.tick().await;
        }
    };
    let met = tokio::time::timeout(Duration::from_secs(60), met).await;
    met.unwrap_or_else(|_| panic!("{:?}", files.status()));
}

#[cfg(unix)]
#[tokio::test]
async fn a_signal_reads_the_files_again_and_a_refusal_is_logged_once() {
    let lines = Lines::default();
    let writer = lines.clone();
    let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
    log.init();
    let hang_up = || {
        let process = std::process::id().to_string();
        let kill = std::process::Command::new("kill").args(["-HUP", &process]).status();
        assert!(kill.unwrap().success());
    };

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.yaml");
    let valid = "- { namespace: edge, max_value: 1, seconds: 60 }";
    fs::write(&path, valid).unwrap();
    let files = GatewayFiles::watch(GatewaySource::Limitador { path: path.clone() }).unwrap();
    let version = files.status().version;

    // Content that has not changed is applied again on a signal alone.
    hang_up();
    wait_for(&files, |status| status.applied == 2).await;

    fs::write(&path, valid.replace("60", "0")).unwrap();
    hang_up();
    wait_for(&files, |status| status.refused > 0).await;
    let refused = files.status().refused;
    hang_up();
    wait_for(&files, |status| status.refused > refused).await;
    let status = files.status();
    assert_eq!((status.applied, status.version), (2, version));
    let error = status.error.unwrap();
    assert!(
        error.ends_with("limits.yaml:1:45: seconds 0: expected 1 second to 100 years"),
        "{error}"
    );
    let refusals = lines.with(&error);
    assert_eq!(refusals.len(), 1, "{refusals:#?}");
    assert!(refusals[0].contains("ERROR rl_server: "), "{refusals:#?}");

    // Another reason is logged.
    fs::write(&path, "").unwrap();
    files.reload().unwrap_err();
    assert_eq!(lines.with("ERROR rl_server: ").len(), 2);
}
