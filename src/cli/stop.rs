//! `rust-ort stop`.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use super::answer::tell;
use super::exit::{Failure, Outcome};
use super::socket_argument::SocketArgument;
use crate::client::{Peer, PeerError};
use crate::daemon::socket;
use crate::protocol::control::{Request, Welcome};
use crate::protocol::message::ErrorCode;

/// How long a daemon may take until it has ended.
const END: Duration = Duration::from_secs(20);
/// Between two looks whether it has.
const POLL: Duration = Duration::from_millis(5);

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
    wait_for_end(peer, &path, &welcome)?;
    let words = format!("daemon {} ended\n", welcome.daemon_pid);
    let ended = tell("stop", arguments.json, json!({ "daemon_pid": welcome.daemon_pid, "socket": path }), &words)?;
    incomplete.map_or(Ok(ended), |error| Err(error.into()))
}

/// Waits until the daemon has ended: it holds its lock until then. Whoever starts in that moment takes the lock, so a
/// successor that answers tells of its end, too. Errors: it takes longer than [`END`].
fn wait_for_end(mut peer: Peer, path: &Path, welcome: &Welcome) -> Result<(), Failure> {
    let deadline = Instant::now() + END;
    let mut is_gone = false;
    while (path.exists() || socket::is_held(path)) && !(is_gone && is_succeeded(path, welcome)) {
        if Instant::now() > deadline {
            return Err(
                format!("daemon {} was told to end but has not yet; see {}", welcome.daemon_pid, welcome.log).into()
            );
        }
        // Connecting before it has hung up would only keep it.
        if is_gone {
            std::thread::sleep(POLL);
        } else {
            is_gone = peer.next_answer(POLL).is_err();
        }
    }
    Ok(())
}

/// Whether another daemon answers. Its pid alone does not tell: namespaces of pids have equal ones.
fn is_succeeded(path: &Path, ended: &Welcome) -> bool {
    Peer::connect(path, "rust-ort stop")
        .is_ok_and(|(_, welcome)| (welcome.daemon_pid, &welcome.log) != (ended.daemon_pid, &ended.log))
}
