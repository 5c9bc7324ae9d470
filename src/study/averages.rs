//! Means and normalized vectors of the same numbers in other orders, as the example has them: its laws, sizes and types.

use std::sync::Arc;

use half::f16;
use serde::{Deserialize, Serialize};

use super::error::StudyError;
use super::finding::Finding;
use super::graph::{self, last_axis, node, value, with_int};
use super::number::{Number, values};
use super::random::Random;
use super::run::{Runtimes, only};
use crate::compare::significant;
use crate::onnx::proto::{GraphProto, ModelProto, TensorProto};
use crate::protocol::message::{Optimization, SessionSpec};
use crate::runtime::{Model, Session, leased};
use crate::tensor::{BadTensor, DType, TensorBuf, TensorDesc};

/// Lengths of the vectors. The example's last row is of its 4096 numbers once more, for it draws no others.
pub const SIZES: [usize; 9] = [2, 4, 8, 16, 512, 1024, 2048, 4096, 8192];
/// Orders of each.
pub const ORDERS: usize = 128;
/// As numpy adds: eight sums side by side of up to 128 numbers, and halves of more.
pub const NUMPY: &str = "numpy's way";
/// By ONNX Runtime.
pub const ORT: &str = "onnxruntime";
/// By libtorch.
pub const TORCH: &str = "libtorch";

/// Whose claims they are.
const SEED: &str = "onnx-diagnostic's plot_parallelized_reduction";
/// What the example adds to a deviation.
const EPSILON: f64 = 1e-6;

/// What is computed of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Function {
    /// Its mean.
    Mean,
    /// The vector without its mean, over its deviation; in float32 where it is float16.
    Normalized,
}

impl Function {
    /// Both.
    pub const ALL: [Function; 2] = [Function::Mean, Function::Normalized];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Function::Mean => "mean",
            Function::Normalized => "normalized vector",
        }
    }
}

/// How far one way is from itself over the orders of the same numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// What is computed.
    pub function: Function,
    /// Law of the numbers: "normal", "fixed" or "pareto".
    pub distribution: String,
    /// Of the numbers and of what is computed.
    pub dtype: DType,
    /// How many they are.
    pub size: usize,
    /// Who computes.
    pub way: String,
    /// Of means: the largest without the least. Of vectors: the largest |difference| from that of the first order, both
    /// sorted.
    pub spread: Number,
    /// The same over the largest |value|.
    pub relative: Number,
}

/// What two ways give of the same numbers in the same order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Apart {
    /// What is computed.
    pub function: Function,
    /// Of the numbers and of what is computed.
    pub dtype: DType,
    /// One way.
    pub one: String,
    /// The other.
    pub other: String,
    /// Results of which some bit differs.
    pub n_differ: usize,
    /// All, of every law, size and order.
    pub n: usize,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Averages {
    /// Lengths, those of [`SIZES`] up to what was asked for.
    pub sizes: Vec<usize>,
    /// Orders of each.
    pub orders: usize,
    /// By law, function, size, type and way.
    pub spreads: Vec<Spread>,
    /// By function, type and pair of ways.
    pub apart: Vec<Apart>,
}

/// Lengths, types and numbers.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// Lengths above are left out.
    pub(super) largest: usize,
    pub(super) orders: usize,
    /// Beside float64 those of float32 and float16 that are here.
    pub(super) dtypes: Vec<DType>,
    pub(super) seed: u64,
}

type Law = (&'static str, fn(&mut Random, usize) -> Vec<f64>);

/// The example's.
const LAWS: [Law; 3] = [
    ("normal", |random, n| (0..n).map(|_| random.normal()).collect()),
    ("fixed", |_, n| (0..n).map(|at| if at.is_multiple_of(128) { 100. } else { -1e-4 }).collect()),
    ("pareto", |random, n| (0..n).map(|_| 1. / (1. - random.uniform()) - 1.).collect()),
];

/// The nearest value that the type has, float16's largest for what is beyond it.
fn in_type(value: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f16::from_f64(value.clamp(f16::MIN.to_f64(), f16::MAX.to_f64())).to_f64(),
        DType::F32 => f64::from(value as f32),
        _ => value,
    }
}

