//! Who is to blame for an output that differs from eager's: the optimizer, a node's kernel, its translation, or nobody.
//!
//! A node is asked what it makes of eager's inputs, and what that difference alone does to the output while everything
//! else is eager's: its share. Shares of independent errors add up to one, so who is named is who made the error, not who
//! stands behind it. What comes out right when nothing is optimized is asked of the optimizers instead, by turning them
//! off. Only what rounding does not explain is blamed.

mod again;
mod answer;
mod case;
mod error;
pub mod faults;
mod layer;
mod nodes;
mod optimizers;
mod own;
mod probe;
pub mod prove;
pub mod search;
mod share;
mod together;
mod values;

use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

pub use again::{Again, Rerun};
pub use answer::{Answer, Complaint, Contribution, Culprit, Fused, Layer, OptimizerKind, SCHEMA};
use case::is_wrong;
pub use case::{Case, Parts};
pub use error::BlameError;
use nodes::{Group, Local, Nodes, Target};
pub use own::Own;
use probe::Prober;
pub use together::{Together, together};
pub use values::Values;

use crate::base::ids::ValueName;
use crate::base::quoted::quoted;
use crate::compare::{Explained, Noise, NoiseKind, Summary, TensorVerdict, Verdict, significant, summary};
use crate::onnx::NamedTensor;
use crate::protocol::message::SessionSpec;
use crate::runtime::Runtime;
use crate::tensor::{TensorBuf, TensorView};

/// A smaller share of the output's error accuses nobody.
pub const LEAST_SHARE: f64 = 0.05;
/// From this share on an output's error is all of one node's making.
const WHOLE: f64 = 0.9;
/// So many times as far from eager as without an optimizer is its doing.
const CLEARLY_MORE: f64 = 2.;
/// When wrong nodes explain less than this of it, others are looked at, too.
const ENOUGH: f64 = 0.5;
/// So many of these, those first that are furthest from eager.
const N_OTHERS: usize = 24;
/// What tells of every node.
const DUMP_NODES: &str = "dump with compare=\"nodes\" and dump_values=True";
/// So many nodes are sought by bisection.
const MOST_BISECTED: usize = 8;
/// So many outputs are followed, the worst first.
const N_TARGETS: usize = 8;

/// How nodes are gone through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// One by one: those that the comparison of nodes found wrong; where it was not made, all.
    Linear,
    /// The first value from which on the outputs are right when all before it are eager's, by halving; then, with that
    /// one eager's, the next. Finds the node whose own error is not outside tolerance, too, in few runs.
    Bisect,
    /// The smallest set of values that, when they are eager's, bring the outputs within tolerance, by delta debugging.
    Delta,
}

/// What to look at, how, and for how long.
#[derive(Clone, Debug)]
pub struct Settings {
    /// None: linear where the nodes were compared or right outputs are followed, else bisection.
    pub strategy: Option<Strategy>,
    /// The output to explain; None: every one that is outside tolerance.
    pub output: Option<ValueName>,
    /// Time; what is not looked at by then is said.
    pub budget: Duration,
    /// Explain outputs within tolerance as well: others made more of their error.
    pub follow: bool,
}

/// How far an examination is.
pub trait Progress {
    /// So many of so many nodes have been looked at.
    fn at(&mut self, done: usize, of: usize);
    /// A node has been looked at; to be kept for a later examination of the same case.
    fn found(&mut self, contribution: &Contribution);
}

struct Examination<'a, 'p> {
    prober: &'p Prober<'a>,
    nodes: Nodes<'p, 'a>,
    settings: &'p Settings,
    /// Of an earlier examination of the same case.
    known: &'p [Contribution],
    answer: Answer,
}

