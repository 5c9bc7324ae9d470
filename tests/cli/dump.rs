//! `ls`, `show`, `compare` and `gc` on a dump, as a shell sees them.

use std::path::Path;

use crate::dumping::{self, Said, json, wide};
use rust_ort::base::ids::StepId;
use rust_ort::compare::{Policy, judge};
use rust_ort::onnx::proto::{GraphProto, ModelProto, NodeProto, StringStringEntryProto};
use rust_ort::onnx::{save, value_info};
use rust_ort::tensor::{DType, TensorBuf, TensorDesc};

const STEP: &str = "run/0_0-forward/part_0/test_data_set_";

/// Steps 0 (match), 1 (mismatch by 0.5), 2 (no reference), 3 (incomplete).
fn dump(folder: &Path) {
    let (run, graph) = dumping::one_graph(folder, "");
    run.part(&graph, 0, b"", "").unwrap();
    let info = |name: &str| value_info(name, &TensorDesc::new(DType::F32, [2]).unwrap());
    let node = NodeProto {
        op_type: Some("Neg".into()),
        input: vec!["x".into()],
        output: vec!["y".into()],
        ..Default::default()
    };
    let proto = GraphProto { node: vec![node], input: vec![info("x")], output: vec![info("y")], ..Default::default() };
    let model = ModelProto { graph: Some(proto), ..Default::default() };
    dumping::unlist(&folder.join("run/0_0-forward/part_0"));
    save(&model, &folder.join("run/0_0-forward/part_0/model.onnx")).unwrap();
    let tensor = |value: f32| TensorBuf::from_f32([2], &[1., value]).unwrap();
    let reference = tensor(2.);
    for step in 0..4_u64 {
        let actual = tensor(if step == 1 { 2.5 } else { 2. });
        let data_set = run.begin_step(&graph, 0, StepId(step), &[("x".into(), reference.shared())]).unwrap();
        if step != 2 {
            run.references(&data_set, &[("y".into(), reference.shared())]);
            run.comparison(&data_set, &[judge("y", &reference.view(), &actual.view(), None)], Policy::default());
        }
        run.actuals(&data_set, &[("y".into(), actual.shared())]);
        if step != 3 {
            run.finish(&data_set);
        }
    }
    assert!(run.flush().lost.is_empty());
}

fn rust_ort(folder: &Path, args: &[&str]) -> Said {
    wide(folder, 100, args)
}

#[test]
fn ls_tells_parts_steps_and_verdicts() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let said = rust_ort(folder.path(), &["ls", "."]);
    assert_eq!(
        said.out,
        "part                      steps  state         verdicts\n\
         ./run/0_0-forward/part_0  4      1 incomplete  2 match, 1 mismatch\n"
    );
    // How many steps it has decides nothing.
    let narrow = wide(folder.path(), 65, &["ls", "."]);
    assert!(narrow.out.starts_with("part                      state         verdicts\n"), "{}", narrow.out);
    let said = rust_ort(folder.path(), &["ls", "run/0_0-forward/part_0"]);
    assert!(said.out.contains("test_data_set_1  complete") && said.out.contains("no manifest"), "{}", said.out);
    let value = json(folder.path(), &["ls", "."]);
    assert_eq!(value["runs"][0]["graphs"][0]["parts"][0]["steps"][1]["verdicts"]["mismatch"], 1);
    let said = rust_ort(folder.path(), &["ls", "nowhere"]);
    assert!(said.code == 2 && said.err.contains("nowhere: cannot read"), "{}", said.err);
}

#[test]
fn compare_tells_by_its_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let code = |args: &[&str]| rust_ort(folder.path(), &[&["compare"], args].concat()).code;
    let step = |n: u32| format!("{STEP}{n}");
    assert_eq!(code(&[&step(0)]), 0);
    assert_eq!(code(&[&step(1)]), 1);
    assert_eq!(code(&[&step(2)]), 3);
    assert_eq!(code(&[&step(3)]), 3);
    assert_eq!(code(&["."]), 1);
    assert_eq!(code(&[&step(1), "--atol", "0.5"]), 0);
    assert_eq!(code(&[&step(1), "--atol", "nan"]), 2);
    assert_eq!(code(&["run/run.json"]), 2);
    assert_eq!(code(&["nowhere"]), 2);
    std::fs::remove_file(folder.path().join(step(0)).join("actual_0.pb")).unwrap();
    assert_eq!(code(&[&step(0)]), 3);
    let damaged = folder.path().join(step(1)).join("actual_0.pb");
    std::fs::remove_file(&damaged).unwrap();
    std::fs::write(&damaged, [255; 9]).unwrap();
    assert_eq!(code(&[&step(1)]), 4);
    assert_eq!(code(&["."]), 4);
}

