//! Rows of a table of nodes, from what was run.

use super::local::Local;
use super::part::PartNodes;
use super::piece::Ran;
use super::slots::{Computed, Slot};
use crate::compare::{Compared, Pair, Policy, TensorVerdict, Tolerance};
use crate::dump::NodeRow;
use crate::link::message::RanOnce;
use crate::tensor::DType;

/// What verdicts are by.
#[derive(Clone, Copy, Debug)]
pub struct Policies {
    /// Of nodes' own kernels.
    pub kernel: Policy,
    /// Of floats as they drifted.
    pub drift: Policy,
}

impl Policies {
    /// Of a value as it drifted. Drift is a matter of rounding: what is exact stays exact.
    fn drifted(&self, dtype: DType) -> Tolerance {
        let policy = if dtype.is_float() { self.drift } else { self.kernel };
        policy.tolerance(dtype)
    }
}

/// Makes the rows of a batch.
pub(super) struct Judge<'j> {
    pub part: &'j PartNodes,
    pub policies: Policies,
}

/// What comes of a value's pairs: on the references, where its kernel ran, and as it drifted.
pub(super) struct Facts {
    pub local: Option<Compared>,
    pub cumulative: Compared,
}

impl Judge<'_> {
    /// What is asked of a value that was run: its own kernel's result, where there is one, and the drifted value.
    pub fn pairs<'a>(
        &self,
        value: &Computed<'a>,
        local: &Local<'a>,
    ) -> (Option<Pair<'a, Slot<'a>>>, Pair<'a, Slot<'a>>) {
        let dtype = value.reference.tensor.desc.dtype;
        let Policies { kernel, drift } = self.policies;
        let of = |candidate, tolerance| Pair::new(value.name, value.reference, candidate, tolerance);
        let own = matches!(local.ran, Ran::Done(_)).then(|| Pair {
            exact: value.exact.map(|exact| kernel.computed(exact)),
            ..of(local.slot, Some(kernel.kernel(dtype)))
        });
        let drifted = Pair {
            exact: value.exact_cumulative.map(|exact| drift.drifted(exact, None)),
            signatures: true,
            ..of(value.candidate, Some(self.policies.drifted(dtype)))
        };
        (own, drifted)
    }

    /// `failed`: why there is no value as it drifted.
    pub fn row(&self, value: &Computed<'_>, local: &Local<'_>, facts: Facts, failed: Option<&String>) -> NodeRow {
        let (name, desc) = (value.name, &value.reference.tensor.desc);
        let (candidate_ns, runtimes) = match &local.ran {
            Ran::Done(RanOnce { stats, division }) => {
                (stats.run_ns, division.nodes.keys().map(|on| on.name().to_owned()).collect())
            }
            Ran::Failed(_) => (0, Vec::new()),
        };
        let own = match (facts.local, &local.ran) {
            (Some(own), _) => own.verdict,
            (None, Ran::Failed(reason)) => TensorVerdict::failed(name, reason),
            (None, Ran::Done(_)) => unreachable!("what ran was asked for"),
        };
        let Compared { verdict, signatures } = facts.cumulative;
        let [reference_signature, candidate_signature] = signatures.unwrap_or_default();
        NodeRow {
            dtype: desc.dtype.to_string(),
            dims: desc.shape.dims().to_vec(),
            reference_signature,
            candidate_signature,
            reference_ns: value.reference_ns,
            candidate_ns,
            runtimes,
            local: own,
            cumulative: failed.map_or(verdict, |reason| TensorVerdict::failed(name, reason)),
            no_float64: value.no_float64.to_owned(),
            ..self.not_compared(name, "")
        }
    }

    /// A row of nothing but the node's origin, and why there is nothing more.
    pub fn not_compared(&self, name: &str, reason: &str) -> NodeRow {
        let origin = self.part.origin(name);
        let verdict = || TensorVerdict::not_compared(name, reason);
        NodeRow {
            index: 0,
            name: name.to_owned(),
            op: origin.op,
            onnx_ops: origin.onnx_ops,
            onnx_index: origin.onnx_index,
            module: origin.module,
            source: origin.source,
            role: origin.role,
            seq_nr: origin.seq_nr,
            dtype: String::new(),
            dims: Vec::new(),
            reference_signature: String::new(),
            candidate_signature: String::new(),
            reference_ns: 0,
            candidate_ns: 0,
            runtimes: Vec::new(),
            local: verdict(),
            cumulative: verdict(),
            no_float64: String::new(),
            as_right: String::new(),
            nothing: false,
            births: Vec::new(),
        }
    }
}
