//! `rust-ort study` on small numbers, as a shell sees it: on ONNX Runtime, and on libtorch where that is built in.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::common;
use crate::dumping::Said;

const HAS_TORCH: bool = cfg!(feature = "torch");

/// The program of this build: with libtorch the other one.
fn study(folder: &Path, args: &[&str]) -> Said {
    let library = common::library();
    let args = [&["study"], args, &["--onnxruntime", library.to_str().unwrap()]].concat();
    command(folder, &args).output().unwrap().into()
}

#[cfg(feature = "torch")]
fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rust-ort-torch"));
    command.args(args).current_dir(folder).env_remove("RUST_ORT_ONNXRUNTIME").env_remove("COLUMNS");
    command
}

#[cfg(not(feature = "torch"))]
fn command(folder: &Path, args: &[&str]) -> Command {
    crate::dumping::program(folder, args)
}

fn json_of(folder: &Path, args: &[&str]) -> Value {
    let said = study(folder, &[args, &["--json"]].concat());
    serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{args:?}: {error}: {}{}", said.out, said.err))
}

/// Each study, small, and its exit code.
fn each() -> [(&'static str, Vec<&'static str>, i32); 3] {
    [
        ("gemm", vec!["gemm", "--rows", "6", "--size", "20"], 0),
        ("layernorm", vec!["layernorm", "--batch", "1", "--rows", "4", "--size", "16"], if HAS_TORCH { 0 } else { 3 }),
        ("reduction", vec!["reduction", "--size", "200", "--orders", "6", "--threads", "2"], 0),
    ]
}

/// Every tag that is opened is closed, in order.
fn assert_well_formed(svg: &str) {
    let mut open = Vec::new();
    for piece in svg.split('<').skip(1) {
        let (tag, text) = piece.split_once('>').expect("a tag ends");
        assert!(!text.contains(['>', '"']) || text.trim().is_empty(), "{piece}");
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        match (tag.starts_with('/'), tag.ends_with('/')) {
            (true, _) => assert_eq!(open.pop(), Some(name), "{piece}"),
            (false, false) => open.push(name),
            (false, true) => {}
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
    }
    assert!(open.is_empty() && !svg.contains("NaN") && !svg.contains("inf"), "{open:?}");
}

#[test]
fn each_study_gives_text_json_csv_and_a_picture() {
    let folder = tempfile::tempdir().unwrap();
    for (name, args, code) in each() {
        let said = study(folder.path(), &[args.as_slice(), &["--svg", "a.svg"]].concat());
        assert_eq!(said.code, code, "{name}: {}{}", said.out, said.err);
        assert!(said.out.contains("here: ") && said.out.contains("seed: "), "{name}: {}", said.out);
        assert_eq!(said.out.contains("libtorch not run: built without libtorch"), !HAS_TORCH, "{name}: {}", said.out);
        let svg = std::fs::read_to_string(folder.path().join("a.svg")).unwrap();
        assert!(svg.starts_with("<svg ") && svg.contains("bfloat16"), "{svg}");
        assert_well_formed(&svg);

        let value = json_of(folder.path(), &args);
        assert_eq!((&value["schema"], &value["study"]), (&json!("rust_ort/cli/study/1"), &json!(name)));
        let result = &value["result"];
        assert_eq!(result["setup"]["libtorch"].is_string(), HAS_TORCH, "{name}");
        assert_eq!(result["setup"]["not_run"].is_null(), HAS_TORCH, "{name}");
        assert!(result["findings"].as_array().unwrap().iter().all(|finding| finding["holds"].is_string()), "{name}");

        let csv = study(folder.path(), &[args.as_slice(), &["--csv"]].concat());
        assert_eq!(csv.code, code);
        let columns =
            |line: &str| line.replace("onnxruntime, rows", "").replace("libtorch, rows", "").matches(',').count();
        let mut lines = csv.out.lines();
        let head = lines.next().unwrap();
        assert!(lines.clone().count() > 2 && lines.all(|line| columns(line) == columns(head)), "{}", csv.out);
    }
}

#[test]
fn the_same_seed_gives_the_same_and_another_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let matrices = |seed| {
        json_of(folder.path(), &["gemm", "--rows", "6", "--size", "20", "--seed", seed])["result"]["parts"].clone()
    };
    assert_eq!(matrices("5"), matrices("5"));
    assert_ne!(matrices("5"), matrices("6"));
}