fn tensor(dtype: DType, numbers: &[f64]) -> Result<TensorBuf, BadTensor> {
    let bytes = match dtype {
        DType::F16 => numbers.iter().flat_map(|&value| f16::from_f64(value).to_le_bytes()).collect(),
        DType::F32 => numbers.iter().flat_map(|&value| (value as f32).to_le_bytes()).collect(),
        _ => numbers.iter().flat_map(|value| value.to_le_bytes()).collect(),
    };
    TensorBuf::new(TensorDesc::new(dtype, vec![numbers.len() as i64])?, bytes)
}

/// X [n] → mean [] or normalized vector [n].
fn model(function: Function, dtype: DType) -> ModelProto {
    let wide = if dtype == DType::F16 { DType::F32 } else { dtype };
    let mean =
        |of: &str, output: &str, keepdims| with_int(node("ReduceMean", &[of, "axes"], output), "keepdims", keepdims);
    let cast =
        |of: &str, to: DType, output: &str| with_int(node("Cast", &[of], output), "to", i64::from(to.onnx_code()));
    let nodes = match function {
        Function::Mean => vec![mean("X", "Y", 0)],
        Function::Normalized => vec![
            cast("X", wide, "wide"),
            mean("wide", "mean", 1),
            node("Sub", &["wide", "mean"], "centred"),
            node("Mul", &["centred", "centred"], "squares"),
            mean("squares", "variance", 1),
            node("Sqrt", &["variance"], "root"),
            node("Add", &["root", "epsilon"], "deviation"),
            node("Div", &["centred", "deviation"], "normalized"),
            cast("normalized", dtype, "Y"),
        ],
    };
    let mut epsilon =
        TensorProto { name: Some("epsilon".to_owned()), data_type: Some(wide.onnx_code()), ..TensorProto::default() };
    match wide {
        DType::F32 => epsilon.float_data = vec![EPSILON as f32],
        _ => epsilon.double_data = vec![EPSILON],
    }
    let of_vector = function == Function::Normalized;
    let graph = GraphProto {
        name: Some(if of_vector { "normalize" } else { "mean" }.to_owned()),
        node: nodes,
        initializer: if of_vector { vec![last_axis(), epsilon] } else { vec![last_axis()] },
        input: vec![value("X", dtype, &["n"])],
        output: vec![value("Y", dtype, if of_vector { &["n"] } else { &[] })],
        ..GraphProto::default()
    };
    graph::model(18, 9, graph)
}

/// Who computes.
enum Way {
    Numpy,
    Session(&'static str, Arc<dyn Session>),
}

impl Way {
    /// Those that there are.
    fn all(runtimes: &Runtimes<'_>, function: Function, dtype: DType) -> Result<Vec<Self>, StudyError> {
        let model = model(function, dtype);
        let spec = runtimes.spec(Optimization::Disable);
        let on_ort = runtimes.onnxruntime.build(&runtimes.runnable(&model, dtype)?.0, &spec)?;
        let mut all = vec![Way::Numpy, Way::Session(ORT, on_ort)];
        if let Ok(libtorch) = &runtimes.libtorch {
            let session = libtorch.runtime.build(&Model::encode(&model), &SessionSpec::default())?;
            all.push(Way::Session(TORCH, session));
        }
        Ok(all)
    }

    fn name(&self) -> &'static str {
        match self {
            Way::Numpy => NUMPY,
            Way::Session(name, _) => name,
        }
    }

    fn compute(&self, function: Function, dtype: DType, numbers: &[f64]) -> Result<Vec<f64>, StudyError> {
        match self {
            Way::Numpy => Ok(as_numpy(function, dtype, numbers)),
            Way::Session(_, session) => {
                let feed = tensor(dtype, numbers)?;
                Ok(values(&only("averages", session.fetch(&leased(&[feed.view()])?)?.0)?))
            }
        }
    }
}

