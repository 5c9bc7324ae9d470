//! Transposes between [batch, length, heads, size], as projections give it, and [batch, heads, length, size], as attention
//! takes it: our operators read and write either.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::attention::{INPUTS_BY_ROW, OUTPUTS_BY_ROW};
use super::{attention, cuda_attention};
use crate::onnx::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, attribute_proto::AttributeType};
use crate::onnx::uses;

/// What swaps heads and length.
const SWAP: [i64; 4] = [0, 2, 1, 3];

/// Each operator of attention reads what such a Transpose of the main graph reads, and writes what one gives that alone
/// reads it.
pub(super) fn without_transposes(model: &mut ModelProto) {
    let Some(graph) = &mut model.graph else { return };
    let (sources, mut left) = (Swaps::of(graph).sources, HashSet::new());
    for node in &mut graph.node {
        let Some([places, _]) = heads_of(node) else { continue };
        let before = node.input.clone();
        let swapped = swap(&mut node.input, places, &sources);
        left.extend(swapped.iter().map(|&at| before[at].clone()));
        node.attribute.extend(attribute(INPUTS_BY_ROW, swapped));
    }
    // Those that nobody reads any more would run nevertheless.
    let n_uses = n_uses(graph);
    left.retain(|result| !n_uses.contains_key(result));
    graph.node.retain(|node| node.output.first().is_none_or(|result| !left.contains(result)));
    // What is read now tells what nobody else reads.
    let results = Swaps::of(graph).results;
    let mut given = HashSet::new();
    for node in &mut graph.node {
        let Some([_, places]) = heads_of(node) else { continue };
        let swapped = swap(&mut node.output, places, &results);
        given.extend(swapped.iter().map(|&at| node.output[at].clone()));
        node.attribute.extend(attribute(OUTPUTS_BY_ROW, swapped));
    }
    graph.node.retain(|node| !is_swap(node) || node.output.first().is_none_or(|result| !given.contains(result)));
}

/// Places of the inputs and outputs of one of our operators that are [batch, heads, length, size]; None of other nodes.
fn heads_of(node: &NodeProto) -> Option<[Range<usize>; 2]> {
    attention::heads_of(node).or_else(|| cuda_attention::heads_of(node))
}

struct Swaps {
    /// {a Transpose's result: what it reads}.
    sources: HashMap<String, String>,
    /// {what only a Transpose reads: its result}.
    results: HashMap<String, String>,
}

impl Swaps {
    fn of(graph: &GraphProto) -> Self {
        let n_uses = n_uses(graph);
        let mut found = Self { sources: HashMap::new(), results: HashMap::new() };
        for node in graph.node.iter().filter(|node| is_swap(node)) {
            let ([source], [result]) = (node.input.as_slice(), node.output.as_slice()) else { continue };
            found.sources.insert(result.clone(), source.clone());
            if n_uses.get(source) == Some(&1) {
                found.results.insert(source.clone(), result.clone());
            }
        }
        found
    }
}

/// {value: nodes that read it, and outputs of the graph that it is}.
fn n_uses(graph: &GraphProto) -> HashMap<String, usize> {
    let mut n_uses: HashMap<String, usize> = HashMap::new();
    let of_nodes = graph.node.iter().flat_map(uses);
    for value in of_nodes.chain(graph.output.iter().map(|output| output.name())) {
        *n_uses.entry(value.to_owned()).or_default() += 1;
    }
    n_uses
}

fn is_swap(node: &NodeProto) -> bool {
    let swaps = |attribute: &AttributeProto| attribute.name() == "perm" && attribute.ints == SWAP;
    node.op_type() == "Transpose" && matches!(node.domain(), "" | "ai.onnx") && node.attribute.iter().any(swaps)
}

/// Other values in these places, where there are; the places that got one.
fn swap(values: &mut [String], places: Range<usize>, others: &HashMap<String, String>) -> Vec<usize> {
    let mut swapped = Vec::new();
    for (at, value) in values.iter_mut().enumerate().filter(|(at, _)| places.contains(at)) {
        if let Some(other) = others.get(value) {
            value.clone_from(other);
            swapped.push(at);
        }
    }
    swapped
}

fn attribute(name: &str, places: Vec<usize>) -> Option<AttributeProto> {
    (!places.is_empty()).then(|| AttributeProto {
        name: Some(name.to_owned()),
        ints: places.into_iter().map(|at| at as i64).collect(),
        r#type: Some(AttributeType::Ints as i32),
        ..AttributeProto::default()
    })
}
