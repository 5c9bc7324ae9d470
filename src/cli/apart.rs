//! Commands that run models of others do it in a process of their own: one that the runtime kills says nothing, and this one
//! says it for it. The child is the same command line; its standard input is a page on which it writes what it runs.

use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::process::Stdio;
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Signal, set_parent_process_death_signal};

use super::exit::{Exit, Failure, Outcome};
use crate::base::ended::{By, Ended, OomKills};
use crate::base::process::own_command;

/// The hidden subcommand of the child, which the command itself follows.
pub(super) const NAME: &str = "apart";

/// What is written on longer is cut: paths are.
const PAGE_BYTES: usize = 16 << 10;

/// The child's page.
static PAGE: OnceLock<File> = OnceLock::new();

/// Runs this process's command line in a child; what that prints is seen as it is. Errors: it was killed, with what it ran,
/// and what may be done `after_a_crash`.
pub(super) fn run(after_a_crash: &str) -> Outcome {
    let page = File::from(memfd_create("rust-ort-running", MemfdFlags::CLOEXEC)?);
    let mut command = own_command();
    command.arg(NAME).args(std::env::args_os().skip(1)).stdin(Stdio::from(page.try_clone()?));
    let before = OomKills::now();
    let status = command.status()?;
    match status.code().and_then(Exit::of_code) {
        Some(exit) => Ok(exit),
        None => Err(died(Ended::of(Ok(status), before), &read(page).unwrap_or_default(), after_a_crash)),
    }
}

/// In the child: what [`running`] says reaches its parent, and it ends with it.
pub(super) fn begin() -> Result<(), Failure> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let page = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    // Another one than the parent's memory is somebody's own input.
    if !page.metadata()?.is_file() {
        return Err(format!("{NAME}: replay, blame, keep, prove and align start this themselves").into());
    }
    PAGE.get_or_init(|| page);
    Ok(())
}

/// What the runtime is about to do, after "while it": told should it be the last.
pub(super) fn running(what: &str) {
    let Some(page) = PAGE.get() else { return };
    let text = &what.as_bytes()[..what.len().min(PAGE_BYTES)];
    // A death without a word of where is told all the same.
    let _ = page.set_len(0).and_then(|()| page.write_all_at(text, 0));
}

fn read(mut page: File) -> io::Result<String> {
    let mut bytes = Vec::new();
    page.rewind()?;
    page.take(PAGE_BYTES as u64).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn died(ended: Ended, running: &str, after_a_crash: &str) -> Failure {
    let when = if running.is_empty() { "" } else { " while it " };
    let told = match ended.by() {
        By::Crash => format!("{}{when}{running}; {after_a_crash}", ended.cause()),
        By::Other => format!("the process that runs models was {ended}{when}{running}; run the command again"),
        By::Itself => {
            format!("the process that runs models {ended}{when}{running}; report this, with what it said")
        }
    };
    told.into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn a_death_is_told_with_what_ran_and_whose_fault_it_may_be() {
        let told = |raw, running| {
            died(Ended::of(Ok(ExitStatus::from_raw(raw)), OomKills::default()), running, "look").to_string()
        };
        let crashed =
            "ONNX Runtime or a custom operator crashed (signal 11, SIGSEGV) while it ran part_0 of x, step 3; ";
        assert!(told(11, "ran part_0 of x, step 3").starts_with(crashed));
        assert!(told(6, "").starts_with("ONNX Runtime or a custom operator crashed (signal 6, SIGABRT); "));
        let killed = told(9, "ran part_0");
        assert!(
            killed.starts_with("the process that runs models was killed from outside (signal 9, SIGKILL)"),
            "{killed}"
        );
        assert!(killed.ends_with(" while it ran part_0; run the command again"), "{killed}");
        let stopped = "the process that runs models was ended by somebody (signal 15, SIGTERM); run the command again";
        assert_eq!(told(15, ""), stopped);
        let ours = told(101 << 8, "");
        assert!(
            ours.starts_with("the process that runs models exited with code 101; report"),
            "a panic is ours: {ours}"
        );
    }
}
