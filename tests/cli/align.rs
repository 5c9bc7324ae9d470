//! `rust-ort align`, as a shell sees it.

use std::fs;
use std::path::Path;

use bytes::Bytes;
use prost::Message as _;
use rust_ort::onnx::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto,
    TensorProto, ValueInfoProto, attribute_proto::AttributeType, type_proto,
};
use rust_ort::onnx::{save, tensor_proto, value_info};
use rust_ort::tensor::{DType, TensorBuf, TensorDesc};
use serde_json::{Value, json};

use crate::common;
use crate::dumping::{self, Said, program};

fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    let own = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    NodeProto { op_type: Some(op.into()), input: own(inputs), output: own(outputs), ..Default::default() }
}

fn info(name: &str, dtype: DType, dims: &[i64]) -> ValueInfoProto {
    value_info(name, &TensorDesc::new(dtype, dims).unwrap())
}

fn floats(values: &[f32]) -> TensorBuf {
    TensorBuf::from_f32([values.len() as i64], values).unwrap()
}

fn constant(name: &str, values: &[f32]) -> TensorProto {
    tensor_proto(name, &floats(values).view())
}

fn model(graph: GraphProto) -> ModelProto {
    let opset = |domain: &str, version| OperatorSetIdProto { domain: Some(domain.into()), version: Some(version) };
    let graph = GraphProto { name: Some("g".into()), ..graph };
    ModelProto {
        ir_version: Some(9),
        opset_import: vec![opset("", 18), opset("test.custom", 1), opset("local", 1)],
        graph: Some(graph),
        ..Default::default()
    }
}

/// `y = (x + w) * w`, its values called so after `prefix`.
fn sums(prefix: &str, w: &[f32]) -> GraphProto {
    let hidden = format!("{prefix}hidden");
    let y = format!("{prefix}y");
    GraphProto {
        input: vec![info("x", DType::F32, &[2])],
        output: vec![info(&y, DType::F32, &[2])],
        initializer: vec![constant("w", w)],
        node: vec![node("Add", &["x", "w"], &[&hidden]), node("Mul", &[&hidden, "w"], &[&y])],
        ..Default::default()
    }
}

fn put(folder: &Path, name: &str, graph: GraphProto) {
    fs::create_dir_all(folder).unwrap();
    save(&model(graph), &folder.join(name)).unwrap();
}

fn align(folder: &Path, args: &[&str]) -> Said {
    let mut command = program(folder, &["align"]);
    command.args(args).arg("--onnxruntime").arg(common::library()).output().unwrap().into()
}

fn json(folder: &Path, args: &[&str]) -> Value {
    let said = align(folder, &[args, &["--json"]].concat());
    serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{args:?}: {error}: {}{}", said.out, said.err))
}

fn symbols(value: &Value) -> String {
    value["rows"].as_array().unwrap().iter().map(|row| row["symbol"].as_str().unwrap()).collect()
}

/// A data set with these inputs.
fn data_set(folder: &Path, tensors: &[(&str, TensorBuf)]) {
    fs::create_dir_all(folder).unwrap();
    for (at, (name, tensor)) in tensors.iter().enumerate() {
        fs::write(folder.join(format!("input_{at}.pb")), tensor_proto(name, &tensor.view()).encode_to_vec()).unwrap();
    }
}

#[test]
fn models_that_share_no_names_are_aligned_by_what_they_compute() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "a.onnx", sums("a_", &[3., 4.]));
    put(folder.path(), "b.onnx", sums("b_", &[3., 4.]));
    data_set(&folder.path().join("set"), &[("x", floats(&[1., 2.]))]);
    let said = align(folder.path(), &["a.onnx", "b.onnx", "--feeds", "set", "--all", "--column-size", "60"]);
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    for line in [
        "001 = | INITIA float32  1:2                  DEAA                 w",
        "002 = | INPUT  float32  1:2                  BCAA                 x",
        "003 = | RESULT float32  1:2                  EGAA Add             a_",
        "004 = | RESULT float32  1:2                  MYAA Mul             a_",
        "005 = | OUTPUT float32  1:2                  MYAA                 a_",
        "| a=0 r=0\n",
        "5 rows: 5 =, 0 ~, 0 -, 0 +; verdicts: 5 match, 0 mismatch, 0 not compared\n",
    ] {
        assert!(said.out.contains(line), "{line}\n{}", said.out);
    }
    let brief = align(folder.path(), &["a.onnx", "b.onnx", "--feeds", "set"]);
    assert!(brief.out.contains("5 rows (5 the same): --all has all\n") && !brief.out.contains("001"), "{}", brief.out);
    assert!(!said.err.contains("confined"), "{}", said.err);
}

#[test]
fn what_one_model_has_alone_and_what_differs_is_told() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "a.onnx", sums("", &[3., 4.]));
    let mut other = sums("", &[3., 4.5]);
    other.node.insert(1, node("Expand", &["hidden", "size"], &["large"]));
    other.initializer.push(tensor_proto(
        "size",
        &TensorBuf::new(TensorDesc::new(DType::I64, [2]).unwrap(), [900_i64, 2].map(i64::to_le_bytes).concat())
            .unwrap()
            .view(),
    ));
    put(folder.path(), "b.onnx", other);
    data_set(&folder.path().join("set"), &[("x", floats(&[1., 2.]))]);
    let value = json(folder.path(), &["a.onnx", "b.onnx", "--feeds", "set"]);
    assert_eq!(symbols(&value), "=+==+~~", "{}", value["text"]);
    let row = &value["rows"][3];
    assert_eq!((&row["first"]["name"], &row["second"]["name"]), (&json!("hidden"), &json!("hidden")));
    assert_eq!((&row["max_abs"], &row["verdict"]), (&json!(0.5), &json!("mismatch")));
    assert_eq!(row["max_rel_to_max"].as_f64(), Some(0.5 / 6.));
    assert_eq!(value["rows"][0]["verdict"], "mismatch", "the same letters, not the same numbers");
    assert_eq!(value["summary"]["mismatch"], 4);
    assert_eq!(align(folder.path(), &["a.onnx", "b.onnx", "--feeds", "set"]).code, 1);
    let brief = align(folder.path(), &["a.onnx", "b.onnx", "--feeds", "set"]).out;
    assert!(brief.contains("001 = ") && brief.contains("a=5.00e-1 r=1.25e-1 !"), "{brief}");
    assert!(brief.contains("and 1 more row (1 the same): --all has all"), "{brief}");
    let csv = align(folder.path(), &["a.onnx", "b.onnx", "--feeds", "set", "--csv"]).out;
    assert_eq!(csv.lines().count(), 8);
    assert!(
        csv.starts_with("row,symbol,first_kind,") && csv.contains("4,=,RESULT,float32,1:2,EGAA,Add,hidden,"),
        "{csv}"
    );
}

