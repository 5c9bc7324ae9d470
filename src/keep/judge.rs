//! How far outputs are from what they should be, and whether that is near enough. Pure.

use std::cell::Cell;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::base::ids::ValueName;
use crate::compare::{Policy, TensorVerdict, Tolerance, Verdict, judge, judge_sums};
use crate::tensor::{DType, TensorBuf, TensorView};

/// What outputs must be within.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// Every element within this of the reference; None: of the run, else by the half precision that takes part.
    Tolerance(Option<Tolerance>),
    /// The root of the mean squared error at most so many times what it is when the reference itself is rounded to half
    /// precision.
    Times(f64),
}

/// An output against its reference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// In float64. By tolerance where that is the limit.
    pub verdict: TensorVerdict,
    /// Its error as so many times what rounding the reference gives; None: infinite, or NaN.
    pub times: Option<f64>,
    /// Whether it is near enough.
    pub within: bool,
}

/// What an output should be.
pub struct Reference {
    /// In float64 where it is a float.
    exact: TensorBuf,
    /// The root of the mean squared error of rounding it to half precision.
    rounding: f64,
    /// Σ|terms| of each element, float64, of an output that is a sum.
    terms: Option<TensorBuf>,
}

impl Reference {
    /// `half`: the precision that takes part; `terms`: of an output that is a sum.
    pub fn new(exact: &TensorBuf, terms: Option<TensorBuf>, half: DType) -> Self {
        let exact = exact.view().in_float64();
        let rounding = if exact.desc().dtype.is_float() { rounding(&exact, half) } else { 0. };
        Self { exact, rounding, terms }
    }

    /// Elements that are infinite or NaN.
    pub fn n_unknown(&self) -> usize {
        let exact = self.exact.view();
        let values = exact.flat_f64(0..exact.shape().n_elements()).unwrap_or_default();
        values.iter().filter(|value| !value.is_finite()).count()
    }
}

/// Judges a part's outputs.
pub struct Judge {
    /// In the model's order: name and element type; None: no float, which is not judged.
    pub outputs: Vec<(ValueName, Option<DType>)>,
    /// The half precision that takes part.
    pub half: DType,
    /// As asked for.
    pub limit: Limit,
    /// The output that was not near enough last: asked first.
    last: Cell<usize>,
}

impl Judge {
    /// Of a part with these outputs.
    pub fn new(outputs: Vec<(ValueName, Option<DType>)>, half: DType, limit: Limit) -> Self {
        Self { outputs, half, limit, last: Cell::new(0) }
    }

    /// Whether no output is a float.
    pub fn is_idle(&self) -> bool {
        self.outputs.iter().all(|(_, float)| float.is_none())
    }

    /// Of each output that is a float; `outputs`: of any floating type, before or after they are rounded.
    pub fn all(&self, references: &[Reference], outputs: &[TensorBuf]) -> Vec<Option<Judged>> {
        (0..self.outputs.len()).map(|at| self.one(at, &references[at], &outputs[at])).collect()
    }

    /// Whether all but these are near enough.
    pub fn holds(&self, references: &[Reference], outputs: &[TensorBuf], but: &[usize]) -> bool {
        let last = self.last.get();
        let order = std::iter::once(last).chain((0..self.outputs.len()).filter(|&at| at != last));
        for at in order.filter(|at| !but.contains(at)) {
            if self.one(at, &references[at], &outputs[at]).is_some_and(|judged| !judged.within) {
                self.last.set(at);
                return false;
            }
        }
        true
    }

    fn one(&self, at: usize, reference: &Reference, output: &TensorBuf) -> Option<Judged> {
        let (name, dtype) = &self.outputs[at];
        let candidate = rounded(&output.view(), (*dtype)?);
        let given = if let Limit::Tolerance(given) = self.limit { given } else { None };
        let policy = Policy { given, through: Some(self.half), ..Policy::default() };
        let tolerance = policy.tolerance(candidate.desc().dtype);
        // What came in infinite gives NaN without any rounding, too.
        let tolerance = Tolerance { equal_nan: true, ..tolerance };
        let mut verdict = judge(name, &reference.exact.view(), &candidate.view(), Some(&tolerance));
        if let Some(terms) = &reference.terms {
            verdict = judge_sums(verdict, reference.exact.shared(), candidate.shared(), terms.shared());
        }
        let times = times(&verdict, reference.rounding);
        let within = match self.limit {
            Limit::Tolerance(_) => verdict.verdict == Verdict::Match,
            Limit::Times(most) => times.is_some_and(|times| times <= most),
        };
        Some(Judged { verdict, times, within })
    }
}

fn times(verdict: &TensorVerdict, rounding: f64) -> Option<f64> {
    let metrics = verdict.metrics.as_ref()?;
    if metrics.nan_disagreements + metrics.inf_disagreements > 0 {
        return None;
    }
    if metrics.rmse == 0. { Some(0.) } else { Some(metrics.rmse / rounding).filter(|times| times.is_finite()) }
}

/// What rounding a reference gives. What half precision holds as it is (zeros, powers of two) is still computed in float32.
fn rounding(exact: &TensorBuf, half: DType) -> f64 {
    let tolerance = Tolerance { equal_nan: true, ..Tolerance::EXACT };
    let verdict = judge("", &exact.view(), &rounded(&exact.view(), half).view(), Some(&tolerance));
    verdict.metrics.map_or(0., |metrics| metrics.rmse.max(f64::from(f32::EPSILON) * metrics.max_reference))
}

