//! Errors of two results against the exact one, and what they come to.

use serde::{Deserialize, Serialize};

use super::super::number;
use super::super::rounding::Rounding;
use super::kind::NoiseKind;

/// How far reference and candidate are from the same computation in float64, and what that comes to, at the elements
/// that were asked for: all, or those that decide.
///
/// # When to use
/// Where two results differ and neither is exact. Of a node's own kernel (`Explained::Terms`, `Explained::Kernel`) it
/// says whether the kernel rounds as eager's does; of a value as it drifted (`Explained::Drift`), whether what the
/// candidate gathered on its way is more than what eager did.
///
/// # When not
/// Of float64 tensors, whose exact values are eager's own, it tells how far the candidate is from eager and no more. Of
/// integers there is none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "AsWritten")]
pub struct Noise {
    /// What it comes to.
    pub kind: NoiseKind,
    /// What was measured.
    #[serde(flatten)]
    pub errors: Errors,
    /// `candidate_error` / `reference_error`: about 1 is the type's own noise. 1 where both are 0 or infinite.
    #[serde(with = "number")]
    pub ratio: f64,
    /// How far rounding moves the value, where it was asked: every node alone was looked at and is right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<Spread>,
}

/// Errors of two results against the exact one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Errors {
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
    /// max |candidate − reference|; NaN unknown.
    #[serde(with = "number", default = "unknown")]
    pub distance: f64,
    /// The reference's largest error in steps of its type, or of the lowest precision on its way, at max|exact|, of which rounding the exact value explains half
    /// a one; NaN unknown.
    #[serde(with = "number", default = "unknown")]
    pub condition: f64,
    /// Root mean square of (reference − exact); NaN unknown.
    #[serde(with = "number", default = "unknown")]
    pub reference_rms: f64,
    /// Likewise, of the candidate.
    #[serde(with = "number", default = "unknown")]
    pub candidate_rms: f64,
    /// How both round, over all elements; None of types that are not half precision, and of values that drifted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounding: Option<Rounding>,
}

/// How far rounding moves a value that drifted: errors against float64 of the same computation with every operation off
/// by up to one step of its type. A reference's own error is one such sample, and may be small by luck.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// max |rounded − exact|.
    #[serde(with = "number")]
    pub largest: f64,
    /// Root mean square of (rounded − exact).
    #[serde(with = "number")]
    pub rms: f64,
}

/// As it stands in a file; `rust_ort/nodes/2` has the errors alone.
#[derive(Deserialize)]
struct AsWritten {
    kind: Option<NoiseKind>,
    #[serde(flatten)]
    errors: Errors,
    spread: Option<Spread>,
}

impl From<AsWritten> for Noise {
    fn from(written: AsWritten) -> Self {
        let noise = Noise::of(written.errors, Noise::FACTOR);
        Noise { kind: written.kind.unwrap_or(noise.kind), spread: written.spread, ..noise }
    }
}

fn unknown() -> f64 {
    f64::NAN
}

impl Errors {
    /// Of which nothing was measured.
    pub(in crate::compare) const fn unknown() -> Self {
        Self {
            reference_error: f64::NAN,
            candidate_error: f64::NAN,
            reference_excess: f64::NAN,
            candidate_excess: f64::NAN,
            distance: f64::NAN,
            condition: f64::NAN,
            reference_rms: f64::NAN,
            candidate_rms: f64::NAN,
            rounding: None,
        }
    }

    /// The reference's and the candidate's errors and their distance are within this factor of each other where both are
    /// off "by about as much as they are apart".
    const ABOUT: f64 = 3.;

    /// From so many steps on the value is hardly determined.
    const ILL_CONDITIONED: f64 = 8.;

    /// What they come to: pure. `factor`: how much further from float64 than the reference the candidate may be. Largest
    /// errors decide; where they are alike, how both round.
    pub fn kind(&self, factor: f64) -> NoiseKind {
        let (reference, candidate) = (self.reference_excess, self.candidate_excess);
        let leniency = factor / Noise::FACTOR;
        let is_worse = |of: fn(&Rounding, f64) -> bool| self.rounding.as_ref().is_some_and(|found| of(found, leniency));
        if self.is_ill_conditioned() {
            NoiseKind::IllConditioned
        } else if candidate > (factor * reference).max(1.) {
            NoiseKind::CandidateWorse
        } else if reference > (factor * candidate).max(1.) {
            NoiseKind::ReferenceWorse
        } else if is_worse(Rounding::candidate_is_worse) {
            NoiseKind::CandidateWorse
        } else if is_worse(Rounding::reference_is_worse) {
            NoiseKind::ReferenceWorse
        } else {
            NoiseKind::Noise
        }
    }

    /// Whether the candidate's errors of all elements together are larger than `factor` times the reference's: what is off
    /// everywhere shows here before it shows in the largest one. A step of the type at max|exact| is none.
    pub(super) fn are_larger(&self, factor: f64) -> bool {
        let step = self.reference_error / self.condition;
        self.candidate_rms > factor * self.reference_rms && self.candidate_rms > step
    }

    fn is_ill_conditioned(&self) -> bool {
        let sizes = [self.reference_error, self.candidate_error, self.distance];
        let least = sizes.into_iter().fold(f64::INFINITY, f64::min);
        let most = sizes.into_iter().fold(0., f64::max);
        // Three infinities are alike, too.
        let alike = most <= Self::ABOUT * least;
        !self.distance.is_nan() && self.distance > 0. && alike && self.condition > Self::ILL_CONDITIONED
    }
}

impl Noise {
    /// How much further from float64 than the reference the candidate may be, unless told otherwise.
    pub const FACTOR: f64 = 1.5;

    /// A mismatch whose candidate is further than the reference by no more than this is settled as a match.
    pub const SETTLING: f64 = 2.;

    /// Roundings of Σ|terms| that a sum may be off by, in whichever order it is taken: partial sums of n terms differ by
    /// about √n/8 of these.
    pub const ROUNDINGS: f64 = 16.0;

    /// Of errors. `factor`: see [`Errors::kind`].
    pub fn of(errors: Errors, factor: f64) -> Self {
        let Errors { reference_error, candidate_error, .. } = errors;
        let ratio = if reference_error == candidate_error { 1. } else { candidate_error / reference_error };
        Self { kind: errors.kind(factor), errors, ratio, spread: None }
    }

    /// Whether a mismatch of a kernel is none: rounding explains what the candidate is off by, or the reference is off
    /// by about as much. NaN is not near.
    pub fn settles(&self) -> bool {
        let Errors { reference_error, reference_excess, candidate_excess, .. } = self.errors;
        candidate_excess <= (Self::SETTLING * reference_excess).max(1.) && reference_error.is_finite()
    }
}
