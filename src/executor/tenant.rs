//! What belongs to the client that the executor is leased to now.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, RwLock};
use std::time::Duration;

use super::order::{Order, Orders};
use super::running::Running;
use super::session_cache::{Limits, SessionCache};
use crate::base::ids::{PartHandle, SegmentId};
use crate::base::sync::{read, write};
use crate::protocol::message::{ErrorCode, RunStats, WireError};
use crate::runtime::{RuntimeError, Session, StopToken};
use crate::shm::{BadSegment, Counter, CounterPage, DeviceSegment, Lease, Segment, SegmentTable, UnknownSegment};
use crate::tensor::{CallRecord, TensorRef};

/// One client's segments and parts. Ends with the lease; sessions do not, but for those of pieces.
pub(super) struct Tenant {
    pub(super) stop: StopToken,
    pub(super) counters: Arc<CounterPage>,
    /// Sessions of pieces of the parts: the next comparison of a part cuts out the same ones.
    pub(super) pieces: SessionCache,
    /// The same, of parts on a device.
    pub(super) pieces_on_device: SessionCache,
    /// What orders its calls on devices.
    pub(super) orders: Orders,
    /// Its calls now.
    pub(super) running: Arc<Running>,
    segments: RwLock<SegmentTable>,
    parts: RwLock<HashMap<PartHandle, Arc<Part>>>,
    next_handle: AtomicU32,
    /// Changes whenever a segment or a part goes: what was bound before may name what is gone.
    generation: AtomicU64,
}

/// A session of few nodes takes about a megabyte.
const PIECES: Limits = Limits { max_sessions: 1024, max_bytes: 1 << 30 };

/// Pieces of many nodes: two a batch of a comparison. Each has what CUDA's libraries take for a handle.
const PIECES_ON_DEVICE: Limits = Limits { max_sessions: 128, max_bytes: 1 << 30 };

/// A part that is ready to run.
pub(super) struct Part {
    pub(super) session: Arc<dyn Session>,
    pub(super) fx_nodes: u32,
    /// Inputs of the model that are constants of the session, in rising order.
    pub(super) frozen: Vec<u32>,
}

impl Part {
    /// A call that names every input of the model, as the session takes it.
    pub(super) fn without_frozen<'a>(&self, record: &'a CallRecord) -> Cow<'a, CallRecord> {
        if self.frozen.is_empty() {
            return Cow::Borrowed(record);
        }
        let inputs = (0..).zip(&record.inputs).filter(|(input, _)| self.frozen.binary_search(input).is_err());
        let inputs = inputs.map(|(_, tensor)| tensor.clone()).collect();
        Cow::Owned(CallRecord { inputs, ..record.clone() })
    }
}

