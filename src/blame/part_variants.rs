//! The part as a whole, on eager's inputs: whether rules of precision or optimizing make its outputs differ.

use std::rc::Rc;

use super::answer::Culprit;
use super::case::is_wrong;
use super::error::BlameError;
use super::float64::outputs_in_float64;
use super::optimizers::{self, Found};
use super::probe::Prober;
use crate::base::ids::ValueName;
use crate::base::quoted::quoted;
use crate::compare::{Explained, Noise, NoiseKind};
use crate::onnx::NamedTensor;
use crate::protocol::message::SessionSpec;
use crate::tensor::{TensorBuf, TensorView};

/// So many times as far from eager as without an optimizer is its doing.
const CLEARLY_MORE: f64 = 2.;

/// A part that has run on eager's inputs.
pub struct Whole<'p, 'a> {
    prober: &'p Prober<'a>,
    /// Eager's inputs, in the model's order.
    eager: Vec<Rc<NamedTensor>>,
    /// Outputs that were outside tolerance.
    wrong: Vec<ValueName>,
    /// What it gave, in the model's order.
    outputs: Vec<TensorBuf>,
}

impl<'p, 'a> Whole<'p, 'a> {
    /// Runs it as it ran. Errors: [`BlameError`].
    pub fn run(prober: &'p Prober<'a>, wrong: &[ValueName]) -> Result<Self, BlameError> {
        let feeds = &prober.case.feeds;
        let eager = feeds.iter().map(|feed| prober.eager(&feed.name)).collect::<Result<Vec<_>, _>>()?;
        let outputs = prober.whole(&prober.case.spec, &views(&eager))?;
        Ok(Self { prober, eager, wrong: wrong.to_vec(), outputs })
    }

    /// Inputs that are not eager's.
    pub fn changed_inputs(&self) -> Vec<ValueName> {
        let pairs = self.prober.case.feeds.iter().zip(&self.eager);
        let changed = pairs.filter(|(feed, eager)| feed.view().bytes() != eager.view().bytes());
        changed.map(|(feed, _)| feed.name.clone()).collect()
    }

    /// Whether the outputs are within tolerance where they were not.
    pub fn is_right(&self) -> bool {
        self.are_right(&self.outputs)
    }

    fn are_right(&self, outputs: &[TensorBuf]) -> bool {
        self.named(&self.wrong, outputs).all(|(name, output)| self.prober.is_right(name, output))
    }

