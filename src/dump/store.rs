//! Tensors by content: equal ones stand once below `tensors/` and are hard links everywhere else.
//!
//! A tensor may lie in memory that its client writes meanwhile, so a file's name is the hash of the bytes that were
//! written, taken as they were written; the hash of the memory only says whether there is such a file already. A private
//! copy, which nobody writes, is hashed once. A file that is there already is linked once its content was seen to have
//! that hash: it was written by this run, or read by it, and its identity (inode, length, time of the last change) is that
//! of then. Reading costs each file once a run; a disk that lost a block, a copy that was torn or an editor would
//! otherwise give every later data set wrong values.

use std::collections::HashMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::message::{Blocks, Content, Copied, Message};
use crate::base::files::{Umask, folder_of, open_regular, sync, write_whole_as};
use crate::base::sync::lock;
use crate::tensor::SharedTensor;

/// Read-only: whoever writes into one of the links in place would change every data set that holds the tensor.
const SHARED_MODE: u32 = 0o444;
/// How often another process's clean-up may get between two of our system calls.
const MAX_TRIES: usize = 16;
/// Files whose content is remembered as seen; above it, all are looked at once more.
const MAX_SEEN: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Store {
    folder: PathBuf,
    umask: Umask,
    /// What is put outlives a power cut.
    durable: bool,
    /// False once the file system refused a link: from then on each file is written in its place.
    links: AtomicBool,
    /// Files whose content has the hash of their name.
    seen: Mutex<HashMap<blake3::Hash, Identity>>,
    /// Through which tensors pass.
    memory: Arc<Blocks>,
}

/// A tensor put in its place.
pub(super) struct Stored {
    /// blake3 of the file, hexadecimal.
    pub hash: String,
    /// New bytes on disk.
    pub written: u64,
}

/// What changes when a file is replaced or written to. Not its links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    len_bytes: u64,
    modified: (i64, i64),
}

impl Identity {
    fn of(facts: &fs::Metadata) -> Self {
        let modified = (facts.mtime(), facts.mtime_nsec());
        Self { device: facts.dev(), inode: facts.ino(), len_bytes: facts.len(), modified }
    }
}

impl Store {
    pub(super) fn new(folder: PathBuf, umask: Umask, durable: bool) -> Self {
        Self { folder, umask, durable, links: AtomicBool::new(true), seen: Mutex::default(), memory: Arc::default() }
    }

    /// A private copy.
    pub(super) fn copy(&self, name: &str, tensor: &SharedTensor<'_>) -> Copied {
        Message::new(name, *tensor).to_owned(&self.memory)
    }

    /// Put it at `path`, replacing what is there.
    pub(super) fn put(&self, content: &Content<'_>, path: &Path) -> io::Result<Stored> {
        remove_if_there(path)?;
        let mut written = 0;
        let mut hash = content.hash(&self.memory)?;
        for _ in 0..MAX_TRIES {
            if !self.links.load(Ordering::Relaxed) {
                break;
            }
            let blob = blob_path(&self.folder, &hash.to_hex());
            match fs::hard_link(&blob, path) {
                Ok(()) if self.holds(path, hash) => {
                    if self.durable {
                        // Another run may have written it, and never synced it.
                        sync(path)?;
                        sync(folder_of(path))?;
                    }
                    return Ok(Stored { hash: hash.to_hex().to_string(), written });
                }
                // Changed by something other than us: a lost disk, a copy that failed.
                Ok(()) => {
                    tracing::warn!(blob = %blob.display(), "dump: not the content of its name; written again");
                    fs::remove_file(path)?;
                    remove_if_there(&blob)?;
                }
                Err(error) => match error.kind() {
                    // Linked as often as the file system can (ext4: 65000): a fresh copy takes over.
                    ErrorKind::NotFound | ErrorKind::TooManyLinks => {
                        hash = self.write_blob(content, hash)?;
                        written += content.n_bytes() as u64;
                    }
                    ErrorKind::AlreadyExists => remove_if_there(path)?,
                    ErrorKind::CrossesDevices | ErrorKind::Unsupported | ErrorKind::PermissionDenied => {
                        self.links.store(false, Ordering::Relaxed);
                        // It may be another user's; the tensor is written in its own place.
                        let _ = remove_if_unreferenced(&blob);
                    }
                    _ => return Err(error),
                },
            }
        }
        let hash = write_whole_as(path, self.umask.of_file(SHARED_MODE).durable(self.durable), |file| {
            Ok((path.to_owned(), content.write(&self.memory, file, hash)?))
        })?;
        Ok(Stored { hash: hash.to_hex().to_string(), written: written + content.n_bytes() as u64 })
    }

    /// Writes a file under the hash of what is in it, which the tensor may no longer have.
    fn write_blob(&self, content: &Content<'_>, hash: blake3::Hash) -> io::Result<blake3::Hash> {
        self.umask.create_lasting_folders(&self.folder, self.durable)?;
        let making = self.umask.of_file(SHARED_MODE).durable(self.durable);
        let (hash, identity) = write_whole_as(&self.folder.join("new"), making, |file| {
            let hash = content.write(&self.memory, file, hash)?;
            let identity = Identity::of(&file.metadata()?);
            Ok((blob_path(&self.folder, &hash.to_hex()), (hash, identity)))
        })?;
        self.saw(hash, identity);
        Ok(hash)
    }

