//! Two lists beside each other: what is paired, and how far apart its values are.

use std::cmp::Ordering;
use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value;

use super::counterparts::Search;
use super::pairs::{Pair, pairs};
use super::trace::Trace;
use crate::compare::{Dim, Kind, RunResult, TensorVerdict, Tolerance, Verdict, distance};

/// What is said of two values that are not equal bit by bit.
pub(super) const BITS_DIFFER: &str = "bits differ";

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
    /// Place of each among its model's results.
    pub(super) places: Pair,
    /// What each is by the provenance of its part, such as `layer.weight`.
    pub(super) called: [Option<&'a str>; 2],
    /// The type of each that is compared bit by bit, as ONNX calls it.
    pub(super) exact: [Option<&'a str>; 2],
    /// How unlike a pair is.
    pub(super) distance: Option<f64>,
    /// The verdict on each value and its counterpart, the worse of two: the second model's value (candidate) against the
    /// first's (reference).
    pub(super) verdict: Option<TensorVerdict>,
    pub(super) standing: Standing,
}

/// Whom the verdict of a row is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Both values of the row.
    Pair,
    /// Both, which are equal with the first's axes in this order.
    Transposed(Vec<usize>),
    /// Each value and its counterpart in the row of that number, where it has one.
    Elsewhere([Option<usize>; 2]),
    /// Nobody: the two stand beside each other by their place alone.
    Alone,
}

/// All rows, in order.
#[derive(Debug)]
pub(super) struct Rows<'a> {
    pub(super) rows: Vec<Row<'a>>,
    /// Counterparts were not looked for everywhere.
    pub(super) gave_up: bool,
}

impl Row<'_> {
    /// Whether nothing tells the two sides apart.
    pub(super) fn is_same(&self) -> bool {
        self.symbol == Symbol::Same && self.verdict.as_ref().is_none_or(|verdict| verdict.verdict.is_pass())
    }

    /// Why the verdict is what it is, where that says something.
    pub(super) fn reason(&self) -> Option<&str> {
        let verdict = self.verdict.as_ref()?;
        Some(if verdict.verdict == Verdict::Mismatch && self.is_exact() {
            BITS_DIFFER
        } else {
            verdict.verdict.words().1
        })
    }

    /// Whether both sides are of a type that is compared bit by bit.
    pub(super) fn is_exact(&self) -> bool {
        self.exact.iter().all(Option::is_some)
    }

    /// The type of a side, where it is known.
    pub(super) fn dtype(&self, at: usize) -> Option<String> {
        let known = self.sides[at]?.dtype.map(|dtype| dtype.to_string());
        known.or_else(|| self.exact[at].map(str::to_owned))
    }

    pub(super) fn json(&self) -> Told<'_> {
        let side = |at: usize| {
            self.sides[at].map(|of| ToldSide {
                dtype: self.dtype(at),
                kind: of.kind,
                name: &of.name,
                of: self.called[at],
                op_type: &of.op_type,
                shape: of.shape.as_deref(),
                signature: &of.signature,
            })
        };
        let (transposed, counterparts) = match &self.standing {
            Standing::Transposed(axes) => (Some(axes.as_slice()), None),
            Standing::Elsewhere(rows) => (None, Some(rows)),
            Standing::Pair | Standing::Alone => (None, None),
        };
        let metrics = self.verdict.as_ref().and_then(|verdict| verdict.metrics.as_ref());
        Told {
            counterparts,
            distance: self.distance,
            first: side(0),
            max_abs: metrics.map(|metrics| number(metrics.max_abs)),
            max_rel_to_max: metrics.map(|metrics| number(metrics.max_rel_to_max)),
            reason: self.reason(),
            row: self.number,
            second: side(1),
            symbol: self.symbol,
            transposed,
            verdict: self.verdict.as_ref().map(|verdict| verdict.verdict.words().0),
        }
    }
}

/// A number, or "inf", "-inf" or "nan", which JSON has no numbers for.
fn number(value: f64) -> Value {
    if value.is_finite() {
        value.into()
    } else if value.is_nan() {
        "nan".into()
    } else {
        if value > 0. { "inf" } else { "-inf" }.into()
    }
}