impl Tenant {
    pub(super) fn new(counters: Arc<CounterPage>) -> Self {
        Self {
            stop: StopToken::default(),
            counters,
            pieces: SessionCache::new(PIECES),
            pieces_on_device: SessionCache::new(PIECES_ON_DEVICE),
            orders: Orders::default(),
            running: Arc::default(),
            segments: RwLock::default(),
            parts: RwLock::default(),
            next_handle: AtomicU32::new(1),
            generation: AtomicU64::new(0),
        }
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    pub(super) fn attach(&self, segment: Segment) -> Result<(), BadSegment> {
        write(&self.segments).attach(segment)
    }

    pub(super) fn attach_device(&self, segment: DeviceSegment) -> Result<(), BadSegment> {
        write(&self.segments).attach_device(segment)
    }

    /// Errors: a data segment maps the same file.
    pub(super) fn apart(&self, lanes: &Segment) -> Result<(), BadSegment> {
        lanes.apart_from(read(&self.segments).iter())
    }

    pub(super) fn detach(&self, segment: SegmentId) -> Result<(), UnknownSegment> {
        write(&self.segments).detach(segment)?;
        self.generation.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    pub(super) fn add(&self, part: Part) -> PartHandle {
        let handle = PartHandle(self.next_handle.fetch_add(1, Ordering::Relaxed));
        write(&self.parts).insert(handle, Arc::new(part));
        handle
    }

    /// Takes parts out. Errors: UnknownGraph; nothing is taken then.
    pub(super) fn release(&self, handles: &[PartHandle]) -> Result<Vec<Arc<Part>>, WireError> {
        let mut parts = write(&self.parts);
        if let Some(&absent) = handles.iter().find(|handle| !parts.contains_key(handle)) {
            return Err(unknown(absent));
        }
        let released = handles.iter().filter_map(|handle| parts.remove(handle)).collect();
        self.generation.fetch_add(1, Ordering::SeqCst);
        drop(parts);
        // Whose they are is not known: those of parts that stay are made again. Many may end, which takes its time.
        self.pieces.clear();
        self.pieces_on_device.clear();
        Ok(released)
    }

    /// A part has this session.
    pub(super) fn uses(&self, session: &Arc<dyn Session>) -> bool {
        let parts = read(&self.parts);
        parts.values().any(|part| Arc::ptr_eq(&part.session, session))
    }

    pub(super) fn part(&self, handle: PartHandle) -> Result<Arc<Part>, WireError> {
        let parts = read(&self.parts);
        parts.get(&handle).cloned().ok_or_else(|| unknown(handle))
    }

    /// What orders a call that names a slot. Errors: BadState where it is not open.
    pub(super) fn order(&self, slot: u32) -> Result<Arc<Order>, WireError> {
        let unknown = || WireError::client(ErrorCode::BadState, format!("slot {slot}: not open; send OpenSlot first"));
        self.orders.of(slot).ok_or_else(unknown)
    }

    /// The outputs of a call, wherever they lie.
    pub(super) fn lease_outputs(&self, record: &CallRecord) -> Result<Lease, WireError> {
        Ok(read(&self.segments).lease_anywhere(&[], &record.outputs)?)
    }

    pub(super) fn lease(&self, record: &CallRecord) -> Result<Lease, WireError> {
        let segments = read(&self.segments);
        Ok(segments.lease(&record.inputs, &record.outputs)?)
    }

    /// The tensors of a call of a session: on its device, and scalars on the host, or all on the host.
    pub(super) fn lease_for(&self, session: &dyn Session, record: &CallRecord) -> Result<Lease, WireError> {
        let Some(device) = session.device() else { return self.lease(record) };
        let lease = read(&self.segments).lease_anywhere(&record.inputs, &record.outputs)?;
        match lease.device().map(|other| other.uuid()) {
            Some(other) if other != device => {
                let why = format!("the tensors lie on {other}, the part was prepared for {device}; prepare it anew");
                Err(WireError::client(ErrorCode::BadTensor, why))
            }
            _ => Ok(lease),
        }
    }

    /// Errors: an output of the call overlaps a tensor that is read beside it; those of a lease.
    pub(super) fn check_apart(&self, record: &CallRecord, beside: &[TensorRef]) -> Result<(), WireError> {
        if !beside.is_empty() {
            self.lease_anywhere(&[&record.inputs, beside].concat(), &record.outputs)?;
        }
        Ok(())
    }

    /// A lease on tensors, wherever they lie.
    pub(super) fn lease_anywhere(&self, inputs: &[TensorRef], outputs: &[TensorRef]) -> Result<Lease, WireError> {
        Ok(read(&self.segments).lease_anywhere(inputs, outputs)?)
    }

    /// A lease on tensors that are only read, wherever they lie.
    pub(super) fn lease_read(&self, tensors: &[TensorRef]) -> Result<Lease, WireError> {
        Ok(read(&self.segments).lease_anywhere(tensors, &[])?)
    }

    /// A lease on tensors of the host that are only read.
    pub(super) fn lease_inputs(&self, tensors: &[TensorRef]) -> Result<Lease, WireError> {
        Ok(read(&self.segments).lease(tensors, &[])?)
    }

    /// Test-only: while the file of [`Hold`] exists, says so beside it and waits, until `stop` or, when the file says `hang`,
    /// as a kernel that never ends; panics when it says `panic`.
    pub(super) fn hold(&self, stop: &StopToken) {
        let Some(Hold { file, held }) = &*HOLD else { return };
        let hangs = std::fs::read(file).is_ok_and(|text| text == b"hang");
        while file.exists() && (hangs || !self.stop.is_stopped() && !stop.is_stopped()) {
            tell_held(held);
            assert!(!std::fs::read(file).is_ok_and(|text| text == b"panic"), "a test asked for this panic");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Test-only: as [`Tenant::hold`], as one that never ends, where the file says `hang <what>`.
    pub(super) fn hold_at(&self, what: &str) {
        let Some(Hold { file, held }) = &*HOLD else { return };
        while std::fs::read_to_string(file).is_ok_and(|text| text.strip_prefix("hang ") == Some(what)) {
            tell_held(held);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(super) fn count(&self, part: &Part, outcome: &Result<RunStats, RuntimeError>) {
        match outcome {
            Ok(stats) => {
                self.counters.add(Counter::Runs, 1);
                self.counters.add(Counter::NodesOnOrt, part.fx_nodes.into());
                self.counters.add(Counter::RunNs, stats.run_ns);
                self.counters.add(Counter::HostBytes, stats.host_bytes);
            }
            Err(_) => self.counters.add(Counter::Errors, 1),
        }
    }
}

/// Test-only: the file that `RUST_ORT_TEST_HOLD` names, and the one beside it, `.held`, that has content while a call is held.
struct Hold {
    file: PathBuf,
    held: File,
}

static HOLD: LazyLock<Option<Hold>> = LazyLock::new(|| {
    let file = PathBuf::from(std::env::var_os("RUST_ORT_TEST_HOLD")?);
    let mut held = file.clone().into_os_string();
    held.push(".held");
    let held = File::options().create(true).append(true).open(held).ok()?;
    Some(Hold { file, held })
});

/// Test-only: says so once, until the test has taken note.
fn tell_held(mut held: &File) {
    if held.metadata().is_ok_and(|facts| facts.len() == 0) {
        let _ = held.write_all(b"held");
    }
}

/// Opens what a test is told by, which a confined process could not.
pub(super) fn open_hold() {
    LazyLock::force(&HOLD);
}

fn unknown(handle: PartHandle) -> WireError {
    let message = format!("handle {}: no part of this lease; prepare the part again", handle.0);
    WireError::client(ErrorCode::UnknownGraph, message)
}
