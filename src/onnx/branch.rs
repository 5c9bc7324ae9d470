//! The branch of an If put in its place.

use std::collections::{HashMap, HashSet};

use super::graph::{given, outputs};
use super::proto::{AttributeProto, GraphProto, NodeProto, ValueInfoProto, type_proto};
use super::walk::{bodies, bodies_mut, fresh, names};

/// Whether a node has bodies: If, Loop, Scan.
pub fn has_bodies(node: &NodeProto) -> bool {
    bodies(node).next().is_some()
}

/// Puts the branch that an If takes in its place: the branch's constants join the graph's, its nodes stand where the If
/// stood, and an Identity for each output gives the values that the If gave. Values of the branch keep their names, or get a
/// number after them where the graph or a body in it has the name. Returns the Identities' place, None, with the graph as it
/// was, where there is no such If, or it has no such branch, or gives what no tensor is, which no Identity of an old opset does.
pub fn take_branch(graph: &mut GraphProto, at: usize, then: bool) -> Option<std::ops::Range<usize>> {
    let wanted = if then { "then_branch" } else { "else_branch" };
    let node = graph.node.get(at).filter(|node| node.op_type() == "If" && node.domain().is_empty())?;
    let is_wanted = |attribute: &AttributeProto| attribute.name() == wanted && attribute.g.is_some();
    let place = node.attribute.iter().position(is_wanted)?;
    if node.attribute[place].g.iter().flat_map(|branch| &branch.output).any(is_no_tensor) {
        return None;
    }
    let mut choice = graph.node.remove(at);
    let mut branch = choice.attribute[place].g.take()?;
    let mut taken: HashSet<String> = names(graph).into_iter().map(str::to_owned).collect();
    taken.extend(choice.output.iter().cloned());
    let mut inside: Vec<String> = given(&branch).into_iter().map(str::to_owned).collect();
    inside.extend(branch.node.iter().flat_map(outputs).map(str::to_owned));
    // Names of what the branch holds deeper down are not free either.
    taken.extend(branch.node.iter().flat_map(bodies).flat_map(names).map(str::to_owned));
    let renamed: HashMap<String, String> =
        inside.into_iter().map(|name| (name.clone(), fresh(&name, &mut taken))).collect();
    let new = |name: &str| renamed.get(name).cloned().unwrap_or_else(|| name.to_owned());
    for tensor in &mut branch.initializer {
        tensor.name = Some(new(tensor.name()));
    }
    for values in branch.sparse_initializer.iter_mut().filter_map(|sparse| sparse.values.as_mut()) {
        values.name = Some(new(values.name()));
    }
    rename(&mut branch.node, &renamed);
    let given_by = |(output, inner): (&String, String)| NodeProto {
        name: choice.name.clone(),
        op_type: Some("Identity".to_owned()),
        input: vec![inner],
        output: vec![output.clone()],
        ..NodeProto::default()
    };
    let inner = branch.output.iter().map(|output| new(output.name()));
    let identities: Vec<NodeProto> =
        choice.output.iter().zip(inner).filter(|(output, _)| !output.is_empty()).map(given_by).collect();
    let first = at + branch.node.len();
    let place = first..first + identities.len();
    graph.node.splice(at..at, branch.node.into_iter().chain(identities));
    graph.initializer.extend(branch.initializer);
    graph.sparse_initializer.extend(branch.sparse_initializer);
    Some(place)
}

/// Where it is declared.
fn is_no_tensor(output: &ValueInfoProto) -> bool {
    let declared = output.r#type.as_ref().and_then(|declared| declared.value.as_ref());
    declared.is_some_and(|declared| !matches!(declared, type_proto::Value::TensorType(_)))
}

