//! What the daemon refuses, for whoever checks before it is asked.

use pyo3::prelude::*;
pub use rust_ort::base::limits::{ANSWERED_STEPS, LANES, NAME_BYTES, PATTERNS, THREADS};
use rust_ort::compare::Noise;
use rust_ort::protocol::wire;

/// How much further from float64 than eager a candidate may be and be called noise, unless told otherwise.
pub const NOISE_FACTOR: f64 = Noise::FACTOR;

/// Whether a graph or a run may be named so.
#[pyfunction]
pub fn is_folder_name(text: &str) -> bool {
    wire::is_folder_name(text)
}
