//! Whether two verdicts are about the same pair of tensors.

use crate::compare::TensorVerdict;

/// So many times as far from eager the same pair of tensors may be, as far as its metrics tell.
pub(super) const SAME: f64 = 1.001;

/// Whether two candidates are about as far from eager: the further one at most `factor` times. What equals eager is like
/// nothing that does not; without metrics there is the verdict alone.
pub(super) fn is_alike(one: &TensorVerdict, other: &TensorVerdict, factor: f64) -> bool {
    match (&one.metrics, &other.metrics) {
        (Some(one), Some(other)) => {
            let reaches = |less: f64, more: f64| more <= factor * less;
            reaches(one.max_abs, other.max_abs)
                && reaches(other.max_abs, one.max_abs)
                && one.nan_disagreements == other.nan_disagreements
        }
        (None, None) => one.verdict == other.verdict,
        _ => false,
    }
}
