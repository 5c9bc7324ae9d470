//! A model run once with every value an output, as a list in the order of execution.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap, HashSet};

use serde::{Serialize, Serializer};

use super::exact::Exact;
use super::feeds::Source;
use crate::compare::{Dim, Kind, RunResult, signature};
use crate::onnx::proto::tensor_proto::DataType;
use crate::onnx::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto};
use crate::onnx::{self, NamedTensor, expose_intermediates};
use crate::protocol::message::SessionSpec;
use crate::runtime::{self, FeedsError, Runtime, RuntimeError, leased};
use crate::tensor::{TensorBuf, TensorView};

/// Bytes of a model whose session is not worth freeing, for the process ends soon; and how many such there are.
const SMALL_BYTES: usize = 4 << 20;
const MOST_SESSIONS: usize = 8;

/// Signature where there is no value to be looked at.
const UNKNOWN: &str = "????";

/// A value that is in the list once or more.
#[derive(Debug)]
pub(super) enum Held {
    Constant(NamedTensor),
    Computed(TensorBuf),
    Exact(Exact),
}

impl Held {
    fn of_constant(tensor: &TensorProto) -> Option<Self> {
        let known = NamedTensor::from_proto(tensor).ok().map(Self::Constant);
        known.or_else(|| Exact::of(tensor).map(Self::Exact))
    }

    fn view(&self) -> Option<TensorView<'_>> {
        match self {
            Held::Constant(tensor) => Some(tensor.view()),
            Held::Computed(tensor) => Some(tensor.view()),
            Held::Exact(_) => None,
        }
    }
}

/// The values of a model.
#[derive(Debug, Default)]
pub(super) struct Trace {
    /// Initializers, inputs, results of nodes, outputs: each in the model's order, nodes in that of execution.
    pub(super) results: Vec<RunResult>,
    /// The value of each, by its place in `held`.
    values: Vec<Option<usize>>,
    held: Vec<Held>,
    /// The node of each, by its place in `nodes`, and which of its outputs it is.
    given_by: HashMap<usize, (usize, usize)>,
    nodes: Vec<Given>,
    /// What inputs are by the provenance of their part, such as `layer.weight`.
    pub(super) called: HashMap<String, String>,
    /// The node at which it did not go on, and why.
    pub(super) error: Option<String>,
    /// Computed values that are no tensors of a dtype that torch has, constants that nobody can read, and sparse ones.
    pub(super) not_shown: Vec<String>,
    /// Nodes into whose bodies nobody looks: what they give is in the list, the values inside are not.
    pub(super) closed: Vec<String>,
}

/// A node as what it gives depends on it.
#[derive(Debug)]
struct Given {
    op: [String; 3],
    attributes: Vec<AttributeProto>,
    reads: Vec<Option<usize>>,
}

/// Where a result of a node comes from.
pub(super) struct Origin<'a> {
    node: &'a Given,
    output: usize,
    /// Places of its inputs in the list; None where one is left out, or is no result.
    pub(super) reads: &'a [Option<usize>],
}

impl Origin<'_> {
    /// Whether equal inputs should give equal results.
    pub(super) fn is_alike(&self, other: &Self) -> bool {
        let (one, another) = (self.node, other.node);
        self.output == other.output
            && one.op == another.op
            && one.reads.len() == another.reads.len()
            && one.attributes == another.attributes
    }
}

impl Given {
    fn of(node: NodeProto, placed: &HashMap<String, usize>) -> Self {
        let domain = if node.domain() == "ai.onnx" { "" } else { node.domain() };
        let op = [node.op_type(), domain, node.overload()].map(str::to_owned);
        let reads = node.input.iter().map(|name| placed.get(name.as_str()).copied()).collect();
        let mut attributes = node.attribute;
        attributes.sort_by(|one, other| one.name().cmp(other.name()));
        attributes.iter_mut().for_each(|attribute| attribute.doc_string = None);
        Self { op, attributes, reads }
    }
}

/// Runs models.
pub(super) struct Tracer<'a> {
    pub(super) runtime: &'a dyn Runtime,
    pub(super) spec: SessionSpec,
    /// Sessions that were not freed.
    pub(super) n_left: Cell<usize>,
}

/// Why a model did not run.
#[derive(Debug, displaydoc::Display)]
enum Failed {
    /// {0}
    Run(RuntimeError),
    /// {0}
    Feeds(FeedsError),
    /// {0}
    Other(String),
}

