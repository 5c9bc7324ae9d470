//! Which mismatches of values that drifted say nothing against the candidate.

use super::errors::{Errors, Noise, Spread};
use super::kind::NoiseKind;

/// What of a value that drifted beyond its tolerance is noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Excused {
    /// Nothing: a tolerance was asked for, or the value did not drift.
    Nothing,
    /// What is no further from float64 than the reference.
    AsReference,
    /// That, and what is no further from it than rounding moves the value: every node alone is right.
    AsRounding(Spread),
}

impl Excused {
    /// What is noise under a policy. spread: of a value whose nodes alone are all right.
    pub fn under(is_asked_for: bool, spread: Option<Spread>) -> Self {
        match spread {
            _ if is_asked_for => Self::Nothing,
            Some(spread) => Self::AsRounding(spread),
            None => Self::AsReference,
        }
    }
}

impl Noise {
    /// How many times as far from float64 as rounding moves a value, or the reference is, the candidate may be.
    pub const SPREADS: f64 = 4.;

    /// Whether a value that drifted beyond its tolerance says nothing against the candidate, also where it is
    /// ill-conditioned. A NaN or an infinity does. factor: how much further from float64 than the reference it may be, for
    /// so many elements; tolerance: of the element that is most outside.
    pub(in crate::compare) fn excuses(&mut self, excused: Excused, factor: f64, tolerance: f64) -> bool {
        if excused == Excused::Nothing || self.is_as_reference(factor) {
            return excused != Excused::Nothing;
        }
        let Excused::AsRounding(spread) = excused else { return false };
        self.spread = Some(spread);
        let is_within = self.is_within(spread, tolerance);
        if is_within {
            self.kind = NoiseKind::IllConditioned;
        }
        is_within
    }

    fn is_as_reference(&self, factor: f64) -> bool {
        let Errors { candidate_error, reference_excess, candidate_excess, .. } = self.errors;
        // Without the root mean square, what is off everywhere may hide behind the largest error.
        candidate_error.is_finite()
            && self.errors.candidate_rms.is_finite()
            && candidate_excess <= (factor * reference_excess).max(1.)
            && !self.errors.are_larger(factor)
    }

    /// Whether two right results may be apart by more than the tolerance, each moved by rounding, and the candidate is off
    /// by no more than some times that.
    fn is_within(&self, spread: Spread, tolerance: f64) -> bool {
        let Errors { reference_error, reference_rms, candidate_error, candidate_rms, .. } = self.errors;
        // Long sums round more than one step, which the reference's own error shows.
        let (largest, rms) = (spread.largest.max(reference_error), spread.rms.max(reference_rms));
        largest.is_finite()
            && 2. * largest > tolerance
            && candidate_error <= Self::SPREADS * largest
            && candidate_rms <= Self::SPREADS * rms
    }
}
