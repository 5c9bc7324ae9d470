//! Names of files and folders, and the JSON in them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::error::{Damage, DumpError};
use super::seal::{Seal, Sealing};
use crate::base::files::{is_temporary, read_regular};
use crate::base::identity::Identity;
use crate::base::limits;
use crate::base::sync::lock;
use crate::compare::{Policy, Summary, TensorVerdict};
use crate::tensor::TensorDesc;

pub(super) const RUN_FILE: &str = "run.json";
pub(super) const PARTS_FILE: &str = "parts.json";
pub(super) const PROVENANCE_FILE: &str = "provenance.json";
pub(super) const MODEL_FILE: &str = "model.onnx";
pub(super) const MANIFEST_FILE: &str = "manifest.json";
/// Of a folder: blake3 of files in it that say nothing of themselves.
pub(super) const FILES_FILE: &str = "files.json";
/// Of a run that ended before everything was written.
pub(super) const INCOMPLETE_FILE: &str = "incomplete.json";
pub(super) const TENSORS_FOLDER: &str = "tensors";
/// Of the folder's name; the number of the call follows.
pub(super) const VALUES_PREFIX: &str = "values_";

const SCHEMA_KEY: &str = "schema";
pub(super) const RUN_ID_KEY: &str = "id";
const RUN_FAMILY: &str = "rust_ort/run/";
pub(super) const RUN_SCHEMA: &str = "rust_ort/run/3";
pub(super) const PARTS_SCHEMA: &str = "rust_ort/parts/2";
pub(super) const PROVENANCE_SCHEMA: &str = "rust_ort/provenance/2";
pub(super) const FILES_SCHEMA: &str = "rust_ort/files/1";
/// The newest version of each format, and those before it that are read, too. The last before it have no ids of runs, those
/// before these no seals, and the first of comparisons neither policy nor verdicts of noise, ties and open orders.
pub(super) const DATA_SET_SCHEMA: &str = DATA_SET_SCHEMAS[0];
pub(super) const DATA_SET_SCHEMAS: [&str; 3] = ["rust_ort/data_set/3", "rust_ort/data_set/2", "rust_ort/data_set/1"];
pub(super) const COMPARISON_SCHEMA: &str = COMPARISON_SCHEMAS[0];
pub(super) const COMPARISON_SCHEMAS: [&str; 4] =
    ["rust_ort/comparison/4", "rust_ort/comparison/3", "rust_ort/comparison/2", "rust_ort/comparison/1"];
pub(super) const VALUES_SCHEMA: &str = VALUES_SCHEMAS[0];
pub(super) const VALUES_SCHEMAS: [&str; 3] = ["rust_ort/values/3", "rust_ort/values/2", "rust_ort/values/1"];
pub(super) const INCOMPLETE_SCHEMA: &str = "rust_ort/incomplete/2";

/// Name and version of the format of `nodes_<step>.json`.
pub const NODES_SCHEMA: &str = NODES_SCHEMAS[0];
/// As those above; the last before it, which two have no seals, is without verdicts of noise, ties and open orders.
pub(super) const NODES_SCHEMAS: [&str; 4] =
    ["rust_ort/nodes/6", "rust_ort/nodes/5", "rust_ort/nodes/4", "rust_ort/nodes/3"];

/// Name and version of what is kept of an examination, `blame_<step>.json`.
pub const BLAME_SCHEMA: &str = "rust_ort/blame-kept/4";

/// Versions whose files have a seal, the newest first: one without is damaged.
const RUN_SEALED: &[&str] = &[RUN_SCHEMA, "rust_ort/run/2"];
const PARTS_SEALED: &[&str] = &[PARTS_SCHEMA];
const PROVENANCE_SEALED: &[&str] = &[PROVENANCE_SCHEMA];
const FILES_SEALED: &[&str] = &[FILES_SCHEMA];
const INCOMPLETE_SEALED: &[&str] = &[INCOMPLETE_SCHEMA];
const MANIFEST_SEALED: &[&str] = &[DATA_SET_SCHEMAS[0], DATA_SET_SCHEMAS[1], VALUES_SCHEMAS[0], VALUES_SCHEMAS[1]];
const COMPARISON_SEALED: &[&str] = &[COMPARISON_SCHEMAS[0], COMPARISON_SCHEMAS[1]];
const NODES_SEALED: &[&str] = &[NODES_SCHEMAS[0], NODES_SCHEMAS[1]];
const BLAME_SEALED: &[&str] = &[BLAME_SCHEMA];
const SEALED: [&[&str]; 9] = [
    RUN_SEALED,
    PARTS_SEALED,
    PROVENANCE_SEALED,
    FILES_SEALED,
    INCOMPLETE_SEALED,
    MANIFEST_SEALED,
    COMPARISON_SEALED,
    NODES_SEALED,
    BLAME_SEALED,
];

