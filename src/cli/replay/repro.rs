//! A folder that shows a part, or one node of it, with only onnx, numpy and onnxruntime.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};

use super::nodes;
use super::readme::{DATA_SET, MARK, MODEL, Readme};
use crate::base::files::read_regular;
use crate::cli::exit::{Failure, at};
use crate::cli::rerun::{Model, RAN_WITH_FILE, Runtime, Target, tensors};
use crate::compare::{Policy, TensorVerdict, Tolerance, Verdict};
use crate::dump::{Judging, Role, reader};
use crate::onnx::proto::{GraphProto, ModelProto};
use crate::onnx::{self, NamedTensor};
use crate::runtime::ort::runtime_config;
use crate::tensor::{DType, TensorBuf, TensorView};

/// A longer one is none of ours.
const README_BYTES: u64 = 1 << 20;
const README: &str = "README.md";
const SCRIPT: &str = "run.py";
const TEMPLATE: &str = include_str!("run.py");

/// What to write, and where.
pub(crate) struct Repro<'a> {
    folder: &'a Path,
    target: &'a Target,
    /// None: the whole part.
    node: Option<&'a str>,
    /// FX values that are computed on the way to the node, too.
    through: &'a [String],
}

impl CutOut {
    /// The model as any ONNX Runtime runs it on the CPU: bfloat16 computed in float32 and rounded.
    fn for_any_runtime(&self) -> ModelProto {
        let widened = onnx::mentions(&self.model, DType::BF16)
            .then(|| onnx::widen::<&str>(&self.model, &[]))
            .and_then(Result::ok);
        widened.flatten().unwrap_or_else(|| self.model.clone())
    }
}

type Values<'a> = BTreeMap<&'a str, TensorView<'a>>;

/// Whose outputs a folder holds.
enum Expected {
    /// Eager's, and how they came there.
    Eager(String),
    /// Somebody else's: nothing that agrees with them is thereby right.
    NotEager(&'static str),
}

impl Expected {
    fn text(&self) -> &str {
        match self {
            Expected::Eager(text) => text,
            Expected::NotEager(text) => text,
        }
    }
}

/// A node run alone.
#[derive(Debug, Serialize)]
pub(crate) struct Alone {
    pub(super) name: String,
    /// What its value was held against.
    pub(super) reference: String,
    pub(crate) verdict: TensorVerdict,
}

/// A node with values for its ends.
struct CutOut {
    model: ModelProto,
    inputs: Vec<(String, TensorBuf)>,
    output: (String, TensorBuf),
    expected: Expected,
    /// The folder of the dump that it is from, where it was dumped so.
    dumped_in: Option<String>,
}

/// What goes into the folder.
struct Content<'a> {
    model: &'a ModelProto,
    inputs: Vec<(String, TensorView<'a>)>,
    /// Empty when nothing is known of them.
    outputs: Vec<(String, TensorView<'a>)>,
    /// Of what, whose outputs these are, what was found.
    title: String,
    expected: &'a Expected,
    found: String,
    /// Version of onnxruntime that ran it.
    onnxruntime: String,
}

impl<'a> Repro<'a> {
    /// Errors: the folder holds something else, more than one data set or node.
    pub(crate) fn new(folder: &'a Path, targets: &'a [Target], nodes: &'a [String]) -> Result<Self, Failure> {
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
        Self::claim(folder)?;
        Ok(Self { folder, target, node, through: &[] })
    }

    /// Makes the folder where it is not there: a confined process can make none. Errors: it holds something else.
    pub(crate) fn claim(folder: &Path) -> Result<(), Failure> {
        check_folder(folder)?;
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()).into())
    }

    /// Of one value, with what else is computed on the way to it. Errors: the folder holds something else.
    pub(crate) fn of_value(
        folder: &'a Path,
        target: &'a Target,
        value: &'a str,
        through: &'a [String],
    ) -> Result<Self, Failure> {
        check_folder(folder)?;
        Ok(Self { folder, target, node: Some(value), through })
    }

