//! The progress bar of the measurements. It is hidden unless the output is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A progress bar. The default one is hidden.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Default for Progress {
    fn default() -> Self {
        Self(ProgressBar::hidden())
    }
}

impl Progress {
    /// Creates a progress bar with `steps` steps. It is drawn on standard error, if that is a
    /// terminal.
    pub(crate) fn of(steps: usize) -> Self {
        let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
        let style =
            ProgressStyle::with_template("{bar:40} {pos}/{len} {msg}  {elapsed}, {eta} left");
        Self(match style {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        })
    }

    /// Advances by one step, and shows the name of the next one.
    pub(crate) fn step(&self, next: &str) {
        self.0.inc(1);
        self.0.set_message(next.to_owned());
    }

    /// Runs `work`, which may print. The bar is hidden meanwhile.
    pub(crate) fn beside<T>(&self, work: impl FnOnce() -> T) -> T {
        self.0.suspend(work)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
