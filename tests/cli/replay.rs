//! `rust-ort replay` on a dump, as a shell sees it.

use crate::common;
use std::path::Path;

use crate::dumping::{self, Said, piped};
use crate::stand_in::{StandIn, UUIDS};
use prost::Message as _;
use rust_ort::base::ids::StepId;
use rust_ort::onnx::load_tensor;
use rust_ort::onnx::proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto};
use rust_ort::onnx::{load, save, value_info};
use rust_ort::tensor::{DType, TensorBuf, TensorDesc};
use serde_json::{Value, json};

const PART: &str = "run/0_0-forward/part_0";

fn node(op: &str, inputs: &[&str], output: &str) -> NodeProto {
    let input = inputs.iter().map(|&name| name.to_owned()).collect();
    NodeProto { op_type: Some(op.into()), input, output: vec![output.into()], ..Default::default() }
}

/// `add = -x * w + x`; FX knows the values neg (by the name "negated") and add, not the product.
fn model() -> ModelProto {
    let info = |name: &str| value_info(name, &TensorDesc::new(DType::F32, [2]).unwrap());
    let graph = GraphProto {
        name: Some("g".into()),
        input: vec![info("x"), info("w")],
        output: vec![info("add")],
        node: vec![
            node("Neg", &["x"], "neg"),
            node("Mul", &["neg", "w"], "hidden"),
            node("Add", &["hidden", "x"], "add"),
        ],
        ..Default::default()
    };
    let opset = OperatorSetIdProto { domain: Some(String::new()), version: Some(18) };
    ModelProto { ir_version: Some(9), opset_import: vec![opset], graph: Some(graph), ..Default::default() }
}

/// Steps 0 (eager agrees), 1 (eager differs), 2 (no eager), 3 (it ended in the run), 4 (an input has another shape).
fn dump(folder: &Path) {
    let run_json = json!({
        "onnxruntime_library": common::library(), "versions": { "onnxruntime": "1.0.0" },
        "options": { "ort_optimization": "basic", "threads": 1 },
    });
    dumping::executors_have_loaded(folder, &common::library());
    let (run, graph) = dumping::one_graph(folder, &run_json.to_string());
    let provenance =
        json!({ "values": { "neg": { "fx": "negated", "op": "aten.neg.default" }, "add": { "fx": "add" } } });
    run.part(&graph, 0, &model().encode_to_vec(), &provenance.to_string()).unwrap();
    let tensor = |values: &[f32]| TensorBuf::from_f32([values.len() as i64], values).unwrap();
    let (x, w) = (tensor(&[1., 2.]), tensor(&[3., 4.]));
    let actual = tensor(&[-2., -6.]);
    for step in 0..5_u64 {
        let short = tensor(&[1.]);
        let x = if step == 4 { &short } else { &x };
        let set =
            run.begin_step(&graph, 0, StepId(step), &[("x".into(), x.shared()), ("w".into(), w.shared())]).unwrap();
        if step == 3 {
            continue;
        }
        if step != 2 {
            let eager = tensor(&[-2., if step == 1 { -5. } else { -6. }]);
            run.references(&set, &[("add".into(), eager.shared())]);
        }
        run.actuals(&set, &[("add".into(), actual.shared())]);
        run.finish(&set);
    }
    assert!(run.flush().lost.is_empty());
}

fn replay(folder: &Path, args: &[&str]) -> Said {
    piped(folder, &[&["replay"], args].concat())
}

fn json(folder: &Path, args: &[&str]) -> Value {
    dumping::json(folder, &[&["replay"], args].concat())
}

fn floats(path: &Path) -> Vec<f32> {
    let tensor = load_tensor(path).unwrap();
    tensor.view().bytes().as_chunks().0.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect()
}

