//! `rust-ort replay`: dumped parts run again, without Python.

mod again;
mod nodes;
mod repro;
mod runtime;
mod target;

use std::num::NonZeroU32;
use std::path::PathBuf;

use serde_json::json;

use self::again::Again;
use self::repro::{Alone, Repro};
use self::runtime::Runtime;
use super::table::{self, Failure, Give};
use super::{Exit, Outcome, compare, json_text, ls};
use crate::compare::{Summary, TensorVerdict, Verdict, distance_text, summary};
use crate::protocol::message::Optimization;
use crate::runtime::Executor as _;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// A folder of dumps, a run, a graph, a part, a data set or the folder of a node
    path: PathBuf,
    /// The data sets of this call only
    #[arg(long)]
    step: Option<u64>,
    /// Execution provider; give it several times for several, the preferred one first
    /// [default: the CPU's]
    #[arg(long)]
    provider: Vec<String>,
    /// Level of ONNX Runtime's graph optimizer: all, extended, basic or disable [default: as when it ran]
    #[arg(long, value_parser = optimization)]
    optimization: Option<Optimization>,
    /// Look at these values of the model: all, or names of values or FX nodes
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    nodes: Vec<String>,
    /// libonnxruntime.so* to load [default: RUST_ORT_ONNXRUNTIME, else the one of the run]
    #[arg(long, value_name = "LIB")]
    onnxruntime: Option<PathBuf>,
    /// Library of the model's custom operators; give it several times for several
    /// [default: as when it ran]
    #[arg(long, value_name = "LIB")]
    custom_op_library: Vec<PathBuf>,
    /// Threads of the runtime's pool; 0: one a core [default: as when it ran]
    #[arg(long)]
    threads: Option<u32>,
    /// Run each data set so many times
    #[arg(long, default_value = "1")]
    repeat: NonZeroU32,
    /// Write a folder that shows the same with only onnx, numpy and onnxruntime: of the part, or with --nodes NAME of
    /// that node alone, judged by eager's values where they were dumped
    #[arg(long, value_name = "FOLDER")]
    repro: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn optimization(name: &str) -> Result<Optimization, String> {
    let known = || Optimization::NAMES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    Optimization::from_name(name).ok_or_else(|| format!("expected one of {}", known()))
}

pub(super) fn run(args: &Arguments) -> Outcome {
    let targets = target::find(args)?;
    let Some(first) = targets.first() else {
        eprintln!("rust-ort: {}: no data sets", args.path.display());
        if args.json {
            table::put(&json_text("replay", json!({ "summary": Summary::default(), "data_sets": [] }))?)?;
        }
        return Ok(Exit::NothingCompared);
    };
    let repro = args.repro.as_deref().map(|folder| Repro::new(folder, &targets, &args.nodes)).transpose()?;
    // Before anything runs: a part that kills the process leaves its reproduction all the same.
    repro.iter().try_for_each(Repro::write_part)?;
    let runtime = Runtime::load(args, first)?;
    let mut node = match &repro {
        Some(repro) => repro.write_node(&runtime)?,
        None => None,
    };
    let mut again =
        targets.iter().map(|target| again::replay(args, &runtime, target)).collect::<Result<Vec<_>, _>>()?;
    again.iter_mut().for_each(|again| again.node = node.take());
    let total = summary(&again.iter().flat_map(Again::judged).cloned().collect::<Vec<_>>());
    let text = if args.json { json_of(&runtime, &again, total)? } else { text_of(&runtime, &again, total) };
    table::put(&text)?;
    if let Some(folder) = &args.repro {
        eprintln!("rust-ort: wrote {}; run it by `python {}`", folder.display(), folder.join("run.py").display());
    }
    Ok(Exit::from(total))
}

fn json_of(runtime: &Runtime, again: &[Again], total: Summary) -> Result<String, Failure> {
    let value = json!({
        "onnxruntime": { "version": runtime.executor.version(), "library": runtime.library },
        "summary": total, "data_sets": again,
    });
    Ok(json_text("replay", value)?)
}

fn text_of(runtime: &Runtime, again: &[Again], total: Summary) -> String {
    let width = table::width();
    let mut text = format!("onnxruntime {} from {}\n", runtime.executor.version(), runtime.library.display());
    for again in again {
        text += &table::fit(&format!("\n{}\n{}\n", again.path.display(), again.how()), table::terminal());
        if let Some(Alone { name, reference, verdict }) = &again.node {
            text += &format!("node {name} alone, against {reference}:\n");
            text += &compare::verdict_table(std::slice::from_ref(verdict), width);
        }
        if !again.verdicts.is_empty() {
            text += &format!("against eager:\n{}", compare::verdict_table(&again.verdicts, width));
        }
        if !again.actuals.is_empty() {
            text += &format!("against what ONNX Runtime gave then:\n{}", actuals_table(again, width));
        }
        if !again.nodes.is_empty() {
            text += &format!("nodes, and what optimizing changes in them:\n{}", nodes::table(&again.nodes, width));
        }
    }
    let counts = match ls::verdicts(Some(total)) {
        none if none == "-" => "there was nothing to judge against".to_owned(),
        counts => counts,
    };
    text + "\n" + &counts + "\n"
}

fn actuals_table(again: &Again, width: usize) -> String {
    let row = |actual: &again::Actual| {
        let verdict = &actual.verdict;
        let distance = verdict.metrics.as_ref().map_or("-".to_owned(), |metrics| distance_text(metrics.max_abs));
        let said = if actual.same_bits { "same bits".to_owned() } else { said(verdict) };
        vec![verdict.name.clone(), said, distance]
    };
    let gives = [Give::Middle, Give::End, Give::Never];
    table::aligned(&["name", "now", "max|Δ|"], &again.actuals.iter().map(row).collect::<Vec<_>>(), &gives, width)
}

/// A verdict in a cell.
fn said(verdict: &TensorVerdict) -> String {
    match &verdict.verdict {
        Verdict::Match => "match".to_owned(),
        Verdict::Mismatch => "MISMATCH".to_owned(),
        Verdict::NotCompared(reason) => format!("not compared: {reason}"),
        Verdict::Failed(reason) => format!("FAILED: {reason}"),
    }
}
