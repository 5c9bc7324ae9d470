//! The daemon's socket, as the command line names it.

use std::path::PathBuf;

use crate::daemon::paths::{self, PathError};

/// The socket, for every subcommand that talks to the daemon.
#[derive(Debug, clap::Args)]
pub(super) struct SocketArgument {
    /// Path of the daemon's socket [default: RUST_ORT_SOCKET, else v1.sock in a folder of yours]
    #[arg(long)]
    socket: Option<PathBuf>,
}

impl SocketArgument {
    /// What was given, else the default. Errors: no folder for it is known.
    pub(super) fn path(&self) -> Result<PathBuf, PathError> {
        paths::socket(self.socket.as_deref())
    }
}
