//! What the program has a table of, for Python, which has none of its own.

use pyo3::prelude::*;
pub use rust_ort::base::limits::{ANSWERED_STEPS, LANES, NAME_BYTES, PATTERNS, THREADS};
use rust_ort::compare::{Noise, Verdict};
use rust_ort::onnx;
use rust_ort::protocol::wire;
use rust_ort::runtime::ort;
use rust_ort::tensor::DType;

/// How much further from float64 than eager a candidate may be and be called noise, unless told otherwise.
pub const NOISE_FACTOR: f64 = Noise::FACTOR;

/// Roundings of Σ|terms| that an opinion in float64 grants a sum.
pub const ROUNDINGS: f64 = Noise::ROUNDINGS;

/// Whether a graph or a run may be named so.
#[pyfunction]
pub fn is_folder_name(text: &str) -> bool {
    wire::is_folder_name(text)
}

/// (name in torch, ONNX code) of each element type.
#[pyfunction]
pub fn dtypes() -> Vec<(&'static str, i32)> {
    DType::ALL.iter().map(|dtype| (dtype.torch_name(), dtype.onnx_code())).collect()
}

/// (name in files, whether it is a pass) of each kind of verdict.
#[pyfunction]
pub fn verdict_kinds() -> Vec<(&'static str, bool)> {
    Verdict::KINDS.to_vec()
}

/// Names of the passes over a model, in the order in which they run.
#[pyfunction]
pub fn passes() -> Vec<&'static str> {
    onnx::passes().collect()
}

/// Graph optimizers of ONNX Runtime that stay off, since they give wrong values.
#[pyfunction]
pub fn wrong_optimizers() -> Vec<&'static str> {
    ort::WRONG_OPTIMIZERS.to_vec()
}

/// Operators of ONNX that add up what they are given, or move it.
#[pyfunction]
pub fn adding_operators() -> Vec<&'static str> {
    onnx::ADDING.to_vec()
}
