//! A third opinion: which of two results is nearer to the exact one.

use serde::{Deserialize, Serialize};

use super::metrics::number;

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
    /// Errors of the candidate up to so many of the reference's are rounding.
    pub const FACTOR: f64 = 2.0;

    /// The candidate is about as near to the exact result as the reference is. NaN is not near.
    pub fn is_rounding(&self) -> bool {
        self.candidate_error <= Self::FACTOR * self.reference_error && self.reference_error.is_finite()
    }
}
