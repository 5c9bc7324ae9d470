//! Dumps read back, whatever state they were left in.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::DumpError;
use super::layout::{
    self, COMPARISON_SCHEMA, Comparison, DATA_SET_SCHEMA, DataSet, MANIFEST_FILE, OLDER_COMPARISON_SCHEMA, Role,
    VALUES_PREFIX, VALUES_SCHEMA, ValueSet,
};
use super::nodes::NodeTable;
use crate::base::ids::ValueName;
use crate::compare::Summary;

/// One run: what one client process dumped.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunEntry {
    /// Folder name.
    pub name: String,
    /// Folder.
    pub path: PathBuf,
    /// `run.json`.
    pub info: Value,
    /// In the order of compilation.
    pub graphs: Vec<GraphEntry>,
}

/// One graph of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GraphEntry {
    /// Folder name, e.g. "0_0-forward".
    pub name: String,
    /// Folder.
    pub path: PathBuf,
    /// `parts.json`; null when it is missing or cannot be read.
    pub info: Value,
    /// By number.
    pub parts: Vec<PartEntry>,
}

/// One part of a graph: a model and its data sets.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PartEntry {
    /// Number.
    pub part: u32,
    /// Folder.
    pub path: PathBuf,
    /// By number.
    pub steps: Vec<StepEntry>,
}

/// A model and its data sets in ONNX's own test layout, outside a part: `node_<name>_<step>`, what `replay --repro`
/// wrote, or what another tool did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CaseEntry {
    /// Folder name.
    pub name: String,
    /// Folder.
    pub path: PathBuf,
    /// By number.
    pub steps: Vec<StepEntry>,
}

/// One data set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepEntry {
    /// Number of the call.
    pub step: u64,
    /// Folder.
    pub path: PathBuf,
    /// Whether all of it is there.
    pub state: Completeness,
    /// `input_<i>.pb` files.
    pub n_inputs: usize,
    /// `output_<i>.pb` files: what eager gave.
    pub n_references: usize,
    /// `actual_<i>.pb` files: what ONNX Runtime gave.
    pub n_actuals: usize,
    /// The verdicts that were written, counted.
    pub verdicts: Option<Summary>,
}

/// Whether all of a data set is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", content = "reason", rename_all = "snake_case")]
pub enum Completeness {
    /// Its manifest says so, and the files are there.
    Complete,
    /// Why not.
    Incomplete(String),
}

/// What a path is in a dump.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// A folder of runs.
    Folder(Vec<RunEntry>),
    /// A run.
    Run(RunEntry),
    /// A graph of a run.
    Graph(GraphEntry),
    /// A part of a graph.
    Part(PartEntry),
    /// A model with data sets, outside a part.
    Case(CaseEntry),
    /// A data set.
    Step(StepEntry),
    /// A file that ends in `.onnx`.
    Model(PathBuf),
    /// A file that ends in `.pb`.
    Tensor(PathBuf),
    /// A file that ends in `.json`.
    Json(PathBuf),
}

