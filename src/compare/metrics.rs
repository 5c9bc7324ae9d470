//! How far apart two tensors are, in f64.
//!
//! A pair of elements is *measured* when both are finite, or both are the same infinity (distance 0). It *disagrees*
//! when one is NaN and the other is not, or when an infinity stands against any other number; its distance is +∞. NaN
//! against NaN has distance 0 with `equal_nan`, else +∞. -0 equals 0.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::digits::{elements, few, few_up};
use super::element::{self, Pair, part_of};
use super::noise::Errors;
use super::rounding::Rounding;
use super::stats::{Counts, Outside, Place, Required, Stats};
use super::tolerance::{Bounds, Tolerance};
use super::wanted::Wanted;
use super::{number, simd};
use crate::tensor::{DType, Shape, SharedTensor, TensorDesc};

/// Where candidate and reference are told apart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Element {
    /// Row-major flat index.
    pub index: u64,
    /// The same, by axis; empty for rank 0.
    pub at: Vec<u64>,
    /// The imaginary part of a complex element; else its real part, or the element is real.
    pub imaginary: bool,
    /// Widened to f64 (64-bit integers above 2^53 are rounded here, their distance is not).
    #[serde(with = "number")]
    pub reference: f64,
    /// Likewise.
    #[serde(with = "number")]
    pub candidate: f64,
}

/// The numbers of onnx-diagnostic's `max_diff`: NaN is replaced by 1e10 and ±∞ by ±1.797e308 (`numpy.nan_to_num`) on
/// both sides before subtracting.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MaxDiff {
    /// max |c − r|.
    #[serde(with = "number")]
    pub abs: f64,
    /// max |c − r| / (|r| + 1e-3).
    #[serde(with = "number")]
    pub rel: f64,
    /// Σ |c − r|.
    #[serde(with = "number")]
    pub sum: f64,
    /// Numbers compared; a complex element counts twice.
    pub n: u64,
    /// Pairs where exactly one is NaN.
    pub dnan: u64,
    /// Where `abs` is, by axis, the first of equals; None without elements.
    pub argm: Option<Vec<u64>>,
    /// Distances above each threshold.
    pub rep: Counts,
}

/// All there is to say about one pair of tensors. In JSON, numbers that are not finite are the strings "inf", "-inf"
/// and "nan", which Python's `float` reads.
///
/// ```
/// use rust_ort::compare::judge;
/// use rust_ort::tensor::{BadTensor, DType, Shape, TensorView};
///
/// let shape = Shape::new([2, 2])?;
/// let [eager, ort] = [[1_f32, 2., 3., 4.], [1., 2., 3., 4.5]].map(|values| values.map(f32::to_le_bytes));
/// let reference = TensorView::new(DType::F32, &shape, eager.as_flattened())?;
/// let candidate = TensorView::new(DType::F32, &shape, ort.as_flattened())?;
///
/// let metrics = judge("y", &reference, &candidate, None).metrics.expect("there was a pair");
/// assert_eq!((metrics.max_abs, metrics.max_rel, metrics.mean_abs), (0.5, 0.125, 0.125));
/// let worst = metrics.worst.expect("they differ");
/// assert_eq!((worst.at, worst.reference, worst.candidate), (vec![1, 1], 4., 4.5));
/// # Ok::<(), BadTensor>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Element type of both.
    pub dtype: DType,
    /// Dimensions of both.
    pub shape: Shape,
    /// Numbers compared: elements, twice that for complex types, which are compared as pairs of reals.
    pub n: u64,
    /// Largest distance; +∞ when a pair disagrees.
    #[serde(with = "number")]
    pub max_abs: f64,
    /// Largest |c − r| / |r| over measured pairs; 0 where both are 0, +∞ where only r is.
    #[serde(with = "number")]
    pub max_rel: f64,
    /// Mean distance over measured pairs.
    #[serde(with = "number")]
    pub mean_abs: f64,
    /// Root of the mean squared distance over measured pairs.
    #[serde(with = "number")]
    pub rmse: f64,
    /// Cosine of the angle between the tensors as vectors, over pairs of finite numbers; 1 when both are 0, 0 when one
    /// is; NaN when the squares overflow.
    #[serde(with = "number")]
    pub cosine: f64,
    /// Largest finite |r| that is no fill value (see [`Tolerance::fill_limit`]).
    #[serde(with = "number")]
    pub max_reference: f64,
    /// `max_abs` / `max_reference`; 0 when both are 0.
    #[serde(with = "number")]
    pub max_rel_to_max: f64,
    /// Most representable numbers of the tensor's own type between r and c, over pairs of finite numbers. Floats of 16
    /// bits and more, and complex; else None.
    pub max_ulp: Option<u64>,
    /// Distances above 0, 1e-4 … 100.
    pub above: Counts,
    /// Pairs where exactly one is NaN.
    pub nan_disagreements: u64,
    /// Pairs without NaN where an infinity stands against another number.
    pub inf_disagreements: u64,
    /// Pairs of two NaN.
    pub both_nan: u64,
    /// NaN among the references.
    #[serde(default)]
    pub reference_nan: u64,
    /// Infinities among the references.
    #[serde(default)]
    pub reference_inf: u64,
    /// NaN among the candidates.
    #[serde(default)]
    pub candidate_nan: u64,
    /// Infinities among the candidates.
    #[serde(default)]
    pub candidate_inf: u64,
    /// Of floats: the share of the references that are not zero whose candidates are.
    #[serde(default)]
    pub underflow: f64,
    /// Where the distance exceeds what is allowed by most; when nothing is outside, where it is largest. The first of
    /// equals; None when all are equal.
    pub worst: Option<Element>,
    /// The first element outside tolerance.
    pub first_outside: Option<Element>,
    /// Numbers outside tolerance.
    pub outside: u64,
    /// What would pass.
    pub required: Required,
    /// What was asked.
    pub tolerance: Tolerance,
    /// Where the tolerance alone does not pass: the largest Σ|terms| that explains the distance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_terms: Option<f64>,
    /// As onnx-diagnostic counts.
    pub max_diff: MaxDiff,
}

