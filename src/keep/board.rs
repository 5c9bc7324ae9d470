//! Runs of a part: with its roundings turned on and off, in float64, and as it is compiled.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::KeepError;
use super::subject::Subject;
use crate::onnx::{Switched, Unrounded, double, give_terms, single, switched};
use crate::runtime::{self, Runtime, Session, leased, precision};
use crate::tensor::{DType, TensorBuf, TensorDesc, TensorView};

/// A part with a switch for each rounding.
pub struct Board<'a> {
    subject: &'a Subject,
    runtime: &'a dyn Runtime,
    /// What is rounded where its switch is on.
    pub switches: Vec<Unrounded>,
    session: Arc<dyn Session>,
    n_runs: Cell<u64>,
    started: Instant,
    budget: Duration,
}

impl<'a> Board<'a> {
    /// None: nothing is rounded. Errors: Onnx, Runtime.
    pub fn new(subject: &'a Subject, runtime: &'a dyn Runtime, budget: Duration) -> Result<Option<Self>, KeepError> {
        let started = Instant::now();
        let attend = precision::attend(subject.spec.optimization);
        let made = switched(&subject.model, &subject.named_values(), attend)?;
        let Some(Switched { model, switches }) = made else { return Ok(None) };
        let part = subject.part_spec(&model, Vec::new(), subject.spec.unoptimized());
        let session = runtime.build(&crate::runtime::Model::encode(&model), &part.session)?;
        Ok(Some(Self { subject, runtime, switches, session, n_runs: Cell::new(0), started, budget }))
    }

    /// Runs so far.
    pub fn n_runs(&self) -> u64 {
        self.n_runs.get()
    }

    /// Time so far.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// As [`Board::run`]. Errors: Budget, too.
    pub fn run_in_budget(&self, call: usize, is_on: impl Fn(usize) -> bool) -> Result<Vec<TensorBuf>, KeepError> {
        if self.elapsed() >= self.budget {
            return Err(KeepError::Budget);
        }
        self.run(call, is_on)
    }

    /// Outputs of a call before they are rounded: those of half precision as float32. Errors: Runtime.
    pub fn run(&self, call: usize, is_on: impl Fn(usize) -> bool) -> Result<Vec<TensorBuf>, KeepError> {
        let on: Vec<u8> = (0..self.switches.len()).map(|at| u8::from(is_on(at))).collect();
        let desc = TensorDesc::new(DType::Bool, [on.len() as i64]).expect("one axis of as many elements");
        let on = TensorBuf::new(desc, on).expect("a byte an element");
        let mut feeds: Vec<TensorView<'_>> = self.feeds(call);
        feeds.push(on.view());
        self.fetch(&self.session, &feeds, self.n_outputs())
    }

    /// Outputs of a call, each with Σ|terms| of its elements where it is a sum. `wide`: float64, in which every float is
    /// computed, or float32, in which every narrower one is. Errors: Runtime where an operator has no such kernel.
    pub fn unrounded(&self, call: usize, wide: DType) -> Result<Vec<(TensorBuf, Option<TensorBuf>)>, KeepError> {
        let is_double = wide == DType::F64;
        let mut model = if is_double { double(&self.subject.model) } else { single(&self.subject.model) }?;
        let places = give_terms(&mut model, wide);
        let part = self.subject.part_spec(&model, Vec::new(), self.subject.spec.unoptimized());
        let session = runtime::session(self.runtime, &part)?;
        let feed = |view: TensorView<'_>| if is_double { view.in_float64() } else { view.in_float32() };
        let feeds: Vec<_> = self.feeds(call).into_iter().map(feed).collect();
        let n = places.len() + places.iter().flatten().count();
        let mut outputs = self.fetch(&session, &feeds.iter().map(TensorBuf::view).collect::<Vec<_>>(), n)?;
        let mut terms = outputs.split_off(places.len()).into_iter().map(|terms| terms.view().in_float64());
        Ok(outputs.into_iter().zip(places).map(|(output, place)| (output, place.and_then(|_| terms.next()))).collect())
    }

    /// Outputs of each call of the part as it is compiled with these rules. Errors: Runtime.
    pub fn compiled(&self, rules: &[String]) -> Result<Vec<Vec<TensorBuf>>, KeepError> {
        let session = runtime::session(self.runtime, &self.subject.compiled(rules))?;
        let n = self.n_outputs();
        (0..self.subject.calls.len()).map(|call| self.fetch(&session, &self.feeds(call), n)).collect()
    }

    fn feeds(&self, call: usize) -> Vec<TensorView<'_>> {
        self.subject.calls[call].feeds.iter().map(|feed| feed.view()).collect()
    }

    fn n_outputs(&self) -> usize {
        self.subject.model.graph.as_ref().map_or(0, |graph| graph.output.len())
    }

    fn fetch(
        &self,
        session: &Arc<dyn Session>,
        feeds: &[TensorView<'_>],
        expected: usize,
    ) -> Result<Vec<TensorBuf>, KeepError> {
        self.n_runs.set(self.n_runs.get() + 1);
        let outputs = session.fetch(&leased(feeds)?)?.0;
        match outputs.len() {
            got if got == expected => Ok(outputs),
            got => Err(KeepError::Outputs { expected, got }),
        }
    }
}
