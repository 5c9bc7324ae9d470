//! Call slots and doorbells in shared memory: the layout of docs/protocol.md, from both sides.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::record::{RECORD_HEAD_LEN, RawRecord, RecordError, u32_at};
use super::segment::{BadSegment, OutOfRange, Segment};
use super::wait::{Doorbell, wake};
use crate::base::ids::SegmentId;
use crate::base::sync::lock;
use crate::tensor::CallRecord;

const MAGIC: [u8; 8] = *b"RORTLANE";
const VERSION: u32 = 1;
const PAGE: u64 = 4096;
const MAX_LANES: u32 = 64;
const LANE_LENS: std::ops::RangeInclusive<u32> = 64 << 10..=4 << 20;

const REQUEST: u64 = 0;
const EXECUTOR_WAITING: u64 = 4;
const REPLY: u64 = 64;
const CLIENT_WAITING: u64 = 68;
const RUNNING: u64 = 128;
const STATUS: u64 = 132;
const ERROR_KIND: u64 = 136;
const ERROR_LEN: u64 = 140;
const NODE_LEN: u64 = 152;
const RUN_NS: u64 = 144;
const RECORD: u64 = 256;
const ERROR_AREA_LEN: u64 = 4096;

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
/// [`SegmentTable::lease`]: super::SegmentTable::lease
#[derive(Debug)]
pub struct Lanes {
    segment: Segment,
    n_lanes: u32,
    lane_len: u32,
    served: Mutex<HashSet<u32>>,
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
            return bad("version", version, "1");
        }
        if n_lanes == 0 || n_lanes > MAX_LANES {
            return bad("n_lanes", n_lanes, "1 to 64");
        }
        if !LANE_LENS.contains(&lane_len) || u64::from(lane_len) % PAGE != 0 {
            return bad("lane_len", lane_len, "a multiple of 4096 from 64 KiB to 4 MiB");
        }
        if reserved != 0 {
            return bad("reserved", reserved, "0");
        }
        segment.range(PAGE, n_lanes as usize * lane_len as usize)?;
        Ok(Arc::new(Self { segment, n_lanes, lane_len, served: Mutex::default() }))
    }

    /// The memory under the lanes.
    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Number of lanes.
    pub fn n_lanes(&self) -> u32 {
        self.n_lanes
    }

    /// The executor's end of a lane. A request that is there already is not served: its client was told that its executor
    /// died. Errors: [`LaneError`].
    pub fn serve(self: &Arc<Self>, lane: u32) -> Result<ExecutorLane, LaneError> {
        let place = self.place(lane)?;
        if !lock(&self.served).insert(lane) {
            return Err(LaneError::Open { lane });
        }
        let seen = place.word(REQUEST).load(Ordering::Acquire);
        place.word(RUNNING).store(0, Ordering::Relaxed);
        place.word(EXECUTOR_WAITING).store(0, Ordering::Relaxed);
        place.word(REPLY).store(seen, Ordering::Release);
        Ok(ExecutorLane { place, seen })
    }

    /// The client's end of a lane: one call at a time. Errors: Absent.
    pub fn client(self: &Arc<Self>, lane: u32) -> Result<ClientLane, LaneError> {
        Ok(ClientLane { place: self.place(lane)? })
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

    fn place(self: &Arc<Self>, lane: u32) -> Result<Place, LaneError> {
        if lane >= self.n_lanes {
            return Err(LaneError::Absent { lane, n_lanes: self.n_lanes });
        }
        Ok(Place { start: PAGE + u64::from(lane) * u64::from(self.lane_len), lanes: Arc::clone(self), lane })
    }
}

/// One lane's memory.
#[derive(Debug)]
struct Place {
    lanes: Arc<Lanes>,
    lane: u32,
    start: u64,
}

impl Place {
    fn word(&self, offset: u64) -> &AtomicU32 {
        self.lanes.segment.word(self.start + offset)
    }

    fn word64(&self, offset: u64) -> &AtomicU64 {
        self.lanes.segment.word64(self.start + offset)
    }

