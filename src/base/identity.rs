//! Which file stands at a path.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// A file as it was when one looked: another one in its place, or other bytes in it, are another identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
    len_bytes: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

impl Identity {
    /// Of the file that a path leads to. Errors: the file system's.
    pub fn at(path: &Path) -> io::Result<Self> {
        fs::metadata(path).map(|facts| Self::of(&facts))
    }

    /// Of the file with these facts.
    pub fn of(facts: &Metadata) -> Self {
        let modified = (facts.mtime(), facts.mtime_nsec());
        Self { device: facts.dev(), inode: facts.ino(), len_bytes: facts.len(), modified }
    }

    /// Whatever was written to it since.
    pub fn is_same_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}
