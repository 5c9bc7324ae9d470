//! `rust-ort report`: what a dump tells, as one page that a browser opens from the disk.
//!
//! `data.rs` collects what `show`, `compare`, `sbs`, `blame` and `dot` read, `html.rs` writes the page, `app/` is the program in
//! it. docs/design/report.md describes the data field by field.

mod card;
mod data;
mod html;
mod shortened;
mod steps;

use std::path::PathBuf;

use serde_json::json;

use super::answer::{json_text, mebibytes, put, tell};
use super::data_sets;
use super::exit::{Exit, Outcome};
use super::model_argument::not_a_model;
use super::output_file::OutputFile;

/// The page, where none is named.
const PAGE: &str = "report.html";

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// A run, a graph, a part, a data set or the folder of a node; a folder of dumps with one run
    #[arg(value_parser = data_sets::named())]
    path: PathBuf,
    /// The page; a file that is there is replaced. `-`: to standard output
    #[arg(short, long, value_name = "FILE", default_value = PAGE)]
    output: PathBuf,
    /// Print the page's data as JSON, and write no page
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

pub(super) fn run(args: &Arguments) -> Outcome {
    let page = if args.json { None } else { Some(OutputFile::at(&args.output, Vec::new())?) };
    if page.is_some() {
        not_a_model(&args.output, "page")?;
    }
    let report = data::report(&args.path)?;
    let Some(page) = page else {
        put(&json_text("report", report)?)?;
        return Ok(Exit::Success);
    };
    let verdict = report["verdict"]["text"].as_str().unwrap_or_default().to_owned();
    let text = html::page(report)?;
    page.write(text.as_bytes())?;
    if page.is_stdout() {
        return Ok(Exit::Success);
    }
    let words = format!("{}: {} ({})\n", args.output.display(), verdict, mebibytes(text.len() as u64));
    tell("report", false, json!({}), &words)
}