/// In float64, or in float32: of two numbers of float32 float64 has the exact sum and product, so that each operation
/// rounds once.
fn as_numpy(function: Function, dtype: DType, numbers: &[f64]) -> Vec<f64> {
    let round: fn(f64) -> f64 = if dtype == DType::F64 { |value| value } else { |value| f64::from(value as f32) };
    let mean = |of: &[f64]| round(numpy_sum(of, round) / of.len().max(1) as f64);
    let found = match function {
        Function::Mean => vec![mean(numbers)],
        Function::Normalized => {
            let average = mean(numbers);
            let centred: Vec<f64> = numbers.iter().map(|value| round(value - average)).collect();
            let squares: Vec<f64> = centred.iter().map(|value| round(value * value)).collect();
            let deviation = round(round(mean(&squares).sqrt()) + round(EPSILON));
            centred.iter().map(|value| round(value / deviation)).collect()
        }
    };
    found.into_iter().map(|value| in_type(value, dtype)).collect()
}

/// numpy 2's pairwise sum.
fn numpy_sum(numbers: &[f64], round: fn(f64) -> f64) -> f64 {
    const BLOCK: usize = 128;
    let in_order = |from: f64, numbers: &[f64]| numbers.iter().fold(from, |sum, value| round(sum + value));
    match numbers.len() {
        ..8 => in_order(0., numbers),
        n @ 8..=BLOCK => {
            let (whole, rest) = numbers.split_at(n - n % 8);
            let mut sums = [0.; 8];
            sums.copy_from_slice(&whole[..8]);
            for eight in whole[8..].chunks(8) {
                sums.iter_mut().zip(eight).for_each(|(sum, value)| *sum = round(*sum + value));
            }
            let two = |at: usize| round(sums[at] + sums[at + 1]);
            let sum = round(round(two(0) + two(2)) + round(two(4) + two(6)));
            in_order(sum, rest)
        }
        n => {
            let (left, right) = numbers.split_at(n / 2 - n / 2 % 8);
            round(numpy_sum(left, round) + numpy_sum(right, round))
        }
    }
}

/// The first numbers in their orders: as drawn, sorted upwards, downwards, shuffled.
fn orders(numbers: &[f64], n: usize, random: &mut Random) -> Vec<Vec<f64>> {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mut all = vec![numbers.to_vec(), sorted.clone()];
    sorted.reverse();
    all.push(sorted);
    all.truncate(n.max(1));
    while all.len() < n {
        let mut next = numbers.to_vec();
        random.shuffle(&mut next);
        all.push(next);
    }
    all
}

/// (spread, largest |value|) of what came out for each order.
fn spread(function: Function, found: &[Vec<f64>]) -> (f64, f64) {
    let largest = |values: &mut dyn Iterator<Item = f64>| {
        values.fold(0_f64, |so_far, value| if value > so_far || value.is_nan() { value } else { so_far })
    };
    let scale = largest(&mut found.iter().flatten().map(|value| value.abs()));
    let sorted = |values: &[f64]| {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted
    };
    let spread = match function {
        Function::Mean => {
            let means = || found.iter().flatten().copied();
            means().fold(f64::NEG_INFINITY, f64::max) - means().fold(f64::INFINITY, f64::min)
        }
        Function::Normalized => {
            let first = sorted(&found[0]);
            let distance = |values: &Vec<f64>| {
                largest(&mut sorted(values).iter().zip(&first).map(|(value, first)| (value - first).abs()))
            };
            largest(&mut found.iter().map(distance))
        }
    };
    (spread, scale)
}