/// The elements as numbers of `dtype`, in float64.
fn rounded(tensor: &TensorView<'_>, dtype: DType) -> TensorBuf {
    let values = tensor.flat_f64(0..tensor.shape().n_elements()).unwrap_or_default();
    let round = |value: f64| match dtype {
        // As a runtime does, which computes in float32.
        DType::F16 => f16::from_f32(value as f32).to_f64(),
        DType::BF16 => bf16::from_f32(value as f32).to_f64(),
        _ => value,
    };
    TensorBuf::from_f64(tensor.shape().clone(), &values.into_iter().map(round).collect::<Vec<_>>())
}

/// Sums over elements: squares of differences, and elements where only one of two is finite.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Energy {
    /// Of pairs of finite numbers.
    pub squares: f64,
    /// Of other pairs.
    pub n_infinite: u64,
}

impl Energy {
    /// Between two tensors of one shape.
    pub fn between(one: &TensorView<'_>, other: &TensorView<'_>) -> Self {
        const BLOCK: usize = 1 << 14;
        let n = one.shape().n_elements().min(other.shape().n_elements());
        let mut sum = Self::default();
        for from in (0..n).step_by(BLOCK) {
            let range = from..(from + BLOCK).min(n);
            let (Some(one), Some(other)) = (one.flat_f64(range.clone()), other.flat_f64(range)) else { return sum };
            for (one, other) in one.into_iter().zip(other) {
                match (one.is_finite(), other.is_finite()) {
                    (true, true) => sum.squares += (one - other) * (one - other),
                    (false, false) => {}
                    _ => sum.n_infinite += 1,
                }
            }
        }
        sum
    }

    /// Both together.
    pub fn and(self, other: Self) -> Self {
        Self { squares: self.squares + other.squares, n_infinite: self.n_infinite + other.n_infinite }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(values: &[f32]) -> TensorBuf {
        TensorBuf::from_f32([values.len() as i64], values).unwrap()
    }

    fn judged(limit: Limit, dtype: Option<DType>, exact: &[f32], output: &[f32]) -> Option<Judged> {
        let judge = Judge::new(vec![("y".to_owned(), dtype)], DType::F16, limit);
        let reference = Reference::new(&floats(exact), None, DType::F16);
        judge.all(&[reference], &[floats(output)]).remove(0)
    }

    #[test]
    fn an_error_is_told_in_roundings_of_the_output_to_half_precision() {
        // 0.1 is 2.44e-5 from the nearest float16.
        let exact = [0.1, -0.1];
        for (dtype, output, limit, expected) in [
            (DType::F16, exact, 1., true),
            (DType::F32, exact, 0., true),
            (DType::F32, [0.1 + 4.88e-5, -0.1 - 4.88e-5], 2.1, true),
            (DType::F32, [0.1 + 4.88e-5, -0.1 - 4.88e-5], 1.9, false),
        ] {
            let judged = judged(Limit::Times(limit), Some(dtype), &exact, &output).unwrap();
            assert_eq!(judged.within, expected, "{dtype:?} {output:?} {limit}: {:?}", judged.times);
        }
    }

    #[test]
    fn what_overflows_is_not_near_and_what_was_not_finite_before_is() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        for (exact, output, within) in [
            ([70000., 1.], [70000., 1.], false),
            ([65000., 1.], [65000., 1.], true),
            ([inf, 1.], [inf, 1.], true),
            ([nan, 1.], [nan, 1.], true),
            ([1., 1.], [nan, 1.], false),
        ] {
            for limit in [Limit::Tolerance(None), Limit::Times(1.5)] {
                let judged = judged(limit, Some(DType::F16), &exact, &output).unwrap();
                assert_eq!(judged.within, within, "{exact:?} {output:?} {limit:?}");
            }
        }
    }

    #[test]
    fn an_output_that_is_zero_but_for_rounding_is_near_by_what_it_adds_up() {
        // float16: 4 ε of each term, a quarter of which counts: 9.8e-4 of Σ|terms|.
        for (terms, within) in [(None, false), (Some(1.), false), (Some(2.), true)] {
            let judge = Judge::new(vec![("y".to_owned(), Some(DType::F32))], DType::F16, Limit::Tolerance(None));
            let terms = terms.map(|terms| TensorBuf::from_f64(crate::tensor::Shape::new([1]).unwrap(), &[terms]));
            let reference = Reference::new(&floats(&[0.]), terms, DType::F16);
            let judged = judge.all(&[reference], &[floats(&[1.5e-3])]).remove(0).unwrap();
            assert_eq!(judged.within, within, "{:?}", judged.verdict);
        }
    }

    #[test]
    fn an_output_that_is_no_float_is_not_judged() {
        assert_eq!(judged(Limit::Times(1.), None, &[1.], &[2.]), None);
    }

    #[test]
    fn energies_are_sums_of_squares_and_counts_of_what_is_infinite() {
        let one = floats(&[1., 2., f32::INFINITY, f32::NAN]);
        let other = floats(&[4., 2., 1., f32::NAN]);
        let energy = Energy::between(&one.view(), &other.view());
        assert_eq!(energy, Energy { squares: 9., n_infinite: 1 });
        assert_eq!(energy.and(energy), Energy { squares: 18., n_infinite: 2 });
    }
}
