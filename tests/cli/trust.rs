//! Somebody else's dump: nothing that it names is loaded.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use prost::Message as _;
use rust_ort::base::ids::StepId;
use rust_ort::compare::{Policy, Tolerance, judge};
use rust_ort::dump::EagerValues;
use rust_ort::onnx::proto::ModelProto;
use rust_ort::tensor::TensorBuf;
use serde_json::{Value, json};

use crate::common;
use crate::dumping::{self, Said, piped};

const PART: &str = "run/0_0-forward/part_0";

/// A part that ran with these, and one data set of it.
fn dump(folder: &Path, onnxruntime: &Path, custom: &[&str], session_options: &serde_json::Value) {
    dump_with(folder, onnxruntime, custom, &json!({ "session_options": session_options }));
}

fn dump_with(folder: &Path, onnxruntime: &Path, custom: &[&str], options: &serde_json::Value) {
    let run_json = json!({ "onnxruntime_library": onnxruntime });
    let run = dumping::open(folder, &run_json.to_string());
    let parts = json!({ "options": options });
    let graph = dumping::graph(&run, "0_0-forward", &parts.to_string());
    let provenance = json!({ "values": {}, "custom_op_libraries": custom });
    run.part(&graph, 0, &common::one_node("", "Neg", 2), &provenance.to_string()).unwrap();
    let x = TensorBuf::from_f32([2], &[1., 2.]).unwrap();
    let y = TensorBuf::from_f32([2], &[-1., -2.]).unwrap();
    let set = run.begin_step(&graph, 0, StepId(0), &[("x".into(), x.shared())]).unwrap();
    run.references(&set, &[("y".into(), y.shared())]);
    run.actuals(&set, &[("y".into(), y.shared())]);
    run.finish(&set);
    assert!(run.flush().lost.is_empty());
}

fn said(folder: &Path, args: &[&str]) -> Said {
    piped(folder, args)
}

/// It exists, it is a library that would load, and no executor has loaded it.
#[test]
fn the_runtime_that_a_dump_names_is_loaded_only_when_executors_have_loaded_that_file() {
    let folder = tempfile::tempdir().unwrap();
    let named = folder.path().join("libonnxruntime.so.1");
    symlink(common::library(), &named).unwrap();
    dump(folder.path(), &named, &[], &json!({}));
    for command in ["replay", "blame", "keep", "prove"] {
        let said = said(folder.path(), &[command, "run"]);
        let told = format!("the dump names {}, which is not what an executor of yours has loaded", named.display());
        assert!(said.code == 2 && said.err.contains(&told), "{command}: {}{}", said.out, said.err);
        assert!(said.err.contains("a library is code") && said.err.contains("--onnxruntime"), "{}", said.err);
    }
    let library = common::library();
    let flag = said(folder.path(), &["replay", "run", "--onnxruntime", library.to_str().unwrap()]);
    assert!(flag.code == 0, "{}{}", flag.out, flag.err);
    dumping::executors_have_loaded(folder.path(), &named);
    let known = said(folder.path(), &["replay", "run"]);
    assert!(known.code == 0 && known.out.contains(named.to_str().unwrap()), "{}{}", known.out, known.err);
    fs::remove_file(&named).unwrap();
    fs::write(&named, "another library").unwrap();
    assert_eq!(said(folder.path(), &["replay", "run"]).code, 2);
}

