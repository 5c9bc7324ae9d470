//! Models cut out of a model: between given values, one node's, or those of many in a row.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::OnnxError;
use super::graph::{constants, describe, order, outputs, producers, shell, sparse_name, types, uses, value_info};
use super::proto::{FunctionProto, GraphProto, ModelProto, NodeProto, ValueInfoProto};
use super::walk::graphs;
use crate::base::ids::ValueName;
use crate::tensor::TensorDesc;

/// Values that stand ready, with what they are.
pub type Feeds<'a> = HashMap<&'a str, &'a TensorDesc>;

/// A model, indexed once so that each piece costs what the piece holds.
#[derive(Debug)]
pub struct Isolator {
    graph: GraphProto,
    /// Without functions.
    shell: ModelProto,
    /// Of the model, for pieces that call one.
    functions: Vec<FunctionProto>,
    /// Value → the node that gives it.
    producers: HashMap<String, usize>,
    /// Node → its place in topological order.
    places: Vec<usize>,
    initializers: HashMap<String, Initializer>,
    /// Input → its place.
    inputs: HashMap<String, usize>,
    named: HashSet<ValueName>,
    /// Values that depend on no input: nodes that are not related may share them.
    fixed: HashSet<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Initializer {
    Dense(usize),
    Sparse(usize),
}

/// Where a value comes from.
enum Source {
    Node(usize),
    Initializer(Initializer),
    Feed,
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

/// Where a walk back from the outputs ends.
struct Ends<'a> {
    /// What it starts from, in errors.
    start: &'static str,
    /// Not beyond these values; nor beyond the model's inputs.
    stops: &'a dyn Fn(&str) -> bool,
    /// It may end at these.
    fed: &'a dyn Fn(&str) -> bool,
    /// What is said where it ends at another: who reads which value.
    missing: fn(String, String) -> OnnxError,
}

/// Values that are run together, in their order, and what their models read.
#[derive(Default)]
struct Group<'a> {
    values: Vec<&'a str>,
    members: HashSet<&'a str>,
    reads: HashSet<&'a str>,
}

impl Group<'_> {
    /// One more value, whose model `reads` these, may join: no value is both computed and read.
    fn takes(&self, value: &str, reads: &[&str]) -> bool {
        !self.reads.contains(value) && !reads.iter().any(|name| self.members.contains(name))
    }
}

/// What a walk back from the outputs met.
#[derive(Default)]
struct Met<'a> {
    /// By their places.
    nodes: BTreeSet<(usize, usize)>,
    initializers: BTreeSet<Initializer>,
    /// Where it ended, by place.
    feeds: BTreeSet<(usize, usize, &'a str)>,
    /// What nodes and initializers give.
    inside: HashSet<&'a str>,
}

/// The model that computes `outputs` from `inputs`: the nodes between them in topological order, with the initializers,
/// opsets and functions they need. An input that was an initializer becomes an input. Types of the new inputs and
/// outputs come from the model where it tells them; a runtime needs those of inputs (see [`value_info`]).
/// Errors: [`OnnxError::NoGraph`], those of [`order`], [`OnnxError::Undefined`] when an output is unknown or needs a
/// graph input that is not among `inputs`.
pub fn cut<S: AsRef<str>>(model: &ModelProto, inputs: &[S], outputs: &[S]) -> Result<ModelProto, OnnxError> {
    let isolator = Isolator::new(model.clone(), &[])?;
    let inputs: Vec<&str> = inputs.iter().map(AsRef::as_ref).collect();
    let outputs: Vec<&str> = outputs.iter().map(AsRef::as_ref).collect();
    let stops: HashSet<&str> = inputs.iter().copied().collect();
    let given = |name: &str| stops.contains(name);
    let missing = |user, value| OnnxError::Undefined { user, value };
    let met = isolator.walk(&outputs, &Ends { start: "the new output", stops: &given, fed: &given, missing })?;
    let types = types(&isolator.graph);
    let info = |name: &&str| types.get(name).map_or_else(|| untyped(name), |&info| info.clone());
    let declared = isolator.graph.value_info.iter().filter(|info| met.inside.contains(info.name()));
    let frame = GraphProto {
        input: inputs.iter().map(info).collect(),
        output: outputs.iter().map(info).collect(),
        value_info: declared.cloned().collect(),
        ..GraphProto::default()
    };
    Ok(isolator.model(&met, frame))
}

