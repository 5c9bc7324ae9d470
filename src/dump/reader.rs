//! Dumps read back, whatever state they were left in.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::{Damage, DumpError};
use super::files::{self, list_of};
pub use super::files::{TensorFile, list_folder, load_model, load_model_alone, unlist_folder};
use super::layout::{
    self, COMPARISON_SCHEMAS, Comparison, DATA_SET_SCHEMAS, DataSet, FileEntry, Incomplete, MANIFEST_FILE, Role,
    RunFile, TENSORS_FOLDER, VALUES_PREFIX, VALUES_SCHEMAS, ValueSet,
};
use super::nodes::NodeTable;
use crate::base::files::folder_of;
use crate::base::ids::ValueName;
use crate::compare::{Policy, Summary, summary};

/// One run: what one client process dumped.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunEntry {
    /// Folder name.
    pub name: String,
    /// Folder.
    pub path: PathBuf,
    /// `run.json`; null when it is damaged.
    pub info: Value,
    /// Of `run.json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damage: Option<Damage>,
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
    /// Of `parts.json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damage: Option<Damage>,
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
    /// By which they were given; None: no verdicts, or a dump of before policies were written.
    pub policy: Option<Policy>,
}

/// Whether all of a data set is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", content = "reason", rename_all = "snake_case")]
pub enum Completeness {
    /// Its manifest says so, and the files are there.
    Complete,
    /// Why not.
    Incomplete(String),
    /// Its manifest or its verdicts are not what was written. Its tensors are looked at when they are read.
    Damaged(Damage),
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
    /// A file that ends in `.txt`: a graph as readable code.
    Text(PathBuf),
}

impl Place {
    /// What is damaged of what tells of runs and graphs.
    pub fn damages(&self) -> Vec<&Damage> {
        match self {
            Place::Folder(runs) => runs.iter().flat_map(RunEntry::damages).collect(),
            Place::Run(run) => run.damages().collect(),
            Place::Graph(graph) => graph.damage.iter().collect(),
            _ => Vec::new(),
        }
    }
}

