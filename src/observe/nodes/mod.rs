//! Nodes of a part against eager: each node's kernel on eager's inputs (*local*), and every value as it drifts from the
//! inputs that ONNX Runtime itself gave (*cumulative*).

mod part;

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use prost::Message as _;
use thiserror::Error;

use crate::base::ids::{CallId, ValueName};
use crate::compare::{self, TensorVerdict, Tolerance, Verdict};
use crate::dump::{NodeReproduction, NodeRow};
use crate::onnx::{OnnxError, Piece};
use crate::protocol::control::{CompareNodes, ComputedNode, NodeFeed, NodeValue};
use crate::protocol::message::{ErrorCode, RunStats, WireError};
use crate::shm::{Lease, LeaseError, SegmentTable};
use crate::tensor::{CallRecord, SharedTensor, TensorDesc, TensorRef};

pub use part::PartNodes;

/// A piece of a part's model to run once.
#[derive(Clone, Debug)]
pub struct SubModel {
    /// The node, or the first and the last of several.
    pub node: String,
    /// ModelProto.
    pub model: Bytes,
    /// The named values in it.
    pub named_values: Vec<ValueName>,
    /// Of the model, in its order.
    pub inputs: Vec<ValueName>,
    /// The tensors.
    pub record: CallRecord,
}

/// What came of a batch.
#[derive(Debug, Default)]
pub struct Outcome {
    /// One for each value that is judged or says why not, in their order. Their indices count from 0.
    pub rows: Vec<NodeRow>,
    /// Of the first local mismatches.
    pub reproductions: Vec<NodeReproduction>,
}

/// Why a batch cannot be judged.
#[derive(Debug, Error)]
pub enum NodesError {
    /// A tensor is not where it should be.
    #[error(transparent)]
    Memory(#[from] LeaseError),
    /// A value that the model does not have, or that is no place to cut it.
    #[error("{what} {name:?}: no named value or input of the part; name one of those given with PreparePart")]
    Unknown {
        /// "feed" or "value".
        what: &'static str,
        /// As sent.
        name: ValueName,
    },
    /// A value that is named twice.
    #[error("value {name:?} is named twice in one batch; send it as a feed or as a value, once")]
    Twice {
        /// As sent.
        name: ValueName,
    },
    /// Memory that is not for a tensor like the reference.
    #[error("value {name:?}: {what} is {got}, expected {expected} (the reference's); allocate it like the reference")]
    Unlike {
        /// As sent.
        name: ValueName,
        /// "candidate" or "local".
        what: &'static str,
        /// The reference's.
        expected: TensorDesc,
        /// As sent.
        got: TensorDesc,
    },
    /// The executor is gone.
    #[error(transparent)]
    Lost(WireError),
}

/// A batch and the tensors that it names, proven.
pub struct Batch<'a> {
    request: &'a CompareNodes,
    part: &'a PartNodes,
    tolerances: Tolerances,
    /// Names of earlier batches that have no reference, and of this one.
    through: HashSet<&'a str>,
    computed: Vec<Slot<'a>>,
}

/// None: defaults by dtype.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tolerances {
    /// Of a node's own kernel.
    pub local: Option<Tolerance>,
    /// Of a value as it drifted.
    pub cumulative: Option<Tolerance>,
}

/// A value to compute, and where its tensors are in the lease.
struct Slot<'a> {
    node: &'a ComputedNode,
    reference: usize,
    candidate: usize,
    local: Option<usize>,
}

/// A run's time, or why there is none.
type Ran = Result<RunStats, String>;

