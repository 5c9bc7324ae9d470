//! `rust-ort sbs` on tables of nodes, as a shell sees it.

use std::path::Path;

use crate::dumping::{self, Said, piped, wide};
use rust_ort::base::ids::StepId;
use rust_ort::compare::{TensorVerdict, Verdict, judge, judge_sums, summary};
use rust_ort::dump::reader;
use rust_ort::onnx::proto::{GraphProto, ModelProto, NodeProto};
use rust_ort::onnx::save;
use rust_ort::tensor::{Shape, TensorBuf};
use serde_json::{Value, json};

const PART: &str = "run/0_0-forward/part_0";
const LONG: &str = "model_layers_0_self_attention_query_projection_weight";

fn tensor(value: f32) -> TensorBuf {
    TensorBuf::from_f32([2], &[1., value]).unwrap()
}

/// The candidate is off by this much.
fn off(name: &str, by: f32) -> TensorVerdict {
    judge(name, &tensor(2.).view(), &tensor(2. + by).view(), None)
}

fn node(index: u64, name: &str, local: &TensorVerdict, cumulative: &TensorVerdict) -> Value {
    json!({
        "index": index, "name": name, "op": "aten.mul.Tensor", "onnx_ops": ["Cast", "Mul"], "onnx_index": index,
        "module": "layer, the \"first\"", "source": "model.py:12 in forward", "role": "", "seq_nr": -1,
        "dtype": "float32", "dims": [2], "reference_signature": "ABAA", "candidate_signature": "ABAA",
        "reference_ns": 1500, "candidate_ns": 0, "local": local, "cumulative": cumulative,
        "float64": if local.verdict == Verdict::Mismatch {
            json!({
                "reference_error": 1e-7, "candidate_error": 0.5, "reference_excess": 0.5, "candidate_excess": 2e6,
            })
        } else {
            Value::Null
        },
        "as_right": "",
    })
}

/// One node of each mark: = ~ ! ? x.
fn nodes() -> Vec<Value> {
    let (same, far) = (off("v", 0.), off("v", 0.5));
    let failed = Verdict::Failed("shapes differ".to_owned());
    let failed = TensorVerdict { name: "v".to_owned(), verdict: failed, metrics: None, noise: None };
    vec![
        node(0, "same", &same, &same),
        node(1, "drifted", &same, &off("v", 0.25)),
        node(2, LONG, &far, &far),
        node(3, "skipped", &TensorVerdict::not_compared("v", "no kernel alone"), &same),
        node(4, "broken", &failed, &failed),
    ]
}

fn dump(folder: &Path, nodes: &[Value], plain: &[TensorVerdict]) {
    let (run, graph) = dumping::one_graph(folder, "");
    run.part(&graph, 0, b"", "").unwrap();
    run.finish(&run.begin_step(&graph, 0, StepId(7), &[]).unwrap());
    assert!(run.flush().lost.is_empty());
    let table = json!({
        "schema": "rust_ort/nodes/2", "graph": graph, "part": 0, "step": 7, "complete": true,
        "plain": plain, "nodes": nodes,
    });
    std::fs::write(folder.join(PART).join("nodes_7.json"), table.to_string()).unwrap();
    dumping::unlist(&folder.join(PART));
    let split = NodeProto { output: vec!["other".into(), "same".into()], ..Default::default() };
    let proto = GraphProto { node: vec![split], ..Default::default() };
    save(&ModelProto { graph: Some(proto), ..Default::default() }, &folder.join(PART).join("model.onnx")).unwrap();
}

fn sbs(folder: &Path, columns: &str, args: &[&str]) -> Said {
    wide(folder, columns.parse().unwrap(), &[&["sbs"], args].concat())
}

#[test]
fn the_reader_gives_the_table_or_says_why_not() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path(), &nodes(), &[]);
    let part = folder.path().join(PART);
    let table = reader::nodes(&part, 7).unwrap().unwrap();
    assert_eq!((table.nodes.len(), table.first_local_mismatch().unwrap().name.as_str()), (5, LONG));
    assert_eq!(table.first_cumulative_mismatch().unwrap().name, "drifted");
    assert!(reader::nodes(&part, 8).unwrap().is_none());
    let path = part.join("nodes_7.json");
    let text = std::fs::read_to_string(&path).unwrap().replace("nodes/2", "nodes/9");
    std::fs::write(&path, text).unwrap();
    assert!(reader::nodes(&part, 7).unwrap_err().to_string().contains("rust_ort/nodes/9"));
    let said = sbs(folder.path(), "100", &["run"]);
    assert!(said.code == 2 && said.err.contains("nodes_7.json: schema"), "{}", said.err);
}