/// What stands at a path. Errors: [`DumpError::NoDump`] with what would be one, [`DumpError::Io`].
///
/// ```
/// use rust_ort::dump::reader::{Completeness, Place, find};
/// use rust_ort::dump::{CallsToDump, DumpError, GraphRecord, Run, RunSpec};
/// use rust_ort::base::ids::{GraphId, StepId};
/// use rust_ort::tensor::{DType, Shape, TensorView};
///
/// # let folder = tempfile::tempdir().expect("a folder");
/// let run = Run::open(&RunSpec {
///     folder: folder.path().to_owned(),
///     run: "mine".into(),
///     clean: false,
///     calls: CallsToDump::All,
///     run_json: "{}".into(),
/// })?;
/// let graph = GraphRecord {
///     graph: GraphId::from_bytes([7; 32]),
///     name: "0_0-forward",
///     direction: "forward",
///     dynamo_text: "",
///     joint_text: "",
///     fx_text: "",
///     parts_json: "{}",
/// };
/// let name = run.graph(&graph)?;
/// run.part(&name, 0, b"", "{}")?;
/// let shape = Shape::new([1]).expect("a small shape");
/// let x = TensorView::new(DType::U8, &shape, &[5]).expect("one byte");
/// run.begin_step(&name, 0, StepId(0), &[("x".to_owned(), (&x).into())])?;
/// run.flush();
///
/// let Place::Run(found) = find(run.path())? else { panic!("a run") };
/// let step = &found.graphs[0].parts[0].steps[0];
/// assert_eq!((step.step, step.n_inputs), (0, 1));
/// assert!(matches!(step.state, Completeness::Incomplete(_)), "nothing has run yet");
/// # Ok::<(), DumpError>(())
/// ```
pub fn find(path: &Path) -> Result<Place, DumpError> {
    let facts = fs::metadata(path).map_err(DumpError::io(path, "read"))?;
    let name = path.canonicalize().map_err(DumpError::io(path, "read"))?;
    let name = name.file_name().and_then(OsStr::to_str).unwrap_or_default().to_owned();
    if facts.is_file() {
        return match Path::new(&name).extension().and_then(OsStr::to_str) {
            Some("onnx") => Ok(Place::Model(path.to_owned())),
            Some("pb") => Ok(Place::Tensor(path.to_owned())),
            Some("json") => Ok(Place::Json(path.to_owned())),
            _ => Err(DumpError::NoDump { path: path.to_owned() }),
        };
    }
    if let Some(step) = layout::number(&name, "test_data_set_", "") {
        return Ok(Place::Step(step_entry(path.to_owned(), step)));
    }
    if let Some(part) = layout::number(&name, "part_", "").and_then(|part| u32::try_from(part).ok()) {
        return part_entry(path.to_owned(), part).map(Place::Part).map_err(DumpError::io(path, "list"));
    }
    if is_run(path)? {
        return run_entry(path.to_owned(), name).map(Place::Run);
    }
    if path.join(layout::PARTS_FILE).exists() {
        return graph_entry(path.to_owned(), name).map(Place::Graph).map_err(DumpError::io(path, "list"));
    }
    if path.join(layout::MODEL_FILE).is_file() {
        let steps = steps(path).map_err(DumpError::io(path, "list"))?;
        return Ok(Place::Case(CaseEntry { name, path: path.to_owned(), steps }));
    }
    match runs(path)? {
        list if list.is_empty() => Err(DumpError::NoDump { path: path.to_owned() }),
        list => Ok(Place::Folder(list)),
    }
}

/// Errors: there is a run.json that cannot be read, or is no JSON.
fn is_run(folder: &Path) -> Result<bool, DumpError> {
    let path = folder.join(layout::RUN_FILE);
    match layout::read_json(&path).and_then(|bytes| Ok(serde_json::from_slice::<Value>(&bytes)?)) {
        Ok(_) => Ok(layout::run_schema(folder).is_some()),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(false),
        Err(error) => Err(DumpError::io(&path, "read")(error)),
    }
}

/// The runs below a folder, by name. Folders that are no dump of ours are passed over. Errors: [`DumpError::Io`].
pub fn runs(folder: &Path) -> Result<Vec<RunEntry>, DumpError> {
    let names = folders(folder).map_err(DumpError::io(folder, "list"))?;
    let ours = names.into_iter().filter(|(_, path)| layout::run_schema(path).is_some());
    ours.map(|(name, path)| run_entry(path, name)).collect()
}

fn run_entry(path: PathBuf, name: String) -> Result<RunEntry, DumpError> {
    let list = || {
        let folders = folders(&path)?;
        let mut graphs =
            folders.into_iter().map(|(name, path)| graph_entry(path, name)).collect::<io::Result<Vec<_>>>()?;
        graphs.retain(|graph| graph.info != Value::Null || !graph.parts.is_empty());
        graphs.sort_by_cached_key(|graph| compile_order(&graph.name));
        Ok(graphs)
    };
    let graphs = list().map_err(DumpError::io(&path, "list"))?;
    Ok(RunEntry { info: json(&path.join(layout::RUN_FILE)), name, path, graphs })
}

/// The numbers of torch's compile id, forward before backward. Graphs of other names come last.
fn compile_order(name: &str) -> (Vec<u64>, usize, String) {
    let parsed = name.split_once('-').and_then(|(id, rest)| {
        let id = id.split('_').map(|number| number.parse().ok()).collect::<Option<Vec<u64>>>()?;
        let direction = ["forward", "backward", "inference"].iter().position(|known| rest.starts_with(known))?;
        Some((id, direction, rest.to_owned()))
    });
    parsed.unwrap_or_else(|| (vec![u64::MAX], 0, name.to_owned()))
}

fn graph_entry(path: PathBuf, name: String) -> io::Result<GraphEntry> {
    let mut parts = Vec::new();
    for (name, path) in folders(&path)? {
        if let Some(part) = layout::number(&name, "part_", "").and_then(|part| u32::try_from(part).ok()) {
            parts.push(part_entry(path, part)?);
        }
    }
    parts.sort_by_key(|part| part.part);
    Ok(GraphEntry { info: json(&path.join(layout::PARTS_FILE)), name, path, parts })
}

fn part_entry(path: PathBuf, part: u32) -> io::Result<PartEntry> {
    Ok(PartEntry { part, steps: steps(&path)?, path })
}

