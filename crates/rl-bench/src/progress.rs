//! What a terminal shows while measurements run. Nothing, where the output is not read by a person.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How far a measurement is.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

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

    /// What is measured from here on.
    pub(crate) fn say(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }

    /// One step is done.
    pub(crate) fn tick(&self) {
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
