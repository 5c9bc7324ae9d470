//! What is known of a graph's values while it is being rewritten.

use std::collections::{HashMap, HashSet};

use super::elements::{self, Element, FLOAT, is_half, is_onnx};
use crate::onnx::OnnxError;
use crate::onnx::graph::describe;
use crate::onnx::proto::{GraphProto, NodeProto, TypeProto, ValueInfoProto, type_proto};

/// What is known of a value. One of `narrow` and `wide` is its own name; the other, once needed, that of a cast.
#[derive(Clone, Default)]
pub(super) struct Value {
    pub element: Option<Element>,
    pub narrow: Option<String>,
    pub wide: Option<String>,
    /// Whoever reads it reads `wide`, which is not rounded to its element type.
    pub unrounded: bool,
}

/// The graph that is being written, inside those around it.
pub(super) struct Scope<'a> {
    outer: Option<&'a Scope<'a>>,
    pub values: HashMap<String, Value>,
    /// Its outputs: they have their element type under their own names, whatever readers inside get.
    outputs: HashSet<String>,
    /// Values that are rounded to their element type when they are done.
    pub rounded: HashSet<String>,
    /// Constants of rank 0, and what is computed of nothing else.
    pub numbers: HashSet<String>,
    /// What the graph says of types; asked where the operator does not tell.
    declared: HashMap<String, Element>,
    pub nodes: Vec<NodeProto>,
}

impl Scope<'_> {
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.values.get(name).or_else(|| self.outer?.value(name))
    }

    pub fn element(&self, name: &str) -> Option<Element> {
        self.value(name)?.element
    }

    pub fn is_half(&self, name: &str) -> bool {
        self.element(name).is_some_and(is_half)
    }

    pub fn is_narrow(&self, name: &str) -> bool {
        self.value(name).is_some_and(|value| value.narrow.as_deref() == Some(name))
    }

    /// Half precision that is read in float32, as nothing rounds it.
    pub fn is_unrounded(&self, name: &str) -> bool {
        self.value(name).is_some_and(|value| value.unrounded)
    }

    pub fn is_outermost(&self) -> bool {
        self.outer.is_none()
    }

    pub fn is_output(&self, name: &str) -> bool {
        self.outputs.contains(name)
    }

    pub fn is_number(&self, name: &str) -> bool {
        match self.values.contains_key(name) {
            true => self.numbers.contains(name),
            false => self.outer.is_some_and(|outer| outer.is_number(name)),
        }
    }

    /// A value under its own name as the original model has it.
    pub fn add(&mut self, name: &str, element: Option<Element>) {
        let value = Value { element, narrow: Some(name.to_owned()), ..Value::default() };
        self.values.insert(name.to_owned(), value);
    }

    /// A value of half precision that is float32 under its own name.
    pub fn add_wide(&mut self, name: &str, half: Element, unrounded: bool) {
        let value = Value { element: Some(half), wide: Some(name.to_owned()), unrounded, ..Value::default() };
        self.values.insert(name.to_owned(), value);
    }
}

/// A graph before its first node.
pub(super) fn open<'a>(graph: &GraphProto, outer: Option<&'a Scope<'a>>, given: &[Option<Element>]) -> Scope<'a> {
    let declared = |info: &ValueInfoProto| Some((info.name().to_owned(), elements::of_type(info.r#type.as_ref())?));
    let outputs: HashSet<String> = graph.output.iter().map(|output| output.name().to_owned()).collect();
    let mut scope = Scope {
        outer,
        values: HashMap::new(),
        rounded: outputs.clone(),
        outputs,
        numbers: HashSet::new(),
        declared: graph.value_info.iter().chain(&graph.output).filter_map(declared).collect(),
        nodes: Vec::with_capacity(graph.node.len()),
    };
    for tensor in &graph.initializer {
        scope.add(tensor.name(), tensor.data_type);
        if tensor.dims.is_empty() {
            scope.numbers.insert(tensor.name().to_owned());
        }
    }
    for tensor in graph.sparse_initializer.iter().filter_map(|sparse| sparse.values.as_ref()) {
        scope.add(tensor.name(), tensor.data_type);
    }
    for (at, input) in graph.input.iter().enumerate() {
        let element = elements::of_type(input.r#type.as_ref()).or(given.get(at).copied().flatten());
        scope.add(input.name(), element);
    }
    scope
}

/// The node as it is, with results as they were.
pub(super) fn push(node: NodeProto, results: &[Option<Element>], scope: &mut Scope<'_>) {
    let of_numbers =
        elements::OF_NUMBERS.contains(&node.op_type()) && node.input.iter().all(|name| scope.is_number(name));
    let is_number = is_onnx(&node) && (elements::is_number(&node) || of_numbers);
    for (at, name) in node.output.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
        scope.add(name, results.get(at).copied().flatten());
        if is_number {
            scope.numbers.insert(name.clone());
        }
    }
    scope.nodes.push(node);
}

/// Element types of a node's outputs. The operator goes before what is declared: the exporter declares what torch said,
/// which a node may contradict. Errors: [`OnnxError::ElementType`].
pub(super) fn results(
    at: usize,
    node: &NodeProto,
    inputs: &[Option<Element>],
    scope: &Scope<'_>,
) -> Result<Vec<Option<Element>>, OnnxError> {
    let of_result = |(index, name): (usize, &String)| {
        elements::of_result(node, index, inputs).or_else(|| scope.declared.get(name).copied())
    };
    let results: Vec<_> = node.output.iter().enumerate().map(of_result).collect();
    let unknown = results.iter().zip(&node.output).any(|(element, name)| element.is_none() && !name.is_empty());
    if unknown && inputs.iter().any(|element| element.is_some_and(is_half)) {
        return Err(OnnxError::ElementType { node: describe(at, node) });
    }
    Ok(results)
}

/// False for what is no tensor: a sequence's type says more than that of its tensors.
pub(super) fn declare_float(info: &mut ValueInfoProto) -> bool {
    let value = info.r#type.as_mut().and_then(|declared: &mut TypeProto| declared.value.as_mut());
    let Some(type_proto::Value::TensorType(tensor)) = value else { return false };
    tensor.elem_type = Some(FLOAT);
    true
}
