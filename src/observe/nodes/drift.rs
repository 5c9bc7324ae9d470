//! The values of a batch as they drift: one model when it runs, else halves of it, down to single nodes.

use std::collections::HashMap;

use super::error::NodesError;
use super::piece::{Ran, Ready, Runner};
use super::slots::{Computed, copy};
use crate::onnx::Isolator;
use crate::shm::Lease;

/// A batch's values on their way, in graph order.
pub(super) struct Drift<'b, 'a, 'r> {
    isolator: &'b Isolator,
    lease: &'b mut Lease,
    runner: &'b mut Runner<'r>,
    /// Candidates of the feeds, and of the values so far.
    candidates: Ready<'a>,
    /// Value → why it could not be computed.
    failed: HashMap<&'a str, String>,
}

impl<'b, 'a, 'r> Drift<'b, 'a, 'r> {
    pub fn new(
        isolator: &'b Isolator,
        lease: &'b mut Lease,
        runner: &'b mut Runner<'r>,
        candidates: Ready<'a>,
    ) -> Self {
        Self { isolator, lease, runner, candidates, failed: HashMap::new() }
    }

    /// Writes every candidate, one that could not be computed with the reference's value. Returns why for each of
    /// those, by name. Errors: [`NodesError::Lost`].
    pub fn run(mut self, values: &[&Computed<'a>]) -> Result<HashMap<&'a str, String>, NodesError> {
        self.run_all(values)?;
        Ok(self.failed)
    }

    fn run_all(&mut self, values: &[&Computed<'a>]) -> Result<(), NodesError> {
        if values.is_empty() {
            return Ok(());
        }
        match (self.run_segment(values)?, values) {
            (Ran::Done(_), _) => {}
            (Ran::Failed(reason), [value]) => {
                tracing::warn!(node = value.name, reason, "cumulative value failed");
                copy(self.lease, value.reference, value.candidate);
                self.failed.insert(value.name, format!("{reason}; later nodes go on with the reference's value"));
            }
            (Ran::Failed(_), _) => {
                let (first, second) = values.split_at(values.len() / 2);
                self.run_all(first)?;
                return self.run_all(second);
            }
        }
        for value in values {
            self.candidates.insert(value.name, value.candidate.tensor);
        }
        Ok(())
    }

    fn run_segment(&mut self, values: &[&Computed<'a>]) -> Result<Ran, NodesError> {
        let wanted: Vec<&str> = values.iter().map(|value| value.name.as_str()).collect();
        let results = values.iter().map(|value| (value.name.as_str(), &value.candidate.tensor.desc)).collect();
        let piece = self.isolator.segment(&wanted, &results, &self.candidates.descs);
        let outputs = values.iter().map(|value| value.candidate.tensor.clone()).collect();
        self.runner.run(piece, &self.candidates, outputs)
    }
}
