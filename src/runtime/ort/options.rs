//! The loaded library, and the options of the sessions that it makes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ort::environment::{Environment, GlobalThreadPoolOptions};
use ort::ep::{self, ArbitrarilyConfigurableExecutionProvider as _};
use ort::logging::LogLevel;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};

use super::device_memory;
use super::devices::{DeviceQueue, Devices};
use super::libraries::Libraries;
use super::operators::Operators;
use super::raw;
use crate::base::ids::DeviceUuid;
use crate::base::limits;
use crate::cuda::{self, CodeFolder, CudaError};
use crate::protocol::message::{
    CPU_PROVIDER as CPU, CUDA_GRAPHS, CUDA_PROVIDER as CUDA, Optimization, Provider, SessionSpec, asks_for_cuda_graphs,
};
use crate::runtime::RuntimeError;

/// Graph optimizers that stay off whatever is asked, since ONNX Runtime 1.31.1 on the CPU gives wrong values with them:
/// MatmulTransposeFusion takes `Transpose → MatMul(·, 1-D)` for a FusedMatMul; NoopElimination leaves out `x + 0`, which
/// is 0.0 where x is -0.0; the others compute in another order, which overflows, or does not, where the model says
/// otherwise: `(x·s) @ w` as `(x @ w)·s`, and of float64 with a float32 s; `(1/x)·y` as `y/x`; what constants do to
/// a convolution, to its weight.
pub const WRONG_OPTIMIZERS: &[&str] = &[
    "MatmulTransposeFusion",
    "NoopElimination",
    "MatMulScaleFusion",
    "DivMulFusion",
    "ConvMulFusion",
    "ConvAddFusion",
];

/// Graph optimizers that have a name, of onnxruntime 1.31.1 without those of quantization. A name that a library does not
/// know is no error.
pub const OPTIMIZERS: &[&str] = &[
    "BiasDropoutFusion",
    "BiasGeluFusion",
    "BiasSoftmaxFusion",
    "CastChainElimination",
    "CastElimination",
    "CommonSubexpressionElimination",
    "ConstantFolding",
    "ConstantSharing",
    "ConvActivationFusion",
    "ConvAddActivationFusion",
    "ConvAddFusion",
    "ConvBNFusion",
    "ConvMulFusion",
    "DivMulFusion",
    "EliminateDropout",
    "EliminateIdentity",
    "EliminateSlice",
    "ExpandElimination",
    "FastGeluFusion",
    "FuseReluClip",
    "GatherSliceToSplitFusion",
    "GatherToSliceFusion",
    "GeluFusionL1",
    "GeluFusionL2",
    "GemmActivationFusion",
    "GemmSumFusion",
    "GemmTransposeFusion",
    "LayerNormFusionL1",
    "LayerNormFusionL2",
    "MatMulActivationFusion",
    "MatMulAddFusion",
    "MatMulScaleFusion",
    "MatMul_BatchNormalization_Fusion",
    "MatmulTransposeFusion",
    "NchwcTransformer",
    "NhwcTransformer",
    "NoopElimination",
    "NotWhereFusion",
    "Pad_Fusion",
    "PreShapeNodeElimination",
    "PropagateCastOps",
    "QuickGeluFusion",
    "ReshapeFusion",
    "SimplifiedLayerNormFusion",
    "SkipLayerNormFusion",
    "SliceConcatToSpaceToDepthFusion",
    "TransposeOptimizer",
    "UnsqueezeElimination",
];

