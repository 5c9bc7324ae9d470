//! Where a NaN or an infinity comes from.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::digits;
use super::number;
use super::range::{Range, largest_of};
use crate::tensor::DType;

/// Whose value it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Eager's.
    Reference,
    /// ONNX Runtime's, as it drifted.
    Candidate,
}

/// What was born.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BirthKind {
    /// NaN, of values that hold none.
    Nan,
    /// An infinity, of values that hold none.
    Infinity,
    /// The same, because the exact number is beyond the largest of its half precision.
    Overflow,
}

/// A value that was read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadValue {
    /// Its name.
    pub name: String,
    /// torch's name of the element type.
    pub dtype: String,
    /// Its dimensions.
    pub dims: Vec<i64>,
    /// Its numbers.
    #[serde(flatten)]
    pub range: Range,
}

/// A value that holds a NaN or an infinity where nothing that it was made of holds one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Birth {
    /// Whose.
    pub side: Side,
    /// What.
    pub kind: BirthKind,
    /// torch's name of the element type.
    pub dtype: String,
    /// The numbers of the value itself.
    pub value: Range,
    /// Of an overflow: the largest finite number of the type; else 0.
    #[serde(with = "number")]
    pub limit: f64,
    /// The largest finite size among what was read and computed.
    #[serde(with = "number")]
    pub largest: f64,
    /// What the node read.
    pub read: Vec<ReadValue>,
}

/// Operators that are infinite at a number, most of them at 0.
const WITH_POLES: [&str; 9] = ["div", "reciprocal", "rsqrt", "log", "pow", "tan", "atanh", "erfinv", "logit"];

impl Birth {
    /// What is born in a value of these numbers that an operator `op` made of what it read: pure. An infinity is an overflow
    /// where the type is a half one, and neither the operator has a pole nor was anything as such written into the model,
    /// which is when nothing was read.
    pub fn find(side: Side, op: &str, dtype: DType, value: Range, read: &[ReadValue]) -> Vec<Self> {
        if read.is_empty() {
            return Vec::new();
        }
        let name = op.split('.').nth(1).unwrap_or(op).trim_matches('_');
        let has_pole = WITH_POLES.iter().any(|pole| name.starts_with(pole));
        let is_half = matches!(dtype, DType::F16 | DType::BF16);
        let kinds = [
            (BirthKind::Nan, value.nan > 0 && read.iter().all(|read| read.range.nan == 0)),
            (
                if is_half && !has_pole { BirthKind::Overflow } else { BirthKind::Infinity },
                value.inf > 0 && read.iter().all(|read| read.range.inf == 0),
            ),
        ];
        let largest = read.iter().map(|read| read.range.largest()).fold(value.largest(), f64::max);
        let born = kinds.into_iter().filter(|(_, is_born)| *is_born).map(|(kind, _)| Self {
            side,
            kind,
            dtype: dtype.to_string(),
            value,
            limit: if kind == BirthKind::Overflow { largest_of(dtype).unwrap_or_default() } else { 0. },
            largest,
            read: read.to_vec(),
        });
        born.collect()
    }

    /// A NaN, or else an infinity of whatever kind.
    pub fn is_nan(&self) -> bool {
        self.kind == BirthKind::Nan
    }
}

/// What, how much of it, and of what: half a sentence.
impl fmt::Display for Birth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, dtype, value, limit, largest, read, .. } = self;
        let short = |value: f64| digits::significant(value, 5);
        match kind {
            BirthKind::Nan => write!(f, "NaN, {} of {}", value.nan, value.n)?,
            BirthKind::Infinity => write!(f, "infinity, {} of {}", value.inf, value.n)?,
            BirthKind::Overflow => write!(
                f,
                "overflow of {dtype} (largest {}), {} of {}; the largest finite number read or computed is {}",
                short(*limit),
                value.inf,
                value.n,
                short(*largest)
            )?,
        }
        for read in read {
            let ReadValue { name, dtype, dims, range } = read;
            write!(f, "; it read {name} {dtype}{dims:?} from {} to {}", short(range.min), short(range.max))?;
            for (count, what) in [(range.nan, "NaN"), (range.inf, "infinite"), (range.zeros, "zeros")] {
                if count > 0 {
                    write!(f, ", {count} {what}")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(max: f64, nan: u64, inf: u64) -> Range {
        Range { n: 8, min: -1., max, nan, inf, zeros: 0 }
    }

    fn read(max: f64, nan: u64, inf: u64) -> ReadValue {
        ReadValue { name: "x".into(), dtype: "float16".into(), dims: vec![8], range: range(max, nan, inf) }
    }

    #[test]
    fn what_is_born_is_in_the_value_and_in_nothing_that_was_read() {
        use BirthKind::{Infinity, Nan, Overflow};
        for (op, dtype, value, of, expected) in [
            ("aten.mul.Tensor", DType::F16, range(6e4, 0, 2), vec![read(300., 0, 0)], vec![Overflow]),
            ("aten.exp.default", DType::BF16, range(1e38, 0, 2), vec![read(90., 0, 0)], vec![Overflow]),
            ("aten._to_copy.default", DType::F16, range(6e4, 0, 2), vec![read(1e5, 0, 0)], vec![Overflow]),
            ("aten.mul.Tensor", DType::F32, range(1e38, 0, 2), vec![read(1e30, 0, 0)], vec![Infinity]),
            ("aten.div.Tensor", DType::F16, range(10., 0, 2), vec![read(3., 0, 0)], vec![Infinity]),
            ("aten.log.default", DType::F16, range(1., 3, 1), vec![read(3., 0, 0)], vec![Nan, Infinity]),
            ("aten.sub.Tensor", DType::F16, range(1., 3, 1), vec![read(3., 0, 1), read(2., 0, 0)], vec![Nan]),
            ("aten.add.Tensor", DType::F32, range(1., 3, 1), vec![read(3., 1, 0)], vec![Infinity]),
            ("aten.add.Tensor", DType::F32, range(1., 3, 1), vec![read(3., 1, 1)], vec![]),
            ("aten.add.Tensor", DType::F32, range(1., 0, 0), vec![read(3., 1, 1)], vec![]),
            ("aten.full.default", DType::F16, range(1., 0, 8), vec![], vec![]),
        ] {
            let found = Birth::find(Side::Candidate, op, dtype, value, &of);
            let kinds: Vec<_> = found.iter().map(|birth| birth.kind).collect();
            assert_eq!(kinds, expected, "{op} {dtype}");
        }
    }

    #[test]
    fn an_overflow_is_told_with_the_limit_and_what_was_read() {
        let found = Birth::find(Side::Reference, "aten.mul.Tensor", DType::F16, range(6e4, 0, 2), &[read(300., 0, 0)]);
        assert_eq!((found[0].limit, found[0].largest), (65504., 6e4));
        let text = found[0].to_string();
        assert!(text.starts_with("overflow of float16 (largest 65504), 2 of 8;"), "{text}");
        assert!(text.ends_with("it read x float16[8] from -1 to 300"), "{text}");
    }
}