/// Largest JSON file that is read: the nodes of the largest graphs take some hundred MB.
pub(super) const MAX_JSON_BYTES: u64 = 1 << 30;

/// Which tensors of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// What the part was fed: `input_<i>.pb`.
    Input,
    /// What eager gave: `output_<i>.pb`, as ONNX's own test layout calls the expected outputs.
    Reference,
    /// What ONNX Runtime gave: `actual_<i>.pb`.
    Actual,
    /// Of outputs outside tolerance, the same computation in float64: `float64_<i>.pb`.
    Float64,
    /// Of the same, Σ|terms| of each element in float64, where it is a sum: `terms_<i>.pb`.
    Terms,
}

impl Role {
    pub(super) const ALL: [Role; 5] = [Role::Input, Role::Reference, Role::Actual, Role::Float64, Role::Terms];

    pub(super) const fn prefix(self) -> &'static str {
        match self {
            Role::Input => "input_",
            Role::Reference => "output_",
            Role::Actual => "actual_",
            Role::Float64 => "float64_",
            Role::Terms => "terms_",
        }
    }

    pub(super) fn file(self, index: usize) -> String {
        format!("{}{index}.pb", self.prefix())
    }
}

/// One tensor's file in a data set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Name in the data set's folder.
    pub file: String,
    /// Name of the value.
    pub name: String,
    /// torch's name of the element type.
    pub dtype: String,
    /// Dimensions.
    pub dims: Vec<i64>,
    /// Name, without `.pb`, below `tensors/`: blake3 of the file.
    pub hash: String,
}

impl FileEntry {
    pub(super) fn new(file: String, name: &str, desc: &TensorDesc, hash: String) -> Self {
        let (dtype, dims) = (desc.dtype.to_string(), desc.shape.dims().to_vec());
        Self { file, name: name.to_owned(), dtype, dims, hash }
    }
}

/// `manifest.json` of a data set. It is written last: without it the set is incomplete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataSet {
    /// Name and version of this format.
    pub schema: String,
    /// Id of the run; empty: of a version before ids.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub run: String,
    /// The graph's folder.
    pub graph: String,
    /// Number of the part.
    pub part: u32,
    /// Number of the call.
    pub step: u64,
    /// `input_<i>.pb`.
    pub inputs: Vec<FileEntry>,
    /// `output_<i>.pb`: what eager gave.
    pub references: Vec<FileEntry>,
    /// `actual_<i>.pb`: what ONNX Runtime gave.
    pub actuals: Vec<FileEntry>,
    /// `float64_<i>.pb`: of outputs that were looked at once more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub float64: Vec<FileEntry>,
    /// `terms_<i>.pb`: of the same, where they are sums.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub terms: Vec<FileEntry>,
    /// Name, in the part's folder, of the verdicts.
    pub comparison: Option<String>,
    /// What could not be written, and why. Empty in a complete set.
    pub lost: Vec<String>,
}

impl DataSet {
    pub(super) fn entries_mut(&mut self, role: Role) -> &mut Vec<FileEntry> {
        match role {
            Role::Input => &mut self.inputs,
            Role::Reference => &mut self.references,
            Role::Actual => &mut self.actuals,
            Role::Float64 => &mut self.float64,
            Role::Terms => &mut self.terms,
        }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &FileEntry> {
        self.inputs.iter().chain(&self.references).chain(&self.actuals).chain(&self.float64).chain(&self.terms)
    }
}

/// `manifest.json` of `values_<step>`. It is written last: without it the folder is incomplete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValueSet {
    /// Name and version of this format.
    pub schema: String,
    /// Id of the run; empty: of a version before ids.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub run: String,
    /// The graph's folder.
    pub graph: String,
    /// Number of the part.
    pub part: u32,
    /// Number of the call.
    pub step: u64,
    /// Inputs of the part that eager has other values of.
    pub inputs: Vec<FileEntry>,
    /// Nodes of the part, in graph order.
    pub nodes: Vec<FileEntry>,
    /// What could not be written, and why. Empty in a complete set.
    pub lost: Vec<String>,
}