/// Computes all of it. Errors: [`StudyError`].
pub(super) fn averages(runtimes: &Runtimes<'_>, settings: &Settings) -> Result<Averages, StudyError> {
    let sizes: Vec<usize> = SIZES.into_iter().filter(|&size| size <= settings.largest).collect();
    let mut all = Averages { sizes, orders: settings.orders.max(1), ..Averages::default() };
    let asked = settings.dtypes.iter().copied().filter(|dtype| [DType::F32, DType::F16].contains(dtype));
    for dtype in std::iter::once(DType::F64).chain(asked) {
        for function in Function::ALL {
            all.of(runtimes, settings.seed, function, dtype)?;
        }
    }
    let place = |spread: &Spread| LAWS.iter().position(|(name, _)| *name == spread.distribution);
    all.spreads.sort_by_key(|spread| (place(spread), spread.function as u8, spread.size));
    Ok(all)
}

impl Averages {
    fn of(&mut self, runtimes: &Runtimes<'_>, seed: u64, function: Function, dtype: DType) -> Result<(), StudyError> {
        let ways = Way::all(runtimes, function, dtype)?;
        let mut differ = vec![(0, 0); ways.len()];
        for (distribution, draw) in LAWS {
            let mut random = Random::new(seed);
            let drawn = draw(&mut random, SIZES[SIZES.len() - 1]);
            for size in self.sizes.clone() {
                let numbers: Vec<f64> = drawn[..size].iter().map(|&value| in_type(value, dtype)).collect();
                let orders = orders(&numbers, self.orders, &mut random);
                let found = ways
                    .iter()
                    .map(|way| orders.iter().map(|order| way.compute(function, dtype, order)).collect())
                    .collect::<Result<Vec<Vec<Vec<f64>>>, StudyError>>()?;
                for (way, found) in ways.iter().zip(&found) {
                    let (spread, scale) = spread(function, found);
                    self.spreads.push(Spread {
                        function,
                        distribution: distribution.to_owned(),
                        dtype,
                        size,
                        way: way.name().to_owned(),
                        spread: Number(spread),
                        relative: Number(if spread == 0. { 0. } else { spread / scale }),
                    });
                }
                // Each way against the next, and the last against the first.
                for (at, (n_differ, n)) in differ.iter_mut().enumerate() {
                    let (one, other) = (&found[at], &found[(at + 1) % ways.len()]);
                    *n_differ += one.iter().zip(other).filter(|(one, other)| has_other_bits(one, other)).count();
                    *n += one.len();
                }
            }
        }
        let pairs = if ways.len() == 2 { 1 } else { ways.len() };
        for (at, (n_differ, n)) in differ.into_iter().enumerate().take(pairs) {
            let [one, other] = [at, (at + 1) % ways.len()].map(|at| ways[at].name().to_owned());
            self.apart.push(Apart { function, dtype, one, other, n_differ, n });
        }
        Ok(())
    }

    /// Largest spread over the sizes; None where it was not run.
    pub fn largest(&self, function: Function, distribution: &str, dtype: DType, way: &str) -> Option<f64> {
        self.largest_of(function, distribution, dtype, way, |spread| spread.spread.0)
    }

    fn largest_of(
        &self,
        function: Function,
        distribution: &str,
        dtype: DType,
        way: &str,
        of: fn(&Spread) -> f64,
    ) -> Option<f64> {
        let is_its = |spread: &&Spread| {
            (spread.function, spread.distribution.as_str(), spread.dtype, spread.way.as_str())
                == (function, distribution, dtype, way)
        };
        self.spreads.iter().filter(is_its).map(of).max_by(f64::total_cmp)
    }

