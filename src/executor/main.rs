//! The process.

use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::mpsc;

use super::failure::end_now;
use super::server::Server;
use crate::base::process;
use crate::cuda;
use crate::link::message::{LinkReply, LinkRequest};
use crate::link::socket;

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
    process::offer_memory();
    cuda::serve(None);
    let mut server = Server::new(sender);
    // No other thread is there before it is confined: walls are around the calling one and those that it starts.
    while !server.is_loaded() {
        match receiver.recv() {
            Ok(Some(received)) => {
                if let Some(code) = server.answer(received) {
                    return code;
                }
            }
            Ok(None) => end_now("the daemon is gone"),
            Err(error) => end_now(&error.to_string()),
        }
    }
    // A thread of its own, so that the daemon's end is seen while a request is being served.
    let (requests, to_serve) = mpsc::channel();
    let watcher = std::thread::Builder::new().name("link".to_owned());
    let watching = watcher.spawn(move || {
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
    if let Err(error) = watching {
        end_now(&process::no_thread(&error));
    }
    server.serve(to_serve)
}
