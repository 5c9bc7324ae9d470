//! A runtime in this process.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use prost::Message as _;

use super::arguments::{Arguments, Which};
use super::rules::text_of;
use super::target::{Target, of_libtorch, tell_of_copies, tell_of_options, tell_of_other_gpus};
use super::walls;
use crate::base::ids::GraphId;
use crate::cli::child_process;
use crate::cli::exit::Failure;
use crate::cli::library;
use crate::onnx::Descriptions;
use crate::onnx::proto::ModelProto;
use crate::protocol::message::{CPU_PROVIDER, Division, Optimization, PartSpec, RuntimeRule, SessionSpec};
use crate::runtime::ort::{OrtRuntime, ThreadPool, custom_op_library};
use crate::runtime::{self, Session, StopToken, leased};
use crate::tensor::{TensorBuf, TensorView};

/// What runs models, and on what.
pub(crate) struct Runtime {
    which: Which,
    pub(crate) runtime: Box<dyn runtime::Runtime>,
    pub(crate) library: PathBuf,
    /// Of its pool; 0 = one a core.
    pub(crate) threads: u32,
}

/// What a model gave.
pub(crate) struct Ran {
    /// In the model's order, with their names.
    pub(crate) outputs: Vec<(String, TensorBuf)>,
    /// Time of each run.
    pub(crate) run_ms: Vec<f64>,
    /// What rules made of its nodes.
    pub(crate) division: Division,
}

impl Runtime {
    /// For what is to run. Errors: no library is known, or it does not load; this program has no libtorch, and it or a
    /// rule of a target asks for that. From then on the process is confined: it writes into `written` alone, folders that
    /// are there.
    pub(crate) fn load(args: &Arguments, targets: &[Target], written: &[&Path]) -> Result<Self, Failure> {
        let target = targets.first().ok_or("nothing to run")?;
        let threads = args.threads.or_else(|| target.threads()).unwrap_or_default();
        let (runtime, library) = match args.runtime {
            Which::Ort => onnxruntime(args, targets, threads, written)?,
            Which::Torch | Which::TorchF64 => {
                walls::around(args, targets, None, written)?;
                libtorch(threads, args.runtime == Which::TorchF64)?
            }
        };
        let runtime = match of_libtorch(targets) {
            None => runtime,
            Some(rule) => runtime::with_libtorch(runtime, threads).map_err(|error| {
                let whose = if args.on.is_empty() { "it ran with the option runtimes" } else { "--on" };
                let instead = if args.on.is_empty() { ", or --on 'ort:*' for ONNX Runtime alone" } else { "" };
                Failure::from(format!("{whose} {}: {error}{instead}", text_of(rule)))
            })?,
        };
        Ok(Self { which: args.runtime, runtime, library, threads })
    }

    /// What it is called.
    pub(crate) fn name(&self) -> &'static str {
        if self.which == Which::Ort { "onnxruntime" } else { "libtorch" }
    }

    /// What it is called in the text, with its version.
    pub(crate) fn title(&self) -> String {
        let wide = if self.which == Which::TorchF64 { " in float64" } else { "" };
        format!("{} {}{wide}", self.name(), self.runtime.version())
    }

    /// How a target ran. Errors: a library of custom operators that is not here.
    pub(crate) fn spec_of(&self, target: &Target) -> Result<SessionSpec, Failure> {
        let spec = self.spec(target)?;
        Ok(SessionSpec { runtimes: target.rules.clone(), keep_float32: target.keep_float32.clone(), ..spec })
    }

    /// Without its rules.
    fn spec(&self, target: &Target) -> Result<SessionSpec, Failure> {
        child_process::running(&format!("ran {}", target.title()));
        // They are ONNX Runtime's; without them libtorch runs the same model.
        let config = if self.which == Which::Ort { target.config.clone() } else { BTreeMap::new() };
        let libraries = target.libraries.iter().map(|path| custom_op_library(path)).collect::<Result<_, _>>()?;
        Ok(SessionSpec {
            providers: target.providers.clone(),
            optimization: target.optimization,
            config,
            custom_op_libraries: libraries,
            disabled_passes: target.disabled_passes.clone(),
            ..SessionSpec::default()
        })
    }

    /// Runs the model once.
    pub(crate) fn look(&self, model: &Model<'_>, feeds: &[TensorView<'_>]) -> Result<Ran, Failure> {
        self.run_times(model, feeds, 1)
    }

    /// Runs the model so many times. `feeds`: in the model's order.
    pub(crate) fn run_times(&self, model: &Model<'_>, feeds: &[TensorView<'_>], n: u32) -> Result<Ran, Failure> {
        let (session, division) = self.session(model).map_err(walls::explained)?;
        let lease = leased(feeds)?;
        let (mut fetched, stats) = session.fetch(&lease)?;
        let mut run_ms = vec![stats.run_ns as f64 / 1e6];
        for _ in 1..n {
            let (again, stats) = session.fetch(&lease)?;
            fetched = again;
            run_ms.push(stats.run_ns as f64 / 1e6);
        }
        let names = session.outputs().iter().map(|output| output.name.clone());
        Ok(Ran { outputs: names.zip(fetched).collect(), run_ms, division })
    }

    fn session(&self, model: &Model<'_>) -> Result<(Arc<dyn Session>, Division), Failure> {
        let spec = SessionSpec { optimization: model.optimization, ..self.spec(model.how)? };
        let Some(divided) = model.divided else {
            let session = self.runtime.build(&runtime::Model::encode(model.proto), &spec)?;
            return Ok((session, Division::default()));
        };
        let part = PartSpec {
            graph: GraphId::from_bytes([0; 32]),
            part: 0,
            model: model.proto.encode_to_vec().into(),
            session: SessionSpec {
                runtimes: divided.rules.to_vec(),
                keep_float32: divided.keep_float32.to_vec(),
                ..spec
            },
            fx_values: BTreeMap::new(),
            named_values: divided.described.keys().cloned().collect(),
            described: divided.described.clone(),
        };
        Ok(runtime::session_with(&*self.runtime, &part, model.proto.clone(), Vec::new(), &StopToken::default())?)
    }

    /// The model as the runtime's optimizer leaves it.
    pub(crate) fn optimized(&self, model: &Model<'_>) -> Result<ModelProto, Failure> {
        if model.divided.is_some() {
            return Err("nodes that are divided among runtimes are no one model".into());
        }
        let spec = SessionSpec { optimization: model.optimization, ..self.spec(model.how)? };
        let bytes = self.runtime.optimized(&runtime::Model::encode(model.proto), &spec)?;
        Ok(crate::onnx::decode(bytes.into())?)
    }
}

