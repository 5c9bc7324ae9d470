//! A dump of one graph, for tests of the commands that read one, and the program run on it.

use std::path::Path;
use std::process::{Command, Output};

use rust_ort::base::ids::GraphId;
use rust_ort::compare::TensorVerdict;
use rust_ort::daemon::libraries::KnownLibraries;
use rust_ort::dump::{CallsToDump, GraphRecord, NODES_SCHEMA, NodeReproduction, NodeTable, Run, RunSpec, to_json};
use rust_ort::tensor::TensorBuf;
use serde_json::Value;

/// `<folder>/run`, open.
pub fn open(folder: &Path, run_json: &str) -> Run {
    Run::open(&RunSpec {
        folder: folder.to_owned(),
        run: "run".to_owned(),
        clean: false,
        calls: CallsToDump::All,
        run_json: run_json.to_owned(),
        umask: Default::default(),
    })
    .unwrap()
}

/// A graph of the run; returns the name of its folder.
pub fn graph(run: &Run, name: &str, parts_json: &str) -> String {
    let direction = name.rsplit('-').next().unwrap();
    let id = name.bytes().fold(7_u8, |id, byte| id.wrapping_mul(31).wrapping_add(byte));
    run.graph(&GraphRecord {
        graph: GraphId::from_bytes([id; 32]),
        name,
        direction,
        dynamo_text: "",
        joint_text: "",
        fx_text: "fx",
        parts_json,
    })
    .unwrap()
}

/// `<folder>/run`, open, and the name of its graph's folder.
pub fn one_graph(folder: &Path, run_json: &str) -> (Run, String) {
    let run = open(folder, run_json);
    let graph = graph(&run, "0_0-forward", "");
    (run, graph)
}

/// A table of nodes without a row, for reproductions to stand beside.
pub fn no_nodes(graph: &str, step: u64) -> NodeTable {
    let (plain, nodes) = (Vec::<TensorVerdict>::new(), Vec::new());
    NodeTable {
        schema: NODES_SCHEMA.to_owned(),
        run: String::new(),
        graph: graph.to_owned(),
        part: 0,
        step,
        plain,
        nodes,
    }
}

/// The node `node` with the model and the inputs given; eager made `reference` of them, ONNX Runtime `actual`.
pub fn reproduction(
    node: &str,
    model: Vec<u8>,
    inputs: &[(&str, &TensorBuf)],
    [reference, actual]: [&TensorBuf; 2],
) -> NodeReproduction {
    NodeReproduction {
        node: node.to_owned(),
        model: model.into(),
        inputs: inputs.iter().map(|(name, tensor)| ((*name).to_owned(), (*tensor).clone())).collect(),
        reference: reference.clone(),
        actual: actual.clone(),
    }
}

/// A JSON file of a dump with another content, as if it had been written so.
pub fn put_json(path: &Path, value: &Value) {
    unlist(path.parent().unwrap());
    std::fs::write(path, to_json(value)).unwrap();
}

/// Nothing is told of the files of a folder any more: one may be changed.
pub fn unlist(folder: &Path) {
    std::fs::remove_file(folder.join("files.json")).unwrap_or_default();
}

/// As if a daemon with the program's state folder had lent an executor with this library.
pub fn executors_have_loaded(folder: &Path, library: &Path) {
    KnownLibraries::below(&folder.join("state")).remember(library);
}

/// What the program said.
pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Said { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
    }
}

/// The program in the folder. It finds no daemon and no terminal width there.
pub fn program(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rust-ort"));
    command.args(args).current_dir(folder).env_remove("RUST_ORT_ONNXRUNTIME").env_remove("COLUMNS");
    command.env("RUST_ORT_SOCKET", folder.join("s").join("v1.sock")).env("RUST_ORT_STATE_DIR", folder.join("state"));
    command
}

/// Its answer, piped.
pub fn piped(folder: &Path, args: &[&str]) -> Said {
    program(folder, args).output().unwrap().into()
}

/// Its answer in so many columns.
pub fn wide(folder: &Path, columns: usize, args: &[&str]) -> Said {
    program(folder, args).env("COLUMNS", columns.to_string()).output().unwrap().into()
}

/// Its answer as JSON.
pub fn json(folder: &Path, args: &[&str]) -> Value {
    let said = piped(folder, &[args, &["--json"]].concat());
    serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{args:?}: {error}: {}{}", said.out, said.err))
}