#[test]
fn feeds_are_made_up_alike_for_both_and_named_dimensions_have_sizes() {
    let folder = tempfile::tempdir().unwrap();
    let dims = [common::Dim::Named("batch"), common::Dim::Named("n")];
    let of = |dtype| {
        let model = common::Model::default().node("Neg", &["x"], &["y"]);
        model.input("x", dtype, &dims).output("y", dtype, &dims).build()
    };
    fs::write(folder.path().join("a.onnx"), of(DType::F32)).unwrap();
    fs::write(folder.path().join("b.onnx"), of(DType::F16)).unwrap();
    let value = json(folder.path(), &["a.onnx", "a.onnx", "--size", "batch=3", "--size=n=4"]);
    assert_eq!((&value["rows"][0]["first"]["shape"], symbols(&value).as_str()), (&json!([3, 4]), "==="));
    assert_eq!(value["feeds"], "made up, seed 0, batch=3, n=4");
    let again = json(folder.path(), &["a.onnx", "a.onnx", "--size", "batch=3", "--size=n=4"]);
    assert_eq!(again["rows"], value["rows"]);
    let other = json(folder.path(), &["a.onnx", "a.onnx", "--size", "batch=3", "--size=n=4", "--seed", "1"]);
    assert_ne!(other["rows"][0]["first"]["signature"], value["rows"][0]["first"]["signature"]);
    let drawn = json(folder.path(), &["a.onnx", "a.onnx"])["feeds"].to_string();
    assert!(drawn.contains("batch=") && drawn.contains("(drawn)"), "{drawn}");
    // Of two dtypes.
    let value = json(folder.path(), &["a.onnx", "b.onnx"]);
    let row = &value["rows"][1];
    assert_eq!((&row["first"]["dtype"], &row["second"]["dtype"]), (&json!("float32"), &json!("float16")));
    assert!(row["max_abs"].as_f64().unwrap() > 0. && row["verdict"] == "match", "{row}");
    assert!(value["models"][1]["notes"][0].as_str().unwrap().contains("cast from float32 to float16"), "{value}");
    let said = align(folder.path(), &["a.onnx", "a.onnx", "--size", "bacth=3"]);
    assert!(said.code == 2 && said.err.contains("did you mean \"batch\"?"), "{}", said.err);
}

#[test]
fn inputs_of_other_names_are_matched_by_dtype_and_shape_and_ambiguity_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let two = |a: &str, b: &str| GraphProto {
        input: vec![info(a, DType::F32, &[2]), info(b, DType::F32, &[2])],
        output: vec![info("y", DType::F32, &[2])],
        node: vec![node("Sub", &[a, b], &["y"])],
        ..Default::default()
    };
    put(folder.path(), "a.onnx", two("p", "q"));
    put(folder.path(), "b.onnx", two("s", "t"));
    let value = json(folder.path(), &["a.onnx", "b.onnx"]);
    assert_eq!(symbols(&value), "====");
    let note = value["models"][1]["notes"][0].as_str().unwrap();
    assert!(note.contains("input \"s\" is fed with \"p\", ambiguous: 2 tensors and 2 inputs"), "{note}");
    let note = value["models"][1]["notes"][1].as_str().unwrap();
    assert!(note.contains("input \"t\" is fed with \"q\", ambiguous: 2 tensors and 2 inputs"), "{note}");
    // A weight of the one is an input of the other.
    put(folder.path(), "c.onnx", sums("", &[3., 4.]));
    let mut fed = sums("", &[3., 4.]);
    fed.input.push(info("w", DType::F32, &[2]));
    fed.initializer.clear();
    put(folder.path(), "d.onnx", fed);
    let value = json(folder.path(), &["d.onnx", "c.onnx", "--seed", "3"]);
    assert!(value["models"][0]["notes"][0].as_str().unwrap().contains("c.onnx's initializer"), "{value}");
    assert_eq!(value["rows"].as_array().unwrap().last().unwrap()["symbol"], "=");
}

#[test]
fn feeds_come_from_files_of_every_kind() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "a.onnx", sums("", &[3., 4.]));
    let x = tensor_proto("x", &floats(&[1., 2.]).view()).encode_to_vec();
    fs::write(folder.path().join("x.pb"), &x).unwrap();
    data_set(&folder.path().join("model/test_data_set_0"), &[("", floats(&[1., 2.]))]);
    fs::copy(folder.path().join("a.onnx"), folder.path().join("model/model.onnx")).unwrap();
    let header = br#"{"__metadata__":{"a":"b"},"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let bytes = [1_f32, 2.].map(f32::to_le_bytes).concat();
    let safe = [&(header.len() as u64).to_le_bytes()[..], header, &bytes].concat();
    fs::write(folder.path().join("x.safetensors"), &safe).unwrap();
    for feeds in ["x.pb", "model", "model/test_data_set_0", "x.safetensors"] {
        let value = json(folder.path(), &["model", "a.onnx", "--feeds", feeds]);
        assert_eq!(value["rows"][1]["first"]["signature"], "BCAA", "{feeds}: {value}");
        assert_eq!(symbols(&value), "=====", "{feeds}");
    }
    let value = json(folder.path(), &["a.onnx", "a.onnx", "--feeds", "x.pb", "--feeds", "model"]);
    assert_eq!(value["feeds"], "x.pb, model");
    fs::write(folder.path().join("cut.safetensors"), &safe[..safe.len() - 1]).unwrap();
    fs::write(folder.path().join("no.npz"), b"PK").unwrap();
    data_set(&folder.path().join("other"), &[("z", floats(&[1., 2., 3.]))]);
    for (feeds, expected) in [
        ("cut.safetensors", "cut.safetensors: x: its bytes are not in the file"),
        ("no.npz", "no.npz: no zip"),
        ("other", "input \"x\" float32[2]: no tensor of the feeds has its name"),
        ("a.onnx", "expected a folder of input_<i>.pb, .npz"),
        ("nowhere", "nowhere: cannot read"),
    ] {
        let said = align(folder.path(), &["a.onnx", "a.onnx", "--feeds", feeds]);
        assert!(said.code == 2 && said.err.contains(expected), "{feeds}: {}{}", said.out, said.err);
    }
}