/// The config entry that lets optimizers of [`WRONG_OPTIMIZERS`] run all the same, separated by semicolons: to see what
/// they do. ONNX Runtime does not get it.
pub const ALLOWED_OPTIMIZERS: &str = "rust_ort.allowed_optimizers";
/// The config entry that gives a session a pool of its own of so many intra-op threads, in the place of the one that all
/// share: to see whether a result depends on how many there are. ONNX Runtime does not get it.
pub const THREADS: &str = "rust_ort.threads";
/// The config entry that has ONNX Runtime write how long each node took: the beginning of the file's path. With
/// CUDA_LAUNCH_BLOCKING=1 in the environment of client and daemon it is what nodes take on a device. ONNX Runtime does not get it.
pub const PROFILE: &str = "rust_ort.profile";
const DISABLED_OPTIMIZERS: &str = "optimization.disable_specified_optimizers";
/// With these the runtime keeps pointing into the model's bytes, which are gone after the build.
const REFUSED_CONFIG: &[&str] =
    &["session.use_ort_model_bytes_directly", "session.use_ort_model_bytes_for_initializers"];
/// What a constant that ONNX Runtime computes when it builds a session may take; by itself it keeps up to 1 GiB of each.
/// The zeros that an embedding's gradient begins with are as large as its weight, and a session would hold them for good.
/// Larger ones are computed in each run.
const CONSTANT_BYTES: (&str, &str) = ("optimization.constant_folding_max_output_size_in_bytes", "67108864");
const SPINNING_CONFIG: &[&str] = &["session.intra_op.allow_spinning", "session.inter_op.allow_spinning"];

/// In the names of providers that compute on NVIDIA's devices.
const ON_DEVICES: &[&str] = &["CUDA", "Tensorrt", "TensorRT"];

/// Options of it that the tensors' device decides.
const OF_THE_DEVICE: &[&str] = &["device_id", "user_compute_stream", "has_user_compute_stream"];

/// Options of it that are of an arena of the session's own.
const OF_AN_ARENA: &[&str] = &["gpu_mem_limit", "arena_extend_strategy"];

/// The process's one ONNX Runtime.
pub(super) struct Loaded {
    pub(super) environment: Environment,
    pub(super) version: String,
    pub(super) providers: Vec<String>,
    allow_spinning: bool,
    libraries: Libraries,
    pub(super) operators: Operators,
    pub(super) devices: Devices,
}

/// How the runtime's threads work.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThreadPool {
    /// Intra-op threads of the one pool that all sessions share; 0 = one a core.
    pub threads: u32,
    /// Idle threads of the pool spin: faster in a tight loop, but they starve everything else on the machine.
    pub allow_spinning: bool,
}

impl Loaded {
    /// Loads the library at this path; once a process. code: where compiled code is kept for other processes. Errors: RuntimeMissing, LoadedAlready.
    pub(super) fn load(library: &Path, pool: ThreadPool, code: Option<CodeFolder>) -> Result<Self, RuntimeError> {
        let missing = |reason: String| RuntimeError::RuntimeMissing { library: library.to_owned(), reason };
        // A relative path would be looked for beside the executable and on the system's library path.
        if !library.is_absolute() {
            return Err(missing("the path must be absolute".to_owned()));
        }
        let builder = ort::init_from(library).map_err(|error| missing(error.to_string()))?;
        let options = thread_pool(pool).map_err(|error| missing(error.to_string()))?;
        let environment = builder
            .with_name("rust-ort")
            .with_telemetry(false)
            .with_global_thread_pool(options)
            .build()
            .map_err(|_| RuntimeError::LoadedAlready { library: library.to_owned() })?;
        // `ort` asks for everything and filters afterwards; below Warning the runtime logs on every run.
        environment.set_log_level(LogLevel::Warning);
        let version = raw::version(library).map_err(|error| missing(error.to_string()))?;
        raw::find_cancel_loading(library, &version).map_err(|error| missing(error.to_string()))?;
        let mut providers = raw::available_providers();
        if cuda::on_host() {
            providers.push(CUDA.to_owned());
        }
        let operators = Operators::new().map_err(|error| missing(error.to_string()))?;
        let libraries = Libraries::default();
        let (allow_spinning, devices) = (pool.allow_spinning, Devices::new(code));
        Ok(Self { environment, version, providers, allow_spinning, libraries, operators, devices })
    }
}

