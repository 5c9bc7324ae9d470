//! The order of nodes, who produces what, and what they need.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet};

use std::cmp::Reverse;

use super::OnnxError;
use super::proto::{GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto, tensor_shape_proto, type_proto};
use super::proto::{TensorShapeProto, tensor_shape_proto::Dimension};
use super::walk::bodies;
use crate::tensor::TensorDesc;

/// Nodes of the main graph, subgraphs and functions not counted.
pub fn count_nodes(model: &ModelProto) -> usize {
    model.graph.as_ref().map_or(0, |graph| graph.node.len())
}

/// Value name → index of the node that gives it. Errors: [`OnnxError::Duplicate`].
pub fn producers(graph: &GraphProto) -> Result<HashMap<&str, usize>, OnnxError> {
    let mut index = HashMap::new();
    for (at, node) in graph.node.iter().enumerate() {
        for value in outputs(node) {
            if index.insert(value, at).is_some() {
                return Err(OnnxError::Duplicate { value: value.to_owned(), by: describe(at, node) });
            }
        }
    }
    Ok(index)
}

/// Value name → indices of the nodes that need it ([`uses`]), in order.
pub(super) fn readers(graph: &GraphProto) -> HashMap<&str, Vec<usize>> {
    let mut index: HashMap<&str, Vec<usize>> = HashMap::new();
    for (at, node) in graph.node.iter().enumerate() {
        for value in uses(node) {
            index.entry(value).or_default().push(at);
        }
    }
    index
}

/// Indices of the nodes in topological order, as near to the given order as possible: a graph that is in order gives
/// 0, 1, 2, … A node's subgraphs count with the values that they take from outside.
/// Errors: [`OnnxError::Duplicate`], [`OnnxError::Undefined`], [`OnnxError::Cycle`].
pub fn order(graph: &GraphProto) -> Result<Vec<usize>, OnnxError> {
    let producers = producers(graph)?;
    let given = given(graph);
    if let Some((value, &at)) = producers.iter().filter(|(value, _)| given.contains(**value)).min_by_key(|(_, at)| **at)
    {
        return Err(OnnxError::Duplicate { value: (*value).to_owned(), by: describe(at, &graph.node[at]) });
    }
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); graph.node.len()];
    let mut waits_for = vec![0_usize; graph.node.len()];
    for (at, node) in graph.node.iter().enumerate() {
        for value in uses(node) {
            match producers.get(value) {
                Some(&producer) => {
                    users[producer].push(at);
                    waits_for[at] += 1;
                }
                None if given.contains(value) => {}
                None => return Err(OnnxError::Undefined { user: describe(at, node), value: value.to_owned() }),
            }
        }
    }
    for output in &graph.output {
        if !producers.contains_key(output.name()) && !given.contains(output.name()) {
            return Err(OnnxError::Undefined { user: "the graph's output".into(), value: output.name().to_owned() });
        }
    }
    let mut ready: BinaryHeap<Reverse<usize>> =
        (0..graph.node.len()).filter(|&at| waits_for[at] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(graph.node.len());
    while let Some(Reverse(at)) = ready.pop() {
        order.push(at);
        for &user in &users[at] {
            waits_for[user] -= 1;
            if waits_for[user] == 0 {
                ready.push(Reverse(user));
            }
        }
    }
    match waits_for.iter().position(|&n| n > 0) {
        Some(at) => Err(OnnxError::Cycle { node: describe(at, &graph.node[at]) }),
        None => Ok(order),
    }
}

/// Put the nodes in topological order; as they are, if they are in order. Errors: as [`order`]; the graph is then
/// unchanged.
pub fn sort(graph: &mut GraphProto) -> Result<(), OnnxError> {
    let order = order(graph)?;
    let mut nodes: Vec<Option<NodeProto>> = std::mem::take(&mut graph.node).into_iter().map(Some).collect();
    graph.node = order.into_iter().filter_map(|at| nodes[at].take()).collect();
    Ok(())
}

