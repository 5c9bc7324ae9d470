//! The newest steps that were looked at.

use std::collections::VecDeque;
use std::sync::Mutex;

use super::status::StepRecord;
use crate::base::ids::{ClientId, StepId};
use crate::base::limits;
use crate::base::sync::lock;
use crate::compare::{self, Summary, TensorVerdict};
use crate::dump::NodeTable;
use crate::observe::call::Outcome;
use crate::protocol::control::RunObserved;

impl StepRecord {
    /// Of a step that ran.
    pub fn new(client: ClientId, graph: &str, run: &RunObserved, outcome: &Outcome) -> Self {
        Self {
            client,
            graph: graph.to_owned(),
            part: run.part,
            step: run.step,
            run_us: outcome.stats.run_ns / 1000,
            outputs: run.record.outputs.len(),
            nodes: None,
            observing: None,
            summary: outcome.verdicts.as_deref().map(compare::summary),
            dump: outcome.folder.as_ref().map(|folder| folder.path().display().to_string()),
        }
    }

    /// Of a comparison of nodes.
    pub fn of_nodes(client: ClientId, table: &NodeTable, dump: Option<String>) -> Self {
        let locals: Vec<TensorVerdict> = table.nodes.iter().map(|node| node.local.clone()).collect();
        Self {
            client,
            graph: table.graph.clone(),
            part: table.part,
            step: StepId(table.step),
            run_us: table.nodes.iter().map(|node| node.candidate_ns).sum::<u64>() / 1000,
            outputs: table.plain.len(),
            nodes: Some(compare::summary(&locals)),
            observing: Some(compare::summary(&table.plain)),
            summary: None,
            dump,
        }
    }

    fn is_of(&self, other: &Self) -> bool {
        (self.client, &self.graph, self.part, self.step) == (other.client, &other.graph, other.part, other.step)
    }
}

/// The newest steps; a step that ran and whose nodes were compared then is one.
#[derive(Debug, Default)]
pub struct LastSteps(Mutex<VecDeque<StepRecord>>);

impl LastSteps {
    /// What a step's outputs come to, looked at once more.
    pub fn settle(&self, client: ClientId, (graph, part, step): (&str, u32, StepId), summary: Summary) {
        let mut steps = lock(&self.0);
        let is_it = |known: &&mut StepRecord| (known.client, known.part, known.step) == (client, part, step);
        if let Some(known) = steps.iter_mut().filter(is_it).find(|known| known.graph == graph) {
            known.summary = Some(summary);
        }
    }

    /// Above [`limits::LAST_STEPS`] the oldest goes.
    pub fn add(&self, step: StepRecord) {
        let mut steps = lock(&self.0);
        let ran = steps.iter_mut().rev().find(|known| known.is_of(&step)).filter(|known| known.nodes.is_none());
        if let (Some(ran), Some(_)) = (ran, step.nodes) {
            (ran.nodes, ran.observing) = (step.nodes, step.observing);
            ran.dump = ran.dump.take().or(step.dump);
            return;
        }
        if steps.len() == limits::LAST_STEPS {
            steps.pop_front();
        }
        steps.push_back(step);
    }

    /// The oldest first.
    pub fn list(&self) -> Vec<StepRecord> {
        lock(&self.0).iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::Summary;

    fn step(client: u64, nodes: Option<usize>) -> StepRecord {
        let count = |matched| Summary { matched, ..Summary::default() };
        let summary = nodes.is_none().then(|| count(1));
        StepRecord {
            client: ClientId(client),
            graph: "0_0-forward".into(),
            part: 0,
            step: StepId(3),
            run_us: 7,
            outputs: 1,
            nodes: nodes.map(count),
            observing: None,
            summary,
            dump: None,
        }
    }

    #[test]
    fn nodes_join_the_newest_step_that_they_are_of() {
        let steps = LastSteps::default();
        for (client, nodes) in [(1, None), (1, None), (2, None), (1, Some(4)), (3, Some(5))] {
            steps.add(step(client, nodes));
        }
        let nodes: Vec<_> = steps.list().iter().map(|step| step.nodes.map(|nodes| nodes.matched)).collect();
        assert_eq!(nodes, [None, Some(4), None, Some(5)]);
        assert_eq!(steps.list()[1].summary.unwrap().matched, 1);
        assert_eq!(steps.list()[3].summary, None);
    }

    #[test]
    fn the_oldest_step_goes_first() {
        let steps = LastSteps::default();
        (0..=limits::LAST_STEPS as u64).for_each(|client| steps.add(step(client, None)));
        let clients: Vec<u64> = steps.list().iter().map(|step| step.client.0).collect();
        assert_eq!(clients, (1..=limits::LAST_STEPS as u64).collect::<Vec<_>>());
    }
}
