//! What a runtime is to the rest.

use std::sync::Arc;
use std::time::Duration;

use super::error::RuntimeError;
use super::model::{Constant, Model};
use super::stop::StopToken;
use crate::base::ids::DeviceUuid;
use crate::cuda::Stream;
use crate::protocol::message::{NodeRuntime, Placement, RunStats, SessionSpec, ValueSpec};
use crate::shm::Lease;
use crate::tensor::TensorBuf;

/// A runtime: makes sessions of models.
pub trait Runtime: Send + Sync {
    /// Its version, such as "1.31.1".
    fn version(&self) -> &str;

    /// A session of a model. Errors: BadModel, BadOption, UnknownProvider, UnsupportedValue.
    fn build(&self, model: &Model, spec: &SessionSpec) -> Result<Arc<dyn Session>, RuntimeError> {
        self.build_with(model, spec, Vec::new())
    }

    /// A session of a model of which some inputs are constants: it has the others as its inputs. Errors: as `build`, and
    /// BadModel for a constant that is no input.
    fn build_with(
        &self,
        model: &Model,
        spec: &SessionSpec,
        constants: Vec<Constant>,
    ) -> Result<Arc<dyn Session>, RuntimeError>;

    /// The runtime beside this one in the process that rules may give nodes to; None where there is none. This one is
    /// [`NodeRuntime::Ort`].
    fn beside(&self, runtime: NodeRuntime) -> Option<&dyn Runtime> {
        let _ = runtime;
        None
    }

    /// The stream of a device that its sessions' calls leave work on. Errors: NotOrdered where it has none, CUDA's.
    fn stream(&self, device: DeviceUuid) -> Result<Arc<Stream>, RuntimeError> {
        Err(RuntimeError::NotOrdered { device })
    }

    /// Waits, at most so long, until what calls left on the streams of devices is done; calls `meanwhile` again and again.
    /// Whether it is.
    fn drain(&self, at_most: Duration, meanwhile: &dyn Fn()) -> bool {
        let _ = (at_most, meanwhile);
        true
    }

    /// Gives memory of sessions that ended back to the system, where the allocator keeps it.
    fn give_back(&self) {}

    /// The ModelProto as the runtime's graph optimizer leaves it for `spec`, to be looked at: it may hold operators of
    /// this runtime and machine alone. Errors: as `build`.
    fn optimized(&self, model: &Model, spec: &SessionSpec) -> Result<Vec<u8>, RuntimeError>;
}

/// A model, ready to run; any number of calls at once.
pub trait Session: Send + Sync {
    /// In the model's order.
    fn inputs(&self) -> &[ValueSpec];

    /// In the model's order.
    fn outputs(&self) -> &[ValueSpec];

    /// The device that its calls' tensors may lie on.
    fn device(&self) -> Option<DeviceUuid> {
        None
    }

    /// Which execution providers have its nodes.
    fn placement(&self) -> Placement {
        Placement::default()
    }

    /// Runs once on the feeds of a lease; the runtime makes the fetches, of whatever shape, and they are copied: for who
    /// does not know the shapes before. `stop` ends it. Errors: ValueCount, BadValue, RunFailed, Stopped.
    fn fetch_until(&self, feeds: &Lease, stop: &StopToken) -> Result<(Vec<TensorBuf>, RunStats), RuntimeError>;

    /// As [`Session::fetch_until`], with nothing that would end it.
    fn fetch(&self, feeds: &Lease) -> Result<(Vec<TensorBuf>, RunStats), RuntimeError> {
        self.fetch_until(feeds, &StopToken::default())
    }

    /// Binds the session to the tensors of a lease, to be run any number of times. `stop` ends its runs. Errors:
    /// ValueCount, BadValue when a tensor is not what the model declares.
    fn bind(self: Arc<Self>, lease: Lease, stop: &StopToken) -> Result<Box<dyn BoundCall>, RuntimeError>;
}

/// A session bound to leased tensors.
pub trait BoundCall: Send {
    /// The call is kept, and the calling thread alone runs it from now on: what is prepared for later runs of it is worth
    /// its price.
    fn keep(&mut self) {}

    /// Reads the inputs, computes, writes the outputs; no copies where all lies where the session computes. Errors: RunFailed, Stopped; outputs are then
    /// undefined.
    fn run(&mut self) -> Result<RunStats, RuntimeError>;

    /// The stream of a device that `run` leaves work on when it returns: whoever calls it orders that behind what the
    /// tensors wait for, and others behind it. None: what `run` does is done then.
    fn stream(&self) -> Option<&Stream> {
        None
    }
}