/// A row in JSON. Its fields stand in the order of the alphabet, as those of other answers.
#[derive(Debug, Serialize)]
pub(super) struct Told<'a> {
    counterparts: Option<&'a [Option<usize>; 2]>,
    distance: Option<f64>,
    first: Option<ToldSide<'a>>,
    max_abs: Option<Value>,
    max_rel_to_max: Option<Value>,
    reason: Option<&'a str>,
    row: usize,
    second: Option<ToldSide<'a>>,
    symbol: Symbol,
    transposed: Option<&'a [usize]>,
    verdict: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct ToldSide<'a> {
    dtype: Option<String>,
    kind: Kind,
    name: &'a str,
    of: Option<&'a str>,
    op_type: &'a str,
    shape: Option<&'a [Dim]>,
    signature: &'a str,
}

/// The rows of two lists.
pub(super) fn rows<'a>(traces: [&'a Trace; 2], tolerance: Option<&'a Tolerance>) -> Rows<'a> {
    let mut search = Search::new(traces, tolerance);
    let pairs = pairs(&mut search);
    let [first, second] = traces;
    let mut rows: Vec<Row<'a>> = Vec::with_capacity(pairs.len());
    for (at, &(i, j)) in pairs.iter().enumerate() {
        let sides = [i.map(|i| &first.results[i]), j.map(|j| &second.results[j])];
        let (symbol, distance, verdict) = match (i, j, sides) {
            (Some(i), Some(j), [Some(one), Some(other)]) => {
                let distance = distance(one, other);
                let verdict = search.judged(i, j);
                // Letters say nothing of what nobody read, nor of what is compared bit by bit.
                let is_read = first.value(i).is_some() && second.value(j).is_some();
                let is_same = distance == 0. && (is_read || verdict.verdict.is_pass());
                let symbol = if is_same { Symbol::Same } else { Symbol::Paired };
                if verdict.verdict.is_pass() {
                    search.relate(i, j);
                }
                (symbol, Some(distance), Some(verdict))
            }
            (None, ..) => (Symbol::Added, None, None),
            _ => (Symbol::Gone, None, None),
        };
        let called = [(first, sides[0]), (second, sides[1])].map(|(trace, side)| trace.called(side?));
        let exact = [i.and_then(|i| first.exact(i)), j.and_then(|j| second.exact(j))];
        let exact = exact.map(|exact| Some(exact?.dtype.as_str()));
        rows.push(Row {
            number: at + 1,
            symbol,
            sides,
            places: (i, j),
            called,
            exact,
            distance,
            verdict,
            standing: Standing::Pair,
        });
    }
    let mut places = [HashMap::new(), HashMap::new()];
    for (row, &(i, j)) in rows.iter().zip(&pairs) {
        places[0].extend(i.map(|i| (i, row.number)));
        places[1].extend(j.map(|j| (j, row.number)));
    }
    for (row, pair) in rows.iter_mut().zip(pairs) {
        settle(row, pair, &mut search, &places);
    }
    Rows { rows, gave_up: search.gave_up() }
}

