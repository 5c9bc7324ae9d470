//! The model after the precision pass, run on ONNX Runtime.

use std::sync::Arc;

use crate::common::{Memory, built};
use proptest::prelude::*;
use prost::Message as _;
use rust_ort::onnx::proto::attribute_proto::AttributeType;
use rust_ort::onnx::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto};
use rust_ort::onnx::{producers, value_info, widen};
use rust_ort::protocol::message::{Optimization, SessionSpec};
use rust_ort::runtime::StopToken;
use rust_ort::tensor::{DType, TensorDesc};

const SIDE: i64 = 3;

fn bf16(name: &str) -> ValueInfoProto {
    value_info(name, &TensorDesc::new(DType::BF16, [SIDE, SIDE]).unwrap())
}

/// A node of ONNX's own operator, by the name of what it gives.
pub(super) fn node(op: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        name: Some(format!("node_{output}")),
        op_type: Some(op.into()),
        input: inputs.iter().map(|&name| name.to_owned()).collect(),
        output: vec![output.to_owned()],
        ..Default::default()
    }
}

fn model(nodes: Vec<NodeProto>, outputs: &[String]) -> ModelProto {
    let graph = GraphProto {
        name: Some("g".into()),
        node: nodes,
        input: vec![bf16("x"), bf16("w")],
        output: outputs.iter().map(|name| bf16(name)).collect(),
        ..Default::default()
    };
    ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto { domain: None, version: Some(18) }],
        graph: Some(graph),
        ..Default::default()
    }
}

/// Nodes that give `output`, SIDE × SIDE, from `a` and `b`; values between them are named after it.
fn operation(kind: usize, a: &str, b: &str, output: &str) -> Vec<NodeProto> {
    let inner = format!("{output}_inner");
    let int = |name: &str, i: i64| AttributeProto {
        name: Some(name.into()),
        i: Some(i),
        r#type: Some(AttributeType::Int as i32),
        ..Default::default()
    };
    match kind {
        0..4 => vec![node(["Add", "Mul", "Sub", "Max"][kind], &[a, b], output)],
        4..8 => vec![node(["Neg", "Sigmoid", "Transpose", "Identity"][kind - 4], &[a], output)],
        8 => vec![node("MatMul", &[a, b], output)],
        9 => {
            let mut reduce = node("ReduceSum", &[a], &inner);
            reduce.attribute.push(int("keepdims", 1));
            vec![reduce, node("Mul", &[&inner, b], output)]
        }
        10 => vec![node("Shape", &[a], &inner), node("Reshape", &[b, &inner], output)],
        11 => vec![node("Less", &[a, b], &inner), node("Where", &[&inner, a, b], output)],
        12 => {
            let mut cast = node("Cast", &[a], &inner);
            cast.attribute.push(int("to", DType::BF16.onnx_code().into()));
            vec![cast, node("Tanh", &[&inner], output)]
        }
        _ => {
            let mut concat = node("Concat", &[a, b], &inner);
            concat.attribute.push(int("axis", 0));
            let mut split = node("Split", &[&inner], output);
            split.output.push(format!("{output}_rest"));
            split.attribute.extend([int("axis", 0), int("num_outputs", 2)]);
            vec![concat, split]
        }
    }
}

fn elements(model: &[u8], inputs: [f32; 2], n_outputs: usize, spec: &SessionSpec) -> Vec<Vec<f32>> {
    let memory = Memory::new(1 << 20);
    let session = built(model, spec).unwrap();
    let tensors = |n: usize| (0..n).map(|_| memory.alloc(DType::BF16, &[SIDE, SIDE])).collect::<Vec<_>>();
    let (given, outputs) = (tensors(2), tensors(n_outputs));
    for (tensor, start) in given.iter().zip(inputs) {
        let values = (0..SIDE * SIDE).map(|i| start + i as f32 / 16.);
        let bytes: Vec<u8> = values.flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes()).collect();
        memory.peer.write(tensor.location.offset(), &bytes).unwrap();
    }
    let lease = memory.table.lease(&given, &outputs).unwrap();
    Arc::clone(&session).bind(lease, &StopToken::default()).unwrap().run().unwrap();
    let widen = |half: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*half)) << 16);
    let read = |tensor: &rust_ort::tensor::TensorRef| {
        let bytes = memory.peer.read(tensor.location.offset(), tensor.desc.len_bytes()).unwrap();
        bytes.as_chunks().0.iter().map(widen).collect()
    };
    outputs.iter().map(read).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_models_run_and_every_named_value_keeps_name_and_type(
        steps in proptest::collection::vec((0_usize..14, any::<u16>(), any::<u16>(), any::<bool>()), 1..16),
    ) {
        let mut values = vec!["x".to_owned(), "w".to_owned()];
        let (mut nodes, mut named) = (Vec::new(), Vec::new());
        for (at, (kind, a, b, is_named)) in steps.into_iter().enumerate() {
            let [a, b] = [a, b].map(|pick| values[usize::from(pick) % values.len()].clone());
            let output = format!("v{at}");
            nodes.extend(operation(kind, &a, &b, &output));
            if is_named {
                named.push(output.clone());
            }
            values.push(output);
        }
        named.push(values.last().unwrap().clone());
        named.dedup();
        // As outputs of bfloat16 the runtime itself checks the named values' types.
        let plain = model(nodes, &named);
        let wide = widen(&plain, &named).unwrap().unwrap_or_else(|| plain.clone());
        let graph = wide.graph.as_ref().unwrap();
        let produced = producers(graph).unwrap();
        prop_assert!(named.iter().all(|name| produced.contains_key(name.as_str())));
        prop_assert!(widen(&wide, &named).unwrap().is_none(), "the pass has nothing to do after itself");
        let outputs = elements(&wide.encode_to_vec(), [0.25, -0.5], named.len(), &SessionSpec::default());
        prop_assert!(outputs.iter().all(|values| values.len() == 9));
    }
}

/// 1 + 2⁻⁸ needs nine bits: 1 in bfloat16.
#[test]
fn the_runtime_rounds_named_values_at_every_level_and_no_others() {
    let nodes =
        vec![node("Add", &["x", "w"], "sum"), node("Sub", &["sum", "x"], "rest"), node("Identity", &["rest"], "y")];
    let plain = model(nodes, &["y".to_owned()]);
    for (named, expected) in [(vec!["sum"], 0.0), (vec![], 1. / 256.)] {
        let wide = widen(&plain, &named).unwrap().unwrap().encode_to_vec();
        for &(_, optimization) in Optimization::NAMES {
            let spec = SessionSpec { optimization, ..SessionSpec::default() };
            assert_eq!(elements(&wide, [1., 1. / 256.], 1, &spec)[0][0], expected, "{named:?} {optimization:?}");
        }
    }
}
