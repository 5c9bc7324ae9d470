//! What stands below a place of a dump.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::builder::{PathBufValueParser, TypedValueParser};

use super::exit::Failure;
use super::nearest;
use crate::dump::DumpError;
use crate::dump::reader::{self, PartEntry, Place, RunEntry, StepEntry};

/// What stands at a path: where no dump does, what stands below `dumps/`, as a folder may have the name of a run. Errors:
/// nothing does, and what it may have been.
pub(super) fn find(path: &Path) -> Result<Place, Failure> {
    let error = match reader::find(path) {
        Err(error @ (DumpError::NoDump { .. } | DumpError::Io { .. })) => error,
        found => return Ok(found?),
    };
    let below = Path::new(DUMPS).join(path);
    if path.is_relative() && below.exists() {
        return Ok(reader::find(&below)?);
    }
    let is_missing = matches!(&error, DumpError::Io { source, .. } if source.kind() == ErrorKind::NotFound);
    if !is_missing {
        return Err(error.into());
    }
    let runs = runs();
    let nearest = nearest::hint(&path.to_string_lossy(), runs.iter().map(String::as_str));
    let listed = if runs.is_empty() { "" } else { "; `rust-ort ls` lists the dumps" };
    Err(format!("{error}{nearest}{listed}").into())
}

/// Names of the runs in the folder of dumps; none where there is no such folder.
fn runs() -> Vec<String> {
    match reader::find(Path::new(DUMPS)) {
        Ok(Place::Folder(runs)) => runs.into_iter().map(|run| run.name).collect(),
        _ => Vec::new(),
    }
}

/// A place as a command line names it: a path, or what stands below `dumps/`, as the name of a run.
pub(super) fn named() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().map(|path| {
        let below = Path::new(DUMPS).join(&path);
        if !path.exists() && below.exists() { below } else { path }
    })
}

/// Where dumps are, unless told otherwise.
pub(super) const DUMPS: &str = "dumps";

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
        Place::Model(path) | Place::Tensor(path) | Place::Json(path) | Place::Text(path) => {
            return Err(format!("{}: a file; name a data set, part, graph or run", path.display()).into());
        }
    };
    Ok(parts.into_iter().flat_map(|part| part.steps).collect())
}

/// A data set in few words: "0_0-forward/0 #3".
pub(super) fn place(data_set: &Path) -> String {
    let names: Vec<_> = data_set.iter().rev().take(3).map(|name| name.to_string_lossy()).collect();
    match names.as_slice() {
        [step, part, graph] => {
            let number = |name: &str| name.rsplit('_').next().unwrap_or_default().to_owned();
            format!("{graph}/{} #{}", number(part), number(step))
        }
        _ => data_set.display().to_string(),
    }
}
