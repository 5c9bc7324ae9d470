//! `rust-ort compare`: judge again what a dump holds.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::json;

use super::answer::{json_text, line, put};
use super::dump_tolerance::Brought;
use super::exit::{Exit, Failure, Outcome, at};
use super::nearest::hint;
use super::tolerance_arguments::ToleranceArguments;
use super::{data_sets, next, progress, table, verdicts};
use crate::compare::{Policy, TensorVerdict, Tolerance, summary};
use crate::dump::reader::{self, Completeness, StepEntry, TensorFile};
use crate::dump::{Damage, Judging, Role};
use crate::onnx::{NamedTensor, matches};
use crate::tensor::DType;

#[derive(Debug, Default, clap::Args)]
pub(super) struct Arguments {
    /// A folder of dumps, a run, a graph, a part, a data set or the folder of a node
    #[arg(value_parser = data_sets::named())]
    path: PathBuf,
    #[command(flatten)]
    tolerance: ToleranceArguments,
    /// Outputs of these names alone; a pattern with * and ?
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// NaN differs from NaN
    #[arg(long)]
    distinct_nan: bool,
    /// Every output of every data set
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// Whether an output is asked for. One without a name is where all are.
    fn wants(&self, name: Option<&str>) -> bool {
        self.only.is_empty() || name.is_some_and(|name| self.only.iter().any(|pattern| matches(pattern, name)))
    }

    /// The tolerance of the comparison with what was given on the command line.
    fn tolerance(&self, policy: Policy, dtype: DType) -> Tolerance {
        let default = policy.tolerance(dtype);
        let given = self.tolerance.over(default).unwrap_or(default);
        Tolerance { equal_nan: given.equal_nan && !self.distinct_nan, ..given }
    }
}

/// One data set judged.
#[derive(Debug, Serialize)]
pub(super) struct Judged {
    path: PathBuf,
    /// None of a data set with a damaged file.
    pub(super) verdicts: Vec<TensorVerdict>,
    /// By what they are judged as far as the command line does not say, as the dump has it.
    pub(super) policy: Policy,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) damage: Option<Damage>,
}

/// What looks at each pair that was judged: the verdict, eager's tensor and ONNX Runtime's.
type Look<'l> = &'l mut dyn FnMut(&TensorVerdict, [&NamedTensor; 2]);

/// A data set judged as the command does that is given no option. Errors: a file of it cannot be read.
pub(super) fn judged(step: &StepEntry, look: Look<'_>) -> Result<Judged, Failure> {
    judge_step(&Arguments::default(), step, look)
}

pub(super) fn run(args: &Arguments) -> Outcome {
    let place = data_sets::find(&args.path)?;
    let mut damaged: Vec<Damage> = place.damages().into_iter().cloned().collect();
    let mut steps = data_sets::steps(place)?;
    let n_steps = steps.len();
    // Data sets that eager gave nothing for were never meant to be compared.
    steps.retain(|step| step.n_references > 0 || matches!(step.state, Completeness::Damaged(_)));
    let skipped = n_steps - steps.len();
    let wants_some = args.wants(None) || names(&steps).iter().any(|name| args.wants(Some(name)));
    if !wants_some {
        return Err(no_output(args, &steps));
    }
    let bar = progress::bar(steps.len(), "data sets");
    let judged: Vec<Judged> =
        bar.wrap_iter(steps.iter()).map(|step| judge_step(args, step, &mut |_, _| {})).collect::<Result<_, _>>()?;
    damaged.extend(judged.iter().filter_map(|judged| judged.damage.clone()));
    let total = summary(judged.iter().flat_map(|judged| &judged.verdicts));
    let brought = Brought::of(judged.iter().map(|judged| judged.policy));
    let nothing = nothing(&judged, n_steps).filter(|_| damaged.is_empty());
    let text = if args.json {
        let mut value =
            json!({ "summary": total, "damaged": damaged, "without_reference": skipped, "data_sets": judged });
        value["nothing"] = json!(nothing);
        value["policies_of_dump"] = brought.json()?;
        json_text("compare", value)?
    } else {
        let counts = verdicts::counts(total).map(|counts| counts + &brought.words());
        let counts = nothing.or(counts).unwrap_or_else(|| "nothing was compared".to_owned());
        text_of(args, &judged, &damaged, skipped, &counts)
    };
    put(&text)?;
    Ok(if damaged.is_empty() { Exit::from(total) } else { Exit::Damaged })
}

fn judge_step(args: &Arguments, step: &StepEntry, look: Look<'_>) -> Result<Judged, Failure> {
    let judged = |(verdicts, policy, damage)| Judged { path: step.path.clone(), verdicts, policy, damage };
    match verdicts_of(args, step, look) {
        Ok((verdicts, policy)) => Ok(judged((verdicts, policy, None))),
        Err(failure) => match Damage::of(failure.as_ref()) {
            Some(damage) => Ok(judged((Vec::new(), Policy::default(), Some(damage.clone())))),
            None => Err(failure),
        },
    }
}