#[test]
fn every_mark_is_shown_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path(), &nodes(), &[off("y", 0.), off("z", 0.)]);
    let said = sbs(folder.path(), "200", &["run", "--all"]);
    let marks: Vec<_> = said.out.lines().skip(2).take(5).map(|line| (&line[..1], line.contains("0.5"))).collect();
    assert_eq!(marks.iter().map(|(mark, _)| *mark).collect::<String>(), "=~!?x", "{}", said.out);
    for line in [
        "local:                     2 match, 1 mismatch, 1 not compared, 1 failed",
        "cumulative:                2 match, 2 mismatch, 1 failed",
        &format!("first local mismatch:      #2 {LONG} (aten.mul.Tensor)\n"),
        "\n                           layer, the \"first\"\n                           model.py:12 in forward\n",
        "\n                           candidate worse: from float64 eager is 1e-7, ONNX Runtime 0.5; local worst at",
        "first cumulative mismatch: #1 drifted (aten.mul.Tensor)\n",
        "what observing changed:    nothing: the plain session gave the same 2 outputs",
    ] {
        assert!(said.out.contains(line), "{line}\n{}", said.out);
    }
    assert_eq!(said.code, 2);
}

#[test]
fn a_legend_says_what_marks_and_columns_mean() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path(), &nodes(), &[]);
    let all = sbs(folder.path(), "80", &["run", "--all"]).out.replace('\n', " ");
    let marks = "= match, ≈ noise, ~ it drifted only, ! its kernel differs, ? not compared, x failed; #: place among";
    assert!(all.contains(marks) && all.contains("; local: the node's own kernel on eager's inputs"), "{all}");
    assert!(!all.contains("local|Δ|: "), "a column that is not shown: {all}");
    let broad = sbs(folder.path(), "300", &["run", "--all"]).out.replace('\n', " ");
    assert!(broad.contains("local|Δ|: the same as max|Δ|"), "{broad}");
    let brief = sbs(folder.path(), "80", &["run"]).out;
    assert!(brief.starts_with("local: the node's own kernel on eager's inputs"), "{brief}");
    let none = sbs(folder.path(), "80", &["run", "--only", "noise"]).out;
    assert!(!none.contains("= match"), "{none}");
}

#[test]
fn noise_is_shown_where_it_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let noise = |kind: &str, candidate: f64, condition: f64| {
        json!({
            "kind": kind, "reference_error": 0.5, "candidate_error": candidate, "reference_excess": 1.0,
            "candidate_excess": 2.0 * candidate, "distance": 0.25, "condition": condition, "ratio": 2.0 * candidate,
        })
    };
    let mut nodes = nodes();
    for node in &mut nodes {
        node.as_object_mut().unwrap().remove("float64");
    }
    nodes[0]["local"]["noise"] = noise("noise", 0.5, 0.5);
    nodes[0]["cumulative"]["noise"] = noise("ill_conditioned", 0.5, 40.);
    nodes[1]["local"]["noise"] = noise("candidate_worse", 1.5, 0.5);
    nodes[3]["no_float64"] = "random numbers".into();
    dump(folder.path(), &nodes, &[]);
    let path = folder.path().join(PART).join("nodes_7.json");
    let text = std::fs::read_to_string(&path).unwrap().replace("nodes/2", "nodes/3");
    std::fs::write(&path, text).unwrap();
    let said = sbs(folder.path(), "900", &["run", "--all"]);
    for text in [
        "local noise:               1 noise, 1 candidate worse\n",
        "cumulative noise:          1 ill-conditioned\n",
        "first worse than eager:    #1 drifted (aten.mul.Tensor)\n",
        "drift: ill-conditioned, eager is off by 40 steps: from float64 eager is 0.5, ONNX Runtime 0.5",
        "candidate worse: from float64 eager is 0.5, ONNX Runtime 1.5",
    ] {
        assert!(said.out.contains(text), "{text}\n{}", said.out);
    }
    let head = said.out.lines().nth(1).unwrap();
    assert!(head.contains("drift noise") && head.contains("×eager"), "{head}");
    let said = sbs(folder.path(), "100", &["run", "--json"]);
    let table = &serde_json::from_str::<Value>(&said.out).unwrap()["tables"][0];
    let counts = json!({"noise": 1, "candidate_worse": 1, "reference_worse": 0, "ill_conditioned": 0});
    assert_eq!((&table["summary"]["local_noise"], &table["first_worse_than_eager"]), (&counts, &json!("drifted")));
    assert_eq!(table["nodes"][0]["cumulative"]["noise"]["condition"], 40.);
    assert_eq!(table["nodes"][3]["no_float64"], "random numbers");
}

