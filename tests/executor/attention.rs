//! Calls of our attention functions, which a kernel is put in the place of.

use std::sync::Arc;

use crate::common::{Memory, built, runtime};
use prost::Message as _;
use rust_ort::onnx::proto::attribute_proto::AttributeType;
use rust_ort::onnx::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto,
};
use rust_ort::onnx::value_info;
use rust_ort::protocol::message::{Optimization, SessionSpec};
use rust_ort::runtime::{Model, Runtime as _, StopToken};
use rust_ort::tensor::{DType, TensorDesc};

const ATTENTION: &str = "ScaledDotProductAttention";

fn own(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn node(domain: &str, op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        domain: Some(domain.into()),
        op_type: Some(op.into()),
        name: Some(format!("node_{}", outputs[0])),
        input: own(inputs),
        output: own(outputs),
        ..Default::default()
    }
}

fn swap(input: &str, output: &str) -> NodeProto {
    let perm = AttributeProto {
        name: Some("perm".into()),
        ints: vec![0, 2, 1, 3],
        r#type: Some(AttributeType::Ints as i32),
        ..Default::default()
    };
    NodeProto { attribute: vec![perm], ..node("", "Transpose", &[input], &[output]) }
}

fn info(name: &str, dims: &[i64]) -> ValueInfoProto {
    value_info(name, &TensorDesc::new(DType::F32, dims).unwrap())
}

/// What gives `output`, of the shape of `dims`, from q, k and v of that shape. The function is not attention, to show
/// what runs: it gives query.
fn model(nodes: Vec<NodeProto>, dims: &[i64]) -> ModelProto {
    let function = FunctionProto {
        name: Some(ATTENTION.into()),
        domain: Some("rust_ort".into()),
        input: own(&["query", "key", "value", "scale"]),
        output: own(&["output", "logsumexp"]),
        node: vec![node("", "Identity", &["query"], &["output"]), node("", "Identity", &["scale"], &["logsumexp"])],
        opset_import: vec![OperatorSetIdProto { domain: None, version: Some(18) }],
        ..Default::default()
    };
    let graph = GraphProto {
        name: Some("g".into()),
        node: nodes,
        input: ["q", "k", "v"].iter().map(|name| info(name, dims)).chain([info("s", &[])]).collect(),
        output: vec![info("output", dims)],
        ..Default::default()
    };
    let opset = |domain: &str, version| OperatorSetIdProto { domain: Some(domain.into()), version: Some(version) };
    ModelProto {
        ir_version: Some(10),
        opset_import: vec![opset("", 18), opset("rust_ort", 1)],
        graph: Some(graph),
        functions: vec![function],
        ..Default::default()
    }
}

/// Of queries 0.5: each sees both keys alike, so that the kernel gives the mean of the values.
fn run(model: &ModelProto, dims: &[i64], optimization: Optimization) -> Vec<f32> {
    let spec = SessionSpec { optimization, ..SessionSpec::default() };
    let session = built(&model.encode_to_vec(), &spec).unwrap();
    let memory = Memory::new(1 << 20);
    let n = dims.iter().product::<i64>() as usize;
    let values: Vec<f32> = (0..n).map(|at| at as f32).collect();
    let inputs = [
        memory.put(dims, &vec![0.5; n]),
        memory.put(dims, &vec![0.25; n]),
        memory.put(dims, &values),
        memory.put(&[], &[1.0]),
    ];
    let output = memory.alloc(DType::F32, dims);
    let lease = memory.table.lease(&inputs, std::slice::from_ref(&output)).unwrap();
    Arc::clone(&session).bind(lease, &StopToken::default()).unwrap().run().unwrap();
    memory.get(&output)
}

fn operators(model: &ModelProto) -> Vec<String> {
    let model = Model::encode(model);
    let optimized = runtime().optimized(&model, &SessionSpec::default()).unwrap();
    let graph = ModelProto::decode(optimized.as_slice()).unwrap().graph.unwrap();
    graph.node.iter().map(|node| node.op_type().to_owned()).collect()
}

