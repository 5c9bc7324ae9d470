//! Making sessions.

use std::ffi::CString;
use std::io::{Read as _, Seek as _};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use bytes::Bytes;
use ort::environment::Environment;
use ort::session::builder::SessionBuilder;
use prost::Message as _;

use super::device_memory::with_room;
use super::devices::DeviceQueue;
use super::graphs::Graphs;
use super::kernels::DeviceRegion;
use super::missing;
use super::operators::{Operators, Place, in_place};
use super::options::{Loaded, options, own_threads};
use super::placement::Listener;
use super::raw::{self, Declared, MemoryInfo, Names, Value};
use crate::cuda::{self, Kernel};
use crate::onnx::{self, MissingKernels, Target, TypedProgram};
use crate::protocol::message::{CUDA_GRAPHS, CUDA_PROVIDER, Optimization, Placed, Placement, SessionSpec, ValueSpec};
use crate::runtime::types::Declared as DeclaredValues;
use crate::runtime::{Constant, Model, RuntimeError};
use crate::tensor::DType;

/// The pass whose operators are compiled.
const REGIONS: &str = "regions";
/// Passes that gain nothing where weights are constants, which are made wide, laid out and packed before any call.
const OF_INPUTS: [&str; 2] = ["half-products", "channel-convolutions"];

/// A session, and what is known of its model's values.
pub(super) struct OrtSession {
    /// Goes before its environment and the operators.
    pub(super) session: raw::Session,
    /// What the session points into, and what it logs to: both go after it.
    _constants: Vec<Constant>,
    _listener: Option<Arc<Listener>>,
    _environment: Environment,
    _operators: Option<Operators>,
    pub(super) inputs: DeclaredValues,
    pub(super) outputs: DeclaredValues,
    pub(super) input_names: Names,
    pub(super) output_names: Names,
    /// Outputs that are inputs: (output, input). The runtime hands back the input's own tensor for them and leaves the
    /// preallocated one as it was.
    pub(super) passed_through: Vec<(usize, usize)>,
    /// A run wrote every output; until then runs are watched.
    pub(super) writes_outputs: AtomicBool,
    /// No other provider: tensors can be bound once, since binding copies nothing.
    pub(super) cpu_only: bool,
    /// Who has its nodes.
    pub(super) placement: Placement,
    pub(super) memory: MemoryInfo,
    /// Of a session on a device.
    pub(super) queue: Option<Arc<DeviceQueue>>,
    /// Of a session whose calls may become CUDA graphs.
    pub(super) graphs: Option<Graphs>,
}

/// See [`Runtime::optimized`](crate::runtime::Runtime::optimized).
pub(super) fn optimized(loaded: &Loaded, model: &Model, spec: &SessionSpec) -> Result<Vec<u8>, RuntimeError> {
    missing::learning(loaded, spec, |missing| optimized_around(loaded, model, spec, missing))
}

fn optimized_around(
    loaded: &Loaded,
    model: &Model,
    spec: &SessionSpec,
    missing: Option<&MissingKernels>,
) -> Result<Vec<u8>, RuntimeError> {
    let bad_model = |reason: String| RuntimeError::BadModel { reason };
    let _beside = (!spec.cpu_only()).then(cuda::beside_captures);
    // The runtime writes to a path only; this one is memory, and gone with the descriptor.
    let file = rustix::fs::memfd_create("rust-ort-optimized", rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(|error| bad_model(format!("no memory for the optimized model: {error}")))?;
    let prepared = prepared(loaded, model, spec, missing)?;
    let builder = prepared
        .builder
        .with_optimized_model_path(format!("/proc/self/fd/{}", file.as_raw_fd()))
        .map_err(|error| bad_model(error.to_string()))?;
    let session = Prepared { builder, ..prepared }.session(loaded);
    session.map_err(|error| bad_model(error.to_string()))?;
    let mut bytes = Vec::new();
    let mut file = std::fs::File::from(file);
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).map_err(|error| bad_model(error.to_string()))?;
    Ok(bytes)
}

