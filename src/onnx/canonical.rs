//! Pieces of a model under names of their own making: pieces of equal nodes are equal then, as those of a model's layers are,
//! and several pieces are one model, whatever their values are called.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use super::attention::drop_uncalled;
use super::cut::Piece;
use super::proto::{GraphProto, ModelProto, NodeProto, ValueInfoProto};
use super::walk::bodies_mut;
use crate::base::ids::ValueName;

/// Pieces as one model, in which `%0%`, `%1%`, … stand for names, in the order in which they come.
#[derive(Clone, Debug, PartialEq)]
pub struct Canonical {
    /// The model. What is written down for people is not in it, nor are functions of ours that no node calls.
    pub model: ModelProto,
    /// What the numbers stand for: of values and nodes. Those of several pieces may have one name.
    pub names: Vec<String>,
    /// Names of its inputs, as they were.
    pub inputs: Vec<ValueName>,
    /// Those of its named values, as they are in it.
    pub named_values: Vec<ValueName>,
}

/// Names on their way. Feeds are the same values in all pieces, anything else is one piece's own.
#[derive(Default)]
struct Names {
    numbers: HashMap<(Option<usize>, String), usize>,
    names: Vec<String>,
}

/// Of one piece.
struct Scope<'a> {
    of: &'a mut Names,
    piece: usize,
    feeds: HashSet<ValueName>,
}

impl Canonical {
    /// Of pieces of one model; there is one at least. Their outputs come one after the other.
    pub fn of(pieces: Vec<Piece>) -> Self {
        let mut names = Names::default();
        let (mut whole, mut graph) = (ModelProto::default(), GraphProto::default());
        let (mut inputs, mut named_values) = (Vec::new(), Vec::new());
        let mut fed = HashSet::new();
        for (index, piece) in pieces.into_iter().enumerate() {
            let Piece { mut model, inputs: feeds, named_values: named, .. } = piece;
            let Some(mut own) = model.graph.take() else { continue };
            let mut scope = Scope { of: &mut names, piece: index, feeds: feeds.iter().cloned().collect() };
            scope.graph(&mut own);
            named_values.extend(named.into_iter().map(|mut name| {
                scope.rename(&mut name);
                name
            }));
            let new = feeds.iter().map(|name| fed.insert(name.clone())).collect::<Vec<_>>();
            graph.input.extend(own.input.into_iter().zip(&new).filter(|(_, new)| **new).map(|(info, _)| info));
            inputs.extend(feeds.into_iter().zip(&new).filter(|(_, new)| **new).map(|(name, _)| name));
            graph.output.append(&mut own.output);
            graph.node.append(&mut own.node);
            graph.initializer.append(&mut own.initializer);
            graph.sparse_initializer.append(&mut own.sparse_initializer);
            if index == 0 {
                whole = model;
            }
        }
        // In the order of their first use, whatever the model's inputs are among them.
        let mut fed: Vec<_> = graph.input.into_iter().zip(inputs).collect();
        fed.sort_by_key(|(info, _)| number(info.name()));
        let (input, inputs) = fed.into_iter().unzip();
        graph = GraphProto { input, name: Some("piece".to_owned()), ..graph };
        whole.graph = Some(graph);
        drop_uncalled(&mut whole);
        Self { model: whole, names: names.names, inputs, named_values }
    }

    /// A model of [`Canonical::of`] with the names that it was made of.
    pub fn named(mut model: ModelProto, names: &[String]) -> ModelProto {
        if let Some(graph) = &mut model.graph {
            each_name(graph, &mut |name| {
                if let Some(known) = number(name).and_then(|number| names.get(number)) {
                    name.clone_from(known);
                }
            });
        }
        model
    }

    /// A text that speaks of such a model, with the names that it was made of.
    pub fn named_text(text: &str, names: &[String]) -> String {
        let mut named = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find(MARK) {
            let (before, from) = rest.split_at(at);
            named.push_str(before);
            let end = from[1..].find(MARK).map(|end| end + 2);
            let known = end.and_then(|end| Some((names.get(number(&from[..end])?)?, end)));
            match known {
                Some((name, end)) => {
                    named.push_str(name);
                    rest = &from[end..];
                }
                None => {
                    named.push(MARK);
                    rest = &from[1..];
                }
            }
        }
        named + rest
    }
}

