//! By what the outputs of a call are judged again: what the comparison in the call knew of them.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use super::layout::Role;
use super::reader::{self, TensorFile};
use crate::base::ids::ValueName;
use crate::compare::{Exact, Excused, Metrics, Pair, Policy, Spread, TensorVerdict, Tolerance, Verdict};
use crate::onnx::NamedTensor;
use crate::tensor::{DType, SharedTensor, TensorView};

/// The policy of a comparison, and what was found of outputs outside tolerance.
#[derive(Clone, Debug, Default)]
pub struct Judging {
    /// Of every output.
    pub policy: Policy,
    float64: HashMap<ValueName, NamedTensor>,
    terms: HashMap<ValueName, NamedTensor>,
    /// How far rounding moves outputs whose nodes alone are right; of any other one it is not known.
    spreads: HashMap<String, Spread>,
    /// Verdicts on ties and open orders: no file but the verdicts tells of these.
    choices: Vec<TensorVerdict>,
}

impl Judging {
    /// Without anything but a policy.
    pub fn by(policy: Policy) -> Self {
        Self { policy, ..Self::default() }
    }

    /// Of a data set that was compared; None of another. Errors: a file that cannot be read.
    pub fn of(step: &Path) -> io::Result<Option<Self>> {
        let Some(comparison) = reader::comparison(step)? else { return Ok(None) };
        // An older one does not tell.
        let Some(policy) = comparison.policy else { return Ok(None) };
        policy.check().map_err(io::Error::other)?;
        let known = |role| -> io::Result<HashMap<_, _>> {
            let files = reader::tensors(step, role)?;
            let load = |file: TensorFile| file.load().map(|tensor| (tensor.name.clone(), tensor));
            files.into_iter().map(load).collect::<Result<_, _>>().map_err(io::Error::other)
        };
        let spread = |verdict: &TensorVerdict| Some((verdict.name.clone(), verdict.noise?.spread?));
        let spreads = comparison.verdicts.iter().filter_map(spread).collect();
        let is_choice = |verdict: &TensorVerdict| matches!(verdict.verdict, Verdict::Tie(_) | Verdict::OpenOrder(_));
        // Float64 was known when a wrong node was found: what it may have done is no noise, and was judged without.
        let is_no_noise = |verdict: &&TensorVerdict| verdict.verdict == Verdict::Mismatch && verdict.noise.is_none();
        let mut float64 = known(Role::Float64)?;
        for verdict in comparison.verdicts.iter().filter(is_no_noise) {
            float64.remove(&verdict.name);
        }
        Ok(Some(Self {
            policy,
            float64,
            terms: known(Role::Terms)?,
            spreads,
            choices: comparison.verdicts.into_iter().filter(is_choice).collect(),
        }))
    }

    /// What an output adds up is no excuse of it: float64 of all says that it is worse than that.
    pub fn forget_terms(&mut self, name: &str) {
        self.terms.remove(name);
    }

    /// The same of all outputs, and how far rounding moves them: a node is known to be wrong.
    pub fn forget_sums_and_spreads(&mut self) {
        self.terms.clear();
        self.spreads.clear();
    }

    /// A verdict on what an output is, or would be.
    pub fn judge(&self, name: &str, reference: &TensorView<'_>, candidate: &TensorView<'_>) -> TensorVerdict {
        self.judge_within(&self.policy.tolerance(reference.dtype()), name, reference, candidate)
    }

    /// The same within another tolerance.
    pub fn judge_within(
        &self,
        tolerance: &Tolerance,
        name: &str,
        reference: &TensorView<'_>,
        candidate: &TensorView<'_>,
    ) -> TensorVerdict {
        let is_its = |known: &&NamedTensor| {
            known.desc.dtype == DType::F64 && known.desc.shape.dims() == reference.shape().dims()
        };
        let float64 = self.float64.get(name).filter(is_its).map(NamedTensor::view);
        let terms = self.terms.get(name).filter(is_its).map(NamedTensor::view);
        // A NaN is never noise, whatever it equals.
        let own = Tolerance { equal_nan: tolerance.equal_nan, ..self.policy.tolerance(reference.dtype()) };
        let is_asked_for = self.policy.given.is_some() || *tolerance != own;
        let spread = self.spreads.get(name).copied();
        let exact = float64.as_ref().map(|value| self.policy.drifted(SharedTensor::from(value), spread));
        let pair: Pair<'_, SharedTensor<'_>> = Pair {
            terms: terms.as_ref().map(SharedTensor::from),
            exact: exact.map(|exact| Exact { excused: Excused::under(is_asked_for, spread), ..exact }),
            ..Pair::new(name, reference.into(), candidate.into(), Some(*tolerance))
        };
        let mut judged = pair.compared().verdict;
        if judged.verdict == Verdict::Mismatch
            && let Some(choice) = self.choices.iter().find(|choice| is_alike(choice, &judged))
        {
            judged.verdict = choice.verdict.clone();
        }
        judged
    }
}

/// Whether two verdicts are on the same difference, to the last numbers.
fn is_alike(one: &TensorVerdict, other: &TensorVerdict) -> bool {
    let (Some(metrics), Some(others)) = (&one.metrics, &other.metrics) else { return false };
    let numbers = |metrics: &Metrics| [metrics.max_abs, metrics.mean_abs, metrics.rmse, metrics.cosine];
    let pairs = numbers(metrics).into_iter().zip(numbers(others));
    let are_near = pairs.into_iter().all(|(one, other)| one == other || (one - other).abs() <= 1e-12 * one.abs());
    let at = |metrics: &Metrics| metrics.worst.as_ref().map(|worst| worst.index);
    one.name == other.name && metrics.outside == others.outside && at(metrics) == at(others) && are_near
}
