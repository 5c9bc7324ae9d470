//! What counts as equal: one formula, one table.

use displaydoc::Display;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::digits::few;
use crate::tensor::DType;

/// Inside means |c − r| ≤ atol + rtol·|r| + scale·max|r|, where max|r| is over the finite elements of the reference
/// tensor that are no fill values ([`Tolerance::fill_limit`]).
///
/// A NaN or an infinity against any other value is outside whatever the tolerance; equal infinities are inside; NaN
/// against NaN is inside unless `equal_nan` is off: where it came from is a [`Birth`](super::Birth). With `scale` 0 this is `numpy.allclose(candidate, reference)`.
///
/// ```
/// use rust_ort::compare::Tolerance;
/// use rust_ort::tensor::DType;
///
/// assert_eq!(Tolerance::for_dtype(DType::I32), Tolerance::EXACT);
/// assert!(Tolerance::for_dtype(DType::F16).rtol > Tolerance::for_dtype(DType::F32).rtol);
/// let wrong = Tolerance { atol: -1., ..Tolerance::EXACT };
/// assert_eq!(wrong.check().unwrap_err().term, "atol");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tolerance {
    /// Absolute term, in the tensor's unit.
    pub atol: f64,
    /// Times |r| of the same element.
    pub rtol: f64,
    /// Times max|r| of the tensor.
    pub scale: f64,
    /// NaN equals NaN.
    pub equal_nan: bool,
}

/// tolerance: {term} is {value}; expected a finite number that is at least 0
#[derive(Clone, Debug, PartialEq, Display, Error)]
pub struct BadTolerance {
    /// "atol", "rtol" or "scale".
    pub term: &'static str,
    /// As given.
    pub value: f64,
}

impl Tolerance {
    /// Equal values only (-0 equals 0, NaN equals NaN).
    pub const EXACT: Tolerance = Tolerance { atol: 0., rtol: 0., scale: 0., equal_nan: true };

    /// `atol 1e-12 + rtol 3.052e-5·|r|`, for people: terms that are zero are left out, `atol 0` where all are.
    pub fn terms(&self) -> String {
        let terms = [("atol", self.atol, ""), ("rtol", self.rtol, "·|r|"), ("scale", self.scale, "·max|r|")];
        let told = terms.into_iter().filter(|(_, value, _)| *value != 0.);
        let told: Vec<_> = told.map(|(name, value, times)| format!("{name} {}{times}", few(value))).collect();
        if told.is_empty() { "atol 0".to_owned() } else { told.join(" + ") }
    }

    /// The defaults, by element type. Integers, bool and 8-bit floats: [`Tolerance::EXACT`]. Complex types: those of
    /// their parts. Source of the numbers: `docs/design/decisions/0002-tolerance.md`.
    pub const fn for_dtype(dtype: DType) -> Tolerance {
        // Units of the type's epsilon.
        let (atol, rtol_epsilons, scale_epsilons) = match dtype {
            DType::F64 | DType::C128 => (1e-21, 256., 128.),
            DType::F32 | DType::C64 => (1e-12, 256., 128.),
            DType::F16 => (6e-8, 4., 4.),
            DType::BF16 => (1e-12, 4., 4.),
            _ => return Tolerance::EXACT,
        };
        let epsilon = epsilon(dtype);
        Tolerance { atol, rtol: rtol_epsilons * epsilon, scale: scale_epsilons * epsilon, equal_nan: true }
    }

    /// Of one kernel on the reference's inputs: steps of each element. What is outside is not wrong yet: an
    /// [`Noise`](super::Noise), against float64, decides, which knows what was added up. Other types: as
    /// [`Tolerance::for_dtype`].
    pub const fn for_kernel(dtype: DType) -> Tolerance {
        let rtol_epsilons = match dtype {
            DType::F32 => 16.,
            DType::F16 | DType::BF16 => 1.,
            _ => return Tolerance::for_dtype(dtype),
        };
        Tolerance { rtol: rtol_epsilons * epsilon(dtype), ..Tolerance::EXACT }
    }