#[test]
fn compare_says_of_the_folder_that_it_is_in_what_it_says_of_it_by_name() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let named = rust_ort(folder.path(), &["compare", "run/0_0-forward/part_0/test_data_set_1"]);
    let inside = rust_ort(&folder.path().join("run/0_0-forward/part_0/test_data_set_1"), &["compare", "."]);
    assert!(!inside.out.contains("missing"), "{}", inside.out);
    assert_eq!((inside.code, inside.out.lines().last()), (named.code, named.out.lines().last()));
}

#[test]
fn compare_shows_where_and_by_how_much() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let said = rust_ort(folder.path(), &["compare", "run"]);
    assert!(said.out.contains("y     MISMATCH  1/2      5.00e-1  2.50e-1"), "{}", said.out);
    assert!(said.out.contains("[1]: 2.5 for 2"), "{}", said.out);
    assert!(
        said.out.ends_with("2 match, 1 mismatch, 1 not compared\ndata sets without reference: 1\n"),
        "{}",
        said.out
    );
    let value = json(folder.path(), &["compare", "run"]);
    assert_eq!((&value["summary"]["mismatch"], &value["without_reference"]), (&1.into(), &1.into()));
    assert_eq!(value["data_sets"][1]["verdicts"][0]["metrics"]["max_abs"], 0.5);
}

#[test]
fn no_progress_is_shown_where_no_terminal_is() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    for path in [".", &format!("{STEP}0")] {
        assert_eq!(rust_ort(folder.path(), &["compare", path]).err, "", "{path}");
    }
}

#[test]
fn show_prints_models_tensors_and_data_sets() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let show = |path: &str| rust_ort(folder.path(), &["show", path]);
    let said = show("run/0_0-forward/part_0/model.onnx");
    assert!(
        said.out.contains("Neg(x) -> y") && said.out.contains("input: name='x' type=dtype('float32') shape=[2]"),
        "{}",
        said.out
    );
    let said = show(&format!("{STEP}1/actual_0.pb"));
    assert!(said.out.contains("max       2.5\n") && said.out.contains("[1.0, 2.5]"), "{}", said.out);
    let said = show(&format!("{STEP}1"));
    assert!(said.out.contains("input_0.pb") && said.out.contains("MISMATCH"), "{}", said.out);
    for path in ["run", "run/0_0-forward", "run/0_0-forward/part_0", "run/0_0-forward/part_0/comparison_1.json", "."] {
        assert_eq!((show(path).code, show(path).err), (0, String::new()), "{path}");
    }
    let shown = json(folder.path(), &["show", "run/0_0-forward/part_0/model.onnx"]);
    assert_eq!((&shown["ops"]["Neg"], &shown["passes"]), (&1.into(), &serde_json::Value::Null));
    let value = json(folder.path(), &["show", &format!("{STEP}0/input_0.pb")]);
    assert_eq!(value["statistics"]["mean"], 1.5);
    assert_eq!(show("tensors").code, 2);
}

#[test]
fn compare_shows_what_does_not_match_and_counts_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let brief = rust_ort(folder.path(), &["compare", "run"]).out;
    assert!(!brief.contains("test_data_set") && brief.contains("0_0-forward/0 #1  y     MISMATCH"), "{brief}");
    assert!(brief.contains("and 3 more outputs (2 match, 1 not compared): --all has all\n"), "{brief}");
    assert!(brief.contains("not compared, 1: incomplete data set: no manifest"), "{brief}");
    let all = rust_ort(folder.path(), &["compare", "run", "--all"]).out;
    assert!(all.contains("test_data_set_0\n") && all.matches("match").count() > 2, "{all}");
}

#[test]
fn show_exits_as_ls_does_where_its_listing_tells_of_damage() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    dumping::unlist(&folder.path().join(STEP.to_owned() + "0"));
    std::fs::write(folder.path().join(STEP.to_owned() + "0").join("manifest.json"), "{").unwrap();
    for command in ["ls", "show"] {
        let said = rust_ort(folder.path(), &[command, "run"]);
        assert!(
            said.code == 4 && said.out.contains("1 damaged") && said.err.contains("damaged"),
            "{}{}",
            said.out,
            said.err
        );
    }
}

