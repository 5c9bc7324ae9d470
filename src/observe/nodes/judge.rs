//! Rows of a table of nodes, from what was run.

use prost::Message as _;

use super::part::PartNodes;
use super::piece::Ran;
use super::slots::{Computed, Read, Tensors, Written};
use crate::base::ids::ValueName;
use crate::compare::{self, Explained, Noise, TensorVerdict, Tolerance, Verdict};
use crate::dump::{NodeReproduction, NodeRow};
use crate::link::message::RanOnce;
use crate::onnx::Piece;
use crate::protocol::control::NoiseTerms;
use crate::tensor::SharedTensor;

/// None: of the local ones [`Tolerance::for_kernel`], of the others [`Tolerance::for_dtype`].
#[derive(Clone, Copy, Debug)]
pub struct Tolerances {
    /// Of a node's own kernel.
    pub local: Option<Tolerance>,
    /// Of a value as it drifted.
    pub cumulative: Option<Tolerance>,
    /// Against float64.
    pub noise: NoiseTerms,
}

/// A node's own kernel on the reference's inputs.
pub(super) struct Local<'a> {
    pub slot: Written<'a>,
    pub ran: Ran,
}

/// Judges what a batch ran, over its lease.
pub(super) struct Judge<'j> {
    pub part: &'j PartNodes,
    pub tolerances: Tolerances,
    pub tensors: Tensors<'j>,
}

impl Judge<'_> {
    /// `failed`: why there is no value as it drifted.
    pub fn row(&self, value: &Computed<'_>, local: &Local<'_>, failed: Option<&String>) -> NodeRow {
        let name = value.name;
        let (reference, candidate) = (self.tensors.read(value.reference), self.tensors.written(value.candidate));
        // Drift is a matter of rounding: what is exact stays exact.
        let drift = if reference.dtype().is_float() { self.tolerances.cumulative } else { self.tolerances.local };
        let against = |candidate: SharedTensor<'_>, tolerance: Option<Tolerance>| {
            compare::judge(name, reference, candidate, tolerance.as_ref())
        };
        let noise = |candidate: SharedTensor<'_>, exact: Option<Read<'_>>, explained: Explained<'_>| {
            let exact = self.tensors.read(exact?);
            Noise::measure(reference, candidate, exact, explained, self.tolerances.noise.factor)
        };
        let kernel = self.tolerances.local.unwrap_or_else(|| Tolerance::for_kernel(reference.dtype()));
        let (candidate_ns, runtimes, own) = match &local.ran {
            Ran::Done(RanOnce { stats, division }) => {
                let made = self.tensors.written(local.slot);
                let noise = noise(made, value.exact, Explained::Kernel);
                let runtimes = division.nodes.keys().map(|on| on.name().to_owned()).collect();
                (stats.run_ns, runtimes, TensorVerdict { noise, ..against(made, Some(kernel)) })
            }
            Ran::Failed(reason) => (0, Vec::new(), TensorVerdict::failed(name, reason)),
        };
        let [reference_signature, candidate_signature] = compare::signatures(reference, candidate);
        NodeRow {
            dtype: reference.dtype().to_string(),
            dims: reference.shape().dims().to_vec(),
            reference_signature,
            candidate_signature,
            reference_ns: value.reference_ns,
            candidate_ns,
            runtimes,
            local: own,
            cumulative: match failed {
                None => {
                    let noise =
                        noise(candidate, value.exact_cumulative, Explained::Drift { step: self.tolerances.noise.step });
                    TensorVerdict { noise, ..against(candidate, drift) }
                }
                Some(reason) => TensorVerdict::failed(name, reason),
            },
            no_float64: value.no_float64.to_owned(),
            ..self.not_compared(name, "")
        }
    }

    /// Whether a local mismatch is beyond what drift may do, too.
    pub fn is_far_off(&self, value: &Computed<'_>, local: &Local<'_>) -> bool {
        let (reference, candidate) = (self.tensors.read(value.reference), self.tensors.written(local.slot));
        compare::judge(value.name, reference, candidate, None).verdict == Verdict::Mismatch
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
            births: Vec::new(),
        }
    }

    /// The node's own `piece`, with copies of its tensors. `reference`: where eager's value of a name is.
    pub fn reproduction<'a>(
        &self,
        value: &Computed<'_>,
        local: &Local<'_>,
        piece: Piece,
        reference: impl Fn(&str) -> Read<'a>,
    ) -> NodeReproduction {
        let input = |name: ValueName| {
            let tensor = self.tensors.read(reference(&name)).to_owned();
            (name, tensor)
        };
        NodeReproduction {
            node: value.name.clone(),
            model: piece.model.encode_to_vec().into(),
            inputs: piece.inputs.into_iter().map(input).collect(),
            reference: self.tensors.read(value.reference).to_owned(),
            actual: self.tensors.written(local.slot).to_owned(),
        }
    }
}
