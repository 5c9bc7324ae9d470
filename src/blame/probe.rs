//! Runs of a part, and of pieces of it, on values that are chosen.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message as _;

use super::case::{Case, is_wrong};
use super::error::BlameError;
use crate::onnx::{NamedTensor, Piece};
use crate::protocol::message::SessionSpec;
use crate::runtime::ort::THREADS;
use crate::runtime::{self, Runtime, Session, leased};
use crate::tensor::{TensorBuf, TensorView};

/// Runs things, and counts them.
pub struct Prober<'a> {
    /// What is examined.
    pub case: &'a Case,
    runtime: &'a dyn Runtime,
    started: Instant,
    budget: Duration,
    n_runs: Cell<u64>,
}

/// A piece that is ready to run, any number of times.
pub struct ReadyPiece {
    session: Arc<dyn Session>,
    inputs: Vec<String>,
    n_outputs: usize,
}

impl<'a> Prober<'a> {
    /// For at most this time.
    pub fn new(case: &'a Case, runtime: &'a dyn Runtime, budget: Duration) -> Self {
        Self { case, runtime, started: Instant::now(), budget, n_runs: Cell::new(0) }
    }

    /// Runs so far.
    pub fn n_runs(&self) -> u64 {
        self.n_runs.get()
    }

    /// Time so far.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// What computes.
    pub fn runtime(&self) -> &'a dyn Runtime {
        self.runtime
    }

    fn check_budget(&self) -> Result<(), BlameError> {
        if self.started.elapsed() < self.budget { Ok(()) } else { Err(BlameError::Budget) }
    }

    /// The whole part. `feeds`: in the model's order. Errors: [`BlameError`], Budget when the time is up.
    pub fn whole(&self, spec: &SessionSpec, feeds: &[TensorView<'_>]) -> Result<Vec<TensorBuf>, BlameError> {
        self.check_budget()?;
        let part = self.case.part(self.case.model.clone(), self.case.named_values.clone(), spec.clone());
        let session = runtime::session(self.runtime, &part)?;
        self.run(&session, feeds)
    }

    /// A piece, to be run with nothing else optimized. Errors: [`BlameError`], Budget when the time is up.
    pub fn piece(&self, piece: Piece) -> Result<ReadyPiece, BlameError> {
        self.piece_with(piece, None)
    }

    /// As [`Prober::piece`], with so many threads of its own.
    pub fn piece_with(&self, piece: Piece, threads: Option<u32>) -> Result<ReadyPiece, BlameError> {
        self.check_budget()?;
        let Piece { model, inputs, outputs, named_values } = piece;
        let mut spec = self.case.unoptimized();
        spec.config.extend(threads.map(|threads| (THREADS.to_owned(), threads.to_string())));
        let part = self.case.part(model.encode_to_vec().into(), named_values, spec);
        let session = runtime::session(self.runtime, &part)?;
        Ok(ReadyPiece { session, inputs, n_outputs: outputs.len() })
    }

    /// Its outputs, in their order. `value`: of an input, by name.
    pub fn run_piece(
        &self,
        piece: &ReadyPiece,
        value: impl Fn(&str) -> Result<Rc<NamedTensor>, BlameError>,
    ) -> Result<Vec<TensorBuf>, BlameError> {
        let tensors = piece.inputs.iter().map(|name| value(name)).collect::<Result<Vec<_>, _>>()?;
        let views: Vec<_> = tensors.iter().map(|tensor| tensor.view()).collect();
        let outputs = self.run(&piece.session, &views)?;
        if outputs.len() == piece.n_outputs {
            return Ok(outputs);
        }
        Err(BlameError::Outputs { expected: piece.n_outputs, got: outputs.len() })
    }

    /// Eager's value. Errors: NoValue, Onnx.
    pub fn eager(&self, name: &str) -> Result<Rc<NamedTensor>, BlameError> {
        self.case.values.get(name)?.ok_or_else(|| BlameError::NoValue { name: name.to_owned() })
    }

    /// Whether a value that has drifted is within tolerance of eager's; not where that is not known.
    pub fn is_right(&self, name: &str, value: &TensorBuf) -> bool {
        let reference = self.eager(name);
        reference.is_ok_and(|reference| !is_wrong(&self.case.judge(name, &reference.view(), &value.view())))
    }

    fn run(&self, session: &Arc<dyn Session>, feeds: &[TensorView<'_>]) -> Result<Vec<TensorBuf>, BlameError> {
        self.check_budget()?;
        self.n_runs.set(self.n_runs.get() + 1);
        Ok(session.fetch(&leased(feeds)?)?.0)
    }
}
