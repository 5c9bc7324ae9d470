//! `rust-ort compare`: judge again what a dump holds.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::json;

use super::answer::{json_text, put};
use super::exit::{Exit, Failure, Outcome};
use super::tolerance_arguments::ToleranceArguments;
use super::{data_sets, progress, table, verdicts};
use crate::compare::{Policy, Summary, TensorVerdict, Tolerance, summary};
use crate::dump::reader::{self, Completeness, StepEntry};
use crate::dump::{Judging, Role};
use crate::onnx::load_tensor;
use crate::tensor::DType;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// A folder of dumps, a run, a graph, a part, a data set or the folder of a node
    path: PathBuf,
    #[command(flatten)]
    tolerance: ToleranceArguments,
    /// NaN differs from NaN
    #[arg(long)]
    distinct_nan: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// The tolerance of the comparison with what was given on the command line.
    fn tolerance(&self, policy: Policy, dtype: DType) -> Tolerance {
        let default = policy.tolerance(dtype);
        let given = self.tolerance.over(default).unwrap_or(default);
        Tolerance { equal_nan: given.equal_nan && !self.distinct_nan, ..given }
    }
}

/// One data set judged.
#[derive(Debug, Serialize)]
struct Judged {
    path: PathBuf,
    verdicts: Vec<TensorVerdict>,
}

pub(super) fn run(args: &Arguments) -> Outcome {
    let mut steps = data_sets::steps(reader::find(&args.path)?)?;
    let n_steps = steps.len();
    // Data sets that eager gave nothing for were never meant to be compared.
    steps.retain(|step| step.n_references > 0);
    let skipped = n_steps - steps.len();
    let bar = progress::bar(steps.len(), "data sets");
    let judged: Vec<Judged> =
        bar.wrap_iter(steps.iter()).map(|step| judge_step(args, step)).collect::<Result<_, _>>()?;
    let all = judged.iter().flat_map(|judged| judged.verdicts.iter().cloned()).collect::<Vec<_>>();
    let total = summary(&all);
    let text = if args.json {
        let value = json!({ "summary": total, "without_reference": skipped, "data_sets": judged });
        json_text("compare", value)?
    } else {
        text_of(&judged, &total, skipped, table::width())
    };
    put(&text)?;
    Ok(Exit::from(total))
}

fn judge_step(args: &Arguments, step: &StepEntry) -> Result<Judged, Failure> {
    let mut pairs: BTreeMap<u64, [Option<PathBuf>; 2]> = BTreeMap::new();
    for (side, role) in [Role::Reference, Role::Actual].into_iter().enumerate() {
        let files = reader::tensors(&step.path, role).map_err(|error| format!("{}: {error}", step.path.display()))?;
        for (index, path) in files {
            pairs.entry(index).or_default()[side] = Some(path);
        }
    }
    let judging = Judging::of(&step.path).map_err(|error| format!("{}: {error}", step.path.display()))?;
    let judging = judging.unwrap_or_default();
    let mut verdicts: Vec<_> = pairs
        .into_iter()
        .map(|(index, pair)| match pair {
            [Some(reference), Some(actual)] => judge_files(args, &judging, &reference, &actual),
            [None, _] => TensorVerdict::not_compared(&format!("output {index}"), "eager gave no such output"),
            [_, None] => TensorVerdict::not_compared(&format!("output {index}"), "ONNX Runtime gave no such output"),
        })
        .collect();
    if let Completeness::Incomplete(reason) = &step.state {
        verdicts.push(TensorVerdict::not_compared("the rest", format!("incomplete data set: {reason}")));
    }
    Ok(Judged { path: step.path.clone(), verdicts })
}

fn judge_files(args: &Arguments, judging: &Judging, reference: &Path, actual: &Path) -> TensorVerdict {
    let (reference, actual) = match (load_tensor(reference), load_tensor(actual)) {
        (Ok(reference), Ok(actual)) => (reference, actual),
        (Err(error), _) | (_, Err(error)) => {
            let name = actual.file_name().unwrap_or_default().to_string_lossy().into_owned();
            return TensorVerdict::failed(&name, error.to_string());
        }
    };
    if reference.name != actual.name {
        let reason = format!("eager's is {:?}, ONNX Runtime's {:?}", reference.name, actual.name);
        return TensorVerdict::not_compared(&actual.name, reason);
    }
    let tolerance = args.tolerance(judging.policy, reference.desc.dtype);
    judging.judge_within(&tolerance, &actual.name, &reference.view(), &actual.view())
}

fn text_of(judged: &[Judged], total: &Summary, skipped: usize, width: usize) -> String {
    let mut text = String::new();
    for Judged { path, verdicts } in judged {
        text += &format!("{}\n{}\n", path.display(), verdicts::table(verdicts, width));
    }
    let without = if skipped > 0 { format!("data sets without reference: {skipped}\n") } else { String::new() };
    let counts = verdicts::counts(*total).unwrap_or_else(|| "nothing was compared".to_owned());
    text + &counts + "\n" + &without
}