const MARK: char = '%';

fn number(name: &str) -> Option<usize> {
    let digits = name.strip_prefix(MARK)?.strip_suffix(MARK)?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

impl Scope<'_> {
    fn graph(&mut self, graph: &mut GraphProto) {
        without_remarks(graph);
        each_name(graph, &mut |name| self.rename(name));
    }

    fn rename(&mut self, name: &mut String) {
        if name.is_empty() {
            return;
        }
        let scope = if self.feeds.contains(name.as_str()) { None } else { Some(self.piece) };
        let Names { numbers, names } = &mut *self.of;
        let known = numbers.entry((scope, std::mem::take(name)));
        let number = *known.or_insert_with_key(|(_, name)| {
            names.push(name.clone());
            names.len() - 1
        });
        let _ = write!(name, "{MARK}{number}{MARK}");
    }
}

/// Every name of a value or a node, those in bodies too, in an order that equal graphs share.
fn each_name(graph: &mut GraphProto, rename: &mut dyn FnMut(&mut String)) {
    fn info(info: &mut ValueInfoProto, rename: &mut dyn FnMut(&mut String)) {
        info.name.iter_mut().for_each(rename);
    }
    for node in &mut graph.node {
        node.input.iter_mut().chain(&mut node.output).chain(&mut node.name).for_each(&mut *rename);
        bodies_mut(node).for_each(|body| each_name(body, rename));
    }
    graph.initializer.iter_mut().filter_map(|tensor| tensor.name.as_mut()).for_each(&mut *rename);
    let sparse = graph.sparse_initializer.iter_mut().filter_map(|sparse| sparse.values.as_mut());
    sparse.filter_map(|values| values.name.as_mut()).for_each(&mut *rename);
    let infos = graph.input.iter_mut().chain(&mut graph.output).chain(&mut graph.value_info);
    infos.for_each(|value| info(value, rename));
}

