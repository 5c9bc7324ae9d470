//! Libraries that may be loaded: those that the user names, that this installation has, or that it has run before. A
//! dump may come from anywhere, and a library is code: what a dump names is loaded only when it is known by its content.

use std::path::{Path, PathBuf};

use crate::daemon::libraries::KnownLibraries;
use crate::daemon::paths;

/// `RUST_ORT_ONNXRUNTIME`, when it is set.
pub(super) fn of_environment() -> Option<PathBuf> {
    std::env::var_os("RUST_ORT_ONNXRUNTIME").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// The onnxruntime library of the Python environment that this program is installed in.
pub(super) fn of_installation() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?.canonicalize().ok()?;
    beside(program.parent()?.parent()?)
}

/// `<prefix>/lib/python3*/site-packages/onnxruntime/capi/libonnxruntime.so*`; of several the last by name.
fn beside(prefix: &Path) -> Option<PathBuf> {
    let mut found = Vec::new();
    for python in named(&prefix.join("lib"), "python3") {
        found.extend(named(&python.join("site-packages/onnxruntime/capi"), "libonnxruntime.so"));
    }
    found.into_iter().max()
}

/// What is in a folder with a name that starts so; nothing where there is no folder.
fn named(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_its = |entry: &std::fs::DirEntry| entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix));
    entries.filter(is_its).map(|entry| entry.path()).collect()
}

/// Whether a library that a dump names may be loaded: executors of this user have loaded the same content from the same
/// path. Else what it is, after "which is".
pub(super) fn is_known(library: &Path) -> Result<(), String> {
    if !library.is_absolute() {
        return Err("no absolute path".to_owned());
    }
    let state = paths::state().map_err(|error| format!("not known: {error}"))?;
    match KnownLibraries::below(&state).knows(library) {
        Ok(true) => Ok(()),
        Ok(false) => Err("not what an executor of yours has loaded from there".to_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err("not here".to_owned()),
        Err(error) => Err(format!("not known: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_library_of_an_environment_is_found() {
        let prefix = tempfile::tempdir().unwrap();
        assert_eq!(beside(prefix.path()), None);
        let capi = prefix.path().join("lib/python3.12/site-packages/onnxruntime/capi");
        fs::create_dir_all(&capi).unwrap();
        fs::create_dir_all(prefix.path().join("lib/python3.11")).unwrap();
        assert_eq!(beside(prefix.path()), None);
        for name in ["libonnxruntime.so.1.31.1", "libonnxruntime_providers_shared.so", "onnxruntime_pybind11_state.so"]
        {
            fs::write(capi.join(name), "").unwrap();
        }
        assert_eq!(beside(prefix.path()), Some(capi.join("libonnxruntime.so.1.31.1")));
    }

    #[test]
    fn a_relative_path_is_known_to_nobody() {
        assert_eq!(is_known(Path::new("libcustom.so")), Err("no absolute path".to_owned()));
    }
}
