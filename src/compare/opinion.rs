//! A third opinion: which of two results is nearer to the exact one.

use serde::{Deserialize, Serialize};

use super::number;
use crate::tensor::SharedTensor;

/// How far reference and candidate are from the same computation in float64.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Opinion {
    /// max |reference − exact|.
    #[serde(with = "number")]
    pub reference_error: f64,
    /// max |candidate − exact|.
    #[serde(with = "number")]
    pub candidate_error: f64,
}

impl Opinion {
    /// Measures both against `exact`. All of one shape; any dtypes that widen to f64. A NaN or an infinity counts as no
    /// error against itself and as an infinite one against any other number. None for complex and 8-bit float types,
    /// and for tensors of different shapes.
    pub fn measure<'a>(
        reference: impl Into<SharedTensor<'a>>,
        candidate: impl Into<SharedTensor<'a>>,
        exact: impl Into<SharedTensor<'a>>,
    ) -> Option<Self> {
        let (reference, candidate, exact) = (reference.into(), candidate.into(), exact.into());
        if reference.shape() != exact.shape() || candidate.shape() != exact.shape() {
            return None;
        }
        Some(Self { reference_error: error(&reference, &exact)?, candidate_error: error(&candidate, &exact)? })
    }

    /// Errors of the candidate up to so many of the reference's are rounding.
    pub const FACTOR: f64 = 2.0;

    /// The candidate is about as near to the exact result as the reference is. NaN is not near.
    pub fn is_rounding(&self) -> bool {
        self.candidate_error <= Self::FACTOR * self.reference_error && self.reference_error.is_finite()
    }
}

/// max |tensor − exact|, a block at a time.
fn error(tensor: &SharedTensor<'_>, exact: &SharedTensor<'_>) -> Option<f64> {
    const BLOCK: usize = 4096;
    let n = exact.shape().n_elements();
    let mut largest = 0_f64;
    // A tensor without elements still tells whether its dtype widens.
    for from in (0..n.max(1)).step_by(BLOCK) {
        let range = from..(from + BLOCK).min(n);
        let (values, exact) = (tensor.flat_f64(range.clone())?, exact.flat_f64(range)?);
        largest = values.iter().zip(&exact).map(|(&value, &exact)| distance(value, exact)).fold(largest, f64::max);
    }
    Some(largest)
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

    fn measure(dtype: DType, reference: &[f64], candidate: &[f64], exact: &[f64]) -> (f64, f64, bool) {
        let [reference, candidate] = [reference, candidate].map(|values| tensor(dtype, values));
        let exact = tensor(DType::F64, exact);
        let opinion = Opinion::measure(&reference.view(), &candidate.view(), &exact.view()).unwrap();
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
        assert_eq!(Opinion::measure(&two.view(), &two.view(), &one.view()), None);
        let complex = TensorBuf::zeros(TensorDesc::new(DType::C64, [2]).unwrap());
        assert_eq!(Opinion::measure(&complex.view(), &two.view(), &two.view()), None);
    }
}