/// What the passes over a pair of tensors found, wherever they ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    pub(super) stats: Stats,
    pub(super) outside: Outside,
    /// References that are not zero.
    pub(super) not_zero: u64,
    /// The largest Σ|terms|, where they were given and explain what the tolerance does not.
    pub(super) max_terms: Option<f64>,
    /// Against the exact one, where it was given and there is anything to be measured: see [`Measured::errors`].
    pub(super) errors: Option<([f64; 8], Option<Rounding>)>,
    /// Where they were asked for: \[reference, candidate\].
    pub signatures: Option<[String; 2]>,
}

impl Measured {
    /// Against the exact one, where it was given and there is anything to be measured.
    pub fn errors(&self) -> Option<Errors> {
        let (errors, rounding) = self.errors?;
        let [reference_error, candidate_error, reference_excess, candidate_excess, ..] = errors;
        let [.., distance, condition, reference_rms, candidate_rms] = errors;
        Some(Errors {
            reference_error,
            candidate_error,
            reference_excess,
            candidate_excess,
            distance,
            condition,
            reference_rms,
            candidate_rms,
            rounding,
        })
    }

    /// Keeps them: in a file some fields may be missing, here none is.
    pub(super) fn set_errors(&mut self, errors: Errors) {
        let Errors {
            reference_error,
            candidate_error,
            reference_excess,
            candidate_excess,
            distance,
            condition,
            reference_rms,
            candidate_rms,
            rounding,
        } = errors;
        let sizes = [
            reference_error,
            candidate_error,
            reference_excess,
            candidate_excess,
            distance,
            condition,
            reference_rms,
            candidate_rms,
        ];
        self.errors = Some((sizes, rounding));
    }
}

/// Metrics of tensors of this dtype and shape that were measured elsewhere.
pub(super) fn measured(desc: &TensorDesc, tolerance: &Tolerance, measured: &Measured) -> Metrics {
    let mut metrics =
        finish((desc.dtype, &desc.shape), || measured.not_zero, tolerance, &measured.stats, &measured.outside);
    if metrics.outside > 0 {
        metrics.explain(measured.max_terms);
    }
    metrics
}

/// Measures the candidate against the reference. Both: same dtype and shape (the caller checked).
pub(super) fn measure(
    reference: &SharedTensor<'_>,
    candidate: &SharedTensor<'_>,
    tolerance: &Tolerance,
    wanted: Wanted<'_>,
) -> Metrics {
    let pair = Pair { dtype: reference.dtype(), reference: reference.bytes(), candidate: candidate.bytes() };
    let mut spans = simd::spans(&pair, tolerance, wanted);
    let max_reference = spans.iter().fold(0_f64, |max, span| max.max(span.max_reference));
    let bounds = Bounds::new(tolerance, max_reference);
    let outside = simd::outside(&pair, tolerance, &bounds, &mut spans, wanted);
    let mut stats = Stats::default();
    spans.iter().for_each(|span| stats.merge(span));
    // What was judged by, whatever a second reading found.
    stats.max_reference = max_reference;
    finish((pair.dtype, reference.shape()), || pair.not_zero(wanted), tolerance, &stats, &outside)
}

