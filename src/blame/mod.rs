//! Who is to blame for an output that differs from eager's: the optimizer, a node's kernel, its translation, or nobody.
//!
//! A node is asked what it makes of eager's inputs, and what that difference alone does to the output while everything
//! else is eager's: its share. Shares of independent errors add up to one, so who is named is who made the error, not who
//! stands behind it. What comes out right when nothing is optimized is asked of the optimizers instead, by turning them
//! off. Only what rounding does not explain is blamed.

mod across_calls;
mod answer;
mod case;
mod error;
mod error_share;
pub mod faults;
mod float64;
mod layer;
mod local_error;
mod nodes;
mod optimizers;
mod part_variants;
mod probe;
pub mod prove;
mod repetition;
mod same_pair;
pub mod search;
mod suspects;
mod terms;
mod values;

use std::time::Duration;

pub use across_calls::{Together, together};
pub use answer::{Answer, Complaint, Contribution, Culprit, Fused, Layer, OptimizerKind, SCHEMA, counted};
use case::is_wrong;
pub use case::{Case, Parts};
pub use error::BlameError;
pub use local_error::Own;
use nodes::{Group, Local, Nodes, Target};
use part_variants::Whole;
use probe::Prober;
pub use repetition::{Again, Rerun};
pub use suspects::Strategy;
use suspects::Suspects;
pub use values::Values;

use crate::base::ids::ValueName;
use crate::compare::{Summary, TensorVerdict, Verdict, significant, summary};
use crate::runtime::Runtime;
use crate::tensor::TensorBuf;

