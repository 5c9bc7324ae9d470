//! Both results measured against the exact one, element by element.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::super::blocks::blocks;
use super::super::rounding::{Roundings, Steps};
use super::super::tolerance::{Tolerance, accumulated_in, epsilon, smallest};
use super::super::wanted::Wanted;
use super::errors::{Errors, Noise};
use super::kind::NoiseKind;
use crate::base::parallel::in_parallel;
use crate::tensor::{DType, SharedTensor};

/// What rounding explains at an element, beside one step of the reference's type there. `T`: a tensor, wherever it lies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Explained<T> {
    /// [`Noise::ROUNDINGS`] roundings, in the type that kernels add up in, of Σ|terms|, float64 of the exact one's shape.
    Terms(T),
    /// The same of an operator whose terms nobody knows: of max|exact|.
    Kernel,
    /// Of a value that drifted: one step at max|exact|, for errors came from elsewhere than from the element.
    Drift {
        /// The relative one of the lowest precision that it drifted through, where that is wider than its own type's.
        step: f64,
    },
}

impl<T> Explained<T> {
    /// Whether it is of a value that drifted.
    pub fn is_drift(&self) -> bool {
        matches!(self, Self::Drift { .. })
    }

    /// The terms, where it is by these.
    pub fn terms(&self) -> Option<&T> {
        if let Self::Terms(terms) = self { Some(terms) } else { None }
    }

    /// The same, of terms that are borrowed.
    pub fn as_ref(&self) -> Explained<&T> {
        match self {
            Self::Terms(terms) => Explained::Terms(terms),
            Self::Kernel => Explained::Kernel,
            Self::Drift { step } => Explained::Drift { step: *step },
        }
    }

    /// The same, of terms that lie elsewhere.
    pub fn map<U>(self, terms: impl FnOnce(T) -> U) -> Explained<U> {
        match self {
            Self::Terms(tensor) => Explained::Terms(terms(tensor)),
            Self::Kernel => Explained::Kernel,
            Self::Drift { step } => Explained::Drift { step },
        }
    }
}

impl Noise {
    /// Measures both against `exact`. All of one shape; any dtypes that widen to f64. A NaN or an infinity counts as no
    /// error against itself and as an infinite one against any other number. None for complex and 8-bit float types,
    /// and for tensors of different shapes. `factor`: see [`Errors::kind`]; of a value that drifted times 1 + 4/√n, for n
    /// elements. None of a float64 value that drifted, too: what is computed in float64 is the reference itself.
    pub fn measure<'a>(
        reference: impl Into<SharedTensor<'a>>,
        candidate: impl Into<SharedTensor<'a>>,
        exact: impl Into<SharedTensor<'a>>,
        explained: Explained<SharedTensor<'a>>,
        factor: f64,
    ) -> Option<Self> {
        let tensors = [reference.into(), candidate.into(), exact.into()];
        Some(Self::measure_apart(tensors, explained, factor, Wanted::ALWAYS)?.0)
    }

    /// As [`Noise::measure`], of reference, candidate and the exact one, and max |candidate − reference| of what was read, fill
    /// values included. None, too, where nobody waits for it any more.
    pub(in crate::compare) fn measure_apart(
        [reference, candidate, exact]: [SharedTensor<'_>; 3],
        explained: Explained<SharedTensor<'_>>,
        factor: f64,
        wanted: Wanted<'_>,
    ) -> Option<(Self, f64)> {
        let alike = |other: &SharedTensor<'_>| other.shape() == exact.shape();
        let terms = explained.terms();
        let has_any = Scales::has_any(reference.dtype(), &explained);
        if !(has_any && alike(&reference) && alike(&candidate) && terms.is_none_or(alike)) {
            return None;
        }
        // Fill values are no sizes: nothing else is small beside them.
        let fill = if explained.is_drift() { Tolerance::fill_limit(reference.dtype()) } else { f64::INFINITY };
        let scales = Scales { fill, ..Scales::of(reference.dtype(), &explained, largest(&exact, fill, wanted)?) };
        let (errors, max_abs) = errors([&reference, &candidate], &exact, terms, (&scales, wanted))?;
        let errors = errors.with_condition(&scales);
        Some((Self::of_measured(errors, exact.shape().n_elements(), &explained, factor), max_abs))
    }

    /// Of errors that were measured where the tensors lie, of so many elements. As of [`Noise::measure`].
    pub fn of_measured<T>(errors: Errors, n_elements: usize, explained: &Explained<T>, factor: f64) -> Self {
        // How often two largest errors of few elements differ by chance alone.
        let scatter = if explained.is_drift() { Self::scatter(n_elements) } else { 1. };
        let noise = Self::of(errors, factor * scatter);
        let is_larger = explained.is_drift() && noise.kind == NoiseKind::Noise && errors.are_larger(factor * scatter);
        if is_larger { Self { kind: NoiseKind::CandidateWorse, ..noise } } else { noise }
    }

    /// The largest of n errors scatters the more the fewer there are: a scalar's ratio says little.
    pub(in crate::compare) fn scatter(n_elements: usize) -> f64 {
        1. + 4. / (n_elements.max(1) as f64).sqrt()
    }
}

