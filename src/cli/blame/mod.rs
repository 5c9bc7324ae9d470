//! `rust-ort blame`: who made the outputs of dumped parts differ from eager.

mod text;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::answer::{json_text, put, warn};
use super::dump_tolerance::Brought;
use super::exit::{Exit, Failure, Outcome, at};
use super::nearest::hint;
use super::next;
use super::own_mark::Keeper;
use super::progress;
use super::replay::Repro;
use super::rerun::{self, Runtime, Target};
use super::verdicts;
use super::walls_argument::WallsArgument;
use crate::base::files::write_whole;
use crate::base::identity::Identity;
use crate::base::ids::ValueName;
use crate::blame::{
    Answer, Case, Contribution, Culprit, OptimizerKind, Parts, Progress, Settings, Strategy, Values, counted, examine,
    together,
};
use crate::dump::reader::StepEntry;
use crate::dump::{BLAME_SCHEMA, Damage, Judging, NODES_SCHEMA, NodeTable, Role, reader, to_json};
use crate::onnx::{NamedTensor, sort};
pub(super) use text::headline;

/// How a report names the gradient of what follows.
const GRAD_OF: &str = "grad of ";

/// By default a part may take so many times as long as eager took for its nodes, and [`LEAST_BUDGET`] at least.
const BUDGET_FACTOR: f64 = 50.;
const LEAST_BUDGET: Duration = Duration::from_secs(60);
/// Of eager's values in memory, in MiB: as the option `compare_memory`.
const MEMORY_MIB: &str = "1024";

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    what: rerun::Arguments,
    /// Explain this output of a part only
    #[arg(long, value_name = "NAME", conflicts_with = "gradient")]
    output: Option<String>,
    /// Explain the gradient of this parameter or input only
    #[arg(long, value_name = "NAME")]
    gradient: Option<String>,
    /// How to go through the nodes: linear, bisect or delta [default: linear where they were compared, else bisect]
    #[arg(long, value_parser = strategy)]
    strategy: Option<Strategy>,
    /// Seconds for each data set [default: 50 times what eager took, at least 60]
    #[arg(long, value_name = "SECONDS")]
    budget: Option<f64>,
    /// Of eager's values so many MiB are held in memory
    #[arg(long, value_name = "MIB", default_value = MEMORY_MIB)]
    memory: usize,
    /// Explain outputs within tolerance, too: what comes after made more of their error
    #[arg(long)]
    follow: bool,
    /// Do not go on from what an earlier run found
    #[arg(long)]
    fresh: bool,
    /// Write a folder that shows the first one to blame with only onnx, numpy and onnxruntime
    #[arg(long, value_name = "FOLDER")]
    repro: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub(super) fn walls(&self) -> &WallsArgument {
        &self.what.walls
    }
}

fn strategy(name: &str) -> Result<Strategy, String> {
    match name {
        "linear" => Ok(Strategy::Linear),
        "bisect" => Ok(Strategy::Bisect),
        "delta" => Ok(Strategy::Delta),
        _ => Err("expected one of linear, bisect, delta".to_owned()),
    }
}

/// An examination, to be gone on with.
#[derive(Serialize, Deserialize)]
struct Kept {
    schema: String,
    /// What it is of: another model, library or setting is another examination.
    key: String,
    nodes: Vec<Contribution>,
    answer: Option<Answer>,
    /// Whose it is: somebody else's is not gone on with.
    #[serde(default)]
    mark: String,
}

/// What an earlier run found of a step of a part.
pub(super) struct Earlier {
    /// None: the run was cut short.
    pub(super) answer: Option<Answer>,
    /// This user's own program wrote it.
    pub(super) is_own: bool,
    /// It is of the data set as it is now.
    pub(super) is_current: bool,
}

/// What is kept beside a part; None where nothing is. own: whose is believed. Errors: it is damaged, or of another version.
pub(super) fn earlier(part: &Path, step: &StepEntry, own: Option<&Keeper>) -> Result<Option<Earlier>, Failure> {
    let path = reader::blame_file(part, step.step);
    let Some(value) = reader::json_if_there(&path)? else { return Ok(None) };
    let is_own = own.is_some_and(|own| own.made(&value));
    let kept: Kept = serde_json::from_value(value).map_err(at(&path))?;
    if kept.schema != BLAME_SCHEMA {
        return Err(format!(
            "{}: expected {BLAME_SCHEMA}, got {:?}; run rust-ort blame again",
            path.display(),
            kept.schema
        )
        .into());
    }
    let content = reader::content_of(&step.path, part, step.step);
    // The hash of the model comes first.
    let is_current = kept.key.split(' ').nth(1) == Some(content.as_str());
    Ok(Some(Earlier { answer: kept.answer, is_own, is_current }))
}

