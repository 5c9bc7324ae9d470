//! Both results measured against the exact one, element by element.

use std::ops::Range;

use super::super::blocks::blocks;
use super::super::rounding::{Roundings, Steps};
use super::super::tolerance::{accumulated_in, epsilon, smallest};
use super::errors::{Errors, Noise};
use crate::base::parallel::in_parallel;
use crate::tensor::{DType, SharedTensor};

/// What rounding explains at an element, beside one step of the reference's type there.
#[derive(Clone, Copy, Debug)]
pub enum Explained<'a> {
    /// [`Noise::ROUNDINGS`] roundings, in the type that kernels add up in, of Σ|terms|, float64 of the exact one's shape.
    Terms(SharedTensor<'a>),
    /// The same of an operator whose terms nobody knows: of max|exact|.
    Kernel,
    /// Of a value that drifted: one step at max|exact|, for errors came from elsewhere than from the element.
    Drift {
        /// The relative one of the lowest precision that it drifted through, where that is wider than its own type's.
        step: f64,
    },
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
        explained: Explained<'a>,
        factor: f64,
    ) -> Option<Self> {
        let (reference, candidate, exact) = (reference.into(), candidate.into(), exact.into());
        let alike = |other: &SharedTensor<'_>| other.shape() == exact.shape();
        let terms = match &explained {
            Explained::Terms(terms) => Some(terms),
            Explained::Kernel | Explained::Drift { .. } => None,
        };
        let is_judge = reference.dtype() == DType::F64 && matches!(explained, Explained::Drift { .. });
        if is_judge || !(alike(&reference) && alike(&candidate) && terms.is_none_or(alike)) {
            return None;
        }
        let largest = largest(&exact)?;
        let dtype = reference.dtype();
        let widest = if let Explained::Drift { step } = explained { step } else { 0. };
        let (step, smallest) = (epsilon(dtype).max(widest), smallest(dtype));
        let rounding = Self::ROUNDINGS * epsilon(accumulated_in(dtype));
        let steps = Steps::of(dtype);
        let scales = match (terms, &explained) {
            (Some(terms), _) => Scales { exact: step, terms: rounding, each: Some(terms), all: smallest, steps },
            (None, Explained::Drift { .. }) => {
                Scales { exact: 0., terms: 0., each: None, all: step * largest + smallest, steps: None }
            }
            (None, _) => Scales { exact: step, terms: 0., each: None, all: rounding * largest + smallest, steps },
        };
        let mut errors = errors([&reference, &candidate], &exact, &scales)?;
        errors.condition = excess(errors.reference_error, step * largest + smallest);
        // How often two largest errors of few elements differ by chance alone.
        let scatter =
            if matches!(explained, Explained::Drift { .. }) { Self::scatter(exact.shape().n_elements()) } else { 1. };
        Some(Self::of(errors, factor * scatter))
    }

    /// The largest of n errors scatters the more the fewer there are: a scalar's ratio says little.
    fn scatter(n_elements: usize) -> f64 {
        1. + 4. / (n_elements.max(1) as f64).sqrt()
    }
}

/// What rounding explains at an element: `exact` of |exact|, `terms` of the element's own, and `all`. steps: of the type,
/// where all elements are looked at by these.
struct Scales<'t, 'a> {
    exact: f64,
    terms: f64,
    each: Option<&'t SharedTensor<'a>>,
    all: f64,
    steps: Option<Steps>,
}

/// What `of` finds in each range of elements, some of them at a time; `len_bytes`: what all of it reads. None where
/// it finds nothing in one.
fn of_each<T: Send>(
    n_elements: usize,
    len_bytes: usize,
    of: impl Fn(Range<usize>) -> Option<T> + Sync,
) -> Option<Vec<T>> {
    let ranges: Vec<_> = blocks(n_elements).collect();
    in_parallel(ranges.len(), len_bytes, |index| of(ranges[index].clone())).into_iter().collect()
}

/// The largest finite |element|; None for a dtype that does not widen.
fn largest(tensor: &SharedTensor<'_>) -> Option<f64> {
    let of_block = |range| {
        let sizes = tensor.flat_f64(range)?.into_iter().map(f64::abs);
        Some(sizes.filter(|size| size.is_finite()).fold(0., f64::max))
    };
    Some(of_each(tensor.shape().n_elements(), tensor.bytes().len(), of_block)?.into_iter().fold(0., f64::max))
}

/// Of a reference and a candidate, but for the condition.
fn errors(tensors: [&SharedTensor<'_>; 2], exact: &SharedTensor<'_>, scales: &Scales<'_, '_>) -> Option<Errors> {
    let of_block = |range: Range<usize>| {
        let exact = exact.flat_f64(range.clone())?;
        let terms = match scales.each {
            Some(terms) => terms.flat_f64(range.clone())?,
            None => vec![0.; exact.len()],
        };
        let [reference, candidate] = [tensors[0].flat_f64(range.clone())?, tensors[1].flat_f64(range)?];
        let (mut found, mut roundings) = (Errors::default(), Roundings::default());
        for (((reference, candidate), exact), terms) in reference.into_iter().zip(candidate).zip(exact).zip(terms) {
            let slack = scales.terms * terms + scales.all;
            let explained = scales.exact * exact.abs() + slack;
            if let Some(steps) = &scales.steps {
                roundings.add([reference, candidate], exact, slack, steps);
            }
            let [of_reference, of_candidate] = [reference, candidate].map(|value| distance(value, exact));
            found.merge(&Errors {
                reference_error: of_reference,
                candidate_error: of_candidate,
                reference_excess: excess(of_reference, explained),
                candidate_excess: excess(of_candidate, explained),
                distance: distance(candidate, reference),
                ..Errors::default()
            });
        }
        Some((found, roundings))
    };
    let (mut all, mut roundings) = (Errors::default(), Roundings::default());
    for (found, in_block) in of_each(exact.shape().n_elements(), exact.bytes().len(), of_block)? {
        all.merge(&found);
        roundings.merge(&in_block);
    }
    Some(Errors { rounding: roundings.found(), ..all })
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
