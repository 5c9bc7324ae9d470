//! Somebody else's dump: nothing that it names is loaded.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rust_ort::base::ids::StepId;
use rust_ort::tensor::TensorBuf;
use serde_json::json;

use crate::common;
use crate::dumping::{self, Said, piped};

const PART: &str = "run/0_0-forward/part_0";

/// A part that ran with these, and one data set of it.
fn dump(folder: &Path, onnxruntime: &Path, custom: &[&str], session_options: &serde_json::Value) {
    let run_json = json!({ "onnxruntime_library": onnxruntime });
    let run = dumping::open(folder, &run_json.to_string());
    let parts = json!({ "options": { "session_options": session_options } });
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
