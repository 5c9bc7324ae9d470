//! A part's graph at each stage of its compilation: FX, as exported, as optimized, with what of one stands for what of another.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;

use serde::Serialize;

use super::drawing::{Drawing, drawing};
use super::marks::{Marks, worse};
use crate::cli::exit::{Failure, at};
use crate::cli::node_table::Mark;
use crate::cli::provenance::Provenance;
use crate::dump::{DumpError, reader};
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto};
use crate::onnx::{OnnxError, producers};

/// (name of the stage, file in the part's folder), in the order of the compilation.
const MODELS: [(&str, &str); 3] =
    [("exported", "model.onnx"), ("precision", "model.precision.onnx"), ("optimized", "model.ort.onnx")];
/// Nodes that are looked at for what one node of a later stage computes.
const MOST_VISITED: usize = 512;
/// Bytes of the names that all boxes of a stage have beside their own: names in a model may be of any length.
const MOST_NAMES: usize = 16 << 20;
/// Characters of a node's line.
const MOST_TOLD: usize = 300;

/// One stage.
#[derive(Debug, Serialize)]
pub(crate) struct Stage {
    /// "fx", "exported", "precision" or "optimized".
    name: &'static str,
    /// The model's file in the part's folder; empty for FX.
    file: &'static str,
    /// In program order.
    boxes: Vec<StageBox>,
    /// [from, to]: places of boxes.
    lines: Vec<(usize, usize)>,
    /// Parameters, constants, and what is made of these alone.
    not_drawn: usize,
}

/// A node or an input.
#[derive(Clone, Debug, Default, Serialize)]
struct StageBox {
    op: String,
    /// The first value that it gives.
    name: String,
    module: String,
    /// FX values that it computes, its own last.
    of: Vec<String>,
    mark: Option<&'static str>,
    /// Operator, inputs and outputs with their types, in a line.
    detail: String,
    is_input: bool,
    is_output: bool,
}

/// The stages of the part in this folder, and what could not be read of them.
pub(crate) fn stages(folder: &Path, known: &Provenance) -> (Vec<Stage>, Vec<Failure>) {
    let mut failures = Vec::new();
    let marks = Marks::read(folder, None).unwrap_or_else(|failure| {
        failures.push(failure);
        Marks::default()
    });
    let mut stages = Vec::new();
    let mut exported = None;
    for (name, file) in MODELS {
        let model = match model(&folder.join(file)) {
            Ok(Some(model)) => model,
            Ok(None) => continue,
            Err(failure) => {
                failures.push(failure);
                continue;
            }
        };
        match stage((name, file), &model, exported.as_ref(), known, &marks) {
            Ok(stage) if exported.is_none() && name == MODELS[0].0 => {
                stages.push(fx(&stage, known));
                stages.push(stage);
                exported = Some(model);
            }
            Ok(stage) => stages.push(stage),
            Err(error) => failures.push(at(&folder.join(file))(error)),
        }
    }
    (stages, failures)
}

/// None where there is none. No other file is opened, whatever the model names.
fn model(path: &Path) -> Result<Option<ModelProto>, Failure> {
    let is_gone = |error: &DumpError| match error {
        DumpError::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
        _ => !path.exists(),
    };
    match reader::load_model_alone(path) {
        Err(error) if is_gone(&error) => Ok(None),
        read => read.map(Some).map_err(at(path)),
    }
}