/// What `value` is computed from, sorted: the nearest values before it that are among `named` or are inputs of the graph
/// without an initializer. Cutting there gives the nodes behind `value` alone (see [`cut`]). Errors: those of [`order`],
/// [`OnnxError::Undefined`] when there is no such value.
pub fn read_by(graph: &GraphProto, value: &str, named: &HashSet<&str>) -> Result<Vec<String>, OnnxError> {
    let isolator = Isolator::new(ModelProto { graph: Some(graph.clone()), ..ModelProto::default() }, &[])?;
    let stops = |name: &str| name != value && named.contains(name) && !isolator.initializers.contains_key(name);
    let missing = |user, value| OnnxError::Undefined { user, value };
    let ends = Ends { start: "the value to cut at", stops: &stops, fed: &|_| true, missing };
    let met = isolator.walk(&[value], &ends)?;
    let mut found: Vec<String> = met.feeds.iter().map(|&(_, _, name)| name.to_owned()).collect();
    found.sort();
    Ok(found)
}

/// By name only: runtimes infer the type.
fn untyped(name: &str) -> ValueInfoProto {
    ValueInfoProto { name: Some(name.to_owned()), ..ValueInfoProto::default() }
}

impl Isolator {
    /// Over a model whose `named_values` are the places where it may be cut. Errors: [`OnnxError::NoGraph`], those of
    /// [`order`].
    pub fn new(model: ModelProto, named_values: &[ValueName]) -> Result<Self, OnnxError> {
        let mut shell = shell(&model);
        let functions = std::mem::take(&mut shell.functions);
        let graph = model.graph.ok_or(OnnxError::NoGraph)?;
        let order = order(&graph)?;
        let mut places = vec![0; graph.node.len()];
        order.iter().enumerate().for_each(|(place, &at)| places[at] = place);
        let dense = graph.initializer.iter().enumerate().map(|(at, t)| (t.name().to_owned(), Initializer::Dense(at)));
        let sparse = graph
            .sparse_initializer
            .iter()
            .enumerate()
            .map(|(at, s)| (sparse_name(s).to_owned(), Initializer::Sparse(at)));
        Ok(Self {
            shell,
            functions,
            producers: producers(&graph)?.into_iter().map(|(name, at)| (name.to_owned(), at)).collect(),
            places,
            initializers: dense.chain(sparse).collect(),
            inputs: graph.input.iter().enumerate().map(|(at, input)| (input.name().to_owned(), at)).collect(),
            named: named_values.iter().cloned().collect(),
            fixed: fixed(&graph, &order),
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

    /// An input of the model, and no named value.
    pub fn is_input(&self, value: &str) -> bool {
        self.inputs.contains_key(value) && !self.named.contains(value)
    }

    /// The model of one value: the nodes that lead to it from the nearest named values and inputs. Those in `through`,
    /// and those that depend on no input and are not fed, do not count as named. Errors: [`OnnxError::NoFeed`],
    /// [`OnnxError::Undefined`].
    pub fn local(&self, value: &str, through: &HashSet<&str>, feeds: &Feeds<'_>) -> Result<Piece, OnnxError> {
        self.local_to_all(&[value], through, feeds)
    }

    /// Which of these values are better run together: their models, as [`Isolator::local`] cuts them, share nodes that
    /// depend on an input, and none is read by another. Each value is in one group, in their order; one whose model cannot
    /// be cut is alone.
    pub fn share_nodes<'a>(
        &'a self,
        values: &[&'a str],
        through: &HashSet<&str>,
        feeds: &Feeds<'_>,
    ) -> Vec<Vec<&'a str>> {
        let mut groups: Vec<Group<'a>> = Vec::new();
        let mut group_of: HashMap<&str, usize> = HashMap::new();
        for &value in values {
            let met = self.met(&[value], feeds, |name| self.ends_local(name, &[value], through, feeds));
            let Met { nodes, feeds: reads, .. } = met.unwrap_or_default();
            let given = nodes.iter().flat_map(|&(_, at)| outputs(&self.graph.node[at]));
            let given: Vec<&str> = given.filter(|&name| !self.fixed.contains(name)).collect();
            let reads: Vec<&str> = reads.into_iter().map(|(_, _, name)| name).collect();
            let found = given.iter().find_map(|name| group_of.get(name).copied());
            let at = found.filter(|&at| groups[at].takes(value, &reads)).unwrap_or(groups.len());
            if at == groups.len() {
                groups.push(Group::default());
            }
            groups[at].values.push(value);
            groups[at].members.insert(value);
            groups[at].reads.extend(reads);
            for name in given {
                group_of.entry(name).or_insert(at);
            }
        }
        groups.into_iter().map(|group| group.values).collect()
    }

    /// The model of values of one group of [`Isolator::share_nodes`]. Errors: those of [`Isolator::local`].
    pub fn local_to_all(
        &self,
        values: &[&str],
        through: &HashSet<&str>,
        feeds: &Feeds<'_>,
    ) -> Result<Piece, OnnxError> {
        self.piece(values, feeds, feeds, |name| self.ends_local(name, values, through, feeds))
    }

    /// Whether the local model of these values reads this one.
    fn ends_local(&self, name: &str, values: &[&str], through: &HashSet<&str>, feeds: &Feeds<'_>) -> bool {
        let constant = self.fixed.contains(name) && !feeds.contains_key(name);
        !values.contains(&name) && self.is_cut(name) && !constant && !through.contains(name)
    }

    /// The model that computes `wanted` from the feeds. `results`: what is known of those wanted. Errors: as
    /// [`Isolator::local`].
    pub fn segment(&self, wanted: &[&str], results: &Feeds<'_>, feeds: &Feeds<'_>) -> Result<Piece, OnnxError> {
        self.piece(wanted, results, feeds, |name| feeds.contains_key(name))
    }

    fn piece(
        &self,
        wanted: &[&str],
        results: &Feeds<'_>,
        feeds: &Feeds<'_>,
        stops: impl Fn(&str) -> bool,
    ) -> Result<Piece, OnnxError> {
        let met = self.met(wanted, feeds, stops)?;
        // Untyped, a value whose shape the runtime cannot infer is told apart from a scalar by nobody.
        let output = |&name: &&str| results.get(name).map_or_else(|| untyped(name), |desc| value_info(name, desc));
        let inputs: Vec<&str> = met.feeds.iter().map(|&(_, _, name)| name).collect();
        let frame = GraphProto {
            input: inputs.iter().filter_map(|&name| Some(value_info(name, feeds.get(name)?))).collect(),
            output: wanted.iter().map(output).collect(),
            ..GraphProto::default()
        };
        let produced = met.nodes.iter().flat_map(|&(_, at)| &self.graph.node[at].output);
        Ok(Piece {
            model: self.model(&met, frame),
            named_values: produced.filter(|&name| self.named.contains(name)).cloned().collect(),
            inputs: inputs.into_iter().map(str::to_owned).collect(),
            outputs: wanted.iter().map(|&name| name.to_owned()).collect(),
        })
    }

    /// What `wanted` takes of the feeds, and of the nodes between.
    fn met<'a>(
        &'a self,
        wanted: &[&'a str],
        feeds: &Feeds<'_>,
        stops: impl Fn(&str) -> bool,
    ) -> Result<Met<'a>, OnnxError> {
        let missing = |user, value| OnnxError::NoFeed { user, value };
        let fed = |name: &str| feeds.contains_key(name);
        self.walk(wanted, &Ends { start: "the new output", stops: &stops, fed: &fed, missing })
    }

    /// The model of what a walk met. frame: its inputs and outputs, and what is known of other values.
    fn model(&self, met: &Met<'_>, frame: GraphProto) -> ModelProto {
        let node = met.nodes.iter().map(|&(_, at)| self.graph.node[at].clone()).collect();
        let mut graph = GraphProto { name: self.graph.name.clone(), node, ..frame };
        for &initializer in &met.initializers {
            match initializer {
                Initializer::Dense(at) => graph.initializer.push(self.graph.initializer[at].clone()),
                Initializer::Sparse(at) => graph.sparse_initializer.push(self.graph.sparse_initializer[at].clone()),
            }
        }
        let calls = graphs([&graph]).flat_map(|graph| &graph.node).any(|node| self.is_call(node));
        let functions = if calls { self.functions.clone() } else { Vec::new() };
        ModelProto { graph: Some(graph), functions, ..self.shell.clone() }
    }

    fn is_call(&self, node: &NodeProto) -> bool {
        let is = |function: &FunctionProto| function.name() == node.op_type() && function.domain() == node.domain();
        self.functions.iter().any(is)
    }

    fn walk<'a>(&'a self, wanted: &[&'a str], ends: &Ends<'_>) -> Result<Met<'a>, OnnxError> {
        let user =
            |user: Option<usize>| user.map_or_else(|| ends.start.to_owned(), |at| describe(at, &self.graph.node[at]));
        let mut met = Met::default();
        let mut seen = HashSet::new();
        let mut to_visit: Vec<(Option<usize>, &'a str)> = wanted.iter().map(|&name| (None, name)).collect();
        while let Some((reader, value)) = to_visit.pop() {
            if !seen.insert(value) {
                continue;
            }
            let source = if (ends.stops)(value) { Some(Source::Feed) } else { self.source(value) };
            match source {
                Some(Source::Node(at)) => {
                    met.inside.insert(value);
                    if met.nodes.insert((self.places[at], at)) {
                        to_visit.extend(uses(&self.graph.node[at]).into_iter().map(|value| (Some(at), value)));
                    }
                }
                Some(Source::Initializer(initializer)) => {
                    met.inside.insert(value);
                    met.initializers.insert(initializer);
                }
                Some(Source::Feed) if (ends.fed)(value) => {
                    let (place, output) = self.place(value);
                    met.feeds.insert((place, output, value));
                }
                Some(Source::Feed) => return Err((ends.missing)(user(reader), value.to_owned())),
                None => return Err(OnnxError::Undefined { user: user(reader), value: value.to_owned() }),
            }
        }
        Ok(met)
    }

    fn source(&self, value: &str) -> Option<Source> {
        let node = self.producers.get(value).map(|&at| Source::Node(at));
        let initializer = || self.initializers.get(value).map(|&initializer| Source::Initializer(initializer));
        node.or_else(initializer).or_else(|| self.inputs.contains_key(value).then_some(Source::Feed))
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
}

/// Initializers, and what nodes compute from nothing else. order: of the nodes, topological.
fn fixed(graph: &GraphProto, order: &[usize]) -> HashSet<String> {
    let inputs: HashSet<&str> = graph.input.iter().map(ValueInfoProto::name).collect();
    let initializers = constants(graph).into_iter().filter(|name| !inputs.contains(name));
    let mut fixed: HashSet<String> = initializers.map(str::to_owned).collect();
    for &at in order {
        let node = &graph.node[at];
        if uses(node).iter().all(|&value| fixed.contains(value)) {
            fixed.extend(outputs(node).map(str::to_owned));
        }
    }
    fixed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::graph::tests::{chain, names};
    use crate::onnx::proto::{AttributeProto, OperatorSetIdProto, TensorProto};
    use crate::tensor::DType;
    use proptest::prelude::*;

    fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
        let own = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        NodeProto { op_type: Some(op.into()), input: own(inputs), output: own(outputs), ..Default::default() }
    }

    fn desc() -> TensorDesc {
        TensorDesc::new(DType::F32, [2, 3]).unwrap()
    }

    fn info(name: &str) -> ValueInfoProto {
        ValueInfoProto { name: Some(name.into()), ..Default::default() }
    }

    fn typed(name: &str) -> ValueInfoProto {
        value_info(name, &TensorDesc::new(DType::F32, [2]).unwrap())
    }

    fn constant(name: &str) -> TensorProto {
        TensorProto { name: Some(name.into()), ..Default::default() }
    }

    /// s is an inner value of b; p and q are two outputs of one node; body takes s and w from outside.
    fn model() -> ModelProto {
        let body = GraphProto {
            node: vec![node("Add", &["s", "w"], &["inner"])],
            output: vec![info("inner")],
            ..Default::default()
        };
        let mut branch = node("If", &["flag"], &["branch"]);
        branch.attribute = vec![AttributeProto { g: Some(body), ..Default::default() }];
        let graph = GraphProto {
            input: vec![info("x"), info("flag")],
            initializer: vec![constant("w"), constant("v")],
            node: vec![
                node("Mul", &["x", "w"], &["a"]),
                node("Neg", &["a"], &["s"]),
                node("Add", &["s", "w"], &["b"]),
                node("Split", &["b"], &["p", "q"]),
                node("Sub", &["q", "p"], &["c"]),
                branch,
                node("Relu", &["branch"], &["d"]),
            ],
            output: vec![info("d")],
            ..Default::default()
        };
        let opset = OperatorSetIdProto { version: Some(18), ..Default::default() };
        ModelProto { graph: Some(graph), opset_import: vec![opset], ..Default::default() }
    }

    fn isolator() -> Isolator {
        Isolator::new(model(), &["a", "b", "p", "q", "c", "branch", "d"].map(str::to_owned)).unwrap()
    }

    fn ops(piece: &Piece) -> Vec<&str> {
        piece.model.graph.as_ref().unwrap().node.iter().map(NodeProto::op_type).collect()
    }

    fn constants(piece: &Piece) -> Vec<&str> {
        piece.model.graph.as_ref().unwrap().initializer.iter().map(|tensor| tensor.name()).collect()
    }

    const ALL: [&str; 9] = ["x", "flag", "a", "b", "p", "q", "c", "branch", "d"];

    fn local(value: &str) -> Piece {
        let desc = desc();
        isolator().local(value, &HashSet::new(), &ALL.map(|name| (name, &desc)).into()).unwrap()
    }

    #[test]
    fn a_local_model_reaches_back_to_the_nearest_named_values() {
        for (value, expected_ops, inputs, initializers) in [
            ("a", &["Mul"][..], &["x"][..], &["w"][..]),
            ("b", &["Neg", "Add"], &["a"], &["w"]),
            ("p", &["Split"], &["b"], &[]),
            ("q", &["Split"], &["b"], &[]),
            ("c", &["Sub"], &["p", "q"], &[]),
            ("branch", &["Neg", "If"], &["flag", "a"], &["w"]),
            ("d", &["Relu"], &["branch"], &[]),
        ] {
            let piece = local(value);
            assert_eq!((ops(&piece), constants(&piece)), (expected_ops.to_vec(), initializers.to_vec()), "{value}");
            assert!(piece.inputs.iter().eq(inputs) && piece.outputs == [value], "{value}: {:?}", piece.inputs);
            let graph = piece.model.graph.as_ref().unwrap();
            let typed: Vec<_> = inputs.iter().map(|name| value_info(name, &desc())).collect();
            assert_eq!(graph.input, typed, "{value}");
            assert_eq!(piece.model.opset_import.len(), 1);
            order(graph).unwrap();
        }
        assert_eq!(local("p").named_values, ["p", "q"]);
    }

    #[test]
    fn values_that_share_nodes_and_do_not_read_each_other_run_together() {
        let (isolator, desc, through) = (isolator(), desc(), HashSet::new());
        let feeds: Feeds<'_> = ALL.map(|name| (name, &desc)).into();
        let groups = isolator.share_nodes(&["a", "b", "p", "q", "c", "branch", "d"], &through, &feeds);
        assert_eq!(groups, [vec!["a"], vec!["b", "branch"], vec!["p", "q"], vec!["c"], vec!["d"]]);
        let piece = isolator.local_to_all(&groups[1], &through, &feeds).unwrap();
        assert_eq!(
            (ops(&piece), piece.outputs.as_slice()),
            (vec!["Neg", "Add", "If"], &["b", "branch"].map(str::to_owned)[..])
        );
        // s, which has no name, is read by both; b is read by one.
        let mut model = model();
        model.graph.as_mut().unwrap().node.push(node("Mul", &["s", "b"], &["e"]));
        let isolator = Isolator::new(model, &["a", "b", "e"].map(str::to_owned)).unwrap();
        assert_eq!(isolator.share_nodes(&["b", "e"], &through, &feeds), [["b"], ["e"]]);
        assert_eq!(isolator.share_nodes(&["e", "b"], &through, &feeds), [["e"], ["b"]]);
        assert_eq!(isolator.share_nodes(&["unknown", "b"], &through, &feeds), [["unknown"], ["b"]]);
    }

    #[test]
    fn a_value_that_is_an_input_passes_through() {
        let piece = local("x");
        assert_eq!((ops(&piece).len(), piece.inputs, piece.outputs), (0, vec!["x".to_owned()], vec!["x".to_owned()]));
    }

    #[test]
    fn a_named_value_without_a_reference_is_walked_through() {
        let (isolator, desc) = (isolator(), desc());
        let feeds: Feeds<'_> = [("x", &desc)].into();
        let piece = isolator.local("b", &["a"].into(), &feeds).unwrap();
        assert_eq!((ops(&piece), piece.inputs.as_slice()), (vec!["Mul", "Neg", "Add"], &["x".to_owned()][..]));
        let text = isolator.local("b", &HashSet::new(), &feeds).unwrap_err().to_string();
        assert_eq!(text, "node 1 (Neg \"s\") reads value \"a\", which is not among the feeds; send it as one");
    }

    /// The exporter writes equal constants once: a node may use one that carries the name of a node it does not follow.
    #[test]
    fn a_constant_under_another_nodes_name_needs_no_feed() {
        let mut model = model();
        let graph = model.graph.as_mut().unwrap();
        graph.node.insert(0, node("Neg", &["w"], &["one"]));
        graph.node.push(node("Add", &["d", "one"], &["e"]));
        let isolator = Isolator::new(model, &["d", "one", "e"].map(str::to_owned)).unwrap();
        let desc = desc();
        for (feeds, expected) in [(&["d"][..], &["Neg", "Add"][..]), (&["one", "d"], &["Add"])] {
            let piece =
                isolator.local("e", &HashSet::new(), &feeds.iter().map(|&name| (name, &desc)).collect()).unwrap();
            assert_eq!(ops(&piece), expected);
            assert!(piece.inputs.iter().eq(feeds), "{:?}", piece.inputs);
        }
    }

    #[test]
    fn a_segment_reads_the_feeds_that_it_needs() {
        let (isolator, desc) = (isolator(), desc());
        let feeds: Feeds<'_> = [("x", &desc), ("a", &desc)].into();
        let piece = isolator.segment(&["c", "b"], &feeds, &feeds).unwrap();
        assert_eq!(ops(&piece), ["Neg", "Add", "Split", "Sub"]);
        assert_eq!((piece.inputs, piece.outputs), (vec!["a".to_owned()], vec!["c".to_owned(), "b".to_owned()]));
        let text = isolator.segment(&["d"], &feeds, &feeds).unwrap_err().to_string();
        assert!(text.contains("node 5 (If \"branch\") reads value \"flag\""), "{text}");
        let text = isolator.segment(&["nothing"], &feeds, &feeds).unwrap_err().to_string();
        assert!(text.contains("the new output needs value \"nothing\""), "{text}");
        assert!(matches!(Isolator::new(ModelProto::default(), &[]), Err(OnnxError::NoGraph)));
    }

    #[test]
    fn a_value_is_read_from_the_nearest_named_ones() {
        let graph = GraphProto {
            node: vec![
                node("Neg", &["x"], &["a"]),
                node("Mul", &["a", "w"], &["hidden"]),
                node("Add", &["hidden", "x"], &["b"]),
            ],
            input: vec![typed("x"), typed("unused")],
            initializer: vec![TensorProto { name: Some("w".into()), ..Default::default() }],
            ..Default::default()
        };
        let named = HashSet::from(["a", "b"]);
        assert_eq!(read_by(&graph, "b", &named).unwrap(), ["a", "x"]);
        assert_eq!(read_by(&graph, "a", &named).unwrap(), ["x"]);
        assert_eq!(read_by(&graph, "hidden", &named).unwrap(), ["a"]);
        assert!(matches!(read_by(&graph, "c", &named), Err(OnnxError::Undefined { .. })));
    }

    #[test]
    fn cutting_keeps_what_lies_between() {
        let part = cut(&chain(), &["a", "x"], &["c"]).unwrap().graph.unwrap();
        assert_eq!(part.node.iter().map(NodeProto::op_type).collect::<Vec<_>>(), ["Relu", "Add"]);
        assert_eq!((names(&part.input), names(&part.output)), (vec!["a", "x"], vec!["c"]));
        assert!(part.input[0].r#type.is_some() && part.initializer.is_empty());
        let part = cut(&chain(), &["x"], &["d"]).unwrap().graph.unwrap();
        assert_eq!(part.initializer.iter().map(|tensor| tensor.name()).collect::<Vec<_>>(), ["w"]);
        let text = cut(&chain(), &["a"], &["c"]).unwrap_err().to_string();
        assert!(text.contains("node 2 (Add \"c\") needs value \"x\""), "{text}");
        assert!(cut(&chain(), &["x"], &["nothing"]).is_err());
        assert!(matches!(cut(&ModelProto::default(), &["x"], &["y"]), Err(OnnxError::NoGraph)));
    }

    proptest! {
        /// Running all local models one after the other runs every node that leads to a named value, and reads nothing
        /// that was not fed or computed before.
        #[test]
        fn local_models_cover_a_graph(edges in proptest::collection::vec((0_usize..15, 0_usize..15), 0..40), named in any::<u16>()) {
            let name = |i: usize| format!("v{i}");
            let mut nodes: Vec<NodeProto> = (0..15).map(|i| node("Op", &["x"], &[&name(i)])).collect();
            edges.iter().filter(|(from, to)| from < to).for_each(|&(from, to)| nodes[to].input.push(name(from)));
            let graph = GraphProto { input: vec![info("x")], node: nodes, ..Default::default() };
            let names: Vec<String> = (0..15).filter(|i| named >> i & 1 == 1).map(name).collect();
            let isolator = Isolator::new(ModelProto { graph: Some(graph), ..Default::default() }, &names).unwrap();
            let desc = desc();
            let mut feeds: Feeds<'_> = [("x", &desc)].into();
            for value in &names {
                let piece = isolator.local(value, &HashSet::new(), &feeds).unwrap();
                prop_assert_eq!(&piece.named_values, std::slice::from_ref(value));
                order(piece.model.graph.as_ref().unwrap()).unwrap();
                feeds.insert(value, &desc);
            }
        }
    }
}
