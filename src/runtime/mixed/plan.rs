//! Which node runs where: rules give nodes to runtimes, and neighbours on one runtime are a segment.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::segment::Segment;
use super::sequences;
use crate::onnx::proto::{GraphProto, NodeProto};
use crate::onnx::{self, Descriptions, OnnxError};
use crate::protocol::message::{NodeRuntime, RuntimeRule};
use crate::runtime::RuntimeError;

/// A graph divided. Each node that an output needs is in one segment, but for constants and what is computed of them alone,
/// which are in every segment that reads them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// In the order in which they run.
    pub(super) segments: Vec<Segment>,
    /// Of each rule, how many nodes it decided over, constants not counted.
    pub(super) taken: Vec<u32>,
}

/// Divides a graph. Of a rule's patterns see [`onnx::select_nodes`]; a node that no rule fits is ONNX Runtime's. Nodes with
/// bodies are not divided. Errors: BadModel; BadOption where a sequence would go
/// from one segment to another.
pub(super) fn plan(graph: &GraphProto, rules: &[RuntimeRule], described: &Descriptions) -> Result<Plan, RuntimeError> {
    let order = onnx::order(graph)?;
    let rule_of = rules_of(graph, rules, described)?;
    let mut copied = copied(graph, &order, &rule_of);
    copied.extend(unread(graph, &order));
    let sequences = sequences::of_graph(graph, &order);
    let rule_of = together(graph, &sequences, rule_of);
    let runtime_of = |at: usize| rule_of[at].map_or(NodeRuntime::Ort, |rule| rules[rule].runtime);
    let mut taken = vec![0; rules.len()];
    let own = (0..graph.node.len()).filter(|at| !copied.contains(at));
    own.filter_map(|at| rule_of[at]).for_each(|rule| taken[rule] += 1);
    let mut places = vec![0; graph.node.len()];
    order.iter().enumerate().for_each(|(place, &at)| places[at] = place);
    let producers = onnx::producers(graph)?;
    let grouped = fewest(graph, &producers, &order, &places, &copied, &runtime_of);
    let segments = with_ends(graph, &producers, &order, &places, &copied, grouped);
    sequences::refuse_crossing(graph, &sequences, &segments)?;
    Ok(Plan { segments, taken })
}

