//! The devices that sessions run on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ort::environment::Environment;

use super::device_kernels::DeviceKernels;
use super::device_memory;
use super::operators::Operators;
use super::raw::MemoryInfo;
use crate::base::ids::DeviceUuid;
use crate::base::sync::lock;
use crate::cuda::{self, CodeFolder, CudaError, Device, Stream};

/// A device, and the one stream of this process that every session's work on it goes through: calls of several lanes and
/// sessions run in the order in which they come, and one event tells that all before it is done.
pub(super) struct DeviceQueue {
    pub(super) stream: Arc<Stream>,
    /// Tensors in its memory.
    pub(super) memory: MemoryInfo,
    /// Its sessions share one pool of it; see [`device_memory`].
    pub(super) shares_memory: bool,
    /// Held while a run is put on the stream: sessions share what CUDA's libraries keep of a stream.
    pub(super) turn: Mutex<()>,
    pub(super) kernels: Arc<DeviceKernels>,
    /// Once asked for.
    operators: Mutex<Option<Operators>>,
}

impl DeviceQueue {
    /// Our operators, with those that run on the device.
    pub(super) fn operators(&self) -> ort::Result<Operators> {
        let mut operators = lock(&self.operators);
        if operators.is_none() {
            *operators = Some(Operators::on(&self.kernels)?);
        }
        Ok(operators.clone().expect("made above"))
    }
}

/// Those in use, by what they are called in every process.
pub(super) struct Devices {
    queues: Mutex<HashMap<DeviceUuid, Arc<DeviceQueue>>>,
    code: Option<CodeFolder>,
}

impl Devices {
    /// code: where compiled code is kept for other processes.
    pub(super) fn new(code: Option<CodeFolder>) -> Self {
        Self { queues: Mutex::default(), code }
    }

    /// The device's queue, made when it is first asked for, of sessions of this environment. Errors: CUDA's.
    pub(super) fn queue(&self, uuid: DeviceUuid, environment: &Environment) -> Result<Arc<DeviceQueue>, CudaError> {
        let mut queues = lock(&self.queues);
        if let Some(queue) = queues.get(&uuid) {
            return Ok(Arc::clone(queue));
        }
        let device = Device::by_uuid(uuid)?;
        let memory = MemoryInfo::of_device(device.ordinal());
        // ONNX Runtime copies tensors between a device and nodes of the CPU on the default stream.
        let stream = Arc::new(Stream::beside_default(&device)?);
        let shares_memory =
            !cuda::on_host() && device_memory::share(environment, &stream, MemoryInfo::of_device(device.ordinal()))?;
        let queue = DeviceQueue {
            stream,
            memory,
            shares_memory,
            turn: Mutex::default(),
            kernels: Arc::new(DeviceKernels::new(device, self.code.clone())),
            operators: Mutex::default(),
        };
        Ok(Arc::clone(queues.entry(uuid).or_insert(Arc::new(queue))))
    }

    /// Waits, at most so long, until what is on the streams is done, and calls `meanwhile` between two looks. Whether it is; a
    /// device that fails is none to go on with.
    pub(super) fn drain(&self, at_most: Duration, meanwhile: &dyn Fn()) -> bool {
        let deadline = Instant::now() + at_most;
        let queues: Vec<_> = lock(&self.queues).values().cloned().collect();
        queues.iter().all(|queue| {
            loop {
                meanwhile();
                match queue.stream.is_done() {
                    Ok(false) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
                    Ok(done) => break done,
                    Err(error) => {
                        tracing::warn!(%error, "work on a device failed");
                        break false;
                    }
                }
            }
        })
    }
}
