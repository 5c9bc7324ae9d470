//! ONNX Runtime as a runtime.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::options::{Loaded, ThreadPool};
use super::raw;
use super::session::{self, OrtSession};
use crate::base::ids::DeviceUuid;
use crate::cuda::{CodeFolder, Stream};
use crate::protocol::message::SessionSpec;
use crate::runtime::{Constant, Model, Runtime, RuntimeError, Session};

/// The process's one ONNX Runtime.
pub struct OrtRuntime(Loaded);

impl OrtRuntime {
    /// Loads the library at this path; once a process. Errors: RuntimeMissing, LoadedAlready.
    pub fn load(library: &Path, pool: ThreadPool) -> Result<Self, RuntimeError> {
        Loaded::load(library, pool, None).map(Self)
    }

    /// The same, with a folder where the code of kernels that are compiled for a device is kept for other processes.
    pub fn load_with_code(library: &Path, pool: ThreadPool, folder: PathBuf) -> Result<Self, RuntimeError> {
        Loaded::load(library, pool, Some(CodeFolder::new(folder))).map(Self)
    }

    /// Execution providers that the library has.
    pub fn providers(&self) -> &[String] {
        &self.0.providers
    }
}

impl Runtime for OrtRuntime {
    fn version(&self) -> &str {
        &self.0.version
    }

    fn build_with(
        &self,
        model: &Model,
        spec: &SessionSpec,
        constants: Vec<Constant>,
    ) -> Result<Arc<dyn Session>, RuntimeError> {
        Ok(Arc::new(OrtSession::build(&self.0, model, spec, constants)?))
    }

    fn stream(&self, device: DeviceUuid) -> Result<Arc<Stream>, RuntimeError> {
        Ok(Arc::clone(&self.0.queue(device)?.stream))
    }

    fn drain(&self, at_most: Duration, meanwhile: &dyn Fn()) -> bool {
        self.0.devices.drain(at_most, meanwhile)
    }

    fn give_back(&self) {
        raw::give_back();
    }

    fn optimized(&self, model: &Model, spec: &SessionSpec) -> Result<Vec<u8>, RuntimeError> {
        session::optimized(&self.0, model, spec)
    }
}