#[test]
fn the_kernel_computes_unless_nothing_is_optimized() {
    let call = node("rust_ort", ATTENTION, &["q", "k", "v", "s"], &["output", "logsumexp"]);
    let (model, dims) = (model(vec![call], &[1, 2, 2, 3]), [1, 2, 2, 3]);
    assert_eq!(operators(&model), ["AttentionFloat"]);
    for &(name, optimization) in Optimization::NAMES {
        let made = run(&model, &dims, optimization);
        if optimization == Optimization::Disable {
            assert_eq!(made, [0.5; 12], "{name}");
        } else {
            assert_eq!(made, [1.5, 2.5, 3.5, 1.5, 2.5, 3.5, 7.5, 8.5, 9.5, 7.5, 8.5, 9.5], "{name}");
        }
    }
}

#[test]
fn transposes_of_heads_and_length_are_left_to_the_kernel() {
    let call = node("rust_ort", ATTENTION, &["qt", "kt", "vt", "s"], &["made", "logsumexp"]);
    let around = vec![swap("q", "qt"), swap("k", "kt"), swap("v", "vt"), call, swap("made", "output")];
    let (model, dims) = (model(around, &[1, 2, 2, 3]), [1, 2, 2, 3]);
    assert_eq!(operators(&model), ["AttentionFloat"]);
    let made = run(&model, &dims, Optimization::All);
    assert_eq!(made, [3., 4., 5., 6., 7., 8., 3., 4., 5., 6., 7., 8.]);
}

#[test]
fn a_result_that_others_read_too_keeps_its_transpose() {
    let call = node("rust_ort", ATTENTION, &["q", "k", "v", "s"], &["made", "logsumexp"]);
    let again = node("rust_ort", ATTENTION, &["turned", "k", "v", "s"], &["second", "other"]);
    let nodes = vec![call, swap("made", "turned"), again, node("", "Add", &["second", "turned"], &["output"])];
    let made = run(&model(nodes, &[1, 2, 2, 3]), &[1, 2, 2, 3], Optimization::All);
    // The first, [1, 2, 2, 3], turned; the second is the mean of the values again, since all keys are alike.
    assert_eq!(made, [3., 5., 7., 9., 11., 13., 9., 11., 13., 15., 17., 19.]);
}

#[test]
fn a_call_inside_a_body_runs_as_its_function() {
    let body = |name: &str, nodes: Vec<NodeProto>| AttributeProto {
        name: Some(name.into()),
        g: Some(GraphProto {
            name: Some(name.into()),
            node: nodes,
            output: vec![info(name, &[1, 2, 2, 3])],
            ..Default::default()
        }),
        r#type: Some(AttributeType::Graph as i32),
        ..Default::default()
    };
    let inner = node("rust_ort", ATTENTION, &["made", "k", "v", "s"], &["then_branch", "inner_logsumexp"]);
    let branches =
        vec![body("then_branch", vec![inner]), body("else_branch", vec![node("", "Neg", &["made"], &["else_branch"])])];
    let choose = NodeProto { attribute: branches, ..node("", "If", &["flag"], &["output"]) };
    let call = node("rust_ort", ATTENTION, &["q", "k", "v", "s"], &["made", "logsumexp"]);
    let nodes = vec![call, node("", "Cast", &["s"], &["flag"]), choose];
    let mut model = model(nodes, &[1, 2, 2, 3]);
    model.graph.as_mut().unwrap().node[1].attribute = vec![AttributeProto {
        name: Some("to".into()),
        i: Some(DType::Bool.onnx_code().into()),
        r#type: Some(AttributeType::Int as i32),
        ..Default::default()
    }];
    let made = run(&model, &[1, 2, 2, 3], Optimization::All);
    assert_eq!(made, [1.5, 2.5, 3.5, 1.5, 2.5, 3.5, 7.5, 8.5, 9.5, 7.5, 8.5, 9.5]);
}
