//! Files that are there whole, or not at all.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use tempfile::TempPath;

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
    let name = format!("{TEMPORARY_PREFIX}{}-{n}", std::process::id());
    // Not a NamedTempFile: the name is to tell whose it is, and its errors would tell the name.
    let temporary = TempPath::try_from_path(beside.with_file_name(name))?;
    let mut file = File::options().write(true).create_new(true).mode(mode).open(&temporary)?;
    let (path, known) = write(&mut file)?;
    temporary.persist(path)?;
    Ok(known)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::{fs, panic};

    use super::*;

    #[test]
    fn a_file_is_there_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let (path, names) = (folder.path().join("file"), || fs::read_dir(folder.path()).unwrap().count());
        write_whole(&path, 0o600, &[b"old"]).unwrap();
        let fails = |error: fn() -> io::Error| write_whole_as::<()>(&path, 0o600, move |_| Err(error()));
        assert_eq!(fails(|| io::ErrorKind::StorageFull.into()).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert!(panic::catch_unwind(|| fails(|| panic!("while it writes"))).is_err());
        assert_eq!((fs::read(&path).unwrap(), names()), (b"old".to_vec(), 1));
        write_whole(&path, 0o640, &[b"ne", b"w"]).unwrap();
        assert_eq!((fs::read(&path).unwrap(), names()), (b"new".to_vec(), 1));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn a_temporary_file_tells_who_writes_it() {
        let folder = tempfile::tempdir().unwrap();
        write_whole_as(&folder.path().join("file"), 0o600, |_| {
            let name = fs::read_dir(folder.path())?.next().unwrap()?.file_name().into_string().unwrap();
            let (pid, n) = name.strip_prefix(TEMPORARY_PREFIX).unwrap().split_once('-').unwrap();
            assert_eq!((pid.parse(), n.parse::<u64>().is_ok()), (Ok(std::process::id()), true), "{name}");
            Ok((folder.path().join("other"), ()))
        })
        .unwrap();
        assert!(folder.path().join("other").exists() && !folder.path().join("file").exists());
    }
}