/// What a session is made with: all that it is asked to be, the model rewritten, outputs that are written, our operators
/// for its provider, and last of all nothing without a kernel.
fn prepared(
    loaded: &Loaded,
    model: &Model,
    spec: &SessionSpec,
    missing: Option<&MissingKernels>,
) -> Result<Prepared, RuntimeError> {
    let mut prepared = rewritten_for(loaded, model, spec)?;
    if let Some(missing) = missing {
        prepared.bytes = missing::fitted(prepared.bytes, missing)?;
    }
    Ok(prepared)
}

fn rewritten_for(loaded: &Loaded, model: &Model, spec: &SessionSpec) -> Result<Prepared, RuntimeError> {
    let (builder, shares_threads) = (options(loaded, spec)?, own_threads(spec)?.is_none());
    let (rewritten, kernels) = with_kernels(loaded, model, spec)?;
    let model = rewritten.as_ref().unwrap_or(model);
    // Without optimizers nobody takes them away.
    let kept = match model.has_transposed_outputs && spec.optimization != Optimization::Disable {
        true => Some(Model::encode(&onnx::keep_transposed_outputs(onnx::decode(model.bytes.clone())?))),
        false => None,
    };
    let model = kept.as_ref().unwrap_or(model);
    let fuses = spec.optimization != Optimization::Disable;
    let ours = Place::of(spec).map(|place| in_place(model, place, fuses)).transpose()?.flatten();
    let Some(bytes) = ours else {
        let bytes = model.bytes.clone();
        return Ok(Prepared { builder, bytes, operators: None, shares_threads, kernels });
    };
    let operators = match spec.device {
        Some(device) => loaded.queue(device)?.operators(),
        None => Ok(loaded.operators.clone()),
    };
    let registered = operators.and_then(|operators| Ok((operators.register(builder)?, operators)));
    let (builder, operators) = registered.map_err(|error| RuntimeError::BadModel { reason: error.to_string() })?;
    Ok(Prepared { builder, bytes, operators: Some(operators), shares_threads, kernels })
}

/// What a session is made of.
struct Prepared {
    builder: SessionBuilder,
    bytes: Bytes,
    /// Of ours.
    operators: Option<Operators>,
    /// With all others.
    shares_threads: bool,
    /// Of regions: those that the operators look for when the session is made.
    kernels: Vec<Arc<Kernel>>,
}

impl Prepared {
    fn session(&mut self, loaded: &Loaded) -> ort::Result<raw::Session> {
        let Self { builder, bytes, operators, shares_threads, .. } = self;
        let mut build = || raw::Session::of_model(&loaded.environment, builder, bytes, *shares_threads);
        if operators.is_some() { Operators::built(build) } else { build() }
    }
}

/// The model as [`rewritten`], and the kernels of its regions on a device; without regions where these cannot be compiled.
fn with_kernels(
    loaded: &Loaded,
    model: &Model,
    spec: &SessionSpec,
) -> Result<(Option<Model>, Vec<Arc<Kernel>>), RuntimeError> {
    let rewritten = rewritten(model, spec)?;
    let known = rewritten.as_ref().unwrap_or(model);
    let Some(device) = spec.device.filter(|_| known.has_replaceable) else { return Ok((rewritten, Vec::new())) };
    let proto = onnx::decode(known.bytes.clone())?;
    let nodes = proto.graph.iter().flat_map(|graph| &graph.node);
    let regions = nodes.filter_map(|node| TypedProgram::of(node).and_then(DeviceRegion::of));
    let sources: Vec<_> = regions.map(|region| region.source()).collect();
    if sources.is_empty() {
        return Ok((rewritten, Vec::new()));
    }
    let started = Instant::now();
    match loaded.queue(device)?.kernels.all(&sources) {
        Ok(kernels) => {
            tracing::info!(regions = sources.len(), elapsed = ?started.elapsed(), "kernels of regions are there");
            Ok((rewritten, kernels))
        }
        Err(error) => {
            tracing::warn!(%error, regions = sources.len(), "the session is made without regions: each node is a kernel");
            Ok((self::rewritten(model, &spec.without_pass(REGIONS))?, Vec::new()))
        }
    }
}

