//! The memory of lanes.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::base::ids::SegmentId;
use crate::base::limits;
use crate::shm::record::{RECORD_HEAD_LEN, RawRecord, RecordError, u32_at};
use crate::shm::segment::{BadSegment, OutOfRange, Segment};
use crate::shm::wait::Doorbell;
use crate::tensor::CallRecord;

pub(super) const MAGIC: [u8; 8] = *b"RORTLANE";
pub(super) const VERSION: u32 = 2;
pub(super) const PAGE: u64 = 4096;
/// In the header's page: see `order.rs`.
pub(super) const SLOTS: u64 = 2048;
const LANE_LENS: std::ops::RangeInclusive<u32> = 64 << 10..=4 << 20;

pub(super) const REQUEST: u64 = 0;
pub(super) const EXECUTOR_WAITING: u64 = 4;
pub(super) const REPLY: u64 = 64;
pub(super) const CLIENT_WAITING: u64 = 68;
pub(super) const RUNNING: u64 = 128;
pub(super) const STATUS: u64 = 132;
pub(super) const ERROR_KIND: u64 = 136;
pub(super) const ERROR_LEN: u64 = 140;
pub(super) const NODE_LEN: u64 = 152;
pub(super) const RUN_NS: u64 = 144;
pub(super) const RECORD: u64 = 256;
pub(super) const ERROR_AREA_LEN: u64 = 4096;

/// The calls of one client, in a segment that it shares with its executor: each lane carries one call at a time, and its
/// answer.
///
/// # What it proves
/// [`Lanes::map`] checks the header once, so that every lane lies inside the mapping; later changes to the header are not
/// looked at. What a lane holds proves nothing: a record is copied out and checked ([`RawRecord::parse`]), and the tensors
/// that it names are claims until [`SegmentTable::lease`] proved them.
///
/// # When to use
/// For calls, which must not cost a system call: each side polls the other's word for a short while before it sleeps. A
/// thread of the client takes a lane for the length of a call; one thread of the executor serves each open lane. The
/// daemon maps the same segment and looks only after the executor died, for what it was doing ([`Lanes::running`]).
///
/// # When not
/// Not for what takes descriptors, has no preallocated outputs or is observed: that goes over a link or the socket. Not for
/// two threads on one lane: a lane is served once at a time, but nothing keeps two of its [`ClientLane`]s apart.
///
/// # What outlives what
/// Both ends keep the mapping. A request that an executor left is not served by the next one: [`Lanes::serve`] passes over
/// it, since its client was told. A client that gives up leaves its request: the executor may still run it and write the
/// outputs, so that nothing else may take the tensors' memory while that executor lives.
///
/// ```
/// use std::sync::atomic::AtomicBool;
/// use std::thread;
///
/// use rust_ort::base::ids::{CallId, PartHandle, SegmentId};
/// use rust_ort::shm::{Lanes, RawRecord, Wake};
/// use rust_ort::tensor::CallRecord;
///
/// let lanes = Lanes::create(SegmentId(1), 1, 64 << 10)?;
/// let (mut executor, mut client) = (lanes.serve(0)?, lanes.client(0)?);
/// let record =
///     CallRecord { call: CallId(7), handle: PartHandle(2), eager_nodes: 0, inputs: vec![], outputs: vec![] };
///
/// let answer = thread::scope(|scope| {
///     scope.spawn(|| {
///         let mut raw = RawRecord::default();
///         assert_eq!(executor.next(&AtomicBool::new(false)), Wake::Request);
///         executor.read(&mut raw).expect("the client's record is good");
///         executor.answer(&Ok(raw.call.0 * 100));
///     });
///     client.call(&record, || false)
/// })?;
/// assert_eq!(answer, Some(Ok(700)), "nanoseconds inside the runtime");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`ClientLane`]: super::ClientLane
/// [`SegmentTable::lease`]: crate::shm::SegmentTable::lease
#[derive(Debug)]
pub struct Lanes {
    pub(super) segment: Arc<Segment>,
    n_lanes: u32,
    lane_len: u32,
    pub(super) served: Mutex<HashSet<u32>>,
}