#[test]
fn the_custom_operators_that_a_dump_names_are_loaded_only_when_executors_have_loaded_those_files() {
    let folder = tempfile::tempdir().unwrap();
    let library = common::library();
    let env = ["--onnxruntime", library.to_str().unwrap()];
    let at = folder.path().join("custom.so");
    // A library that is none: onnxruntime's own refusal would tell that it was tried.
    fs::write(&at, "no library").unwrap();
    let tried = "option \"custom_op_libraries\"";
    for (name, why) in [
        ("custom.so", "no absolute path"),
        ("./custom.so", "no absolute path"),
        (at.to_str().unwrap(), "not what an executor of yours has loaded from there"),
        ("/nowhere/custom.so", "not what an executor of yours has loaded from there"),
    ] {
        let _ = fs::remove_dir_all(folder.path().join("run"));
        dump(folder.path(), &library, &[name], &json!({}));
        for command in ["replay", "blame", "keep", "prove"] {
            let said = said(folder.path(), &[&[command, PART], &env[..]].concat());
            let told = format!("the custom operators of {name}, which is {why}");
            assert!(said.code == 2 && said.err.contains(&told), "{command} {name}: {}{}", said.out, said.err);
            assert!(said.err.contains("--custom-op-library") && !said.err.contains(tried), "{}", said.err);
        }
    }
    let _ = fs::remove_dir_all(folder.path().join("run"));
    dump(folder.path(), &library, &[at.to_str().unwrap()], &json!({}));
    dumping::executors_have_loaded(folder.path(), &at);
    let known = said(folder.path(), &[&["replay", PART], &env[..]].concat());
    assert!(known.out.contains(tried), "{}{}", known.out, known.err);
}

/// onnxruntime would write its profile there.
#[test]
fn session_options_of_a_dump_write_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("profile");
    let options = json!({ "rust_ort.profile": profile, "session.set_denormal_as_zero": "1" });
    dump(folder.path(), &common::library(), &[], &options);
    dumping::executors_have_loaded(folder.path(), &common::library());
    let before = fs::read_dir(folder.path()).unwrap().count();
    let said = said(folder.path(), &["replay", "run", "--repro", "run/out"]);
    assert!(said.code == 0 && said.err.contains("not taken from a dump"), "{}{}", said.out, said.err);
    assert!(said.err.contains("rust_ort.profile") && !said.err.contains("denormal"), "{}", said.err);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), before);
    let script = fs::read_to_string(folder.path().join("run/out/run.py")).unwrap();
    assert!(script.contains("session.set_denormal_as_zero") && !script.contains("rust_ort.profile"), "{script}");
}

#[test]
fn a_provider_that_can_name_code_is_not_taken_from_a_dump() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path(), &common::library(), &[], &json!({}));
    dumping::executors_have_loaded(folder.path(), &common::library());
    let reproduction = json!({ "providers": [["QNNExecutionProvider", { "backend_path": "/tmp/evil.so" }]] });
    fs::write(folder.path().join(PART).join("ran_with.json"), reproduction.to_string()).unwrap();
    let said = said(folder.path(), &["replay", "run"]);
    assert!(said.code == 2 && said.err.contains("whose options can name code"), "{}{}", said.out, said.err);
}

/// Nothing of ONNX Runtime is loaded for that: it is asked before.
#[test]
fn a_dump_takes_no_walls_down() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path(), &common::library(), &[], &json!({}));
    dumping::executors_have_loaded(folder.path(), &common::library());
    let ran_with = folder.path().join(PART).join("ran_with.json");
    fs::write(&ran_with, json!({ "providers": [["CUDAExecutionProvider", {}]] }).to_string()).unwrap();
    let refused = |command: &str, what: &str, instead: &str| {
        let said = said(folder.path(), &[command, PART]);
        let told = said.err.contains(&format!("it ran with {what}, which cannot be confined"));
        assert!(said.code == 2 && told, "{command}: {} {}{}", said.code, said.out, said.err);
        assert!(said.err.contains("--no-confine") && said.err.contains(instead), "{command}: {}", said.err);
    };
    for command in ["replay", "blame", "keep", "prove"] {
        refused(command, "CUDAExecutionProvider", "--provider CPUExecutionProvider");
    }
    let before = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(said(folder.path(), &["replay", PART, "--repro", "out"]).code, 2);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), before, "nothing is written for what does not run");
    let on_cpu = said(folder.path(), &["replay", PART, "--provider", "CPUExecutionProvider"]);
    assert!(on_cpu.code == 0 && !on_cpu.err.contains("confined"), "{}{}", on_cpu.out, on_cpu.err);
    // What follows is the runtime's word on a machine without CUDA, or a run; in both cases the walls are told missing.
    for asked in [&["--no-confine"][..], &["--provider", "CUDAExecutionProvider"]] {
        let said = said(folder.path(), &[&["replay", PART], asked].concat());
        assert!(said.err.contains("run with your rights: confined: no (CUDAExecutionProvider"), "{}", said.err);
    }
    // The same of libtorch, which rules of the run ask for.
    fs::remove_file(&ran_with).unwrap();
    fs::remove_dir_all(folder.path().join("run")).unwrap();
    let rules = json!({ "runtimes": { "torch": ["Neg"] } });
    dump_with(folder.path(), &common::library(), &[], &rules);
    for command in ["replay", "blame", "keep", "prove"] {
        refused(command, "libtorch (torch:Neg)", "--on 'ort:*'");
    }
    let on_ort = said(folder.path(), &["replay", PART, "--on", "ort:*"]);
    assert!(on_ort.code == 0 && !on_ort.err.contains("confined"), "{}{}", on_ort.out, on_ort.err);
}

