//! The hot part of a call, for the Python package: reading torch's tensors, placing what is not in shared memory yet,
//! making outputs over blocks of it, and handing the call to the executor over a lane.

use pyo3::prelude::*;

/// `rust_ort._native`.
#[pymodule]
mod _native {
    use super::*;

    /// Of the program that was built with this module.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_init]
    fn init(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        Ok(())
    }
}
