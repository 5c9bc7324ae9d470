//! `rust-ort sbs`: every node of a part against eager, side by side.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::answer::{json_text, put, put_exact, warn};
use super::data_sets::{self, run_parts};
use super::dump_tolerance::Brought;
use super::exit::{Exit, Failure, Outcome, at};
use super::node_table::{self, Found, Rows};
use super::verdicts;
use crate::dump::reader::{self, CaseEntry, PartEntry, Place};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// A folder of dumps, a run, a graph, a part, a data set or a nodes_<step>.json
    #[arg(value_parser = data_sets::named())]
    path: PathBuf,
    #[command(flatten)]
    rows: Rows,
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

pub(super) fn run(args: &Arguments) -> Outcome {
    let found =
        files(&args.path)?.into_iter().map(|(step, path)| Found::read(step, path)).collect::<Result<Vec<_>, _>>()?;
    let total = verdicts::sum(found.iter().map(Found::total)).unwrap_or_default();
    let brought = Brought::of(found.iter().filter_map(|found| found.policy));
    let text = if args.json {
        json_text("sbs", json!({ "tables": found.iter().map(|found| found.json(&args.rows)).collect::<Vec<_>>() }))?
    } else if args.csv {
        node_table::csv(found.iter().flat_map(|found| found.lines(&args.rows)))
    } else if args.rows.are_any() && !args.wide {
        node_table::brief(&found, &args.path)
    } else {
        found.iter().map(|found| node_table::text_of(found, &args.rows, args.wide)).collect::<Vec<_>>().join("\n")
            + &node_table::legend(&found, &args.rows, args.wide)
    };
    match () {
        () if args.json => put(&text)?,
        () if args.csv => put_exact(&text)?,
        () => put(&(text + &brought.line()))?,
    }
    if found.is_empty() {
        warn(format_args!(
            "{}: no table of nodes (nodes_<step>.json); dump with the option compare=\"nodes\"",
            args.path.display()
        ));
    }
    Ok(Exit::from(total))
}

/// The step and the path of every table below a place. Errors: it cannot be listed, or is a file of another
/// kind.
fn files(path: &Path) -> Result<Vec<(u64, PathBuf)>, Failure> {
    let in_folder = |path: &Path| reader::node_files(path).map_err(at(path));
    let place = data_sets::find(path)?;
    if let Some(&damage) = place.damages().first() {
        return Err(Box::new(damage.clone()));
    }
    let parts: Vec<PartEntry> = match place {
        Place::Folder(runs) => runs.into_iter().flat_map(run_parts).collect(),
        Place::Run(run) => run_parts(run).collect(),
        Place::Graph(graph) => graph.parts,
        Place::Part(part) => vec![part],
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
        Place::Case(CaseEntry { path, .. }) | Place::Model(path) | Place::Tensor(path) | Place::Text(path) => {
            return Err(format!("{}: expected a nodes_<step>.json, or a folder of a dump", path.display()).into());
        }
    };
    let files = parts.iter().map(|part| in_folder(&part.path)).collect::<Result<Vec<_>, _>>()?;
    Ok(files.into_iter().flatten().collect())
}
