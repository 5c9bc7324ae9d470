use std::collections::HashSet;

use super::*;
use crate::onnx::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto,
};
use crate::onnx::{value_info, walk};
use crate::tensor::{DType, TensorDesc};

const NONE: [&str; 0] = [];

pub(super) fn info(name: &str, dtype: DType) -> ValueInfoProto {
    value_info(name, &TensorDesc::new(dtype, [2]).unwrap())
}

pub(super) fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    let own = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    NodeProto { op_type: Some(op.into()), input: own(inputs), output: own(outputs), ..Default::default() }
}

pub(super) fn int(mut node: NodeProto, name: &str, i: i64) -> NodeProto {
    node.attribute.push(AttributeProto { name: Some(name.into()), i: Some(i), ..Default::default() });
    node
}

pub(super) fn body(mut node: NodeProto, name: &str, g: GraphProto) -> NodeProto {
    node.attribute.push(AttributeProto { name: Some(name.into()), g: Some(g), ..Default::default() });
    node
}

/// Inputs x and w and output y, all bfloat16; `i` is int64.
pub(super) fn model(nodes: Vec<NodeProto>) -> ModelProto {
    let graph = GraphProto {
        node: nodes,
        input: vec![info("x", DType::BF16), info("w", DType::BF16), info("i", DType::I64)],
        output: vec![info("y", DType::BF16)],
        ..Default::default()
    };
    let opset = OperatorSetIdProto { domain: Some(String::new()), version: Some(20) };
    ModelProto { graph: Some(graph), opset_import: vec![opset], ..Default::default() }
}

pub(super) fn lines(graph: &GraphProto) -> Vec<String> {
    let line = |node: &NodeProto| {
        let to = match elements::attribute(node, "to").and_then(|to| to.i) {
            Some(1) => ", f32",
            Some(10) => ", f16",
            Some(16) => ", bf16",
            _ => "",
        };
        format!("{} = {}({}{to})", node.output.join(", "), node.op_type(), node.input.join(", "))
    };
    graph.node.iter().map(line).collect()
}

fn widened(model: &ModelProto, named: &[&str]) -> Option<Vec<String>> {
    let wide = widen(model, named).unwrap()?;
    let (before, after) = (model.graph.as_ref().unwrap(), wide.graph.as_ref().unwrap());
    assert_eq!((&before.input, &before.output), (&after.input, &after.output));
    Some(lines(after))
}

#[test]
fn a_named_value_is_rounded_and_one_between_is_not() {
    let nodes =
        || vec![node("Mul", &["x", "w"], &["a"]), node("Add", &["a", "x"], &["b"]), node("Neg", &["b"], &["y"])];
    let expected = [
        "x/float32 = Cast(x, f32)",
        "w/float32 = Cast(w, f32)",
        "a = Mul(x/float32, w/float32)",
        "b/unrounded = Add(a, x/float32)",
        "b = Cast(b/unrounded, bf16)",
        "b/float32 = Cast(b, f32)",
        "y/unrounded = Neg(b/float32)",
        "y = Cast(y/unrounded, bf16)",
    ];
    assert_eq!(widened(&model(nodes()), &["b"]).unwrap(), expected);
    // The order of nodes is the model's own affair.
    assert_eq!(widened(&model(nodes().into_iter().rev().collect()), &["b"]).unwrap(), expected);
}

