//! What stands below a place of a dump.

use super::exit::Failure;
use crate::dump::reader::{PartEntry, Place, RunEntry, StepEntry};

/// Every part of a run.
pub(super) fn run_parts(run: RunEntry) -> impl Iterator<Item = PartEntry> {
    run.graphs.into_iter().flat_map(|graph| graph.parts)
}

/// The data sets of a place. Errors: it is a file.
pub(super) fn steps(place: Place) -> Result<Vec<StepEntry>, Failure> {
    let parts: Vec<PartEntry> = match place {
        Place::Folder(runs) => runs.into_iter().flat_map(run_parts).collect(),
        Place::Run(run) => run_parts(run).collect(),
        Place::Graph(graph) => graph.parts,
        Place::Part(part) => vec![part],
        Place::Case(case) => return Ok(case.steps),
        Place::Step(step) => return Ok(vec![step]),
        Place::Model(path) | Place::Tensor(path) | Place::Json(path) => {
            return Err(format!("{}: a file; name a data set, part, graph or run", path.display()).into());
        }
    };
    Ok(parts.into_iter().flat_map(|part| part.steps).collect())
}