/// Examines a part in one call. `known`: what an earlier examination of the same case found. Errors: [`BlameError`] when
/// the case itself cannot be run; what concerns single nodes is in the notes.
pub fn examine(
    case: &Case,
    runtime: &dyn Runtime,
    settings: &Settings,
    known: &[Contribution],
    progress: &mut dyn Progress,
) -> Result<Answer, BlameError> {
    let prober = Prober::new(case, runtime, settings.budget);
    let (complaints, n_unknown) = complaints(case, settings)?;
    let why = match n_unknown {
        0 => "every output is within tolerance".to_owned(),
        n => format!(
            "eager's value of {n} of {} outputs was not dumped, so nothing is known of them",
            case.actuals.len()
        ),
    };
    let answer = Answer {
        schema: SCHEMA.to_owned(),
        graph: case.table.graph.clone(),
        part: case.table.part,
        step: case.table.step,
        complaints,
        culprit: Culprit::Nobody { why },
        beside: Vec::new(),
        nodes: Vec::new(),
        smallest: None,
        n_runs: 0,
        seconds: 0.,
        complete: n_unknown == 0,
        notes: Vec::new(),
    };
    let nodes = Nodes::new(&prober);
    let mut examination = Examination { prober: &prober, nodes, settings, known, answer };
    if !examination.answer.complaints.is_empty() {
        match examination.run(progress) {
            Err(BlameError::Budget) => examination.out_of_time(),
            other => other?,
        }
    }
    let mut answer = examination.answer;
    (answer.n_runs, answer.seconds) = (prober.n_runs(), prober.elapsed().as_secs_f64());
    Ok(answer)
}

