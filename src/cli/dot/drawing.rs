//! What is drawn of a model: boxes in program order, lines from who gives a value to who reads it, modules.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use super::escape::{short, short_start};
use super::marks::Marks;
use super::modules;
use crate::cli::node_table::Mark;
use crate::cli::provenance::Provenance;
use crate::cli::table;
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto, ValueInfoProto};
use crate::onnx::{self, OnnxError};

/// Characters of a name from a dump.
const MOST_TOLD: usize = 300;

/// One box.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Shown {
    /// Operator, or "input".
    pub(super) op: String,
    /// The first value that it gives.
    pub(super) name: String,
    /// All that there is to tell, some lines.
    pub(super) detail: String,
    /// Path of the module, or empty.
    pub(super) module: String,
    /// The described value that a node is there for, or empty; of an input its name.
    pub(super) of: String,
    pub(super) mark: Option<Mark>,
    pub(super) is_input: bool,
    /// It gives an output of the graph.
    pub(super) is_output: bool,
    /// What the box of a module holds; of nodes and inputs None.
    pub(super) inside: Option<Inside>,
}

/// Nodes of one module that are one box.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Inside {
    pub(super) n_nodes: usize,
    /// Operators with their counts, the most first.
    pub(super) ops: Vec<(String, usize)>,
    /// How many of the nodes have each mark.
    pub(super) marks: BTreeMap<Mark, usize>,
    /// Modules within it have boxes of their own.
    pub(super) is_own: bool,
    /// Which box of how many the module has.
    pub(super) part: (usize, usize),
}

impl Shown {
    /// The first line in so many columns. One's own domain of an operator gives way to its name, the beginning of a
    /// module's path to its end.
    pub(super) fn label(&self, columns: usize) -> String {
        if let Some(inside) = &self.inside {
            let suffix = inside.suffix();
            return short_start(&self.name, columns.saturating_sub(table::columns(&suffix))) + &suffix;
        }
        let name = self.op.rsplit("::").next().filter(|_| table::columns(&self.op) > columns);
        short(name.unwrap_or(&self.op), columns)
    }

    /// The second line in so many columns: the value, or what a module holds.
    pub(super) fn second_line(&self, columns: usize) -> String {
        match &self.inside {
            Some(inside) => table::cut(&short(&inside.summary(&self.op), 4 * columns), columns),
            None => short(&self.name, columns),
        }
    }
}

impl Inside {
    /// "57 nodes: 12 MatMul, 9 Add"; where its class is known "LlamaAttention: 57 nodes"; of one node its operator.
    fn summary(&self, class: &str) -> String {
        match (class, self.ops.as_slice()) {
            (_, [(op, 1)]) => op.clone(),
            ("", _) => format!("{}: {}", count(self.n_nodes, "node"), self.operators()),
            (class, _) => format!("{class}: {}", count(self.n_nodes, "node")),
        }
    }

    /// What stands behind the module's path.
    fn suffix(&self) -> String {
        let own = if self.is_own { " (own)" } else { "" };
        let (part, of) = self.part;
        if of > 1 { format!("{own} {part}/{of}") } else { own.to_owned() }
    }

    /// "12 MatMul, 9 Add".
    pub(super) fn operators(&self) -> String {
        self.ops.iter().map(|(op, n)| format!("{n} {op}")).collect::<Vec<_>>().join(", ")
    }
}

/// "1 node", "2 nodes".
pub(super) fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Values on their way. Places of boxes: `from` stands before `to`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Edge {
    pub(super) from: usize,
    pub(super) to: usize,
    /// Their names, each once.
    pub(super) values: Vec<String>,
}

impl Edge {
    /// Whether it goes from or to the box of a module, which does not tell its values.
    pub(super) fn is_of_module(&self, drawing: &Drawing) -> bool {
        [self.from, self.to].iter().any(|&at| drawing.boxes[at].inside.is_some())
    }

