use super::*;
use crate::onnx::precision::tests::{body, int, lines, node};
use crate::onnx::proto::{AttributeProto, FunctionProto, OperatorSetIdProto, ValueInfoProto};
use crate::onnx::value_info;
use crate::tensor::TensorDesc;

const HALF: DType = DType::BF16;

fn info(name: &str, dtype: DType, dims: &[i64]) -> ValueInfoProto {
    value_info(name, &TensorDesc::new(dtype, dims).unwrap())
}

/// x [2, 3] and w of bfloat16, h of float16, f of float32; y is the output.
fn model(opset: i64, nodes: Vec<NodeProto>, y: DType) -> ModelProto {
    let inputs = [("x", HALF), ("w", HALF), ("h", DType::F16), ("f", DType::F32)];
    let graph = GraphProto {
        node: nodes,
        input: inputs.iter().map(|&(name, dtype)| info(name, dtype, &[2, 3])).collect(),
        output: vec![info("y", y, &[2, 3])],
        ..Default::default()
    };
    let opset = OperatorSetIdProto { domain: Some(String::new()), version: Some(opset) };
    ModelProto { graph: Some(graph), opset_import: vec![opset], ..Default::default() }
}

fn opset(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto { domain: Some(domain.into()), version: Some(version) }
}

fn fitted_by(missing: &MissingKernels, mut model: ModelProto) -> (usize, Vec<String>) {
    let before = model.clone();
    let n_places = around_missing_kernels(&mut model, missing).unwrap();
    let graph = model.graph.as_ref().unwrap();
    assert_eq!(n_places == 0, model == before);
    let first = before.graph.unwrap();
    assert_eq!((&graph.input, &graph.output, &graph.value_info), (&first.input, &first.output, &first.value_info));
    (n_places, lines(graph))
}

fn fitted(model: ModelProto) -> Vec<String> {
    fitted_by(&MissingKernels::measured(), model).1
}

fn ints(name: &str, values: &[i64]) -> NodeProto {
    let ints = AttributeProto { name: Some("value_ints".into()), ints: values.to_vec(), ..Default::default() };
    NodeProto { attribute: vec![ints], ..node("Constant", &[], &[name]) }
}

fn mode(mut node: NodeProto, mode: &str) -> NodeProto {
    let s = Some(mode.as_bytes().to_vec());
    node.attribute.push(AttributeProto { name: Some("mode".into()), s, ..Default::default() });
    node
}

#[test]
fn a_node_without_a_kernel_reads_float32_and_its_result_is_rounded() {
    let found = fitted(model(18, vec![node("Log", &["x"], &["y"])], HALF));
    assert_eq!(found, ["x/float32 = Cast(x, f32)", "y/unrounded = Log(x/float32)", "y = Cast(y/unrounded, bf16)"]);
}

#[test]
fn what_has_a_kernel_stays_whatever_is_beside_it() {
    for nodes in [
        vec![node("Add", &["x", "w"], &["y"])],
        vec![node("Exp", &["x"], &["a"]), node("MatMul", &["a", "w"], &["y"])],
        vec![node("Log", &["h"], &["y"])],
        vec![node("Log", &["f"], &["y"])],
        vec![NodeProto { domain: Some("somebody".into()), ..node("Log", &["x"], &["y"]) }],
    ] {
        assert_eq!(fitted_by(&MissingKernels::measured(), model(18, nodes, HALF)).0, 0);
    }
}

#[test]
fn a_value_is_cast_once_and_a_rounding_between_two_such_nodes_stays() {
    let nodes = vec![
        node("Log", &["x"], &["a"]),
        node("Floor", &["a"], &["b"]),
        node("Greater", &["x", "w"], &["more"]),
        node("Where", &["more", "a", "b"], &["y"]),
    ];
    let expected = [
        "x/float32 = Cast(x, f32)",
        "a/unrounded = Log(x/float32)",
        "a = Cast(a/unrounded, bf16)",
        "a/float32 = Cast(a, f32)",
        "b/unrounded = Floor(a/float32)",
        "b = Cast(b/unrounded, bf16)",
        "w/float32 = Cast(w, f32)",
        "more = Greater(x/float32, w/float32)",
        "y = Where(more, a, b)",
    ];
    assert_eq!(fitted_by(&MissingKernels::measured(), model(18, nodes, HALF)), (3, expected.map(str::to_owned).into()));
}

