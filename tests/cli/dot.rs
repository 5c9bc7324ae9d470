//! `rust-ort dot`, as a shell sees it.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, symlink};
use std::path::Path;

use rust_ort::base::ids::StepId;
use rust_ort::compare::{TensorVerdict, Verdict, judge};
use rust_ort::dump::{NodeTable, to_json};
use rust_ort::onnx::proto::{GraphProto, ModelProto, NodeProto, StringStringEntryProto, ValueInfoProto};
use rust_ort::onnx::save;
use rust_ort::tensor::TensorBuf;
use serde_json::json;

use crate::any_model::{self, node};
use crate::dumping::{self, json, piped, program};

const PART: &str = "run/0_0-forward/part_0";

fn model(nodes: Vec<NodeProto>) -> ModelProto {
    let info = |name: &str| ValueInfoProto { name: Some(name.to_owned()), ..Default::default() };
    let graph = GraphProto {
        name: Some("g".to_owned()),
        input: ["x", "weight"].map(info).to_vec(),
        node: nodes,
        output: vec![info("y")],
        ..Default::default()
    };
    ModelProto { graph: Some(graph), ..Default::default() }
}

/// A part of two modules; in call 1 the second node is wrong.
fn dump(folder: &Path) {
    let (run, graph) = dumping::one_graph(folder, "{}");
    let provenance = json!({
        "inputs": [{ "name": "x", "role": "PlainAOTInput" }, { "name": "weight", "role": "ParamAOTInput" }],
        "values": { "a": { "fx": "a", "op": "aten.t.default", "module": "m.0" }, "y": { "module": "m.1" } },
    });
    let nodes = vec![
        node("", "Transpose", &["weight"], &["t"]),
        node("", "MatMul", &["x", "t"], &["a"]),
        node("", "Neg", &["a"], &["y"]),
    ];
    let bytes = folder.join("bytes.onnx");
    save(&model(nodes), &bytes).unwrap();
    run.part(&graph, 0, &fs::read(&bytes).unwrap(), &provenance.to_string()).unwrap();
    fs::remove_file(bytes).unwrap();
    for step in [0, 1] {
        run.finish(&run.begin_step(&graph, 0, StepId(step), &[]).unwrap());
    }
    assert!(run.flush().lost.is_empty());
    let part = folder.join(PART);
    dumping::unlist(&part);
    for (step, by) in [(0, 0.), (1, 0.5)] {
        let verdict = |by: f32| -> TensorVerdict {
            let tensor = |value: f32| TensorBuf::from_f32([1], &[value]).unwrap();
            judge("v", &tensor(2.).view(), &tensor(2. + by).view(), None)
        };
        assert_eq!(verdict(by).verdict == Verdict::Match, by == 0.);
        let row = |index: u64, name: &str, by: f32| {
            json!({
                "index": index, "name": name, "op": "aten", "onnx_ops": [], "onnx_index": index, "module": "", "source": "",
                "role": "", "seq_nr": -1, "dtype": "float32", "dims": [1], "reference_signature": "",
                "candidate_signature": "", "reference_ns": 0, "candidate_ns": 0, "local": verdict(by),
                "cumulative": verdict(by), "as_right": "",
            })
        };
        let mut table = serde_json::to_value::<NodeTable>(dumping::no_nodes(&graph, step)).unwrap();
        table["nodes"] = json!([row(0, "a", 0.), row(1, "y", by)]);
        fs::write(part.join(format!("nodes_{step}.json")), to_json(&table)).unwrap();
    }
}

#[test]
fn a_part_has_modules_and_the_worst_verdict_of_each_node() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let value = json(folder.path(), &["dot", PART]);
    let boxes = value["boxes"].as_array().unwrap();
    let told: Vec<_> = boxes.iter().map(|one| json!([one["op"], one["module"], one["mark"]])).collect();
    // What is made of parameters alone is not drawn, as they are not.
    let expected = json!([["input", "", null], ["MatMul", "m.0", "match"], ["Neg", "m.1", "mismatch"]]);
    assert_eq!(json!(told), expected);
    assert_eq!((&value["not_drawn"], &value["steps"]), (&2.into(), &json!([0, 1])));
    assert_eq!((&value["lines"], &value["values"]), (&json!([[0, 1], [1, 2]]), &json!([["x"], ["a"]])));
    let value = json(folder.path(), &["dot", &format!("{PART}/test_data_set_0")]);
    assert_eq!((&value["boxes"][2]["mark"], &value["steps"]), (&"match".into(), &json!([0])));
    let text = piped(folder.path(), &["dot", PART]).out;
    assert!(text.starts_with("digraph \"g\" {\n") && text.contains("label=\"m.1\";"), "{text}");
}

