//! Call slots and doorbells in shared memory: the layout of docs/protocol.md, from both sides.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::wait::{Doorbell, wake};
use super::{Segment, ShmError};
use crate::ids::{CallId, PartHandle, SegmentId};
use crate::tensor::{CallRecord, DType, TensorDesc, TensorRef};

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
const RUN_NS: u64 = 144;
const RECORD: u64 = 256;
const RECORD_HEAD_LEN: usize = 32;
const ERROR_AREA_LEN: u64 = 4096;

/// The lanes segment of one client, mapped.
#[derive(Debug)]
pub struct Lanes {
    segment: Segment,
    n_lanes: u32,
    lane_len: u32,
    served: Mutex<HashSet<u32>>,
}

impl Lanes {
    /// Makes a segment of lanes; for clients written in Rust and for tests. Errors: as of [`Lanes::map`].
    pub fn create(id: SegmentId, n_lanes: u32, lane_len: u32) -> Result<Arc<Self>, ShmError> {
        let segment = Segment::create(id, "rust-ort-lanes", PAGE + u64::from(n_lanes) * u64::from(lane_len))?;
        segment.write(0, &MAGIC)?;
        for (index, field) in [VERSION, n_lanes, lane_len, 0].into_iter().enumerate() {
            segment.write(8 + 4 * index as u64, &field.to_le_bytes())?;
        }
        Self::map(segment)
    }

    /// Checks the header, once: later changes to it are not looked at. Errors: BadLanes, OutOfRange.
    pub fn map(segment: Segment) -> Result<Arc<Self>, ShmError> {
        let head = segment.read(0, 24)?;
        let bad = |field, got: u32, expected| Err(ShmError::BadLanes { field, got: got.into(), expected });
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
    /// died. Errors: BadLane when there is no such lane or it is served already.
    pub fn serve(self: &Arc<Self>, lane: u32) -> Result<ExecutorLane, ShmError> {
        let place = self.place(lane)?;
        if !self.served.lock().unwrap_or_else(PoisonError::into_inner).insert(lane) {
            return Err(ShmError::BadLane { lane, reason: "open already".to_owned() });
        }
        let seen = place.word(REQUEST).load(Ordering::Acquire);
        place.word(RUNNING).store(0, Ordering::Relaxed);
        place.word(EXECUTOR_WAITING).store(0, Ordering::Relaxed);
        place.word(REPLY).store(seen, Ordering::Release);
        Ok(ExecutorLane { place, seen })
    }

    /// The client's end of a lane: one call at a time. Errors: BadLane.
    pub fn client(self: &Arc<Self>, lane: u32) -> Result<ClientLane, ShmError> {
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

    fn place(self: &Arc<Self>, lane: u32) -> Result<Place, ShmError> {
        if lane >= self.n_lanes {
            return Err(ShmError::BadLane { lane, reason: format!("the segment has {} lanes", self.n_lanes) });
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
        let at = self.lanes.segment.range(self.start + offset, 4).expect("`map` checked that every lane fits");
        // SAFETY: 4 bytes inside the mapping, kept by `lanes`; lanes start at pages and `offset` is a constant multiple of
        // 4. The other side writes this word whole.
        unsafe { AtomicU32::from_ptr(at.as_ptr().cast()) }
    }

    fn word64(&self, offset: u64) -> &AtomicU64 {
        let at = self.lanes.segment.range(self.start + offset, 8).expect("`map` checked that every lane fits");
        // SAFETY: as in `word`, for a constant multiple of 8.
        unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) }
    }

    fn requests(&self) -> Doorbell<'_> {
        Doorbell { word: self.word(REQUEST), waiting: self.word(EXECUTOR_WAITING) }
    }