pub(super) fn run(args: &Arguments) -> Outcome {
    let targets = rerun::find(&args.what)?;
    if targets.is_empty() {
        warn(next::no_data_sets(&args.what.path));
        return Ok(Exit::NothingCompared);
    }
    let repro = args.repro.as_deref();
    repro.map(Repro::claim).transpose()?;
    rerun::refuse_idle(&args.what, &targets)?;
    let own = own();
    // What is found stays beside each part.
    let written: Vec<&Path> = targets.iter().map(|target| target.part.as_path()).chain(repro).collect();
    let runtime = Runtime::load(&args.what, &targets, &written)?;
    let mut answers = Vec::new();
    let mut known_outputs = Vec::new();
    let (whole, left_out) = rerun::whole(&targets);
    let brought = brought_by(&whole)?;
    for target in whole {
        let case = case_of(&runtime, target, memory_bytes(args.memory))?;
        let outputs = Outputs { case: &case, roles: target.roles()? };
        known_outputs.extend(case.actuals.iter().map(|actual| outputs.described(&actual.name)));
        let output = match outputs.asked(args) {
            Asked::All => None,
            Asked::One(name) => Some(name),
            Asked::Elsewhere => continue,
        };
        let answer = examined(args, &runtime, own.as_ref(), target, &case, output, args.follow)?;
        let names = |tensors: &[NamedTensor]| tensors.iter().map(|tensor| tensor.name.clone()).collect();
        answers.push(Examined { target, answer, reads: names(&case.feeds), gives: names(&case.actuals) });
    }
    let mut answers = in_order(answers);
    follow_inputs(args, &runtime, own.as_ref(), &mut answers)?;
    if left_out == targets.len() {
        return Ok(Exit::NothingCompared);
    }
    if answers.is_empty() {
        let name = args.output.as_ref().or(args.gradient.as_ref()).map(String::as_str).unwrap_or_default();
        return Err(unknown(name, &known_outputs).into());
    }
    let repro = repro.map(|folder| write_repro(folder, &runtime, &answers));
    let transforms = answers.first().map(|examined| examined.target.transforms()).unwrap_or_default();
    let answers: Vec<Answer> = answers.into_iter().map(|examined| examined.answer).collect();
    let total = counted(&answers);
    let calls = together(&answers);
    let text = text::words(&answers, &calls, &transforms, &brought, left_out);
    let text = if args.json {
        let policies = brought.json()?;
        let answer = json!({
            "summary": total, "answers": answers, "together": calls, "text": text, "policies_of_dump": policies,
        });
        json_text("blame", answer)?
    } else {
        text
    };
    put(&text)?;
    // What was found is told first, whatever becomes of the folder.
    repro.transpose()?;
    Ok(match Exit::from(total) {
        Exit::Success if left_out > 0 => Exit::NothingCompared,
        other => other,
    })
}

/// The tolerances that these are judged by, as the dump has them. Errors: a file that cannot be read.
pub(super) fn brought_by(targets: &[&Target]) -> Result<Brought, Failure> {
    let policies = targets.iter().map(|target| target.policies()).collect::<Result<Vec<_>, _>>()?;
    Ok(Brought::of(policies.into_iter().flatten()))
}

/// Whose what is kept is to be. None: nobody's, and nothing that was kept is believed; it is told why.
pub(super) fn own() -> Option<Keeper> {
    let own = Keeper::of_user();
    own.inspect_err(|why| warn(format_args!("{why}: what is found is not gone on with later"))).ok()
}

/// MiB as bytes.
pub(super) fn memory_bytes(mebibytes: usize) -> usize {
    mebibytes.saturating_mul(1 << 20)
}

/// A data set and what came of it. reads, gives: names of the part's inputs and outputs.
struct Examined<'t> {
    target: &'t Target,
    answer: Answer,
    reads: Vec<ValueName>,
    gives: Vec<ValueName>,
}