/// The outputs outside tolerance, those first that are furthest, and how many have no value of eager's. Errors:
/// UnknownOutput.
fn complaints(case: &Case, settings: &Settings) -> Result<(Vec<Complaint>, usize), BlameError> {
    if let Some(asked) = &settings.output
        && case.actuals.iter().all(|actual| actual.name != *asked)
    {
        let known = case.actuals.iter().map(|actual| actual.name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(BlameError::UnknownOutput { name: asked.clone(), known });
    }
    let (mut found, mut n_unknown) = (Vec::new(), 0);
    for actual in case.actuals.iter().filter(|actual| settings.output.as_ref().is_none_or(|name| *name == actual.name))
    {
        let Some(reference) = case.values.get(&actual.name)? else {
            n_unknown += 1;
            continue;
        };
        let as_ran = case.judge(&actual.name, &reference.view(), &actual.view());
        let differs = || as_ran.metrics.as_ref().is_some_and(|metrics| metrics.max_abs > 0.);
        if (is_wrong(&as_ran) && !case.is_rounding(&actual.name)) || (settings.follow && differs()) {
            let role = case.row(&actual.name).map(|row| row.role.clone()).unwrap_or_default();
            found.push(Complaint { role, as_ran, unoptimized: None });
        }
    }
    let distance = |complaint: &Complaint| {
        complaint.as_ran.metrics.as_ref().map_or(f64::INFINITY, |metrics| metrics.max_rel_to_max)
    };
    found.sort_by(|one, other| distance(other).total_cmp(&distance(one)));
    Ok((found, n_unknown))
}

impl Examination<'_, '_> {
    fn run(&mut self, progress: &mut dyn Progress) -> Result<(), BlameError> {
        let case = self.prober.case;
        let wrong: Vec<ValueName> = self.answer.complaints.iter().map(|found| found.as_ran.name.clone()).collect();
        let eager = case.feeds.iter().map(|feed| self.prober.eager(&feed.name)).collect::<Result<Vec<_>, _>>()?;
        let changed = |(feed, eager): &(&NamedTensor, &Rc<NamedTensor>)| feed.view().bytes() != eager.view().bytes();
        let changed: Vec<ValueName> =
            case.feeds.iter().zip(&eager).filter(changed).map(|(feed, _)| feed.name.clone()).collect();
        let feeds: Vec<TensorView<'_>> = eager.iter().map(|tensor| tensor.view()).collect();
        let as_ran = self.prober.whole(&case.spec, &feeds)?;
        let is_right = |outputs: &[TensorBuf]| self.are_right(&wrong, outputs);
        if !self.settings.follow && is_right(&as_ran) {
            self.answer.culprit = match changed.is_empty() {
                false => Culprit::Inputs { names: changed },
                true => Culprit::Nobody { why: "run again, the outputs are within tolerance".to_owned() },
            };
            return Ok(());
        }
        if !self.settings.follow && self.are_rules_the_difference(&wrong, &feeds)? {
            return Ok(());
        }
        let unoptimized = self.nodes.outputs(&wrong, &[])?;
        for (complaint, output) in self.answer.complaints.iter_mut().zip(&unoptimized) {
            let reference = self.prober.eager(&complaint.as_ran.name)?;
            complaint.unoptimized = Some(case.judge(&complaint.as_ran.name, &reference.view(), &output.view()));
        }
        let optimized: Vec<ValueName> = self.changed_by_optimizing(&wrong, &as_ran, &unoptimized);
        let remain: Vec<&Complaint> = (self.answer.complaints.iter())
            .filter(|complaint| self.settings.follow || complaint.unoptimized.as_ref().is_some_and(is_wrong))
            .collect();
        let nothing_else = remain.is_empty();
        let names: HashSet<&str> = remain.iter().map(|complaint| complaint.as_ran.name.as_str()).collect();
        let names: HashSet<String> = names.into_iter().map(str::to_owned).collect();
        if !optimized.is_empty() || nothing_else {
            let expected: Vec<(ValueName, TensorBuf)> =
                wrong.iter().cloned().zip(unoptimized.iter().cloned()).collect();
            let of = self.beyond_rounding(if optimized.is_empty() { &wrong } else { &optimized }, &as_ran)?;
            if of.is_empty() {
                let why = "what optimizing changes is rounding: eager is about as far from float64".to_owned();
                self.answer.culprit = Culprit::Nobody { why };
            } else {
                self.ask_optimizers(&feeds, &of, &expected)?;
            }
        }
        if nothing_else {
            return Ok(());
        }
        let optimizer = std::mem::replace(&mut self.answer.culprit, Culprit::Nobody { why: String::new() });
        let mut targets = Vec::new();
        for (name, candidate) in wrong.iter().zip(unoptimized).filter(|(name, _)| names.contains(*name)) {
            targets.push(Target { name: name.clone(), reference: self.prober.eager(name)?, candidate });
        }
        if targets.len() > N_TARGETS {
            let n = targets.len();
            self.answer
                .notes
                .push(format!("{n} outputs are wrong; the {N_TARGETS} worst are followed (--output NAME)"));
            targets.truncate(N_TARGETS);
        }
        let asked = self.ask_nodes(&targets, progress);
        if matches!(optimizer, Culprit::Optimizer { .. }) {
            let node = std::mem::replace(&mut self.answer.culprit, optimizer);
            self.answer.beside.extend(Some(node).filter(|node| !matches!(node, Culprit::Nobody { .. })));
        }
        asked
    }

    /// Whether the outputs are within tolerance where no value is kept in float32: then eager's rounding is what they lack,
    /// as was asked for. It may hide a node that is wrong. Errors: [`BlameError`].
    fn are_rules_the_difference(&mut self, wrong: &[ValueName], feeds: &[TensorView<'_>]) -> Result<bool, BlameError> {
        let spec = &self.prober.case.spec;
        if spec.keep_float32.is_empty() {
            return Ok(false);
        }
        let rounded = self.prober.whole(&SessionSpec { keep_float32: Vec::new(), ..spec.clone() }, feeds)?;
        let are_right = self.are_right(wrong, &rounded);
        if are_right {
            let rules = spec.keep_float32.iter().map(|rule| quoted(rule)).collect::<Vec<_>>().join(", ");
            let why = format!(
                "precision_rules keep {rules} in float32, which eager rounds; without them the outputs are within tolerance"
            );
            self.answer.culprit = Culprit::Nobody { why };
            let rows = self.prober.case.table.nodes.iter().filter(|row| row.local.verdict == Verdict::Mismatch);
            let hidden = rows.map(|row| row.name.as_str()).collect::<Vec<_>>().join(", ");
            if !hidden.is_empty() {
                self.answer.complete = false;
                self.answer.notes.push(format!(
                    "wrong alone, which eager's rounding may hide from the outputs: {hidden}; run it without precision_rules"
                ));
            }
        }
        Ok(are_right)
    }

    /// Outputs that optimizing took further from eager than they were, and further than their tolerance from what they were.
    fn changed_by_optimizing(
        &self,
        wrong: &[ValueName],
        as_ran: &[TensorBuf],
        unoptimized: &[TensorBuf],
    ) -> Vec<ValueName> {
        let case = self.prober.case;
        let of_name =
            |name: &str| case.actuals.iter().position(|actual| actual.name == name).and_then(|at| as_ran.get(at));
        let is_changed = |(name, before): &(&ValueName, &TensorBuf)| {
            let (Some(after), Ok(eager)) = (of_name(name), self.prober.eager(name)) else { return false };
            let apart = |candidate: &TensorBuf| {
                let judged = case.judge(name, &eager.view(), &candidate.view());
                judged.metrics.map_or(f64::INFINITY, |metrics| metrics.max_abs)
            };
            is_wrong(&case.judge(name, &before.view(), &after.view())) && apart(after) > CLEARLY_MORE * apart(before)
        };
        wrong.iter().zip(unoptimized).filter(is_changed).map(|(name, _)| name.clone()).collect()
    }

    /// Of outputs, those that are further from float64 than rounding takes eager, too, or of which it does not tell. A
    /// gradient that is zero but for rounding is another one with each order of its sums. Errors: Budget.
    fn beyond_rounding(&self, of: &[ValueName], as_ran: &[TensorBuf]) -> Result<Vec<ValueName>, BlameError> {
        let Some(exact) = layer::outputs_in_float64(self.prober)? else { return Ok(of.to_vec()) };
        let mut beyond = Vec::new();
        for name in of {
            let at = self.prober.case.actuals.iter().position(|actual| actual.name == *name);
            let (reference, both) = (self.prober.eager(name)?, at.and_then(|at| as_ran.get(at).zip(exact.get(at))));
            let explained = Explained::Drift { step: 0. };
            let noise = both.and_then(|(candidate, exact)| {
                Noise::measure(&reference.view(), &candidate.view(), &exact.view(), explained, Noise::FACTOR)
            });
            if noise.is_none_or(|noise| noise.kind == NoiseKind::CandidateWorse && !noise.settles()) {
                beyond.push(name.clone());
            }
        }
        Ok(beyond)
    }

    /// Whether the outputs of a run of the whole part are within tolerance where they were not.
    fn are_right(&self, wrong: &[ValueName], outputs: &[TensorBuf]) -> bool {
        let case = self.prober.case;
        let named = case.actuals.iter().map(|actual| &actual.name).zip(outputs);
        named.filter(|(name, _)| wrong.contains(name)).all(|(name, output)| self.is_right(name, output))
    }

    /// `of`: outputs that are to come near to what they are with nothing optimized, which `expected` has.
    fn ask_optimizers(
        &mut self,
        feeds: &[TensorView<'_>],
        of: &[ValueName],
        expected: &[(ValueName, TensorBuf)],
    ) -> Result<(), BlameError> {
        let case = self.prober.case;
        let is_right = |outputs: &[TensorBuf]| {
            let named = case.actuals.iter().map(|actual| &actual.name).zip(outputs);
            named.filter(|(name, _)| of.contains(name)).all(|(name, output)| {
                let before = expected.iter().find(|(known, _)| known == name).map(|(_, before)| before);
                before.is_some_and(|before| !is_wrong(&case.judge(name, &before.view(), &output.view())))
                    || self.is_right(name, output)
            })
        };
        let found = optimizers::find(self.prober, feeds, is_right)?;
        if found.is_some() && !case.spec.runtimes.is_empty() {
            let why = "a part that rules divide among runtimes has no one optimized model";
            self.answer.notes.push(format!("which of its nodes the optimizer makes wrong was not looked at: {why}"));
        }
        self.answer.culprit = match found {
            Some(optimizers::Found { names, is_rounding: true, .. }) => {
                let names = names.join(", ");
                Culprit::Nobody { why: format!("what {names} changes is rounding; the graph makes it larger") }
            }
            Some(optimizers::Found { names, what, fused, .. }) => Culprit::Optimizer { names, what, fused },
            None => Culprit::Nobody { why: "at no optimization level are the outputs wrong by themselves".to_owned() },
        };
        Ok(())
    }

    fn ask_nodes(&mut self, targets: &[Target], progress: &mut dyn Progress) -> Result<(), BlameError> {
        let case = self.prober.case;
        if !case.knows_nodes() {
            let why = format!("eager's values of the nodes were not dumped; {DUMP_NODES}");
            (self.answer.culprit, self.answer.complete) = (Culprit::Nobody { why }, false);
            return Ok(());
        }
        let names: Vec<ValueName> = targets.iter().map(|target| target.name.clone()).collect();
        let groups = self.nodes.groups(&names);
        // Of outputs that are right there is nothing to halve.
        let one_by_one = !case.table.nodes.is_empty() || self.settings.follow;
        let strategy = self.settings.strategy.unwrap_or(if one_by_one { Strategy::Linear } else { Strategy::Bisect });
        let (accused, others) = match strategy {
            Strategy::Linear => self.in_order(groups),
            Strategy::Bisect => (self.bisected(groups, &names)?, Vec::new()),
            Strategy::Delta => (self.reduced(groups, &names)?, Vec::new()),
        };
        let n = accused.len();
        let mut looked = Vec::new();
        for (at, group) in accused.into_iter().enumerate() {
            progress.at(at, n);
            self.look_at(&group, targets, progress)?;
            looked.push(group);
        }
        let is_wrong_node = |node: &&Contribution| node.own == Own::Wrong;
        let explained: f64 = self.answer.nodes.iter().filter(is_wrong_node).map(|node| node.share).sum();
        if explained < ENOUGH {
            let n = others.len().min(N_OTHERS);
            for (at, group) in others.into_iter().take(N_OTHERS).enumerate() {
                progress.at(at, n);
                self.look_at(&group, targets, progress)?;
                looked.push(group);
            }
        }
        self.rank();
        self.look_closer(&looked)?;
        self.rank();
        if !self.settings.follow {
            self.shrink(&looked, &names)?;
        }
        if strategy != Strategy::Linear {
            self.doubt_search();
        }
        self.answer.culprit = self.of_nodes();
        Ok(())
    }

    /// Eager's value at the end of a chain brings the output within tolerance whoever spoiled it before: a search by such
    /// values that comes to little of the error has not found who made it.
    fn doubt_search(&mut self) {
        let explained: f64 = self.answer.nodes.iter().map(|node| node.share).sum();
        // Faults that show only together make nothing each.
        let are_together = self.answer.smallest.as_ref().is_some_and(|smallest| smallest.len() > 1);
        if explained < ENOUGH && !are_together {
            self.answer.complete = false;
            self.answer.notes.push(format!(
                "the nodes that the search came to make {} % of the error; --strategy linear looks at every node, those \
                 first that are wrong where they were compared: {DUMP_NODES}",
                significant(100. * explained, 3)
            ));
        }
    }

    /// Groups from which on the outputs are right when all before them are eager's, one after the other. Errors:
    /// [`BlameError`].
    fn bisected(&self, groups: Vec<Group>, outputs: &[ValueName]) -> Result<Vec<Group>, BlameError> {
        let mut found: Vec<usize> = Vec::new();
        while found.len() < MOST_BISECTED {
            let mut failure = None;
            let first = search::first(groups.len() + 1, |n| {
                // The first n, and those that were found.
                let given = (0..n).chain(found.iter().copied().filter(|&at| at >= n));
                self.is_right_with(given.map(|at| &groups[at]), outputs).map_err(|error| failure = Some(error)).ok()
            });
            match (first, failure) {
                (_, Some(error)) => return Err(error),
                // Right with what was found alone, or wrong whatever is eager's.
                (Some(0) | None, _) => break,
                (Some(n), _) if n > groups.len() || found.contains(&(n - 1)) => break,
                (Some(n), _) => found.push(n - 1),
            }
        }
        Ok(groups.into_iter().enumerate().filter(|(at, _)| found.contains(at)).map(|(_, group)| group).collect())
    }

    /// The smallest set of groups that bring the outputs within tolerance. Errors: [`BlameError`].
    fn reduced(&self, groups: Vec<Group>, outputs: &[ValueName]) -> Result<Vec<Group>, BlameError> {
        let mut failure = None;
        let found = search::smallest(groups.len(), |chosen| {
            let given = chosen.iter().map(|&at| &groups[at]);
            self.is_right_with(given, outputs).map_err(|error| failure = Some(error)).ok()
        });
        match failure {
            Some(error) => Err(error),
            None => {
                let found = found.unwrap_or_default();
                Ok(groups
                    .into_iter()
                    .enumerate()
                    .filter(|(at, _)| found.contains(at))
                    .map(|(_, group)| group)
                    .collect())
            }
        }
    }

    /// Whether the outputs are within tolerance when these groups have eager's values. Errors: [`BlameError`].
    fn is_right_with<'g>(
        &self,
        given: impl Iterator<Item = &'g Group>,
        outputs: &[ValueName],
    ) -> Result<bool, BlameError> {
        let given: Vec<&str> = given.flat_map(|group| &group.values).map(String::as_str).collect();
        let values = self.nodes.outputs(outputs, &given)?;
        Ok(outputs.iter().zip(&values).all(|(name, value)| self.is_right(name, value)))
    }

    /// Those that the comparison of nodes found wrong, or worse than rounding, in graph order, and the others that differ
    /// from eager at all, those first that are furthest. Without a comparison all are accused.
    fn in_order(&self, groups: Vec<Group>) -> (Vec<Group>, Vec<Group>) {
        let case = self.prober.case;
        let rows = |group: &Group| group.values.iter().map(|name| case.row(name)).collect::<Vec<_>>();
        let is_guilty = |row: &crate::dump::NodeRow| is_wrong(&row.local) || case.is_worse(&row.name);
        let is_accused = |group: &Group| rows(group).iter().any(|row| row.is_none_or(is_guilty));
        let distance = |group: &Group| {
            let of_row =
                |row: &crate::dump::NodeRow| row.local.metrics.as_ref().map_or(0., |metrics| metrics.max_rel_to_max);
            rows(group).into_iter().flatten().map(of_row).fold(0., f64::max)
        };
        let (accused, mut others): (Vec<_>, Vec<_>) = groups.into_iter().partition(is_accused);
        others.retain(|group| distance(group) > 0.);
        others.sort_by(|one, other| distance(other).total_cmp(&distance(one)));
        (accused, others)
    }

    /// Adds what a group's own error does. Errors: Budget.
    fn look_at(&mut self, group: &Group, targets: &[Target], progress: &mut dyn Progress) -> Result<(), BlameError> {
        if let Some(known) = self.known.iter().find(|known| known.values == group.values) {
            self.answer.nodes.push(known.clone());
            return Ok(());
        }
        let case = self.prober.case;
        let is_accused = group.values.iter().filter_map(|name| case.row(name)).any(|row| is_wrong(&row.local));
        let output = targets.first().map(|target| target.name.clone()).unwrap_or_default();
        let looked = match self.nodes.local(group) {
            Err(error) => Err((error, None)),
            Ok(local) if local.distance() == 0. => Ok(None),
            Ok(local) => match self.own_contribution(group, &local, targets) {
                Ok(found) => Ok(found),
                Err(error) => Err((error, Some(local))),
            },
        };
        let found = match looked {
            Ok(found) => found,
            Err((BlameError::Budget, _)) => return Err(BlameError::Budget),
            // What it gives cannot be gone on with, such as another shape.
            Err((error, local)) => {
                let fails = local.as_ref().is_some_and(Local::fails);
                self.answer.notes.push(format!("{}: its effect is not known: {error}", group.values.join(", ")));
                if !(is_accused || fails) {
                    self.answer.complete = false;
                    return Ok(());
                }
                Some(self.nodes.all_of(group, local.as_ref(), &output))
            }
        };
        if let Some(contribution) = found {
            progress.found(&contribution);
            self.answer.nodes.push(contribution);
        }
        Ok(())
    }

    fn own_contribution(
        &self,
        group: &Group,
        local: &Local,
        targets: &[Target],
    ) -> Result<Option<Contribution>, BlameError> {
        let Some(found) = self.nodes.contribution(group, local, targets)? else { return Ok(None) };
        Ok(Some(Contribution { own: self.nodes.own(group, local)?, ..found }))
    }

    /// Wrong ones first, then by share; of those that make all of an output's error, the first in the graph.
    fn rank(&mut self) {
        let isolator = &self.prober.case.isolator;
        let place = |node: &Contribution| isolator.producer(&node.name);
        self.answer.nodes.sort_by(|one, other| {
            let [share, other_share] = [one, other].map(|node| node.share.min(WHOLE));
            let [is_wrong, other_is_wrong] = [one, other].map(|node| node.own == Own::Wrong);
            other_is_wrong
                .cmp(&is_wrong)
                .then(other_share.total_cmp(&share))
                .then_with(|| place(one).cmp(&place(other)))
        });
    }

    /// Of those that are wrong: is it always the same, and what of them is wrong. Errors: Budget.
    fn look_closer(&mut self, wrong: &[Group]) -> Result<(), BlameError> {
        for at in 0..self.answer.nodes.len() {
            let node = &self.answer.nodes[at];
            if node.own != Own::Wrong || node.layer.is_some() {
                continue;
            }
            let Some(group) = wrong.iter().find(|group| group.values == node.values) else { continue };
            let looked = self.nodes.local(group).and_then(|local| self.nodes.look_closer(group, &local));
            match looked {
                Ok((own, layer, again)) => {
                    let node = &mut self.answer.nodes[at];
                    (node.own, node.layer, node.again) = (own, Some(layer), Some(again));
                }
                Err(BlameError::Budget) => return Err(BlameError::Budget),
                Err(error) => self.answer.notes.push(format!("{}: {error}", group.values.join(", "))),
            }
        }
        Ok(())
    }

    /// Who of the nodes is to blame: the one with the largest share; of those that show only together, the first. Not
    /// complete where nobody is, though not all that differs is rounding.
    fn of_nodes(&mut self) -> Culprit {
        let together = self.answer.smallest.iter().flatten().next().cloned();
        let is_first = |node: &&Contribution| {
            let in_smallest = || together.as_ref().is_some_and(|name| node.values.join("+") == *name);
            node.own == Own::Wrong && (node.share.abs() >= LEAST_SHARE || in_smallest())
        };
        let nodes = &self.answer.nodes;
        if let Some(node) = nodes.iter().find(is_first) {
            return Culprit::Node { name: node.name.clone(), layer: node.layer.unwrap_or(Layer::Unknown) };
        }
        let open = nodes
            .iter()
            .find(|node| node.own == Own::Wrong || (node.own == Own::Unsettled && node.share.abs() >= LEAST_SHARE));
        let jitter = nodes.iter().find(|node| node.own == Own::Jitter && node.share.abs() >= LEAST_SHARE);
        let why = match (open, jitter) {
            (None, Some(node)) => {
                let again = node.again.as_ref().map(ToString::to_string).unwrap_or_default();
                format!("{} is jitter: {again}", node.name)
            }
            (Some(node), _) => {
                self.answer.complete = false;
                let name = &node.name;
                let row = self.prober.case.row(name);
                let advice = match row.is_none_or(|row| row.local.metrics.is_none()) {
                    true => format!("; {DUMP_NODES}, which asks of each element"),
                    false => String::new(),
                };
                let why = "is outside its tolerance, and float64 does not tell whether by rounding";
                format!("not known: {name} {why}{advice}")
            }
            (None, None) if !self.answer.complete => "not known: not every node could be looked at".to_owned(),
            (None, None) if self.settings.follow => "every node's own error is rounding".to_owned(),
            (None, None) => "every node's own error is rounding; the graph makes it larger".to_owned(),
        };
        Culprit::Nobody { why }
    }

    /// The smallest set of wrong nodes that, with eager's values, bring the outputs within tolerance.
    fn shrink(&mut self, wrong: &[Group], outputs: &[ValueName]) -> Result<(), BlameError> {
        let is_guilty = |group: &&Group| {
            let of = |node: &&Contribution| node.values == group.values;
            self.answer.nodes.iter().find(of).is_some_and(|node| node.own == Own::Wrong)
        };
        let guilty: Vec<&Group> = wrong.iter().filter(is_guilty).collect();
        if guilty.is_empty() {
            return Ok(());
        }
        let mut failure = None;
        let found = search::smallest(guilty.len(), |chosen| {
            if chosen.is_empty() {
                return Some(false);
            }
            let given = chosen.iter().map(|&at| guilty[at]);
            self.is_right_with(given, outputs).map_err(|error| failure = Some(error)).ok()
        });
        if let Some(BlameError::Budget) = failure {
            return Err(BlameError::Budget);
        }
        self.answer.smallest = found.map(|chosen| chosen.into_iter().map(|at| guilty[at].values.join("+")).collect());
        Ok(())
    }

    fn is_right(&self, name: &str, value: &TensorBuf) -> bool {
        let reference = self.prober.eager(name);
        reference.is_ok_and(|reference| !is_wrong(&self.prober.case.judge(name, &reference.view(), &value.view())))
    }

    fn out_of_time(&mut self) {
        self.answer.complete = false;
        let seconds = self.settings.budget.as_secs_f64();
        self.answer.notes.push(format!("the budget of {seconds} s ended; run it again to go on, or give it more"));
        self.rank();
        if matches!(self.answer.culprit, Culprit::Nobody { .. }) {
            self.answer.culprit = match self.of_nodes() {
                Culprit::Nobody { .. } => Culprit::Nobody { why: "not known: the budget ended first".to_owned() },
                node => node,
            };
        }
    }
}

/// Whether an output is what `name` says: of a role such as `GradAOTOutput layer.weight`, what it is of.
pub fn is_role_of(case: &Case, output: &str, name: &str) -> bool {
    let role = case.row(output).map(|row| row.role.as_str()).unwrap_or_default();
    role.split_once(' ').is_some_and(|(_, of)| of == name)
}

/// All answers counted as verdicts are: a mismatch where somebody is blamed, not compared where an examination is not
/// complete and blames nobody.
pub fn counted(answers: &[Answer]) -> Summary {
    let verdict = |answer: &Answer| match (answer.blames(), answer.complete) {
        (true, _) => {
            TensorVerdict { name: answer.graph.clone(), verdict: Verdict::Mismatch, metrics: None, noise: None }
        }
        (false, true) => {
            TensorVerdict { name: answer.graph.clone(), verdict: Verdict::Match, metrics: None, noise: None }
        }
        (false, false) => TensorVerdict::not_compared(&answer.graph, "not complete"),
    };
    summary(&answers.iter().map(verdict).collect::<Vec<_>>())
}
