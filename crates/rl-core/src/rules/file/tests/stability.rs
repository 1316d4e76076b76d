//! When files are read and applied, on clocks that the tests advance.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use proptest::prelude::*;
use tokio::time::Instant;

use super::super::disk::{Disk, FileContent, Reading, RealDisk};
use super::super::followed::unstable_error;
use super::super::parse::{Additions, Content};
use super::super::reader::{FileReader, ReadStep, Timing};
use super::super::stability::Trigger;
use super::super::thread::{ReadingHandler, ReloadRequest, read_and_handle, wait};
use super::super::{RulesFile, RulesFileError};
use super::{Directory, one_rule, units};
use crate::key::KeySecret;
use crate::store::Namespace;
use crate::time::Timestamp;

const PAUSE: Duration = Duration::from_secs(1);

/// Files in memory, and beside them the real ones, with clocks that a test advances.
struct TestDisk {
    begun: Instant,
    state: Mutex<State>,
    changes: Condvar,
}

#[derive(Default)]
struct State {
    elapsed: Duration,
    files: HashMap<PathBuf, FileContent>,
    reads: usize,
    /// Whether readings hang, and how many of them hang now.
    hangs: bool,
    hanging: usize,
}

impl TestDisk {
    fn new() -> Arc<Self> {
        let begun = Instant::now();
        Arc::new(Self { begun, state: Mutex::default(), changes: Condvar::new() })
    }

    fn advance(&self, time: Duration) {
        self.state.lock().unwrap().elapsed += time;
    }

    fn write(&self, path: &str, content: &str) {
        let changed = Some(self.wall());
        let content = FileContent { bytes: content.as_bytes().into(), changed };
        self.state.lock().unwrap().files.insert(path.into(), content);
    }

    fn set_hangs(&self, hangs: bool) {
        self.state.lock().unwrap().hangs = hangs;
        self.changes.notify_all();
    }

    /// Waits until a file is read again.
    fn wait_for_reading(&self) {
        let state = self.state.lock().unwrap();
        let reads = state.reads;
        drop(self.changes.wait_while(state, |state| state.reads == reads).unwrap());
    }

    /// Waits until a reading hangs.
    fn wait_for_hang(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changes.wait_while(state, |state| state.hanging == 0).unwrap());
    }
}

impl Disk for TestDisk {
    fn read(&self, path: &Path) -> Reading {
        let mut state = self.state.lock().unwrap();
        state.reads += 1;
        state.hanging += 1;
        assert_eq!(state.hanging, 1, "one thread reads");
        self.changes.notify_all();
        state = self.changes.wait_while(state, |state| state.hangs).unwrap();
        state.hanging -= 1;
        match state.files.get(path) {
            Some(content) => Ok(content.clone()),
            None => RealDisk.read(path),
        }
    }

    fn monotonic(&self) -> Instant {
        self.begun + self.state.lock().unwrap().elapsed
    }

    fn wall(&self) -> Timestamp {
        let elapsed = self.state.lock().unwrap().elapsed;
        Timestamp::from_secs(1_800_000_000).plus_micros(elapsed.as_micros() as u64)
    }
}

fn reader(disk: &Arc<TestDisk>, path: impl Into<PathBuf>) -> FileReader {
    let additions = Additions::new(KeySecret::random());
    FileReader::new(path.into(), Arc::new(additions), disk.clone(), Timing::with_pause(PAUSE))
}

/// Returns the names of the rules of valid content.
fn names(step: &ReadStep) -> Option<Vec<String>> {
    match step {
        ReadStep::Valid(content) => Some(content.file.rules.names().map(str::to_owned).collect()),
        _ => None,
    }
}

fn refused(step: ReadStep) -> Option<RulesFileError> {
    match step {
        ReadStep::Refused(error) => Some(error),
        _ => None,
    }
}

