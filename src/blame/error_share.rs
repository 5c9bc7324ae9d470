//! Which share of an error something accounts for. Pure.

use std::ops::Range;

use crate::tensor::{DType, TensorView};

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
    /// Of (candidate − reference), how much (with − without) is. None for tensors of different shapes or dtypes, or of a
    /// dtype that does not widen.
    pub fn of(effect: &Effect<'_>) -> Option<Self> {
        let Effect { reference, candidate, without, with } = effect;
        let alike = |other: &TensorView<'_>| other.shape() == reference.shape() && other.dtype() == reference.dtype();
        if ![candidate, without, with].into_iter().all(alike) {
            return None;
        }
        // Errors are taken relative to the largest: squares of very large and very small ones are no numbers.
        let mut largest = 0_f64;
        for range in ranges(reference) {
            let errors = apart(candidate, reference, range)?;
            largest = errors.into_iter().map(f64::abs).filter(|error| error.is_finite()).fold(largest, f64::max);
        }
        let mut share = Self::default();
        for range in ranges(reference) {
            let (errors, effects) = (apart(candidate, reference, range.clone())?, apart(with, without, range)?);
            errors.into_iter().zip(effects).for_each(|(error, effect)| share.add(error, effect, largest));
        }
        Some(share)
    }

    fn add(&mut self, error: f64, effect: f64, largest: f64) {
        if !error.is_finite() {
            self.n_infinite += 1;
            self.n_infinite_in_common += u64::from(!effect.is_finite());
        } else if largest > 0. {
            let (error, effect) = (error / largest, effect / largest);
            self.of_error += error * error;
            self.in_common += if effect.is_finite() { effect * error } else { 0. };
        }
    }

    /// The part of the error, 0 to 1 where effects add up; of NaN and infinity the part of the elements. A negative one
    /// makes the error smaller, one above 1 is partly undone by others. 0 where there is no error.
    pub fn value(&self) -> f64 {
        match self {
            Self { n_infinite: 1.., .. } => self.n_infinite_in_common as f64 / self.n_infinite as f64,
            Self { of_error: 0., .. } => 0.,
            _ => self.in_common / self.of_error,
        }
    }
}

fn ranges(tensor: &TensorView<'_>) -> impl Iterator<Item = Range<usize>> {
    let n = tensor.shape().n_elements();
    (0..n.max(1)).step_by(BLOCK).map(move |from| from..(from + BLOCK).min(n))
}

/// Differences of elements: 0 of equal numbers, of two NaN too; else infinite or NaN where one of them is. Integers are
/// subtracted as integers.
fn apart(values: &TensorView<'_>, from: &TensorView<'_>, range: Range<usize>) -> Option<Vec<f64>> {
    if matches!(values.dtype(), DType::I64 | DType::U64) {
        let size = values.dtype().size_bytes();
        let of = |tensor: &TensorView<'_>| -> Vec<i128> {
            let is_signed = tensor.dtype() == DType::I64;
            let bytes = tensor.bytes()[range.start * size..range.end * size].as_chunks::<8>().0;
            let widen = |&bytes: &[u8; 8]| match is_signed {
                true => i64::from_le_bytes(bytes).into(),
                false => u64::from_le_bytes(bytes).into(),
            };
            bytes.iter().map(widen).collect()
        };
        return Some(of(values).into_iter().zip(of(from)).map(|(value, from)| (value - from) as f64).collect());
    }
    let one = |(value, from): (f64, f64)| match value == from || (value.is_nan() && from.is_nan()) {
        true => 0.,
        false => value - from,
    };
    Some(values.flat_f64(range.clone())?.into_iter().zip(from.flat_f64(range)?).map(one).collect())
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
    fn large_numbers_and_large_integers_have_shares_too() {
        use crate::tensor::{Shape, TensorDesc};
        let of = |tensors: [TensorBuf; 4]| {
            let [reference, candidate, without, with] = tensors.each_ref().map(TensorBuf::view);
            Share::of(&Effect { reference, candidate, without, with }).unwrap().value()
        };
        for scale in [1e200, 1e-200] {
            let values = [[1., 2.], [3., 2.], [1., 2.], [3., 2.]].map(|values| values.map(|value| value * scale));
            assert_eq!(of(values.map(|values| TensorBuf::from_f64(Shape::new([2]).unwrap(), &values))), 1.);
        }
        let integer = |value: i64| {
            TensorBuf::new(TensorDesc::new(DType::I64, [1]).unwrap(), value.to_le_bytes().to_vec()).unwrap()
        };
        assert_eq!(of([(1 << 60) + 1, (1 << 60) - 1, 1 << 60, (1 << 60) - 1].map(integer)), 0.5);
    }

    #[test]
    fn other_shapes_have_none() {
        let (one, two) = (TensorBuf::from_f32([1], &[1.]).unwrap(), TensorBuf::from_f32([2], &[1., 2.]).unwrap());
        let (one, two) = (one.view(), two.view());
        assert_eq!(Share::of(&Effect { reference: one, candidate: one, without: one, with: two }), None);
    }
}