    /// The part, unless a node was asked for.
    pub(crate) fn write_part(&self) -> Result<(), Failure> {
        if self.node.is_some() {
            return Ok(());
        }
        let target = self.target;
        let model = target.model()?;
        let [inputs, references, actuals] =
            [Role::Input, Role::Reference, Role::Actual].map(|role| target.tensors(role));
        let (inputs, references, actuals) = (inputs?, references?, actuals?);
        let (outputs, expected) = match (references.is_empty(), actuals.is_empty()) {
            (false, _) => (&references, Expected::Eager("eager's".to_owned())),
            (true, false) => {
                let expected = "what ONNX Runtime gave when it was dumped; eager's were not dumped";
                (&actuals, Expected::NotEager(expected))
            }
            (true, true) => (&actuals, Expected::NotEager("not known: neither eager's nor ONNX Runtime's were dumped")),
        };
        self.write(&Content {
            model: &model,
            inputs: named(&inputs),
            outputs: named(outputs),
            title: format!("a part: {}", target.place()),
            expected: &expected,
            found: found(&target.judging()?, &references, &actuals),
            onnxruntime: target.onnxruntime(),
        })
    }

    /// The node, when one was asked for, and how it does alone. It is on disk before it runs.
    pub(crate) fn write_node(&self, runtime: &Runtime) -> Result<Option<Alone>, Failure> {
        let (Some(node), target) = (self.node, self.target) else { return Ok(None) };
        let proto = target.model()?;
        let provenance = target.provenance()?;
        let value = nodes::resolve(nodes::graph(&proto)?, &provenance, &[node.to_owned()])?.remove(0);
        let of = |key: &str| provenance[&value][key].as_str().unwrap_or_default().to_owned();
        let dumped = if self.through.is_empty() { self.dumped([&value, &of("fx")])? } else { None };
        let cut_out = match dumped {
            Some(dumped) => dumped,
            None => self.cut_out(runtime, &proto, &value, &provenance)?,
        };
        let model = cut_out.for_any_runtime();
        let mut content = Content {
            model: &model,
            inputs: views(&cut_out.inputs),
            outputs: views(std::slice::from_ref(&cut_out.output)),
            title: format!("node {value} ({}, {}) of {}", of("op"), of("source"), target.place()),
            expected: &cut_out.expected,
            found: "Not judged: run it.".to_owned(),
            onnxruntime: runtime.runtime.version().to_owned(),
        };
        self.write(&content)?;
        let alone = self.run_alone(runtime, &self.target.judging()?, value, &cut_out);
        content.found = line(&alone.verdict);
        self.write(&content)?;
        Ok(Some(alone))
    }

    /// The node as it was dumped beside the part because it was wrong, by one of its names: eager's values, and the model
    /// that ran on them.
    fn dumped(&self, names: [&str; 2]) -> Result<Option<CutOut>, Failure> {
        let (part, step) = (&self.target.part, self.target.step.step);
        let Some(folder) = names.iter().find_map(|name| reader::reproduction(part, name, step)) else {
            return Ok(None);
        };
        let data_set = folder.join(DATA_SET);
        let owned = |tensor: &NamedTensor| (tensor.name.clone(), tensor.view().to_owned());
        let Some(output) = tensors(&data_set, Role::Reference)?.first().map(owned) else { return Ok(None) };
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let path = folder.join(MODEL);
        Ok(Some(CutOut {
            model: reader::load_model(&path).map_err(at(&path))?,
            inputs: tensors(&data_set, Role::Input)?.iter().map(owned).collect(),
            output,
            expected: Expected::Eager("eager's, on eager's inputs, dumped for the node".to_owned()),
            dumped_in: Some(name),
        }))
    }

