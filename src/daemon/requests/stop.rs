//! The end of the daemon.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::state::{Answer, Connected};
use crate::protocol::control::Reply;
use crate::protocol::message::{ErrorCode, WireError};

/// Ends open dumps; refused while other clients hold something, unless `force`.
pub fn stop(at: &Connected<'_>, force: bool) -> Answer {
    // Who only looks, as `rust-ort status` does, loses nothing.
    let clients = at.daemon.clients();
    let others = clients.iter().filter(|other| other.id != at.client.id && other.state().holds_something()).count();
    if others > 0 && !force {
        let why = format!("stop: {others} other clients are connected; end them or use `rust-ort stop --force`");
        return Err(WireError::client(ErrorCode::BadState, why));
    }
    // The connection ends the daemon once this is sent.
    match at.daemon.end_dumps().as_slice() {
        [] => Ok(Reply::Done),
        incomplete => Err(incomplete_dumps(incomplete)),
    }
}

/// Folders of a dump that an error names; it counts the others.
const NAMED: usize = 10;

fn incomplete_dumps(dumps: &[(PathBuf, Vec<PathBuf>)]) -> WireError {
    let each: Vec<String> = dumps.iter().map(|(run, left)| incomplete(run, left)).collect();
    let message = format!(
        "stop: not all is written of what calls had begun, see incomplete.json there: {}; the daemon ends all the same",
        each.join(", ")
    );
    let mut error = WireError::fault(ErrorCode::Dump, message);
    error.dump = dumps.first().map(|(run, _)| run.display().to_string()).unwrap_or_default();
    error
}

/// A dump, how many of its files are not written, and the data sets that these are of.
fn incomplete(run: &Path, left: &[PathBuf]) -> String {
    let folder = |file: &PathBuf| Some(file.parent()?.strip_prefix(run).ok()?.display().to_string());
    let folders: BTreeSet<String> = left.iter().filter_map(folder).collect();
    let mut named: Vec<&str> = folders.iter().take(NAMED).map(String::as_str).collect();
    let more = format!("{} more folders", folders.len().saturating_sub(NAMED));
    if folders.len() > NAMED {
        named.push(&more);
    }
    format!("{} ({} files, in {})", run.display(), left.len(), named.join(", "))
}