    fn replies(&self) -> Doorbell<'_> {
        Doorbell { word: self.word(REPLY), waiting: self.word(CLIENT_WAITING) }
    }

    fn error_area(&self) -> u64 {
        self.start + u64::from(self.lanes.lane_len) - ERROR_AREA_LEN
    }

    /// Bytes for locations and descriptors.
    fn body_capacity(&self) -> usize {
        self.lanes.lane_len as usize - ERROR_AREA_LEN as usize - RECORD as usize - RECORD_HEAD_LEN
    }

    fn copy_out(&self, offset: u64, bytes: &mut [u8]) {
        let at = self.lanes.segment.range(self.start + offset, bytes.len()).expect("callers stay in the lane");
        // SAFETY: the source lies in the mapping, the target is Rust memory.
        unsafe { std::ptr::copy_nonoverlapping(at.as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
    }

    fn read_record(&self, record: &mut RawRecord) -> Result<(), ShmError> {
        let mut head = [0; RECORD_HEAD_LEN];
        self.copy_out(RECORD, &mut head);
        let body_len = record.set_head(&head, self.body_capacity())?;
        record.body.resize(body_len, 0);
        self.copy_out(RECORD + RECORD_HEAD_LEN as u64, &mut record.body);
        Ok(())
    }
}

/// A call's record, copied out of shared memory but not yet understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawRecord {
    /// As the client wrote it.
    pub call: CallId,
    /// As the client wrote it.
    pub handle: PartHandle,
    /// As the client wrote it.
    pub eager_nodes: u32,
    n_inputs: usize,
    n_outputs: usize,
    /// Locations, then descriptors.
    body: Vec<u8>,
}

impl RawRecord {
    /// The same part on the same tensors: all of the record that decides what a run reads and writes.
    pub fn same_run(&self, other: &Self) -> bool {
        (self.handle, self.n_inputs, self.n_outputs) == (other.handle, other.n_inputs, other.n_outputs)
            && self.body == other.body
    }

    /// Errors: BadRecord, DType, Shape.
    pub fn parse(&self) -> Result<CallRecord, ShmError> {
        let n_values = self.n_inputs + self.n_outputs;
        let (locations, mut descriptors) = self.body.split_at(8 * n_values);
        let mut values = Vec::with_capacity(n_values);
        for location in locations.as_chunks::<8>().0 {
            let (segment, offset) = TensorRef::split_location(u64::from_le_bytes(*location));
            values.push(TensorRef { segment, offset, desc: read_descriptor(&mut descriptors)? });
        }
        if !descriptors.is_empty() {
            let expected = format!("{} bytes fewer for {n_values} descriptors", descriptors.len());
            return Err(bad_record("descriptors_len", (self.body.len() - 8 * n_values) as u64, expected));
        }
        let outputs = values.split_off(self.n_inputs);
        let Self { call, handle, eager_nodes, .. } = *self;
        Ok(CallRecord { call, handle, eager_nodes, inputs: values, outputs })
    }

    fn set_head(&mut self, head: &[u8; RECORD_HEAD_LEN], capacity: usize) -> Result<usize, ShmError> {
        let count = |field: &'static str, at: usize| match u32_at(head, at) as usize {
            count if count <= CallRecord::MAX_VALUES => Ok(count),
            count => Err(bad_record(field, count as u64, format!("at most {}", CallRecord::MAX_VALUES))),
        };
        self.call = CallId(u64::from_le_bytes(*head.first_chunk().expect("the head has 32 bytes")));
        self.handle = PartHandle(u32_at(head, 8));
        self.n_inputs = count("n_inputs", 12)?;
        self.n_outputs = count("n_outputs", 16)?;
        self.eager_nodes = u32_at(head, 20);
        let descriptors_len = u32_at(head, 24);
        let body_len = 8 * (self.n_inputs + self.n_outputs) + descriptors_len as usize;
        if body_len > capacity {
            let expected = format!("at most {capacity} bytes together with the locations; take longer lanes");
            return Err(bad_record("descriptors_len", descriptors_len.into(), expected));
        }
        match u32_at(head, 28) {
            0 => Ok(body_len),
            reserved => Err(bad_record("reserved", reserved.into(), "0".to_owned())),
        }
    }

    fn write(record: &CallRecord) -> Result<([u8; RECORD_HEAD_LEN], Vec<u8>), ShmError> {
        for (field, values) in [("n_inputs", &record.inputs), ("n_outputs", &record.outputs)] {
            if values.len() > CallRecord::MAX_VALUES {
                let expected = format!("at most {}", CallRecord::MAX_VALUES);
                return Err(bad_record(field, values.len() as u64, expected));
            }
        }
        let values = || record.inputs.iter().chain(&record.outputs);
        let mut body: Vec<u8> = values().flat_map(|value| value.location().to_le_bytes()).collect();
        let descriptors_at = body.len();
        for TensorDesc { dtype, shape } in values().map(|value| &value.desc) {
            body.extend([dtype.onnx_code() as u8, shape.rank() as u8, 0, 0, 0, 0, 0, 0]);
            body.extend(shape.dims().iter().flat_map(|dim| dim.to_le_bytes()));
        }
        let mut head = [0; RECORD_HEAD_LEN];
        head[..8].copy_from_slice(&record.call.0.to_le_bytes());
        let counts = [record.inputs.len() as u32, record.outputs.len() as u32];
        let descriptors_len = (body.len() - descriptors_at) as u32;
        let words = [record.handle.0, counts[0], counts[1], record.eager_nodes, descriptors_len, 0];
        for (bytes, word) in head[8..].as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        Ok((head, body))
    }
}

