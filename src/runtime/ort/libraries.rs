//! Shared libraries of custom operators.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use ort::session::builder::SessionBuilder;

use crate::base::sync::lock;
use crate::protocol::message::CustomOpLibrary;
use crate::runtime::RuntimeError;

/// What the process loaded. The system loads a path once: another file in its place would not be seen.
#[derive(Default)]
pub(super) struct Libraries(Mutex<BTreeMap<PathBuf, CustomOpLibrary>>);

/// The library at this path as it is now. Errors: BadOption, with the path.
pub fn custom_op_library(path: &Path) -> Result<CustomOpLibrary, RuntimeError> {
    let absolute = std::path::absolute(path).map_err(|error| bad(path, &error.to_string()))?;
    let metadata = fs::metadata(&absolute).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => bad(&absolute, "there is no such file; name the library of the custom operators"),
        _ => bad(&absolute, &error.to_string()),
    })?;
    if !metadata.is_file() {
        return Err(bad(&absolute, "expected a shared library, it is no file"));
    }
    let modified_ns = metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec());
    Ok(CustomOpLibrary { path: absolute, len_bytes: metadata.len(), modified_ns })
}

impl Libraries {
    /// The builder with the operators of these libraries. Errors: BadOption, with the path.
    pub(super) fn register(
        &self,
        mut builder: SessionBuilder,
        libraries: &[CustomOpLibrary],
    ) -> Result<SessionBuilder, RuntimeError> {
        for library in libraries {
            if custom_op_library(&library.path)? != *library {
                return Err(bad(&library.path, "it changed since the graph was compiled; compile it again"));
            }
            let mut loaded = lock(&self.0);
            if loaded.get(&library.path).is_some_and(|known| known != library) {
                let why = "it changed since this executor loaded it, and a process loads it once; run rust-ort stop, \
                           or give it another name";
                return Err(bad(&library.path, why));
            }
            builder = builder
                .with_operator_library(&library.path)
                .map_err(|error| bad(&library.path, &format!("onnxruntime does not take it: {error}")))?;
            loaded.insert(library.path.clone(), library.clone());
        }
        Ok(builder)
    }
}

fn bad(path: &Path, reason: &str) -> RuntimeError {
    let reason = format!("{}: {reason}", path.display());
    RuntimeError::BadOption { name: "custom_op_libraries".to_owned(), reason }
}