/// Append these values as outputs, by name only: runtimes infer the types. Those that are outputs already stay as they
/// are. Returns the names appended. Errors: [`OnnxError::NoGraph`], [`OnnxError::Undefined`] when no node of the main
/// graph gives a value; the model is then unchanged.
pub fn expose_intermediates<S: AsRef<str>>(model: &mut ModelProto, names: &[S]) -> Result<Vec<String>, OnnxError> {
    let graph = model.graph.as_mut().ok_or(OnnxError::NoGraph)?;
    let mut present: HashSet<&str> = graph.output.iter().map(ValueInfoProto::name).collect();
    let produced: HashSet<&str> = graph.node.iter().flat_map(outputs).collect();
    let mut appended = Vec::new();
    for name in names.iter().map(AsRef::as_ref) {
        if !produced.contains(name) {
            return Err(OnnxError::Undefined { user: "the list of values to expose".into(), value: name.to_owned() });
        }
        if present.insert(name) {
            appended.push(name.to_owned());
        }
    }
    let by_name = |name: &String| ValueInfoProto { name: Some(name.clone()), ..Default::default() };
    graph.output.extend(appended.iter().map(by_name));
    Ok(appended)
}

/// The model without its graph, so that cutting a large one copies little.
pub(super) fn shell(model: &ModelProto) -> ModelProto {
    ModelProto {
        ir_version: model.ir_version,
        producer_name: model.producer_name.clone(),
        producer_version: model.producer_version.clone(),
        opset_import: model.opset_import.clone(),
        functions: model.functions.clone(),
        configuration: model.configuration.clone(),
        ..ModelProto::default()
    }
}

