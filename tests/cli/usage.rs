//! What every command shares: names, exit codes, JSON, widths, readers that go away, folders that somebody damaged.

use crate::common;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::dumping::{self, graph, json, piped, program, wide};
use rust_ort::base::ids::StepId;
use rust_ort::compare::{Policy, judge};
use rust_ort::tensor::TensorBuf;
use serde_json::{Value, json};

const PART: &str = "run/0_0-forward/part_0";
const LONG: &str = "model_layers_0_self_attention_query_projection_weight_with_a_name_that_is_longer_than_any_terminal_is_\
                    wide_and_still_goes_on_for_a_while";

/// Two graphs of one data set each; `z = x + x`, called by a long name.
fn dump(folder: &Path) {
    let run_json = json!({ "onnxruntime_library": common::library() });
    dumping::executors_have_loaded(folder, &common::library());
    let run = dumping::open(folder, &run_json.to_string());
    let model = common::Model::default()
        .node("Add", &["x", "x"], &[LONG])
        .input("x", rust_ort::tensor::DType::F32, &[common::Dim::Is(2)])
        .output(LONG, rust_ort::tensor::DType::F32, &[common::Dim::Is(2)])
        .build();
    for name in ["0_0-backward", "0_0-forward"] {
        let graph = graph(&run, name, "");
        run.part(&graph, 0, &model, "").unwrap();
        let [x, y] = [[1., -1.406_297_1e-7], [2., -2.812_594_2e-7]].map(|v| TensorBuf::from_f32([2], &v).unwrap());
        let off = TensorBuf::from_f32([2], &[2., -2.5e-1]).unwrap();
        let set = run.begin_step(&graph, 0, StepId(0), &[("x".into(), x.shared())]).unwrap();
        run.references(&set, &[(LONG.into(), y.shared())]);
        run.actuals(&set, &[(LONG.into(), off.shared())]);
        run.comparison(&set, &[judge(LONG, &y.view(), &off.view(), None)], Policy::default());
        run.finish(&set);
        run.nodes(dumping::no_nodes(&graph, 0), Vec::new()).unwrap();
    }
    assert!(run.flush().lost.is_empty());
}

/// Commands that print, on this dump.
const COMMANDS: &[&[&str]] = &[
    &["ls", "."],
    &["verify", "."],
    &["ls", ".", "--steps"],
    &["show", "."],
    &["show", "run"],
    &["show", PART],
    &["show", "run/0_0-forward/part_0/test_data_set_0"],
    &["show", "run/0_0-forward/part_0/test_data_set_0/input_0.pb"],
    &["show", "run/0_0-forward/part_0/comparison_0.json"],
    &["show", "run/0_0-forward/part_0/nodes_0.json"],
    &["print", PART],
    &["print", "run/0_0-forward/part_0/test_data_set_0/input_0.pb"],
    &["dot", PART],
    &["compare", "."],
    &["sbs", "."],
    &["replay", "."],
    &["replay", PART, "--nodes", "all"],
    &["gc", "."],
    &["doctor"],
    &["status"],
    &["stop"],
];

#[test]
fn keep_says_that_nothing_is_of_half_precision() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    for args in [&["keep", "."][..], &["keep", "run/0_0-forward", "--json"]] {
        let said = piped(folder.path(), args);
        assert_eq!((said.code, said.out.as_str()), (3, ""), "{args:?}: {}", said.err);
        assert!(said.err.contains("nothing of it is rounded to half precision"), "{args:?}: {}", said.err);
    }
    for (args, expected) in [
        (&["keep", ".", "--times", "x"][..], "invalid value"),
        (&["keep", ".", "--times=2", "--atol=1"], "cannot be used with"),
        (&["keep", ".", "--rtol=-1"], "at least 0"),
        (&["keep", ".", "--by=layer"], "node, module"),
        (&["keep", ".", "--budget=-1"], "--budget"),
    ] {
        let said = piped(folder.path(), args);
        assert_eq!(said.code, 2, "{args:?}: {}{}", said.out, said.err);
        assert!(said.err.contains(expected), "{args:?}: {}", said.err);
    }
}

