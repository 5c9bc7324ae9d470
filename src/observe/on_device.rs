//! An observed call whose tensors lie on a device: they are copied to the host for a dump alone, and judged where they lie.

use super::call::{CallError, DumpAt, ObservedCall, Outcome, named, same_count};
use crate::compare::{self, Measured, TensorVerdict};
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

    /// Nobody reaches the tensors any more.
    fn is_lost(&self) -> bool;

    /// What is found of each pair; None: it has to be judged on the host.
    fn measured(&mut self, pairs: Vec<Comparison>) -> Result<Vec<Option<Measured>>, Self::Error>;
}

/// Bytes that are copied at once, but for a tensor that is larger: what is on its way to a dump is twice in memory.
const BATCH_BYTES: usize = 256 << 20;

/// Copies tensors a batch at a time; `take` gets the first one's position with each.
fn copy_in_batches<R: Reach>(
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
                run.comparison(folder, verdicts);
            }
            run.finish(folder);
        }
        Ok(Outcome { stats, verdicts, dump })
    }

    fn judge_in_place<R: Reach>(
        &self,
        reach: &mut R,
        references: &[TensorRef],
        candidates: &[TensorRef],
    ) -> Result<Vec<TensorVerdict>, R::Error> {
        let pairs = || references.iter().zip(candidates).zip(self.output_names);
        let mut comparisons = Vec::new();
        let asked: Vec<Result<_, String>> = pairs()
            .map(|((reference, candidate), _)| {
                let tolerance = compare::comparable([&reference.desc, &candidate.desc], self.tolerance)?;
                let (reference, candidate) = (reference.clone(), candidate.clone());
                comparisons.push(Comparison { reference, candidate, tolerance });
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
        let mut verdicts = Vec::new();
        for (((reference, candidate), name), asked) in pairs().zip(asked) {
            verdicts.push(match asked {
                Err(why) => TensorVerdict::failed(name, why),
                Ok(tolerance) => match (measured.next().flatten(), &unmeasured) {
                    (_, Some(why)) => TensorVerdict::failed(name, why.clone()),
                    (Some(found), None) => compare::judge_measured(name, &reference.desc, &tolerance, &found),
                    (None, None) => match reach.copied(&[reference.clone(), candidate.clone()]) {
                        Ok(copies) => {
                            let copies = copies.inputs();
                            compare::judge(name, copies[0], copies[1], self.tolerance)
                        }
                        Err(error) if reach.is_lost() => return Err(error),
                        Err(error) => TensorVerdict::failed(name, error.to_string()),
                    },
                },
            });
        }
        Ok(verdicts)
    }
}
