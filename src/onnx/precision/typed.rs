//! Nodes, with the element types of what they read.

use std::collections::HashMap;

use super::elements::{self, Element};
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto};
use crate::onnx::walk;

/// Element types by the names of values.
type Types = HashMap<String, Element>;

/// Does something to each node, those in bodies included, in the order of the model; `change` gets the element types
/// (TensorProto.DataType) of its inputs, None where neither their operators nor the model tell. Model-local functions
/// are left alone.
pub fn for_each_typed(model: &mut ModelProto, mut change: impl FnMut(&mut NodeProto, &[Option<i32>])) {
    if let Some(graph) = &mut model.graph {
        of_graph(graph, Types::new(), &mut change);
    }
}

fn of_graph(graph: &mut GraphProto, mut types: Types, change: &mut impl FnMut(&mut NodeProto, &[Option<i32>])) {
    let declared = graph.value_info.iter().chain(&graph.output).chain(&graph.input);
    types.extend(declared.filter_map(|info| Some((info.name().to_owned(), elements::of_type(info.r#type.as_ref())?))));
    let weights = graph.initializer.iter();
    types.extend(weights.filter_map(|tensor| Some((tensor.name().to_owned(), tensor.data_type?))));
    for node in &mut graph.node {
        let inputs: Vec<_> = node.input.iter().map(|name| types.get(name).copied()).collect();
        if matches!(node.domain(), "" | "ai.onnx") {
            for (index, name) in node.output.iter().enumerate() {
                types.extend(elements::of_result(node, index, &inputs).map(|element| (name.clone(), element)));
            }
        }
        change(node, &inputs);
        for body in walk::bodies_mut(node) {
            of_graph(body, types.clone(), change);
        }
    }
}
