//! Nodes that are written here.

use crate::onnx::proto::{AttributeProto, NodeProto, TensorProto, attribute_proto::AttributeType};

/// A node of ONNX's own.
pub(super) fn of(op: &str, inputs: &[&str], output: &str, name: &str) -> NodeProto {
    NodeProto {
        name: Some(name.to_owned()),
        op_type: Some(op.to_owned()),
        input: inputs.iter().map(|&input| input.to_owned()).collect(),
        output: vec![output.to_owned()],
        ..NodeProto::default()
    }
}

/// A Constant, by its output's name.
pub(super) fn constant(name: &str, value: TensorProto) -> NodeProto {
    let value = AttributeProto {
        name: Some("value".to_owned()),
        t: Some(value),
        r#type: Some(AttributeType::Tensor as i32),
        ..AttributeProto::default()
    };
    NodeProto { attribute: vec![value], ..of("Constant", &[], name, name) }
}
