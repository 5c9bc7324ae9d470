//! A table of nodes as it was found in a dump.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};

use super::columns::Line;
use super::mark::Mark;
use super::rows::Rows;
use crate::cli::exit::{Failure, at};
use crate::cli::verdicts;
use crate::compare::{NoiseSummary, Policy, Summary, TensorVerdict, Verdict, summary};
use crate::dump::{Comparison, Damage, NodeRow, NodeTable, reader};
use crate::onnx::proto::NodeProto;

/// Verdicts of a table, counted.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Counted {
    pub(super) local: Summary,
    pub(super) cumulative: Summary,
    pub(super) plain: Summary,
    /// The part's outputs as the comparison of the whole judged them; without one, the graph's as they drifted.
    pub(super) outputs: Summary,
    /// Against float64, where it is known.
    pub(super) local_noise: NoiseSummary,
    pub(super) cumulative_noise: NoiseSummary,
}

impl Counted {
    fn of(table: &NodeTable, comparison: Option<&Comparison>) -> Self {
        let drifted = || -> Vec<_> {
            let outputs = table.nodes.iter().filter(|node| !node.role.is_empty());
            outputs.map(|node| node.cumulative.clone()).collect()
        };
        let outputs = comparison.map_or_else(|| summary(&drifted()), |comparison| summary(&comparison.verdicts));
        Self::new(std::iter::once(table), outputs)
    }

    /// Of several tables together.
    pub(super) fn all(found: &[&Found]) -> Self {
        let outputs = verdicts::sum(found.iter().map(|found| found.counted.outputs)).unwrap_or_default();
        Self::new(found.iter().map(|found| &found.table), outputs)
    }

    fn new<'a>(tables: impl Iterator<Item = &'a NodeTable> + Clone, outputs: Summary) -> Self {
        let nodes = || tables.clone().flat_map(|table| &table.nodes);
        let noise = |verdict: fn(&NodeRow) -> &TensorVerdict| {
            NoiseSummary::of(nodes().filter_map(|node| verdict(node).noise.map(|noise| noise.kind)))
        };
        Self {
            local: summary(nodes().map(|node| &node.local)),
            cumulative: summary(nodes().map(|node| &node.cumulative)),
            plain: summary(tables.clone().flat_map(|table| &table.plain)),
            outputs,
            local_noise: noise(|node| &node.local),
            cumulative_noise: noise(|node| &node.cumulative),
        }
    }
}

/// One table, and where it stands.
pub(crate) struct Found {
    pub(super) path: PathBuf,
    pub(super) table: NodeTable,
    pub(super) counted: Counted,
    /// By which verdicts were given; None: no comparison beside the table tells.
    pub(crate) policy: Option<Policy>,
    /// Position of each value among the outputs of the ONNX node that makes it.
    outputs: HashMap<String, usize>,
}

impl Found {
    /// A table and the model beside it. Errors: it is gone, or cannot be read.
    pub(crate) fn read(step: u64, path: PathBuf) -> Result<Self, Failure> {
        let part = path.parent().unwrap_or(Path::new("."));
        let table = reader::nodes(part, step).map_err(at(&path))?;
        let mut table = table.ok_or_else(|| format!("{}: it is gone", path.display()))?;
        let nodes = onnx_nodes(&part.join("model.onnx"))?;
        let comparison = reader::comparison_of(part, step).map_err(at(part))?;
        if let Some(comparison) = &comparison {
            excuse(&mut table, comparison);
            follow_choices(&mut table, comparison, &nodes);
        }
        let outputs = nodes.into_iter().flat_map(|node| node.output.into_iter().enumerate());
        let outputs = outputs.map(|(index, name)| (name, index)).collect();
        let counted = Counted::of(&table, comparison.as_ref());
        Ok(Self { outputs, counted, policy: comparison.and_then(|comparison| comparison.policy), table, path })
    }

    /// A table without what stands beside it.
    pub(crate) fn alone(path: PathBuf, table: NodeTable) -> Self {
        Self { counted: Counted::of(&table, None), policy: None, path, table, outputs: HashMap::new() }
    }