    /// Whether the file has this content: as seen before, or read now. One that cannot be read has none.
    fn holds(&self, path: &Path, hash: blake3::Hash) -> bool {
        self.is_content(path, hash).unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), %error, "dump: a tensor that is there cannot be read");
            false
        })
    }

    fn is_content(&self, path: &Path, hash: blake3::Hash) -> io::Result<bool> {
        let (mut file, facts) = open_regular(path)?;
        let identity = Identity::of(&facts);
        if lock(&self.seen).get(&hash) == Some(&identity) {
            return Ok(true);
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(&mut file)?;
        let holds = hasher.finalize() == hash;
        if holds {
            self.saw(hash, identity);
        }
        Ok(holds)
    }

    fn saw(&self, hash: blake3::Hash, identity: Identity) {
        let mut seen = lock(&self.seen);
        if seen.len() >= MAX_SEEN {
            seen.clear();
        }
        seen.insert(hash, identity);
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
    use crate::base::ids::SegmentId;
    use crate::onnx::load_tensor;
    use crate::shm::{Segment, SegmentTable};
    use crate::tensor::{DType, Location, TensorBuf, TensorDesc, TensorRef};

    fn tensor() -> TensorBuf {
        TensorBuf::from_f32([2], &[1., 2.]).unwrap()
    }

    /// [`tensor`] as a client hands it over.
    fn put(store: &Store, name: &str, path: &Path) -> Stored {
        store.put(&Content::shared(name, &tensor().shared()), path).unwrap()
    }

    #[test]
    fn equal_tensors_are_one_file_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().join("tensors"), Umask::default(), false);
        let at = |name: &str| folder.path().join(name);
        let first = put(&store, "w", &at("a.pb"));
        let second = put(&store, "w", &at("b.pb"));
        let other = put(&store, "v", &at("c.pb"));
        assert_eq!((first.hash == second.hash, second.written), (true, 0));
        assert_ne!(first.hash, other.hash);
        assert_eq!(fs::metadata(at("a.pb")).unwrap().nlink(), 3);
        assert_eq!(fs::metadata(at("c.pb")).unwrap().nlink(), 2);
        assert_eq!(load_tensor(&at("b.pb")).unwrap().view().bytes(), tensor().view().bytes());
    }

    #[test]
    fn a_blob_cut_short_is_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().join("tensors"), Umask::default(), false);
        let stored = put(&store, "w", &folder.path().join("a.pb"));
        let blob = blob_path(&folder.path().join("tensors"), &stored.hash);
        fs::remove_file(&blob).unwrap();
        fs::write(&blob, b"half").unwrap();
        let again = put(&store, "w", &folder.path().join("b.pb"));
        assert!(again.written > 0 && load_tensor(&folder.path().join("b.pb")).is_ok());
    }

    /// A run reads what another one left before it links to it, once; what it wrote itself it need not read.
    #[test]
    fn a_blob_of_the_right_length_and_other_content_is_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let new_run = || Store::new(at("tensors"), Umask::default(), false);
        let stored = put(&new_run(), "w", &at("a.pb"));
        let blob = blob_path(&at("tensors"), &stored.hash);
        let mut bytes = fs::read(&blob).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::remove_file(&blob).unwrap();
        fs::write(&blob, bytes).unwrap();
        let store = new_run();
        let again = put(&store, "w", &at("b.pb"));
        assert_eq!(load_tensor(&at("b.pb")).unwrap().view().bytes(), tensor().view().bytes());
        assert!(again.written > 0 && again.hash == stored.hash);
        assert_eq!(put(&store, "w", &at("c.pb")).written, 0);
        assert_eq!(put(&new_run(), "w", &at("d.pb")).written, 0);
    }

    /// A client that writes its tensor while it is dumped: whatever was caught, the file's name and the hash that is told
    /// are of the file's content.
    #[test]
    fn a_tensor_that_changes_meanwhile_is_stored_under_the_hash_of_what_is_on_disk() {
        const N: i64 = 1 << 18;
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().join("tensors"), Umask::default(), false);
        let mut table = SegmentTable::default();
        let ours = Segment::create(SegmentId(1), "test", 4 * N as u64).unwrap();
        let client = Segment::map(SegmentId(2), ours.try_clone_fd().unwrap(), 4 * N as u64).unwrap();
        table.attach(ours).unwrap();
        let desc = TensorDesc::new(DType::F32, [N]).unwrap();
        let lease = table.lease(&[TensorRef { location: Location::new(SegmentId(1), 0).unwrap(), desc }], &[]).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut n = 0_u64;
                while !done.load(Ordering::Relaxed) {
                    n += 1;
                    client.write((n * 4099 * 8) % (4 * N as u64 - 8), &n.to_le_bytes()).unwrap();
                }
            });
            for n in 0..20 {
                let path = folder.path().join(format!("{n}.pb"));
                let stored = store.put(&Content::shared("w", &lease.inputs()[0]), &path).unwrap();
                let bytes = fs::read(&path).unwrap();
                assert_eq!(blake3::hash(&bytes).to_hex().as_str(), stored.hash);
                assert!(blob_path(&folder.path().join("tensors"), &stored.hash).exists());
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn without_links_each_file_is_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().join("tensors"), Umask::default(), false);
        store.links.store(false, Ordering::Relaxed);
        let path = folder.path().join("a.pb");
        for _ in 0..2 {
            assert!(put(&store, "w", &path).written > 0);
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
        let store = Store::new(here.path().join("tensors"), Umask::default(), false);
        let path = there.path().join("a.pb");
        put(&store, "w", &path);
        assert_eq!(load_tensor(&path).unwrap().view().bytes(), tensor().view().bytes());
        assert_eq!(fs::read_dir(here.path().join("tensors")).unwrap().count(), 0);
    }
}
