//! A model with something of everything, and all that is done to a model that may come from anywhere.
#![allow(dead_code)]

use std::collections::{HashMap, HashSet};
use std::path::Path;

use bytes::Bytes;
use rust_ort::onnx::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, SparseTensorProto,
    StringStringEntryProto, TensorProto, ValueInfoProto, attribute_proto::AttributeType,
};
use rust_ort::onnx::{self, Isolator, NamedTensor, value_info};
use rust_ort::tensor::{DType, TensorDesc};

/// A node without attributes.
pub fn node(domain: &str, op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
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
pub fn model() -> ModelProto {
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
pub fn use_all(mut model: ModelProto, folder: &Path) {
    let _ = onnx::model_text_with(&model, &onnx::TextOptions { shapes: true, called: None });
    let _ = onnx::model_json(&model);
    for &dtype in DType::ALL {
        onnx::mentions(&model, dtype);
    }
    let _ = onnx::widen(&model, &["a", "v1"]);
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
    isolate(&model, &names);
    let _ = onnx::inline_functions(&mut model);
    let _ = onnx::read_external(&mut model, folder);
}

fn isolate(model: &ModelProto, names: &[String]) {
    let desc = TensorDesc::new(DType::F32, [2]).unwrap();
    let named: HashSet<&str> = names.iter().map(String::as_str).collect();
    let inputs = model.graph.iter().flat_map(|graph| &graph.input);
    let feeds: HashMap<&str, &TensorDesc> = inputs.map(|input| (input.name(), &desc)).collect();
    if let Some(graph) = &model.graph {
        names.iter().for_each(|name| drop(onnx::read_by(graph, name, &named)));
    }
    if let Ok(isolator) = Isolator::new(model.clone(), names) {
        for name in names {
            let _ = isolator.local(name, &HashSet::new(), &feeds);
            let _ = isolator.segment(&[name], &feeds, &feeds);
        }
    }
}