/// What becomes of a row whose values differ, or that has one: a value has its verdict against its counterpart, which may
/// stand in another row.
fn settle(row: &mut Row<'_>, pair: Pair, search: &mut Search<'_>, places: &[HashMap<usize, usize>; 2]) {
    let (Some(i), Some(j)) = pair else {
        let (side, at) = pair.0.map_or((1, pair.1.unwrap_or_default()), |i| (0, i));
        if let Some((other, verdict)) = namesake(search, side, at) {
            let mut standing = [None, None];
            standing[side] = places[1 - side].get(&other).copied();
            (row.verdict, row.standing) = (Some(verdict), Standing::Elsewhere(standing));
        }
        return;
    };
    let Some(verdict) = &row.verdict else { return };
    let is_unread = [search.is_read(0, i), search.is_read(1, j)].contains(&false);
    if verdict.verdict.is_pass() || is_unread {
        return;
    }
    let kinds = [&search.results(0)[i], &search.results(1)[j]].map(|result| result.kind);
    let are_ends = match kinds {
        [Kind::Input, Kind::Input] | [Kind::Output, Kind::Output] => true,
        [Kind::Input, Kind::Initializer] | [Kind::Initializer, Kind::Input] => search.named_alike(i, j),
        _ => false,
    };
    let axes = search.agreement(i, j).and_then(|agreement| Some((agreement.axes?, agreement.verdict)));
    if are_ends {
        // Its place is its caller's: no other value stands for it, nor its transpose.
        row.standing = axes.map_or(Standing::Pair, |(axes, _)| Standing::Transposed(axes));
        if row.verdict.as_ref().is_some_and(|verdict| verdict.metrics.is_none()) {
            row.verdict = row.verdict.take().map(|verdict| TensorVerdict { verdict: Verdict::Mismatch, ..verdict });
        }
        return;
    }
    if verdict.metrics.is_some() && search.does_the_same(i, j) {
        search.relate(i, j);
        return;
    }
    if let Some((axes, verdict)) = axes {
        search.relate(i, j);
        (row.verdict, row.standing) = (Some(verdict), Standing::Transposed(axes));
        return;
    }
    let equal = [search.elsewhere(0, i, j), search.elsewhere(1, j, i)];
    let mut counterparts: [Option<(usize, TensorVerdict)>; 2] =
        equal.map(|found| found.map(|(at, agreement)| (at, agreement.verdict)));
    if counterparts.iter().all(Option::is_none) && search.is_one_value(i, j, verdict) {
        search.relate(i, j);
        return;
    }
    for (side, at) in [(0, i), (1, j)] {
        if counterparts[side].is_none() {
            counterparts[side] = namesake(search, side, at);
        }
    }
    if let Some((other, _)) = counterparts[0] {
        search.relate(i, other);
        if other == j {
            return;
        }
    }
    if let Some((other, _)) = counterparts[1] {
        search.relate(other, j);
    }
    let numbers = [0, 1].map(|side| places[1 - side].get(&counterparts[side].as_ref()?.0).copied());
    let worst = counterparts.into_iter().flatten().map(|(_, verdict)| verdict).max_by(|one, other| {
        let rank =
            |of: &TensorVerdict| (!of.verdict.is_pass(), of.metrics.as_ref().map_or(0., |metrics| metrics.max_abs));
        rank(one).partial_cmp(&rank(other)).unwrap_or(Ordering::Equal)
    });
    let name = &search.results(0)[i].name;
    (row.verdict, row.standing) = match worst {
        Some(verdict) => (Some(verdict), Standing::Elsewhere(numbers)),
        None => {
            let metrics = row.verdict.take().and_then(|verdict| verdict.metrics);
            (
                Some(TensorVerdict { metrics, ..TensorVerdict::not_compared(name, "it has no counterpart") }),
                Standing::Alone,
            )
        }
    };
}

/// The value of the other model that has the name, kind, operator and shape of one that is nowhere equal, and the verdict.
fn namesake(search: &mut Search<'_>, side: usize, at: usize) -> Option<(usize, TensorVerdict)> {
    let other = search.namesake(side, at)?;
    let (i, j) = if side == 0 { (at, other) } else { (other, at) };
    let verdict = search.judged(i, j);
    // Two exporters count their values apart: `add_3` of the one may be any other of the other, and so may a lone number.
    let one = &search.results(0)[i];
    let is_alone = one.kind == Kind::Initializer && one.shape.as_ref().is_some_and(|dims| dims.iter().all(is_one));
    let is_counted = one.kind == Kind::Result || is_alone && !search.truly_named_alike(i, j);
    let is_compared = verdict.metrics.is_some() || verdict.verdict == Verdict::Mismatch;
    (is_compared && (!is_counted || search.is_one_value(i, j, &verdict))).then_some((other, verdict))
}

fn is_one(dim: &Dim) -> bool {
    *dim == Dim::Known(1)
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
    /// Rows whose values are within tolerance of their counterparts.
    pub(super) matched: usize,
    /// Rows of which one is not.
    pub(super) mismatch: usize,
    /// Pairs of which one was not read.
    pub(super) not_compared: usize,
    /// Pairs that have no counterparts.
    pub(super) no_counterpart: usize,
    /// Pairs without elements.
    pub(super) empty: usize,
}

