//! The runtime's library, as the environment names it.

use std::path::PathBuf;

/// `RUST_ORT_ONNXRUNTIME`, when it is set.
pub(super) fn of_environment() -> Option<PathBuf> {
    std::env::var_os("RUST_ORT_ONNXRUNTIME").filter(|path| !path.is_empty()).map(PathBuf::from)
}