#[test]
fn each_data_set_is_judged_by_what_was_dumped() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    for (step, code, text) in [
        ("0", 0, "same bits"),
        ("1", 1, "MISMATCH"),
        ("2", 0, "same bits"),
        ("3", 3, "nothing to judge against"),
        ("4", 2, "\"x\": float32[2]: got float32[1]"),
    ] {
        let said = replay(folder.path(), &[PART, "--step", step]);
        assert!(said.code == code && said.out.contains(text), "{step}: {} {}{}", said.code, said.out, said.err);
    }
    assert_eq!(replay(folder.path(), &["run"]).code, 2);
    let said = replay(folder.path(), &[PART, "--step", "0"]);
    assert!(
        said.out.contains("optimization basic") && said.out.contains("dumped with onnxruntime 1.0.0"),
        "{}",
        said.out
    );
    let value = json(folder.path(), &["run", "--step", "1", "--repeat", "3", "--optimization", "all"]);
    let set = &value["data_sets"][0];
    assert_eq!((set["run_ms"].as_array().unwrap().len(), &set["optimization"]), (3, &json!("all")));
    assert_eq!(
        (&set["actuals"][0]["same_bits"], &set["verdicts"][0]["metrics"]["max_abs"]),
        (&json!(true), &json!(1.0))
    );
}

#[test]
fn without_a_word_what_does_not_match_is_shown_and_the_rest_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let brief = replay(folder.path(), &["run"]).out;
    for text in [
        "part_0/test_data_set_0\n  model.onnx, optimization basic",
        "0_0-forward/0 #4  the run  FAILED",
        "0_0-forward/0 #1  add      MISMATCH",
        "and 1 more output (1 match): --all has all\n",
        "against what it gave then:\n3 outputs (3 same bits): --all has all\n",
        "next: dump again with compare=\"nodes\" and dump_values=True, for rust-ort blame\n",
    ] {
        assert!(brief.contains(text), "{text}\n{brief}");
    }
    let all = replay(folder.path(), &["run", "--all"]).out;
    assert!(all.matches("against eager:").count() == 3 && all.contains("same bits"), "{all}");
}

#[test]
fn the_model_of_its_precision_goes_first() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let mut other = model();
    other.graph.as_mut().unwrap().node[2].op_type = Some("Sub".into());
    save(&other, &folder.path().join(PART).join("model.precision.onnx")).unwrap();
    let said = replay(folder.path(), &[PART, "--step", "0"]);
    assert!(said.code == 1 && said.out.contains("model.precision.onnx, optimization"), "{}", said.out);
    replay(folder.path(), &[PART, "--step", "0", "--repro", "out"]);
    assert_eq!(load(&folder.path().join("out/model.onnx")).unwrap(), other);
}

#[test]
fn a_node_whose_values_eager_gave_is_reproduced_against_eager() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    // No value on the way is named: the node reads the inputs, and its value is the output.
    dumping::put_json(&folder.path().join(PART).join("provenance.json"), &json!({ "values": { "add": {} } }));
    replay(folder.path(), &[PART, "--step", "1", "--repro", "out", "--nodes", "add"]);
    assert_eq!(floats(&folder.path().join("out/test_data_set_0/output_0.pb")), [-2., -5.]);
    let readme = std::fs::read_to_string(folder.path().join("out/README.md")).unwrap();
    assert!(readme.contains("eager's, on eager's inputs of the node"), "{readme}");
}

#[test]
fn what_is_missing_is_named() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    for (args, text) in [
        (&["run", "--step", "9"][..], "no data set of step 9; its steps are 0, 1, 2, 3, 4"),
        (&["run/0_0-forward/part_0/test_data_set_2", "--step", "7"], "no data set of step 7; its only step is 2"),
        (&["nowhere"], "nowhere: cannot read"),
        (&[PART, "--step", "0", "--nodes", "negatet"], "no such value; did you mean \"negated\"?"),
        (&["run", "--onnxruntime", "/nowhere.so"], "/nowhere.so"),
        (&["run", "--provider", "NoneExecutionProvider", "--step", "0"], "NoneExecutionProvider"),
        (&["run", "--repro", "out"], "takes one data set, there are 5"),
        (&[PART, "--step", "0", "--repro", "out", "--nodes", "all"], "takes one node"),
        (&["run", "--optimization", "none"], "expected one of all, extended, basic, kernels, disable"),
    ] {
        let said = replay(folder.path(), args);
        assert!(said.code == 2 && (said.err + &said.out).contains(text), "{args:?}");
    }
    let run = folder.path().join("run/run.json");
    let text = std::fs::read_to_string(&run).unwrap().replace("libonnxruntime", "gone");
    dumping::put_json(&run, &serde_json::from_str(&text).unwrap());
    let said = replay(folder.path(), &["run"]);
    assert!(said.code == 2 && said.err.contains("name one with --onnxruntime"), "{}", said.err);
    let library = common::library();
    assert_eq!(replay(folder.path(), &[PART, "--step", "0", "--onnxruntime", library.to_str().unwrap()]).code, 0);
}