impl RunEntry {
    fn damages(&self) -> impl Iterator<Item = &Damage> {
        self.damage.iter().chain(self.graphs.iter().filter_map(|graph| graph.damage.as_ref()))
    }
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
///     umask: Default::default(),
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
            Some("txt") => Ok(Place::Text(path.to_owned())),
            _ => Err(DumpError::NoDump { path: path.to_owned() }),
        };
    }
    if !facts.is_dir() {
        return Err(DumpError::NoDump { path: path.to_owned() });
    }
    if let Some(step) = layout::number(&name, "test_data_set_", "") {
        return Ok(Place::Step(step_entry(path.to_owned(), step)));
    }
    if let Some(part) = layout::number(&name, "part_", "").and_then(|part| u32::try_from(part).ok()) {
        return part_entry(path.to_owned(), part).map(Place::Part).map_err(DumpError::io(path, "list"));
    }
    match RunFile::of(path).map_err(DumpError::io(&path.join(layout::RUN_FILE), "read"))? {
        RunFile::NotOurs => {}
        ours => return run_entry(path.to_owned(), name, ours).map(Place::Run),
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

/// The runs below a folder, by name. Folders that are no dump of ours are passed over. Errors: [`DumpError::Io`], also
/// of a run.json beside graphs that cannot be read.
pub fn runs(folder: &Path) -> Result<Vec<RunEntry>, DumpError> {
    let names = folders(folder).map_err(DumpError::io(folder, "list"))?;
    let mut runs = Vec::new();
    for (name, path) in names {
        match RunFile::of(&path) {
            Ok(RunFile::NotOurs) => {}
            Ok(file) => runs.push(run_entry(path, name, file)?),
            Err(error) if layout::has_graphs(&path) => {
                return Err(DumpError::io(&path.join(layout::RUN_FILE), "read")(error));
            }
            // Nothing says that it is ours.
            Err(_) => {}
        }
    }
    Ok(runs)
}

fn run_entry(path: PathBuf, name: String, file: RunFile) -> Result<RunEntry, DumpError> {
    let list = || {
        let folders = folders(&path)?;
        let mut graphs =
            folders.into_iter().map(|(name, path)| graph_entry(path, name)).collect::<io::Result<Vec<_>>>()?;
        graphs.retain(|graph| graph.info != Value::Null || graph.damage.is_some() || !graph.parts.is_empty());
        graphs.sort_by_cached_key(|graph| compile_order(&graph.name));
        Ok(graphs)
    };
    let graphs = list().map_err(DumpError::io(&path, "list"))?;
    let (info, damage) = match file {
        RunFile::Ours(_, info) => (info, None),
        RunFile::Damaged(damage) => (Value::Null, Some(damage)),
        RunFile::NotOurs => (Value::Null, None),
    };
    Ok(RunEntry { info, damage, name, path, graphs })
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
    let file = path.join(layout::PARTS_FILE);
    let read = files::read_json(&file).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
    let (info, damage) = match read {
        Ok(info) => (info, None),
        Err(error) => {
            let other = || layout::is_no_file(&error).then(|| Damage::new(&file, error.to_string()));
            (Value::Null, Damage::of(&error).cloned().or_else(other))
        }
    };
    Ok(GraphEntry { info, damage, name, path, parts })
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
    let count = |role: Role| numbered_files(&path, role.prefix(), ".pb").map_or(0, |files| files.len());
    let comparison = comparison(&path);
    let damaged = comparison.as_ref().err().and_then(|error| Damage::of(error)).cloned();
    let comparison = comparison.ok().flatten();
    StepEntry {
        step,
        state: damaged.map_or_else(|| state(&path), Completeness::Damaged),
        n_inputs: count(Role::Input),
        n_references: count(Role::Reference),
        n_actuals: count(Role::Actual),
        verdicts: comparison.as_ref().map(|comparison| comparison.summary),
        policy: comparison.and_then(|comparison| comparison.policy),
        path,
    }
}

/// Whether a data set is there, with all its files.
pub(super) fn is_whole(data_set: &Path) -> bool {
    data_set.is_dir() && state(data_set) == Completeness::Complete
}

/// Whether a path is one that a run's data set has: `<run>/<graph>/part_<k>/test_data_set_<step>`.
pub(super) fn is_data_set_of(path: &Path, run: &Path) -> bool {
    let below: Option<Vec<&str>> =
        path.strip_prefix(run).ok().and_then(|below| below.iter().map(OsStr::to_str).collect());
    matches!(below.as_deref(), Some([graph, part, step]) if layout::check_name("graph", graph).is_ok()
        && layout::number(part, "part_", "").is_some() && layout::number(step, "test_data_set_", "").is_some())
}

pub(super) fn state(path: &Path) -> Completeness {
    let incomplete = |reason: String| Completeness::Incomplete(reason);
    let manifest = match manifest(path) {
        Ok(manifest) => manifest,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return without_manifest(path),
        Err(error) => {
            return match Damage::of(&error) {
                Some(damage) => Completeness::Damaged(damage.clone()),
                None => incomplete(format!("{MANIFEST_FILE}: {error}")),
            };
        }
    };
    if let Some(first) = manifest.lost.first() {
        return incomplete(format!("{} lost, first {first}", manifest.lost.len()));
    }
    if let Some(name) = &manifest.comparison
        && !above(path).join(layout::comparison_file(manifest.step)).is_file()
    {
        return incomplete(format!("{name} is missing"));
    }
    // A manifest may come from anywhere: its file names are looked up in this folder only.
    let missing = manifest.entries().find(|entry| entry.file.contains('/') || !path.join(&entry.file).is_file());
    missing.map_or(Completeness::Complete, |entry| incomplete(format!("{} is missing", entry.file)))
}

/// The folder that a folder is in, of which the path may tell nothing, as "." does.
fn above(folder: &Path) -> PathBuf {
    match folder.file_name() {
        Some(_) => folder_of(folder).to_owned(),
        None => folder.join(".."),
    }
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

/// What ran a graph, as `parts.json` says; of older dumps as `run.json` does. Null when neither does. Errors: one that is
/// there is damaged.
pub fn options(graph: &Path) -> Result<Value, DumpError> {
    let run = graph.parent().map(|run| run.join(layout::RUN_FILE));
    for path in [Some(graph.join(layout::PARTS_FILE)), run].into_iter().flatten() {
        match any_json(&path) {
            Ok(mut value) if value.get("options").is_some() => return Ok(value["options"].take()),
            Err(DumpError::Damaged(damage)) => return Err(DumpError::Damaged(damage)),
            _ => {}
        }
    }
    Ok(Value::Null)
}

/// What a run says was not written. None where it says nothing. Errors: [`Damage`], the file system's.
pub(super) fn incomplete(run: &Path) -> io::Result<Option<Incomplete>> {
    read_versioned(&run.join(layout::INCOMPLETE_FILE), &[layout::INCOMPLETE_SCHEMA])
}

/// The numbers of a graph's parts, as its `parts.json` tells them. Errors: it cannot be read.
pub(super) fn parts_told(graph: &Path) -> Result<Vec<u32>, DumpError> {
    let parts = json_if_there(&graph.join(layout::PARTS_FILE))?.unwrap_or_default();
    let number = |part: &Value| part.get("part")?.as_u64()?.try_into().ok();
    Ok(parts["parts"].as_array().into_iter().flatten().filter_map(number).collect())
}

/// Any JSON file of a dump. Errors: it cannot be read, is too large, is no JSON, is damaged.
pub fn any_json(path: &Path) -> Result<Value, DumpError> {
    let value = files::read_json(path).and_then(|bytes| {
        let parsed = serde_json::from_slice(&bytes);
        parsed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, layout::not_json(&bytes, &error)))
    });
    value.map_err(DumpError::io(path, "read"))
}

