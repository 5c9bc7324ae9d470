//! Which tolerance each tensor of a comparison is judged by.

use serde::{Deserialize, Serialize};

use super::noise::Noise;
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
    /// Asked for, for tensors of every type but bool, which has none but its own.
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
    /// the type's own.
    pub fn tolerance(&self, dtype: DType) -> Tolerance {
        let half = self.through.filter(|_| dtype.is_float()).map(Tolerance::of_half);
        self.given.or(half).unwrap_or_else(|| Tolerance::for_dtype(dtype))
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
        let half = Policy { through: Some(DType::F16), ..Policy::default() };
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            assert_eq!(half.tolerance(dtype), Tolerance::of_half(DType::F16), "{dtype}");
        }
        for dtype in [DType::I64, DType::Bool, DType::C64] {
            assert_eq!(half.tolerance(dtype), Tolerance::for_dtype(dtype), "{dtype}");
        }
        assert_eq!(Policy::default().tolerance(DType::F32), Tolerance::for_dtype(DType::F32));
    }
}