#[test]
fn gemm_says_what_was_cast_and_what_was_widened() {
    let folder = tempfile::tempdir().unwrap();
    let value = json_of(folder.path(), &["gemm", "--rows", "6", "--size", "20"]);
    let parts = value["result"]["parts"].as_array().unwrap();
    assert_eq!(parts.len(), 7);
    let bias = |dtype: &str| {
        parts
            .iter()
            .find(|part| part["numbers"] == "bias" && part["dtype"] == dtype)
            .unwrap_or_else(|| panic!("{dtype}"))
    };
    let dtypes: Vec<&Value> = parts.iter().map(|part| &part["dtype"]).collect();
    assert!(dtypes.contains(&&json!("BF16")), "{dtypes:?}");
    let (f32, f16, bf16) = (bias("F32"), bias("F16"), bias("BF16"));
    assert_eq!((&f32["inserted_casts"], &f32["has_cast"]), (&json!(0), &json!(true)));
    assert!(f16["inserted_casts"].as_u64().unwrap() > 0, "{f16}");
    assert_eq!((&f16["widened"], &bf16["widened"]), (&json!(false), &json!(true)));
    assert!(bf16["refused"].is_string() && f16["refused"].is_null());
    let labels = bf16["matrix"]["labels"].as_array().unwrap();
    assert_eq!((labels.len(), &labels[0], &labels[7]), (8, &json!("F.linear"), &json!("a @ x + b")));
    for (at, row) in bf16["matrix"]["max_abs"].as_array().unwrap().iter().enumerate() {
        assert_eq!(row[at].is_null(), !HAS_TORCH && [0, 7].contains(&at));
    }
}

#[test]
fn reduction_runs_with_one_thread_in_a_process_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["reduction", "--size", "200", "--orders", "6", "--dtype", "f32"];
    let threads = |more: &[&str]| {
        let value = json_of(folder.path(), &[&args, more].concat());
        let sums = value["result"]["sums"].as_array().unwrap().clone();
        let of_ort = sums.into_iter().filter(|sums| sums["way"] == "onnxruntime" && sums["distribution"] == "normal");
        of_ort.map(|sums| sums["threads"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let mut both = threads(&["--threads", "2"]);
    both.sort_unstable();
    assert_eq!((threads(&["--threads", "1"]), both), (vec![1], vec![1, 2]));
}

#[test]
fn bad_arguments_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for (args, code, text) in [
        (&["gemm", "--dtype", "f8"][..], 2, "expected some of f32, f16, bf16"),
        (&["gemm", "--size", "0"], 2, "1..=16384"),
        (&["nothing"], 2, "nothing"),
        (&["gemm", "--json", "--csv"], 2, "--csv"),
        (&["gemm", "--threads", "9999"], 2, "1024"),
        (&["gemm", "--rows", "2", "--size", "5", "--svg", "nowhere/a.svg"], 2, "nowhere/a.svg"),
        (&["reduction", "--provider", "NoneExecutionProvider"], 3, "has no NoneExecutionProvider"),
    ] {
        let said = study(folder.path(), args);
        assert!(said.code == code && said.err.contains(text), "{args:?}: {} {}{}", said.code, said.out, said.err);
    }
    let said: Said = command(folder.path(), &["study", "gemm"]).output().unwrap().into();
    assert!(said.code == 2 && said.err.contains("name one with --onnxruntime"), "{}", said.err);
    let said: Said =
        command(folder.path(), &["study", "gemm", "--onnxruntime", "/nowhere.so"]).output().unwrap().into();
    assert!(said.code == 2 && said.err.contains("/nowhere.so"), "{}", said.err);
}
