//! Nodes: reading them and making them.

use std::collections::HashSet;

pub(super) use crate::onnx::precision::{attribute, is};
use crate::onnx::proto::attribute_proto::AttributeType;
use crate::onnx::proto::{AttributeProto, GraphProto, NodeProto};
use crate::onnx::{graph, walk};

/// ONNX Runtime's operators beside ONNX's.
pub(super) const RUNTIMES_DOMAIN: &str = "com.microsoft";

/// The one value that a node gives. None where it gives none, or several.
pub(super) fn only_output(node: &NodeProto) -> Option<&str> {
    match &*node.output {
        [output] if !output.is_empty() => Some(output),
        _ => None,
    }
}

/// `perm` of a Transpose; None where it has none, or the node is another.
pub(super) fn perm(node: &NodeProto) -> Option<&[i64]> {
    attribute(node, "perm").filter(|_| is(node, "Transpose")).map(|perm| &*perm.ints)
}

/// A node of ONNX's own operator, by the name of what it gives.
pub(super) fn node(op: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        name: Some(format!("node_{output}")),
        op_type: Some(op.to_owned()),
        input: inputs.iter().map(|&input| input.to_owned()).collect(),
        output: vec![output.to_owned()],
        ..NodeProto::default()
    }
}

/// The Transpose of a matrix.
pub(super) fn transpose(input: &str, output: &str) -> NodeProto {
    let perm = AttributeProto {
        name: Some("perm".to_owned()),
        ints: vec![1, 0],
        r#type: Some(AttributeType::Ints as i32),
        ..AttributeProto::default()
    };
    NodeProto { attribute: vec![perm], ..node("Transpose", &[input], output) }
}

/// An attribute that holds a whole number.
pub(super) fn integer(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_owned()),
        i: Some(value),
        r#type: Some(AttributeType::Int as i32),
        ..AttributeProto::default()
    }
}

/// Leaves out the nodes that give these values, and nothing else, where nobody reads them any more, those that only they
/// read, and what is said of the values' types. ONNX Runtime would run them.
pub(super) fn drop_unread(graph: &mut GraphProto, names: &HashSet<String>) {
    let mut names = names.clone();
    while !names.is_empty() {
        let mut read: HashSet<&str> = graph.node.iter().flat_map(graph::uses).collect();
        read.extend(graph.output.iter().map(|output| output.name()));
        names.retain(|name| !read.contains(name.as_str()));
        let unread = |node: &NodeProto| !node.output.is_empty() && node.output.iter().all(|name| names.contains(name));
        let (gone, kept) = std::mem::take(&mut graph.node).into_iter().partition(unread);
        graph.node = kept;
        forget(graph, &names);
        names = Vec::<NodeProto>::into_iter(gone).flat_map(|node| node.input).filter(|name| !name.is_empty()).collect();
    }
}

/// Leaves out what is said of these values' types.
pub(super) fn forget(graph: &mut GraphProto, names: &HashSet<String>) {
    graph.value_info.retain(|info| !names.contains(info.name()));
}

/// What the graph and its bodies have names for already.
pub(super) fn taken(graph: &GraphProto) -> HashSet<String> {
    walk::names(graph).into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
pub(super) mod tests {
    pub(in crate::onnx::rewrite) use super::node;
    use super::*;
    use crate::onnx::proto::ValueInfoProto;
    use crate::onnx::value_info;
    use crate::tensor::{DType, TensorDesc};

    pub(in crate::onnx::rewrite) fn of(name: &str, dims: &[i64]) -> ValueInfoProto {
        value_info(name, &TensorDesc::new(DType::F32, dims).unwrap())
    }

    pub(in crate::onnx::rewrite) fn graph(
        nodes: Vec<NodeProto>,
        inputs: &[ValueInfoProto],
        outputs: &[ValueInfoProto],
        between: &[ValueInfoProto],
    ) -> GraphProto {
        GraphProto {
            node: nodes,
            input: inputs.to_vec(),
            output: outputs.to_vec(),
            value_info: between.to_vec(),
            ..GraphProto::default()
        }
    }

    /// `y = MatMul(a, b)`, as text.
    pub(in crate::onnx::rewrite) fn text(graph: &GraphProto) -> Vec<String> {
        let text = |node: &NodeProto| {
            let attributes = node.attribute.iter().filter(|attribute| attribute.i.is_some());
            let attributes: String = attributes.map(|set| format!(" {}={}", set.name(), set.i())).collect();
            format!("{} = {}({}){attributes}", node.output.join(", "), node.op_type(), node.input.join(", "))
        };
        graph.node.iter().map(text).collect()
    }

    #[test]
    fn a_node_is_dropped_only_when_nobody_reads_it() {
        let nodes = vec![node("Neg", &["x"], "a"), node("Neg", &["x"], "b"), node("Neg", &["x"], "c")];
        let mut found = graph(nodes, &[of("x", &[2])], &[of("b", &[2])], &[of("a", &[2]), of("c", &[2])]);
        drop_unread(&mut found, &HashSet::from(["a".to_owned(), "b".to_owned()]));
        assert_eq!(text(&found), ["b = Neg(x)", "c = Neg(x)"]);
        assert_eq!(found.value_info, [of("c", &[2])]);
        let row = vec![node("Neg", &["x"], "a"), node("Neg", &["a"], "b"), node("Neg", &["b"], "c")];
        let mut found = graph(row, &[of("x", &[2])], &[of("a", &[2])], &[]);
        drop_unread(&mut found, &HashSet::from(["c".to_owned()]));
        assert_eq!(text(&found), ["a = Neg(x)"]);
    }
}