/// Returns a file of one rule in each line, of which `login` is the last.
fn lines(version: usize, rules: usize) -> Vec<String> {
    let rule = |number| {
        let limit = version + 1;
        format!("  r{number}: {{ match: {{ path: /p{number} }}, limits: {limit}/minute }}\n")
    };
    let mut lines = vec!["rules:\n".to_owned()];
    lines.extend((0..rules).map(rule));
    lines.push("  login: { limits: 5/hour }\n".to_owned());
    lines
}

/// Writes `versions` of a file in place, line by line with these gaps, while a reader reads each
/// second. Returns the number of versions that were applied, all of which must be complete.
fn write_slowly(gaps: &[Duration], versions: usize, rest: Duration, phase: Duration) -> usize {
    let disk = TestDisk::new();
    disk.write("l.yaml", &lines(0, 20).concat());
    let mut reader = reader(&disk, "l.yaml");
    disk.advance(PAUSE);
    assert!(names(&reader.step(Trigger::Start)).is_some());
    let mut until_read = phase;
    let mut applied = 0;
    let mut advance = |time: Duration| {
        let mut left = time;
        while until_read <= left {
            disk.advance(until_read);
            left -= until_read;
            let step = reader.step(Trigger::Pause);
            assert!(!matches!(step, ReadStep::Refused(_)), "an incomplete file");
            if let Some(names) = names(&step) {
                assert_eq!(names.last().map(String::as_str), Some("login"));
                applied += 1;
            }
            until_read = PAUSE;
        }
        disk.advance(left);
        until_read -= left;
    };
    for version in 1..=versions {
        let mut written = String::new();
        disk.write("l.yaml", "");
        for (line, gap) in lines(version, 20).into_iter().zip(gaps.iter().cycle()) {
            advance(*gap);
            written += &line;
            disk.write("l.yaml", &written);
        }
        advance(rest);
    }
    applied
}

