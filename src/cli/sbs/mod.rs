//! `rust-ort sbs`: every node of a part against eager, side by side.
//!
//! The columns are those of onnx-diagnostic's `sbs`, with the numbers that it leaves empty, and without its agreement of
//! devices: a dump does not tell them, both sides run on the CPU.

mod columns;
mod text;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_json::json;

use self::columns::{Line, csv};
use super::table::{self, Failure};
use super::{Exit, Outcome, json_text};
use crate::compare::{Summary, TensorVerdict, Verdict, summary};
use crate::dump::reader::{self, CaseEntry, GraphEntry, Place, RunEntry};
use crate::dump::{NodeRow, NodeTable};
use crate::onnx;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// A folder of dumps, a run, a graph, a part, a data set or a nodes_<step>.json
    path: PathBuf,
    /// Rows to show; the summary and the exit code are of all
    #[arg(long, default_value = "all")]
    only: Only,
    /// By max|Δ|/max|r|, largest first, or in the graph's order
    #[arg(long, default_value = "order")]
    sort: Sort,
    /// So many rows of each table
    #[arg(long)]
    limit: Option<usize>,
    /// All columns, under their names in CSV; where a row does not fit, one block a node
    #[arg(long)]
    wide: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print CSV: every column, one header, full precision
    #[arg(long)]
    csv: bool,
}

/// Which rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
enum Only {
    All,
    /// Those that do not match, for whatever reason
    Unmatched,
    Match,
    Mismatch,
    NotCompared,
    Failed,
}

/// In which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Sort {
    Order,
    Local,
    Cumulative,
}

/// A row's verdicts in one sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Match,
    Drifted,
    Mismatch,
    NotCompared,
    Failed,
}

impl Mark {
    fn of(node: &NodeRow) -> Self {
        match (&node.local.verdict, &node.cumulative.verdict) {
            (Verdict::Failed(_), _) | (_, Verdict::Failed(_)) => Mark::Failed,
            (Verdict::Mismatch, _) => Mark::Mismatch,
            (_, Verdict::Mismatch) => Mark::Drifted,
            (Verdict::NotCompared(_), _) | (_, Verdict::NotCompared(_)) => Mark::NotCompared,
            (Verdict::Match, Verdict::Match) => Mark::Match,
        }
    }

    fn sign(self) -> &'static str {
        match self {
            Mark::Match => "=",
            Mark::Drifted => "~",
            Mark::Mismatch => "!",
            Mark::NotCompared => "?",
            Mark::Failed => "x",
        }
    }
}

impl Only {
    fn wants(self, node: &NodeRow) -> bool {
        let any = |is: fn(&Verdict) -> bool| is(&node.local.verdict) || is(&node.cumulative.verdict);
        match self {
            Only::All => true,
            Only::Unmatched => Mark::of(node) != Mark::Match,
            Only::Match => Mark::of(node) == Mark::Match,
            Only::Mismatch => any(|verdict| matches!(verdict, Verdict::Mismatch)),
            Only::NotCompared => any(|verdict| matches!(verdict, Verdict::NotCompared(_))),
            Only::Failed => any(|verdict| matches!(verdict, Verdict::Failed(_))),
        }
    }
}

/// Verdicts of a table, counted.
#[derive(Clone, Copy, Debug, serde::Serialize)]
struct Counted {
    local: Summary,
    cumulative: Summary,
    plain: Summary,
}

impl Counted {
    fn of(table: &NodeTable) -> Self {
        let count = |verdict: fn(&NodeRow) -> &TensorVerdict| {
            summary(&table.nodes.iter().map(|node| verdict(node).clone()).collect::<Vec<_>>())
        };
        Self {
            local: count(|node| &node.local),
            cumulative: count(|node| &node.cumulative),
            plain: summary(&table.plain),
        }
    }

    fn total(&self) -> Summary {
        let mut total = Summary::default();
        [self.local, self.cumulative, self.plain].iter().for_each(|more| super::ls::add(&mut total, more));
        total
    }
}

/// One table, and where it stands.
struct Found {
    path: PathBuf,
    table: NodeTable,
    counted: Counted,
    /// Position of each value among the outputs of the ONNX node that makes it.
    outputs: HashMap<String, usize>,
}

impl Found {
    /// The rows to show.
    fn lines(&self, args: &Arguments) -> Vec<Line<'_>> {
        let mut nodes: Vec<&NodeRow> = self.table.nodes.iter().filter(|node| args.only.wants(node)).collect();
        match args.sort {
            Sort::Order => {}
            Sort::Local => nodes.sort_by(|one, other| distance(&other.local).total_cmp(&distance(&one.local))),
            Sort::Cumulative => {
                nodes.sort_by(|one, other| distance(&other.cumulative).total_cmp(&distance(&one.cumulative)));
            }
        }
        nodes.truncate(args.limit.unwrap_or(usize::MAX));
        let line = |node: &'_ NodeRow| self.outputs.get(&node.name).copied();
        nodes.into_iter().map(|node| Line { table: &self.table, node, output: line(node) }).collect()
    }
}

/// NaN is far; what was not measured is at the end.
fn distance(verdict: &TensorVerdict) -> f64 {
    verdict
        .metrics
        .as_ref()
        .map_or(-1., |metrics| if metrics.max_rel_to_max.is_nan() { f64::INFINITY } else { metrics.max_rel_to_max })
}

