//! What a model's outputs add up: Σ|terms| of each element of those that are sums.

use std::collections::{HashMap, HashSet};

use super::graph::producers;
use super::precision::element_types;
use super::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto};
use crate::base::ids::ValueName;
use crate::tensor::DType;

/// Operators that add up what they are given, or products of it, and others that only move it: of absolute values they give
/// what each element adds up. What the comparison of nodes knows of FX's is in python_shim/rust_ort/observe/sums.py; where
/// both know, tests/python/test_settling.py has them agree.
pub const ADDING: [&str; 14] = [
    "Add",
    "Concat",
    "Conv",
    "CumSum",
    "Expand",
    "Gemm",
    "Identity",
    "MatMul",
    "ReduceMean",
    "ReduceSum",
    "Reshape",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
];
/// Of these, those that add up products: a factor's own size counts, not what it adds up itself.
const MULTIPLYING: [&str; 3] = ["Conv", "Gemm", "MatMul"];
/// Of these, those whose every input is a number that is added up; of the others the first.
const OF_ALL: [&str; 5] = ["Add", "Concat", "Conv", "Gemm", "MatMul"];

/// Whether a node adds up what it is given, so that of absolute values it gives Σ|terms|.
pub fn adds_up(node: &NodeProto) -> bool {
    ADDING.contains(&node.op_type()) && node.attribute.iter().all(|attribute| attribute.f() >= 0.)
}

/// Adds to a model of one floating type, as [`double`](super::double) or [`single`](super::single) gives it, an output for each of its outputs that is a sum: Σ|terms| of each element. Returns, for each
/// output that was there, the place of its terms among all.
pub fn give_terms(model: &mut ModelProto, wide: DType) -> Vec<Option<usize>> {
    let Some(graph) = &mut model.graph else { return Vec::new() };
    let types = element_types(graph);
    let is_wide = |name: &str| types.get(name) == Some(&wide.onnx_code());
    let adding = adding(graph, is_wide);
    let outputs: Vec<ValueName> = graph.output.iter().map(|output| output.name().to_owned()).collect();
    let mut sizes: HashMap<ValueName, ValueName> = HashMap::new();
    for node in std::mem::take(&mut graph.node) {
        let is_wanted = node.output.first().is_some_and(|name| adding.contains(name));
        let more = if is_wanted { of_sizes(&node, &mut sizes) } else { Vec::new() };
        graph.node.push(node);
        graph.node.extend(more);
    }
    let mut places = Vec::with_capacity(outputs.len());
    for (at, name) in outputs.iter().enumerate() {
        let known = sizes.get(name).filter(|_| adding.contains(name)).cloned();
        places.push(known.as_ref().map(|_| graph.output.len()));
        graph.output.extend(known.map(|known| ValueInfoProto { name: Some(known), ..graph.output[at].clone() }));
    }
    places
}

/// Values that are sums of values of the wide type, from the outputs on through sums of sums.
fn adding(graph: &GraphProto, is_wide: impl Fn(&str) -> bool) -> HashSet<ValueName> {
    let Ok(producers) = producers(graph) else { return HashSet::new() };
    let mut found = HashSet::new();
    let mut waiting: Vec<&str> = graph.output.iter().map(|output| output.name()).collect();
    while let Some(name) = waiting.pop() {
        let Some(&at) = producers.get(name) else { continue };
        let node = &graph.node[at];
        if !(adds_up(node) || node.op_type() == "Cast") || !added(node).iter().all(|name| is_wide(name)) {
            continue;
        }
        if found.insert(name.to_owned()) && !MULTIPLYING.contains(&node.op_type()) {
            waiting.extend(added(node).iter().map(String::as_str));
        }
    }
    found
}

/// Inputs of a node that it adds up; others tell it how.
fn added(node: &NodeProto) -> &[String] {
    let n = if OF_ALL.contains(&node.op_type()) { node.input.len() } else { 1 };
    &node.input[..n.min(node.input.len())]
}