impl ValueSet {
    pub(super) fn entries(&self) -> impl Iterator<Item = &FileEntry> {
        self.inputs.iter().chain(&self.nodes)
    }
}

/// `files.json` of a graph, a part or the folder of a node: blake3 of each file in it that has no manifest to tell it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct FileList {
    pub(super) schema: String,
    /// Path below the folder → blake3, hexadecimal.
    pub(super) files: BTreeMap<String, String>,
}

impl Default for FileList {
    fn default() -> Self {
        Self { schema: FILES_SCHEMA.to_owned(), files: BTreeMap::new() }
    }
}

/// `incomplete.json` of a run: it was ended before everything was on disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Incomplete {
    /// Name and version of this format.
    pub schema: String,
    /// Files that were handed over and not written, below the run's folder; the first may have been written after all.
    pub missing: Vec<PathBuf>,
}

impl Incomplete {
    pub(super) fn new(missing: Vec<PathBuf>) -> Self {
        Self { schema: INCOMPLETE_SCHEMA.to_owned(), missing }
    }
}

/// `comparison_<step>.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Name and version of this format.
    pub schema: String,
    /// Id of the run; empty: of a version before ids.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub run: String,
    /// The graph's folder.
    pub graph: String,
    /// Number of the part.
    pub part: u32,
    /// Number of the call.
    pub step: u64,
    /// By which they were judged.
    #[serde(default)]
    pub policy: Option<Policy>,
    /// Verdicts counted.
    pub summary: Summary,
    /// One an output.
    pub verdicts: Vec<TensorVerdict>,
}

/// The name as one folder below another. Errors: [`DumpError::BadName`].
pub(super) fn check_name(what: &'static str, name: &str) -> Result<(), DumpError> {
    let bad = name.is_empty()
        || name.starts_with('.')
        || name.len() > limits::FOLDER_NAME_BYTES
        || name.contains(|c: char| c == '/' || c.is_control())
        || (what == "run" && name == TENSORS_FOLDER);
    if bad { Err(DumpError::BadName { what, name: name.chars().take(80).collect() }) } else { Ok(()) }
}

pub(super) fn part_folder(part: u32) -> String {
    format!("part_{part}")
}

pub(super) fn step_folder(step: u64) -> String {
    format!("test_data_set_{step}")
}

pub(super) fn values_folder(step: u64) -> String {
    format!("{VALUES_PREFIX}{step}")
}

pub(super) fn value_file(name: &str) -> String {
    format!("{name}.pb")
}

pub(super) fn is_values_file(name: &str) -> bool {
    name == MANIFEST_FILE || name.strip_suffix(".pb").is_some_and(|value| check_name("value", value).is_ok())
}

pub(super) fn comparison_file(step: u64) -> String {
    format!("comparison_{step}.json")
}

pub(super) fn blame_file(step: u64) -> String {
    format!("blame_{step}.json")
}

pub(super) fn nodes_file(step: u64) -> String {
    format!("nodes_{step}.json")
}

/// Start and end of a reproduction folder's name; the node's name is between them.
pub(super) fn reproduction_folder(step: u64) -> (&'static str, String) {
    ("node_", format!("_{step}"))
}

/// Whether the name is one that we give to a file of a data set.
pub(super) fn is_data_set_file(name: &str) -> bool {
    name == MANIFEST_FILE || Role::ALL.iter().any(|role| number(name, role.prefix(), ".pb").is_some())
}

/// A kind of folder in a dump; what may be in it.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Run,
    Graph,
    Part,
    Reproduction,
    DataSet,
    Values,
}

impl Kind {
    /// Whether the name is one that we give to a file in a folder of this kind.
    pub(super) fn has_file(self, name: &str) -> bool {
        let ours = match self {
            Kind::Run => matches!(name, RUN_FILE | INCOMPLETE_FILE),
            Kind::Graph => matches!(name, "dynamo.txt" | "joint.txt" | "fx.txt" | PARTS_FILE | FILES_FILE),
            Kind::Part => {
                let models = [MODEL_FILE, "model.precision.onnx", "model.ort.onnx", PROVENANCE_FILE, FILES_FILE];
                let of_step = |prefix| number(name, prefix, ".json").is_some();
                models.contains(&name) || of_step("comparison_") || of_step("nodes_") || of_step("blame_")
            }
            Kind::Reproduction => matches!(name, MODEL_FILE | FILES_FILE),
            Kind::DataSet => is_data_set_file(name),
            Kind::Values => is_values_file(name),
        };
        ours || is_temporary(name)
    }

