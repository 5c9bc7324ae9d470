//! `rust-ort ls`: what a folder of dumps holds.

use std::path::PathBuf;

use serde_json::json;

use super::table::{self, Failure, Give};
use super::{Exit, Outcome, json_text};
use crate::compare::Summary;
use crate::dump::reader::{self, Completeness, GraphEntry, PartEntry, Place, RunEntry, StepEntry};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// A folder of dumps, a run, a graph, a part, a data set or the folder of a node
    #[arg(default_value = "dumps")]
    folder: PathBuf,
    /// One line a step
    #[arg(long)]
    steps: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Arguments) -> Outcome {
    let place = reader::find(&args.folder)?;
    let text = if args.json { json_of(&place)? } else { text_of(&place, args.steps, table::width()) };
    table::put(&text)?;
    Ok(Exit::Success)
}

fn json_of(place: &Place) -> Result<String, Failure> {
    let value = match place {
        Place::Folder(runs) => json!({ "runs": runs }),
        Place::Run(run) => json!(run),
        Place::Graph(graph) => json!(graph),
        Place::Part(part) => json!(part),
        Place::Case(case) => json!(case),
        Place::Step(step) => json!(step),
        Place::Model(path) | Place::Tensor(path) | Place::Json(path) => json!({ "file": path }),
    };
    Ok(json_text("ls", value)?)
}

/// The place as a table: one row a part, or one a step.
pub(super) fn text_of(place: &Place, steps: bool, width: usize) -> String {
    let mut rows = Vec::new();
    match place {
        Place::Folder(runs) => runs.iter().for_each(|run| run_rows(&mut rows, run, steps)),
        Place::Run(run) => run_rows(&mut rows, run, steps),
        Place::Graph(graph) => graph_rows(&mut rows, "", graph, steps),
        Place::Part(part) => part_rows(&mut rows, ["", ""], part, true),
        Place::Case(case) => rows.extend(case.steps.iter().map(|step| step_row(["", "", ""], step))),
        Place::Step(step) => rows.push(step_row(["", "", ""], step)),
        Place::Model(path) | Place::Tensor(path) | Place::Json(path) => return format!("{}\n", path.display()),
    }
    let gives = [Give::Middle, Give::Middle, Give::Never, Give::Never, Give::End, Give::End];
    table::aligned(&["run", "graph", "part", "steps", "state", "verdicts"], &rows, &gives, width)
}

fn run_rows(rows: &mut Vec<Vec<String>>, run: &RunEntry, steps: bool) {
    if run.graphs.is_empty() {
        rows.push([run.name.as_str(), "-", "-", "0", "", "-"].map(str::to_owned).to_vec());
    }
    run.graphs.iter().for_each(|graph| graph_rows(rows, &run.name, graph, steps));
}

fn graph_rows(rows: &mut Vec<Vec<String>>, run: &str, graph: &GraphEntry, steps: bool) {
    if graph.parts.is_empty() {
        rows.push([run, graph.name.as_str(), "-", "0", "", "-"].map(str::to_owned).to_vec());
    }
    graph.parts.iter().for_each(|part| part_rows(rows, [run, &graph.name], part, steps));
}

fn part_rows(rows: &mut Vec<Vec<String>>, [run, graph]: [&str; 2], part: &PartEntry, steps: bool) {
    let number = part.part.to_string();
    if steps {
        rows.extend(part.steps.iter().map(|step| step_row([run, graph, &number], step)));
        return;
    }
    let incomplete = part.steps.iter().filter(|step| step.state != Completeness::Complete).count();
    let state = if incomplete == 0 { "complete".to_owned() } else { format!("{incomplete} incomplete") };
    let mut total: Option<Summary> = None;
    for summary in part.steps.iter().filter_map(|step| step.verdicts) {
        add(total.get_or_insert_default(), &summary);
    }
    rows.push(vec![run.to_owned(), graph.to_owned(), number, part.steps.len().to_string(), state, verdicts(total)]);
}

fn step_row([run, graph, part]: [&str; 3], step: &StepEntry) -> Vec<String> {
    let state = match &step.state {
        Completeness::Complete => "complete".to_owned(),
        Completeness::Incomplete(reason) => format!("incomplete: {reason}"),
    };
    let number = format!("#{}", step.step);
    vec![run.to_owned(), graph.to_owned(), part.to_owned(), number, state, verdicts(step.verdicts)]
}

pub(super) fn add(total: &mut Summary, more: &Summary) {
    total.matched += more.matched;
    total.mismatch += more.mismatch;
    total.not_compared += more.not_compared;
    total.failed += more.failed;
}

/// `3 match, 1 mismatch`; `-` where nothing was compared.
pub(super) fn verdicts(summary: Option<Summary>) -> String {
    let Some(Summary { matched, mismatch, not_compared, failed }) = summary else { return "-".to_owned() };
    let counts = [(matched, "match"), (mismatch, "mismatch"), (not_compared, "not compared"), (failed, "failed")];
    let counts = counts.into_iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}"));
    let text = counts.collect::<Vec<_>>().join(", ");
    if text.is_empty() { "-".to_owned() } else { text }
}
