//! A batch of nodes, checked, run and judged.

use std::collections::{HashMap, HashSet};

use prost::Message as _;

use super::drift::Drift;
use super::error::NodesError;
use super::judge::{Facts, Judge, Policies};
use super::local::{Local, Locals};
use super::part::PartNodes;
use super::piece::Ready;
use super::reach::{OnDevice, OnHost, Reach, RunPieces};
use super::runner::Runner;
use super::slots::{Computed, Slot, Slots, Tensors};
use crate::base::ids::{PartHandle, ValueName};
use crate::compare::{Birth, Metrics, Pair, Range, ReadValue, Side, Verdict};
use crate::dump::{EagerValues, NodeReproduction, NodeRow};
use crate::observe::on_device;
use crate::onnx::{OnnxError, Piece};
use crate::protocol::control::{CompareNodes, ComputedNode, NodeFeed, NodeValue};
use crate::protocol::message::WireError;
use crate::shm::{Lease, LeaseError, SegmentTable};
use crate::tensor::{DType, TensorDesc, TensorRef};

/// By the names of values.
type ByName<'a, T> = HashMap<&'a str, T>;

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
    policies: Policies,
    /// Names of earlier batches that have no reference, and of this one.
    through: HashSet<&'a str>,
    values: Vec<Value<'a>>,
    slots: Slots<'a>,
    /// Eager's, of feeds and values.
    references: Ready<'a>,
    /// Where these are.
    reference_slots: HashMap<&'a str, Slot<'a>>,
    /// ONNX Runtime's, of the feeds.
    candidates: Ready<'a>,
    /// Where the candidates are.
    candidate_slots: HashMap<&'a str, Slot<'a>>,
    /// Of the part's inputs: eager's and ONNX Runtime's.
    inputs: Vec<(&'a ValueName, Slot<'a>, Slot<'a>)>,
}

/// What values hold, of those that were asked for.
type Ranges<'a> = HashMap<(&'a str, Side), Option<Range>>;

/// A value of which something may be born on a side, what it holds and what it was made of.
struct Birthplace<'a> {
    /// Its place among the rows.
    row: usize,
    side: Side,
    value: &'a str,
    read: Vec<&'a str>,
}

fn holds_none_number(metrics: &Metrics, side: Side) -> bool {
    let counts = match side {
        Side::Reference => [metrics.reference_nan, metrics.reference_inf],
        Side::Candidate => [metrics.candidate_nan, metrics.candidate_inf],
    };
    counts.iter().sum::<u64>() > 0
}

enum Value<'a> {
    Computed(Computed<'a>),
    NotCompared { name: &'a str, reason: &'a str, nothing: bool },
}

impl<'a> Batch<'a> {
    /// The batch, checked. `not_compared`: names of earlier batches that have no reference, so that no model can be cut
    /// there. Errors: [`NodesError::Unknown`], [`NodesError::Twice`], [`NodesError::Unlike`].
    pub fn new(
        request: &'a CompareNodes,
        part: &'a PartNodes,
        policies: Policies,
        not_compared: impl Iterator<Item = &'a str>,
    ) -> Result<Self, NodesError> {
        let mut seen = HashSet::new();
        let mut once = |name: &'a ValueName| {
            if seen.insert(name.as_str()) { Ok(()) } else { Err(NodesError::Twice { name: name.clone() }) }
        };
        let mut batch = Self {
            part,
            handle: request.handle,
            policies,
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
                NodeValue::NotCompared { name, reason, nothing } => {
                    once(name)?;
                    batch.through.insert(name);
                    batch.values.push(Value::NotCompared { name, reason, nothing: *nothing });
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
        self.candidate_slots.insert(name, drifted);
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
        self.candidate_slots.insert(name, value.candidate);
        self.values.push(Value::Computed(value));
        Ok(())
    }

    fn reference(&mut self, name: &'a str, slot: Slot<'a>) {
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

    /// What the batch reads and no piece writes.
    pub fn only_read(&self) -> Vec<TensorRef> {
        self.slots.only_read()
    }

    /// What a dump keeps of the references, over a lease of [`Batch::lease`].
    pub fn eager_values<'l>(&self, lease: &'l Lease) -> EagerValues<'l> {
        let tensors = Tensors::of(lease);
        let inputs = self.inputs.iter().filter_map(|&(name, reference, candidate)| {
            let (reference, candidate) = (tensors.at(reference), tensors.at(candidate));
            (!reference.bytes().equals(&candidate.bytes())).then(|| (name.clone(), reference))
        });
        let nodes = self.judged().map(|value| (value.name.clone(), tensors.at(value.reference)));
        EagerValues { inputs: inputs.collect(), nodes: nodes.collect() }
    }

