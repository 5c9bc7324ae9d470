//! The values of a batch as they drift: one model when it runs, else halves of it, down to single nodes.

use std::collections::HashMap;

use super::error::NodesError;
use super::part::PartNodes;
use super::piece::{Ran, Ready};
use super::runner::{Runner, Together};
use super::slots::Computed;

/// A batch's values on their way, in graph order.
pub(super) struct Drift<'b, 'a> {
    part: &'b PartNodes,
    /// Candidates of the feeds, and of the values so far.
    candidates: Ready<'a>,
    /// Value → why it could not be computed.
    failed: HashMap<&'a str, String>,
}

impl<'b, 'a> Drift<'b, 'a> {
    pub fn new(part: &'b PartNodes, candidates: Ready<'a>) -> Self {
        Self { part, candidates, failed: HashMap::new() }
    }

    /// What computes all of these from what there is so far.
    pub fn segment(&self, values: &[&Computed<'a>]) -> Together<'_> {
        let wanted: Vec<&str> = values.iter().map(|value| value.name.as_str()).collect();
        let results = values.iter().map(|value| (value.name.as_str(), &value.candidate.tensor.desc)).collect();
        let piece = self.part.isolator.segment(&wanted, &results, &self.candidates.descs);
        let outputs = values.iter().map(|value| value.candidate.tensor.clone()).collect();
        Together { pieces: vec![piece], ready: &self.candidates, outputs }
    }

    /// The values in pieces: one that failed in an earlier call is alone.
    pub fn pieces<'v>(&self, values: &'v [&'v Computed<'a>]) -> Vec<&'v [&'v Computed<'a>]> {
        values.chunk_by(|one, next| !self.part.is_apart(one.name) && !self.part.is_apart(next.name)).collect()
    }

    /// Goes on after the segment of the first of these pieces came to `ran`: writes every candidate, one that could not be
    /// computed with the reference's value. Returns why for each of those, by name. Errors: [`NodesError::Lost`], Device.
    pub fn finish(
        mut self,
        pieces: &[&[&Computed<'a>]],
        ran: Ran,
        runner: &mut Runner<'_>,
    ) -> Result<HashMap<&'a str, String>, NodesError> {
        let [first, rest @ ..] = pieces else { return Ok(self.failed) };
        self.after(first, ran, runner)?;
        rest.iter().try_for_each(|piece| self.run_all(piece, runner))?;
        Ok(self.failed)
    }

    fn run_all(&mut self, values: &[&Computed<'a>], runner: &mut Runner<'_>) -> Result<(), NodesError> {
        let ran = runner.run(vec![self.segment(values)])?.pop();
        ran.map_or(Ok(()), |ran| self.after(values, ran, runner))
    }

    fn after(&mut self, values: &[&Computed<'a>], ran: Ran, runner: &mut Runner<'_>) -> Result<(), NodesError> {
        match (ran, values) {
            (Ran::Done(_), _) => {}
            (Ran::Failed(reason), [value]) => {
                tracing::warn!(node = value.name, reason, "cumulative value failed");
                self.part.set_apart(value.name);
                runner.reach.copy(value.reference, value.candidate)?;
                self.failed.insert(value.name, format!("{reason}; later nodes go on with the reference's value"));
            }
            (Ran::Failed(_), _) => {
                let (first, second) = values.split_at(values.len() / 2);
                self.run_all(first, runner)?;
                return self.run_all(second, runner);
            }
        }
        for value in values {
            self.candidates.insert(value.name, value.candidate.tensor);
        }
        Ok(())
    }
}