    fn requests(&self) -> Doorbell<'_> {
        Doorbell { word: self.word(REQUEST), waiting: self.word(EXECUTOR_WAITING) }
    }

    fn replies(&self) -> Doorbell<'_> {
        Doorbell { word: self.word(REPLY), waiting: self.word(CLIENT_WAITING) }
    }

    fn error_area(&self) -> u64 {
        u64::from(self.lanes.lane_len) - ERROR_AREA_LEN
    }

    /// Bytes for locations and descriptors.
    fn body_capacity(&self) -> usize {
        self.lanes.lane_len as usize - ERROR_AREA_LEN as usize - RECORD as usize - RECORD_HEAD_LEN
    }

    fn copy_out(&self, offset: u64, bytes: &mut [u8]) {
        let shared = self.lanes.segment.bytes(self.start + offset, bytes.len()).expect("callers stay in the lane");
        shared.copy_out(bytes);
    }

    fn copy_in(&self, offset: u64, bytes: &[u8]) {
        self.lanes.segment.write(self.start + offset, bytes).expect("callers stay in the lane");
    }

    fn read_record(&self, record: &mut RawRecord) -> Result<(), RecordError> {
        let mut head = [0; RECORD_HEAD_LEN];
        self.copy_out(RECORD, &mut head);
        let body_len = record.set_head(&head, self.body_capacity())?;
        record.body.resize(body_len, 0);
        self.copy_out(RECORD + RECORD_HEAD_LEN as u64, &mut record.body);
        Ok(())
    }
}

/// What ended a wait for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// A call is there.
    Request,
    /// The stop flag is set.
    Stopped,
}

/// An error as the error area carries it; the numbers are ErrorKind and ErrorCode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// ErrorKind.
    pub kind: u32,
    /// ErrorCode, not 0.
    pub code: u32,
    /// Cut where it and the node would be longer than 4096 bytes.
    pub message: String,
    /// The node to blame; empty where it is not known.
    pub node: String,
}

/// The executor's end of a lane, owned by the one thread that serves it.
#[derive(Debug)]
pub struct ExecutorLane {
    place: Place,
    /// Newest request seen.
    seen: u32,
}

impl ExecutorLane {
    /// Waits for the next call, without limit, until `stop` is set; whoever sets it must call [`ExecutorLane::waker`]'s
    /// function until the thread is gone, since the flag may be set between the last look and the sleep.
    pub fn next(&mut self, stop: &AtomicBool) -> Wake {
        match self.place.requests().wait(self.seen, None, || stop.load(Ordering::SeqCst)) {
            Some(request) => {
                self.seen = request;
                Wake::Request
            }
            None => Wake::Stopped,
        }
    }

    /// Copies the record out. Errors: [`RecordError`].
    pub fn read(&self, record: &mut RawRecord) -> Result<(), RecordError> {
        self.place.read_record(record)
    }

    /// Marks the lane's call as inside the runtime, for the daemon's post-mortem.
    pub fn set_running(&self, running: bool) {
        self.place.word(RUNNING).store(running.into(), Ordering::Release);
    }

    /// Answers the newest request: nanoseconds inside the runtime, or what went wrong.
    pub fn answer(&self, outcome: &Result<u64, Failure>) {
        let place = &self.place;
        let store = |field, value| place.word(field).store(value, Ordering::Relaxed);
        match outcome {
            Ok(run_ns) => {
                place.word64(RUN_NS).store(*run_ns, Ordering::Relaxed);
                store(STATUS, 0);
            }
            Err(failure) => {
                let cut = |text: &str, len: usize| text[..text.floor_char_boundary(len)].to_owned();
                let node = cut(&failure.node, ERROR_AREA_LEN as usize / 2);
                let message = cut(&failure.message, ERROR_AREA_LEN as usize - node.len());
                place.copy_in(place.error_area(), [message.as_bytes(), node.as_bytes()].concat().as_slice());
                store(ERROR_LEN, message.len() as u32);
                store(NODE_LEN, node.len() as u32);
                store(ERROR_KIND, failure.kind);
                store(STATUS, failure.code);
            }
        }
        place.replies().ring(self.seen);
    }

