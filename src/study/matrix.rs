//! How far each of several results is from each other.

use serde::{Deserialize, Serialize};

use super::number::{Number, values};
use crate::compare::{MaxDiff, judge};
use crate::tensor::TensorBuf;

/// A number for each pair, a row a result; None where one of the two was not run.
type Pairs = Vec<Vec<Option<Number>>>;

/// How far results are from each other, and from what is right.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Matrix {
    /// Of the results.
    pub labels: Vec<String>,
    /// Largest |difference| of each pair. Where all rounding is by one step of the type, it says no more than that.
    pub max_abs: Pairs,
    /// Share of the elements that differ, of each pair.
    pub differ: Pairs,
    /// From the same in float64; None where it was not run.
    pub errors: Vec<Option<Errors>>,
}

/// Distance of a result from the same in float64.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Errors {
    /// Largest |result − float64|.
    pub max: Number,
    /// Mean |result − float64|.
    pub mean: Number,
}

impl Errors {
    /// exact: as many elements.
    fn of(result: &TensorBuf, exact: &[f64]) -> Self {
        let distances = values(result).into_iter().zip(exact).map(|(value, exact)| (value - exact).abs());
        // A maximum that NaN does not leave out.
        let (max, sum) = distances.fold((0_f64, 0_f64), |(max, sum), distance| {
            (if distance > max || distance.is_nan() { distance } else { max }, sum + distance)
        });
        Self { max: Number(max), mean: Number(sum / exact.len().max(1) as f64) }
    }
}

impl Matrix {
    /// Of results of one shape and dtype; None: not run. Pairs that cannot be compared are None, too. exact: the same in
    /// float64, row by row.
    pub fn of(results: &[(&str, Option<&TensorBuf>)], exact: &[f64]) -> Self {
        let n = results.len();
        let (mut max_abs, mut differ) = (vec![vec![None; n]; n], vec![vec![None; n]; n]);
        for (row, &(_, one)) in results.iter().enumerate() {
            for (column, &(_, other)) in results.iter().enumerate().skip(row) {
                let Some(found) = one.zip(other).and_then(|(one, other)| max_diff(one, other)) else { continue };
                let largest = Some(Number(found.abs));
                let share = Some(Number((found.rep.0[0] + found.dnan) as f64 / found.n.max(1) as f64));
                (max_abs[row][column], max_abs[column][row]) = (largest, largest);
                (differ[row][column], differ[column][row]) = (share, share);
            }
        }
        let labels = results.iter().map(|(label, _)| (*label).to_owned()).collect();
        let errors = results.iter().map(|(_, result)| result.map(|result| Errors::of(result, exact))).collect();
        Self { labels, max_abs, differ, errors }
    }

    fn pair(&self, of: &Pairs, one: &str, other: &str) -> Option<f64> {
        let at = |label: &str| self.labels.iter().position(|known| known == label);
        of[at(one)?][at(other)?].map(|Number(value)| value)
    }

    /// Largest |difference| of two of them; None where one was not run, or there is no such label.
    pub fn between(&self, one: &str, other: &str) -> Option<f64> {
        self.pair(&self.max_abs, one, other)
    }

    /// Share of the elements in which two of them differ; None as of [`Matrix::between`].
    pub fn differ(&self, one: &str, other: &str) -> Option<f64> {
        self.pair(&self.differ, one, other)
    }

    /// Some labels, in their order, with the share of elements in which each differs from `to`: those that differ in up to
    /// twice as many as the nearest, and the others. None where none of them was run.
    pub fn nearest<'a>(&self, to: &str, among: &[&'a str]) -> Option<[Vec<(&'a str, f64)>; 2]> {
        let shares: Vec<(&str, f64)> =
            among.iter().filter_map(|&label| Some((label, self.differ(to, label)?))).collect();
        let least = shares.iter().map(|(_, share)| *share).min_by(f64::total_cmp)?;
        let (near, far) = shares.into_iter().partition(|(_, share)| *share <= 2. * least);
        Some([near, far])
    }
}

/// onnx-diagnostic's numbers of a pair; None when dtypes or shapes differ.
pub(super) fn max_diff(reference: &TensorBuf, candidate: &TensorBuf) -> Option<MaxDiff> {
    judge("", &reference.view(), &candidate.view(), None).metrics.map(|metrics| metrics.max_diff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_is_compared_and_what_was_not_run_is_none() {
        let [one, other] = [[1., 2.], [1., 2.5]].map(|values| TensorBuf::from_f32([2], &values).unwrap());
        let matrix = Matrix::of(&[("one", Some(&one)), ("other", Some(&other)), ("missing", None)], &[1., 2.25]);
        assert_eq!(matrix.between("one", "other"), Some(0.5));
        assert_eq!(matrix.between("other", "one"), Some(0.5));
        assert_eq!(matrix.between("one", "one"), Some(0.));
        assert_eq!((matrix.between("one", "missing"), matrix.between("one", "nothing")), (None, None));
        assert_eq!(matrix.differ("one", "other"), Some(0.5));
        let errors = |max: f64, mean: f64| Some(Errors { max: Number(max), mean: Number(mean) });
        assert_eq!(matrix.errors, [errors(0.25, 0.125), errors(0.25, 0.125), None]);
        assert_eq!(matrix.nearest("one", &["other", "missing"]), Some([vec![("other", 0.5)], vec![]]));
        assert_eq!(matrix.nearest("one", &["other", "one"]), Some([vec![("one", 0.)], vec![("other", 0.5)]]));
        assert_eq!(matrix.nearest("one", &["missing"]), None);
        let text = serde_json::to_string(&matrix).unwrap();
        assert!(text.contains("[0.0,0.5,null]"), "{text}");
        assert_eq!(serde_json::from_str::<Matrix>(&text).unwrap(), matrix);
    }
}
