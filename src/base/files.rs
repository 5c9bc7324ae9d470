//! Files that are there whole, or not at all.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// How the names of temporary files start; the number of the process that writes them follows.
pub const TEMPORARY_PREFIX: &str = ".tmp-";

/// Write a file whole or not at all: a temporary file beside it, then a rename. A kill leaves at most a temporary file,
/// whose name starts with [`TEMPORARY_PREFIX`]; an error leaves none. Not synced: it outlives the process, not a power cut.
pub fn write_whole(path: &Path, mode: u32, pieces: &[&[u8]]) -> io::Result<()> {
    write_whole_as(path, mode, |file| {
        pieces.iter().try_for_each(|piece| file.write_all(piece))?;
        Ok((path.to_owned(), ()))
    })
}

/// As [`write_whole`], of what `write` puts into the file; it returns the path, which is in the folder of `beside`, and
/// whatever else is to be known.
pub fn write_whole_as<T>(
    beside: &Path,
    mode: u32,
    write: impl FnOnce(&mut File) -> io::Result<(PathBuf, T)>,
) -> io::Result<T> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let n = COUNTER.fetch_add(1, Ordering::Relaxed);
    let temporary = beside.with_file_name(format!("{TEMPORARY_PREFIX}{}-{n}", std::process::id()));
    let written = (|| {
        let mut file = File::options().write(true).create_new(true).mode(mode).open(&temporary)?;
        let (path, known) = write(&mut file)?;
        fs::rename(&temporary, path)?;
        Ok(known)
    })();
    if written.is_err() {
        // The first error is the one to tell.
        let _ = fs::remove_file(&temporary);
    }
    written
}