/// The model after our own passes; None where they leave it as it is. Errors: BadOption for a pass that is not there.
fn rewritten(model: &Model, spec: &SessionSpec) -> Result<Option<Model>, RuntimeError> {
    if let Some(unknown) = spec.disabled_passes.iter().find(|&name| onnx::passes().all(|known| known != name)) {
        let known: Vec<_> = onnx::passes().collect();
        let reason = format!("no pass is called {unknown:?}; there are {}", known.join(", "));
        return Err(RuntimeError::BadOption { name: "disable_passes".to_owned(), reason });
    }
    let target = match spec.device {
        Some(_) => Target::Cuda,
        None if spec.cpu_only() => Target::Cpu,
        None => return Ok(None),
    };
    if !matches!(spec.optimization, Optimization::All | Optimization::Extended) {
        return Ok(None);
    }
    let mut proto = onnx::decode(model.bytes.clone())?;
    Ok(onnx::rewrite(&mut proto, target, &spec.disabled_passes).then(|| Model::encode(&proto)))
}

impl OrtSession {
    pub(super) fn build(
        loaded: &Loaded,
        model: &Model,
        spec: &SessionSpec,
        constants: Vec<Constant>,
    ) -> Result<Self, RuntimeError> {
        missing::learning(loaded, spec, |missing| Self::build_around(loaded, model, spec, constants.clone(), missing))
    }

    fn build_around(
        loaded: &Loaded,
        model: &Model,
        spec: &SessionSpec,
        // Declared before the builder, which points into them, as the listener: dropped after it.
        constants: Vec<Constant>,
        missing: Option<&MissingKernels>,
    ) -> Result<Self, RuntimeError> {
        let _beside = (!spec.cpu_only()).then(cuda::beside_captures);
        // Nobody could have nodes but the CPU's otherwise.
        let listener = (!spec.cpu_only()).then(|| Arc::new(Listener::new()));
        let bad_model = |error: ort::Error| RuntimeError::BadModel { reason: error.to_string() };
        // What it gives is the model with all its inputs.
        let complete = |prepared: &mut Prepared| {
            let with_all_inputs = prepared.bytes.clone();
            if !constants.is_empty() {
                // SAFETY: on every way out the builder and the session go before the constants: the one is a variable, they an
                // argument or a field, and of the fields the session comes first.
                prepared.bytes = unsafe { with_constants(&mut prepared.builder, prepared.bytes.clone(), &constants) }?;
            }
            if let Some(listener) = &listener {
                // SAFETY: as above.
                unsafe { raw::log_to(&mut prepared.builder, listener) }.map_err(bad_model)?;
            }
            Ok::<_, RuntimeError>(with_all_inputs)
        };
        let without = || OF_INPUTS.iter().fold(spec.clone(), |spec, pass| spec.without_pass(pass));
        let for_passes = if constants.is_empty() { spec } else { &without() };
        let mut prepared = prepared(loaded, model, for_passes, missing)?;
        let mut ran = complete(&mut prepared)?;
        let refused = |error: ort::Error| refused_graphs(spec, &error.to_string()).unwrap_or_else(|| bad_model(error));
        let queue = spec.device.map(|device| loaded.queue(device)).transpose()?;
        let with_memory = |error: RuntimeError| error.with_memory(queue.as_ref().map(|queue| &*queue.stream));
        let (mut session, mut shortage) = with_room(|| prepared.session(loaded));
        if let (Err(error), None, false) = (&session, &shortage, prepared.kernels.is_empty()) {
            tracing::warn!(%error, "a session with regions is refused: it is made without them");
            prepared = self::prepared(loaded, model, &spec.without_pass(REGIONS), missing)?;
            ran = complete(&mut prepared)?;
            (session, shortage) = with_room(|| prepared.session(loaded));
        }
        if let Some(shortage) = shortage {
            return Err(shortage.into());
        }
        let session = session.map_err(|error| with_memory(refused(error)))?;
        let placement = listener.as_ref().map_or(Placement::CpuOnly, |listener| listener.end());
        tell(&placement);
        let inputs = values("input", session.inputs().map_err(bad_model)?)?;
        let outputs = values("output", session.outputs().map_err(bad_model)?)?;
        let passed_through = (outputs.iter().enumerate())
            .filter_map(|(output, spec)| Some((output, inputs.iter().position(|input| input.name == spec.name)?)))
            .collect();
        Ok(Self {
            _listener: listener,
            placement,
            input_names: names(&inputs)?,
            output_names: names(&outputs)?,
            session,
            _constants: constants,
            _environment: loaded.environment.clone(),
            _operators: prepared.operators,
            inputs: ranked(inputs, model),
            outputs: ranked(outputs, model),
            passed_through,
            writes_outputs: AtomicBool::new(false),
            cpu_only: spec.cpu_only(),
            memory: MemoryInfo::cpu(),
            queue,
            graphs: spec.has_cuda_graphs().then(|| Graphs::of(&ran)).transpose()?,
        })
    }
}

