//! `rust-ort gc`: make room in a folder of dumps.

use std::path::PathBuf;

use super::answer::{line, mebibytes, tell};
use super::data_sets;
use super::exit::Outcome;
use crate::dump;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// A folder of dumps
    #[arg(default_value = data_sets::DUMPS)]
    folder: PathBuf,
    /// Keep this many of the newest data sets of each part [default: all]
    #[arg(long)]
    keep: Option<usize>,
    /// Remove nothing; say what would go
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Arguments) -> Outcome {
    let removed = dump::gc(&args.folder, args.keep, args.dry_run)?;
    tell("gc", args.json, serde_json::to_value(&removed)?, &text_of(&removed, args.dry_run))
}

fn text_of(removed: &dump::Removed, dry_run: bool) -> String {
    let dump::Removed { steps, tensors, leftovers, bytes, kept } = removed;
    let size = mebibytes(*bytes);
    let kept = kept.iter().map(|kept| line(format_args!("{} stays: {}", kept.path.display(), kept.reason)));
    let word = if dry_run { "would remove" } else { "removed" };
    line(format_args!("{word} {steps} data sets, {tensors} tensors and {leftovers} leftovers: {size} ({bytes} bytes)"))
        + &kept.collect::<String>()
}