#[test]
fn what_moves_half_precision_stays() {
    let moves = vec![node("Transpose", &["x"], &["t"]), node("Concat", &["t", "w"], &["y"])];
    assert_eq!(widened(&model(moves), &["t"]), None);
    let no_kernel = vec![node("Transpose", &["x"], &["t"]), node("Expand", &["t", "i"], &["y"])];
    assert_eq!(
        widened(&model(no_kernel), &NONE).unwrap(),
        [
            "t = Transpose(x)",
            "t/float32 = Cast(t, f32)",
            "y/unrounded = Expand(t/float32, i)",
            "y = Cast(y/unrounded, bf16)"
        ]
    );
    let unrounded = vec![node("Neg", &["x"], &["n"]), node("Concat", &["n", "w"], &["c"]), node("Neg", &["c"], &["y"])];
    assert_eq!(widened(&model(unrounded), &NONE).unwrap()[3], "c = Concat(n, w/float32)");
    let mut adds = node("ScatterND", &["x", "i", "w"], &["y"]);
    assert_eq!(widened(&model(vec![adds.clone()]), &NONE), None);
    let s = Some(b"add".to_vec());
    adds.attribute.push(AttributeProto { name: Some("reduction".into()), s, ..Default::default() });
    assert_eq!(widened(&model(vec![adds]), &NONE).unwrap()[2], "y/unrounded = ScatterND(x/float32, i, w/float32)");
}

#[test]
fn a_cast_rounds_but_that_of_a_number() {
    let cast = |from: &str, to: &str, code: i64| int(node("Cast", &[from], &[to]), "to", code);
    let nodes = || vec![cast("i", "c", 16), cast("c", "f", 1), cast("f", "y", 16)];
    assert_eq!(widened(&model(nodes()), &NONE), None);
    assert_eq!(widened(&model(nodes()), &["c"]), None);
    let like = vec![node("CastLike", &["i", "x"], &["c"]), node("CastLike", &["c", "w"], &["y"])];
    assert_eq!(widened(&model(like), &NONE).unwrap(), ["c = Cast(i, bf16)", "y = Cast(c, bf16)"]);

    let mut number = node("Constant", &[], &["half"]);
    let value = Some("value_float".into());
    number.attribute.push(AttributeProto { name: value, f: Some(0.1), ..Default::default() });
    for op in ["Cast", "CastLike"] {
        let cast = int(node(op, if op == "Cast" { &["half"] } else { &["half", "x"] }, &["c"]), "to", 16);
        let nodes = vec![number.clone(), cast, node("Mul", &["x", "c"], &["y"])];
        let expected = [
            "half = Constant()",
            "c = Cast(half, f32)",
            "x/float32 = Cast(x, f32)",
            "y/unrounded = Mul(x/float32, c)",
            "y = Cast(y/unrounded, bf16)",
        ];
        assert_eq!(widened(&model(nodes.clone()), &NONE).unwrap(), expected);
        let rounded = widened(&model(nodes), &["c"]).unwrap();
        assert!(rounded[1].starts_with("c = Cast(half, bf16)"), "{rounded:?}");
    }
}

#[test]
fn what_is_computed_of_numbers_is_a_number() {
    let mut two = node("Constant", &[], &["two"]);
    two.attribute.push(AttributeProto { name: Some("value_float".into()), f: Some(2.0), ..Default::default() });
    let nodes = vec![
        two,
        node("Log", &["two"], &["ln2"]),
        node("CastLike", &["ln2", "x"], &["divisor"]),
        node("Log", &["x"], &["log"]),
        node("Div", &["log", "divisor"], &["y"]),
    ];
    assert_eq!(
        widened(&model(nodes), &NONE).unwrap()[1..],
        [
            "ln2 = Log(two)",
            "divisor = Cast(ln2, f32)",
            "x/float32 = Cast(x, f32)",
            "log = Log(x/float32)",
            "y/unrounded = Div(log, divisor)",
            "y = Cast(y/unrounded, bf16)",
        ]
    );
}

#[test]
fn float16_computes_in_float32_too_and_keeps_its_type() {
    let mut model = model(vec![
        node("Mul", &["x", "x"], &["a"]),
        int(node("Cast", &["a"], &["b"]), "to", 16),
        node("Add", &["b", "w"], &["y"]),
    ]);
    model.graph.as_mut().unwrap().input[0] = info("x", DType::F16);
    assert_eq!(
        widened(&model, &["a"]).unwrap(),
        [
            "x/float32 = Cast(x, f32)",
            "a/unrounded = Mul(x/float32, x/float32)",
            "a = Cast(a/unrounded, f16)",
            "b = Cast(a, bf16)",
            "b/float32 = Cast(b, f32)",
            "w/float32 = Cast(w, f32)",
            "y/unrounded = Add(b/float32, w/float32)",
            "y = Cast(y/unrounded, bf16)",
        ]
    );
}

