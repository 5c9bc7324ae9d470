//! Tensors by content: equal ones stand once below `tensors/` and are hard links everywhere else.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::onnx::{tensor_header, write_whole};
use crate::tensor::TensorView;

/// Read-only: whoever writes into one of the links in place would change every data set that holds the tensor.
const SHARED_MODE: u32 = 0o444;
/// How often another process's clean-up may get between two of our system calls.
const MAX_TRIES: usize = 16;

#[derive(Debug)]
pub(super) struct Store {
    folder: PathBuf,
    /// False once the file system refused a link: from then on each file is written in its place.
    links: AtomicBool,
}

/// A tensor put in its place.
pub(super) struct Stored {
    /// blake3 of the file, hexadecimal.
    pub hash: String,
    /// New bytes on disk.
    pub written: u64,
}

impl Store {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder, links: AtomicBool::new(true) }
    }

    /// Put the tensor at `path` as an ONNX TensorProto, replacing what is there.
    pub(super) fn put(&self, name: &str, tensor: &TensorView<'_>, path: &Path) -> io::Result<Stored> {
        let header = tensor_header(name, tensor);
        let pieces = [header.as_slice(), tensor.bytes()];
        let n_bytes = (header.len() + tensor.bytes().len()) as u64;
        let mut hasher = blake3::Hasher::new();
        pieces.iter().for_each(|piece| {
            hasher.update(piece);
        });
        let hash = hasher.finalize().to_hex().to_string();
        let blob = blob_path(&self.folder, &hash);
        remove_if_there(path)?;
        let mut written = 0;
        for _ in 0..MAX_TRIES {
            if !self.links.load(Ordering::Relaxed) {
                break;
            }
            match fs::hard_link(&blob, path) {
                Ok(()) if fs::metadata(path)?.len() == n_bytes => return Ok(Stored { hash, written }),
                // Cut short by something other than us: a lost disk, a copy that failed.
                Ok(()) => {
                    fs::remove_file(path)?;
                    remove_if_there(&blob)?;
                }
                Err(error) => match error.kind() {
                    ErrorKind::NotFound => {
                        fs::create_dir_all(&self.folder)?;
                        write_whole(&blob, SHARED_MODE, &pieces)?;
                        written += n_bytes;
                    }
                    // Linked as often as the file system can (ext4: 65000): a fresh copy takes over.
                    ErrorKind::TooManyLinks => {
                        write_whole(&blob, SHARED_MODE, &pieces)?;
                        written += n_bytes;
                    }
                    ErrorKind::AlreadyExists => remove_if_there(path)?,
                    ErrorKind::CrossesDevices | ErrorKind::Unsupported | ErrorKind::PermissionDenied => {
                        self.links.store(false, Ordering::Relaxed);
                        remove_if_unreferenced(&blob)?;
                    }
                    _ => return Err(error),
                },
            }
        }
        write_whole(path, SHARED_MODE, &pieces)?;
        Ok(Stored { hash, written: written + n_bytes })
    }
}

pub(super) fn blob_path(folder: &Path, hash: &str) -> PathBuf {
    folder.join(format!("{hash}.pb"))
}

pub(super) fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Remove a blob that no data set links to. Returns the bytes freed. A writer that was about to link it finds it gone
/// and writes it again.
pub(super) fn remove_if_unreferenced(blob: &Path) -> io::Result<u64> {
    match fs::symlink_metadata(blob) {
        Ok(facts) if facts.is_file() && facts.nlink() == 1 => {
            remove_if_there(blob)?;
            Ok(facts.len())
        }
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::load_tensor;
    use crate::tensor::TensorBuf;

    fn tensor() -> TensorBuf {
        TensorBuf::from_f32([2], &[1., 2.]).unwrap()
    }

    #[test]
    fn equal_tensors_are_one_file_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().join("tensors"));
        let at = |name: &str| folder.path().join(name);
        let first = store.put("w", &tensor().view(), &at("a.pb")).unwrap();
        let second = store.put("w", &tensor().view(), &at("b.pb")).unwrap();
        let other = store.put("v", &tensor().view(), &at("c.pb")).unwrap();
        assert_eq!((first.hash == second.hash, second.written), (true, 0));
        assert_ne!(first.hash, other.hash);
        assert_eq!(fs::metadata(at("a.pb")).unwrap().nlink(), 3);
        assert_eq!(fs::metadata(at("c.pb")).unwrap().nlink(), 2);
        assert_eq!(load_tensor(&at("b.pb")).unwrap().view().bytes(), tensor().view().bytes());
    }

    #[test]
    fn a_blob_cut_short_is_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().join("tensors"));
        let stored = store.put("w", &tensor().view(), &folder.path().join("a.pb")).unwrap();
        let blob = blob_path(&folder.path().join("tensors"), &stored.hash);
        fs::remove_file(&blob).unwrap();
        fs::write(&blob, b"half").unwrap();
        let again = store.put("w", &tensor().view(), &folder.path().join("b.pb")).unwrap();
        assert!(again.written > 0 && load_tensor(&folder.path().join("b.pb")).is_ok());
    }

    #[test]
    fn without_links_each_file_is_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().join("tensors"));
        store.links.store(false, Ordering::Relaxed);
        let path = folder.path().join("a.pb");
        for _ in 0..2 {
            assert!(store.put("w", &tensor().view(), &path).unwrap().written > 0);
        }
        assert_eq!(fs::metadata(&path).unwrap().nlink(), 1);
        assert!(!folder.path().join("tensors").exists());
    }

    #[test]
    fn another_file_system_gets_copies() {
        // A folder on another file system than the store, where the machine has one.
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
        let device = |path: &Path| fs::metadata(path).unwrap().dev();
        if device(here.path()) == device(there.path()) {
            eprintln!("skipped: one file system only");
            return;
        }
        let store = Store::new(here.path().join("tensors"));
        let path = there.path().join("a.pb");
        store.put("w", &tensor().view(), &path).unwrap();
        assert_eq!(load_tensor(&path).unwrap().view().bytes(), tensor().view().bytes());
        assert_eq!(fs::read_dir(here.path().join("tensors")).unwrap().count(), 0);
    }
}