#[test]
fn a_kernel_of_a_later_opset_is_taken_where_the_model_is_of_it() {
    let nodes = vec![node("Conv", &["x", "w"], &["y"])];
    assert_eq!(fitted(model(21, nodes.clone(), HALF)).len(), 4);
    assert_eq!(fitted(model(22, nodes, HALF)), ["y = Conv(x, w)"]);
}

#[test]
fn float16_is_widened_where_float32_alone_has_a_kernel() {
    let nodes = vec![node("GridSample", &["h", "h"], &["y"])];
    let expected =
        ["h/float32 = Cast(h, f32)", "y/unrounded = GridSample(h/float32, h/float32)", "y = Cast(y/unrounded, f16)"];
    assert_eq!(fitted(model(18, nodes, DType::F16)), expected);
}

/// ONNX Runtime leaves the rounding between them out, as the CPU has both in float32.
#[test]
fn float16_is_rounded_between_two_nodes_that_are_the_cpus() {
    let nodes = vec![node("Atan", &["h"], &["a"]), node("Tan", &["a"], &["y"])];
    let found = fitted(model(18, nodes, DType::F16));
    assert_eq!(found[2..4], ["a = Cast(a/unrounded, f16)", "a/float32 = Cast(a, f32)"]);
    let pool = vec![node("MaxPool", &["h"], &["y"])];
    assert_eq!(fitted(model(21, pool.clone(), DType::F16)).len(), 1);
    assert_eq!(fitted(model(22, pool, DType::F16)).len(), 3, "its kernel ends with opset 21");
}

#[test]
fn a_type_that_an_attribute_says_is_widened_with_it() {
    let random = int(node("RandomNormalLike", &["f"], &["y"]), "dtype", 16);
    let mut found = model(18, vec![random], HALF);
    assert_eq!(around_missing_kernels(&mut found, &MissingKernels::measured()).unwrap(), 1);
    let graph = found.graph.unwrap();
    assert_eq!(lines(&graph), ["y/unrounded = RandomNormalLike(f)", "y = Cast(y/unrounded, bf16)"]);
    assert_eq!(graph.node[0].attribute[0].i, Some(1));
}

#[test]
fn outputs_that_are_no_half_precision_are_not_rounded_and_what_is_left_out_stays_so() {
    let nodes = vec![node("MaxPool", &["x"], &["y", "indices"]), node("Resize", &["w", "", "f"], &["z"])];
    let expected = [
        "x/float32 = Cast(x, f32)",
        "y/unrounded, indices = MaxPool(x/float32)",
        "y = Cast(y/unrounded, bf16)",
        "w/float32 = Cast(w, f32)",
        "z/unrounded = Resize(w/float32, , f)",
        "z = Cast(z/unrounded, bf16)",
    ];
    assert_eq!(fitted(model(18, nodes, HALF)), expected);
}

