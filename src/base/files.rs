//! Files that are written whole, or not at all, and read without waiting.

use std::collections::HashSet;
use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::rand::{GetRandomFlags, getrandom};
use tempfile::TempPath;

use super::sync::lock;

/// How the names of temporary files start. 32 random hexadecimal digits follow: process ids repeat between namespaces,
/// hosts and boots that share a folder.
pub const TEMPORARY_PREFIX: &str = ".tmp-";

/// Whether the name is one that a temporary file has, or had before names were random (`.tmp-<pid>-<n>`).
pub fn is_temporary(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    name.strip_prefix(TEMPORARY_PREFIX).is_some_and(|rest| match rest.split_once('-') {
        Some((pid, n)) => is_number(pid) && pid.parse::<u32>().is_ok() && is_number(n),
        None => rest.len() == 32 && rest.bytes().all(|byte| byte.is_ascii_hexdigit()),
    })
}

/// Whether somebody holds a file's lock: the writer of a temporary file until its rename, a process of its log as long as it
/// lives. Another host's lock may not be seen.
pub fn is_locked(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    flock(&file, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK)
}

/// Permissions of a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Less what this process's umask takes away.
    UnderUmask(u32),
    /// These.
    Exactly(u32),
}

/// How a file is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Making {
    mode: Mode,
    durable: bool,
}

impl Mode {
    /// With these permissions; durable: what is made outlives a power cut, too, once it is told of.
    pub fn durable(self, durable: bool) -> Making {
        Making { mode: self, durable }
    }
}

impl From<Mode> for Making {
    fn from(mode: Mode) -> Self {
        mode.durable(false)
    }
}

impl From<u32> for Making {
    fn from(bits: u32) -> Self {
        Mode::from(bits).into()
    }
}

/// Returns when a file's content, or the names in a folder, would outlive a power cut. Errors: the file system's.
pub fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// The folder that a path is in.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl From<u32> for Mode {
    fn from(bits: u32) -> Self {
        Self::UnderUmask(bits)
    }
}

/// Permission bits that are taken from what is made for somebody, who may be another process than this one. None: this
/// process's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Umask(pub Option<u32>);

impl Umask {
    /// Nobody else may enter or read.
    pub const PRIVATE: Self = Self(Some(0o077));

    /// Permissions of a file that would have these.
    pub fn of_file(self, bits: u32) -> Mode {
        self.0.map_or(Mode::UnderUmask(bits), |taken| Mode::Exactly(bits & !taken))
    }

    /// As [`Umask::create_folders`]; durable: they outlive a power cut, too.
    pub fn create_lasting_folders(self, path: &Path, durable: bool) -> io::Result<()> {
        if !durable {
            return self.create_folders(path);
        }
        let n_missing = n_missing(path);
        self.create_folders(path)?;
        path.ancestors().take(n_missing).try_for_each(|made| sync(folder_of(made)))
    }

