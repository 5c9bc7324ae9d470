//! What a dump's models may do to whoever runs them again: an operator of the test's tries it.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Stdio;

use rust_ort::base::ids::StepId;
use rust_ort::tensor::TensorBuf;
use rustix::process::{Pid, Signal};
use serde_json::json;

use crate::common::{attempts, custom_ops, library};
use crate::dumping::{self, Said, piped, program};
use crate::support::wait_for;

const PART: &str = "run/0_0-forward/part_0";

/// A part that tries these, and what it got when it was dumped, in step 0.
fn dump(folder: &Path, tried: &[f32], got: &[f32]) {
    dump_beside(folder, tried, got, got);
}

/// The same where eager got something else.
fn dump_beside(folder: &Path, tried: &[f32], got: &[f32], eager: &[f32]) {
    let tensor = |values: &[f32]| TensorBuf::from_f32([values.len() as i64], values).unwrap();
    let (x, y, reference) = (tensor(tried), tensor(got), tensor(eager));
    let (run, graph) = dumping::one_graph(folder, &json!({ "onnxruntime_library": library() }).to_string());
    run.part(&graph, 0, &attempts(tried.len()), &json!({ "values": {} }).to_string()).unwrap();
    let set = run.begin_step(&graph, 0, StepId(0), &[("x".into(), x.shared())]).unwrap();
    run.references(&set, &[("y".into(), reference.shared())]);
    run.actuals(&set, &[("y".into(), y.shared())]);
    run.finish(&set);
    assert!(run.flush().lost.is_empty());
}

fn run(folder: &Path, command: &str, more: &[&str]) -> Said {
    let (onnxruntime, custom) = (library(), custom_ops().path);
    let libraries = ["--onnxruntime", onnxruntime.to_str().unwrap(), "--custom-op-library", custom.to_str().unwrap()];
    piped(folder, &[&[command, PART], &libraries[..], more].concat())
}

#[test]
fn a_model_of_a_dump_reaches_no_file_network_or_process() {
    let folder = tempfile::tempdir().unwrap();
    let tried = [1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 20., 21., 22.];
    let got = [13., 13., 1., 1., 1., 1., 1., 1., 0., 0., 1., 1., 13., 1., 1., 1.];
    dump(folder.path(), &tried, &got);
    let said = run(folder.path(), "replay", &[]);
    assert!(said.code == 0 && said.out.contains("same bits"), "{}{}", said.out, said.err);
    assert!(!said.err.contains("confined"), "{}", said.err);
    let said = run(folder.path(), "replay", &["--repro", "out"]);
    assert!(said.code == 0 && folder.path().join("out/run.py").is_file(), "{}{}", said.out, said.err);
    let said = run(folder.path(), "blame", &[]);
    assert!(said.code == 0 && !said.err.contains("not kept"), "{}{}", said.out, said.err);
    assert!(folder.path().join(PART).join("blame_0.json").is_file());
}

/// `script` runs it on a terminal, whose session it would have.
#[test]
fn a_model_of_a_dump_reads_neither_the_terminal_nor_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let tried = [14., 15., 16., 17.];
    dump(folder.path(), &tried, &[2., 13., 9., 1.]);
    let (onnxruntime, custom, rust_ort) = (library(), custom_ops().path, env!("CARGO_BIN_EXE_rust-ort"));
    let line = format!(
        "{rust_ort} replay {PART} --all --onnxruntime {} --custom-op-library {}",
        onnxruntime.display(),
        custom.display()
    );
    let mut script = std::process::Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).current_dir(folder.path()).env("THEIR_SECRET", "x");
    script.env("RUST_ORT_STATE_DIR", folder.path().join("state")).env_remove("COLUMNS");
    let Ok(output) = script.output() else {
        eprintln!("skipped: no `script` to make a terminal");
        return;
    };
    let said = Said::from(output);
    assert!(said.code == 0 && said.out.contains("same bits"), "{} {}{}", said.code, said.out, said.err);
}

/// What an interrupt of the terminal reaches is the command alone, whose child is of another session.
#[test]
fn a_command_that_is_interrupted_takes_its_child_along() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path(), &[9.], &[0.]);
    let named = library();
    let words = ["replay", PART, "--repeat", "4000000000", "--onnxruntime", named.to_str().unwrap()];
    let mut command = program(folder.path(), &words);
    command.arg("--custom-op-library").arg(custom_ops().path);
    let mut parent = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let pid = parent.id();
    let children = || fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let told = |pid: &str, at: usize| {
        let told = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some(told.rsplit_once(')')?.1.split_whitespace().nth(at)?.to_owned())
    };
    let child = wait_for("a child of a session of its own", || {
        let child = children().split_whitespace().next()?.to_owned();
        (told(&child, 3)? == child).then_some(child)
    });
    rustix::process::kill_process(Pid::from_child(&parent), Signal::INT).unwrap();
    assert_eq!(parent.wait().unwrap().signal(), Some(Signal::INT.as_raw()));
    // Whoever adopts it may not have waited for it yet.
    wait_for("the child's end", || told(&child, 0).is_none_or(|state| state == "Z").then_some(()));
}