#[test]
fn a_cast_of_a_cast_to_a_smaller_type_is_not_left_out() {
    let to = |dtype: DType, from: &str, name: &str| int(node("Cast", &[from], &[name]), "to", dtype.onnx_code().into());
    let chain = |between: DType, last: DType| {
        let mut model = model(vec![to(between, "i", "m"), to(last, "m", "y")]);
        let graph = model.graph.as_mut().unwrap();
        graph.input.truncate(0);
        graph.input.push(info("i", DType::I64));
        graph.output = vec![info("y", last)];
        widen(&model, &NONE).unwrap().map(|wide| {
            let node = &wide.graph.unwrap().node[1];
            (node.op_type().to_owned(), node.input[0].clone(), node.output[0].clone())
        })
    };
    let kept = |op: &str| Some((op.to_owned(), "m".to_owned(), "m/kept".to_owned()));
    assert_eq!(chain(DType::F16, DType::U8), kept("Cast"));
    assert_eq!(chain(DType::I16, DType::I8), kept("Cast"));
    assert_eq!(chain(DType::F32, DType::F16), kept("Max"));
    assert_eq!(chain(DType::F64, DType::F32), kept("Max"));
    assert_eq!(chain(DType::F32, DType::I32), None);
    assert_eq!(chain(DType::F32, DType::F64), None);
    assert_eq!(chain(DType::I64, DType::I8), None); // of int64: the first does nothing
}

#[test]
fn what_lies_between_two_casts_is_seen_through() {
    let half = i64::from(DType::F16.onnx_code());
    let first = || int(node("Cast", &["i"], &["m"]), "to", half);
    let second = |from: &str| int(node("Cast", &[from], &["y"]), "to", DType::U8.onnx_code().into());
    let kept_in = |nodes: Vec<NodeProto>, opset: i64| {
        let mut model = model(nodes);
        model.opset_import[0].version = Some(opset);
        let graph = model.graph.as_mut().unwrap();
        graph.input = vec![info("i", DType::F32), info("b", DType::U8), info("c", DType::Bool)];
        graph.output = vec![info("y", DType::U8)];
        widen(&model, &NONE).unwrap().map_or(0, |wide| {
            let graph = wide.graph.unwrap();
            let all = walk::graphs([&graph]).flat_map(|graph| &graph.node);
            all.filter(|node| node.output[0].contains("/kept")).count()
        })
    };
    let through = |op: &str| kept_in(vec![first(), node(op, &["m"], &["n"]), second("n")], 20);
    assert_eq!(["Identity", "Transpose", "Reshape", "Concat"].map(through), [1; 4]);
    assert_eq!(["Neg", "Floor"].map(through), [0; 2]);
    assert_eq!(kept_in(vec![first(), node("CastLike", &["m", "b"], &["y"])], 20), 1);
    let branch = || GraphProto { node: vec![second("m")], output: vec![info("y", DType::U8)], ..Default::default() };
    let choice = body(body(node("If", &["c"], &["y"]), "then_branch", branch()), "else_branch", branch());
    assert_eq!(kept_in(vec![first(), choice], 20), 2);
    let wide = int(node("Cast", &["i"], &["m"]), "to", DType::I64.onnx_code().into());
    let narrow = int(node("Cast", &["m"], &["y"]), "to", DType::I32.onnx_code().into());
    assert_eq!(kept_in(vec![wide.clone(), narrow.clone()], 20), 1);
    assert_eq!(kept_in(vec![wide, narrow], 11), 0); // there is no Max of integers
}

