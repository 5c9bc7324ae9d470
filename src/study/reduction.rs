//! The same numbers in other orders: how far results are apart, by way of adding, distribution and dtype.
//!
//! Made again: onnx-diagnostic's example plot_parallelized_reduction, whose means and normalized vectors are in
//! [`averages`](super::averages). Its source prints no numbers, so that its claims are what is looked at. The sums are this
//! study's own: more numbers, so that runtimes use several threads, more distributions and ways to add.

use std::collections::HashSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::averages::{self, Averages, Function};
use super::error::StudyError;
use super::finding::Finding;
use super::graph::{last_axis, model as model_of, node, value, with_int};
use super::number::{Number, round, tensor, values};
use super::plot::{Form, Panel, Plot, Series};
use super::random::Random;
use super::run::{Runtimes, Setup, only};
use super::sums;
use crate::compare::significant;
use crate::onnx::proto::{GraphProto, ModelProto};
use crate::protocol::message::{CPU_PROVIDER, Optimization, SessionSpec};
use crate::runtime::{Model, Session, leased};
use crate::tensor::{DType, TensorBuf};

/// ONNX Runtime's ReduceSum of one order a call.
pub const ORT: &str = "onnxruntime";
/// ONNX Runtime's ReduceSum of all orders in one call, a row each.
pub const ORT_ROWS: &str = "onnxruntime, rows";
/// libtorch's sum of one order a call.
pub const TORCH: &str = "libtorch";
/// libtorch's of all orders in one call.
pub const TORCH_ROWS: &str = "libtorch, rows";

/// Sizes and kinds of the numbers.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Numbers that are added up.
    pub size: usize,
    /// Orders.
    pub orders: usize,
    /// float32, float16, bfloat16.
    pub dtypes: Vec<DType>,
    /// Of the numbers and orders.
    pub seed: u64,
}

impl Settings {
    /// Beyond the 32768 from which on libtorch adds up on several threads.
    pub const SIZE: usize = 65_536;
    /// The example's.
    pub const ORDERS: usize = averages::ORDERS;
    /// Times that the first order is added up.
    const REPEATS: usize = 5;
}

/// The whole study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Study {
    /// What it ran on.
    pub setup: Setup,
    /// Numbers that are added up.
    pub size: usize,
    /// Orders: as drawn, sorted upwards, downwards, and shuffled ones.
    pub orders: usize,
    /// The example's means and normalized vectors.
    pub averages: Averages,
    /// By dtype, distribution and way.
    pub sums: Vec<Sums>,
    /// The example's, and whether they hold here.
    pub findings: Vec<Finding>,
}

/// What one way of adding gives of one set of numbers in its orders.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sums {
    /// Of the numbers and of the sum.
    pub dtype: DType,
    /// Of the numbers.
    pub distribution: String,
    /// Of adding.
    pub way: String,
    /// Of the runtime's pool; None where this program itself adds.
    pub threads: Option<u32>,
    /// In float64.
    pub exact: Number,
    /// Least sum.
    pub lowest: Number,
    /// Largest sum.
    pub highest: Number,
    /// Their difference.
    pub spread: Number,
    /// The same over |exact|.
    pub relative_spread: Number,
    /// Largest |sum − exact|.
    pub error: Number,
    /// The same over |exact|.
    pub relative_error: Number,
    /// Sums that are not the same.
    pub n_distinct: usize,
    /// The first order, added up again and again, gave the same bits each time.
    pub repeats: bool,
    /// Hash of the bits of all sums, in order: two ways with the same one agree in every sum.
    pub bits: String,
}

/// A distribution: its name and how to draw from it.
type Distribution = (&'static str, fn(&mut Random, usize) -> Vec<f32>);

/// Those of the example are normal, fixed and pareto.
const DISTRIBUTIONS: &[Distribution] = &[
    ("uniform", |random, n| (0..n).map(|_| random.uniform() as f32).collect()),
    ("normal", |random, n| random.normals(n)),
    ("log-normal", |random, n| (0..n).map(|_| random.normal().exp() as f32).collect()),
    ("pareto", |random, n| (0..n).map(|_| (1. / (1. - random.uniform()) - 1.) as f32).collect()),
    ("alternating", |random, n| {
        let sign = |at: usize| if at.is_multiple_of(2) { 1. } else { -1. };
        (0..n).map(|at| (sign(at) * (1. + random.uniform())) as f32).collect()
    }),
    ("one large", |random, n| (0..n).map(|at| if at == 0 { 1e4 } else { random.uniform() as f32 * 1e-2 }).collect()),
    ("fixed", |_, n| (0..n).map(|at| if at.is_multiple_of(128) { 100. } else { -1e-4 }).collect()),
];

/// float16's, for every type.
const LARGEST: f32 = 65_504.;

/// Names of the distributions.
pub fn distributions() -> impl Iterator<Item = &'static str> {
    DISTRIBUTIONS.iter().map(|(name, _)| *name)
}

