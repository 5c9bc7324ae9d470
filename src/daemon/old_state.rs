//! What earlier daemons left in the state folder: the newest logs and quarantine folders stay.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::base::files::is_locked;
use crate::base::limits;
use crate::daemon::logs;
use crate::dump;

/// Removes all but the newest [`limits::LOGS`] logs in `log/` and [`limits::QUARANTINE_FOLDERS`] folders in
/// `quarantine/`, with the tensors that only they held. What is not named as a daemon names it, is a link or another
/// user's, is a folder but no dump of ours, or is the log of a living process stays: the state folder may be any folder
/// that the user named. What cannot be removed is logged.
pub fn remove(state_folder: &Path) {
    let (logs, quarantine) = (state_folder.join("log"), state_folder.join("quarantine"));
    let n_logs = remove_each(surplus(logs_in(&logs), limits::LOGS), |log| fs::remove_file(log));
    let n_folders = remove_surplus_quarantine(&quarantine);
    if n_logs + n_folders > 0 {
        tracing::info!(logs = n_logs, quarantine_folders = n_folders, "old state removed");
    }
}

/// Removes all but the newest [`limits::QUARANTINE_FOLDERS`] folders of `quarantine`, with the tensors that only they
/// held; those younger than [`limits::QUARANTINE_AGE`] or still being written stay, too. Returns how many went. Also after
/// each death: a daemon may live for months.
pub fn remove_surplus_quarantine(quarantine: &Path) -> usize {
    let surplus = surplus(quarantined_in(quarantine), limits::QUARANTINE_FOLDERS);
    let folders = surplus.filter(|folder| is_done(folder));
    let n_folders = remove_each(folders, |folder| fs::remove_dir_all(folder));
    if n_folders > 0
        && let Err(error) = dump::gc(quarantine, None, false)
    {
        tracing::warn!(%error, "tensors of old quarantine folders");
    }
    n_folders
}

/// Those after the `keep` newest; equally new ones by path.
fn surplus<Age: Ord>(mut found: Vec<(Age, PathBuf)>, keep: usize) -> impl Iterator<Item = PathBuf> {
    found.sort_by(|one, other| other.cmp(one));
    found.into_iter().skip(keep).map(|(_, path)| path)
}

/// Returns how many went.
fn remove_each(paths: impl Iterator<Item = PathBuf>, remove: impl Fn(&Path) -> io::Result<()>) -> usize {
    let mut removed = 0;
    for path in paths {
        match remove(&path) {
            Ok(()) => removed += 1,
            // Two daemons may start at once.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(path = %path.display(), %error, "old state stays"),
        }
    }
    removed
}

/// Logs of processes that are gone, with the time of their last line.
fn logs_in(folder: &Path) -> Vec<(SystemTime, PathBuf)> {
    let log = |entry: &fs::DirEntry| {
        logs::is_log(entry.file_name().to_str()?).then_some(())?;
        let facts = entry.metadata().ok().filter(|facts| facts.is_file() && is_own(facts))?;
        Some((facts.modified().ok()?, entry.path())).filter(|(_, path)| !is_locked(path))
    };
    entries(folder).iter().filter_map(log).collect()
}

/// Old enough to go, and nobody writes it: of many executors that die at once each client is told a folder that is there.
fn is_done(quarantined: &Path) -> bool {
    let modified = fs::symlink_metadata(quarantined).and_then(|facts| facts.modified());
    // A time to come tells nothing of the age.
    let age = modified.ok().and_then(|modified| modified.elapsed().ok());
    age.is_some_and(|age| age >= limits::QUARANTINE_AGE) && !dump::is_being_written(quarantined)
}

/// Folders that a post-mortem wrote, with what their names tell of their age.
fn quarantined_in(folder: &Path) -> Vec<((String, u64), PathBuf)> {
    let quarantined = |entry: &fs::DirEntry| {
        let age = death_time(entry.file_name().to_str()?)?;
        // Not through a link: the entry's own facts.
        let is_folder = entry.metadata().is_ok_and(|facts| facts.is_dir() && is_own(&facts));
        Some((age, entry.path())).filter(|(_, path)| is_folder && dump::is_ours(path))
    };
    entries(folder).iter().filter_map(quarantined).collect()
}

/// `<date>-<time>-<8 digits of the graph>-<n>` → date and time, n.
fn death_time(name: &str) -> Option<(String, u64)> {
    let parts: Vec<&str> = name.split('-').collect();
    let &[date, time, graph, n] = parts.as_slice() else { return None };
    let ours = (date.len(), time.len(), graph.len()) == (8, 6, 8) && graph.bytes().all(|c| c.is_ascii_hexdigit());
    number(date).and(number(time)).filter(|_| ours)?;
    Some((format!("{date}-{time}"), number(n)?))
}

/// Decimal digits only.
fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|_| text.bytes().all(|c| c.is_ascii_digit()))
}

fn is_own(facts: &fs::Metadata) -> bool {
    facts.uid() == rustix::process::getuid().as_raw()
}

