//! Two lists beside each other: what is paired, and how far apart its values are.

use serde::Serialize;
use serde_json::{Value, json};

use super::trace::Trace;
use crate::compare::{Dim, Kind, RunResult, TensorVerdict, Tolerance, Verdict, align, distance, judge};
use crate::tensor::{DType, TensorBuf, TensorView};

/// How two results stand to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Symbol {
    /// Distance 0.
    #[serde(rename = "=")]
    Same,
    /// Paired, and told apart.
    #[serde(rename = "~")]
    Paired,
    /// In the second list alone.
    #[serde(rename = "+")]
    Added,
    /// In the first list alone.
    #[serde(rename = "-")]
    Gone,
}

impl Symbol {
    pub(super) fn text(self) -> &'static str {
        match self {
            Symbol::Same => "=",
            Symbol::Paired => "~",
            Symbol::Added => "+",
            Symbol::Gone => "-",
        }
    }
}

/// A row of the table.
#[derive(Debug)]
pub(super) struct Row<'a> {
    /// From 1.
    pub(super) number: usize,
    pub(super) symbol: Symbol,
    pub(super) sides: [Option<&'a RunResult>; 2],
    /// How unlike a pair is.
    pub(super) distance: Option<f64>,
    /// The verdict on a pair: the second's value (candidate) against the first's (reference).
    pub(super) verdict: Option<TensorVerdict>,
}

impl Row<'_> {
    /// Whether nothing tells the two sides apart.
    pub(super) fn is_same(&self) -> bool {
        self.symbol == Symbol::Same && self.verdict.as_ref().is_none_or(|verdict| verdict.verdict.is_pass())
    }

    pub(super) fn json(&self) -> Value {
        let side = |side: &Option<&RunResult>| {
            side.map(|of| {
                json!({
                    "kind": of.kind, "dtype": of.dtype.map(|dtype| dtype.to_string()), "shape": of.shape,
                    "signature": of.signature, "op_type": of.op_type, "name": of.name,
                })
            })
        };
        let metrics = self.verdict.as_ref().and_then(|verdict| verdict.metrics.as_ref());
        let told = metrics.map(|metrics| serde_json::to_value(metrics).unwrap_or_default());
        let number = |key: &str| told.as_ref().map(|told| told[key].clone()).unwrap_or_default();
        let (verdict, reason) = self.verdict.as_ref().map(|verdict| verdict.verdict.words()).unzip();
        json!({
            "row": self.number, "symbol": self.symbol, "first": side(&self.sides[0]), "second": side(&self.sides[1]),
            "distance": self.distance, "max_abs": number("max_abs"), "max_rel_to_max": number("max_rel_to_max"),
            "verdict": verdict, "reason": reason,
        })
    }
}

/// The rows of two lists.
pub(super) fn rows<'a>(traces: [&'a Trace; 2], tolerance: Option<&Tolerance>) -> Vec<Row<'a>> {
    let [first, second] = traces;
    let row = |(at, pair): (usize, (Option<usize>, Option<usize>))| {
        let sides = [pair.0.map(|i| &first.results[i]), pair.1.map(|j| &second.results[j])];
        let (symbol, distance, verdict) = match (pair, sides) {
            ((Some(i), Some(j)), [Some(one), Some(other)]) => {
                let distance = distance(one, other);
                let symbol = if distance == 0. { Symbol::Same } else { Symbol::Paired };
                (symbol, Some(distance), Some(judged(&one.name, [first.value(i), second.value(j)], tolerance)))
            }
            ((None, _), _) => (Symbol::Added, None, None),
            _ => (Symbol::Gone, None, None),
        };
        Row { number: at + 1, symbol, sides, distance, verdict }
    };
    align(&first.results, &second.results).pairs.into_iter().enumerate().map(row).collect()
}

/// The verdict on two values. Those of two dtypes are widened, and judged by the coarser one's tolerance.
fn judged(name: &str, values: [Option<TensorView<'_>>; 2], tolerance: Option<&Tolerance>) -> TensorVerdict {
    let [Some(reference), Some(candidate)] = values else {
        return TensorVerdict::not_compared(name, "it is no tensor of a dtype that torch has");
    };
    if reference.shape() != candidate.shape() {
        let [one, other] = [reference.desc(), candidate.desc()];
        return TensorVerdict::not_compared(name, format!("shapes differ: {one}, {other}"));
    }
    if reference.dtype() == candidate.dtype() {
        return judge(name, &reference, &candidate, tolerance);
    }
    let dtypes = [reference.dtype(), candidate.dtype()];
    let n = reference.shape().n_elements();
    let wide = |view: &TensorView<'_>| Some(TensorBuf::from_f64(view.shape().clone(), &view.flat_f64(0..n)?));
    let (Some(reference), Some(candidate)) = (wide(&reference), wide(&candidate)) else {
        return TensorVerdict::not_compared(name, format!("dtypes differ: {}, {}", dtypes[0], dtypes[1]));
    };
    let tolerance = tolerance.copied().unwrap_or_else(|| coarser(dtypes));
    judge(name, &reference.view(), &candidate.view(), Some(&tolerance))
}

fn coarser(dtypes: [DType; 2]) -> Tolerance {
    let [one, other] = dtypes.map(Tolerance::for_dtype);
    if one.rtol >= other.rtol { one } else { other }
}

/// The rows that tell most, in their order: pairs outside tolerance, then what one model has alone or otherwise,
/// initializers last.
pub(super) fn telling<'r, 'a>(rows: &'r [Row<'a>], most: usize) -> Vec<&'r Row<'a>> {
    let is_initializer = |row: &Row<'_>| row.sides.iter().flatten().any(|side| side.kind == Kind::Initializer);
    let rank = |row: &&Row<'_>| match row.verdict.as_ref().map(|verdict| &verdict.verdict) {
        Some(Verdict::Mismatch) => 0,
        _ if is_initializer(row) => 2,
        _ => 1,
    };
    let mut telling: Vec<_> = rows.iter().filter(|row| !row.is_same()).collect();
    telling.sort_by_key(rank);
    telling.truncate(most);
    telling.sort_by_key(|row| row.number);
    telling
}