/// Leaves out what says where nodes come from, and what nothing computes with.
fn without_remarks(graph: &mut GraphProto) {
    let GraphProto { doc_string, metadata_props, quantization_annotation, .. } = graph;
    *doc_string = None;
    metadata_props.clear();
    quantization_annotation.clear();
    for info in graph.input.iter_mut().chain(&mut graph.output).chain(&mut graph.value_info) {
        info.doc_string = None;
        info.metadata_props.clear();
    }
    for node in &mut graph.node {
        let NodeProto { doc_string, metadata_props, .. } = node;
        *doc_string = None;
        metadata_props.clear();
        bodies_mut(node).for_each(without_remarks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::proto::{AttributeProto, TensorProto};

    fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
        let own = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        NodeProto {
            op_type: Some(op.into()),
            name: Some(format!("node_{}", outputs[0])),
            input: own(inputs),
            output: own(outputs),
            ..Default::default()
        }
    }

    fn info(name: &str) -> ValueInfoProto {
        ValueInfoProto { name: Some(name.into()), ..Default::default() }
    }

    /// `x`, and a constant under another name, into `y` by way of `hidden`; a body reads all three.
    fn piece(x: &str, constant: &str, hidden: &str, y: &str) -> Piece {
        let body = GraphProto {
            node: vec![node("Add", &[x, constant], &["inner"]), node("Add", &["inner", hidden], &["last"])],
            output: vec![info("last")],
            ..Default::default()
        };
        let mut branch = node("If", &[hidden, ""], &[y]);
        branch.attribute = vec![AttributeProto { g: Some(body), ..Default::default() }];
        branch.doc_string = Some(format!("made of {x}"));
        let graph = GraphProto {
            name: Some("main".into()),
            input: vec![info(x)],
            node: vec![node("Cast", &[x], &[hidden]), branch],
            initializer: vec![TensorProto { name: Some(constant.into()), ..Default::default() }],
            output: vec![info(y)],
            ..Default::default()
        };
        Piece {
            model: ModelProto { graph: Some(graph), ..Default::default() },
            inputs: vec![x.into()],
            outputs: vec![y.into()],
            named_values: vec![hidden.into(), y.into()],
        }
    }

    #[test]
    fn pieces_of_equal_nodes_are_equal() {
        let [one, other] = [piece("x", "one", "a", "b"), piece("b", "two", "c", "d")].map(|it| Canonical::of(vec![it]));
        assert_eq!(one.model, other.model);
        let two = |first: &str, second: &str, inputs: [&str; 2]| {
            let graph = GraphProto {
                input: inputs.iter().map(|name| info(name)).collect(),
                node: vec![node("Sub", &[first, second], &["y"])],
                output: vec![info("y")],
                ..Default::default()
            };
            let inputs = inputs.map(str::to_owned).to_vec();
            let (outputs, named_values) = (vec!["y".to_owned()], Vec::new());
            Canonical::of(vec![Piece {
                model: ModelProto { graph: Some(graph), ..Default::default() },
                inputs,
                outputs,
                named_values,
            }])
        };
        let [given, turned] = [two("a", "b", ["a", "b"]), two("d", "c", ["c", "d"])];
        assert_eq!((given.model, turned.inputs.as_slice()), (turned.model, &["d".to_owned(), "c".to_owned()][..]));
        assert_eq!((&one.named_values, one.inputs), (&other.named_values, vec!["x".to_owned()]));
        assert_ne!(one.names, other.names);
        let swapped = Canonical::of(vec![piece("x", "one", "one", "b")]);
        assert_ne!(one.model, swapped.model, "a value that is another one");
    }

    #[test]
    fn the_names_come_back() {
        let given = piece("x", "one", "a", "b");
        let Canonical { model, names, .. } = Canonical::of(vec![given.clone()]);
        let named = Canonical::named(model, &names).graph.unwrap();
        let expected = given.model.graph.unwrap();
        assert_eq!(named.input, expected.input);
        assert_eq!(named.node[0], expected.node[0]);
        assert_eq!(named.node[1].attribute, expected.node[1].attribute);
        assert_eq!((named.initializer, named.output), (expected.initializer, expected.output));
        let text = Canonical::named_text("node %2% gives %1%, 5% of %99%, %x% %", &names);
        assert_eq!(text, format!("node {} gives {}, 5% of %99%, %x% %", names[2], names[1]));
    }

    #[test]
    fn several_pieces_are_one_model_that_reads_each_feed_once() {
        let pieces = vec![piece("x", "one", "a", "b"), piece("b", "one", "a", "c"), piece("x", "one", "a", "d")];
        let Canonical { model, names, inputs, named_values } = Canonical::of(pieces);
        let graph = model.graph.unwrap();
        assert_eq!(inputs, ["x", "b"]);
        assert_eq!((graph.input.len(), graph.output.len(), graph.node.len(), graph.initializer.len()), (2, 3, 6, 3));
        assert_eq!(named_values.len(), 6);
        // What the first piece gives as `b` is not what the second reads as such.
        assert_ne!(graph.output[0].name, graph.input[1].name);
        assert_eq!(graph.node[2].input[0], graph.input[1].name());
        let outputs: Vec<&str> = graph.node.iter().flat_map(|node| &node.output).map(String::as_str).collect();
        assert_eq!(outputs.iter().collect::<HashSet<_>>().len(), 6, "each is given once");
        assert_eq!(names.iter().filter(|name| *name == "a").count(), 3);
    }

    #[test]
    fn an_input_that_passes_through_stays_one_value() {
        let graph = GraphProto { input: vec![info("x")], output: vec![info("x")], ..Default::default() };
        let piece = Piece {
            model: ModelProto { graph: Some(graph), ..Default::default() },
            inputs: vec!["x".into()],
            outputs: vec!["x".into()],
            named_values: Vec::new(),
        };
        let graph = Canonical::of(vec![piece]).model.graph.unwrap();
        assert_eq!(graph.input, graph.output);
    }
}
