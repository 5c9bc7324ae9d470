//! `transpose-pairs`: a Transpose that undoes another one copies what that reads. Of a training step's weights in half precision
//! the backward keeps such copies; ONNX Runtime 1.31.1 leaves two Transposes out only where they give no graph output.

use super::nodes::{drop_unread, is, perm};
use super::values::Values;
use crate::onnx::proto::GraphProto;

/// Each such Transpose becomes an Identity, which gives an output with no copy where `output-copies` can have it so.
pub(super) fn run(graph: &mut GraphProto) -> usize {
    let values = Values::of(graph);
    let source = |at: usize| {
        let node = &graph.node[at];
        let (_, first) = values.producer(graph, node.input.first()?)?;
        let (inner, outer) = (perm(first)?, perm(node)?);
        let undoes = inner.len() == outer.len()
            && (0..inner.len())
                .all(|axis| usize::try_from(outer[axis]).is_ok_and(|at| inner.get(at) == Some(&(axis as i64))));
        (is(node, "Transpose") && is(first, "Transpose") && undoes).then(|| first.input.first().cloned())?
    };
    let found: Vec<(usize, String)> = (0..graph.node.len()).filter_map(|at| Some((at, source(at)?))).collect();
    let n_places = found.len();
    let mut left = std::collections::HashSet::new();
    for (at, source) in found {
        let node = &mut graph.node[at];
        node.op_type = Some("Identity".to_owned());
        node.attribute.clear();
        left.extend(node.input.splice(.., [source]));
    }
    drop_unread(graph, &left);
    n_places
}

#[cfg(test)]
mod tests {
    use super::super::nodes::tests::{graph, node, of, text};
    use super::super::nodes::transpose;
    use super::*;
    use crate::onnx::proto::NodeProto;

    fn turned(input: &str, output: &str, perm: &[i64]) -> NodeProto {
        let mut node = transpose(input, output);
        node.attribute[0].ints = perm.to_vec();
        node
    }

    fn rewritten(first: &[i64], second: &[i64], reader: Option<NodeProto>) -> Vec<String> {
        let nodes = [vec![turned("x", "a", first), turned("a", "y", second)], reader.into_iter().collect()].concat();
        let mut found = graph(nodes, &[of("x", &[2, 3, 4])], &[of("y", &[2, 3, 4]), of("z", &[2, 3, 4])], &[]);
        run(&mut found);
        text(&found)
    }

    #[test]
    fn what_undoes_a_transpose_gives_what_that_reads() {
        assert_eq!(rewritten(&[0, 2, 1], &[0, 2, 1], None), ["y = Identity(x)"]);
        assert_eq!(rewritten(&[1, 2, 0], &[2, 0, 1], None), ["y = Identity(x)"]);
        let kept = rewritten(&[0, 2, 1], &[0, 2, 1], Some(node("Neg", &["a"], "z")));
        assert_eq!(kept[1..], ["y = Identity(x)", "z = Neg(a)"]);
    }

    #[test]
    fn what_does_not_stays() {
        let kept = rewritten(&[1, 2, 0], &[1, 2, 0], None);
        assert_eq!(kept.len(), 2);
        assert!(kept[1].starts_with("y = Transpose(a)"), "{kept:?}");
    }
}
