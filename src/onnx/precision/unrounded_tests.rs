use std::collections::HashSet;

use super::tests::{attending, body, info, int, lines, model, node};
use super::*;
use crate::onnx::proto::{GraphProto, ModelProto};
use crate::tensor::DType;

const CALLS: Attend = Attend::AsCalls;

fn wide(model: &ModelProto, named: &[&str], unrounded: &[&str]) -> Widened {
    let unrounded: HashSet<String> = unrounded.iter().map(|&name| name.to_owned()).collect();
    let wide = widen_but(model, named, &unrounded, CALLS).unwrap().unwrap();
    let (before, after) = (model.graph.as_ref().unwrap(), wide.model.graph.as_ref().unwrap());
    assert_eq!((&before.input, &before.output), (&after.input, &after.output));
    wide
}

fn of(model: &ModelProto, named: &[&str], unrounded: &[&str]) -> Vec<String> {
    lines(wide(model, named, unrounded).model.graph.as_ref().unwrap())
}

fn found(name: &str, wide: &str) -> Unrounded {
    Unrounded { name: name.to_owned(), wide: wide.to_owned(), element: 16 }
}

#[test]
fn a_value_that_is_not_rounded_is_read_in_float32_and_its_readers_round_as_ever() {
    let nodes = vec![node("Mul", &["x", "w"], &["a"]), node("Add", &["a", "x"], &["b"]), node("Neg", &["b"], &["y"])];
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
    let model = model(nodes);
    assert_eq!(of(&model, &["a", "b"], &["a"]), expected);
    assert_eq!(wide(&model, &["a", "b"], &["a"]).unrounded, [found("a", "a")]);
    assert_eq!(wide(&model, &["a", "b"], &["a"]).outputs, [("y".to_owned(), "y/unrounded".to_owned())]);
    // One that nobody would round is nothing to leave out.
    assert_eq!(wide(&model, &["b"], &["a"]).unrounded, []);
}

#[test]
fn an_output_is_rounded_and_who_reads_it_inside_gets_what_was_before() {
    let mut model = model(vec![
        node("Neg", &["x"], &["a"]),
        node("Transpose", &["a"], &["t"]),
        node("Exp", &["t"], &["y"]),
        node("Relu", &["y"], &["z"]),
    ]);
    model.graph.as_mut().unwrap().output = ["a", "t", "y", "z"].map(|name| info(name, DType::BF16)).to_vec();
    let expected = [
        "x/float32 = Cast(x, f32)",
        "a/unrounded = Neg(x/float32)",
        "a = Cast(a/unrounded, bf16)",
        "t/unrounded = Transpose(a/unrounded)",
        "t = Cast(t/unrounded, bf16)",
        "y/unrounded = Exp(t/unrounded)",
        "y = Cast(y/unrounded, bf16)",
        "y/float32 = Cast(y, f32)",
        "z/unrounded = Relu(y/float32)",
        "z = Cast(z/unrounded, bf16)",
    ];
    assert_eq!(of(&model, &["a", "t", "y", "z"], &["a"]), expected);
    assert_eq!(wide(&model, &["a", "t", "y", "z"], &["a", "t"]).unrounded, [found("a", "a/unrounded")]);
}

#[test]
fn what_moves_a_value_that_is_not_rounded_does_not_round_it() {
    for op in ["Transpose", "Expand", "Where"] {
        let nodes = vec![node("Neg", &["x"], &["a"]), node(op, &["a", "w"], &["m"]), node("Exp", &["m"], &["y"])];
        let lines = of(&model(nodes), &["a", "m"], &["a"]);
        assert!(lines.contains(&"y/unrounded = Exp(m)".to_owned()), "{lines:?}");
    }
    // It adds: its result is another value.
    let mut adds = node("ScatterND", &["a", "i", "w"], &["m"]);
    let s = Some(b"add".to_vec());
    adds.attribute.push(crate::onnx::proto::AttributeProto { name: Some("reduction".into()), s, ..Default::default() });
    let lines = of(&model(vec![node("Neg", &["x"], &["a"]), adds, node("Exp", &["m"], &["y"])]), &["a", "m"], &["a"]);
    assert!(lines.contains(&"m = Cast(m/unrounded, bf16)".to_owned()), "{lines:?}");
}

#[test]
fn a_cast_to_half_precision_casts_to_float32_instead() {
    let cast = |from: &str, to: &str, code: i64| int(node("Cast", &[from], &[to]), "to", code);
    let model = |named: &[&str], unrounded: &[&str]| {
        let nodes = vec![cast("i", "c", 16), cast("c", "f", 1), cast("f", "h", 16), node("Exp", &["h"], &["y"])];
        of(&super::tests::model(nodes), named, unrounded)
    };
    // Without the Max ONNX Runtime would cast the integers to half precision at once.
    assert_eq!(
        model(&["c", "h"], &["c"])[..5],
        [
            "c = Cast(i, f32)",
            "f = Identity(c)",
            "f/kept = Max(f)",
            "h = Cast(f/kept, bf16)",
            "h/float32 = Cast(h, f32)"
        ]
    );
    assert_eq!(
        model(&["c", "h"], &["h"])[..4],
        ["c = Cast(i, bf16)", "f = Cast(c, f32)", "h = Identity(f)", "y/unrounded = Exp(h)"]
    );
    let nodes = vec![cast("x", "f", 1), cast("f", "y", 16)];
    assert_eq!(
        of(&super::tests::model(nodes), &["y"], &["y"]),
        ["f = Cast(x, f32)", "y/unrounded = Identity(f)", "y = Cast(y/unrounded, bf16)"]
    );
    let like = vec![node("Neg", &["x"], &["a"]), node("CastLike", &["i", "a"], &["c"]), node("Exp", &["c"], &["y"])];
    assert_eq!(of(&super::tests::model(like), &["a", "c"], &["a"])[2], "c = Cast(i, bf16)");
}