type Values = HashMap<String, TensorBuf>;

impl Trace {
    /// The value of a result of the list.
    pub(super) fn value(&self, at: usize) -> Option<TensorView<'_>> {
        self.held[self.values[at]?].view()
    }

    /// The value of a result of the list that is of a type which torch does not have.
    pub(super) fn exact(&self, at: usize) -> Option<&Exact> {
        if let Held::Exact(exact) = &self.held[self.values[at]?] { Some(exact) } else { None }
    }

    /// Dimensions of a value that was read.
    pub(super) fn dims(&self, at: usize) -> Option<&[i64]> {
        match &self.held[self.values[at]?] {
            Held::Constant(tensor) => Some(tensor.desc.shape.dims()),
            Held::Computed(tensor) => Some(tensor.desc().shape.dims()),
            Held::Exact(exact) => Some(&exact.dims),
        }
    }

    /// The node that gives a result of the list.
    pub(super) fn origin(&self, at: usize) -> Option<Origin<'_>> {
        let &(node, output) = self.given_by.get(&at)?;
        let node = &self.nodes[node];
        Some(Origin { node, output, reads: &node.reads })
    }

    /// What a result is by the provenance.
    pub(super) fn called(&self, result: &RunResult) -> Option<&str> {
        self.called.get(&result.name).map(String::as_str)
    }

    fn hold(&mut self, value: Held) -> usize {
        self.held.push(value);
        self.held.len() - 1
    }

    fn push(&mut self, kind: Kind, name: &str, op_type: &str, value: Option<usize>) {
        let at = self.values.len();
        self.values.push(value);
        let dims = |dims: &[i64]| dims.iter().map(|&dim| Dim::Known(dim)).collect();
        let (tensor, shape) = (self.value(at), self.dims(at).map(dims));
        let result = RunResult {
            kind,
            dtype: tensor.as_ref().map(TensorView::dtype),
            shape,
            signature: tensor.as_ref().map_or_else(|| UNKNOWN.to_owned(), signature),
            op_type: op_type.to_owned(),
            name: name.to_owned(),
        };
        self.results.push(result);
    }
}

impl Serialize for Trace {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let told = serde_json::json!({
            "n_results": self.results.len(), "error": self.error, "not_shown": self.not_shown,
            "bodies_not_compared": self.closed,
        });
        told.serialize(serializer)
    }
}