/// Fault: events of the writer itself, and of other files of the directory, ended the pause after
/// which a file was read. While a file was written in place, its last rules did not apply.
#[test]
fn a_file_that_is_written_with_gaps_below_the_pause_is_never_applied_half_written() {
    for gap in [1, 5, 40, 250, 999].map(Duration::from_millis) {
        for phase in [1, 300, 1_000].map(Duration::from_millis) {
            let applied = write_slowly(&[gap], 10, 3 * PAUSE, phase);
            assert_eq!(applied, 10, "{gap:?} {phase:?}");
            // Between these versions, there is no pause in which the file is stable.
            assert_eq!(write_slowly(&[gap], 10, PAUSE / 5, phase), 0, "{gap:?} {phase:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_gaps_below_the_pause_apply_an_incomplete_file(
        gaps in prop::collection::vec(0_u64..1_000, 1..30),
        rest in 0_u64..5_000,
        phase in 1_u64..=1_000,
    ) {
        let gaps: Vec<_> = gaps.into_iter().map(Duration::from_millis).collect();
        let [rest, phase] = [rest, phase].map(Duration::from_millis);
        prop_assert!(write_slowly(&gaps, 3, rest, phase) <= 3);
    }
}

#[test]
fn a_start_waits_a_pause_only_if_the_file_has_just_changed() {
    let disk = TestDisk::new();
    disk.write("l.yaml", &one_rule(1));
    assert!(matches!(reader(&disk, "l.yaml").step(Trigger::Start), ReadStep::Unstable));
    let mut begun = reader(&disk, "l.yaml");
    assert!(matches!(begun.step(Trigger::Start), ReadStep::Unstable));
    disk.advance(PAUSE - Duration::from_millis(1));
    assert_eq!(begun.remaining(), Duration::from_millis(1));
    assert!(matches!(begun.step(Trigger::Start), ReadStep::Unstable));
    disk.advance(Duration::from_millis(1));
    assert!(names(&begun.step(Trigger::Start)).is_some());
    // It was changed a pause ago, so that two readings suffice.
    let before = disk.state.lock().unwrap().reads;
    assert!(names(&reader(&disk, "l.yaml").step(Trigger::Start)).is_some());
    assert_eq!(disk.state.lock().unwrap().reads - before, 2);
    // A clock that is late proves nothing.
    disk.advance(2 * PAUSE);
    disk.write("future.yaml", &one_rule(1));
    disk.state.lock().unwrap().elapsed -= PAUSE;
    assert!(matches!(reader(&disk, "future.yaml").step(Trigger::Start), ReadStep::Unstable));
}

/// Fault: SIGHUP and a reload relied on the times of changes, which a file server may set by
/// another clock. They applied a file that was still being written.
#[test]
fn a_request_needs_two_equal_readings_whatever_the_times_of_the_file() {
    let disk = TestDisk::new();
    disk.write("l.yaml", &one_rule(1));
    disk.advance(100 * PAUSE);
    let mut reader = reader(&disk, "l.yaml");
    assert!(names(&reader.step(Trigger::Start)).is_some());
    let write_with_old_time = |units| {
        disk.write("l.yaml", &one_rule(units));
        let mut state = disk.state.lock().unwrap();
        let content = state.files.get_mut(Path::new("l.yaml")).unwrap();
        content.changed = Some(Timestamp::from_secs(1_700_000_000));
    };
    for units in 2..5 {
        disk.advance(PAUSE / 2);
        write_with_old_time(units);
        assert!(matches!(reader.step(Trigger::Request), ReadStep::Unstable));
        assert_eq!(reader.remaining(), PAUSE);
    }
    disk.advance(PAUSE);
    assert!(names(&reader.step(Trigger::Request)).is_some());
    // The last two readings were a pause apart, so a further request does not wait.
    assert!(names(&reader.step(Trigger::Request)).is_some());
}

/// Fault: a secret in a file of its own was read once. SIGHUP during a write applied half a secret,
/// so that all keys were counted under other subjects.
#[test]
fn a_secret_that_is_being_written_is_not_applied() {
    let directory = Directory::new();
    let secret = directory.write("secret", "the first secret of this file\n");
    let disk = TestDisk::new();
    let rules = |file: &Path| {
        format!("secret: file:{}\nrules: {{ a: {{ limits: 1/day }} }}", file.display())
    };
    disk.write("l.yaml", &rules(&secret));
    disk.advance(PAUSE);
    let mut reader = reader(&disk, "l.yaml");
    let subject = |secret: &KeySecret| secret.subject(crate::model::Realm::Key, b"a");
    let expected = |text: &str| subject(&KeySecret::new(text.as_bytes()).unwrap());
    let applied = |step: ReadStep| match step {
        ReadStep::Valid(content) => Some(subject(&content.file.secret)),
        _ => None,
    };
    reader.step(Trigger::Start);
    disk.advance(PAUSE);
    let first = applied(reader.step(Trigger::Start));
    assert_eq!(first, Some(expected("the first secret of this file")));

    disk.advance(PAUSE);
    for half in ["the other secret", "the other secret of this", "the other secret of this file\n"]
    {
        std::fs::write(&secret, half).unwrap();
        assert_eq!(applied(reader.step(Trigger::Request)), None, "{half}");
        disk.advance(PAUSE / 2);
    }
    assert_eq!(reader.remaining(), PAUSE / 2);
    disk.advance(PAUSE / 2);
    let other = applied(reader.step(Trigger::Request));
    assert_eq!(other, Some(expected("the other secret of this file")));
    // The secret is read when SIGHUP or a change of the rule file asks for it.
    std::fs::write(&secret, "the third secret of this file\n").unwrap();
    assert!(matches!(reader.step(Trigger::Pause), ReadStep::Unchanged));
}

/// Fault: a file that never became stable suspended all changes without a word.
#[test]
fn a_file_that_never_becomes_stable_is_refused_once_and_applied_when_it_is() {
    let disk = TestDisk::new();
    disk.write("l.yaml", &one_rule(1));
    let (mut reader, follower) = (reader(&disk, "l.yaml"), Recorder::default());
    let mut next = |units: u64| {
        disk.write("l.yaml", &one_rule(units));
        read_and_handle(&mut reader, &mut Vec::new(), &follower);
        disk.advance(PAUSE);
        follower.0.lock().unwrap().clone()
    };
    for version in 0..30 {
        assert_eq!(next(version), [""; 0], "{version}");
    }
    let error = "l.yaml: no two equal readings 1s apart within 30s: the file is still being written, \
                 or its file system hangs";
    for version in 30..99 {
        assert_eq!(next(version), [error]);
    }
    // The content that applied before is applied again, which ends the refusal.
    read_and_handle(&mut reader, &mut Vec::new(), &follower);
    assert_eq!(*follower.0.lock().unwrap(), [error, "applied"]);
    disk.advance(PAUSE);
    read_and_handle(&mut reader, &mut Vec::new(), &follower);
    assert_eq!(follower.0.lock().unwrap().len(), 2);
}

#[test]
fn a_file_whose_times_change_without_its_content_is_not_applied_again() {
    let disk = TestDisk::new();
    disk.write("l.yaml", &one_rule(1));
    disk.advance(PAUSE);
    let mut reader = reader(&disk, "l.yaml");
    assert!(names(&reader.step(Trigger::Start)).is_some());
    disk.write("l.yaml", &one_rule(1));
    for _ in 0..3 {
        assert!(!matches!(reader.step(Trigger::Pause), ReadStep::Valid(_)));
        disk.advance(PAUSE);
    }
    // A request applies it in any case.
    assert!(names(&reader.step(Trigger::Request)).is_some());
}

/// Fault: a pipe in place of a file blocked every later reload, and limiters that were built with
/// the file.
#[cfg(unix)]
#[test]
fn a_pipe_or_directory_in_place_of_a_file_is_refused_once_and_a_good_file_is_applied_again() {
    let directory = Directory::new();
    let path = directory.write("limits.yaml", &one_rule(1));
    let disk = TestDisk::new();
    disk.advance(PAUSE);
    let mut reader = reader(&disk, path.clone());
    let mut next = || {
        disk.advance(PAUSE);
        reader.step(Trigger::Pause)
    };
    assert!(matches!(next(), ReadStep::Unstable));
    assert!(names(&next()).is_some());
    type Replace = fn(&Path);
    let odd: [(Replace, &str); 5] = [
        (|_| {}, "No such file or directory (os error 2)"),
        (|path| std::fs::create_dir(path).unwrap(), "a directory: expected a regular file"),
        (
            |path| {
                let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
                assert!(made.success());
            },
            "a pipe, socket or device: expected a regular file",
        ),
        (
            |path| std::os::unix::fs::symlink("/dev/zero", path).unwrap(),
            "a pipe, socket or device: expected a regular file",
        ),
        (
            |path| std::fs::write(path, vec![b'#'; RulesFile::MAX_LEN as usize + 1]).unwrap(),
            "a file of more than 8388608 bytes",
        ),
    ];
    for (number, (replace, expected)) in odd.into_iter().enumerate() {
        std::fs::remove_file(&path).unwrap();
        replace(&path);
        assert!(matches!(next(), ReadStep::Unstable), "{expected}");
        let error = refused(next()).unwrap().to_string();
        assert!(error.contains(expected), "{error}");
        for _ in 0..3 {
            assert!(matches!(next(), ReadStep::Unchanged), "{expected}");
        }
        let _ = std::fs::remove_dir(&path).or_else(|_| std::fs::remove_file(&path));
        directory.write("limits.yaml", &one_rule(number as u64 + 2));
        assert!(matches!(next(), ReadStep::Unstable), "{expected}");
        assert!(names(&next()).is_some(), "{expected}");
    }
}

#[test]
fn once_a_version_has_the_end_mark_every_later_version_needs_it() {
    let yaml = |units| format!("rules:\n  a: {{ limits: {units}/day }}\n");
    let toml = |units| format!("[rules.a]\nlimits = \"{units}/day\"\n");
    for (path, whole, cut, mark) in [
        ("l.yaml", yaml(1) + "end: true # nothing below\n\n", yaml(2), "end: true"),
        ("l.toml", toml(1) + "[end]\n", toml(2), "[end]"),
    ] {
        let disk = TestDisk::new();
        disk.write(path, &cut);
        let mut reader = reader(&disk, path);
        let mut apply = |text: &str| {
            disk.write(path, text);
            disk.advance(PAUSE);
            let step = reader.step(Trigger::Start);
            if let ReadStep::Valid(content) = &step
                && content.has_end
            {
                reader.require_end();
            }
            refused(step).map(|error| error.to_string())
        };
        assert_eq!(apply(&cut), None, "{path}");
        assert_eq!(apply(&whole), None, "{path}");
        let error = apply(&cut).unwrap();
        let expected = format!(
            "the last line `{mark}` of the last valid version is missing: the file may be \
             incomplete; after a restart it may be left out"
        );
        assert!(error.ends_with(&expected), "{error}");
        assert_eq!(apply(&whole), None, "{path}");
    }
    for (path, text, expected) in [
        (
            "l.yaml",
            "end: true\nrules: { a: { limits: 1/day } }",
            "`end: true` is not the last line",
        ),
        (
            "l.yaml",
            "rules: { a: { limits: 1/day } }\nend: false",
            "invalid value: boolean `false`, expected true",
        ),
        ("l.toml", "end = true\n[rules.a]\nlimits = \"1/day\"", "`[end]` is not the last line"),
        ("l.toml", "[rules.a]\nlimits = \"1/day\"\n[end]\na = 1", "values after the end"),
    ] {
        let disk = TestDisk::new();
        disk.write(path, text);
        disk.advance(PAUSE);
        let error = refused(reader(&disk, path).step(Trigger::Start)).unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let disk = TestDisk::new();
    disk.write("l.json", r#"{ "end": true, "rules": { "a": { "limits": "1/day" } } }"#);
    disk.advance(PAUSE);
    assert!(names(&reader(&disk, "l.json").step(Trigger::Start)).is_some());
}

/// Fault: a reading that never ended blocked every later reload, and limiters that were built with
/// the file.
#[tokio::test]
async fn a_file_system_that_hangs_blocks_no_caller_and_is_reported() {
    let disk = TestDisk::new();
    disk.write("l.yaml", &one_rule(1));
    disk.advance(PAUSE);
    let mut builder = RulesFile::builder("l.yaml");
    builder.disk = disk.clone();
    let [pause, deadline] = [10, 120_000].map(Duration::from_millis);
    builder.timing = Timing { pause, deadline };
    let file = builder.watch().unwrap();
    let rules = file.subscribe(&Namespace::default(), false).unwrap();
    assert_eq!(file.status().hanging_since(), None);

    disk.set_hangs(true);
    disk.wait_for_hang();
    let since = disk.wall();
    disk.advance(Duration::from_secs(29));
    assert_eq!((file.status().hanging_since(), file.status().refused()), (Some(since), 0));
    disk.advance(Duration::from_secs(1));
    super::until(&file, |status| status.refused() == 1).await;
    let error = file.status().error().unwrap().to_string();
    assert!(error.ends_with("or its file system hangs"), "{error}");
    disk.advance(pause);
    assert_eq!(file.status().hanging_since(), Some(since));
    let other = file.subscribe(&"other".parse().unwrap(), false).unwrap();
    assert!(crate::RateLimiter::builder().rules(&file).build().is_ok());
    assert_eq!((units(&rules.load()), units(&other.load())), (1, 1));
    file.on_reading(&rules, |_| {});

    disk.write("l.yaml", &one_rule(2));
    disk.set_hangs(false);
    let reloaded = file.clone();
    let reload = tokio::task::spawn_blocking(move || reloaded.reload());
    while !reload.is_finished() {
        disk.wait_for_reading();
        disk.advance(pause);
    }
    reload.await.unwrap().unwrap();
    let status = file.status();
    assert!(status.error().is_none() && status.refused() == 1, "{status:?}");
    assert_eq!((units(&rules.load()), units(&other.load())), (2, 2));
    assert_eq!(status.hanging_since(), None);
}

/// A follower that records the errors it handles.
#[derive(Default)]
struct Recorder(Mutex<Vec<String>>);

impl ReadingHandler for Recorder {
    fn handle(
        &self,
        result: Result<Content, RulesFileError>,
        _: Instant,
        is_logged: bool,
    ) -> Result<(), RulesFileError> {
        assert!(is_logged, "no caller waits for the result");
        let text = result.as_ref().map_or_else(ToString::to_string, |_| "applied".to_owned());
        self.0.lock().unwrap().push(text);
        result.map(drop)
    }

    fn unstable_error(&self, within: Duration) -> RulesFileError {
        unstable_error(Path::new("l.yaml"), Timing::with_pause(PAUSE), within)
    }

    fn begin(&self) {}

    fn end(&self) -> bool {
        false
    }

    fn report_hang(&self) {}
}

#[test]
fn a_signal_is_refused_if_the_file_is_not_stable_and_a_later_version_is_applied() {
    let disk = TestDisk::new();
    disk.write("l.yaml", &one_rule(1));
    let (mut reader, follower) = (reader(&disk, "l.yaml"), Recorder::default());
    let mut pending = vec![ReloadRequest::of_signal()];
    for version in 2..50 {
        disk.advance(PAUSE / 2);
        disk.write("l.yaml", &one_rule(version));
        read_and_handle(&mut reader, &mut pending, &follower);
    }
    let error = "l.yaml: no two equal readings 1s apart within 3s: the file is still being written, \
                 or its file system hangs";
    assert_eq!(*follower.0.lock().unwrap(), [error]);
    assert!(pending.is_empty());
    disk.advance(PAUSE);
    assert_eq!(read_and_handle(&mut reader, &mut pending, &follower), PAUSE);
    assert_eq!(*follower.0.lock().unwrap(), [error, "applied"]);
}

/// Fault: in a debug build, a file of 80 000 keys was "still being written".
#[test]
fn the_check_of_a_file_that_was_read_in_time_is_waited_for() {
    let disk = TestDisk::new();
    disk.write("l.yaml", &one_rule(1));
    let mut reader = reader(&disk, "l.yaml");
    let is_checking = reader.is_checking();
    assert!(matches!(reader.step(Trigger::Start), ReadStep::Unstable));
    assert!(!is_checking.load(Ordering::Acquire));
    disk.advance(PAUSE);
    assert!(matches!(reader.step(Trigger::Start), ReadStep::Valid(_)));
    assert!(is_checking.load(Ordering::Acquire));

    let (sender, result) = mpsc::channel();
    // To start a thread takes longer than this deadline.
    let deadline = Duration::ZERO;
    let check = std::thread::spawn(move || sender.send("checked").unwrap());
    assert_eq!(wait(&result, deadline, &is_checking), Some("checked"));
    check.join().unwrap();
    let (_sender, result) = mpsc::channel::<()>();
    assert_eq!(wait(&result, deadline, &Arc::default()), None, "it is not read in time");
}

#[test]
fn a_start_returns_an_error_when_a_reading_does_not_end_in_time() {
    let disk = TestDisk::new();
    disk.write("l.yaml", &one_rule(1));
    disk.advance(PAUSE);
    let builder = || {
        let mut builder = RulesFile::builder("l.yaml");
        builder.disk = disk.clone();
        builder.timing =
            Timing { pause: Duration::from_millis(10), deadline: Duration::from_secs(60) };
        builder
    };
    let mut impatient = builder();
    impatient.timing.deadline = Duration::from_millis(200);
    disk.set_hangs(true);
    let error = impatient.watch().unwrap_err().to_string();
    let expected = "l.yaml: no two equal readings 10ms apart within 200ms: the file is still being \
                    written, or its file system hangs";
    assert_eq!(error, expected);
    disk.set_hangs(false);
}