    /// "to model.norm: add_3, mul".
    pub(super) fn told(&self, drawing: &Drawing) -> String {
        format!("to {}: {}", told(&drawing.boxes[self.to].name), self.values.join(", "))
    }
}

/// Boxes in program order.
#[derive(Debug, Default)]
pub(super) struct Drawing {
    pub(super) title: String,
    pub(super) boxes: Vec<Shown>,
    /// By reader, each pair once, in the order of the reader's inputs.
    pub(super) edges: Vec<Edge>,
    /// Initializers, parameters, constants, and what is made of these alone and is right.
    pub(super) not_drawn: usize,
    /// Classes of modules by their paths, as far as the model tells.
    pub(super) classes: HashMap<String, String>,
}

impl Drawing {
    /// Boxes that stand together and are of one module.
    pub(super) fn runs(&self) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for (at, shown) in self.boxes.iter().enumerate() {
            match runs.last_mut() {
                Some(run) if self.boxes[run.start].module == shown.module => run.end = at + 1,
                _ => runs.push(at..at + 1),
            }
        }
        runs
    }

    /// How many nodes have each mark, those that a module's box holds among them.
    pub(super) fn counts(&self) -> BTreeMap<Mark, usize> {
        let mut counts = BTreeMap::new();
        for shown in &self.boxes {
            match (&shown.inside, shown.mark) {
                (Some(inside), _) => inside.marks.iter().for_each(|(mark, n)| *counts.entry(*mark).or_default() += n),
                (None, Some(mark)) => *counts.entry(mark).or_default() += 1,
                (None, None) => {}
            }
        }
        counts
    }

    /// Boxes of one node each.
    pub(super) fn n_nodes(&self) -> usize {
        self.boxes.iter().filter(|shown| !shown.is_input && shown.inside.is_none()).count()
    }
}

/// What is drawn of the main graph. Nodes that are not in an order that could run are drawn as they stand, without the
/// lines that would go up. Errors: [`OnnxError::NoGraph`].
pub(super) fn drawing(model: &ModelProto, known: &Provenance, marks: &Marks) -> Result<Drawing, OnnxError> {
    let graph = model.graph.as_ref().ok_or(OnnxError::NoGraph)?;
    let order = onnx::order(graph).unwrap_or_else(|_| (0..graph.node.len()).collect());
    let nodes: Vec<&NodeProto> = order.iter().map(|&at| &graph.node[at]).collect();
    let owners = onnx::node_owners(graph, &known.values).unwrap_or_else(|_| vec![None; graph.node.len()]);
    let owners: Vec<Option<&str>> = order.iter().map(|&at| owners[at]).collect();
    let mut sketch = Sketch::new(graph, known, marks);
    for (node, owner) in nodes.into_iter().zip(owners) {
        sketch.node(node, owner);
    }
    let Sketch { boxes, edges, constants, classes, .. } = sketch;
    Ok(Drawing { title: graph.name().to_owned(), boxes, edges, not_drawn: constants.len(), classes })
}

struct Sketch<'a> {
    known: &'a Provenance,
    marks: &'a Marks,
    inputs: HashMap<&'a str, &'a ValueInfoProto>,
    outputs: HashSet<&'a str>,
    types: HashMap<&'a str, &'a ValueInfoProto>,
    /// Names of what is not drawn.
    constants: HashSet<&'a str>,
    classes: HashMap<String, String>,
    /// Value → place of the box that gives it.
    places: HashMap<&'a str, usize>,
    boxes: Vec<Shown>,
    edges: Vec<Edge>,
}