/// The model in `bytes` with constants in the place of inputs, whose values the builder gets. What is done to a model
/// before knows them as inputs, as it knows those that change: the runtime alone sees constants.
///
/// # Safety
/// The constants must outlive the builder and its sessions.
unsafe fn with_constants(
    builder: &mut SessionBuilder,
    bytes: Bytes,
    constants: &[Constant],
) -> Result<Bytes, RuntimeError> {
    let mut proto = onnx::decode(bytes)?;
    onnx::without_inputs(
        &mut proto,
        constants.iter().map(|constant| (constant.name.as_str(), constant.tensor.desc())),
    )?;
    let bad_model = |error: ort::Error| RuntimeError::BadModel { reason: format!("its constants: {error}") };
    let memory = MemoryInfo::cpu();
    let value = |constant: &Constant| {
        let name = CString::new(constant.name.as_str()).map_err(ort::Error::wrap)?;
        // SAFETY: the caller keeps the constants; the runtime writes into no initializer.
        Ok((name, unsafe { Value::over_constant(&memory, constant.tensor.view()) }?))
    };
    let values = constants.iter().map(value).collect::<ort::Result<Vec<_>>>().map_err(bad_model)?;
    // SAFETY: as above.
    unsafe { raw::add_external_initializers(builder, &values) }.map_err(bad_model)?;
    Ok(proto.encode_to_vec().into())
}

/// A session that ONNX Runtime refuses because of its CUDA graphs (a node without a kernel of CUDA's between others, control
/// flow), as the option's error; None: for another reason.
fn refused_graphs(spec: &SessionSpec, reason: &str) -> Option<RuntimeError> {
    if !(spec.has_cuda_graphs() && reason.contains("graph capture feature")) {
        return None;
    }
    let name = format!("{CUDA_PROVIDER} {CUDA_GRAPHS}");
    Some(RuntimeError::BadOption {
        name,
        reason: format!("{reason}; leave the option out, or run these nodes elsewhere"),
    })
}

/// One line of the log on who has a session's nodes.
fn tell(placement: &Placement) {
    match placement {
        Placement::CpuOnly => {}
        Placement::Unknown => tracing::info!("ONNX Runtime does not tell which nodes each provider has"),
        Placement::Told(placed) => {
            let of_one = |(provider, Placed { nodes, ops }): (&String, &Placed)| {
                let ops: Vec<_> = ops.iter().map(|(op, n)| format!("{n} {op}")).collect();
                let listed = if ops.is_empty() { String::new() } else { format!(" ({})", ops.join(", ")) };
                format!("{nodes} on {provider}{listed}")
            };
            tracing::info!(nodes = placed.iter().map(of_one).collect::<Vec<_>>().join("; "), "nodes by provider");
        }
    }
}

