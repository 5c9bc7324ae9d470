//! Files: Landlock.

use std::path::PathBuf;

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetError,
    RulesetStatus, Scope, path_beneath_rules,
};

/// What a process may go on doing with files. Those that are open stay so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Files, and folders with all in them, that may be read. What is not there is left out.
    pub read: Vec<PathBuf>,
    /// Folders that may be read and in which files and folders may be made, written and removed.
    pub write: Vec<PathBuf>,
}

/// The newest version whose rights are asked for; an older kernel gives those that it knows. What versions 1 and 2 lack,
/// `truncate`, seccomp refuses.
const VERSION: ABI = ABI::V5;

/// What any program needs: libraries and what tells where they are, what the system says of itself, devices that are none.
const SYSTEM: &[&str] = &[
    "/dev/full",
    "/dev/null",
    "/dev/random",
    "/dev/urandom",
    "/dev/zero",
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
    "/etc/localtime",
    "/gnu/store",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix/store",
    "/proc",
    "/sys",
    "/usr",
];

/// Files that any program needs to read: libraries of the system, and what it tells of itself. Nobody's own. Of other
/// processes /proc tells a confined one what any user may know, root's privileges given up (mod.rs).
pub fn of_the_system() -> Vec<PathBuf> {
    SYSTEM.iter().map(PathBuf::from).collect()
}

fn reading() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::ReadDir
}

fn writing() -> BitFlags<AccessFs> {
    use AccessFs::{MakeDir, MakeReg, RemoveDir, RemoveFile, Truncate, WriteFile};
    reading() | WriteFile | Truncate | MakeReg | MakeDir | RemoveFile | RemoveDir
}

/// Closes all else to the calling thread and those that it starts. Errors: why it did not.
pub(super) fn close(rights: &Rights) -> Result<(), String> {
    let closed = || -> Result<RulesetStatus, RulesetError> {
        // seccomp refuses the calls that do this; the kernel does it for others, too.
        let outside = Scope::Signal | Scope::AbstractUnixSocket;
        let ruleset = Ruleset::default().handle_access(AccessFs::from_all(VERSION))?.scope(outside)?.create()?;
        let ruleset = ruleset.add_rules(path_beneath_rules(&rights.read, reading()))?;
        Ok(ruleset.add_rules(path_beneath_rules(&rights.write, writing()))?.restrict_self()?.ruleset)
    };
    match closed() {
        Ok(RulesetStatus::NotEnforced) => {
            Err("the kernel has no Landlock, or it is off: Linux 5.13 or newer".to_owned())
        }
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn what_may_be_read_and_written_is_all_that_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["read", "write", "closed"] {
            fs::create_dir(at(name)).unwrap();
            fs::write(at(name).join("file"), name).unwrap();
        }
        let rights = Rights { read: vec![at("read"), at("absent")], write: vec![at("write")] };
        let done = std::thread::scope(|scope| {
            let confined = scope.spawn(|| {
                close(&rights).unwrap();
                let denied = |name: &str| fs::write(at(name).join("other"), "x").map_err(|error| error.kind());
                assert_eq!(fs::read(at("read").join("file")).unwrap(), b"read");
                assert_eq!(fs::read(at("closed").join("file")).unwrap_err().kind(), ErrorKind::PermissionDenied);
                assert_eq!(["read", "closed"].map(denied), [Err(ErrorKind::PermissionDenied); 2]);
                crate::base::files::write_whole(&at("write").join("new"), 0o644, &[b"new"]).unwrap();
                fs::create_dir(at("write").join("folder")).unwrap();
                fs::remove_file(at("write").join("file")).unwrap();
                fs::read(at("write").join("new")).unwrap()
            });
            confined.join().unwrap()
        });
        assert_eq!(done, b"new");
        assert_eq!(fs::read(at("closed").join("file")).unwrap(), b"closed", "other threads are as free as before");
    }
}