    /// Makes a sleeping [`ExecutorLane::next`] look at its stop flag.
    pub fn waker(&self) -> impl Fn() + Send + Sync + 'static {
        let Place { ref lanes, lane, start } = self.place;
        let place = Place { lanes: Arc::clone(lanes), lane, start };
        move || wake(place.word(REQUEST))
    }
}

impl Drop for ExecutorLane {
    fn drop(&mut self) {
        let Place { lanes, lane, .. } = &self.place;
        lock(&lanes.served).remove(lane);
    }
}

/// The client's end of a lane; for clients written in Rust and for tests.
#[derive(Debug)]
pub struct ClientLane {
    place: Place,
}

/// What the executor answered: nanoseconds inside the runtime, or the error.
pub type Answer = Result<u64, Failure>;

impl ClientLane {
    /// Posts a call and waits for the answer; asks `give_up` every 100 ms. None when it gave up. Errors: the record does
    /// not fit the lane.
    pub fn call(&mut self, record: &CallRecord, give_up: impl FnMut() -> bool) -> Result<Option<Answer>, RecordError> {
        let (head, body) = RawRecord::write(record)?;
        let (got, capacity) = (body.len(), self.place.body_capacity());
        if got > capacity {
            return Err(RecordError::TooLong { got, capacity });
        }
        self.place.copy_in(RECORD, &head);
        self.place.copy_in(RECORD + RECORD_HEAD_LEN as u64, &body);
        Ok(self.post().wait(give_up))
    }

    /// Rings for the record that lies in the lane already.
    fn post(&mut self) -> &Self {
        let request = self.place.word(REQUEST).load(Ordering::Relaxed).wrapping_add(1);
        self.place.requests().ring(request);
        self
    }

