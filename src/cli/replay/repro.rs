//! A folder that shows a part, or one node of it, with only onnx, numpy and onnxruntime.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::{Value, json};

use super::nodes;
use super::runtime::{Model, Runtime};
use super::target::Target;
use crate::cli::table::Failure;
use crate::compare::{Tolerance, Verdict};
use crate::dump::Role;
use crate::executor::Executor as _;
use crate::executor::ort::wrong_optimizers;
use crate::onnx::proto::ModelProto;
use crate::onnx::{self, NamedTensor};
use crate::tensor::{DType, TensorBuf, TensorView};

/// First line of the README of a folder that we may write over.
const MARK: &str = "<!-- rust_ort/repro/1 -->";
const MODEL: &str = "model.onnx";
const README: &str = "README.md";
const SCRIPT: &str = "run.py";
const DATA_SET: &str = "test_data_set_0";
const TEMPLATE: &str = include_str!("run.py");

/// What to write, and where.
pub(super) struct Repro<'a> {
    folder: &'a Path,
    target: &'a Target,
    /// None: the whole part.
    node: Option<&'a str>,
}

type Values<'a> = BTreeMap<&'a str, TensorView<'a>>;

/// What goes into the folder.
struct Content<'a> {
    model: &'a ModelProto,
    inputs: Vec<(String, TensorView<'a>)>,
    /// Empty when nothing is known of them.
    outputs: Vec<(String, TensorView<'a>)>,
    /// Of what, whose outputs these are, what was found.
    title: String,
    expected: &'static str,
    found: String,
    /// Version of onnxruntime that ran it.
    onnxruntime: String,
}

impl<'a> Repro<'a> {
    /// Errors: the folder holds something else, more than one data set or node.
    pub(super) fn new(folder: &'a Path, targets: &'a [Target], nodes: &'a [String]) -> Result<Self, Failure> {
        let [target] = targets else {
            let example = targets[0].step.path.display();
            return Err(format!(
                "--repro takes one data set, there are {}: name one, such as {example}",
                targets.len()
            )
            .into());
        };
        let node = match nodes {
            [] => None,
            [one] if one != "all" => Some(one.as_str()),
            _ => return Err("--repro takes one node: --nodes NAME".into()),
        };
        check_folder(folder)?;
        Ok(Self { folder, target, node })
    }

    /// The part, unless a node was asked for.
    pub(super) fn write_part(&self) -> Result<(), Failure> {
        if self.node.is_some() {
            return Ok(());
        }
        let target = self.target;
        let model = target.model()?;
        let [inputs, references, actuals] =
            [Role::Input, Role::Reference, Role::Actual].map(|role| target.tensors(role));
        let (inputs, references, actuals) = (inputs?, references?, actuals?);
        let (outputs, expected) = match (references.is_empty(), actuals.is_empty()) {
            (false, _) => (&references, "eager's"),
            (true, false) => (&actuals, "what ONNX Runtime gave when it was dumped; eager's were not dumped"),
            (true, true) => (&actuals, "not known: neither eager's nor ONNX Runtime's were dumped"),
        };
        self.write(&Content {
            model: &model,
            inputs: named(&inputs),
            outputs: named(outputs),
            title: format!("part {}, step {}", target.part.display(), target.step.step),
            expected,
            found: found(target, &references, &actuals),
            onnxruntime: target.onnxruntime(),
        })
    }

    /// The node, when one was asked for: the model cut to it, its inputs and output as they are when nothing is
    /// optimized.
    pub(super) fn write_node(&self, runtime: &Runtime) -> Result<(), Failure> {
        let (Some(node), target) = (self.node, self.target) else { return Ok(()) };
        let proto = target.model()?;
        let graph = nodes::graph(&proto)?;
        let provenance = target.provenance();
        let value = nodes::resolve(graph, &provenance, &[node.to_owned()])?.remove(0);
        let named: HashSet<&str> =
            provenance.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        let reads = onnx::read_by(graph, &value, &named)?;

        let (inputs, references) = (target.tensors(Role::Input)?, target.tensors(Role::Reference)?);
        let feeds: Vec<_> = inputs.iter().map(NamedTensor::view).collect();
        let given: Values<'_> = graph.input.iter().map(|input| input.name()).zip(feeds.iter().copied()).collect();
        let eager: Values<'_> = references.iter().map(|tensor| (tensor.name.as_str(), tensor.view())).collect();
        let has_eager =
            reads.iter().chain([&value]).all(|name| [&given, &eager].iter().any(|of| of.contains_key(name.as_str())));
        let fetched = if has_eager { BTreeMap::new() } else { self.fetch(runtime, &proto, &feeds, &reads, &value)? };
        let tensor = |name: &String| {
            let computed =
                || if has_eager { eager.get(name.as_str()).copied() } else { fetched.get(name).map(TensorBuf::view) };
            let view = given.get(name.as_str()).copied().or_else(computed);
            view.map(|view| (name.clone(), view)).ok_or_else(|| format!("value {name:?} was not given by the run"))
        };
        let inputs = reads.iter().map(tensor).collect::<Result<Vec<_>, _>>()?;
        let outputs = vec![tensor(&value)?];
        let cut = cut(&proto, &inputs, &outputs)?;
        let of = |key: &str| provenance[&value][key].as_str().unwrap_or_default().to_owned();
        self.write(&Content {
            model: &cut,
            inputs,
            outputs,
            title: format!("node {value} ({}, {}) of {}, step {}", of("op"), of("source"), target.part.display(), target.step.step),
            expected: if has_eager {
                "eager's, on eager's inputs of the node"
            } else {
                "what ONNX Runtime gives in the whole part with no optimization, on these same inputs; eager's were not dumped"
            },
            found: "Not judged: run it.".to_owned(),
            onnxruntime: runtime.executor.version().to_owned(),
        })
    }

    /// The value and what it reads that is no input of the part, when nothing is optimized.
    fn fetch(
        &self,
        runtime: &Runtime,
        proto: &ModelProto,
        feeds: &[TensorView<'_>],
        reads: &[String],
        value: &String,
    ) -> Result<BTreeMap<String, TensorBuf>, Failure> {
        let is_input = |name: &&String| {
            nodes::graph(proto).is_ok_and(|graph| graph.input.iter().any(|input| input.name() == *name))
        };
        let wanted: Vec<String> = reads.iter().filter(|name| !is_input(name)).chain([value]).cloned().collect();
        let config = self.target.config();
        let optimization = self.target.optimization;
        let model = Model { proto, optimization, config: &config, libraries: &self.target.libraries };
        Ok(nodes::fetch(runtime, &model, feeds, &wanted)?.into_iter().collect())
    }

    fn write(&self, content: &Content<'_>) -> Result<(), Failure> {
        let folder = self.folder;
        let data = folder.join(DATA_SET);
        let io = |path: &Path| {
            let path = path.display().to_string();
            move |error: std::io::Error| format!("{path}: {error}")
        };
        fs::create_dir_all(&data).map_err(io(&data))?;
        clear(&data)?;
        let put = |path: &Path, pieces: &[&[u8]]| onnx::write_whole(path, 0o644, pieces).map_err(io(path));
        // The mark first: a half-written folder is ours to write over.
        put(&folder.join(README), &[self.readme(content).as_bytes()])?;
        for (prefix, tensors) in [("input", &content.inputs), ("output", &content.outputs)] {
            for (index, (name, view)) in tensors.iter().enumerate() {
                let header = onnx::tensor_header(name, view);
                put(&data.join(format!("{prefix}_{index}.pb")), &[&header, view.bytes()])?;
            }
        }
        onnx::save(content.model, &folder.join(MODEL))?;
        put(&folder.join(SCRIPT), &[self.script(content)?.as_bytes()])?;
        Ok(())
    }

    fn readme(&self, content: &Content<'_>) -> String {
        let Content { title, expected, found, onnxruntime, .. } = content;
        let versions = &self.target.run["versions"];
        let version = |name: &str| versions[name].as_str().unwrap_or("unknown").to_owned();
        let pin =
            |name: &str, version: Option<&str>| version.map_or(name.to_owned(), |version| format!("{name}=={version}"));
        let packages = [
            pin("onnx", versions["onnx"].as_str()),
            "numpy".to_owned(),
            pin("onnxruntime", Some(onnxruntime.as_str()).filter(|version| !version.is_empty())),
        ];
        format!(
            "{MARK}\n# Reproduction of {title}\n\n\
             Run it with only onnx, numpy and onnxruntime installed:\n\n\
             ```sh\npip install {packages}\npython run.py\n```\n\n\
             It runs `{MODEL}` on `{DATA_SET}/input_<i>.pb` with the CPU provider and optimization level \"{level}\" and \
             compares with `{DATA_SET}/output_<i>.pb`. Exit code: 0 all inside tolerance, 1 not. The tolerance stands at the \
             head of `run.py`.\n\n\
             Expected outputs: {expected}.\n\n## What was found\n\n{found}\n\n## Versions\n\n\
             rust_ort {own}, onnxruntime {onnxruntime}, onnx {onnx}, torch {torch}, Python {python}.\n",
            packages = packages.join(" "),
            level = self.target.optimization.name(),
            own = env!("CARGO_PKG_VERSION"),
            onnx = version("onnx"),
            torch = version("torch"),
            python = self.target.run["python"].as_str().unwrap_or("unknown"),
        )
    }

    fn script(&self, content: &Content<'_>) -> Result<String, Failure> {
        let dtypes: BTreeSet<DType> = content.outputs.iter().map(|(_, view)| view.dtype()).collect();
        let tolerances: BTreeMap<String, Value> =
            dtypes.into_iter().map(|dtype| (dtype.to_string(), self.tolerance(dtype))).collect();
        let mut config = self.target.config();
        let disabled = "optimization.disable_specified_optimizers".to_owned();
        let asked = config.remove(&disabled);
        let all: Vec<&str> =
            asked.iter().map(String::as_str).chain(wrong_optimizers(content.model).iter().copied()).collect();
        config.insert(disabled, all.join(";"));
        Ok(TEMPLATE
            .replace("\"@OPTIMIZATION@\"", &json!(self.target.optimization.name()).to_string())
            .replace("\"@CONFIG@\"", &serde_json::to_string_pretty(&config)?)
            .replace("\"@LIBRARIES@\"", &serde_json::to_string(&self.target.libraries)?)
            .replace("\"@TOLERANCES@\"", &serde_json::to_string_pretty(&tolerances)?))
    }

    /// JSON that is Python too.
    fn tolerance(&self, dtype: DType) -> Value {
        let own = Tolerance::for_dtype(dtype);
        let Tolerance { atol, rtol, scale, equal_nan } = match self.target.tolerance() {
            Some(given) if dtype != DType::Bool => given,
            _ => own,
        };
        let fill = Tolerance::fill_limit(dtype);
        let fill = if fill.is_finite() { fill } else { f64::MAX };
        json!({ "atol": atol, "rtol": rtol, "scale": scale, "fill": fill, "equal_nan": u8::from(equal_nan) })
    }
}

/// The folder is missing, empty, or a reproduction that we wrote.
fn check_folder(folder: &Path) -> Result<(), Failure> {
    let mut entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(format!("{}: {error}", folder.display()).into()),
        Ok(entries) => entries,
    };
    let is_ours = fs::read_to_string(folder.join(README)).is_ok_and(|text| text.starts_with(MARK));
    if is_ours || entries.next().is_none() {
        return Ok(());
    }
    Err(format!("{}: not empty, and no reproduction of ours: it stays; name another folder", folder.display()).into())
}

/// Removes what an earlier reproduction left in its data set.
fn clear(data: &Path) -> Result<(), Failure> {
    for entry in fs::read_dir(data)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "pb") {
            fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        }
    }
    Ok(())
}

