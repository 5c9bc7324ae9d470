//! Nodes, with the element types of what they read.

use std::collections::HashMap;

use super::elements::{self, Element};
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto, ValueInfoProto};
use crate::tensor::DType;

/// Does something to each node of the main graph, in the order of the model; `change` gets the element types
/// (TensorProto.DataType) of its inputs, None where neither their operators nor the model tell. Bodies and model-local
/// functions are left alone: what they read may be declared nowhere, and Scan needs its results' shapes inferred.
pub fn for_each_typed(model: &mut ModelProto, mut change: impl FnMut(&mut NodeProto, &[Option<i32>])) {
    let Some(graph) = &mut model.graph else { return };
    let types = of_values(graph);
    for node in &mut graph.node {
        let inputs: Vec<_> = node.input.iter().map(|name| types.get(name).copied()).collect();
        change(node, &inputs);
    }
}

/// The element type that an input, output or value is declared with; None: none that is known here.
pub fn dtype_of(info: &ValueInfoProto) -> Option<DType> {
    DType::from_onnx(elements::of_type(info.r#type.as_ref())?).ok()
}

/// {value: element type} of a graph, as far as it is told. Its bodies left aside.
pub(in crate::onnx) fn of_values(graph: &GraphProto) -> HashMap<String, Element> {
    let declared = graph.value_info.iter().chain(&graph.output).chain(&graph.input);
    let mut types: HashMap<String, Element> =
        declared.filter_map(|info| Some((info.name().to_owned(), elements::of_type(info.r#type.as_ref())?))).collect();
    let weights = graph.initializer.iter();
    types.extend(weights.filter_map(|tensor| Some((tensor.name().to_owned(), tensor.data_type?))));
    for node in &graph.node {
        let inputs: Vec<_> = node.input.iter().map(|name| types.get(name).copied()).collect();
        for (index, name) in node.output.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            types.extend(elements::of_result(node, index, &inputs).map(|element| (name.clone(), element)));
        }
    }
    types
}
