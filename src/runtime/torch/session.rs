//! Sessions and their calls.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use super::failure::Failure;
use super::plan::{Graph, Plan, plan};
use super::run::Run;
use super::types;
use super::value::{Precision, Value};
use crate::base::sync::lock;
use crate::onnx;
use crate::onnx::proto::{GraphProto, ModelProto, ValueInfoProto};
use crate::protocol::message::{RunStats, ValueSpec};
use crate::runtime::types::{Declared, Types};
use crate::runtime::{BoundCall, Constant, Model, RuntimeError, Session, StopToken, Terminate};
use crate::shm::Lease;
use crate::tensor::{DType, TensorBuf};

/// A model, ready to be interpreted; any number of calls at once.
pub struct TorchSession {
    graph: Graph,
    /// Behind a lock since libtorch's handles are not shared between threads: a run takes handles of its own.
    constants: Mutex<Vec<Value>>,
    precision: Precision,
    inputs: Declared,
    outputs: Declared,
}

impl TorchSession {
    /// Of a model; its functions are put in their callers' place. Errors: BadModel, UnsupportedValue.
    pub(super) fn build(model: &Model, constants: &[Constant], precision: Precision) -> Result<Self, RuntimeError> {
        let mut proto = onnx::decode(model.bytes.clone())?;
        onnx::inline_functions(&mut proto)?;
        let graph = proto.graph.as_ref().ok_or(onnx::OnnxError::NoGraph)?;
        let values = given(graph, constants, precision)?;
        let is_given = |name: &str| values.contains_key(name);
        let is_initialized = |name: &str| graph.initializer.iter().any(|tensor| tensor.name() == name);
        let fed = graph.input.iter().filter(|input| !is_given(input.name()) && !is_initialized(input.name()));
        let inputs = Declared::of("input", fed, &Types::new())?;
        let outputs = declared_outputs(graph)?;
        let Plan { graph, constants } = plan(&proto, values, precision)?;
        Ok(Self { graph, constants: Mutex::new(constants), precision, inputs, outputs })
    }

    /// As [`Session::fetch`], but every float that the model gives as float64, unrounded: what
    /// [`Precision::Float64`] is for. Other outputs in their own types. Errors: as there.
    pub fn fetch_float64(&self, feeds: &Lease) -> Result<Vec<TensorBuf>, RuntimeError> {
        self.inputs.check("input", feeds.raw_inputs())?;
        let written = |value: &Value| match value.dtype {
            DType::F16 | DType::BF16 | DType::F32 => value.write_as(DType::F64),
            DType::C64 => value.write_as(DType::C128),
            _ => value.write(),
        };
        let values = self.run(feeds, &AtomicBool::new(false))?;
        values.iter().map(written).collect::<Result<_, _>>().map_err(of_boundary)
    }

    fn run(&self, feeds: &Lease, stopped: &AtomicBool) -> Result<Vec<Value>, RuntimeError> {
        let read = |tensor| Value::read(tensor, self.precision);
        let inputs = feeds.inputs().into_iter().map(read).collect::<Result<_, _>>().map_err(of_boundary)?;
        let constants = lock(&self.constants).clone();
        let values = Run { constants, precision: self.precision, stopped }.main(&self.graph, inputs)?;
        for (at, (value, spec)) in values.iter().zip(&self.outputs.specs).enumerate() {
            let dims = value.dims();
            if !self.outputs.fits(at, value.dtype, &dims) {
                let reason = format!("output {spec}: the model's nodes give {} {dims:?}", value.dtype);
                return Err(RuntimeError::RunFailed { reason, node: String::new() });
            }
        }
        Ok(values)
    }

    /// Runs and gives the outputs in the model's dtypes.
    fn fetched(&self, feeds: &Lease, stopped: &AtomicBool) -> Result<Vec<TensorBuf>, RuntimeError> {
        let values = self.run(feeds, stopped)?;
        values.iter().map(Value::write).collect::<Result<_, _>>().map_err(of_boundary)
    }
}

impl Session for TorchSession {
    fn inputs(&self) -> &[ValueSpec] {
        &self.inputs.specs
    }

