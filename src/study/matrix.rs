//! How far each of several results is from each other.

use serde::{Deserialize, Serialize};

use super::number::Number;
use crate::compare::{MaxDiff, judge};
use crate::tensor::TensorBuf;

/// Largest |difference| of each pair of results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Matrix {
    /// Of the results.
    pub labels: Vec<String>,
    /// A row a result; None where one of the two was not run.
    pub max_abs: Vec<Vec<Option<Number>>>,
}

impl Matrix {
    /// Of results of one shape and dtype; None: not run. Pairs that cannot be compared are None, too.
    pub fn of(results: &[(&str, Option<&TensorBuf>)]) -> Self {
        let n = results.len();
        let mut max_abs = vec![vec![None; n]; n];
        for (row, &(_, one)) in results.iter().enumerate() {
            for (column, &(_, other)) in results.iter().enumerate().skip(row) {
                let found = one.zip(other).and_then(|(one, other)| max_diff(one, other)).map(|found| found.abs.into());
                (max_abs[row][column], max_abs[column][row]) = (found, found);
            }
        }
        Self { labels: results.iter().map(|(label, _)| (*label).to_owned()).collect(), max_abs }
    }

    /// Of two of them; None where one was not run, or there is no such label.
    pub fn between(&self, one: &str, other: &str) -> Option<f64> {
        let at = |label: &str| self.labels.iter().position(|known| known == label);
        self.max_abs[at(one)?][at(other)?].map(|Number(value)| value)
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
        let matrix = Matrix::of(&[("one", Some(&one)), ("other", Some(&other)), ("missing", None)]);
        assert_eq!(matrix.between("one", "other"), Some(0.5));
        assert_eq!(matrix.between("other", "one"), Some(0.5));
        assert_eq!(matrix.between("one", "one"), Some(0.));
        assert_eq!((matrix.between("one", "missing"), matrix.between("one", "nothing")), (None, None));
        let text = serde_json::to_string(&matrix).unwrap();
        assert!(text.contains("[0.0,0.5,null]"), "{text}");
        assert_eq!(serde_json::from_str::<Matrix>(&text).unwrap(), matrix);
    }
}
