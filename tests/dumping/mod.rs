//! A dump of one graph, for tests of the commands that read one.

use std::path::Path;

use rust_ort::dump::{CallsToDump, GraphRecord, Run, RunSpec};
use rust_ort::ids::GraphId;

/// `<folder>/run`, open, and the name of its graph's folder.
pub fn one_graph(folder: &Path, run_json: &str) -> (Run, String) {
    let run = Run::open(&RunSpec {
        folder: folder.to_owned(),
        run: "run".to_owned(),
        clean: false,
        calls: CallsToDump::All,
        run_json: run_json.to_owned(),
        keep_steps: None,
    })
    .unwrap();
    let graph = GraphRecord {
        graph: GraphId::from_bytes([1; 32]),
        name: "0_0-forward",
        direction: "forward",
        dynamo_text: "",
        joint_text: "",
        fx_text: "fx",
        parts_json: "",
    };
    let graph = run.graph(&graph).unwrap();
    (run, graph)
}