#[test]
fn nodes_are_looked_at_by_the_names_of_values_and_of_fx() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let value = json(folder.path(), &[PART, "--step", "0", "--nodes", "all"]);
    let nodes = value["data_sets"][0]["nodes"].as_array().unwrap().clone();
    assert_eq!(nodes.iter().map(|node| node["name"].as_str().unwrap()).collect::<Vec<_>>(), ["neg", "add"]);
    let neg = &nodes[0];
    assert_eq!((&neg["fx"], &neg["onnx_op"], &neg["dtype"]), (&json!("negated"), &json!("Neg"), &json!("float32")));
    assert_eq!((&neg["statistics"]["min"], &neg["statistics"]["max"]), (&json!(-2.0), &json!(-1.0)));
    assert_eq!((&neg["statistics"]["mean"], &neg["statistics"]["nan"]), (&json!(-1.5), &json!(0)));
    assert_eq!(nodes[1]["optimized"]["verdict"]["kind"], "match");
    let value = json(folder.path(), &[PART, "--step", "0", "--nodes", "negated,hidden"]);
    let nodes = value["data_sets"][0]["nodes"].as_array().unwrap();
    assert_eq!(nodes.iter().map(|node| node["name"].as_str().unwrap()).collect::<Vec<_>>(), ["neg", "hidden"]);
    let said = replay(folder.path(), &[PART, "--step", "0", "--nodes", "all"]);
    assert!(said.out.contains("nodes, and what optimizing changes in them"), "{}", said.out);
    assert!(said.out.lines().all(|line| line.chars().count() <= 120), "{}", said.out);
}

#[test]
fn a_reproduction_holds_the_part_and_what_was_found() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let repro = folder.path().join("out");
    let said = replay(folder.path(), &[PART, "--step", "1", "--repro", "out"]);
    assert!(said.code == 1 && said.err.contains("wrote out"), "{}", said.err);
    assert_eq!(load(&repro.join("model.onnx")).unwrap(), model());
    assert_eq!(floats(&repro.join("test_data_set_0/input_1.pb")), [3., 4.]);
    assert_eq!(floats(&repro.join("test_data_set_0/output_0.pb")), [-2., -5.]);
    let readme = std::fs::read_to_string(repro.join("README.md")).unwrap();
    assert!(readme.contains("Expected outputs: eager's") && readme.contains("**outside tolerance**"), "{readme}");
    let script = std::fs::read_to_string(repro.join("run.py")).unwrap();
    assert!(script.contains("OPTIMIZATION = \"basic\"") && !script.contains('@'), "{script}");
    // Our own folder is written over; another one is not.
    assert_eq!(replay(folder.path(), &[PART, "--step", "2", "--repro", "out"]).code, 0);
    let readme = std::fs::read_to_string(repro.join("README.md")).unwrap();
    assert!(readme.contains("what ONNX Runtime gave when it was dumped"), "{readme}");
    assert_eq!(floats(&repro.join("test_data_set_0/output_0.pb")), [-2., -6.]);
    // It tells of its own files.
    assert_eq!(piped(folder.path(), &["verify", "out"]).code, 0);
    let input = repro.join("test_data_set_0/input_0.pb");
    let mut bytes = std::fs::read(&input).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&input, bytes).unwrap();
    let library = common::library();
    let said = replay(folder.path(), &["out", "--onnxruntime", library.to_str().unwrap()]);
    assert!(said.code == 4 && said.err.contains("input_0.pb: damaged: "), "{}{}", said.out, said.err);
    let said = replay(folder.path(), &[PART, "--step", "1", "--repro", "run"]);
    assert!(said.code == 2 && said.err.contains("no reproduction of ours"), "{}", said.err);
}

