//! One observed call: inputs on disk → run → judge → outputs and verdicts on disk.

use std::path::PathBuf;

use displaydoc::Display;
use thiserror::Error;

use crate::base::ids::{StepId, ValueName};
use crate::compare::{self, Policy, TensorVerdict};
use crate::dump::{self, DumpError, StepFolder};
use crate::protocol::message::RunStats;
use crate::shm::{Lease, LeaseError, SegmentTable};
use crate::tensor::{CallRecord, SharedTensor, TensorRef};

/// What to run and how to watch it.
#[derive(Clone, Copy)]
pub struct ObservedCall<'a> {
    /// The call.
    pub record: &'a CallRecord,
    /// Of the model, one an input.
    pub input_names: &'a [ValueName],
    /// Of the model, one an output.
    pub output_names: &'a [ValueName],
    /// Where to write it down; None: nowhere.
    pub dump: Option<DumpAt<'a>>,
    /// Reference outputs, one an output; None: no judgement.
    pub references: Option<&'a [TensorRef]>,
    /// By which outputs are judged.
    pub policy: Policy,
}

/// A place in a dump.
#[derive(Clone, Copy)]
pub struct DumpAt<'a> {
    /// The dump.
    pub run: &'a dump::Run,
    /// Folder of the graph, as [`dump::Run::graph`] named it.
    pub graph: &'a str,
    /// Part of the graph.
    pub part: u32,
    /// Position among the calls of the graph.
    pub step: StepId,
}

/// What came of a call.
#[derive(Debug)]
pub struct Outcome {
    /// Of the run.
    pub stats: RunStats,
    /// One an output, when asked.
    pub verdicts: Option<Vec<TensorVerdict>>,
    /// The data set.
    pub folder: Option<StepFolder>,
}

/// Why a call failed. `E`: why the run itself did.
#[derive(Debug, Display, Error)]
pub enum CallError<E: std::error::Error> {
    /// A tensor is not where it should be.
    #[displaydoc("{0}")]
    Memory(#[from] LeaseError),
    /// {what}: expected {expected} (the model's), got {got}
    Count {
        /// "inputs" or "outputs".
        what: &'static str,
        /// The model's.
        expected: usize,
        /// The call's.
        got: usize,
    },
    /// The inputs could not be written, so nothing ran.
    #[displaydoc("{0}")]
    Dump(#[from] DumpError),
    /// The run failed; its inputs are in the folder when one was open.
    #[displaydoc("{error}")]
    Run {
        /// Why.
        error: E,
        /// Folder of the data set.
        dump: Option<PathBuf>,
    },
}

impl ObservedCall<'_> {
    /// The call's tensors, proven: references count as inputs, so no output may overlap them. Errors: [`LeaseError`].
    pub fn lease(&self, segments: &SegmentTable) -> Result<Lease, LeaseError> {
        let mut read = self.record.inputs.clone();
        read.extend_from_slice(self.references.unwrap_or_default());
        segments.lease(&read, &self.record.outputs)
    }

    /// Runs the call by `run`, over a lease of [`ObservedCall::lease`]. Errors: [`CallError`].
    pub fn run<E: std::error::Error>(
        &self,
        lease: &Lease,
        run: impl FnOnce(&CallRecord) -> Result<RunStats, E>,
    ) -> Result<Outcome, CallError<E>> {
        same_count("inputs", self.input_names.len(), self.record.inputs.len())?;
        same_count("outputs", self.output_names.len(), self.record.outputs.len())?;
        let read = lease.inputs();
        let (inputs, references) = read.split_at(self.record.inputs.len());
        let folder = match self.dump {
            Some(at) if at.run.wants(at.graph, at.part, at.step) => {
                Some((at.run, at.run.begin_step(at.graph, at.part, at.step, &named(self.input_names, inputs))?))
            }
            _ => None,
        };
        let dump = folder.as_ref().map(|(_, folder)| folder.path().to_owned());
        let stats = match run(self.record) {
            Ok(stats) => stats,
            Err(error) => return Err(CallError::Run { error, dump }),
        };
        let outputs = lease.outputs();
        let verdicts = self.references.map(|_| self.judge(references, &outputs));
        if let Some((run, folder)) = &folder {
            if self.references.is_some() {
                run.references(folder, &named(self.output_names, references));
            }
            run.actuals(folder, &named(self.output_names, &outputs));
            if let Some(verdicts) = &verdicts {
                run.comparison(folder, verdicts, self.policy);
            }
            run.finish(folder);
        }
        Ok(Outcome { stats, verdicts, folder: folder.map(|(_, folder)| folder) })
    }

    fn judge(&self, references: &[SharedTensor<'_>], outputs: &[SharedTensor<'_>]) -> Vec<TensorVerdict> {
        let pairs = references.iter().zip(outputs).zip(self.output_names);
        let judge = |((reference, output), name): ((&SharedTensor<'_>, &SharedTensor<'_>), &ValueName)| {
            compare::judge(name, *reference, *output, Some(&self.policy.tolerance(reference.dtype())))
        };
        pairs.map(judge).collect()
    }
}

pub(super) fn same_count<E: std::error::Error>(
    what: &'static str,
    expected: usize,
    got: usize,
) -> Result<(), CallError<E>> {
    if expected == got { Ok(()) } else { Err(CallError::Count { what, expected, got }) }
}

pub(super) fn named<'a>(names: &[ValueName], tensors: &[SharedTensor<'a>]) -> Vec<(ValueName, SharedTensor<'a>)> {
    names.iter().cloned().zip(tensors.iter().copied()).collect()
}