impl<'a> Batch<'a> {
    /// The batch, checked. `not_compared`: names of earlier batches that have no reference, so that no model can be cut
    /// there. Errors: [`NodesError::Unknown`], [`NodesError::Twice`], [`NodesError::Unlike`].
    pub fn new(
        request: &'a CompareNodes,
        part: &'a PartNodes,
        tolerances: Tolerances,
        not_compared: impl Iterator<Item = &'a str>,
    ) -> Result<Self, NodesError> {
        let mut seen = HashSet::new();
        let mut once = |name: &'a ValueName| {
            if seen.insert(name.as_str()) { Ok(()) } else { Err(NodesError::Twice { name: name.clone() }) }
        };
        for NodeFeed { name, reference, candidate } in &request.feeds {
            once(name)?;
            check_known(part, "feed", name)?;
            check_alike(name, "candidate", reference, candidate)?;
        }
        let (mut through, mut computed): (HashSet<&str>, _) = (not_compared.collect(), Vec::new());
        let mut n_outputs = 0;
        for value in &request.values {
            match value {
                NodeValue::NotCompared { name, .. } => {
                    once(name)?;
                    through.insert(name);
                }
                NodeValue::Computed(node) => {
                    once(&node.name)?;
                    check_known(part, "value", &node.name)?;
                    check_alike(&node.name, "candidate", &node.reference, &node.candidate)?;
                    if let Some(local) = &node.local {
                        check_alike(&node.name, "local", &node.reference, local)?;
                    }
                    let local = node.local.as_ref().map(|_| n_outputs + 1);
                    let reference = 2 * request.feeds.len() + computed.len();
                    computed.push(Slot { node, reference, candidate: n_outputs, local });
                    n_outputs += 1 + usize::from(local.is_some());
                }
            }
        }
        Ok(Self { request, part, tolerances, through, computed })
    }

    /// The batch's tensors, proven: what is written overlaps nothing. Errors: [`LeaseError`].
    pub fn lease(&self, segments: &SegmentTable) -> Result<Lease, LeaseError> {
        let feeds = self.request.feeds.iter().flat_map(|feed| [&feed.reference, &feed.candidate]);
        let references = self.computed.iter().map(|slot| &slot.node.reference);
        let read: Vec<TensorRef> = feeds.chain(references).cloned().collect();
        let written: Vec<TensorRef> = (self.computed.iter())
            .flat_map(|slot| std::iter::once(&slot.node.candidate).chain(&slot.node.local))
            .cloned()
            .collect();
        segments.lease(&read, &written)
    }

    /// Runs and judges, by `run`, over a lease of [`Batch::lease`]; up to `n_reproductions` local mismatches are copied.
    /// A node that fails costs its own verdict only. Errors: [`NodesError::Lost`].
    pub fn run(
        &self,
        lease: &mut Lease,
        n_reproductions: usize,
        mut run: impl FnMut(&SubModel) -> Result<RunStats, WireError>,
    ) -> Result<Outcome, NodesError> {
        let references = self.references();
        let mut locals = Vec::with_capacity(self.computed.len());
        for slot in &self.computed {
            locals.push(match &slot.node.local {
                Some(local) => Some(self.run_local(slot, local, &references, &mut run)?),
                None => None,
            });
        }
        let cumulative = Cumulative { batch: self, lease, run: &mut run }.run()?;
        let (read, written) = (lease.inputs(), lease.outputs());
        let mut outcome = Outcome::default();
        let mut runs = self.computed.iter().zip(locals.iter().zip(&cumulative));
        for value in &self.request.values {
            match value {
                NodeValue::NotCompared { name, reason } => outcome.rows.push(self.row(name, reason)),
                NodeValue::Computed(_) => {
                    let Some((slot, (local, cumulative))) = runs.next() else { break };
                    let Some(local) = local else { continue };
                    let row = self.judge(slot, (local, cumulative), &read, &written);
                    if row.local.verdict == Verdict::Mismatch && outcome.reproductions.len() < n_reproductions {
                        outcome.reproductions.extend(self.reproduction(slot, &references, &read, &written));
                    }
                    outcome.rows.push(row);
                }
            }
        }
        for (index, row) in outcome.rows.iter_mut().enumerate() {
            row.index = index as u64;
        }
        Ok(outcome)
    }

    fn references(&self) -> HashMap<&'a str, &'a TensorRef> {
        let feeds = self.request.feeds.iter().map(|feed| (feed.name.as_str(), &feed.reference));
        feeds.chain(self.computed.iter().map(|slot| (slot.node.name.as_str(), &slot.node.reference))).collect()
    }

    fn local_piece(&self, slot: &Slot<'a>, references: &HashMap<&str, &TensorRef>) -> Result<Piece, OnnxError> {
        self.part.isolator.local(&slot.node.name, &self.through, &descs(references))
    }

    fn run_local(
        &self,
        slot: &Slot<'a>,
        local: &TensorRef,
        references: &HashMap<&str, &TensorRef>,
        run: &mut impl FnMut(&SubModel) -> Result<RunStats, WireError>,
    ) -> Result<Ran, NodesError> {
        match self.local_piece(slot, references) {
            Err(error) => Ok(Err(error.to_string())),
            Ok(piece) => settle(run(&self.sub_model(piece, references, vec![local.clone()]))),
        }
    }

    fn sub_model(&self, piece: Piece, tensors: &HashMap<&str, &TensorRef>, outputs: Vec<TensorRef>) -> SubModel {
        let node = match piece.outputs.as_slice() {
            [first, .., last] => format!("{first} … {last}"),
            few => few.concat(),
        };
        let inputs = piece.inputs.iter().map(|name| tensors[name.as_str()].clone()).collect();
        let record = CallRecord { call: CallId(0), handle: self.request.handle, eager_nodes: 0, inputs, outputs };
        let Piece { model, inputs, named_values, .. } = piece;
        SubModel { node, model: model.encode_to_vec().into(), named_values, inputs, record }
    }

    fn judge(
        &self,
        slot: &Slot<'a>,
        (local, cumulative): (&Ran, &Result<(), String>),
        read: &[SharedTensor<'_>],
        written: &[SharedTensor<'_>],
    ) -> NodeRow {
        let name = &slot.node.name;
        let (reference, candidate) = (read[slot.reference], written[slot.candidate]);
        // Drift is a matter of rounding: what is exact stays exact.
        let Tolerances { local: local_tolerance, cumulative: cumulative_tolerance } = self.tolerances;
        let cumulative_tolerance = if reference.dtype().is_float() { cumulative_tolerance } else { local_tolerance };
        let against = |candidate: SharedTensor<'_>, tolerance: Option<&Tolerance>| {
            compare::judge(name, reference, candidate, tolerance)
        };
        NodeRow {
            dtype: reference.dtype().to_string(),
            dims: reference.shape().dims().to_vec(),
            reference_signature: compare::signature(reference),
            candidate_signature: compare::signature(candidate),
            reference_ns: slot.node.reference_ns,
            candidate_ns: local.as_ref().map_or(0, |stats| stats.run_ns),
            local: match (local, slot.local) {
                (Ok(_), Some(at)) => against(written[at], local_tolerance.as_ref()),
                (Ok(_), None) => TensorVerdict::not_compared(name, "not asked for"),
                (Err(reason), _) => TensorVerdict::failed(name, reason),
            },
            cumulative: match cumulative {
                Ok(()) => against(candidate, cumulative_tolerance.as_ref()),
                Err(reason) => TensorVerdict::failed(name, reason),
            },
            ..self.row(name, "")
        }
    }

    /// A row of nothing but the node's origin, and why there is nothing more.
    fn row(&self, name: &str, reason: &str) -> NodeRow {
        let origin = self.part.origin(name);
        let verdict = || TensorVerdict::not_compared(name, reason);
        NodeRow {
            index: 0,
            name: name.to_owned(),
            op: origin.op,
            onnx_ops: origin.onnx_ops.into(),
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
            local: verdict(),
            cumulative: verdict(),
            float64: None,
        }
    }

    fn reproduction(
        &self,
        slot: &Slot<'a>,
        references: &HashMap<&str, &TensorRef>,
        read: &[SharedTensor<'_>],
        written: &[SharedTensor<'_>],
    ) -> Option<NodeReproduction> {
        let piece = self.local_piece(slot, references).ok()?;
        let feeds = self.request.feeds.iter().enumerate().map(|(at, feed)| (feed.name.as_str(), 2 * at));
        let computed = self.computed.iter().map(|slot| (slot.node.name.as_str(), slot.reference));
        let places: HashMap<&str, usize> = feeds.chain(computed).collect();
        let input = |name: ValueName| {
            let tensor = read[places[name.as_str()]].to_owned();
            (name, tensor)
        };
        Some(NodeReproduction {
            node: slot.node.name.clone(),
            model: piece.model.encode_to_vec().into(),
            inputs: piece.inputs.into_iter().map(input).collect(),
            reference: read[slot.reference].to_owned(),
            actual: written[slot.local?].to_owned(),
        })
    }
}

/// The values of a batch as they drift: one model when it runs, else halves of it, down to single nodes.
struct Cumulative<'b, 'a, R> {
    batch: &'b Batch<'a>,
    lease: &'b mut Lease,
    run: &'b mut R,
}

impl<'a, R: FnMut(&SubModel) -> Result<RunStats, WireError>> Cumulative<'_, 'a, R> {
    /// One result a computed value. Every candidate is written.
    fn run(mut self) -> Result<Vec<Result<(), String>>, NodesError> {
        let feeds = self.batch.request.feeds.iter();
        let mut candidates = feeds.map(|feed| (feed.name.as_str(), &feed.candidate)).collect();
        let mut results = Vec::with_capacity(self.batch.computed.len());
        let batch = self.batch;
        self.run_all(&batch.computed, &mut candidates, &mut results)?;
        Ok(results)
    }

    /// Adds the slots' results, and their candidates to what later ones read.
    fn run_all(
        &mut self,
        slots: &[Slot<'a>],
        candidates: &mut HashMap<&'a str, &'a TensorRef>,
        results: &mut Vec<Result<(), String>>,
    ) -> Result<(), NodesError> {
        if slots.is_empty() {
            return Ok(());
        }
        match (self.run_segment(slots, candidates)?, slots) {
            (Ok(_), _) => results.extend(slots.iter().map(|_| Ok(()))),
            (Err(reason), [slot]) => {
                self.replace(slot);
                let name = &slot.node.name;
                tracing::warn!(node = name, reason, "cumulative value failed");
                results.push(Err(format!("{reason}; later nodes go on with the reference's value")));
            }
            (Err(_), _) => {
                let (first, second) = slots.split_at(slots.len() / 2);
                self.run_all(first, candidates, results)?;
                return self.run_all(second, candidates, results);
            }
        }
        candidates.extend(slots.iter().map(|slot| (slot.node.name.as_str(), &slot.node.candidate)));
        Ok(())
    }

    fn run_segment(&mut self, slots: &[Slot<'a>], candidates: &HashMap<&str, &TensorRef>) -> Result<Ran, NodesError> {
        let wanted: Vec<&str> = slots.iter().map(|slot| slot.node.name.as_str()).collect();
        let results = slots.iter().map(|slot| (slot.node.name.as_str(), &slot.node.candidate.desc)).collect();
        match self.batch.part.isolator.segment(&wanted, &results, &descs(candidates)) {
            Err(error) => Ok(Err(error.to_string())),
            Ok(piece) => {
                let outputs = slots.iter().map(|slot| slot.node.candidate.clone()).collect();
                settle((self.run)(&self.batch.sub_model(piece, candidates, outputs)))
            }
        }
    }

    fn replace(&mut self, slot: &Slot<'_>) {
        let (read, mut written) = self.lease.split_mut();
        written[slot.candidate].bytes.copy_from(read[slot.reference].bytes());
    }
}

fn descs<'t>(tensors: &HashMap<&'t str, &'t TensorRef>) -> HashMap<&'t str, &'t TensorDesc> {
    tensors.iter().map(|(&name, tensor)| (name, &tensor.desc)).collect()
}

/// A failed run is the node's; a lost executor is everyone's.
fn settle(ran: Result<RunStats, WireError>) -> Result<Ran, NodesError> {
    match ran {
        Ok(stats) => Ok(Ok(stats)),
        Err(error) if error.code == ErrorCode::ExecutorLost => Err(NodesError::Lost(error)),
        Err(error) => Ok(Err(error.message)),
    }
}

fn check_known(part: &PartNodes, what: &'static str, name: &ValueName) -> Result<(), NodesError> {
    if part.isolator.is_cut(name) { Ok(()) } else { Err(NodesError::Unknown { what, name: name.clone() }) }
}

fn check_alike(
    name: &ValueName,
    what: &'static str,
    reference: &TensorRef,
    tensor: &TensorRef,
) -> Result<(), NodesError> {
    let (expected, got) = (&reference.desc, &tensor.desc);
    if expected == got {
        return Ok(());
    }
    Err(NodesError::Unlike { name: name.clone(), what, expected: expected.clone(), got: got.clone() })
}