    /// Of floats of any type that were computed through this half-precision type.
    pub const fn of_half(half: DType) -> Tolerance {
        Tolerance { atol: 6e-8, ..Tolerance::for_dtype(half) }
    }

    /// Elements of this size and more do not count in max|r|: they stand for "masked out" (`torch.finfo(dtype).min` and
    /// its fractions), and one of them would make `scale`·max|r| swallow every real difference.
    pub const fn fill_limit(dtype: DType) -> f64 {
        match dtype {
            DType::F64 | DType::C128 => 1e300,
            DType::F32 | DType::C64 | DType::BF16 => 1e30,
            DType::F16 => 32752.,
            _ => f64::INFINITY,
        }
    }

    /// Errors: [`BadTolerance`] when a term is negative, NaN or infinite.
    pub fn check(&self) -> Result<(), BadTolerance> {
        for (term, value) in [("atol", self.atol), ("rtol", self.rtol), ("scale", self.scale)] {
            if !(value.is_finite() && value >= 0.) {
                return Err(BadTolerance { term, value });
            }
        }
        Ok(())
    }
}

/// The distance from 1 to the next number; 0 of types without a default tolerance.
pub(super) const fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 | DType::C128 => f64::EPSILON,
        DType::F32 | DType::C64 => f32::EPSILON as f64,
        DType::F16 => 0.0009765625,
        DType::BF16 => 0.0078125,
        _ => 0.,
    }
}

/// The type in which kernels add up values of this one.
pub(super) const fn accumulated_in(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

/// Below this, rounding is absolute or flushes to zero.
pub(super) const fn smallest(dtype: DType) -> f64 {
    match dtype {
        DType::F64 | DType::C128 => f64::MIN_POSITIVE,
        DType::F16 => 6e-8,
        _ => f32::MIN_POSITIVE as f64,
    }
}

/// A tolerance whose max|r| is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    atol: f64,
    rtol: f64,
    /// scale·max|r|.
    pub floor: f64,
    pub equal_nan: bool,
}

/// What it takes for one element to be inside.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    /// Distance beyond what is allowed; above 0 exactly when the element is outside.
    pub excess: f64,
    /// That term alone, see [`Required`](super::Required); 0 when none is needed.
    pub atol: f64,
    pub rtol: f64,
}

/// As [`Needs`], but for a division.
#[derive(Clone, Copy, Debug)]
pub(super) struct Undivided {
    pub excess: f64,
    pub atol: f64,
    /// The needed rtol, times the size of the reference.
    pub rtol_of_size: f64,
}

impl Bounds {
    pub fn new(tolerance: &Tolerance, max_reference: f64) -> Self {
        let Tolerance { atol, rtol, scale, equal_nan } = *tolerance;
        Self { atol, rtol, floor: scale * max_reference, equal_nan }
    }

    /// Whether numbers that are at most so far apart may need a tolerance: up to `floor` none does, but for what is infinitely
    /// far apart, as NaN and other numbers are, whatever the floor.
    #[inline(always)]
    pub fn may_be_beyond(&self, max_apart: f64) -> bool {
        max_apart > self.floor || max_apart == f64::INFINITY
    }

    /// For finite numbers `apart` from each other, the reference of this `size`.
    #[inline(always)]
    pub fn needs(&self, apart: f64, size: f64) -> Needs {
        let Undivided { excess, atol, rtol_of_size } = self.needs_undivided(apart, size);
        Needs { excess, atol, rtol: if rtol_of_size > 0. { rtol_of_size / size } else { 0. } }
    }

    /// As [`Bounds::needs`].
    #[inline(always)]
    pub fn needs_undivided(&self, apart: f64, size: f64) -> Undivided {
        let excess = apart - (self.atol + self.rtol * size + self.floor);
        let over_floor = apart - self.floor;
        // Rounded up, so that what is reported does pass.
        let slack = 4. * f64::EPSILON * apart;
        let (atol, rtol) = (over_floor - self.rtol * size, over_floor - self.atol);
        Undivided {
            excess,
            atol: if atol > 0. { atol + slack } else { 0. },
            rtol_of_size: if rtol > 0. { rtol + slack } else { 0. },
        }
    }
}
