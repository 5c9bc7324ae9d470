//! The socket's file and the lock beside it: one daemon a path, and nothing at either that is not ours is touched.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use interprocess::local_socket::{GenericFilePath, Listener, ListenerNonblockingMode, ListenerOptions, ToFsName as _};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use thiserror::Error;

use crate::base::identity::Identity;
use crate::client::Peer;
use crate::daemon::paths::{self, PathError};

/// What helps against most of these.
const ELSEWHERE: &str = "set RUST_ORT_SOCKET or --socket to another path";

/// Why a daemon cannot have a socket's path.
#[derive(Debug, Error)]
pub enum SocketError {
    /// See [`PathError`].
    #[error(transparent)]
    Path(#[from] PathError),
    /// A file that no daemon left there. It stays.
    #[error("socket {path}: expected no file or a socket of ours, got {found}; {ELSEWHERE}")]
    NotOurs {
        /// The socket's path.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// Somebody listens who is no daemon.
    #[error("socket {path}: another program listens there; end it, or {ELSEWHERE}")]
    Taken {
        /// The socket's path.
        path: PathBuf,
    },
    /// A file in the lock's place that no daemon left there. It stays.
    #[error("socket {socket}: its lock {path}: expected no file or an empty one of ours, got {found}; {ELSEWHERE}")]
    NotOurLock {
        /// The socket's path.
        socket: PathBuf,
        /// The lock's.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// A daemon holds the lock but does not answer.
    #[error("{lock}: another daemon holds it but does not answer on its socket; see its log, or end it")]
    Mute {
        /// The lock file.
        lock: PathBuf,
    },
    /// The file system refused.
    #[error("{path}: {error}")]
    Io {
        /// Where.
        path: PathBuf,
        /// What.
        error: io::Error,
    },
}

/// Who has the socket's path.
#[derive(Debug)]
pub enum Claim {
    /// We, as long as the lock is open; there is no file at the path.
    Ours(File),
    /// A daemon that answers.
    Elsewhere {
        /// Its process.
        pid: u32,
    },
}

/// Claims the socket's path; what a killed daemon left there is removed. Errors: [`SocketError`]; nothing has changed then.
pub fn claim(socket: &Path) -> Result<Claim, SocketError> {
    paths::prepare_socket_folder(socket)?;
    check(socket)?;
    let lock = match take_lock(socket)? {
        Claim::Ours(lock) => lock,
        elsewhere => return Ok(elsewhere),
    };
    if check(socket)? {
        // The lock may have been removed under a daemon.
        if is_listened_to(socket).map_err(failed(socket))? {
            return match Peer::connect(socket, "rust-ort serve") {
                Ok((_, welcome)) => Ok(Claim::Elsewhere { pid: welcome.daemon_pid }),
                Err(_) => Err(SocketError::Taken { path: socket.to_owned() }),
            };
        }
        fs::remove_file(socket).map_err(failed(socket))?;
    }
    Ok(Claim::Ours(lock))
}

/// Whether a daemon of this socket lives: it holds its lock until its process has ended.
pub fn is_held(socket: &Path) -> bool {
    File::open(lock_path(socket)).is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_err())
}

/// A socket that we listen on.
pub struct Bound {
    /// To take connections from; does not block.
    pub listener: Listener,
    path: PathBuf,
    file: Identity,
    /// That beside the socket.
    lock: File,
    /// False once it could not listen again: said once.
    is_restored: bool,
}

/// Listens on a path that is ours and free. Errors: the system's.
pub fn bind(socket: &Path, lock: File) -> Result<Bound, SocketError> {
    let (listener, file) = listen(socket)?;
    Ok(Bound { listener, path: socket.to_owned(), file, lock, is_restored: true })
}

fn listen(socket: &Path) -> Result<(Listener, Identity), SocketError> {
    let listening = || {
        ListenerOptions::new()
            .name(socket.to_fs_name::<GenericFilePath>()?)
            .reclaim_name(false)
            .nonblocking(ListenerNonblockingMode::Accept)
            .create_sync()
    };
    let listener = listening().map_err(failed(socket))?;
    let facts = fs::symlink_metadata(socket).map_err(failed(socket))?;
    Ok((listener, Identity::of(&facts)))
}

impl Bound {
    /// Listens again where the socket's file was removed, as by a clean-up of /tmp. Connections stay; whatever else is in
    /// its place stays, too.
    pub fn restore(&mut self) {
        let missing = fs::symlink_metadata(&self.path).is_err_and(|error| error.kind() == ErrorKind::NotFound);
        if !missing {
            return;
        }
        match self.listen_again() {
            Ok(()) => {
                tracing::warn!(socket = %self.path.display(), "the socket's file was removed: listening on a new one");
                self.is_restored = true;
            }
            Err(error) => {
                if std::mem::take(&mut self.is_restored) {
                    tracing::error!(socket = %self.path.display(), %error, "the socket's file was removed, and stays so");
                }
            }
        }
    }

    /// Errors: [`SocketError::Mute`] where another daemon has the lock by now, the socket to come.
    fn listen_again(&mut self) -> Result<(), SocketError> {
        paths::prepare_socket_folder(&self.path)?;
        let path = lock_path(&self.path);
        let held = self.lock.metadata().map(|facts| Identity::of(&facts)).map_err(failed(&path))?;
        if !Identity::at(&path).is_ok_and(|found| found.is_same_file(&held)) {
            let lock = open_lock(&self.path, &path)?;
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
                return Err(SocketError::Mute { lock: path });
            }
            self.lock = lock;
        }
        (self.listener, self.file) = listen(&self.path)?;
        Ok(())
    }

    /// Ends it and removes its file, if that is still there. Returns the lock, to be held until the daemon has ended: no
    /// newer daemon's file is removed while it is.
    #[must_use]
    pub fn close(self) -> File {
        drop(self.listener);
        if fs::symlink_metadata(&self.path).is_ok_and(|facts| Identity::of(&facts).is_same_file(&self.file)) {
            // The next daemon removes it if we cannot.
            let _ = fs::remove_file(&self.path);
        }
        self.lock
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> SocketError {
    move |error| SocketError::Io { path: path.to_owned(), error }
}

/// Whether there is a socket of ours. Errors: [`SocketError::NotOurs`].
fn check(socket: &Path) -> Result<bool, SocketError> {
    let facts = match fs::symlink_metadata(socket) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        facts => facts.map_err(failed(socket))?,
    };
    let found = kind(&facts);
    if found == SOCKET { Ok(true) } else { Err(SocketError::NotOurs { path: socket.to_owned(), found }) }
}

const SOCKET: &str = "a socket";
const FILE: &str = "a file";

/// What stands at a path, in words.
fn kind(facts: &Metadata) -> &'static str {
    let kind = facts.file_type();
    match () {
        () if facts.uid() != rustix::process::getuid().as_raw() => "another user's file",
        () if kind.is_symlink() => "a link",
        () if kind.is_dir() => "a folder",
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_socket() => SOCKET,
        () if kind.is_file() => FILE,
        () => "a device",
    }
}

/// Errors: the system's.
fn is_listened_to(socket: &Path) -> io::Result<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let answer = rustix::net::connect(&probe, &SocketAddrUnix::new(socket)?);
    Ok(!matches!(answer, Err(Errno::CONNREFUSED | Errno::NOENT)))
}

