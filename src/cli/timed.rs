//! A program that is given a time.

use std::io;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// What it printed, which is no more than a pipe holds. One that takes longer than it is given is killed.
pub(super) fn output(command: &mut Command, given: Duration) -> io::Result<Output> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let deadline = Instant::now() + given;
    while child.try_wait()?.is_none() {
        if Instant::now() > deadline {
            child.kill()?;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output()
}