#[test]
fn attention_that_reads_or_gives_what_is_not_rounded_computes_in_float32() {
    let named = ["n", "attended", "sums", "y"];
    for (unrounded, expected) in [
        (&["n"][..], "attended/unrounded, sums = CausalScaledDotProductAttention(n, w/float32, w/float32, s, m)"),
        (&["attended"], "attended, sums = CausalScaledDotProductAttention(n/float32, w/float32, w/float32, s, m)"),
        (&["y"], "attended, sums = CausalScaledDotProductAttention(n, w, w, s, m)"),
    ] {
        let lines = of(&attending(), &named, unrounded);
        assert!(lines.contains(&expected.to_owned()), "{unrounded:?}: {lines:?}");
    }
}

#[test]
fn attention_whose_sums_are_saved_reads_what_is_saved_beside_them() {
    let mut model = attending();
    model.graph.as_mut().unwrap().output.push(info("sums", DType::F32));
    let named = ["n", "attended", "sums", "y"];
    for (unrounded, expected) in [
        (&["n"][..], "attended, sums = CausalScaledDotProductAttention(n/half, w, w, s, m)"),
        (
            &["n", "attended"],
            "attended, sums = CausalScaledDotProductAttention(n/half/float32, w/float32, w/float32, s, m)",
        ),
    ] {
        let lines = of(&model, &named, unrounded);
        assert!(lines.contains(&expected.to_owned()), "{unrounded:?}: {lines:?}");
        assert!(lines.contains(&"n/half = Cast(n, bf16)".to_owned()), "{lines:?}");
    }
}

#[test]
fn bodies_read_what_is_not_rounded_and_give_half_precision() {
    let inner = GraphProto {
        node: vec![node("Exp", &["a"], &["e"])],
        output: vec![info("e", DType::BF16)],
        ..Default::default()
    };
    let choose = body(body(node("If", &["i"], &["chosen"]), "then_branch", inner.clone()), "else_branch", inner);
    let model = model(vec![node("Neg", &["x"], &["a"]), choose, node("Exp", &["chosen"], &["y"])]);
    let wide = wide(&model, &["a", "chosen", "y"], &["a", "chosen", "e"]);
    let graph = wide.model.graph.as_ref().unwrap();
    let branch = graph.node.iter().find(|node| node.op_type() == "If").unwrap().attribute[0].g.as_ref().unwrap();
    assert_eq!(lines(branch)[0], "e/unrounded = Exp(a)");
    assert_eq!(wide.unrounded, [found("a", "a")]);
    assert!(lines(graph).contains(&"chosen/float32 = Cast(chosen, f32)".to_owned()));
}

#[test]
fn each_rounding_has_a_switch_and_outputs_come_before_theirs() {
    let mut model = model(vec![
        node("Neg", &["x"], &["a"]),
        node("Transpose", &["a"], &["t"]),
        node("Exp", &["t"], &["y"]),
        node("Relu", &["y"], &["z"]),
    ]);
    model.graph.as_mut().unwrap().output = ["y", "t"].map(|name| info(name, DType::BF16)).to_vec();
    let Switched { model, switches } = switched(&model, &["a", "t", "y", "z"], CALLS).unwrap().unwrap();
    assert_eq!(switches, [found("a", "a"), found("y", "y/unrounded"), found("z", "z")]);
    let graph = model.graph.as_ref().unwrap();
    let text = lines(graph);
    for expected in [
        "a/exact = Neg(x/float32)",
        "a/is_on = Gather(rust_ort/switches, a/index)",
        "a/rounded = Cast(a/exact, bf16)",
        "a/read = Cast(a/rounded, f32)",
        "a = Where(a/is_on, a/read, a/exact)",
        "t/unrounded = Transpose(a)",
        "y/unrounded/exact = Exp(t/unrounded)",
        "z/exact = Relu(y/unrounded)",
    ] {
        assert!(text.contains(&expected.to_owned()), "{expected}: {text:#?}");
    }
    let outputs: Vec<_> = graph.output.iter().map(|output| (output.name(), declared(output))).collect();
    assert_eq!(outputs, [("y/unrounded/exact", Some(1)), ("t/unrounded", Some(1))]);
    assert_eq!(graph.input.last().unwrap().name(), SWITCHES);
    let whole = super::tests::model(vec![node("Transpose", &["x"], &["y"])]);
    assert_eq!(switched(&whole, &["y"], CALLS).unwrap(), None);
}

fn declared(info: &crate::onnx::proto::ValueInfoProto) -> Option<i32> {
    elements::of_type(info.r#type.as_ref())
}
