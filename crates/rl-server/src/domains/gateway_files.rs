//! Follows the files of other services while limiters use their rules.

use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rl_admin::settings::yaml::read_text;
use rl_core::rules::{LiveRules, Rules};

use super::compile::{compile, fnv};
use super::imported::{Imported, NamedText};
use super::{envoy_files, limitador_file};

/// The time between two readings that have to agree.
const PAUSE: Duration = Duration::from_secs(1);

/// The readings after which a start fails, because the files keep changing.
const MAX_READINGS: usize = 30;

/// The files of another service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GatewaySource {
    /// The files of Envoy's rate limit service: the `*.yaml` and `*.yml` in a folder, except those
    /// whose name begins with a dot, or one file.
    Envoy {
        /// The folder or file.
        path: PathBuf,
        /// Whether several files may have the same domain.
        merge: bool,
    },
    /// The `limits.yaml` of limitador.
    Limitador {
        /// The file.
        path: PathBuf,
    },
}

impl GatewaySource {
    /// Reads the rules once.
    ///
    /// # Errors
    ///
    /// Returns the reason, with its file, line and column, for which they cannot be read.
    pub fn read(&self) -> Result<Imported, String> {
        self.parse(&self.texts()?)
    }

    fn parse(&self, texts: &[NamedText]) -> Result<Imported, String> {
        match (self, texts) {
            (Self::Envoy { merge, .. }, texts) => envoy_files::read(texts, *merge),
            (Self::Limitador { .. }, [text]) => limitador_file::read(text),
            (Self::Limitador { path }, _) => Err(format!("{}: expected a file", path.display())),
        }
    }

    /// Reads the names and texts of the files, in the order of their names.
    fn texts(&self) -> Reading {
        self.paths()?.iter().map(|path| text_of(path)).collect()
    }

    /// Returns the paths of the files, in their order.
    fn paths(&self) -> Result<Vec<PathBuf>, String> {
        match self {
            Self::Envoy { path, .. } if path.is_dir() => paths_in_folder(path),
            Self::Envoy { path, .. } | Self::Limitador { path } => Ok(vec![path.clone()]),
        }
    }

    /// Returns whether all files were changed last at least a pause ago, by the clock of this
    /// machine.
    fn is_old(&self, pause: Duration) -> bool {
        let is_old = |path: &PathBuf| {
            let changed = fs::metadata(path).and_then(|metadata| metadata.modified());
            changed.is_ok_and(|changed| changed.elapsed().is_ok_and(|age| age >= pause))
        };
        self.paths().is_ok_and(|paths| paths.iter().all(is_old))
    }
}

/// Rules from the files of another service, which limiters follow.
///
/// The files are read each second. New content is applied when two readings in a row had the same
/// names and texts. The files may change in place, by a rename, or by a symbolic link, as in a
/// volume of Kubernetes. [`reload`](Self::reload), and SIGHUP in a tokio runtime, apply the content
/// at once.
///
/// **Files that are not valid change nothing.** The last valid rules continue to apply, the reason
/// is logged once, and [`status`](Self::status) returns it. Counters survive a change.
///
/// Clones are handles of the same files, which are read until the last one is dropped.
#[derive(Clone, Debug)]
pub struct GatewayFiles(Arc<FilesHandle>);

#[derive(Debug)]
struct FilesHandle {
    rules: LiveRules,
    status: Arc<Mutex<GatewayFilesStatus>>,
    requests: Sender<ReadRequest>,
}

/// The results of reading [`GatewayFiles`] so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewayFilesStatus {
    /// The number of times that content was applied, at least 1.
    pub applied: u64,
    /// The number of times that content was refused.
    pub refused: u64,
    /// The reason for which the last content was refused; `None` if the rules in the files apply.
    pub error: Option<String>,
    /// Sixteen hexadecimal digits of a hash of the content that applies.
    pub version: String,
    /// The differences of the rules that apply from those of the other service.
    pub differences: Vec<String>,
}

