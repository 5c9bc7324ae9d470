//! Memory shared with other processes: segments, leases on them, lanes, counters. The only mmap and the only passing of
//! descriptors. Who owns what: docs/design/decisions/0001-ownership.md; layouts: docs/design/protocol.md.

mod counters;
mod device;
pub mod fds;
mod lanes;
mod lease;
mod pace;
mod peer_errors;
mod record;
mod segment;
mod table;
mod wait;

pub use counters::{Counter, CounterPage};
pub use device::DeviceSegment;
pub use lanes::{
    Answer, ClientLane, End, ExecutorLane, Failure, LaneError, Lanes, LanesError, N_SLOTS, Numbers, Slot, Wake,
};
pub use lease::{Lease, LeaseError, RawTensor, Readable, Role};
pub use record::{RawRecord, RecordError, RecordHead, descriptors};
pub use segment::{BadSegment, OutOfRange, Segment, SegmentFault, UnknownSegment};
pub use table::SegmentTable;
pub use wait::cores_changed;