fn stage(
    (name, file): (&'static str, &'static str),
    model: &ModelProto,
    exported: Option<&ModelProto>,
    known: &Provenance,
    marks: &Marks,
) -> Result<Stage, OnnxError> {
    let Drawing { boxes, edges, not_drawn, .. } = drawing(model, known, marks)?;
    let origin = exported.and_then(|exported| exported.graph.as_ref()).zip(model.graph.as_ref());
    let mut origin = origin.map(|(exported, graph)| Origin::new(exported, graph, known)).transpose()?;
    let boxes = boxes.into_iter().map(|shown| StageBox {
        of: origin.as_mut().map_or_else(
            || Some(shown.of.clone()).filter(|of| !of.is_empty()).into_iter().collect(),
            |origin| origin.of(&shown.name, &shown.of),
        ),
        detail: line_of(&shown.detail),
        op: shown.op,
        name: shown.name,
        module: shown.module,
        mark: shown.mark.map(Mark::word),
        is_input: shown.is_input,
        is_output: shown.is_output,
    });
    let lines = edges.iter().map(|edge| (edge.from, edge.to)).collect();
    Ok(Stage { name, file, boxes: boxes.collect(), lines, not_drawn })
}

fn line_of(detail: &str) -> String {
    let line = detail.lines().next().unwrap_or_default();
    match line.char_indices().nth(MOST_TOLD) {
        None => line.to_owned(),
        Some((end, _)) => format!("{}…", &line[..end]),
    }
}

/// The FX graph as the exported model tells it: ONNX nodes of one FX node are one box.
fn fx(exported: &Stage, known: &Provenance) -> Stage {
    // Of each FX value the last node that is there for it, so that lines go forward.
    let key = |shown: &StageBox| shown.of.last().cloned().unwrap_or_else(|| shown.name.clone());
    let last: HashMap<String, usize> = exported.boxes.iter().enumerate().map(|(at, shown)| (key(shown), at)).collect();
    let mut places = HashMap::new();
    let mut boxes: Vec<StageBox> = Vec::new();
    for (at, shown) in exported.boxes.iter().enumerate() {
        let key = key(shown);
        if last.get(&key) == Some(&at) {
            let described = known.values.get(&key);
            places.insert(key.clone(), boxes.len());
            let (op, name) = match described {
                Some(described) => (described.op.clone(), described.fx.clone()),
                None => (shown.op.clone(), shown.name.clone()),
            };
            boxes.push(StageBox { op, name, of: vec![key], mark: None, detail: String::new(), ..shown.clone() });
        }
    }
    let place_of: Vec<usize> =
        exported.boxes.iter().map(|shown| places.get(&key(shown)).copied().unwrap_or(0)).collect();
    for (shown, &place) in exported.boxes.iter().zip(&place_of) {
        let own = &mut boxes[place];
        own.mark = [own.mark, shown.mark].into_iter().flatten().reduce(worse_word);
        own.is_output |= shown.is_output;
    }
    let mut met = HashSet::new();
    let lines = exported.lines.iter().map(|&(from, to)| (place_of[from], place_of[to]));
    let lines = lines.filter(|&(from, to)| from < to && met.insert((from, to))).collect();
    Stage { name: "fx", file: "", boxes, lines, not_drawn: exported.not_drawn }
}

fn worse_word(one: &'static str, other: &'static str) -> &'static str {
    let mark = |word: &str| Mark::ALL.into_iter().find(|mark| mark.word() == word);
    match (mark(one), mark(other)) {
        (Some(one), Some(other)) => worse(one, other).word(),
        _ => one,
    }
}

/// Finds the FX values that a node of a later stage computes: those between what it gives and what that stage still has.
struct Origin<'a> {
    exported: &'a GraphProto,
    producers: HashMap<&'a str, usize>,
    /// Values of the later stage.
    there: HashSet<&'a str>,
    known: &'a Provenance,
    /// The rest of [`MOST_NAMES`].
    room: usize,
}

impl<'a> Origin<'a> {
    fn new(exported: &'a GraphProto, later: &'a GraphProto, known: &'a Provenance) -> Result<Self, OnnxError> {
        let inputs = later.input.iter().map(|info| info.name());
        let given = later.node.iter().flat_map(|node| node.output.iter().map(String::as_str));
        Ok(Self {
            exported,
            producers: producers(exported)?,
            there: inputs.chain(given).collect(),
            known,
            room: MOST_NAMES,
        })
    }

