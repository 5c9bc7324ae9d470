//! `rust-ort keep`: which values of dumped half-precision parts to keep in float32.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use super::answer::{json_text, line, put, warn};
use super::dump_tolerance::Brought;
use super::exit::{Exit, Failure, Outcome};
use super::next;
use super::progress;
use super::rerun::{self, Runtime, Target};
use super::table::{self, Give, MOST_ROWS};
use super::tolerance_arguments::{ToleranceArguments, term};
use super::walls_argument::WallsArgument;
use crate::base::quoted::quoted;
use crate::compare::{Policy, distance_text, significant};
use crate::dump::Role;
use crate::keep::{
    Answer, By, Call, Culprit, Found, Judged, Limit, Output, Settings, Strategy, Subject, search, verify,
};
use crate::protocol::message::{CPU_PROVIDER, SessionSpec};
use crate::tensor::DType;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    what: rerun::Arguments,
    #[command(flatten)]
    tolerance: ToleranceArguments,
    /// In the place of a tolerance: each output's error at most so many times what rounding its exact value gives
    #[arg(long, value_name = "X", value_parser = term, conflicts_with_all = ["atol", "rtol", "scale"])]
    times: Option<f64>,
    /// What a rule names: node (few values) or module (the shortest list)
    #[arg(long, value_parser = by, default_value = "node")]
    by: By,
    /// greedy: those that contribute most, as many as it takes; smallest: and none of these that can be left out
    #[arg(long, value_parser = strategy, default_value = "smallest")]
    strategy: Strategy,
    /// Seconds for each part
    #[arg(long, value_name = "SECONDS", default_value_t = 600.)]
    budget: f64,
    /// Every part, output and rounding
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub(super) fn walls(&self) -> &WallsArgument {
        &self.what.walls
    }
}

fn by(name: &str) -> Result<By, String> {
    match name {
        "node" => Ok(By::Node),
        "module" => Ok(By::Module),
        _ => Err("expected one of node, module".to_owned()),
    }
}

fn strategy(name: &str) -> Result<Strategy, String> {
    match name {
        "greedy" => Ok(Strategy::Greedy),
        "smallest" => Ok(Strategy::Smallest),
        _ => Err("expected one of greedy, smallest".to_owned()),
    }
}

pub(super) fn run(args: &Arguments) -> Outcome {
    let budget = Duration::try_from_secs_f64(args.budget).map_err(|error| format!("--budget: {error}"))?;
    let targets = rerun::find(&args.what)?;
    if targets.is_empty() {
        warn(next::no_data_sets(&args.what.path));
        return Ok(Exit::NothingCompared);
    }
    rerun::refuse_idle(&args.what, &targets)?;
    refuse_divided(&targets)?;
    let runtime = Runtime::load(&args.what, &targets, &[])?;
    let providers = targets.iter().flat_map(|target| &target.providers).map(|(name, _)| name);
    if let Some(other) = providers.into_iter().find(|name| *name != CPU_PROVIDER) {
        return Err(format!(
            "{other}: rules of precision are followed on the CPU provider only; run it with --provider {CPU_PROVIDER}"
        )
        .into());
    }
    let (targets, left_out) = rerun::whole(&targets);
    if targets.is_empty() {
        return Ok(Exit::NothingCompared);
    }
    let brought = brought(args, &targets);
    let mut found = Vec::new();
    for (path, calls) in parts(targets) {
        let subject = subject(&runtime, &calls)?;
        let settings = Settings { limit: limit(args, &subject), by: args.by, strategy: args.strategy, budget };
        let bar = progress::bar(0, "runs");
        let mut at = |what: &'static str, done: usize, of: usize| {
            bar.set_message(what);
            bar.set_length(of as u64);
            bar.set_position(done as u64);
        };
        match search(&subject, runtime.runtime.as_ref(), &settings, &mut at) {
            Err(error) => return Err(format!("{}: {error}", path.display()).into()),
            Ok(None) => {}
            Ok(Some(answer)) => found.push((answer, subject, settings)),
        }
    }
    if found.is_empty() {
        let what = args.what.path.display();
        warn(format_args!("{what}: nothing of it is rounded to half precision, so there is nothing to keep"));
        return Ok(Exit::NothingCompared);
    }
    let rules = rules(&found);
    // What the budget did not reach is not verified.
    let mut verified = !is_unknown(found.iter().map(|(answer, ..)| answer));
    for (answer, subject, settings) in &mut found {
        // A rule of one part may fit nodes of another.
        if !rules.is_empty() {
            verified &= verify(subject, runtime.runtime.as_ref(), settings, &rules, answer)?;
        }
    }
    let answers: Vec<Answer> = found.into_iter().map(|(answer, ..)| answer).collect();
    let words = match args.all {
        true => answers.iter().map(all_of).collect::<Vec<_>>().join("\n"),
        false => brief(&answers),
    } + &rules_text(&answers, &rules, verified, left_out);
    let within = brought.words();
    let words = match within.is_empty() {
        true => words,
        false => line(format_args!("limits are{}", within.strip_prefix(" within").unwrap_or(&within))) + &words,
    };
    let text = match args.json {
        true => {
            let rules = json!({ "float32": rules });
            let policies = brought.json()?;
            let answer = json!({
                "rules": rules, "verified": verified, "answers": answers, "text": words, "policies_of_dump": policies,
            });
            json_text("keep", answer)?
        }
        false => words,
    };
    put(&text)?;
    Ok(exit(&answers, verified, left_out))
}

