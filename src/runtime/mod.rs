//! Running models: what a runtime is to the rest ([`Executor`], [`Session`], [`BoundCall`]), ONNX Runtime ([`ort`]), and
//! the sockets of the link to the process that holds a runtime ([`link`]).

mod error;
pub mod ort;
mod outline;
mod stop;

pub use error::{ExecutorError, NO_ERROR_CODE};
pub use outline::ModelOutline;
pub use stop::{StopToken, Terminate};

use std::sync::Arc;

use crate::protocol::message::{RunStats, SessionSpec, ValueSpec};
use crate::shm::Lease;
use crate::tensor::TensorBuf;

/// A runtime: makes sessions of models.
pub trait Executor: Send + Sync {
    /// Its version, such as "1.31.1".
    fn version(&self) -> &str;

    /// A session of a ModelProto. Errors: BadModel, BadOption, UnknownProvider, UnsupportedValue.
    fn build(&self, model: &[u8], spec: &SessionSpec) -> Result<Arc<dyn Session>, ExecutorError>;

    /// The ModelProto as the runtime's graph optimizer leaves it for `spec`, to be looked at: it may hold operators of
    /// this runtime and machine alone. Errors: as `build`.
    fn optimized(&self, model: &[u8], spec: &SessionSpec) -> Result<Vec<u8>, ExecutorError>;
}

/// A model, ready to run; any number of calls at once.
pub trait Session: Send + Sync {
    /// In the model's order.
    fn inputs(&self) -> &[ValueSpec];

    /// In the model's order.
    fn outputs(&self) -> &[ValueSpec];

    /// Runs once on the feeds of a lease; the runtime makes the fetches, of whatever shape, and they are copied: for who
    /// does not know the shapes before. Errors: ValueCount, BadValue, RunFailed.
    fn fetch(&self, feeds: &Lease) -> Result<(Vec<TensorBuf>, RunStats), ExecutorError>;

    /// Binds the session to the tensors of a lease, to be run any number of times. `stop` ends its runs. Errors:
    /// ValueCount, BadValue when a tensor is not what the model declares.
    fn bind(self: Arc<Self>, lease: Lease, stop: &StopToken) -> Result<Box<dyn BoundCall>, ExecutorError>;
}

/// A session bound to leased tensors.
pub trait BoundCall: Send {
    /// Reads the inputs, computes, writes the outputs; no copies on the CPU. Errors: RunFailed, Stopped; outputs are then
    /// undefined.
    fn run(&mut self) -> Result<RunStats, ExecutorError>;

    /// The tensors.
    fn lease(&self) -> &Lease;
}

/// Checks that tensors are what a model declares: number, dtype, rank, and every dimension that is not symbolic.
/// `kind` is "input" or "output". Errors: ValueCount, BadValue.
fn check_values<'a>(
    kind: &'static str,
    specs: &[ValueSpec],
    values: impl ExactSizeIterator<Item = crate::shm::RawTensor<'a>>,
) -> Result<(), ExecutorError> {
    if specs.len() != values.len() {
        return Err(ExecutorError::ValueCount { kind, expected: specs.len(), got: values.len() });
    }
    for (spec, value) in specs.iter().zip(values) {
        let dims = value.desc.shape.dims();
        let fits = spec.dims.len() == dims.len()
            && spec.dims.iter().zip(dims).all(|(&declared, &dim)| declared < 0 || declared == dim);
        if spec.dtype != value.desc.dtype || !fits {
            return Err(ExecutorError::BadValue { kind, expected: spec.clone(), got: value.desc.clone() });
        }
    }
    Ok(())
}