/// A request to the thread that reads.
enum ReadRequest {
    /// Read now. The reply channel, if there is one, gets the result.
    Reload(Option<SyncSender<Result<(), String>>>),
    /// The last handle was dropped.
    End,
}

impl GatewayFiles {
    /// Reads files, and continues to read them in a thread of its own.
    ///
    /// If a file was changed within the last second, blocks the calling thread until two readings
    /// agree.
    ///
    /// # Errors
    ///
    /// Returns an error if the files cannot be read, are not valid or keep changing, or if no thread
    /// can be started.
    pub fn watch(source: GatewaySource) -> Result<Self, String> {
        Self::watch_with(source, PAUSE)
    }

    pub(super) fn watch_with(source: GatewaySource, pause: Duration) -> Result<Self, String> {
        let (requests, receiver) = channel();
        let texts = first_texts(&source, &receiver, pause)?;
        let imported = source.parse(&texts)?;
        let rules =
            compile(&imported.domains, Rules::new(), None).map_err(|error| error.to_string())?;
        let live = LiveRules::new(Rules::new());
        live.replace(rules).map_err(|error| error.to_string())?;
        log_differences(imported.differences.iter());
        let status = GatewayFilesStatus {
            applied: 1,
            version: version(&texts),
            differences: imported.differences,
            ..GatewayFilesStatus::default()
        };
        let status = Arc::new(Mutex::new(status));
        let reader = FilesReader {
            source,
            rules: live.clone(),
            status: Arc::clone(&status),
            last: Ok(texts.clone()),
            handled: Ok(texts),
        };
        thread::Builder::new()
            .name("rl-gateway-files".to_owned())
            .spawn(move || reader.run(&receiver, pause))
            .map_err(|error| format!("no thread can be started: {error}"))?;
        forward_signals(&requests);
        Ok(Self(Arc::new(FilesHandle { rules: live, status, requests })))
    }

    /// Returns the rules, which limiters follow.
    #[must_use]
    pub fn rules(&self) -> &LiveRules {
        &self.0.rules
    }

    /// Returns the results of the readings so far.
    #[must_use]
    pub fn status(&self) -> GatewayFilesStatus {
        lock(&self.0.status).clone()
    }

    /// Reads the files now, and applies their content without a second reading. Blocks the thread.
    ///
    /// # Errors
    ///
    /// Returns the reason for which the content is refused.
    pub fn reload(&self) -> Result<(), String> {
        let ended = || "the thread that reads the files has ended".to_owned();
        let (reply, receiver) = sync_channel(1);
        self.0.requests.send(ReadRequest::Reload(Some(reply))).map_err(|_| ended())?;
        receiver.recv().map_err(|_| ended())?
    }
}

impl Drop for FilesHandle {
    fn drop(&mut self) {
        // The thread may have ended already.
        let _ = self.requests.send(ReadRequest::End);
    }
}

/// The names and texts of files, or the reason for which they cannot be read.
type Reading = Result<Vec<NamedText>, String>;

/// Reads the files until the last handle is dropped.
struct FilesReader {
    source: GatewaySource,
    rules: LiveRules,
    status: Arc<Mutex<GatewayFilesStatus>>,
    last: Reading,
    /// The reading that was applied or refused last.
    handled: Reading,
}

impl FilesReader {
    fn run(mut self, requests: &Receiver<ReadRequest>, pause: Duration) {
        loop {
            let reply = match requests.recv_timeout(pause) {
                Ok(ReadRequest::Reload(reply)) => Some(reply),
                Err(RecvTimeoutError::Timeout) => None,
                Ok(ReadRequest::End) | Err(RecvTimeoutError::Disconnected) => return,
            };
            let reading = self.source.texts();
            let is_stable = reading == self.last;
            self.last.clone_from(&reading);
            match reply {
                None if is_stable && reading != self.handled => {
                    // The reason is logged.
                    let _ = self.handle(reading);
                }
                None => {}
                Some(reply) => {
                    let result = self.handle(reading);
                    if let Some(reply) = reply {
                        // The caller may have given up.
                        let _ = reply.send(result);
                    }
                }
            }
        }
    }