#[test]
fn what_ran_on_a_device_is_not_run_on_the_cpu_unless_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let ran_with = json!({ "values": {}, "providers": [["CUDAExecutionProvider", { "device_id": "0" }]] });
    dumping::put_json(&folder.path().join(PART).join("provenance.json"), &ran_with);
    for command in ["replay", "blame", "keep"] {
        let said = piped(folder.path(), &[command, PART, "--step", "0"]);
        assert!(
            said.code == 2
                && said.err.contains("it ran with CUDAExecutionProvider, which ")
                && said.err.contains("--provider CPUExecutionProvider"),
            "{command}: {} {}{}",
            said.code,
            said.out,
            said.err
        );
    }
    let on_cpu = ["--provider", "CPUExecutionProvider", "--repro", "cpu"];
    let said = replay(folder.path(), &[&[PART, "--step", "0"], on_cpu.as_slice()].concat());
    assert!(said.code == 0 && said.out.contains("same bits"), "{}{}", said.out, said.err);
    let script = std::fs::read_to_string(folder.path().join("cpu/run.py")).unwrap();
    assert!(script.contains("PROVIDERS = [[\"CPUExecutionProvider\",{}]]"), "{script}");
    // As if the library had it.
    let with_cuda = |args: &[&str]| -> Said {
        let mut command = dumping::program(folder.path(), args);
        command.arg("--no-confine").env("RUST_ORT_TEST_CUDA_ON_HOST", "1").output().unwrap().into()
    };
    let said = with_cuda(&["replay", PART, "--step", "0", "--repro", "cuda"]);
    assert!(said.code == 0 && said.out.contains("same bits"), "{}{}", said.out, said.err);
    let script = std::fs::read_to_string(folder.path().join("cuda/run.py")).unwrap();
    assert!(
        script.contains("PROVIDERS = [[\"CUDAExecutionProvider\",{\"device_id\":\"0\",\"use_tf32\":\"0\"}]]"),
        "{script}"
    );
    let said = piped(folder.path(), &["ls", "cuda"]);
    assert!(said.code == 0 && !said.out.contains("incomplete"), "{}{}", said.out, said.err);
    let library = common::library();
    let said = with_cuda(&["replay", "cuda", "--onnxruntime", library.to_str().unwrap()]);
    assert!(said.code == 0 && said.out.contains("match"), "{}{}", said.out, said.err);
    let said = replay(folder.path(), &["cuda", "--onnxruntime", library.to_str().unwrap()]);
    assert!(said.code == 2 && said.err.contains("it ran with CUDAExecutionProvider"), "{}{}", said.out, said.err);
    let said = with_cuda(&["keep", PART]);
    assert!(said.code == 2 && said.err.contains("on the CPU provider only"), "{}{}", said.out, said.err);
    let readme = std::fs::read_to_string(folder.path().join("cuda/README.md")).unwrap();
    assert!(
        readme.contains("with CUDAExecutionProvider and") && readme.contains("numpy onnxruntime-gpu=="),
        "{readme}"
    );
}

#[test]
fn the_gpu_that_it_ran_on_runs_it_again_whatever_its_number_is_here() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let gpus = StandIn::new();
    let replayed = |visible: &str, from: &str, to: &str| -> (Said, String) {
        let mut command =
            dumping::program(folder.path(), &["replay", from, "--step", "0", "--no-confine", "--repro", to]);
        gpus.equip(&mut command).env("RUST_ORT_TEST_CUDA_ON_HOST", "1").env("CUDA_VISIBLE_DEVICES", visible);
        command.env("RUST_ORT_ONNXRUNTIME", common::library());
        let said: Said = command.output().unwrap().into();
        assert_eq!(said.code, 0, "{}{}", said.out, said.err);
        let script = std::fs::read_to_string(folder.path().join(to).join("run.py")).unwrap();
        (said, script.lines().find(|line| line.starts_with("PROVIDERS")).unwrap().to_owned())
    };
    let providers = [json!(["CUDAExecutionProvider", { "device_id": "1" }])];
    let ran_on = |device: &str| {
        let told = json!({ "values": {}, "providers": providers, "device": device });
        dumping::put_json(&folder.path().join(PART).join("provenance.json"), &told);
    };
    ran_on(UUIDS[1]);
    for (visible, number) in [("0,1", 1), ("1,0", 0), ("1", 0)] {
        let (said, line) = replayed(visible, PART, &format!("at_{number}_of_{}", visible.len()));
        assert!(line.contains(&format!("\"device_id\":\"{number}\"")) && !said.err.contains("it ran on"), "{line}");
    }
    // A reproduction tells it on.
    let (_, line) = replayed("1,0", "at_1_of_3", "again");
    assert!(line.contains("\"device_id\":\"0\""), "{line}");
    let (said, line) = replayed("0", PART, "elsewhere");
    let told = format!("it ran on {}, which is not here: it runs on {}", UUIDS[1], UUIDS[0]);
    assert!(said.err.contains(&told) && line.contains("\"device_id\":\"0\""), "{line} {}", said.err);
    // Nobody knew its name: its number is all there is.
    ran_on("");
    let (said, line) = replayed("1,0", PART, "unnamed");
    assert!(line.contains("\"device_id\":\"1\"") && !said.err.contains("it ran on"), "{line} {}", said.err);
}

