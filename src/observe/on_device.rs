//! An observed call whose tensors lie on a device: they are copied to the host for a dump alone, and judged where they lie.

use std::cell::Cell;

use super::call::{CallError, DumpAt, ObservedCall, Outcome, named, same_count};
use crate::compare::{Compared, Measured, Pair, Range, TensorVerdict, Tolerance};
use crate::link::message::Comparison;
use crate::protocol::message::RunStats;
use crate::shm::Lease;
use crate::tensor::{CallRecord, SharedTensor, TensorRef};

/// Who reaches the tensors.
pub trait Reach {
    /// Why something failed.
    type Error: std::error::Error;

    /// Runs a call; it is done when this returns.
    fn run(&mut self, record: &CallRecord) -> Result<RunStats, Self::Error>;

    /// Copies of tensors on the host, in their order, as the inputs of a lease.
    fn copied(&mut self, tensors: &[TensorRef]) -> Result<Lease, Self::Error>;

    /// Copies each first tensor to the second, where they lie.
    fn copy(&mut self, copies: Vec<[TensorRef; 2]>) -> Result<(), Self::Error>;

    /// Nobody reaches the tensors any more.
    fn is_lost(&self) -> bool;

    /// What is found of each pair; None: it has to be judged on the host.
    fn measured(&mut self, pairs: Vec<Comparison>) -> Result<Vec<Option<Measured>>, Self::Error>;

    /// What tensors hold; None: it has to be found on the host, or there is none.
    fn ranges(&mut self, tensors: Vec<TensorRef>) -> Result<Vec<Option<Range>>, Self::Error>;
}

/// Bytes that are copied at once, but for a tensor that is larger: what is on its way to a dump is twice in memory.
const BATCH_BYTES: usize = 256 << 20;

/// Copies tensors a batch at a time; `take` gets the first one's position with each.
pub(super) fn copy_in_batches<R: Reach>(
    reach: &mut R,
    tensors: &[TensorRef],
    mut take: impl FnMut(usize, &[SharedTensor<'_>]),
) -> Result<(), R::Error> {
    let mut first = 0;
    while first < tensors.len() {
        let mut n_bytes = tensors[first].desc.len_bytes();
        let fits = |tensor: &&TensorRef| {
            n_bytes = n_bytes.saturating_add(tensor.desc.len_bytes());
            n_bytes <= BATCH_BYTES
        };
        let end = first + 1 + tensors[first + 1..].iter().take_while(fits).count();
        take(first, &reach.copied(&tensors[first..end])?.inputs());
        first = end;
    }
    Ok(())
}

impl ObservedCall<'_> {
    /// As [`ObservedCall::run`], of tensors that `reach` reaches. An output that cannot be measured is a failed verdict.
    /// Errors: [`CallError`]; Run also where a tensor could not be copied for the dump.
    pub fn run_on_device<R: Reach>(&self, reach: &mut R) -> Result<Outcome, CallError<R::Error>> {
        same_count("inputs", self.input_names.len(), self.record.inputs.len())?;
        same_count("outputs", self.output_names.len(), self.record.outputs.len())?;
        let failed = |dump| move |error| CallError::Run { error, dump };
        let folder = match self.dump {
            Some(DumpAt { run, graph, part, step }) if run.wants(graph, part, step) => {
                let folder = run.begin_step(graph, part, step, &[])?;
                let dump = Some(folder.path().to_owned());
                let written = copy_in_batches(reach, &self.record.inputs, |first, tensors| {
                    run.inputs(&folder, first, &named(&self.input_names[first..], tensors));
                });
                written.map_err(failed(dump))?;
                Some((run, folder))
            }
            _ => None,
        };
        let dump = folder.as_ref().map(|(_, folder)| folder.path().to_owned());
        let stats = reach.run(self.record).map_err(failed(dump.clone()))?;
        let outputs = &self.record.outputs;
        let verdicts = self.references.map(|references| self.judge_in_place(reach, references, outputs)).transpose();
        let verdicts = verdicts.map_err(failed(dump.clone()))?;
        if let Some((run, folder)) = &folder {
            let references = self.references.unwrap_or_default();
            let written = copy_in_batches(reach, references, |first, tensors| {
                run.references_from(folder, first, &named(&self.output_names[first..], tensors));
            });
            let written = written.and_then(|()| {
                copy_in_batches(reach, outputs, |first, tensors| {
                    run.actuals_from(folder, first, &named(&self.output_names[first..], tensors));
                })
            });
            written.map_err(failed(dump.clone()))?;
            if let Some(verdicts) = &verdicts {
                run.comparison(folder, verdicts, self.policy);
            }
            run.finish(folder);
        }
        Ok(Outcome { stats, verdicts, folder: folder.map(|(_, folder)| folder) })
    }

    fn judge_in_place<R: Reach>(
        &self,
        reach: &mut R,
        references: &[TensorRef],
        candidates: &[TensorRef],
    ) -> Result<Vec<TensorVerdict>, R::Error> {
        let pairs = references.iter().zip(candidates).zip(self.output_names);
        let pairs = pairs.map(|((reference, candidate), name)| {
            Pair::new(name, reference, candidate, Some(self.policy.tolerance(reference.desc.dtype)))
        });
        Ok(compared(reach, pairs.collect())?.into_iter().map(|compared| compared.verdict).collect())
    }
}

/// What comes of pairs of tensors that `reach` reaches: measured where they lie, all at once; on the host those that cannot
/// be. One that cannot be measured is a failed verdict. Errors: those of a `reach` that is lost.
pub fn compared<R: Reach>(reach: &mut R, pairs: Vec<Pair<'_, &TensorRef>>) -> Result<Vec<Compared>, R::Error> {
    let mut comparisons = Vec::new();
    let asked: Vec<Result<Tolerance, String>> = (pairs.iter())
        .map(|pair| {
            let tolerance = pair.comparable([&pair.reference.desc, &pair.candidate.desc])?;
            comparisons.push(Comparison::of(pair, tolerance));
            Ok(tolerance)
        })
        .collect();
    // A run that cannot be judged is one all the same.
    let mut unmeasured = None;
    let mut measured = match reach.measured(comparisons) {
        Ok(found) => found.into_iter(),
        Err(error) if reach.is_lost() => return Err(error),
        Err(error) => {
            unmeasured = Some(error.to_string());
            Vec::new().into_iter()
        }
    };
    let mut all = Vec::with_capacity(pairs.len());
    for (pair, asked) in pairs.into_iter().zip(asked) {
        all.push(match asked {
            Err(why) => pair.failed(why),
            Ok(tolerance) => match (measured.next().flatten(), &unmeasured) {
                (_, Some(why)) => pair.failed(why.clone()),
                (Some(found), None) => pair.of_measured(&pair.reference.desc, &tolerance, found),
                (None, None) => {
                    let tensors: Vec<TensorRef> = pair.tensors().map(|&tensor| tensor.clone()).collect();
                    match reach.copied(&tensors) {
                        Ok(copies) => on_host(pair, &copies),
                        Err(error) if reach.is_lost() => return Err(error),
                        Err(error) => pair.failed(error.to_string()),
                    }
                }
            },
        });
    }
    Ok(all)
}

/// A pair judged here. lease: of its tensors, in their order.
pub fn on_host<T>(pair: Pair<'_, T>, lease: &Lease) -> Compared {
    let tensors = lease.inputs();
    let next = Cell::new(0);
    let at = |_| {
        next.set(next.get() + 1);
        tensors[next.get() - 1]
    };
    pair.map(at).compared()
}
