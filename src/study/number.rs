//! Numbers in results, and numbers as tensors hold them.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::compare::number;
use crate::tensor::{BadTensor, DType, TensorBuf, TensorDesc};

/// A number of a result. In JSON "inf", "-inf" or "nan" where it is not finite.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Number(#[serde(with = "number")] pub f64);

impl From<f64> for Number {
    fn from(value: f64) -> Self {
        Self(value)
    }
}

/// The nearest value that the type has. float16, bfloat16; every other type as it is.
pub(super) fn round(value: f32, dtype: DType) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(value).to_f32(),
        DType::BF16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}

/// The nearest value of TF32: float32 with 10 bits of mantissa, halves away from 0. Source: NVIDIA's `cvt.rna.tf32`.
pub(super) fn tf32(value: f32) -> f32 {
    if value.is_finite() { f32::from_bits((value.to_bits() + 0x1000) & !0x1fff) } else { value }
}

/// Values as a tensor of float32, float16 or bfloat16, each rounded once. Errors: [`BadTensor`] when they are not as many
/// as the dimensions say.
pub(super) fn tensor(dtype: DType, dims: &[usize], values: &[f32]) -> Result<TensorBuf, BadTensor> {
    let dims: Vec<i64> = dims.iter().map(|&dim| dim as i64).collect();
    let bytes = match dtype {
        DType::F16 => values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect(),
        DType::BF16 => values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    };
    TensorBuf::new(TensorDesc::new(if dtype.size_bytes() == 2 { dtype } else { DType::F32 }, dims)?, bytes)
}

/// The elements in row-major order, widened. Empty for types that are no numbers of up to 64 bits.
pub(super) fn values(tensor: &TensorBuf) -> Vec<f64> {
    let view = tensor.view();
    view.flat_f64(0..view.shape().n_elements()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_rounded_to_the_type() {
        for (dtype, expected) in [(DType::F32, 1.001), (DType::F16, 1.000_976_6), (DType::BF16, 1.)] {
            assert_eq!(round(1.001, dtype), expected);
            let made = tensor(dtype, &[1, 1], &[1.001]).unwrap();
            assert_eq!((made.desc().dtype, values(&made)), (dtype, vec![f64::from(expected)]));
        }
        assert!(tensor(DType::F16, &[3], &[1.]).is_err());
    }

    #[test]
    fn tf32_has_ten_bits_of_mantissa() {
        let step = 1. / 1024.;
        for (value, expected) in
            [(1., 1.), (1. + step, 1. + step), (1. + step * 0.49, 1.), (-1. - step / 2., -1. - step)]
        {
            assert_eq!(tf32(value), expected, "{value}");
        }
        // Every float16 is one.
        assert_eq!(tf32(half::f16::MAX.to_f32()), 65_504.);
        assert_eq!((tf32(f32::INFINITY), tf32(f32::NAN).is_nan(), tf32(-0.).to_bits()), (f32::INFINITY, true, 1 << 31));
    }

    #[test]
    fn numbers_that_are_not_finite_go_through_json() {
        let numbers = [Number(f64::INFINITY), Number(-1.5)];
        let text = serde_json::to_string(&numbers).unwrap();
        assert_eq!(text, "[\"inf\",-1.5]");
        assert_eq!(serde_json::from_str::<[Number; 2]>(&text).unwrap(), numbers);
    }
}