    /// Names of the laws.
    pub fn laws() -> impl Iterator<Item = &'static str> {
        LAWS.iter().map(|(name, _)| *name)
    }

    /// Whether sizes and orders are the example's.
    pub(super) fn are_as_claimed(&self) -> bool {
        self.sizes == SIZES && self.orders == ORDERS
    }

    /// The example's claims.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        for way in [NUMPY, ORT, TORCH] {
            found.extend(Function::ALL.map(|function| self.is_changed_by_order(function, way)));
        }
        found.extend([NUMPY, ORT, TORCH].map(|way| self.has_long_tail(way)));
        let pairs = [(NUMPY, ORT), (ORT, TORCH)];
        found.extend(pairs.map(|(one, other)| self.are_apart(one, other)));
        found
    }

    fn is_changed_by_order(&self, function: Function, way: &str) -> Finding {
        let of = |dtype: DType| -> Option<(String, bool)> {
            let each: Option<Vec<(&str, f64)>> =
                Self::laws().map(|law| Some((law, self.largest(function, law, dtype, way)?))).collect();
            let each = each?;
            let list: Vec<String> = each.iter().map(|(law, spread)| format!("{law} {}", text(*spread))).collect();
            Some((format!("{dtype}: {}", list.join(", ")), each.iter().all(|(_, spread)| *spread > 0.)))
        };
        Finding::new(
            format!(
                "{}, {way}: another order of the same numbers gives another result, in float64 and float32",
                function.name()
            ),
            (SEED, "of normal, fixed and pareto numbers; its source prints none of them"),
            of(DType::F64)
                .zip(of(DType::F32))
                .map(|((wide, in_wide), (narrow, in_narrow))| (format!("{wide}; {narrow}"), in_wide && in_narrow)),
        )
    }

    fn has_long_tail(&self, way: &str) -> Finding {
        let of = |dtype: DType| -> Option<(String, bool)> {
            let spread = |law| self.largest(Function::Normalized, law, dtype, way);
            let (tail, normal) = spread("pareto").zip(spread("normal"))?;
            Some((format!("{dtype}: {} against {}", text(tail), text(normal)), tail > normal))
        };
        Finding::new(
            format!("normalized vector, {way}: a law with a long tail (pareto) spreads more than normal numbers do"),
            (SEED, "a picture by law, of any size; its source prints no numbers"),
            of(DType::F64)
                .zip(of(DType::F32))
                .map(|((wide, in_wide), (narrow, in_narrow))| (format!("{wide}; {narrow}"), in_wide && in_narrow)),
        )
    }

    fn are_apart(&self, one: &str, other: &str) -> Finding {
        let pairs: Vec<&Apart> = self
            .apart
            .iter()
            .filter(|apart| (apart.one.as_str(), apart.other.as_str()) == (one, other) && apart.dtype != DType::F16)
            .collect();
        let list = || {
            let each = pairs.iter().map(|apart| {
                let share = 100. * apart.n_differ as f64 / apart.n.max(1) as f64;
                format!("{} of {}: {} %", apart.function.name(), apart.dtype, significant(share, 3))
            });
            each.collect::<Vec<_>>().join(", ")
        };
        Finding::new(
            format!(
                "{one} and {other} add in other orders: of the same numbers in the same order they give other results"
            ),
            (SEED, "\"a different code doing a different parallelization … some errors will appear\""),
            (!pairs.is_empty()).then(|| (list(), pairs.iter().all(|apart| apart.n_differ > 0))),
        )
    }

    /// What no example claims.
    pub(super) fn own_findings(&self) -> Vec<Finding> {
        let relative =
            |law: &str, way: &str| self.largest_of(Function::Mean, law, DType::F32, way, |spread| spread.relative.0);
        let of_way = |way: &str| {
            Finding::own(
                format!(
                    "mean, float32, {way}: over the mean itself normal numbers spread more than pareto's, for theirs is near 0"
                ),
                relative("normal", way)
                    .zip(relative("pareto", way))
                    .map(|(normal, tail)| (format!("{} against {}", text(normal), text(tail)), normal > tail)),
            )
        };
        [NUMPY, ORT, TORCH].map(of_way).to_vec()
    }
}

fn has_other_bits(one: &[f64], other: &[f64]) -> bool {
    one.len() != other.len() || one.iter().zip(other).any(|(one, other)| one.to_bits() != other.to_bits())
}

