//! A batch of nodes, checked, run and judged.

use std::collections::{HashMap, HashSet};

use super::drift::Drift;
use super::error::NodesError;
use super::judge::{Judge, Local, Tolerances};
use super::part::PartNodes;
use super::piece::{Ran, Ready, Runner, SubModel};
use super::slots::{Computed, Read, Slots, Tensors, Written};
use crate::base::ids::{PartHandle, ValueName};
use crate::compare::{Birth, Metrics, Range, ReadValue, Side, Verdict};
use crate::dump::{EagerValues, NodeReproduction, NodeRow};
use crate::link::message::RanOnce;
use crate::onnx::{OnnxError, Piece};
use crate::protocol::control::{CompareNodes, ComputedNode, NodeFeed, NodeValue};
use crate::protocol::message::{RunStats, WireError};
use crate::shm::{Lease, LeaseError, SegmentTable};
use crate::tensor::{DType, TensorDesc, TensorRef};

/// What came of a batch.
#[derive(Debug, Default)]
pub struct Judged {
    /// One for each value that is judged or says why not, in their order. Their indices count from 0.
    pub rows: Vec<NodeRow>,
    /// Of the first local mismatches.
    pub reproductions: Vec<NodeReproduction>,
}

/// A batch and the tensors that it names.
pub struct Batch<'a> {
    part: &'a PartNodes,
    handle: PartHandle,
    tolerances: Tolerances,
    /// Names of earlier batches that have no reference, and of this one.
    through: HashSet<&'a str>,
    values: Vec<Value<'a>>,
    slots: Slots<'a>,
    /// Eager's, of feeds and values.
    references: Ready<'a>,
    /// Where these are.
    reference_slots: HashMap<&'a str, Read<'a>>,
    /// ONNX Runtime's, of the feeds.
    candidates: Ready<'a>,
    /// Where the candidates are.
    candidate_slots: HashMap<&'a str, Slot<'a>>,
    /// Of the part's inputs: eager's and ONNX Runtime's.
    inputs: Vec<(&'a ValueName, Read<'a>, Read<'a>)>,
}

/// Where a candidate is.
#[derive(Clone, Copy)]
enum Slot<'a> {
    Read(Read<'a>),
    Written(Written<'a>),
}

/// Ranges of values that were looked at already.
#[derive(Default)]
struct Births<'a>(HashMap<(&'a str, Side), Option<Range>>);

fn holds_none_number(metrics: &Metrics, side: Side) -> bool {
    let counts = match side {
        Side::Reference => [metrics.reference_nan, metrics.reference_inf],
        Side::Candidate => [metrics.candidate_nan, metrics.candidate_inf],
    };
    counts.iter().sum::<u64>() > 0
}

