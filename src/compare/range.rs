//! What a tensor holds: its smallest and largest number, and how many are none.

use serde::{Deserialize, Serialize};

use super::blocks::blocks;
use super::number;
use crate::tensor::{DType, SharedTensor};

/// The numbers of a tensor, of any dtype that widens to f64.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Range {
    /// Elements.
    pub n: u64,
    /// Smallest finite one; NaN where there is none.
    #[serde(with = "number")]
    pub min: f64,
    /// Largest finite one; NaN where there is none.
    #[serde(with = "number")]
    pub max: f64,
    /// NaN.
    pub nan: u64,
    /// Infinities, of either sign.
    pub inf: u64,
    /// Zeros, of either sign.
    pub zeros: u64,
}

impl Range {
    /// None for complex and 8-bit float types.
    pub fn of<'a>(tensor: impl Into<SharedTensor<'a>>) -> Option<Self> {
        let tensor = tensor.into();
        let n_elements = tensor.shape().n_elements();
        let mut found = Self { n: n_elements as u64, min: f64::NAN, max: f64::NAN, nan: 0, inf: 0, zeros: 0 };
        for range in blocks(n_elements) {
            for value in tensor.flat_f64(range)? {
                if value.is_finite() {
                    // The other one where one is NaN.
                    (found.min, found.max) = (found.min.min(value), found.max.max(value));
                }
                found.nan += u64::from(value.is_nan());
                found.inf += u64::from(value.is_infinite());
                found.zeros += u64::from(value == 0.);
            }
        }
        Some(found)
    }

    /// Largest finite size; 0 where there is none.
    pub fn largest(&self) -> f64 {
        [self.min, self.max].into_iter().map(f64::abs).fold(0., f64::max)
    }
}

/// The largest finite number of a float type; None of other types.
pub fn largest_of(dtype: DType) -> Option<f64> {
    Some(match dtype {
        DType::F16 => 65504.,
        DType::BF16 => f64::from(half::bf16::MAX),
        DType::F32 => f64::from(f32::MAX),
        DType::F64 => f64::MAX,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::TensorBuf;

    #[test]
    fn ranges_of_numbers_of_none_and_of_nothing() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        for (values, expected) in [
            (&[][..], (f64::NAN, f64::NAN, 0, 0, 0)),
            (&[2., -3., 0., -0.], (-3., 2., 0, 0, 2)),
            (&[nan, 1., inf, -inf], (1., 1., 1, 2, 0)),
            (&[nan, nan], (f64::NAN, f64::NAN, 2, 0, 0)),
        ] {
            let tensor = TensorBuf::from_f32([values.len() as i64], values).unwrap();
            let range = Range::of(&tensor.view()).unwrap();
            // Debug text, because NaN is not equal to itself.
            let got = (range.min, range.max, range.nan, range.inf, range.zeros);
            assert_eq!(format!("{got:?}"), format!("{expected:?}"));
            assert_eq!(range.n, values.len() as u64);
        }
    }

    #[test]
    fn the_largest_numbers_are_the_types_own() {
        assert_eq!(largest_of(DType::F16), Some(65504.));
        assert!((largest_of(DType::BF16).unwrap() - 3.39e38).abs() < 1e36);
        assert_eq!(largest_of(DType::I32), None);
    }
}