    fn outputs(&self) -> &[ValueSpec] {
        &self.outputs.specs
    }

    fn fetch_until(&self, feeds: &Lease, stop: &StopToken) -> Result<(Vec<TensorBuf>, RunStats), RuntimeError> {
        self.inputs.check("input", feeds.raw_inputs())?;
        let start = Instant::now();
        let stopped = Stopped::under(stop);
        let outputs = self.fetched(feeds, &stopped.0)?;
        Ok((outputs, RunStats { run_ns: start.elapsed().as_nanos() as u64, host_bytes: 0 }))
    }

    fn bind(self: Arc<Self>, mut lease: Lease, stop: &StopToken) -> Result<Box<dyn BoundCall>, RuntimeError> {
        self.inputs.check("input", lease.raw_inputs())?;
        self.outputs.check("output", lease.raw_outputs())?;
        let stopped = Stopped::under(stop);
        Ok(Box::new(TorchCall { session: self, lease, stopped }))
    }
}

/// Whether a call was told to end.
#[derive(Default)]
struct Stopped(AtomicBool);

impl Stopped {
    /// One that `stop` tells.
    fn under(stop: &StopToken) -> Arc<Self> {
        let stopped = Arc::new(Self::default());
        let weak: Weak<Self> = Arc::downgrade(&stopped);
        stop.register(weak);
        stopped
    }
}

impl Terminate for Stopped {
    fn terminate(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A session bound to leased tensors.
struct TorchCall {
    session: Arc<TorchSession>,
    lease: Lease,
    stopped: Arc<Stopped>,
}

impl BoundCall for TorchCall {
    fn run(&mut self) -> Result<RunStats, RuntimeError> {
        let start = Instant::now();
        let values = self.session.fetched(&self.lease, &self.stopped.0)?;
        let (_, mut outputs) = self.lease.split_mut();
        // All are looked at before any is written.
        for ((value, output), spec) in values.iter().zip(&outputs).zip(&self.session.outputs.specs) {
            if &value.desc().shape != output.shape {
                let (gives, has) = (&value.desc().shape, output.shape);
                let reason = format!("output {:?}: the model gives {gives}, its memory is {has}", spec.name);
                return Err(RuntimeError::RunFailed { reason, node: String::new() });
            }
        }
        for (value, output) in values.iter().zip(&mut outputs) {
            output.bytes.copy_in(value.view().bytes());
        }
        Ok(RunStats { run_ns: start.elapsed().as_nanos() as u64, host_bytes: 0 })
    }
}

fn of_boundary(failure: Failure) -> RuntimeError {
    RuntimeError::RunFailed { reason: failure.text(), node: String::new() }
}

/// Constants by name. Errors: BadModel for one that is no input, or not what the model declares for it.
fn given<'a>(
    graph: &GraphProto,
    constants: &'a [Constant],
    precision: Precision,
) -> Result<BTreeMap<&'a str, Value>, RuntimeError> {
    let descs = constants.iter().map(|constant| (constant.name.as_str(), constant.tensor.desc()));
    // Its checks alone are wanted: inputs and types are all that it looks at.
    let declared = GraphProto { input: graph.input.clone(), ..GraphProto::default() };
    onnx::without_inputs(&mut ModelProto { graph: Some(declared), ..ModelProto::default() }, descs)?;
    let read = |constant: &'a Constant| {
        let value = Value::read(constant.tensor.shared(), precision);
        Ok((constant.name.as_str(), value.map_err(|failure| bad(&constant.name, &failure.text()))?))
    };
    constants.iter().map(read).collect()
}

fn bad(name: &str, reason: &str) -> RuntimeError {
    RuntimeError::BadModel { reason: format!("constant {name:?}: {reason}") }
}

fn declared_outputs(graph: &GraphProto) -> Result<Declared, RuntimeError> {
    let is_declared = |output: &ValueInfoProto| output.r#type.is_some();
    let found = match graph.output.iter().all(is_declared) {
        true => Types::new(),
        false => types::of_graph(graph, &Types::new()),
    };
    Declared::of("output", graph.output.iter(), &found)
}