/// Functions of the model, a branch, data beside the model.
#[test]
fn functions_bodies_and_external_data_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    let branch = |op: &str| GraphProto {
        name: Some(op.into()),
        node: vec![node(op, &["called"], &["inner"])],
        output: vec![info("inner", DType::F32, &[2])],
        ..Default::default()
    };
    let mut choice = node("If", &["condition"], &["y"]);
    choice.attribute = [("then_branch", "Abs"), ("else_branch", "Neg")]
        .map(|(name, op)| AttributeProto {
            name: Some(name.into()),
            r#type: Some(AttributeType::Graph as i32),
            g: Some(branch(op)),
            ..Default::default()
        })
        .into();
    let call = NodeProto { domain: Some("local".into()), ..node("Twice", &["hidden"], &["called"]) };
    let mut graph = sums("", &[3., 4.]);
    graph.node = vec![node("Add", &["x", "w"], &["hidden"]), call, choice];
    graph.input.push(info("condition", DType::Bool, &[]));
    let entry = |key: &str, value: &str| StringStringEntryProto { key: Some(key.into()), value: Some(value.into()) };
    graph.initializer[0].raw_data = None::<Bytes>;
    graph.initializer[0].data_location = Some(1);
    graph.initializer[0].external_data = vec![entry("location", "w.bin")];
    fs::write(folder.path().join("w.bin"), [3_f32, 4.].map(f32::to_le_bytes).concat()).unwrap();
    let function = FunctionProto {
        name: Some("Twice".into()),
        domain: Some("local".into()),
        input: vec!["a".into()],
        output: vec!["b".into()],
        node: vec![node("Abs", &["a"], &["t"]), node("Add", &["t", "t"], &["b"])],
        opset_import: vec![OperatorSetIdProto { domain: None, version: Some(18) }],
        ..Default::default()
    };
    let model = ModelProto { functions: vec![function], ..model(graph) };
    fs::write(folder.path().join("a.onnx"), model.encode_to_vec()).unwrap();
    let value = json(folder.path(), &["a.onnx", "a.onnx"]);
    let rows = value["rows"].as_array().unwrap();
    let ops: Vec<&str> = rows.iter().map(|row| row["first"]["op_type"].as_str().unwrap()).collect();
    // Of the If the branch that its condition, which is made up, takes, and what it gives.
    assert!(["Abs", "Neg"].contains(&ops[6]), "{ops:?}");
    assert_eq!([&ops[..6], &ops[7..]].concat(), ["", "", "", "Add", "Abs", "Add", "If", ""]);
    assert_eq!((symbols(&value).as_str(), value["summary"]["matched"].as_u64()), ("=========", Some(9)));
    fs::remove_file(folder.path().join("w.bin")).unwrap();
    let said = align(folder.path(), &["a.onnx", "a.onnx"]);
    assert!(said.code == 2 && said.err.contains("w.bin"), "{}", said.err);
}

/// A node with bodies.
fn with_bodies(node: NodeProto, bodies: &[(&str, GraphProto)]) -> NodeProto {
    let attribute = |(name, body): &(&str, GraphProto)| AttributeProto {
        name: Some((*name).into()),
        r#type: Some(AttributeType::Graph as i32),
        g: Some(body.clone()),
        ..Default::default()
    };
    NodeProto { attribute: bodies.iter().map(attribute).collect(), ..node }
}

fn body(name: &str, nodes: Vec<NodeProto>) -> GraphProto {
    let output = vec![info("inner", DType::F32, &[2])];
    GraphProto { name: Some(name.into()), node: nodes, output, ..Default::default() }
}

/// y = c ? (d ? -|x| : x) : |x|, where d is computed.
fn nested(inside: &str) -> GraphProto {
    let then = body("then", vec![node("Abs", &["x"], &["absolute"]), node(inside, &["absolute"], &["inner"])]);
    let deeper = with_bodies(
        node("If", &["d"], &["inner"]),
        &[("then_branch", then), ("else_branch", body("else", vec![node("Identity", &["x"], &["inner"])]))],
    );
    let outer = with_bodies(
        node("If", &["c"], &["y"]),
        &[
            ("then_branch", body("outer", vec![node("Not", &["e"], &["d"]), deeper])),
            ("else_branch", body("other", vec![node("Abs", &["x"], &["inner"])])),
        ],
    );
    GraphProto {
        input: vec![info("x", DType::F32, &[2]), info("c", DType::Bool, &[]), info("e", DType::Bool, &[])],
        output: vec![info("y", DType::F32, &[2])],
        node: vec![outer],
        ..Default::default()
    }
}

#[test]
fn the_branch_that_an_if_takes_is_looked_into() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "neg.onnx", nested("Neg"));
    put(folder.path(), "exp.onnx", nested("Exp"));
    let flag = |value: u8| TensorBuf::new(TensorDesc::new(DType::Bool, [0; 0]).unwrap(), vec![value]).unwrap();
    let ops = |value: &Value| -> Vec<String> {
        let rows = value["rows"].as_array().unwrap().iter();
        rows.filter_map(|row| row["first"]["op_type"].as_str().filter(|op| !op.is_empty()).map(str::to_owned)).collect()
    };
    for (name, c, e, expected) in [
        ("then", 1, 0, &["Not", "Abs", "Neg", "If", "If"][..]),
        ("else", 1, 1, &["Not", "Identity", "If", "If"]),
        ("other", 0, 0, &["Abs", "If"]),
    ] {
        data_set(&folder.path().join(name), &[("x", floats(&[1., -2.])), ("c", flag(c)), ("e", flag(e))]);
        let value = json(folder.path(), &["neg.onnx", "neg.onnx", "--feeds", name]);
        assert_eq!(ops(&value), expected, "{name}: {}", value["text"]);
        assert_eq!(value["models"][0]["trace"]["bodies_not_compared"], json!([]), "{name}");
    }
    let value = json(folder.path(), &["neg.onnx", "exp.onnx", "--feeds", "then"]);
    assert!(value["text"].as_str().unwrap().contains("Exp") && value["summary"]["same"].as_u64() < Some(9), "{value}");
}

