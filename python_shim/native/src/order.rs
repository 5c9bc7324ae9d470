//! The order of a connection's calls on devices, and what becomes of what waits when the executor ends.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use rust_ort::base::process::Process;
use rust_ort::cuda::{CudaError, Device, Event, Stream};
use rust_ort::shm::{End, Lanes, Numbers, Slot};

use crate::device::cuda_error;
use crate::segment::os_error;

/// What a dead executor's device had begun may be written so much later.
const LATE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(5);

/// What streams of this process wait for.
trait Awaited: Send + Sync {
    /// How many calls are not done.
    fn undone(&self) -> u32;

    /// In the place of an executor that has ended.
    fn release(&self);

    /// Once more, a little later.
    fn release_again(&self) {}
}

#[derive(Default)]
struct Work {
    awaited: Mutex<Vec<Arc<dyn Awaited>>>,
    ended: AtomicBool,
    unfinished: AtomicU32,
}

impl Work {
    fn add(&self, one: Arc<dyn Awaited>) {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner).push(one);
    }

    /// As they are now: nothing of the driver's is asked under the lock.
    fn awaited(&self) -> Vec<Arc<dyn Awaited>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn undone(&self) -> u32 {
        self.awaited().iter().map(|one| one.undone()).sum()
    }

    /// The executor has ended: how many calls it left undone.
    fn end(&self) -> u32 {
        self.ended.store(true, Ordering::SeqCst);
        let awaited = self.awaited();
        let left = awaited.iter().map(|one| one.undone()).sum();
        self.unfinished.store(left, Ordering::SeqCst);
        awaited.iter().for_each(|one| one.release());
        left
    }
}

/// What the streams of this process wait for of one executor. A thread without Python waits for its end and lets them go:
/// whoever holds the GIL may itself wait for a stream.
#[pyclass(frozen)]
#[derive(Default)]
pub struct DeviceWork(Arc<Work>);

#[pymethods]
impl DeviceWork {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Waits for the end of an executor that lives. told: is called then with how many calls it left undone. Errors: OSError
    /// where there is no such process, or no thread to be had.
    fn watch(&self, pid: u32, told: Py<PyAny>) -> PyResult<()> {
        let (process, work) = (Process::of(pid).map_err(os_error)?, Arc::clone(&self.0));
        let watch = move || {
            process.wait();
            let left = work.end();
            let tell = move || {
                Python::try_attach(|py| told.call1(py, (left,)).inspect_err(|error| error.print(py)).is_ok());
            };
            let _ = thread::Builder::new().name("rust_ort executor's end".to_owned()).spawn(tell);
            let start = Instant::now();
            while start.elapsed() < LATE {
                thread::sleep(LOOK);
                work.awaited().iter().for_each(|one| one.release_again());
            }
        };
        thread::Builder::new().name("rust_ort executor".to_owned()).spawn(watch).map_err(os_error)?;
        Ok(())
    }

    /// Whether the executor has ended, and what waited goes on.
    #[getter]
    fn ended(&self) -> bool {
        self.0.ended.load(Ordering::SeqCst)
    }

    /// How many calls it left undone.
    #[getter]
    fn unfinished(&self) -> u32 {
        self.0.unfinished.load(Ordering::SeqCst)
    }

    /// How many calls are not done now.
    fn undone(&self, py: Python<'_>) -> u32 {
        py.detach(|| self.0.undone())
    }
}

/// What orders the streams of this process and the executor in a lane's calls on a device where numbers do not.
#[pyclass(frozen)]
pub struct LaneEvents(Arc<EventPair>);

struct EventPair {
    device: Arc<Device>,
    ready: Event,
    done: Event,
}

#[pymethods]
impl LaneEvents {
    /// Errors: RuntimeError with what CUDA says.
    #[new]
    fn new(ordinal: i32) -> PyResult<Self> {
        let device = Device::of_ordinal(ordinal).map_err(cuda_error)?;
        let event = || Event::interprocess(&device).map_err(cuda_error);
        Ok(Self(Arc::new(EventPair { ready: event()?, done: event()?, device })))
    }

    /// UUID of the device, then what the executor opens `ready` and `done` by.
    fn told(&self) -> PyResult<([u8; 16], Vec<u8>, Vec<u8>)> {
        let handle = |event: &Event| Ok::<_, PyErr>(event.handle().map_err(cuda_error)?.bytes().to_vec());
        Ok((self.0.device.uuid().0, handle(&self.0.ready)?, handle(&self.0.done)?))
    }

