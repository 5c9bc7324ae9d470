//! Whether a CUDA graph of a model may copy from memory of the host.
//!
//! Some of the provider's kernels write sizes or addresses into page-locked memory and have the stream copy them
//! (`CudaAsyncBuffer` in 1.30). When the run ends, that memory goes back to the session's arena, and the next run that asks
//! gets it; the captured copy reads it in every replay. Nothing says so: what is not known to be free of it counts as not.

use std::collections::{HashMap, HashSet};

use crate::onnx::proto::tensor_shape_proto::dimension::Value;
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto};
use crate::runtime::types::declared_shape;

/// Operators of which every kernel does.
const ALWAYS: &[&str] = &["GRU", "LSTM", "NonMaxSuppression", "RNN", "ScatterND"];
/// More inputs or outputs than this are written down on the host, however large they are.
const IN_ARGUMENTS: usize = 32;

/// Dimensions of which two that are equal are equal in every run.
type Dims<'m> = Vec<&'m Value>;
type Shapes<'m> = HashMap<&'m str, Dims<'m>>;

/// Whether a graph of this model may.
pub(super) fn is_captured(model: &ModelProto) -> bool {
    let Some(graph) = &model.graph else { return false };
    let shapes = shapes(graph);
    // Slices and single elements of one tensor may become one Split (GatherSliceToSplitFusion).
    let mut sliced = HashSet::new();
    let pieces = graph.node.iter().filter(|node| matches!(node.op_type(), "Slice" | "Gather"));
    let becomes_split = pieces.map(|node| node.input.first()).any(|of| !sliced.insert(of));
    let mut inside = model.functions.iter().flat_map(|function| &function.node);
    becomes_split
        || graph.node.iter().any(|node| writes(node, &shapes))
        || inside.any(|node| writes(node, &Shapes::new()))
}

fn shapes(graph: &GraphProto) -> Shapes<'_> {
    let declared = graph.input.iter().chain(&graph.value_info).chain(&graph.output);
    let dims = |info| declared_shape(info)?.dim.iter().map(|dim| dim.value.as_ref()).collect::<Option<Dims<'_>>>();
    declared.filter_map(|info| Some((info.name(), dims(info)?))).collect()
}

fn writes(node: &NodeProto, shapes: &Shapes<'_>) -> bool {
    let shape = |name: &String| shapes.get(name.as_str());
    let are_alike = |names: &[String]| {
        names.len() <= IN_ARGUMENTS
            && names.iter().all(|name| shape(name).is_some_and(|dims| Some(dims) == shape(&names[0])))
    };
    match node.op_type() {
        op if ALWAYS.contains(&op) => true,
        "Concat" => !are_alike(&node.input),
        "Split" => !are_alike(&node.output),
        "MatMul" => !is_one_product(node.input.first().and_then(shape), node.input.get(1).and_then(shape)),
        _ => false,
    }
}

/// Whether one call of cuBLAS computes a MatMul, rather than one over lists of addresses.
fn is_one_product(left: Option<&Dims<'_>>, right: Option<&Dims<'_>>) -> bool {
    let batch = |dims: &Dims<'_>| dims.len().saturating_sub(2);
    match (left, right) {
        (Some(left), Some(right)) if batch(left) > 0 && batch(right) > 0 => {
            left[..batch(left)] == right[..batch(right)]
        }
        (_, Some(right)) => batch(right) == 0,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::proto::tensor_shape_proto::Dimension;
    use crate::onnx::proto::{TensorShapeProto, TypeProto, ValueInfoProto, type_proto};

    /// "b 3 4": a name or a size each; "?" is unknown.
    fn value(name: &str, dims: &str) -> ValueInfoProto {
        let dim = |text: &str| Dimension {
            value: match (text, text.parse()) {
                ("?", _) => None,
                (_, Ok(size)) => Some(Value::DimValue(size)),
                (name, Err(_)) => Some(Value::DimParam(name.to_owned())),
            },
            ..Dimension::default()
        };
        let shape = TensorShapeProto { dim: dims.split_whitespace().map(dim).collect() };
        let tensor = type_proto::Tensor { elem_type: Some(1), shape: Some(shape) };
        let r#type = TypeProto { value: Some(type_proto::Value::TensorType(tensor)), ..TypeProto::default() };
        ValueInfoProto { name: Some(name.to_owned()), r#type: Some(r#type), ..ValueInfoProto::default() }
    }

    fn names(of: &[&str]) -> Vec<String> {
        of.iter().map(|&name| name.to_owned()).collect()
    }

    fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
        NodeProto { op_type: Some(op.to_owned()), input: names(inputs), output: names(outputs), ..NodeProto::default() }
    }

    fn of(nodes: Vec<NodeProto>, a: &str, b: &str) -> bool {
        let (input, value_info) = (vec![value("a", a)], vec![value("b", b)]);
        is_captured(&ModelProto {
            graph: Some(GraphProto { node: nodes, input, value_info, ..GraphProto::default() }),
            ..ModelProto::default()
        })
    }

    #[test]
    fn a_product_reads_lists_of_addresses_unless_batches_are_equal_or_one_side_has_none() {
        let product = |a, b| of(vec![node("MatMul", &["a", "b"], &["y"])], a, b);
        for (a, b, captured) in [
            ("n 4", "4 3", false),
            ("b h n 4", "4 3", false),
            ("b h n 4", "b h 4 3", false),
            ("2 3 4", "2 4 3", false),
            ("2 3 4", "1 4 3", true),
            ("b n 4", "c 4 3", true),
            ("b h n 4", "h 4 3", true),
            ("n 4", "b 4 3", true),
            ("? n 4", "? 4 3", true),
        ] {
            assert_eq!(product(a, b), captured, "{a} @ {b}");
        }
        let unknown = vec![node("MatMul", &["a", "other"], &["y"])];
        assert!(of(unknown, "n 4", "4 3"));
    }

    #[test]
    fn pieces_of_one_size_are_told_in_the_kernels_arguments() {
        for (a, b, captured) in [("n 4", "n 4", false), ("n 4", "n 5", true), ("n 4", "m 4", true), ("?", "?", true)] {
            assert_eq!(of(vec![node("Concat", &["a", "b"], &["y"])], a, b), captured, "{a}, {b}");
            assert_eq!(of(vec![node("Split", &["x"], &["a", "b"])], a, b), captured, "{a}, {b}");
        }
        let many = vec![node("Concat", &["a"; IN_ARGUMENTS + 1], &["y"])];
        assert!(of(many, "n", "n"));
        let many = vec![node("Concat", &["a"; IN_ARGUMENTS], &["y"])];
        assert!(!of(many, "n", "n"));
    }

    #[test]
    fn what_may_become_a_split_counts_as_one() {
        let slice = |of: &str| node("Slice", &[of, "begin", "end"], &["y"]);
        assert!(of(vec![slice("a"), slice("a")], "n", "n"));
        assert!(!of(vec![slice("a"), slice("b")], "n", "n"));
        assert!(of(vec![node("Add", &["a", "b"], &["y"]), node("ScatterND", &["a", "i", "b"], &["z"])], "n", "n"));
        assert!(!of(vec![node("Add", &["a", "b"], &["y"])], "n", "n"));
    }
}