    /// The model cut to the node. Where eager's value of the node is known it is judged by it, on eager's inputs where
    /// they are known and on what ONNX Runtime computes when nothing is optimized where they are not. Else all its values
    /// are ONNX Runtime's.
    fn cut_out(
        &self,
        runtime: &Runtime,
        proto: &ModelProto,
        value: &String,
        provenance: &Value,
    ) -> Result<CutOut, Failure> {
        let (target, graph) = (self.target, nodes::graph(proto)?);
        let named: HashSet<&str> =
            provenance.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        let named: HashSet<&str> = named.into_iter().filter(|name| !self.through.iter().any(|on| on == name)).collect();
        let reads = onnx::read_by(graph, value, &named)?;
        let (inputs, references) = (target.tensors(Role::Input)?, target.tensors(Role::Reference)?);
        let feeds: Vec<_> = inputs.iter().map(NamedTensor::view).collect();
        let given: Values<'_> = graph.input.iter().map(|input| input.name()).zip(feeds.iter().copied()).collect();
        let dumped = self.dumped_values(reads.iter().chain([value]))?;
        let mut eager = eager_values(graph, &given, &references);
        eager.extend(dumped.iter().map(|tensor| (tensor.name.as_str(), tensor.view())));
        let judged = eager.contains_key(value.as_str());
        let known = if judged { &eager } else { &given };
        let wanted = reads.iter().chain([value]).filter(|name| !known.contains_key(name.as_str()));
        let wanted: Vec<String> = wanted.cloned().collect();
        let fetched = self.fetch(runtime, proto, &feeds, &wanted)?;
        let tensor = |name: &String| {
            let view = known.get(name.as_str()).copied().or_else(|| fetched.get(name).map(TensorBuf::view));
            view.map(|view| (name.clone(), view)).ok_or_else(|| format!("value {name:?} was not given by the run"))
        };
        let inputs = reads.iter().map(tensor).collect::<Result<Vec<_>, _>>()?;
        let (name, output) = tensor(value)?;
        let model = cut(proto, &inputs, &[(name.clone(), output)])?;
        let expected = match (judged, wanted.as_slice()) {
            (true, []) => Expected::Eager("eager's, on eager's inputs of the node".to_owned()),
            (true, computed) => Expected::Eager(format!(
                "eager's, on inputs of which ONNX Runtime computed {} in the whole part with no optimization, for eager's \
                 were not dumped: what differs may come from the nodes before (compare=\"nodes\" dumps the first wrong \
                 nodes with eager's inputs)",
                computed.join(", ")
            )),
            (false, _) => Expected::NotEager(
                "what ONNX Runtime gives in the whole part with no optimization, on these same inputs, so they tell nothing \
                 of right and wrong; eager's were not dumped (compare=\"nodes\" dumps those of the first wrong nodes)",
            ),
        };
        let inputs = inputs.into_iter().map(|(name, view)| (name, view.to_owned())).collect();
        Ok(CutOut { model, inputs, output: (name, output.to_owned()), expected, dumped_in: None })
    }

