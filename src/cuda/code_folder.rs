//! Compiled code, kept from one process to the next.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::base::files::{TEMPORARY_PREFIX, write_whole};
use crate::base::limits;

/// The end of the files' names.
const SUFFIX: &str = ".cubin";
/// A file's first bytes: what follows is the hash of name and code, then the code.
const MAGIC: &[u8; 8] = b"rortcode";
const HASH: usize = blake3::OUT_LEN;

/// A folder of machine code by what it was compiled of. A file that is not what was written there is no code: it is told,
/// removed and compiled again. Those that were used longest ago go where there are too many.
#[derive(Clone, Debug)]
pub struct CodeFolder {
    path: PathBuf,
    most_bytes: u64,
}

/// What code is kept under: all that it depends on.
pub(super) fn code_key(compiler: &str, options: &[String], source: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in [compiler].into_iter().chain(options.iter().map(String::as_str)).chain([source]) {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

fn hash_of(key: &str, code: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(key.as_bytes());
    hasher.update(code);
    hasher.finalize()
}

impl CodeFolder {
    /// The folder at this path, which is there or can be made.
    pub fn new(path: PathBuf) -> Self {
        Self { path, most_bytes: limits::COMPILED_CODE_BYTES }
    }

    fn file(&self, key: &str) -> PathBuf {
        self.path.join(format!("{key}{SUFFIX}"))
    }

    /// None where there is none, or none that can be read.
    pub(super) fn read(&self, key: &str) -> Option<Vec<u8>> {
        let path = self.file(key);
        match read_checked(&path, key) {
            Ok(code) => Some(code),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "compiled code is unusable: compiled again");
                let _ = fs::remove_file(&path); // it is written anew, or stays unusable
                None
            }
        }
    }

    /// What cannot be written is compiled again by the next process.
    pub(super) fn write(&self, key: &str, code: &[u8]) {
        let written = self.make_room(code.len() as u64).and_then(|()| {
            let hash = hash_of(key, code);
            write_whole(&self.file(key), 0o600, &[MAGIC, hash.as_bytes(), code])
        });
        if let Err(error) = written {
            tracing::warn!(folder = %self.path.display(), %error, "compiled code is not kept");
        }
    }

    /// Removes what was used longest ago until so many bytes more may come.
    fn make_room(&self, coming: u64) -> io::Result<()> {
        fs::DirBuilder::new().mode(0o700).recursive(true).create(&self.path)?;
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let (path, facts) = match entry.and_then(|entry| Ok((entry.path(), entry.metadata()?))) {
                Ok(found) => found,
                Err(_) => continue, // another process removed it
            };
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.ends_with(SUFFIX) || name.starts_with(TEMPORARY_PREFIX) {
                files.push((facts.modified()?, facts.len(), path.clone()));
            }
        }
        files.sort();
        let mut bytes: u64 = coming + files.iter().map(|(_, len, _)| len).sum::<u64>();
        for (_, len, path) in files {
            if bytes <= self.most_bytes {
                break;
            }
            let _ = fs::remove_file(path); // another process removed it
            bytes -= len;
        }
        Ok(())
    }
}

fn read_checked(path: &Path, key: &str) -> io::Result<Vec<u8>> {
    let wrong = |reason: &str| io::Error::new(io::ErrorKind::InvalidData, reason);
    let mut file = File::open(path)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| wrong("its first bytes are others"))?;
    let (hash, code) = rest.split_at_checked(HASH).ok_or_else(|| wrong("it is too short"))?;
    if hash != hash_of(key, code).as_bytes() {
        return Err(wrong("its hash is another"));
    }
    let _ = file.set_modified(SystemTime::now()); // it only looks older than it is
    Ok(code.to_vec())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn folder() -> (tempfile::TempDir, CodeFolder) {
        let temporary = tempfile::tempdir().unwrap();
        let folder = CodeFolder { path: temporary.path().join("deep/er"), most_bytes: 300 };
        (temporary, folder)
    }

    #[test]
    fn code_comes_back_as_it_was_written_and_no_other() {
        let (_temporary, folder) = folder();
        assert_eq!(folder.read("a"), None);
        folder.write("a", b"code");
        assert_eq!(folder.read("a").unwrap(), b"code");
        fs::rename(folder.file("a"), folder.file("b")).unwrap();
        assert_eq!((folder.read("b"), folder.file("b").exists()), (None, false), "another's code");
        let whole = |folder: &CodeFolder| {
            folder.write("a", b"code");
            fs::read(folder.file("a")).unwrap()
        };
        let bytes = whole(&folder);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            fs::write(folder.file("a"), damaged).unwrap();
            assert_eq!((folder.read("a"), folder.file("a").exists()), (None, false), "byte {at}");
            fs::write(folder.file("a"), &bytes[..at]).unwrap();
            assert_eq!(folder.read("a"), None, "{at} bytes");
        }
        assert_eq!(whole(&folder), bytes);
    }

    #[test]
    fn what_was_used_longest_ago_goes_where_there_is_too_much() {
        let (_temporary, folder) = folder();
        let aged = |key: &str, seconds: u64| {
            let file = File::open(folder.file(key)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
        };
        for (age, key) in [("a", 50), ("b", 40), ("c", 30)].map(|(key, age)| (age, key)) {
            folder.write(key, &[0; 40]); // 80 bytes with its head
            aged(key, age);
        }
        assert!(folder.read("a").is_some(), "used again");
        folder.write("d", &[0; 100]);
        let left = ["a", "b", "c", "d"].map(|key| folder.read(key).is_some());
        assert_eq!(left, [true, false, true, true]);
    }

    #[test]
    fn what_cannot_be_written_is_no_error() {
        let (temporary, folder) = folder();
        fs::write(temporary.path().join("deep"), "no folder").unwrap();
        folder.write("a", b"code");
        assert_eq!(folder.read("a"), None);
    }

    #[test]
    fn a_key_is_of_all_that_code_depends_on() {
        let key = |compiler: &str, options: &[&str], source: &str| {
            code_key(compiler, &options.iter().map(|&option| option.to_owned()).collect::<Vec<_>>(), source)
        };
        let keys = [
            key("13.0", &["a", "b"], "s"),
            key("13.1", &["a", "b"], "s"),
            key("13.0", &["a"], "bs"),
            key("13.0", &["ab"], "s"),
            key("13.0", &["a", "b"], "t"),
        ];
        assert_eq!(keys.iter().collect::<std::collections::HashSet<_>>().len(), keys.len());
    }
}