#[test]
fn a_run_below_dumps_is_found_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    dump(&folder.path().join("dumps"));
    for (command, code) in [("ls", 0), ("show", 0), ("compare", 1), ("sbs", 3)] {
        let said = rust_ort(folder.path(), &[command, "run"]);
        assert_eq!(said.code, code, "{command}: {}{}", said.out, said.err);
    }
    assert_eq!(json(folder.path(), &["gc"])["steps"], 0);
    let said = rust_ort(folder.path(), &["ls", "walk"]);
    assert!(said.code == 2 && said.err.contains("walk: cannot read"), "{}", said.err);
}

#[test]
fn what_ls_prints_can_be_given_to_other_commands() {
    let folder = tempfile::tempdir().unwrap();
    dump(&folder.path().join("my dumps"));
    for (args, command) in [(&["ls", "my dumps"][..], "ls"), (&["ls", "my dumps", "--steps"], "show")] {
        let said = wide(folder.path(), 200, args);
        let path = said.out.lines().nth(1).unwrap().split('\'').nth(1).unwrap();
        assert!(path.starts_with("my dumps/run/0_0-forward/part_0"), "{}", said.out);
        let said = rust_ort(folder.path(), &[command, path]);
        assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    }
}

#[test]
fn a_run_is_found_where_a_folder_that_is_no_dump_has_its_name_and_a_misspelt_one_is_hinted_at() {
    let folder = tempfile::tempdir().unwrap();
    dump(&folder.path().join("dumps"));
    std::fs::create_dir(folder.path().join("run")).unwrap();
    for (command, code) in [("ls", 0), ("show", 0), ("compare", 1), ("sbs", 3)] {
        let said = rust_ort(folder.path(), &[command, "run"]);
        assert_eq!(said.code, code, "{command}: {}{}", said.out, said.err);
    }
    let said = rust_ort(folder.path(), &["compare", "rum"]);
    assert!(said.code == 2 && said.err.contains("rum: cannot read"), "{}", said.err);
    assert!(said.err.ends_with("; did you mean \"run\"?; `rust-ort ls` lists the dumps\n"), "{}", said.err);
}

#[test]
fn a_comparison_of_nothing_says_what_to_dump_with() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let said = rust_ort(folder.path(), &["compare", &format!("{STEP}2")]);
    let why = "nothing was compared: eager's outputs were not dumped; dump with compare=\"outputs\"\n";
    assert!(said.code == 3 && said.out.starts_with(why), "{}{}", said.out, said.err);
    assert_eq!(json(folder.path(), &["compare", &format!("{STEP}2")])["nothing"], why.trim_end());
    assert_eq!(json(folder.path(), &["compare", "run"])["nothing"], serde_json::Value::Null);
    for step in 0..4 {
        std::fs::remove_dir_all(folder.path().join(format!("{STEP}{step}"))).unwrap();
    }
    let said = rust_ort(folder.path(), &["compare", "run"]);
    let why = "nothing was compared: there are no data sets; dump a call";
    assert!(said.code == 3 && said.out.starts_with(why), "{}{}", said.out, said.err);
    let said = rust_ort(folder.path(), &["replay", "run"]);
    assert!(said.code == 3 && said.err.contains("run: no data sets; dump a call"), "{}{}", said.out, said.err);
}

#[test]
fn a_graph_is_shown_as_a_summary_and_code_and_a_run_as_a_summary() {
    let folder = tempfile::tempdir().unwrap();
    let run = dumping::open(
        folder.path(),
        &serde_json::json!({
            "program": "train.py", "pid": 7, "start": "2026-01-01T00:00:00", "python": "3.11.7", "devices": ["cpu"],
            "versions": {"torch": "2.13.0", "onnxruntime-gpu": "-"},
        })
        .to_string(),
    );
    let left = |node: &str| serde_json::json!({"node": node, "op": "aten.foo", "reason": "no rule", "source": ""});
    let parts = serde_json::json!({
        "compute_nodes": 12, "eager_nodes": 2, "eager": [left("a"), left("b")], "parts": [],
        "options": {"compare": "nodes", "threads": 2, "opset": null, "disable_passes": [], "precision_rules": {}},
    });
    dumping::graph(&run, "0_0-forward", &parts.to_string());
    assert!(run.flush().lost.is_empty());
    let said = rust_ort(folder.path(), &["show", "run/0_0-forward"]);
    assert_eq!(
        said.out,
        "graph      0_0-forward\n\
         nodes      10 on ONNX Runtime in 0 parts, 2 in eager\n\
         options    compare=\"nodes\"\n\
         in eager   2 × aten.foo: no rule\n\
         \n\
         part             steps  state  verdicts\n\
         run/0_0-forward  0             -\n\
         \n\
         fx.txt:\n\
         fx\n"
    );
    assert_eq!(json(folder.path(), &["show", "run/0_0-forward"])["info"]["options"]["threads"], 2);
    let said = rust_ort(folder.path(), &["show", "run"]);
    let summary = "run        run\nprogram    train.py, pid 7\nstarted    2026-01-01T00:00:00\n\
                   versions   torch 2.13.0, Python 3.11.7\ndevices    cpu\n\n";
    assert!(said.out.starts_with(summary), "{}", said.out);
}