type Loaded = (Box<dyn runtime::Runtime>, PathBuf);

fn onnxruntime(args: &Arguments, targets: &[Target], threads: u32, written: &[&Path]) -> Result<Loaded, Failure> {
    let library = match args.onnxruntime.clone().or_else(library::of_environment) {
        Some(named) => named,
        None => library_for(targets[0].run["onnxruntime_library"].as_str().map(Path::new))?,
    };
    let library = std::path::absolute(library)?;
    walls::around(args, targets, Some(&library), written)?;
    child_process::running(&format!("loaded {}", library.display()));
    let runtime = OrtRuntime::load(&library, ThreadPool { threads, allow_spinning: false })?;
    let is_missing = |(_, name): &(&Target, &String)| args.provider.is_empty() && !runtime.providers().contains(name);
    let ran_with = targets.iter().flat_map(|target| target.providers.iter().map(move |(name, _)| (target, name)));
    if let Some((target, missing)) = ran_with.into_iter().find(is_missing) {
        return Err(format!(
            "{}: it ran with {missing}, which {} does not have; name another library with --onnxruntime, or run it on the \
             CPU's kernels with --provider {CPU_PROVIDER}",
            target.part.display(),
            library.display()
        )
        .into());
    }
    tell_of_options(targets);
    tell_of_other_gpus(targets);
    tell_of_copies(targets);
    Ok((Box::new(runtime), library))
}

/// The library that a dump names, where it is known here by its content, else the one of this installation. Errors: there
/// is neither.
fn library_for(named: Option<&Path>) -> Result<PathBuf, Failure> {
    let refused = match named.map(|path| (path, library::is_known(path))) {
        Some((path, Ok(()))) => return Ok(path.to_owned()),
        Some((path, Err(why))) => format!(
            "the dump names {}, which is {why}; a library is code, and a dump may come from anywhere: ",
            path.display()
        ),
        None => String::new(),
    };
    library::of_installation().ok_or_else(|| {
        format!(
            "no onnxruntime library is known; {refused}name one with --onnxruntime or RUST_ORT_ONNXRUNTIME (in a wheel it is \
             onnxruntime/capi/libonnxruntime.so.*)"
        )
        .into()
    })
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

/// Rules for the nodes of a model.
#[derive(Clone, Copy)]
pub(crate) struct Divided<'a> {
    pub(crate) rules: &'a [RuntimeRule],
    /// Patterns of values that are not rounded to half precision.
    pub(crate) keep_float32: &'a [String],
    /// What patterns are looked for in.
    pub(crate) described: &'a Descriptions,
}

/// A model and how to run it.
#[derive(Clone, Copy)]
pub(crate) struct Model<'a> {
    pub(crate) proto: &'a ModelProto,
    pub(crate) optimization: Optimization,
    /// Whose providers, options and libraries it has.
    pub(crate) how: &'a Target,
    /// None: all of it is this runtime's. Else the model is as exported.
    pub(crate) divided: Option<Divided<'a>>,
}
