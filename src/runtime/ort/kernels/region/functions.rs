//! Functions of one number in a form that compilers make vectors of: no branches, only choices. Polynomials by N. Juffa
//! (erf, logarithm) and Cephes (tanh).

use crate::runtime::ort::kernels::exponential;

#[inline(always)]
fn times_plus<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

#[inline(always)]
fn polynomial<const FMA: bool, const N: usize>(x: f32, terms: [f32; N]) -> f32 {
    let mut sum = terms[0];
    let mut at = 1;
    while at < N {
        sum = times_plus::<FMA>(sum, x, terms[at]);
        at += 1;
    }
    sum
}

#[inline(always)]
pub(super) fn exp<const FMA: bool>(x: f32) -> f32 {
    exponential::f32::<FMA>(x)
}

/// 1 / (1 + exp(-x)), also where exp(-x) is too large.
#[inline(always)]
pub(super) fn sigmoid<const FMA: bool>(x: f32) -> f32 {
    let power = exp::<FMA>(-x.abs());
    let above = if x < 0.0 { power } else { 1.0 };
    // Of NaN the power is NaN.
    above / (1.0 + power)
}

#[inline(always)]
pub(super) fn tanh<const FMA: bool>(x: f32) -> f32 {
    let size = x.abs();
    let square = x * x;
    let terms = [-5.704_988_7e-3, 2.063_909e-2, -5.373_971_5e-2, 1.333_144_2e-1, -3.333_328e-1];
    let near = times_plus::<FMA>(polynomial::<FMA, 5>(square, terms) * square, x, x);
    let far = (1.0 - 2.0 / (exp::<FMA>(2.0 * size) + 1.0)).copysign(x);
    // Of -0.0 the sum is 0.0.
    if size < 0.625 { near.copysign(x) } else { far }
}

#[inline(always)]
pub(super) fn erf<const FMA: bool>(x: f32) -> f32 {
    // From 4 on it is 1.
    let size = x.abs();
    let size = if size > 4.0 { 4.0 } else { size };
    let square = size * size;
    let outer = times_plus::<FMA>(-1.728_534_7e-5, size, 3.831_971_3e-4);
    let inner = times_plus::<FMA>(-3.883_964_4e-3, size, 2.425_462_2e-2);
    let sum = times_plus::<FMA>(outer, square, inner);
    let sum = polynomial::<FMA, 4>(size, [sum, -1.067_778_8e-1, -6.348_468_7e-1, -1.287_175_1e-1]);
    let far = (1.0 - exp::<FMA>(times_plus::<FMA>(sum, size, -size))).copysign(x);
    let terms = [-5.967_617e-4, 4.991_194_2e-3, -2.676_813_5e-2, 1.128_199_25e-1, -3.761_253_4e-1, 1.283_791_7e-1];
    let near = times_plus::<FMA>(polynomial::<FMA, 6>(square, terms), x, x);
    if size > 0.927_734_4 { far } else { near }
}

/// The natural logarithm: -inf of 0, NaN of less.
#[inline(always)]
pub(super) fn log<const FMA: bool>(x: f32) -> f32 {
    let is_tiny = x < f32::MIN_POSITIVE;
    let scaled = if is_tiny { x * 8_388_608.0 } else { x };
    // 2 to the power of n, times what is between 2/3 and 4/3.
    let bits = scaled.to_bits() as i32;
    let power = bits.wrapping_sub(0x3f2a_aaab) & 0xff80_0000_u32 as i32;
    let rest = f32::from_bits(bits.wrapping_sub(power) as u32) - 1.0;
    let n = times_plus::<FMA>(power as f32, 1.192_092_9e-7, if is_tiny { -23.0 } else { 0.0 });
    let square = rest * rest;
    let even = polynomial::<FMA, 4>(square, [-1.303_100_6e-1, -1.214_841_9e-1, -1.668_460_5e-1, -2.499_962e-1]);
    let odd = polynomial::<FMA, 3>(square, [1.408_691_4e-1, 1.398_148_5e-1, 2.001_203_4e-1]);
    let sum = times_plus::<FMA>(odd, rest, even);
    let sum = times_plus::<FMA>(times_plus::<FMA>(sum, rest, 3.333_319_7e-1), rest, -0.5);
    let made = times_plus::<FMA>(n, std::f32::consts::LN_2, times_plus::<FMA>(sum, square, rest));
    let edge = if x == 0.0 { f32::NEG_INFINITY } else { f32::NAN };
    let edge = if x > 0.0 { x } else { edge }; // of infinity itself
    if x > 0.0 && x <= f32::MAX { made } else { edge }
}

/// To the nearest bfloat16, ties to even.
#[inline(always)]
pub(super) fn to_bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
    // A NaN stays one whatever its last digits are.
    let nan = (bits | 0x0040_0000) & 0xffff_0000;
    f32::from_bits(if x.is_nan() { nan } else { rounded })
}

