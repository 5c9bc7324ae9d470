//! Tensors named by their place in shared memory, and the record of one call made of them.

use serde::{Deserialize, Serialize};

use super::TensorDesc;
use crate::base::ids::{CallId, PartHandle, SegmentId};

/// A dense row-major tensor in a segment: a claim, proven by `shm::SegmentTable::lease`. What travels is the offset,
/// never an address.
///
/// ```
/// use rust_ort::base::ids::SegmentId;
/// use rust_ort::tensor::{BadShape, DType, TensorDesc, TensorRef};
///
/// let desc = TensorDesc::new(DType::I64, [4])?;
/// let tensor = TensorRef { segment: SegmentId(3), offset: 128, desc };
/// assert_eq!(tensor.location(), 0x300_0000_0080);
/// assert_eq!(TensorRef::split_location(tensor.location()), (SegmentId(3), 128));
/// # Ok::<(), BadShape>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorRef {
    /// Segment of the client.
    pub segment: SegmentId,
    /// Offset of the first element in bytes, below [`TensorRef::OFFSET_LIMIT`].
    pub offset: u64,
    /// dtype and shape.
    pub desc: TensorDesc,
}

impl TensorRef {
    /// Exclusive upper bound of an offset: a location keeps 40 bits for it.
    pub const OFFSET_LIMIT: u64 = 1 << 40;

    /// `segment << 40 | offset`, as lanes carry it (docs/protocol.md).
    pub const fn location(&self) -> u64 {
        (self.segment.0 as u64) << 40 | self.offset
    }

    /// Segment and offset of a location.
    pub const fn split_location(location: u64) -> (SegmentId, u64) {
        (SegmentId((location >> 40) as u32), location & (Self::OFFSET_LIMIT - 1))
    }
}

/// One call of a prepared part.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CallRecord {
    /// Chosen by the client.
    pub call: CallId,
    /// What to run.
    pub handle: PartHandle,
    /// Eager compute nodes that ran beside this part since the last call of its graph.
    pub eager_nodes: u32,
    /// Feeds, in the model's order; at most [`CallRecord::MAX_VALUES`].
    pub inputs: Vec<TensorRef>,
    /// Preallocated fetches, in the model's order; at most [`CallRecord::MAX_VALUES`].
    pub outputs: Vec<TensorRef>,
}

impl CallRecord {
    /// Largest number of inputs, and of outputs.
    pub const MAX_VALUES: usize = 65_535;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;

    #[test]
    fn location_splits_into_what_it_was_made_of() {
        for (segment, offset) in [(0, 0), (1, 64), (SegmentId::LIMIT - 1, TensorRef::OFFSET_LIMIT - 1)] {
            let desc = TensorDesc::new(DType::F32, [2]).unwrap();
            let reference = TensorRef { segment: SegmentId(segment), offset, desc };
            assert_eq!(TensorRef::split_location(reference.location()), (SegmentId(segment), offset));
        }
    }
}