    /// The rows to show.
    pub(crate) fn lines(&self, rows: &Rows) -> Vec<Line<'_>> {
        let line = |node: &'_ NodeRow| self.outputs.get(&node.name).copied();
        rows.of(&self.table.nodes)
            .into_iter()
            .map(|node| Line { table: &self.table, node, output: line(node) })
            .collect()
    }

    /// What each value's row comes to.
    pub(crate) fn marks(&self) -> impl Iterator<Item = (&str, Mark)> {
        self.table.nodes.iter().map(|node| (node.name.as_str(), Mark::of(node)))
    }

    /// The table as JSON, with these rows.
    pub(crate) fn json(&self, rows: &Rows) -> Value {
        let node = |line: Line<'_>| {
            let mut value = json!(line.node);
            value["mark"] = Mark::of(line.node).sign().into();
            value["onnx_output"] = line.output.into();
            value
        };
        let mut value = self.facts();
        value["plain"] = json!(self.table.plain);
        value["nodes"] = self.lines(rows).into_iter().map(node).collect();
        value
    }

    /// What the table says as a whole, as JSON.
    pub(crate) fn facts(&self) -> Value {
        let Self { path, table, counted, policy, .. } = self;
        let name = |node: Option<&NodeRow>| node.map(|node| node.name.clone());
        json!({
            "path": path, "graph": table.graph, "part": table.part, "step": table.step, "summary": counted, "policy": policy,
            "first_local_mismatch": name(table.first_local_mismatch()),
            "first_cumulative_mismatch": name(table.first_cumulative_mismatch()),
            "first_worse_than_eager": name(table.first_worse()),
            "first_births": table.first_births().into_iter().map(|(node, birth)| json!({ "node": node.name, "birth": birth })).collect::<Vec<_>>(),
        })
    }

    /// The table.
    pub(crate) fn table(&self) -> &NodeTable {
        &self.table
    }

    /// The nodes' own kernels and their values as they drifted, counted.
    pub(crate) fn counts(&self) -> [Summary; 2] {
        [self.counted.local, self.counted.cumulative]
    }

    /// Verdicts of each node alone, of what observing changed and of the outputs, for the exit code. A value inside that
    /// drifted is shown and accuses nobody: half precision drifts in every model. Where there is nothing to compare, as in
    /// memory that nobody wrote, nothing was left out.
    pub(crate) fn total(&self) -> Summary {
        let Counted { local, plain, outputs, .. } = self.counted;
        let is_nothing = |node: &&NodeRow| node.nothing && matches!(node.local.verdict, Verdict::NotCompared(_));
        let nothing = self.table.nodes.iter().filter(is_nothing).count();
        let local = Summary { not_compared: local.not_compared - nothing, ..local };
        verdicts::sum([local, plain, outputs]).unwrap_or_default()
    }
}

/// What the comparison of the whole found right of an output, as noise or as what follows from a tie, is so here, too; and
/// where both sessions are right of it, what observing changed is noise.
fn excuse(table: &mut NodeTable, comparison: &Comparison) {
    let right: HashMap<&str, &TensorVerdict> = (comparison.verdicts.iter())
        .filter(|verdict| verdict.verdict.is_pass())
        .map(|verdict| (verdict.name.as_str(), verdict))
        .collect();
    for node in table.nodes.iter_mut().filter(|node| node.cumulative.verdict == Verdict::Mismatch) {
        if let Some(found) = right.get(node.name.as_str()) {
            node.cumulative.verdict = found.verdict.clone();
        }
    }
    let both: HashSet<&str> = (table.nodes.iter())
        .filter(|node| node.cumulative.verdict.is_pass() && right.contains_key(node.name.as_str()))
        .map(|node| node.name.as_str())
        .collect();
    for verdict in table.plain.iter_mut().filter(|verdict| verdict.verdict == Verdict::Mismatch) {
        if both.contains(verdict.name.as_str()) {
            verdict.verdict = Verdict::Noise;
        }
    }
}

/// Values that drifted behind a node that chose otherwise, as right as eager, follow its choice: they are what it is. Such
/// nodes are those that verdicts of outputs name, and indices that are others and right. nodes: the model's, in its order.
fn follow_choices(table: &mut NodeTable, comparison: &Comparison, nodes: &[NodeProto]) {
    let ties: Vec<(&str, &Verdict)> = (comparison.verdicts.iter())
        .filter_map(|verdict| match &verdict.verdict {
            Verdict::Tie(why) => Some((why.as_str(), &verdict.verdict)),
            _ => None,
        })
        .collect();
    let choice = |node: &NodeRow| {
        let names = |why: &str| why.strip_prefix(&node.name).is_some_and(|rest| rest.starts_with(": "));
        let is_index = !node.as_right.is_empty() && node.dtype.starts_with(['i', 'u']);
        let of_itself = || is_index.then(|| Verdict::Tie(format!("{}: {}", node.name, node.as_right)));
        ties.iter().find(|(why, _)| names(why)).map(|&(_, tie)| tie.clone()).or_else(of_itself)
    };
    let found = table.nodes.iter().filter_map(|node| Some((node.name.clone(), choice(node)?)));
    let mut chosen: HashMap<String, Verdict> = found.collect();
    if chosen.is_empty() {
        return;
    }
    for node in nodes {
        if let Some(verdict) = node.input.iter().find_map(|name| chosen.get(name)).cloned() {
            for output in &node.output {
                chosen.entry(output.clone()).or_insert_with(|| verdict.clone());
            }
        }
    }
    for row in table.nodes.iter_mut().filter(|row| row.cumulative.verdict == Verdict::Mismatch) {
        if let Some(verdict) = chosen.get(&row.name) {
            row.cumulative.verdict = verdict.clone();
        }
    }
}

/// Empty when the model cannot be read: the table says enough without it. Errors: it is damaged.
fn onnx_nodes(model: &Path) -> Result<Vec<NodeProto>, Failure> {
    match reader::load_model(model) {
        Ok(model) => Ok(model.graph.map(|graph| graph.node).unwrap_or_default()),
        Err(error) if Damage::of(&error).is_some() => Err(error.into()),
        Err(_) => Ok(Vec::new()),
    }
}