#[test]
fn a_loop_says_that_nobody_looks_into_its_body() {
    let folder = tempfile::tempdir().unwrap();
    let mut again = body("again", vec![node("Identity", &["on"], &["on_again"]), node("Abs", &["state"], &["inner"])]);
    again.input = vec![info("at", DType::I64, &[]), info("on", DType::Bool, &[]), info("state", DType::F32, &[2])];
    again.output.insert(0, info("on_again", DType::Bool, &[]));
    let count = TensorBuf::new(TensorDesc::new(DType::I64, [0; 0]).unwrap(), 3_i64.to_le_bytes().to_vec()).unwrap();
    let graph = GraphProto {
        input: vec![info("x", DType::F32, &[2])],
        output: vec![info("y", DType::F32, &[2])],
        initializer: vec![tensor_proto("n", &count.view())],
        node: vec![with_bodies(node("Loop", &["n", "", "x"], &["y"]), &[("body", again)])],
        ..Default::default()
    };
    put(folder.path(), "loop.onnx", graph);
    let said = align(folder.path(), &["loop.onnx", "loop.onnx"]);
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    let line = "model 1: node \"y\" (Loop): what it gives is compared, the values inside its body are not";
    assert!(said.out.contains(line), "{}", said.out);
    let value = json(folder.path(), &["loop.onnx", "loop.onnx"]);
    assert_eq!(value["models"][1]["trace"]["bodies_not_compared"], json!(["node \"y\" (Loop)"]));
}

#[test]
fn a_model_that_fails_half_way_is_aligned_up_to_there() {
    let folder = tempfile::tempdir().unwrap();
    let mut graph = sums("", &[3., 4.]);
    graph.node.push(node("Reshape", &["hidden", "five"], &["shaped"]));
    graph.node.push(node("Neg", &["shaped"], &["after"]));
    let five = TensorBuf::new(TensorDesc::new(DType::I64, [1]).unwrap(), 5_i64.to_le_bytes().to_vec()).unwrap();
    graph.initializer.push(tensor_proto("five", &five.view()));
    put(folder.path(), "fails.onnx", graph);
    put(folder.path(), "whole.onnx", sums("", &[3., 4.]));
    let said = align(folder.path(), &["whole.onnx", "fails.onnx", "--all"]);
    assert_eq!(said.code, 2, "{}{}", said.out, said.err);
    assert!(said.out.contains("model 2 ends at node \"shaped\" (Reshape): "), "{}", said.out);
    let value = json(folder.path(), &["whole.onnx", "fails.onnx"]);
    assert_eq!(symbols(&value), "=+===-", "what ran is there: {}", value["text"]);
    // What no runtime has.
    let mut graph = sums("", &[3., 4.]);
    graph.node.push(NodeProto { domain: Some("nowhere".into()), ..node("Nothing", &["y"], &["z"]) });
    put(folder.path(), "unknown.onnx", graph);
    let said = align(folder.path(), &["unknown.onnx", "whole.onnx"]);
    assert!(said.code == 2 && said.out.contains("model 1 ends at node \"z\" (Nothing): "), "{}{}", said.out, said.err);
}

#[test]
fn values_that_are_no_tensors_of_torchs_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut graph = sums("", &[3., 4.]);
    graph.node.push(node("SequenceConstruct", &["hidden", "y"], &["list"]));
    graph.node.push(node("ConcatFromSequence", &["list"], &["joined"]));
    graph.node[3].attribute = vec![AttributeProto {
        name: Some("axis".into()),
        r#type: Some(AttributeType::Int as i32),
        i: Some(0),
        ..Default::default()
    }];
    put(folder.path(), "a.onnx", graph);
    let value = json(folder.path(), &["a.onnx", "a.onnx"]);
    assert_eq!(symbols(&value), "====~==", "what nobody read is not the same: {}", value["text"]);
    assert!(value["text"].as_str().unwrap().contains("| not compared\n"), "{}", value["text"]);
    assert!(value["models"][0]["trace"]["not_shown"][0].as_str().unwrap().starts_with("\"list\": "), "{value}");
    assert_eq!(
        (&value["rows"][4]["verdict"], &value["rows"][4]["first"]["signature"]),
        (&json!("not_compared"), &json!("????"))
    );
    assert_eq!(align(folder.path(), &["a.onnx", "a.onnx"]).code, 3);
}

#[test]
fn names_of_a_stranger_are_text() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "a.onnx", sums("\u{1b}[2J\n999 = | \u{202e}", &[3., 4.]));
    for args in [&["--all"][..], &["--csv"], &["--json"]] {
        let said = align(folder.path(), &[&["a.onnx", "a.onnx"], args].concat());
        assert_eq!(said.code, 0, "{}", said.err);
        assert!(!said.out.contains(['\u{1b}', '\u{202e}']) && !said.out.contains("\n999"), "{}", said.out);
    }
}

