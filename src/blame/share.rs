//! Which share of an error something accounts for. Pure.

use crate::tensor::TensorView;

const BLOCK: usize = 1 << 14;

/// Sums over elements: of what an effect has in common with an error, and of the error itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share {
    in_common: f64,
    of_error: f64,
    /// Elements where the error is infinite or NaN, and those of them where the effect is, too.
    n_infinite: u64,
    n_infinite_in_common: u64,
}

/// What one value of four tensors of one shape and of dtypes that widen to f64.
#[derive(Clone, Copy)]
pub struct Effect<'a> {
    /// What the output should be.
    pub reference: TensorView<'a>,
    /// What it is.
    pub candidate: TensorView<'a>,
    /// What it is without what is asked about.
    pub without: TensorView<'a>,
    /// What it is with it, everything else equal.
    pub with: TensorView<'a>,
}

impl Share {
    /// Of (candidate − reference), how much (with − without) is. None for tensors of different shapes, or of a dtype that
    /// does not widen.
    pub fn of(effect: &Effect<'_>) -> Option<Self> {
        let Effect { reference, candidate, without, with } = effect;
        let n = reference.shape().n_elements();
        if [candidate, without, with].iter().any(|other| other.shape() != reference.shape()) {
            return None;
        }
        let mut share = Self::default();
        for from in (0..n.max(1)).step_by(BLOCK) {
            let range = from..(from + BLOCK).min(n);
            let read = |tensor: &TensorView<'_>| tensor.flat_f64(range.clone());
            let (reference, candidate) = (read(reference)?, read(candidate)?);
            let (without, with) = (read(without)?, read(with)?);
            for at in 0..reference.len() {
                share.add(apart(candidate[at], reference[at]), apart(with[at], without[at]));
            }
        }
        Some(share)
    }

    fn add(&mut self, error: f64, effect: f64) {
        if error.is_finite() {
            self.of_error += error * error;
            self.in_common += if effect.is_finite() { effect * error } else { 0. };
        } else {
            self.n_infinite += 1;
            self.n_infinite_in_common += u64::from(!effect.is_finite());
        }
    }

    /// The part of the error, 0 to 1 where effects add up; of NaN and infinity the part of the elements. A negative one
    /// makes the error smaller. 0 where there is no error.
    pub fn value(&self) -> f64 {
        match self {
            Self { n_infinite: 1.., .. } => self.n_infinite_in_common as f64 / self.n_infinite as f64,
            Self { of_error: 0., .. } => 0.,
            _ => self.in_common / self.of_error,
        }
    }
}

/// 0 of equal numbers, of two NaN too; else infinite or NaN where one of them is.
fn apart(value: f64, from: f64) -> f64 {
    if value == from || (value.is_nan() && from.is_nan()) { 0. } else { value - from }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::TensorBuf;

    fn share(reference: &[f32], candidate: &[f32], without: &[f32], with: &[f32]) -> f64 {
        let tensors = [reference, candidate, without, with]
            .map(|values| TensorBuf::from_f32([values.len() as i64], values).unwrap());
        let [reference, candidate, without, with] = tensors.each_ref().map(TensorBuf::view);
        Share::of(&Effect { reference, candidate, without, with }).unwrap().value()
    }

    #[test]
    fn effects_that_add_up_to_the_error_have_shares_that_add_up_to_one() {
        let (reference, candidate) = ([0., 0., 4.], [3., 1., 4.]);
        let first = share(&reference, &candidate, &[0., 0., 4.], &[3., 0., 4.]);
        let second = share(&reference, &candidate, &[0., 0., 4.], &[0., 1., 4.]);
        assert!((first - 0.9).abs() < 1e-12 && (second - 0.1).abs() < 1e-12, "{first} {second}");
        assert_eq!(share(&reference, &candidate, &[1., 1., 1.], &[-2., 0., 1.]), -1.);
    }

    #[test]
    fn no_error_no_effect_and_no_elements_have_no_share() {
        assert_eq!(share(&[1.], &[1.], &[1.], &[2.]), 0.);
        assert_eq!(share(&[1.], &[2.], &[1.], &[1.]), 0.);
        assert_eq!(share(&[], &[], &[], &[]), 0.);
    }

    #[test]
    fn of_nan_and_infinity_elements_are_counted() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        assert_eq!(share(&[0., 0., 0.], &[nan, inf, 9.], &[0., 0., 0.], &[nan, 0., 0.]), 0.5);
        assert_eq!(share(&[nan], &[nan], &[0.], &[nan]), 0.);
        assert_eq!(share(&[0., 1.], &[0., 2.], &[0., 1.], &[nan, 2.]), 1.);
    }

    #[test]
    fn other_shapes_have_none() {
        let (one, two) = (TensorBuf::from_f32([1], &[1.]).unwrap(), TensorBuf::from_f32([2], &[1., 2.]).unwrap());
        let (one, two) = (one.view(), two.view());
        assert_eq!(Share::of(&Effect { reference: one, candidate: one, without: one, with: two }), None);
    }
}
