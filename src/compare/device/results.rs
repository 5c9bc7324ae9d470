//! What kernels.cu leaves, as what the rest of the room works with.

use crate::compare::noise::Errors;
use crate::compare::range::Range;
use crate::compare::rounding::Roundings;
use crate::compare::stats::{ABOVE, Outside, Place, Required, Stats};

/// Words that are left of a task, of any kind.
pub(super) const MOST_WORDS: usize = DeviceStats::WORDS;

/// What a kind of task finds: words, in their order.
pub(super) trait Found {
    /// How many.
    const WORDS: usize;

    /// What they say.
    fn of(words: &mut Words<'_>) -> Self;
}

/// The words of one task.
pub(super) struct Words<'a>(&'a [u64]);

impl<'a> Words<'a> {
    /// What the task of these words found.
    pub fn read<F: Found>(words: &'a [u64]) -> F {
        F::of(&mut Words(words))
    }

    fn int(&mut self) -> u64 {
        let [first, rest @ ..] = self.0 else { unreachable!("there are {MOST_WORDS}") };
        self.0 = rest;
        *first
    }

    fn float(&mut self) -> f64 {
        f64::from_bits(self.int())
    }

    fn ints<const N: usize>(&mut self) -> [u64; N] {
        std::array::from_fn(|_| self.int())
    }

    fn floats<const N: usize>(&mut self) -> [f64; N] {
        std::array::from_fn(|_| self.float())
    }

    /// A place, or none; what is there is asked later ([`Numbers`]).
    fn place(&mut self) -> Option<Place> {
        let index = Some(self.int()).filter(|&index| index != u64::MAX);
        index.map(|index| Place { index, reference: f64::NAN, candidate: f64::NAN })
    }
}

/// [`Stats`], and the references that are not zero.
pub(super) struct DeviceStats {
    pub stats: Stats,
    pub not_zero: u64,
}

impl Found for DeviceStats {
    const WORDS: usize = 10 + 2 * ABOVE.len() + 6 + 3 + 1 + 4;

    fn of(words: &mut Words<'_>) -> Self {
        let [measured, nan_disagreements, inf_disagreements, both_nan] = words.ints();
        let not_finite = words.ints();
        let [flushed, not_zero] = words.ints();
        let (above, filled_above) = (words.ints(), words.ints());
        let [sum_abs, sum_squares, sum_reference, sum_candidate, sum_product, filled_sum] = words.floats();
        let [max_rel, max_reference, filled_max_rel] = words.floats();
        let max_ulp = words.int();
        let [max_abs, filled_max_abs] = words.floats();
        let [argmax_abs, filled_argmax] = std::array::from_fn(|_| words.place());
        let stats = Stats {
            measured,
            max_abs,
            argmax_abs,
            max_rel,
            max_reference,
            max_ulp,
            sum_abs,
            sum_squares,
            sum_reference,
            sum_candidate,
            sum_product,
            above,
            nan_disagreements,
            inf_disagreements,
            both_nan,
            not_finite,
            flushed,
            filled_max_abs,
            filled_argmax,
            filled_max_rel,
            filled_sum,
            filled_above,
        };
        Self { stats, not_zero }
    }
}

impl Found for Outside {
    const WORDS: usize = 6;

    fn of(words: &mut Words<'_>) -> Self {
        let count = words.int();
        let required = Required { atol: words.float(), rtol: words.float() };
        let (worst_excess, worst) = (words.float(), words.place());
        Self { count, first: words.place(), worst, worst_excess, required }
    }
}

/// [`Range`], but for how many elements there are.
impl Found for Range {
    const WORDS: usize = 5;

    fn of(words: &mut Words<'_>) -> Self {
        let [nan, inf, zeros] = words.ints();
        let [max, negated_min] = words.ints().map(from_ordered);
        Self { n: 0, min: -negated_min, max, nan, inf, zeros }
    }
}

/// A number by its place in order; NaN where there was none.
fn from_ordered(place: u64) -> f64 {
    const SIGN: u64 = 1 << 63;
    match place {
        0 => f64::NAN,
        _ if place & SIGN != 0 => f64::from_bits(place & !SIGN),
        _ => f64::from_bits(!place),
    }
}

/// But for the condition.
impl Found for Errors {
    const WORDS: usize = 14;

    fn of(words: &mut Words<'_>) -> Self {
        let rounding = Roundings::of(words.ints(), words.floats()).found();
        let [reference_error, candidate_error, reference_excess, candidate_excess, distance] = words.floats();
        let errors =
            Self { reference_error, candidate_error, reference_excess, candidate_excess, distance, ..Self::unknown() };
        Self { rounding, ..errors }
    }
}

/// Of a mismatch whose terms are known.
pub(super) struct Sums {
    /// What neither the tolerance nor the terms explain.
    pub unexplained: u64,
    pub max_terms: f64,
}

impl Found for Sums {
    const WORDS: usize = 2;

    fn of(words: &mut Words<'_>) -> Self {
        Self { unexplained: words.int(), max_terms: words.float() }
    }
}

/// Sums of a tensor's four segments.
pub(super) struct Segments(pub [f64; 4]);

impl Found for Segments {
    const WORDS: usize = 4;

    fn of(words: &mut Words<'_>) -> Self {
        Self(words.floats())
    }
}

/// Reference and candidate at two places.
pub(super) struct Numbers(pub [(f64, f64); 2]);

impl Found for Numbers {
    const WORDS: usize = 4;

    fn of(words: &mut Words<'_>) -> Self {
        Self(std::array::from_fn(|_| (words.float(), words.float())))
    }
}