#[test]
fn a_picture_is_written_whole() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let said = piped(folder.path(), &["dot", PART, "--svg", "part.svg"]);
    assert_eq!((said.code, said.out.as_str()), (0, "part.svg: 3 boxes in 3 rows, 2 lines\n"), "{}", said.err);
    let svg = fs::read_to_string(folder.path().join("part.svg")).unwrap();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
    assert!(
        svg.contains(">m.0</text>") && svg.contains(">1 mismatch</text>") && svg.contains("the worst of 2 calls"),
        "{svg}"
    );
    let value = json(folder.path(), &["dot", PART, "--svg", "part.svg"]);
    assert_eq!((&value["boxes"], &value["svg"]), (&3.into(), &"part.svg".into()));
    let said = piped(folder.path(), &["dot", PART, "--svg", "gone/part.svg"]);
    assert!(said.code == 2 && said.err.contains("gone/part.svg: cannot write"), "{}", said.err);
}

#[test]
fn names_in_pictures_are_text() {
    let folder = tempfile::tempdir().unwrap();
    let hostile = "</title><script>alert(1)</script>\"];x[label=\"\\N\u{1b}]0;t\u{7}\u{202e}";
    let long = "n".repeat(10_000);
    let nodes = vec![node("", hostile, &["x"], &[hostile]), node("", "Neg", &[hostile], &[&long])];
    save(&model(nodes), &folder.path().join("hostile.onnx")).unwrap();
    let said = piped(folder.path(), &["dot", "hostile.onnx"]);
    assert!(said.code == 0 && said.out.contains("\\\"];x[label=\\\"\\\\"), "{}{}", said.out, said.err);
    assert!(said.out.chars().all(|c| c == '\n' || !c.is_control() && c != '\u{202e}'), "{}", said.out);
    assert_eq!(piped(folder.path(), &["dot", "hostile.onnx", "--svg", "h.svg"]).code, 0);
    let svg = fs::read_to_string(folder.path().join("h.svg")).unwrap();
    assert!(!svg.contains("<script") && svg.contains("&lt;script&gt;"), "{svg}");
    assert!(svg.chars().all(|c| c == '\n' || !c.is_control() && c != '\u{202e}') && svg.len() < 20_000, "{svg}");
}

#[test]
fn a_model_with_bodies_functions_and_data_elsewhere_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    save(&any_model::model(), &folder.path().join("any.onnx")).unwrap();
    let value = json(folder.path(), &["dot", "any.onnx"]);
    let ops: Vec<_> = value["boxes"].as_array().unwrap().iter().map(|one| one["op"].as_str().unwrap()).collect();
    assert_eq!(ops, ["input", "Add", "input", "If", "local::F", "Mul"]);
    let inlined = json(folder.path(), &["dot", "any.onnx", "--inline"]);
    assert_eq!(inlined["boxes"].as_array().unwrap().len(), 7);
}

#[test]
fn a_picture_replaces_regular_files_alone_and_never_its_model() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    save(&any_model::model(), &at("any.onnx")).unwrap();
    let model = fs::read(at("any.onnx")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), rustix::fs::Mode::RWXU).unwrap();
    save(&any_model::model(), &at("other.onnx")).unwrap();
    symlink("any.onnx", at("link.svg")).unwrap();
    symlink("drawn.svg", at("other.svg")).unwrap();
    for (command, named, expected) in [
        (["dot", "any.onnx", "--svg"], "any.onnx", "it is the file that is read"),
        (["dot", "any.onnx", "--svg"], "link.svg", "it is the file that is read"),
        (["dot", "any.onnx", "--svg"], "other.onnx", "it is an ONNX model"),
        (["dot", "any.onnx", "--svg"], "pipe", "it is a pipe"),
        (["dot", "any.onnx", "--svg"], ".", "it is a folder"),
        (["study", "gemm", "--svg"], "pipe", "it is a pipe"),
    ] {
        let said = piped(folder.path(), &[&command[..], &[named]].concat());
        assert!(said.code == 2 && said.err.contains(expected), "{command:?} {named}: {}{}", said.out, said.err);
    }
    // What holds its elements is read as well, by those who look at them.
    fs::write(at("data"), [0; 4]).unwrap();
    for (args, named) in [
        (["widen", "any.onnx"].to_vec(), "link.svg"),
        (vec!["widen", "any.onnx"], "data"),
        (vec!["dot", "any.onnx", "--svg"], "data"),
    ] {
        let said = piped(folder.path(), &[&args[..], &[named]].concat());
        assert!(
            said.code == 2 && said.err.contains("it is the file that is read"),
            "{args:?}: {}{}",
            said.out,
            said.err
        );
    }
    assert_eq!(fs::read(at("any.onnx")).unwrap(), model);
    assert!(fs::symlink_metadata(at("pipe")).unwrap().file_type().is_fifo() && at("link.svg").is_symlink());
    assert_eq!(piped(folder.path(), &["dot", "any.onnx", "--svg", "other.svg"]).code, 0);
    assert!(at("other.svg").is_symlink());
    let drawn = fs::read_to_string(at("drawn.svg")).unwrap();
    let said = piped(folder.path(), &["dot", "any.onnx", "--svg", "-"]);
    assert_eq!((said.code, said.out), (0, drawn));
    let said = piped(folder.path(), &["dot", "any.onnx", "--svg", "-", "--json"]);
    assert!(said.code == 2 && said.err.contains("--json"), "{}{}", said.out, said.err);
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let said = program(folder.path(), &["dot", "any.onnx", "--svg", "-"]).stdout(full).output().unwrap();
    assert_eq!(said.status.code(), Some(2));
}