    /// The same of tensors on a device, some at a time. Errors: those of copies.
    pub fn eager_values_on_device<R: on_device::Reach>(
        &self,
        reach: &mut R,
        mut keep: impl FnMut(&EagerValues<'_>) -> Result<(), R::Error>,
    ) -> Result<(), R::Error> {
        for &(name, reference, candidate) in &self.inputs {
            let copies = reach.copied(&[reference.tensor.clone(), candidate.tensor.clone()])?;
            let [reference, candidate] = <[_; 2]>::try_from(copies.inputs()).expect("two were asked for");
            if !reference.bytes().equals(&candidate.bytes()) {
                keep(&EagerValues { inputs: vec![(name.clone(), reference)], nodes: Vec::new() })?;
            }
        }
        let names: Vec<&ValueName> = self.judged().map(|value| value.name).collect();
        let references: Vec<TensorRef> = self.judged().map(|value| value.reference.tensor.clone()).collect();
        let mut kept = Ok(());
        on_device::copy_in_batches(reach, &references, |first, tensors| {
            let nodes = names[first..].iter().zip(tensors).map(|(&name, tensor)| (name.clone(), *tensor));
            let values = EagerValues { inputs: Vec::new(), nodes: nodes.collect() };
            if kept.is_ok() {
                kept = keep(&values);
            }
        })?;
        kept
    }

    fn judged(&self) -> impl Iterator<Item = &Computed<'a>> {
        self.values.iter().filter_map(Value::computed).filter(|value| value.local.is_some())
    }

    /// Runs and judges, by `run`, over a lease of [`Batch::lease`]; up to `n_reproductions` local mismatches are copied,
    /// those first that are far off.
    /// A node that fails costs its own verdict only. Errors: [`NodesError::Lost`].
    pub fn run(&self, lease: &mut Lease, n_reproductions: usize, run: RunPieces<'_>) -> Result<Judged, NodesError> {
        self.run_on(&mut OnHost { lease, run }, n_reproductions)
    }

    /// As [`Batch::run`], of tensors on a device: they are judged where they lie. Errors: also [`NodesError::Device`].
    pub fn run_on_device<R: on_device::Reach<Error = WireError>>(
        &self,
        reach: &mut R,
        n_reproductions: usize,
        run: RunPieces<'_>,
    ) -> Result<Judged, NodesError> {
        self.run_on(&mut OnDevice { reach, run }, n_reproductions)
    }

    fn run_on(&self, reach: &mut dyn Reach, n_reproductions: usize) -> Result<Judged, NodesError> {
        let (locals, failed) = self.run_all(reach)?;
        let judge = Judge { part: self.part, policies: self.policies };
        let mut facts = self.facts(&judge, &locals, reach)?.into_iter();
        let (mut judged, mut wrong, mut born) = (Judged::default(), Vec::new(), Vec::new());
        for value in &self.values {
            let row = match value {
                Value::NotCompared { name, reason, nothing } => {
                    NodeRow { nothing: *nothing, ..judge.not_compared(name, reason) }
                }
                Value::Computed(value) => {
                    let Some(local) = locals.get(value.name.as_str()) else { continue };
                    let facts = facts.next().expect("one a value that ran");
                    let row = judge.row(value, local, facts, failed.get(value.name.as_str()));
                    born.extend(self.birthplaces(judged.rows.len(), value, &row));
                    if row.local.verdict == Verdict::Mismatch {
                        wrong.push((value, local));
                    }
                    row
                }
            };
            judged.rows.push(NodeRow { index: judged.rows.len() as u64, ..row });
        }
        self.find_births(born, &mut judged.rows, reach)?;
        if n_reproductions > 0 {
            judged.reproductions = self.reproductions(&wrong, n_reproductions, reach)?;
        }
        Ok(judged)
    }