#[test]
fn what_decides_stays_in_a_narrow_table() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let said = wide(folder.path(), 80, &["compare", "run"]);
    let (header, row) = (said.out.lines().next().unwrap(), said.out.lines().nth(1).unwrap());
    assert_eq!(header, "of                name  verdict   outside  max|Δ|   /max|r|  worst, or why", "{}", said.out);
    assert!(row.starts_with("0_0-forward/0 #1  y     MISMATCH  1/2      5.00e-1  2.50e-1  [1]: 2.5 for 2"), "{row}");
}

#[test]
fn show_says_which_passes_ran() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let part = "run/0_0-forward/part_0";
    let shown = || rust_ort(folder.path(), &["show", part]).out;
    assert!(!shown().contains("passes"), "{}", shown());
    let optimized = folder.path().join(part).join("model.ort.onnx");
    let write = |passes: &[(&str, &str)]| {
        let entry = |(key, value): &(&str, &str)| StringStringEntryProto {
            key: Some((*key).into()),
            value: Some((*value).into()),
        };
        let metadata_props = passes.iter().map(entry).collect();
        let graph = Some(GraphProto::default());
        save(&ModelProto { graph, metadata_props, ..Default::default() }, &optimized).unwrap();
    };
    write(&[]);
    assert!(shown().contains("model.ort.onnx: passes none\n"), "{}", shown());
    write(&[("rust_ort.passes", "output-copies 2")]);
    assert!(shown().contains("model.ort.onnx: passes output-copies 2\n"), "{}", shown());
    let model = format!("{part}/model.ort.onnx");
    assert_eq!(json(folder.path(), &["show", &model])["passes"], "output-copies 2");
    assert!(rust_ort(folder.path(), &["show", &model]).out.contains("\npasses: output-copies 2\n"));
}

#[test]
fn no_line_of_a_table_is_wider_than_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    for args in [&["ls", ".", "--steps"][..], &["compare", "."], &["show", "run/0_0-forward/part_0"]] {
        for columns in [40, 60, 80] {
            for line in wide(folder.path(), columns, args).out.lines() {
                assert!(line.chars().count() <= columns, "{columns} {args:?}: {line}");
            }
        }
    }
}

#[test]
fn outputs_are_judged_by_name() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let all = json(folder.path(), &["compare", "run"]);
    assert_eq!(
        json(folder.path(), &["compare", "run", "--only", "y*"])["summary"]["mismatch"],
        all["summary"]["mismatch"]
    );
    let said = rust_ort(folder.path(), &["compare", "run", "--only", "yy"]);
    assert!(said.code == 2 && said.err.contains("no output is \"yy\"; did you mean \"y\"?"), "{}", said.err);
}

#[test]
fn a_graph_is_shown_as_code_and_held_against_its_hash() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let path = "run/0_0-forward/fx.txt";
    let text = std::fs::read_to_string(folder.path().join(path)).unwrap();
    assert_eq!(rust_ort(folder.path(), &["show", path]).out.trim_end(), text.trim_end());
    assert_eq!(json(folder.path(), &["show", path])["text"], text);
    std::fs::write(folder.path().join(path), text + "x").unwrap();
    assert_eq!(rust_ort(folder.path(), &["show", path]).code, 4);
    rustix::fs::mkfifoat(rustix::fs::CWD, folder.path().join("pipe.txt"), rustix::fs::Mode::RUSR).unwrap();
    let said = rust_ort(folder.path(), &["show", "pipe.txt"]);
    assert!(said.code == 2 && said.err.contains(".json or .txt"), "{}", said.err);
    std::fs::write(folder.path().join("stray.txt"), "a\x1b]0;x\x07").unwrap();
    assert_eq!(rust_ort(folder.path(), &["show", "stray.txt"]).out.trim_end(), "a\\u{1b}]0;x\\u{7}");
}

#[test]
fn gc_keeps_the_newest_and_says_what_went() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path());
    let said = rust_ort(folder.path(), &["gc", ".", "--keep", "1"]);
    assert!(said.code == 0 && said.out.starts_with("removed 2 data sets, "), "{}{}", said.out, said.err);
    assert_eq!(json(folder.path(), &["gc", "."])["steps"], 0);
    assert_eq!(rust_ort(folder.path(), &["gc", "nowhere"]).code, 2);
}