    /// The kind of a folder with this name in one of this kind; None when we make none of that name.
    pub(super) fn below(self, name: &str) -> Option<Self> {
        let numbered = |prefix| number(name, prefix, "").is_some();
        match self {
            Kind::Run => check_name("graph", name).is_ok().then_some(Kind::Graph),
            Kind::Graph => numbered("part_").then_some(Kind::Part),
            Kind::Part if numbered("test_data_set_") => Some(Kind::DataSet),
            Kind::Part if numbered(VALUES_PREFIX) => Some(Kind::Values),
            Kind::Part => {
                let (_, step) = name.strip_prefix(reproduction_folder(0).0)?.rsplit_once('_')?;
                number(step, "", "").map(|_| Kind::Reproduction)
            }
            Kind::Reproduction => (name == step_folder(0)).then_some(Kind::DataSet),
            Kind::DataSet | Kind::Values => None,
        }
    }
}

/// The number in `<prefix><number><suffix>`, only in the form that we write.
pub(super) fn number(name: &str, prefix: &str, suffix: &str) -> Option<u64> {
    let digits = name.strip_prefix(prefix)?.strip_suffix(suffix)?;
    let number: u64 = digits.parse().ok()?;
    (number.to_string() == digits).then_some(number)
}

/// A client's JSON with our schema and facts, which win over the client's fields of the same name. Something other than
/// an object goes below `items`; "" is an empty object. Errors: [`DumpError::BadJson`].
pub(super) fn with_facts(what: &'static str, text: &str, facts: &[(&str, Value)]) -> Result<Vec<u8>, DumpError> {
    let parsed = match text {
        "" => Value::Object(Map::new()),
        text => serde_json::from_str(text).map_err(|source| DumpError::BadJson { what, source })?,
    };
    let mut object = match parsed {
        Value::Object(object) => object,
        other => Map::from_iter([("items".to_owned(), other)]),
    };
    object.remove("seal");
    object.extend(facts.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
    Ok(to_json(&object))
}

pub(super) fn schema(name: &str) -> (&'static str, Value) {
    (SCHEMA_KEY, Value::from(name))
}

/// An object with a field as JSON, with the seal that readers hold it against.
pub fn to_json(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_json(value, &mut bytes).expect("our types have string keys and a field, and memory takes all");
    bytes
}

/// As [`to_json`], without the whole text in memory.
pub(super) fn write_json(value: &impl Serialize, out: impl io::Write) -> io::Result<()> {
    let mut out = Sealing::new(out);
    serde_json::to_writer_pretty(&mut out, value)?;
    out.write_all(b"\n")?;
    out.end()?;
    Ok(())
}

/// What the run.json of a folder says.
pub(super) enum RunFile {
    /// A dump of ours, of this schema, whatever its version.
    Ours(String, Value),
    /// Of ours: it is sealed, or beside graphs of ours.
    Damaged(Damage),
    /// There is none, or somebody else's.
    NotOurs,
}

impl RunFile {
    /// Errors: it is there and cannot be read, or is no JSON and nothing beside it is ours.
    pub(super) fn of(folder: &Path) -> io::Result<Self> {
        let path = folder.join(RUN_FILE);
        let bytes = match read_json(&path) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(RunFile::NotOurs);
            }
            Err(error) if is_no_file(&error) && has_graphs(folder) => {
                return Ok(RunFile::Damaged(Damage::new(&path, error.to_string())));
            }
            read => read?,
        };
        let error = match checked(&path, &bytes).map(|()| serde_json::from_slice::<Value>(&bytes)) {
            Err(damage) if Seal::of(&bytes) == Seal::Broken || has_graphs(folder) => {
                return Ok(RunFile::Damaged(damage));
            }
            Err(damage) => return Err(io::Error::new(io::ErrorKind::InvalidData, damage.reason)),
            Ok(Ok(value)) => {
                let schema = value.get(SCHEMA_KEY).and_then(Value::as_str).unwrap_or_default().to_owned();
                return Ok(match Seal::of(&bytes) {
                    _ if schema.starts_with(RUN_FAMILY) => RunFile::Ours(schema, value),
                    Seal::Whole => {
                        RunFile::Damaged(Damage::new(&path, format!("it holds {schema:?}: files were swapped")))
                    }
                    _ => RunFile::NotOurs,
                });
            }
            Ok(Err(error)) => error,
        };
        Err(error.into())
    }
}