/// The operator of the test's tries it.
#[test]
fn a_model_loads_no_library_by_itself_and_reaches_no_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.onnx"), common::attempts(3)).unwrap();
    data_set(&folder.path().join("set"), &[("x", floats(&[1., 2., 3.]))]);
    let said = align(folder.path(), &["a.onnx", "a.onnx", "--feeds", "set"]);
    assert!(said.code == 2 && said.out.contains("(Attempt)"), "{}{}", said.out, said.err);
    let custom = common::custom_ops().path;
    let asked = ["a.onnx", "a.onnx", "--feeds", "set", "--custom-op-library", custom.to_str().unwrap()];
    let walled = json(folder.path(), &asked);
    let free = json(folder.path(), &[&asked[..], &["--no-confine"]].concat());
    assert_ne!(walled["rows"][1]["first"]["signature"], free["rows"][1]["first"]["signature"], "{walled}");
    // An operator that crashes.
    fs::write(folder.path().join("b.onnx"), common::attempts(1)).unwrap();
    data_set(&folder.path().join("crash"), &[("x", floats(&[99.]))]);
    let said = align(folder.path(), &[&["b.onnx", "b.onnx", "--feeds", "crash"], &asked[4..]].concat());
    assert!(said.code == 2 && said.err.contains("(signal 11, SIGSEGV) while it ran b.onnx; another"), "{}", said.err);
}

#[test]
fn a_row_fits_the_width_or_is_of_two_lines() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "a.onnx", sums(&"long_name_".repeat(20), &[3., 4.]));
    for columns in [70, 120, 160] {
        let mut command = program(folder.path(), &["align", "a.onnx", "a.onnx", "--all", "--onnxruntime"]);
        let said = Said::from(command.arg(common::library()).env("COLUMNS", columns.to_string()).output().unwrap());
        let rows: Vec<_> = said.out.lines().filter(|line| line.contains(" | ")).collect();
        assert!(rows.iter().all(|line| line.chars().count() <= columns), "{}", said.out);
        assert_eq!(rows.len(), if columns < 120 { 15 } else { 5 }, "{}", said.out);
    }
}

#[test]
fn what_does_not_fit_together_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "a.onnx", sums("", &[3., 4.]));
    for (args, expected) in [
        (&["a.onnx"][..], "MODEL2"),
        (&["a.onnx", "b.onnx"], "b.onnx"),
        (&["a.onnx", "a.onnx", "--size", "n"], "NAME=N"),
        (&["a.onnx", "a.onnx", "--feeds", "x", "--seed", "1"], "cannot be used with"),
        (&["a.onnx", "a.onnx", "--json", "--csv"], "cannot be used with"),
        (&["a.onnx", "a.onnx", "--provider", "NoneExecutionProvider"], "--provider NoneExecutionProvider: onnxruntime"),
        (&["a.onnx", "a.onnx", "--provider", "Foo"], "--provider Foo: expected an execution provider by its name"),
        (&["a.onnx", "a.onnx", "--custom-op-library", "nowhere.so"], "nowhere.so"),
    ] {
        let said = align(folder.path(), args);
        assert!(
            said.code == 2 && (said.err.clone() + &said.out).contains(expected),
            "{args:?}: {}{}",
            said.out,
            said.err
        );
    }
    let said = dumping::piped(folder.path(), &["apart", "align", "a.onnx", "a.onnx"]);
    assert_eq!(said.code, 2, "{}", said.err);
}

#[test]
fn what_no_tensor_is_is_left_out_and_names_stay_on_their_lines() {
    let folder = tempfile::tempdir().unwrap();
    let mut graph = sums("", &[3., 4.]);
    graph.node.extend(["s0", "s1", "s2"].map(|name| node("SequenceEmpty", &[], &[name])));
    put(folder.path(), "sequences.onnx", graph);
    let value = json(folder.path(), &["sequences.onnx", "sequences.onnx"]);
    let left_out = value["models"][0]["trace"]["not_shown"].as_array().unwrap();
    assert_eq!(left_out.len(), 3, "{value}");

    let dims = [common::Dim::Named("a\nfeeds: b")];
    let model = common::Model::default().node("Neg", &["x"], &["y"]);
    let model = model.input("x", DType::F32, &dims).output("y", DType::F32, &dims).build();
    fs::write(folder.path().join("lines.onnx"), model).unwrap();
    let said = align(folder.path(), &["lines.onnx", "lines.onnx"]);
    assert_eq!(said.out.lines().filter(|line| line.starts_with("feeds: ")).count(), 1, "{}", said.out);
    assert!(said.out.contains("a\\nfeeds: b="), "{}", said.out);
}

/// Each over the same bytes, which a reader would copy for each.
#[test]
fn tensors_that_share_bytes_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "a.onnx", sums("", &[3., 4.]));
    let entry = |name: &str| format!(r#""{name}":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#);
    let header = format!("{{{},{}}}", entry("x"), entry("z"));
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 8]].concat();
    fs::write(folder.path().join("x.safetensors"), file).unwrap();
    let said = align(folder.path(), &["a.onnx", "a.onnx", "--feeds", "x.safetensors"]);
    let expected = "x.safetensors: z: its bytes are 0 to 8, where those before end at 8";
    assert!(said.code == 2 && said.err.contains(expected), "{}{}", said.out, said.err);
}

/// `y = x·W - x·U`, its products in this order.
fn products(order: [&str; 2]) -> GraphProto {
    let of = |name: &str| if name == "p" { "W" } else { "U" };
    let weight = |name: &str, from: f32| {
        let values: Vec<f32> = (0..9).map(|at| (from + at as f32).sin()).collect();
        tensor_proto(name, &TensorBuf::from_f32([3, 3], &values).unwrap().view())
    };
    let mut nodes: Vec<NodeProto> = order.iter().map(|name| node("MatMul", &["x", of(name)], &[name])).collect();
    nodes.push(node("Sub", &["p", "q"], &["y"]));
    GraphProto {
        input: vec![info("x", DType::F32, &[2, 3])],
        output: vec![info("y", DType::F32, &[2, 3])],
        initializer: vec![weight("W", 0.), weight("U", 5.)],
        node: nodes,
        ..Default::default()
    }
}

fn row<'v>(value: &'v Value, name: &str) -> &'v Value {
    value["rows"].as_array().unwrap().iter().find(|row| row["first"]["name"] == name).unwrap()
}

