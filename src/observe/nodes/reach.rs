//! The tensors of a batch, wherever they lie, and the pieces that run on them.

use std::sync::Arc;

use super::error::NodesError;
use super::piece::SubModel;
use super::slots::{Slot, Tensors, copy};
use crate::compare::{Compared, Pair, Range};
use crate::link::message::RanOnce;
use crate::observe::on_device::{self, compared};
use crate::protocol::message::WireError;
use crate::shm::Lease;
use crate::tensor::{TensorBuf, TensorRef};

/// What comes of pieces that are run one after the other; the error is that nobody runs them any more.
pub type RunPieces<'r> = &'r mut dyn FnMut(Arc<[SubModel]>) -> Result<Vec<Result<RanOnce, WireError>>, WireError>;

/// Who reaches the tensors of a batch.
pub(super) trait Reach {
    /// Whether pieces are run as one where they can be: a session costs more than what it runs.
    fn joins(&self) -> bool;

    /// What came of each piece. Errors: Lost.
    fn run(&mut self, pieces: Arc<[SubModel]>) -> Result<Vec<Result<RanOnce, WireError>>, NodesError>;

    /// Copies one tensor, which is only read, to one that is written.
    fn copy(&mut self, from: Slot<'_>, to: Slot<'_>) -> Result<(), NodesError>;

    /// What comes of each pair.
    fn compared(&mut self, pairs: Vec<Pair<'_, Slot<'_>>>) -> Result<Vec<Compared>, NodesError>;

    /// What tensors hold; None of dtypes that have no range.
    fn ranges(&mut self, slots: &[Slot<'_>]) -> Result<Vec<Option<Range>>, NodesError>;

    /// Private copies of some tensors; None where they cannot be had, which is logged.
    fn owned(&mut self, slots: &[Slot<'_>]) -> Result<Option<Vec<TensorBuf>>, NodesError>;
}

/// Tensors of a lease.
pub(super) struct OnHost<'r> {
    pub lease: &'r mut Lease,
    pub run: RunPieces<'r>,
}

impl OnHost<'_> {
    fn each<'s, T>(&self, slots: &[Slot<'s>], of: impl Fn(crate::tensor::SharedTensor<'_>) -> T) -> Vec<T> {
        let tensors = Tensors::of(self.lease);
        slots.iter().map(|&slot| of(tensors.at(slot))).collect()
    }
}

impl Reach for OnHost<'_> {
    fn joins(&self) -> bool {
        false
    }

    fn run(&mut self, pieces: Arc<[SubModel]>) -> Result<Vec<Result<RanOnce, WireError>>, NodesError> {
        (self.run)(pieces).map_err(NodesError::Lost)
    }

    fn copy(&mut self, from: Slot<'_>, to: Slot<'_>) -> Result<(), NodesError> {
        copy(self.lease, from, to);
        Ok(())
    }

    fn compared(&mut self, pairs: Vec<Pair<'_, Slot<'_>>>) -> Result<Vec<Compared>, NodesError> {
        let tensors = Tensors::of(self.lease);
        Ok(pairs.into_iter().map(|pair| pair.map(|slot| tensors.at(slot)).compared()).collect())
    }

    fn ranges(&mut self, slots: &[Slot<'_>]) -> Result<Vec<Option<Range>>, NodesError> {
        Ok(self.each(slots, |tensor| Range::of(tensor)))
    }

    fn owned(&mut self, slots: &[Slot<'_>]) -> Result<Option<Vec<TensorBuf>>, NodesError> {
        Ok(Some(self.each(slots, |tensor| tensor.to_owned())))
    }
}

/// Tensors that lie on a device, but for some.
pub(super) struct OnDevice<'r, R> {
    pub reach: &'r mut R,
    pub run: RunPieces<'r>,
}

impl<R: on_device::Reach<Error = WireError>> OnDevice<'_, R> {
    /// What failed; an error where nothing can be asked any more.
    fn unless_lost<T>(&self, outcome: Result<T, WireError>) -> Result<Result<T, WireError>, NodesError> {
        match outcome {
            Err(error) if self.reach.is_lost() => Err(NodesError::Lost(error)),
            outcome => Ok(outcome),
        }
    }
}

impl<R: on_device::Reach<Error = WireError>> Reach for OnDevice<'_, R> {
    fn joins(&self) -> bool {
        true
    }

    fn run(&mut self, pieces: Arc<[SubModel]>) -> Result<Vec<Result<RanOnce, WireError>>, NodesError> {
        (self.run)(pieces).map_err(NodesError::Lost)
    }

    fn copy(&mut self, from: Slot<'_>, to: Slot<'_>) -> Result<(), NodesError> {
        let copied = self.reach.copy(vec![[from.tensor.clone(), to.tensor.clone()]]);
        self.unless_lost(copied)?.map_err(NodesError::Device)
    }

    fn compared(&mut self, pairs: Vec<Pair<'_, Slot<'_>>>) -> Result<Vec<Compared>, NodesError> {
        let pairs = pairs.into_iter().map(|pair| pair.map(|slot| slot.tensor)).collect();
        compared(self.reach, pairs).map_err(NodesError::Lost)
    }

    fn ranges(&mut self, slots: &[Slot<'_>]) -> Result<Vec<Option<Range>>, NodesError> {
        let tensors: Vec<TensorRef> = slots.iter().map(|slot| slot.tensor.clone()).collect();
        let found = self.reach.ranges(tensors);
        let mut found = self.unless_lost(found)?.map_err(NodesError::Device)?;
        for (slot, range) in slots.iter().zip(&mut found) {
            // Of the host, or on a device where nothing is measured.
            if range.is_none() && slot.tensor.desc.dtype.widens() {
                let copied = self.reach.copied(std::slice::from_ref(slot.tensor));
                let copy = self.unless_lost(copied)?.map_err(NodesError::Device)?;
                *range = Range::of(copy.inputs()[0]);
            }
        }
        Ok(found)
    }

    fn owned(&mut self, slots: &[Slot<'_>]) -> Result<Option<Vec<TensorBuf>>, NodesError> {
        let tensors: Vec<TensorRef> = slots.iter().map(|slot| slot.tensor.clone()).collect();
        let copied = self.reach.copied(&tensors);
        let copied = self.unless_lost(copied)?.map_err(|error| {
            tracing::warn!(%error, "a node's tensors cannot be copied from their device");
        });
        Ok(copied.ok().map(|copies| copies.inputs().iter().map(|tensor| tensor.to_owned()).collect()))
    }
}