/// Roundings are looked for in what ONNX Runtime alone computes. Errors: a rule gives nodes to libtorch.
fn refuse_divided(targets: &[Target]) -> Result<(), Failure> {
    match rerun::of_libtorch(targets) {
        None => Ok(()),
        Some(rule) => Err(format!(
            "the rule {} gives nodes to libtorch, and keep looks at ONNX Runtime alone; --on 'ort:*' has it compute all",
            rerun::text_of(rule)
        )
        .into()),
    }
}

/// Whether the budget ended before some part had its rules.
fn is_unknown<'a>(answers: impl IntoIterator<Item = &'a Answer>) -> bool {
    answers.into_iter().any(|answer| answer.found == Found::Unknown)
}

fn exit(answers: &[Answer], verified: bool, left_out: usize) -> Exit {
    let is_unknown = is_unknown(answers);
    let is_unjudged = answers.iter().all(|answer| answer.found == Found::Unjudged);
    if answers.iter().any(|answer| !answer.beyond.is_empty()) || !(verified || is_unknown) {
        Exit::Mismatch
    } else if is_unknown || is_unjudged || left_out > 0 {
        Exit::NothingCompared
    } else {
        Exit::Success
    }
}

/// What was asked for, else that of the run, else of the half precision that takes part.
fn limit(args: &Arguments, subject: &Subject) -> Limit {
    let policy = Policy { given: subject.tolerance, through: subject.half(), ..Policy::default() };
    let default = policy.tolerance(DType::F32);
    args.times.map_or_else(|| Limit::Tolerance(args.tolerance.over(default).or(subject.tolerance)), Limit::Times)
}

/// The tolerances that the dump brings, unless others are asked for.
fn brought(args: &Arguments, targets: &[&Target]) -> Brought {
    if args.times.is_some() || args.tolerance.is_whole() {
        return Brought::default();
    }
    Brought::of(targets.iter().map(|target| Policy { given: target.tolerance(), ..Policy::default() }))
}

/// The data sets of each part.
fn parts(targets: Vec<&Target>) -> Vec<(PathBuf, Vec<&Target>)> {
    let mut parts: Vec<(PathBuf, Vec<&Target>)> = Vec::new();
    for target in targets {
        match parts.iter_mut().find(|(path, _)| *path == target.part) {
            Some((_, calls)) => calls.push(target),
            None => parts.push((target.part.clone(), vec![target])),
        }
    }
    parts
}

/// A dumped part and its calls. Errors: a file that cannot be read.
fn subject(runtime: &Runtime, targets: &[&Target]) -> Result<Subject, Failure> {
    let first = targets[0];
    let call = |target: &&Target| -> Result<Call, Failure> {
        Ok(Call { step: target.step.step, feeds: target.tensors(Role::Input)? })
    };
    let name = |path: Option<&std::path::Path>| {
        path.and_then(std::path::Path::file_name).unwrap_or_default().to_string_lossy().into_owned()
    };
    let part = name(Some(&first.part));
    let subject = Subject {
        graph: name(first.part.parent()),
        part: part.strip_prefix("part_").and_then(|number| number.parse().ok()).unwrap_or_default(),
        model: first.exported()?,
        told: first.told()?,
        roles: first.roles()?,
        spec: SessionSpec { keep_float32: Vec::new(), runtimes: Vec::new(), ..runtime.spec_of(first)? },
        tolerance: first.tolerance(),
        calls: targets.iter().map(call).collect::<Result<_, _>>()?,
    };
    if subject.told.is_empty() && subject.half().is_some() {
        let path = first.part.display();
        return Err(
            format!("{path}/provenance.json tells of no value: what is rounded is not known; dump it again").into()
        );
    }
    Ok(subject)
}

