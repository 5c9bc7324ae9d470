//! How two results of half precision are rounded, over all their elements: what largest errors do not tell.

use serde::{Deserialize, Serialize};

use super::number;
use super::tolerance::epsilon;
use crate::tensor::DType;

/// Errors of two results in steps of their half-precision type, over the elements that are finite in both and in the exact
/// one.
///
/// # When to use
/// Of a kernel of half precision on equal inputs. It computes in float32 and rounds once, so that an element is off by at
/// most half a step, and by as much one way as the other. What is rounded once more, left out or added may be no larger
/// than that at any element, and still shows in how many elements are off by more ([`Rounding::candidate_beyond`]), in
/// the root mean square and in the mean.
///
/// # When not
/// Of float32 and float64, whose kernels differ by their own approximations, and of drifted values, whose elements share
/// what came before them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rounding {
    /// Elements.
    pub n: u64,
    /// Root mean square of (reference − exact), in steps; 0.29 is what one rounding gives.
    #[serde(with = "number")]
    pub reference_rms: f64,
    /// Likewise, of the candidate.
    #[serde(with = "number")]
    pub candidate_rms: f64,
    /// By how many standard errors the candidate's mean square is above the reference's, elements taken in pairs; below 0
    /// where it is smaller.
    #[serde(with = "number")]
    pub rms_z: f64,
    /// Mean of (reference − exact), in steps.
    #[serde(with = "number")]
    pub reference_bias: f64,
    /// Likewise, of the candidate.
    #[serde(with = "number")]
    pub candidate_bias: f64,
    /// Elements where the reference is off by more than one rounding and adding up in float32 explain.
    pub reference_beyond: u64,
    /// Likewise, of the candidate.
    pub candidate_beyond: u64,
    /// Elements where both are.
    pub both_beyond: u64,
}

/// What is known of one side, for a comparison either way.
struct Of {
    rms: f64,
    bias: f64,
    /// Where it alone is beyond.
    alone: f64,
}

impl Rounding {
    /// By chance two results of one quality are so many standard errors apart once in three million times.
    const STANDARD_ERRORS: f64 = 5.;

    /// At least this part of the elements is beyond rounding: float32 is off by less than a hundredth of a step.
    const LEAST_PART: f64 = 0.01;

    /// At least so much more root mean square, as a part of the other's.
    const LEAST_RMS: f64 = 0.1;

    /// At least so much more bias, in steps.
    const LEAST_BIAS: f64 = 0.05;

    /// Whether the candidate is rounded worse than the reference. `leniency`: how many times as much of each as by default.
    pub fn candidate_is_worse(&self, leniency: f64) -> bool {
        self.is_worse(&self.candidate(), &self.reference(), self.rms_z, leniency)
    }

    /// Likewise, the other way round.
    pub fn reference_is_worse(&self, leniency: f64) -> bool {
        self.is_worse(&self.reference(), &self.candidate(), -self.rms_z, leniency)
    }

    fn reference(&self) -> Of {
        let alone = self.reference_beyond.saturating_sub(self.both_beyond) as f64;
        Of { rms: self.reference_rms, bias: self.reference_bias, alone }
    }

    fn candidate(&self) -> Of {
        let alone = self.candidate_beyond.saturating_sub(self.both_beyond) as f64;
        Of { rms: self.candidate_rms, bias: self.candidate_bias, alone }
    }

    fn is_worse(&self, one: &Of, other: &Of, rms_z: f64, leniency: f64) -> bool {
        let n = self.n as f64;
        let (least, z) = (Self::LEAST_PART * leniency * n, Self::STANDARD_ERRORS);
        // What one rounding explains everywhere is right, whatever its mean: few numbers that repeat have any. And few
        // elements tell nothing.
        if one.alone < least.max(z * z) {
            return false;
        }
        // McNemar's test: of two of one quality, either is as often alone.
        let is_oftener = one.alone - other.alone >= least.max(z * (one.alone + other.alone).sqrt());
        let is_larger = rms_z >= z && one.rms >= (1. + Self::LEAST_RMS * leniency) * other.rms;
        let standard_error = (one.rms * one.rms - one.bias * one.bias).max(0.).sqrt() / n.sqrt();
        let is_biased = one.bias.abs() - other.bias.abs() >= (Self::LEAST_BIAS * leniency).max(z * standard_error);
        is_oftener || is_larger || is_biased
    }
}

/// Collects a [`Rounding`], a block of elements at a time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Roundings {
    n: u64,
    /// Σ of errors, of their squares, and of the squares of the squares' differences: reference, candidate.
    errors: [f64; 2],
    squares: [f64; 2],
    differences: f64,
    beyond: [u64; 2],
    both_beyond: u64,
}

/// One type's steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steps {
    epsilon: f64,
    smallest: f64,
}

