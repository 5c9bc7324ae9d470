//! `rust-ort stop`.

use std::time::{Duration, Instant};

use super::{Exit, Outcome, SocketArgument, table};
use crate::daemon::peer::{Peer, PeerError};
use crate::daemon::socket;
use crate::protocol::control::Request;
use crate::protocol::message::ErrorCode;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    socket: SocketArgument,
    /// Also while clients are connected; their next call starts a daemon again
    #[arg(long)]
    force: bool,
}

pub(super) fn run(arguments: &Arguments) -> Outcome {
    let path = arguments.socket.path()?;
    let (mut peer, welcome) = match Peer::connect(&path, "rust-ort stop") {
        Ok(connected) => connected,
        Err(PeerError::Absent { .. }) => {
            table::put(&format!("no daemon answers on {}\n", path.display()))?;
            return Ok(Exit::Success);
        }
        Err(error) => return Err(error.into()),
    };
    let incomplete = match peer.ask(&Request::Stop { force: arguments.force }) {
        Ok(_) => None,
        // It ends all the same.
        Err(PeerError::Refused(error)) if error.code == ErrorCode::Dump => Some(error),
        Err(error) => return Err(error.into()),
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    while path.exists() || socket::is_held(&path) {
        if Instant::now() > deadline {
            return Err(
                format!("daemon {} was told to end but has not yet; see {}", welcome.daemon_pid, welcome.log).into()
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    table::put(&format!("daemon {} ended\n", welcome.daemon_pid))?;
    match incomplete {
        None => Ok(Exit::Success),
        Some(error) => Err(error.into()),
    }
}
