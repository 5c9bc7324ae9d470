//! By what the outputs of a call are judged again: what the comparison in the call knew of them.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use super::layout::Role;
use super::reader;
use crate::base::ids::ValueName;
use crate::compare::{Exact, Explained, Pair, Policy, TensorVerdict, Tolerance, Verdict};
use crate::onnx::{NamedTensor, load_tensor};
use crate::tensor::{DType, SharedTensor, TensorView};

/// The policy of a comparison, and what was found of outputs outside tolerance.
#[derive(Clone, Debug, Default)]
pub struct Judging {
    /// Of every output.
    pub policy: Policy,
    float64: HashMap<ValueName, NamedTensor>,
    terms: HashMap<ValueName, NamedTensor>,
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
        let known = |role| -> io::Result<HashMap<_, _>> {
            let files = reader::tensors(step, role)?;
            let load = |(_, path): (u64, PathBuf)| load_tensor(&path).map(|tensor| (tensor.name.clone(), tensor));
            files.into_iter().map(load).collect::<Result<_, _>>().map_err(io::Error::other)
        };
        let is_choice = |verdict: &TensorVerdict| matches!(verdict.verdict, Verdict::Tie(_) | Verdict::OpenOrder(_));
        Ok(Some(Self {
            policy: comparison.policy,
            float64: known(Role::Float64)?,
            terms: known(Role::Terms)?,
            choices: comparison.verdicts.into_iter().filter(is_choice).collect(),
        }))
    }

    /// What an output adds up is no excuse of it: float64 of all says that it is worse than that.
    pub fn forget_terms(&mut self, name: &str) {
        self.terms.remove(name);
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
        let explained = Explained::Drift { step: self.policy.step() };
        let exact = float64.as_ref().map(SharedTensor::from);
        let pair: Pair<'_, SharedTensor<'_>> = Pair {
            terms: terms.as_ref().map(SharedTensor::from),
            exact: exact.map(|value| Exact { value, explained, factor: self.policy.noise_factor }),
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

/// Whether two verdicts are on the same difference.
fn is_alike(one: &TensorVerdict, other: &TensorVerdict) -> bool {
    let outside = |verdict: &TensorVerdict| verdict.metrics.as_ref().map(|metrics| metrics.outside);
    one.name == other.name && outside(one) == outside(other)
}