/// The data sets of a part, by number.
pub fn steps(part: &Path) -> io::Result<Vec<StepEntry>> {
    let numbered = |(name, path): (String, PathBuf)| {
        layout::number(&name, "test_data_set_", "").map(|step| step_entry(path, step))
    };
    let mut steps: Vec<_> = folders(part)?.into_iter().filter_map(numbered).collect();
    steps.sort_by_key(|step| step.step);
    Ok(steps)
}

fn step_entry(path: PathBuf, step: u64) -> StepEntry {
    let count = |role| tensors(&path, role).map_or(0, |files| files.len());
    StepEntry {
        step,
        state: state(&path),
        n_inputs: count(Role::Input),
        n_references: count(Role::Reference),
        n_actuals: count(Role::Actual),
        verdicts: comparison(&path).ok().flatten().map(|comparison| comparison.summary),
        path,
    }
}

fn state(path: &Path) -> Completeness {
    let incomplete = |reason: String| Completeness::Incomplete(reason);
    let manifest = match manifest(path) {
        Ok(manifest) => manifest,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return without_manifest(path),
        Err(error) => return incomplete(format!("{MANIFEST_FILE}: {error}")),
    };
    if let Some(first) = manifest.lost.first() {
        return incomplete(format!("{} lost, first {first}", manifest.lost.len()));
    }
    // A manifest may come from anywhere: its file names are looked up in this folder only.
    let missing = manifest.entries().find(|entry| entry.file.contains('/') || !path.join(&entry.file).is_file());
    missing.map_or(Completeness::Complete, |entry| incomplete(format!("{} is missing", entry.file)))
}

/// Outside a part a data set has no manifest: there the model goes last.
fn without_manifest(path: &Path) -> Completeness {
    let absolute = path.canonicalize().unwrap_or_default();
    let folder = absolute.parent().unwrap_or(Path::new("/"));
    let name = folder.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let of_part = layout::number(name, "part_", "").is_some() || folder.join(layout::PROVENANCE_FILE).exists();
    let reason = match (of_part, folder.join(layout::MODEL_FILE).is_file()) {
        (false, true) => return Completeness::Complete,
        (false, false) => "no manifest, and no model beside it: its writer ended before it was whole",
        (true, _) => "no manifest: the run ended before the step was whole",
    };
    Completeness::Incomplete(reason.to_owned())
}

/// The folder `node_<name>_<step>` of a part, where it is whole.
pub fn reproduction(part: &Path, node: &str, step: u64) -> Option<PathBuf> {
    let (prefix, suffix) = layout::reproduction_folder(step);
    let folder = part.join(format!("{prefix}{node}{suffix}"));
    (layout::check_name("node", node).is_ok() && folder.join(layout::MODEL_FILE).is_file()).then_some(folder)
}

/// The folder of the part that a data set or a reproduction in it belongs to: the nearest `part_<k>` above, else the
/// folder that the data set is in.
pub fn part_of(data_set: &Path) -> &Path {
    let is_part = |path: &&Path| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        layout::number(name, "part_", "").is_some()
    };
    let above = data_set.parent().unwrap_or(Path::new("/"));
    data_set.ancestors().skip(1).take(2).find(is_part).unwrap_or(above)
}

/// What ran a graph, as `parts.json` says; of older dumps as `run.json` does. Null when neither does.
pub fn options(graph: &Path) -> Value {
    let of = |path: PathBuf| json(&path).get("options").cloned();
    let of_run = || of(graph.parent()?.join(layout::RUN_FILE));
    of(graph.join(layout::PARTS_FILE)).or_else(of_run).unwrap_or_default()
}

/// Any JSON file of a dump. Errors: it cannot be read, is too large, is no JSON.
pub fn any_json(path: &Path) -> Result<Value, DumpError> {
    let value = layout::read_json(path).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
    value.map_err(DumpError::io(path, "read"))
}

/// A data set's manifest. Errors: NotFound when there is none, InvalidData when it is not one of this version.
pub fn manifest(step: &Path) -> io::Result<DataSet> {
    let bytes = layout::read_json(&step.join(MANIFEST_FILE))?;
    let manifest: DataSet = serde_json::from_slice(&bytes)?;
    layout::versioned(&manifest.schema, DATA_SET_SCHEMA)?;
    Ok(manifest)
}

/// The verdicts that were written for a data set. None when there are none. Errors: InvalidData when they cannot be
/// read.
pub fn comparison(step: &Path) -> io::Result<Option<Comparison>> {
    let name = step.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let (Some(number), Some(part)) = (layout::number(name, "test_data_set_", ""), step.parent()) else {
        return Ok(None);
    };
    comparison_of(part, number)
}

