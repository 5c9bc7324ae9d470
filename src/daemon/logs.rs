//! Log files of daemon and executors in one folder, which namespaces and hosts may share.
//!
//! A process holds its log's lock as long as it lives, since ids of processes repeat.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::base::files::write_whole;
use crate::base::limits;
use crate::base::sync::lock;

/// Logs of other processes that may have the same name at once.
const MOST_NAMESAKES: u32 = 1000;

/// Of this process's daemons, of which tests may have several.
static OWN: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// `<stem>.<extension>`, or `<stem>.<n>.<extension>` where a process that lives has that: opened to append, and locked.
/// Errors: the file system's.
pub(super) fn open(folder: &Path, stem: &str, extension: &str) -> io::Result<(PathBuf, File)> {
    let names = (1..MOST_NAMESAKES).map(|n| format!("{stem}.{n}.{extension}"));
    for name in std::iter::once(format!("{stem}.{extension}")).chain(names) {
        let path = folder.join(name);
        let flags = OFlags::NOFOLLOW.bits() as i32;
        let opened = File::options().create(true).append(true).mode(0o600).custom_flags(flags).open(&path);
        let file = opened.map_err(|error| at(&path, &error))?;
        let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
        if locked != Err(Errno::WOULDBLOCK) || lock(&OWN).contains(&path) {
            return Ok((path, file));
        }
    }
    Err(io::Error::other(format!("{MOST_NAMESAKES} processes have logs called {stem}")))
}

/// An error with the path that it is about.
pub(super) fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// As [`open`], of this process's own daemon.
pub(super) fn open_own(folder: &Path) -> io::Result<(PathBuf, File)> {
    let opened = open(folder, &format!("daemon-{}", std::process::id()), "log")?;
    lock(&OWN).insert(opened.0.clone());
    Ok(opened)
}

/// Cuts a log that has grown past [`limits::LOG_BYTES`]: its end goes to `<stem>.old.log`, and whoever writes, appending,
/// goes on at its start. Lines that come meanwhile may be lost, and that end where it cannot be written: a full disk is to
/// have its room back all the same.
pub(super) fn trim(log: &Path) {
    let trim = || {
        let flags = OFlags::NOFOLLOW.bits() as i32;
        let mut file = File::options().read(true).write(true).custom_flags(flags).open(log)?;
        let len_bytes = file.metadata()?.len();
        if len_bytes <= limits::LOG_BYTES {
            return Ok(());
        }
        let mut end = Vec::new();
        file.seek(SeekFrom::Start(len_bytes - limits::OLD_LOG_BYTES))?;
        file.by_ref().take(limits::OLD_LOG_BYTES).read_to_end(&mut end)?;
        let old = log.with_extension("old.log");
        let kept = write_whole(&old, 0o600, &[&end]);
        file.set_len(0)?;
        // A full disk has room for it only now.
        kept.or_else(|_| write_whole(&old, 0o600, &[&end]))
    };
    if let Err(error) = trim() {
        tracing::debug!(log = %log.display(), %error, "log not cut");
    }
}

/// Whether a daemon names its log, or an executor's, so: `daemon-<pid>.log`, `executor-<pid>.log`,
/// `executor-<pid of the daemon>-<n>.starting`, each with a number before the extension where names repeat, and `old` where
/// it is what [`trim`] left.
pub(super) fn is_log(name: &str) -> bool {
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u64>().is_ok();
    let Some((stem, extension)) = name.rsplit_once('.') else { return false };
    let is_mark = |mark: &str| mark == "old" || is_number(mark);
    let stem = stem.split_once('.').map_or(Some(stem), |(stem, marks)| marks.split('.').all(is_mark).then_some(stem));
    match (stem, extension) {
        (Some(stem), "log") => {
            let ids = ["daemon-", "executor-"].iter().find_map(|kind| stem.strip_prefix(kind));
            ids.is_some_and(|ids| ids.split('-').all(is_number))
        }
        (Some(stem), "starting") => {
            let ids = stem.strip_prefix("executor-").and_then(|ids| ids.split_once('-'));
            ids.is_some_and(|(pid, n)| is_number(pid) && is_number(n))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use super::*;
    use crate::base::files::is_locked;

    #[test]
    fn a_log_that_another_process_writes_is_not_written_into() {
        let folder = tempfile::tempdir().unwrap();
        let (first, held) = open(folder.path(), "executor-7", "log").unwrap();
        let (second, _other) = open(folder.path(), "executor-7", "log").unwrap();
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!([name(&first), name(&second)], ["executor-7.log", "executor-7.1.log"]);
        assert!(is_locked(&first) && is_log(&name(&first)) && is_log(&name(&second)));
        drop(held);
        assert!(!is_locked(&first));
        assert_eq!(open(folder.path(), "executor-7", "log").unwrap().0, first);
        let (own, _held) = open_own(folder.path()).unwrap();
        assert_eq!(open_own(folder.path()).unwrap().0, own);
    }

    #[test]
    fn a_log_that_grows_is_cut_and_its_end_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (log, mut file) = open(folder.path(), "daemon-7", "log").unwrap();
        file.write_all(b"short\n").unwrap();
        trim(&log);
        assert_eq!(fs::read(&log).unwrap(), b"short\n");
        let line = [b'x'; 1023].iter().chain(b"\n").copied().collect::<Vec<_>>();
        (0..limits::LOG_BYTES / 1024).for_each(|_| file.write_all(&line).unwrap());
        file.write_all(b"the end\n").unwrap();
        trim(&log);
        file.write_all(b"after\n").unwrap();
        let old = folder.path().join("daemon-7.old.log");
        let kept = fs::read(&old).unwrap();
        assert!(kept.ends_with(b"x\nthe end\n") && kept.len() as u64 == limits::OLD_LOG_BYTES);
        assert_eq!(fs::read(&log).unwrap(), b"after\n");
        assert!(is_log("daemon-7.old.log") && is_log("executor-7.1.old.log") && is_locked(&log));
    }

    /// As on a full disk, which has no room for another file before the log is cut.
    #[test]
    fn a_log_is_cut_where_its_end_cannot_be_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (log, file) = open(folder.path(), "daemon-7", "log").unwrap();
        fs::create_dir(folder.path().join("daemon-7.old.log")).unwrap();
        file.set_len(limits::LOG_BYTES + 1).unwrap();
        trim(&log);
        assert_eq!(fs::metadata(&log).unwrap().len(), 0);
    }

    #[test]
    fn other_names_are_no_logs() {
        for name in ["executor-1-2.starting", "executor-1-2.3.starting", "daemon-1.log"] {
            assert!(is_log(name), "{name}");
        }
        for name in
            ["daemon-.log", "daemon-1e3.log", "executor-+5.log", "x.log", "daemon-8388609.log.1", "daemon-1.x.log"]
        {
            assert!(!is_log(name), "{name}");
        }
    }
}