    /// Eager's values of these where they were dumped.
    fn dumped_values<'n>(&self, names: impl Iterator<Item = &'n String>) -> Result<Vec<NamedTensor>, Failure> {
        let part = &self.target.part;
        let files = reader::values(part, self.target.step.step);
        let files = files.map_err(at(part))?.unwrap_or_default();
        names.filter_map(|name| files.get(name)).map(|file| file.load().map_err(at(&file.path))).collect()
    }

    /// Judged by eager's value; NotCompared where there is none.
    fn run_alone(&self, runtime: &Runtime, judging: &Judging, name: String, cut_out: &CutOut) -> Alone {
        let CutOut { model, inputs, output: (_, reference), expected, dumped_in } = cut_out;
        let Expected::Eager(expected) = expected else {
            let verdict = TensorVerdict::not_compared(&name, "eager's values of this node were not dumped");
            return Alone { name, reference: "nothing: eager's values were not dumped".to_owned(), verdict };
        };
        let feeds: Vec<_> = inputs.iter().map(|(_, tensor)| tensor.view()).collect();
        let target = self.target;
        let model = Model { proto: model, optimization: target.optimization, how: target, divided: None };
        let verdict = match runtime.look(&model, &feeds).map(|ran| ran.outputs) {
            Err(error) => TensorVerdict::failed(&name, error.to_string()),
            Ok(outputs) => match outputs.first() {
                None => TensorVerdict::failed(&name, "the model has no output"),
                Some((_, value)) => judging.judge(&name, &reference.view(), &value.view()),
            },
        };
        let reference = dumped_in.as_ref().map_or_else(|| expected.clone(), |name| format!("eager's, from {name}"));
        Alone { name, reference, verdict }
    }

    /// These values of the part when nothing is optimized.
    fn fetch(
        &self,
        runtime: &Runtime,
        proto: &ModelProto,
        feeds: &[TensorView<'_>],
        wanted: &[String],
    ) -> Result<BTreeMap<String, TensorBuf>, Failure> {
        let model = Model { proto, optimization: self.target.optimization, how: self.target, divided: None };
        Ok(nodes::fetch(runtime, &model, feeds, wanted)?.into_iter().collect())
    }

    fn write(&self, content: &Content<'_>) -> Result<(), Failure> {
        let folder = self.folder;
        let data = folder.join(DATA_SET);
        let Content { title, found, onnxruntime, .. } = content;
        let readme = Readme { target: self.target, title, expected: content.expected.text(), found, onnxruntime };
        let io = |path: &Path| {
            let path = path.display().to_string();
            move |error: io::Error| format!("{path}: {error}")
        };
        real_folder(&data).map_err(io(&data))?;
        // First: what is half written is not held against what was there.
        reader::unlist_folder(folder).map_err(at(folder))?;
        clear(&data)?;
        let put =
            |path: &Path, pieces: &[&[u8]]| crate::base::files::write_whole(path, 0o644, pieces).map_err(io(path));
        // The mark first: a half-written folder is ours to write over.
        put(&folder.join(README), &[readme.text().as_bytes()])?;
        for (prefix, tensors) in [("input", &content.inputs), ("output", &content.outputs)] {
            for (index, (name, view)) in tensors.iter().enumerate() {
                let header = onnx::tensor_header(name, view);
                put(&data.join(format!("{prefix}_{index}.pb")), &[&header, view.bytes()])?;
            }
        }
        onnx::save(content.model, &folder.join(MODEL))?;
        // What `rust-ort replay` of this folder runs with, where that is not what it has by itself.
        let Target { providers, libraries, device, .. } = self.target;
        let path = folder.join(RAN_WITH_FILE);
        if !providers.is_empty() || !libraries.is_empty() {
            let device = device.map(|device| device.to_string());
            let ran_with = json!({ "providers": providers, "custom_op_libraries": libraries, "device": device });
            put(&path, &[ran_with.to_string().as_bytes()])?;
        } else if path.exists() {
            fs::remove_file(&path).map_err(io(&path))?;
        }
        put(&folder.join(SCRIPT), &[self.script(content)?.as_bytes()])?;
        // What is in it goes to others: a flipped bit is told there, too.
        reader::list_folder(folder).map_err(at(folder))
    }

    fn script(&self, content: &Content<'_>) -> Result<String, Failure> {
        let dtypes: BTreeSet<DType> = content.outputs.iter().map(|(_, view)| view.dtype()).collect();
        let policy = self.target.judging()?.policy;
        let tolerances: BTreeMap<String, Value> =
            dtypes.into_iter().map(|dtype| (dtype.to_string(), tolerance(policy, dtype))).collect();
        let config = runtime_config(&self.target.config, &[]);
        Ok(TEMPLATE
            .replace("\"@OPTIMIZATION@\"", &json!(self.target.optimization.name()).to_string())
            .replace("\"@BY_EAGER@\"", if matches!(content.expected, Expected::Eager(_)) { "True" } else { "False" })
            .replace("\"@CONFIG@\"", &serde_json::to_string_pretty(&config)?)
            .replace("\"@PROVIDERS@\"", &serde_json::to_string(&self.target.providers)?)
            .replace("\"@LIBRARIES@\"", &serde_json::to_string(&self.target.libraries)?)
            .replace("\"@TOLERANCES@\"", &serde_json::to_string_pretty(&tolerances)?))
    }
}

