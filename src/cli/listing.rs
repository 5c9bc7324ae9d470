//! A place of a dump as a table.

use super::answer::warn;
use super::exit::{Exit, Failure, Outcome};
use super::table::{self, Give};
use super::{data_sets, verdicts};
use crate::dump::Damage;
use crate::dump::reader::{CaseEntry, Completeness, GraphEntry, PartEntry, Place, RunEntry, StepEntry};

/// One row a part, or one a step.
pub(super) fn text_of(place: &Place, steps: bool, width: usize) -> String {
    let mut rows = Vec::new();
    match place {
        Place::Folder(runs) if steps => runs.iter().for_each(|run| steps_of_run(&mut rows, run)),
        Place::Run(run) if steps => steps_of_run(&mut rows, run),
        Place::Graph(graph) if steps => steps_of_graph(&mut rows, graph),
        Place::Part(PartEntry { steps, .. }) | Place::Case(CaseEntry { steps, .. }) => {
            rows.extend(steps.iter().map(step_row));
        }
        Place::Step(step) => rows.push(step_row(step)),
        Place::Folder(runs) => runs.iter().for_each(|run| run_rows(&mut rows, run)),
        Place::Run(run) => run_rows(&mut rows, run),
        Place::Graph(graph) => graph_rows(&mut rows, "", graph),
        Place::Model(path) | Place::Tensor(path) | Place::Json(path) | Place::Text(path) => {
            return format!("{}\n", path.display());
        }
    }
    if steps || matches!(place, Place::Part(_) | Place::Case(_) | Place::Step(_)) {
        // A path that is cut is none.
        return table::aligned(&["data set", "state", "verdicts"], &rows, &[Give::Never, Give::End, Give::End], width);
    }
    let gives = [Give::Middle, Give::Middle, Give::Never, Give::Never, Give::End, Give::End];
    table::aligned(&["run", "graph", "part", "steps", "state", "verdicts"], &rows, &gives, width)
}

/// What a place that was listed comes to: its damage is told beside the listing, and by the exit code.
pub(super) fn told(place: Place) -> Outcome {
    let damaged = damages(place)?;
    damaged.iter().for_each(|damage| warn(format_args!("{damage}")));
    Ok(if damaged.is_empty() { Exit::Success } else { Exit::Damaged })
}

fn damages(place: Place) -> Result<Vec<Damage>, Failure> {
    let mut damaged: Vec<Damage> = place.damages().into_iter().cloned().collect();
    if !matches!(place, Place::Model(_) | Place::Tensor(_) | Place::Json(_) | Place::Text(_)) {
        damaged.extend(data_sets::steps(place)?.into_iter().filter_map(|step| match step.state {
            Completeness::Damaged(damage) => Some(damage),
            _ => None,
        }));
    }
    Ok(damaged)
}

/// In the column of states: of run.json or parts.json.
fn damaged(damage: Option<&Damage>) -> &'static str {
    damage.map_or("", |_| "damaged")
}

fn run_rows(rows: &mut Vec<Vec<String>>, run: &RunEntry) {
    if run.graphs.is_empty() || run.damage.is_some() {
        rows.push([run.name.as_str(), "-", "-", "0", damaged(run.damage.as_ref()), "-"].map(str::to_owned).to_vec());
    }
    run.graphs.iter().for_each(|graph| graph_rows(rows, &run.name, graph));
}

fn graph_rows(rows: &mut Vec<Vec<String>>, run: &str, graph: &GraphEntry) {
    if graph.parts.is_empty() || graph.damage.is_some() {
        let state = damaged(graph.damage.as_ref());
        rows.push([run, graph.name.as_str(), "-", "0", state, "-"].map(str::to_owned).to_vec());
    }
    graph.parts.iter().for_each(|part| part_rows(rows, [run, &graph.name], part));
}

fn part_rows(rows: &mut Vec<Vec<String>>, [run, graph]: [&str; 2], part: &PartEntry) {
    let number = part.part.to_string();
    let count = |is: fn(&Completeness) -> bool| part.steps.iter().filter(|step| is(&step.state)).count();
    let incomplete = count(|state| matches!(state, Completeness::Incomplete(_)));
    let damaged = count(|state| matches!(state, Completeness::Damaged(_)));
    let counts = [(damaged, "damaged"), (incomplete, "incomplete")].into_iter().filter(|(n, _)| *n > 0);
    let state = counts.map(|(n, what)| format!("{n} {what}")).collect::<Vec<_>>().join(", ");
    let state = if state.is_empty() { "complete".to_owned() } else { state };
    let verdicts = verdicts::cell(verdicts::sum(part.steps.iter().filter_map(|step| step.verdicts)));
    rows.push(vec![run.to_owned(), graph.to_owned(), number, part.steps.len().to_string(), state, verdicts]);
}

fn steps_of_run(rows: &mut Vec<Vec<String>>, run: &RunEntry) {
    if run.graphs.is_empty() || run.damage.is_some() {
        rows.push(vec![run.path.display().to_string(), damaged(run.damage.as_ref()).to_owned(), "-".to_owned()]);
    }
    run.graphs.iter().for_each(|graph| steps_of_graph(rows, graph));
}

fn steps_of_graph(rows: &mut Vec<Vec<String>>, graph: &GraphEntry) {
    if graph.parts.is_empty() || graph.damage.is_some() {
        rows.push(vec![graph.path.display().to_string(), damaged(graph.damage.as_ref()).to_owned(), "-".to_owned()]);
    }
    rows.extend(graph.parts.iter().flat_map(|part| &part.steps).map(step_row));
}

fn step_row(step: &StepEntry) -> Vec<String> {
    let state = match &step.state {
        Completeness::Complete => "complete".to_owned(),
        Completeness::Incomplete(reason) => format!("incomplete: {reason}"),
        Completeness::Damaged(damage) => {
            let file = damage.path.file_name().unwrap_or_default().to_string_lossy();
            format!("damaged: {file}: {}", damage.reason)
        }
    };
    vec![step.path.display().to_string(), state, verdicts::cell(step.verdicts)]
}