/// Of each node, the first rule that fits it.
fn rules_of(
    graph: &GraphProto,
    rules: &[RuntimeRule],
    described: &Descriptions,
) -> Result<Vec<Option<usize>>, OnnxError> {
    let of_rule = |(at, rule): (usize, &'_ RuntimeRule)| vec![at; rule.patterns.len()];
    let rule_of_pattern: Vec<usize> = rules.iter().enumerate().flat_map(of_rule).collect();
    let patterns: Vec<&String> = rules.iter().flat_map(|rule| &rule.patterns).collect();
    let chosen = onnx::select_nodes(graph, &patterns, described)?;
    Ok(chosen.into_iter().map(|pattern| Some(rule_of_pattern[pattern?])).collect())
}

/// Nodes that every segment that reads them computes for itself: they depend on no input, give no output of the graph,
/// and, but for Constant nodes, no rule speaks of them. What draws at random would not be the same twice.
fn copied(graph: &GraphProto, order: &[usize], rule_of: &[Option<usize>]) -> HashSet<usize> {
    let inputs: HashSet<&str> = graph.input.iter().map(|input| input.name()).collect();
    let outputs: HashSet<&str> = graph.output.iter().map(|output| output.name()).collect();
    let mut fixed: HashSet<&str> = graph.initializer.iter().map(|tensor| tensor.name()).collect();
    fixed.extend(graph.sparse_initializer.iter().filter_map(|sparse| Some(sparse.values.as_ref()?.name())));
    fixed.retain(|name| !inputs.contains(name));
    let mut copied = HashSet::new();
    for &at in order {
        let node = &graph.node[at];
        let may_be = rule_of[at].is_none() || node.op_type() == "Constant";
        let stays = node.output.iter().any(|name| outputs.contains(name.as_str())) || is_random(node);
        if may_be && !stays && onnx::uses(node).iter().all(|name| fixed.contains(name)) {
            copied.insert(at);
            fixed.extend(node.output.iter().map(String::as_str));
        }
    }
    copied
}

/// Nodes that no output of the graph needs: inlining leaves some. They are in no segment.
fn unread(graph: &GraphProto, order: &[usize]) -> Vec<usize> {
    let mut needed: HashSet<&str> = graph.output.iter().map(|output| output.name()).collect();
    let mut unread = Vec::new();
    for &at in order.iter().rev() {
        let node = &graph.node[at];
        match node.output.iter().any(|name| needed.contains(name.as_str())) {
            true => needed.extend(onnx::uses(node)),
            false => unread.push(at),
        }
    }
    unread
}

fn is_random(node: &NodeProto) -> bool {
    node.op_type().starts_with("Random") || matches!(node.op_type(), "Bernoulli" | "Multinomial")
}

/// What reads a sequence runs where it is made: of such nodes all go by the first rule that fits one of them.
fn together(graph: &GraphProto, sequences: &HashSet<String>, rule_of: Vec<Option<usize>>) -> Vec<Option<usize>> {
    let mut group: Vec<usize> = (0..graph.node.len()).collect();
    fn root(group: &[usize], mut at: usize) -> usize {
        while group[at] != at {
            at = group[at];
        }
        at
    }
    let mut first: HashMap<&str, usize> = HashMap::new();
    for (at, node) in graph.node.iter().enumerate() {
        let read = onnx::uses(node).into_iter();
        for value in read.chain(node.output.iter().map(String::as_str)).filter(|name| sequences.contains(*name)) {
            let other = *first.entry(value).or_insert(at);
            let (one, other) = (root(&group, at), root(&group, other));
            group[one.max(other)] = one.min(other);
        }
    }
    let mut rule_of_group: HashMap<usize, usize> = HashMap::new();
    for (at, rule) in rule_of.iter().enumerate() {
        if let Some(rule) = *rule {
            let known = rule_of_group.entry(root(&group, at)).or_insert(rule);
            *known = rule.min(*known);
        }
    }
    (0..graph.node.len()).map(|at| rule_of_group.get(&root(&group, at)).copied()).collect()
}

/// Which node gives a value.
type Producers<'a> = HashMap<&'a str, usize>;

type Grouped = Vec<(NodeRuntime, Vec<usize>)>;

/// Nodes in an order that goes on with a runtime for as long as it can; begun with the runtime that gives the fewest
/// groups.
fn fewest(
    graph: &GraphProto,
    producers: &Producers<'_>,
    order: &[usize],
    places: &[usize],
    copied: &HashSet<usize>,
    runtime_of: &impl Fn(usize) -> NodeRuntime,
) -> Grouped {
    let waits = Waits::of(graph, producers, copied);
    let starts: BTreeSet<usize> = NodeRuntime::NAMES.iter().map(|&(_, runtime)| runtime as usize).collect();
    let grouped = starts.into_iter().map(|start| grouped(waits.clone(), order, places, runtime_of, start));
    grouped.min_by_key(Vec::len).unwrap_or_default()
}

/// Who waits for whom, copied nodes left out.
#[derive(Clone)]
struct Waits {
    followers: Vec<Vec<usize>>,
    /// How many nodes each waits for; None of copied ones.
    left: Vec<Option<usize>>,
}

impl Waits {
    fn of(graph: &GraphProto, producers: &Producers<'_>, copied: &HashSet<usize>) -> Self {
        let mut followers: Vec<Vec<usize>> = vec![Vec::new(); graph.node.len()];
        let mut left = Vec::with_capacity(graph.node.len());
        for (at, node) in graph.node.iter().enumerate() {
            let before = onnx::uses(node).into_iter().filter_map(|value| producers.get(value).copied());
            let before: BTreeSet<usize> = before.filter(|before| !copied.contains(before)).collect();
            left.push((!copied.contains(&at)).then_some(before.len()));
            if !copied.contains(&at) {
                before.into_iter().for_each(|before| followers[before].push(at));
            }
        }
        Self { followers, left }
    }
}

fn grouped(
    mut waits: Waits,
    order: &[usize],
    places: &[usize],
    runtime_of: &impl Fn(usize) -> NodeRuntime,
    start: usize,
) -> Grouped {
    // Places of nodes that wait for nothing, by runtime.
    let mut ready: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); NodeRuntime::NAMES.len()];
    let add = |ready: &mut Vec<BTreeSet<usize>>, at: usize| ready[runtime_of(at) as usize].insert(places[at]);
    for at in (0..waits.left.len()).filter(|&at| waits.left[at] == Some(0)) {
        add(&mut ready, at);
    }
    let (mut groups, mut current): (Grouped, usize) = (Vec::new(), start);
    let mut is_new = true;
    loop {
        let Some(place) = ready[current].pop_first() else {
            // The runtime of the node that comes first.
            let next = (0..ready.len()).filter_map(|runtime| Some((*ready[runtime].first()?, runtime))).min();
            let Some((_, runtime)) = next else { return groups };
            (current, is_new) = (runtime, true);
            continue;
        };
        let at = order[place];
        if std::mem::replace(&mut is_new, false) {
            groups.push((runtime_of(at), Vec::new()));
        }
        groups.last_mut().expect("one was pushed").1.push(at);
        for follower in std::mem::take(&mut waits.followers[at]) {
            if let Some(left) = &mut waits.left[follower] {
                *left -= 1;
                if *left == 0 {
                    add(&mut ready, follower);
                }
            }
        }
    }
}

