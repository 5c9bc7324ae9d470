//! `rust-ort print`, as a shell sees it.

use std::path::Path;

use rust_ort::onnx::save;

use crate::any_model;
use crate::dumping::{json, piped, wide};
use crate::small_dump;

const PART: &str = "run/0_0-forward/part_0";

fn model(folder: &Path) {
    save(&any_model::model(), &folder.join("any.onnx")).unwrap();
}

#[test]
fn a_model_is_printed_with_bodies_functions_and_what_stands_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    model(folder.path());
    let said = piped(folder.path(), &["print", "any.onnx"]);
    // The file that holds "e" is not there, and is not looked for.
    let expected = "\
model: name='g' ir_version=10 producer=''
opset: domain='' version=20
input: name='x' type=dtype('float32') shape=[2]
input: name='c' type=dtype('float32') shape=[2]
init: name='w' type=float32 shape=(2,) -- [0.0, 0.0]
init: name='e' type=float16 shape=(2,) -- in file 'data'
init: name='s' type=float32 shape=(8,) -- sparse, 2 set
Add(x, w) -> a
If(c, then_branch=below, axes=[1,2]) -> b
  | then_branch: graph name=''
  |   Neg(a) -> inner
  |   output: name='inner' type=? shape=?
  F[local](b) -> d
    Mul(d, e) -> y
output: name='y' type=dtype('float32') shape=[2]
----- function name=F domain=local
opset: domain='' version=20
input: 'p'
Abs(p) -> t
  Neg(t) -> q
output: name='q' type=? shape=?
";
    assert_eq!((said.code, said.out.as_str()), (0, expected), "{}", said.err);
    let inlined = piped(folder.path(), &["print", "any.onnx", "--inline", "--shapes"]).out;
    assert!(!inlined.contains("F[local]") && !inlined.contains("----- function"), "{inlined}");
    assert!(inlined.contains("Abs(b) -> ") && inlined.contains("Mul(d, e) -> y: float32[2]\n"), "{inlined}");
    let value = json(folder.path(), &["print", "any.onnx"]);
    assert_eq!((&value["schema"], &value["file"]), (&"rust_ort/cli/print/1".into(), &"any.onnx".into()));
    assert_eq!(value["graph"]["nodes"][1]["bodies"]["then_branch"][0]["nodes"][0]["op"], "Neg");
    assert_eq!(value["functions"][0]["name"], "F");
}

#[test]
fn a_part_a_data_set_and_the_graph_of_one_part_have_one_model() {
    let folder = tempfile::tempdir().unwrap();
    small_dump::dump(folder.path());
    let set = format!("{PART}/test_data_set_0");
    for path in [PART, set.as_str(), "run/0_0-forward", &format!("{PART}/model.onnx")] {
        let said = piped(folder.path(), &["print", path]);
        assert!(said.code == 0 && said.out.contains("Neg(x) -> y\n"), "{path}: {}{}", said.out, said.err);
        // The optimized one has a producer, which tells the two apart.
        let said = piped(folder.path(), &["print", path, "--optimized"]);
        assert!(said.code == 0 && said.out.contains("producer='o'"), "{path}: {}{}", said.out, said.err);
    }
    let said = piped(&folder.path().join(&set), &["print", "."]);
    assert!(said.code == 0 && said.out.contains("Neg(x) -> y\n"), "{}{}", said.out, said.err);
    let said = piped(folder.path(), &["print", &format!("{set}/input_0.pb")]);
    assert_eq!(said.out, "tensor: name='x' type=float32 shape=(2,) -- [30.0, 1.0]\n");
}

#[test]
fn what_has_no_model_is_told_what_has() {
    let folder = tempfile::tempdir().unwrap();
    small_dump::dump(folder.path());
    model(folder.path());
    for (args, expected) in [
        (&["print", "."][..], "a part of a dump; `rust-ort ls` lists"),
        (&["print", "run/run.json"], "a part of a dump"),
        (&["print", "any.onnx", "--optimized"], "no optimized model (model.ort.onnx) beside it; dump the part"),
        (&["dot", "run"], "a part of a dump"),
        (&["print", "gone.onnx"], "gone.onnx"),
    ] {
        let said = piped(folder.path(), args);
        assert!(said.code == 2 && said.err.contains(expected), "{args:?}: {} {}", said.code, said.err);
    }
    small_dump::replace(&folder.path().join(PART).join("model.onnx"), b"x");
    for command in ["print", "dot"] {
        let said = piped(folder.path(), &[command, PART]);
        assert!(said.code == 4 && said.err.contains("model.onnx"), "{command}: {} {}", said.code, said.err);
    }
}

#[test]
fn lines_are_cut_by_a_terminal_alone() {
    let folder = tempfile::tempdir().unwrap();
    model(folder.path());
    let cut = wide(folder.path(), 40, &["print", "any.onnx"]).out;
    assert!(cut.lines().all(|line| line.chars().count() <= 40) && cut.contains('…'), "{cut}");
}