impl Steps {
    /// None of types that are not half precision.
    pub fn of(dtype: DType) -> Option<Self> {
        let smallest = match dtype {
            DType::F16 => -24,
            DType::BF16 => -133,
            _ => return None,
        };
        Some(Self { epsilon: epsilon(dtype), smallest: 2_f64.powi(smallest) })
    }

    /// (epsilon, smallest).
    pub fn parts(&self) -> (f64, f64) {
        (self.epsilon, self.smallest)
    }

    /// From a finite number to the next larger one of the type.
    fn at(&self, value: f64) -> f64 {
        const EXPONENT: u64 = 0x7ff0_0000_0000_0000;
        (f64::from_bits(value.to_bits() & EXPONENT) * self.epsilon).max(self.smallest)
    }
}

impl Roundings {
    /// What was found elsewhere. counts: elements, those beyond on either side and on both; sums: of errors and of squares,
    /// reference and candidate, and of the squares of the squares' differences.
    pub fn of(counts: [u64; 4], sums: [f64; 5]) -> Self {
        let ([n, beyond @ .., both_beyond], [errors @ .., of_reference, of_candidate, differences]) = (counts, sums);
        Self { n, errors, squares: [of_reference, of_candidate], differences, beyond, both_beyond }
    }

    /// One element. `slack`: what adding up explains there.
    pub fn add(&mut self, [reference, candidate]: [f64; 2], exact: f64, slack: f64, steps: &Steps) {
        if ![reference, candidate, exact, slack].iter().all(|value| value.is_finite()) {
            return;
        }
        // Where float32 is off by a step, nothing can be said of its rounding.
        let size = steps.at(exact) + 2. * slack;
        let errors = [reference, candidate].map(|value| (value - exact) / size);
        let is_beyond = |value: f64| {
            let half = steps.at(value).max(steps.at(exact)) / 2.;
            (value - exact).abs() > half + slack
        };
        let beyond = [reference, candidate].map(is_beyond);
        self.n += 1;
        for side in [0, 1] {
            self.errors[side] += errors[side];
            self.squares[side] += errors[side] * errors[side];
            self.beyond[side] += u64::from(beyond[side]);
        }
        self.differences += (errors[1] * errors[1] - errors[0] * errors[0]).powi(2);
        self.both_beyond += u64::from(beyond[0] && beyond[1]);
    }

    pub fn merge(&mut self, other: &Self) {
        self.n += other.n;
        for side in [0, 1] {
            self.errors[side] += other.errors[side];
            self.squares[side] += other.squares[side];
            self.beyond[side] += other.beyond[side];
        }
        self.differences += other.differences;
        self.both_beyond += other.both_beyond;
    }