/// Parts of one graph in the order in which they ran: none before what gives its inputs.
fn in_order(mut left: Vec<Examined<'_>>) -> Vec<Examined<'_>> {
    let mut ordered = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let waits = |examined: &Examined<'_>| {
            let same_call = |other: &&Examined<'_>| {
                let (own, other) = (&examined.answer, &other.answer);
                (&own.graph, own.step) == (&other.graph, other.step) && own.part != other.part
            };
            left.iter().filter(same_call).any(|other| other.gives.iter().any(|name| examined.reads.contains(name)))
        };
        // Of parts that need each other, which there are none of, the first.
        let next = left.iter().position(|examined| !waits(examined)).unwrap_or(0);
        ordered.push(left.remove(next));
    }
    ordered
}

/// Where a part has its error from its inputs alone, and nobody is blamed for these, as no output before it is outside
/// tolerance: looks at what came before it all the same.
fn follow_inputs(
    args: &Arguments,
    runtime: &Runtime,
    keeper: Option<&Keeper>,
    answers: &mut [Examined<'_>],
) -> Result<(), Failure> {
    for at in 0..answers.len() {
        let call = |examined: &Examined<'_>| (examined.answer.graph.clone(), examined.answer.step);
        let own = call(&answers[at]);
        let is_named = |examined: &Examined<'_>| {
            matches!(examined.answer.culprit, Culprit::Node { .. } | Culprit::Optimizer { .. }) && call(examined) == own
        };
        if !matches!(answers[at].answer.culprit, Culprit::Inputs { .. }) || answers.iter().any(is_named) {
            continue;
        }
        for before in (0..at).rev().filter(|&before| call(&answers[before]) == own).collect::<Vec<_>>() {
            let case = case_of(runtime, answers[before].target, memory_bytes(args.memory))?;
            let answer = examined(args, runtime, keeper, answers[before].target, &case, None, true)?;
            if answer.blames() {
                answers[before].answer = answer;
                break;
            }
        }
        if !answers.iter().any(is_named) {
            let why = "what came in differs from eager's by rounding alone, of which this part makes more";
            answers[at].answer.culprit = Culprit::Nobody { why: why.to_owned() };
        }
    }
    Ok(())
}

enum Asked {
    All,
    One(ValueName),
    /// What was asked for is no output of this part.
    Elsewhere,
}

/// Outputs of a part, and what each is.
struct Outputs<'c> {
    case: &'c Case,
    /// Such as `GradAOTOutput layer.weight`.
    roles: HashMap<String, String>,
}

impl Outputs<'_> {
    fn asked(&self, args: &Arguments) -> Asked {
        let mut names = self.case.actuals.iter().map(|actual| &actual.name);
        let found = match (&args.output, &args.gradient) {
            (None, None) => return Asked::All,
            (Some(output), _) => match output.strip_prefix(GRAD_OF) {
                Some(gradient) => names.find(|name| self.is_gradient_of(name, gradient)),
                None => names.find(|name| *name == output || self.of(name) == Some(output.as_str())),
            },
            (None, Some(gradient)) => {
                let gradient = gradient.strip_prefix(GRAD_OF).unwrap_or(gradient);
                names.find(|name| self.is_gradient_of(name, gradient))
            }
        };
        found.map_or(Asked::Elsewhere, |name| Asked::One(name.clone()))
    }

    fn is_gradient_of(&self, output: &str, name: &str) -> bool {
        self.role(output).starts_with("Grad") && self.of(output) == Some(name)
    }

    fn role<'s>(&'s self, output: &str) -> &'s str {
        let of_row = self.case.row(output).map(|row| row.role.as_str()).filter(|role| !role.is_empty());
        of_row.or(self.roles.get(output).map(String::as_str)).unwrap_or_default()
    }

    /// What an output is of: a parameter, an input.
    fn of<'s>(&'s self, output: &str) -> Option<&'s str> {
        self.role(output).split_once(' ').map(|(_, of)| of)
    }

    fn described(&self, output: &str) -> String {
        match self.role(output) {
            "" => output.to_owned(),
            role => format!("{output} ({role})"),
        }
    }
}

/// Names of outputs that are told of one that there is not.
const N_TOLD: usize = 8;

/// Of an output that there is not: what it may have been, and a few that there are.
fn unknown(name: &str, known: &[String]) -> String {
    let names = known.iter().flat_map(|known| known.trim_end_matches(')').split([' ', '(']));
    let told = known.iter().take(N_TOLD).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = known.len().saturating_sub(N_TOLD);
    let more = if more > 0 { format!(" and {more} more (rust-ort ls)") } else { String::new() };
    format!("no output is {name:?}{}; outputs: {told}{more}", hint(name, names))
}

