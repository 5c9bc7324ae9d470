//! Lanes: handing a call over, and the wait for its answer.

use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rust_ort::base::ids::{CallId, PartHandle};
use rust_ort::shm::{self, ClientLane, Failure, RecordError};

use crate::plan::Call;
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
}

#[pymethods]
impl Lanes {
    /// spare_core: whether there are more cores than the executor has threads. Errors: OSError with the kernel's reason.
    #[new]
    fn new(n_lanes: u32, lane_bytes: u32, spare_core: bool) -> PyResult<Self> {
        Ok(Self { lanes: shm::Lanes::create(next_id(), n_lanes, lane_bytes).map_err(os_error)?, spare_core })
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
        let plan = call.plan();
        let mut head = plan.head;
        (head.call, head.handle, head.eager_nodes) = (CallId(call_id), PartHandle(handle), eager_nodes);
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

    /// Hands the record to the executor and waits for the answer, most of the time without the GIL: None when the call was
    /// done, else (ErrorKind, ErrorCode, text, node or ""). Errors: what `peer.check()` raises when it is asked now and
    /// then, KeyboardInterrupt: the call may be in flight then.
    fn run(&self, py: Python<'_>, call: Py<Call>, peer: Py<PyAny>) -> PyResult<Option<(u32, u32, String, String)>> {
        let planned = Arc::clone(call.borrow(py).plan());
        self.set_in_flight(Some(call));
        self.lane.post();
        if !self.lane.poll(POLL_WITH_GIL) {
            let short = Duration::from_nanos(planned.run_ns.load(Ordering::Relaxed)) < SHORT_CALL;
            self.wait(py, if short || self.spare_core { POLL } else { Duration::ZERO }, &peer)?;
        }
        self.set_in_flight(None);
        match self.lane.answer() {
            Ok(run_ns) => {
                planned.run_ns.store(run_ns, Ordering::Relaxed);
                Ok(None)
            }
            Err(Failure { kind, code, message, node }) => Ok(Some((kind, code, message, node))),
        }
    }

    /// Whether no call is in flight.
    fn answered(&self) -> bool {
        let answered = self.lane.is_answered();
        if answered {
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