fn values(kind: &'static str, declared: Vec<Declared>) -> Result<Vec<ValueSpec>, RuntimeError> {
    let value = |Declared { name, kind: number, tensor }| match tensor {
        None => Err((name, format!("no tensor (ONNX Runtime's kind of value {number})"))),
        Some((code, dims)) => match DType::from_onnx(code) {
            Ok(dtype) => Ok(ValueSpec { name, dtype, dims }),
            Err(_) => Err((name, format!("a tensor of ONNX Runtime's element type {code}"))),
        },
    };
    let (mut specs, mut unsupported) = (Vec::new(), Vec::new());
    for declared in declared {
        match value(declared) {
            Ok(spec) => specs.push(spec),
            Err(other) => unsupported.push(other),
        }
    }
    if unsupported.is_empty() {
        return Ok(specs);
    }
    let (name, declared) = unsupported.remove(0);
    Err(RuntimeError::UnsupportedValue { kind, name, declared, others: unsupported })
}

/// What the runtime says of no dimensions is of rank 0, or of a rank that nobody knows: the latter, where the model tells
/// no shape of it.
fn ranked(specs: Vec<ValueSpec>, model: &Model) -> DeclaredValues {
    let unranked = |spec: &ValueSpec| spec.dims.is_empty() && model.unranked.contains(&spec.name);
    DeclaredValues { unranked: specs.iter().map(unranked).collect(), specs }
}

fn names(values: &[ValueSpec]) -> Result<Names, RuntimeError> {
    let name = |value: &ValueSpec| {
        let reason = || format!("the name {:?} holds a NUL", value.name);
        CString::new(value.name.as_str()).map_err(|_| RuntimeError::BadModel { reason: reason() })
    };
    Ok(Names::new(values.iter().map(name).collect::<Result<_, _>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_cannot_have_cuda_graphs_is_the_options_error() {
        let spec = |device| SessionSpec {
            providers: vec![(CUDA_PROVIDER.to_owned(), [(CUDA_GRAPHS.to_owned(), "1".to_owned())].into())],
            device,
            ..SessionSpec::default()
        };
        let on_device = spec(Some(crate::base::ids::DeviceUuid([7; 16])));
        let said = "This session cannot use the graph capture feature as requested by the user  as all compute graph \
                    nodes have not been partitioned to the CUDAExecutionProvider";
        let text = refused_graphs(&on_device, said).unwrap().to_string();
        assert!(
            text.contains("CUDAExecutionProvider enable_cuda_graph") && text.contains("leave the option out"),
            "{text}"
        );
        assert!(refused_graphs(&on_device, "No such operator").is_none());
        assert!(refused_graphs(&spec(None), said).is_none());
    }

    #[test]
    fn a_value_that_torch_has_no_type_for_is_an_error_with_its_number() {
        let declared = |kind, tensor| vec![Declared { name: "x".to_owned(), kind, tensor }];
        // string, uint4, and what no runtime has yet.
        for code in [0, 8, 21, 26, 27, 1000, -1] {
            let text = values("input", declared(1, Some((code, vec![2])))).unwrap_err().to_string();
            assert!(text.contains("input \"x\"") && text.contains(&format!("element type {code}:")), "{text}");
        }
        let both = [declared(7, None), declared(1, Some((8, vec![])))].into_iter().flatten().collect();
        let RuntimeError::UnsupportedValue { others, .. } = values("output", both).unwrap_err() else {
            panic!("its kind")
        };
        assert_eq!(others, [("x".to_owned(), "a tensor of ONNX Runtime's element type 8".to_owned())]);
        let text = values("output", declared(7, None)).unwrap_err().to_string();
        assert!(text.contains("no tensor (ONNX Runtime's kind of value 7)"), "{text}");
        assert_eq!(values("input", declared(1, Some((16, vec![-1])))).unwrap()[0].dtype, DType::BF16);
    }
}