#[test]
fn bodies_and_functions_are_looked_into() {
    let inside = GraphProto {
        node: vec![node("Log", &["x"], &["a"])],
        output: vec![info("a", HALF, &[2, 3])],
        ..Default::default()
    };
    let branch = body(node("If", &["condition"], &["z"]), "then_branch", inside);
    let call = NodeProto { domain: Some("ours".into()), ..node("Apart", &["z"], &["y"]) };
    let function = FunctionProto {
        name: Some("Apart".into()),
        domain: Some("ours".into()),
        input: vec!["in".into()],
        output: vec!["out".into()],
        node: vec![node("Floor", &["in"], &["out"])],
        opset_import: vec![OperatorSetIdProto { domain: Some(String::new()), version: Some(18) }],
        ..Default::default()
    };
    let mut found = model(18, vec![branch, call], HALF);
    found.opset_import.push(OperatorSetIdProto { domain: Some("ours".into()), version: Some(1) });
    found.functions.push(function);
    let graph = found.graph.as_mut().unwrap();
    graph.input.push(info("condition", DType::Bool, &[]));
    graph.value_info.push(info("z", HALF, &[2, 3]));
    assert_eq!(around_missing_kernels(&mut found, &MissingKernels::measured()).unwrap(), 2);
    let graph = found.graph.unwrap();
    let inner = graph.node[0].attribute[0].g.as_ref().unwrap();
    let expected = ["x/float32 = Cast(x, f32)", "a/unrounded = Log(x/float32)", "a = Cast(a/unrounded, bf16)"];
    assert_eq!(lines(inner), expected);
    let expected = ["z/float32 = Cast(z, f32)", "y/unrounded = Floor(z/float32)", "y = Cast(y/unrounded, bf16)"];
    assert_eq!(lines(&graph)[1..], expected);
    assert!(found.functions.is_empty());
}

#[test]
fn a_function_of_nodes_with_kernels_stays_a_call() {
    let function = |name: &str, node: NodeProto| FunctionProto {
        name: Some(name.into()),
        domain: Some("ours".into()),
        input: vec!["in".into()],
        output: vec!["out".into()],
        node: vec![node],
        opset_import: ["", "ours"].map(|domain| opset(domain, 18)).into(),
        ..Default::default()
    };
    let call =
        |name: &str, from: &str, to: &str| NodeProto { domain: Some("ours".into()), ..node(name, &[from], &[to]) };
    let nodes = vec![call("Outer", "x", "a"), call("Fine", "a", "b"), node("Floor", &["b"], &["y"])];
    let mut found = model(18, nodes, HALF);
    found.opset_import.push(opset("ours", 18));
    found.functions.push(function("Outer", call("Inner", "in", "out")));
    found.functions.push(function("Inner", node("Log", &["in"], &["out"])));
    found.functions.push(function("Fine", node("Exp", &["in"], &["out"])));
    let graph = found.graph.as_mut().unwrap();
    graph.value_info.extend([info("a", HALF, &[2, 3]), info("b", HALF, &[2, 3])]);
    assert_eq!(around_missing_kernels(&mut found, &MissingKernels::measured()).unwrap(), 2);
    let ops: Vec<&str> = found.graph.as_ref().unwrap().node.iter().map(|node| node.op_type()).collect();
    assert_eq!(ops, ["Cast", "Log", "Cast", "Fine", "Cast", "Floor", "Cast"]);
    assert_eq!(found.functions.iter().map(|function| function.name()).collect::<Vec<_>>(), ["Fine"]);
}

#[test]
fn a_library_that_was_not_measured_is_learnt_from_what_it_refuses() {
    let refusals = [
        (
            "transformer_memcpy.cc:253 bool onnxruntime::X(const Node&) const !provider.empty() was false. Provider type \
          for Pad node with name 'node_Pad_3' is not set.",
            Some("Pad"),
        ),
        (
            "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for Log(13) node with name ''",
            Some("Log"),
        ),
        (
            "This is an invalid model. Type Error: Type 'tensor(bfloat16)' of input parameter (x) of operator (Conv) in \
          node (node_Conv_3) is invalid.",
            Some("Conv"),
        ),
        ("Provider type for  node with name 'x' is not set.", None),
        ("Failed to allocate memory for requested buffer of size 8", None),
    ];
    let mut missing = MissingKernels::of_cuda("1.99.0");
    let nodes = || vec![node("Log", &["x"], &["a"]), node("Round", &["a"], &["y"])];
    assert_eq!(fitted_by(&missing, model(18, nodes(), HALF)).0, 0);
    for (refusal, operator) in refusals {
        assert_eq!(missing.learn(refusal).as_deref(), operator, "{refusal}");
        assert_eq!(missing.learn(refusal), None, "it is known: {refusal}");
    }
    assert_eq!(fitted_by(&missing, model(18, nodes(), HALF)).0, 1);
    assert_eq!(fitted_by(&MissingKernels::of_cuda("1.31.4"), model(18, nodes(), HALF)).0, 2);
}