/// The same, of one step of a part.
pub fn comparison_of(part_folder: &Path, step: u64) -> io::Result<Option<Comparison>> {
    let path = part_folder.join(layout::comparison_file(step));
    let expected = [COMPARISON_SCHEMA, OLDER_COMPARISON_SCHEMA];
    read_versioned(&path, &expected)
}

/// Where what `rust-ort blame` found of a step of a part stands.
pub fn blame_file(part_folder: &Path, step: u64) -> PathBuf {
    part_folder.join(layout::blame_file(step))
}

/// What tells a data set from another under the same name: a hash of its manifests and its table of nodes.
pub fn content_of(step: &Path, part_folder: &Path, number: u64) -> String {
    let values = part_folder.join(layout::values_folder(number));
    let mut hasher = blake3::Hasher::new();
    let nodes = part_folder.join(layout::nodes_file(number));
    for file in [step.join(MANIFEST_FILE), values.join(MANIFEST_FILE), nodes] {
        hasher.update(&layout::read_json(&file).unwrap_or_default());
        hasher.update(b"\0");
    }
    hasher.finalize().to_string()
}

/// The table of nodes of one step of a part. None when there is none. Errors: InvalidData when it cannot be read.
pub fn nodes(part_folder: &Path, step: u64) -> io::Result<Option<NodeTable>> {
    match layout::read_json(&part_folder.join(layout::nodes_file(step))) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(bytes) => NodeTable::read(&bytes).map(Some),
    }
}

/// The files of eager's values in one step of a part, of its nodes and of those inputs that eager has other values of, by
/// name. Read one with [`crate::onnx::load_tensor`]. None when there is no such folder, or not all of it is there.
/// Errors: InvalidData when its manifest cannot be read.
pub fn values(part_folder: &Path, step: u64) -> io::Result<Option<BTreeMap<ValueName, PathBuf>>> {
    let folder = part_folder.join(layout::values_folder(step));
    let Some(manifest) = value_set(part_folder, step)?.filter(|manifest| manifest.lost.is_empty()) else {
        return Ok(None);
    };
    // A manifest may come from anywhere: its files are looked up in this folder only.
    let is_there = |file: &str| layout::is_values_file(file) && folder.join(file).is_file();
    if manifest.entries().any(|entry| !is_there(&entry.file)) {
        return Ok(None);
    }
    Ok(Some(manifest.entries().map(|entry| (entry.name.clone(), folder.join(&entry.file))).collect()))
}

/// The manifest of eager's values in one step of a part. None when there is none. Errors: InvalidData when it cannot be
/// read.
pub fn value_set(part_folder: &Path, step: u64) -> io::Result<Option<ValueSet>> {
    let path = part_folder.join(layout::values_folder(step)).join(MANIFEST_FILE);
    read_versioned(&path, &[VALUES_SCHEMA])
}

/// The folders `values_<step>` of a part, by step.
pub(super) fn value_folders(part_folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let numbered = |(name, path): (String, PathBuf)| layout::number(&name, VALUES_PREFIX, "").map(|step| (step, path));
    let mut found: Vec<_> = folders(part_folder)?.into_iter().filter_map(numbered).collect();
    found.sort();
    Ok(found)
}

fn read_versioned<T: DeserializeOwned>(path: &Path, expected: &[&str]) -> io::Result<Option<T>> {
    match layout::read_json(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(bytes) => {
            let of: layout::Version<'_> = serde_json::from_slice(&bytes)?;
            if !expected.contains(&&*of.schema) {
                layout::versioned(&of.schema, expected[0])?;
            }
            Ok(Some(serde_json::from_slice(&bytes)?))
        }
    }
}

/// The `nodes_<step>.json` of a part, by step. Read one with [`nodes`].
pub fn node_files(part_folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    numbered_files(part_folder, "nodes_", ".json")
}

/// The files of one role in a data set, by index. Read one with [`crate::onnx::load_tensor`].
pub fn tensors(step: &Path, role: Role) -> io::Result<Vec<(u64, PathBuf)>> {
    numbered_files(step, role.prefix(), ".pb")
}

fn numbered_files(folder: &Path, prefix: &str, suffix: &str) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        if let Some(index) = layout::number(name, prefix, suffix) {
            files.push((index, path));
        }
    }
    files.sort();
    Ok(files)
}

fn folders(folder: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut list = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // Links are not followed: a dump does not hold any.
        if entry.file_type()?.is_dir()
            && let Ok(name) = entry.file_name().into_string()
        {
            list.push((name, entry.path()));
        }
    }
    list.sort();
    Ok(list)
}

fn json(path: &Path) -> Value {
    layout::read_json(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or(Value::Null)
}