#[test]
fn a_command_of_a_later_version_says_so_and_what_to_use() {
    let folder = tempfile::tempdir().unwrap();
    for (command, instead) in [("capture", "rust_ort.dump"), ("diff", "rust-ort compare"), ("bench", "make bench")] {
        for args in [&[command][..], &[command, "--help"], &[command, "a", "--b"], &["help", command]] {
            let said = piped(folder.path(), args);
            assert_eq!(said.code, 2, "{args:?}: {}{}", said.out, said.err);
            assert!(said.err.contains("not available yet") && said.err.contains(instead), "{args:?}: {}", said.err);
        }
    }
    let said = piped(folder.path(), &["shwo"]);
    assert!(said.code == 2 && said.err.contains("'show'"), "{}", said.err);
}

#[test]
fn what_is_misspelt_is_hinted_at_and_what_is_hidden_is_not() {
    let folder = tempfile::tempdir().unwrap();
    for (args, hint) in [
        (&["comapre"][..], "a similar subcommand exists: 'compare'"),
        (&["study", "gem"], "a similar subcommand exists: 'gemm'"),
        (&["compare", ".", "--onyl", "y"], "a similar argument exists: '--only'"),
        (&["study", "gemm", "--row", "3"], "a similar argument exists: '--rows'"),
    ] {
        let said = piped(folder.path(), args);
        assert!(
            said.code == 2 && said.err.contains(hint) && !said.err.contains("cuda-probe"),
            "{args:?}: {}",
            said.err
        );
    }
}

#[test]
fn forward_stands_before_backward_in_the_order_of_compilation() {
    let folder = tempfile::tempdir().unwrap();
    let run = dumping::open(folder.path(), "");
    let order = [
        "0_0-forward",
        "0_0-backward",
        "0_0_2-forward",
        "0_0_2-backward",
        "0_0_10-forward",
        "2_0-inference",
        "10_0-forward",
        "named",
    ];
    let mut names = order.to_vec();
    names.sort_unstable();
    for name in names {
        graph(&run, name, "");
    }
    let said = piped(folder.path(), &["ls", "."]);
    let listed: Vec<_> = said.out.lines().skip(1).map(|line| line.split([' ', '/']).nth(2).unwrap()).collect();
    assert_eq!(listed, order);
}

#[test]
fn numbers_have_at_most_nine_significant_digits() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    for args in [&["compare", PART][..], &["show", "run/0_0-forward/part_0/test_data_set_0"], &["replay", PART]] {
        let said = wide(folder.path(), 400, args);
        for word in said.out.split(|c: char| c.is_whitespace() || ",:[]".contains(c)) {
            let mantissa = word.split('e').next().unwrap();
            if mantissa.parse::<f64>().is_ok() {
                let digits = mantissa.trim_start_matches(['-', '0', '.']).replace('.', "");
                assert!(digits.len() <= 9, "{args:?}: {word} in {}", said.out);
            }
        }
    }
    assert!(wide(folder.path(), 400, &["compare", PART]).out.contains("-0.25 for -2.81259418e-7"));
}

#[test]
fn json_says_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    for args in COMMANDS {
        // What is asked of a daemon that is not there, and a file that is JSON itself.
        if args[0] == "status" || args[1..].iter().any(|arg| arg.ends_with(".json")) {
            continue;
        }
        let value = json(folder.path(), args);
        let schema = value["schema"].as_str().unwrap_or_default();
        assert_eq!(schema, format!("rust_ort/cli/{}/1", args[0]), "{args:?}: {value}");
    }
    let file = format!("{PART}/nodes_0.json");
    let whole: Value = serde_json::from_slice(&fs::read(folder.path().join(&file)).unwrap()).unwrap();
    assert_eq!(json(folder.path(), &["show", &file]), whole);
}

#[test]
fn a_reader_that_has_gone_is_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let plain = |args: &[&str]| piped(folder.path(), args).code;
    for args in COMMANDS {
        for json in [&[][..], &["--json"]] {
            let args = [args, json].concat();
            let mut child =
                program(folder.path(), &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            drop(child.stdout.take());
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(!said.contains("panicked") && !said.contains("Broken pipe"), "{args:?}: {said}");
            assert_eq!(output.status.code(), Some(plain(&args)), "{args:?}: {said}");
        }
    }
}

