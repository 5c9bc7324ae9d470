//! ONNX Runtime and libtorch in one process.

use super::error::RuntimeError;
use super::traits::Runtime;

/// ONNX Runtime with the process's libtorch beside it (see [`Runtime::beside`]). threads: of libtorch's pool, 0 = one a
/// core. Errors: LibtorchMissing where this program has none, or another torch's.
#[cfg(feature = "torch")]
pub fn with_libtorch(ort: Box<dyn Runtime>, threads: u32) -> Result<Box<dyn Runtime>, RuntimeError> {
    super::torch::beside(ort, threads)
}

/// As with the feature: this program has no libtorch. Errors: LibtorchMissing.
#[cfg(not(feature = "torch"))]
pub fn with_libtorch(_ort: Box<dyn Runtime>, _threads: u32) -> Result<Box<dyn Runtime>, RuntimeError> {
    Err(RuntimeError::LibtorchMissing {
        library: "(none)".into(),
        reason: "this program was built without it; use rust-ort-torch, made by `make build-torch`".to_owned(),
    })
}