#[test]
fn a_part_is_folded_by_module_with_its_worst_verdict() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let value = json(folder.path(), &["dot", PART, "--fold", "1"]);
    let expected = json!({
        "kind": "module", "name": "m", "op": "", "module": "", "mark": "mismatch", "nodes": 2, "is_own": false,
        "ops": { "MatMul": 1, "Neg": 1 }, "marks": { "match": 1, "mismatch": 1 }, "part": [1, 1], "is_output": true,
    });
    let mut told = value["boxes"][1].clone();
    let detail = told.as_object_mut().unwrap().remove("detail").unwrap();
    assert_eq!((&told, &value["lines"], &value["values"]), (&expected, &json!([[0, 1]]), &json!([["x"]])));
    assert!(detail.as_str().unwrap().ends_with("verdicts: 1 match, 1 mismatch\nmismatch: y"), "{detail}");
    let value = json(folder.path(), &["dot", PART, "--fold", "m.0"]);
    let kinds: Vec<_> = value["boxes"].as_array().unwrap().iter().map(|one| one["kind"].as_str().unwrap()).collect();
    assert_eq!((kinds, &value["boxes"][1]["module"]), (vec!["input", "module", "node"], &"m".into()));

    let said = piped(folder.path(), &["dot", PART, "--fold", "2"]);
    let text = said.out;
    assert!(text.contains("label=\"m.0\\nMatMul\"") && text.contains("shape=box3d"), "{text}");
    assert!(text.contains("n1 -> n2 [label=\"a\", tooltip=\"a\"];") && said.err.is_empty(), "{text}{}", said.err);
    let said = piped(folder.path(), &["dot", PART, "--fold", "2", "--svg", "part.svg"]);
    assert_eq!((said.code, said.out.as_str()), (0, "part.svg: 3 boxes in 3 rows, 2 lines\n"), "{}", said.err);
    let svg = fs::read_to_string(folder.path().join("part.svg")).unwrap();
    assert!(svg.contains(">3 boxes, 2 of modules (2 nodes); ") && svg.contains(">1 mismatch</text>"), "{svg}");

    for (fold, expected) in
        [("m.2", "did you mean \"m.0\""), ("attention", "it fits the path of no module"), ("0", "a depth is 1 or more")]
    {
        let said = piped(folder.path(), &["dot", PART, "--fold", fold]);
        assert!(said.code == 2 && said.err.contains(expected), "{fold}: {}{}", said.out, said.err);
    }
}

#[test]
fn modules_of_a_model_are_what_its_exporter_tells() {
    let folder = tempfile::tempdir().unwrap();
    let of = |layer: usize, mut node: NodeProto| {
        let entry = |key: &str, value: String| StringStringEntryProto {
            key: Some(format!("pkg.torch.onnx.{key}")),
            value: Some(value),
        };
        node.metadata_props = vec![
            entry("name_scopes", format!("['', 'layers.{layer}', 'neg']")),
            entry("class_hierarchy", "['a.Model', 'a.Layer', 'aten.neg.default']".to_owned()),
        ];
        node
    };
    let name = |at: usize| if at == 0 { "x".to_owned() } else { format!("v{at}") };
    let chain = (0..501).map(|at| of(at / 100, node("", "Neg", &[&name(at)], &[&name(at + 1)])));
    save(&model(chain.collect()), &folder.path().join("torch.onnx")).unwrap();
    let said = piped(folder.path(), &["dot", "torch.onnx"]);
    let expected = "rust-ort: 501 nodes; --fold DEPTH draws each module as one box; modules at depth 1, 2: 1, 6\n";
    assert_eq!((said.code, said.err.as_str()), (0, expected));
    let said = piped(folder.path(), &["dot", "torch.onnx", "--fold", "2"]);
    assert!(said.code == 0 && said.err.is_empty(), "{}", said.err);
    assert!(
        said.out.contains("label=\"layers.4\\nLayer: 100 nodes\"") && said.out.contains("label=\"layers.5\\nNeg\""),
        "{}",
        said.out
    );

    save(&model(vec![node("", "Neg", &["x"], &["y"])]), &folder.path().join("plain.onnx")).unwrap();
    let said = piped(folder.path(), &["dot", "plain.onnx", "--fold", "1"]);
    assert!(said.code == 2 && said.err.contains("plain.onnx: no node tells which module it is of"), "{}", said.err);
}