    /// The executor has opened them: it may record `done` from now on.
    fn opened(&self, work: &DeviceWork) {
        work.0.add(self.0.clone());
    }

    /// The executor's work of the next call comes behind what is on this stream. stream: torch's number of it. May wait for
    /// room on it.
    fn record(&self, py: Python<'_>, stream: u64) -> PyResult<()> {
        py.detach(|| Stream::borrowed(&self.0.device, stream).record(&self.0.ready)).map_err(cuda_error)
    }

    /// What comes on this stream now comes behind the executor's work of the call that was answered. May wait as `record`.
    fn wait(&self, py: Python<'_>, stream: u64) -> PyResult<()> {
        py.detach(|| Stream::borrowed(&self.0.device, stream).wait(&self.0.done)).map_err(cuda_error)
    }
}

impl Awaited for EventPair {
    fn undone(&self) -> u32 {
        u32::from(!self.done.is_done().unwrap_or(false))
    }

    /// That this lets go who waits already the driver's manual does not say, and a GPU does not do.
    fn release(&self) {
        let record = || {
            let stream = Stream::new(&self.device)?;
            let recorded = stream.record(&self.done);
            // To end it is to wait for it, which nobody is to do here: executors die seldom.
            mem::forget(stream);
            recorded
        };
        drop::<Result<(), CudaError>>(record()); // CUDA has failed here, too, or ends with this process
    }
}

/// The numbers of a connection's lanes, and a device whose calls they order.
#[pyclass(frozen)]
pub struct DeviceNumbers {
    numbers: Arc<Numbers>,
    device: Arc<Device>,
}

impl DeviceNumbers {
    /// The numbers of `lanes`, page-locked when they are first asked for. They stay so until the process ends: a stream may
    /// have to write one yet when nobody calls any more. Errors: NoStreamValues, Call.
    pub fn of(lanes: &Arc<Lanes>, known: &Mutex<Option<Arc<Numbers>>>, ordinal: i32) -> Result<Self, CudaError> {
        let device = Device::of_ordinal(ordinal)?;
        device.offers_values()?;
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let numbers = match &*known {
            Some(numbers) => Arc::clone(numbers),
            None => {
                let numbers = Arc::new(Numbers::new(lanes, End::Client, &device)?);
                mem::forget(Arc::clone(&numbers));
                known.insert(numbers).clone()
            }
        };
        numbers.try_out(&device)?;
        Ok(Self { numbers, device })
    }
}

#[pymethods]
impl DeviceNumbers {
    /// UUID of the device.
    #[getter]
    fn device(&self) -> [u8; 16] {
        self.device.uuid().0
    }

    /// A slot for a stream. Errors: RuntimeError with what CUDA says, or that there is no such slot.
    fn slot(&self, index: u32) -> PyResult<StreamSlot> {
        let slot = self.numbers.slot(index, &self.device).map_err(cuda_error)?;
        Ok(StreamSlot(Arc::new(slot)))
    }
}

/// A pair of numbers, of one stream of this process at a time.
#[pyclass(frozen)]
pub struct StreamSlot(Arc<Slot>);

#[pymethods]
impl StreamSlot {
    /// The executor has opened it.
    fn opened(&self, work: &DeviceWork) {
        work.0.add(self.0.clone());
    }

    /// Whether nothing is to come of its calls: another stream may have it.
    fn idle(&self) -> bool {
        self.0.is_idle()
    }
}

impl StreamSlot {
    /// By which a record names it.
    pub fn index(&self) -> u32 {
        self.0.index()
    }

    /// The next call's number.
    pub fn next(&self) -> u32 {
        self.0.next()
    }

    /// See [`Slot::hand_over`]. May wait for room on the stream.
    pub fn hand_over(&self, stream: u64, number: u32) -> Result<(), CudaError> {
        self.0.hand_over(&Stream::borrowed(self.0.device(), stream), number)
    }

    /// Whether the executor lives; where it has ended, what waits goes on.
    pub fn is_served(&self, work: &DeviceWork) -> bool {
        let served = !work.0.ended.load(Ordering::SeqCst);
        if !served {
            self.0.release();
        }
        served
    }
}

impl Awaited for Slot {
    fn undone(&self) -> u32 {
        Slot::undone(self)
    }

    fn release(&self) {
        Slot::release(self);
    }

    fn release_again(&self) {
        Slot::release(self);
    }
}
