//! A runtime in this process.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::arguments::{Arguments, Which};
use super::target::Target;
use crate::base::ids::SegmentId;
use crate::cli::exit::Failure;
use crate::cli::library;
use crate::onnx::proto::ModelProto;
use crate::protocol::message::{Optimization, SessionSpec};
use crate::runtime;
use crate::runtime::ort::{OrtRuntime, ThreadPool, custom_op_library};
use crate::shm::{Lease, Segment, SegmentTable};
use crate::tensor::{BadLocation, Location, TensorBuf, TensorRef, TensorView};

const ALIGN: u64 = 64;

/// What runs models, and on what.
pub(super) struct Runtime {
    which: Which,
    pub(super) runtime: Box<dyn runtime::Runtime>,
    pub(super) library: PathBuf,
    providers: Vec<String>,
    repeat: u32,
}

/// What a model gave.
pub(super) struct Ran {
    /// In the model's order, with their names.
    pub(super) outputs: Vec<(String, TensorBuf)>,
    /// Time of each run.
    pub(super) run_ms: Vec<f64>,
}

impl Runtime {
    /// For what is to run. Errors: no library is known, or it does not load; this program has no libtorch.
    pub(super) fn load(args: &Arguments, target: &Target) -> Result<Self, Failure> {
        let threads = args.threads.or_else(|| target.threads()).unwrap_or_default();
        let (runtime, library) = match args.runtime {
            Which::Ort => onnxruntime(args, target, threads)?,
            Which::Torch => libtorch(threads, false)?,
            Which::TorchF64 => libtorch(threads, true)?,
        };
        let providers = args.provider.clone();
        Ok(Self { which: args.runtime, runtime, library, providers, repeat: args.repeat.get() })
    }

    /// What it is called.
    pub(super) fn name(&self) -> &'static str {
        if self.which == Which::Ort { "onnxruntime" } else { "libtorch" }
    }

    /// What it is called in the text, with its version.
    pub(super) fn title(&self) -> String {
        let wide = if self.which == Which::TorchF64 { " in float64" } else { "" };
        format!("{} {}{wide}", self.name(), self.runtime.version())
    }

    fn spec(&self, model: &Model<'_>) -> Result<SessionSpec, Failure> {
        let providers = self.providers.iter().map(|name| (name.clone(), BTreeMap::new())).collect();
        // They are ONNX Runtime's; without them libtorch runs the same model.
        let config = if self.which == Which::Ort { model.config.clone() } else { BTreeMap::new() };
        let libraries = model.libraries.iter().map(|path| custom_op_library(path)).collect::<Result<_, _>>()?;
        Ok(SessionSpec {
            providers,
            optimization: model.optimization,
            config,
            custom_op_libraries: libraries,
            disabled_passes: model.disabled_passes.to_vec(),
            ..SessionSpec::default()
        })
    }

    /// Runs the model once more than once, as asked. `feeds`: in the model's order.
    pub(super) fn run(&self, model: &Model<'_>, feeds: &[TensorView<'_>]) -> Result<Ran, Failure> {
        self.run_times(model, feeds, self.repeat)
    }

    /// Runs the model once.
    pub(super) fn look(&self, model: &Model<'_>, feeds: &[TensorView<'_>]) -> Result<Ran, Failure> {
        self.run_times(model, feeds, 1)
    }

    fn run_times(&self, model: &Model<'_>, feeds: &[TensorView<'_>], n: u32) -> Result<Ran, Failure> {
        let spec = self.spec(model)?;
        let session = self.runtime.build(&runtime::Model::encode(model.proto), &spec)?;
        let lease = lease(feeds)?;
        let (mut fetched, stats) = session.fetch(&lease)?;
        let mut run_ms = vec![stats.run_ns as f64 / 1e6];
        for _ in 1..n {
            let (again, stats) = session.fetch(&lease)?;
            fetched = again;
            run_ms.push(stats.run_ns as f64 / 1e6);
        }
        let names = session.outputs().iter().map(|output| output.name.clone());
        Ok(Ran { outputs: names.zip(fetched).collect(), run_ms })
    }

    /// The model as the runtime's optimizer leaves it.
    pub(super) fn optimized(&self, model: &Model<'_>) -> Result<ModelProto, Failure> {
        let spec = self.spec(model)?;
        let bytes = self.runtime.optimized(&runtime::Model::encode(model.proto), &spec)?;
        Ok(crate::onnx::decode(bytes.into())?)
    }
}

type Loaded = (Box<dyn runtime::Runtime>, PathBuf);

fn onnxruntime(args: &Arguments, target: &Target, threads: u32) -> Result<Loaded, Failure> {
    let of_run = || target.run["onnxruntime_library"].as_str().map(PathBuf::from).filter(|path| path.exists());
    let library = args.onnxruntime.clone().or_else(library::of_environment).or_else(of_run).ok_or(
        "no onnxruntime library is known, and that of the run is not here; name one with --onnxruntime (in a wheel \
         it is onnxruntime/capi/libonnxruntime.so.*)",
    )?;
    let library = std::path::absolute(library)?;
    let runtime = OrtRuntime::load(&library, ThreadPool { threads, allow_spinning: false })?;
    Ok((Box::new(runtime), library))
}

#[cfg(feature = "torch")]
fn libtorch(threads: u32, wide: bool) -> Result<Loaded, Failure> {
    use crate::runtime::torch::{Precision, TorchRuntime};

    let precision = if wide { Precision::Float64 } else { Precision::AsDeclared };
    let runtime = TorchRuntime::load(threads, precision)?;
    Ok((Box::new(runtime), TorchRuntime::library().unwrap_or_default()))
}

#[cfg(not(feature = "torch"))]
fn libtorch(_threads: u32, _wide: bool) -> Result<Loaded, Failure> {
    Err("built without libtorch; use rust-ort-torch, made by `make build-torch`".into())
}

/// A model and how to run it.
pub(super) struct Model<'a> {
    pub(super) proto: &'a ModelProto,
    pub(super) optimization: Optimization,
    pub(super) config: &'a BTreeMap<String, String>,
    /// Names of rewrites that stay off.
    pub(super) disabled_passes: &'a [String],
    /// Of custom operators.
    pub(super) libraries: &'a [PathBuf],
}

/// The tensors in memory that a session may be run on.
fn lease(feeds: &[TensorView<'_>]) -> Result<Lease, Failure> {
    const ID: SegmentId = SegmentId(0);
    let mut len_bytes = ALIGN;
    let place = |feed: &TensorView<'_>| {
        let location = Location::new(ID, len_bytes)?;
        len_bytes += (feed.bytes().len() as u64).next_multiple_of(ALIGN);
        Ok(TensorRef { location, desc: feed.desc() })
    };
    let places = feeds.iter().map(place).collect::<Result<Vec<_>, BadLocation>>()?;
    let segment = Segment::create(ID, "rust-ort-replay", len_bytes)?;
    for (feed, place) in feeds.iter().zip(&places) {
        segment.write(place.location.offset(), feed.bytes())?;
    }
    let mut table = SegmentTable::default();
    table.attach(segment)?;
    Ok(table.lease(&places, &[])?)
}