#[test]
fn nothing_that_is_refused_casts_bits_or_sequences() {
    let mut missing = MissingKernels::default();
    for operator in ["BitCast", "Cast", "SequenceConstruct", "Loop"] {
        assert!(missing.learn(&format!("Provider type for {operator} node")).is_some());
    }
    let nodes = vec![
        int(node("BitCast", &["x"], &["a"]), "to", 10),
        int(node("Cast", &["a"], &["b"]), "to", 16),
        node("SequenceConstruct", &["b"], &["c"]),
        node("Identity", &["b"], &["y"]),
    ];
    assert_eq!(fitted_by(&missing, model(26, nodes, HALF)).0, 0);
}

#[test]
fn a_fill_is_an_expand_of_its_value() {
    let value = TensorProto {
        dims: vec![1],
        data_type: Some(16),
        raw_data: Some(vec![0x80, 0x3f].into()),
        ..Default::default()
    };
    let value = AttributeProto { name: Some("value".into()), t: Some(value), ..Default::default() };
    let fill = NodeProto { attribute: vec![value], ..node("ConstantOfShape", &["shape"], &["y"]) };
    let found = model(18, vec![ints("shape", &[2, 3]), fill], HALF);
    assert_eq!(fitted(found.clone())[1..], ["y/value = Constant()", "y = Expand(y/value, shape)"]);
    assert_eq!(fitted(ModelProto { opset_import: model(20, vec![], HALF).opset_import, ..found }).len(), 2);
}

/// Of x [2, 3] with these inputs after the first, and Constants for them before.
fn padded(pads: &[i64], more: &[&str], how: &str) -> ModelProto {
    let inputs: Vec<&str> = ["x", "pads"].iter().chain(more).copied().collect();
    let pad = NodeProto { name: Some("the pad".into()), ..mode(node("Pad", &inputs, &["y"]), how) };
    let mut made = model(18, vec![ints("pads", pads), ints("one", &[1]), ints("last", &[-1]), pad], HALF);
    made.graph.as_mut().unwrap().input.push(info("value", HALF, &[]));
    made
}

fn without_constants(found: &[String]) -> Vec<&str> {
    found.iter().map(String::as_str).filter(|line| !line.contains("Constant()")).collect()
}

#[test]
fn a_pad_beside_is_a_concat_and_a_negative_one_a_slice() {
    for (pads, more, expected) in [
        (&[0, 0, 0, 2][..], &[][..], &["y/part = Expand(y/value, y/shape)", "y = Concat(x, y/part)"][..]),
        (&[0, 1, 0, 1], &["value"], &["y/part = Expand(value, y/shape)", "y = Concat(y/part, x, y/part)"]),
        (
            &[0, 1, 0, 2],
            &["value"],
            &[
                "y/part = Expand(value, y/shape)",
                "y/part.2 = Expand(value, y/shape.2)",
                "y = Concat(y/part, x, y/part.2)",
            ],
        ),
        (
            &[1, 0, 0, 2],
            &["value"],
            &[
                "y/part = Expand(value, y/shape)",
                "y/part.2 = Concat(y/part, x)",
                "y/part.3 = Expand(value, y/shape.2)",
                "y = Concat(y/part.2, y/part.3)",
            ],
        ),
        (&[-1, 0, 0, -1], &[], &["y = Slice(x, y/starts, y/ends, y/axes)"]),
        (
            &[-1, 0, 2, 0],
            &["value"],
            &[
                "y/part = Slice(x, y/starts, y/ends, y/axes)",
                "y/part.2 = Expand(value, y/shape)",
                "y = Concat(y/part, y/part.2)",
            ],
        ),
        (&[0, 0, 0, 0], &[], &["y = Identity(x)"]),
        (&[0, 2], &["", "last"], &["y/part = Expand(y/value, y/shape)", "y = Concat(x, y/part)"]),
        (&[1, 0], &["value", "one"], &["y/part = Expand(value, y/shape)", "y = Concat(y/part, x)"]),
    ] {
        let found = fitted(padded(pads, more, "constant"));
        assert_eq!(without_constants(&found), expected, "{pads:?}");
    }
    let mut found = padded(&[0, 0, 0, 2], &[], "constant");
    around_missing_kernels(&mut found, &MissingKernels::measured()).unwrap();
    assert_eq!(found.graph.unwrap().node.last().unwrap().name(), "the pad", "what ONNX Runtime says names the node");
}

