//! Models written by hand.

use crate::onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TypeProto, ValueInfoProto,
    tensor_shape_proto::{Dimension, dimension},
    type_proto,
};
use crate::onnx::proto::{TensorShapeProto, attribute_proto::AttributeType};
use crate::tensor::DType;

/// A node of one output.
pub(super) fn node(op: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        name: Some(format!("node_{output}")),
        op_type: Some(op.to_owned()),
        input: inputs.iter().map(|&name| name.to_owned()).collect(),
        output: vec![output.to_owned()],
        ..NodeProto::default()
    }
}

/// The same with an integer attribute.
pub(super) fn with_int(mut node: NodeProto, name: &str, value: i64) -> NodeProto {
    node.attribute.push(AttributeProto {
        name: Some(name.to_owned()),
        r#type: Some(AttributeType::Int.into()),
        i: Some(value),
        ..AttributeProto::default()
    });
    node
}

/// The initializer "axes": the last one.
pub(super) fn last_axis() -> TensorProto {
    TensorProto {
        name: Some("axes".to_owned()),
        data_type: Some(DType::I64.onnx_code()),
        dims: vec![1],
        int64_data: vec![-1],
        ..TensorProto::default()
    }
}

/// A value of symbolic dimensions.
pub(super) fn value(name: &str, dtype: DType, dims: &[&str]) -> ValueInfoProto {
    let dim = dims
        .iter()
        .map(|&dim| Dimension { value: Some(dimension::Value::DimParam(dim.to_owned())), ..Dimension::default() });
    let tensor =
        type_proto::Tensor { elem_type: Some(dtype.onnx_code()), shape: Some(TensorShapeProto { dim: dim.collect() }) };
    let r#type = TypeProto { value: Some(type_proto::Value::TensorType(tensor)), ..TypeProto::default() };
    ValueInfoProto { name: Some(name.to_owned()), r#type: Some(r#type), ..ValueInfoProto::default() }
}

/// A model of an opset, with ONNX Runtime's own operators.
pub(super) fn model(opset: i64, ir_version: i64, graph: GraphProto) -> ModelProto {
    let import = |domain: &str, version| OperatorSetIdProto { domain: Some(domain.to_owned()), version: Some(version) };
    ModelProto {
        ir_version: Some(ir_version),
        opset_import: vec![import("", opset), import("com.microsoft", 1)],
        graph: Some(graph),
        ..ModelProto::default()
    }
}

/// Every value that a node of the main graph gives.
pub(super) fn values(model: &ModelProto) -> Vec<String> {
    model.graph.iter().flat_map(|graph| &graph.node).flat_map(|node| &node.output).cloned().collect()
}

/// Cast nodes of the main graph.
pub(super) fn n_casts(model: &ModelProto) -> usize {
    let nodes = model.graph.iter().flat_map(|graph| &graph.node);
    nodes.filter(|node| node.op_type() == "Cast").count()
}
