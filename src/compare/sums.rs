//! Sums whose terms are known: what cancels is judged by what was added up.

use super::blocks::blocks;
use super::metrics::Metrics;
use super::tolerance::Tolerance;
use super::verdict::{TensorVerdict, Verdict};
use super::wanted::Wanted;
use crate::tensor::SharedTensor;

/// Of the relative error that a term may have, what a sum may have of Σ|terms|: errors of many terms partly cancel.
const SHARE: f64 = 0.25;

/// A mismatch judged once more, where `terms` (float64, of the same shape) holds Σ|terms| of each element: an element is
/// inside, too, with |c − r| ≤ [`SHARE`]·rtol·Σ|terms|. With none outside it is a match that tells the largest
/// Σ|terms|. The gradient of a bias before a softmax is zero but for rounding: only its terms say how much that is. Any
/// other verdict stays as it is, and so does one whose elements do not widen to f64, or are no longer those that were
/// measured, for somebody writes them.
pub fn judge_sums<'a>(
    judged: TensorVerdict,
    reference: impl Into<SharedTensor<'a>>,
    candidate: impl Into<SharedTensor<'a>>,
    terms: impl Into<SharedTensor<'a>>,
) -> TensorVerdict {
    judge_sums_while(judged, [reference.into(), candidate.into(), terms.into()], Wanted::ALWAYS)
}

/// As [`judge_sums`], of reference, candidate and terms; a mismatch stays one where nobody waits for it any more.
pub(super) fn judge_sums_while(
    judged: TensorVerdict,
    tensors: [SharedTensor<'_>; 3],
    wanted: Wanted<'_>,
) -> TensorVerdict {
    match judged {
        TensorVerdict { name, verdict: Verdict::Mismatch, metrics: Some(mut metrics), noise } => {
            let max_terms = explained(&metrics, &tensors, wanted);
            metrics.explain(max_terms);
            let verdict = if max_terms.is_some() { Verdict::Match } else { Verdict::Mismatch };
            TensorVerdict { name, verdict, metrics: Some(metrics), noise }
        }
        judged => judged,
    }
}

impl Metrics {
    /// The largest of the terms, where these explain what is outside.
    pub(super) fn explain(&mut self, max_terms: Option<f64>) {
        if max_terms.is_some() {
            (self.outside, self.first_outside, self.max_terms) = (0, None, max_terms);
        }
    }
}

/// What every element of a mismatch may be off by, and what of its Σ|terms|.
pub(super) fn scales(tolerance: &Tolerance, max_reference: f64) -> (f64, f64) {
    (tolerance.atol + tolerance.scale * max_reference, SHARE * tolerance.rtol)
}

/// The largest of the terms, when these or the tolerance explain every element. Tensors: reference, candidate, terms.
fn explained(metrics: &Metrics, tensors: &[SharedTensor<'_>; 3], wanted: Wanted<'_>) -> Option<f64> {
    let tolerance = &metrics.tolerance;
    let (floor, share) = scales(tolerance, metrics.max_reference);
    // What is exact has no rounding to explain; as f64, integers that differ may be equal.
    if share == 0. {
        return None;
    }
    let (mut largest, mut max_abs) = (0_f64, 0_f64);
    for range in blocks(metrics.shape.n_elements()) {
        if !wanted.is() {
            return None;
        }
        let [references, candidates, terms] = tensors.each_ref().map(|tensor| tensor.flat_f64(range.clone()));
        for ((r, c), terms) in references?.into_iter().zip(candidates?).zip(terms?) {
            let apart = (c - r).abs();
            let near = apart <= floor + tolerance.rtol * r.abs() || apart <= share * terms;
            // Only a number is near another; an infinite sum explains nothing.
            let inside = c == r || (near && apart.is_finite() && terms.is_finite());
            if !(inside || tolerance.equal_nan && c.is_nan() && r.is_nan()) {
                return None;
            }
            largest = largest.max(terms);
            max_abs = max_abs.max(if c == r { 0. } else { apart });
        }
    }
    // `max` passes over the NaN of two NaN.
    (max_abs == metrics.max_abs).then_some(largest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::judge;
    use crate::tensor::{DType, TensorBuf, TensorDesc};

    fn tensor<const SIZE: usize>(dtype: DType, bytes: &[[u8; SIZE]]) -> TensorBuf {
        let desc = TensorDesc::new(dtype, [bytes.len() as i64]).unwrap();
        TensorBuf::new(desc, bytes.as_flattened().to_vec()).unwrap()
    }

    fn judged(reference: &[f32], candidate: &[f32], terms: &[f64], tolerance: Option<&Tolerance>) -> TensorVerdict {
        let [reference, candidate] = [reference, candidate]
            .map(|values| tensor(DType::F32, &values.iter().map(|value| value.to_le_bytes()).collect::<Vec<_>>()));
        let terms = tensor(DType::F64, &terms.iter().map(|value| value.to_le_bytes()).collect::<Vec<_>>());
        let judged = judge("y", reference.shared(), candidate.shared(), tolerance);
        judge_sums(judged, reference.shared(), candidate.shared(), terms.shared())
    }

    #[test]
    fn a_sum_that_cancels_is_judged_by_its_terms() {
        let verdict = judged(&[0., 7e-9], &[2.4e-8, -7e-9], &[0.01, 0.02], None);
        let metrics = verdict.metrics.unwrap();
        assert_eq!((verdict.verdict, metrics.outside, metrics.max_terms), (Verdict::Match, 0, Some(0.02)));
        assert!(metrics.max_abs > 2e-8, "the distance stays");
    }

    #[test]
    fn each_element_is_judged_by_its_own_terms() {
        let verdict = judged(&[0., 0.], &[2.4e-8, 2.4e-8], &[0.01, 1e-4], None);
        let metrics = verdict.metrics.unwrap();
        assert_eq!((verdict.verdict, metrics.outside, metrics.max_terms), (Verdict::Mismatch, 2, None));
    }

    #[test]
    fn no_terms_explain_infinity_or_nan() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        for (r, c) in [(0., inf), (inf, -inf), (nan, 0.), (0., nan), (nan, inf)] {
            for terms in [1., f64::INFINITY, f64::NAN] {
                assert_eq!(judged(&[r, 0.], &[c, 1e-9], &[terms, 1.], None).verdict, Verdict::Mismatch, "{r} {c}");
            }
        }
        assert_eq!(judged(&[0.], &[1e-9], &[f64::INFINITY], None).verdict, Verdict::Mismatch);
        let equal_nan = Tolerance { equal_nan: true, ..Tolerance::for_dtype(DType::F32) };
        assert_eq!(judged(&[nan, inf, 0.], &[nan, inf, 1e-9], &[1.; 3], Some(&equal_nan)).verdict, Verdict::Match);
    }

    #[test]
    fn what_was_no_mismatch_stays_as_it_was() {
        let verdict = judged(&[1.], &[1.], &[1e9], None);
        assert_eq!((verdict.verdict, verdict.metrics.unwrap().max_terms), (Verdict::Match, None));
        assert_eq!(judged(&[], &[], &[], None).verdict, Verdict::Match);
    }
}
