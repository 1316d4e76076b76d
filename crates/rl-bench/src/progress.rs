//! What a terminal shows while measurements run. Nothing, where the output is not read by a person.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How far a measurement is. The one by default shows nothing.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Default for Progress {
    fn default() -> Self {
        Self(ProgressBar::hidden())
    }
}

impl Progress {
    /// A measurement of so many steps. It draws on the standard error, if that is a terminal.
    pub(crate) fn of(steps: usize) -> Self {
        let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
        let style =
            ProgressStyle::with_template("{bar:40} {pos}/{len} {msg}  {elapsed}, {eta} left");
        Self(match style {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        })
    }

    /// One step is done, and this is what comes next.
    pub(crate) fn step(&self, next: &str) {
        self.0.inc(1);
        self.0.set_message(next.to_owned());
    }

    /// Does something else on the terminal.
    pub(crate) fn beside<T>(&self, work: impl FnOnce() -> T) -> T {
        self.0.suspend(work)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
