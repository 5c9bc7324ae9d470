//! Small models out of a large one: one node's, or those of many in a row.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::OnnxError;
use super::graph::{describe, order, producers, shell, sparse_name, types, uses, value_info};
use super::proto::{GraphProto, ModelProto, NodeProto, ValueInfoProto};
use crate::ids::ValueName;
use crate::tensor::TensorDesc;

/// Values that stand ready, with what they are.
pub type Feeds<'a> = HashMap<&'a str, &'a TensorDesc>;

/// A model, indexed once so that each piece costs what the piece holds.
#[derive(Debug)]
pub struct Isolator {
    graph: GraphProto,
    shell: ModelProto,
    types: HashMap<String, ValueInfoProto>,
    /// Value → the node that gives it.
    producers: HashMap<String, usize>,
    /// Node → its place in topological order.
    places: Vec<usize>,
    initializers: HashMap<String, Initializer>,
    /// Input → its place.
    inputs: HashMap<String, usize>,
    named: HashSet<ValueName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Initializer {
    Dense(usize),
    Sparse(usize),
}

/// A piece of a model, a model itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The model. Its inputs are typed with concrete dimensions.
    pub model: ModelProto,
    /// Names of its inputs: the feeds that it reads, the model's inputs first, then in the model's order.
    pub inputs: Vec<ValueName>,
    /// Names of its outputs, as asked for.
    pub outputs: Vec<ValueName>,
    /// Those of the named values that its nodes produce.
    pub named_values: Vec<ValueName>,
}

/// What a walk back from the outputs met.
#[derive(Default)]
struct Met<'a> {
    nodes: BTreeSet<(usize, usize)>,
    initializers: BTreeSet<Initializer>,
    /// By place and name.
    feeds: BTreeMap<(usize, usize, &'a str), &'a TensorDesc>,
}

impl Isolator {
    /// Over a model whose `named_values` are the places where it may be cut. Errors: [`OnnxError::NoGraph`], those of
    /// [`order`].
    pub fn new(model: ModelProto, named_values: &[ValueName]) -> Result<Self, OnnxError> {
        let shell = shell(&model);
        let graph = model.graph.ok_or(OnnxError::NoGraph)?;
        let mut places = vec![0; graph.node.len()];
        order(&graph)?.into_iter().enumerate().for_each(|(place, at)| places[at] = place);
        let dense = graph.initializer.iter().enumerate().map(|(at, t)| (t.name().to_owned(), Initializer::Dense(at)));
        let sparse = graph
            .sparse_initializer
            .iter()
            .enumerate()
            .map(|(at, s)| (sparse_name(s).to_owned(), Initializer::Sparse(at)));
        Ok(Self {
            shell,
            types: types(&graph).into_iter().map(|(name, info)| (name.to_owned(), info.clone())).collect(),
            producers: producers(&graph)?.into_iter().map(|(name, at)| (name.to_owned(), at)).collect(),
            places,
            initializers: dense.chain(sparse).collect(),
            inputs: graph.input.iter().enumerate().map(|(at, input)| (input.name().to_owned(), at)).collect(),
            named: named_values.iter().cloned().collect(),
            graph,
        })
    }

    /// The nodes of the main graph.
    pub fn nodes(&self) -> &[NodeProto] {
        &self.graph.node
    }

    /// Index of the node that gives a value.
    pub fn producer(&self, value: &str) -> Option<usize> {
        self.producers.get(value).copied()
    }

    /// The model may be cut here: a named value, or an input of the model.
    pub fn is_cut(&self, value: &str) -> bool {
        self.named.contains(value) || self.inputs.contains_key(value)
    }

    /// The model of one value: the nodes that lead to it from the nearest named values and inputs. Those in `through`
    /// do not count as named. Errors: [`OnnxError::NoFeed`], [`OnnxError::Undefined`].
    pub fn local(&self, value: &str, through: &HashSet<&str>, feeds: &Feeds<'_>) -> Result<Piece, OnnxError> {
        let constant = |name: &str| self.initializers.contains_key(name) && !feeds.contains_key(name);
        self.piece(&[value], feeds, |name| {
            name != value && self.is_cut(name) && !constant(name) && !through.contains(name)
        })
    }

