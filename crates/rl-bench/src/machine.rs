//! The machine and the versions that a measurement used.

use std::process::Command;

/// Returns the processor and its number of cores.
pub(crate) fn cores() -> String {
    let count = std::thread::available_parallelism().map_or(1, |count| count.get());
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model.trim());
    format!("{model}, {count} cores, {}", std::env::consts::OS)
}

/// Returns the first line of a program's `--version`.
pub(crate) fn program(name: &str) -> String {
    let output = Command::new(name).arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let line = text.ok().and_then(|text| text.lines().next().map(str::to_owned));
    line.unwrap_or_else(|| format!("{name} of unknown version"))
}

/// Returns the name of a crate with its version in the lock file of the workspace. If there are
/// several versions, returns the newest.
pub(crate) fn library(name: &str) -> String {
    let lock = include_str!("../../../Cargo.lock");
    let version =
        lock.rsplit_once(&format!("name = \"{name}\"\nversion = \"")).map(|(_, rest)| rest);
    let version = version.and_then(|rest| rest.split('"').next()).unwrap_or("?");
    format!("{name} {version}")
}

/// Returns the name of the build profile, or a warning for a debug build: the ratios of unoptimised
/// programs are meaningless.
pub(crate) const fn profile() -> &'static str {
    if cfg!(debug_assertions) { "DEBUG BUILD: RUN WITH --release" } else { "release" }
}