    fn wait(&self, give_up: impl FnMut() -> bool) -> Option<Answer> {
        let place = &self.place;
        let request = place.word(REQUEST).load(Ordering::Relaxed);
        place.replies().wait(request.wrapping_sub(1), Some(Duration::from_millis(100)), give_up)?;
        let load = |field| place.word(field).load(Ordering::Relaxed);
        Some(match load(STATUS) {
            0 => Ok(place.word64(RUN_NS).load(Ordering::Relaxed)),
            code => {
                let mut area = vec![0; ERROR_AREA_LEN as usize];
                place.copy_out(place.error_area(), &mut area);
                let (message, rest) = area.split_at(area.len().min(load(ERROR_LEN) as usize));
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let node = text(&rest[..rest.len().min(load(NODE_LEN) as usize)]);
                Err(Failure { kind: load(ERROR_KIND), code, message: text(message), node })
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::base::ids::{CallId, PartHandle};
    use crate::tensor::{DType, Location, TensorDesc, TensorRef};

    const LANE_LEN: u32 = 64 << 10;

    fn lanes() -> Arc<Lanes> {
        Lanes::create(SegmentId(1), 2, LANE_LEN).unwrap()
    }

    fn record() -> CallRecord {
        let tensor = |location, dtype, dims: &[i64]| {
            let desc = TensorDesc::new(dtype, dims).unwrap();
            TensorRef { location: Location::from_bits(location), desc }
        };
        CallRecord {
            call: CallId(0x0102_0304_0506_0708),
            handle: PartHandle(3),
            eager_nodes: 4,
            inputs: vec![tensor(5 << 40 | 64, DType::F32, &[2, 3]), tensor(u64::MAX, DType::I64, &[])],
            outputs: vec![tensor(0, DType::BF16, &[0])],
        }
    }

    /// Puts bytes where the client puts a record.
    fn put(lanes: &Lanes, head: &[u8], body: &[u8]) {
        let start = PAGE + RECORD;
        lanes.segment.write(start, head).unwrap();
        lanes.segment.write(start + RECORD_HEAD_LEN as u64, body).unwrap();
    }

    fn read(lanes: &Arc<Lanes>) -> Result<CallRecord, RecordError> {
        let mut raw = RawRecord::default();
        lanes.place(0).unwrap().read_record(&mut raw)?;
        raw.parse()
    }

    #[test]
    fn a_record_reads_as_it_was_written() {
        let (lanes, record) = (lanes(), record());
        let (head, body) = RawRecord::write(&record).unwrap();
        put(&lanes, &head, &body);
        assert_eq!(read(&lanes), Ok(record));
        // docs/protocol.md: the third descriptor is bfloat16 (16) of rank 1.
        assert_eq!(body[24 + 24 + 8..][..8], [16, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(head[24..], [24 + 8 + 16, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn every_field_changed_to_nonsense_is_refused() {
        let lanes = lanes();
        let (head, body) = RawRecord::write(&record()).unwrap();
        let changed = |bytes: &[u8], at: usize, value: &[u8]| {
            let mut bytes = bytes.to_vec();
            bytes[at..at + value.len()].copy_from_slice(value);
            bytes
        };
        // (offset in the head, value)
        for (at, value) in [
            (12, 0_u32),
            (12, 1),
            (12, 3),
            (12, 65_535),
            (12, 65_536),
            (12, u32::MAX),
            (16, 0),
            (16, 2),
            (16, u32::MAX),
            (24, 0),
            (24, 47),
            (24, 49),
            (24, LANE_LEN),
            (24, u32::MAX),
            (28, 1),
        ] {
            put(&lanes, &changed(&head, at, &value.to_le_bytes()), &body);
            assert!(read(&lanes).is_err(), "head {at}: {value}");
        }
        // (offset in the body, value): the first descriptor starts behind three locations.
        let dim = |dim: i64| dim.to_le_bytes().to_vec();
        for (at, value) in [
            (24, vec![0]),
            (24, vec![8]),
            (24, vec![21]),
            (24, vec![255]),
            (25, vec![0]),
            (25, vec![1]),
            (25, vec![3]),
            (25, vec![65]),
            (25, vec![255]),
            (26, vec![1]),
            (27, vec![1]),
            (28, vec![1]),
            (31, vec![128]),
            (32, dim(-1)),
            (32, dim(i64::MIN)),
            (32, dim(i64::MAX)),
        ] {
            put(&lanes, &head, &changed(&body, at, &value));
            assert!(read(&lanes).is_err(), "body {at}: {value:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn any_bytes_are_a_record_or_an_error(
            head in prop::collection::vec(any::<u8>(), RECORD_HEAD_LEN),
            body in prop::collection::vec(any::<u8>(), 0..200),
            counts in prop::option::of((0..4_u32, 0..4_u32, 0..100_u32)),
        ) {
            let (lanes, mut head) = (lanes(), head);
            if let Some((n_inputs, n_outputs, descriptors_len)) = counts {
                head[12..20].copy_from_slice(&[n_inputs.to_le_bytes(), n_outputs.to_le_bytes()].concat());
                head[24..].copy_from_slice(&[descriptors_len.to_le_bytes(), [0; 4]].concat());
            }
            put(&lanes, &head, &body);
            if let Ok(record) = read(&lanes) {
                prop_assert!(record.inputs.len() + record.outputs.len() < 8);
            }
        }

        #[test]
        fn one_byte_changed_is_another_record_or_an_error(at in 0..RECORD_HEAD_LEN + 72, value: u8) {
            let lanes = lanes();
            let (head, body) = RawRecord::write(&record()).unwrap();
            let mut bytes = [&head[..], &body].concat();
            prop_assume!(bytes[at] != value);
            bytes[at] = value;
            put(&lanes, &bytes[..RECORD_HEAD_LEN], &bytes[RECORD_HEAD_LEN..]);
            prop_assert_ne!(read(&lanes), Ok(record()));
        }
    }

    #[test]
    fn a_header_that_is_wrong_is_refused() {
        let header = |at: u64, bytes: &[u8]| {
            let segment = Segment::create(SegmentId(1), "test", PAGE + 2 * u64::from(LANE_LEN)).unwrap();
            segment.write(0, &MAGIC).unwrap();
            for (index, field) in [VERSION, 2, LANE_LEN, 0].into_iter().enumerate() {
                segment.write(8 + 4 * index as u64, &field.to_le_bytes()).unwrap();
            }
            segment.write(at, bytes).unwrap();
            Lanes::map(segment).map(|lanes| lanes.n_lanes())
        };
        assert_eq!(header(8, &VERSION.to_le_bytes()), Ok(2));
        for (at, value) in [
            (0, 0_u32),
            (4, 0),
            (8, 0),
            (8, 2),
            (12, 0),
            (12, 3),
            (12, 65),
            (12, u32::MAX),
            (16, 0),
            (16, LANE_LEN - 4096),
            (16, LANE_LEN + 64),
            (16, (4 << 20) + 4096),
            (16, u32::MAX),
            (20, 1),
        ] {
            assert!(header(at, &value.to_le_bytes()).is_err(), "{at}: {value}");
        }
        let short = Segment::create(SegmentId(1), "test", 8).unwrap();
        assert!(Lanes::map(short).is_err());
    }

    /// Serves calls until stopped: adds call ids up, fails for odd ones.
    fn serve(mut lane: ExecutorLane, stop: &AtomicBool) -> Vec<u64> {
        let (mut raw, mut calls) = (RawRecord::default(), Vec::new());
        while lane.next(stop) == Wake::Request {
            lane.read(&mut raw).unwrap();
            lane.set_running(true);
            calls.push(raw.call.0);
            let failure = || Failure { kind: 2, code: 13, message: "é".repeat(3000), node: "node_ü".to_owned() };
            lane.set_running(false);
            lane.answer(&if raw.call.0 % 2 == 0 { Ok(raw.call.0 * 10) } else { Err(failure()) });
        }
        calls
    }

    #[test]
    fn calls_are_answered_one_by_one_polling_or_asleep() {
        let (lanes, stop) = (lanes(), AtomicBool::new(false));
        let executor = lanes.serve(1).unwrap();
        assert!(matches!(lanes.serve(1), Err(LaneError::Open { lane: 1 })));
        assert!(lanes.serve(2).is_err() && lanes.client(2).is_err());
        let wake = executor.waker();
        std::thread::scope(|scope| {
            let served = scope.spawn(|| serve(executor, &stop));
            let mut client = lanes.client(1).unwrap();
            let mut call = |id| {
                let record = CallRecord { call: CallId(id), ..record() };
                client.call(&record, || false).unwrap().unwrap()
            };
            for id in 0..1000 {
                match call(id) {
                    Ok(run_ns) => assert_eq!((id % 2, run_ns), (0, 10 * id)),
                    Err(Failure { kind, code, message, node }) => {
                        assert_eq!((id % 2, kind, code, node.as_str()), (1, 2, 13, "node_ü"));
                        assert_eq!(message, "é".repeat(2044)); // 4096 - 7 bytes, and no half of an é
                    }
                }
                if id % 100 == 0 {
                    // Long enough for the executor to sleep, once in its first, once in its endless sleep.
                    std::thread::sleep(Duration::from_micros(if id % 200 == 0 { 500 } else { 3000 }));
                }
            }
            stop.store(true, Ordering::SeqCst);
            while !served.is_finished() {
                wake();
                std::thread::yield_now();
            }
            assert_eq!(served.join().unwrap(), (0..1000).collect::<Vec<u64>>());
        });
        assert!(lanes.serve(1).is_ok());
    }

    #[test]
    fn a_call_that_a_dead_executor_left_is_not_served_by_the_next() {
        let lanes = lanes();
        drop(lanes.serve(0).unwrap());
        assert_eq!(lanes.client(0).unwrap().call(&record(), || true), Ok(None));
        lanes.place(0).unwrap().word(RUNNING).store(1, Ordering::SeqCst);
        assert_eq!(lanes.running(), [(0, record())]);
        let mut next = lanes.serve(0).unwrap();
        assert_eq!(next.next(&AtomicBool::new(true)), Wake::Stopped);
        assert_eq!(lanes.running(), []);
    }

    #[test]
    fn a_record_longer_than_the_lane_is_refused_by_the_client() {
        let lanes = lanes();
        let record = CallRecord { inputs: vec![record().inputs[0].clone(); 2000], ..record() };
        assert!(matches!(lanes.client(0).unwrap().call(&record, || true), Err(RecordError::TooLong { .. })));
    }
}
