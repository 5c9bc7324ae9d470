//! Places of a batch's tensors, from those as they were sent to where they lie.

use crate::base::ids::ValueName;
use crate::protocol::control::{ComputedNode, NodeFloat64};
use crate::shm::{Lease, LeaseError, SegmentTable};
use crate::tensor::{SharedTensor, TensorRef};

/// The slot of a tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot<'a> {
    pub tensor: &'a TensorRef,
    at: usize,
    written: bool,
}

/// All of a batch.
#[derive(Debug, Default)]
pub(super) struct Slots<'a> {
    read: Vec<&'a TensorRef>,
    written: Vec<&'a TensorRef>,
}

impl<'a> Slots<'a> {
    /// Of a tensor that is only read.
    pub fn read(&mut self, tensor: &'a TensorRef) -> Slot<'a> {
        self.read.push(tensor);
        Slot { tensor, at: self.read.len() - 1, written: false }
    }

    /// Of a tensor that a piece writes.
    pub fn written(&mut self, tensor: &'a TensorRef) -> Slot<'a> {
        self.written.push(tensor);
        Slot { tensor, at: self.written.len() - 1, written: true }
    }

    /// Those that are only read.
    pub fn only_read(&self) -> Vec<TensorRef> {
        self.read.iter().map(|&tensor| tensor.clone()).collect()
    }

    /// The tensors, proven: what is written overlaps nothing. Errors: [`LeaseError`].
    pub fn lease(&self, segments: &SegmentTable) -> Result<Lease, LeaseError> {
        let written: Vec<_> = self.written.iter().map(|&tensor| tensor.clone()).collect();
        segments.lease(&self.only_read(), &written)
    }
}

/// Copies one tensor of a batch's lease to another, which is written.
pub(super) fn copy(lease: &mut Lease, from: Slot<'_>, to: Slot<'_>) {
    let (read, mut written) = lease.split_mut();
    written[to.at].bytes.copy_from(read[from.at].bytes());
}

/// The tensors of a batch's lease.
pub(super) struct Tensors<'l> {
    read: Vec<SharedTensor<'l>>,
    written: Vec<SharedTensor<'l>>,
}

impl<'l> Tensors<'l> {
    pub fn of(lease: &'l Lease) -> Self {
        Self { read: lease.inputs(), written: lease.outputs() }
    }

    pub fn at(&self, slot: Slot<'_>) -> SharedTensor<'l> {
        if slot.written { self.written[slot.at] } else { self.read[slot.at] }
    }
}

/// A value to compute.
#[derive(Debug)]
pub(super) struct Computed<'a> {
    pub name: &'a ValueName,
    pub reference: Slot<'a>,
    pub candidate: Slot<'a>,
    /// None: only computed, because something later reads it.
    pub local: Option<Slot<'a>>,
    pub reference_ns: u64,
    /// Float64: on the references, and as it drifted in float64.
    pub exact: Option<Slot<'a>>,
    pub exact_cumulative: Option<Slot<'a>>,
    pub no_float64: &'a str,
}

impl<'a> Computed<'a> {
    pub fn new(node: &'a ComputedNode, slots: &mut Slots<'a>) -> Self {
        let ComputedNode { name, reference, candidate, local, reference_ns, float64 } = node;
        let NodeFloat64 { local: exact, cumulative: exact_cumulative, missing } = float64.as_ref();
        Self {
            name,
            reference: slots.read(reference),
            candidate: slots.written(candidate),
            local: local.as_ref().map(|local| slots.written(local)),
            reference_ns: *reference_ns,
            exact: exact.as_ref().map(|exact| slots.read(exact)),
            exact_cumulative: exact_cumulative.as_ref().map(|exact| slots.read(exact)),
            no_float64: missing,
        }
    }
}