/// Of all parts, in their order.
fn rules(found: &[(Answer, Subject, Settings)]) -> Vec<String> {
    let mut rules: Vec<String> = Vec::new();
    for (answer, ..) in found {
        let Found::Rules { float32 } = &answer.found else { continue };
        let new = float32.iter().filter(|rule| !rules.contains(rule)).cloned().collect::<Vec<_>>();
        rules.extend(new);
    }
    rules
}

fn rules_text(answers: &[Answer], rules: &[String], verified: bool, left_out: usize) -> String {
    let mut text = String::new();
    if !rules.is_empty() {
        let list = rules.iter().map(|rule| quoted(rule)).collect::<Vec<_>>().join(", ");
        text += &format!("\nprecision_rules={{\"float32\": ({list},)}}\n");
        text += match verified {
            false if is_unknown(answers) => "not checked: the time was up before every part had its rules\n",
            true => "checked: with these rules every output within reach is within its limit\n",
            false => "NOT ENOUGH: with these rules an output is not within its limit\n",
        };
    }
    if left_out > 0 {
        text += &line(format_args!("data sets that are not whole, left out: {left_out}"));
    }
    text
}

/// Parts with something to do, each with what tells most; of the others how many there are, and what is to be known of them.
fn brief(answers: &[Answer]) -> String {
    let (within, others): (Vec<&Answer>, Vec<&Answer>) =
        answers.iter().partition(|answer| answer.found == Found::Within && answer.complete);
    let part = |answer: &&Answer| {
        let Answer { found, outputs, culprits, .. } = answer;
        let is_still = |output: &Output| output.after.as_ref().is_some_and(|after| !after.within);
        let wrong: Vec<&Output> = outputs.iter().filter(|output| !output.before.within || is_still(output)).collect();
        let rules: &[String] = if let Found::Rules { float32 } = found { float32 } else { &[] };
        let of_rules = |culprit: &&Culprit| rules.is_empty() || rules.contains(&culprit.pattern);
        let mut roundings: Vec<&Culprit> = culprits.iter().filter(of_rules).collect();
        roundings.truncate(MOST_ROWS);
        let n_hidden = culprits.len() - roundings.len();
        let mut text = headline(answer) + &outputs_table(&wrong, &answer.reference, MOST_ROWS, outputs.len());
        if !roundings.is_empty() {
            text += &culprits_table(&roundings);
            text += &table::hidden(roundings.len(), std::iter::once(("of less", n_hidden)), "rounding");
        }
        text + &beside(answer) + &notes(&[answer]) + &cost(&[answer])
    };
    let mut texts: Vec<String> = others.iter().map(part).collect();
    if let [first, ..] = within.as_slice() {
        let head = if within.len() == 1 {
            headline(first)
        } else {
            line(format_args!("{} parts of {}: every output is within its limit as it is", within.len(), answers.len()))
        };
        let beside: String = within.iter().map(|answer| beside(answer)).collect();
        texts.push(head + &beside + &notes(&within) + &cost(&within));
    }
    texts.join("\n")
}

/// A part in full.
fn all_of(answer: &Answer) -> String {
    let Answer { reference, culprits, outputs, .. } = answer;
    let every: Vec<&Output> = outputs.iter().collect();
    let mut text = headline(answer) + &outputs_table(&every, reference, usize::MAX, outputs.len());
    if !culprits.is_empty() {
        text += &culprits_table(&culprits.iter().collect::<Vec<_>>());
    }
    text + &beside(answer) + &notes(&[answer]) + &cost(&[answer])
}

fn headline(answer: &Answer) -> String {
    let Answer { graph, part, steps, found, outputs, beyond, .. } = answer;
    let steps = steps.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    let failing = outputs.iter().filter(|output| !output.before.within).count();
    let n = outputs.len();
    let told = match found {
        Found::Within => "every output is within its limit as it is".to_owned(),
        Found::Rules { float32 } => {
            // By the model compiled with the rules, where it was: the search rounds a value at a time.
            let still =
                |output: &&Output| output.after.as_ref().map_or(beyond.contains(&output.name), |after| !after.within);
            let (n_rules, n_left) = (float32.len(), outputs.iter().filter(still).count());
            let end = if n_left == 0 { "all are".to_owned() } else { format!("{n_left} are not") };
            format!("{failing} of {n} outputs are not within their limit; with {n_rules} kept in float32 {end}")
        }
        Found::Impossible => format!("{failing} of {n} outputs are not within their limit, whatever is kept"),
        Found::Unjudged => "no output is a float: nothing is judged".to_owned(),
        Found::Unknown => format!("{failing} of {n} outputs are not within their limit; the time was up"),
    };
    line(format_args!("{graph} part {part} step {steps}: {told}"))
}