    /// Of the outputs of a run, those of these names.
    fn named<'o>(
        &'o self,
        names: &'o [ValueName],
        outputs: &'o [TensorBuf],
    ) -> impl Iterator<Item = (&'o ValueName, &'o TensorBuf)> {
        let all = self.prober.case.actuals.iter().map(|actual| &actual.name).zip(outputs);
        all.filter(|(name, _)| names.contains(name))
    }

    /// Why nobody is to blame, where the outputs are within tolerance when no value is kept in float32: then eager's
    /// rounding is what they lack, as was asked for. It may hide a node that is wrong. Errors: [`BlameError`].
    pub fn excused_by_rules(&self) -> Result<Option<String>, BlameError> {
        let spec = &self.prober.case.spec;
        if spec.keep_float32.is_empty() {
            return Ok(None);
        }
        let rounding = SessionSpec { keep_float32: Vec::new(), ..spec.clone() };
        let rounded = self.prober.whole(&rounding, &views(&self.eager))?;
        let rules = spec.keep_float32.iter().map(|rule| quoted(rule)).collect::<Vec<_>>().join(", ");
        Ok(self.are_right(&rounded).then(|| {
            format!(
                "precision_rules keep {rules} in float32, which eager rounds; without them the outputs are within tolerance"
            )
        }))
    }

    /// Outputs that optimizing took further from eager than they were, and further than their tolerance from what they were.
    /// `unoptimized`: those that were outside tolerance, with nothing optimized.
    pub fn changed_by_optimizing(&self, unoptimized: &[TensorBuf]) -> Vec<ValueName> {
        let case = self.prober.case;
        let is_changed = |(name, before): &(&ValueName, &TensorBuf)| {
            let (Some(after), Ok(eager)) = (self.output(name), self.prober.eager(name)) else { return false };
            let apart = |candidate: &TensorBuf| {
                let judged = case.judge(name, &eager.view(), &candidate.view());
                judged.metrics.map_or(f64::INFINITY, |metrics| metrics.max_abs)
            };
            is_wrong(&case.judge(name, &before.view(), &after.view())) && apart(after) > CLEARLY_MORE * apart(before)
        };
        self.wrong.iter().zip(unoptimized).filter(is_changed).map(|(name, _)| name.clone()).collect()
    }

    fn output(&self, name: &str) -> Option<&TensorBuf> {
        self.outputs.get(self.place(name)?)
    }

    fn place(&self, name: &str) -> Option<usize> {
        self.prober.case.actuals.iter().position(|actual| actual.name == name)
    }

    /// Which optimizing is to blame that some outputs are not near what they are with nothing optimized, and what was not
    /// looked at. changed: those that it took away from eager; none: all that were outside tolerance. `unoptimized`: as for
    /// [`Whole::changed_by_optimizing`]. Errors: [`BlameError`].
    pub fn optimizer(
        &self,
        changed: &[ValueName],
        unoptimized: &[TensorBuf],
    ) -> Result<(Culprit, Option<String>), BlameError> {
        let of = self.beyond_rounding(if changed.is_empty() { &self.wrong } else { changed })?;
        if of.is_empty() {
            let why = "what optimizing changes is rounding: eager is about as far from float64".to_owned();
            return Ok((Culprit::Nobody { why }, None));
        }
        let is_as_before = |name: &ValueName, output: &TensorBuf| {
            let before = self.wrong.iter().zip(unoptimized).find(|(known, _)| *known == name);
            before.is_some_and(|(_, before)| !is_wrong(&self.prober.case.judge(name, &before.view(), &output.view())))
        };
        let is_right = |outputs: &[TensorBuf]| {
            self.named(&of, outputs)
                .all(|(name, output)| is_as_before(name, output) || self.prober.is_right(name, output))
        };
        let found = optimizers::find(self.prober, &views(&self.eager), is_right)?;
        let is_divided = found.is_some() && !self.prober.case.spec.runtimes.is_empty();
        let culprit = match found {
            Some(Found { names, is_rounding: true, .. }) => {
                let names = names.join(", ");
                Culprit::Nobody { why: format!("what {names} changes is rounding; the graph makes it larger") }
            }
            Some(Found { names, what, fused, .. }) => Culprit::Optimizer { names, what, fused },
            None => Culprit::Nobody { why: "at no optimization level are the outputs wrong by themselves".to_owned() },
        };
        let note = is_divided.then(|| {
            "which of its nodes the optimizer makes wrong was not looked at: a part that rules divide among runtimes has no \
             one optimized model"
                .to_owned()
        });
        Ok((culprit, note))
    }

    /// Of outputs, those that are further from float64 than rounding takes eager, too, or of which it does not tell. A
    /// gradient that is zero but for rounding is another one with each order of its sums. Errors: Budget.
    fn beyond_rounding(&self, of: &[ValueName]) -> Result<Vec<ValueName>, BlameError> {
        let Some(exact) = outputs_in_float64(self.prober)? else { return Ok(of.to_vec()) };
        let mut beyond = Vec::new();
        for name in of {
            let reference = self.prober.eager(name)?;
            let exact = self.place(name).and_then(|at| exact.get(at));
            let noise = self.output(name).zip(exact).and_then(|(candidate, exact)| {
                let explained = Explained::Drift { step: 0. };
                Noise::measure(&reference.view(), &candidate.view(), &exact.view(), explained, Noise::FACTOR)
            });
            if noise.is_none_or(|noise| noise.kind == NoiseKind::CandidateWorse && !noise.settles()) {
                beyond.push(name.clone());
            }
        }
        Ok(beyond)
    }
}

fn views(tensors: &[Rc<NamedTensor>]) -> Vec<TensorView<'_>> {
    tensors.iter().map(|tensor| tensor.view()).collect()
}
