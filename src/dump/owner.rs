//! Whose a run's folder is: a dump of ours, and written by one client at a time.

use std::fs::{self, File};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use super::error::DumpError;
use super::layout::{RUN_SCHEMA, run_schema};

/// A folder's lock, until it is dropped.
pub(super) struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing alone would not do: a process that is being started just now has a copy of the descriptor until it is
        // another program.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// The folder, locked for whoever writes into it or removes it. Errors: [`DumpError::Busy`], [`DumpError::Io`].
pub(super) fn hold(folder: &Path) -> Result<Lock, DumpError> {
    let held = File::open(folder).map_err(DumpError::io(folder, "open"))?;
    flock(&held, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
        rustix::io::Errno::WOULDBLOCK => DumpError::Busy { path: folder.to_owned() },
        other => DumpError::io(folder, "lock")(other.into()),
    })?;
    Ok(Lock(held))
}

/// Whether a folder is a dump of ours, of whatever version.
pub fn is_ours(folder: &Path) -> bool {
    run_schema(folder).is_some()
}

/// Whether somebody has the dump open.
pub fn is_being_written(folder: &Path) -> bool {
    matches!(hold(folder), Err(DumpError::Busy { .. }))
}

/// A dump of ours, of this version if so asked, or an empty folder. Errors: [`DumpError::OtherVersion`],
/// [`DumpError::NotOurs`], [`DumpError::Io`].
pub(super) fn check_ours(folder: &Path, this_version: bool) -> Result<(), DumpError> {
    let path = folder.to_owned();
    match run_schema(folder) {
        Some(found) if this_version && found != RUN_SCHEMA => {
            Err(DumpError::OtherVersion { path, found, expected: RUN_SCHEMA })
        }
        Some(_) => Ok(()),
        None => {
            let mut entries = fs::read_dir(folder).map_err(DumpError::io(folder, "list"))?;
            if entries.next().is_none() { Ok(()) } else { Err(DumpError::NotOurs { path }) }
        }
    }
}
