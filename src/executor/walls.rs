//! What an executor may do.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::confine::{Confined, Rights, confine};
use crate::cuda;
use crate::link::message::Hello;

use super::tenant::open_hold;

/// How the file name of a provider's library starts, and the one that all providers share.
const PROVIDER: &str = "libonnxruntime_providers_";
const SHARED: &str = "libonnxruntime_providers_shared.so";

/// Confines this process, which has one thread yet and nothing loaded, unless something is known that would not work then.
/// Read it may what its user may: a client can name a library of custom operators at any time. What it reads it cannot
/// pass on but to the client.
pub(super) fn around(hello: &Hello) -> Confined {
    open_hold();
    if let Some(why) = free(hello) {
        tracing::warn!(why, "not confined");
        return Confined::not(why);
    }
    let start = Instant::now();
    let confined = confine(&Rights { read: vec!["/".into()], write: Vec::new() });
    tracing::info!(%confined, us = start.elapsed().as_micros() as u64, "confined");
    confined
}

/// Why it is not to be confined.
fn free(hello: &Hello) -> Option<String> {
    if !hello.confine {
        Some("turned off".to_owned())
    } else if hello.libtorch {
        Some("it has libtorch".to_owned())
    } else if cuda::on_host() {
        Some("CUDA is on the host".to_owned())
    } else {
        let provider = provider_beside(&hello.library)?;
        Some(format!("its onnxruntime has more than the CPU's provider: {}", provider.display()))
    }
}

/// Another provider's library beside onnxruntime's own: drivers of devices open files and make sockets of their own.
fn provider_beside(library: &Path) -> Option<PathBuf> {
    let files = [Some(library.to_owned()), library.canonicalize().ok()].into_iter().flatten();
    let folders = files.filter_map(|file| std::fs::read_dir(file.parent()?).ok());
    let entries = folders.flat_map(|folder| folder.flatten()).map(|entry| entry.path());
    let is_provider = |path: &PathBuf| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        name.starts_with(PROVIDER) && name != SHARED
    };
    entries.filter(is_provider).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_with_a_provider_of_a_device_beside_it_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("libonnxruntime.so.1.31.1");
        for name in ["libonnxruntime.so.1.31.1", SHARED] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(provider_beside(&library), None);
        let cuda = folder.path().join("libonnxruntime_providers_cuda.so");
        std::fs::write(&cuda, "").unwrap();
        assert_eq!(provider_beside(&library), Some(cuda));
    }
}