/// Names of values, in nodes and in the bodies that read them from outside.
fn rename(nodes: &mut [NodeProto], renamed: &HashMap<String, String>) {
    for node in nodes {
        for name in node.input.iter_mut().chain(&mut node.output) {
            if let Some(new) = renamed.get(name) {
                name.clone_from(new);
            }
        }
        for body in bodies_mut(node) {
            let own: HashSet<&str> = given(body).into_iter().chain(body.node.iter().flat_map(outputs)).collect();
            let outside: HashMap<String, String> = renamed
                .iter()
                .filter(|(name, _)| !own.contains(name.as_str()))
                .map(|(name, new)| (name.clone(), new.clone()))
                .collect();
            rename(&mut body.node, &outside);
            for output in &mut body.output {
                if let Some(new) = outside.get(output.name()) {
                    output.name = Some(new.clone());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::proto::{TensorProto, TypeProto};

    fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
        let own = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        NodeProto { op_type: Some(op.into()), input: own(inputs), output: own(outputs), ..NodeProto::default() }
    }

    fn value(name: &str) -> ValueInfoProto {
        ValueInfoProto { name: Some(name.into()), ..ValueInfoProto::default() }
    }

    fn choice(output: &str, branches: [GraphProto; 2]) -> NodeProto {
        let attribute = |(name, graph): (&str, GraphProto)| AttributeProto {
            name: Some(name.into()),
            g: Some(graph),
            ..AttributeProto::default()
        };
        let mut choice = node("If", &["c"], &[output]);
        choice.attribute = ["then_branch", "else_branch"].into_iter().zip(branches).map(attribute).collect();
        choice
    }

    fn branch(op: &str, nodes: Vec<NodeProto>) -> GraphProto {
        GraphProto {
            node: [vec![node(op, &["x", "w"], &["inner"])], nodes].concat(),
            initializer: vec![TensorProto { name: Some("w".into()), ..TensorProto::default() }],
            output: vec![value("inner")],
            ..GraphProto::default()
        }
    }

    fn lines(graph: &GraphProto) -> Vec<String> {
        let line =
            |node: &NodeProto| format!("{} {} -> {}", node.op_type(), node.input.join(" "), node.output.join(" "));
        graph.node.iter().map(line).collect()
    }

    #[test]
    fn the_branch_stands_where_the_if_stood() {
        let both = || [branch("Add", vec![]), branch("Sub", vec![])];
        let mut graph = GraphProto {
            input: vec![value("x"), value("c")],
            node: vec![choice("y", both()), choice("z", both()), node("Mul", &["y", "z"], &["out"])],
            ..GraphProto::default()
        };
        assert_eq!(take_branch(&mut graph, 1, false), Some(2..3));
        assert_eq!(lines(&graph)[1..3], ["Sub x w.2 -> inner.2", "Identity inner.2 -> z"]);
        assert_eq!(take_branch(&mut graph, 0, true), Some(1..2));
        assert_eq!(
            lines(&graph),
            [
                "Add x w -> inner",
                "Identity inner -> y",
                "Sub x w.2 -> inner.2",
                "Identity inner.2 -> z",
                "Mul y z -> out"
            ]
        );
        assert!(graph.initializer.iter().map(|tensor| tensor.name()).eq(["w.2", "w"]));
        assert_eq!((take_branch(&mut graph, 0, true), take_branch(&mut graph, 9, true)), (None, None));
        assert!(!graph.node.iter().any(has_bodies));
    }

    #[test]
    fn a_branch_that_gives_a_sequence_stays() {
        let mut of_sequences = branch("SequenceConstruct", vec![]);
        let sequence = type_proto::Value::SequenceType(Box::default());
        of_sequences.output[0].r#type = Some(TypeProto { value: Some(sequence), ..TypeProto::default() });
        let mut graph =
            GraphProto { node: vec![choice("y", [of_sequences, branch("Sub", vec![])])], ..GraphProto::default() };
        let before = graph.clone();
        assert_eq!((take_branch(&mut graph, 0, true), graph == before), (None, true));
        assert_eq!(take_branch(&mut graph, 0, false), Some(1..2));
    }

    #[test]
    fn what_a_deeper_body_reads_of_a_branch_is_renamed_and_what_is_its_own_is_not() {
        let deep = |name: &str| GraphProto {
            node: vec![node("Neg", &["inner"], &[name])],
            output: vec![value(name)],
            ..GraphProto::default()
        };
        let nested = choice("deeper", [deep("own"), deep("other")]);
        let mut graph = GraphProto {
            input: vec![value("inner"), value("x"), value("c")],
            node: vec![choice("y", [branch("Add", vec![nested]), branch("Sub", vec![])])],
            ..GraphProto::default()
        };
        assert_eq!(take_branch(&mut graph, 0, true), Some(2..3));
        assert_eq!(lines(&graph)[0], "Add x w -> inner.2");
        assert!(has_bodies(&graph.node[1]));
        let inner = graph.node[1].attribute[0].g.as_ref().unwrap();
        assert_eq!((lines(inner), inner.output[0].name()), (vec!["Neg inner.2 -> own".to_owned()], "own"));
    }
}
