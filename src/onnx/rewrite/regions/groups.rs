//! Which members go together: those that read each other and have one shape, with no way from a group through other nodes
//! back into it.

use std::collections::{HashMap, HashSet};

use super::super::values::Dim;
use super::members::Facts;
use crate::onnx::graph;
use crate::onnx::proto::GraphProto;

/// Nodes of a group at most: what a tile needs memory for.
const MOST_NODES: usize = 96;
/// Groups between two that are joined, at most: what is looked through for each pair, so that the time that a graph takes
/// grows with its nodes. What is farther apart would keep values for long, too.
const FARTHEST: usize = 2048;

/// Nodes that go together: their indices, in order.
pub(super) struct Group {
    pub(super) nodes: Vec<usize>,
    pub(super) leading: Vec<Dim>,
    /// None where all give one value of a row.
    pub(super) last: Option<Dim>,
}

/// Groups of two nodes and more, in the order of their last nodes.
pub(super) fn groups(graph: &GraphProto, facts: &Facts<'_>) -> Vec<Group> {
    let Ok(producers) = graph::producers(graph) else { return Vec::new() };
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
    /// Groups, and nodes that are no members, each after what it reads; what went into another stays somewhere.
    order: Vec<usize>,
    /// Places in `order`.
    rank: Vec<usize>,
}

impl Found {
    fn new(sources: Vec<Vec<usize>>, facts: &Facts<'_>) -> Self {
        let group = |(at, member): (usize, &Option<super::members::Member>)| {
            let member = member.as_ref()?;
            Some(Group { nodes: vec![at], leading: member.leading.clone(), last: member.last.clone() })
        };
        let each: Vec<usize> = (0..sources.len()).collect();
        let groups = facts.members.iter().enumerate().map(group).collect();
        Self { sources, of: each.clone(), groups, order: each.clone(), rank: each }
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

    /// Joins two groups that have one shape, unless there is a way from one to the other that neither is on.
    fn try_join(&mut self, one: usize, other: usize) {
        let [low, high] = if self.rank[one] < self.rank[other] { [one, other] } else { [other, one] };
        let between = self.rank[low] + 1..self.rank[high];
        if !self.fit(one, other) || between.len() > FARTHEST {
            return;
        }
        // Those that read of `low`, themselves or through others: they come after both, the rest before.
        let (mut after, mut before) = (HashSet::new(), Vec::new());
        for &group in &self.order[between] {
            if self.reads(group, |source| source == low || after.contains(&source)) {
                after.insert(group);
            } else {
                before.push(group);
            }
        }
        if self.reads(high, |source| after.contains(&source)) {
            return;
        }
        let start = self.rank[low];
        let rest = self.order[start..=self.rank[high]].iter().copied().filter(|group| after.contains(group));
        let ordered: Vec<usize> = before.into_iter().chain([low, high]).chain(rest).collect();
        for (rank, group) in (start..).zip(ordered) {
            (self.order[rank], self.rank[group]) = (group, rank);
        }
        self.join(low, high);
    }

    /// Whether a node of the group reads of a group that `wanted` says.
    fn reads(&self, group: usize, wanted: impl Fn(usize) -> bool) -> bool {
        let single = [group];
        let nodes = self.groups[group].as_ref().map_or(&single[..], |group| &group.nodes);
        nodes.iter().any(|&node| self.sources[node].iter().any(|&source| wanted(self.of[source])))
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
