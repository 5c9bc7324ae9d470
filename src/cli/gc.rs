//! `rust-ort gc`: make room in a folder of dumps.

use std::path::PathBuf;

use super::{Exit, Outcome, table};
use crate::dump;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// A folder of dumps
    folder: PathBuf,
    /// Keep this many of the newest data sets of each part [default: all]
    #[arg(long)]
    keep: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Arguments) -> Outcome {
    let removed = dump::gc(&args.folder, args.keep)?;
    let text = if args.json {
        serde_json::to_string_pretty(&removed)? + "\n"
    } else {
        let dump::Removed { steps, tensors, leftovers, bytes } = removed;
        format!("removed {steps} data sets, {tensors} tensors and {leftovers} leftovers: {bytes} bytes\n")
    };
    table::put(&text)?;
    Ok(Exit::Success)
}
