//! What a study runs on, and one run of a model on it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::error::StudyError;
use super::graph;
use crate::onnx::proto::ModelProto;
use crate::onnx::{self, NamedTensor};
use crate::protocol::message::{CPU_PROVIDER, Optimization, SessionSpec};
use crate::runtime::{Model, Runtime, RuntimeError, leased};
use crate::tensor::{DType, TensorBuf, TensorView};

/// torch's `F.linear(a, x.T, b)`, which no ONNX node is. Shapes: [m, k], [k, n], [n] → [m, n]; one dtype.
pub type Linear<'a> = &'a dyn Fn(&TensorView<'_>, &TensorView<'_>, &TensorView<'_>) -> Result<TensorBuf, RuntimeError>;

/// libtorch, as a study needs it.
#[derive(Clone, Copy)]
pub struct Libtorch<'a> {
    /// Runs models, node by node.
    pub runtime: &'a dyn Runtime,
    /// Its F.linear.
    pub linear: Linear<'a>,
}

/// What computes.
pub struct Runtimes<'a> {
    /// ONNX Runtime.
    pub onnxruntime: &'a dyn Runtime,
    /// libtorch, or why there is none.
    pub libtorch: Result<Libtorch<'a>, String>,
    /// ONNX Runtime's execution provider.
    pub provider: String,
    /// Of each runtime's pool.
    pub threads: u32,
    /// The processor's name.
    pub cpu: String,
}

/// What a study ran on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// The processor's name.
    pub cpu: String,
    /// Version of ONNX Runtime.
    pub onnxruntime: String,
    /// Version of libtorch; None where it was not run.
    pub libtorch: Option<String>,
    /// Why it was not run.
    pub not_run: Option<String>,
    /// ONNX Runtime's execution provider.
    pub provider: String,
    /// Of each runtime's pool.
    pub threads: u32,
    /// Of the numbers.
    pub seed: u64,
    /// Draws of the numbers that its findings are of: of this seed and those that follow it.
    pub draws: u32,
}

/// What a model gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Ran {
    /// In the model's order.
    pub outputs: Vec<TensorBuf>,
    /// Its nodes computed in float32 and rounded each result: ONNX Runtime's CPU provider has no kernel of the type.
    pub widened: bool,
}

impl Runtimes<'_> {
    /// What is said of them in a result.
    pub fn setup(&self, seed: u64) -> Setup {
        Setup {
            cpu: self.cpu.clone(),
            onnxruntime: self.onnxruntime.version().to_owned(),
            libtorch: self.libtorch.as_ref().ok().map(|libtorch| libtorch.runtime.version().to_owned()),
            not_run: self.libtorch.as_ref().err().cloned(),
            provider: self.provider.clone(),
            threads: self.threads,
            seed,
            draws: 1,
        }
    }

    /// How ONNX Runtime is asked to run a model: with its own optimizers of this level, and no rewrite of ours but
    /// that without which it would refuse the model.
    pub(super) fn spec(&self, optimization: Optimization) -> SessionSpec {
        let providers = match self.provider.as_str() {
            CPU_PROVIDER => Vec::new(),
            other => vec![(other.to_owned(), BTreeMap::new())],
        };
        let rewrites = onnx::passes().filter(|&name| name != onnx::MISSING_KERNELS);
        let disabled_passes = rewrites.map(str::to_owned).collect();
        SessionSpec { providers, optimization, disabled_passes, ..SessionSpec::default() }
    }

    /// The model as ONNX Runtime gets it, and whether it was widened: bfloat16 on the CPU computes in float32, every
    /// node's result rounded; float16 is left to ONNX Runtime, which puts Casts in where it has no kernel. Errors: Onnx.
    pub(super) fn runnable(&self, model: &ModelProto, dtype: DType) -> Result<(Model, bool), StudyError> {
        let widened = match dtype == DType::BF16 && self.provider == CPU_PROVIDER {
            true => onnx::widen(model, &graph::values(model))?,
            false => None,
        };
        Ok((Model::encode(widened.as_ref().unwrap_or(model)), widened.is_some()))
    }

    /// A model on ONNX Runtime. feeds: in the model's order, of the dtype. Errors: [`StudyError`].
    pub(super) fn on_onnxruntime(
        &self,
        model: &ModelProto,
        dtype: DType,
        optimization: Optimization,
        feeds: &[TensorView<'_>],
    ) -> Result<Ran, StudyError> {
        let (runnable, widened) = self.runnable(model, dtype)?;
        Ok(Ran { outputs: fetch(self.onnxruntime, &runnable, &self.spec(optimization), feeds)?, widened })
    }

    /// A model on libtorch; None where there is none. Errors: as [`Runtimes::on_onnxruntime`].
    pub(super) fn on_libtorch(
        &self,
        model: &ModelProto,
        feeds: &[TensorView<'_>],
    ) -> Result<Option<Vec<TensorBuf>>, StudyError> {
        let Ok(libtorch) = &self.libtorch else { return Ok(None) };
        fetch(libtorch.runtime, &Model::encode(model), &SessionSpec::default(), feeds).map(Some)
    }
}

/// Runs a model once.
fn fetch(
    runtime: &dyn Runtime,
    model: &Model,
    spec: &SessionSpec,
    feeds: &[TensorView<'_>],
) -> Result<Vec<TensorBuf>, StudyError> {
    Ok(runtime.build(model, spec)?.fetch(&leased(feeds)?)?.0)
}

/// The only one of a model's outputs. Errors: Outputs.
pub(super) fn only(what: &'static str, mut outputs: Vec<TensorBuf>) -> Result<TensorBuf, StudyError> {
    match (outputs.pop(), outputs.len()) {
        (Some(output), 0) => Ok(output),
        (_, others) => Err(StudyError::Outputs { what, expected: 1, got: others + 1 }),
    }
}

/// Tensors under their names.
pub(super) fn named(names: &[&str], tensors: &[TensorBuf]) -> Vec<NamedTensor> {
    names.iter().zip(tensors).map(|(name, tensor)| NamedTensor::of(name, tensor)).collect()
}