/// Steps that a fill value may be off by.
const FILL_STEPS: f64 = 4.;

/// What rounding explains at an element: `exact` of |exact|, `terms` of the element's own, and `all`. steps: of the type,
/// where all elements are looked at by these. condition: what the reference's largest error is a multiple of.
#[derive(Clone, Copy, Debug)]
pub(in crate::compare) struct Scales {
    pub exact: f64,
    pub terms: f64,
    pub all: f64,
    pub steps: Option<Steps>,
    /// Relative step of the type, or of the lowest precision on the way.
    step: f64,
    /// From this size on values are fill values, which are right where they are within steps of their own.
    fill: f64,
    condition: f64,
}

impl Scales {
    /// Whether there are any of a reference of this type.
    pub fn has_any<T>(dtype: DType, explained: &Explained<T>) -> bool {
        dtype.widens() && !(dtype == DType::F64 && explained.is_drift())
    }

    /// largest: finite |exact|.
    pub fn of<T>(dtype: DType, explained: &Explained<T>, largest: f64) -> Self {
        let widest = if let Explained::Drift { step } = explained { *step } else { 0. };
        let (step, smallest) = (epsilon(dtype).max(widest), smallest(dtype));
        let rounding = Noise::ROUNDINGS * epsilon(accumulated_in(dtype));
        let (steps, condition, fill) = (Steps::of(dtype), step * largest + smallest, f64::INFINITY);
        match explained {
            Explained::Terms(_) => Self { exact: step, terms: rounding, all: smallest, steps, step, fill, condition },
            Explained::Drift { .. } => {
                Self { exact: 0., terms: 0., all: condition, steps: None, step, fill, condition }
            }
            Explained::Kernel => {
                Self { exact: step, terms: 0., all: rounding * largest + smallest, steps, step, fill, condition }
            }
        }
    }
}

/// What `of` finds in each range of elements, some of them at a time; `len_bytes`: what all of it reads. None where
/// it finds nothing in one, or nobody waits for it any more.
fn of_each<T: Send>(
    n_elements: usize,
    len_bytes: usize,
    wanted: Wanted<'_>,
    of: impl Fn(Range<usize>) -> Option<T> + Sync,
) -> Option<Vec<T>> {
    let ranges: Vec<_> = blocks(n_elements).collect();
    in_parallel(ranges.len(), len_bytes, |index| wanted.is().then(|| of(ranges[index].clone()))?).into_iter().collect()
}

/// The largest finite |element|; None for a dtype that does not widen.
fn largest(tensor: &SharedTensor<'_>, below: f64, wanted: Wanted<'_>) -> Option<f64> {
    let of_block = |range| {
        let sizes = tensor.flat_f64(range)?.into_iter().map(f64::abs);
        Some(sizes.filter(|size| size.is_finite() && *size < below).fold(0., f64::max))
    };
    let largest = of_each(tensor.shape().n_elements(), tensor.bytes().len(), wanted, of_block)?;
    Some(largest.into_iter().fold(0., f64::max))
}