/// A dumped data set as a case. Errors: a file that cannot be read, a data set that is not whole.
pub(super) fn case_of(runtime: &Runtime, target: &Target, memory_bytes: usize) -> Result<Case, Failure> {
    let path = target.step.path.display();
    let feeds = target.tensors(Role::Input)?;
    let actuals = target.tensors(Role::Actual)?;
    let step = target.step.step;
    let table = reader::nodes(&target.part, step).map_err(at(&target.step.path))?;
    let table = table.unwrap_or_else(|| NodeTable {
        schema: NODES_SCHEMA.to_owned(),
        run: String::new(),
        graph: target.part.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned(),
        part: target.number(),
        step,
        plain: Vec::new(),
        nodes: Vec::new(),
    });
    if table.step != step {
        let other = table.step;
        return Err(format!("{path}: its table of nodes is of step {other}, not of step {step}; dump it again").into());
    }
    let mut model = target.exported()?;
    // A transform may have put its nodes anywhere; the search goes by their order.
    model.graph.as_mut().map_or(Ok(()), sort).map_err(|error| format!("{path}: {error}"))?;
    let outputs: Vec<&str> = model.graph.iter().flat_map(|graph| &graph.output).map(|output| output.name()).collect();
    if !actuals.iter().map(|actual| actual.name.as_str()).eq(outputs.iter().copied()) {
        let got: Vec<&str> = actuals.iter().map(|actual| actual.name.as_str()).collect();
        let why =
            format!("it has what ONNX Runtime gave of {}, the model gives {}", got.join(", "), outputs.join(", "));
        return Err(format!("{path}: {why}; dump it again").into());
    }
    let described = target.described()?;
    let produced: HashSet<&str> =
        model.graph.iter().flat_map(|graph| &graph.node).flat_map(|node| &node.output).map(String::as_str).collect();
    let named_values: Vec<ValueName> =
        described.keys().filter(|name| produced.contains(name.as_str())).cloned().collect();
    Ok(Case::new(Parts {
        described,
        spec: runtime.spec_of(target)?,
        judging: Judging::of(&target.step.path).map_err(at(&target.step.path))?,
        tolerance: target.tolerance(),
        values: Rc::new(values_of(target, &feeds, memory_bytes)?),
        model,
        named_values,
        feeds,
        actuals,
        table,
    })?)
}

/// Eager's values: those of nodes and inputs where they were dumped, of outputs, and of inputs that were not drifted.
fn values_of(target: &Target, feeds: &[NamedTensor], memory_bytes: usize) -> Result<Values, Failure> {
    let files = reader::values(&target.part, target.step.step).map_err(at(&target.part))?.unwrap_or_default();
    let references = target.tensors(Role::Reference)?;
    let inputs = feeds.iter().filter(|feed| !files.contains_key(&feed.name)).cloned();
    let given = inputs.chain(references).collect();
    Ok(Values::new(files, given, memory_bytes)?)
}

fn examined(
    args: &Arguments,
    runtime: &Runtime,
    own: Option<&Keeper>,
    target: &Target,
    case: &Case,
    output: Option<ValueName>,
    follow: bool,
) -> Result<Answer, Failure> {
    let budget = budget_of(case, args.budget)?;
    let version = runtime.runtime.version();
    let model = blake3::hash(&case.model);
    let step = target.step.step;
    let content = reader::content_of(&target.step.path, &target.part, step);
    let strategy = args.strategy;
    let threads = runtime.threads;
    let (spec, policy) = (&case.spec, case.policy());
    let library = Identity::at(&runtime.library).ok();
    let key = format!(
        "{model} {content} {version} {library:?} {threads} {spec:?} {policy:?} {output:?} {strategy:?} {follow}"
    );
    let path = reader::blame_file(&target.part, step);
    let mut kept = Keeping::new(path, key, args.fresh, own);
    let settings = Settings { output, budget, strategy: args.strategy, follow };
    let known = std::mem::take(&mut kept.kept.nodes);
    kept.kept.nodes.clone_from(&known);
    let answer = examine(case, runtime.runtime.as_ref(), &settings, &known, &mut kept)?;
    kept.end(&answer);
    Ok(answer)
}

