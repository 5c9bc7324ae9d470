//! Whether a model has values of an element type.

use super::elements::{Element, TYPE_ATTRIBUTES, of_type};
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto};
use crate::onnx::walk::{bodies, graphs};
use crate::tensor::DType;

/// The half-precision type that takes part in a model, the coarser one of two; None: none does.
pub fn half_of(model: &ModelProto) -> Option<DType> {
    [DType::BF16, DType::F16].into_iter().find(|&half| mentions(model, half))
}

/// False: nothing in the model can be `dtype`. Computed types are not followed; true is the safe answer.
pub fn mentions(model: &ModelProto, dtype: DType) -> bool {
    let element = dtype.onnx_code();
    let of_functions = || model.functions.iter().flat_map(|function| &function.node);
    of_functions().any(|node| of_node(node, element))
        || graphs(model.graph.iter().chain(of_functions().flat_map(bodies))).any(|graph| of_graph(graph, element))
}

/// Its bodies left aside.
fn of_graph(graph: &GraphProto, element: Element) -> bool {
    let mut infos = graph.input.iter().chain(&graph.value_info).chain(&graph.output);
    let sparse = graph.sparse_initializer.iter().filter_map(|sparse| sparse.values.as_ref());
    graph.initializer.iter().chain(sparse).any(|tensor| tensor.data_type == Some(element))
        || infos.any(|info| of_type(info.r#type.as_ref()) == Some(element))
        || graph.node.iter().any(|node| of_node(node, element))
}

/// Its bodies left aside.
fn of_node(node: &NodeProto, element: Element) -> bool {
    let types = |name: &str| name == "to" || TYPE_ATTRIBUTES.contains(&name);
    node.attribute.iter().any(|attribute| {
        let sparse = attribute.sparse_tensor.as_ref().and_then(|sparse| sparse.values.as_ref());
        let mut tensors = attribute.t.iter().chain(sparse);
        (attribute.i == Some(element.into()) && types(attribute.name()))
            || tensors.any(|tensor| tensor.data_type == Some(element))
    })
}