/// The node over again, of the sizes of what it adds up, and the nodes that make these.
fn of_sizes(node: &NodeProto, sizes: &mut HashMap<ValueName, ValueName>) -> Vec<NodeProto> {
    let (mut nodes, mut twin) = (Vec::new(), node.clone());
    let n = added(node).len();
    for input in twin.input.iter_mut().take(n).filter(|input| !input.is_empty()) {
        let summed = sizes.get(input).filter(|_| !MULTIPLYING.contains(&node.op_type())).cloned();
        *input = summed.unwrap_or_else(|| {
            let size = format!("rust_ort.size.{}.{}", node.output[0], nodes.len());
            nodes.push(NodeProto {
                op_type: Some("Abs".to_owned()),
                input: vec![input.clone()],
                output: vec![size.clone()],
                attribute: Vec::<AttributeProto>::new(),
                ..NodeProto::default()
            });
            size
        });
    }
    twin.name = None;
    twin.output = vec![format!("rust_ort.terms.{}", node.output[0])];
    sizes.insert(node.output[0].clone(), twin.output[0].clone());
    nodes.push(twin);
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::value_info;
    use crate::tensor::TensorDesc;

    fn node(op: &str, inputs: &[&str], output: &str) -> NodeProto {
        NodeProto {
            op_type: Some(op.to_owned()),
            input: inputs.iter().map(|&name| name.to_owned()).collect(),
            output: vec![output.to_owned()],
            ..NodeProto::default()
        }
    }

    fn printed(graph: &GraphProto) -> Vec<String> {
        graph
            .node
            .iter()
            .map(|node| format!("{} = {}({})", node.output[0], node.op_type(), node.input.join(", ")))
            .collect()
    }

    #[test]
    fn a_sum_has_the_sizes_of_what_it_adds_up_and_a_product_those_of_its_factors() {
        let info = |name: &str| value_info(name, &TensorDesc::new(DType::F64, [2]).unwrap());
        let graph = GraphProto {
            input: vec![info("x"), info("w")],
            output: vec![info("moved"), info("product"), info("wave")],
            node: vec![
                node("Mul", &["x", "w"], "scaled"),
                node("ReduceSum", &["scaled", "axes"], "sum"),
                node("Reshape", &["sum", "shape"], "moved"),
                node("MatMul", &["sum", "w"], "product"),
                node("Sin", &["x"], "wave"),
            ],
            ..GraphProto::default()
        };
        let mut model = ModelProto { graph: Some(graph), ..ModelProto::default() };
        assert_eq!(give_terms(&mut model, DType::F64), [Some(3), Some(4), None]);
        let graph = model.graph.unwrap();
        assert_eq!(
            printed(&graph),
            [
                "scaled = Mul(x, w)",
                "sum = ReduceSum(scaled, axes)",
                "rust_ort.size.sum.0 = Abs(scaled)",
                "rust_ort.terms.sum = ReduceSum(rust_ort.size.sum.0, axes)",
                "moved = Reshape(sum, shape)",
                "rust_ort.terms.moved = Reshape(rust_ort.terms.sum, shape)",
                "product = MatMul(sum, w)",
                "rust_ort.size.product.0 = Abs(sum)",
                "rust_ort.size.product.1 = Abs(w)",
                "rust_ort.terms.product = MatMul(rust_ort.size.product.0, rust_ort.size.product.1)",
                "wave = Sin(x)",
            ]
        );
        let names: Vec<_> = graph.output.iter().map(|output| output.name()).collect();
        assert_eq!(names, ["moved", "product", "wave", "rust_ort.terms.moved", "rust_ort.terms.product"]);
    }

    #[test]
    fn what_subtracts_by_a_negative_factor_adds_nothing_up() {
        let alpha = AttributeProto { name: Some("alpha".to_owned()), f: Some(-1.), ..AttributeProto::default() };
        assert!(adds_up(&node("Gemm", &["x", "w"], "y")));
        assert!(!adds_up(&NodeProto { attribute: vec![alpha], ..node("Gemm", &["x", "w"], "y") }));
    }
}