/// A part of which one node is another than eager's, and eager's values.
fn wrong(folder: &Path) {
    let run = dumping::open(folder, "{}");
    let graph = dumping::graph(&run, "0_0-forward", "{}");
    let mut model = ModelProto::decode(&*common::one_node("", "Neg", 2)).unwrap();
    let inside = model.graph.as_mut().unwrap();
    let mut first = inside.node[0].clone();
    (first.op_type, first.output) = (Some("Abs".into()), vec!["h".into()]);
    inside.node[0].input = vec!["h".into()];
    inside.node.insert(0, first);
    let told = |name: &str| json!({ "fx": name, "op": name, "module": "m" });
    let provenance = json!({ "values": { "h": told("h"), "y": told("y") } });
    run.part(&graph, 0, &model.encode_to_vec(), &provenance.to_string()).unwrap();
    let [x, y, h, eager] = [[1., 2.], [-1., -2.], [-1., -2.], [1., 2.]].map(|x| TensorBuf::from_f32([2], &x).unwrap());
    let values = run.begin_values(&graph, 0, StepId(0)).unwrap();
    run.values(
        &values,
        &EagerValues { nodes: vec![("h".into(), h.shared()), ("y".into(), eager.shared())], ..Default::default() },
    );
    let set = run.begin_step(&graph, 0, StepId(0), &[("x".into(), x.shared())]).unwrap();
    run.references(&set, &[("y".into(), eager.shared())]);
    run.actuals(&set, &[("y".into(), y.shared())]);
    run.finish(&set);
    run.finish_values(values);
    assert!(run.flush().lost.is_empty());
}

/// What was found of a part is gone on with where this user's own program wrote it: seals anybody can make.
#[test]
fn what_somebody_else_kept_of_an_examination_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    wrong(folder.path());
    let kept = folder.path().join(PART).join("blame_0.json");
    let library = common::library();
    let blame = |state: &str| {
        let words = ["blame", "run", "--json", "--onnxruntime", library.to_str().unwrap()];
        let mut command = dumping::program(folder.path(), &words);
        let said = Said::from(command.env("RUST_ORT_STATE_DIR", folder.path().join(state)).output().unwrap());
        let mut answer: Value = serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{}{}", said.out, said.err));
        let n_runs = answer["answers"][0]["n_runs"].take();
        answer["answers"][0]["seconds"].take();
        answer["text"].take();
        (answer, n_runs.as_u64().unwrap(), said.err.contains("not made here, by you: it is not believed"))
    };
    let (first, n_runs, doubted) = blame("state");
    assert!(kept.is_file() && !doubted && first["answers"][0]["nodes"] != json!([]), "{first}");
    let (again, n_runs_again, doubted) = blame("state");
    assert_eq!((&again, doubted), (&first, false));
    assert!(n_runs_again < n_runs, "{n_runs_again} of {n_runs}: its own is gone on with");
    assert_eq!(blame("another"), (first.clone(), n_runs, true), "another user's, or machine's");

    blame("state");
    let mut forged: Value = serde_json::from_slice(&fs::read(&kept).unwrap()).unwrap();
    forged.as_object_mut().unwrap().remove("seal");
    forged["nodes"][0]["share"] = 0.into();
    forged["nodes"][0]["own"] = "as_right".into();
    dumping::put_json(&kept, &forged);
    assert_eq!(blame("state"), (first, n_runs, true));
}

