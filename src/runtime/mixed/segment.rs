//! A piece of a part's model, a model itself.

use std::collections::{HashMap, HashSet};

use crate::onnx;
use crate::onnx::proto::tensor_shape_proto::{Dimension, dimension};
use crate::onnx::proto::{GraphProto, ModelProto, TensorShapeProto, TypeProto, ValueInfoProto, type_proto};
use crate::protocol::message::{NodeRuntime, ValueSpec};
use crate::runtime::types::{declared_shape, declared_type};

/// Nodes that one session runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) runtime: NodeRuntime,
    /// Indices of the graph's nodes, in topological order.
    pub(super) nodes: Vec<usize>,
    /// Those of them that no other segment has.
    pub(super) own: Vec<usize>,
    /// Values that it reads and does not compute: inputs of the graph, and what segments before it give.
    pub(super) inputs: Vec<String>,
    /// Values that segments after it read, or that are outputs of the graph.
    pub(super) outputs: Vec<String>,
}

impl Segment {
    /// Its model. `known`: what is known of the values that it reads, and what the whole model declares of others.
    pub(super) fn model(&self, whole: &ModelProto, known: &HashMap<String, ValueInfoProto>) -> ModelProto {
        let graph = whole.graph.as_ref();
        let nodes = graph.map_or(&[][..], |graph| &graph.node);
        let node: Vec<_> = self.nodes.iter().map(|&at| nodes[at].clone()).collect();
        let made: HashSet<&str> = node.iter().flat_map(|node| &node.output).map(String::as_str).collect();
        let mut read: HashSet<&str> = node.iter().flat_map(onnx::uses).collect();
        read.extend(self.outputs.iter().map(String::as_str));
        let info = |name: &String| {
            let untyped = || ValueInfoProto { name: Some(name.clone()), ..ValueInfoProto::default() };
            known.get(name).cloned().unwrap_or_else(untyped)
        };
        let ends: HashSet<&str> = self.inputs.iter().chain(&self.outputs).map(String::as_str).collect();
        let declared = graph.into_iter().flat_map(|graph| &graph.value_info);
        let inner = |info: &&ValueInfoProto| made.contains(info.name()) && !ends.contains(info.name());
        let initializers = graph.into_iter().flat_map(|graph| &graph.initializer);
        let sparse = graph.into_iter().flat_map(|graph| &graph.sparse_initializer);
        let of_sparse = |sparse: &&onnx::proto::SparseTensorProto| {
            sparse.values.as_ref().is_some_and(|values| read.contains(values.name()))
        };
        let value_info = declared.filter(inner).cloned().collect();
        let initializer = initializers.filter(|tensor| read.contains(tensor.name())).cloned().collect();
        let sparse_initializer = sparse.filter(of_sparse).cloned().collect();
        let graph = GraphProto {
            name: graph.and_then(|graph| graph.name.clone()),
            input: self.inputs.iter().map(info).collect(),
            output: self.outputs.iter().map(info).collect(),
            value_info,
            initializer,
            sparse_initializer,
            node,
            ..GraphProto::default()
        };
        let mut model = ModelProto {
            ir_version: whole.ir_version,
            producer_name: whole.producer_name.clone(),
            producer_version: whole.producer_version.clone(),
            opset_import: whole.opset_import.clone(),
            functions: whole.functions.clone(),
            graph: Some(graph),
            ..ModelProto::default()
        };
        onnx::drop_uncalled(&mut model);
        model
    }
}

/// What is known of a value that a session gives: what the model declares, where that tells a shape and the session does
/// not contradict, else what the session says.
pub(super) fn given(spec: &ValueSpec, declared: Option<&ValueInfoProto>) -> ValueInfoProto {
    if let Some(info) = declared
        && declared_type(info) == Some(spec.dtype)
        && declared_shape(info).is_some()
    {
        return info.clone();
    }
    let dim =
        |&dim: &i64| Dimension { value: (dim >= 0).then_some(dimension::Value::DimValue(dim)), ..Dimension::default() };
    // No dimensions may be a rank that nobody knows.
    let shape = (!spec.dims.is_empty()).then(|| TensorShapeProto { dim: spec.dims.iter().map(dim).collect() });
    let tensor = type_proto::Tensor { elem_type: Some(spec.dtype.onnx_code()), shape };
    let r#type = TypeProto { value: Some(type_proto::Value::TensorType(tensor)), ..TypeProto::default() };
    ValueInfoProto { name: Some(spec.name.clone()), r#type: Some(r#type), ..ValueInfoProto::default() }
}
