//! Models after the pass `missing-kernels`, run on ONNX Runtime. Its CPU provider has fewer kernels of bfloat16 than
//! CUDA's: what is run is widened for it, as it was and after the pass.

use std::sync::Arc;

use crate::common::{Memory, built};
use crate::precision::node;
use proptest::prelude::*;
use prost::Message as _;
use rust_ort::onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, attribute_proto::AttributeType,
};
use rust_ort::onnx::{MissingKernels, fit_kernels, ran, value_info, widen};
use rust_ort::protocol::message::{CPU_PROVIDER, CUDA_PROVIDER, Optimization, SessionSpec};
use rust_ort::runtime::StopToken;
use rust_ort::tensor::{DType, TensorDesc};

const HALF: DType = DType::BF16;

fn with(name: &str, kind: AttributeType, set: impl FnOnce(&mut AttributeProto), mut node: NodeProto) -> NodeProto {
    let mut attribute = AttributeProto { name: Some(name.into()), r#type: Some(kind as i32), ..Default::default() };
    set(&mut attribute);
    node.attribute.push(attribute);
    node
}

fn ints(name: &str, values: &[i64], node: NodeProto) -> NodeProto {
    with(name, AttributeType::Ints, |attribute| attribute.ints = values.to_vec(), node)
}

fn text(name: &str, value: &str, node: NodeProto) -> NodeProto {
    with(name, AttributeType::String, |attribute| attribute.s = Some(value.as_bytes().to_vec()), node)
}

fn row(name: &str, values: &[i64]) -> NodeProto {
    ints("value_ints", values, node("Constant", &[], name))
}

/// From x to y; of opset 18.
fn model(nodes: Vec<NodeProto>, inputs: &[(&str, &[i64])], output: &[i64]) -> ModelProto {
    let info = |name: &str, dims: &[i64]| value_info(name, &TensorDesc::new(HALF, dims).unwrap());
    let graph = GraphProto {
        name: Some("g".into()),
        node: nodes,
        input: inputs.iter().map(|(name, dims)| info(name, dims)).collect(),
        output: vec![info("y", output)],
        ..Default::default()
    };
    ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto { domain: None, version: Some(18) }],
        graph: Some(graph),
        ..Default::default()
    }
}

/// The pass's model. Every node that it did otherwise is counted.
fn fitted(model: &ModelProto, n_places: usize) -> ModelProto {
    let mut fitted = model.clone();
    assert!(fit_kernels(&mut fitted, &MissingKernels::measured()).unwrap());
    assert_eq!(ran(&fitted), Some(&*format!("missing-kernels {n_places}")));
    assert!(!fit_kernels(&mut fitted, &MissingKernels::measured()).unwrap(), "nothing is left to be done");
    fitted
}

/// y's bits. inputs: the bits of each.
fn run(model: &ModelProto, inputs: &[Vec<u16>]) -> Vec<u16> {
    let graph = model.graph.as_ref().unwrap();
    let values: Vec<&String> =
        graph.node.iter().flat_map(|node| &node.output).filter(|name| !name.is_empty()).collect();
    let wide = widen(model, &values).unwrap();
    let spec = SessionSpec { optimization: Optimization::Disable, ..SessionSpec::default() };
    let session = built(&wide.as_ref().unwrap_or(model).encode_to_vec(), &spec).unwrap();
    let memory = Memory::new(1 << 20);
    let dims = |specs: &[rust_ort::protocol::message::ValueSpec]| {
        specs.iter().map(|spec| spec.dims.clone()).collect::<Vec<_>>()
    };
    let given: Vec<_> = dims(session.inputs()).iter().map(|dims| memory.alloc(HALF, dims)).collect();
    let output = memory.alloc(HALF, &dims(session.outputs())[0]);
    for (tensor, bits) in given.iter().zip(inputs) {
        let bytes: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        memory.peer.write(tensor.location.offset(), &bytes).unwrap();
    }
    let lease = memory.table.lease(&given, std::slice::from_ref(&output)).unwrap();
    Arc::clone(&session).bind(lease, &StopToken::default()).unwrap().run().unwrap();
    let bytes = memory.peer.read(output.location.offset(), output.desc.len_bytes()).unwrap();
    bytes.as_chunks().0.iter().map(|&bits| u16::from_le_bytes(bits)).collect()
}

fn n_elements(dims: &[i64]) -> usize {
    dims.iter().product::<i64>() as usize
}

/// All kinds of numbers, NaN, infinities, -0 and the smallest among them.
fn bits(n: usize, seed: u16) -> Vec<u16> {
    const SPECIAL: [u16; 8] = [0x8000, 0x7f80, 0xff80, 0x7fc0, 0x0001, 0x3f81, 0xbf80, 0x7f7f];
    let number = |at: usize| 0x3f00_u16.wrapping_add((at as u16).wrapping_mul(37).wrapping_add(seed) % 0x200);
    (0..n).map(|at| if at % 5 == 4 { SPECIAL[(at / 5 + usize::from(seed)) % 8] } else { number(at) }).collect()
}