#[test]
fn what_observing_changed_is_told_and_judged() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path(), &nodes()[..1], &[off("y", 0.), off("z", 0.5)]);
    let said = sbs(folder.path(), "200", &["run"]);
    assert!(said.out.contains("1 of 2 outputs, at most max|Δ|/max|r| 0.25 (1 match, 1 mismatch)"), "{}", said.out);
    assert_eq!(said.code, 1);
}

#[test]
fn the_exit_code_is_that_of_the_worst_verdict() {
    for (nodes, code) in [(&nodes()[..1], 0), (&nodes()[..3], 1), (&nodes()[..], 2), (&nodes()[3..4], 3), (&[], 3)] {
        let folder = tempfile::tempdir().unwrap();
        dump(folder.path(), nodes, &[]);
        assert_eq!(sbs(folder.path(), "100", &["run", "--only", "match"]).code, code);
    }
}

#[test]
fn a_value_that_drifts_inside_accuses_nobody_and_an_output_does() {
    let said = |nodes: &[Value], comparison: Option<Verdict>| {
        let folder = tempfile::tempdir().unwrap();
        dump(folder.path(), nodes, &[]);
        if let Some(verdict) = comparison {
            let verdicts = [TensorVerdict { name: "drifted".to_owned(), verdict, metrics: None, noise: None }];
            let comparison = json!({
                "schema": "rust_ort/comparison/2", "graph": "0_0-forward", "part": 0, "step": 7, "policy": null,
                "summary": summary(&verdicts), "verdicts": verdicts,
            });
            std::fs::write(folder.path().join(PART).join("comparison_7.json"), comparison.to_string()).unwrap();
        }
        sbs(folder.path(), "200", &["run"])
    };
    let mut drifted = nodes()[..2].to_vec();
    let inside = said(&drifted, None);
    assert!(
        inside.code == 0 && inside.out.contains("cumulative:                1 match, 1 mismatch\n"),
        "{}",
        inside.out
    );
    drifted[1]["role"] = "PlainAOTOutput".into();
    let output = said(&drifted, None);
    assert!(output.code == 1 && output.out.contains("outputs:                   1 mismatch\n"), "{}", output.out);
    // As the comparison of the whole says it.
    let noise = said(&drifted, Some(Verdict::Noise));
    for text in ["outputs:                   1 noise\n", "cumulative:                1 match, 1 noise\n"] {
        assert!(noise.code == 0 && noise.out.contains(text), "{}", noise.out);
    }
    assert_eq!(said(&drifted, Some(Verdict::Mismatch)).code, 1);
}

#[test]
fn any_place_of_a_dump_leads_to_its_tables() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path(), &nodes()[..1], &[]);
    for path in
        [".", "run", "run/0_0-forward", PART, &format!("{PART}/test_data_set_7"), &format!("{PART}/nodes_7.json")]
    {
        let said = sbs(folder.path(), "100", &[path]);
        assert!(said.code == 0 && said.out.contains("1 node (1 match)"), "{path}: {}{}", said.out, said.err);
    }
    for (path, text) in [("run/run.json", "expected a nodes_<step>.json"), ("nowhere", "cannot read")] {
        let said = sbs(folder.path(), "100", &[path]);
        assert!(said.code == 2 && said.err.contains(text), "{}", said.err);
    }
    std::fs::remove_file(folder.path().join(PART).join("nodes_7.json")).unwrap();
    let said = sbs(folder.path(), "100", &["run"]);
    assert!(said.code == 3 && said.err.contains("compare=\"nodes\""), "{}", said.err);
}

