//! Where the daemon lives in the file system, and the rules for the socket's folder.

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use thiserror::Error;

/// The extension of the lock beside a socket.
pub(super) const LOCK: &str = "lock";

/// Why a folder cannot hold the socket, or a place cannot be named.
#[derive(Debug, Error)]
pub enum PathError {
    /// The path of the socket has no folder or is relative.
    #[error("socket {0}: expected an absolute path of a file; set RUST_ORT_SOCKET or --socket to one")]
    NotAbsolute(PathBuf),
    /// It would be its own lock.
    #[error(
        "socket {0}: its name must not end in .{LOCK}, which is its lock's; set RUST_ORT_SOCKET or --socket to another"
    )]
    LockName(PathBuf),
    /// The path does not fit a socket address.
    #[error("socket {path}: {len} bytes: expected at most 107; set RUST_ORT_SOCKET to a shorter path")]
    TooLong {
        /// As asked for.
        path: PathBuf,
        /// Its bytes.
        len: usize,
    },
    /// The folder is a link or no folder.
    #[error("socket folder {0}: expected a folder, not a link or file; remove it or set RUST_ORT_SOCKET")]
    NotAFolder(PathBuf),
    /// Another user's.
    #[error(
        "socket folder {folder}: expected owner uid {expected}, got {got}; set RUST_ORT_SOCKET to a folder of yours"
    )]
    Owner {
        /// The folder.
        folder: PathBuf,
        /// Our uid.
        expected: u32,
        /// Its owner.
        got: u32,
    },
    /// Others may enter.
    #[error("socket folder {folder}: expected mode 0700, got {mode:04o}; run `chmod 700 {folder}`")]
    Mode {
        /// The folder.
        folder: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The file system refused.
    #[error("{path}: {error}")]
    Io {
        /// Where.
        path: PathBuf,
        /// What.
        error: io::Error,
    },
    /// Neither HOME nor XDG_STATE_HOME is set.
    #[error("state folder: neither RUST_ORT_STATE_DIR, XDG_STATE_HOME nor HOME is set; set one")]
    NoHome,
}

/// Socket of the daemon: as given, else `RUST_ORT_SOCKET`, else `$XDG_RUNTIME_DIR/rust-ort/v1.sock`, else
/// `/tmp/rust-ort-<uid>/v1.sock`. Errors: not absolute, too long, a lock's name.
pub fn socket(given: Option<&Path>) -> Result<PathBuf, PathError> {
    let path = given
        .map(Path::to_owned)
        .or_else(|| variable("RUST_ORT_SOCKET"))
        .or_else(|| variable("XDG_RUNTIME_DIR").map(|runtime| runtime.join("rust-ort/v1.sock")))
        .unwrap_or_else(|| PathBuf::from(format!("/tmp/rust-ort-{}/v1.sock", rustix::process::getuid().as_raw())));
    let len = path.as_os_str().len();
    if !path.is_absolute() || path.file_name().is_none() {
        Err(PathError::NotAbsolute(path))
    } else if path.extension().is_some_and(|extension| extension == LOCK) {
        Err(PathError::LockName(path))
    } else if len > 107 {
        Err(PathError::TooLong { path, len })
    } else {
        Ok(path)
    }
}

/// Folder of logs, quarantine and plans: `RUST_ORT_STATE_DIR`, else `$XDG_STATE_HOME/rust-ort`, else
/// `~/.local/state/rust-ort`. Errors: [`PathError::NoHome`].
pub fn state() -> Result<PathBuf, PathError> {
    variable("RUST_ORT_STATE_DIR")
        .or_else(|| variable("XDG_STATE_HOME").map(|state| state.join("rust-ort")))
        .or_else(|| variable("HOME").map(|home| home.join(".local/state/rust-ort")))
        .ok_or(PathError::NoHome)
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// A folder in the state folder that only we can enter: logs name files and models, quarantine holds weights and inputs.
/// Made when absent, with the folders above it; one that an earlier version left open to others is closed. The state
/// folder itself, when it is there, stays as its owner made it. Errors: the file system's; it is a link, no folder or
/// another user's, which stays as it is.
pub fn make_private(folder: &Path) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).recursive(true).create(folder) {
        // What is there is looked at below.
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let facts = std::fs::symlink_metadata(folder)?;
    let (expected, got) = (rustix::process::getuid().as_raw(), facts.uid());
    if !facts.is_dir() {
        let found = if facts.is_symlink() { "a link" } else { "no folder" };
        return Err(io::Error::other(format!("expected a folder of ours, got {found}; remove it")));
    }
    if got != expected {
        return Err(io::Error::other(format!("expected owner uid {expected}, got {got}; remove it")));
    }
    // Not by its path, which may have become a link meanwhile.
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(folder, flags, Mode::empty())?;
    Ok(rustix::fs::fchmod(&opened, Mode::RWXU)?)
}