/// The sum along the last axis. X [a…] → [a without the last].
fn model(dtype: DType, rank: usize) -> ModelProto {
    let dims = ["a", "b"];
    let (input, output) = if rank == 1 { (&dims[1..], &dims[..0]) } else { (&dims[..], &dims[..1]) };
    let graph = GraphProto {
        name: Some("sum".to_owned()),
        node: vec![with_int(node("ReduceSum", &["X", "axes"], "sum"), "keepdims", 0)],
        initializer: vec![last_axis()],
        input: vec![value("X", dtype, input)],
        output: vec![value("sum", dtype, output)],
        ..GraphProto::default()
    };
    model_of(18, 9, graph)
}

/// A runtime that adds up one order, and all at once.
struct Adder {
    way: [&'static str; 2],
    one: Arc<dyn Session>,
    rows: Arc<dyn Session>,
}

impl Adder {
    fn of(runtimes: &Runtimes<'_>, dtype: DType) -> Result<Vec<Self>, StudyError> {
        let spec = runtimes.spec(Optimization::Disable);
        let build = |rank| -> Result<_, StudyError> {
            Ok(runtimes.onnxruntime.build(&runtimes.runnable(&model(dtype, rank), dtype)?.0, &spec)?)
        };
        let mut all = vec![Adder { way: [ORT, ORT_ROWS], one: build(1)?, rows: build(2)? }];
        if let Ok(libtorch) = &runtimes.libtorch {
            let build = |rank| libtorch.runtime.build(&Model::encode(&model(dtype, rank)), &SessionSpec::default());
            all.push(Adder { way: [TORCH, TORCH_ROWS], one: build(1)?, rows: build(2)? });
        }
        Ok(all)
    }

    fn one(&self, numbers: &TensorBuf) -> Result<f64, StudyError> {
        let sum = only("reduction", self.one.fetch(&leased(&[numbers.view()])?)?.0)?;
        Ok(values(&sum).first().copied().unwrap_or_default())
    }

    fn rows(&self, numbers: &TensorBuf) -> Result<Vec<f64>, StudyError> {
        Ok(values(&only("reduction", self.rows.fetch(&leased(&[numbers.view()])?)?.0)?))
    }
}

/// The same numbers in several orders.
struct Orders {
    dtype: DType,
    distribution: &'static str,
    exact: f64,
    orders: Vec<Vec<f32>>,
}

impl Orders {
    fn draw(settings: &Settings, dtype: DType, (distribution, draw): Distribution) -> Self {
        let mut random = Random::new(settings.seed);
        let mut drawn = draw(&mut random, settings.size);
        // What is beyond the type is its largest: of infinities there is no sum.
        drawn.iter_mut().for_each(|value| *value = round(value.clamp(-LARGEST, LARGEST), dtype));
        let mut sorted = drawn.clone();
        sorted.sort_by(f32::total_cmp);
        let mut orders = vec![drawn.clone(), sorted.clone()];
        sorted.reverse();
        orders.push(sorted);
        orders.truncate(settings.orders.max(1));
        while orders.len() < settings.orders {
            let mut next = drawn.clone();
            random.shuffle(&mut next);
            orders.push(next);
        }
        Self { dtype, distribution, exact: sums::exact(&drawn), orders }
    }

    fn sums(&self, way: &str, threads: Option<u32>, found: &[f64], repeats: bool) -> Sums {
        // A way that overflowed on the way gives no number.
        let fold = |of: fn(f64, f64) -> f64, from: f64, values: &mut dyn Iterator<Item = f64>| {
            values.fold(
                from,
                |so_far, value| if so_far.is_nan() || value.is_nan() { f64::NAN } else { of(so_far, value) },
            )
        };
        let lowest = fold(f64::min, f64::INFINITY, &mut found.iter().copied());
        let highest = fold(f64::max, f64::NEG_INFINITY, &mut found.iter().copied());
        // Of two infinities there is no difference: what overflowed in every order has no spread of 0.
        let spread = highest - lowest;
        let error = fold(f64::max, 0., &mut found.iter().map(|sum| (sum - self.exact).abs()));
        let bits: Vec<u8> = found.iter().flat_map(|sum| sum.to_bits().to_le_bytes()).collect();
        let relative = |value: f64| Number(if value == 0. { 0. } else { value / self.exact.abs() });
        Sums {
            dtype: self.dtype,
            distribution: self.distribution.to_owned(),
            way: way.to_owned(),
            threads,
            exact: Number(self.exact),
            lowest: Number(lowest),
            highest: Number(highest),
            spread: Number(spread),
            relative_spread: relative(spread),
            error: Number(error),
            relative_error: relative(error),
            n_distinct: found.iter().map(|sum| sum.to_bits()).collect::<HashSet<_>>().len(),
            repeats,
            bits: blake3::hash(&bits).to_hex()[..16].to_owned(),
        }
    }