    /// None of no elements.
    pub fn found(&self) -> Option<Rounding> {
        let n = Some(self.n as f64).filter(|n| *n > 0.)?;
        let rms = self.squares.map(|sum| (sum / n).sqrt());
        let mean = (self.squares[1] - self.squares[0]) / n;
        let standard_error = ((self.differences / n - mean * mean).max(0.) / n).sqrt();
        let rms_z = if mean == 0. { 0. } else { mean / standard_error };
        Some(Rounding {
            n: self.n,
            reference_rms: rms[0],
            candidate_rms: rms[1],
            rms_z,
            reference_bias: self.errors[0] / n,
            candidate_bias: self.errors[1] / n,
            reference_beyond: self.beyond[0],
            candidate_beyond: self.beyond[1],
            both_beyond: self.both_beyond,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    /// Evenly spread over some binades, both signs; of float32, which `half` rounds rightly.
    fn exact() -> impl Iterator<Item = f64> {
        (0..4000_i32).map(|at| {
            let size = f64::from((0.25 + 3.75 * (f64::from(at) * 0.618_033_988_749).fract()) as f32);
            if at % 2 == 0 { size } else { -size }
        })
    }

    type Fault = Box<dyn Fn(f64) -> f64>;

    fn rounded(dtype: DType, value: f64) -> f64 {
        match dtype {
            DType::F16 => f16::from_f32(value as f32).to_f64(),
            _ => bf16::from_f32(value as f32).to_f64(),
        }
    }

    fn found(dtype: DType, candidate: impl Fn(f64) -> f64, reference: impl Fn(f64) -> f64) -> Rounding {
        let steps = Steps::of(dtype).unwrap();
        let mut all = Roundings::default();
        for exact in exact() {
            let mut one = Roundings::default();
            one.add([reference(exact), candidate(exact)], exact, 1e-7, &steps);
            all.merge(&one);
        }
        all.found().unwrap()
    }

    #[test]
    fn steps_are_those_of_the_type() {
        for dtype in [DType::F16, DType::BF16] {
            let steps = Steps::of(dtype).unwrap();
            let next = |value: f64| match dtype {
                DType::F16 => f16::from_bits(f16::from_f64(value).to_bits() + 1).to_f64(),
                _ => bf16::from_bits(bf16::from_f64(value).to_bits() + 1).to_f64(),
            };
            for value in [0., 1e-7, 6.1e-5, 0.3, 1., 1.99, 2., 300., 6e4] {
                let value = rounded(dtype, value);
                assert_eq!(steps.at(value), next(value) - value, "{dtype} {value}");
                assert_eq!(steps.at(-value), steps.at(value));
            }
        }
        assert!(Steps::of(DType::F32).is_none());
    }

    #[test]
    fn one_rounding_is_a_step_over_the_root_of_twelve_and_never_beyond() {
        for dtype in [DType::F16, DType::BF16] {
            let once = |exact: f64| rounded(dtype, exact);
            let found = found(dtype, once, once);
            for rms in [found.reference_rms, found.candidate_rms] {
                assert!((rms - 1. / 12_f64.sqrt()).abs() < 0.01, "{dtype}: {found:?}");
            }
            assert!(found.candidate_bias.abs() < 0.02 && found.rms_z == 0., "{dtype}: {found:?}");
            assert_eq!((found.n, found.reference_beyond, found.candidate_beyond), (4000, 0, 0), "{dtype}");
        }
    }

    #[test]
    fn faults_no_larger_than_rounding_are_told_either_way() {
        for dtype in [DType::F16, DType::BF16] {
            let step = epsilon(dtype);
            let once = |exact: f64| rounded(dtype, exact);
            let faults: [(&str, Fault); 5] = [
                ("rounded twice", Box::new(move |exact| rounded(dtype, rounded(dtype, exact / 3.) * 3.))),
                ("a tenth of a step more", Box::new(move |exact| rounded(dtype, exact + 0.1 * step))),
                ("a lost summand", Box::new(move |exact| rounded(dtype, exact - 0.2 * step * (9. * exact).sin()))),
                ("a factor", Box::new(move |exact| rounded(dtype, exact * (1. + 0.1 * step)))),
                (
                    "cut off",
                    Box::new(move |exact| {
                        let near = rounded(dtype, exact);
                        let away = near.abs() > exact.abs();
                        if away { rounded(dtype, near * (1. - 0.75 * step)) } else { near }
                    }),
                ),
            ];
            for (name, fault) in faults {
                let as_candidate = found(dtype, &fault, once);
                assert!(as_candidate.candidate_is_worse(1.), "{dtype}, {name}: {as_candidate:?}");
                assert!(!as_candidate.reference_is_worse(1.), "{dtype}, {name}");
                assert!(!as_candidate.candidate_is_worse(200.), "{dtype}, {name}: leniency");
                let as_reference = found(dtype, once, &fault);
                assert!(as_reference.reference_is_worse(1.), "{dtype}, {name}: {as_reference:?}");
                assert!(!as_reference.candidate_is_worse(1.), "{dtype}, {name}");
                let both = found(dtype, &fault, &fault);
                assert!(!both.candidate_is_worse(1.) && !both.reference_is_worse(1.), "{dtype}, {name}");
            }
        }
    }

    #[test]
    fn another_neighbour_where_float32_cannot_tell_is_rounding() {
        for dtype in [DType::F16, DType::BF16] {
            let steps = Steps::of(dtype).unwrap();
            // Between 1 and the next number, a hair above the middle; one number that repeats.
            let (exact, step) = (1. + 0.500_001 * epsilon(dtype), epsilon(dtype));
            let mut all = Roundings::default();
            (0..1000).for_each(|_| all.add([1. + step, 1.], exact, 1e-6, &steps));
            let found = all.found().unwrap();
            assert!(found.candidate_bias < -0.4 && found.reference_bias > 0.4, "{dtype}: {found:?}");
            assert!(!found.candidate_is_worse(1.) && !found.reference_is_worse(1.), "{dtype}: {found:?}");
        }
    }

    #[test]
    fn few_elements_and_what_is_not_finite_accuse_nobody() {
        let steps = Steps::of(DType::BF16).unwrap();
        let mut all = Roundings::default();
        for bad in [f64::NAN, f64::INFINITY] {
            all.add([bad, 1.], 1., 0., &steps);
            all.add([1., bad], 1., 0., &steps);
            all.add([1., 1.], bad, 0., &steps);
            all.add([1., 1.], 1., bad, &steps);
        }
        assert!(all.found().is_none());
        (0..20).for_each(|_| all.add([1., 1.01], 1., 0., &steps));
        let found = all.found().unwrap();
        assert_eq!((found.n, found.candidate_beyond), (20, 20));
        assert!(!found.candidate_is_worse(1.), "so few say little: {found:?}");
    }
}