#[test]
fn providers_that_are_told_in_another_form_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    for providers in [json!(["CUDAExecutionProvider"]), json!({ "CUDAExecutionProvider": {} }), json!(null)] {
        let ran_with = json!({ "values": {}, "providers": providers });
        dumping::put_json(&folder.path().join(PART).join("provenance.json"), &ran_with);
        let said = replay(folder.path(), &[PART, "--step", "0"]);
        assert!(said.code == 2 && said.err.contains("provenance.json: providers: expected a list"), "{}", said.err);
    }
}

#[test]
fn a_part_that_ended_in_the_run_has_a_reproduction_too() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    assert_eq!(replay(folder.path(), &[PART, "--step", "3", "--repro", "out"]).code, 3);
    let set = folder.path().join("out/test_data_set_0");
    assert!(set.join("input_0.pb").exists() && !set.join("output_0.pb").exists());
}

#[test]
fn a_reproduction_of_one_node_is_cut_at_what_it_reads() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let repro = folder.path().join("out");
    assert_eq!(replay(folder.path(), &[PART, "--step", "0", "--repro", "out", "--nodes", "add"]).code, 0);
    let graph = load(&repro.join("model.onnx")).unwrap().graph.unwrap();
    assert_eq!(graph.node.iter().map(|node| node.op_type()).collect::<Vec<_>>(), ["Mul", "Add"]);
    assert_eq!(graph.input.iter().map(|input| input.name()).collect::<Vec<_>>(), ["neg", "w", "x"]);
    let set = repro.join("test_data_set_0");
    assert_eq!([0, 1, 2].map(|i| floats(&set.join(format!("input_{i}.pb")))), [[-1., -2.], [3., 4.], [1., 2.]]);
    assert_eq!(floats(&set.join("output_0.pb")), [-2., -6.]);
    let readme = std::fs::read_to_string(repro.join("README.md")).unwrap();
    assert!(readme.contains("with no optimization"), "{readme}");
}

/// Beside the data sets of [`dump`]: eager made something else of the last node than ONNX Runtime did, in step 0.
fn accused(folder: &Path) {
    dump(folder);
    let run = dumping::open(folder, &std::fs::read_to_string(folder.join("run/run.json")).unwrap());
    let tensor = |values: &[f32]| TensorBuf::from_f32([2], values).unwrap();
    let [neg, w, x] = [[-1., -2.], [3., 4.], [1., 2.]].map(|values| tensor(&values));
    let mut alone = model();
    let graph = alone.graph.as_mut().unwrap();
    graph.node.remove(0);
    graph.input.insert(0, value_info("neg", &TensorDesc::new(DType::F32, [2]).unwrap()));
    let inputs = [("neg", &neg), ("w", &w), ("x", &x)];
    let node =
        dumping::reproduction("add", alone.encode_to_vec(), &inputs, [&tensor(&[-2., -5.]), &tensor(&[-2., -6.])]);
    run.nodes(dumping::no_nodes("0_0-forward", 0), vec![node]).unwrap();
    assert!(run.flush().lost.is_empty());
}

