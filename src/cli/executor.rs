//! `rust-ort executor`: what the daemon starts to hold a runtime. Its standard input is the link.

use std::io::IsTerminal as _;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use super::exit::{Exit, Outcome};

pub(super) fn run() -> Outcome {
    let stdin = std::io::stdin();
    if stdin.is_terminal() || rustix::net::sockopt::socket_domain(&stdin).is_err() {
        return Err("executor: standard input is no link; the daemon (`rust-ort serve`) starts executors itself".into());
    }
    let filter = std::env::var("RUST_ORT_LOG").unwrap_or_else(|_| "info".to_owned());
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_env_filter(tracing_subscriber::EnvFilter::try_new(filter).unwrap_or_else(|_| "info".into()))
        .init();
    let link = UnixStream::from(stdin.as_fd().try_clone_to_owned()?);
    let ended = crate::executor::main(link);
    Ok(if ended == ExitCode::SUCCESS { Exit::Success } else { Exit::Error })
}
