//! Where a batch's tensors are: each gets a slot as it joins the batch, and the batch's lease has them in that order.

use crate::base::ids::ValueName;
use crate::protocol::control::{ComputedNode, NodeFloat64};
use crate::shm::{Lease, LeaseError, SegmentTable};
use crate::tensor::{SharedTensor, TensorRef};

/// The slot of a tensor that is only read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read<'a> {
    pub tensor: &'a TensorRef,
    at: usize,
}

/// The slot of a tensor that is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written<'a> {
    pub tensor: &'a TensorRef,
    at: usize,
}

/// All of a batch.
#[derive(Debug, Default)]
pub(super) struct Slots<'a> {
    read: Vec<&'a TensorRef>,
    written: Vec<&'a TensorRef>,
}

impl<'a> Slots<'a> {
    pub fn read(&mut self, tensor: &'a TensorRef) -> Read<'a> {
        self.read.push(tensor);
        Read { tensor, at: self.read.len() - 1 }
    }

    pub fn written(&mut self, tensor: &'a TensorRef) -> Written<'a> {
        self.written.push(tensor);
        Written { tensor, at: self.written.len() - 1 }
    }

    /// The tensors, proven: what is written overlaps nothing. Errors: [`LeaseError`].
    pub fn lease(&self, segments: &SegmentTable) -> Result<Lease, LeaseError> {
        let own = |tensors: &[&TensorRef]| tensors.iter().map(|&tensor| tensor.clone()).collect::<Vec<_>>();
        segments.lease(&own(&self.read), &own(&self.written))
    }
}

/// Copies one tensor of a batch's lease to another.
pub(super) fn copy(lease: &mut Lease, from: Read<'_>, to: Written<'_>) {
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

    pub fn read(&self, slot: Read<'_>) -> SharedTensor<'l> {
        self.read[slot.at]
    }

    pub fn written(&self, slot: Written<'_>) -> SharedTensor<'l> {
        self.written[slot.at]
    }
}

/// A value to compute.
#[derive(Debug)]
pub(super) struct Computed<'a> {
    pub name: &'a ValueName,
    pub reference: Read<'a>,
    pub candidate: Written<'a>,
    /// None: only computed, because something later reads it.
    pub local: Option<Written<'a>>,
    pub reference_ns: u64,
    /// Float64: on the references, and as it drifted in float64.
    pub exact: Option<Read<'a>>,
    pub exact_cumulative: Option<Read<'a>>,
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