/// Time for a part. Errors: no number of seconds.
pub(super) fn budget_of(case: &Case, asked: Option<f64>) -> Result<Duration, Failure> {
    let eager_s = case.table.nodes.iter().map(|row| row.reference_ns as f64 / 1e9).sum::<f64>();
    Ok(match asked {
        Some(seconds) => {
            Duration::try_from_secs_f64(seconds).map_err(|error| format!("--budget {seconds}: {error}"))?
        }
        None => Duration::from_secs_f64(BUDGET_FACTOR * eager_s).max(LEAST_BUDGET),
    })
}

/// Keeps what is found beside the part, as it is found.
struct Keeping<'o> {
    path: PathBuf,
    own: Option<&'o Keeper>,
    kept: Kept,
    bar: ProgressBar,
    told: bool,
}

impl<'o> Keeping<'o> {
    fn new(path: PathBuf, key: String, fresh: bool, own: Option<&'o Keeper>) -> Self {
        let read = reader::any_json(&path).inspect_err(|error| {
            if let Some(damage) = Damage::of(error) {
                warn(format_args!("{damage}; it is examined from the beginning"));
            }
        });
        let read = read.ok().map(|value| (own.is_some_and(|own| own.made(&value)), value));
        let read: Option<(bool, Kept)> =
            read.and_then(|(is_own, kept)| Some((is_own, serde_json::from_value(kept).ok()?)));
        let earlier = read.filter(|(_, kept)| !fresh && kept.schema == BLAME_SCHEMA && kept.key == key);
        if let Some((false, _)) = earlier {
            let path = path.display();
            warn(format_args!("{path}: not made here, by you: it is not believed, and examined from the beginning"));
        }
        let earlier = earlier.filter(|(is_own, _)| *is_own).map(|(_, kept)| kept);
        let new =
            || Kept { schema: BLAME_SCHEMA.to_owned(), key, nodes: Vec::new(), answer: None, mark: String::new() };
        let kept = earlier.unwrap_or_else(new);
        Self { path, own, kept, bar: progress::bar(0, "nodes"), told: false }
    }

    fn write(&mut self) {
        self.kept.mark = self.own.and_then(|own| own.mark(&self.kept).ok()).unwrap_or_default();
        let text = to_json(&self.kept);
        // A dump that cannot be written to is examined all the same.
        if let Err(error) = write_whole(&self.path, 0o644, &[&text])
            && !std::mem::replace(&mut self.told, true)
        {
            warn(format_args!("{}: what is found is not kept: {error}", self.path.display()));
        }
    }

    fn end(&mut self, answer: &Answer) {
        self.kept.answer = Some(answer.clone());
        self.write();
        self.bar.finish_and_clear();
    }
}

impl Progress for Keeping<'_> {
    fn at(&mut self, done: usize, of: usize) {
        self.bar.set_length(of as u64);
        self.bar.set_position(done as u64);
    }

    fn found(&mut self, contribution: &Contribution) {
        self.kept.nodes.push(contribution.clone());
        self.write();
    }
}

/// Of the first one to blame. Errors: nobody is, the folder is not ours.
fn write_repro(folder: &Path, runtime: &Runtime, answers: &[Examined<'_>]) -> Result<(), Failure> {
    for Examined { target, answer, .. } in answers {
        let (value, through) = match &answer.culprit {
            Culprit::Node { name, .. } => (name.clone(), Vec::new()),
            Culprit::Optimizer { names, what: OptimizerKind::Pass | OptimizerKind::Both, .. } => {
                let names = names.join(", ");
                warn(format_args!("{}: not written: plain onnxruntime has no {names}", folder.display()));
                return Ok(());
            }
            Culprit::Optimizer { fused, .. } => match fused.first() {
                Some(first) => (first.value.clone(), first.instead_of.clone()),
                None => {
                    Repro::new(folder, std::slice::from_ref(*target), &[])?.write_part()?;
                    warn(format_args!("wrote {}, the whole part", folder.display()));
                    return Ok(());
                }
            },
            Culprit::Nobody { .. } | Culprit::Inputs { .. } => continue,
        };
        let alone = Repro::of_value(folder, target, &value, &through)?.write_node(runtime)?;
        let said = alone.map(|alone| verdicts::said(&alone.verdict.verdict)).unwrap_or_default();
        warn(format_args!(
            "wrote {} ({value} alone: {said}); run it by `python {}`",
            folder.display(),
            folder.join("run.py").display()
        ));
        return Ok(());
    }
    warn(format_args!("no node is to blame, so there is nothing to write to {}", folder.display()));
    Ok(())
}