fn text(value: f64) -> String {
    significant(value, 3)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Holds;
    use super::*;

    fn some() -> Vec<f64> {
        (0..300).map(|at| in_type(f64::from(at * 7919 % 1009) / 1009. - 0.5, DType::F32)).collect()
    }

    #[test]
    fn sums_are_numpys_to_the_bit() {
        // numpy 2.4: np.sum, np.mean of the same 300 numbers in float32; np.sum of them from the last to the first.
        let narrow = |value: f64| f64::from(value as f32);
        assert_eq!(numpy_sum(&some(), narrow), 0.157_581_865_787_506_1);
        assert_eq!(as_numpy(Function::Mean, DType::F32, &some()), [0.000_525_272_858_794_778_6]);
        let reversed: Vec<f64> = some().into_iter().rev().collect();
        assert_eq!(numpy_sum(&reversed, narrow), 0.157_581_686_973_571_78);
        assert_eq!(numpy_sum(&[], narrow), 0.);
    }

    #[test]
    fn a_normalized_vector_has_no_mean_and_a_deviation_of_one() {
        for dtype in [DType::F64, DType::F32, DType::F16] {
            let found = as_numpy(Function::Normalized, dtype, &some());
            let n = found.len() as f64;
            let mean = found.iter().sum::<f64>() / n;
            let variance = found.iter().map(|value| value * value).sum::<f64>() / n;
            assert!(mean.abs() < 1e-3 && (variance - 1.).abs() < 1e-3, "{dtype}: {mean} {variance}");
            assert!(found.iter().all(|&value| in_type(value, dtype) == value));
        }
    }

    #[test]
    fn spreads_are_of_means_and_of_sorted_vectors() {
        assert_eq!(spread(Function::Mean, &[vec![1.], vec![3.], vec![2.]]), (2., 3.));
        assert_eq!(spread(Function::Normalized, &[vec![1., -2.], vec![-2., 1.], vec![-2., 1.5]]), (0.5, 2.));
        assert!(spread(Function::Normalized, &[vec![1.], vec![f64::NAN]]).0.is_nan());
    }

    #[test]
    fn orders_begin_as_drawn_and_sorted() {
        let all = orders(&[2., 3., 1.], 5, &mut Random::new(1));
        assert_eq!(all[..3], [vec![2., 3., 1.], vec![1., 2., 3.], vec![3., 2., 1.]]);
        assert_eq!((all.len(), orders(&[2., 1.], 0, &mut Random::new(1)).len()), (5, 1));
    }

    fn averages(pareto: f64) -> Averages {
        let mut all = Averages { sizes: SIZES.to_vec(), orders: ORDERS, ..Averages::default() };
        for dtype in [DType::F64, DType::F32] {
            for function in Function::ALL {
                for (distribution, value) in [("normal", 1e-7), ("fixed", 2e-7), ("pareto", pareto)] {
                    all.spreads.push(Spread {
                        function,
                        distribution: distribution.to_owned(),
                        dtype,
                        size: 8,
                        way: ORT.to_owned(),
                        spread: Number(value),
                        relative: Number(value),
                    });
                }
                let (one, other) = (NUMPY.to_owned(), ORT.to_owned());
                all.apart.push(Apart { function, dtype, one, other, n_differ: 1, n: 4 });
            }
        }
        all
    }

    #[test]
    fn claims_are_judged_by_the_examples_own_measure() {
        let holds = |pareto: f64| -> Vec<Holds> {
            let of_ort = |finding: &Finding| finding.holds != Holds::NotExamined;
            averages(pareto).findings().into_iter().filter(of_ort).map(|finding| finding.holds).collect()
        };
        use Holds::{No, Yes};
        assert_eq!(holds(3e-7), [Yes, Yes, Yes, Yes]);
        assert_eq!(holds(0.5e-7), [Yes, Yes, No, Yes]);
        assert_eq!(holds(0.), [No, No, No, Yes]);
        assert!(Averages::default().findings().iter().all(|finding| finding.holds == Holds::NotExamined));
        assert!(averages(1.).are_as_claimed() && !Averages::default().are_as_claimed());
    }
}
