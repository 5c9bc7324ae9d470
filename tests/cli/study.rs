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

/// Each study, small.
fn each() -> [(&'static str, Vec<&'static str>); 3] {
    [
        ("gemm", vec!["gemm", "--rows", "6", "--size", "20"]),
        ("layernorm", vec!["layernorm", "--batch", "1", "--rows", "4", "--size", "16"]),
        ("reduction", vec!["reduction", "--size", "200", "--orders", "6", "--threads", "2"]),
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
    for (name, args) in each().into_iter().filter(|(name, _)| *name != "layernorm" || HAS_TORCH) {
        let picture = format!("{name}.svg");
        let said = study(folder.path(), &[args.as_slice(), &["--svg", &picture, "--result", "result.json"]].concat());
        assert_eq!(said.code, 0, "{name}: {}{}", said.out, said.err);
        assert!(said.out.contains("here: ") && said.out.contains("seed: "), "{name}: {}", said.out);
        assert_eq!(said.out.contains("libtorch not run: built without libtorch"), !HAS_TORCH, "{name}: {}", said.out);
        assert!(HAS_TORCH || !said.out.contains("not run\n"), "{name}: {}", said.out);
        let svg = std::fs::read_to_string(folder.path().join(&picture)).unwrap();
        assert!(svg.starts_with("<svg ") && svg.contains("bfloat16"), "{svg}");
        assert_well_formed(&svg);

        let value = json_of(folder.path(), &args);
        let written = std::fs::read_to_string(folder.path().join("result.json")).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&written).unwrap(), value, "{name}");
        assert_eq!((&value["schema"], &value["study"]), (&json!("rust_ort/cli/study/1"), &json!(name)));
        let result = &value["result"];
        assert_eq!(result["setup"]["libtorch"].is_string(), HAS_TORCH, "{name}");
        assert_eq!(result["setup"]["not_run"].is_null(), HAS_TORCH, "{name}");
        // These sizes are nobody's; which kernels there are depends on none.
        for finding in result["findings"].as_array().unwrap() {
            let of_kernels = finding["claim"].as_str().unwrap().contains("CPU provider");
            let expected = if of_kernels { &["yes"][..] } else { &["other_sizes", "not_examined"] };
            assert!(expected.contains(&finding["holds"].as_str().unwrap()), "{name}: {finding}");
        }
        assert!(said.out.contains("no verdict"), "{name}: {}", said.out);

        let csv = study(folder.path(), &[args.as_slice(), &["--csv"]].concat());
        assert_eq!(csv.code, 0);
        let columns = |line: &str| {
            let labels = ["onnxruntime, rows", "libtorch, rows", "TORCH-TF32, cut"];
            labels.iter().fold(line.to_owned(), |line, label| line.replace(label, "")).matches(',').count()
        };
        let mut lines = csv.out.lines();
        let head = lines.next().unwrap();
        assert!(lines.clone().count() > 2 && lines.all(|line| columns(line) == columns(head)), "{}", csv.out);
    }
}

#[cfg(not(feature = "torch"))]
#[test]
fn what_needs_libtorch_is_said_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["layernorm", "--batch", "1", "--rows", "4", "--size", "16"];
    for more in [&["--svg", "a.svg"][..], &["--json"], &["--csv"]] {
        let said = study(folder.path(), &[&args, more].concat());
        assert_eq!((said.code, said.out.as_str()), (3, ""), "{}", said.err);
        assert!(said.err.contains("of two runtimes") && said.err.contains("use rust-ort-torch"), "{}", said.err);
        assert!(!folder.path().join("a.svg").exists());
    }
    let said = study(folder.path(), &["gemm", "--rows", "6", "--size", "20"]);
    assert!(said.err.contains("two of the eight ways") && said.err.contains("use rust-ort-torch"), "{}", said.err);
    assert!(!said.out.contains("1 F.linear") && said.out.contains("2 GemmOnly"), "{}", said.out);
}

#[test]
fn findings_of_several_draws_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["gemm", "--rows", "6", "--size", "20", "--dtype", "f32", "--seed", "5", "--draws", "2"];
    let said = study(folder.path(), &args);
    assert!(said.out.contains("findings of 2 draws, seeds 5 to 6"), "{}", said.out);
    let value = json_of(folder.path(), &args);
    assert_eq!(value["result"]["setup"]["draws"], 2);
    assert_eq!(value["result"]["parts"], json_of(folder.path(), &args[..9])["result"]["parts"]);
}

