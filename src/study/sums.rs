//! Ways to add numbers up, each rounding to the numbers' own type after every step.

use super::number::round;
use crate::tensor::DType;

/// In order.
pub(super) fn sequential(values: &[f32], dtype: DType) -> f32 {
    values.iter().fold(0., |sum, &value| round(sum + value, dtype))
}

/// By halves, down to single numbers.
pub(super) fn pairwise(values: &[f32], dtype: DType) -> f32 {
    match values {
        [] => 0.,
        [one] => *one,
        [one, other] => round(one + other, dtype),
        more => {
            let (left, right) = more.split_at(more.len() / 2);
            round(pairwise(left, dtype) + pairwise(right, dtype), dtype)
        }
    }
}

/// In order, what each addition loses added to the next number. Source: Kahan, "Further remarks on reducing truncation
/// errors".
pub(super) fn kahan(values: &[f32], dtype: DType) -> f32 {
    let (mut sum, mut lost) = (0., 0.);
    for &value in values {
        let corrected = round(value - lost, dtype);
        let next = round(sum + corrected, dtype);
        lost = round(round(next - sum, dtype) - corrected, dtype);
        sum = next;
    }
    sum
}

/// In float64, with what each addition loses added at the end (Neumaier): right to the last bits of float64.
pub(super) fn exact(values: &[f32]) -> f64 {
    let (mut sum, mut lost) = (0_f64, 0_f64);
    for value in values.iter().map(|&value| f64::from(value)) {
        let next = sum + value;
        lost += if sum.abs() >= value.abs() { sum - next + value } else { value - next + sum };
        sum = next;
    }
    sum + lost
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_rounds_as_it_should() {
        // float16 has no 2049.
        let values = [2048., 1., 1.];
        assert_eq!(sequential(&values, DType::F16), 2048.);
        assert_eq!(pairwise(&values, DType::F16), 2050.);
        assert_eq!(kahan(&values, DType::F16), 2050.);
        assert_eq!(exact(&values), 2050.);
        assert_eq!(sequential(&values, DType::F32), 2050.);
        for sum in [sequential, pairwise, kahan] {
            assert_eq!(sum(&[], DType::F32), 0.);
            assert_eq!(sum(&[3.], DType::BF16), 3.);
        }
    }

    #[test]
    fn the_exact_sum_loses_nothing_to_cancellation() {
        assert_eq!(exact(&[1e20, 1., -1e20]), 1.);
    }
}
