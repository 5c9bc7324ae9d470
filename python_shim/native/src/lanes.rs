//! Lanes: handing a call over, and the wait for its answer.

use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rust_ort::base::ids::{CallId, PartHandle};
use rust_ort::shm::{self, ClientLane, Failure, RecordError};

use crate::device::cuda_error;
use crate::order::{DeviceNumbers, DeviceWork, StreamSlot};
use crate::plan::{Call, Planned};
use crate::segment::{next_id, os_error, value_error};

/// Releasing the GIL, and taking it again, costs more than an answer that comes within this.
const POLL_WITH_GIL: Duration = Duration::from_micros(2);
/// Longer than it takes to wake a sleeping executor: with a shorter poll both sides would sleep in each further call, since
/// each falls asleep while the other wakes up.
const POLL: Duration = Duration::from_micros(250);
/// A call that took longer is slept through where polling would keep a core from one of the threads that compute it.
const SHORT_CALL: Duration = Duration::from_micros(100);

/// The lanes of one connection, as memory.
#[pyclass(frozen)]
pub struct Lanes {
    lanes: Arc<shm::Lanes>,
    spare_core: bool,
    numbers: Mutex<Option<Arc<shm::Numbers>>>,
}

#[pymethods]
impl Lanes {
    /// spare_core: whether there are more cores than the executor has threads. Errors: OSError with the kernel's reason.
    #[new]
    fn new(n_lanes: u32, lane_bytes: u32, spare_core: bool) -> PyResult<Self> {
        Ok(Self {
            lanes: shm::Lanes::create(next_id(), n_lanes, lane_bytes).map_err(os_error)?,
            spare_core,
            numbers: Mutex::default(),
        })
    }

    /// By which the segment under the lanes is announced.
    #[getter]
    fn id(&self) -> u32 {
        self.lanes.segment().id().0
    }

    /// Of the segment.
    #[getter]
    fn len_bytes(&self) -> u64 {
        self.lanes.segment().len_bytes()
    }

    /// Descriptor of the segment, which stays its own.
    #[getter]
    fn fd(&self) -> i32 {
        self.lanes.segment().fd().as_raw_fd()
    }

    /// The numbers that order calls on a device. Errors: RuntimeError where they cannot, with the reason.
    fn numbers(&self, py: Python<'_>, ordinal: i32) -> PyResult<DeviceNumbers> {
        py.detach(|| DeviceNumbers::of(&self.lanes, &self.numbers, ordinal)).map_err(cuda_error)
    }

    /// Errors: ValueError where there is no such lane.
    fn lane(&self, index: u32) -> PyResult<Lane> {
        let lane = self.lanes.client(index).map_err(value_error)?;
        Ok(Lane {
            index,
            lane,
            spare_core: self.spare_core,
            open: AtomicBool::new(false),
            plan: AtomicU64::new(0),
            in_flight: Mutex::default(),
            unseen: AtomicBool::new(false),
        })
    }

    /// Errors: ValueError outside of the segment.
    fn read(&self, offset: u64, len_bytes: usize) -> PyResult<Vec<u8>> {
        self.lanes.segment().read(offset, len_bytes).map_err(value_error)
    }

    /// Errors: ValueError outside of the segment.
    fn write(&self, offset: u64, bytes: &[u8]) -> PyResult<()> {
        self.lanes.segment().write(offset, bytes).map_err(value_error)
    }
}

/// ErrorKind, ErrorCode, text, node or "".
type Told = (u32, u32, String, String);

/// Carries one call at a time.
#[pyclass(frozen)]
pub struct Lane {
    /// Among its connection's.
    #[pyo3(get)]
    index: u32,
    lane: ClientLane,
    spare_core: bool,
    open: AtomicBool,
    /// Whose descriptors the record holds: a plan's number, or 0.
    plan: AtomicU64,
    /// The call that was handed over and is not known to be answered: it keeps what the executor reads and writes, also
    /// where an interrupt comes before anybody else does.
    in_flight: Mutex<Option<Py<Call>>>,
    /// A call was posted, and nobody has taken its answer.
    unseen: AtomicBool,
}

#[pymethods]
impl Lane {
    /// Whether the executor serves it.
    #[getter]
    fn open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    #[setter]
    fn set_open(&self, open: bool) {
        self.open.store(open, Ordering::Relaxed);
    }

    /// Writes a call's record. Errors: ValueError where it does not fit.
    fn write(&self, call: &Call, call_id: u64, handle: u32, eager_nodes: u32) -> PyResult<()> {
        self.write_ordered(call, (call_id, handle, eager_nodes), (0, 0))
    }

    /// Hands the record to the executor and waits for the answer, most of the time without the GIL: None when the call was
    /// done, else (ErrorKind, ErrorCode, text, node or ""). Errors: what `peer.check()` raises when it is asked now and
    /// then, KeyboardInterrupt: the call may be in flight then.
    fn run(&self, py: Python<'_>, call: Py<Call>, peer: Py<PyAny>) -> PyResult<Option<Told>> {
        self.post(call);
        self.answer(py, peer)
    }

