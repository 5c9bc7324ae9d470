//! Pairs two lists of results that share no names, by edit distance.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

use serde::{Deserialize, Serialize};

use crate::tensor::DType;

/// What a result is to its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A constant of the model.
    Initializer,
    /// Fed by the caller.
    Input,
    /// Computed by a node.
    Result,
    /// Fetched by the caller.
    Output,
    /// A node that was not run.
    Node,
}

/// One dimension.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Dim {
    /// A number.
    Known(i64),
    /// A name that stands for a number.
    Symbolic(String),
}

/// One result of a run, as far as alignment looks at it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunResult {
    /// What it is to its model.
    pub kind: Kind,
    /// Element type, when known.
    pub dtype: Option<DType>,
    /// Dimensions, when known.
    pub shape: Option<Vec<Dim>>,
    /// See [`signature`](super::signature()); "????" when nothing was run.
    pub signature: String,
    /// Operator that computed it, or "".
    pub op_type: String,
    /// For people; it does not count.
    pub name: String,
}

/// Two lists side by side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alignment {
    /// Sum of the costs of pairs and of results left alone.
    pub cost: f64,
    /// Positions in the first and the second list, ascending in each; None where a result has no partner.
    pub pairs: Vec<(Option<usize>, Option<usize>)>,
}

const KIND_COST: f64 = 1000.;
const DTYPE_COST: f64 = 10.;
const FLOAT_DTYPE_FACTOR: f64 = 0.2;
const RANK_COST: f64 = 100.;
const OP_TYPE_COST: f64 = 10.;
const ALONE_COST: f64 = 1000.;
const SIGNATURE_LENGTH_COST: f64 = 1e6;
const MIN_BAND: usize = 50;

/// How unlike two results are; 0 when nothing tells them apart. Source: onnx-array-api's `DistanceExecution`.
pub fn distance(first: &RunResult, second: &RunResult) -> f64 {
    let mut cost = of_kind_and_dtype(first, second);
    if first.shape != second.shape {
        cost += shape_distance(first.shape.as_deref(), second.shape.as_deref());
    }
    cost += signature_distance(&first.signature, &second.signature);
    if first.op_type != second.op_type {
        cost += OP_TYPE_COST;
    }
    cost
}

fn of_kind_and_dtype(first: &RunResult, second: &RunResult) -> f64 {
    let mut cost = 0.;
    if first.kind != second.kind {
        cost += KIND_COST;
    }
    if first.dtype != second.dtype {
        let float = |dtype| matches!(dtype, Some(DType::F16 | DType::F32 | DType::F64));
        cost += DTYPE_COST * if float(first.dtype) && float(second.dtype) { FLOAT_DTYPE_FACTOR } else { 1. };
    }
    cost
}

fn shape_distance(first: Option<&[Dim]>, second: Option<&[Dim]>) -> f64 {
    let (Some(first), Some(second)) = (first, second) else {
        return RANK_COST;
    };
    let volume = match (volume(first), volume(second)) {
        (Some(first), Some(second)) => (first - second).abs(),
        _ => 0.,
    };
    if first.len() != second.len() {
        return RANK_COST + volume;
    }
    let by_axis = first.iter().zip(second).map(|pair| match pair {
        (Dim::Known(first), Dim::Known(second)) => first.abs_diff(*second) as f64,
        (first, second) if first == second => 0.,
        _ => RANK_COST / 2.,
    });
    volume + by_axis.sum::<f64>()
}

/// Number of elements; None where a dimension is no number.
fn volume(dims: &[Dim]) -> Option<f64> {
    dims.iter().map(|dim| if let Dim::Known(size) = dim { Some(*size as f64) } else { None }).product()
}

fn signature_distance(first: &str, second: &str) -> f64 {
    if first.chars().count() != second.chars().count() {
        return SIGNATURE_LENGTH_COST;
    }
    first.chars().zip(second.chars()).map(|(first, second)| f64::from(u32::from(first).abs_diff(second.into()))).sum()
}