#[test]
fn an_accused_node_is_judged_by_eagers_values() {
    let folder = tempfile::tempdir().unwrap();
    accused(folder.path());
    let said = replay(folder.path(), &[PART, "--step", "0", "--repro", "out", "--nodes", "add"]);
    assert_eq!(said.code, 1, "{}{}", said.out, said.err);
    assert!(said.out.contains("against eager's, from node_add_0") && said.out.contains("MISMATCH"), "{}", said.out);
    let out = folder.path().join("out");
    assert_eq!(floats(&out.join("test_data_set_0/output_0.pb")), [-2., -5.]);
    let readme = std::fs::read_to_string(out.join("README.md")).unwrap();
    assert!(readme.contains("Expected outputs: eager's, on eager's inputs, dumped for the node."), "{readme}");
    assert!(readme.contains("**outside tolerance**"), "{readme}");
    // It goes elsewhere: folders of the dump are no use there.
    assert!(
        readme.contains("# Reproduction of node add (") && readme.contains(") of run/0_0-forward/part_0, step 0\n"),
        "{readme}"
    );
    assert!(!readme.contains(&*folder.path().to_string_lossy()) && !readme.contains("node_add_0"), "{readme}");
    let value = json(folder.path(), &[PART, "--step", "0", "--repro", "out", "--nodes", "add"]);
    let node = &value["data_sets"][0]["node"];
    assert_eq!((&node["verdict"]["verdict"]["kind"], &node["name"]), (&json!("mismatch"), &json!("add")));
    assert!(node["reference"].as_str().unwrap().contains("node_add_0"), "{node}");
}

/// Eager's value of the last node was dumped; that of the named one which it reads was not.
#[test]
fn a_node_that_reads_a_named_value_is_judged_by_its_own_value() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let out = folder.path().join("out");
    for (step, code, expected) in [("0", 0, [-2., -6.]), ("1", 1, [-2., -5.])] {
        let said = replay(folder.path(), &[PART, "--step", step, "--repro", "out", "--nodes", "add"]);
        assert_eq!(said.code, code, "{step}: {}{}", said.out, said.err);
        assert!(!said.out.contains("not compared"), "{}", said.out);
        let set = out.join("test_data_set_0");
        assert_eq!(floats(&set.join("input_0.pb")), [-1., -2.], "computed by the replay");
        assert_eq!(floats(&set.join("output_0.pb")), expected, "eager's");
        let readme = std::fs::read_to_string(out.join("README.md")).unwrap();
        assert!(readme.contains("eager's, on inputs of which ONNX Runtime computed neg in"), "{readme}");
    }
}

/// A value that a second FX node shares is dumped by that one's name, an Identity of it.
#[test]
fn a_value_that_was_dumped_by_another_name_is_eagers_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let mut renamed = model();
    let graph = renamed.graph.as_mut().unwrap();
    graph.node[2].output = vec!["sum".into()];
    graph.node.push(node("Identity", &["sum"], "add"));
    let part = folder.path().join(PART);
    dumping::put_json(&part.join("provenance.json"), &json!({ "values": { "sum": {}, "add": {} } }));
    save(&renamed, &part.join("model.onnx")).unwrap();
    let said = replay(folder.path(), &[PART, "--step", "1", "--repro", "out", "--nodes", "sum"]);
    assert!(said.code == 1 && said.out.contains("MISMATCH"), "{}{}", said.out, said.err);
    let readme = std::fs::read_to_string(folder.path().join("out/README.md")).unwrap();
    assert!(readme.contains("eager's, on eager's inputs of the node"), "{readme}");
}

#[test]
fn a_node_without_eagers_values_is_never_a_match() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let said = replay(folder.path(), &[PART, "--step", "0", "--repro", "out", "--nodes", "negated"]);
    assert!(said.code == 3 && said.out.contains("not compared"), "{}{}", said.out, said.err);
    let out = folder.path().join("out");
    let readme = std::fs::read_to_string(out.join("README.md")).unwrap();
    assert!(readme.contains("eager's were not dumped") && readme.contains("compare=\"nodes\""), "{readme}");
    let script = std::fs::read_to_string(out.join("run.py")).unwrap();
    assert!(script.contains("BY_EAGER = False"), "{script}");
}

#[test]
fn the_folder_of_a_node_is_run_compared_and_shown() {
    let folder = tempfile::tempdir().unwrap();
    accused(folder.path());
    let node = format!("{PART}/node_add_0");
    for place in [node.clone(), format!("{node}/test_data_set_0")] {
        for command in ["replay", "compare", "show", "ls"] {
            let said = piped(folder.path(), &[command, &place]);
            let code = i32::from(command == "replay" || command == "compare");
            assert!(said.code == code, "{command} {place}: {} {}{}", said.code, said.out, said.err);
            assert!(!said.out.contains("incomplete") && !said.out.contains("not compared"), "{command}: {}", said.out);
            assert!(command == "ls" || said.out.contains("add"), "{command}: {}", said.out);
        }
    }
    // The model goes last: without it the rest is a leftover.
    std::fs::remove_file(folder.path().join(&node).join("model.onnx")).unwrap();
    let said = piped(folder.path(), &["ls", &format!("{node}/test_data_set_0")]);
    assert!(said.out.contains("incomplete"), "{}", said.out);
}

