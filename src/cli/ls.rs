//! `rust-ort ls`: what a folder of dumps holds.

use std::path::PathBuf;

use serde_json::json;

use super::answer::{json_text, put, warn};
use super::exit::{Exit, Failure, Outcome};
use super::{data_sets, listing, table};
use crate::dump::Damage;
use crate::dump::reader::{self, Completeness, Place};

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
    let text = if args.json { json_of(&place)? } else { listing::text_of(&place, args.steps, table::width()) };
    put(&text)?;
    let damaged = damages(place)?;
    damaged.iter().for_each(|damage| warn(format_args!("{damage}")));
    Ok(if damaged.is_empty() { Exit::Success } else { Exit::Damaged })
}

/// Of what is listed.
fn damages(place: Place) -> Result<Vec<Damage>, Failure> {
    let mut damaged: Vec<Damage> = place.damages().into_iter().cloned().collect();
    if !matches!(place, Place::Model(_) | Place::Tensor(_) | Place::Json(_)) {
        damaged.extend(data_sets::steps(place)?.into_iter().filter_map(|step| match step.state {
            Completeness::Damaged(damage) => Some(damage),
            _ => None,
        }));
    }
    Ok(damaged)
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