#[test]
fn rows_are_chosen_and_sorted() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path(), &nodes(), &[]);
    let names = |args: &[&str]| {
        let said = sbs(folder.path(), "100", &[&["run", "--json"], args].concat());
        let value: Value = serde_json::from_str(&said.out).unwrap();
        let names = value["tables"][0]["nodes"].as_array().unwrap().iter().map(|node| node["name"].as_str().unwrap());
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(names(&["--only", "mismatch"]), ["drifted", LONG]);
    assert_eq!(names(&["--only", "failed"]), ["broken"]);
    assert_eq!(names(&["--only", "not_compared"]), ["skipped"]);
    assert_eq!(names(&["--only", "match"]), ["same"]);
    assert_eq!(names(&["--sort", "cumulative", "--limit", "2"]), [LONG, "drifted"]);
    assert_eq!(names(&["--sort", "local"]), [LONG, "same", "drifted", "skipped", "broken"]);
    let said = sbs(folder.path(), "100", &["run", "--limit", "2"]);
    assert!(said.out.contains("3 rows more are not shown"), "{}", said.out);
}

#[test]
fn no_row_is_wider_than_the_terminal_and_numbers_stay_whole() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path(), &nodes(), &[]);
    for columns in ["40", "50", "80", "120", "200", "400"] {
        for args in [&["run"][..], &["run", "--all"], &["run", "--wide"]] {
            let said = sbs(folder.path(), columns, args);
            let width: usize = columns.parse().unwrap();
            for line in said.out.lines() {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
        }
    }
    let narrow = sbs(folder.path(), "60", &["run", "--all"]).out;
    let row = narrow.lines().find(|line| line.starts_with('!')).unwrap();
    assert!(row.contains("model_") && row.contains("…") && row.contains("2.50e-1"), "{row}");
    let [narrow, wide] = ["60", "200"].map(|columns| {
        let out = sbs(folder.path(), columns, &["run", "--all"]).out;
        out.lines().nth(1).unwrap().split_whitespace().count()
    });
    assert!(narrow < wide, "{narrow} {wide}");
}

#[test]
fn csv_holds_everything_and_quotes_what_must_be() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path(), &nodes(), &[]);
    let said = sbs(folder.path(), "20", &["run", "--csv"]);
    let lines: Vec<_> = said.out.split("\r\n").collect();
    assert_eq!(
        lines[0],
        "graph,part,step,mark,id_node,onnx_id_node,fx_name,onnx_name,fx_op,onnx_ops,onnx_id_output,fx_type,onnx_type,\
         local_verdict,local_err_abs,local_err_rel,local_err_rel_to_max,local_err_nan,local_err_h01,local_err_h001,\
         local_outside,local_n,cumulative_verdict,cumulative_err_abs,cumulative_err_rel,cumulative_err_rel_to_max,\
         cumulative_err_nan,cumulative_err_h01,cumulative_err_h001,cumulative_outside,cumulative_n,fx_ms,onnx_ms,\
         fx_signature,onnx_signature,comment,module,source,role,seq_nr,float64_fx_err,float64_onnx_err,\
         local_noise,local_noise_ratio,local_noise_fx_err,local_noise_onnx_err,local_condition,cumulative_noise,\
         cumulative_noise_ratio,cumulative_noise_fx_err,cumulative_noise_onnx_err,cumulative_condition,no_float64,\
         local_fx_not_finite,local_onnx_not_finite,local_underflow,cumulative_fx_not_finite,\
         cumulative_onnx_not_finite,cumulative_underflow,births,local_rms_fx,local_rms_onnx,local_bias_fx,\
         local_bias_onnx,local_beyond_fx,local_beyond_onnx,runtimes"
    );
    assert_eq!(
        lines[1],
        "0_0-forward,0,7,=,0,0,same,same,aten.mul.Tensor,Cast+Mul,1,float32[2],float32[2],match,0e0,0e0,0e0,0,0,0,0,2,\
         match,0e0,0e0,0e0,0,0,0,0,2,1.5e-3,,ABAA,ABAA,,\"layer, the \"\"first\"\"\",model.py:12 in forward,,,,,,,,,,,,,,,\
         ,0,0,0e0,0,0,0e0,,,,,,,,"
    );
    assert!(lines[3].contains(",mismatch,5e-1,2.5e-1,2.5e-1,0,1,1,1,2,"), "{}", lines[3]);
    // What a table of the version before says of float64.
    let end = ",1e-7,5e-1,candidate worse,5e6,1e-7,5e-1,NaN,,,,,,,0,0,0e0,0,0,0e0,,,,,,,,";
    assert!(lines[3].ends_with(end), "{}", lines[3]);
    assert_eq!((lines.len(), lines[6]), (7, ""));
}