/// Why a segment holds no lanes.
#[derive(Clone, Debug, displaydoc::Display, thiserror::Error, PartialEq, Eq)]
pub enum LanesError {
    /// {0}
    Segment(#[from] BadSegment),
    /// {0}
    OutOfRange(#[from] OutOfRange),
    /// lanes segment: {field} is {got}: expected {expected}
    Header {
        /// Field of the header.
        field: &'static str,
        /// Its value.
        got: u32,
        /// What it may be.
        expected: &'static str,
    },
}

/// Why a lane cannot be taken.
#[derive(Clone, Copy, Debug, displaydoc::Display, thiserror::Error, PartialEq, Eq)]
pub enum LaneError {
    /// lane {lane}: the segment has {n_lanes} lanes
    Absent {
        /// As asked for.
        lane: u32,
        /// Lanes there are.
        n_lanes: u32,
    },
    /// lane {lane}: open already
    Open {
        /// As asked for.
        lane: u32,
    },
}

impl Lanes {
    /// Makes a segment of lanes; for clients written in Rust and for tests. Errors: as of [`Lanes::map`].
    pub fn create(id: SegmentId, n_lanes: u32, lane_len: u32) -> Result<Arc<Self>, LanesError> {
        let segment = Segment::create(id, "rust-ort-lanes", PAGE + u64::from(n_lanes) * u64::from(lane_len))?;
        segment.write(0, &MAGIC)?;
        for (index, field) in [VERSION, n_lanes, lane_len, 0].into_iter().enumerate() {
            segment.write(8 + 4 * index as u64, &field.to_le_bytes())?;
        }
        Self::map(segment)
    }

    /// Checks the header, once: later changes to it are not looked at. Errors: Header, OutOfRange.
    pub fn map(segment: Segment) -> Result<Arc<Self>, LanesError> {
        let head = segment.read(0, 24)?;
        let bad = |field, got, expected| Err(LanesError::Header { field, got, expected });
        let field = |index: usize| u32_at(&head, 8 + 4 * index);
        if head[..8] != MAGIC {
            return bad("magic", u32_at(&head, 0), "the eight bytes RORTLANE");
        }
        let [version, n_lanes, lane_len, reserved] = std::array::from_fn(field);
        if version != VERSION {
            return bad("version", version, "2");
        }
        if n_lanes == 0 || n_lanes > limits::LANES {
            return bad("n_lanes", n_lanes, "at least 1, and no more than a client may have");
        }
        if !LANE_LENS.contains(&lane_len) || u64::from(lane_len) % PAGE != 0 {
            return bad("lane_len", lane_len, "a multiple of 4096 from 64 KiB to 4 MiB");
        }
        if reserved != 0 {
            return bad("reserved", reserved, "0");
        }
        segment.range(PAGE, n_lanes as usize * lane_len as usize)?;
        Ok(Arc::new(Self { segment: Arc::new(segment), n_lanes, lane_len, served: Mutex::default() }))
    }

    /// The memory under the lanes.
    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Number of lanes.
    pub fn n_lanes(&self) -> u32 {
        self.n_lanes
    }

    /// Calls that were inside the runtime: what a dead executor was doing. Records that do not parse are left out.
    pub fn running(self: &Arc<Self>) -> Vec<(u32, CallRecord)> {
        let running = |lane| {
            let place = self.place(lane).ok()?;
            let mut record = RawRecord::default();
            let is_running = place.word(RUNNING).load(Ordering::Acquire) == 1;
            (is_running && place.read_record(&mut record).is_ok()).then(|| record.parse().ok())?
        };
        (0..self.n_lanes).filter_map(|lane| Some((lane, running(lane)?))).collect()
    }

    pub(super) fn place(self: &Arc<Self>, lane: u32) -> Result<Place, LaneError> {
        if lane >= self.n_lanes {
            return Err(LaneError::Absent { lane, n_lanes: self.n_lanes });
        }
        Ok(Place { start: PAGE + u64::from(lane) * u64::from(self.lane_len), lanes: Arc::clone(self), lane })
    }
}

/// One lane's memory.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) lanes: Arc<Lanes>,
    pub(super) lane: u32,
    pub(super) start: u64,
}

impl Place {
    pub(super) fn word(&self, offset: u64) -> &AtomicU32 {
        self.lanes.segment.word(self.start + offset)
    }

    pub(super) fn word64(&self, offset: u64) -> &AtomicU64 {
        self.lanes.segment.word64(self.start + offset)
    }

    pub(super) fn requests(&self) -> Doorbell<'_> {
        Doorbell { word: self.word(REQUEST), waiting: self.word(EXECUTOR_WAITING) }
    }

    pub(super) fn replies(&self) -> Doorbell<'_> {
        Doorbell { word: self.word(REPLY), waiting: self.word(CLIENT_WAITING) }
    }

    pub(super) fn error_area(&self) -> u64 {
        u64::from(self.lanes.lane_len) - ERROR_AREA_LEN
    }

    /// Bytes for locations and descriptors.
    pub(super) fn body_capacity(&self) -> usize {
        self.lanes.lane_len as usize - ERROR_AREA_LEN as usize - RECORD as usize - RECORD_HEAD_LEN
    }

    pub(super) fn copy_out(&self, offset: u64, bytes: &mut [u8]) {
        let shared = self.lanes.segment.bytes(self.start + offset, bytes.len()).expect("callers stay in the lane");
        shared.copy_out(bytes);
    }

    pub(super) fn copy_in(&self, offset: u64, bytes: &[u8]) {
        self.lanes.segment.write(self.start + offset, bytes).expect("callers stay in the lane");
    }

    pub(super) fn read_record(&self, record: &mut RawRecord) -> Result<(), RecordError> {
        let mut head = [0; RECORD_HEAD_LEN];
        self.copy_out(RECORD, &mut head);
        let body_len = record.set_head(&head, self.body_capacity())?;
        record.body.resize(body_len, 0);
        self.copy_out(RECORD + RECORD_HEAD_LEN as u64, &mut record.body);
        Ok(())
    }
}