/// How many rows there are of what kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Counts {
    pub(super) rows: usize,
    /// `=`.
    pub(super) same: usize,
    /// `~`.
    pub(super) paired: usize,
    /// `-`.
    pub(super) first_alone: usize,
    /// `+`.
    pub(super) second_alone: usize,
    /// Pairs whose values are within tolerance.
    pub(super) matched: usize,
    /// Pairs whose values are not.
    pub(super) mismatch: usize,
    /// Pairs that have no two values of one shape.
    pub(super) not_compared: usize,
}

impl Counts {
    pub(super) fn of(rows: &[Row<'_>]) -> Self {
        let mut counts = Self { rows: rows.len(), ..Self::default() };
        for row in rows {
            *match row.symbol {
                Symbol::Same => &mut counts.same,
                Symbol::Paired => &mut counts.paired,
                Symbol::Gone => &mut counts.first_alone,
                Symbol::Added => &mut counts.second_alone,
            } += 1;
            match row.verdict.as_ref().map(|verdict| &verdict.verdict) {
                None => {}
                Some(Verdict::NotCompared(_) | Verdict::Failed(_)) => counts.not_compared += 1,
                Some(verdict) if verdict.is_pass() => counts.matched += 1,
                Some(_) => counts.mismatch += 1,
            }
        }
        counts
    }
}

/// Six letters of a kind, as the published example has them.
pub(super) fn kind_text(kind: Kind) -> &'static str {
    match kind {
        Kind::Initializer => "INITIA",
        Kind::Input => "INPUT",
        Kind::Result => "RESULT",
        Kind::Output => "OUTPUT",
        Kind::Node => "NODE",
    }
}

/// `2:3x4`; of a scalar nothing.
pub(super) fn shape_text(shape: Option<&[Dim]>) -> String {
    let Some(dims) = shape.filter(|dims| !dims.is_empty()) else { return String::new() };
    let text = |dim: &Dim| match dim {
        Dim::Known(size) => size.to_string(),
        Dim::Symbolic(name) => name.clone(),
    };
    format!("{}:{}", dims.len(), dims.iter().map(text).collect::<Vec<_>>().join("x"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::TensorDesc;

    fn tensor(dtype: DType, bytes: &[u8]) -> TensorBuf {
        let n = (bytes.len() / dtype.size_bytes()) as i64;
        TensorBuf::new(TensorDesc::new(dtype, [n]).unwrap(), bytes.to_vec()).unwrap()
    }

    #[test]
    fn values_of_two_dtypes_are_widened_and_judged_by_the_coarser_one() {
        let wide = tensor(DType::F32, &[1.0_f32, 1000.4].map(f32::to_le_bytes).concat());
        let half = tensor(
            DType::F16,
            &[half::f16::from_f32(1.), half::f16::from_f32(1000.4)].map(half::f16::to_le_bytes).concat(),
        );
        let verdict = judged("y", [Some(wide.view()), Some(half.view())], None);
        assert_eq!(verdict.verdict, Verdict::Match);
        assert!(verdict.metrics.unwrap().max_abs > 0.);
        let ids = tensor(DType::I64, &[1_i64, 2].map(i64::to_le_bytes).concat());
        let verdict = judged("y", [Some(ids.view()), Some(wide.view())], None);
        assert_eq!((verdict.verdict, verdict.metrics.unwrap().max_abs.round()), (Verdict::Mismatch, 998.));
        let complex = tensor(DType::C64, &[0; 16]);
        let why = judged("y", [Some(complex.view()), Some(wide.view())], None).verdict;
        assert_eq!(why, Verdict::NotCompared("dtypes differ: complex64, float32".to_owned()));
        let short = tensor(DType::F32, &[0; 4]);
        let why = judged("y", [Some(short.view()), Some(wide.view())], None).verdict;
        assert_eq!(why, Verdict::NotCompared("shapes differ: float32[1], float32[2]".to_owned()));
    }

    #[test]
    fn shapes_are_written_as_in_the_example() {
        let dims = [Dim::Known(2), Dim::Symbolic("n".to_owned())];
        assert_eq!([shape_text(None), shape_text(Some(&[])), shape_text(Some(&dims))], ["", "", "2:2xn"]);
    }
}
