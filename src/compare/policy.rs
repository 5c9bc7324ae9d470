//! Which tolerance each tensor of a comparison is judged by.

use serde::{Deserialize, Serialize};

use super::noise::{Excused, Explained, Noise, Spread};
use super::pair::Exact;
use super::tolerance::{BadTolerance, Tolerance, epsilon};
use crate::tensor::DType;

/// The rule by which tensors of a comparison are judged: the same in a call, in a file and on the command line.
///
/// ```
/// use rust_ort::compare::{Policy, Tolerance};
/// use rust_ort::tensor::DType;
///
/// let policy = Policy { through: Some(DType::BF16), ..Policy::default() };
/// assert_eq!(policy.tolerance(DType::F32), Tolerance::of_half(DType::BF16));
/// assert_eq!(policy.tolerance(DType::I64), Tolerance::EXACT);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// Asked for.
    pub given: Option<Tolerance>,
    /// Half-precision type that floats were computed through, whatever their own type.
    pub through: Option<DType>,
    /// How much further from float64 than the reference a candidate may be and be called noise.
    pub noise_factor: f64,
}

impl Default for Policy {
    fn default() -> Self {
        Self { given: None, through: None, noise_factor: Noise::FACTOR }
    }
}

impl Policy {
    /// Of tensors of this type: the one asked for, else the steps of half precision of floats that it took part in, else
    /// the type's own. Bools have none but their own.
    pub fn tolerance(&self, dtype: DType) -> Tolerance {
        let half = self.through.filter(|_| dtype.is_float()).map(Tolerance::of_half);
        self.asked_for(dtype).or(half).unwrap_or_else(|| Tolerance::for_dtype(dtype))
    }

    /// Of what one kernel gives on the reference's inputs: the one asked for, else [`Tolerance::for_kernel`].
    pub fn kernel(&self, dtype: DType) -> Tolerance {
        self.asked_for(dtype).unwrap_or_else(|| Tolerance::for_kernel(dtype))
    }

    fn asked_for(&self, dtype: DType) -> Option<Tolerance> {
        self.given.filter(|_| dtype != DType::Bool)
    }

    /// float64 of a value that drifted, and what is noise around it. `spread`: how far rounding moves the value, where each
    /// node alone is right.
    pub fn drifted<T>(&self, value: T, spread: Option<Spread>) -> Exact<T> {
        let excused = Excused::under(self.given.is_some(), spread);
        Exact { value, explained: Explained::Drift { step: self.step() }, factor: self.noise_factor, excused }
    }

    /// float64 of what one kernel gives, and what is noise around it.
    pub fn computed<T>(&self, value: T) -> Exact<T> {
        Exact { value, explained: Explained::Kernel, factor: self.noise_factor, excused: Excused::Nothing }
    }

    /// Relative step of what floats were computed through; 0: of each tensor's own type.
    pub fn step(&self) -> f64 {
        self.through.map_or(0., epsilon)
    }

    /// Errors: as of [`Tolerance::check`], also where the factor is no finite number from 1.
    pub fn check(&self) -> Result<(), BadTolerance> {
        if !(self.noise_factor.is_finite() && self.noise_factor >= 1.) {
            return Err(BadTolerance { term: "noise_factor, which is from 1,", value: self.noise_factor });
        }
        self.given.map_or(Ok(()), |given| given.check())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_comes_first_and_half_precision_is_of_floats_alone() {
        let given = Tolerance { atol: 1., ..Tolerance::EXACT };
        let asked = Policy { given: Some(given), through: Some(DType::F16), ..Policy::default() };
        assert_eq!(asked.tolerance(DType::I32), given);
        assert_eq!(asked.kernel(DType::F32), given);
        for tolerance in [asked.tolerance(DType::Bool), asked.kernel(DType::Bool)] {
            assert_eq!(tolerance, Tolerance::EXACT);
        }
        let half = Policy { through: Some(DType::F16), ..Policy::default() };
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            assert_eq!(half.tolerance(dtype), Tolerance::of_half(DType::F16), "{dtype}");
        }
        for dtype in [DType::I64, DType::Bool, DType::C64] {
            assert_eq!(half.tolerance(dtype), Tolerance::for_dtype(dtype), "{dtype}");
        }
        assert_eq!(half.kernel(DType::F32), Tolerance::for_kernel(DType::F32));
        assert_eq!(Policy::default().tolerance(DType::F32), Tolerance::for_dtype(DType::F32));
    }
}