/// The id of a run, drawn when its run.json was first written: what is of the run tells it. None: its run.json has none,
/// cannot be read, or is somebody else's.
pub(super) fn run_id(run: &Path) -> Option<String> {
    /// Of the run that was asked for last: each of its manifests asks.
    static LAST: Mutex<Option<(Identity, Option<String>)>> = Mutex::new(None);
    let now = Identity::at(&run.join(RUN_FILE)).ok()?;
    let mut last = lock(&LAST);
    match &*last {
        Some((identity, id)) if *identity == now => id.clone(),
        _ => {
            let id = match RunFile::of(run) {
                Ok(RunFile::Ours(_, value)) => value.get(RUN_ID_KEY).and_then(Value::as_str).map(str::to_owned),
                _ => None,
            };
            last.insert((now, id)).1.clone()
        }
    }
}

/// Whether something else stands where a file is to be read: a pipe, a device, what is larger than any of ours.
pub(super) fn is_no_file(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::FileTooLarge)
}

/// Whether a graph of ours is in a folder.
pub(super) fn has_graphs(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| path.join(PARTS_FILE).is_file())
}

/// The schema in `run.json` of a folder; None when it is no dump of ours, whatever its version.
pub(super) fn run_schema(folder: &Path) -> Option<String> {
    match RunFile::of(folder) {
        Ok(RunFile::Ours(schema, _)) => Some(schema),
        _ => None,
    }
}

/// The blake3 that a tensor's file in the folder of those that are equal is named by.
pub(super) fn blob_hash(name: &str) -> Option<&str> {
    name.strip_suffix(".pb").filter(|hash| hash.len() == 2 * blake3::OUT_LEN)
}

/// Content of a JSON file of a dump, which may come from anywhere. Errors: what `fs::read` has, InvalidInput for what
/// is no regular file (a pipe would never end), FileTooLarge above [`MAX_JSON_BYTES`].
///
/// What it takes when it is read is estimated first: of few bytes comes much.
pub(super) fn read_json(path: &Path) -> io::Result<Vec<u8>> {
    let bytes = read_regular(path, MAX_JSON_BYTES)?;
    let (taken, limit) = (json_memory(&bytes), limits::json_memory());
    if taken > limit {
        let text = format!("JSON that takes about {taken} bytes of memory; expected at most {limit}");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    Ok(bytes)
}

/// Bytes that JSON takes as values of serde_json, at most: an object of one member has a node of a tree with room for
/// eleven, a list of one element room for four. What stands in texts counts, too.
fn json_memory(bytes: &[u8]) -> u64 {
    let of = |byte: &u8| match byte {
        b'{' => 1400,
        b'[' => 160,
        b',' => 64,
        b':' => 96,
        _ => 1,
    };
    bytes.iter().map(of).sum()
}

/// As [`read_json`], of a file whose seal holds, or that is of a version without seals. Errors: also [`Damage`].
pub(super) fn read_checked(path: &Path) -> io::Result<Vec<u8>> {
    let bytes = read_json(path)?;
    checked(path, &bytes)?;
    Ok(bytes)
}

/// Whether what stands in a JSON file of a dump is what was written, as far as the file tells. Errors: its seal is broken,
/// it lacks the seal of its version, or it is no JSON.
pub(super) fn checked(path: &Path, bytes: &[u8]) -> Result<(), Damage> {
    match Seal::of(bytes) {
        Seal::Whole => Ok(()),
        Seal::Broken => Err(Damage::new(path, "its content is not what was sealed")),
        Seal::None => match serde_json::from_slice::<Unsealed<'_>>(bytes) {
            Err(error) if has_our_name(path) => Err(Damage::new(path, not_json(bytes, &error))),
            Ok(Unsealed { schema: Some(schema) }) if SEALED.iter().any(|sealed| sealed.contains(&&*schema)) => {
                Err(Damage::new(path, format!("{schema} is sealed, and its seal is gone")))
            }
            _ => Ok(()),
        },
    }
}

