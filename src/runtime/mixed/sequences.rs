//! Values that are no tensors: they cannot leave the session that makes them.

use std::collections::HashSet;

use super::segment::Segment;
use crate::onnx;
use crate::onnx::proto::{GraphProto, NodeProto, type_proto};
use crate::runtime::RuntimeError;

/// Operators whose results are sequences, or may hold nothing.
const MAKERS: &[&str] = &[
    "Optional",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SequenceMap",
    "SplitToSequence",
];

/// The values of a graph that are no tensors. order: of its nodes.
pub(super) fn of_graph(graph: &GraphProto, order: &[usize]) -> HashSet<String> {
    found(graph, order, &HashSet::new())
}

fn found(graph: &GraphProto, order: &[usize], around: &HashSet<String>) -> HashSet<String> {
    let mut found = around.clone();
    let declared = graph.value_info.iter().chain(&graph.input).chain(&graph.output);
    let no_tensor = declared.filter(|info| {
        let value = info.r#type.as_ref().and_then(|it| it.value.as_ref());
        value.is_some_and(|value| !matches!(value, type_proto::Value::TensorType(_)))
    });
    found.extend(no_tensor.map(|info| info.name().to_owned()));
    for &at in order {
        let node = &graph.node[at];
        let named = |name: &&String| !name.is_empty();
        let passes_on = node.op_type() == "Identity" && node.input.iter().any(|name| found.contains(name));
        if passes_on || MAKERS.contains(&node.op_type()) {
            found.extend(node.output.iter().filter(named).cloned());
        } else {
            let given = given_by_bodies(node, &found);
            found.extend(given);
        }
    }
    found
}

/// Results of a node with a body that are no tensors.
fn given_by_bodies(node: &NodeProto, around: &HashSet<String>) -> Vec<String> {
    let Some(body) = node.attribute.iter().find_map(|attribute| attribute.g.as_ref()) else { return Vec::new() };
    let order: Vec<usize> = (0..body.node.len()).collect();
    let mut around = around.clone();
    // What a Loop carries has a name of its own inside; its first two inputs are the round and the condition.
    if node.op_type() == "Loop" {
        let carried = body.input.iter().skip(2).zip(node.input.iter().skip(2));
        let carried: Vec<String> = carried
            .filter(|(_, outside)| around.contains(*outside))
            .map(|(inside, _)| inside.name().to_owned())
            .collect();
        around.extend(carried);
    }
    let inside = found(body, &order, &around);
    // The first output of a Loop's body is whether it goes on.
    let results = body.output.iter().skip(usize::from(node.op_type() == "Loop"));
    let given = node.output.iter().zip(results).filter(|(_, result)| inside.contains(result.name()));
    given.map(|(name, _)| name.clone()).filter(|name| !name.is_empty()).collect()
}

/// Errors: BadOption where one segment makes a sequence that another reads.
pub(super) fn refuse_crossing(
    graph: &GraphProto,
    sequences: &HashSet<String>,
    segments: &[Segment],
) -> Result<(), RuntimeError> {
    for segment in segments {
        let made: HashSet<&str> =
            segment.nodes.iter().flat_map(|&at| &graph.node[at].output).map(String::as_str).collect();
        for &at in &segment.nodes {
            let node = &graph.node[at];
            let read = onnx::uses(node).into_iter().filter(|value| sequences.contains(*value));
            if let Some(value) = read.into_iter().find(|value| !made.contains(value)) {
                let (reader, operator) = (node.name(), node.op_type());
                return Err(RuntimeError::BadOption {
                    name: "runtimes".to_owned(),
                    reason: format!(
                        "node {reader:?} ({operator}) reads the sequence {value:?}, which another segment \
                         makes, and sequences stay in theirs: give what stands between to the same runtime"
                    ),
                });
            }
        }
    }
    Ok(())
}