impl Loaded {
    /// See [`Devices::queue`].
    pub(super) fn queue(&self, device: DeviceUuid) -> Result<Arc<DeviceQueue>, CudaError> {
        self.devices.queue(device, &self.environment)
    }
}

fn thread_pool(ThreadPool { threads, allow_spinning }: ThreadPool) -> ort::Result<GlobalThreadPoolOptions> {
    // The runtime's own default also pins its threads to cores, which hurts next to other busy processes.
    let one_a_core = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = if threads == 0 { one_a_core() } else { threads as usize };
    GlobalThreadPoolOptions::default()
        .with_intra_threads(threads)?
        .with_inter_threads(1)?
        .with_spin_control(allow_spinning)
}

/// A builder with all that a session is asked to be. Errors: BadOption, UnknownProvider.
pub(super) fn options(loaded: &Loaded, spec: &SessionSpec) -> Result<SessionBuilder, RuntimeError> {
    let bad = |name: &str, reason: String| RuntimeError::BadOption { name: name.to_owned(), reason };
    let level = match spec.optimization {
        Optimization::All => GraphOptimizationLevel::All,
        Optimization::Extended => GraphOptimizationLevel::Level2,
        Optimization::Basic => GraphOptimizationLevel::Level1,
        Optimization::Kernels | Optimization::Disable => GraphOptimizationLevel::Disable,
    };
    let builder =
        ort::session::Session::builder(&loaded.environment).map_err(|error| bad("session", error.to_string()))?;
    let mut builder =
        builder.with_optimization_level(level).map_err(|error| bad("ort_optimization", error.to_string()))?;
    builder = builder.with_log_level(LogLevel::Warning).map_err(|error| bad("session", error.to_string()))?;
    if spec.cpu_only() {
        // A block laid out for the whole run comes on top of what the first run, which has none, took and keeps: half as
        // much memory again in a training step, and no faster.
        builder = builder.with_memory_pattern(false).map_err(|error| bad("session", error.to_string()))?;
    }
    if let Some(threads) = own_threads(spec)? {
        let own = builder.with_independent_thread_pool().map_err(|error| bad(THREADS, error.to_string()))?;
        builder = own.with_intra_threads(threads).map_err(|error| bad(THREADS, error.to_string()))?;
    }
    if let Some(path) = spec.config.get(PROFILE) {
        // ONNX Runtime says nothing of a profile that it cannot write.
        tempfile::NamedTempFile::new_in(folder_of(path)).map_err(|error| {
            bad(
                PROFILE,
                format!(
                    "{path}: {error}; a confined executor writes no file: start the daemon with RUST_ORT_CONFINE=off"
                ),
            )
        })?;
        builder = builder.with_profiling(path).map_err(|error| bad(PROFILE, error.to_string()))?;
    }
    for (key, value) in config(loaded, spec)? {
        builder = builder.with_config_entry(&key, value).map_err(|error| bad(&key, error.to_string()))?;
    }
    if let Some(device) = spec.device.filter(|_| spec.providers.iter().all(|(name, _)| name != CUDA)) {
        let reason = format!("the tensors are on {device}, which {CUDA} computes on; name it, or leave the option out");
        return Err(RuntimeError::BadOption { name: "providers".to_owned(), reason });
    }
    let elsewhere = |name: &str| name != CUDA && name != CPU;
    if let Some((name, _)) = spec.providers.iter().find(|(name, _)| spec.device.is_some() && elsewhere(name)) {
        let reason = format!("the tensors are on a device, which {CUDA} alone computes on beside the CPU");
        return Err(RuntimeError::BadOption { name: name.clone(), reason });
    }
    for provider in &spec.providers {
        builder = match spec.device {
            Some(device) if provider.0 == CUDA => add_cuda(loaded, builder, &provider.1, device)?,
            _ => add_provider(loaded, builder, provider)?,
        };
    }
    if spec.optimization == Optimization::Kernels {
        // Pieces are many, and kept from one comparison to the next: what each takes for a run is free after it. Behind the
        // others: the first provider that takes a node has it.
        let without_arena = ep::CPU::default().with_arena_allocator(false).build();
        let set = builder.with_execution_providers([without_arena]);
        builder = set.map_err(|error| bad("session", error.to_string()))?;
    }
    loaded.libraries.register(builder, &spec.custom_op_libraries)
}

