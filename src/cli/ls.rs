//! `rust-ort ls`: what a folder of dumps holds.

use std::path::PathBuf;

use serde_json::json;

use super::answer::{json_text, put};
use super::exit::{Failure, Outcome};
use super::{data_sets, listing, table};
use crate::dump::reader::Place;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// A folder of dumps, a run, a graph, a part, a data set or the folder of a node
    #[arg(default_value = data_sets::DUMPS, value_parser = data_sets::named())]
    folder: PathBuf,
    /// One line a step
    #[arg(long)]
    steps: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Arguments) -> Outcome {
    let place = data_sets::find(&args.folder)?;
    let text = if args.json { json_of(&place)? } else { listing::text_of(&place, args.steps, table::width()) };
    put(&text)?;
    listing::told(place)
}

fn json_of(place: &Place) -> Result<String, Failure> {
    let value = match place {
        Place::Folder(runs) => json!({ "runs": runs }),
        Place::Run(run) => json!(run),
        Place::Graph(graph) => json!(graph),
        Place::Part(part) => json!(part),
        Place::Case(case) => json!(case),
        Place::Step(step) => json!(step),
        Place::Model(path) | Place::Tensor(path) | Place::Json(path) | Place::Text(path) => json!({ "file": path }),
    };
    Ok(json_text("ls", value)?)
}
