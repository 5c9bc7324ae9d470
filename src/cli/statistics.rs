//! Facts of one tensor.

use serde::Serialize;

use crate::tensor::TensorView;

/// Facts of one tensor; the numbers are over its finite elements.
#[derive(Debug, Serialize)]
pub(super) struct Statistics {
    pub(super) n: usize,
    pub(super) nan: usize,
    pub(super) inf: usize,
    pub(super) min: Option<f64>,
    pub(super) max: Option<f64>,
    pub(super) mean: Option<f64>,
    pub(super) std: Option<f64>,
}

/// None for types without an order or without arithmetic here (complex, 8-bit floats).
pub(super) fn statistics(tensor: &TensorView<'_>) -> Option<Statistics> {
    let values = tensor.to_f64()?;
    let finite = || values.iter().copied().filter(|value| value.is_finite());
    let n_finite = finite().count();
    let some = |value: f64| (n_finite > 0).then_some(value);
    let mean = finite().sum::<f64>() / n_finite as f64;
    let variance = finite().map(|value| (value - mean).powi(2)).sum::<f64>() / n_finite as f64;
    Some(Statistics {
        n: values.len(),
        nan: values.iter().filter(|value| value.is_nan()).count(),
        inf: values.iter().filter(|value| value.is_infinite()).count(),
        min: some(finite().fold(f64::INFINITY, f64::min)),
        max: some(finite().fold(f64::NEG_INFINITY, f64::max)),
        mean: some(mean),
        std: some(variance.sqrt()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::TensorBuf;

    #[test]
    fn statistics_are_over_finite_elements() {
        let tensor = TensorBuf::from_f32([5], &[1., 3., f32::NAN, f32::INFINITY, f32::NEG_INFINITY]).unwrap();
        let facts = statistics(&tensor.view()).unwrap();
        assert_eq!((facts.n, facts.nan, facts.inf), (5, 1, 2));
        assert_eq!((facts.min, facts.max, facts.mean, facts.std), (Some(1.), Some(3.), Some(2.), Some(1.)));
        let empty = TensorBuf::from_f32([0], &[]).unwrap();
        assert_eq!(statistics(&empty.view()).unwrap().mean, None);
    }
}
