//! Code of our own on a device.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys;

use super::code_folder::CodeFolder;
use super::compiler;
use super::device::Device;
use super::driver::{Raw, call};
use super::error::CudaError;

/// Kernels that were compiled from one source for one device.
pub struct Kernels {
    device: Arc<Device>,
    raw: Raw<sys::CUmod_st>,
}

/// One of [`Kernels`], which it keeps.
pub struct Kernel {
    _of: Arc<Kernels>,
    raw: Raw<sys::CUfunc_st>,
}

impl Kernels {
    /// Compiles CUDA C++ that includes nothing, which may take some hundred milliseconds unless `folder` has its code, and
    /// loads it. `name`: of the source, for messages. Errors: Compiler (no NVRTC, an error in the source), Library,
    /// OutOfMemory, Call.
    pub fn compile(
        device: &Arc<Device>,
        source: &str,
        name: &str,
        folder: Option<&CodeFolder>,
    ) -> Result<Arc<Self>, CudaError> {
        let code = compiler::compile(source, name, device, folder)?;
        let load = || {
            let _current = device.enter()?;
            let mut raw = ptr::null_mut();
            // SAFETY: writes one pointer, which Kernels unloads once; `code` is a cubin of the compiler's, whose header says
            // how long it is.
            unsafe { call!(device.driver, cuModuleLoadData(&mut raw, code.as_ptr().cast())) }?;
            Ok(Arc::new(Self { device: device.clone(), raw: Raw(raw) }))
        };
        device.with_memory(code.len() as u64, load())
    }

    /// The kernel of this name. Errors: Call.
    pub fn kernel(self: &Arc<Self>, name: &CStr) -> Result<Kernel, CudaError> {
        let _current = self.device.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer, which is valid while the module is loaded; the name ends with NUL.
        unsafe { call!(self.device.driver, cuModuleGetFunction(&mut raw, self.raw.0, name.as_ptr())) }?;
        Ok(Kernel { _of: Arc::clone(self), raw: Raw(raw) })
    }
}

impl Kernel {
    pub(super) fn raw(&self) -> sys::CUfunction {
        self.raw.0
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        let unload = || {
            let _current = self.device.enter()?;
            // SAFETY: loaded once, unloaded once; each Kernel keeps it.
            unsafe { call!(self.device.driver, cuModuleUnload(self.raw.0)) }
        };
        if let Err(error) = unload() {
            tracing::warn!(%error, "CUDA clean-up failed");
        }
    }
}