/// The folder of a socket, made when absent. Errors: it is a link, another user's, or open to others.
pub fn prepare_socket_folder(socket: &Path) -> Result<PathBuf, PathError> {
    let folder = socket.parent().ok_or_else(|| PathError::NotAbsolute(socket.to_owned()))?.to_owned();
    match std::fs::DirBuilder::new().mode(0o700).recursive(true).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(PathError::Io { path: folder, error });
        }
        _ => {}
    }
    check_socket_folder(&folder)?;
    Ok(folder)
}

/// A folder that only we can enter. Errors: as of [`prepare_socket_folder`].
pub fn check_socket_folder(folder: &Path) -> Result<(), PathError> {
    let folder = folder.to_owned();
    let found = match std::fs::symlink_metadata(&folder) {
        Ok(found) => found,
        Err(error) => return Err(PathError::Io { path: folder, error }),
    };
    let (expected, mode) = (rustix::process::getuid().as_raw(), found.mode() & 0o7777);
    if !found.is_dir() {
        Err(PathError::NotAFolder(folder))
    } else if found.uid() != expected {
        Err(PathError::Owner { folder, expected, got: found.uid() })
    } else if mode != 0o700 {
        Err(PathError::Mode { folder, mode })
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    #[test]
    fn folder_open_to_others_or_a_link_is_refused() {
        let temporary = tempfile::tempdir().unwrap();
        let socket = temporary.path().join("deep/er/v1.sock");
        let folder = prepare_socket_folder(&socket).unwrap();
        assert_eq!(std::fs::metadata(&folder).unwrap().mode() & 0o7777, 0o700);
        for mode in [0o701, 0o750, 0o1700] {
            std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode)).unwrap();
            assert!(matches!(prepare_socket_folder(&socket), Err(PathError::Mode { .. })), "{mode:o}");
        }
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700)).unwrap();
        let link = temporary.path().join("link");
        symlink(&folder, &link).unwrap();
        assert!(matches!(prepare_socket_folder(&link.join("v1.sock")), Err(PathError::NotAFolder(_))));
    }

    #[test]
    fn a_private_folder_is_made_or_closed_and_what_is_not_ours_stays_as_it_is() {
        let temporary = tempfile::tempdir().unwrap();
        let open = |name: &str| {
            let folder = temporary.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
            folder
        };
        let mode = |folder: &Path| std::fs::metadata(folder).unwrap().mode() & 0o7777;
        for folder in [open("ours"), temporary.path().join("not/there")] {
            make_private(&folder).unwrap();
            assert_eq!(mode(&folder), 0o700);
        }
        let (elsewhere, link, file) = (open("elsewhere"), temporary.path().join("link"), temporary.path().join("file"));
        symlink(&elsewhere, &link).unwrap();
        std::fs::write(&file, "").unwrap();
        assert!(make_private(&link).unwrap_err().to_string().contains("got a link"));
        assert!(make_private(&file).unwrap_err().to_string().contains("got no folder"));
        assert_eq!(mode(&elsewhere), 0o755);
        if rustix::process::getuid().is_root() {
            std::os::unix::fs::chown(&elsewhere, Some(65_534), None).unwrap();
            assert!(make_private(&elsewhere).unwrap_err().to_string().contains("got 65534"));
            assert_eq!(mode(&elsewhere), 0o755);
        }
    }

    #[test]
    fn socket_must_be_absolute_and_short() {
        assert!(matches!(socket(Some(Path::new("v1.sock"))), Err(PathError::NotAbsolute(_))));
        let long = PathBuf::from("/").join("x".repeat(120));
        assert!(matches!(socket(Some(&long)), Err(PathError::TooLong { .. })));
    }
}
