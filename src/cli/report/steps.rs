//! One data set: its outputs judged as `rust-ort compare` does, its nodes as `rust-ort sbs` has them, what `rust-ort blame`
//! found.

use std::collections::HashSet;
use std::path::Path;

use serde_json::{Value, json};

use super::shortened;
use crate::blame::Answer;
use crate::cli::compare::{self, Judged};
use crate::cli::exit::Failure;
use crate::cli::node_table::{Found, Mark};
use crate::cli::own_mark::Keeper;
use crate::cli::provenance::Provenance;
use crate::cli::{blame, data_sets};
use crate::compare::{Distribution, Policy, Summary, TensorVerdict, Verdict, distribution, summary};
use crate::dump::reader::{self, Completeness, StepEntry};
use crate::onnx::NamedTensor;

/// Rows of nodes of all tables; of what is beyond it only rows that differ are kept.
const MOST_ROWS: usize = 20_000;
/// Distributions of outputs that match, and of all.
const MOST_DISTRIBUTIONS: [usize; 2] = [1000, 2000];

/// Room for rows and distributions, which a report of many calls has not for all.
pub(super) struct Room {
    rows: usize,
    distributions: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self { rows: MOST_ROWS, distributions: 0 }
    }
}

impl Room {
    fn has_distribution(&mut self, is_pass: bool) -> bool {
        let [of_matches, of_all] = MOST_DISTRIBUTIONS;
        let has = self.distributions < if is_pass { of_matches } else { of_all };
        self.distributions += usize::from(has);
        has
    }
}

/// A data set, read.
pub(super) struct Step {
    pub(super) graph: String,
    pub(super) part: u32,
    pub(super) entry: StepEntry,
    /// One an output.
    pub(super) outputs: Vec<TensorVerdict>,
    distributions: Vec<Option<Distribution>>,
    /// Outputs of which the dump has what they add up: rounding of sums may excuse what is outside tolerance.
    sums: HashSet<String>,
    /// "tensors", "comparison" or "nothing".
    judged_from: &'static str,
    policy: Option<Policy>,
    pub(super) found: Option<Found>,
    pub(super) blame: Option<blame::Earlier>,
}

impl Step {
    /// Reads a data set. failures: gets what could not be read.
    pub(super) fn read(
        (graph, part): (&str, u32),
        (folder, entry): (&Path, &StepEntry),
        own: Option<&Keeper>,
        room: &mut Room,
        failures: &mut Vec<Failure>,
    ) -> Self {
        let mut step = Self {
            graph: graph.to_owned(),
            part,
            entry: entry.clone(),
            outputs: Vec::new(),
            distributions: Vec::new(),
            sums: HashSet::new(),
            judged_from: "nothing",
            policy: entry.policy,
            found: None,
            blame: None,
        };
        step.judge(room, failures);
        step.found = kept(found(folder, entry.step), failures).flatten();
        step.blame = kept(blame::earlier(folder, entry, own), failures).flatten();
        step
    }

    /// From its tensors; where these are gone, as the call was judged when it ran.
    fn judge(&mut self, room: &mut Room, failures: &mut Vec<Failure>) {
        if self.entry.n_references > 0 {
            let mut distributions: Vec<(String, Option<Distribution>)> = Vec::new();
            let mut look = |verdict: &TensorVerdict, [reference, candidate]: [&NamedTensor; 2]| {
                let metrics = verdict.metrics.as_ref();
                let metrics = metrics.filter(|_| room.has_distribution(verdict.verdict.is_pass()));
                let found = metrics.and_then(|metrics| {
                    let (tolerance, max) = (&metrics.tolerance, metrics.max_reference);
                    distribution(&reference.view(), &candidate.view(), tolerance, max)
                });
                distributions.push((verdict.name.clone(), found));
            };
            match compare::judged(&self.entry, &mut look) {
                Ok(Judged { damage: Some(damage), .. }) => failures.push(Box::new(damage)),
                Ok(Judged { verdicts, policy, .. }) => {
                    (self.outputs, self.policy, self.judged_from) = (verdicts, Some(policy), "tensors");
                }
                Err(failure) => failures.push(failure),
            }
            let manifest = reader::manifest(&self.entry.path).ok();
            self.sums = manifest.into_iter().flat_map(|manifest| manifest.terms).map(|entry| entry.name).collect();
            let mut distributions = distributions.into_iter().peekable();
            let of = |verdict: &TensorVerdict| {
                distributions.next_if(|(name, _)| *name == verdict.name).and_then(|(_, found)| found)
            };
            self.distributions = self.outputs.iter().map(of).collect();
        }
        if self.outputs.is_empty() {
            let comparison = reader::comparison(&self.entry.path).map_err(Failure::from);
            if let Some(comparison) = kept(comparison, failures).flatten() {
                (self.policy, self.judged_from) = (comparison.policy, "comparison");
                self.distributions = comparison.verdicts.iter().map(|_| None).collect();
                self.outputs = comparison.verdicts;
            }
        }
    }

    /// "0_0-forward/0 #3".
    pub(super) fn place(&self) -> String {
        data_sets::place(&self.entry.path)
    }

    pub(super) fn counts(&self) -> Summary {
        summary(&self.outputs)
    }

