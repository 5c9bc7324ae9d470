//! Libraries that may be loaded: those that the user names, that this installation has, or that it has run before. A
//! dump may come from anywhere, and a library is code: what a dump names is loaded only when it is known by its content.

use std::path::{Path, PathBuf};

use crate::daemon::libraries::KnownLibraries;
use crate::daemon::paths;

/// `RUST_ORT_ONNXRUNTIME`, when it is set.
pub(super) fn of_environment() -> Option<PathBuf> {
    std::env::var_os("RUST_ORT_ONNXRUNTIME").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// The onnxruntime library of the Python environment or the folder (`pip install --target`) that this program is installed
/// in; else that beside the libtorch that this process has loaded, which is code of the same environment.
pub(super) fn of_installation() -> Option<PathBuf> {
    let of_program = || {
        let program = std::env::current_exe().ok()?.canonicalize().ok()?;
        beside(program.parent()?.parent()?)
    };
    of_program().or_else(|| beside_torch(&std::fs::read_to_string("/proc/self/maps").ok()?))
}

/// `onnxruntime/capi/libonnxruntime.so*` in `<prefix>/lib*/python3*/{site,dist}-packages`, else in the prefix itself; of
/// several the last by name.
fn beside(prefix: &Path) -> Option<PathBuf> {
    let mut found = Vec::new();
    for python in ["lib", "lib64"].iter().flat_map(|lib| named(&prefix.join(lib), "python3")) {
        found.extend(
            ["site-packages", "dist-packages"].iter().filter_map(|packages| in_packages(&python.join(packages))),
        );
    }
    found.into_iter().max().or_else(|| in_packages(prefix))
}

/// Of the packages where libtorch is. maps: the files of this process, as the kernel lists them.
fn beside_torch(maps: &str) -> Option<PathBuf> {
    let mut libraries = maps.lines().filter_map(|line| Some(Path::new(line.get(line.find('/')?..)?)));
    let folder = Path::new("torch/lib");
    let is_libtorch = |path: &&Path| {
        let named =
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("libtorch_cpu.so"));
        named && path.parent().is_some_and(|parent| parent.ends_with(folder))
    };
    in_packages(libraries.find(is_libtorch)?.ancestors().nth(3)?)
}

/// The first of folders that a Python imports from that has one.
pub(super) fn of_python(path: &[PathBuf]) -> Option<PathBuf> {
    path.iter().find_map(|packages| in_packages(packages))
}

fn in_packages(packages: &Path) -> Option<PathBuf> {
    named(&packages.join("onnxruntime/capi"), "libonnxruntime.so").into_iter().max()
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
        let maps = |library: &str| {
            format!("7f00-7f01 r-xp 00000000 fe:00 12   /usr/lib/libc.so.6\n7f01-7f02 r--p 0 fe:00 1   {library}\n")
        };
        let packages = capi.parent().unwrap().parent().unwrap();
        let torch = packages.join("torch/lib/libtorch_cpu.so");
        assert_eq!(beside_torch(&maps(torch.to_str().unwrap())), Some(capi.join("libonnxruntime.so.1.31.1")));
        assert_eq!(beside_torch(&maps(packages.join("torch/lib/libc10.so").to_str().unwrap())), None);
        assert_eq!(beside_torch(&maps("/usr/lib/libtorch_cpu.so")), None);
    }

    #[test]
    fn the_library_in_a_folder_of_packages_is_found() {
        let target = tempfile::tempdir().unwrap();
        let capi = target.path().join("onnxruntime/capi");
        fs::create_dir_all(&capi).unwrap();
        fs::write(capi.join("libonnxruntime.so.1.31.1"), "").unwrap();
        assert_eq!(beside(target.path()), Some(capi.join("libonnxruntime.so.1.31.1")));
    }

    #[test]
    fn a_relative_path_is_known_to_nobody() {
        assert_eq!(is_known(Path::new("libcustom.so")), Err("no absolute path".to_owned()));
    }
}