    /// What came of each value that is judged, and why some could not be computed as they drifted.
    fn run_all(&self, reach: &mut dyn Reach) -> Result<(ByName<'a, Local<'a>>, ByName<'a, String>), NodesError> {
        let joins = reach.joins() && !self.part.has_rules;
        let mut runner = Runner { handle: self.handle, has_rules: self.part.has_rules, reach };
        let values: Vec<&Computed<'a>> = self.values.iter().filter_map(Value::computed).collect();
        let slots = values.iter().filter_map(|value| Some((value.name.as_str(), value.local?))).collect();
        let mut locals = Locals {
            part: self.part,
            through: &self.through,
            references: &self.references,
            slots,
            done: HashMap::new(),
        };
        let names: Vec<&'a str> = self.judged().map(|value| value.name.as_str()).collect();
        let groups = locals.groups(&names);
        let is_apart = |group: &Vec<&'a str>| !joins || group.iter().any(|name| self.part.is_apart(name));
        let (alone, together): (Vec<_>, Vec<_>) = groups.into_iter().partition(is_apart);
        let at_once: Vec<_> = alone.chunks(1).chain(together.chunks(together.len().max(1))).collect();
        let drift = Drift::new(self.part, self.candidates.clone());
        let pieces = drift.pieces(&values);
        let mut all: Vec<_> = at_once.iter().map(|groups| locals.together(groups)).collect();
        all.extend(pieces.first().map(|piece| drift.segment(piece)));
        let mut ran = runner.run(all)?;
        let drifted = if pieces.is_empty() { None } else { ran.pop() };
        for (groups, ran) in at_once.into_iter().zip(ran) {
            locals.after(groups, ran, &mut runner)?;
        }
        let failed = drifted.map(|ran| drift.finish(&pieces, ran, &mut runner)).transpose()?;
        Ok((locals.done, failed.unwrap_or_default()))
    }

    /// Of each value that ran, in their order.
    fn facts(
        &self,
        judge: &Judge<'_>,
        locals: &HashMap<&'a str, Local<'a>>,
        reach: &mut dyn Reach,
    ) -> Result<Vec<Facts>, NodesError> {
        let mut pairs = Vec::new();
        let mut has_local = Vec::new();
        for value in self.values.iter().filter_map(Value::computed) {
            let Some(local) = locals.get(value.name.as_str()) else { continue };
            let (own, drifted) = judge.pairs(value, local);
            has_local.push(own.is_some());
            pairs.extend(own);
            pairs.push(drifted);
        }
        let mut compared = reach.compared(pairs)?.into_iter();
        let mut next = || compared.next().expect("one a pair");
        Ok(has_local.into_iter().map(|own| Facts { local: own.then(&mut next), cumulative: next() }).collect())
    }