fn named(tensors: &[NamedTensor]) -> Vec<(String, TensorView<'_>)> {
    tensors.iter().map(|tensor| (tensor.name.clone(), tensor.view())).collect()
}

/// The model between the tensors, with their types.
fn cut(
    model: &ModelProto,
    inputs: &[(String, TensorView<'_>)],
    outputs: &[(String, TensorView<'_>)],
) -> Result<ModelProto, Failure> {
    let names = |tensors: &[(String, TensorView<'_>)]| tensors.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let infos = |tensors: &[(String, TensorView<'_>)]| {
        tensors.iter().map(|(name, view)| onnx::value_info(name, &view.desc())).collect::<Vec<_>>()
    };
    let mut cut = onnx::cut(model, &names(inputs), &names(outputs))?;
    if let Some(graph) = &mut cut.graph {
        (graph.input, graph.output) = (infos(inputs), infos(outputs));
    }
    Ok(cut)
}

/// What the dump says of the outputs, one line each.
fn found(target: &Target, references: &[NamedTensor], actuals: &[NamedTensor]) -> String {
    if actuals.is_empty() {
        return "No result was dumped: the run ended before it was whole.".to_owned();
    }
    let line = |(reference, actual): (&NamedTensor, &NamedTensor)| {
        let verdict = target.judge(&actual.name, &reference.view(), &actual.view());
        let word = if verdict.verdict == Verdict::Match { "inside tolerance" } else { "**outside tolerance**" };
        format!("- {word}: {verdict}")
    };
    let lines: Vec<_> = references.iter().zip(actuals).map(line).collect();
    if lines.is_empty() { "Not judged: eager's outputs were not dumped.".to_owned() } else { lines.join("\n") }
}