#[test]
fn a_value_in_another_place_is_judged_against_its_counterpart() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "a.onnx", products(["p", "q"]));
    put(folder.path(), "b.onnx", products(["q", "p"]));
    let said = align(folder.path(), &["a.onnx", "b.onnx", "--all"]);
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    assert!(!said.out.lines().any(|line| line.contains(" | ") && line.contains('!')), "{}", said.out);
    assert!(said.out.ends_with("outputs: 1 of 1 match, worst a=0 r=0 (\"y\" of row 7)\n"), "{}", said.out);
    let value = json(folder.path(), &["a.onnx", "b.onnx"]);
    assert_eq!((symbols(&value).as_str(), &value["summary"]["mismatch"]), ("===~~==", &json!(0)), "{}", value["text"]);
    let crossed = row(&value, "p");
    assert_eq!((&crossed["second"]["name"], &crossed["counterparts"]), (&json!("q"), &json!([5, 5])));
    assert_eq!((&crossed["verdict"], &crossed["max_abs"]), (&json!("match"), &json!(0.)));
    // One that differs from its counterpart is told, of whatever row.
    let mut other = products(["q", "p"]);
    other.initializer[1] = tensor_proto("U", &TensorBuf::from_f32([3, 3], &[9.; 9]).unwrap().view());
    put(folder.path(), "c.onnx", other);
    let value = json(folder.path(), &["a.onnx", "c.onnx"]);
    let verdicts = |name: &str| row(&value, name)["verdict"].clone();
    assert_eq!([verdicts("W"), verdicts("U"), verdicts("y")], ["match", "mismatch", "mismatch"], "{}", value["text"]);
    assert_eq!(
        value["outputs"],
        json!({ "all": 1, "matched": 0, "mismatch": 1, "empty": 0, "alone": 0, "of_two_types": 0, "of_nan": 0, "in_order": true, "worst": 7 })
    );
    let said = align(folder.path(), &["a.onnx", "c.onnx"]);
    assert!(said.code == 1 && said.out.contains("outputs: 0 of 1 match, 1 differ, worst a="), "{}", said.out);
}

#[test]
fn a_value_of_another_operator_is_no_counterpart() {
    let folder = tempfile::tempdir().unwrap();
    let of = |op: &str| {
        let mut graph = sums("", &[3., 4.]);
        graph.node.insert(1, node(op, &["x"], &["other"]));
        graph
    };
    put(folder.path(), "a.onnx", of("Neg"));
    put(folder.path(), "b.onnx", of("Identity"));
    let value = json(folder.path(), &["a.onnx", "b.onnx"]);
    // That of the second is its input; the outputs agree.
    assert_eq!(
        (&value["summary"]["mismatch"], &value["outputs"]["matched"]),
        (&json!(0), &json!(1)),
        "{}",
        value["text"]
    );
    assert_eq!(align(folder.path(), &["a.onnx", "b.onnx"]).code, 0);
}

#[test]
fn outputs_of_nan_alone_or_without_elements_are_no_match() {
    let folder = tempfile::tempdir().unwrap();
    // 0/0 before the last operator, of which the two models have different ones, behind a weight that they share.
    let of = |last: &str, dims: &[i64]| GraphProto {
        input: vec![info("x", DType::F32, dims)],
        output: vec![info("y", DType::F32, dims)],
        node: vec![
            node("Sub", &["x", "x"], &["zero"]),
            node("Div", &["zero", "zero"], &["nan"]),
            node("Add", &["nan", "w"], &["sum"]),
            node(last, &["sum"], &["y"]),
        ],
        initializer: vec![constant("w", &[1.])],
        ..Default::default()
    };
    put(folder.path(), "a.onnx", of("Sigmoid", &[3]));
    put(folder.path(), "b.onnx", of("Neg", &[3]));
    let said = align(folder.path(), &["a.onnx", "b.onnx"]);
    let told = "outputs: 0 of 1 match, 1 not compared";
    assert!(said.code == 3 && said.out.contains(told) && said.out.contains("NaN throughout"), "{}", said.out);
    put(folder.path(), "a.onnx", of("Sigmoid", &[0]));
    put(folder.path(), "b.onnx", of("Neg", &[0]));
    let said = align(folder.path(), &["a.onnx", "b.onnx"]);
    assert!(said.code == 3 && said.out.contains("outputs: 0 of 1 match, 1 without elements"), "{}", said.out);
}

#[test]
fn outputs_and_inputs_are_paired_by_name_then_content() {
    let folder = tempfile::tempdir().unwrap();
    let of = |inputs: [&str; 2], outputs: [&str; 2], written: [&str; 2]| {
        let mut nodes = vec![node("Neg", &[inputs[0]], &[written[0]]), node("Exp", &[inputs[1]], &[written[1]])];
        if outputs[0] != written[0] {
            nodes.reverse();
        }
        GraphProto {
            input: inputs.map(|name| info(name, DType::F32, &[5])).to_vec(),
            output: outputs.map(|name| info(name, DType::F32, &[5])).to_vec(),
            node: nodes,
            ..Default::default()
        }
    };
    for (name, graph) in [
        ("named.onnx", of(["x", "z"], ["n", "m"], ["m", "n"])),
        ("content.onnx", of(["x", "z"], ["s", "r"], ["r", "s"])),
        ("counted.onnx", of(["x", "z"], ["val_1", "val_3"], ["val_3", "val_1"])),
    ] {
        let first = if name == "counted.onnx" { ["val_1", "val_2"] } else { ["m", "n"] };
        put(folder.path(), "a.onnx", of(["x", "z"], first, first));
        put(folder.path(), name, graph);
        let value = json(folder.path(), &["a.onnx", name]);
        let rows: Vec<_> =
            value["rows"].as_array().unwrap().iter().filter(|row| row["first"]["kind"] == "output").collect();
        let of = |at: usize| (rows[at]["first"]["name"].clone(), rows[at]["second"]["name"].clone());
        let expected = match name {
            "named.onnx" => ["m", "n"],
            "content.onnx" => ["r", "s"],
            _ => ["val_3", "val_1"],
        };
        assert_eq!(
            [of(0), of(1)],
            [(json!(first[0]), json!(expected[0])), (json!(first[1]), json!(expected[1]))],
            "{}",
            value["text"]
        );
        assert_eq!(
            (&value["outputs"]["matched"], &value["outputs"]["in_order"]),
            (&json!(2), &json!(false)),
            "{}",
            value["text"]
        );
        let said = align(folder.path(), &["a.onnx", name]);
        assert!(said.code == 0 && said.out.contains("outputs: 2 of 2 match, in another order, worst"), "{}", said.out);
    }
    // Who counts alike means the same by it.
    put(folder.path(), "a.onnx", of(["x", "z"], ["output_0", "output_1"], ["output_0", "output_1"]));
    put(folder.path(), "swapped.onnx", of(["x", "z"], ["output_0", "output_1"], ["output_1", "output_0"]));
    let said = align(folder.path(), &["a.onnx", "swapped.onnx"]);
    assert!(said.code == 1 && said.out.contains("outputs: 0 of 2 match, 2 differ, worst"), "{}", said.out);
    put(folder.path(), "a.onnx", of(["x", "z"], ["m", "n"], ["m", "n"]));
    // One that the other model has not is no match.
    let mut one = of(["x", "z"], ["m", "n"], ["m", "n"]);
    one.output.pop();
    put(folder.path(), "one.onnx", one);
    let said = align(folder.path(), &["a.onnx", "one.onnx"]);
    assert!(said.code == 3 && said.out.contains("outputs: 1 of 2 match, 1 in one model alone, worst"), "{}", said.out);
}

