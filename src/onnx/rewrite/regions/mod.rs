//! `regions`: nodes that go over a tensor element by element, or add up its last axis, become one operator of ours that
//! does all of them tile by tile ([`crate::onnx::Program`]): RMSNorm, SwiGLU, GELU, a softmax, their gradients, the casts
//! between.
//!
//! A region's values have one shape, or one value in the place of its last axis. What it reads is broadcast to that shape;
//! what is read outside, or is an output of the graph, is an output of the region under its own name. Only what the model
//! tells to fit is taken: float32, beside bools and half precision where they come from, or go to, float32; on CUDA, where
//! nodes compute in half precision as they are, those too, each rounding its result as the node does.

mod groups;
mod members;
mod policy;
mod program;

use std::collections::HashSet;

use super::nodes::{drop_unread, forget, taken};
use crate::onnx::graph;
use crate::onnx::proto::GraphProto;
use groups::groups;
use members::Facts;
use policy::{ON_CPU, ON_CUDA, Policy};
use program::{Region, made};

/// Nodes that a region leaves out at least, less the Casts that it needs.
const FEWEST_NODES: usize = 2;

/// Each region that pays on the CPU.
pub(super) fn on_cpu(graph: &mut GraphProto) -> usize {
    run(graph, &ON_CPU)
}

/// Each region that pays on CUDA.
pub(super) fn on_cuda(graph: &mut GraphProto) -> usize {
    run(graph, &ON_CUDA)
}

fn run(graph: &mut GraphProto, policy: &Policy) -> usize {
    if !graph::order(graph).is_ok_and(|order| order.is_sorted()) {
        return 0;
    }
    let facts = Facts::of(graph, policy);
    let mut names = taken(graph);
    let found = groups(graph, &facts);
    let readers = graph::readers(graph);
    let made = |group| made(graph, &facts, &readers, group, &mut names);
    let mut regions: Vec<Region> = found.iter().filter_map(made).collect();
    regions.retain(|region| region.has_floats && region.gone.len() >= FEWEST_NODES + region.casts.len());
    if regions.is_empty() {
        return 0;
    }
    let before = graph.clone();
    let gone: HashSet<usize> = regions.iter().flat_map(|region| region.gone.iter().copied()).collect();
    let n_places = regions.len();
    let mut at_end: Vec<Vec<_>> = vec![Vec::new(); graph.node.len()];
    let (mut unread, mut types) = (HashSet::new(), Vec::new());
    for region in regions {
        types.extend(region.types);
        unread.extend(region.read);
        at_end[region.at].push(region.node);
        at_end[region.at].extend(region.casts);
    }
    let nodes = std::mem::take(&mut graph.node);
    let mut inside: HashSet<String> = HashSet::new();
    for (at, (node, made)) in nodes.into_iter().zip(at_end).enumerate() {
        if gone.contains(&at) {
            inside.extend(node.output);
        } else {
            graph.node.push(node);
        }
        graph.node.extend(made);
    }
    for name in graph.node.iter().flat_map(graph::outputs) {
        inside.remove(name);
    }
    forget(graph, &inside);
    let told: HashSet<String> =
        graph.value_info.iter().chain(&graph.output).map(|info| info.name().to_owned()).collect();
    graph.value_info.extend(types.into_iter().filter(|info| !told.contains(info.name())));
    drop_unread(graph, &unread);
    if graph::sort(graph).is_err() {
        *graph = before; // two regions that read each other: groups are made so that there are none
        return 0;
    }
    n_places
}

#[cfg(test)]
mod tests;