    /// Where something may be born in a value that was judged: what it was made of is looked at only where there is a NaN or
    /// an infinity.
    fn birthplaces(&self, place: usize, value: &Computed<'a>, row: &NodeRow) -> Vec<Birthplace<'a>> {
        let counted = |side| row.cumulative.metrics.as_ref().is_some_and(|metrics| holds_none_number(metrics, side));
        let sides = [Side::Candidate, Side::Reference].into_iter();
        let sides: Vec<Side> = sides
            .filter(|&side| counted(side) && !(side == Side::Candidate && self.may_be_finite(value, row)))
            .collect();
        if sides.is_empty() {
            return Vec::new();
        }
        let Ok(piece) = self.local_piece(value.name) else { return Vec::new() };
        let known = |name: &String| Some(*self.reference_slots.get_key_value(name.as_str())?.0);
        let read: Option<Vec<&'a str>> = piece.inputs.iter().map(known).collect();
        let Some(read) = read else { return Vec::new() };
        let at = |side| Birthplace { row: place, side, value: value.name, read: read.clone() };
        sides.into_iter().map(at).collect()
    }

    fn find_births(
        &self,
        born: Vec<Birthplace<'a>>,
        rows: &mut [NodeRow],
        reach: &mut dyn Reach,
    ) -> Result<(), NodesError> {
        let mut wanted: Vec<(&'a str, Side)> = Vec::new();
        let mut seen = HashSet::new();
        for Birthplace { side, value, read, .. } in &born {
            let all = [value].into_iter().chain(read).map(|&name| (name, *side));
            wanted.extend(all.filter(|key| seen.insert(*key)));
        }
        let slots: Vec<Slot<'a>> = wanted.iter().map(|&(name, side)| self.slot(name, side)).collect();
        let found = if slots.is_empty() { Vec::new() } else { reach.ranges(&slots)? };
        let ranges: Ranges<'a> = wanted.into_iter().zip(found).collect();
        for Birthplace { row, side, value, read } in born {
            let row = &mut rows[row];
            let of = |name: &'a str| ranges.get(&(name, side)).copied().flatten();
            let read: Option<Vec<ReadValue>> = read.into_iter().map(|name| self.read_value(name, of(name)?)).collect();
            if let Some((read, range)) = read.zip(of(value)) {
                let dtype = self.reference_slots[value].tensor.desc.dtype;
                row.births.extend(Birth::find(side, &row.op, dtype, range, &read));
            }
        }
        Ok(())
    }

    /// What a rule keeps in float32 is rounded where it is looked at alone, and may become infinite only there.
    fn may_be_finite(&self, value: &Computed<'a>, row: &NodeRow) -> bool {
        let has_nan = row.cumulative.metrics.as_ref().is_none_or(|metrics| metrics.candidate_nan > 0);
        let is_half = value.reference.tensor.desc.dtype == DType::F16;
        is_half && !has_nan && self.part.unrounded.contains(value.name)
    }

    fn read_value(&self, name: &str, range: Range) -> Option<ReadValue> {
        let desc = &self.reference_slots.get(name)?.tensor.desc;
        let (dtype, dims) = (desc.dtype.to_string(), desc.shape.dims().to_vec());
        Some(ReadValue { name: name.to_owned(), dtype, dims, range })
    }

    fn slot(&self, name: &str, side: Side) -> Slot<'a> {
        match side {
            Side::Reference => self.reference_slots[name],
            Side::Candidate => self.candidate_slots[name],
        }
    }

    fn local_piece(&self, value: &str) -> Result<Piece, OnnxError> {
        self.part.isolator.local(value, &self.through, &self.references.descs)
    }

    /// Of the first of these, those that are far off before others: float64 will settle most that are off by little, which
    /// take no place from them.
    fn reproductions(
        &self,
        wrong: &[(&Computed<'a>, &Local<'a>)],
        most: usize,
        reach: &mut dyn Reach,
    ) -> Result<Vec<NodeReproduction>, NodesError> {
        // Beyond what drift may do, too.
        let pairs = wrong.iter().map(|(value, local)| Pair::new(value.name, value.reference, local.slot, None));
        let judged = if wrong.is_empty() { Vec::new() } else { reach.compared(pairs.collect())? };
        let is_far_off = |place: usize| judged[place].verdict.verdict == Verdict::Mismatch;
        let mut places: Vec<usize> = (0..wrong.len()).collect();
        places.sort_by_key(|&place| !is_far_off(place));
        let mut made = Vec::new();
        for (value, local) in places.into_iter().map(|place| wrong[place]) {
            if made.len() == most {
                break;
            }
            let Ok(piece) = self.local_piece(value.name) else { continue };
            let inputs = piece.inputs.iter().map(|name| self.reference_slots[name.as_str()]);
            let slots: Vec<Slot<'a>> = [value.reference, local.slot].into_iter().chain(inputs).collect();
            let Some(copies) = reach.owned(&slots)? else { continue };
            let mut copies = copies.into_iter();
            let (Some(reference), Some(actual)) = (copies.next(), copies.next()) else { continue };
            made.push(NodeReproduction {
                node: value.name.clone(),
                model: piece.model.encode_to_vec().into(),
                inputs: piece.inputs.into_iter().zip(copies).collect(),
                reference,
                actual,
            });
        }
        Ok(made)
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