    /// By the value that the node gives; its own last.
    fn of(&mut self, value: &str, own: &str) -> Vec<String> {
        let mut found: Vec<&str> = Vec::new();
        let mut met = HashSet::new();
        let mut left = vec![value];
        while let Some(value) = left.pop() {
            let Some(node) = self.producers.get(value).map(|&at| &self.exported.node[at]) else { continue };
            if met.len() > MOST_VISITED || !met.insert(value) {
                continue;
            }
            found.extend(outputs(node).filter(|name| self.known.values.contains_key(*name)));
            left.extend(node.input.iter().map(String::as_str).filter(|name| !self.there.contains(name)));
        }
        let mut told = HashSet::new();
        found.retain(|name| *name != own && told.insert(*name));
        let n_bytes = found.iter().map(|name| name.len()).sum();
        match self.room.checked_sub(n_bytes) {
            Some(room) => self.room = room,
            None => found.clear(),
        }
        found.reverse();
        found.extend(Some(own).filter(|own| !own.is_empty()));
        found.into_iter().map(str::to_owned).collect()
    }
}

fn outputs(node: &NodeProto) -> impl Iterator<Item = &str> {
    node.output.iter().map(String::as_str).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::Described;
    use crate::onnx::proto::ValueInfoProto;

    fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
        let own = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        NodeProto { op_type: Some(op.into()), input: own(inputs), output: own(outputs), ..Default::default() }
    }

    fn model_of(nodes: Vec<NodeProto>) -> ModelProto {
        let input = vec![ValueInfoProto { name: Some("x".into()), ..Default::default() }];
        ModelProto { graph: Some(GraphProto { input, node: nodes, ..Default::default() }), ..Default::default() }
    }

    fn known(names: &[&str]) -> Provenance {
        let described = |name: &&str| Described { fx: format!("fx_{name}"), op: "aten".into(), module: String::new() };
        let values = names.iter().map(|name| ((*name).to_owned(), described(name))).collect();
        Provenance { values, ..Default::default() }
    }

    #[test]
    fn a_fused_node_stands_for_all_that_it_computes() {
        let exported = model_of(vec![
            node("Cast", &["x"], &["c"]),
            node("Mul", &["c", "c"], &["a"]),
            node("Neg", &["a"], &["b"]),
            node("Exp", &["b"], &["y"]),
        ]);
        let optimized = model_of(vec![node("Mul", &["x", "x"], &["a"]), node("Fused", &["a"], &["y"])]);
        let known = known(&["a", "b", "y"]);
        let marks = Marks::default();
        let first = stage(MODELS[0], &exported, None, &known, &marks).unwrap();
        let later = stage(MODELS[2], &optimized, Some(&exported), &known, &marks).unwrap();
        let of = |stage: &Stage| stage.boxes.iter().map(|shown| shown.of.join(" ")).collect::<Vec<_>>();
        assert_eq!(of(&first), ["x", "a", "a", "b", "y"]);
        assert_eq!(of(&later), ["x", "a", "b y"]);
        let fx = fx(&first, &known);
        assert_eq!(fx.boxes.iter().map(|shown| shown.name.as_str()).collect::<Vec<_>>(), ["x", "fx_a", "fx_b", "fx_y"]);
        assert_eq!(fx.lines, [(0, 1), (1, 2), (2, 3)]);
    }

    #[test]
    fn what_is_not_there_is_no_stage_and_no_failure() {
        let folder = tempfile::tempdir().unwrap();
        let (stages, failures) = stages(folder.path(), &Provenance::default());
        assert!(stages.is_empty() && failures.is_empty(), "{failures:?}");
        std::fs::write(folder.path().join("model.onnx"), [0xff]).unwrap();
        let (stages, failures) = super::stages(folder.path(), &Provenance::default());
        assert!(stages.is_empty() && failures.len() == 1, "{failures:?}");
    }
}