fn finish(
    (dtype, shape): (DType, &Shape),
    not_zero: impl FnOnce() -> u64,
    tolerance: &Tolerance,
    stats: &Stats,
    outside: &Outside,
) -> Metrics {
    let per_element = if part_of(dtype) == dtype { 1 } else { 2 };
    let n = per_element * shape.n_elements() as u64;
    let place = |number: u64| place(shape, number / per_element);
    let per_measured = |sum: f64| if stats.measured == 0 { 0. } else { sum / stats.measured as f64 };
    let element = |Place { index: number, reference, candidate }: Place| {
        let (index, imaginary) = (number / per_element, number % per_element == 1);
        Element { index, at: place(number), imaginary, reference, candidate }
    };
    Metrics {
        dtype,
        shape: shape.clone(),
        n,
        max_abs: stats.max_abs,
        max_rel: stats.max_rel,
        mean_abs: per_measured(stats.sum_abs),
        rmse: per_measured(stats.sum_squares).sqrt(),
        cosine: cosine(stats),
        max_reference: stats.max_reference,
        max_rel_to_max: if stats.max_abs == 0. { 0. } else { stats.max_abs / stats.max_reference },
        max_ulp: element::has_ulp(dtype).then_some(stats.max_ulp),
        above: Counts(stats.above),
        nan_disagreements: stats.nan_disagreements,
        inf_disagreements: stats.inf_disagreements,
        both_nan: stats.both_nan,
        reference_nan: stats.not_finite[0],
        reference_inf: stats.not_finite[1],
        candidate_nan: stats.not_finite[2],
        candidate_inf: stats.not_finite[3],
        underflow: underflow(dtype, not_zero, stats.flushed),
        worst: outside.worst.or(stats.argmax_abs).map(element),
        first_outside: outside.first.map(element),
        outside: outside.count,
        required: outside.required,
        tolerance: *tolerance,
        max_terms: None,
        max_diff: MaxDiff {
            abs: stats.filled_max_abs,
            rel: stats.filled_max_rel,
            sum: stats.filled_sum,
            n,
            dnan: stats.nan_disagreements,
            argm: (n > 0).then(|| place(stats.filled_argmax.map_or(0, |place| place.index))),
            rep: Counts(stats.filled_above),
        },
    }
}

impl Metrics {
    /// What the tolerance allows at the worst element; nothing is enough where none is known.
    pub(super) fn allowed_at_worst(&self) -> f64 {
        let Tolerance { atol, rtol, scale, .. } = self.tolerance;
        let worst = self.worst.as_ref();
        worst.map_or(f64::INFINITY, |worst| atol + rtol * worst.reference.abs() + scale * self.max_reference)
    }
}

/// The references are only counted where something was flushed; whoever writes them meanwhile leaves no share above 1.
fn underflow(dtype: DType, not_zero: impl FnOnce() -> u64, flushed: u64) -> f64 {
    if flushed == 0 || !dtype.is_float() { 0. } else { flushed as f64 / not_zero().max(flushed) as f64 }
}

fn cosine(stats: &Stats) -> f64 {
    match (stats.sum_reference == 0., stats.sum_candidate == 0.) {
        (true, true) => 1.,
        (false, false) => {
            (stats.sum_product / (stats.sum_reference.sqrt() * stats.sum_candidate.sqrt())).clamp(-1., 1.)
        }
        _ => 0.,
    }
}

/// An element's place, by axis.
pub(super) fn place(shape: &Shape, index: u64) -> Vec<u64> {
    let mut at = vec![0; shape.rank()];
    let mut rest = index;
    for (axis, &dim) in shape.dims().iter().enumerate().rev() {
        at[axis] = rest % dim as u64;
        rest /= dim as u64;
    }
    at
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = if self.imaginary { " (imaginary part)" } else { "" };
        let [reference, candidate] = elements(self.reference, self.candidate);
        write!(f, "{:?}{part}: expected {reference}, got {candidate}", self.at)
    }
}

/// Half a sentence: how many are outside, where the worst is, what would pass.
impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Metrics { dtype, shape, n, outside, max_abs, max_rel_to_max, tolerance, required, .. } = self;
        if *n == 0 {
            return write!(f, "{dtype}{shape} has no elements");
        }
        let Some(worst) = &self.worst else {
            return write!(f, "{dtype}{shape}, all {n} equal");
        };
        let [max_abs, max_rel_to_max] = [*max_abs, *max_rel_to_max].map(few);
        write!(
            f,
            "{dtype}{shape}, {outside} of {n} outside {}; worst at {worst}; max |Δ| {max_abs} is {max_rel_to_max} of max|r|",
            tolerance.terms()
        )?;
        for (count, what) in [
            (self.nan_disagreements, "NaN on one side only"),
            (self.inf_disagreements, "infinity against another number"),
            (if tolerance.equal_nan { 0 } else { self.both_nan }, "NaN on both sides (set equal_nan to accept them)"),
        ] {
            if count > 0 {
                write!(f, "; {count} × {what}")?;
            }
        }
        if let Some(terms) = self.max_terms {
            write!(f, "; rounding of sums whose terms come to {}", few(terms))?;
        }
        if *outside > 0 && required.atol.is_finite() {
            let [rtol, atol] = [required.rtol, required.atol].map(few_up);
            write!(f, "; rtol {rtol} or atol {atol} would pass")?;
        }
        Ok(())
    }
}
