//! A third opinion: which of two results is nearer to the exact one.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::number;
use super::tolerance::{accumulated_in, epsilon, smallest};
use crate::base::parallel::in_parallel;
use crate::tensor::SharedTensor;

/// How far reference and candidate are from the same computation in float64, and from what its rounding explains, at the
/// elements that were asked for: all, or those that decide.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Opinion {
    /// max |reference − exact|.
    #[serde(with = "number")]
    pub reference_error: f64,
    /// max |candidate − exact|.
    #[serde(with = "number")]
    pub candidate_error: f64,
    /// The reference's largest error as a multiple of what rounding explains at that element.
    #[serde(with = "number")]
    pub reference_excess: f64,
    /// Likewise, of the candidate.
    #[serde(with = "number")]
    pub candidate_excess: f64,
}

impl Opinion {
    /// Measures both against `exact`. All of one shape; any dtypes that widen to f64. A NaN or an infinity counts as no
    /// error against itself and as an infinite one against any other number. None for complex and 8-bit float types,
    /// and for tensors of different shapes.
    ///
    /// What rounding explains at an element: one step of the reference's type there, and [`Self::ROUNDINGS`] roundings,
    /// in the type that kernels add up in, of Σ|terms| (`terms`); where nobody knows these, of max|exact|.
    pub fn measure<'a>(
        reference: impl Into<SharedTensor<'a>>,
        candidate: impl Into<SharedTensor<'a>>,
        exact: impl Into<SharedTensor<'a>>,
        terms: Option<SharedTensor<'a>>,
    ) -> Option<Self> {
        let (reference, candidate, exact) = (reference.into(), candidate.into(), exact.into());
        let alike = |other: &SharedTensor<'_>| other.shape() == exact.shape();
        if !(alike(&reference) && alike(&candidate) && terms.as_ref().is_none_or(alike)) {
            return None;
        }
        let terms = match &terms {
            Some(terms) => Terms::Each(terms),
            None => Terms::All(largest(&exact)?),
        };
        let [of_reference, of_candidate] = errors([&reference, &candidate], &exact, &terms)?;
        Some(Self {
            reference_error: of_reference.largest,
            candidate_error: of_candidate.largest,
            reference_excess: of_reference.excess,
            candidate_excess: of_candidate.excess,
        })
    }

    /// Errors of the candidate up to so many of the reference's are rounding.
    pub const FACTOR: f64 = 2.0;

    /// Roundings of Σ|terms| that a sum may be off by, in whichever order it is taken: partial sums of n terms differ by
    /// about √n/8 of these.
    pub const ROUNDINGS: f64 = 16.0;

    /// Rounding explains what the candidate is off by, or the reference is off by about as much. NaN is not near.
    pub fn is_rounding(&self) -> bool {
        self.candidate_excess <= (Self::FACTOR * self.reference_excess).max(1.) && self.reference_error.is_finite()
    }
}

/// Σ|terms| of every element.
enum Terms<'t, 'a> {
    Each(&'t SharedTensor<'a>),
    /// One number for all.
    All(f64),
}

const BLOCK: usize = 4096;

