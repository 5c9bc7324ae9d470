//! Why a batch of nodes cannot be judged.

use displaydoc::Display;
use thiserror::Error;

use crate::base::ids::ValueName;
use crate::protocol::message::WireError;
use crate::shm::LeaseError;
use crate::tensor::TensorDesc;

/// Why a batch cannot be judged.
#[derive(Debug, Display, Error)]
pub enum NodesError {
    /// A tensor is not where it should be.
    #[displaydoc("{0}")]
    Memory(#[from] LeaseError),
    /// {what} {name:?}: no named value or input of the part; name one of those given with PreparePart
    Unknown {
        /// "feed" or "value".
        what: &'static str,
        /// As sent.
        name: ValueName,
    },
    /// value {name:?} is named twice in one batch; send it as a feed or as a value, once
    Twice {
        /// As sent.
        name: ValueName,
    },
    /// value {name:?}: {what} is {got}, expected {expected} (as the reference); allocate it like the reference
    Unlike {
        /// As sent.
        name: ValueName,
        /// "candidate", "local", "exact" or "exact_cumulative".
        what: &'static str,
        /// The reference's.
        expected: TensorDesc,
        /// As sent.
        got: TensorDesc,
    },
    /// The executor is gone, or runs nothing.
    #[displaydoc("{0}")]
    Lost(WireError),
    /// What the batch needs of a device failed.
    #[displaydoc("{0}")]
    Device(WireError),
}