#[test]
fn results_of_another_type_are_not_rounded() {
    let nodes = vec![
        node("Less", &["x", "w"], &["less"]),
        node("ArgMax", &["x"], &["at"]),
        node("Shape", &["x"], &["shape"]),
        node("TopK", &["x", "i"], &["top", "place"]),
        int(node("LayerNormalization", &["x", "w"], &["norm", "mean", ""]), "stash_type", 1),
        node("Where", &["less", "norm", "w"], &["y"]),
    ];
    let named = ["less", "at", "shape", "top", "place", "norm", "mean"];
    assert_eq!(
        widened(&model(nodes), &named).unwrap(),
        [
            "x/float32 = Cast(x, f32)",
            "w/float32 = Cast(w, f32)",
            "less = Less(x/float32, w/float32)",
            "at = ArgMax(x/float32)",
            "shape = Shape(x)",
            "top/unrounded, place = TopK(x/float32, i)",
            "top = Cast(top/unrounded, bf16)",
            "norm/unrounded, mean,  = LayerNormalization(x/float32, w/float32)",
            "norm = Cast(norm/unrounded, bf16)",
            "norm/float32 = Cast(norm, f32)",
            "y/unrounded = Where(less, norm/float32, w/float32)",
            "y = Cast(y/unrounded, bf16)",
        ]
    );
}

#[test]
fn constants_and_weights_are_cast_by_the_graph() {
    let tensor = |name: &str| TensorProto {
        name: Some(name.into()),
        data_type: Some(DType::BF16.onnx_code()),
        ..Default::default()
    };
    let mut constant = node("Constant", &[], &["c"]);
    constant.attribute.push(AttributeProto { name: Some("value".into()), t: Some(tensor("")), ..Default::default() });
    let random = int(node("RandomNormal", &[], &["r"]), "dtype", 16);
    let nodes = vec![constant, random, node("Sum", &["c", "r", "weight"], &["y"])];
    let mut model = model(nodes);
    model.graph.as_mut().unwrap().initializer = vec![tensor("weight")];
    assert_eq!(
        widened(&model, &NONE).unwrap(),
        [
            "c = Constant()",
            "r = RandomNormal()",
            "c/float32 = Cast(c, f32)",
            "weight/float32 = Cast(weight, f32)",
            "y/unrounded = Sum(c/float32, r, weight/float32)",
            "y = Cast(y/unrounded, bf16)",
        ]
    );
    let wide = widen(&model, &NONE).unwrap().unwrap().graph.unwrap();
    assert_eq!((wide.initializer, wide.node[1].attribute[0].i), (vec![tensor("weight")], Some(1)));
}

#[test]
fn an_operator_that_does_not_tell_its_types_needs_a_declaration() {
    let mut unknown = node("Mystery", &["x"], &["m"]);
    unknown.domain = Some("com.example".into());
    let mut model = model(vec![unknown, node("Neg", &["m"], &["y"])]);
    let text = widen(&model, &NONE).unwrap_err().to_string();
    assert!(text.starts_with("node 0 (Mystery \"m\") reads half precision, and neither"), "{text}");
    model.graph.as_mut().unwrap().value_info = vec![info("m", DType::BF16), info("other", DType::BF16)];
    let wide = widen(&model, &NONE).unwrap().unwrap().graph.unwrap();
    assert_eq!(lines(&wide)[1..3], ["m = Mystery(x/float32)", "y/unrounded = Neg(m)"]);
    assert_eq!(wide.value_info, [info("m", DType::F32), info("other", DType::BF16)]);
}

#[test]
fn what_a_node_gives_goes_before_what_is_declared() {
    let mut model =
        model(vec![int(node("Cast", &["x"], &["sum"]), "to", 1), int(node("Cast", &["sum"], &["y"]), "to", 16)]);
    model.graph.as_mut().unwrap().value_info = vec![info("sum", DType::BF16)];
    assert_eq!(widened(&model, &["sum"]), None);
}