/// The groups with the copied nodes that they need, and what they read and give.
fn with_ends(
    graph: &GraphProto,
    producers: &Producers<'_>,
    order: &[usize],
    places: &[usize],
    copied: &HashSet<usize>,
    groups: Grouped,
) -> Vec<Segment> {
    let graph_inputs: HashSet<&str> = graph.input.iter().map(|input| input.name()).collect();
    let initialized: HashSet<&str> = graph.initializer.iter().map(|tensor| tensor.name()).collect();
    let mut segments: Vec<Segment> = Vec::with_capacity(groups.len());
    for (runtime, own) in groups {
        let mut nodes: BTreeSet<usize> = own.iter().map(|&at| places[at]).collect();
        let mut inputs: BTreeSet<&str> = BTreeSet::new();
        let mut to_visit = own.clone();
        let members: HashSet<usize> = own.iter().copied().collect();
        while let Some(at) = to_visit.pop() {
            for value in onnx::uses(&graph.node[at]) {
                match producers.get(value) {
                    Some(before) if members.contains(before) => {}
                    Some(before) if !copied.contains(before) => drop(inputs.insert(value)),
                    Some(before) if nodes.insert(places[*before]) => to_visit.push(*before),
                    Some(_) => {}
                    None if graph_inputs.contains(value) && !initialized.contains(value) => {
                        inputs.insert(value);
                    }
                    None => {}
                }
            }
        }
        segments.push(Segment {
            runtime,
            nodes: nodes.into_iter().map(|place| order[place]).collect(),
            own,
            inputs: inputs.into_iter().map(str::to_owned).collect(),
            outputs: Vec::new(),
        });
    }
    give(graph, copied, &mut segments);
    segments
}

/// Tells each segment what of it others need; outputs that are initializers come from one of ONNX Runtime's.
fn give(graph: &GraphProto, copied: &HashSet<usize>, segments: &mut Vec<Segment>) {
    let mut needed: HashSet<String> = segments.iter().flat_map(|segment| &segment.inputs).cloned().collect();
    needed.extend(graph.output.iter().map(|output| output.name().to_owned()));
    for segment in segments.iter_mut() {
        let own = segment.nodes.iter().filter(|at| !copied.contains(at));
        let made = own.flat_map(|&at| &graph.node[at].output).filter(|name| !name.is_empty());
        segment.outputs = made.filter(|name| needed.contains(*name)).cloned().collect();
    }
    let constants: HashSet<&str> = graph.initializer.iter().map(|tensor| tensor.name()).collect();
    let of_constants = graph.output.iter().map(|output| output.name()).filter(|name| constants.contains(name));
    let of_constants: Vec<String> = of_constants.map(str::to_owned).collect();
    if of_constants.is_empty() {
        return;
    }
    match segments.iter_mut().find(|segment| segment.runtime == NodeRuntime::Ort) {
        Some(segment) => segment.outputs.extend(of_constants),
        None => {
            let (nodes, inputs) = (Vec::new(), Vec::new());
            segments.push(Segment { runtime: NodeRuntime::Ort, nodes, own: Vec::new(), inputs, outputs: of_constants });
        }
    }
}
