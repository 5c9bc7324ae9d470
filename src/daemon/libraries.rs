//! Shared libraries that executors have loaded for this user's clients, by content: `<state>/libraries.json`.
//!
//! A dump may come from anywhere and names libraries, which are code. Its path is only a key into this list: what the list
//! has under that path, with that content, has run here before.

use std::collections::HashMap;
use std::fs::{DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};

use crate::base::files::{open_regular, write_whole};
use crate::base::limits;
use crate::base::sync::lock;

const FILE: &str = "libraries.json";
const SCHEMA: &str = "rust_ort/libraries/1";
/// Of the list: each entry is a path and two hundred bytes.
const MAX_LIST_BYTES: u64 = 4 << 20;

/// The list of one state folder. Daemons that share the folder may write at the same time: an entry that is lost is
/// written again when its library is loaded next.
#[derive(Debug)]
pub struct KnownLibraries {
    file: PathBuf,
    /// Those that this process has put on the list, as they were.
    remembered: Mutex<HashMap<PathBuf, Facts>>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct List {
    schema: String,
    /// The one that was added last goes last.
    libraries: Vec<Known>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Known {
    path: PathBuf,
    /// blake3 of the content, hexadecimal.
    hash: String,
    facts: Facts,
}

/// Facts of a file that change when its content does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Facts {
    device: u64,
    inode: u64,
    len_bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Facts {
    fn of(facts: &Metadata) -> Self {
        Self {
            device: facts.dev(),
            inode: facts.ino(),
            len_bytes: facts.len(),
            modified: (facts.mtime(), facts.mtime_nsec()),
            changed: (facts.ctime(), facts.ctime_nsec()),
        }
    }
}

impl KnownLibraries {
    /// The list in a state folder, which need not be there.
    pub fn below(state_folder: &Path) -> Self {
        Self { file: state_folder.join(FILE), remembered: Mutex::default() }
    }

    /// Puts a library on the list, which an executor has loaded. A file is hashed once for each inode, length and time of
    /// change. What the file system refuses is logged: replaying a dump then asks for the library by a flag.
    pub fn remember(&self, library: &Path) {
        if let Err(error) = self.add(library) {
            tracing::warn!(library = %library.display(), %error, "library not remembered");
        }
    }

    /// As [`KnownLibraries::remember`], on a thread of its own: a library's disk may be slow, or not answer, and nobody who
    /// runs it waits for this.
    pub fn remember_soon(self: &Arc<Self>, library: &Path) {
        let (libraries, library) = (Arc::clone(self), library.to_owned());
        let thread = std::thread::Builder::new().name("libraries".to_owned());
        if let Err(error) = thread.spawn(move || libraries.remember(&library)) {
            tracing::warn!(%error, "library not remembered: no thread");
        }
    }

    fn add(&self, library: &Path) -> io::Result<()> {
        let (mut file, facts) = open_regular(library)?;
        let facts = Facts::of(&facts);
        if !library.is_absolute() || lock(&self.remembered).get(library) == Some(&facts) {
            return Ok(());
        }
        let is_same = |known: &Known| known.path == library && known.facts == facts;
        let listed = self.read().is_ok_and(|list| list.libraries.iter().any(is_same));
        let hash = match listed {
            true => String::new(),
            false => blake3::Hasher::new().update_reader(&mut file)?.finalize().to_string(),
        };
        // Held while the list is read and written, and while nothing else is.
        let mut remembered = lock(&self.remembered);
        let mut list = self.read().unwrap_or_else(|error| {
            tracing::warn!(file = %self.file.display(), %error, "list of libraries not read; it is begun anew");
            List::default()
        });
        if !listed {
            list.libraries.retain(|known| known.path != library);
            list.libraries.push(Known { path: library.to_owned(), hash, facts });
            let surplus = list.libraries.len().saturating_sub(limits::KNOWN_LIBRARIES);
            list.libraries.drain(..surplus);
            SCHEMA.clone_into(&mut list.schema);
            if let Some(folder) = self.file.parent() {
                DirBuilder::new().mode(0o700).recursive(true).create(folder)?;
            }
            write_whole(&self.file, 0o600, &[&serde_json::to_vec_pretty(&list)?])?;
        }
        remembered.insert(library.to_owned(), facts);
        Ok(())
    }

    /// Whether the list has this path, and the file there has the content that the list tells. Errors: the list or the file
    /// cannot be read.
    pub fn knows(&self, library: &Path) -> io::Result<bool> {
        let list = self.read()?;
        let Some(known) = list.libraries.iter().find(|known| known.path == library) else { return Ok(false) };
        let (mut file, facts) = open_regular(library)?;
        if facts.len() != known.facts.len_bytes {
            return Ok(false);
        }
        Ok(blake3::Hasher::new().update_reader(&mut file)?.finalize().to_hex().as_str() == known.hash)
    }

    /// Empty when there is none. Errors: it cannot be read, is another user's or open to others, or of another version.
    fn read(&self) -> io::Result<List> {
        let (mut file, facts) = match open_regular(&self.file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(List::default()),
            opened => opened?,
        };
        let (uid, mode) = (rustix::process::getuid().as_raw(), facts.mode() & 0o7777);
        if facts.uid() != uid || mode & 0o022 != 0 || facts.len() > MAX_LIST_BYTES {
            let got = format!("uid {}, mode {mode:04o}, {} bytes", facts.uid(), facts.len());
            return Err(io::Error::other(format!(
                "{}: expected a file of ours, got {got}; remove it",
                self.file.display()
            )));
        }
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut file, &mut bytes)?;
        let list: List = serde_json::from_slice(&bytes)?;
        if list.schema != SCHEMA {
            let got = list.schema;
            return Err(io::Error::other(format!("{}: schema {got:?}, expected {SCHEMA:?}", self.file.display())));
        }
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_library_is_known_by_path_and_content_together() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let state = at("state");
        fs::write(at("a.so"), "code").unwrap();
        fs::copy(at("a.so"), at("copy.so")).unwrap();
        let knows = |name: &str| KnownLibraries::below(&state).knows(&at(name)).unwrap();
        assert!(!knows("a.so"));
        let daemon = KnownLibraries::below(&state);
        daemon.remember(&at("a.so"));
        assert!(knows("a.so") && !knows("copy.so"));
        assert!(!KnownLibraries::below(&state).knows(Path::new("a.so")).unwrap());
        assert_eq!(fs::metadata(state.join(FILE)).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(at("a.so"), "evil").unwrap();
        assert!(!knows("a.so"), "another content of the same length");
        daemon.remember(&at("a.so"));
        assert!(knows("a.so"), "it was loaded again as it is now");
        assert_eq!(fs::read_to_string(state.join(FILE)).unwrap().matches("a.so").count(), 1);
        fs::remove_file(at("a.so")).unwrap();
        assert!(KnownLibraries::below(&state).knows(&at("a.so")).is_err());
    }

    #[test]
    fn the_list_is_bounded_and_the_newest_stay() {
        let folder = tempfile::tempdir().unwrap();
        let list = KnownLibraries::below(folder.path());
        let library = |n: usize| folder.path().join(format!("{n}.so"));
        for n in 0..limits::KNOWN_LIBRARIES + 2 {
            fs::write(library(n), n.to_string()).unwrap();
            list.remember(&library(n));
        }
        assert_eq!(list.read().unwrap().libraries.len(), limits::KNOWN_LIBRARIES);
        assert!(!list.knows(&library(1)).unwrap() && list.knows(&library(2)).unwrap());
    }

    #[test]
    fn a_list_that_others_may_write_or_that_is_none_knows_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (list, library) = (KnownLibraries::below(folder.path()), folder.path().join("a.so"));
        fs::write(&library, "code").unwrap();
        list.remember(&library);
        let file = folder.path().join(FILE);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o622)).unwrap();
        assert!(list.knows(&library).unwrap_err().to_string().contains("mode 0622"));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(list.knows(&library).unwrap());
        for text in ["{", r#"{"schema": "rust_ort/libraries/9", "libraries": []}"#] {
            fs::write(&file, text).unwrap();
            assert!(list.knows(&library).is_err(), "{text}");
        }
        KnownLibraries::below(folder.path()).remember(&library);
        assert!(list.knows(&library).unwrap(), "it is begun anew");
    }
}