/// Beside the socket, named after the whole of its name: sockets that differ in the extension alone are two.
fn lock_path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".");
    path.push(paths::LOCK);
    path.into()
}

/// The lock beside the socket, held as long as the file is open.
fn take_lock(socket: &Path) -> Result<Claim, SocketError> {
    let path = lock_path(socket);
    let file = open_lock(socket, &path)?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if let Ok((_, welcome)) = Peer::connect(socket, "rust-ort serve") {
            return Ok(Claim::Elsewhere { pid: welcome.daemon_pid });
        }
        if Instant::now() > deadline {
            return Err(SocketError::Mute { lock: path });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(Claim::Ours(file))
}

/// Errors: [`SocketError::NotOurLock`]. A lock of ours is empty: any other file is somebody's work.
fn open_lock(socket: &Path, path: &Path) -> Result<File, SocketError> {
    let found = |found| SocketError::NotOurLock { socket: socket.to_owned(), path: path.to_owned(), found };
    if let Ok(facts) = fs::symlink_metadata(path) {
        match kind(&facts) {
            FILE if facts.len() == 0 => {}
            FILE => return Err(found("a file with content")),
            other => return Err(found(other)),
        }
    }
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = File::options();
    options.create(true).truncate(false).write(true).mode(0o600).custom_flags(flags.bits() as i32);
    options.open(path).map_err(failed(path))
}
