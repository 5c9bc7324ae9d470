//! ONNX Runtime in this process.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::arguments::Arguments;
use super::target::Target;
use crate::base::ids::SegmentId;
use crate::cli::exit::Failure;
use crate::cli::library;
use crate::onnx::proto::ModelProto;
use crate::protocol::message::{Optimization, SessionSpec};
use crate::runtime::ort::{OrtRuntime, ThreadPool, custom_op_library};
use crate::runtime::{self, Runtime as _};
use crate::shm::{Lease, Segment, SegmentTable};
use crate::tensor::{BadLocation, Location, TensorBuf, TensorRef, TensorView};

const ALIGN: u64 = 64;

/// The loaded library, and on what to run.
pub(super) struct Runtime {
    pub(super) onnxruntime: OrtRuntime,
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
    /// For what is to run. Errors: no library is known, or it does not load.
    pub(super) fn load(args: &Arguments, target: &Target) -> Result<Self, Failure> {
        let of_run = || target.run["onnxruntime_library"].as_str().map(PathBuf::from).filter(|path| path.exists());
        let library = args.onnxruntime.clone().or_else(library::of_environment).or_else(of_run).ok_or(
            "no onnxruntime library is known, and that of the run is not here; name one with --onnxruntime (in a wheel \
             it is onnxruntime/capi/libonnxruntime.so.*)",
        )?;
        let library = std::path::absolute(library)?;
        let threads = args.threads.or_else(|| target.threads()).unwrap_or_default();
        let onnxruntime = OrtRuntime::load(&library, ThreadPool { threads, allow_spinning: false })?;
        Ok(Self { onnxruntime, library, providers: args.provider.clone(), repeat: args.repeat.get() })
    }

    fn spec(&self, model: &Model<'_>) -> Result<SessionSpec, Failure> {
        let providers = self.providers.iter().map(|name| (name.clone(), BTreeMap::new())).collect();
        let libraries = model.libraries.iter().map(|path| custom_op_library(path)).collect::<Result<_, _>>()?;
        Ok(SessionSpec {
            providers,
            optimization: model.optimization,
            config: model.config.clone(),
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
        let session = self.onnxruntime.build(&runtime::Model::encode(model.proto), &spec)?;
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
        let bytes = self.onnxruntime.optimized(&runtime::Model::encode(model.proto), &spec)?;
        Ok(crate::onnx::decode(bytes.into())?)
    }
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