/// JSON that is Python too.
fn tolerance(policy: Policy, dtype: DType) -> Value {
    let Tolerance { atol, rtol, scale, equal_nan } = policy.tolerance(dtype);
    let fill = Tolerance::fill_limit(dtype);
    let fill = if fill.is_finite() { fill } else { f64::MAX };
    json!({ "atol": atol, "rtol": rtol, "scale": scale, "fill": fill, "equal_nan": u8::from(equal_nan) })
}

/// What eager gave, by every name that the value has: the inputs and outputs of the part, and what an Identity only names
/// anew, as the exporter does where two FX nodes share a value.
fn eager_values<'a>(graph: &'a GraphProto, given: &Values<'a>, references: &'a [NamedTensor]) -> Values<'a> {
    let mut values = given.clone();
    values.extend(references.iter().map(|tensor| (tensor.name.as_str(), tensor.view())));
    let renames = graph.node.iter().filter(|node| node.op_type() == "Identity" && node.domain().is_empty());
    let renames: Vec<(&str, &str)> = renames
        .filter_map(|node| match (node.input.as_slice(), node.output.as_slice()) {
            ([from], [to]) => Some((from.as_str(), to.as_str())),
            _ => None,
        })
        .collect();
    // Nodes are in topological order: back to the first name of each value, then on to all others.
    for &(from, to) in renames.iter().rev() {
        if let Some(&view) = values.get(to) {
            values.entry(from).or_insert(view);
        }
    }
    for (from, to) in renames {
        if let Some(&view) = values.get(from) {
            values.entry(to).or_insert(view);
        }
    }
    values
}

/// The folder is missing, empty, or a reproduction that we wrote.
fn check_folder(folder: &Path) -> Result<(), Failure> {
    let mut entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(format!("{}: {error}", folder.display()).into()),
        Ok(entries) => entries,
    };
    let readme = read_regular(&folder.join(README), README_BYTES);
    let is_ours = readme.is_ok_and(|text| text.starts_with(MARK.as_bytes()));
    if is_ours || entries.next().is_none() {
        return Ok(());
    }
    Err(format!("{}: not empty, and no reproduction of ours: it stays; name another folder", folder.display()).into())
}

/// Makes a folder, or takes the one that is there. Errors: the file system's; a link is there, which may lead anywhere.
fn real_folder(folder: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ if folder.symlink_metadata()?.is_dir() => Ok(()),
        _ => Err(io::Error::other("a link or a file is in its place: nothing is written there; name another folder")),
    }
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

fn views(tensors: &[(String, TensorBuf)]) -> Vec<(String, TensorView<'_>)> {
    tensors.iter().map(|(name, tensor)| (name.clone(), tensor.view())).collect()
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
fn found(judging: &Judging, references: &[NamedTensor], actuals: &[NamedTensor]) -> String {
    if actuals.is_empty() {
        return "No result was dumped: the run ended before it was whole.".to_owned();
    }
    let judge = |(reference, actual): (&NamedTensor, &NamedTensor)| {
        line(&judging.judge(&actual.name, &reference.view(), &actual.view()))
    };
    let lines: Vec<_> = references.iter().zip(actuals).map(judge).collect();
    if lines.is_empty() { "Not judged: eager's outputs were not dumped.".to_owned() } else { lines.join("\n") }
}

fn line(verdict: &TensorVerdict) -> String {
    let word = match verdict.verdict {
        Verdict::Match => "inside tolerance",
        Verdict::Noise | Verdict::Tie(_) | Verdict::OpenOrder(_) => "outside tolerance, and right",
        Verdict::Mismatch => "**outside tolerance**",
        Verdict::NotCompared(_) => "not judged",
        Verdict::Failed(_) => "**failed**",
    };
    format!("- {word}: {verdict}")
}