impl Tracer<'_> {
    /// The trace of a model without functions, its nodes in order, on these feeds: up to the node that fails, if one does.
    /// Of an If the branch that it takes stands before what it gives.
    pub(super) fn trace(&self, mut model: ModelProto, feeds: &[Source]) -> Trace {
        let mut trace = Trace::default();
        let choices = self.open_branches(&mut model, feeds);
        let nodes = || model.graph.iter().flat_map(|graph| &graph.node);
        trace.closed = nodes().filter(|node| onnx::has_bodies(node)).map(described).collect();
        let graph = model.graph.get_or_insert_default();
        let mut places: HashMap<String, usize> = HashMap::new();
        for tensor in &graph.initializer {
            let value = Held::of_constant(tensor).map(|value| trace.hold(value));
            if value.is_none() {
                trace.not_shown.push(format!("{:?}: an initializer of {}", tensor.name(), dtype_text(tensor)));
            }
            places.extend(value.map(|at| (tensor.name().to_owned(), at)));
            trace.push(Kind::Initializer, tensor.name(), "", value);
        }
        for sparse in &graph.sparse_initializer {
            let name = sparse.values.as_ref().map_or("", |values| values.name());
            trace.not_shown.push(format!("sparse initializer {name:?}"));
        }
        for feed in feeds {
            let at = trace.hold(Held::Computed(feed.tensor.clone()));
            places.insert(feed.name.clone(), at);
            trace.push(Kind::Input, &feed.name, "", Some(at));
        }
        let (mut values, n_run) = self.values(&model, feeds, &mut trace);
        let graph = model.graph.get_or_insert_default();
        let mut placed: HashMap<String, usize> = HashMap::new();
        let sources = graph.initializer.iter().map(|tensor| tensor.name());
        let sources = sources.chain(feeds.iter().map(|feed| feed.name.as_str()));
        placed.extend(sources.enumerate().map(|(at, name)| (name.to_owned(), at)));
        for mut node in std::mem::take(&mut graph.node).into_iter().take(n_run) {
            let (outputs, op_type) = (std::mem::take(&mut node.output), node.op_type().to_owned());
            trace.nodes.push(Given::of(node, &placed));
            for (output, name) in outputs.into_iter().enumerate().filter(|(_, name)| !name.is_empty()) {
                let value = values.remove(&name).map(|value| trace.hold(Held::Computed(value)));
                places.extend(value.map(|at| (name.clone(), at)));
                let at = trace.results.len();
                trace.given_by.insert(at, (trace.nodes.len() - 1, output));
                let op_type = if choices.contains(&name) { "If" } else { &op_type };
                trace.push(Kind::Result, &name, op_type, value);
                placed.insert(name, at);
            }
        }
        if trace.error.is_none() {
            for output in &graph.output {
                let value = places.get(output.name()).copied();
                trace.push(Kind::Output, output.name(), "", value);
            }
        }
        trace
    }

    /// Puts the branch that it takes in the place of each If that is reached, also inside such branches. Returns the values
    /// that these gave. Bodies of Loop and Scan, which run several times, stay.
    fn open_branches(&self, model: &mut ModelProto, feeds: &[Source]) -> HashSet<String> {
        let mut given = HashSet::new();
        let is_choice = |node: &NodeProto| node.op_type() == "If" && node.domain().is_empty();
        // Each round opens one or more: there are no more rounds than Ifs.
        while let Some(first) = model.graph.as_ref().and_then(|graph| graph.node.iter().position(is_choice)) {
            let Ok(values) = self.run(model, first, feeds, &mut BTreeSet::new()) else { return given };
            let Some(graph) = &mut model.graph else { return given };
            let n_before = given.len();
            let mut at = first;
            while at < graph.node.len() {
                let taken = is_choice(&graph.node[at]).then(|| condition(graph, at, feeds, &values)).flatten();
                match taken.and_then(|then| onnx::take_branch(graph, at, then)) {
                    Some(place) => given.extend(graph.node[place].iter().flat_map(|node| node.output.clone())),
                    None => at += 1,
                }
            }
            if given.len() == n_before {
                break; // its condition is no value that there is
            }
        }
        given
    }

    /// The values of as many nodes as run, and how many do.
    fn values(&self, model: &ModelProto, feeds: &[Source], trace: &mut Trace) -> (Values, usize) {
        let n_nodes = onnx::count_nodes(model);
        let mut left_out = BTreeSet::new();
        let mut best = match self.run(model, n_nodes, feeds, &mut left_out) {
            Ok(values) => (values, n_nodes),
            Err(_) => {
                let (mut best, mut failing) = ((Values::new(), 0), n_nodes);
                // The first node that fails is between what runs and what does not.
                while best.1 + 1 < failing {
                    let n = usize::midpoint(best.1, failing);
                    match self.run(model, n, feeds, &mut left_out) {
                        Ok(values) => best = (values, n),
                        Err(_) => failing = n,
                    }
                }
                best
            }
        };
        if best.1 < n_nodes {
            // Said last by the model that ends in the node: a larger one may fail elsewhere first.
            match self.run(model, best.1 + 1, feeds, &mut left_out) {
                Ok(values) => best = (values, best.1 + 1),
                Err(error) => {
                    let nodes = model.graph.as_ref().map(|graph| graph.node.as_slice()).unwrap_or_default();
                    trace.error = Some(format!("{}: {error}", described(&nodes[best.1])));
                }
            }
        }
        trace.not_shown.extend(left_out.into_iter().map(|(name, declared)| format!("{name:?}: {declared}")));
        best
    }

    /// The values of the first `n_nodes` nodes, but for those that are no tensors, which are told in `left_out`.
    fn run(
        &self,
        model: &ModelProto,
        n_nodes: usize,
        feeds: &[Source],
        left_out: &mut BTreeSet<(String, String)>,
    ) -> Result<Values, Failed> {
        loop {
            let begin = beginning(model, n_nodes, left_out)?;
            if begin.graph.as_ref().is_none_or(|graph| graph.output.is_empty()) {
                return Ok(Values::new());
            }
            match self.fetch(&begin, feeds) {
                Err(Failed::Run(RuntimeError::UnsupportedValue { kind: "output", name, declared, others }))
                    if left_out.insert((name.clone(), declared.clone())) =>
                {
                    left_out.extend(others);
                }
                done => return done,
            }
        }
    }

    fn fetch(&self, model: &ModelProto, feeds: &[Source]) -> Result<Values, Failed> {
        let encoded = runtime::Model::encode(model);
        let session = self.runtime.build(&encoded, &self.spec).map_err(Failed::Run)?;
        let by_name: HashMap<&str, &Source> = feeds.iter().map(|feed| (feed.name.as_str(), feed)).collect();
        let fed = |name: &str| by_name.get(name).map(|feed| feed.tensor.view());
        let no_feed = |name: &str| Failed::Other(format!("input {name:?} has no feed"));
        let inputs = session.inputs().iter().map(|input| fed(&input.name).ok_or_else(|| no_feed(&input.name)));
        let lease = leased(&inputs.collect::<Result<Vec<_>, _>>()?).map_err(Failed::Feeds)?;
        let (fetched, _) = session.fetch(&lease).map_err(Failed::Run)?;
        let names = session.outputs().iter().map(|output| output.name.to_string());
        let values = names.zip(fetched).collect();
        if encoded.bytes.len() < SMALL_BYTES && self.n_left.get() < MOST_SESSIONS {
            self.n_left.set(self.n_left.get() + 1);
            std::mem::forget(session);
        }
        Ok(values)
    }
}

