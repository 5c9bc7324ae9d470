//! A third opinion: which of two results is nearer to the exact one.

use serde::{Deserialize, Serialize};

use super::metrics::number;
use crate::tensor::TensorView;

/// How far reference and candidate are from the same computation in float64.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Opinion {
    /// max |reference − exact|.
    #[serde(with = "number")]
    pub reference_error: f64,
    /// max |candidate − exact|.
    #[serde(with = "number")]
    pub candidate_error: f64,
}

impl Opinion {
    /// Measures both against `exact`. All of one shape; any dtypes that widen to f64. A NaN or an infinity counts as no
    /// error against itself and as an infinite one against any other number. None for complex and 8-bit float types,
    /// and for tensors of different shapes.
    pub fn measure(reference: &TensorView<'_>, candidate: &TensorView<'_>, exact: &TensorView<'_>) -> Option<Self> {
        if reference.shape() != exact.shape() || candidate.shape() != exact.shape() {
            return None;
        }
        let exact = exact.to_f64()?;
        let error = |tensor: &TensorView<'_>| {
            let values = tensor.to_f64()?;
            Some(values.iter().zip(&exact).map(|(&value, &exact)| distance(value, exact)).fold(0., f64::max))
        };
        Some(Self { reference_error: error(reference)?, candidate_error: error(candidate)? })
    }

    /// Errors of the candidate up to so many of the reference's are rounding.
    pub const FACTOR: f64 = 2.0;

    /// The candidate is about as near to the exact result as the reference is. NaN is not near.
    pub fn is_rounding(&self) -> bool {
        self.candidate_error <= Self::FACTOR * self.reference_error && self.reference_error.is_finite()
    }
}

fn distance(value: f64, exact: f64) -> f64 {
    match (value - exact).abs() {
        _ if value == exact || (value.is_nan() && exact.is_nan()) => 0.,
        distance if distance.is_nan() => f64::INFINITY,
        distance => distance,
    }
}
