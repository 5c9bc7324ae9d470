//! A small dump with a file of each kind, for tests that damage one.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};

use rust_ort::base::ids::{GraphId, StepId};
use rust_ort::compare::{Policy, judge};
use rust_ort::dump::{EagerValues, GraphRecord, Role, Run, to_json};
use rust_ort::tensor::TensorBuf;
use serde_json::{Value, json};

use crate::common::one_node;
use crate::dumping;

fn tensor(values: [f32; 2]) -> TensorBuf {
    TensorBuf::from_f32([2], &values).unwrap()
}

fn graph(run: &Run, name: &str, op: &str, steps: u64) {
    let text = |kind: &str| format!("def {kind}_of_{op}(self, x): ...\n");
    let parts = json!({ "parts": [{ "part": 0, "nodes": [op] }], "options": { "threads": 1 } });
    let name = run
        .graph(&GraphRecord {
            graph: GraphId::from_bytes([op.len() as u8; 32]),
            name,
            direction: "forward",
            dynamo_text: &text("dynamo"),
            joint_text: &text("joint"),
            fx_text: &text("fx"),
            parts_json: &parts.to_string(),
        })
        .unwrap();
    let provenance = json!({ "values": { "y": { "fx": op } } });
    run.part(&name, 0, &one_node("", op, 2), &provenance.to_string()).unwrap();
    run.optimized(&name, 0, &[one_node("", op, 2), vec![0x1a, 1, b'o']].concat()).unwrap();
    for step in 0..steps {
        let size = (op.len() as u64 * 10 + step) as f32;
        let [x, y, near] = [[size, 1.], [-size, -1.], [-size, -1.5]].map(tensor);
        let values = run.begin_values(&name, 0, StepId(step)).unwrap();
        run.values(&values, &EagerValues { nodes: vec![("y".into(), y.shared())], ..Default::default() });
        let set = run.begin_step(&name, 0, StepId(step), &[("x".into(), x.shared())]).unwrap();
        let actual = if step == 0 { &y } else { &near };
        run.references(&set, &[("y".into(), y.shared())]);
        run.actuals(&set, &[("y".into(), actual.shared())]);
        run.comparison(&set, &[judge("y", &y.view(), &actual.view(), None)], Policy::default());
        let exact = TensorBuf::from_f32([2], &[-size, -1.]).unwrap();
        run.known(&set, Role::Terms, 0, ("y", exact.shared()));
        run.finish(&set);
        run.finish_values(values);
    }
    let [x, y] = [[1., 2.], [-1., -2.]].map(tensor);
    let wrong = dumping::reproduction("y", one_node("", op, 2), &[("x", &x)], [&y, &x]);
    run.nodes(dumping::no_nodes(&name, 0), vec![wrong]).unwrap();
}

/// `<folder>/run`: two graphs, of which one call in three differs from eager.
pub fn dump(folder: &Path) -> PathBuf {
    filled(dumping::open(folder, &json!({ "pid": 7 }).to_string()))
}

/// The same of an id that is the same in every run of a test.
#[allow(dead_code)] // of the fuzz targets alone
pub fn dump_of_id(folder: &Path, id: &str) -> PathBuf {
    let path = dumping::open(folder, "{}").path().join("run.json");
    fs::write(path, to_json(&json!({ "schema": "rust_ort/run/3", "id": id }))).unwrap();
    dump(folder)
}

fn filled(run: Run) -> PathBuf {
    graph(&run, "0_0-forward", "Neg", 2);
    graph(&run, "0_0-backward", "Abs_", 1);
    assert!(run.flush().lost.is_empty());
    let kept = json!({ "schema": "rust_ort/blame-kept/4", "key": "k", "nodes": [], "answer": null });
    fs::write(run.path().join("0_0-forward/part_0/blame_0.json"), to_json(&kept)).unwrap();
    run.path().to_owned()
}

/// Paths of all files below a folder, from there.
pub fn files(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { found.push(path.strip_prefix(root).unwrap().to_owned()) }
        }
    }
    found.sort();
    found
}

/// A file by another content; never one that others are linked to.
pub fn replace(path: &Path, bytes: &[u8]) {
    fs::remove_file(path).unwrap();
    fs::write(path, bytes).unwrap();
}

/// Makes of a run what a version before seals wrote: JSON without a seal, no lists.
pub fn unseal(run: &Path) {
    for name in files(run) {
        let path = run.join(&name);
        if name.ends_with("files.json") {
            fs::remove_file(path).unwrap();
        } else if name.extension().is_some_and(|extension| extension == "json") {
            let mut value: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            value.as_object_mut().unwrap().remove("seal");
            let (kind, version) = value["schema"].as_str().unwrap().rsplit_once('/').unwrap();
            // Two versions ago nothing had a seal; what has had one version since was without the run's id then.
            let ids = ["run", "data_set", "values", "comparison", "nodes"].iter().any(|of| kind.ends_with(of));
            let before = version.parse::<u32>().unwrap() - if ids { 2 } else { 1 };
            value["schema"] = format!("{kind}/{before}").into();
            replace(&path, value.to_string().as_bytes());
        }
    }
}