/// What keeps rules from helping.
fn beside(answer: &Answer) -> String {
    let mut text = String::new();
    if !answer.beyond.is_empty() {
        let names = answer.beyond.join(", ");
        text += &line(format_args!(
            "beyond reach: {names}: with everything kept its own rounding takes it out of its limit"
        ));
    }
    if !answer.infinite_inputs.is_empty() {
        let names = answer.infinite_inputs.join(", ");
        text += &line(format_args!(
            "infinite or NaN came in: {names}; if a graph before this one overflowed, dump again with its rules"
        ));
    }
    text
}

/// Each once, of several parts with their number.
fn notes(answers: &[&Answer]) -> String {
    let counts = table::counted(answers.iter().flat_map(|answer| &answer.notes));
    let of = |n: usize| if answers.len() > 1 { format!(", {n} of them") } else { String::new() };
    counts.into_iter().map(|(note, n)| line(format_args!("note{}: {note}", of(n)))).collect()
}

fn cost(answers: &[&Answer]) -> String {
    let n_runs: u64 = answers.iter().map(|answer| answer.n_runs).sum();
    let seconds: f64 = answers.iter().map(|answer| answer.seconds).sum();
    let end = if answers.iter().all(|answer| answer.complete) { "" } else { "; not complete" };
    line(format_args!("{n_runs} runs, {seconds:.1} s{end}"))
}

/// The worst of these, at most so many; the rest of all `n` is counted.
fn outputs_table(outputs: &[&Output], reference: &str, most: usize, n: usize) -> String {
    let mut worst: Vec<&&Output> = outputs.iter().collect();
    let times = |output: &Output| (!output.before.within, output.before.times.unwrap_or(f64::INFINITY));
    worst.sort_by(|one, other| times(other).partial_cmp(&times(one)).unwrap_or(std::cmp::Ordering::Equal));
    worst.truncate(most);
    let n_wrong = outputs.iter().filter(|output| !output.before.within).count();
    let shown_wrong = worst.iter().filter(|output| !output.before.within).count();
    let row = |output: &&&Output| {
        let after = output.after.as_ref().map_or_else(|| "-".to_owned(), error);
        vec![output.name.clone(), error(&output.before), after, error(&output.everything), output.role.clone()]
    };
    let rows: Vec<Vec<String>> = worst.iter().map(row).collect();
    let n_within = n - rows.len() - (n_wrong - shown_wrong);
    let hidden = [("not within", n_wrong - shown_wrong), ("within", n_within)];
    let hidden = table::hidden(rows.len(), hidden.into_iter(), "output");
    if rows.is_empty() {
        return hidden;
    }
    let header = ["output", "as it is", "with the rules", "all kept", "what it is"];
    use Give::{End, Middle, Never};
    let table = table::aligned(&header, &rows, &[Middle, Never, Never, Never, End], table::width());
    format!("max|Δ|/max|r| against {reference} (root mean square, in roundings of the output):\n{table}{hidden}")
}

fn error(judged: &Judged) -> String {
    let distance =
        judged.verdict.metrics.as_ref().map_or_else(|| "-".to_owned(), |metrics| distance_text(metrics.max_rel_to_max));
    let times = judged.times.map_or_else(|| "inf".to_owned(), |times| significant(times, 3));
    let mark = if judged.within { "" } else { " !" };
    format!("{distance} ({times}){mark}")
}

fn culprits_table(culprits: &[&Culprit]) -> String {
    let row = |culprit: &&Culprit| {
        let Culprit { pattern, share, output, n_infinite, .. } = culprit;
        let infinite = if *n_infinite > 0 { n_infinite.to_string() } else { "-".to_owned() };
        vec![pattern.clone(), format!("{} %", significant(100. * share, 3)), output.clone(), infinite, place(culprit)]
    };
    let rows: Vec<Vec<String>> = culprits.iter().map(row).collect();
    let header = ["rounding", "share", "of", "infinite", "operator, module, line"];
    use Give::{End, Middle, Never};
    let table = table::aligned(&header, &rows, &[Middle, Never, Middle, Never, End], table::width());
    format!("\nwhat each rounding alone makes of an output's squared error:\n{table}")
}

/// "aten.mm.default in model.layers.0.mlp at model.py:12".
fn place(culprit: &Culprit) -> String {
    let parts = [("", &culprit.op), ("in ", &culprit.module), ("at ", &culprit.source)];
    let parts = parts.into_iter().filter(|(_, text)| !text.is_empty()).map(|(before, text)| format!("{before}{text}"));
    parts.collect::<Vec<_>>().join(" ")
}
