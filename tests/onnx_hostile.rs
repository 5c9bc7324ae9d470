//! Models with flipped, dropped and repeated bytes: errors, never panics, whatever is done with them.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message;
use rust_ort::onnx::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, SparseTensorProto,
    StringStringEntryProto, TensorProto, ValueInfoProto, attribute_proto::AttributeType,
};
use rust_ort::onnx::{self, NamedTensor, value_info};
use rust_ort::tensor::{DType, TensorDesc};

fn node(domain: &str, op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    let own = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    NodeProto {
        domain: Some(domain.to_owned()),
        op_type: Some(op.to_owned()),
        input: own(inputs),
        output: own(outputs),
        ..Default::default()
    }
}

/// A small model with something of everything.
fn model() -> ModelProto {
    let weight = TensorProto {
        name: Some("w".to_owned()),
        dims: vec![2],
        data_type: Some(1),
        raw_data: Some(Bytes::from_static(&[0; 8])),
        ..Default::default()
    };
    let outside = TensorProto {
        name: Some("e".to_owned()),
        dims: vec![2],
        data_type: Some(10),
        data_location: Some(1),
        external_data: vec![StringStringEntryProto {
            key: Some("location".to_owned()),
            value: Some("data".to_owned()),
        }],
        ..Default::default()
    };
    let body = GraphProto {
        node: vec![node("", "Neg", &["a"], &["inner"])],
        output: vec![ValueInfoProto { name: Some("inner".to_owned()), ..Default::default() }],
        ..Default::default()
    };
    let mut branch = node("", "If", &["c"], &["b"]);
    branch.attribute = vec![
        AttributeProto {
            name: Some("then_branch".to_owned()),
            r#type: Some(AttributeType::Graph as i32),
            g: Some(body),
            ..Default::default()
        },
        AttributeProto {
            name: Some("axes".to_owned()),
            r#type: Some(AttributeType::Ints as i32),
            ints: vec![1, 2],
            ..Default::default()
        },
    ];
    let function = FunctionProto {
        name: Some("F".to_owned()),
        domain: Some("local".to_owned()),
        input: vec!["p".to_owned()],
        output: vec!["q".to_owned()],
        node: vec![node("", "Abs", &["p"], &["t"]), node("", "Neg", &["t"], &["q"])],
        opset_import: vec![OperatorSetIdProto { domain: None, version: Some(20) }],
        ..Default::default()
    };
    let info = |name: &str| value_info(name, &TensorDesc::new(DType::F32, [2]).unwrap());
    let graph = GraphProto {
        name: Some("g".to_owned()),
        input: vec![info("x"), info("c")],
        output: vec![info("y")],
        node: vec![
            node("", "Add", &["x", "w"], &["a"]),
            branch,
            node("local", "F", &["b"], &["d"]),
            node("", "Mul", &["d", "e"], &["y"]),
        ],
        initializer: vec![weight.clone(), outside],
        sparse_initializer: vec![SparseTensorProto {
            values: Some(TensorProto { name: Some("s".to_owned()), ..weight }),
            indices: None,
            dims: vec![8],
        }],
        ..Default::default()
    };
    ModelProto {
        ir_version: Some(10),
        opset_import: vec![OperatorSetIdProto { domain: Some(String::new()), version: Some(20) }],
        graph: Some(graph),
        functions: vec![function],
        ..Default::default()
    }
}

/// Everything the module does, on one model.
fn use_all(mut model: ModelProto, folder: &std::path::Path) {
    let _ = onnx::model_text(&model);
    let names: Vec<String> = match &model.graph {
        None => vec![],
        Some(graph) => {
            let _ = onnx::order(graph);
            let _ = onnx::producers(graph);
            let _ = onnx::sort(&mut graph.clone());
            for tensor in &graph.initializer {
                let _ = NamedTensor::from_proto(tensor);
            }
            graph.node.iter().flat_map(|node| node.output.clone()).collect()
        }
    };
    let _ = onnx::count_nodes(&model);
    let _ = onnx::cut(&model, &["a".to_owned()], &names);
    let _ = onnx::expose_intermediates(&mut model.clone(), &names);
    let _ = onnx::inline_functions(&mut model);
    let _ = onnx::read_external(&mut model, folder);
}

#[test]
fn the_model_itself_is_sound() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("data"), [0; 4]).unwrap();
    let mut model = onnx::decode(Bytes::from(model().encode_to_vec())).unwrap();
    onnx::read_external(&mut model, folder.path()).unwrap();
    onnx::inline_functions(&mut model).unwrap();
    assert_eq!(onnx::order(model.graph.as_ref().unwrap()).unwrap(), [0, 1, 2, 3, 4]);
    assert_eq!(onnx::count_nodes(&model), 5);
    assert_eq!(onnx::cut(&model, &["x", "c"], &["b"]).unwrap().graph.unwrap().node.len(), 2);
}

#[test]
fn deep_nesting_is_an_error_and_no_stack_overflow() {
    let mut graph = GraphProto { node: vec![node("", "Neg", &["x"], &["y"])], ..Default::default() };
    for _ in 0..5000 {
        let attribute = AttributeProto { g: Some(graph), ..Default::default() };
        graph = GraphProto {
            node: vec![NodeProto { attribute: vec![attribute], ..Default::default() }],
            ..Default::default()
        };
    }
    // Encoding and dropping recurse as deep as the message: only decoding meets strangers.
    let bytes = std::thread::Builder::new()
        .stack_size(256 << 20)
        .spawn(move || ModelProto { graph: Some(graph), ..Default::default() }.encode_to_vec())
        .unwrap()
        .join()
        .unwrap();
    assert!(onnx::decode(Bytes::from(bytes)).unwrap_err().to_string().contains("recursion"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn mutated_models_never_panic(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0_u8..4), 1..6),
    ) {
        let folder = std::env::temp_dir();
        let mut bytes = model().encode_to_vec();
        for (at, value, kind) in edits {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = value,
                1 => bytes[at] ^= 1 << (value % 8),
                2 => { bytes.remove(at); }
                _ => bytes.insert(at, bytes[at]),
            }
        }
        if let Ok(model) = onnx::decode(Bytes::from(bytes)) {
            use_all(model, &folder);
        }
    }
}
