//! Kernels of our own on a device, each compiled once for all sessions that have it.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, Weak};

use super::kernels::KernelSource;
use crate::base::parallel::in_parallel;
use crate::base::sync::lock;
use crate::cuda::{CodeFolder, CudaError, Device, Kernel, Kernels};

/// The kernels of one device, by their names: equal kernels have one. They last as long as somebody has them.
pub(super) struct DeviceKernels {
    device: Arc<Device>,
    folder: Option<CodeFolder>,
    known: Mutex<HashMap<String, Weak<Kernel>>>,
}

impl DeviceKernels {
    /// folder: where code is kept for other processes.
    pub(super) fn new(device: Arc<Device>, folder: Option<CodeFolder>) -> Self {
        Self { device, folder, known: Mutex::default() }
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The kernel of a source, compiled unless somebody has it. Errors: as [`Kernels::compile`].
    pub(super) fn kernel(&self, source: &KernelSource) -> Result<Arc<Kernel>, CudaError> {
        let known = |kernels: &HashMap<String, Weak<Kernel>>| kernels.get(&source.name).and_then(Weak::upgrade);
        if let Some(kernel) = known(&lock(&self.known)) {
            return Ok(kernel);
        }
        let kernels =
            Kernels::compile(&self.device, &source.text, &format!("{}.cu", source.name), self.folder.as_ref())?;
        let name = CString::new(source.name.as_str())
            .map_err(|_| CudaError::Compiler { reason: format!("{:?} is no name", source.name) })?;
        let made = Arc::new(kernels.kernel(&name)?);
        let mut all = lock(&self.known);
        // Another thread may have been faster.
        if let Some(kernel) = known(&all) {
            return Ok(kernel);
        }
        all.retain(|_, kernel| kernel.strong_count() > 0);
        all.insert(source.name.clone(), Arc::downgrade(&made));
        Ok(made)
    }

    /// Those of several sources, compiled side by side. Errors: the first.
    pub(super) fn all(&self, sources: &[KernelSource]) -> Result<Vec<Arc<Kernel>>, CudaError> {
        in_parallel(sources.len(), usize::MAX, |at| self.kernel(&sources[at])).into_iter().collect()
    }
}
