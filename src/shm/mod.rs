//! Memory shared with other processes: segments, leases on them, lanes, counters. The only mmap and the only passing of
//! descriptors. Who owns what: docs/decisions/0001-ownership.md; layouts: docs/protocol.md.
#![allow(unsafe_code)]

mod counters;
pub mod fds;
mod lanes;
mod lease;
mod record;
mod segment;
mod wait;

pub use counters::{Counter, CounterPage};
pub use lanes::{Answer, ClientLane, ExecutorLane, Failure, Lanes, Wake};
pub use lease::{Lease, RawTensor, SegmentTable};
pub use record::RawRecord;
pub use segment::Segment;

use thiserror::Error;

use crate::base::ids::SegmentId;
use crate::tensor::{BadShape, TensorDesc, UnknownDType};

/// Why shared memory cannot be used as asked.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ShmError {
    /// A segment that cannot be mapped.
    #[error("segment {}: {reason}", segment.0)]
    BadSegment {
        /// As announced.
        segment: SegmentId,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A segment that is not attached.
    #[error("segment {} is not attached; attach it before naming it", segment.0)]
    UnknownSegment {
        /// As named.
        segment: SegmentId,
    },
    /// A range that leaves its segment.
    #[error("segment {} has {len_bytes} bytes: {needed} bytes from offset {offset} do not fit", segment.0)]
    OutOfRange {
        /// The segment.
        segment: SegmentId,
        /// First byte.
        offset: u64,
        /// Bytes wanted.
        needed: u64,
        /// Bytes there are.
        len_bytes: u64,
    },
    /// A tensor that starts between two elements.
    #[error("{value}: {desc} at offset {offset} of segment {} is not aligned to {align} bytes", segment.0)]
    Misaligned {
        /// "input 3".
        value: String,
        /// The tensor.
        desc: TensorDesc,
        /// Its segment.
        segment: SegmentId,
        /// Its offset.
        offset: u64,
        /// What the offset must be a multiple of.
        align: usize,
    },
    /// An output that shares bytes with another tensor of the call.
    #[error("{output} overlaps {other} in segment {}; give every output memory of its own", segment.0)]
    Overlap {
        /// "output 0".
        output: String,
        /// "input 3".
        other: String,
        /// Their segment.
        segment: SegmentId,
    },
    /// The header of a lanes segment is wrong.
    #[error("lanes segment: {field} is {got}: expected {expected}")]
    BadLanes {
        /// Field of the header.
        field: &'static str,
        /// Its value.
        got: u64,
        /// What it may be.
        expected: &'static str,
    },
    /// A lane that the segment does not have, or that is open already.
    #[error("lane {lane}: {reason}")]
    BadLane {
        /// As asked for.
        lane: u32,
        /// What is wrong.
        reason: String,
    },
    /// The record of a call is wrong.
    #[error("call record: {field} is {got}: expected {expected}")]
    BadRecord {
        /// Field of the record.
        field: &'static str,
        /// Its value.
        got: u64,
        /// What it may be.
        expected: String,
    },
    /// See [`UnknownDType`].
    #[error("call record: {0}")]
    DType(#[from] UnknownDType),
    /// See [`BadShape`].
    #[error("call record: {0}")]
    Shape(#[from] BadShape),
}