/// Of a reference and a candidate, but for the condition; and the largest distance between them.
fn errors(
    tensors: [&SharedTensor<'_>; 2],
    exact: &SharedTensor<'_>,
    terms: Option<&SharedTensor<'_>>,
    (scales, wanted): (&Scales, Wanted<'_>),
) -> Option<(Errors, f64)> {
    let of_block = |range: Range<usize>| {
        let exact = exact.flat_f64(range.clone())?;
        let terms = match terms {
            Some(terms) => terms.flat_f64(range.clone())?,
            None => vec![0.; exact.len()],
        };
        let [reference, candidate] = [tensors[0].flat_f64(range.clone())?, tensors[1].flat_f64(range)?];
        let (mut found, mut roundings, mut squares) = (Errors::default(), Roundings::default(), [0.; 2]);
        let mut max_abs = 0_f64;
        for (((reference, candidate), exact), terms) in reference.into_iter().zip(candidate).zip(exact).zip(terms) {
            let slack = scales.terms * terms + scales.all;
            let explained = scales.exact * exact.abs() + slack;
            if let Some(steps) = &scales.steps {
                roundings.add([reference, candidate], exact, slack, steps);
            }
            let apart = [reference, candidate].map(|value| distance(value, exact));
            let between = distance(candidate, reference);
            max_abs = max_abs.max(between);
            let is_fill = exact.abs() >= scales.fill && exact.is_finite();
            let of_fill = |apart| if apart <= FILL_STEPS * scales.step * exact.abs() { 0. } else { f64::INFINITY };
            let [of_reference, of_candidate] = if is_fill { apart.map(of_fill) } else { apart };
            squares[0] += of_reference * of_reference;
            squares[1] += of_candidate * of_candidate;
            found.merge(&Errors {
                reference_error: of_reference,
                candidate_error: of_candidate,
                reference_excess: excess(of_reference, explained),
                candidate_excess: excess(of_candidate, explained),
                distance: if is_fill { 0. } else { between },
                ..Errors::default()
            });
        }
        Some((found, roundings, squares, max_abs))
    };
    let n_elements = exact.shape().n_elements();
    let (mut all, mut roundings, mut squares) = (Errors::default(), Roundings::default(), [0.; 2]);
    let mut max_abs = 0_f64;
    for (found, in_block, of_block, between) in of_each(n_elements, exact.bytes().len(), wanted, of_block)? {
        all.merge(&found);
        max_abs = max_abs.max(between);
        roundings.merge(&in_block);
        squares[0] += of_block[0];
        squares[1] += of_block[1];
    }
    let [reference_rms, candidate_rms] = squares.map(|sum: f64| (sum / n_elements.max(1) as f64).sqrt());
    Some((Errors { rounding: roundings.found(), reference_rms, candidate_rms, ..all }, max_abs))
}

/// What is infinite or NaN explains nothing.
fn excess(distance: f64, explained: f64) -> f64 {
    match distance {
        0. => 0.,
        _ if explained.is_finite() => distance / explained,
        _ => f64::INFINITY,
    }
}

impl Errors {
    /// With the condition, which the others tell.
    pub(in crate::compare) fn with_condition(self, scales: &Scales) -> Self {
        Self { condition: excess(self.reference_error, scales.condition), ..self }
    }

    fn merge(&mut self, other: &Self) {
        for (mine, theirs) in [
            (&mut self.reference_error, other.reference_error),
            (&mut self.candidate_error, other.candidate_error),
            (&mut self.reference_excess, other.reference_excess),
            (&mut self.candidate_excess, other.candidate_excess),
            (&mut self.distance, other.distance),
        ] {
            *mine = mine.max(theirs);
        }
    }
}

fn distance(value: f64, exact: f64) -> f64 {
    match (value - exact).abs() {
        _ if value == exact || (value.is_nan() && exact.is_nan()) => 0.,
        distance if distance.is_nan() => f64::INFINITY,
        distance => distance,
    }
}