/// Of an If, where it is known: a constant, a feed, or computed.
fn condition(graph: &GraphProto, at: usize, feeds: &[Source], values: &Values) -> Option<bool> {
    let name = graph.node[at].input.first()?;
    let constant = || {
        let tensor = graph.initializer.iter().find(|tensor| tensor.name() == name)?;
        Some(NamedTensor::from_proto(tensor).ok()?.view().bytes().first().copied())
    };
    let fed = feeds.iter().find(|feed| feed.name == *name).map(|feed| &feed.tensor);
    let byte = match fed.or_else(|| values.get(name)) {
        Some(tensor) => tensor.view().bytes().first().copied(),
        None => constant()?,
    };
    byte.map(|byte| byte != 0)
}

/// The model up to a node, with every value of these nodes an output, and without the constants that none of them reads.
fn beginning(model: &ModelProto, n_nodes: usize, left_out: &BTreeSet<(String, String)>) -> Result<ModelProto, Failed> {
    let whole = model.graph.as_ref().ok_or_else(|| Failed::Other("the model has no graph".to_owned()))?;
    let nodes: Vec<NodeProto> = whole.node[..n_nodes].to_vec();
    let out: HashSet<&str> = left_out.iter().map(|(name, _)| name.as_str()).collect();
    let read = &whole.node[..n_nodes];
    let used: HashSet<&str> = read.iter().flat_map(onnx::uses).collect();
    let names = read.iter().flat_map(|node| &node.output).map(String::as_str);
    let names: Vec<&str> = names.filter(|name| !name.is_empty() && !out.contains(name)).collect();
    let produced: HashSet<&str> = names.iter().copied().collect();
    // What is declared of an output may be wrong of a value inside; the runtime infers it anyway.
    let outputs = whole.output.iter().filter(|output| produced.contains(output.name())).cloned().collect();
    let graph = GraphProto {
        output: outputs,
        initializer: whole.initializer.iter().filter(|tensor| used.contains(tensor.name())).cloned().collect(),
        node: nodes,
        ..GraphProto {
            name: whole.name.clone(),
            input: whole.input.clone(),
            sparse_initializer: whole.sparse_initializer.clone(),
            value_info: whole.value_info.clone(),
            ..GraphProto::default()
        }
    };
    let mut begin = ModelProto {
        ir_version: model.ir_version,
        opset_import: model.opset_import.clone(),
        functions: model.functions.clone(),
        graph: Some(graph),
        ..ModelProto::default()
    };
    expose_intermediates(&mut begin, &names).map_err(|error| Failed::Other(error.to_string()))?;
    Ok(begin)
}

fn dtype_text(tensor: &TensorProto) -> String {
    let known = DataType::try_from(tensor.data_type()).map(|known| known.as_str_name().to_lowercase());
    known.unwrap_or_else(|_| format!("dtype {}", tensor.data_type()))
}

fn described(node: &NodeProto) -> String {
    let first = node.output.iter().find(|name| !name.is_empty()).map_or("", String::as_str);
    let name = if node.name().is_empty() { first } else { node.name() };
    format!("node {name:?} ({})", node.op_type())
}
