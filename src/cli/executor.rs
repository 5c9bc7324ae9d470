//! `rust-ort executor`: what the daemon starts to hold a runtime. Its standard input is the link.

use std::io::IsTerminal as _;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use super::exit::{Exit, Outcome};
use crate::base::log;

pub(super) fn run() -> Outcome {
    let stdin = std::io::stdin();
    if stdin.is_terminal() || rustix::net::sockopt::socket_domain(&stdin).is_err() {
        return Err("executor: standard input is no link; the daemon (`rust-ort serve`) starts executors itself".into());
    }
    log::start(std::io::stderr);
    let link = UnixStream::from(stdin.as_fd().try_clone_to_owned()?);
    let ended = crate::executor::main(link);
    Ok(if ended == ExitCode::SUCCESS { Exit::Success } else { Exit::Error })
}
