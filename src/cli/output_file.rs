//! The file that a command writes and its user named.

use std::fs::{self, Metadata};
use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use super::exit::Failure;
use crate::base::files::{folder_of, write_whole};

/// Links that are followed one after the other, as the kernel does.
const MOST_LINKS: usize = 40;

/// A regular file, or one that is not there yet; `-`: standard output.
#[derive(Debug)]
pub(super) struct OutputFile {
    named: PathBuf,
    /// Files that the command reads, and never writes over.
    read: Vec<PathBuf>,
}

impl OutputFile {
    /// Looks at the place before anything is computed. Errors: it is a folder, a device, a pipe or a socket; it is one of
    /// the files that are read; its folder is not there.
    pub(super) fn at(named: &Path, read: Vec<PathBuf>) -> Result<Self, Failure> {
        let file = Self { named: named.to_owned(), read };
        if !file.is_stdout() {
            file.place().map_err(|why| file.told(&why))?;
        }
        Ok(file)
    }

    /// It is written to standard output, which then has nothing else.
    pub(super) fn is_stdout(&self) -> bool {
        self.named == Path::new("-")
    }

    /// Whether bytes that are no text would go to a terminal.
    pub(super) fn is_terminal(&self) -> bool {
        self.is_stdout() && io::stdout().is_terminal()
    }

    /// Writes the file whole, or not at all; a link stays, and leads to what is written. A reader of standard output that
    /// has gone is no error. Errors: as [`OutputFile::at`]; the file system's.
    pub(super) fn write(&self, content: &[u8]) -> Result<(), Failure> {
        if self.is_stdout() {
            let mut stdout = io::stdout().lock();
            return match stdout.write_all(content).and_then(|()| stdout.flush()) {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
                _ => Ok(()),
            };
        }
        let place = self.place().map_err(|why| self.told(&why))?;
        write_whole(&place, 0o666, &[content]).map_err(|error| self.told(&format!("cannot write: {error}")))
    }

    fn told(&self, why: &str) -> Failure {
        format!("{}: {why}", self.named.display()).into()
    }

    /// Where it is written: links followed to their end. Errors: why it is not.
    fn place(&self) -> Result<PathBuf, String> {
        let cannot = |error: io::Error| format!("cannot write: {error}");
        let place = followed(&self.named).map_err(cannot)?;
        let there = match fs::metadata(&self.named) {
            Ok(there) => there,
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(cannot(error)),
            Err(_) if folder_of(&place).is_dir() => return Ok(place),
            Err(_) => return Err("cannot write: its folder is not there".to_owned()),
        };
        if !there.is_file() {
            return Err(format!("expected a regular file, it is {}; `-` is standard output", kind(&there)));
        }
        if self.read.iter().any(|read| fs::metadata(read).is_ok_and(|read| is_same(&read, &there))) {
            return Err("it is the file that is read; name another one to write".to_owned());
        }
        // Links of /proc lead to files that have no name any more.
        match fs::symlink_metadata(&place).is_ok_and(|found| is_same(&found, &there)) {
            true => Ok(place),
            false => Err("cannot write: the link leads to no name of a file".to_owned()),
        }
    }
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

fn kind(facts: &Metadata) -> &'static str {
    let kind = facts.file_type();
    match () {
        () if kind.is_dir() => "a folder",
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () => "a device",
    }
}

/// The end of a chain of links, which need not be there. Errors: the file system's; too many links.
fn followed(path: &Path) -> io::Result<PathBuf> {
    let mut place = path.to_owned();
    for _ in 0..MOST_LINKS {
        if !place.is_symlink() {
            return Ok(place);
        }
        place = folder_of(&place).join(fs::read_link(&place)?);
    }
    Err(rustix::io::Errno::LOOP.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn what_is_no_regular_file_or_is_read_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let _socket = UnixListener::bind(at("socket")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), rustix::fs::Mode::RWXU).unwrap();
        fs::create_dir(at("folder")).unwrap();
        fs::write(at("model"), "model").unwrap();
        fs::hard_link(at("model"), at("same")).unwrap();
        for (link, target) in [("link", "model"), ("to_pipe", "pipe"), ("loop", "loop"), ("lost", "gone/file")] {
            symlink(target, at(link)).unwrap();
        }
        for (name, expected) in [
            ("socket", "a socket"),
            ("pipe", "a pipe"),
            ("to_pipe", "a pipe"),
            ("folder", "a folder"),
            ("model", "is read"),
            ("same", "is read"),
            ("link", "is read"),
            ("loop", "cannot write"),
            ("lost", "its folder is not there"),
            ("gone/file", "its folder is not there"),
        ] {
            let refused = OutputFile::at(&at(name), vec![at("model")]).unwrap_err().to_string();
            assert!(refused.contains(expected) && refused.contains(name), "{name}: {refused}");
        }
        let device = OutputFile::at(Path::new("/proc/self/ns/net"), Vec::new()).unwrap_err().to_string();
        assert!(device.contains("cannot write"), "{device}");
        assert_eq!(fs::read(at("model")).unwrap(), b"model");
    }

    #[test]
    fn a_link_stays_and_leads_to_what_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("elsewhere")).unwrap();
        fs::write(at("elsewhere/old"), "old").unwrap();
        symlink("elsewhere/old", at("link")).unwrap();
        symlink("elsewhere/new", at("dangling")).unwrap();
        for name in ["link", "dangling", "plain", "plain"] {
            OutputFile::at(&at(name), Vec::new()).unwrap().write(name.as_bytes()).unwrap();
            assert_eq!(fs::read(at(name)).unwrap(), name.as_bytes());
        }
        assert!(at("link").is_symlink() && at("dangling").is_symlink());
        assert_eq!(fs::read(at("elsewhere/old")).unwrap(), b"link");
        assert_eq!(fs::read(at("elsewhere/new")).unwrap(), b"dangling");
    }

    /// Looked at again: what was no file before may have become one.
    #[test]
    fn what_comes_meanwhile_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let file = OutputFile::at(&path, Vec::new()).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(file.write(b"x").unwrap_err().to_string().contains("a folder"));
    }
}