pub(super) fn run(args: &Arguments) -> Outcome {
    let found = files(&args.path)?.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let mut total = Summary::default();
    found.iter().for_each(|found| super::ls::add(&mut total, &found.counted.total()));
    let text = if args.json {
        json_text("sbs", json!({ "tables": found.iter().map(|found| json_of(found, args)).collect::<Vec<_>>() }))?
    } else if args.csv {
        csv(found.iter().flat_map(|found| found.lines(args)))
    } else {
        found.iter().map(|found| text::of(found, args, table::width(), table::colours())).collect::<Vec<_>>().join("\n")
    };
    table::put(&text)?;
    if found.is_empty() {
        eprintln!(
            "rust-ort: {}: no table of nodes (nodes_<step>.json); dump with the option compare=\"nodes\"",
            args.path.display()
        );
    }
    Ok(Exit::from(total))
}

/// The part, the step and the path of every table below a place. Errors: it cannot be listed, or is a file of another
/// kind.
fn files(path: &Path) -> Result<Vec<(u64, PathBuf)>, Failure> {
    let of_run = |run: RunEntry| run.graphs.into_iter().flat_map(of_graph).collect::<Vec<_>>();
    fn of_graph(graph: GraphEntry) -> impl Iterator<Item = PathBuf> {
        graph.parts.into_iter().map(|part| part.path)
    }
    let in_folder = |path: &Path| reader::node_files(path).map_err(|error| format!("{}: {error}", path.display()));
    let parts = match reader::find(path)? {
        Place::Folder(runs) => runs.into_iter().flat_map(of_run).collect(),
        Place::Run(run) => of_run(run),
        Place::Graph(graph) => of_graph(graph).collect(),
        Place::Part(part) => vec![part.path],
        Place::Step(step) => {
            let path = step.path.canonicalize()?;
            let files = in_folder(path.parent().unwrap_or(Path::new("/")))?;
            return Ok(files.into_iter().filter(|(number, _)| *number == step.step).collect());
        }
        Place::Json(file) => {
            let file = file.canonicalize()?;
            let files = in_folder(file.parent().unwrap_or(Path::new("/")))?;
            let files: Vec<_> = files.into_iter().filter(|(_, path)| *path == file).collect();
            if files.is_empty() {
                return Err(format!("{}: expected a nodes_<step>.json", file.display()).into());
            }
            return Ok(files);
        }
        Place::Case(CaseEntry { path, .. }) | Place::Model(path) | Place::Tensor(path) => {
            return Err(format!("{}: expected a nodes_<step>.json, or a folder of a dump", path.display()).into());
        }
    };
    let files = parts.iter().map(|part| in_folder(part)).collect::<Result<Vec<_>, _>>()?;
    Ok(files.into_iter().flatten().collect())
}

fn read((step, path): (u64, PathBuf)) -> Result<Found, Failure> {
    let part = path.parent().unwrap_or(Path::new("."));
    let table = reader::nodes(part, step).map_err(|error| format!("{}: {error}", path.display()))?;
    let table = table.ok_or_else(|| format!("{}: it is gone", path.display()))?;
    let outputs = outputs(&part.join("model.onnx"));
    Ok(Found { counted: Counted::of(&table), path, table, outputs })
}

/// Rows of [`unmatched`].
const MOST_UNMATCHED: usize = 20;

/// The nodes of a table that do not match, the first of them, and how many there are of each kind.
pub(super) fn unmatched(path: &Path, table: NodeTable) -> String {
    let counted = Counted::of(&table);
    let found = Found { counted, path: path.to_owned(), table, outputs: HashMap::new() };
    let args = Arguments {
        path: path.to_owned(),
        only: Only::Unmatched,
        sort: Sort::Order,
        limit: Some(MOST_UNMATCHED),
        wide: false,
        json: false,
        csv: false,
    };
    text::of(&found, &args, table::width(), table::colours())
        + &format!("`rust-ort sbs {}` shows all {} nodes\n", path.display(), found.table.nodes.len())
}

/// Empty when the model cannot be read: the table says enough without it.
fn outputs(model: &Path) -> HashMap<String, usize> {
    let graph = onnx::load(model).ok().and_then(|model| model.graph);
    let nodes = graph.into_iter().flat_map(|graph| graph.node);
    nodes.flat_map(|node| node.output.into_iter().enumerate().map(|(index, name)| (name, index))).collect()
}

fn json_of(found: &Found, args: &Arguments) -> serde_json::Value {
    let Found { path, table, counted, .. } = found;
    let node = |line: Line<'_>| {
        let mut value = json!(line.node);
        value["mark"] = Mark::of(line.node).sign().into();
        value["onnx_output"] = line.output.into();
        value
    };
    let name = |node: Option<&NodeRow>| node.map(|node| node.name.clone());
    json!({
        "path": path, "graph": table.graph, "part": table.part, "step": table.step, "summary": counted,
        "first_local_mismatch": name(table.first_local_mismatch()),
        "first_cumulative_mismatch": name(table.first_cumulative_mismatch()),
        "plain": table.plain, "nodes": found.lines(args).into_iter().map(node).collect::<Vec<_>>(),
    })
}