impl<'a> Sketch<'a> {
    fn new(graph: &'a GraphProto, known: &'a Provenance, marks: &'a Marks) -> Self {
        let sparse = graph.sparse_initializer.iter().filter_map(|sparse| Some(sparse.values.as_ref()?.name()));
        let parameters = graph.input.iter().map(|info| info.name()).filter(|name| known.parameters.contains(*name));
        let initializers = graph.initializer.iter().map(|tensor| tensor.name());
        let infos = graph.value_info.iter().chain(&graph.output).chain(&graph.input);
        Self {
            known,
            marks,
            inputs: graph.input.iter().map(|info| (info.name(), info)).collect(),
            outputs: graph.output.iter().map(|info| info.name()).collect(),
            types: infos.map(|info| (info.name(), info)).collect(),
            constants: initializers.chain(sparse).chain(parameters).collect(),
            classes: HashMap::new(),
            places: HashMap::new(),
            boxes: Vec::new(),
            edges: Vec::new(),
        }
    }

    fn node(&mut self, node: &'a NodeProto, owner: Option<&str>) {
        let given = || node.output.iter().map(String::as_str).filter(|name| !name.is_empty());
        let described = owner.and_then(|value| self.known.values.get(value));
        let module = described.map_or_else(|| self.module_of_metadata(node), |described| told(&described.module));
        let own_mark = self.marks.of(given());
        let mark = own_mark.or_else(|| self.marks.of(owner));
        // Once each, in the node's order; then what its bodies take from outside.
        let reads = onnx::uses(node);
        let is_output = given().any(|name| self.outputs.contains(name));
        let is_constant = match reads.is_empty() {
            true => node.op_type() == "Constant",
            false => reads.iter().all(|name| self.constants.contains(name)),
        };
        if is_constant && !is_output && own_mark.is_none_or(|mark| mark == Mark::Match) {
            self.constants.extend(given());
            return;
        }
        let mut read: Vec<&'a str> = Vec::with_capacity(reads.len());
        let mut met = HashSet::new();
        read.extend(node.input.iter().map(String::as_str).filter(|name| reads.contains(name) && met.insert(*name)));
        read.extend(reads.into_iter().filter(|name| met.insert(*name)));
        // An input stands before the first who reads it, so that its line is short.
        for &name in &read {
            self.input(name);
        }
        let at = self.boxes.len();
        let mut lines: HashMap<usize, usize> = HashMap::new();
        for &name in &read {
            let Some(&from) = self.places.get(name) else { continue };
            let line = *lines.entry(from).or_insert(self.edges.len());
            if line == self.edges.len() {
                self.edges.push(Edge { from, to: at, values: Vec::new() });
            }
            self.edges[line].values.push(name.to_owned());
        }
        self.places.extend(given().map(|name| (name, at)));
        let domain = if matches!(node.domain(), "" | "ai.onnx") { "" } else { node.domain() };
        let op = if domain.is_empty() { node.op_type().to_owned() } else { format!("{domain}::{}", node.op_type()) };
        let detail = self.detail(node, &op, described, (&module, mark));
        let name = given().next().unwrap_or(node.name()).to_owned();
        let of = owner.unwrap_or_default().to_owned();
        self.boxes.push(Shown { detail, name, op, module, of, mark, is_input: false, is_output, inside: None });
    }

    /// As what wrote the model tells, where no dump does.
    fn module_of_metadata(&mut self, node: &NodeProto) -> String {
        let Some(scopes) = modules::scopes(node) else { return String::new() };
        for (path, class) in &scopes {
            if !class.is_empty() && !self.classes.contains_key(path.as_str()) {
                self.classes.insert(told(path), told(class));
            }
        }
        scopes.last().map_or_else(String::new, |(path, _)| told(path))
    }

