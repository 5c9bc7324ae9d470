//! A place of a dump as a table.

use std::path::Path;

use super::answer::{line, warn};
use super::dump_tolerance::Brought;
use super::exit::{Exit, Failure, Outcome};
use super::table::{self, Give};
use super::{data_sets, verdicts};
use crate::base::quoted::shell_word;
use crate::compare::Policy;
use crate::dump::Damage;
use crate::dump::reader::{CaseEntry, Completeness, GraphEntry, PartEntry, Place, RunEntry, StepEntry};

/// One row a part, or one a step.
pub(super) fn text_of(place: &Place, steps: bool, width: usize) -> String {
    let steps = steps || matches!(place, Place::Part(_) | Place::Case(_) | Place::Step(_));
    let mut listing = Listing { steps, rows: Vec::new(), policies: Vec::new() };
    match place {
        Place::Part(PartEntry { steps, .. }) | Place::Case(CaseEntry { steps, .. }) => listing.steps(steps),
        Place::Step(step) => listing.steps(std::slice::from_ref(step)),
        Place::Folder(runs) => runs.iter().for_each(|run| listing.run(run)),
        Place::Run(run) => listing.run(run),
        Place::Graph(graph) => listing.graph(graph),
        Place::Model(path) | Place::Tensor(path) | Place::Json(path) | Place::Text(path) => {
            return line(path.display());
        }
    }
    let brought = Brought::of(listing.policies).line();
    // A path that is cut is none: it is there to be given to other commands.
    use Give::{End, Never};
    let table = match steps {
        true => table::aligned(&["data set", "state", "verdicts"], &listing.rows, &[Never, End, Never], width),
        false => {
            let header = ["part", "steps", "state", "verdicts"];
            table::roomy(&header, &listing.rows, &[Never, Never, End, Never], &[0, 1, 0, 0], width)
        }
    };
    table + &brought
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

/// A walk through a dump.
struct Listing {
    /// One row a step, else one a part.
    steps: bool,
    rows: Vec<Vec<String>>,
    /// By which the verdicts that are shown were given.
    policies: Vec<Policy>,
}

impl Listing {
    fn run(&mut self, run: &RunEntry) {
        if run.graphs.is_empty() || run.damage.is_some() {
            self.itself(&run.path, run.damage.as_ref());
        }
        run.graphs.iter().for_each(|graph| self.graph(graph));
    }

    fn graph(&mut self, graph: &GraphEntry) {
        if graph.parts.is_empty() || graph.damage.is_some() {
            self.itself(&graph.path, graph.damage.as_ref());
        }
        for part in &graph.parts {
            match self.steps {
                true => self.steps(&part.steps),
                false => {
                    self.policies.extend(part.steps.iter().filter_map(|step| step.policy));
                    self.rows.push(part_row(part));
                }
            }
        }
    }

    fn steps(&mut self, steps: &[StepEntry]) {
        self.policies.extend(steps.iter().filter_map(|step| step.policy));
        self.rows.extend(steps.iter().map(step_row));
    }

    /// A run or a graph of which there is something to tell, or nothing below.
    fn itself(&mut self, path: &Path, damage: Option<&Damage>) {
        let (path, state) = (pasted(path), damage.map_or("", |_| "damaged"));
        let row: &[&str] = match self.steps {
            true => &[&path, state, "-"],
            false => &[&path, "0", state, "-"],
        };
        self.rows.push(row.iter().map(|&cell| cell.to_owned()).collect());
    }
}

/// A path as a shell takes it.
fn pasted(path: &Path) -> String {
    shell_word(&path.to_string_lossy())
}

fn part_row(part: &PartEntry) -> Vec<String> {
    let count = |is: fn(&Completeness) -> bool| part.steps.iter().filter(|step| is(&step.state)).count();
    let incomplete = count(|state| matches!(state, Completeness::Incomplete(_)));
    let damaged = count(|state| matches!(state, Completeness::Damaged(_)));
    let counts = [(damaged, "damaged"), (incomplete, "incomplete")].into_iter().filter(|(n, _)| *n > 0);
    let state = counts.map(|(n, what)| format!("{n} {what}")).collect::<Vec<_>>().join(", ");
    let state = if state.is_empty() { "complete".to_owned() } else { state };
    let verdicts = verdicts::cell(verdicts::sum(part.steps.iter().filter_map(|step| step.verdicts)));
    vec![pasted(&part.path), part.steps.len().to_string(), state, verdicts]
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
    vec![pasted(&step.path), state, verdicts::cell(step.verdicts)]
}