/// Why bytes are no JSON: of a file that was cut off the parser knows no more than where it ended.
pub(super) fn not_json(bytes: &[u8], error: &serde_json::Error) -> String {
    match bytes.len() {
        0 => "it is empty".to_owned(),
        n if error.is_eof() => format!("it is cut off: its JSON does not end within its {n} bytes"),
        _ => format!("it is no JSON: {error}"),
    }
}

/// Whether a JSON file has a name that only we give: what else is it to hold?
fn has_our_name(path: &Path) -> bool {
    path.file_name().and_then(OsStr::to_str).is_some_and(|name| schemas_of(name).is_some())
}

/// Whether a JSON file has a seal.
pub(super) fn is_sealed(bytes: &[u8]) -> bool {
    Seal::of(bytes) != Seal::None
}

/// A file that may be anybody's.
#[derive(Deserialize)]
struct Unsealed<'a> {
    #[serde(borrow, default)]
    schema: Option<Cow<'a, str>>,
}

/// What a reader of a file looks at first: another version may lack what this one has.
#[derive(Deserialize)]
pub(super) struct Version<'a> {
    /// Name and version of the format.
    #[serde(borrow)]
    pub(super) schema: Cow<'a, str>,
}

/// expected: the versions that are read, the newest first. Errors: InvalidData for another one; [`Damage`] where the file
/// at `path` is of another kind.
pub(super) fn versioned(path: &Path, got: &str, expected: &[&str]) -> io::Result<()> {
    if expected.contains(&got) {
        return Ok(());
    }
    let kind = |schema: &str| schema.rsplit_once('/').map(|(kind, _)| kind.to_owned());
    if kind(got) != kind(expected[0]) {
        return Err(
            Damage::new(path, format!("it holds {got:?}, expected {:?}: files were swapped", expected[0])).into()
        );
    }
    let text = format!("schema {got:?}, expected {:?}; read it with the version that wrote it", expected[0]);
    Err(io::Error::new(io::ErrorKind::InvalidData, text))
}

/// The sealed versions of what has a name that only we give, the newest first; None of another name.
pub(super) fn schemas_of(name: &str) -> Option<&'static [&'static str]> {
    let numbered = |prefix: &str| number(name, prefix, ".json").is_some();
    Some(match name {
        RUN_FILE => RUN_SEALED,
        PARTS_FILE => PARTS_SEALED,
        PROVENANCE_FILE => PROVENANCE_SEALED,
        FILES_FILE => FILES_SEALED,
        INCOMPLETE_FILE => INCOMPLETE_SEALED,
        MANIFEST_FILE => MANIFEST_SEALED,
        _ if numbered("comparison_") => COMPARISON_SEALED,
        _ if numbered("nodes_") => NODES_SEALED,
        _ if numbered("blame_") => BLAME_SEALED,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_one_folder_pass() {
        for name in ["llama", "0_0-forward", "мир", "a b"] {
            assert!(check_name("run", name).is_ok(), "{name}");
        }
        for name in ["", ".", "..", ".hidden", "a/b", "/a", "a\0", "a\nb", "tensors", &"x".repeat(201)] {
            assert!(check_name("run", name).is_err(), "{name}");
        }
    }

    #[test]
    fn numbers_are_read_in_the_written_form_only() {
        assert_eq!(number("test_data_set_12", "test_data_set_", ""), Some(12));
        assert_eq!(number("input_0.pb", "input_", ".pb"), Some(0));
        for name in ["input_.pb", "input_+1.pb", "input_01.pb", "input_1.pb.tmp", "input_99999999999999999999.pb"] {
            assert_eq!(number(name, "input_", ".pb"), None, "{name}");
        }
    }

    #[test]
    fn clients_fields_stay_and_facts_win() {
        let theirs = r#"{"schema": "theirs", "seal": "theirs", "b": 1}"#;
        let json = with_facts("x", theirs, &[schema(RUN_SCHEMA)]).unwrap();
        assert_eq!(Seal::of(&json), Seal::Whole);
        let mut value: Value = serde_json::from_slice(&json).unwrap();
        let seal = value.as_object_mut().unwrap().remove("seal").unwrap();
        assert_eq!((value, seal == "theirs"), (serde_json::json!({"schema": RUN_SCHEMA, "b": 1}), false));
        let json = with_facts("x", "[1]", &[schema("s")]).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&json).unwrap()["items"], serde_json::json!([1]));
        assert!(with_facts("x", "{", &[]).is_err());
    }
}