#[test]
fn what_a_pad_became_is_looked_at_in_its_turn() {
    let mut missing = MissingKernels::measured();
    missing.learn("Could not find an implementation for Expand(13) node");
    let (n_places, found) = fitted_by(&missing, padded(&[0, 0, 0, 2], &["value"], "constant"));
    let expected = [
        "value/float32 = Cast(value, f32)",
        "y/part/unrounded = Expand(value/float32, y/shape)",
        "y/part = Cast(y/part/unrounded, bf16)",
        "y = Concat(x, y/part)",
    ];
    assert_eq!((n_places, without_constants(&found)), (2, expected.to_vec()));
}

#[test]
fn a_pad_of_integers_is_a_concat_or_stays() {
    for (dtype, how, expected) in [
        (DType::I64, "constant", 2),
        (DType::U8, "constant", 2),
        (DType::F32, "constant", 1),
        (DType::Bool, "constant", 1),
        (DType::I64, "edge", 1),
    ] {
        let mut made = padded(&[0, 0, 0, 2], &[], how);
        let graph = made.graph.as_mut().unwrap();
        graph.input = vec![info("x", dtype, &[2, 3])];
        graph.output = vec![info("y", dtype, &[2, 5])];
        let n_places = usize::from(expected == 2);
        let (done, found) = fitted_by(&MissingKernels::measured(), made);
        assert_eq!((done, without_constants(&found).len()), (n_places, expected), "{dtype:?} {how}");
    }
}

#[test]
fn any_other_pad_computes_in_float32() {
    let sixty_five = [0; 66];
    for (pads, more, how) in [
        (&[0, 0, 0, 2][..], &[][..], "edge"),
        (&[0, 0, 0, 2], &[], "reflect"),
        (&[0, 0, 0, 2, 1], &[], "constant"),
        (&[0, 0, 0, 2], &["", "one"], "constant"),
        (&[0, 2], &["", "unknown"], "constant"),
        (&[-1, 0, -1, 4], &[], "constant"),
        (&[i64::MIN, 0, 0, 0], &[], "constant"),
        (&[0, 0, 0, i64::MAX], &[], "constant"),
        (&sixty_five, &[], "constant"),
    ] {
        let mut made = padded(pads, more, how);
        made.graph.as_mut().unwrap().input.push(info("unknown", DType::I64, &[1]));
        let found = fitted(made);
        let expected = ["x/float32 = Cast(x, f32)", "y = Cast(y/unrounded, bf16)"];
        assert!(expected.iter().all(|line| found.iter().any(|found| found == line)), "{pads:?} {how}: {found:?}");
    }
    let mut given = padded(&[0, 0, 0, 2], &[], "constant");
    let graph = given.graph.as_mut().unwrap();
    graph.node.remove(0);
    graph.input.push(info("pads", DType::I64, &[4]));
    assert_eq!(fitted(given).len(), 5, "pads that only the call knows");
    let mut unknown = padded(&[0, 0, 0, 2], &[], "constant");
    unknown.graph.as_mut().unwrap().input[0].r#type = Some(crate::onnx::proto::TypeProto {
        value: Some(crate::onnx::proto::type_proto::Value::TensorType(crate::onnx::proto::type_proto::Tensor {
            elem_type: Some(16),
            shape: None,
        })),
        denotation: None,
    });
    assert!(fitted(unknown).iter().any(|line| line.starts_with("x/float32")), "a shape that only the call knows");
}