/// Name and dense tensor type of an input or output.
pub fn value_info(name: &str, desc: &TensorDesc) -> ValueInfoProto {
    let dim =
        |&dim: &i64| Dimension { value: Some(tensor_shape_proto::dimension::Value::DimValue(dim)), denotation: None };
    let tensor = type_proto::Tensor {
        elem_type: Some(desc.dtype.onnx_code()),
        shape: Some(TensorShapeProto { dim: desc.shape.dims().iter().map(dim).collect() }),
    };
    let r#type = TypeProto { value: Some(type_proto::Value::TensorType(tensor)), denotation: None };
    ValueInfoProto { name: Some(name.to_owned()), r#type: Some(r#type), ..Default::default() }
}

/// What the model says of values' types. Initializers that are no inputs are not among them.
pub(super) fn types(graph: &GraphProto) -> BTreeMap<&str, &ValueInfoProto> {
    graph.value_info.iter().chain(&graph.output).chain(&graph.input).map(|info| (info.name(), info)).collect()
}

pub(super) fn sparse_name(sparse: &super::proto::SparseTensorProto) -> &str {
    sparse.values.as_ref().map_or("", |values| values.name())
}

pub(super) fn constants(graph: &GraphProto) -> HashSet<&str> {
    let dense = graph.initializer.iter().map(|tensor| tensor.name());
    dense.chain(graph.sparse_initializer.iter().map(sparse_name)).collect()
}

pub(super) fn given(graph: &GraphProto) -> HashSet<&str> {
    let mut names = constants(graph);
    names.extend(graph.input.iter().map(ValueInfoProto::name));
    names
}

pub(super) fn outputs(node: &NodeProto) -> impl Iterator<Item = &str> {
    node.output.iter().map(String::as_str).filter(|name| !name.is_empty())
}

/// Names of the values that a node needs, once each: its inputs, and what its subgraphs take from outside.
pub fn uses(node: &NodeProto) -> BTreeSet<&str> {
    let mut names: BTreeSet<&str> = node.input.iter().map(String::as_str).filter(|name| !name.is_empty()).collect();
    for body in bodies(node) {
        let inside: HashSet<&str> = given(body).into_iter().chain(body.node.iter().flat_map(outputs)).collect();
        let used = body.node.iter().flat_map(uses).chain(body.output.iter().map(ValueInfoProto::name));
        names.extend(used.filter(|name| !inside.contains(name)));
    }
    names
}

pub(super) fn describe(at: usize, node: &NodeProto) -> String {
    let name = if node.name().is_empty() { node.output.first().map_or("", String::as_str) } else { node.name() };
    format!("node {at} ({} {name:?})", node.op_type())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::onnx::proto::{AttributeProto, TensorProto};
    use crate::tensor::DType;
    use proptest::prelude::*;

    fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
        let own = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        NodeProto { op_type: Some(op.into()), input: own(inputs), output: own(outputs), ..Default::default() }
    }

    fn info(name: &str) -> ValueInfoProto {
        value_info(name, &TensorDesc::new(DType::F32, [2]).unwrap())
    }

    pub(in crate::onnx) fn chain() -> ModelProto {
        let graph = GraphProto {
            name: Some("g".into()),
            input: vec![info("x")],
            initializer: vec![
                TensorProto { name: Some("w".into()), ..Default::default() },
                TensorProto { name: Some("unused".into()), ..Default::default() },
            ],
            node: vec![
                node("Mul", &["x", "w"], &["a"]),
                node("Relu", &["a"], &["b"]),
                node("Add", &["b", "x"], &["c"]),
                node("Neg", &["a"], &["d"]),
            ],
            output: vec![info("c"), info("d")],
            value_info: vec![info("a"), info("b")],
            ..Default::default()
        };
        ModelProto { graph: Some(graph), ..Default::default() }
    }

    pub(in crate::onnx) fn names(infos: &[ValueInfoProto]) -> Vec<&str> {
        infos.iter().map(ValueInfoProto::name).collect()
    }

    #[test]
    fn an_ordered_graph_keeps_its_order_and_another_is_sorted() {
        let mut graph = chain().graph.unwrap();
        assert_eq!(order(&graph).unwrap(), [0, 1, 2, 3]);
        graph.node.reverse();
        assert_eq!(order(&graph).unwrap(), [3, 0, 2, 1]);
        sort(&mut graph).unwrap();
        assert_eq!(order(&graph).unwrap(), [0, 1, 2, 3]);
    }

    #[test]
    fn cycles_duplicates_and_undefined_values_are_named() {
        let mut graph = chain().graph.unwrap();
        graph.node[0].input[1] = "b".into();
        assert!(matches!(order(&graph), Err(OnnxError::Cycle { node }) if node.contains("Mul")));
        graph.node[0].input[1] = "nowhere".into();
        let text = order(&graph).unwrap_err().to_string();
        assert_eq!(text, "node 0 (Mul \"a\") needs value \"nowhere\", which no node, input or initializer gives");
        graph.node[1].output[0] = "a".into();
        assert!(matches!(order(&graph), Err(OnnxError::Duplicate { value, .. }) if value == "a"));
        let mut graph = chain().graph.unwrap();
        graph.node[3].output[0] = "x".into();
        assert!(matches!(order(&graph), Err(OnnxError::Duplicate { value, .. }) if value == "x"));
        let mut graph = chain().graph.unwrap();
        graph.output.push(info("none"));
        assert!(matches!(order(&graph), Err(OnnxError::Undefined { value, .. }) if value == "none"));
    }

    #[test]
    fn a_subgraph_waits_for_what_it_takes_from_outside() {
        let body = GraphProto {
            node: vec![node("Relu", &["late"], &["inner"]), node("Neg", &["inner"], &["result"])],
            output: vec![info("result")],
            ..Default::default()
        };
        let mut user = node("If", &["x"], &["out"]);
        user.attribute = vec![AttributeProto { g: Some(body), ..Default::default() }];
        let graph = GraphProto {
            input: vec![info("x")],
            node: vec![user, node("Neg", &["x"], &["late"])],
            ..Default::default()
        };
        assert_eq!(order(&graph).unwrap(), [1, 0]);
    }

    #[test]
    fn intermediates_are_appended_once_by_name_only() {
        let mut model = chain();
        assert_eq!(expose_intermediates(&mut model, &["b", "c", "a", "b"]).unwrap(), ["b", "a"]);
        let graph = model.graph.as_ref().unwrap();
        assert_eq!(names(&graph.output), ["c", "d", "b", "a"]);
        assert_eq!(graph.output[2].r#type, None);
        let before = model.clone();
        assert!(matches!(expose_intermediates(&mut model, &["x"]), Err(OnnxError::Undefined { .. })));
        assert_eq!(model, before);
    }

    proptest! {
        #[test]
        fn any_acyclic_graph_sorts_to_an_order_that_holds(
            edges in proptest::collection::vec((0_usize..20, 0_usize..20), 0..60),
            keys in proptest::collection::vec(any::<u32>(), 20),
        ) {
            let mut nodes: Vec<NodeProto> = (0..20).map(|i| node("Op", &[], &[&format!("v{i}")])).collect();
            for (from, to) in edges {
                if from < to { nodes[to].input.push(format!("v{from}")); }
            }
            let mut shuffled: Vec<_> = keys.into_iter().zip(nodes).collect();
            shuffled.sort_by_key(|(key, _)| *key);
            let mut graph =
                GraphProto { node: shuffled.into_iter().map(|(_, node)| node).collect(), ..Default::default() };
            sort(&mut graph).unwrap();
            prop_assert_eq!(order(&graph).unwrap(), (0..20).collect::<Vec<_>>());
        }
    }
}