#[test]
fn without_confinement_it_has_the_rights_of_its_user() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path(), &[1., 2., 3., 5., 11., 12., 13., 14.], &[0.; 8]);
    let named = library();
    let mut by_flag =
        program(folder.path(), &["replay", PART, "--no-confine", "--onnxruntime", named.to_str().unwrap()]);
    by_flag.arg("--custom-op-library").arg(custom_ops().path).env("THEIR_SECRET", "x");
    let said = Said::from(by_flag.output().unwrap());
    assert!(said.code == 0 && said.out.contains("same bits"), "{}{}", said.out, said.err);
    let (onnxruntime, custom) = (library(), custom_ops().path);
    let mut by_variable = program(folder.path(), &["replay", PART, "--onnxruntime", onnxruntime.to_str().unwrap()]);
    by_variable.arg("--custom-op-library").arg(custom).env("THEIR_SECRET", "x");
    let said = Said::from(by_variable.env("RUST_ORT_CONFINE", "off").output().unwrap());
    assert!(said.code == 0, "{}{}", said.out, said.err);
    let said = Said::from(by_variable.env("RUST_ORT_CONFINE", "no").output().unwrap());
    assert!(said.code == 2 && said.err.contains("expected on or off, got \"no\""), "{}{}", said.out, said.err);
}

#[test]
fn a_runtime_that_dies_is_told_with_what_it_ran() {
    let folder = tempfile::tempdir().unwrap();
    dump_beside(folder.path(), &[99.], &[0.], &[7.]);
    for command in ["replay", "blame"] {
        let said = run(folder.path(), command, &[]);
        let graph = folder.path().join("run/0_0-forward").canonicalize().unwrap();
        let told = format!(
            "ONNX Runtime or a custom operator crashed (signal 11, SIGSEGV) while it ran part_0 of {}, step 0; ",
            graph.display()
        );
        assert!(said.code == 2 && said.err.contains(&told), "{command}: {} {}{}", said.code, said.out, said.err);
        assert!(said.err.contains("--optimization") && said.err.contains("--repro"), "{}", said.err);
    }
}

const NO_WALLS: &str = "--no-confine or RUST_ORT_CONFINE=off";

#[test]
fn a_link_out_of_a_dump_is_told_with_the_way_around_the_walls() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path(), &[9.], &[0.]);
    let input = folder.path().join(PART).join("test_data_set_0/input_0.pb");
    let elsewhere = folder.path().join("elsewhere.pb");
    fs::rename(&input, &elsewhere).unwrap();
    symlink(&elsewhere, &input).unwrap();
    for command in ["replay", "blame"] {
        let said = run(folder.path(), command, &[]);
        let told = said.err.contains("test_data_set_0/input_0.pb") && said.err.contains(NO_WALLS);
        assert!(said.code == 2 && told, "{command}: {} {}{}", said.code, said.out, said.err);
    }
    let said = run(folder.path(), "replay", &["--no-confine"]);
    assert!(said.code == 0 && said.out.contains("same bits"), "{}{}", said.out, said.err);
}

#[test]
fn a_library_that_looks_for_others_elsewhere_is_told_with_the_way_around_the_walls() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path(), &[9.], &[0.]);
    let compiled = |name: &str, source: &str, more: &[&str]| {
        let library = folder.path().join(name);
        fs::create_dir_all(library.parent().unwrap()).unwrap();
        fs::write(library.with_extension("c"), source).unwrap();
        let mut cc = std::process::Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(library.with_extension("c")).args(more);
        assert!(cc.status().unwrap().success());
        library
    };
    let needed = compiled("libs/libneeded.so", "void *none(void) { return 0; }", &[]);
    let source = "void *none(void); void *RegisterCustomOps(void *options, const void *api) { return none(); }";
    let link = [needed.to_str().unwrap(), "-Wl,-rpath,$ORIGIN/../libs"];
    let library = compiled("operators/liboperators.so", source, &link);
    fs::remove_file(library.with_extension("c")).unwrap();
    let named = ["--custom-op-library", library.to_str().unwrap()];
    let said = run(folder.path(), "replay", &[&named[..], &["--json"]].concat());
    let told = said.out.contains("libneeded.so") && said.out.contains(NO_WALLS);
    assert!(said.code == 2 && told, "{} {}{}", said.code, said.out, said.err);
    let said = run(folder.path(), "replay", &[&named[..], &["--no-confine"]].concat());
    assert!(said.code == 0 && said.out.contains("same bits"), "{}{}", said.out, said.err);
}

#[test]
fn a_reproduction_is_not_written_through_a_link() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path(), &[9.], &[0.]);
    let (planted, victim) = (folder.path().join("planted"), folder.path().join("victim"));
    assert_eq!(run(folder.path(), "replay", &["--repro", "planted"]).code, 0);
    fs::create_dir(&victim).unwrap();
    fs::write(victim.join("input_0.pb"), "mine").unwrap();
    fs::remove_dir_all(planted.join("test_data_set_0")).unwrap();
    symlink(&victim, planted.join("test_data_set_0")).unwrap();
    let said = run(folder.path(), "replay", &["--repro", "planted"]);
    assert!(said.code == 2 && said.err.contains("a link or a file is in its place"), "{}{}", said.out, said.err);
    assert_eq!(fs::read(victim.join("input_0.pb")).unwrap(), b"mine");
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 1);
}

#[test]
fn a_data_set_that_is_not_whole_is_told_and_is_no_pass() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path(), &[9.], &[0.]);
    fs::remove_file(folder.path().join(PART).join("test_data_set_0/manifest.json")).unwrap();
    let said = run(folder.path(), "replay", &[]);
    assert!(said.code == 3 && said.out.contains("not whole: "), "{} {}{}", said.code, said.out, said.err);
    let value = run(folder.path(), "replay", &["--json"]).out;
    let value: serde_json::Value = serde_json::from_str(&value).unwrap();
    assert!(value["data_sets"][0]["missing"].is_string(), "{value}");
}