#[test]
fn all_columns_are_shown_one_record_a_block_where_a_row_does_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path(), &nodes(), &[]);
    let all = sbs(folder.path(), "100", &["run", "--wide"]).out;
    let names = piped(folder.path(), &["sbs", "run", "--csv"]).out;
    let unknown = ["onnx_ms", "role", "seq_nr", "no_float64", "cumulative_condition", "births"];
    let sparse = ["cumulative_noise", "local_rms_", "local_bias_", "local_beyond_", "runtimes"];
    let is_known = |name: &&str| !unknown.contains(name) && !sparse.iter().any(|start| name.starts_with(start));
    for name in names.lines().next().unwrap().split(',').filter(is_known) {
        assert!(all.lines().any(|line| line.split_whitespace().next() == Some(name)), "{name} not in\n{all}");
    }
    assert!(all.lines().any(|line| line.ends_with(LONG)) && all.contains("2.50e-1"), "{all}");
    assert!(all.lines().all(|line| line.chars().count() <= 100), "{all}");
    let table = sbs(folder.path(), "1500", &["run", "--wide"]).out;
    assert_eq!(table.lines().filter(|line| line.starts_with("0_0-forward")).count(), 5, "{table}");
}

#[test]
fn a_piped_table_is_as_wide_as_120_columns() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path(), &nodes(), &[]);
    for args in [&["sbs", "run"][..], &["sbs", "run", "--wide"]] {
        let said = piped(folder.path(), args);
        assert!(said.out.lines().all(|line| line.chars().count() <= 120), "{}", said.out);
    }
}

#[test]
fn a_table_of_nodes_is_shown_as_what_is_wrong_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let same = off("v", 0.);
    let mut many: Vec<Value> = (0..300).map(|i| node(i, &format!("same_{i}"), &same, &same)).collect();
    many.push(node(300, "guilty", &off("v", 0.5), &off("v", 0.5)));
    dump(folder.path(), &many, &[]);
    let said = piped(folder.path(), &["show", &format!("{PART}/nodes_7.json")]);
    assert!(said.code == 0 && said.out.lines().count() < 40, "{}", said.out);
    assert!(said.out.contains("guilty") && said.out.contains("300 match, 1 mismatch"), "{}", said.out);
    assert!(said.out.contains("and 300 more nodes (300 match): --all has all\n"), "{}", said.out);
    assert!(said.out.contains("next: dump again with"), "{}", said.out);
}

#[test]
fn the_reproduction_of_the_first_wrong_node_is_named() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path(), &nodes(), &[]);
    let reproduction = format!("{PART}/node_{LONG}_7");
    std::fs::create_dir_all(folder.path().join(&reproduction)).unwrap();
    assert!(!sbs(folder.path(), "200", &["run"]).out.contains(&reproduction));
    std::fs::write(folder.path().join(&reproduction).join("model.onnx"), "").unwrap();
    assert!(sbs(folder.path(), "200", &["run"]).out.contains(&reproduction));
}

