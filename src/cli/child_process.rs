//! Commands that run models of others do it in a process of their own: one that the runtime kills says nothing, and this one
//! says it for it. The child is the same command line; its standard input is a page on which it writes what it runs. It has
//! a session of its own, no terminal to read, and of its parent's environment what it needs alone.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Read as _, Seek as _};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal, setsid};

use super::answer;
use super::exit::{Exit, Failure, Outcome};
use crate::base::exit;
use crate::base::exit_status::{By, Ended, OomKills};
use crate::base::process::{NO_TELEMETRY, own_command};
use crate::protocol::control::of_client;

/// The hidden subcommand of the child, which the command itself follows.
pub(super) const NAME: &str = "apart";

/// What is written on longer is cut: paths are.
const PAGE_BYTES: usize = 16 << 10;

/// How the page begins while no runtime is loaded.
const READING: &str = "read ";

/// Starts of names of the variables that a child has beside those of a runtime ([`of_client`]): where this user's files are,
/// how a terminal is written to, what libraries are told.
const KEPT: &[&str] = &[
    "ASAN_",
    "CLICOLOR",
    "COLORTERM",
    "COLUMNS",
    "CUDA_VISIBLE_DEVICES",
    "HIP_",
    "HOME",
    "LANG",
    "LC_",
    "LD_PRELOAD",
    "LINES",
    "NO_COLOR",
    "OPENVINO_",
    "PYTORCH_",
    "ROCR_",
    "RUST_BACKTRACE",
    "RUST_ORT_",
    "TERM",
    "TORCH_",
    "TZ",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
];

/// The child's page.
static PAGE: OnceLock<File> = OnceLock::new();

/// Runs this process's command line in a child; what that prints is seen as it is. is_free: it is to have all rights of its
/// user, and then has all variables. Errors: it was killed, with what it ran, and what may be done `after_a_crash`.
pub(super) fn run(after_a_crash: &str, is_free: bool) -> Outcome {
    let page = File::from(memfd_create("rust-ort-running", MemfdFlags::CLOEXEC)?);
    // Until the child writes: whose it is.
    page.write_all_at(getpid().to_string().as_bytes(), 0)?;
    let mut command = own_command();
    command.arg(NAME).args(std::env::args_os().skip(1)).stdin(Stdio::from(page.try_clone()?));
    write_only(&io::stdout()).into_iter().for_each(|file| {
        command.stdout(file);
    });
    write_only(&io::stderr()).into_iter().for_each(|file| {
        command.stderr(file);
    });
    if !is_free {
        keep_variables(&mut command);
    }
    command.env(NO_TELEMETRY.0, NO_TELEMETRY.1);
    let before = OomKills::now();
    let status = command.status()?;
    match status.code().and_then(Exit::of_code) {
        Some(exit) => Ok(exit),
        None => Err(died(Ended::of(Ok(status), before), &read(&page).unwrap_or_default(), after_a_crash)),
    }
}

/// A terminal that is open for reading, too, as one that only takes what is written. None: it is no terminal, or not this
/// user's own to open.
fn write_only(stream: &(impl AsFd + AsRawFd + IsTerminal)) -> Option<File> {
    let path = format!("/proc/self/fd/{}", stream.as_raw_fd());
    let open = || OpenOptions::new().write(true).custom_flags(libc::O_NOCTTY).open(path).ok();
    stream.is_terminal().then(open).flatten()
}

/// Takes all variables away but those that are listed.
fn keep_variables(command: &mut Command) {
    let is_kept = |name: &str| of_client(name) || KEPT.iter().any(|start| name.starts_with(start));
    let kept = std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_kept));
    command.env_clear().envs(kept);
}

/// In the child: what [`running`] says reaches its parent, and it ends with it. It leaves its parent's session, whose
/// terminal is then no longer its own: an interrupt reaches the parent, and ends both.
pub(super) fn begin() -> Result<(), Failure> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let page = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    // Another one than the parent's memory is somebody's own input.
    let parent = if page.metadata()?.is_file() { read(&page)?.parse().ok() } else { None };
    let Some(parent) = parent else {
        return Err(format!("{NAME}: replay, blame, keep, prove and align start this themselves").into());
    };
    if getppid().map(Pid::as_raw_pid) != Some(parent) {
        return Err(format!("{NAME}: process {parent}, which started this, has ended").into());
    }
    page.set_len(0)?;
    setsid()?;
    PAGE.get_or_init(|| page);
    Ok(())
}

/// The end of a command that has said all that it has to say. In the child nothing is freed, for the process ends.
pub(super) fn leave(exit: Exit) -> Outcome {
    answer::flush()?;
    if PAGE.get().is_some() {
        exit::at_once(exit as u8);
    }
    Ok(exit)
}

/// Before a file is read, and nothing of a runtime is loaded: told should it be the last.
pub(super) fn reading(path: &Path) {
    running(&format!("{READING}{}", path.display()));
}

/// What the runtime is about to do, after "while it": told should it be the last.
pub(super) fn running(what: &str) {
    let Some(page) = PAGE.get() else { return };
    let text = &what.as_bytes()[..what.len().min(PAGE_BYTES)];
    // A death without a word of where is told all the same.
    let _ = page.set_len(0).and_then(|()| page.write_all_at(text, 0));
}

fn read(mut page: &File) -> io::Result<String> {
    let mut bytes = Vec::new();
    page.rewind()?;
    page.take(PAGE_BYTES as u64).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn died(ended: Ended, running: &str, after_a_crash: &str) -> Failure {
    // A child that never began leaves its parent's number there.
    let running = if running.bytes().all(|byte| byte.is_ascii_digit()) { "" } else { running };
    let when = if running.is_empty() { "" } else { " while it " };
    let told = match ended.by() {
        By::Crash if running.is_empty() || running.starts_with(READING) => {
            let why = "no runtime was loaded; where it said that memory was not to be had, the file asks for more than                        this machine has; else report this, with what it said";
            format!("the process that runs models {ended}{when}{running}; {why}")
        }
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
        for (running, when) in [("", ""), ("read x.npz", " while it read x.npz")] {
            let told = told(6, running);
            let expected =
                format!("the process that runs models crashed (signal 6, SIGABRT){when}; no runtime was loaded");
            assert!(told.starts_with(&expected), "{told}");
        }
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
