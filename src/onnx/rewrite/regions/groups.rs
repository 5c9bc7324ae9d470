//! Which members go together: those that read each other and have one shape, with no way from a group through other nodes
//! back into it.

use std::collections::HashMap;

use super::super::values::Dim;
use super::members::Facts;
use crate::onnx::graph;
use crate::onnx::proto::GraphProto;

/// Nodes of a group at most: what a tile needs memory for.
const MOST_NODES: usize = 96;

/// Nodes that go together: their indices, in order.
pub(super) struct Group {
    pub(super) nodes: Vec<usize>,
    pub(super) leading: Vec<Dim>,
    /// None where all give one value of a row.
    pub(super) last: Option<Dim>,
}

/// Groups of two nodes and more, in the order of their last nodes.
pub(super) fn groups(graph: &GraphProto, facts: &Facts) -> Vec<Group> {
    let producers: HashMap<&str, usize> = (graph.node.iter().enumerate())
        .flat_map(|(at, node)| graph::outputs(node).map(move |name| (name, at)))
        .collect();
    let sources = |at: usize| graph::uses(&graph.node[at]).into_iter().filter_map(|name| producers.get(name).copied());
    let sources: Vec<Vec<usize>> = (0..graph.node.len()).map(|at| sources(at).collect()).collect();
    let mut found = Found::new(sources, facts);
    let mut readers: HashMap<&str, usize> = HashMap::new();
    let is_from_outside = |name: &str| {
        let is_member = producers.get(name).is_some_and(|&at| facts.members[at].is_some());
        let is_wide = facts.dims(name).and_then(<[Dim]>::last).is_some_and(|last| *last != Dim::Is(1));
        !is_member && is_wide && facts.dims(name).is_some_and(|dims| dims.len() > 1)
    };
    for at in 0..graph.node.len() {
        for source in found.sources[at].clone() {
            let (one, other) = (found.of[at], found.of[source]);
            found.try_join(one, other);
        }
        // What reads the same is read once.
        for name in graph.node[at].input.iter().filter(|name| is_from_outside(name) && facts.members[at].is_some()) {
            if let Some(before) = readers.insert(name, at) {
                let (one, other) = (found.of[at], found.of[before]);
                found.try_join(one, other);
            }
        }
    }
    let mut groups: Vec<Group> =
        found.groups.into_iter().filter_map(|group| group.filter(|it| it.nodes.len() > 1)).collect();
    for group in &mut groups {
        group.nodes.sort_unstable();
    }
    groups.sort_by_key(|group| group.nodes.last().copied());
    groups
}

struct Found {
    /// Nodes that a node reads.
    sources: Vec<Vec<usize>>,
    /// Of each node.
    of: Vec<usize>,
    /// None of what is no member, and what went into another.
    groups: Vec<Option<Group>>,
    /// The search that last came by.
    seen: Vec<usize>,
    n_searches: usize,
}

impl Found {
    fn new(sources: Vec<Vec<usize>>, facts: &Facts) -> Self {
        let group = |(at, member): (usize, &Option<super::members::Member>)| {
            let member = member.as_ref()?;
            Some(Group { nodes: vec![at], leading: member.leading.clone(), last: member.last.clone() })
        };
        let n_nodes = sources.len();
        let groups = facts.members.iter().enumerate().map(group).collect();
        Self { sources, of: (0..n_nodes).collect(), groups, seen: vec![0; n_nodes], n_searches: 0 }
    }

    /// Whether two groups have one shape, as far as they have one.
    fn fit(&self, one: usize, other: usize) -> bool {
        let (Some(a), Some(b)) = (&self.groups[one], &self.groups[other]) else { return false };
        let same_row = match (&a.last, &b.last) {
            (Some(a), Some(b)) => a.equals(b),
            _ => true,
        };
        one != other && a.leading == b.leading && same_row && a.nodes.len() + b.nodes.len() <= MOST_NODES
    }

    /// Whether there is a way from `to` into `from` that goes through nodes of neither. A group is one node here, as it is
    /// to be.
    fn detours(&mut self, from: usize, to: usize) -> bool {
        self.n_searches += 1;
        let mut waiting: Vec<usize> = Vec::new();
        let mut current = from;
        loop {
            let single = [current];
            let nodes = self.groups[current].as_ref().map_or(&single[..], |group| &group.nodes);
            for &node in nodes {
                for &source in &self.sources[node] {
                    let group = self.of[source];
                    if group == to && current != from {
                        return true;
                    }
                    if group != to && group != from && self.seen[group] != self.n_searches {
                        self.seen[group] = self.n_searches;
                        waiting.push(group);
                    }
                }
            }
            match waiting.pop() {
                Some(next) => current = next,
                None => return false,
            }
        }
    }

    /// Joins two groups that have one shape, unless there is a way from one to the other that neither is on.
    fn try_join(&mut self, one: usize, other: usize) {
        if self.fit(one, other) && !self.detours(one, other) && !self.detours(other, one) {
            self.join(one, other);
        }
    }

    fn join(&mut self, one: usize, other: usize) {
        let Some(gone) = self.groups[one].take() else { return };
        for &node in &gone.nodes {
            self.of[node] = other;
        }
        if let Some(group) = &mut self.groups[other] {
            group.nodes.extend(gone.nodes);
            group.last = group.last.take().or(gone.last);
        }
    }
}
