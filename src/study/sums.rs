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

/// A product as tensor cores compute it of TF32's operands: four products at a time are added to the sum, and what is
/// beyond float32's places is cut off, not rounded. Shapes: [rows, inner], [inner, columns] → [rows, columns]. Source:
/// Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores".
pub(super) fn tensor_core_product(a: &[f32], x: &[f32], inner: usize, columns: usize) -> Vec<f32> {
    const AT_ONCE: usize = 4;
    /// Of float64's places those that float32 has not.
    const BEYOND: u64 = (1 << 29) - 1;
    let mut result = Vec::with_capacity(a.len() / inner.max(1) * columns);
    for row in a.chunks(inner.max(1)) {
        let mut sums = vec![0_f64; columns];
        for (left, others) in row.chunks(AT_ONCE).zip(x.chunks(AT_ONCE * columns.max(1))) {
            let mut added = vec![0_f64; columns];
            for (&left, others) in left.iter().zip(others.chunks(columns.max(1))) {
                added.iter_mut().zip(others).for_each(|(sum, &right)| *sum += f64::from(left) * f64::from(right));
            }
            sums.iter_mut()
                .zip(added)
                .for_each(|(sum, added)| *sum = f64::from_bits((*sum + added).to_bits() & !BEYOND));
        }
        result.extend(sums.into_iter().map(|sum| sum as f32));
    }
    result
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
    fn a_tensor_core_cuts_off_what_float32_has_no_place_for() {
        // 2^24 + 3 is between two values of float32, and nearer to the upper one.
        let wide = 16_777_216.;
        assert_eq!(tensor_core_product(&[wide, 3.], &[1., 1.], 2, 1), [wide + 2.]);
        assert_eq!(tensor_core_product(&[-wide, -3.], &[1., 1.], 2, 1), [-wide - 2.]);
        // Four at a time are exact, one more is a sum of its own.
        assert_eq!(tensor_core_product(&[wide, 1., 1., 1., 1.], &[1.; 5], 5, 1), [wide + 2.]);
        let product = tensor_core_product(&[1., 2., 3., 4.], &[1., 0., 2., 1., 0., 1.], 2, 3);
        assert_eq!(product, [3., 0., 4., 7., 0., 10.]);
    }

    #[test]
    fn the_exact_sum_loses_nothing_to_cancellation() {
        assert_eq!(exact(&[1e20, 1., -1e20]), 1.);
    }
}
