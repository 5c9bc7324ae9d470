//! An observed call whose tensors lie on a device: they are copied to the host for a dump alone, and judged where they lie.

use super::call::{CallError, DumpAt, ObservedCall, Outcome, Written, named, same_count};
use crate::compare::{self, Measured, TensorVerdict};
use crate::link::message::Comparison;
use crate::protocol::message::RunStats;
use crate::shm::Lease;
use crate::tensor::{CallRecord, TensorRef};

/// Who reaches the tensors.
pub trait Reach {
    /// Why something failed.
    type Error: std::error::Error;

    /// Runs a call; it is done when this returns.
    fn run(&mut self, record: &CallRecord) -> Result<RunStats, Self::Error>;

    /// Copies of tensors on the host, in their order, as the inputs of a lease.
    fn copied(&mut self, tensors: &[TensorRef]) -> Result<Lease, Self::Error>;

    /// What is found of each pair; None: it has to be judged on the host.
    fn measured(&mut self, pairs: Vec<Comparison>) -> Result<Vec<Option<Measured>>, Self::Error>;
}

impl ObservedCall<'_> {
    /// As [`ObservedCall::run`], of tensors that `reach` reaches. Errors: [`CallError`]; Run also where a tensor could not be
    /// copied or measured.
    pub fn run_on_device<R: Reach>(&self, reach: &mut R) -> Result<Outcome, CallError<R::Error>> {
        same_count("inputs", self.input_names.len(), self.record.inputs.len())?;
        same_count("outputs", self.output_names.len(), self.record.outputs.len())?;
        let failed = |dump| move |error| CallError::Run { error, dump };
        let folder = match self.dump {
            Some(DumpAt { run, graph, part, step }) if run.wants(graph, part, step) => {
                let inputs = reach.copied(&self.record.inputs).map_err(failed(None))?;
                Some((run, run.begin_step(graph, part, step, &named(self.input_names, &inputs.inputs()))?))
            }
            _ => None,
        };
        let dump = folder.as_ref().map(|(_, folder)| folder.path().to_owned());
        let stats = reach.run(self.record).map_err(failed(dump.clone()))?;
        let outputs = &self.record.outputs;
        let verdicts = self.references.map(|references| self.judge_in_place(reach, references, outputs)).transpose();
        let verdicts = verdicts.map_err(failed(dump.clone()))?;
        if let Some((run, folder)) = &folder {
            let tensors = [self.references.unwrap_or_default(), outputs].concat();
            let copies = reach.copied(&tensors).map_err(failed(dump.clone()))?;
            let copies = copies.inputs();
            let (references, actuals) = copies.split_at(tensors.len() - outputs.len());
            let written = Written { references, actuals, verdicts: verdicts.as_deref() };
            self.write_results(run, folder, &written);
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
        let asked: Vec<_> = pairs()
            .map(|((reference, candidate), name)| {
                let tolerance = compare::comparable(name, [&reference.desc, &candidate.desc], self.tolerance)?;
                let (reference, candidate) = (reference.clone(), candidate.clone());
                comparisons.push(Comparison { reference, candidate, tolerance });
                Ok(tolerance)
            })
            .collect();
        let mut measured = reach.measured(comparisons)?.into_iter();
        let mut verdicts = Vec::new();
        for (((reference, candidate), name), asked) in pairs().zip(asked) {
            verdicts.push(match asked {
                Err(failed) => failed,
                Ok(tolerance) => match measured.next().flatten() {
                    Some(found) => compare::judge_measured(name, &reference.desc, &tolerance, &found),
                    None => {
                        let copies = reach.copied(&[reference.clone(), candidate.clone()])?;
                        let copies = copies.inputs();
                        compare::judge(name, copies[0], copies[1], self.tolerance)
                    }
                },
            });
        }
        Ok(verdicts)
    }
}