    fn by_runtime(&self, adder: &Adder, threads: u32) -> Result<[Sums; 2], StudyError> {
        let Self { dtype, orders, .. } = self;
        let size = orders.first().map_or(0, Vec::len);
        let mut found = Vec::with_capacity(orders.len());
        for order in orders {
            found.push(adder.one(&tensor(*dtype, &[size], order)?)?);
        }
        let first = tensor(*dtype, &[size], &orders[0])?;
        let mut repeats = true;
        for _ in 0..Settings::REPEATS {
            repeats &= adder.one(&first)?.to_bits() == found[0].to_bits();
        }
        let all = tensor(*dtype, &[orders.len(), size], &orders.concat())?;
        let rows = adder.rows(&all)?;
        let mut rows_repeat = true;
        for _ in 0..Settings::REPEATS {
            rows_repeat &= adder.rows(&all)?.iter().zip(&rows).all(|(one, other)| one.to_bits() == other.to_bits());
        }
        let [one, all] = adder.way;
        Ok([self.sums(one, Some(threads), &found, repeats), self.sums(all, Some(threads), &rows, rows_repeat)])
    }

    fn by_hand(&self) -> [Sums; 3] {
        type Way = fn(&[f32], DType) -> f32;
        let ways: [(&str, Way); 3] =
            [("sequential", sums::sequential), ("pairwise", sums::pairwise), ("Kahan", sums::kahan)];
        ways.map(|(name, way)| {
            let found: Vec<f64> = self.orders.iter().map(|order| f64::from(way(order, self.dtype))).collect();
            self.sums(name, None, &found, true)
        })
    }
}

/// Makes the study. `whole`: means, normalized vectors and this program's own sums, too, and not the runtimes' sums alone.
/// `done`: told of each set of numbers. Errors: [`StudyError`].
pub fn study(
    runtimes: &Runtimes<'_>,
    settings: &Settings,
    whole: bool,
    done: &mut dyn FnMut(),
) -> Result<Study, StudyError> {
    let averages = match whole {
        true => {
            let Settings { size: largest, orders, ref dtypes, seed } = *settings;
            averages::averages(runtimes, &averages::Settings { largest, orders, dtypes: dtypes.clone(), seed })?
        }
        false => Averages::default(),
    };
    let mut sums = Vec::new();
    for &dtype in &settings.dtypes {
        let adders = Adder::of(runtimes, dtype)?;
        for &distribution in DISTRIBUTIONS {
            let orders = Orders::draw(settings, dtype, distribution);
            for adder in &adders {
                sums.extend(orders.by_runtime(adder, runtimes.threads)?);
            }
            if whole {
                sums.extend(orders.by_hand());
            }
            done();
        }
    }
    let (size, orders) = (settings.size, settings.orders.max(1));
    let setup = runtimes.setup(settings.seed);
    let mut study = Study { setup, size, orders, averages, sums, findings: Vec::new() };
    study.judge();
    Ok(study)
}

impl Study {
    /// Adds what the same study found with another number of threads, and looks at all of it again.
    pub fn add(&mut self, other: Vec<Sums>) {
        self.sums.extend(other.into_iter().filter(|sums| sums.threads.is_some()));
        let place = |sums: &Sums| {
            let distribution = DISTRIBUTIONS.iter().position(|(name, _)| *name == sums.distribution);
            (self.setup.threads == 1, distribution)
        };
        let dtypes: Vec<DType> = self.sums.iter().map(|sums| sums.dtype).collect();
        let first = |dtype: DType| dtypes.iter().position(|known| *known == dtype);
        self.sums.sort_by_key(|sums| (first(sums.dtype), place(sums), sums.threads.is_none(), sums.way.clone()));
        self.judge();
    }