/// To the nearest float16, ties to even; what is too large is an infinity.
#[inline(always)]
pub(super) fn to_f16(x: f32) -> f32 {
    let size = x.abs();
    // What is a step apart at this size has its sum with this number rounded to whole steps: 13 digits fewer, or, below
    // the normal numbers, multiples of 2 to the power of -24.
    let exponent = (size.to_bits() & 0x7f80_0000).max(113 << 23);
    let step = f32::from_bits(exponent + (13 << 23));
    let rounded = (size + step) - step;
    (if size >= 65_520.0 { f32::INFINITY } else { rounded }).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    /// erf in float64: its series, or the continued fraction of what is left to 1.
    fn erf_f64(x: f64) -> f64 {
        let size = x.abs();
        if size < 2.5 {
            let (mut term, mut sum, mut n) = (size, size, 0.0);
            while term.abs() > 1e-18 * sum.abs() {
                n += 1.0;
                term *= -size * size / n;
                sum += term / (2.0 * n + 1.0);
            }
            return (sum * 2.0 / std::f64::consts::PI.sqrt()).copysign(x);
        }
        let fraction = (1..200).rev().fold(size, |below, n| size + f64::from(n) / 2.0 / below);
        (1.0 - (-size * size).exp() / std::f64::consts::PI.sqrt() / fraction).copysign(x)
    }

    type Of32 = fn(f32) -> f32;
    /// Name, the function twice, its twin in float64, the units that it may be off.
    type Case = (&'static str, [Of32; 2], fn(f64) -> f64, f64);

    /// Each 997th float32.
    #[test]
    fn functions_are_right_to_their_last_digits() {
        let cases: [Case; 5] = [
            ("exp", [exp::<true>, exp::<false>], f64::exp, 2.0),
            ("sigmoid", [sigmoid::<true>, sigmoid::<false>], |x| 1.0 / (1.0 + (-x).exp()), 3.0),
            ("tanh", [tanh::<true>, tanh::<false>], f64::tanh, 3.0),
            ("erf", [erf::<true>, erf::<false>], erf_f64, 2.0),
            ("log", [log::<true>, log::<false>], f64::ln, 2.0),
        ];
        for (name, functions, exact, units) in cases {
            for function in functions {
                let mut worst = (0.0, 0.0);
                for bits in (0..=u32::MAX).step_by(997) {
                    let x = f32::from_bits(bits);
                    let (made, wanted) = (function(x), exact(f64::from(x)));
                    if wanted.is_nan() || (wanted as f32).is_infinite() {
                        let same = made.is_nan() == wanted.is_nan() && (wanted.is_nan() || made == wanted as f32);
                        // At the very edge a last digit decides.
                        let edge = made >= f32::MAX.next_down() && wanted < f64::from(f32::MAX) * 1.000_001;
                        assert!(same || edge, "{name}({x}) = {made}, expected {wanted}");
                        continue;
                    }
                    let nearest = wanted as f32;
                    let unit = f64::from(nearest.abs().next_up()) - f64::from(nearest.abs());
                    let off = (f64::from(made) - wanted).abs() / unit;
                    if made.is_nan() || off > worst.0 {
                        worst = (off, x);
                    }
                    assert!(off <= units, "{name}({x}) = {made}, expected {wanted}: {off} units");
                }
                println!("{name}: at most {} units, at {}", worst.0, worst.1);
            }
        }
    }

    #[test]
    fn extremes_are_what_mathematics_says() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        assert_eq!([sigmoid::<true>(inf), sigmoid::<true>(-inf), sigmoid::<false>(0.0)], [1.0, 0.0, 0.5]);
        let small = sigmoid::<true>(-100.0);
        assert!(small > 0.0 && small < 1e-43, "{small}");
        assert_eq!(
            [tanh::<true>(inf), tanh::<true>(-inf), erf::<true>(inf), erf::<false>(-inf)],
            [1.0, -1.0, 1.0, -1.0]
        );
        assert_eq!([log::<true>(0.0), log::<true>(-0.0), log::<true>(inf), log::<true>(1.0)], [-inf, -inf, inf, 0.0]);
        assert!([log::<true>(-1.0), log::<true>(-inf), log::<true>(-1e-44)].iter().all(|x| x.is_nan()));
        for function in [exp::<true>, sigmoid::<true>, tanh::<true>, erf::<true>, log::<true>, to_bf16, to_f16] {
            assert!(function(nan).is_nan() && function(-nan).is_nan());
        }
        for function in [tanh::<true>, tanh::<false>, erf::<true>, erf::<false>, to_bf16, to_f16] {
            assert_eq!([function(0.0).to_bits(), function(-0.0).to_bits()], [0, 0x8000_0000]);
        }
        assert_eq!(exp::<true>(89.0), inf);
    }

    #[test]
    fn rounding_is_that_of_the_types() {
        for bits in (0..=u32::MAX).step_by(331) {
            let x = f32::from_bits(bits);
            let expected = [bf16::from_f32(x).to_f32(), f16::from_f32(x).to_f32()];
            for (made, expected) in [to_bf16(x), to_f16(x)].into_iter().zip(expected) {
                let same = made.to_bits() == expected.to_bits() || (made.is_nan() && expected.is_nan());
                assert!(same, "{x:e}: {made:e}, expected {expected:e}");
            }
        }
        for value in 0..=u16::MAX {
            for (exact, near) in [(f16::from_bits(value).to_f32(), 2_f32), (f16::from_bits(value).to_f32(), 1.000_1)] {
                for x in [exact, exact * near, exact.next_up(), exact.next_down()] {
                    let expected = f16::from_f32(x).to_f32();
                    assert!(to_f16(x) == expected || expected.is_nan(), "{x:e}");
                }
            }
        }
    }
}