#[test]
fn the_options_of_the_graph_win_over_those_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let path = folder.path().join("run/0_0-forward/parts.json");
    let mut parts: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    parts["options"] = json!({ "ort_optimization": "disable", "tolerance": { "atol": 9.0, "rtol": 0.0, "scale": 0.0,
                               "equal_nan": false } });
    dumping::put_json(&path, &parts);
    let value = json(folder.path(), &[PART, "--step", "1"]);
    assert_eq!(value["data_sets"][0]["optimization"], "disable");
    assert_eq!(value["data_sets"][0]["verdicts"][0]["verdict"]["kind"], "match");
    let value = dumping::json(folder.path(), &["compare", &format!("{PART}/test_data_set_1")]);
    assert_eq!(value["summary"]["mismatch"], 1, "compare judges by its own tolerance: {value}");
}

#[test]
fn rules_say_which_runtime_computes_which_nodes() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let made = json(folder.path(), &[PART, "--step", "0", "--on", "ort:negated", "--on", "ort:*"]);
    let set = &made["data_sets"][0];
    assert_eq!(set["rules"], json!([{ "rule": "ort:negated", "nodes": 1 }, { "rule": "ort:*", "nodes": 2 }]));
    assert_eq!((&set["nodes_on"], &set["segments"]), (&json!({ "ort": 3 }), &json!(1)));
    assert_eq!(set["verdicts"][0]["verdict"]["kind"], "match");
    let said = replay(folder.path(), &[PART, "--step", "0", "--on", "ort:A??"]);
    assert!(said.out.contains("ort:A??: 1"), "{}", said.out);
}

#[test]
fn rules_that_cannot_be_followed_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    for (rules, expected) in [
        (&["--on", "ort:negatd"][..], "no node of"),
        (&["--on", "ort:negatd"], "negated"),
        (&["--on", "ort:Neg", "--on", "ort:negated"], "--on ort:negated"),
        (&["--on", "cuda:Add"], "ort, torch, torch-f64"),
        (&["--on", "Add"], "RUNTIME:PATTERN"),
        (&["--on", "ort:Add", "--runtime", "torch"], "--runtime"),
    ] {
        let said = replay(folder.path(), &[&[PART], rules].concat());
        assert_eq!((said.code, said.err.contains(expected)), (2, true), "{rules:?}: {}", said.err);
    }
    if cfg!(not(feature = "torch")) {
        let said = replay(folder.path(), &[PART, "--on", "torch:Add"]);
        assert_eq!((said.code, said.err.contains("make build-torch")), (2, true), "{}", said.err);
    }
}

#[test]
fn rules_of_the_run_are_followed() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let run = folder.path().join("run/run.json");
    let mut read: Value = serde_json::from_slice(&std::fs::read(&run).unwrap()).unwrap();
    read["options"]["runtimes"] = json!({ "ort": ["neg*"] });
    dumping::put_json(&run, &read);
    let made = json(folder.path(), &[PART, "--step", "0"]);
    assert_eq!(made["data_sets"][0]["rules"], json!([{ "rule": "ort:neg*", "nodes": 1 }]));
    read["options"]["runtimes"] = json!({ "torch": ["neg*"] });
    dumping::put_json(&run, &read);
    let repro = folder.path().join("repro");
    let said = replay(folder.path(), &[PART, "--no-confine", "--repro", repro.to_str().unwrap()]);
    assert_eq!(
        (said.code, said.err.contains("the rule torch:neg* gives nodes to libtorch")),
        (2, true),
        "{}",
        said.err
    );
    if cfg!(not(feature = "torch")) {
        let said = replay(folder.path(), &[PART, "--step", "0", "--no-confine"]);
        assert!(said.code == 2 && said.err.contains("it ran with the option runtimes torch:neg*"), "{}", said.err);
    }
    let made = json(folder.path(), &[PART, "--step", "0", "--on", "ort:*"]);
    assert_eq!(made["data_sets"][0]["nodes_on"], json!({ "ort": 3 }));
}