    /// Hands a call to the executor as a part of a stream, whatever becomes of it: what is on the stream comes before it, and
    /// what comes on it now behind it. ids: of the call, handle of its part, eager nodes beside it. Whether the executor lives;
    /// where it does not, nothing waits. Errors: ValueError where the record does not fit, RuntimeError with what CUDA says of
    /// the stream or of its earlier work: the call is not handed over then.
    fn hand_over(
        &self,
        py: Python<'_>,
        call: Py<Call>,
        ids: (u64, u32, u32),
        slot: &StreamSlot,
        stream: u64,
        work: &DeviceWork,
    ) -> PyResult<bool> {
        let number = slot.next();
        self.write_ordered(&call.borrow(py), ids, (slot.index(), number))?;
        if !slot.is_served(work) {
            return Ok(false);
        }
        // The stream waits for a call that is posted, whatever comes: no Python code runs in between.
        py.detach(|| slot.hand_over(stream, number)).map_err(cuda_error)?;
        self.post(call.clone_ref(py));
        let held = call.borrow_mut(py).let_go_of_device();
        drop(held); // what a tensor's end runs may make a call, and look at this one
        Ok(slot.is_served(work))
    }

    /// Waits for the answer to the newest call. As of `run`.
    fn answer(&self, py: Python<'_>, peer: Py<PyAny>) -> PyResult<Option<Told>> {
        if !self.lane.poll(POLL_WITH_GIL) {
            let run_ns = self.planned(py).map_or(0, |planned| planned.run_ns.load(Ordering::Relaxed));
            let short = Duration::from_nanos(run_ns) < SHORT_CALL;
            self.wait(py, if short || self.spare_core { POLL } else { Duration::ZERO }, &peer)?;
        }
        let planned = self.planned(py);
        self.unseen.store(false, Ordering::Relaxed);
        self.set_in_flight(None);
        match self.lane.answer() {
            Ok(run_ns) => {
                planned.inspect(|planned| planned.run_ns.store(run_ns, Ordering::Relaxed));
                Ok(None)
            }
            Err(Failure { kind, code, message, node }) => Ok(Some((kind, code, message, node))),
        }
    }

    /// Whether a call was posted whose answer nobody has taken.
    #[getter]
    fn unseen(&self) -> bool {
        self.unseen.load(Ordering::Relaxed)
    }

    /// Whether no call is in flight. Its answer is left to be taken.
    fn is_answered(&self) -> bool {
        self.lane.is_answered()
    }

    /// Whether no call is in flight; its answer is taken.
    fn answered(&self) -> bool {
        let answered = self.lane.is_answered();
        if answered {
            self.unseen.store(false, Ordering::Relaxed);
            self.set_in_flight(None);
        }
        answered
    }

    /// Whether the executor is inside the runtime with the lane's call.
    fn running(&self) -> bool {
        self.lane.is_running()
    }
}

impl Lane {
    fn post(&self, call: Py<Call>) {
        self.set_in_flight(Some(call));
        self.unseen.store(true, Ordering::Relaxed);
        self.lane.post();
    }

    fn write_ordered(
        &self,
        call: &Call,
        (call_id, handle, eager_nodes): (u64, u32, u32),
        (slot, number): (u32, u32),
    ) -> PyResult<()> {
        let plan = call.plan();
        let mut head = plan.head;
        (head.call, head.handle, head.eager_nodes) = (CallId(call_id), PartHandle(handle), eager_nodes);
        (head.slot, head.number) = (slot, number);
        let descriptors = (self.plan.swap(0, Ordering::Relaxed) != plan.number).then_some(&*plan.descriptors);
        let written = self.lane.write(&head, call.placed(), descriptors);
        written.map_err(|error| match error {
            RecordError::TooLong { got, capacity } => PyValueError::new_err(format!(
                "the call's record has {got} bytes, a lane holds {capacity}; split the graph into parts with fewer \
                 inputs and outputs"
            )),
            error => value_error(error),
        })?;
        self.plan.store(plan.number, Ordering::Relaxed);
        Ok(())
    }

    /// What the call in flight is made of.
    fn planned(&self, py: Python<'_>) -> Option<Arc<Planned>> {
        let held = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        held.as_ref().map(|call| Arc::clone(call.borrow(py).plan()))
    }

    fn set_in_flight(&self, call: Option<Py<Call>>) {
        let mut held = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *held, call);
        drop(held); // what a call lets go of is not let go of under the lock
        drop(before);
    }

    fn wait(&self, py: Python<'_>, span: Duration, peer: &Py<PyAny>) -> PyResult<()> {
        let mut raised = None;
        let mut slept = false;
        let answered = py.detach(|| {
            self.lane.wait(span, || {
                if !std::mem::replace(&mut slept, true) {
                    return false; // it has not slept yet
                }
                raised = Python::attach(|py| py.check_signals().and_then(|()| peer.call_method0(py, "check"))).err();
                raised.is_some()
            })
        });
        match raised {
            Some(error) if !answered => Err(error),
            _ => Ok(()),
        }
    }
}