    /// Makes a folder and those above it that are missing. Errors: the file system's.
    pub fn create_folders(self, path: &Path) -> io::Result<()> {
        let Some(taken) = self.0 else { return fs::create_dir_all(path) };
        let made = fs::create_dir(path).or_else(|error| {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            match parent.filter(|_| error.kind() == io::ErrorKind::NotFound) {
                Some(parent) => self.create_folders(parent).and_then(|()| fs::create_dir(path)),
                None => Err(error),
            }
        });
        match made {
            Ok(()) => give(path, 0o777 & !taken),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Folders at the end of a path that are not there.
fn n_missing(path: &Path) -> usize {
    path.ancestors().take_while(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()).count()
}

/// Makes folders below a root. Durable: they outlive a power cut, also those that somebody made before and never synced,
/// which are synced once.
#[derive(Debug)]
pub struct Folders {
    root: PathBuf,
    umask: Umask,
    durable: bool,
    /// Were there, and are synced by now.
    synced: Mutex<HashSet<PathBuf>>,
}

impl Folders {
    /// Below `root`, which is one of them.
    pub fn below(root: &Path, umask: Umask, durable: bool) -> Self {
        Self { root: root.to_owned(), umask, durable, synced: Mutex::default() }
    }

    /// Makes a folder and those above it that are missing. Errors: the file system's; a link below the root, which leads to
    /// what is somebody else's.
    pub fn make(&self, folder: &Path) -> io::Result<()> {
        let below = folder.ancestors().take_while(|above| above.starts_with(&self.root) && **above != self.root);
        for above in below {
            if above.is_symlink() {
                let text = format!("{}: a link, and nothing is written through it; remove it", above.display());
                return Err(io::Error::new(io::ErrorKind::NotADirectory, text));
            }
        }
        let n_missing = n_missing(folder);
        self.umask.create_lasting_folders(folder, self.durable)?;
        if !self.durable {
            return Ok(());
        }
        let were_there = folder.ancestors().skip(n_missing).take_while(|there| there.starts_with(&self.root));
        let not_synced: Vec<&Path> = {
            let synced = lock(&self.synced);
            // Those above one that is known are, too.
            were_there.take_while(|there| !synced.contains(*there)).collect()
        };
        not_synced.iter().try_for_each(|there| sync(folder_of(there)))?;
        lock(&self.synced).extend(not_synced.into_iter().map(Path::to_owned));
        Ok(())
    }
}

/// Gives a new folder these permissions beside what it has of the folder that it is in, such as its group. Errors: the file
/// system's; another thing is in its place.
fn give(folder: &Path, bits: u32) -> io::Result<()> {
    // Not by its path, which may have become a link meanwhile.
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = File::from(rustix::fs::open(folder, flags, rustix::fs::Mode::empty())?);
    let found = opened.metadata()?.permissions().mode() & 0o7777;
    let wanted = found & 0o7000 | bits;
    // The process's own umask may have taken other bits.
    if found == wanted { Ok(()) } else { opened.set_permissions(Permissions::from_mode(wanted)) }
}

/// Write a file whole or not at all: a temporary file beside it, then a rename. A kill leaves at most a temporary file,
/// whose name starts with [`TEMPORARY_PREFIX`]; an error leaves none. It outlives the process, and a power cut where it is
/// made durable: content first, then the rename, then the folder.
pub fn write_whole(path: &Path, making: impl Into<Making>, pieces: &[&[u8]]) -> io::Result<()> {
    write_whole_as(path, making, |file| {
        pieces.iter().try_for_each(|piece| file.write_all(piece))?;
        Ok((path.to_owned(), ()))
    })
}

/// As [`write_whole`], of what `write` puts into the file; it returns the path, which is in the folder of `beside`, and
/// whatever else is to be known.
pub fn write_whole_as<T>(
    beside: &Path,
    making: impl Into<Making>,
    write: impl FnOnce(&mut File) -> io::Result<(PathBuf, T)>,
) -> io::Result<T> {
    let name = beside.with_file_name(temporary_name()?);
    // Not a NamedTempFile, whose errors tell the name. Created first: what is there already is another writer's.
    let Making { mode, durable } = making.into();
    let (Mode::UnderUmask(bits) | Mode::Exactly(bits)) = mode;
    let mut file = File::options().write(true).create_new(true).mode(bits).open(&name)?;
    let temporary = TempPath::try_from_path(name)?;
    if mode == Mode::Exactly(bits) {
        file.set_permissions(Permissions::from_mode(bits))?;
    }
    // A file system without locks leaves its age to tell of a writer.
    let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
    let (path, known) = write(&mut file)?;
    if durable {
        file.sync_all()?;
    }
    // Not `persist`, which asks the kernel past the C library: tests of power cuts look there.
    fs::rename(&temporary, path)?;
    let _gone = temporary.keep();
    if durable {
        sync(folder_of(beside))?;
    }
    Ok(known)
}

fn temporary_name() -> io::Result<String> {
    Ok(format!("{TEMPORARY_PREFIX}{}", random_name()?))
}

/// 32 hexadecimal digits that nobody else draws, on whichever host. Errors: the system has no random numbers.
pub fn random_name() -> io::Result<String> {
    let mut drawn = [0_u8; 16];
    let n = getrandom(&mut drawn, GetRandomFlags::empty())?;
    debug_assert_eq!(n, drawn.len(), "requests of up to 256 bytes are answered whole");
    Ok(format!("{:032x}", u128::from_ne_bytes(drawn)))
}

/// A regular file, open for reading, and its facts. Never waits for a writer, as opening a pipe does. Links are followed.
/// Errors: the file system's; InvalidInput for a pipe, a socket, a device or a folder.
pub fn open_regular(path: &Path) -> io::Result<(File, Metadata)> {
    let open = |path: &Path, flags: OFlags| File::options().read(true).custom_flags(flags.bits() as i32).open(path);
    let regular = |facts: &Metadata| {
        let other = || io::Error::new(io::ErrorKind::InvalidInput, "expected a regular file");
        facts.is_file().then_some(()).ok_or_else(other)
    };
    // Looked at before it is opened: opening a pipe lets its writer go on, and opening some devices does something.
    let place = open(path, OFlags::PATH)?;
    regular(&place.metadata()?)?;
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let itself = format!("/proc/self/fd/{}", place.as_raw_fd());
    let file = match open(Path::new(&itself), flags) {
        // Without /proc.
        Err(error) if error.kind() == io::ErrorKind::NotFound => open(path, flags)?,
        opened => opened?,
    };
    let facts = file.metadata()?;
    regular(&facts)?;
    Ok((file, facts))
}

/// Content of a regular file of at most `limit_bytes`; its length is looked at before anything is read. Errors: as
/// [`open_regular`]; FileTooLarge above the limit.
pub fn read_regular(path: &Path, limit_bytes: u64) -> io::Result<Vec<u8>> {
    let (file, facts) = open_regular(path)?;
    let too_large = |len_bytes: u64| {
        let text = format!("{len_bytes} bytes; expected at most {limit_bytes}");
        io::Error::new(io::ErrorKind::FileTooLarge, text)
    };
    if facts.len() > limit_bytes {
        return Err(too_large(facts.len()));
    }
    let mut bytes = Vec::with_capacity(facts.len() as usize);
    // It may grow meanwhile.
    file.take(limit_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit_bytes { Err(too_large(bytes.len() as u64)) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::panic;

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
    fn only_regular_files_are_read_and_none_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        // One who waits for a reader goes on waiting: nobody has opened it.
        let flags = OFlags::WRONLY | OFlags::NONBLOCK;
        assert!(read_regular(&at("pipe"), 1 << 20).is_err());
        let opened = rustix::fs::open(at("pipe"), flags, rustix::fs::Mode::empty());
        assert_eq!(opened.unwrap_err(), rustix::io::Errno::NXIO);
        let _socket = UnixListener::bind(at("socket")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", at("link")).unwrap();
        for path in [at("pipe"), at("socket"), at("link"), folder.path().to_owned(), "/dev/zero".into()] {
            assert!(read_regular(&path, 1 << 20).is_err(), "{}", path.display());
        }
        fs::write(at("file"), [7; 10]).unwrap();
        assert_eq!(read_regular(&at("file"), 10).unwrap(), [7; 10]);
        assert_eq!(read_regular(&at("file"), 9).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(read_regular(&at("absent"), 9).unwrap_err().kind(), io::ErrorKind::NotFound);
        // As long as it claims to be on no disk: refused before a byte is read.
        File::create(at("sparse")).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(read_regular(&at("sparse"), 1 << 39).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn no_folder_is_made_behind_a_link() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let run = folder.path().join("run");
        fs::create_dir(&run).unwrap();
        std::os::unix::fs::symlink(other.path(), run.join("graph")).unwrap();
        let folders = Folders::below(&run, Umask::default(), false);
        for path in ["graph", "graph/part_0"] {
            let refused = folders.make(&run.join(path)).unwrap_err();
            assert!(refused.to_string().contains("a link"), "{refused}");
        }
        assert_eq!(fs::read_dir(other.path()).unwrap().count(), 0);
        folders.make(&run.join("another/part_0")).unwrap();
    }

    #[test]
    fn a_temporary_file_tells_that_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        write_whole_as(&folder.path().join("file"), 0o600, |_| {
            let entry = fs::read_dir(folder.path())?.next().unwrap()?;
            let name = entry.file_name().into_string().unwrap();
            assert!(is_temporary(&name) && is_locked(&entry.path()), "{name}");
            Ok((folder.path().join("other"), ()))
        })
        .unwrap();
        let other = folder.path().join("other");
        assert!(other.exists() && !folder.path().join("file").exists() && !is_locked(&other));
        let drawn: std::collections::BTreeSet<_> = (0..1000).map(|_| temporary_name().unwrap()).collect();
        assert_eq!(drawn.len(), 1000);
    }

    #[test]
    fn what_is_made_for_somebody_has_the_permissions_of_that_one() {
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        for (taken, of_folder, of_file) in [(0o077, 0o700, 0o600), (0o002, 0o775, 0o664), (0o027, 0o750, 0o640)] {
            let umask = Umask(Some(taken));
            let inner = folder.path().join(format!("{taken:o}/a/b"));
            umask.create_folders(&inner).unwrap();
            umask.create_folders(&inner).unwrap();
            write_whole(&inner.join("file"), umask.of_file(0o666), &[b"x"]).unwrap();
            let outer = inner.parent().unwrap();
            assert_eq!([mode(outer), mode(&inner), mode(&inner.join("file"))], [of_folder, of_folder, of_file]);
        }
        assert_eq!(Umask::default().of_file(0o644), Mode::UnderUmask(0o644));
        fs::write(folder.path().join("file"), "").unwrap();
        assert!(Umask::PRIVATE.create_folders(&folder.path().join("file")).is_err());
        // Its parent is there, and mkdir says that it is not.
        assert!(Umask::PRIVATE.create_folders(Path::new("/proc/absent/dumps")).is_err());
        let team = folder.path().join("team");
        fs::create_dir(&team).unwrap();
        fs::set_permissions(&team, Permissions::from_mode(0o2775)).unwrap();
        Umask(Some(0o007)).create_folders(&team.join("x/y")).unwrap();
        let whole = |path: &str| fs::metadata(team.join(path)).unwrap().permissions().mode() & 0o7777;
        assert_eq!([whole("x"), whole("x/y")], [0o2770, 0o2770]);
    }

    #[test]
    fn a_temporary_name_is_random_or_of_before() {
        for name in [".tmp-7-0", ".tmp-4194305-12", ".tmp-00112233445566778899aabbccddeeff"] {
            assert!(is_temporary(name), "{name}");
        }
        for name in
            [".tmp-", ".tmp-7", ".tmp-7-draft", ".tmp-99999999999-1", ".tmp-00112233445566778899aabbccddeefg", "x"]
        {
            assert!(!is_temporary(name), "{name}");
        }
    }
}