/// A text, when it is the one that was written, as far as its folder tells. Errors: [`DumpError::Damaged`],
/// [`DumpError::Io`].
pub fn text(path: &Path) -> Result<String, DumpError> {
    files::read_text(path)
}

/// [`any_json`], None where there is none. Errors: also of one that its folder lists.
pub fn json_if_there(path: &Path) -> Result<Option<Value>, DumpError> {
    match any_json(path) {
        Err(DumpError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

/// A data set's manifest. Errors: NotFound when there is none, InvalidData when it is not one of this version, or damaged.
pub fn manifest(step: &Path) -> io::Result<DataSet> {
    let path = step.join(MANIFEST_FILE);
    let bytes = layout::read_checked(&path)?;
    let schema = serde_json::from_slice::<layout::Version<'_>>(&bytes)?.schema;
    layout::versioned(&path, &schema, &DATA_SET_SCHEMAS)?;
    let manifest: DataSet = serde_json::from_slice(&bytes)?;
    let name = step.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let number = layout::number(name, "test_data_set_", "").unwrap_or(manifest.step);
    let told = Told { run: &manifest.run, graph: &manifest.graph, part: manifest.part, step: manifest.step };
    told.check(&path, &above(step), number)?;
    Ok(manifest)
}

/// What a file says it is of.
struct Told<'a> {
    run: &'a str,
    graph: &'a str,
    part: u32,
    step: u64,
}

impl Told<'_> {
    /// Errors: it stands in another part, or under another step: files were swapped.
    fn check(&self, path: &Path, part_folder: &Path, step: u64) -> Result<(), Damage> {
        // A bare name has an empty parent, which is here.
        let here = if part_folder.as_os_str().is_empty() { Path::new(".") } else { part_folder };
        let absolute = here.canonicalize().unwrap_or_else(|_| part_folder.to_owned());
        let name = |folder: Option<&Path>| {
            folder.and_then(Path::file_name).and_then(OsStr::to_str).unwrap_or_default().to_owned()
        };
        let part = layout::number(&name(Some(&absolute)), "part_", "");
        let graph = absolute.parent().filter(|graph| part.is_some() && graph.join(layout::PARTS_FILE).exists());
        let of_graph = graph.map(|graph| name(Some(graph)));
        let run = graph.and_then(Path::parent).filter(|_| !self.run.is_empty()).and_then(layout::run_id);
        if run.is_some_and(|run| run != self.run) {
            return Err(Damage::new(path, "it is of another run than the folder that it is in: files were swapped"));
        }
        let is_here = self.step == step
            && part.is_none_or(|part| part == u64::from(self.part))
            && of_graph.as_ref().is_none_or(|graph| graph == self.graph);
        if is_here {
            return Ok(());
        }
        let Told { graph, part, step, .. } = self;
        let text =
            format!("it is of graph {graph:?}, part {part}, step {step}: files were swapped, or a folder renamed");
        Err(Damage::new(path, text))
    }
}

/// The verdicts that were written for a data set. None when there are none. Errors: InvalidData when they cannot be
/// read.
pub fn comparison(step: &Path) -> io::Result<Option<Comparison>> {
    let whole = if step.file_name().is_some() { step.to_owned() } else { step.canonicalize()? };
    let name = whole.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let Some(number) = layout::number(name, "test_data_set_", "") else { return Ok(None) };
    comparison_of(&above(step), number)
}

/// The same, of one step of a part.
pub fn comparison_of(part_folder: &Path, step: u64) -> io::Result<Option<Comparison>> {
    let path = part_folder.join(layout::comparison_file(step));
    let Some(mut comparison) = read_versioned::<Comparison>(&path, &COMPARISON_SCHEMAS)? else { return Ok(None) };
    // Counted here: a file may say so many match, and hold no verdict.
    comparison.summary = summary(&comparison.verdicts);
    let told = Told { run: &comparison.run, graph: &comparison.graph, part: comparison.part, step: comparison.step };
    told.check(&path, part_folder, step)?;
    Ok(Some(comparison))
}

/// Where what `rust-ort blame` found of a step of a part stands.
pub fn blame_file(part_folder: &Path, step: u64) -> PathBuf {
    part_folder.join(layout::blame_file(step))
}

/// What tells a data set from another under the same name: a hash of its manifests, its table of nodes, its comparison, and
/// what is told of the part's values.
pub fn content_of(step: &Path, part_folder: &Path, number: u64) -> String {
    let values = part_folder.join(layout::values_folder(number));
    let mut hasher = blake3::Hasher::new();
    let nodes = part_folder.join(layout::nodes_file(number));
    let comparison = part_folder.join(layout::comparison_file(number));
    let provenance = part_folder.join(layout::PROVENANCE_FILE);
    for file in [step.join(MANIFEST_FILE), values.join(MANIFEST_FILE), nodes, comparison, provenance] {
        hasher.update(&layout::read_json(&file).unwrap_or_default());
        hasher.update(b"\0");
    }
    hasher.finalize().to_string()
}

/// The table of nodes of one step of a part. None when there is none. Errors: InvalidData when it cannot be read.
pub fn nodes(part_folder: &Path, step: u64) -> io::Result<Option<NodeTable>> {
    let path = part_folder.join(layout::nodes_file(step));
    let table = match layout::read_checked(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => NodeTable::read(&path, &read?)?,
    };
    Told { run: &table.run, graph: &table.graph, part: table.part, step: table.step }.check(
        &path,
        part_folder,
        step,
    )?;
    Ok(Some(table))
}

/// The files of eager's values in one step of a part, of its nodes and of those inputs that eager has other values of, by
/// name. None when there is no such folder, or not all of it is there. Errors: InvalidData when its manifest cannot be
/// read.
pub fn values(part_folder: &Path, step: u64) -> io::Result<Option<BTreeMap<ValueName, TensorFile>>> {
    let folder = part_folder.join(layout::values_folder(step));
    let Some(manifest) = value_set(part_folder, step)?.filter(|manifest| manifest.lost.is_empty()) else {
        return Ok(None);
    };
    // A manifest may come from anywhere: its files are looked up in this folder only.
    let is_there = |file: &str| layout::is_values_file(file) && folder.join(file).is_file();
    if manifest.entries().any(|entry| !is_there(&entry.file)) {
        return Ok(None);
    }
    let file = |entry: &FileEntry| TensorFile::new(0, folder.join(&entry.file), Some(entry.hash.clone()));
    Ok(Some(manifest.entries().map(|entry| (entry.name.clone(), file(entry))).collect()))
}

/// The manifest of eager's values in one step of a part. None when there is none. Errors: InvalidData when it cannot be
/// read.
pub fn value_set(part_folder: &Path, step: u64) -> io::Result<Option<ValueSet>> {
    let path = part_folder.join(layout::values_folder(step)).join(MANIFEST_FILE);
    let values: Option<ValueSet> = read_versioned(&path, &VALUES_SCHEMAS)?;
    if let Some(values) = &values {
        Told { run: &values.run, graph: &values.graph, part: values.part, step: values.step }.check(
            &path,
            part_folder,
            step,
        )?;
    }
    Ok(values)
}

/// The folders `values_<step>` of a part, by step.
pub fn value_folders(part_folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let numbered = |(name, path): (String, PathBuf)| layout::number(&name, VALUES_PREFIX, "").map(|step| (step, path));
    let mut found: Vec<_> = folders(part_folder)?.into_iter().filter_map(numbered).collect();
    found.sort();
    Ok(found)
}

fn read_versioned<T: DeserializeOwned>(path: &Path, expected: &[&str]) -> io::Result<Option<T>> {
    match layout::read_checked(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(bytes) => {
            let of: layout::Version<'_> = serde_json::from_slice(&bytes)?;
            layout::versioned(path, &of.schema, expected)?;
            Ok(Some(serde_json::from_slice(&bytes)?))
        }
    }
}

/// The `nodes_<step>.json` of a part, by step. Read one with [`nodes`].
pub fn node_files(part_folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    numbered_files(part_folder, "nodes_", ".json")
}

/// The files of one role in a data set, by index, each to be held against its manifest, or against what the folder of a
/// node lists. Errors: the file system's; that tells is damaged.
pub fn tensors(step: &Path, role: Role) -> io::Result<Vec<TensorFile>> {
    let found = numbered_files(step, role.prefix(), ".pb")?;
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let hashes = hashes_of(step)?;
    let file = |(index, path): (u64, PathBuf)| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let hash = hashes.get(name).cloned();
        TensorFile::new(index, path, hash)
    };
    Ok(found.into_iter().map(file).collect())
}

