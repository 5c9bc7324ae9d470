//! How far a long command is.

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

/// A bar of `n` steps on standard error, gone when they are done. Shows nothing unless standard error is a terminal.
pub(super) fn bar(n: usize, unit: &'static str) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg}, {eta} left").expect("the template is well-formed");
    ProgressBar::new(n as u64).with_style(style).with_message(unit).with_finish(ProgressFinish::AndClear)
}
