//! `rust-ort report`, as a shell sees it.

use std::fs;
use std::path::{Path, PathBuf};

use rust_ort::base::ids::StepId;
use rust_ort::compare::{Policy, judge};
use rust_ort::dump::{NodeTable, to_json};
use rust_ort::onnx::proto::{GraphProto, ModelProto, ValueInfoProto};
use rust_ort::onnx::save;
use rust_ort::tensor::TensorBuf;
use serde_json::{Value, json};

use crate::any_model::node;
use crate::dumping::{self, json, piped};
use crate::small_dump;

/// Of `report --json`, what the verdict is.
fn kind(folder: &Path, path: &str) -> Value {
    json(folder, &["report", path])["verdict"]["kind"].clone()
}

/// The data in a page.
fn embedded(page: &Path) -> Value {
    let text = fs::read_to_string(page).unwrap();
    let start = text.split_once("id=\"data\">").unwrap().1;
    serde_json::from_str(start.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn a_page_holds_what_the_json_holds_and_says_what_it_comes_to() {
    let folder = tempfile::tempdir().unwrap();
    small_dump::dump(folder.path());
    let value = json(folder.path(), &["report", "run"]);
    assert_eq!(value["schema"], "rust_ort/cli/report/1");
    let verdict = &value["verdict"];
    assert_eq!(
        (&verdict["kind"], &verdict["outputs"]["match"], &verdict["outputs"]["mismatch"]),
        (&"mismatch".into(), &2.into(), &1.into())
    );
    let said = piped(folder.path(), &["report", "run", "-o", "page.html"]);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    assert!(said.out.starts_with("page.html: 2 match, 1 mismatch ("), "{}", said.out);
    assert_eq!(embedded(&folder.path().join("page.html")), value);
    let said = piped(folder.path(), &["report", "run", "-o", "-"]);
    assert!(said.code == 0 && said.out.starts_with("<!doctype html>"), "{}", said.err);
    assert_eq!(piped(folder.path(), &["report", "run"]).code, 0);
    assert!(folder.path().join("report.html").is_file(), "by default it is written here");
    // As it was, and nothing beside it.
    assert_eq!(piped(folder.path(), &["verify", "run"]).code, 0);
}

#[test]
fn outputs_have_verdicts_of_compare_and_what_it_takes_to_judge_them_again() {
    let folder = tempfile::tempdir().unwrap();
    small_dump::dump(folder.path());
    let value = json(folder.path(), &["report", "run"]);
    let compared = json(folder.path(), &["compare", "run"]);
    let steps = value["graphs"].as_array().unwrap().iter().flat_map(|graph| graph["parts"].as_array().unwrap());
    let steps: Vec<&Value> = steps.flat_map(|part| part["steps"].as_array().unwrap()).collect();
    assert_eq!(steps.len(), compared["data_sets"].as_array().unwrap().len());
    for (step, set) in steps.iter().zip(compared["data_sets"].as_array().unwrap()) {
        assert_eq!((&step["path"], &step["judged_from"]), (&set["path"], &"tensors".into()));
        let (output, verdict) = (&step["outputs"][0], &set["verdicts"][0]);
        assert_eq!((&output["name"], &output["kind"]), (&verdict["name"], &verdict["verdict"]["kind"]));
        assert_eq!(output["metrics"]["outside"], verdict["metrics"]["outside"]);
        assert_eq!(output["metrics"]["max_diff"], Value::Null, "it is not shown");
    }
    // The second call of the first graph: −1.5 for −1.
    let output = &steps[1]["outputs"][0];
    assert_eq!((&output["kind"], &output["is_sum"]), (&"mismatch".into(), &true.into()));
    let found = &output["distribution"];
    assert_eq!((&found["frontier"], &found["equal"], &found["measured"]), (&json!([[1., 0.5]]), &1.into(), &2.into()));
    assert_eq!((&found["worst"][0]["at"], &found["worst"][0]["candidate"]), (&json!([1]), &json!(-1.5)));
    assert_eq!(value["quantiles"].as_array().unwrap().len(), found["distance_quantiles"].as_array().unwrap().len());
}

/// A part of one node that is wrong, with a table of nodes.
fn with_nodes(folder: &Path, name: &str) -> PathBuf {
    let (run, graph) = dumping::one_graph(folder, "{}");
    let parts = json!({ "inputs": [{ "name": "x" }], "values": { name: { "fx": name, "op": "aten.neg.default", "module": name } } });
    let info = |name: &str| ValueInfoProto { name: Some(name.to_owned()), ..Default::default() };
    let model = ModelProto {
        graph: Some(GraphProto {
            name: Some(name.to_owned()),
            input: vec![info("x")],
            node: vec![node("", "Neg", &["x"], &[name])],
            output: vec![info(name)],
            ..Default::default()
        }),
        ir_version: Some(10),
        ..Default::default()
    };
    let path = folder.join("bytes.onnx");
    save(&model, &path).unwrap();
    run.part(&graph, 0, &fs::read(&path).unwrap(), &parts.to_string()).unwrap();
    fs::remove_file(path).unwrap();
    let [reference, actual] = [[1., 2.], [1., 2.5]].map(|values| TensorBuf::from_f32([2], &values).unwrap());
    let set = run.begin_step(&graph, 0, StepId(0), &[("x".into(), reference.shared())]).unwrap();
    run.references(&set, &[(name.into(), reference.shared())]);
    run.actuals(&set, &[(name.into(), actual.shared())]);
    let verdict = judge(name, &reference.view(), &actual.view(), None);
    run.comparison(&set, std::slice::from_ref(&verdict), Policy::default());
    run.finish(&set);
    assert!(run.flush().lost.is_empty());
    let part = folder.join("run").join(&graph).join("part_0");
    dumping::unlist(&part);
    let mut table = serde_json::to_value::<NodeTable>(dumping::no_nodes(&graph, 0)).unwrap();
    table["nodes"] = json!([{
        "index": 0, "name": name, "op": "aten.neg.default", "onnx_ops": ["Neg"], "onnx_index": 0, "module": name, "source": name,
        "role": "PlainAOTOutput", "seq_nr": -1, "dtype": "float32", "dims": [2], "reference_signature": "",
        "candidate_signature": "", "reference_ns": 0, "candidate_ns": 0, "local": verdict, "cumulative": verdict,
        "as_right": "",
    }]);
    fs::write(part.join("nodes_0.json"), to_json(&table)).unwrap();
    part
}

#[test]
fn without_blame_the_first_node_that_differs_is_the_suspect() {
    let folder = tempfile::tempdir().unwrap();
    with_nodes(folder.path(), "neg");
    let value = json(folder.path(), &["report", "run"]);
    let card = &value["culprit"];
    assert_eq!(
        (&card["kind"], &card["node"], &card["op"]),
        (&"suspect".into(), &"neg".into(), &"aten.neg.default".into())
    );
    assert_eq!((&card["graph"], &card["part"], &card["step"]), (&"0_0-forward".into(), &0.into(), &0.into()));
    let command = card["command"].as_str().unwrap();
    assert_eq!(command, "rust-ort replay run/0_0-forward/part_0 --step 0 --nodes neg --repro repro");
    assert!(card["next"].as_str().unwrap().contains("dump again with"), "{card}");
    let part = &value["graphs"][0]["parts"][0];
    let row = &part["steps"][0]["table"]["nodes"][0];
    assert_eq!((&row["mark"], &row["local"]["kind"]), (&"mismatch".into(), &"mismatch".into()));
    let stages: Vec<&str> =
        part["stages"].as_array().unwrap().iter().map(|stage| stage["name"].as_str().unwrap()).collect();
    assert_eq!(stages, ["fx", "exported"]);
    let boxes = |stage: usize| -> Value {
        let all = part["stages"][stage]["boxes"].as_array().unwrap();
        all.iter().map(|one| json!([one["op"], one["of"], one["mark"]])).collect()
    };
    assert_eq!(boxes(0), json!([["input", ["x"], null], ["aten.neg.default", ["neg"], "mismatch"]]));
    assert_eq!(boxes(1), json!([["input", ["x"], null], ["Neg", ["neg"], "mismatch"]]));
}

#[test]
fn who_was_blamed_is_told_with_what_may_be_believed_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let part = with_nodes(folder.path(), "neg");
    let verdict = json!({ "name": "neg", "verdict": { "kind": "match" }, "metrics": null });
    let summary = json!({ "match": 0, "mismatch": 0, "not_compared": 0, "failed": 0 });
    let answer = json!({
        "schema": "rust_ort/blame/1", "graph": "0_0-forward", "part": 0, "step": 0,
        "complaints": [{ "role": "", "as_ran": verdict, "unoptimized": null }], "right": summary,
        "culprit": { "kind": "node", "name": "neg", "layer": "kernel" }, "beside": [],
        "nodes": [{
            "name": "neg", "values": ["neg"], "op": "aten.neg.default", "onnx_ops": ["Neg"], "module": "m", "source": "model.py:3",
            "share": 0.75, "output": "neg", "local": verdict, "own": "wrong", "layer": "kernel",
        }],
        "smallest": ["neg"], "n_runs": 3, "seconds": 0.5, "complete": true, "notes": [],
    });
    let kept = json!({ "schema": "rust_ort/blame-kept/4", "key": "model content", "nodes": [], "answer": answer });
    dumping::put_json(&part.join("blame_0.json"), &kept);
    let card = json(folder.path(), &["report", "run"])["culprit"].clone();
    assert_eq!((&card["kind"], &card["node"], &card["share"]), (&"blamed".into(), &"neg".into(), &json!(0.75)));
    assert!(card["layer"].as_str().unwrap().starts_with("kernel"), "{card}");
    assert_eq!((&card["is_own"], &card["is_current"]), (&false.into(), &false.into()));
    assert_eq!(card["cumulative"]["kind"], "mismatch");
    let torn = fs::read(part.join("blame_0.json")).unwrap();
    fs::write(part.join("blame_0.json"), &torn[..torn.len() / 2]).unwrap();
    let value = json(folder.path(), &["report", "run"]);
    assert_eq!(value["culprit"]["kind"], "suspect");
    assert!(value["missing"].to_string().contains("blame_0.json"), "{}", value["missing"]);
}

#[test]
fn names_in_a_page_are_data() {
    let folder = tempfile::tempdir().unwrap();
    let hostile = "<!--<script>alert(1)</script>&\"'";
    with_nodes(folder.path(), hostile);
    let said = piped(folder.path(), &["report", "run"]);
    assert_eq!(said.code, 0, "{}", said.err);
    let page = fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert_eq!(page.matches("<script").count(), 2, "the data's and the program's");
    assert!(!page.contains("<!--") && !page.contains("alert(1)</"));
    let value = embedded(&folder.path().join("report.html"));
    assert_eq!(value["culprit"]["node"], hostile);
    // A shell takes the name as one word.
    let command = value["culprit"]["command"].as_str().unwrap();
    assert!(command.contains(r#"'<!--<script>alert(1)</script>&"'\'''"#), "{command}");
    // What moves a terminal's cursor or turns its letters is in no command.
    let (folder, turning) = (tempfile::tempdir().unwrap(), "n\u{202e}\u{1b}[2J");
    with_nodes(folder.path(), turning);
    assert_eq!(piped(folder.path(), &["report", "run"]).code, 0);
    let page = folder.path().join("report.html");
    assert!(!fs::read_to_string(&page).unwrap().contains(['\u{202e}', '\u{1b}']));
    let card = embedded(&page)["culprit"].clone();
    assert_eq!(card["node"], turning);
    assert_eq!(card["command"], "rust-ort blame run/0_0-forward/part_0 --step 0 --repro repro");
}

/// Files of a dump of which each is told, whichever way it is gone.
#[test]
fn a_damaged_or_partial_dump_is_a_report_that_says_so() {
    let files = {
        let folder = tempfile::tempdir().unwrap();
        small_dump::files(&small_dump::dump(folder.path()))
    };
    assert!(files.len() > 20);
    let is_told = |folder: &Path, name: &Path| {
        let said = piped(folder, &["report", "run"]);
        assert_eq!(said.code, 0, "{}: {}", name.display(), said.err);
        let value = json(folder, &["report", "run"]);
        let told = [&value["missing"], &value["not_compared"]].map(Value::to_string).join("");
        let file = name.file_name().unwrap().to_str().unwrap();
        assert!(told.contains(file) || value["missing"]["not_sealed"] != 0, "{}: {told}", name.display());
    };
    for name in &files {
        let folder = tempfile::tempdir().unwrap();
        let run = small_dump::dump(folder.path());
        let bytes = fs::read(run.join(name)).unwrap();
        small_dump::replace(&run.join(name), &bytes[..bytes.len() / 2]);
        is_told(folder.path(), name);
        if name.file_name().unwrap() != "run.json" {
            fs::remove_file(run.join(name)).unwrap();
            let said = piped(folder.path(), &["report", "run"]);
            assert_eq!(said.code, 0, "{}: {}", name.display(), said.err);
        }
    }
}

#[test]
fn each_place_of_a_dump_has_a_report() {
    let folder = tempfile::tempdir().unwrap();
    let run = small_dump::dump(folder.path());
    assert_eq!(kind(folder.path(), "."), "mismatch", "a folder with one run");
    assert_eq!(kind(folder.path(), "run/0_0-forward"), "mismatch");
    assert_eq!(kind(folder.path(), "run/0_0-backward"), "match");
    assert_eq!(kind(folder.path(), "run/0_0-forward/part_0"), "mismatch");
    assert_eq!(kind(folder.path(), "run/0_0-forward/part_0/test_data_set_0"), "match");
    assert_eq!(kind(folder.path(), "run/0_0-forward/part_0/node_y_0"), "mismatch");
    let step = json(folder.path(), &["report", "run/0_0-forward/part_0/test_data_set_1"]);
    assert_eq!((&step["graphs"][0]["name"], &step["run"]["pid"]), (&"0_0-forward".into(), &7.into()));
    for (path, expected) in [("run/run.json", "a file; name a run"), ("nowhere", "nowhere"), ("state", "state")] {
        let said = piped(folder.path(), &["report", path]);
        assert!(said.code == 2 && said.err.contains(expected), "{path}: {}", said.err);
    }
    let other = folder.path().join("other");
    fs::create_dir(&other).unwrap();
    small_dump::dump(&other);
    fs::rename(other.join("run"), folder.path().join("second")).unwrap();
    let said = piped(folder.path(), &["report", "."]);
    assert!(said.code == 2 && said.err.contains("2 runs; name one: run, second"), "{}", said.err);
    // Neither a model nor a folder gives way to a page.
    for file in ["run/0_0-forward/part_0/model.onnx", "run"] {
        let said = piped(folder.path(), &["report", "run", "-o", file]);
        assert!(said.code == 2 && run.join("run.json").is_file(), "{file}: {}", said.err);
    }
}

/// What was not compared is told by its reason, and is no match.
#[test]
fn what_eager_gave_nothing_for_was_not_compared() {
    let folder = tempfile::tempdir().unwrap();
    let eager = json!([{ "node": "sort", "op": "aten.sort", "reason": "no rule", "source": "", "module": "" }]);
    let run = dumping::open(folder.path(), "{}");
    let graph = dumping::graph(&run, "0_0-forward", &json!({ "parts": [{ "part": 0 }], "eager": eager }).to_string());
    run.part(&graph, 0, b"", "").unwrap();
    let x = TensorBuf::from_f32([1], &[1.]).unwrap();
    let set = run.begin_step(&graph, 0, StepId(0), &[("x".into(), x.shared())]).unwrap();
    run.actuals(&set, &[("y".into(), x.shared())]);
    run.finish(&set);
    assert!(run.flush().lost.is_empty());
    let value = json(folder.path(), &["report", "run"]);
    assert_eq!(value["verdict"]["kind"], "nothing_compared");
    let told: Vec<_> =
        value["not_compared"].as_array().unwrap().iter().map(|one| one["what"].as_str().unwrap()).collect();
    assert_eq!(told, ["call", "eager"], "{}", value["not_compared"]);
    assert_eq!(value["culprit"]["kind"], "unknown");
    assert_eq!(value["culprit"]["text"], "nothing was compared");
}

/// A report says nothing of nodes that it has not.
#[test]
fn a_lost_table_of_nodes_clears_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let part = with_nodes(folder.path(), "neg");
    assert!(json(folder.path(), &["report", "run"])["not_compared"].as_array().unwrap().is_empty());
    dumping::put_json(
        &part.parent().unwrap().join("parts.json"),
        &json!({ "schema": "rust_ort/parts/2", "parts": [{ "part": 0 }], "options": { "compare": "nodes" } }),
    );
    fs::remove_file(part.join("nodes_0.json")).unwrap();
    let value = json(folder.path(), &["report", "run"]);
    assert_eq!(value["culprit"]["kind"], "drifted");
    assert!(value["culprit"]["text"].as_str().unwrap().contains("does not tell"), "{}", value["culprit"]);
    let told = &value["not_compared"];
    assert!(told[0]["reason"].as_str().unwrap().contains("table of nodes"), "{told}");
}

/// As when it ran, and told so: a damaged tensor is not judged.
#[test]
fn verdicts_of_a_damaged_call_are_those_of_its_run() {
    let folder = tempfile::tempdir().unwrap();
    let part = with_nodes(folder.path(), "neg");
    let tensor = part.join("test_data_set_0/actual_0.pb");
    let mut bytes = fs::read(&tensor).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    small_dump::replace(&tensor, &bytes);
    let value = json(folder.path(), &["report", "run"]);
    let step = &value["graphs"][0]["parts"][0]["steps"][0];
    assert_eq!((&step["judged_from"], &step["outputs"][0]["kind"]), (&"comparison".into(), &"mismatch".into()));
    assert_eq!(step["outputs"][0]["distribution"], Value::Null);
    assert!(value["missing"]["damaged"].to_string().contains("actual_0.pb"), "{}", value["missing"]);
    let told = &value["not_compared"];
    assert!(told[0]["reason"].as_str().unwrap().contains("tensors cannot be read"), "{told}");
}

/// A call that was cut short is no part of a match.
#[test]
fn a_run_with_a_call_that_is_not_whole_is_no_match() {
    let folder = tempfile::tempdir().unwrap();
    let run = small_dump::dump(folder.path());
    assert_eq!(kind(folder.path(), "run/0_0-backward"), "match");
    fs::remove_file(run.join("0_0-backward/part_0/test_data_set_0/input_0.pb")).unwrap();
    assert_eq!(kind(folder.path(), "run/0_0-backward"), "not_all_compared");
}