/// A result as [`align`] compares it with every other within the band: a number for each shape and operator, letters as
/// bytes.
struct Key<'a> {
    of: &'a RunResult,
    shape: usize,
    op_type: usize,
    /// None where they are no letters of one byte each.
    letters: Option<[u8; 4]>,
}

/// A number for each value, the same for equal ones.
struct Numbers<T>(HashMap<T, usize>);

impl<T: Eq + Hash> Numbers<T> {
    fn of(&mut self, value: T) -> usize {
        let next = self.0.len();
        *self.0.entry(value).or_insert(next)
    }
}

/// The keys of two lists.
fn keys<'a, R: Borrow<RunResult>>([first, second]: [&'a [R]; 2]) -> [Vec<Key<'a>>; 2] {
    let (mut shapes, mut op_types) = (Numbers(HashMap::new()), Numbers(HashMap::new()));
    [first, second].map(|list| {
        let key = |of: &'a R| {
            let of = of.borrow();
            Key {
                of,
                shape: shapes.of(of.shape.as_deref()),
                op_type: op_types.of(of.op_type.as_str()),
                letters: of.signature.as_bytes().try_into().ok().filter(|letters: &[u8; 4]| letters.is_ascii()),
            }
        };
        list.iter().map(key).collect()
    })
}

impl Key<'_> {
    /// The [`distance`] of both results.
    fn distance(&self, other: &Self) -> f64 {
        let (Some(letters), Some(others)) = (self.letters, other.letters) else {
            return distance(self.of, other.of);
        };
        let (one, another) = (self.of, other.of);
        let mut cost = of_kind_and_dtype(one, another);
        if self.shape != other.shape {
            cost += shape_distance(one.shape.as_deref(), another.shape.as_deref());
        }
        cost += f64::from(letters.iter().zip(others).map(|(one, other)| u32::from(one.abs_diff(other))).sum::<u32>());
        if self.op_type != other.op_type {
            cost += OP_TYPE_COST;
        }
        cost
    }
}

#[derive(Clone, Copy)]
#[repr(u8)]
enum Move {
    Pair,
    FirstAlone,
    SecondAlone,
}

/// The cells `from..from + cells.len()` of a row.
#[derive(Default)]
struct Row<T> {
    from: usize,
    cells: Vec<T>,
}

impl<T: Copy> Row<T> {
    fn get(&self, column: usize) -> Option<T> {
        self.cells.get(column.checked_sub(self.from)?).copied()
    }
}

/// The cheapest way through both lists: a pair costs its [`distance`], a result left alone 1000; among equals a pair
/// wins, then one of the first list. Only cells within max(50, difference of lengths + 1) of the diagonal are looked
/// at, and one byte is kept of each. As in onnx-array-api the way starts at (-1, -1) alone, so the two first results are
/// always paired.
pub fn align<R: Borrow<RunResult>>(first: &[R], second: &[R]) -> Alignment {
    if first.is_empty() || second.is_empty() {
        let alone_first = (0..first.len()).map(|i| (Some(i), None));
        let alone_second = (0..second.len()).map(|j| (None, Some(j)));
        let pairs: Vec<_> = alone_first.chain(alone_second).collect();
        return Alignment { cost: pairs.len() as f64 * ALONE_COST, pairs };
    }
    let [first, second] = keys([first, second]);
    let band = MIN_BAND.max(first.len().abs_diff(second.len()) + 1);
    let mut moves: Vec<Row<Move>> = Vec::with_capacity(first.len());
    let mut above = Row::default();
    for (i, of_first) in first.iter().enumerate() {
        let (from, to) = (i.saturating_sub(band), second.len().min(i + band));
        let mut costs = Row { from, cells: Vec::with_capacity(to.saturating_sub(from)) };
        let mut steps = Vec::with_capacity(to.saturating_sub(from));
        for (j, of_second) in second.iter().enumerate().take(to).skip(from) {
            let diagonal = if i == 0 && j == 0 { Some(0.) } else { j.checked_sub(1).and_then(|j| above.get(j)) };
            let ways = [
                diagonal.map(|cost| (cost + of_first.distance(of_second), Move::Pair)),
                above.get(j).map(|cost| (cost + ALONE_COST, Move::FirstAlone)),
                costs.cells.last().map(|cost| (cost + ALONE_COST, Move::SecondAlone)),
            ];
            let unreached = (f64::INFINITY, Move::Pair);
            let (cost, step) =
                ways.into_iter().flatten().fold(unreached, |best, way| if way.0 < best.0 { way } else { best });
            costs.cells.push(cost);
            steps.push(step);
        }
        moves.push(Row { from, cells: steps });
        above = costs;
    }
    let cost = above.get(second.len() - 1).expect("the last cell is within the band");
    Alignment { cost, pairs: trace_back(&moves, second.len()) }
}

