//! What ONNX Runtime computes when a session is built, and keeps in it.

use crate::common::runtime;
use crate::precision::node;
use rust_ort::onnx::proto::{GraphProto, ModelProto, OperatorSetIdProto, TensorProto};
use rust_ort::onnx::{self, value_info};
use rust_ort::protocol::message::SessionSpec;
use rust_ort::runtime::{Model, Runtime as _};
use rust_ort::tensor::{DType, TensorDesc};

/// `x` and zeros of these sizes, added up.
fn model(sizes: [i64; 2]) -> Model {
    let of = |name, sizes: [i64; 2]| value_info(name, &TensorDesc::new(DType::F32, sizes).unwrap());
    let shape = TensorProto {
        name: Some("sizes".into()),
        dims: vec![2],
        data_type: Some(DType::I64.onnx_code()),
        int64_data: sizes.to_vec(),
        ..Default::default()
    };
    let graph = GraphProto {
        name: Some("g".into()),
        node: vec![node("ConstantOfShape", &["sizes"], "zeros"), node("Add", &["x", "zeros"], "y")],
        input: vec![of("x", [1, sizes[1]])],
        output: vec![of("y", sizes)],
        initializer: vec![shape],
        ..Default::default()
    };
    Model::encode(&ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto { domain: None, version: Some(18) }],
        graph: Some(graph),
        ..Default::default()
    })
}

/// Whether the zeros are computed in each run: then the session does not hold them.
fn computed(sizes: [i64; 2], config: &[(&str, &str)]) -> bool {
    let config = config.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
    let optimized = runtime().optimized(&model(sizes), &SessionSpec { config, ..SessionSpec::default() }).unwrap();
    let graph = onnx::decode(optimized.into()).unwrap().graph.unwrap();
    graph.node.iter().any(|node| node.op_type() == "ConstantOfShape")
}

#[test]
fn a_session_holds_small_constants_and_computes_large_ones() {
    assert!(!computed([64, 64], &[]));
    assert!(computed([5000, 4096], &[]), "80 MB");
}

#[test]
fn what_is_small_is_the_users_choice() {
    let limit = |bytes| [("optimization.constant_folding_max_output_size_in_bytes", bytes)];
    assert!(computed([64, 64], &limit("1000")));
    assert!(!computed([5000, 4096], &limit("1000000000")));
}