#[test]
fn bodies_keep_their_types_outside_and_compute_in_float32_inside() {
    let branch = |op: &str| GraphProto {
        node: vec![node(op, &["n"], &["inner"]), node("Mul", &["inner", "x"], &["out"])],
        output: vec![info("out", DType::BF16)],
        ..Default::default()
    };
    let choice = body(body(node("If", &["cond"], &["y"]), "then_branch", branch("Neg")), "else_branch", branch("Abs"));
    let model = model(vec![node("Less", &["x", "w"], &["cond"]), node("Neg", &["x"], &["n"]), choice]);
    let wide = widen(&model, &NONE).unwrap().unwrap().graph.unwrap();
    assert_eq!(lines(&wide)[2..], ["cond = Less(x/float32, w/float32)", "n = Neg(x/float32)", "y = If(cond)"]);
    let branches = [("Neg", "out/unrounded"), ("Abs", "out/unrounded.2")];
    for (attribute, (op, unrounded)) in wide.node.last().unwrap().attribute.iter().zip(branches) {
        let expected = [
            format!("inner = {op}(n)"),
            format!("{unrounded} = Mul(inner, x/float32)"),
            format!("out = Cast({unrounded}, bf16)"),
        ];
        assert_eq!(lines(attribute.g.as_ref().unwrap()), expected);
    }
}

#[test]
fn a_loop_carries_half_precision() {
    let untyped = |name: &str| ValueInfoProto { name: Some(name.into()), ..Default::default() };
    let each = GraphProto {
        node: vec![node("Identity", &["go"], &["go_on"]), node("Add", &["state", "w"], &["next"])],
        input: ["step", "go", "state"].map(untyped).into(),
        output: ["go_on", "next"].map(untyped).into(),
        ..Default::default()
    };
    let repeat = body(node("Loop", &["", "", "n"], &["y"]), "body", each);
    let wide = widen(&model(vec![node("Neg", &["x"], &["n"]), repeat]), &NONE).unwrap().unwrap().graph.unwrap();
    assert_eq!(
        lines(&wide),
        ["x/float32 = Cast(x, f32)", "n = Neg(x/float32)", "n/half = Cast(n, bf16)", "y = Loop(, , n/half)"]
    );
    let inside = wide.node[3].attribute[0].g.as_ref().unwrap();
    assert_eq!(
        lines(inside),
        [
            "go_on = Identity(go)",
            "state/float32 = Cast(state, f32)",
            "w/float32 = Cast(w, f32)",
            "next/unrounded = Add(state/float32, w/float32)",
            "next = Cast(next/unrounded, bf16)",
        ]
    );
}

#[test]
fn sequences_hold_float32() {
    let nodes = vec![node("SequenceConstruct", &["x", "w"], &["s"]), node("SequenceAt", &["s", "i"], &["y"])];
    assert_eq!(
        widened(&model(nodes), &["s"]).unwrap()[2..],
        [
            "s = SequenceConstruct(x/float32, w/float32)",
            "y/unrounded = SequenceAt(s, i)",
            "y = Cast(y/unrounded, bf16)"
        ]
    );
}

#[test]
fn new_names_are_new() {
    let nodes = vec![
        node("Neg", &["x"], &["x/float32"]),
        node("Neg", &["x"], &["y/unrounded"]),
        node("Add", &["x/float32", "y/unrounded"], &["y"]),
    ];
    assert_eq!(
        widened(&model(nodes), &NONE).unwrap(),
        [
            "x/float32.2 = Cast(x, f32)",
            "x/float32 = Neg(x/float32.2)",
            "y/unrounded = Neg(x/float32.2)",
            "y/unrounded.2 = Add(x/float32, y/unrounded)",
            "y = Cast(y/unrounded.2, bf16)",
        ]
    );
}

#[test]
fn functions_are_put_in_place() {
    let mut call = node("F", &["x"], &["y"]);
    call.domain = Some("local".into());
    let mut model = model(vec![call]);
    model.functions = vec![FunctionProto {
        name: Some("F".into()),
        domain: Some("local".into()),
        input: vec!["a".into()],
        output: vec!["b".into()],
        node: vec![node("Neg", &["a"], &["b"])],
        ..Default::default()
    }];
    assert_eq!(widened(&model, &NONE).unwrap()[1..], ["y/unrounded = Neg(x/float32)", "y = Cast(y/unrounded, bf16)"]);
}