fn trace_back(moves: &[Row<Move>], second_len: usize) -> Vec<(Option<usize>, Option<usize>)> {
    let mut at = (Some(moves.len() - 1), Some(second_len - 1));
    let mut pairs = Vec::new();
    while let (Some(i), Some(j)) = at {
        let (pair, before) = match moves[i].get(j).expect("a step leads to a cell that was filled") {
            Move::Pair => ((Some(i), Some(j)), (i.checked_sub(1), j.checked_sub(1))),
            Move::FirstAlone => ((Some(i), None), (i.checked_sub(1), Some(j))),
            Move::SecondAlone => ((None, Some(j)), (Some(i), j.checked_sub(1))),
        };
        pairs.push(pair);
        at = before;
    }
    pairs.reverse();
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(dtype: DType, dims: &[i64], signature: &str, op_type: &str) -> RunResult {
        RunResult {
            kind: Kind::Result,
            dtype: Some(dtype),
            shape: Some(dims.iter().map(|&dim| Dim::Known(dim)).collect()),
            signature: signature.to_owned(),
            op_type: op_type.to_owned(),
            name: String::new(),
        }
    }

    #[test]
    fn distances_are_those_of_the_table() {
        let base = result(DType::F32, &[2, 3], "CEIO", "Abs");
        let kind = RunResult { kind: Kind::Output, ..base.clone() };
        let name = RunResult { name: "y".to_owned(), ..base.clone() };
        let no_shape = RunResult { shape: None, ..base.clone() };
        let symbolic =
            RunResult { shape: Some(vec![Dim::Symbolic("batch".to_owned()), Dim::Known(5)]), ..base.clone() };
        for (other, cost) in [
            (base.clone(), 0.),
            (name, 0.),
            (kind, 1000.),
            (result(DType::F16, &[2, 3], "CEIO", "Abs"), 2.),
            (result(DType::BF16, &[2, 3], "CEIO", "Abs"), 10.),
            (result(DType::I64, &[2, 3], "CEIO", "Abs"), 10.),
            (result(DType::F32, &[3, 2], "CEIO", "Abs"), 2.),
            (result(DType::F32, &[2, 5], "CEIO", "Abs"), 6.),
            (result(DType::F32, &[6], "CEIO", "Abs"), 100.),
            (result(DType::F32, &[], "CEIO", "Abs"), 105.),
            (no_shape, 100.),
            (symbolic, 52.),
            (result(DType::F32, &[2, 3], "CEIA", "Abs"), 14.),
            (result(DType::F32, &[2, 3], "CEI", "Abs"), 1e6),
            (result(DType::F32, &[2, 3], "CEIO", "Relu"), 10.),
        ] {
            assert_eq!(distance(&base, &other), cost, "{other:?}");
            assert_eq!(distance(&other, &base), cost, "{other:?}");
        }
    }

    #[test]
    fn keys_are_as_far_apart_as_what_they_stand_for() {
        let mut list: Vec<_> = ["CEIO", "AZ??", "CE", "éeio"].map(|s| result(DType::F32, &[2, 3], s, "Abs")).into();
        list.push(RunResult { kind: Kind::Output, shape: None, ..list[0].clone() });
        list.push(RunResult { op_type: "Add".to_owned(), dtype: Some(DType::F16), ..list[1].clone() });
        list.push(RunResult { shape: Some(vec![Dim::Symbolic("n".to_owned()), Dim::Known(3)]), ..list[1].clone() });
        let [first, second] = keys([&list, &list]);
        for (i, j) in (0..list.len()).flat_map(|i| (0..list.len()).map(move |j| (i, j))) {
            assert_eq!(first[i].distance(&second[j]), distance(&list[i], &list[j]), "{:?}, {:?}", list[i], list[j]);
        }
    }

    #[test]
    fn equal_lists_pair_in_order_at_no_cost() {
        let list: Vec<_> = ["AAAA", "BBBB", "CCCC"].map(|s| result(DType::F32, &[2], s, "Add")).into();
        let alignment = align(&list, &list);
        let pairs = vec![(Some(0), Some(0)), (Some(1), Some(1)), (Some(2), Some(2))];
        assert_eq!(alignment, Alignment { cost: 0., pairs });
    }

    #[test]
    fn an_extra_result_is_left_alone() {
        let long: Vec<_> =
            [("AAAA", 2), ("BBBB", 7000), ("CCCC", 2)].map(|(s, dim)| result(DType::F32, &[dim], s, "Add")).into();
        let short = vec![long[0].clone(), long[2].clone()];
        let pairs = vec![(Some(0), Some(0)), (Some(1), None), (Some(2), Some(1))];
        assert_eq!(align(&long, &short), Alignment { cost: 1000., pairs });
        let pairs = vec![(Some(0), Some(0)), (None, Some(1)), (Some(1), Some(2))];
        assert_eq!(align(&short, &long), Alignment { cost: 1000., pairs });
    }

    #[test]
    fn the_two_first_results_are_paired_whatever_it_costs() {
        let first = vec![result(DType::F32, &[9000], "AAAA", ""), result(DType::F32, &[2], "BBBB", "")];
        let second = vec![result(DType::F32, &[2], "BBBB", "")];
        // Leaving first[0] alone would cost 1000; the pair (0, 0) costs 8998 + 8998 + 4, then first[1] is alone.
        let pairs = vec![(Some(0), Some(0)), (Some(1), None)];
        assert_eq!(align(&first, &second), Alignment { cost: 19000., pairs });
    }

    #[test]
    fn an_empty_list_leaves_the_other_alone() {
        let list = vec![result(DType::F32, &[2], "AAAA", ""); 2];
        assert_eq!(align::<RunResult>(&[], &[]), Alignment { cost: 0., pairs: vec![] });
        assert_eq!(align(&list, &[]).pairs, vec![(Some(0), None), (Some(1), None)]);
        assert_eq!(align(&[], &list), Alignment { cost: 2000., pairs: vec![(None, Some(0)), (None, Some(1))] });
    }

    #[test]
    fn lengths_further_apart_than_the_band_still_meet() {
        let one = result(DType::F32, &[2], "AAAA", "Add");
        let other = result(DType::F32, &[2], "ZZZZ", "Mul");
        let first = vec![one.clone(), other.clone()];
        let mut second = vec![one; 200];
        second.push(other);
        let alignment = align(&first, &second);
        assert_eq!(alignment.cost, 199_000.);
        assert_eq!(alignment.pairs.last(), Some(&(Some(1), Some(200))));
        assert_eq!(align(&second, &first).cost, 199_000.);
    }

    #[test]
    fn long_lists_of_other_lengths_are_aligned_and_take_a_byte_a_cell() {
        let list = |n: usize| (0..n).map(|i| result(DType::F32, &[(i % 7) as i64], "ABCD", "Add")).collect::<Vec<_>>();
        let (long, short) = (list(3000), list(1500));
        let alignment = align(&long, &short);
        assert_eq!(alignment.pairs.len(), 3000);
        assert_eq!(alignment.cost, 1_500_000.);
        assert_eq!(size_of::<Move>(), 1);
        assert_eq!(align(&long, &long).cost, 0.);
    }
}
