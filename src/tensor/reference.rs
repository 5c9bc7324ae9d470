//! Tensors named by their place in shared memory, and the record of one call made of them.

use serde::{Deserialize, Serialize};

use super::{Location, TensorDesc};
use crate::base::ids::{CallId, PartHandle};

/// A dense row-major tensor in a segment: a claim, proven by `shm::SegmentTable::lease`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorRef {
    /// Of the first element.
    pub location: Location,
    /// dtype and shape.
    pub desc: TensorDesc,
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