enum Value<'a> {
    Computed(Computed<'a>),
    NotCompared { name: &'a str, reason: &'a str },
}

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
        let mut batch = Self {
            part,
            handle: request.handle,
            tolerances,
            through: not_compared.collect(),
            values: Vec::with_capacity(request.values.len()),
            slots: Slots::default(),
            references: Ready::default(),
            reference_slots: HashMap::new(),
            candidates: Ready::default(),
            candidate_slots: HashMap::new(),
            inputs: Vec::new(),
        };
        for feed in &request.feeds {
            once(&feed.name)?;
            batch.feed(feed)?;
        }
        for value in &request.values {
            match value {
                NodeValue::Computed(node) => {
                    once(&node.name)?;
                    batch.computed(node)?;
                }
                NodeValue::NotCompared { name, reason } => {
                    once(name)?;
                    batch.through.insert(name);
                    batch.values.push(Value::NotCompared { name, reason });
                }
            }
        }
        Ok(batch)
    }

    fn feed(&mut self, feed: &'a NodeFeed) -> Result<(), NodesError> {
        let NodeFeed { name, reference, candidate } = feed;
        self.check_cut("feed", name)?;
        check_alike(name, "candidate", reference, candidate)?;
        let slot = self.slots.read(reference);
        self.reference(name, slot);
        let drifted = self.slots.read(candidate);
        self.candidates.insert(name, candidate);
        self.candidate_slots.insert(name, Slot::Read(drifted));
        if reference != candidate && self.part.isolator.is_input(name) {
            self.inputs.push((name, slot, drifted));
        }
        Ok(())
    }

    fn computed(&mut self, node: &'a ComputedNode) -> Result<(), NodesError> {
        let ComputedNode { name, reference, candidate, local, float64, .. } = node;
        self.check_cut("value", name)?;
        check_alike(name, "candidate", reference, candidate)?;
        if let Some(local) = local {
            check_alike(name, "local", reference, local)?;
        }
        for (what, exact) in [("exact", &float64.local), ("exact_cumulative", &float64.cumulative)] {
            if let Some(exact) = exact {
                let desc = TensorDesc { dtype: DType::F64, ..reference.desc.clone() };
                check_alike(name, what, &TensorRef { desc, ..exact.clone() }, exact)?;
            }
        }
        let value = Computed::new(node, &mut self.slots);
        self.reference(name, value.reference);
        self.candidate_slots.insert(name, Slot::Written(value.candidate));
        self.values.push(Value::Computed(value));
        Ok(())
    }

    fn reference(&mut self, name: &'a str, slot: Read<'a>) {
        self.references.insert(name, slot.tensor);
        self.reference_slots.insert(name, slot);
    }

    fn check_cut(&self, what: &'static str, name: &ValueName) -> Result<(), NodesError> {
        if self.part.isolator.is_cut(name) { Ok(()) } else { Err(NodesError::Unknown { what, name: name.clone() }) }
    }

    /// The batch's tensors, proven: what is written overlaps nothing. Errors: [`LeaseError`].
    pub fn lease(&self, segments: &SegmentTable) -> Result<Lease, LeaseError> {
        self.slots.lease(segments)
    }

    /// What a dump keeps of the references, over a lease of [`Batch::lease`].
    pub fn eager_values<'l>(&self, lease: &'l Lease) -> EagerValues<'l> {
        let tensors = Tensors::of(lease);
        let inputs = self.inputs.iter().filter_map(|&(name, reference, candidate)| {
            let (reference, candidate) = (tensors.read(reference), tensors.read(candidate));
            (!reference.bytes().equals(&candidate.bytes())).then(|| (name.clone(), reference))
        });
        let judged = self.values.iter().filter_map(Value::computed).filter(|value| value.local.is_some());
        let nodes = judged.map(|value| (value.name.clone(), tensors.read(value.reference)));
        EagerValues { inputs: inputs.collect(), nodes: nodes.collect() }
    }

    /// Runs and judges, by `run`, over a lease of [`Batch::lease`]; up to `n_reproductions` local mismatches are copied,
    /// those first that are far off.
    /// A node that fails costs its own verdict only. Errors: [`NodesError::Lost`].
    pub fn run(
        &self,
        lease: &mut Lease,
        n_reproductions: usize,
        mut run: impl FnMut(&SubModel) -> Result<RanOnce, WireError>,
    ) -> Result<Judged, NodesError> {
        let mut runner = Runner { handle: self.handle, run: &mut run };
        let values: Vec<&Computed<'a>> = self.values.iter().filter_map(Value::computed).collect();
        let locals = self.run_locals(&values, &mut runner)?;
        let candidates = self.candidates.clone();
        let failed = Drift::new(&self.part.isolator, lease, &mut runner, candidates).run(&values)?;
        let mut origins = Births::default();
        let judge = Judge { part: self.part, tolerances: self.tolerances, tensors: Tensors::of(lease) };
        let mut judged = Judged::default();
        let mut wrong = Vec::new();
        for value in &self.values {
            let row = match value {
                Value::NotCompared { name, reason } => judge.not_compared(name, reason),
                Value::Computed(value) => {
                    let Some(local) = locals.get(value.name.as_str()) else { continue };
                    let mut row = judge.row(value, local, failed.get(value.name.as_str()));
                    row.births = self.births(value, &row, &judge, &mut origins);
                    if row.local.verdict == Verdict::Mismatch {
                        wrong.push((value, local));
                    }
                    row
                }
            };
            judged.rows.push(NodeRow { index: judged.rows.len() as u64, ..row });
        }
        if n_reproductions == 0 {
            return Ok(judged);
        }
        // Float64 will settle most that are off by little: they take no place from the others.
        wrong.sort_by_cached_key(|(value, local)| !judge.is_far_off(value, local));
        let reproductions = wrong.iter().filter_map(|(value, local)| self.reproduction(value, local, &judge));
        judged.reproductions.extend(reproductions.take(n_reproductions));
        Ok(judged)
    }

    /// Every value that is judged, on the reference's inputs. What values have in common, as those do that one operator
    /// of torch gives, runs once: its time is told of the first. A group that fails runs one by one.
    fn run_locals(
        &self,
        values: &[&Computed<'a>],
        runner: &mut Runner<'_>,
    ) -> Result<HashMap<&'a str, Local<'a>>, NodesError> {
        let slots: HashMap<&str, Written<'a>> =
            values.iter().filter_map(|value| Some((value.name.as_str(), value.local?))).collect();
        let names: Vec<&'a str> =
            values.iter().map(|value| value.name.as_str()).filter(|name| slots.contains_key(name)).collect();
        let feeds = &self.references.descs;
        let mut locals = HashMap::new();
        for group in self.part.isolator.share_nodes(&names, &self.through, feeds) {
            if let [_, _, ..] = group[..] {
                let piece = self.part.isolator.local_to_all(&group, &self.through, feeds);
                let written = group.iter().map(|&name| slots[name].tensor.clone()).collect();
                if let Ran::Done(mut ran) = runner.run(piece, &self.references, written)? {
                    for &name in &group {
                        locals.insert(name, Local { slot: slots[name], ran: Ran::Done(ran.clone()) });
                        ran.stats = RunStats::default();
                    }
                    continue;
                }
            }
            for &name in &group {
                let (piece, slot) = (self.local_piece(name), slots[name]);
                let ran = runner.run(piece, &self.references, vec![slot.tensor.clone()])?;
                locals.insert(name, Local { slot, ran });
            }
        }
        Ok(locals)
    }

    /// What is born in a value that was judged. What it was made of is looked at only where there is a NaN or an infinity.
    fn births(&self, value: &Computed<'a>, row: &NodeRow, judge: &Judge<'_>, seen: &mut Births<'a>) -> Vec<Birth> {
        let counted = |side| row.cumulative.metrics.as_ref().is_some_and(|metrics| holds_none_number(metrics, side));
        let sides = [Side::Candidate, Side::Reference].into_iter();
        let sides = sides.filter(|&side| counted(side) && !(side == Side::Candidate && self.may_be_finite(value, row)));
        let dtype = value.reference.tensor.desc.dtype;
        let mut births = Vec::new();
        for side in sides {
            let Ok(piece) = self.local_piece(value.name) else { return births };
            let read =
                piece.inputs.iter().filter_map(|name| self.read_value(name, side, judge, seen)).collect::<Vec<_>>();
            if let (Some(range), true) = (self.range(value.name, side, judge, seen), read.len() == piece.inputs.len()) {
                births.extend(Birth::find(side, &row.op, dtype, range, &read));
            }
        }
        births
    }

    /// What a rule keeps in float32 is rounded where it is looked at alone, and may become infinite only there.
    fn may_be_finite(&self, value: &Computed<'a>, row: &NodeRow) -> bool {
        let has_nan = row.cumulative.metrics.as_ref().is_none_or(|metrics| metrics.candidate_nan > 0);
        let is_half = value.reference.tensor.desc.dtype == DType::F16;
        is_half && !has_nan && self.part.unrounded.contains(value.name)
    }

    fn read_value(&self, name: &str, side: Side, judge: &Judge<'_>, seen: &mut Births<'a>) -> Option<ReadValue> {
        let desc = &self.reference_slots.get(name)?.tensor.desc;
        let range = self.range(name, side, judge, seen)?;
        let (dtype, dims) = (desc.dtype.to_string(), desc.shape.dims().to_vec());
        Some(ReadValue { name: name.to_owned(), dtype, dims, range })
    }

    fn range(&self, name: &str, side: Side, judge: &Judge<'_>, seen: &mut Births<'a>) -> Option<Range> {
        let (&name, _) = self.reference_slots.get_key_value(name)?;
        *seen.0.entry((name, side)).or_insert_with(|| {
            Range::of(match (side, self.candidate_slots.get(name)?) {
                (Side::Reference, _) => judge.tensors.read(self.reference_slots[name]),
                (Side::Candidate, Slot::Read(slot)) => judge.tensors.read(*slot),
                (Side::Candidate, Slot::Written(slot)) => judge.tensors.written(*slot),
            })
        })
    }

    fn local_piece(&self, value: &str) -> Result<Piece, OnnxError> {
        self.part.isolator.local(value, &self.through, &self.references.descs)
    }

    fn reproduction(&self, value: &Computed<'a>, local: &Local<'_>, judge: &Judge<'_>) -> Option<NodeReproduction> {
        let piece = self.local_piece(value.name).ok()?;
        Some(judge.reproduction(value, local, piece, |name| self.reference_slots[name]))
    }
}

impl<'a> Value<'a> {
    fn computed(&self) -> Option<&Computed<'a>> {
        match self {
            Value::Computed(value) => Some(value),
            Value::NotCompared { .. } => None,
        }
    }
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