/// The folder that a file of this path is in.
fn folder_of(path: &str) -> &Path {
    let folder = Path::new(path).parent().unwrap_or(Path::new("/"));
    if folder.as_os_str().is_empty() { Path::new(".") } else { folder }
}

/// Threads of a pool of the session's own; None: the shared one. Errors: BadOption.
pub(super) fn own_threads(spec: &SessionSpec) -> Result<Option<usize>, RuntimeError> {
    let Some(asked) = spec.config.get(THREADS) else { return Ok(None) };
    let threads = asked.parse().ok().filter(|threads| (1..=limits::THREADS as usize).contains(threads));
    threads.map(Some).ok_or_else(|| {
        let most = limits::THREADS;
        let reason =
            format!("{asked:?} is no number of threads from 1 to {most}; leave it out for the pool that all share");
        RuntimeError::BadOption { name: THREADS.to_owned(), reason }
    })
}

/// The config entries that ONNX Runtime gets of those asked for: with `disabled` optimizers and the wrong ones, but for
/// those that [`ALLOWED_OPTIMIZERS`] names.
pub fn runtime_config(asked: &BTreeMap<String, String>, disabled: &[String]) -> BTreeMap<String, String> {
    let mut config = asked.clone();
    let allowed = config.remove(ALLOWED_OPTIMIZERS).unwrap_or_default();
    config.remove(THREADS);
    config.remove(PROFILE);
    let allowed: Vec<&str> = allowed.split(';').map(str::trim).collect();
    let also = config.remove(DISABLED_OPTIMIZERS);
    let wrong = WRONG_OPTIMIZERS.iter().copied().filter(|name| !allowed.contains(name));
    let disabled: Vec<&str> = disabled.iter().chain(&also).map(String::as_str).chain(wrong).collect();
    config.insert(DISABLED_OPTIMIZERS.to_owned(), disabled.join(";"));
    config
}

fn config(loaded: &Loaded, spec: &SessionSpec) -> Result<Vec<(String, String)>, RuntimeError> {
    if let Some(&name) = REFUSED_CONFIG.iter().find(|&&key| spec.config.contains_key(key)) {
        let reason = "models are handed over in memory that does not outlive the build; leave it out".to_owned();
        return Err(RuntimeError::BadOption { name: name.to_owned(), reason });
    }
    let mut config = runtime_config(&spec.config, &spec.disabled_optimizers);
    let (key, bytes) = CONSTANT_BYTES;
    config.entry(key.to_owned()).or_insert_with(|| bytes.to_owned());
    for &key in SPINNING_CONFIG {
        let allowed = if loaded.allow_spinning { "1" } else { "0" };
        config.entry(key.to_owned()).or_insert_with(|| allowed.to_owned());
    }
    Ok(config.into_iter().collect())
}