/// Ranges of elements, one after the other.
pub(super) fn blocks(n_elements: usize) -> impl Iterator<Item = Range<usize>> {
    // A tensor without elements still tells whether its dtype widens.
    (0..n_elements.max(1)).step_by(BLOCK).map(move |from| from..(from + BLOCK).min(n_elements))
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

/// How far a tensor is from the exact one.
#[derive(Clone, Copy, Default)]
struct Error {
    /// max |tensor − exact|.
    largest: f64,
    /// max of it over what rounding explains.
    excess: f64,
}

impl Error {
    fn merge(&mut self, other: Self) {
        (self.largest, self.excess) = (self.largest.max(other.largest), self.excess.max(other.excess));
    }
}

/// Of tensors of one dtype, to which what explains their errors is rounded.
fn errors(tensors: [&SharedTensor<'_>; 2], exact: &SharedTensor<'_>, terms: &Terms<'_, '_>) -> Option<[Error; 2]> {
    let dtype = tensors[0].dtype();
    let (step, rounding) = (epsilon(dtype), Opinion::ROUNDINGS * epsilon(accumulated_in(dtype)));
    let of_block = |range: Range<usize>| {
        let exact = exact.flat_f64(range.clone())?;
        let terms = match terms {
            Terms::Each(terms) => terms.flat_f64(range.clone())?,
            Terms::All(size) => vec![*size; exact.len()],
        };
        let mut found = [Error::default(); 2];
        for (found, tensor) in found.iter_mut().zip(tensors) {
            for ((value, exact), terms) in tensor.flat_f64(range.clone())?.into_iter().zip(&exact).zip(&terms) {
                let distance = distance(value, *exact);
                let explained = step * exact.abs() + rounding * terms + smallest(dtype);
                // What is infinite or NaN explains nothing.
                let excess = match distance {
                    0. => 0.,
                    _ if explained.is_finite() => distance / explained,
                    _ => f64::INFINITY,
                };
                found.merge(Error { largest: distance, excess });
            }
        }
        Some(found)
    };
    let mut all = [Error::default(); 2];
    for found in of_each(exact.shape().n_elements(), exact.bytes().len(), of_block)? {
        all.iter_mut().zip(found).for_each(|(all, found)| all.merge(found));
    }
    Some(all)
}

fn distance(value: f64, exact: f64) -> f64 {
    match (value - exact).abs() {
        _ if value == exact || (value.is_nan() && exact.is_nan()) => 0.,
        distance if distance.is_nan() => f64::INFINITY,
        distance => distance,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{DType, TensorBuf, TensorDesc};
    use half::{bf16, f16};

    fn tensor(dtype: DType, values: &[f64]) -> TensorBuf {
        let bytes = values.iter().flat_map(|&value| match dtype {
            DType::F16 => f16::from_f64(value).to_le_bytes().to_vec(),
            DType::BF16 => bf16::from_f64(value).to_le_bytes().to_vec(),
            DType::F32 => (value as f32).to_le_bytes().to_vec(),
            DType::F64 => value.to_le_bytes().to_vec(),
            other => panic!("{other}"),
        });
        TensorBuf::new(TensorDesc::new(dtype, [values.len() as i64]).unwrap(), bytes.collect()).unwrap()
    }

    fn opinion(dtype: DType, values: [&[f64]; 3], terms: Option<&[f64]>) -> Opinion {
        let [reference, candidate] = [values[0], values[1]].map(|values| tensor(dtype, values));
        let (exact, terms) = (tensor(DType::F64, values[2]), terms.map(|terms| tensor(DType::F64, terms)));
        let terms = terms.as_ref().map(TensorBuf::shared);
        Opinion::measure(&reference.view(), &candidate.view(), &exact.view(), terms).unwrap()
    }

    fn measure(dtype: DType, reference: &[f64], candidate: &[f64], exact: &[f64]) -> (f64, f64, bool) {
        let opinion = opinion(dtype, [reference, candidate, exact], None);
        (opinion.reference_error, opinion.candidate_error, opinion.is_rounding())
    }

    #[test]
    fn up_to_twice_the_references_error_is_rounding() {
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            for (reference, candidate, expected) in [
                ([1., 2.], [1., 2.], (0., 0., true)),
                ([1.25, 2.], [1., 2.5], (0.25, 0.5, true)),
                ([1.25, 2.], [1., 3.], (0.25, 1., false)),
                ([1., 2.], [1., 2.5], (0., 0.5, false)),
            ] {
                assert_eq!(measure(dtype, &reference, &candidate, &[1., 2.]), expected, "{dtype}");
            }
        }
    }

    #[test]
    fn nan_and_infinity_are_near_themselves_only() {
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        let same = [nan, inf, -inf];
        assert_eq!(measure(DType::F32, &same, &same, &same), (0., 0., true));
        for bad in [[0., inf, -inf], [nan, 0., -inf], [nan, inf, inf], [inf, nan, -inf]] {
            assert_eq!(measure(DType::F32, &same, &bad, &same), (0., inf, false), "{bad:?}");
            assert_eq!(measure(DType::F32, &bad, &bad, &same), (inf, inf, false), "{bad:?}");
        }
    }

    #[test]
    fn other_shapes_and_complex_numbers_have_no_opinion() {
        let (two, one) = (tensor(DType::F64, &[1., 2.]), tensor(DType::F64, &[1.]));
        assert_eq!(Opinion::measure(&two.view(), &two.view(), &one.view(), None), None);
        assert_eq!(Opinion::measure(&two.view(), &two.view(), &two.view(), Some(one.shared())), None);
        let complex = TensorBuf::zeros(TensorDesc::new(DType::C64, [2]).unwrap());
        assert_eq!(Opinion::measure(&complex.view(), &two.view(), &two.view(), None), None);
    }

    #[test]
    fn a_lucky_reference_accuses_nobody_of_rounding_what_was_added_up() {
        let (zero, off) = ([0., 1.], [1.4e-8, 1.]);
        let of = |terms: &[f64]| opinion(DType::F32, [&zero, &off, &zero], Some(terms)).is_rounding();
        assert!(of(&[0.01, 1.]));
        assert!(!of(&[0.001, 1.]), "1.4e-8 is 117 roundings of 0.001");
        assert!(!of(&[f64::INFINITY, 1.]) && !of(&[f64::NAN, 1.]), "explains nothing");
    }

    #[test]
    fn half_precision_rounds_once_at_each_element_and_adds_up_in_float32() {
        for (dtype, step) in [(DType::BF16, 0.0078125), (DType::F16, 0.0009765625)] {
            let exact = [0.125 * (1. + 0.5 * step), 64.];
            let of = |steps: f64| {
                let candidate = [0.125 * (1. + steps * step), 64.];
                opinion(dtype, [&[0.125, 64.], &candidate, &exact], Some(&exact)).is_rounding()
            };
            assert!(of(1.), "{dtype}: the other neighbour");
            assert!(!of(3.), "{dtype}: steps of the element, not of the largest one");
        }
    }

    #[test]
    fn subnormals_and_signed_zeros_are_rounding() {
        for (dtype, tiny) in [(DType::F16, 6e-8), (DType::BF16, 1e-40), (DType::F32, 1e-45), (DType::F64, 5e-324)] {
            let found = opinion(dtype, [&[0., -0.], &[tiny, 0.], &[0., 0.]], Some(&[0., 0.]));
            assert!(found.is_rounding(), "{dtype}: {found:?}");
        }
    }

    #[test]
    fn nothing_is_rounding() {
        assert!(opinion(DType::F32, [&[], &[], &[]], Some(&[])).is_rounding());
    }
}