/// A smaller share of the output's error accuses nobody.
pub const LEAST_SHARE: f64 = 0.05;
/// From this share on an output's error is all of one node's making.
const WHOLE: f64 = 0.9;
/// When wrong nodes explain less than this of it, others are looked at, too.
const ENOUGH: f64 = 0.5;
/// So many of these, those first that are furthest from eager.
const N_OTHERS: usize = 24;
/// What tells of every node.
const DUMP_NODES: &str = "dump with compare=\"nodes\" and dump_values=True";
/// So many outputs are followed, the worst first.
const N_TARGETS: usize = 8;

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
    let Outputs { complaints, right, n_unknown } = outputs(case, settings)?;
    let why = match n_unknown {
        0 => "every output is as right as eager's".to_owned(),
        n => format!(
            "eager's value of {n} of {} outputs was not dumped, so nothing is known of them; {DUMP_NODES}",
            case.actuals.len()
        ),
    };
    let wrong_alone = case.table.first_local_mismatch().filter(|_| complaints.is_empty()).map(|row| {
        let place = [row.op.as_str(), &row.module, &row.source].into_iter().filter(|text| !text.is_empty());
        let place = place.collect::<Vec<_>>().join(", ");
        format!("{} ({place}) alone differs from eager's, and takes no output out of tolerance", row.name)
    });
    let answer = Answer {
        schema: SCHEMA.to_owned(),
        graph: case.table.graph.clone(),
        part: case.table.part,
        step: case.table.step,
        complaints,
        right,
        culprit: Culprit::Nobody { why },
        beside: Vec::new(),
        nodes: Vec::new(),
        smallest: None,
        n_runs: 0,
        seconds: 0.,
        complete: n_unknown == 0,
        notes: Vec::new(),
        wrong_alone,
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

/// A part's outputs.
struct Outputs {
    /// Outside tolerance, those first that are furthest.
    complaints: Vec<Complaint>,
    /// The others, by why they are right.
    right: Summary,
    /// How many have no value of eager's.
    n_unknown: usize,
}

/// Errors: UnknownOutput.
fn outputs(case: &Case, settings: &Settings) -> Result<Outputs, BlameError> {
    if let Some(asked) = &settings.output
        && case.actuals.iter().all(|actual| actual.name != *asked)
    {
        let known = case.actuals.iter().map(|actual| actual.name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(BlameError::UnknownOutput { name: asked.clone(), known });
    }
    let (mut found, mut right, mut n_unknown) = (Vec::new(), Vec::new(), 0);
    for actual in case.actuals.iter().filter(|actual| settings.output.as_ref().is_none_or(|name| *name == actual.name))
    {
        let Some(reference) = case.values.get(&actual.name)? else {
            n_unknown += 1;
            continue;
        };
        let as_ran = case.judge(&actual.name, &reference.view(), &actual.view());
        let differs = || as_ran.metrics.as_ref().is_some_and(|metrics| metrics.max_abs > 0.);
        if (is_wrong(&as_ran) && !case.is_rounding(&as_ran)) || (settings.follow && differs()) {
            let role = case.row(&actual.name).map(|row| row.role.clone()).unwrap_or_default();
            found.push(Complaint { role, as_ran, unoptimized: None });
        } else if as_ran.verdict.is_pass() {
            right.push(as_ran);
        } else {
            right.push(TensorVerdict { verdict: Verdict::Noise, ..as_ran });
        }
    }
    let distance = |complaint: &Complaint| {
        complaint.as_ran.metrics.as_ref().map_or(f64::INFINITY, |metrics| metrics.max_rel_to_max)
    };
    found.sort_by(|one, other| distance(other).total_cmp(&distance(one)));
    Ok(Outputs { complaints: found, right: summary(&right), n_unknown })
}

impl<'a, 'p> Examination<'a, 'p> {
    fn run(&mut self, progress: &mut dyn Progress) -> Result<(), BlameError> {
        let follow = self.settings.follow;
        let wrong: Vec<ValueName> = self.answer.complaints.iter().map(|found| found.as_ran.name.clone()).collect();
        let whole = Whole::run(self.prober, &wrong)?;
        if !follow && whole.is_right() {
            let names = whole.changed_inputs();
            self.answer.culprit = match names.is_empty() {
                false => Culprit::Inputs { names },
                true => {
                    self.answer.complete = false;
                    let why =
                        "run again, the outputs are within tolerance: the model gives here what the dump does not hold";
                    Culprit::Nobody { why: why.to_owned() }
                }
            };
            return Ok(());
        }
        if !follow && let Some(why) = whole.excused_by_rules()? {
            self.answer.culprit = Culprit::Nobody { why };
            self.tell_what_rules_hide();
            return Ok(());
        }
        let unoptimized = self.nodes.outputs(&wrong, &[])?;
        for (complaint, output) in self.answer.complaints.iter_mut().zip(&unoptimized) {
            let name = &complaint.as_ran.name;
            let reference = self.prober.eager(name)?;
            complaint.unoptimized = Some(self.prober.case.judge(name, &reference.view(), &output.view()));
        }
        let remains = |complaint: &Complaint| follow || complaint.unoptimized.as_ref().is_some_and(is_wrong);
        let remain: Vec<bool> = self.answer.complaints.iter().map(remains).collect();
        let nothing_remains = !remain.contains(&true);
        let changed = whole.changed_by_optimizing(&unoptimized);
        if !changed.is_empty() || nothing_remains {
            let (culprit, note) = whole.optimizer(&changed, &unoptimized)?;
            self.answer.culprit = culprit;
            self.answer.notes.extend(note);
        }
        if nothing_remains {
            return Ok(());
        }
        let optimizer = std::mem::replace(&mut self.answer.culprit, Culprit::Nobody { why: String::new() });
        let targets = self.targets(&wrong, unoptimized, &remain)?;
        let asked = self.ask_nodes(&targets, progress);
        if matches!(optimizer, Culprit::Optimizer { .. }) {
            let node = std::mem::replace(&mut self.answer.culprit, optimizer);
            self.answer.beside.extend(Some(node).filter(|node| !matches!(node, Culprit::Nobody { .. })));
        }
        asked
    }

    fn tell_what_rules_hide(&mut self) {
        let rows = self.prober.case.table.nodes.iter().filter(|row| row.local.verdict == Verdict::Mismatch);
        let hidden = rows.map(|row| row.name.as_str()).collect::<Vec<_>>().join(", ");
        if !hidden.is_empty() {
            self.answer.complete = false;
            self.answer.notes.push(format!(
                "wrong alone, which eager's rounding may hide from the outputs: {hidden}; run it without precision_rules"
            ));
        }
    }

    /// The outputs to follow, of those that `remain`; both lists are as long. Errors: NoValue, Onnx.
    fn targets(
        &mut self,
        wrong: &[ValueName],
        unoptimized: Vec<TensorBuf>,
        remain: &[bool],
    ) -> Result<Vec<Target>, BlameError> {
        let mut targets = Vec::new();
        for ((name, candidate), _) in wrong.iter().zip(unoptimized).zip(remain).filter(|(_, remains)| **remains) {
            targets.push(Target { name: name.clone(), reference: self.prober.eager(name)?, candidate });
        }
        let n = targets.len();
        if n > N_TARGETS {
            self.answer
                .notes
                .push(format!("{n} outputs are wrong; the {N_TARGETS} worst are followed (--output NAME)"));
            targets.truncate(N_TARGETS);
        }
        Ok(targets)
    }

    fn ask_nodes(&mut self, targets: &[Target], progress: &mut dyn Progress) -> Result<(), BlameError> {
        let case = self.prober.case;
        if !case.knows_nodes() {
            let why = format!("eager's values of the nodes were not dumped; {DUMP_NODES}");
            (self.answer.culprit, self.answer.complete) = (Culprit::Nobody { why }, false);
            return Ok(());
        }
        let names: Vec<ValueName> = targets.iter().map(|target| target.name.clone()).collect();
        // Of outputs that are right there is nothing to halve.
        let one_by_one = !case.table.nodes.is_empty() || self.settings.follow;
        let strategy = self.settings.strategy.unwrap_or(if one_by_one { Strategy::Linear } else { Strategy::Bisect });
        let (accused, others) = self.suspects(&names).by(strategy)?;
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
            (None, None) => match self.as_right() {
                Some((name, why)) => format!("{name} is as right as eager's: {why}"),
                None if self.settings.follow => "every node's own error is rounding".to_owned(),
                None => "every node's own error is rounding; the graph makes it larger".to_owned(),
            },
        };
        Culprit::Nobody { why }
    }

    /// The node with the largest share whose other result is as right, and why. None: there is none that shows.
    fn as_right(&self) -> Option<(&str, &str)> {
        let shows = |node: &&Contribution| node.own == Own::AsRight && node.share.abs() >= LEAST_SHARE;
        let node = self.answer.nodes.iter().find(shows)?;
        Some((&node.name, &self.prober.case.row(&node.name)?.as_right))
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
        self.answer.smallest = match self.suspects(outputs).smallest(&guilty) {
            Err(BlameError::Budget) => return Err(BlameError::Budget),
            Err(_) | Ok(None) => None,
            Ok(Some(chosen)) => Some(chosen.into_iter().map(|at| guilty[at].values.join("+")).collect()),
        };
        Ok(())
    }

    fn suspects<'e>(&'e self, outputs: &'e [ValueName]) -> Suspects<'e, 'p, 'a> {
        Suspects { prober: self.prober, nodes: &self.nodes, outputs }
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