#[test]
fn what_is_piped_is_as_wide_as_120_columns() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    for args in COMMANDS.iter().filter(|args| matches!(args[0], "ls" | "compare" | "sbs" | "show" | "replay")) {
        // The text of a model is no table, nor is run.json with its paths: whole.
        if *args == ["show", PART] || *args == ["show", "run"] {
            continue;
        }
        let said = piped(folder.path(), args);
        for line in said.out.lines() {
            assert!(line.chars().count() <= 120, "{args:?}: {line}");
        }
    }
    // Both ends of a name tell; its middle goes.
    let said = piped(folder.path(), &["compare", PART]);
    assert!(said.out.contains("model_") && said.out.contains("a_while") && said.out.contains('…'), "{}", said.out);
}

#[test]
fn a_damaged_or_hostile_folder_is_named() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let at = |name: &str| folder.path().join(name);
    fs::create_dir_all(at("pipe")).unwrap();
    assert!(Command::new("mkfifo").arg(at("pipe/run.json")).status().unwrap().success());
    fs::create_dir_all(at("folder/run.json")).unwrap();
    fs::create_dir_all(at("text")).unwrap();
    fs::write(at("text/run.json"), [255; 9]).unwrap();
    fs::create_dir_all(at("huge")).unwrap();
    fs::File::create(at("huge/run.json")).unwrap().set_len(1 << 40).unwrap();
    symlink("loop", at("loop")).unwrap();
    fs::write(at("not.json"), "{").unwrap();
    fs::write(at("deep.json"), "[".repeat(100_000)).unwrap();
    fs::write(at("latin.json"), [b'"', 0xe9, b'"']).unwrap();
    fs::File::create(at("huge.json")).unwrap().set_len(1 << 40).unwrap();
    fs::write(at("half.pb"), [255; 9]).unwrap();
    fs::write(at("half.onnx"), [255; 9]).unwrap();
    fs::write(at("file"), "").unwrap();
    for name in [
        "pipe",
        "folder",
        "text",
        "huge",
        "loop",
        "not.json",
        "deep.json",
        "latin.json",
        "huge.json",
        "half.pb",
        "half.onnx",
        "file",
        "nowhere",
    ] {
        for command in ["ls", "show", "compare", "replay", "sbs", "gc"] {
            if command == "ls" && name.contains('.') {
                continue;
            }
            let said = piped(folder.path(), &[command, name]);
            assert!(
                said.code == 2 && said.err.contains(name),
                "{command} {name}: {} {}{}",
                said.code,
                said.out,
                said.err
            );
        }
    }
    // Half of what is there: what can be told is told, what cannot is named.
    for (file, content, command, code) in [
        ("nodes_0.json", "{".to_owned(), "sbs", 4),
        ("nodes_0.json", json!({ "schema": "rust_ort/nodes/9" }).to_string(), "sbs", 2),
        ("test_data_set_0/actual_0.pb", "xx".to_owned(), "compare", 4),
        ("test_data_set_0/input_0.pb", "xx".to_owned(), "replay", 4),
        ("model.onnx", "xx".to_owned(), "replay", 4),
        ("provenance.json", "{".to_owned(), "replay", 4),
    ] {
        let path = at(PART).join(file);
        let whole = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, content).unwrap();
        let said = piped(folder.path(), &[command, PART]);
        let name = Path::new(file).file_name().unwrap().to_str().unwrap();
        assert!(said.code == code, "{command} {file}: {} {}{}", said.code, said.out, said.err);
        assert!((said.err + &said.out).contains(name), "{command} {file}");
        fs::remove_file(&path).unwrap();
        fs::write(&path, whole).unwrap();
    }
    assert_eq!(piped(folder.path(), &["ls", "."]).code, 0);
}

#[test]
fn times_of_idleness_that_are_none_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("RUST_ORT_IDLE_TIMEOUT_S", "soon"),
        ("RUST_ORT_IDLE_DEVICE_TIMEOUT_S", "soon"),
        ("RUST_ORT_IDLE_DEVICE_TIMEOUT_S", "-1"),
        ("RUST_ORT_IDLE_DEVICE_TIMEOUT_S", "inf"),
    ] {
        let output = program(folder.path(), &["serve"]).env(name, text).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(&format!("{name}: expected a number of seconds")) && said.contains(text), "{said}");
    }
}