    pub(super) fn answer(&self) -> Option<&Answer> {
        self.blame.as_ref().and_then(|kept| kept.answer.as_ref())
    }

    /// Why what was not compared was not: (what, reason, name). has_nodes: its nodes were to be compared.
    pub(super) fn not_compared(&self, has_nodes: bool) -> Vec<(&'static str, String, String)> {
        let place = self.place();
        let mut all = Vec::new();
        let reason = |verdict: &TensorVerdict| match &verdict.verdict {
            Verdict::NotCompared(reason) => Some(reason.clone()),
            _ => None,
        };
        for verdict in &self.outputs {
            all.extend(reason(verdict).map(|why| ("output", why, format!("{} of {place}", verdict.name))));
        }
        for node in self.found.iter().flat_map(|found| &found.table().nodes) {
            let why = [&node.local, &node.cumulative].into_iter().find_map(reason);
            all.extend(why.map(|why| ("node", why, format!("{} of {place}", node.name))));
        }
        match &self.entry.state {
            Completeness::Complete => {}
            Completeness::Incomplete(why) => all.push(("call", why.clone(), place.clone())),
            Completeness::Damaged(damage) => all.push(("call", damage.to_string(), place.clone())),
        }
        if self.entry.n_references > 0 && self.judged_from != "tensors" {
            let why = match self.judged_from {
                "comparison" => "its tensors cannot be read: verdicts are those that were written when it ran",
                _ => "its tensors cannot be read",
            };
            all.push(("call", why.to_owned(), place.clone()));
        }
        if has_nodes && self.found.is_none() {
            let why = "its table of nodes is missing, or cannot be read: its nodes are not in this report".to_owned();
            all.push(("call", why, place.clone()));
        }
        if self.entry.n_references == 0 && self.outputs.is_empty() {
            let why = "eager's outputs are not in the dump: it was made without compare".to_owned();
            all.push(("call", why, place));
        }
        all
    }

    pub(super) fn json(&self, known: &Provenance, room: &mut Room) -> Value {
        let output = |(verdict, found): (&TensorVerdict, &Option<Distribution>)| {
            let mut value = shortened::verdict(verdict);
            let desc =
                verdict.metrics.as_ref().map(|metrics| (metrics.dtype.to_string(), metrics.shape.dims().to_vec()));
            (value["name"], value["role"]) = (json!(verdict.name), json!(known.roles.get(&verdict.name)));
            (value["dtype"], value["dims"]) =
                (json!(desc.as_ref().map(|of| &of.0)), json!(desc.as_ref().map(|of| &of.1)));
            (value["is_sum"], value["distribution"]) = (self.sums.contains(&verdict.name).into(), json!(found));
            value
        };
        let StepEntry { step, path, state, .. } = &self.entry;
        json!({
            "step": step, "path": path, "state": state, "policy": self.policy, "judged_from": self.judged_from,
            "outputs": self.outputs.iter().zip(&self.distributions).map(output).collect::<Vec<_>>(),
            "table": self.found.as_ref().map(|found| table(found, room)),
            "blame": self.blame.as_ref().map(|kept| json!({
                "is_own": kept.is_own, "is_current": kept.is_current, "answer": kept.answer.as_ref().map(answer),
            })),
        })
    }
}

/// The table of nodes of a call; None where there is none.
fn found(folder: &Path, step: u64) -> Result<Option<Found>, Failure> {
    let files = reader::node_files(folder)?;
    let file = files.into_iter().find(|(number, _)| *number == step);
    file.map(|(number, path)| Found::read(number, path)).transpose()
}

/// The value that was read; else the failure is kept.
fn kept<T>(read: Result<T, Failure>, failures: &mut Vec<Failure>) -> Option<T> {
    read.map_err(|failure| failures.push(failure)).ok()
}

fn table(found: &Found, room: &mut Room) -> Value {
    let nodes = &found.table().nodes;
    let has_all = nodes.len() <= room.rows;
    room.rows = room.rows.saturating_sub(nodes.len());
    let rows = nodes.iter().map(|node| (node, Mark::of(node)));
    let rows = rows.filter(|(_, mark)| has_all || !matches!(mark, Mark::Match | Mark::NotCompared));
    let rows: Vec<Value> = rows.map(|(node, mark)| shortened::row(node, mark.word())).collect();
    let mut value = found.facts();
    value["left_out"] = (nodes.len() - rows.len()).into();
    value["nodes"] = rows.into();
    value["plain"] = found.table().plain.iter().filter(|one| !one.verdict.is_pass()).map(shortened::verdict).collect();
    value
}

/// An answer with its verdicts as a report holds them.
fn answer(answer: &Answer) -> Value {
    let mut value = json!(answer);
    for (place, complaint) in answer.complaints.iter().enumerate() {
        let told = &mut value["complaints"][place];
        told["name"] = complaint.as_ran.name.clone().into();
        told["as_ran"] = shortened::verdict(&complaint.as_ran);
        told["unoptimized"] = complaint.unoptimized.as_ref().map(shortened::verdict).into();
    }
    for (place, node) in answer.nodes.iter().enumerate() {
        value["nodes"][place]["local"] = shortened::verdict(&node.local);
    }
    value["text"] = answer.culprit.to_string().into();
    value
}