    /// A box of an input that is read first here. It is of no module: its caller gives it.
    fn input(&mut self, name: &'a str) {
        let Some(info) = self.inputs.get(name) else { return };
        if self.constants.contains(name) || self.places.contains_key(name) {
            return;
        }
        self.places.insert(name, self.boxes.len());
        self.boxes.push(Shown {
            op: "input".to_owned(),
            name: self.known.calls.get(name).map_or(name, String::as_str).to_owned(),
            detail: format!("input {name}: {}", onnx::type_text(info.r#type.as_ref())),
            of: name.to_owned(),
            is_input: true,
            is_output: self.outputs.contains(name),
            ..Shown::default()
        });
    }

    /// A value's type stands in the box of the first who gives it.
    fn detail(
        &mut self,
        node: &NodeProto,
        op: &str,
        of: Option<&onnx::Described>,
        (module, mark): (&str, Option<Mark>),
    ) -> String {
        let typed = |name: &String| {
            let info = self.types.remove(name.as_str());
            format!("{name}: {}", onnx::type_text(info.and_then(|info| info.r#type.as_ref())))
        };
        let outputs = node.output.iter().map(typed).collect::<Vec<_>>().join(", ");
        let mut lines = vec![format!("{op}({}) -> {outputs}", node.input.join(", "))];
        let bodies = node.attribute.iter().flat_map(|attribute| attribute.g.iter().chain(&attribute.graphs));
        lines.extend(bodies.map(|body| format!("body {}: {} nodes", body.name(), body.node.len())));
        lines.extend(of.map(|of| format!("{} ({})", told(&of.fx), told(&of.op))));
        lines.extend((!module.is_empty()).then(|| format!("in {module}")));
        lines.extend(mark.map(|mark| mark.word().to_owned()));
        lines.join("\n")
    }
}

/// What a dump tells of many boxes at once.
fn told(text: &str) -> String {
    match text.char_indices().nth(MOST_TOLD) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::proto::{AttributeProto, TensorProto};
    use crate::tensor::{DType, TensorDesc};

    fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
        let own = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        NodeProto { op_type: Some(op.into()), input: own(inputs), output: own(outputs), ..Default::default() }
    }

    fn info(name: &str) -> ValueInfoProto {
        ValueInfoProto { name: Some(name.into()), ..Default::default() }
    }

    fn drawn(graph: GraphProto, known: &Provenance) -> Drawing {
        let model = ModelProto { graph: Some(graph), ..Default::default() };
        drawing(&model, known, &Marks::default()).unwrap()
    }

    fn shown(drawing: &Drawing) -> Vec<&str> {
        drawing.boxes.iter().map(|shown| shown.name.as_str()).collect()
    }

    fn edges(drawing: &Drawing) -> Vec<(usize, usize)> {
        drawing.edges.iter().map(|edge| (edge.from, edge.to)).collect()
    }

    #[test]
    fn constants_are_not_drawn_and_inputs_stand_where_they_are_read() {
        let graph = GraphProto {
            input: vec![info("x"), info("late"), info("weight"), info("w"), info("unused")],
            initializer: vec![TensorProto { name: Some("w".into()), ..Default::default() }],
            node: vec![
                node("Constant", &[], &["c"]),
                node("Mul", &["x", "w"], &["a"]),
                node("Add", &["a", "c"], &["b"]),
                node("Transpose", &["weight"], &["t"]),
                node("Gemm", &["b", "late", "t", "late"], &["y"]),
            ],
            output: vec![info("y")],
            ..Default::default()
        };
        let known = Provenance {
            parameters: HashSet::from(["weight".to_owned()]),
            calls: HashMap::from([("late".to_owned(), "layer.late".to_owned())]),
            ..Default::default()
        };
        let drawing = drawn(graph, &known);
        assert_eq!(shown(&drawing), ["x", "a", "b", "layer.late", "y"]);
        assert_eq!(edges(&drawing), [(0, 1), (1, 2), (2, 4), (3, 4)]);
        assert_eq!(drawing.not_drawn, 4);
        assert!(drawing.boxes[4].is_output && !drawing.boxes[2].is_output && drawing.boxes[3].is_input);
    }

    #[test]
    fn an_input_is_of_no_module_and_a_name_outlives_its_domain() {
        let of = onnx::Described { fx: "f".into(), op: "o".into(), module: "m".into() };
        let graph =
            GraphProto { input: vec![info("x")], node: vec![node("Neg", &["x"], &["a"])], ..Default::default() };
        let known = Provenance { values: [("a".into(), of)].into(), ..Default::default() };
        let drawing = drawn(graph, &known);
        assert_eq!(drawing.boxes.iter().map(|shown| shown.module.as_str()).collect::<Vec<_>>(), ["", "m"]);
        let op = |op: &str| Shown { op: op.to_owned(), ..Default::default() }.label(27);
        assert_eq!(op("rust_ort.modules::LlamaAttention"), "LlamaAttention");
        assert_eq!(op("com.microsoft::Gelu"), "com.microsoft::Gelu");
    }

    #[test]
    fn what_is_drawn_by_chance_or_given_is_no_constant() {
        let graph = GraphProto {
            initializer: vec![TensorProto { name: Some("w".into()), ..Default::default() }],
            node: vec![node("RandomNormal", &[], &["r"]), node("Neg", &["w"], &["n"]), node("Exp", &["w"], &["y"])],
            output: vec![info("y")],
            ..Default::default()
        };
        assert_eq!(shown(&drawn(graph, &Provenance::default())), ["r", "y"]);
    }

    #[test]
    fn what_a_body_takes_from_outside_is_a_line() {
        let body =
            GraphProto { node: vec![node("Neg", &["x"], &["n"])], output: vec![info("n")], ..Default::default() };
        let mut branch = node("If", &["c"], &["y"]);
        branch.attribute = vec![AttributeProto { g: Some(body), ..Default::default() }];
        let graph = GraphProto { input: vec![info("c"), info("x")], node: vec![branch], ..Default::default() };
        let drawing = drawn(graph, &Provenance::default());
        assert_eq!((shown(&drawing), edges(&drawing)), (vec!["c", "x", "y"], vec![(0, 2), (1, 2)]));
        assert!(drawing.boxes[2].detail.contains("body : 1 nodes"), "{}", drawing.boxes[2].detail);
    }

    #[test]
    fn a_graph_that_cannot_run_is_drawn_without_lines_that_go_up() {
        let graph = GraphProto {
            node: vec![node("Neg", &["b", "nowhere"], &["a"]), node("Neg", &["a"], &["b"])],
            ..Default::default()
        };
        assert_eq!(edges(&drawn(graph, &Provenance::default())), [(0, 1)]);
    }

    #[test]
    fn nodes_that_stand_together_and_are_of_one_module_are_a_run() {
        let of = |module: &str| Shown { module: module.to_owned(), ..Default::default() };
        let boxes = ["a", "a", "b", "", "", "a"].map(of).to_vec();
        let drawing = Drawing { boxes, ..Default::default() };
        assert_eq!(drawing.runs(), [0..2, 2..3, 3..5, 5..6]);
    }

    #[test]
    fn a_type_stands_in_one_box_and_what_many_share_is_cut() {
        let typed = onnx::value_info("a", &TensorDesc::new(DType::F32, [2, 3]).unwrap());
        let graph = GraphProto {
            value_info: vec![typed],
            node: vec![node("Split", &["x"], &["a"; 50]), node("Split", &["x"], &["a"; 50])],
            ..Default::default()
        };
        let drawing = drawn(graph, &Provenance::default());
        let details: String = drawing.boxes.iter().map(|shown| shown.detail.as_str()).collect();
        assert_eq!(details.matches("float32[2, 3]").count(), 1, "{details}");

        let of = onnx::Described { fx: "f".into(), op: "o".into(), module: "m".repeat(10_000) };
        let graph = GraphProto {
            input: vec![info("x")],
            node: (0..9)
                .map(|at| node("Neg", &["x"], &[&format!("b{at}")]))
                .chain([node("Sum", &["b0", "b1"], &["a"])])
                .collect(),
            ..Default::default()
        };
        let values = [("a".into(), of)].into();
        let drawing = drawn(graph, &Provenance { values, ..Default::default() });
        assert!(drawing.boxes.iter().any(|shown| shown.module.ends_with("m…")));
        assert!(drawing.boxes.iter().all(|shown| shown.module.len() + shown.detail.len() < 1000), "{drawing:?}");
    }
}