/// Of a folder that need not be there. Not through a link: what it leads to was not made by a daemon.
fn entries(folder: &Path) -> Vec<fs::DirEntry> {
    let is_folder = fs::symlink_metadata(folder).is_ok_and(|facts| facts.is_dir() && is_own(&facts));
    let found = is_folder.then(|| fs::read_dir(folder).ok()).flatten();
    found.into_iter().flatten().filter_map(Result::ok).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::symlink;
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    /// No process has a number that high.
    const DEAD: u32 = 1 << 23;

    fn names(folder: &Path) -> BTreeSet<String> {
        entries(folder).iter().map(|entry| entry.file_name().into_string().unwrap()).collect()
    }

    fn write(path: PathBuf, age_s: u64) {
        fs::write(&path, "text").unwrap();
        let at = UNIX_EPOCH + Duration::from_secs(1_000_000 - age_s);
        fs::File::options().write(true).open(path).unwrap().set_modified(at).unwrap();
    }

    #[test]
    fn newest_logs_stay_and_foreign_files_are_not_touched() {
        let state = tempfile::tempdir().unwrap();
        let folder = state.path().join("log");
        fs::create_dir(&folder).unwrap();
        let name = |age: u32| match age % 3 {
            0 => format!("daemon-{}.log", DEAD + age),
            1 => format!("executor-{}.log", DEAD + age),
            _ => format!("executor-{}-{age}.starting", DEAD + age),
        };
        (0..30).for_each(|age| write(folder.join(name(age)), age.into()));
        let mut expected: BTreeSet<String> = (0..20).map(name).collect();
        let alive = format!("daemon-{}.log", DEAD + 100);
        for foreign in [&alive, "daemon-.log", "daemon-1e3.log", "executor-+5.log", "x.log", "daemon-8388609.log.1"] {
            write(folder.join(foreign), 999_999);
            expected.insert(foreign.to_owned());
        }
        // As another host's daemon has it.
        let written = fs::File::open(folder.join(&alive)).unwrap();
        rustix::fs::flock(&written, rustix::fs::FlockOperation::LockExclusive).unwrap();
        fs::create_dir(folder.join("daemon-9000001.log")).unwrap();
        symlink("/etc/hostname", folder.join("daemon-9000002.log")).unwrap();
        expected.extend(["daemon-9000001.log".to_owned(), "daemon-9000002.log".to_owned()]);
        remove(state.path());
        assert_eq!(names(&folder), expected);
    }

    #[test]
    fn newest_quarantine_folders_stay_and_tensors_go_with_the_others() {
        let state = tempfile::tempdir().unwrap();
        let folder = state.path().join("quarantine");
        fs::create_dir_all(folder.join("tensors")).unwrap();
        // The number, not its text, orders deaths of one second.
        let name = |n: u32| format!("20260131-235959-0123abcd-{n}");
        for n in 0..25 {
            let run = folder.join(name(n));
            fs::create_dir(&run).unwrap();
            fs::write(run.join("run.json"), r#"{"schema": "rust_ort/run/1"}"#).unwrap();
            let tensor = folder.join(format!("tensors/{n:064x}.pb"));
            fs::write(&tensor, "tensor").unwrap();
            fs::hard_link(&tensor, run.join("input_0.pb")).unwrap();
            // The oldest of all was written a moment ago.
            if n > 0 {
                let hour = SystemTime::now() - Duration::from_secs(3600);
                fs::File::open(&run).unwrap().set_modified(hour).unwrap();
            }
        }
        // One that goes by its age is being written.
        let written = fs::File::open(folder.join(name(1))).unwrap();
        rustix::fs::flock(&written, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let stay = || (0..2).chain(5..25);
        let mut expected: BTreeSet<String> = stay().map(name).collect();
        for foreign in ["mine", "20250131-235959-0123abcd", "20250131-235959-0123abcx-1", "20250131-23595-0123abcd-1"] {
            fs::create_dir(folder.join(foreign)).unwrap();
            expected.insert(foreign.to_owned());
        }
        let link = "20250131-235959-0123abcd-1";
        symlink(state.path(), folder.join(link)).unwrap();
        expected.extend([link.to_owned(), "tensors".to_owned()]);
        remove(state.path());
        assert_eq!(names(&folder), expected);
        assert_eq!(names(&folder.join("tensors")), stay().map(|n| format!("{n:064x}.pb")).collect());
    }

    #[test]
    fn a_folder_that_is_named_like_a_death_but_is_no_dump_stays() {
        let state = tempfile::tempdir().unwrap();
        let folder = state.path().join("quarantine");
        for n in 0..30 {
            let album = folder.join(format!("20250131-235959-0123abcd-{n}"));
            fs::create_dir_all(&album).unwrap();
            fs::write(album.join("wedding.jpg"), "photo").unwrap();
        }
        remove(state.path());
        assert_eq!(names(&folder).len(), 30);
    }

    #[test]
    fn folders_that_are_links_are_not_entered() {
        let (state, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        (0..30).for_each(|n| write(elsewhere.path().join(format!("daemon-{}.log", DEAD + n)), n.into()));
        symlink(elsewhere.path(), state.path().join("log")).unwrap();
        remove(state.path());
        assert_eq!(names(elsewhere.path()).len(), 30);
    }

    #[test]
    fn a_state_folder_that_is_empty_or_absent_stays_as_it_is() {
        let state = tempfile::tempdir().unwrap();
        remove(state.path());
        remove(&state.path().join("absent"));
        assert!(names(state.path()).is_empty());
    }
}