/// One call of Neg that is wrong by 8, and a tolerance that takes it all the same.
fn lenient(folder: &Path) {
    let given = Tolerance { atol: 1e9, ..Tolerance::EXACT };
    let run = dumping::open(folder, &json!({ "onnxruntime_library": common::library() }).to_string());
    let parts = json!({ "options": { "tolerance": given } });
    let graph = dumping::graph(&run, "0_0-forward", &parts.to_string());
    run.part(&graph, 0, &common::one_node("", "Neg", 2), &json!({ "values": {} }).to_string()).unwrap();
    let [x, y, eager] = [[1., 2.], [-1., -2.], [7., -2.]].map(|values| TensorBuf::from_f32([2], &values).unwrap());
    let set = run.begin_step(&graph, 0, StepId(0), &[("x".into(), x.shared())]).unwrap();
    run.references(&set, &[("y".into(), eager.shared())]);
    run.actuals(&set, &[("y".into(), y.shared())]);
    let policy = Policy { given: Some(given), ..Policy::default() };
    run.comparison(&set, &[judge("y", &eager.view(), &y.view(), Some(&given))], policy);
    run.nodes(dumping::no_nodes(&graph, 0), Vec::new()).unwrap();
    run.finish(&set);
    assert!(run.flush().lost.is_empty());
    dumping::executors_have_loaded(folder, &common::library());
}

#[test]
fn the_tolerance_that_a_dump_brings_is_told_with_what_it_judged() {
    let folder = tempfile::tempdir().unwrap();
    lenient(folder.path());
    let own = "within the dump's own tolerance (atol 1e9)";
    let own_terms = ["--atol", "0", "--rtol", "0", "--scale", "0"];
    for (command, headline) in [
        ("compare", format!("1 match {own}\n")),
        ("replay", format!("1 match {own}\n")),
        ("blame", format!("nobody is to blame: every output is as right as eager's {own}\n")),
    ] {
        let text = said(folder.path(), &[command, "run"]);
        assert!(text.code == 0 && text.out.contains(&headline), "{command}: {}{}", text.out, text.err);
        let value = dumping::json(folder.path(), &[command, "run"]);
        assert_eq!(value["policies_of_dump"][0]["given"]["atol"], json!(1e9), "{command}");
    }
    let step = format!("{PART}/test_data_set_0");
    let comparison = format!("{PART}/comparison_0.json");
    for args in
        [&["ls", "run"][..], &["ls", "run", "--steps"], &["show", &step], &["show", &comparison], &["sbs", "run"]]
    {
        let text = said(folder.path(), args);
        assert!(text.out.contains(&format!("judged {own}\n")), "{args:?}: {}{}", text.out, text.err);
    }
    let listed = dumping::json(folder.path(), &["ls", &step]);
    assert_eq!(listed["policy"]["given"]["atol"], json!(1e9), "{listed}");
    let strict = said(folder.path(), &[&["compare", "run"], &own_terms[..]].concat());
    assert!(strict.code == 1 && !strict.out.contains("own tolerance"), "{}{}", strict.out, strict.err);
    let by_default = tempfile::tempdir().unwrap();
    dump(by_default.path(), &common::library(), &[], &json!({}));
    let plain = said(by_default.path(), &["compare", "run"]);
    assert!(plain.code == 0 && !plain.out.contains("own tolerance"), "{}", plain.out);
    assert_eq!(dumping::json(by_default.path(), &["compare", "run"])["policies_of_dump"], json!([]));
    let listed = said(by_default.path(), &["ls", "run"]);
    assert!(listed.code == 0 && !listed.out.contains("own tolerance"), "{}", listed.out);
}