#[test]
fn reduction_marks_what_no_example_claims() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["reduction", "--size", "600", "--orders", "6", "--dtype", "f32,f16", "--threads", "2"];
    let value = json_of(folder.path(), &args);
    let result = &value["result"];
    assert_eq!(result["averages"]["sizes"], json!([2, 4, 8, 16, 512]));
    let spreads = result["averages"]["spreads"].as_array().unwrap();
    let dtypes: std::collections::BTreeSet<&str> = spreads.iter().map(|of| of["dtype"].as_str().unwrap()).collect();
    assert!(dtypes.into_iter().eq(["F16", "F32", "F64"]));
    // Without rounding to a narrower type two of the three laws have a sum that every order changes.
    let of_ort = |function: &str, law: &str| {
        spreads
            .iter()
            .filter(|of| {
                (&of["function"], &of["distribution"], &of["way"])
                    == (&json!(function), &json!(law), &json!("onnxruntime"))
            })
            .any(|of| of["dtype"] == "F64" && of["spread"].as_f64().unwrap() > 0.)
    };
    assert!(of_ort("mean", "normal") && of_ort("normalized", "pareto"));
    for finding in result["findings"].as_array().unwrap() {
        let claim = finding["claim"].as_str().unwrap();
        let own = claim.contains("threads") || claim.contains("their sum") || claim.contains("same bits");
        assert!(!own || finding["source"] == "this study's own", "{finding}");
    }
    let said = study(folder.path(), &args);
    assert!(said.out.contains("this study's own, claimed by no example\n"), "{}", said.out);
}

/// Installed beside a wheel's onnxruntime, as `pip install --target` and an environment have it.
#[cfg(not(feature = "torch"))]
#[test]
fn the_onnxruntime_beside_the_program_is_found() {
    let folder = tempfile::tempdir().unwrap();
    for packages in ["", "lib/python3.12/site-packages"] {
        let prefix = folder.path().join(if packages.is_empty() { "target" } else { "environment" });
        let capi = prefix.join(packages).join("onnxruntime/capi");
        std::fs::create_dir_all(&capi).unwrap();
        std::fs::create_dir_all(prefix.join("bin")).unwrap();
        std::os::unix::fs::symlink(common::library(), capi.join("libonnxruntime.so.1.0.0")).unwrap();
        let program = prefix.join("bin/rust-ort");
        if std::fs::hard_link(env!("CARGO_BIN_EXE_rust-ort"), &program).is_err() {
            std::fs::copy(env!("CARGO_BIN_EXE_rust-ort"), &program).unwrap();
        }
        let mut command = Command::new(&program);
        command.args(["study", "gemm", "--rows", "2", "--size", "5", "--dtype", "f32"]);
        let said: Said = command.env_remove("RUST_ORT_ONNXRUNTIME").output().unwrap().into();
        assert_eq!(said.code, 0, "{packages}: {}{}", said.out, said.err);
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
        let is_missing = !HAS_TORCH && [0, 7].contains(&at);
        assert_eq!(row[at].is_null(), is_missing);
        assert_eq!(bf16["matrix"]["differ"][at][at], if is_missing { Value::Null } else { json!(0.0) });
        assert_eq!(bf16["matrix"]["errors"][at].is_null(), is_missing);
    }
    // What ONNX Runtime runs, with its Casts, is printed of the first matrix.
    let graph = parts[0]["graph"].as_str().unwrap();
    assert!(graph.contains("InsertedPrecisionFreeCast") && parts[1]["graph"].is_null(), "{graph}");
    let said = study(folder.path(), &["gemm", "--rows", "6", "--size", "20", "--dtype", "f16"]);
    for text in ["the graph that onnxruntime runs", "InsertedPrecisionFreeCast", "% that differ", "from float64"] {
        assert!(said.out.contains(text), "{text}: {}", said.out);
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
        (&["gemm", "--draws", "0"], 2, "1..=100"),
        (&["gemm", "--rows", "2", "--size", "5", "--result", "-"], 2, "--json prints the result"),
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