    /// The model that computes `wanted` from the feeds. Errors: as [`Isolator::local`].
    pub fn segment(&self, wanted: &[&str], feeds: &Feeds<'_>) -> Result<Piece, OnnxError> {
        self.piece(wanted, feeds, |name| feeds.contains_key(name))
    }

    fn piece(&self, wanted: &[&str], feeds: &Feeds<'_>, stops: impl Fn(&str) -> bool) -> Result<Piece, OnnxError> {
        let met = self.walk(wanted, feeds, stops)?;
        let nodes = || met.nodes.iter().map(|&(_, at)| &self.graph.node[at]);
        let output = |&name: &&str| match self.types.get(name) {
            Some(info) => info.clone(),
            None => ValueInfoProto { name: Some(name.to_owned()), ..Default::default() },
        };
        let mut graph = GraphProto {
            name: self.graph.name.clone(),
            node: nodes().cloned().collect(),
            input: met.feeds.iter().map(|(&(_, _, name), desc)| value_info(name, desc)).collect(),
            output: wanted.iter().map(output).collect(),
            ..GraphProto::default()
        };
        for &initializer in &met.initializers {
            match initializer {
                Initializer::Dense(at) => graph.initializer.push(self.graph.initializer[at].clone()),
                Initializer::Sparse(at) => graph.sparse_initializer.push(self.graph.sparse_initializer[at].clone()),
            }
        }
        let produced = nodes().flat_map(|node| &node.output);
        Ok(Piece {
            named_values: produced.filter(|&name| self.named.contains(name)).cloned().collect(),
            inputs: met.feeds.keys().map(|&(_, _, name)| name.to_owned()).collect(),
            outputs: wanted.iter().map(|&name| name.to_owned()).collect(),
            model: ModelProto { graph: Some(graph), ..self.shell.clone() },
        })
    }

    fn walk<'a>(
        &'a self,
        wanted: &[&'a str],
        feeds: &Feeds<'a>,
        stops: impl Fn(&str) -> bool,
    ) -> Result<Met<'a>, OnnxError> {
        let mut met = Met::default();
        let mut seen = HashSet::new();
        let mut to_visit: Vec<(Option<usize>, &'a str)> = wanted.iter().map(|&name| (None, name)).collect();
        while let Some((user, value)) = to_visit.pop() {
            if !seen.insert(value) {
                continue;
            }
            if stops(value) {
                self.feed(&mut met, user, value, feeds)?;
            } else if let Some(&at) = self.producers.get(value) {
                if met.nodes.insert((self.places[at], at)) {
                    to_visit.extend(uses(&self.graph.node[at]).into_iter().map(|value| (Some(at), value)));
                }
            } else if let Some(&initializer) = self.initializers.get(value) {
                met.initializers.insert(initializer);
            } else if self.inputs.contains_key(value) {
                self.feed(&mut met, user, value, feeds)?;
            } else {
                return Err(OnnxError::Undefined { user: self.user(user), value: value.to_owned() });
            }
        }
        Ok(met)
    }

    fn feed<'a>(
        &self,
        met: &mut Met<'a>,
        user: Option<usize>,
        value: &'a str,
        feeds: &Feeds<'a>,
    ) -> Result<(), OnnxError> {
        let Some(&desc) = feeds.get(value) else {
            return Err(OnnxError::NoFeed { user: self.user(user), value: value.to_owned() });
        };
        let (place, output) = self.place(value);
        met.feeds.insert((place, output, value), desc);
        Ok(())
    }

    /// Position among all that a piece may read: inputs, then what nodes give, then initializers.
    fn place(&self, value: &str) -> (usize, usize) {
        match (self.inputs.get(value), self.producers.get(value)) {
            (Some(&place), _) => (place, 0),
            (None, Some(&at)) => {
                let output = self.graph.node[at].output.iter().position(|name| name == value);
                (self.inputs.len() + self.places[at], output.unwrap_or(0))
            }
            (None, None) => (usize::MAX, 0),
        }
    }

    fn user(&self, user: Option<usize>) -> String {
        user.map_or_else(|| "the new output".to_owned(), |at| describe(at, &self.graph.node[at]))
    }
}