/// With the dump's policy. Errors: a file is damaged, or cannot be read.
fn verdicts_of(args: &Arguments, step: &StepEntry, look: Look<'_>) -> Result<(Vec<TensorVerdict>, Policy), Failure> {
    if let Completeness::Damaged(damage) = &step.state {
        return Err(Box::new(damage.clone()));
    }
    let mut pairs: BTreeMap<u64, [Option<TensorFile>; 2]> = BTreeMap::new();
    let names = if args.wants(None) { BTreeMap::new() } else { names_of(step)? };
    let is_wanted = |file: &TensorFile| {
        let name = file.path.file_name().and_then(|file| names.get(&*file.to_string_lossy()));
        args.wants(name.map(String::as_str))
    };
    for (side, role) in [Role::Reference, Role::Actual].into_iter().enumerate() {
        for file in reader::tensors(&step.path, role).map_err(at(&step.path))?.into_iter().filter(is_wanted) {
            let pair = pairs.entry(file.index).or_default();
            pair[side] = Some(file);
        }
    }
    let judging = Judging::of(&step.path).map_err(at(&step.path))?.unwrap_or_default();
    let mut verdicts: Vec<_> = pairs
        .into_iter()
        .map(|(index, pair)| match pair {
            [Some(reference), Some(actual)] => judge_files(args, &judging, [&reference, &actual], look),
            [None, _] => Ok(TensorVerdict::not_compared(&format!("output {index}"), "eager gave no such output")),
            [_, None] => {
                Ok(TensorVerdict::not_compared(&format!("output {index}"), "ONNX Runtime gave no such output"))
            }
        })
        .collect::<Result<_, _>>()?;
    if let Completeness::Incomplete(reason) = &step.state {
        verdicts.push(TensorVerdict::not_compared("the rest", format!("incomplete data set: {reason}")));
    }
    let policy = match args.tolerance.is_whole() {
        true => Policy { noise_factor: judging.policy.noise_factor, ..Policy::default() },
        false => judging.policy,
    };
    Ok((verdicts, policy))
}

/// {file of an output: its name}; nothing of a data set that is not whole. Errors: the manifest is damaged.
fn names_of(step: &StepEntry) -> Result<BTreeMap<String, String>, Failure> {
    let manifest = match reader::manifest(&step.path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        read => read.map_err(at(&step.path))?,
    };
    Ok(manifest.references.into_iter().chain(manifest.actuals).map(|entry| (entry.file, entry.name)).collect())
}

fn names(steps: &[StepEntry]) -> Vec<String> {
    steps.iter().filter_map(|step| names_of(step).ok()).flat_map(BTreeMap::into_values).collect()
}

/// Of `--only`, which no output has: what it may have been.
fn no_output(args: &Arguments, steps: &[StepEntry]) -> Failure {
    let names = names(steps);
    let given = args.only.join(", ");
    let nearest = hint(given.trim_matches('*'), names.iter().map(String::as_str));
    format!("{}: no output is {given:?}{nearest}; rust-ort compare --all has the names", args.path.display()).into()
}

/// Errors: one is damaged.
fn judge_files(
    args: &Arguments,
    judging: &Judging,
    [reference, actual]: [&TensorFile; 2],
    look: Look<'_>,
) -> Result<TensorVerdict, Failure> {
    let (reference, actual) = match (reference.load(), actual.load()) {
        (Ok(reference), Ok(actual)) => (reference, actual),
        (Err(error), _) | (_, Err(error)) if Damage::of(&error).is_some() => return Err(error.into()),
        (Err(error), _) | (_, Err(error)) => {
            let name = actual.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            return Ok(TensorVerdict::failed(&name, error.to_string()));
        }
    };
    if reference.name != actual.name {
        let reason = format!("eager's is {:?}, ONNX Runtime's {:?}", reference.name, actual.name);
        return Ok(TensorVerdict::not_compared(&actual.name, reason));
    }
    let tolerance = args.tolerance(judging.policy, reference.desc.dtype);
    let verdict = judging.judge_within(&tolerance, &actual.name, &reference.view(), &actual.view());
    look(&verdict, [&reference, &actual]);
    Ok(verdict)
}

/// Why there was nothing to compare, and what to dump with; None where there was something.
fn nothing(judged: &[Judged], n_steps: usize) -> Option<String> {
    if !judged.is_empty() {
        return None;
    }
    let (why, advice) = match n_steps {
        0 => ("there are no data sets", next::DUMP_CALLS),
        _ => ("eager's outputs were not dumped", next::DUMP_OUTPUTS),
    };
    Some(format!("nothing was compared: {why}; {advice}"))
}

/// counts: what it came to.
fn text_of(args: &Arguments, judged: &[Judged], damaged: &[Damage], skipped: usize, counts: &str) -> String {
    let mut text = if args.all { all_of(judged, table::width()) } else { brief(judged, table::width()) };
    for damage in damaged {
        text += &line(format_args!("{damage}"));
    }
    let without = if skipped > 0 { format!("data sets without reference: {skipped}\n") } else { String::new() };
    let n_damaged = if damaged.is_empty() { String::new() } else { format!(", {} damaged", damaged.len()) };
    text + counts + &n_damaged + "\n" + &without
}

/// Data set by data set.
fn all_of(judged: &[Judged], width: usize) -> String {
    let of = |Judged { path, verdicts, damage, .. }: &Judged| match damage {
        Some(_) => line(path.display()) + "not judged: damaged\n\n",
        None => line(path.display()) + &verdicts::table(verdicts, width) + "\n",
    };
    judged.iter().map(of).collect()
}

/// All together: those that tell most.
fn brief(judged: &[Judged], width: usize) -> String {
    let is_one = judged.len() == 1;
    let place = |judged: &Judged| if is_one { String::new() } else { data_sets::place(&judged.path) };
    let verdicts: Vec<(String, &TensorVerdict)> =
        judged.iter().flat_map(|judged| judged.verdicts.iter().map(move |verdict| (place(judged), verdict))).collect();
    verdicts::brief(&verdicts, "output", width)
}
