//! How far outputs are from what they should be, and whether that is near enough. Pure.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use super::board::widened;
use crate::base::ids::ValueName;
use crate::compare::{TensorVerdict, Tolerance, Verdict, judge};
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

/// Judges a part's outputs.
pub struct Judge {
    /// In the model's order: name and element type; None: no float, which is not judged.
    pub outputs: Vec<(ValueName, Option<DType>)>,
    /// The half precision that takes part.
    pub half: DType,
    /// As asked for.
    pub limit: Limit,
}

impl Judge {
    /// Of each output that is a float; `outputs`: of any floating type, before or after they are rounded.
    pub fn all(&self, references: &[TensorBuf], outputs: &[TensorBuf]) -> Vec<Option<Judged>> {
        let pairs = self.outputs.iter().zip(references).zip(outputs);
        pairs.map(|(((name, dtype), reference), output)| Some(self.one(name, (*dtype)?, reference, output))).collect()
    }

    /// Whether all but these are near enough.
    pub fn holds(&self, references: &[TensorBuf], outputs: &[TensorBuf], but: &[usize]) -> bool {
        let pairs = self.outputs.iter().zip(references).zip(outputs).enumerate().filter(|(at, _)| !but.contains(at));
        let mut judged = pairs
            .filter_map(|(_, (((name, dtype), reference), output))| Some(self.one(name, (*dtype)?, reference, output)));
        judged.all(|judged| judged.within)
    }

    fn one(&self, name: &str, dtype: DType, reference: &TensorBuf, output: &TensorBuf) -> Judged {
        let candidate = rounded(&output.view(), dtype);
        let reference = widened(&reference.view());
        let tolerance = match self.limit {
            Limit::Tolerance(Some(given)) => given,
            Limit::Tolerance(None) | Limit::Times(_) => steps(self.half),
        };
        // What came in infinite gives NaN without any rounding, too.
        let tolerance = Tolerance { equal_nan: true, ..tolerance };
        let verdict = judge(name, &reference.view(), &candidate.view(), Some(&tolerance));
        let times = times(&verdict, &reference, self.half);
        let within = match self.limit {
            Limit::Tolerance(_) => verdict.verdict == Verdict::Match,
            Limit::Times(most) => times.is_some_and(|times| times <= most),
        };
        Judged { verdict, times, within }
    }
}

/// Steps of half precision, for values of any floating type that it took part in: as the comparison of outputs has it.
fn steps(half: DType) -> Tolerance {
    Tolerance { atol: 6e-8, ..Tolerance::for_dtype(half) }
}

fn times(verdict: &TensorVerdict, reference: &TensorBuf, half: DType) -> Option<f64> {
    let metrics = verdict.metrics.as_ref()?;
    if metrics.nan_disagreements + metrics.inf_disagreements > 0 || !metrics.rmse.is_finite() {
        return None;
    }
    let rounding = judge("", &reference.view(), &rounded(&reference.view(), half).view(), Some(&Tolerance::EXACT));
    // What half precision has no rounding for (zeros, powers of two) is still computed in float32.
    let least = f64::from(f32::EPSILON) * metrics.max_reference;
    let floor = rounding.metrics.map_or(0., |metrics| metrics.rmse).max(least);
    if metrics.rmse == 0. { Some(0.) } else { Some(metrics.rmse / floor).filter(|times| times.is_finite()) }
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