#[test]
fn without_a_word_what_does_not_match_is_shown_the_worst_first_and_the_rest_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let same = off("v", 0.);
    let mut many = nodes();
    many.extend((5..305).map(|i| node(i, &format!("same_{i}"), &same, &same)));
    many.extend((305..330).map(|i| node(i, &format!("far_{i}"), &same, &off("v", 0.3 + i as f32 / 1e3))));
    dump(folder.path(), &many, &[]);
    let said = sbs(folder.path(), "120", &["run"]);
    let rows: Vec<&str> =
        said.out.lines().skip_while(|line| !line.trim_start().starts_with('#')).skip(1).take(20).collect();
    let marks: String = rows.iter().map(|row| row.chars().next().unwrap()).collect();
    assert_eq!(marks, "x!".to_owned() + &"~".repeat(18), "{}", said.out);
    assert!(rows[2].contains("far_329") && rows[3].contains("far_328"), "{}", said.out);
    for text in [
        "local: the node's own kernel on eager's inputs",
        "\nand 310 more nodes (301 match, 8 drifted, 1 not compared): --all has all\n",
        "\nnot compared:              1: no kernel alone\n",
        "\nfailed:                    1: shapes differ\n",
        "\nnext: dump again with compare=\"nodes\" and dump_values=True, for rust-ort blame\n",
    ] {
        assert!(said.out.contains(text), "{text}\n{}", said.out);
    }
    assert!(said.out.lines().count() < 50, "{}", said.out);
    let all = sbs(folder.path(), "120", &["run", "--all"]).out;
    assert!((many.len()..many.len() + 25).contains(&all.lines().count()), "{all}");
}

#[test]
fn the_next_command_is_one_that_a_shell_takes_and_that_can_tell() {
    let folder = tempfile::tempdir().unwrap();
    dump(folder.path(), &[node(0, "guilty", &off("v", 0.5), &off("v", 0.5))], &[]);
    let spaced = folder.path().join("two words");
    std::fs::rename(folder.path().join("run"), &spaced).unwrap();
    let next = |args: &[&str]| sbs(folder.path(), "120", args).out.lines().last().unwrap_or_default().to_owned();
    assert!(next(&["two words"]).starts_with("next: dump again with compare=\"nodes\" and dump_values=True"));
    std::fs::create_dir(spaced.join("0_0-forward/part_0/values_7")).unwrap();
    assert_eq!(next(&["two words"]), "next: rust-ort blame 'two words'");
}

#[test]
fn memory_that_nobody_wrote_is_not_left_out() {
    let nothing = |told: bool| {
        let mut row =
            node(1, "empty", &TensorVerdict::not_compared("empty", "memory that nobody wrote into"), &off("v", 0.));
        row["cumulative"] = row["local"].clone();
        row["nothing"] = told.into();
        row
    };
    for (rows, code) in [
        (vec![nodes()[0].clone(), nothing(true)], 0),
        (vec![nodes()[0].clone(), nothing(false)], 3),
        (vec![nodes()[0].clone(), nothing(true), nodes()[3].clone()], 3),
        (vec![nothing(true)], 3),
        (vec![nothing(true), nodes()[2].clone()], 1),
    ] {
        let folder = tempfile::tempdir().unwrap();
        dump(folder.path(), &rows, &[]);
        let said = sbs(folder.path(), "100", &["run"]);
        assert_eq!(said.code, code, "{}", said.out);
        assert!(said.out.contains("not compared:              1: memory that nobody wrote into\n"), "{}", said.out);
    }
}

#[test]
fn a_drifted_sum_that_its_terms_explain_is_zero_but_for_rounding() {
    let folder = tempfile::tempdir().unwrap();
    let [zero, near] = [[0.; 2], [2e-8, 0.]].map(|values| TensorBuf::from_f32([2], &values).unwrap());
    let terms = TensorBuf::from_f64(Shape::new([2]).unwrap(), &[0.5, 0.5]);
    let judged = judge("mean", &zero.view(), &near.view(), None);
    let explained = judge_sums(judged.clone(), zero.shared(), near.shared(), terms.shared());
    assert_eq!((&judged.verdict, &explained.verdict), (&Verdict::Mismatch, &Verdict::Match));
    dump(folder.path(), &[node(0, "mean", &off("v", 0.), &explained)], &[]);
    let said = sbs(folder.path(), "400", &["run", "--all"]);
    for text in ["first cumulative mismatch: none\n", "drift: zero but for rounding of sums whose terms come to 0.5"] {
        assert!(said.code == 0 && said.out.contains(text), "{text}\n{}", said.out);
    }
}
