//! The walk over a model: its graphs, the bodies inside them, and the tensors that all of these hold.
//!
//! Not by this walk go those that do another thing at each level: inlining and widening rewrite a node and its bodies
//! together, printing indents, and [`super::graph::uses`] needs to know of each body what it takes from outside.

use std::collections::{BTreeSet, HashSet};

use super::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto};

/// The graphs among a node's attributes.
pub(super) fn bodies(node: &NodeProto) -> impl Iterator<Item = &GraphProto> {
    node.attribute.iter().flat_map(|attribute| attribute.g.iter().chain(&attribute.graphs))
}

/// The graphs among a node's attributes.
pub(super) fn bodies_mut(node: &mut NodeProto) -> impl Iterator<Item = &mut GraphProto> {
    node.attribute.iter_mut().flat_map(|attribute| attribute.g.iter_mut().chain(&mut attribute.graphs))
}

/// These graphs and the bodies in them, however deep: each before those inside it, otherwise in no order.
pub(super) fn graphs<'a>(outer: impl IntoIterator<Item = &'a GraphProto>) -> impl Iterator<Item = &'a GraphProto> {
    let mut left: Vec<_> = outer.into_iter().collect();
    std::iter::from_fn(move || {
        let graph = left.pop()?;
        left.extend(graph.node.iter().flat_map(bodies));
        Some(graph)
    })
}

/// What inputs, outputs, initializers and nodes of a graph and its bodies are called, and what their nodes read and give.
pub(super) fn names(graph: &GraphProto) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    for graph in graphs([graph]) {
        names.extend(graph.input.iter().chain(&graph.output).map(|info| info.name()));
        names.extend(graph.initializer.iter().map(|tensor| tensor.name()));
        for node in &graph.node {
            names.extend(node.input.iter().chain(&node.output).map(String::as_str).chain([node.name()]));
        }
    }
    names
}

/// The name, with something after it where the model has it already.
pub(super) fn fresh(name: &str, names: &mut HashSet<String>) -> String {
    let numbered = (2_u64..).map(|n| format!("{name}.{n}"));
    let mut candidates = std::iter::once(name.to_owned()).chain(numbered);
    let free = candidates.find(|name| !names.contains(name)).expect("names are finite, numbers are not");
    names.insert(free.clone());
    free
}

/// Every tensor of the model, those in attributes, bodies, functions and training graphs included, in no order.
pub(super) fn tensors_mut(model: &mut ModelProto) -> Vec<&mut TensorProto> {
    let training = &mut model.training_info;
    let of_training = training.iter_mut().flat_map(|info| info.initialization.iter_mut().chain(&mut info.algorithm));
    let mut graphs: Vec<&mut GraphProto> = model.graph.iter_mut().chain(of_training).collect();
    let (mut nodes, mut attributes) = (Vec::<&mut NodeProto>::new(), Vec::<&mut AttributeProto>::new());
    for function in &mut model.functions {
        nodes.extend(&mut function.node);
        attributes.extend(&mut function.attribute_proto); // what an attribute is that a call leaves out
    }
    let mut tensors = Vec::new();
    loop {
        attributes.extend(nodes.drain(..).flat_map(|node| &mut node.attribute));
        for attribute in attributes.drain(..) {
            tensors.extend(attribute.t.iter_mut().chain(&mut attribute.tensors));
            let sparse = attribute.sparse_tensor.iter_mut().chain(&mut attribute.sparse_tensors);
            tensors.extend(sparse.flat_map(halves));
            graphs.extend(attribute.g.iter_mut().chain(&mut attribute.graphs));
        }
        let Some(graph) = graphs.pop() else { return tensors };
        tensors.extend(&mut graph.initializer);
        tensors.extend(graph.sparse_initializer.iter_mut().flat_map(halves));
        nodes.extend(&mut graph.node);
    }
}

fn halves(sparse: &mut SparseTensorProto) -> impl Iterator<Item = &mut TensorProto> {
    sparse.values.iter_mut().chain(&mut sparse.indices)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::proto::{FunctionProto, TrainingInfoProto};

    fn tensor(name: &str) -> TensorProto {
        TensorProto { name: Some(name.into()), ..Default::default() }
    }

    fn sparse(name: &str) -> SparseTensorProto {
        let half = |half: &str| Some(tensor(&format!("{name}.{half}")));
        SparseTensorProto { values: half("values"), indices: half("indices"), ..Default::default() }
    }

    /// One of every place for a tensor; `inner` is a body of its node.
    fn graph(name: &str, inner: Vec<GraphProto>) -> GraphProto {
        let of = |place: &str| format!("{name}/{place}");
        let attribute = AttributeProto {
            t: Some(tensor(&of("t"))),
            tensors: vec![tensor(&of("tensors"))],
            sparse_tensor: Some(sparse(&of("sparse"))),
            sparse_tensors: vec![sparse(&of("sparses"))],
            g: inner.first().cloned(),
            graphs: inner.into_iter().skip(1).collect(),
            ..Default::default()
        };
        let node = NodeProto { name: Some(of("node")), attribute: vec![attribute], ..Default::default() };
        GraphProto {
            name: Some(name.into()),
            node: vec![node],
            initializer: vec![tensor(&of("initializer"))],
            sparse_initializer: vec![sparse(&of("initializers"))],
            ..Default::default()
        }
    }

    #[test]
    fn every_tensor_is_met_once() {
        let nested = graph("main", vec![graph("body", vec![graph("deep", vec![])]), graph("other", vec![])]);
        let training = TrainingInfoProto {
            initialization: Some(graph("start", vec![])),
            algorithm: Some(graph("step", vec![])),
            ..Default::default()
        };
        let nodes = |name: &str, inside: &str| graph(name, vec![graph(inside, vec![])]).node;
        let function = FunctionProto {
            node: nodes("function", "inside"),
            attribute_proto: nodes("default", "given").remove(0).attribute,
            ..Default::default()
        };
        let mut model = ModelProto {
            graph: Some(nested),
            training_info: vec![training],
            functions: vec![function],
            ..Default::default()
        };
        let met: Vec<String> = tensors_mut(&mut model).into_iter().map(|tensor| tensor.name().to_owned()).collect();
        let of_graph = |name| {
            let places = ["initializer", "initializers.values", "initializers.indices"];
            places.map(|place| format!("{name}/{place}"))
        };
        let of_nodes = |name| {
            let places = ["t", "tensors", "sparse.values", "sparse.indices", "sparses.values", "sparses.indices"];
            places.map(|place| format!("{name}/{place}"))
        };
        let whole = ["main", "body", "deep", "other", "start", "step", "inside", "given"];
        let expected: BTreeSet<String> = (whole.iter().flat_map(of_graph))
            .chain(whole.iter().chain(&["function", "default"]).flat_map(of_nodes))
            .collect();
        assert_eq!((met.len(), met.into_iter().collect::<BTreeSet<_>>()), (expected.len(), expected));
    }

    #[test]
    fn every_body_is_met_once_and_after_what_it_is_in() {
        let nested = graph("main", vec![graph("body", vec![graph("deep", vec![])]), graph("other", vec![])]);
        let met: Vec<&str> = graphs([&nested]).map(GraphProto::name).collect();
        assert_eq!(met, ["main", "other", "body", "deep"]);
        let named: Vec<_> = names(&nested).into_iter().filter(|name| name.ends_with("node")).collect();
        assert_eq!(named, ["body/node", "deep/node", "main/node", "other/node"]);
    }
}