/// How the outputs stand to each other.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Outputs {
    /// Pairs, and those that one model has alone.
    pub(super) all: usize,
    /// Pairs within tolerance.
    pub(super) matched: usize,
    /// Pairs that are not.
    pub(super) mismatch: usize,
    /// Pairs without elements.
    pub(super) empty: usize,
    /// Those that one model has alone.
    pub(super) alone: usize,
    /// Pairs of two types, whatever their values.
    pub(super) of_two_types: usize,
    /// Pairs of NaN throughout, which are not compared.
    pub(super) of_nan: usize,
    /// Whether both models give the pairs in one order.
    pub(super) in_order: bool,
    /// The pair that is furthest apart, by max|Δ|/max|r|: its row.
    pub(super) worst: Option<usize>,
}

impl Outputs {
    /// Pairs of which one was not read.
    pub(super) fn not_read(&self) -> usize {
        self.all - self.matched - self.mismatch - self.empty - self.alone
    }

    pub(super) fn of(rows: &[Row<'_>]) -> Self {
        let is_output = |side: &Option<&RunResult>| side.is_some_and(|side| side.kind == Kind::Output);
        let with = |most: bool| {
            let has =
                |row: &&Row<'_>| if most { row.sides.iter().any(is_output) } else { row.sides.iter().all(is_output) };
            rows.iter().filter(has).count()
        };
        let mut outputs = Self { all: with(true), alone: with(true) - with(false), ..Self::default() };
        let pairs = || rows.iter().filter(|row| row.sides.iter().all(is_output));
        outputs.of_two_types = pairs().filter(|row| row.dtype(0) != row.dtype(1)).count();
        outputs.of_nan = pairs().filter(|row| is_nan_alone(row)).count();
        outputs.in_order = pairs().is_sorted_by_key(|row| row.places.1);
        let mut worst = -1.;
        for row in pairs() {
            let Some(verdict) = &row.verdict else { continue };
            match outcome(row) {
                Outcome::Matched => outputs.matched += 1,
                Outcome::Mismatch => outputs.mismatch += 1,
                Outcome::Empty => outputs.empty += 1,
                Outcome::NotCompared | Outcome::NoCounterpart => {}
            }
            let apart = match (&verdict.metrics, &verdict.verdict) {
                (Some(metrics), _) => metrics.max_rel_to_max,
                (None, Verdict::Mismatch) => f64::INFINITY,
                (None, _) => continue,
            };
            // What is no number is worse than any.
            let apart = if apart.is_nan() { f64::INFINITY } else { apart };
            if apart > worst {
                (worst, outputs.worst) = (apart, Some(row.number));
            }
        }
        outputs
    }
}

/// What a row counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Matched,
    Mismatch,
    NotCompared,
    NoCounterpart,
    Empty,
}

fn outcome(row: &Row<'_>) -> Outcome {
    match row.verdict.as_ref().map(|verdict| (&verdict.verdict, &verdict.metrics)) {
        None => Outcome::NoCounterpart,
        Some(_) if row.standing == Standing::Alone => Outcome::NoCounterpart,
        Some((Verdict::NotCompared(_) | Verdict::Failed(_), _)) => Outcome::NotCompared,
        Some((verdict, Some(metrics))) if verdict.is_pass() && metrics.n == 0 => Outcome::Empty,
        Some((verdict, _)) if verdict.is_pass() && is_nan_alone(row) => Outcome::NotCompared,
        Some((verdict, _)) if verdict.is_pass() => Outcome::Matched,
        Some(_) => Outcome::Mismatch,
    }
}

/// Whether both values are NaN throughout, as any two are once a NaN is made: a constant is what it is.
fn is_nan_alone(row: &Row<'_>) -> bool {
    let is_computed = row.sides.iter().flatten().any(|side| matches!(side.kind, Kind::Result | Kind::Output));
    let metrics = row.verdict.as_ref().and_then(|verdict| verdict.metrics.as_ref());
    is_computed && metrics.is_some_and(|metrics| metrics.n > 0 && metrics.both_nan == metrics.n)
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
            if row.verdict.is_some() {
                *match outcome(row) {
                    Outcome::Matched => &mut counts.matched,
                    Outcome::Mismatch => &mut counts.mismatch,
                    Outcome::NotCompared => &mut counts.not_compared,
                    Outcome::NoCounterpart => &mut counts.no_counterpart,
                    Outcome::Empty => &mut counts.empty,
                } += 1;
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
    use crate::cli::align::counterparts::judged;
    use crate::tensor::{DType, TensorBuf, TensorDesc};

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
