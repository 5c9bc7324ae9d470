//! libtorch beside ONNX Runtime.

use std::sync::Arc;
use std::time::Duration;

use super::runtime::TorchRuntime;
use super::value::Precision;
use crate::base::ids::DeviceUuid;
use crate::cuda::Stream;
use crate::protocol::message::{NodeRuntime, SessionSpec};
use crate::runtime::{Constant, Model, Runtime, RuntimeError, Session};

/// ONNX Runtime, and libtorch for the nodes that rules give to it.
struct Beside {
    ort: Box<dyn Runtime>,
    torch: TorchRuntime,
    torch_f64: TorchRuntime,
}

/// ONNX Runtime with the process's libtorch beside it. threads: of libtorch's pool, 0 = one a core. Errors: those of
/// [`TorchRuntime::load`].
pub fn beside(ort: Box<dyn Runtime>, threads: u32) -> Result<Box<dyn Runtime>, RuntimeError> {
    let torch = TorchRuntime::load(threads, Precision::AsDeclared)?;
    let torch_f64 = TorchRuntime::load(threads, Precision::Float64)?;
    Ok(Box::new(Beside { ort, torch, torch_f64 }))
}

impl Runtime for Beside {
    fn version(&self) -> &str {
        self.ort.version()
    }

    fn build_with(
        &self,
        model: &Model,
        spec: &SessionSpec,
        constants: Vec<Constant>,
    ) -> Result<Arc<dyn Session>, RuntimeError> {
        self.ort.build_with(model, spec, constants)
    }

    fn beside(&self, runtime: NodeRuntime) -> Option<&dyn Runtime> {
        match runtime {
            NodeRuntime::Ort => Some(&*self.ort),
            NodeRuntime::Torch => Some(&self.torch),
            NodeRuntime::TorchF64 => Some(&self.torch_f64),
        }
    }

    fn stream(&self, device: DeviceUuid) -> Result<Arc<Stream>, RuntimeError> {
        self.ort.stream(device)
    }

    fn drain(&self, at_most: Duration, meanwhile: &dyn Fn()) -> bool {
        self.ort.drain(at_most, meanwhile)
    }

    fn give_back(&self) {
        self.ort.give_back();
    }

    fn optimized(&self, model: &Model, spec: &SessionSpec) -> Result<Vec<u8>, RuntimeError> {
        self.ort.optimized(model, spec)
    }
}
