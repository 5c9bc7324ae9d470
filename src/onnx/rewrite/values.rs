//! What a graph tells of its values.

use std::collections::{HashMap, HashSet};

use crate::onnx::graph;
use crate::onnx::precision::element_types;
use crate::onnx::proto::tensor_shape_proto::dimension::Value;
use crate::onnx::proto::{GraphProto, NodeProto, TensorShapeProto, ValueInfoProto, type_proto};
use crate::onnx::walk::bodies;
use crate::tensor::DType;

/// A size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Dim {
    Is(i64),
    /// Equal to all that are called so.
    Named(String),
    Unknown,
}

impl Dim {
    /// Whether the sizes are known to be equal.
    pub(super) fn equals(&self, other: &Dim) -> bool {
        *self != Dim::Unknown && self == other
    }

    /// The number, where it is told.
    pub(super) fn number(&self) -> Option<i64> {
        match self {
            Dim::Is(size) => Some(*size),
            _ => None,
        }
    }
}

/// A graph's values: who gives them, who reads them, and as much of their types as is told.
pub(super) struct Values {
    dims: HashMap<String, Vec<Dim>>,
    elements: HashMap<String, i32>,
    producers: HashMap<String, usize>,
    readers: HashMap<String, Vec<usize>>,
    outputs: HashSet<String>,
    in_bodies: HashSet<String>,
}

impl Values {
    pub(super) fn of(graph: &GraphProto) -> Self {
        let declared = graph.value_info.iter().chain(&graph.output).chain(&graph.input);
        let mut dims: HashMap<_, _> =
            declared.filter_map(|info| Some((info.name().to_owned(), of_shape(shape(info)?)))).collect();
        let of_weight = |dims: &[i64]| dims.iter().map(|&size| Dim::Is(size)).collect();
        dims.extend(graph.initializer.iter().map(|tensor| (tensor.name().to_owned(), of_weight(&tensor.dims))));
        let (mut producers, mut readers) = (HashMap::new(), HashMap::<_, Vec<_>>::new());
        let mut in_bodies = HashSet::new();
        for (at, node) in graph.node.iter().enumerate() {
            producers.extend(graph::outputs(node).map(|name| (name.to_owned(), at)));
            for name in &node.input {
                readers.entry(name.clone()).or_default().push(at);
            }
            if bodies(node).next().is_some() {
                in_bodies.extend(graph::uses(node).into_iter().map(str::to_owned));
            }
        }
        let outputs = graph.output.iter().map(|info| info.name().to_owned()).collect();
        Self { dims, elements: element_types(graph), producers, readers, outputs, in_bodies }
    }

    /// Sizes of a value of known rank.
    pub(super) fn dims(&self, name: &str) -> Option<&[Dim]> {
        self.dims.get(name).map(Vec::as_slice)
    }

    /// Sizes of a matrix.
    pub(super) fn matrix(&self, name: &str) -> Option<[&Dim; 2]> {
        match self.dims(name)? {
            [rows, columns] => Some([rows, columns]),
            _ => None,
        }
    }

    /// ONNX's number of a tensor's element type.
    pub(super) fn element(&self, name: &str) -> Option<i32> {
        self.elements.get(name).copied()
    }

    pub(super) fn is_f32(&self, name: &str) -> bool {
        self.element(name) == Some(DType::F32.onnx_code())
    }

    pub(super) fn is_output(&self, name: &str) -> bool {
        self.outputs.contains(name)
    }

    /// The node of `graph` that gives a value, and its index. `graph` is the one that these values are of.
    pub(super) fn producer<'a>(&self, graph: &'a GraphProto, name: &str) -> Option<(usize, &'a NodeProto)> {
        let at = *self.producers.get(name)?;
        Some((at, graph.node.get(at)?))
    }

    /// Whether only inputs of the main graph's nodes read a value: then it can be called otherwise.
    pub(super) fn is_internal(&self, name: &str) -> bool {
        !self.is_output(name) && !self.in_bodies.contains(name)
    }

    /// The indices of the main graph's nodes that read a value.
    pub(super) fn readers(&self, name: &str) -> impl Iterator<Item = usize> {
        self.readers.get(name).into_iter().flatten().copied()
    }

    /// The index of the node that reads an internal value, which nobody else reads.
    pub(super) fn only_reader(&self, name: &str) -> Option<usize> {
        match self.readers.get(name)?.as_slice() {
            [reader] if self.is_internal(name) => Some(*reader),
            _ => None,
        }
    }
}

fn shape(info: &ValueInfoProto) -> Option<&TensorShapeProto> {
    match info.r#type.as_ref()?.value.as_ref()? {
        type_proto::Value::TensorType(tensor) => tensor.shape.as_ref(),
        _ => None,
    }
}

fn of_shape(shape: &TensorShapeProto) -> Vec<Dim> {
    let of_dim = |value: Option<&Value>| match value {
        Some(Value::DimValue(size)) if *size >= 0 => Dim::Is(*size),
        Some(Value::DimParam(name)) if !name.is_empty() => Dim::Named(name.clone()),
        _ => Dim::Unknown,
    };
    shape.dim.iter().map(|dim| of_dim(dim.value.as_ref())).collect()
}

#[cfg(test)]
mod tests {
    use super::super::nodes::tests::{graph, node, of};
    use super::*;
    use crate::onnx::proto::{AttributeProto, TensorProto, tensor_shape_proto::Dimension};

    #[test]
    fn sizes_are_equal_only_where_both_are_told() {
        let named = |name: &str| Dim::Named(name.to_owned());
        assert!(Dim::Is(2).equals(&Dim::Is(2)) && named("s").equals(&named("s")));
        for (one, other) in [(Dim::Is(2), Dim::Is(3)), (named("s"), named("t")), (Dim::Unknown, Dim::Unknown)] {
            assert!(!one.equals(&other));
        }
        let value = |value| Dimension { value: Some(value), denotation: None };
        let dim = vec![
            value(Value::DimValue(3)),
            value(Value::DimValue(-1)),
            value(Value::DimParam("s".to_owned())),
            value(Value::DimParam(String::new())),
            Dimension::default(),
        ];
        let expected = [Dim::Is(3), Dim::Unknown, named("s"), Dim::Unknown, Dim::Unknown];
        assert_eq!(of_shape(&TensorShapeProto { dim }), expected);
    }

    #[test]
    fn who_reads_a_value() {
        let body = graph(vec![node("Neg", &["c"], "inside")], &[], &[of("inside", &[2])], &[]);
        let mut branch = node("If", &["a"], "d");
        branch.attribute.push(AttributeProto { g: Some(body), ..AttributeProto::default() });
        let nodes = vec![
            node("Neg", &["x"], "a"),
            node("Mul", &["a", "a"], "b"),
            node("Neg", &["b"], "c"),
            node("Neg", &["c"], "e"),
            branch,
        ];
        let mut found = graph(nodes, &[of("x", &[2])], &[of("e", &[2])], &[]);
        found.initializer.push(TensorProto { name: Some("w".to_owned()), dims: vec![4, 5], ..Default::default() });
        let values = Values::of(&found);
        assert_eq!(values.only_reader("b"), Some(2));
        assert_eq!(["a", "c", "e", "x"].map(|name| values.only_reader(name)), [None, None, None, Some(0)]);
        assert!(!values.is_internal("c") && !values.is_internal("e") && values.is_internal("b"));
        assert_eq!(values.matrix("w"), Some([&Dim::Is(4), &Dim::Is(5)]));
        assert_eq!((values.matrix("x"), values.dims("c")), (None, None));
        assert!(values.is_f32("c") && !values.is_f32("w"));
    }
}