    fn judge(&mut self) {
        let on_cpu = self.setup.provider == CPU_PROVIDER;
        let averages = &self.averages;
        self.findings = Finding::judged(averages.findings(), on_cpu && averages.are_as_claimed());
        self.findings.extend(Finding::judged(averages.own_findings(), on_cpu && averages.are_as_claimed()));
        let of_sums = on_cpu && (self.size, self.orders) == (Settings::SIZE, Settings::ORDERS);
        self.findings.extend(Finding::judged(findings(&self.sums), of_sums));
    }
}

impl Study {
    /// Spread over |sum|, by distribution and way, a panel a dtype.
    pub fn plot(&self) -> Plot {
        let mut dtypes: Vec<DType> = Vec::new();
        for sums in &self.sums {
            if !dtypes.contains(&sums.dtype) {
                dtypes.push(sums.dtype);
            }
        }
        let title = format!("Spread over {} orders: means, normalized vectors, sums of {}", self.orders, self.size);
        let averages = Function::ALL.map(|function| self.panel_of_averages(function));
        Plot { title, panels: averages.into_iter().chain(dtypes.into_iter().map(|dtype| self.panel(dtype))).collect() }
    }

    /// As the example draws it: the largest spread over all sizes, by type and law.
    fn panel_of_averages(&self, function: Function) -> Panel {
        let averages = &self.averages;
        let dtypes = [(DType::F64, "f64"), (DType::F32, "f32"), (DType::F16, "f16")];
        let places: Vec<(&str, DType, &str)> =
            dtypes.iter().flat_map(|&(dtype, short)| Averages::laws().map(move |law| (law, dtype, short))).collect();
        let of_way = |way: &str| {
            let largest = |&(law, dtype, _): &(&str, DType, &str)| averages.largest(function, law, dtype, way);
            let known = places.iter().enumerate().filter_map(|(at, place)| Some((at as f64, largest(place)?)));
            Series { label: way.to_owned(), points: known.collect() }
        };
        let series = [averages::NUMPY, averages::ORT, averages::TORCH].map(of_way);
        Panel {
            title: format!("{}, up to {} numbers", function.name(), averages.sizes.last().unwrap_or(&0)),
            y_label: "largest spread of any size".to_owned(),
            categories: places.iter().map(|(law, _, short)| format!("{law} {short}")).collect(),
            log_y: true,
            form: Form::Bars,
            series: series.into_iter().filter(|series| !series.points.is_empty()).collect(),
            ..Panel::default()
        }
    }

    fn panel(&self, dtype: DType) -> Panel {
        let ways = [ORT, ORT_ROWS, TORCH, TORCH_ROWS, "sequential", "pairwise", "Kahan"];
        let of_way = |way: &str| {
            let found = self.sums.iter().filter(|sums| sums.dtype == dtype && sums.way == way);
            let found = found.filter(|sums| sums.threads.is_none_or(|threads| threads == self.setup.threads));
            let place = |sums: &Sums| distributions().position(|name| name == sums.distribution);
            found.filter_map(|sums| Some((place(sums)? as f64, sums.relative_spread.0))).collect::<Vec<_>>()
        };
        let series = ways.iter().map(|way| Series { label: (*way).to_owned(), points: of_way(way) });
        Panel {
            title: format!("{dtype}, {} threads", self.setup.threads),
            y_label: "(highest - lowest) / |sum|".to_owned(),
            categories: distributions().map(str::to_owned).collect(),
            log_y: true,
            series: series.filter(|series| !series.points.is_empty()).collect(),
            ..Panel::default()
        }
    }
}

fn text(value: f64) -> String {
    significant(value, 4)
}

fn findings(sums: &[Sums]) -> Vec<Finding> {
    let of = |dtype: DType, distribution: &str, way: &str| {
        sums.iter().find(|sums| sums.dtype == dtype && sums.distribution == distribution && sums.way == way)
    };
    let spread = |dtype, distribution, way| of(dtype, distribution, way).map(|sums| sums.spread.0);
    let mut found = Vec::new();
    for way in [ORT, TORCH] {
        let spreads: Vec<(&str, f64)> =
            distributions().filter_map(|name| Some((name, spread(DType::F32, name, way)?))).collect();
        found.push(Finding::own(
            format!("float32, {way}: the order of the numbers changes their sum"),
            (!spreads.is_empty()).then(|| {
                let list: Vec<String> =
                    spreads.iter().map(|(name, spread)| format!("{name} {}", text(*spread))).collect();
                (list.join(", "), spreads.iter().all(|(_, spread)| *spread > 0.))
            }),
        ));
        let relative = |dtype| of(dtype, "normal", way).map(|sums| sums.relative_error.0);
        found.push(Finding::own(
            format!("{way}: the narrower the type, the further a sum of normal numbers from float64, relatively"),
            relative(DType::F32)
                .zip(relative(DType::F16))
                .map(|(f32, f16)| (format!("float32 {}, float16 {}", text(f32), text(f16)), f16 > f32)),
        ));
    }
    for ways in [[ORT, ORT_ROWS], [TORCH, TORCH_ROWS]] {
        found.push(threads(sums, ways));
    }
    let rounded: Vec<&Sums> = sums.iter().filter(|sums| sums.threads.is_some()).collect();
    found.push(Finding::own(
        "the same order added up again gives the same bits",
        (!rounded.is_empty()).then(|| {
            let n = rounded.iter().filter(|sums| !sums.repeats).count();
            (format!("{n} of {} ways and numbers differ from time to time", rounded.len()), n == 0)
        }),
    ));
    found
}

/// Whether one thread and several give other sums, of one runtime.
fn threads(sums: &[Sums], ways: [&str; 2]) -> Finding {
    let of_ways = || sums.iter().filter(|sums| ways.contains(&sums.way.as_str()));
    let pairs: Vec<(&Sums, &Sums)> = of_ways()
        .filter(|sums| sums.threads == Some(1))
        .filter_map(|one| {
            let same = |other: &&Sums| {
                (other.dtype, &other.distribution, &other.way) == (one.dtype, &one.distribution, &one.way)
            };
            Some((one, of_ways().filter(same).find(|other| other.threads != Some(1))?))
        })
        .collect();
    let here = (!pairs.is_empty()).then(|| {
        let n = pairs.iter().filter(|(one, other)| one.bits != other.bits).count();
        (format!("{n} of {} ways and numbers differ between one thread and several", pairs.len()), n > 0)
    });
    Finding::own(format!("{}: another number of threads adds in another order, and the sums differ", ways[0]), here)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings { size: 64, orders: 5, dtypes: vec![DType::F16], seed: 1 }
    }

