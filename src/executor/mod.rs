//! The executor process: holds the runtime and its sessions, serves the link to the daemon and the lanes of one client at
//! a time.

mod lane;
mod server;
pub mod session_cache;
mod tenant;

use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::mpsc;

use crate::link::message::{LinkReply, LinkRequest};
use crate::link::socket;
use crate::protocol::message::{ErrorCode, ErrorKind, WireError};

/// The process's main. `link` is connected to the daemon, which first says `Hello`. Ends by `Exit` with success, by an
/// unusable link with failure, and at the end of the link (the daemon is gone) at once, whatever is running.
pub fn main(link: UnixStream) -> ExitCode {
    let (sender, mut receiver) = match socket::split::<LinkReply, LinkRequest>(link) {
        Ok(halves) => halves,
        Err(error) => {
            tracing::error!(%error, "no link to the daemon");
            return ExitCode::FAILURE;
        }
    };
    // A thread of its own, so that the daemon's end is seen while a request is being served.
    let (requests, to_serve) = mpsc::channel();
    std::thread::spawn(move || {
        loop {
            match receiver.recv() {
                Ok(Some(request)) => {
                    if requests.send(request).is_err() {
                        return;
                    }
                }
                Ok(None) => end_now("the daemon is gone"),
                Err(error) => end_now(&error.to_string()),
            }
        }
    });
    server::Server::new(sender).serve(to_serve)
}

/// What a call is told when the code that served it panicked.
fn panicked() -> WireError {
    let message = "the executor panicked in this request; run again, and please report it with the executor's log";
    WireError::new(ErrorKind::Fault, ErrorCode::Internal, message)
}

/// Ends the process without the runtime's destructors, which may wait for threads that are inside a run.
fn end_now(reason: &str) -> ! {
    tracing::info!(reason, "executor ends");
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::process::abort()
}
