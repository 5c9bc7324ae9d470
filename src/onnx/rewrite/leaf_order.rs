//! `leaf-order`: what nobody reads is computed as soon as it can be. ONNX Runtime 1.31.1 runs a graph depth first from its
//! leaves, those nodes whose values are outputs alone, and begins with the leaf that comes last in the model. In a backward
//! the gradients of weights are leaves, the first layer's last: the whole way back to it ran first, and all that the other
//! layers' gradients read stayed in memory until then.

use std::collections::HashSet;

use crate::onnx::graph;
use crate::onnx::proto::{GraphProto, NodeProto};

/// The leaves go to the end, the last one first: a model's nodes may stand in any order in which values come before those
/// who read them. The graph is one place.
pub(super) fn run(graph: &mut GraphProto) -> usize {
    let read: HashSet<&str> = graph.node.iter().flat_map(graph::uses).collect();
    let is_leaf = |node: &NodeProto| !graph::outputs(node).any(|name| read.contains(name));
    let (mut leaves, mut order): (Vec<usize>, Vec<usize>) =
        (0..graph.node.len()).partition(|&at| is_leaf(&graph.node[at]));
    leaves.reverse();
    order.extend(leaves);
    if order.is_sorted() {
        return 0;
    }
    let mut nodes: Vec<_> = std::mem::take(&mut graph.node).into_iter().map(Some).collect();
    graph.node = order.into_iter().filter_map(|at| nodes[at].take()).collect();
    1
}

#[cfg(test)]
mod tests {
    use super::super::nodes::tests::{graph, node, of, text};
    use super::*;
    use crate::onnx::proto::AttributeProto;

    #[test]
    fn leaves_stand_last_and_in_reverse() {
        let nodes = vec![
            node("MatMul", &["a0", "g0"], "w0"),
            node("MatMul", &["g0", "b0"], "g1"),
            node("MatMul", &["a1", "g1"], "w1"),
            node("MatMul", &["g1", "b1"], "g2"),
        ];
        let outputs = ["w0", "w1", "g2"].map(|name| of(name, &[2, 2]));
        let mut found = graph(nodes, &[], &outputs, &[]);
        assert_eq!(run(&mut found), 1);
        let expected = ["g1 = MatMul(g0, b0)", "g2 = MatMul(g1, b1)", "w1 = MatMul(a1, g1)", "w0 = MatMul(a0, g0)"];
        assert_eq!(text(&found), expected);
    }

    #[test]
    fn what_others_or_bodies_read_is_no_leaf() {
        let body = graph(vec![node("Neg", &["y"], "inside")], &[], &[of("inside", &[2])], &[]);
        let mut branch = node("If", &["c"], "z");
        branch.attribute.push(AttributeProto { g: Some(body), ..AttributeProto::default() });
        let nodes = vec![node("Neg", &["x"], "y"), branch];
        let mut found = graph(nodes.clone(), &[], &[of("y", &[2]), of("z", &[2])], &[]);
        assert_eq!((run(&mut found), found.node), (0, nodes));
    }
}
