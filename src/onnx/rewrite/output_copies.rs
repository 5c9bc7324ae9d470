//! `output-copies`: an Identity gives a graph output what others read too, and copies it. ONNX Runtime 1.31.1 leaves such
//! an Identity out only where nobody else reads its input.

use std::collections::{HashMap, HashSet};

use super::nodes::{forget, is, only_output};
use super::values::Values;
use crate::onnx::proto::{GraphProto, NodeProto};

/// Whoever computes the value gives the output itself, and the others read that.
pub(super) fn run(graph: &mut GraphProto) -> usize {
    let mut n_places = 0;
    loop {
        let found = step(graph);
        if found == 0 {
            return n_places;
        }
        n_places += found;
    }
}

/// One Identity of each value; a row of them takes several steps.
fn step(graph: &mut GraphProto) -> usize {
    let values = Values::of(graph);
    let mut names = HashMap::new();
    let mut copies = HashSet::new();
    for (at, node) in graph.node.iter().enumerate() {
        let Some((source, output)) = copied(graph, node, &values) else { continue };
        if !names.contains_key(source) && !names.contains_key(output) {
            names.insert(source.to_owned(), output.to_owned());
            copies.insert(at);
        }
    }
    let mut at = 0..;
    graph.node.retain(|_| at.next().is_none_or(|at| !copies.contains(&at)));
    for name in graph.node.iter_mut().flat_map(|node| node.input.iter_mut().chain(&mut node.output)) {
        if let Some(output) = names.get(name) {
            name.clone_from(output);
        }
    }
    forget(graph, &names.into_keys().collect());
    copies.len()
}

/// (value, output) of an Identity that may go. A constant stays: of an output that is one, as of one that is an input,
/// ONNX Runtime hands back its own tensor in the place of the one it was given.
fn copied<'a>(graph: &GraphProto, node: &'a NodeProto, values: &Values) -> Option<(&'a str, &'a str)> {
    let output = only_output(node).filter(|output| is(node, "Identity") && values.is_output(output))?;
    let source = node.input.first()?;
    let (_, producer) = values.producer(graph, source)?;
    (values.is_internal(source) && !is(producer, "Constant")).then_some((source, output))
}

#[cfg(test)]
mod tests {
    use super::super::nodes::tests::{graph, node, of, text};
    use super::*;

    fn rewritten(nodes: Vec<NodeProto>) -> (usize, Vec<String>) {
        let outputs = [of("y", &[2]), of("z", &[2])];
        let mut found = graph(nodes, &[of("x", &[2])], &outputs, &[of("a", &[2]), of("b", &[2])]);
        let n_places = run(&mut found);
        assert!(n_places == 0 || found.value_info != [of("a", &[2]), of("b", &[2])]);
        (n_places, text(&found))
    }

    #[test]
    fn the_producer_writes_the_output_and_the_others_read_that() {
        let nodes = vec![node("Neg", &["x"], "a"), node("Identity", &["a"], "y"), node("Exp", &["a"], "z")];
        assert_eq!(rewritten(nodes), (1, vec!["y = Neg(x)".to_owned(), "z = Exp(y)".to_owned()]));
    }

    #[test]
    fn a_row_of_identities_goes_and_of_two_outputs_one_is_copied() {
        let row = vec![
            node("Neg", &["x"], "a"),
            node("Identity", &["a"], "b"),
            node("Identity", &["b"], "y"),
            node("Exp", &["a"], "z"),
        ];
        assert_eq!(rewritten(row), (2, vec!["y = Neg(x)".to_owned(), "z = Exp(y)".to_owned()]));
        let two = vec![node("Neg", &["x"], "a"), node("Identity", &["a"], "y"), node("Identity", &["a"], "z")];
        assert_eq!(rewritten(two), (1, vec!["y = Neg(x)".to_owned(), "z = Identity(y)".to_owned()]));
    }

    #[test]
    fn what_must_be_copied_stays() {
        let exp = || node("Exp", &["x"], "z");
        for nodes in [
            vec![node("Identity", &["x"], "y"), exp()], // an input
            vec![node("Identity", &["z"], "y"), exp()], // an output
            vec![node("Identity", &["w"], "y"), exp()], // of nobody
            vec![node("Constant", &[], "a"), node("Identity", &["a"], "y"), exp()], // a constant
            vec![node("Exp", &["x"], "a"), node("Neg", &["a"], "y"), exp()], // no Identity
            vec![
                node("Exp", &["x"], "a"),
                NodeProto { domain: Some("others".to_owned()), ..node("Identity", &["a"], "y") },
                exp(),
            ],
            vec![NodeProto { op_type: Some("Identity".to_owned()), ..NodeProto::default() }, exp()],
        ] {
            let before = text(&graph(nodes.clone(), &[], &[], &[]));
            assert_eq!(rewritten(nodes), (0, before));
        }
    }

    #[test]
    fn a_value_that_a_body_reads_keeps_its_name() {
        let body = graph(vec![node("Neg", &["a"], "inside")], &[], &[of("inside", &[2])], &[]);
        let mut branch = node("If", &["c"], "z");
        branch.attribute.push(crate::onnx::proto::AttributeProto { g: Some(body), ..Default::default() });
        let nodes = vec![node("Neg", &["x"], "a"), node("Identity", &["a"], "y"), branch];
        assert_eq!(rewritten(nodes).0, 0);
    }
}