    #[test]
    fn orders_hold_the_same_numbers() {
        for &distribution in DISTRIBUTIONS {
            let drawn = Orders::draw(&settings(), DType::F16, distribution);
            assert_eq!(drawn.orders.len(), 5);
            assert!(drawn.orders[1].is_sorted() && drawn.orders[2].iter().rev().is_sorted());
            for order in &drawn.orders {
                let mut sorted = order.clone();
                sorted.sort_by(f32::total_cmp);
                assert_eq!(sorted, drawn.orders[1], "{}", distribution.0);
                assert!(order.iter().all(|&value| round(value, DType::F16) == value));
            }
        }
    }

    #[test]
    fn spread_and_error_are_of_all_orders() {
        let orders = Orders { dtype: DType::F32, distribution: "x", exact: 4., orders: vec![vec![4.]] };
        let sums = orders.sums("way", None, &[4., 5., 3.5, 5.], true);
        assert_eq!((sums.lowest.0, sums.highest.0, sums.spread.0, sums.error.0), (3.5, 5., 1.5, 1.));
        assert_eq!((sums.relative_spread.0, sums.relative_error.0, sums.n_distinct), (0.375, 0.25, 3));
        let overflown = orders.sums("way", None, &[f64::INFINITY; 2], true);
        assert!(overflown.spread.0.is_nan() && overflown.relative_spread.0.is_nan());
        assert_eq!(overflown.error.0, f64::INFINITY);
        let lost = orders.sums("way", None, &[1., f64::NAN, 2.], true);
        assert!(lost.lowest.0.is_nan() && lost.spread.0.is_nan() && lost.error.0.is_nan());
    }

    #[test]
    fn by_hand_kahan_is_the_nearest() {
        let drawn = Orders::draw(&Settings { size: 4096, ..settings() }, DType::F16, DISTRIBUTIONS[0]);
        let [sequential, pairwise, kahan] = drawn.by_hand();
        assert!(kahan.error.0 <= pairwise.error.0 && pairwise.error.0 < sequential.error.0);
    }

    #[test]
    fn threads_are_compared_where_both_were_run() {
        let orders = Orders { dtype: DType::F32, distribution: "x", exact: 4., orders: Vec::new() };
        let sums = [orders.sums(ORT, Some(1), &[4.], true), orders.sums(ORT, Some(0), &[4.5], true)];
        let holds = |sums: &[Sums]| threads(sums, [ORT, ORT_ROWS]).holds;
        use super::super::finding::Holds;
        assert_eq!((holds(&sums), holds(&sums[..1])), (Holds::Yes, Holds::NotExamined));
    }
}