/// The tensors' files that stand in a data set, whatever they hold.
pub(super) fn tensor_paths(step: &Path, role: Role) -> io::Result<Vec<PathBuf>> {
    Ok(numbered_files(step, role.prefix(), ".pb")?.into_iter().map(|(_, path)| path).collect())
}

/// A tensor's file by itself, to be held against what stands beside it. Errors: as [`tensors`].
pub fn tensor(path: &Path) -> io::Result<TensorFile> {
    let folder = path.canonicalize()?.parent().unwrap_or(Path::new("/")).to_owned();
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let folder_name = folder.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let hash = match folder_name.strip_prefix(VALUES_PREFIX).and_then(|step| step.parse().ok()) {
        Some(step) => value_set(folder.parent().unwrap_or(Path::new("/")), step)?
            .and_then(|values| values.entries().find(|entry| entry.file == name).map(|entry| entry.hash.clone())),
        None if folder_name == TENSORS_FOLDER => layout::blob_hash(name).map(str::to_owned),
        None => hashes_of(&folder)?.remove(name),
    };
    Ok(TensorFile::new(0, path.to_owned(), hash))
}

/// What is told of the files of a data set: name → blake3.
fn hashes_of(step: &Path) -> io::Result<BTreeMap<String, String>> {
    match manifest(step) {
        Ok(manifest) => Ok(manifest.entries().map(|entry| (entry.file.clone(), entry.hash.clone())).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let absolute = step.canonicalize()?;
            let (Some(folder), Some(name)) = (absolute.parent(), absolute.file_name().and_then(OsStr::to_str)) else {
                return Ok(BTreeMap::new());
            };
            let list = list_of(folder)?.unwrap_or_default();
            let own = |(path, hash): (String, String)| {
                let file = path.strip_prefix(name)?.strip_prefix('/')?;
                Some((file.to_owned(), hash))
            };
            Ok(list.files.into_iter().filter_map(own).collect())
        }
        // Of another version, or somebody else's: it tells nothing that we know.
        Err(error) if Damage::of(&error).is_none() => Ok(BTreeMap::new()),
        Err(error) => Err(error),
    }
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