    /// Applies a reading, or logs why it is refused.
    fn handle(&mut self, reading: Reading) -> Result<(), String> {
        self.handled.clone_from(&reading);
        let apply = || {
            let texts = reading?;
            let imported = self.source.parse(&texts)?;
            let rules =
                compile(&imported.domains, Rules::new(), None).map_err(|why| why.to_string())?;
            self.rules.replace(rules).map_err(|why| why.to_string())?;
            Ok((version(&texts), imported.differences))
        };
        // The thread must outlive a fault of a parser, so that later changes are applied.
        let applied = catch_unwind(AssertUnwindSafe(apply));
        let applied = applied.unwrap_or_else(|_| Err("the content cannot be parsed".to_owned()));
        let mut status = lock(&self.status);
        match applied {
            Ok((version, differences)) => {
                status.applied += 1;
                status.error = None;
                tracing::info!(target: "rl_server", %version, "gateway files applied");
                log_differences(differences.iter().filter(|one| !status.differences.contains(one)));
                (status.version, status.differences) = (version, differences);
                Ok(())
            }
            Err(reason) => {
                status.refused += 1;
                // A reload may refuse the same content again.
                if status.error.as_ref() != Some(&reason) {
                    let version = &status.version;
                    tracing::error!(
                        target: "rl_server", %version, %reason,
                        "gateway files refused, the last valid ones apply"
                    );
                }
                status.error = Some(reason.clone());
                Err(reason)
            }
        }
    }
}

fn log_differences<'a>(differences: impl Iterator<Item = &'a String>) {
    for difference in differences {
        tracing::warn!(target: "rl_server", difference, "gateway files differ");
    }
}

/// Returns the first texts that two readings in a row agree on. A pause lies between the readings,
/// unless no file was changed during the last pause.
fn first_texts(
    source: &GatewaySource,
    requests: &Receiver<ReadRequest>,
    pause: Duration,
) -> Reading {
    let mut last = source.texts();
    for _ in 0..MAX_READINGS {
        if !source.is_old(pause) {
            // No request comes before the start has ended, so this waits for the pause.
            let _ = requests.recv_timeout(pause);
        }
        let reading = source.texts();
        if reading == last {
            return reading;
        }
        last = reading;
    }
    Err("the files keep changing: expected two equal readings".to_owned())
}

fn paths_in_folder(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |error: io::Error| format!("{}: {error}", folder.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes()[0] == b'.');
        if matches!(extension, Some("yaml" | "yml")) && !is_hidden {
            paths.push(path);
        }
    }
    if paths.is_empty() {
        return Err(format!("{}: expected at least one file *.yaml", folder.display()));
    }
    paths.sort();
    Ok(paths)
}

fn text_of(path: &Path) -> Result<NamedText, String> {
    Ok(NamedText { name: path.display().to_string(), text: read_text(path)? })
}

/// Returns sixteen hexadecimal digits of a hash of texts.
fn version(texts: &[NamedText]) -> String {
    let texts = texts.iter().map(|NamedText { text, .. }| format!("{}:{text}", text.len()));
    format!("{:016x}", fnv(texts.collect::<String>().as_bytes()))
}

fn lock(status: &Mutex<GatewayFilesStatus>) -> MutexGuard<'_, GatewayFilesStatus> {
    status.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a task that requests a reload on each SIGHUP, if there is a tokio runtime. The task ends
/// with the thread that reads.
#[cfg(unix)]
fn forward_signals(requests: &Sender<ReadRequest>) {
    use tokio::signal::unix::{SignalKind, signal};

    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    let Ok(mut hangup) = signal(SignalKind::hangup()) else { return };
    let requests = requests.clone();
    runtime.spawn(async move {
        while hangup.recv().await.is_some() {
            if requests.send(ReadRequest::Reload(None)).is_err() {
                return;
            }
        }
    });
}

/// Ignores signals, because the platform has no SIGHUP.
#[cfg(not(unix))]
fn forward_signals(_: &Sender<ReadRequest>) {}