/// Whoever reads line by line would take the rest of the name for our word.
#[test]
fn a_name_of_two_lines_begins_no_line_of_ours() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    dump(folder.path(), Path::new("/nowhere/a\nb.so"), &["/nowhere/c\nb.so"], &json!({}));
    let good = common::library();
    let runs = |args: &[&str], of: &str| {
        let said = said(folder.path(), args);
        let told = said.out.clone() + &said.err;
        assert!(told.contains(of), "{args:?} {of}: {told}");
        let ours = |line: &str| !line.starts_with('b') && !line.starts_with("\u{1b}");
        assert!(told.lines().all(ours), "{args:?}: {told}");
        assert!(said.err.lines().all(|line| line.starts_with("rust-ort: ")), "{args:?}: {}", said.err);
    };
    // Libraries.
    runs(&["replay", "run"], "/nowhere/c\\nb.so");
    runs(&["replay", "run", "--custom-op-library", good.to_str().unwrap()], "/nowhere/a\\nb.so");
    // Files.
    fs::write(at(PART).join("a\nb"), "x").unwrap();
    runs(&["verify", "run"], "a\\nb");
    runs(&["show", "run/0_0-forward/part_0/a\nb"], "a\\nb");
    // Graphs.
    fs::rename(at("run/0_0-forward"), at("run/a\nb")).unwrap();
    for command in ["ls", "verify", "compare", "replay", "blame", "keep", "prove"] {
        runs(&[command, "run"], "a\\nb");
    }
    for command in ["show", "sbs", "print", "dot"] {
        runs(&[command, "run/a\nb/part_0"], "");
    }
}

/// Names inside of models and tensors.
#[test]
fn a_value_of_two_lines_begins_no_line_of_ours() {
    let folder = tempfile::tempdir().unwrap();
    let run = dumping::open(folder.path(), &json!({ "onnxruntime_library": common::library() }).to_string());
    let graph = dumping::graph(&run, "0_0-forward", "{}");
    let mut model = ModelProto::decode(&*common::one_node("", "Neg", 2)).unwrap();
    let inside = model.graph.as_mut().unwrap();
    inside.output[0].name = Some("a\nb".into());
    inside.node[0].output = vec!["a\nb".into()];
    inside.node[0].name = Some("n\nb".into());
    run.part(&graph, 0, &model.encode_to_vec(), &json!({ "values": {} }).to_string()).unwrap();
    let [x, y, eager] = [[1., 2.], [-1., -2.], [7., -2.]].map(|values| TensorBuf::from_f32([2], &values).unwrap());
    let set = run.begin_step(&graph, 0, StepId(0), &[("x".into(), x.shared())]).unwrap();
    run.references(&set, &[("a\nb".into(), eager.shared())]);
    run.actuals(&set, &[("a\nb".into(), y.shared())]);
    run.finish(&set);
    assert!(run.flush().lost.is_empty());
    dumping::executors_have_loaded(folder.path(), &common::library());
    let set = format!("{PART}/test_data_set_0");
    for args in [
        &["compare", "run"][..],
        &["compare", "run", "--all"],
        &["compare", "run", "--only", "c\nb"],
        &["replay", "run"],
        &["replay", "run", "--all"],
        &["replay", "run", "--nodes", "all"],
        &["replay", "run", "--on", "ort:c\nb"],
        &["blame", "run"],
        &["blame", "run", "--output", "c\nb"],
        &["show", &set],
        &["show", &format!("{set}/output_0.pb")],
        &["print", PART],
        &["print", &format!("{PART}/model.onnx")],
    ] {
        let said = said(folder.path(), args);
        let told = said.out.clone() + &said.err;
        assert!(told.contains("\\nb"), "{args:?}: {told}");
        assert!(told.lines().all(|line| !line.trim_start().starts_with('b')), "{args:?}: {told}");
    }
}