/// x to y, by a function that only adds.
pub(super) fn attending() -> ModelProto {
    let ours = |mut node: NodeProto| {
        node.domain = Some("rust_ort".into());
        node
    };
    let call = ours(node("CausalScaledDotProductAttention", &["n", "w", "w", "s", "m"], &["attended", "sums"]));
    let mut model = model(vec![
        node("Neg", &["x"], &["n"]),
        int(node("Cast", &["i"], &["s"]), "to", 1),
        int(node("Cast", &["i"], &["m"]), "to", 1),
        call,
        node("Neg", &["attended"], &["y"]),
    ]);
    model.opset_import.push(OperatorSetIdProto { domain: Some("rust_ort".into()), version: Some(1) });
    model.functions = vec![FunctionProto {
        name: Some("CausalScaledDotProductAttention".into()),
        domain: Some("rust_ort".into()),
        input: ["q", "k", "v", "s", "m"].map(str::to_owned).to_vec(),
        output: vec!["o".into(), "l".into()],
        node: vec![node("Add", &["q", "k"], &["o"]), int(node("Cast", &["s"], &["l"]), "to", 1)],
        ..Default::default()
    }];
    model
}

#[test]
fn attention_that_is_kept_reads_and_gives_half_precision() {
    let wide = widen_but(&attending(), &NONE, &HashSet::new(), Attend::AsCalls).unwrap().unwrap().model;
    assert_eq!(
        lines(wide.graph.as_ref().unwrap()),
        [
            "x/float32 = Cast(x, f32)",
            "n = Neg(x/float32)",
            "s = Cast(i, f32)",
            "m = Cast(i, f32)",
            "n/half = Cast(n, bf16)",
            "attended, sums = CausalScaledDotProductAttention(n/half, w, w, s, m)",
            "attended/float32 = Cast(attended, f32)",
            "y/unrounded = Neg(attended/float32)",
            "y = Cast(y/unrounded, bf16)",
        ]
    );
    assert_eq!((wide.functions.len(), wide.opset_import.len()), (1, 2));
}

#[test]
fn attention_that_is_not_kept_is_put_in_place() {
    let wide = widen(&attending(), &NONE).unwrap().unwrap();
    assert!(lines(wide.graph.as_ref().unwrap()).contains(&"attended = Add(n, w/float32)".to_owned()));
    assert_eq!((wide.functions.len(), wide.opset_import.len()), (0, 1));
}

#[test]
fn a_model_without_half_precision_is_not_touched() {
    let mut model = model(vec![node("NoSuchOperator", &["i"], &["y"])]);
    let graph = model.graph.as_mut().unwrap();
    (graph.input, graph.output) = (vec![info("i", DType::I64)], vec![info("y", DType::F64)]);
    assert_eq!(widened(&model, &NONE), None);
}

#[test]
fn a_cast_without_input_or_output_is_an_error_or_left_alone() {
    for (inputs, outputs) in [(&[][..], &["y"][..]), (&[], &["y", "z"]), (&["x"], &["y", "z"])] {
        let mut model = model(vec![int(node("Cast", inputs, outputs), "to", 16)]);
        model.graph.as_mut().unwrap().output.clear();
        let (n, m) = (inputs.len(), outputs.len());
        let expected = format!("has {n} inputs and {m} outputs: a cast takes one and gives one");
        let text = widen(&model, &NONE).unwrap_err().to_string();
        assert!(text.contains(&expected), "{text}");
    }
    // The runtime refuses these.
    for op in ["Cast", "CastLike"] {
        let mut model = model(vec![int(node(op, &["x"], &[]), "to", 16)]);
        model.graph.as_mut().unwrap().output.clear();
        assert_eq!(widened(&model, &NONE), None, "{op}");
    }
}