fn add_provider(
    loaded: &Loaded,
    builder: SessionBuilder,
    (name, options): &Provider,
) -> Result<SessionBuilder, RuntimeError> {
    let bad = |reason: String| RuntimeError::BadOption { name: name.clone(), reason };
    if !loaded.providers.contains(name) {
        let available = loaded.providers.clone();
        return Err(RuntimeError::UnknownProvider { name: name.clone(), available });
    }
    if !cuda::on_host() && ON_DEVICES.iter().any(|on| name.contains(on)) {
        cuda::library_uses_devices();
    }
    match name.as_str() {
        // Always there, behind all others.
        CPU if options.is_empty() => Ok(builder),
        CPU => Err(bad("it takes no options".to_owned())),
        CUDA if asks_for_cuda_graphs(options) => {
            // A replay reads no tensor of the host: it would compute with those of the call that was captured.
            tracing::warn!("enable_cuda_graph: the tensors are on the host, so that nothing is captured");
            let mut options = options.clone();
            options.remove(CUDA_GRAPHS);
            with_cuda(builder, &options)
        }
        CUDA => with_cuda(builder, options),
        _ => {
            let mut builder = builder;
            raw::append_provider(&mut builder, name, options).map_err(|error| bad(error.to_string()))?;
            Ok(builder)
        }
    }
}

/// The CUDA provider on one device, its work on the stream that calls are ordered by. Errors: BadOption, UnknownProvider,
/// Cuda.
fn add_cuda(
    loaded: &Loaded,
    builder: SessionBuilder,
    options: &BTreeMap<String, String>,
    device: DeviceUuid,
) -> Result<SessionBuilder, RuntimeError> {
    if let Some(&option) = OF_THE_DEVICE.iter().find(|&&option| options.contains_key(option)) {
        let reason = format!(
            "the calls of a graph on {device} come with tensors, streams and addresses of their own; leave {option} out"
        );
        return Err(RuntimeError::BadOption { name: format!("{CUDA} {option}"), reason });
    }
    let queue = loaded.queue(device)?;
    if !loaded.providers.iter().any(|name| name == CUDA) {
        return Err(RuntimeError::NoCuda { device, available: loaded.providers.clone() });
    }
    let mut options = options.clone();
    options.insert("device_id".to_owned(), queue.stream.device().ordinal().to_string());
    options.insert("user_compute_stream".to_owned(), queue.stream.raw().to_string());
    // Without this one the provider takes the default stream, and says nothing.
    options.insert("has_user_compute_stream".to_owned(), "1".to_owned());
    let mut builder = builder;
    // A captured graph keeps the addresses of its session's arena.
    let has_an_arena = asks_for_cuda_graphs(&options) || OF_AN_ARENA.iter().any(|&option| options.contains_key(option));
    if queue.shares_memory && !has_an_arena {
        let (key, value) = device_memory::SHARED_ALLOCATORS;
        builder = builder
            .with_config_entry(key, value)
            .map_err(|error| RuntimeError::BadOption { name: key.to_owned(), reason: error.to_string() })?;
    }
    with_cuda(builder, &options)
}

/// Options of an execution provider that sessions have of those asked for: float32 means float32, as in eager, unless
/// TF32 is asked for. Whoever writes down what a session ran with, or runs it without us, asks here.
pub fn provider_options(name: &str, asked: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut options = asked.clone();
    if name == CUDA {
        options.entry("use_tf32".to_owned()).or_insert_with(|| "0".to_owned());
    }
    options
}

fn with_cuda(builder: SessionBuilder, asked: &BTreeMap<String, String>) -> Result<SessionBuilder, RuntimeError> {
    if cuda::on_host() {
        return Ok(builder);
    }
    let mut options = provider_options(CUDA, asked);
    // By itself an arena doubles what it asks the device for.
    options.entry("arena_extend_strategy".to_owned()).or_insert_with(|| "kSameAsRequested".to_owned());
    let cuda = options.iter().fold(ep::CUDA::default(), |cuda, (key, value)| cuda.with_arbitrary_config(key, value));
    let added = builder.with_execution_providers([cuda.build().error_on_failure()]);
    added.map_err(|error| {
        let mut reason = error.to_string();
        if reason.contains("cannot open shared object file") {
            reason += "; name the folders of CUDA's libraries in LD_LIBRARY_PATH (in torch's wheels: nvidia/*/lib)";
        }
        RuntimeError::BadOption { name: CUDA.to_owned(), reason }
    })
}
