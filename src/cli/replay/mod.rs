//! `rust-ort replay`: dumped parts run again, without Python.

mod arguments;
mod nodes;
mod readme;
mod replayed;
mod repro;

use serde_json::json;

pub(super) use self::arguments::Arguments;
use self::replayed::Again;
use self::repro::Alone;
pub(super) use self::repro::Repro;
use super::answer::{json_text, line, put, warn};
use super::data_sets;
use super::dump_tolerance::Brought;
use super::exit::{Exit, Failure, Outcome};
use super::next;
use super::rerun::{self, Runtime, Which};
use super::table::{self, Give, MOST_ROWS};
use super::verdicts;
use crate::compare::{Summary, TensorVerdict, Verdict, distance_text, summary};

pub(super) fn run(args: &Arguments) -> Outcome {
    let targets = rerun::find(&args.what)?;
    if targets.is_empty() {
        warn(next::no_data_sets(&args.what.path));
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
    let runtime = Runtime::load(&args.what, &targets, args.repro.as_deref().as_slice())?;
    let mut node = match &repro {
        Some(repro) => repro.write_node(&runtime)?,
        None => None,
    };
    let mut again =
        targets.iter().map(|target| replayed::replay(args, &runtime, target)).collect::<Result<Vec<_>, _>>()?;
    again.iter_mut().for_each(|again| again.node = node.take());
    let total = summary(again.iter().flat_map(Again::judged));
    let text = if args.json { json_of(&runtime, &again, total)? } else { text_of(args, &runtime, &again, total) };
    put(&text)?;
    if let Some(folder) = &args.repro {
        warn(format_args!("wrote {}; run it by `python {}`", folder.display(), folder.join("run.py").display()));
    }
    Ok(match Exit::from(total) {
        Exit::Success if targets.iter().any(|target| target.missing().is_some()) => Exit::NothingCompared,
        exit => exit,
    })
}

fn json_of(runtime: &Runtime, again: &[Again], total: Summary) -> Result<String, Failure> {
    let value = json!({
        runtime.name(): { "version": runtime.runtime.version(), "library": runtime.library },
        "summary": total, "data_sets": again, "policies_of_dump": brought(again).json()?,
    });
    Ok(json_text("replay", value)?)
}

fn text_of(args: &Arguments, runtime: &Runtime, again: &[Again], total: Summary) -> String {
    let width = table::width();
    let title = line(format_args!("{} from {}", runtime.title(), runtime.library.display()));
    let told = if args.all { all_of(again, width) } else { brief(again, width) };
    let counts = verdicts::counts(total).map(|counts| counts + &brought(again).words());
    let counts = counts.unwrap_or_else(|| {
        format!("there was nothing to judge against: no outputs were dumped; {}", next::DUMP_OUTPUTS)
    });
    let path = &args.what.path;
    let is_wrong = |again: &&Again| again.judged().any(|verdict| !verdict.verdict.is_pass());
    let next = match (args.all, total.mismatch + total.failed) {
        (true, _) => String::new(),
        (false, 0) => next::command("replay", path, "--all"),
        (false, _) => next::blame(path, again.iter().filter(is_wrong).filter_map(|again| again.path.parent())),
    };
    title + &told + "\n" + &counts + "\n" + &next
}

fn brought(again: &[Again]) -> Brought {
    Brought::of(again.iter().map(|again| again.policy))
}

/// Data set by data set.
fn all_of(again: &[Again], width: usize) -> String {
    let mut text = String::new();
    for again in again {
        let heading = "\n".to_owned() + &line(again.path.display()) + &line(again.how());
        text += &table::fit(&heading, table::terminal());
        text += &asked_for(again, width);
        if !again.verdicts.is_empty() {
            text += &format!("against eager:\n{}", verdicts::table(&again.verdicts, width));
        }
        if !again.actuals.is_empty() {
            let actuals: Vec<_> = again.actuals.iter().collect();
            text += &format!("against what it gave then:\n{}", actuals_table(&actuals, width));
        }
    }
    text
}

/// All data sets together: of outputs those that tell most.
fn brief(again: &[Again], width: usize) -> String {
    let mut text = String::new();
    let (shown, more) = again.split_at(again.len().min(MOST_ROWS));
    for again in shown {
        let heading = line(again.path.display()) + "  " + &line(again.how());
        text += &table::fit(&heading, table::terminal());
    }
    text += &table::hidden(shown.len(), std::iter::once(("run", more.len())), "data set");
    text += &again.iter().map(|again| asked_for(again, width)).collect::<String>();
    let place = |again: &Again| if shown.len() > 1 { data_sets::place(&again.path) } else { String::new() };
    let judged: Vec<(String, &TensorVerdict)> =
        again.iter().flat_map(|again| again.verdicts.iter().map(move |verdict| (place(again), verdict))).collect();
    if !judged.is_empty() {
        text += &format!("against eager:\n{}", verdicts::brief(&judged, "output", width));
    }
    let actuals: Vec<&replayed::Actual> = again.iter().flat_map(|again| &again.actuals).collect();
    if !actuals.is_empty() {
        text += &format!("against what it gave then:\n{}", brief_of_actuals(&actuals, width));
    }
    text
}

/// What is told however much else is: that it is not whole, and what was asked for: who computed what, a node alone, values
/// inside.
fn asked_for(again: &Again, width: usize) -> String {
    let mut text = String::new();
    if let Some(why) = &again.missing {
        text += &line(format_args!("not whole: {why}; what there is of it is run, which is no pass"));
    }
    text += &again.who();
    if let Some(Alone { name, reference, verdict }) = &again.node {
        text += &line(format_args!("node {name} alone, against {reference}:"));
        text += &verdicts::table(std::slice::from_ref(verdict), width);
    }
    if !again.nodes.is_empty() {
        text += &format!("nodes, and what optimizing changes in them:\n{}", nodes::table(&again.nodes, width));
    }
    text
}

fn brief_of_actuals(actuals: &[&replayed::Actual], width: usize) -> String {
    let (same, others): (Vec<&replayed::Actual>, Vec<&replayed::Actual>) =
        actuals.iter().copied().partition(|actual| actual.same_bits);
    let count = |is: fn(&Verdict) -> bool| others.iter().filter(|actual| is(&actual.verdict.verdict)).count();
    let near = count(|verdict| *verdict == Verdict::Match);
    let not_compared = count(|verdict| matches!(verdict, Verdict::NotCompared(_)));
    let is_telling =
        |actual: &&replayed::Actual| !matches!(actual.verdict.verdict, Verdict::Match | Verdict::NotCompared(_));
    let telling: Vec<&replayed::Actual> = others.iter().copied().filter(is_telling).take(MOST_ROWS).collect();
    let more = others.len() - near - not_compared - telling.len();
    let counts = [("same bits", same.len()), ("match", near), ("not compared", not_compared), ("not matching", more)];
    let table = if telling.is_empty() { String::new() } else { actuals_table(&telling, width) };
    table + &table::hidden(telling.len(), counts.into_iter(), "output")
}

fn actuals_table(actuals: &[&replayed::Actual], width: usize) -> String {
    let row = |actual: &&replayed::Actual| {
        let verdict = &actual.verdict;
        let distance = verdict.metrics.as_ref().map_or("-".to_owned(), |metrics| distance_text(metrics.max_abs));
        let said = if actual.same_bits { "same bits".to_owned() } else { verdicts::said(&verdict.verdict) };
        vec![verdict.name.clone(), said, distance]
    };
    let gives = [Give::Middle, Give::End, Give::Never];
    table::aligned(&["name", "now", "max|Δ|"], &actuals.iter().map(row).collect::<Vec<_>>(), &gives, width)
}