#[test]
fn a_transpose_away_is_said() {
    let folder = tempfile::tempdir().unwrap();
    for dims in [[2, 3], [3, 3]] {
        let n = (dims[0] * dims[1]) as usize;
        let values: Vec<f32> = (0..n).map(|at| (at as f32).sin()).collect();
        let weight = TensorBuf::from_f32(dims, &values).unwrap();
        let turned: Vec<f32> =
            (0..n).map(|at| values[at % dims[0] as usize * dims[1] as usize + at / dims[0] as usize]).collect();
        let turned = TensorBuf::from_f32([dims[1], dims[0]], &turned).unwrap();
        let mut graph = GraphProto {
            input: vec![info("x", DType::F32, &[4, dims[0]])],
            output: vec![info("y", DType::F32, &[4, dims[1]])],
            initializer: vec![tensor_proto("W", &weight.view())],
            node: vec![node("MatMul", &["x", "W"], &["y"])],
            ..Default::default()
        };
        put(folder.path(), "a.onnx", graph.clone());
        graph.initializer = vec![tensor_proto("WT", &turned.view())];
        graph.node.insert(0, node("Transpose", &["WT"], &["W"]));
        put(folder.path(), "b.onnx", graph);
        let said = align(folder.path(), &["a.onnx", "b.onnx"]);
        assert!(said.code == 0 && said.out.contains("a=0 r=0 T(1,0)"), "{dims:?}: {}", said.out);
        let value = json(folder.path(), &["a.onnx", "b.onnx"]);
        assert_eq!((&row(&value, "W")["transposed"], &row(&value, "W")["verdict"]), (&json!([1, 0]), &json!("match")));
    }
}

#[test]
fn what_has_no_elements_is_not_compared() {
    let folder = tempfile::tempdir().unwrap();
    let model = common::Model::default().node("Neg", &["x"], &["y"]);
    let dims = [common::Dim::Named("b"), common::Dim::Named("n")];
    let model = model.input("x", DType::F32, &dims).output("y", DType::F32, &dims).build();
    fs::write(folder.path().join("a.onnx"), model).unwrap();
    let said = align(folder.path(), &["a.onnx", "a.onnx", "--size", "b=0", "--size", "n=3"]);
    assert_eq!(said.code, 3, "{}", said.out);
    assert!(said.out.contains(" 0 match, 0 mismatch, 0 not compared, 3 without elements\n"), "{}", said.out);
    assert!(said.out.contains("nothing was compared: no value has elements"), "{}", said.out);
}

#[test]
fn an_initializer_that_nobody_reads_is_named_and_not_the_same() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bits) in [("a.onnx", 0x11), ("b.onnx", 0x55)] {
        put(folder.path(), name, with_int4(&[5], &[bits]));
    }
    let said = align(folder.path(), &["a.onnx", "b.onnx"]);
    assert_eq!(said.code, 3, "{}{}", said.out, said.err);
    assert!(said.out.contains("model 2: without its value: \"q\": an initializer of int4\n"), "{}", said.out);
    let value = json(folder.path(), &["a.onnx", "b.onnx"]);
    assert_eq!((&row(&value, "q")["symbol"], &row(&value, "q")["verdict"]), (&json!("~"), &json!("not_compared")));
}

/// Sums, and a constant of int4 that no node reads. raw: its bytes; too few: damaged.
fn with_int4(dims: &[i64], raw: &[u8]) -> GraphProto {
    let mut graph = sums("", &[3., 4.]);
    graph.initializer.push(TensorProto {
        name: Some("q".into()),
        data_type: Some(22),
        dims: dims.to_vec(),
        raw_data: Some(raw.to_vec().into()),
        ..Default::default()
    });
    graph
}

#[test]
fn constants_of_packed_types_are_compared_bit_by_bit() {
    let folder = tempfile::tempdir().unwrap();
    for (name, raw) in [("a.onnx", [0x21, 0x03]), ("padded.onnx", [0x21, 0xf3]), ("b.onnx", [0x21, 0x04])] {
        put(folder.path(), name, with_int4(&[3], &raw));
    }
    let said = align(folder.path(), &["a.onnx", "padded.onnx", "--all"]);
    assert!(said.code == 0 && said.out.contains("INITIA int4 ") && said.out.contains("| same bits\n"), "{}", said.out);
    let value = json(folder.path(), &["a.onnx", "padded.onnx"]);
    let q = row(&value, "q");
    assert_eq!((&q["symbol"], &q["verdict"], &q["first"]["dtype"]), (&json!("="), &json!("match"), &json!("int4")));
    let said = align(folder.path(), &["a.onnx", "b.onnx"]);
    assert!(said.code == 1 && said.out.contains("| bits differ !\n"), "{}", said.out);
    assert!(!said.out.contains("without its value"), "{}", said.out);
    let value = json(folder.path(), &["a.onnx", "b.onnx"]);
    let q = row(&value, "q");
    assert_eq!((&q["symbol"], &q["verdict"], &q["reason"]), (&json!("~"), &json!("mismatch"), &json!("bits differ")));
    let csv = align(folder.path(), &["a.onnx", "b.onnx", "--csv"]).out;
    assert!(csv.contains(",INITIA,int4,1:3,????,,q,") && csv.contains(",mismatch,bits differ\r\n"), "{csv}");
    // Two of them in another order are found by their names.
    for (name, names) in [("c.onnx", ["u", "v"]), ("d.onnx", ["v", "u"])] {
        let mut graph = sums("", &[3., 4.]);
        for of in names {
            let raw = if of == "u" { [0x21, 0x03] } else { [0x11, 0x01] };
            let q = with_int4(&[3], &raw).initializer.remove(1);
            graph.initializer.push(TensorProto { name: Some(of.into()), ..q });
        }
        put(folder.path(), name, graph);
    }
    let value = json(folder.path(), &["c.onnx", "d.onnx"]);
    assert_eq!(value["summary"]["mismatch"], 0, "{}", value["text"]);
    assert_eq!(align(folder.path(), &["c.onnx", "d.onnx"]).code, 0);
}