/// Each negative pad takes away, each other one puts the value beside.
fn padded(x: &[u16], dims: &[i64], pads: &[i64], value: u16) -> Vec<u16> {
    let rank = dims.len();
    let sizes: Vec<i64> = (0..rank).map(|axis| dims[axis] + pads[axis] + pads[rank + axis]).collect();
    let mut made = Vec::with_capacity(n_elements(&sizes));
    for flat in 0..n_elements(&sizes) as i64 {
        let (mut left, mut place, mut stride, mut is_inside) = (flat, 0, 1, true);
        for axis in (0..rank).rev() {
            let at = left % sizes[axis] - pads[axis];
            left /= sizes[axis];
            is_inside &= (0..dims[axis]).contains(&at);
            place += at * stride;
            stride *= dims[axis];
        }
        made.push(if is_inside { x[place as usize] } else { value });
    }
    made
}

fn pad(dims: &[i64], pads: &[i64], output: &[i64], how: &str) -> ModelProto {
    let nodes = vec![row("pads", pads), text("mode", how, node("Pad", &["x", "pads", "value"], "y"))];
    model(nodes, &[("x", dims), ("value", &[])], output)
}

fn after(dims: &[i64], pads: &[i64]) -> Vec<i64> {
    (0..dims.len()).map(|axis| dims[axis] + pads[axis] + pads[dims.len() + axis]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_pad_of_constants_moves_every_bit_where_it_belongs(
        (dims, pads) in (1_usize..4).prop_flat_map(|rank| (
            proptest::collection::vec(3_i64..6, rank),
            proptest::collection::vec(-1_i64..3, 2 * rank),
        )),
        seed in any::<u16>(),
        value in prop_oneof![Just(0_u16), Just(0x8000), Just(0xff80), Just(0x7fc0), Just(0x4049)],
    ) {
        let original = pad(&dims, &pads, &after(&dims, &pads), "constant");
        let inputs = [bits(n_elements(&dims), seed), vec![value]];
        let expected = padded(&inputs[0], &dims, &pads, value);
        prop_assert_eq!(run(&fitted(&original, 1), &inputs), expected.clone());
        // NaNs pass casts with their bits.
        prop_assert_eq!(run(&original, &inputs), expected);
    }
}

#[test]
fn pads_of_other_modes_and_of_axes_are_those_of_float32() {
    let (dims, pads) = ([3, 4], [1, 2, 0, 1]);
    for how in ["edge", "reflect"] {
        let original = pad(&dims, &pads, &after(&dims, &pads), how);
        let inputs = [bits(12, 3), vec![0x4049]];
        assert_eq!(run(&fitted(&original, 1), &inputs), run(&original, &inputs), "{how}");
    }
    let nodes = vec![row("pads", &[-1, 2]), row("axes", &[-1]), node("Pad", &["x", "pads", "", "axes"], "y")];
    let original = model(nodes, &[("x", &dims)], &[3, 5]);
    let x = bits(12, 7);
    let made = run(&fitted(&original, 1), std::slice::from_ref(&x));
    assert_eq!(made, padded(&x, &dims, &[0, -1, 0, 2], 0));
}

/// Several operators without a kernel, one after the other and beside those with one: what the model rounds is rounded.
#[test]
fn the_model_computes_what_it_did_bit_by_bit() {
    let nodes = vec![
        node("Log", &["x"], "logarithm"),
        node("Floor", &["logarithm"], "floor"),
        node("Mul", &["floor", "w"], "product"),
        node("Greater", &["product", "x"], "more"),
        node("Where", &["more", "product", "logarithm"], "chosen"),
        with("axis", AttributeType::Int, |axis| axis.i = Some(1), node("LogSoftmax", &["chosen"], "soft")),
        node("Reciprocal", &["soft"], "inverse"),
        with("keepdims", AttributeType::Int, |keep| keep.i = Some(1), node("ReduceMax", &["inverse"], "largest")),
        node("Add", &["inverse", "largest"], "y"),
    ];
    let original = model(nodes, &[("x", &[4, 5]), ("w", &[4, 5])], &[4, 5]);
    let inputs = [bits(20, 1), bits(20, 9)];
    assert_eq!(run(&fitted(&original, 6), &inputs), run(&original, &inputs));
}

#[test]
fn convolutions_compute_what_they_did_bit_by_bit() {
    let nodes = vec![
        ints("pads", &[1, 1, 1, 1], node("Conv", &["x", "w"], "inside")),
        ints("kernel_shape", &[2, 2], node("MaxPool", &["inside"], "pooled")),
        node("ConvTranspose", &["pooled", "w"], "y"),
    ];
    let original = model(nodes, &[("x", &[1, 2, 5, 5]), ("w", &[2, 2, 3, 3])], &[1, 2, 6, 6]);
    let numbers =
        |n: usize, seed: u16| bits(n, seed).into_iter().map(|bits| if bits & 0x7f80 == 0x7f80 { 0x3f80 } else { bits });
    let inputs = [numbers(50, 2).collect(), numbers(36, 5).collect()];
    assert_eq!(run(&fitted(&original, 3), &inputs), run(&original, &inputs));
}

/// The library of the tests has no CUDA provider: what is asked of the CPU's is not looked at.
#[test]
fn sessions_of_the_cpu_alone_are_not_fitted() {
    let original = pad(&[3], &[0, 1], &[4], "constant");
    for (name, refused) in [(CPU_PROVIDER, "Pad"), (CUDA_PROVIDER, CUDA_PROVIDER)] {
        let spec = SessionSpec { providers: vec![(name.to_owned(), [].into())], ..SessionSpec::default() };
        let error = built(&original.encode_to_vec(), &spec).err().unwrap().to_string();
        assert!(error.contains(refused), "{error}");
    }
}
