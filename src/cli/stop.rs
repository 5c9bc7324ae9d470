//! `rust-ort stop`.

use std::time::{Duration, Instant};

use serde_json::json;

use super::answer::tell;
use super::exit::Outcome;
use super::socket_argument::SocketArgument;
use crate::client::{Peer, PeerError};
use crate::daemon::socket;
use crate::protocol::control::Request;
use crate::protocol::message::ErrorCode;

/// How long a daemon may take until it has ended.
const END: Duration = Duration::from_secs(20);

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    socket: SocketArgument,
    /// Also while clients are connected; their next call starts a daemon again
    #[arg(long)]
    force: bool,
    /// Print which daemon ended as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Outcome {
    let path = arguments.socket.path()?;
    let (mut peer, welcome) = match Peer::connect(&path, "rust-ort stop") {
        Ok(connected) => connected,
        Err(PeerError::Absent { .. }) => {
            let words = format!("no daemon answers on {}\n", path.display());
            return tell("stop", arguments.json, json!({ "daemon_pid": null, "socket": path }), &words);
        }
        Err(error) => return Err(error.into()),
    };
    let incomplete = match peer.ask(&Request::Stop { force: arguments.force }) {
        Ok(_) => None,
        // It ends all the same.
        Err(PeerError::Refused(error)) if error.code == ErrorCode::Dump => Some(error),
        Err(error) => return Err(error.into()),
    };
    let deadline = Instant::now() + END;
    while path.exists() || socket::is_held(&path) {
        if Instant::now() > deadline {
            return Err(
                format!("daemon {} was told to end but has not yet; see {}", welcome.daemon_pid, welcome.log).into()
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let words = format!("daemon {} ended\n", welcome.daemon_pid);
    let ended = tell("stop", arguments.json, json!({ "daemon_pid": welcome.daemon_pid, "socket": path }), &words)?;
    incomplete.map_or(Ok(ended), |error| Err(error.into()))
}
