//! `rust-ort replay`: dumped parts run again, without Python.

mod again;
mod arguments;
mod nodes;
mod repro;

use serde_json::json;

use self::again::Again;
pub(super) use self::arguments::Arguments;
use self::repro::Alone;
pub(super) use self::repro::Repro;
use super::answer::{json_text, put, warn};
use super::exit::{Exit, Failure, Outcome};
use super::rerun::{self, Runtime, Which};
use super::table::{self, Give};
use super::verdicts;
use crate::compare::{Summary, distance_text, summary};

pub(super) fn run(args: &Arguments) -> Outcome {
    let targets = rerun::find(&args.what)?;
    if targets.is_empty() {
        warn(format_args!("{}: no data sets", args.what.path.display()));
        if args.json {
            put(&json_text("replay", json!({ "summary": Summary::default(), "data_sets": [] }))?)?;
        }
        return Ok(Exit::NothingCompared);
    }
    let of_libtorch = rerun::of_libtorch(&targets);
    if args.repro.is_some() && (args.what.runtime != Which::Ort || of_libtorch.is_some()) {
        let rule = of_libtorch.map(|rule| format!("the rule {} gives nodes to libtorch, and ", rerun::text_of(rule)));
        let rule = rule.unwrap_or_default();
        return Err(format!("{rule}--repro shows what ONNX Runtime does: leave out --runtime, or --on 'ort:*'").into());
    }
    let repro = args.repro.as_deref().map(|folder| Repro::new(folder, &targets, &args.nodes)).transpose()?;
    // Before anything runs: a part that kills the process leaves its reproduction all the same.
    repro.iter().try_for_each(Repro::write_part)?;
    rerun::refuse_idle(&args.what, &targets)?;
    let runtime = Runtime::load(&args.what, &targets)?;
    let mut node = match &repro {
        Some(repro) => repro.write_node(&runtime)?,
        None => None,
    };
    let mut again =
        targets.iter().map(|target| again::replay(args, &runtime, target)).collect::<Result<Vec<_>, _>>()?;
    again.iter_mut().for_each(|again| again.node = node.take());
    let total = summary(&again.iter().flat_map(Again::judged).cloned().collect::<Vec<_>>());
    let text = if args.json { json_of(&runtime, &again, total)? } else { text_of(&runtime, &again, total) };
    put(&text)?;
    if let Some(folder) = &args.repro {
        warn(format_args!("wrote {}; run it by `python {}`", folder.display(), folder.join("run.py").display()));
    }
    Ok(Exit::from(total))
}

fn json_of(runtime: &Runtime, again: &[Again], total: Summary) -> Result<String, Failure> {
    let value = json!({
        runtime.name(): { "version": runtime.runtime.version(), "library": runtime.library },
        "summary": total, "data_sets": again,
    });
    Ok(json_text("replay", value)?)
}

fn text_of(runtime: &Runtime, again: &[Again], total: Summary) -> String {
    let width = table::width();
    let mut text = format!("{} from {}\n", runtime.title(), runtime.library.display());
    for again in again {
        text += &table::fit(&format!("\n{}\n{}\n", again.path.display(), again.how()), table::terminal());
        text += &again.who();
        if let Some(Alone { name, reference, verdict }) = &again.node {
            text += &format!("node {name} alone, against {reference}:\n");
            text += &verdicts::table(std::slice::from_ref(verdict), width);
        }
        if !again.verdicts.is_empty() {
            text += &format!("against eager:\n{}", verdicts::table(&again.verdicts, width));
        }
        if !again.actuals.is_empty() {
            text += &format!("against what it gave then:\n{}", actuals_table(again, width));
        }
        if !again.nodes.is_empty() {
            text += &format!("nodes, and what optimizing changes in them:\n{}", nodes::table(&again.nodes, width));
        }
    }
    let counts = verdicts::counts(total).unwrap_or_else(|| "there was nothing to judge against".to_owned());
    text + "\n" + &counts + "\n"
}

fn actuals_table(again: &Again, width: usize) -> String {
    let row = |actual: &again::Actual| {
        let verdict = &actual.verdict;
        let distance = verdict.metrics.as_ref().map_or("-".to_owned(), |metrics| distance_text(metrics.max_abs));
        let said = if actual.same_bits { "same bits".to_owned() } else { verdicts::said(&verdict.verdict) };
        vec![verdict.name.clone(), said, distance]
    };
    let gives = [Give::Middle, Give::End, Give::Never];
    table::aligned(&["name", "now", "max|Δ|"], &again.actuals.iter().map(row).collect::<Vec<_>>(), &gives, width)
}