#[test]
fn a_lone_number_of_a_counted_name_is_no_counterpart_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["val_103", "scale"] {
        for (file, number) in [("a.onnx", 8.), ("b.onnx", 64.)] {
            let graph = GraphProto {
                input: vec![info("x", DType::F32, &[2])],
                output: vec![info("y", DType::F32, &[2])],
                initializer: vec![tensor_proto(name, &TensorBuf::from_f32([1], &[number]).unwrap().view())],
                node: vec![node("Add", &["x", name], &["y"])],
                ..Default::default()
            };
            put(folder.path(), file, graph);
        }
        let value = json(folder.path(), &["a.onnx", "b.onnx"]);
        let expected = if name == "scale" { "mismatch" } else { "not_compared" };
        assert_eq!(row(&value, name)["verdict"], expected, "{}", value["text"]);
        assert_eq!(value["outputs"]["mismatch"], 1, "{}", value["text"]);
    }
}

#[test]
fn the_runtime_leaves_no_telemetry_in_its_users_home() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "a.onnx", sums("", &[3., 4.]));
    let home = folder.path().join("home");
    fs::create_dir(&home).unwrap();
    let mut command = program(folder.path(), &["align", "a.onnx", "a.onnx", "--no-confine", "--onnxruntime"]);
    command.arg(common::library()).env("HOME", &home).env_remove("XDG_CACHE_HOME");
    let said = Said::from(command.output().unwrap());
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    assert_eq!(fs::read_dir(&home).unwrap().count(), 0, "ONNX Runtime wrote there");
}

#[test]
fn inputs_that_are_not_fed_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let mut graph = sums("", &[3., 4.]);
    let mut texts = info("s", DType::F32, &[2]);
    if let Some(type_proto::Value::TensorType(tensor)) = texts.r#type.as_mut().unwrap().value.as_mut() {
        tensor.elem_type = Some(8);
    }
    graph.input.push(texts);
    put(folder.path(), "a.onnx", graph);
    let said = align(folder.path(), &["a.onnx", "a.onnx"]);
    assert!(said.code == 2 && said.err.contains("input \"s\" is string[2]: only tensors of numbers"), "{}", said.err);
}

/// A part of a dump: its inputs are numbered, and its provenance tells what they are.
#[test]
fn inputs_of_a_part_are_called_and_fed_as_their_provenance_says() {
    let folder = tempfile::tempdir().unwrap();
    let of = |v: &str, w: &str| GraphProto {
        input: vec![info(v, DType::F32, &[2]), info(w, DType::F32, &[2]), info("x", DType::F32, &[2])],
        output: vec![info("y", DType::F32, &[2])],
        node: vec![node("Mul", &["x", w], &["h"]), node("Sub", &["h", v], &["y"])],
        ..Default::default()
    };
    let part = folder.path().join("part_0");
    let tensors = [("p1", floats(&[1., 2.])), ("p2", floats(&[30., 40.])), ("x", floats(&[5., 6.]))];
    data_set(&part.join("test_data_set_0"), &tensors);
    put(&part, "model.onnx", of("p1", "p2"));
    let told = json!({ "inputs": [
        { "name": "p1", "role": "PlainAOTInput", "of": "layer.v" }, { "name": "p2", "role": "PlainAOTInput", "of": "layer.w" },
    ] });
    fs::write(part.join("provenance.json"), told.to_string()).unwrap();
    // The same inputs by their names, in another order.
    let mut named = of("layer.v", "layer.w");
    named.input.swap(0, 1);
    put(folder.path(), "named.onnx", named);
    let args = ["part_0", "named.onnx", "--feeds", "part_0/test_data_set_0"];
    let value = json(folder.path(), &args);
    assert_eq!(symbols(&value), "======", "{}", value["text"]);
    assert_eq!(value["models"][1]["notes"], json!([]));
    assert_eq!(
        (&value["rows"][0]["first"]["name"], &value["rows"][0]["first"]["of"]),
        (&json!("p1"), &json!("layer.v"))
    );
    let said = align(folder.path(), &[&args[..], &["--all"]].concat());
    assert!(said.out.contains(" layer.v ") && !said.out.contains(" p1 "), "{}", said.out);
    // As initializers.
    let mut held = of("layer.v", "layer.w");
    held.input.drain(..2);
    held.initializer = vec![constant("layer.w", &[30., 40.]), constant("layer.v", &[1., 2.])];
    put(folder.path(), "held.onnx", held);
    let value = json(folder.path(), &["part_0", "held.onnx"]);
    assert_eq!(
        (&value["summary"]["matched"], &value["outputs"]["matched"]),
        (&json!(6), &json!(1)),
        "{}",
        value["text"]
    );
    let printed = dumping::piped(folder.path(), &["print", "part_0"]).out;
    assert!(printed.contains("input: name='p2' type=dtype('float32') shape=[2] of='layer.w'\n"), "{printed}");
    let shown = dumping::piped(folder.path(), &["show", "part_0/model.onnx"]).out;
    assert!(shown.contains("of='layer.w'"), "{shown}");
}