fn read_descriptor(bytes: &mut &[u8]) -> Result<TensorDesc, ShmError> {
    let cut = |left: usize| bad_record("descriptors_len", left as u64, "bytes for every descriptor".to_owned());
    let (head, rest) = bytes.split_first_chunk::<8>().ok_or_else(|| cut(bytes.len()))?;
    let [dtype, rank, padding @ ..] = *head;
    if padding != [0; 6] {
        let got = u64::from_le_bytes(*head) >> 16;
        return Err(bad_record("descriptor padding", got, "0".to_owned()));
    }
    let (dims, rest) = rest.split_at_checked(8 * usize::from(rank)).ok_or_else(|| cut(rest.len()))?;
    let dims: Vec<i64> = dims.as_chunks().0.iter().map(|dim| i64::from_le_bytes(*dim)).collect();
    *bytes = rest;
    Ok(TensorDesc::new(DType::from_onnx(dtype.into())?, dims)?)
}

fn bad_record(field: &'static str, got: u64, expected: String) -> ShmError {
    ShmError::BadRecord { field, got, expected }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("callers read inside fixed-size headers"))
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
    /// Cut at 4096 bytes.
    pub message: String,
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

    /// Copies the record out. Errors: BadRecord.
    pub fn read(&self, record: &mut RawRecord) -> Result<(), ShmError> {
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
                let text = &failure.message[..failure.message.floor_char_boundary(ERROR_AREA_LEN as usize)];
                place.lanes.segment.write(place.error_area(), text.as_bytes()).expect("the error area is in the lane");
                store(ERROR_LEN, text.len() as u32);
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
        lanes.served.lock().unwrap_or_else(PoisonError::into_inner).remove(lane);
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
    pub fn call(&mut self, record: &CallRecord, give_up: impl FnMut() -> bool) -> Result<Option<Answer>, ShmError> {
        let (head, body) = RawRecord::write(record)?;
        let capacity = self.place.body_capacity();
        if body.len() > capacity {
            let expected = format!("at most {capacity} bytes together with the locations; take longer lanes");
            return Err(bad_record("descriptors_len", body.len() as u64, expected));
        }
        let Place { lanes, start, .. } = &self.place;
        lanes.segment.write(start + RECORD, &head)?;
        lanes.segment.write(start + RECORD + RECORD_HEAD_LEN as u64, &body)?;
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
                let mut text = vec![0; load(ERROR_LEN).min(ERROR_AREA_LEN as u32) as usize];
                place.copy_out(place.error_area() - place.start, &mut text);
                let message = String::from_utf8_lossy(&text).into_owned();
                Err(Failure { kind: load(ERROR_KIND), code, message })
            }
        })
    }
}
