//! Numbers in page-locked memory of the host: the streams of several processes write them and wait for them.
//!
//! A wait is for a number, whenever it comes and whoever writes it, so that it may be queued before anybody has begun with
//! what it waits for, and any process that maps the memory can end it.
#![allow(unsafe_code)]

use std::ffi::{c_uint, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use sys::CUdevice_attribute as Attribute;

use super::device::Device;
use super::driver::{Code, Raw, call};
use super::error::CudaError;
use super::stream::Stream;

/// A stream that waits for a number that it has written itself is looked at so long.
const TRIAL: Duration = Duration::from_secs(2);

/// Memory of the host.
///
/// # Safety
/// The range is mapped, readable and writable, and at this place as long as the value lives.
pub unsafe trait HostMemory: Send + Sync + 'static {
    /// First byte, and how many.
    fn range(&self) -> (NonNull<u8>, usize);
}

/// The first bytes of memory of the host, page-locked for every device of this process.
pub struct PageLocked {
    device: Arc<Device>,
    start: Raw<u8>,
    len_bytes: usize,
    _memory: Arc<dyn HostMemory>,
}

impl PageLocked {
    /// Page-locks `len_bytes`, whole pages. When this is dropped no stream may have work queued on them. Errors:
    /// NoStreamValues where the driver or the device cannot do what [`Value`] is for, Range, Call.
    pub fn new(device: &Arc<Device>, memory: Arc<dyn HostMemory>, len_bytes: usize) -> Result<Arc<Self>, CudaError> {
        device.driver.later()?;
        let (start, limit) = memory.range();
        if len_bytes > limit {
            return Err(CudaError::Range { offset: 0, len_bytes: len_bytes as u64, limit: limit as u64 });
        }
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        let _current = device.enter()?;
        // SAFETY: the range is mapped as long as `memory` is, which this keeps until it has unregistered it.
        unsafe { call!(device.driver, cuMemHostRegister_v2(start.as_ptr().cast(), len_bytes, flags)) }?;
        Ok(Arc::new(Self { device: device.clone(), start: Raw(start.as_ptr()), len_bytes, _memory: memory }))
    }

    /// The number at `offset`, a multiple of 4, as a device sees it. Errors: Range, Call.
    pub fn value(self: &Arc<Self>, device: &Arc<Device>, offset: usize) -> Result<Value, CudaError> {
        if !offset.is_multiple_of(4) || offset + 4 > self.len_bytes {
            return Err(CudaError::Range { offset: offset as u64, len_bytes: 4, limit: self.len_bytes as u64 });
        }
        let _current = device.enter()?;
        let mut start = 0;
        // SAFETY: writes one address; `start` was registered with DEVICEMAP.
        unsafe {
            let host = self.start.0.cast::<c_void>();
            call!(device.driver, cuMemHostGetDevicePointer_v2(&mut start, host, 0))
        }?;
        Ok(Value { page: Arc::clone(self), offset, address: start + offset as u64 })
    }
}

impl Drop for PageLocked {
    fn drop(&mut self) {
        let unregister = || {
            let _current = self.device.enter()?;
            // SAFETY: registered once, in `new`; whoever drops this knows that no stream uses it.
            unsafe { call!(self.device.driver, cuMemHostUnregister(self.start.0.cast())) }
        };
        if let Err(error) = unregister() {
            tracing::warn!(%error, "CUDA clean-up failed");
        }
    }
}

/// A 32-bit number of [`PageLocked`] memory, as one device sees it.
#[derive(Clone)]
pub struct Value {
    page: Arc<PageLocked>,
    offset: usize,
    pub(super) address: u64,
}

impl Value {
    /// The number as it is now.
    pub fn get(&self) -> u32 {
        self.word().load(Ordering::Acquire)
    }

    /// Whether a stream that waits for `number` goes on: the manual's cyclic comparison.
    pub fn reaches(&self, number: u32) -> bool {
        self.get().wrapping_sub(number).cast_signed() >= 0
    }

    /// Writes the number from the host, unless it is there already: whoever waits for it, or an earlier one, goes on.
    pub fn raise(&self, number: u32) {
        let behind = |now: u32| (now.wrapping_sub(number).cast_signed() < 0).then_some(number);
        let _ = self.word().fetch_update(Ordering::AcqRel, Ordering::Acquire, behind);
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: `PageLocked::value` looked that it lies in the memory, which `page` keeps, and is aligned; processes and
        // devices access it whole.
        unsafe { AtomicU32::from_ptr(self.page.start.0.add(self.offset).cast()) }
    }

    /// Tries it: has a stream write `number` and wait for it. Errors: NoStreamValues where the stream does not go on, Call.
    pub fn try_out(&self, device: &Arc<Device>, number: u32) -> Result<(), CudaError> {
        let stream = Stream::new(device)?;
        stream.hand_over(self, self, number)?;
        let deadline = Instant::now() + TRIAL;
        while !stream.is_done()? {
            if Instant::now() > deadline {
                self.raise(number);
                // To end it is to wait for it, and it waits for memory that must stay.
                std::mem::forget((stream, Arc::clone(&self.page)));
                let reason = format!("a stream of {} does not see the number that it wrote", device.uuid());
                return Err(CudaError::NoStreamValues { reason });
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }
}

impl Device {
    /// Whether the device says that its streams can write numbers into the host's memory and wait for them. Errors:
    /// NoStreamValues with what it lacks, Call.
    pub fn offers_values(&self) -> Result<(), CudaError> {
        self.driver.later()?;
        // An attribute that the driver does not know is one that it lacks.
        const UNKNOWN: Code = sys::CUresult::CUDA_ERROR_INVALID_VALUE as Code;
        let has = |attribute| match self.attribute(attribute) {
            Ok(value) => Ok(value != 0),
            Err(CudaError::Call { code: UNKNOWN, .. }) => Ok(false),
            Err(error) => Err(error),
        };
        // CUDA 12 has an attribute for 64-bit numbers alone, and one for the functions before `_v2`.
        let has_values = has(Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)?
            || has(Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1)?;
        let lacks = match () {
            () if !has_values => "stream memory operations (CAN_USE_64_BIT_STREAM_MEM_OPS is 0)",
            () if !has(Attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED)? => {
                "page-locking of a program's memory (HOST_REGISTER_SUPPORTED is 0)"
            }
            () => return Ok(()),
        };
        Err(CudaError::NoStreamValues { reason: format!("{} lacks {lacks}", self.uuid()) })
    }
}

impl Stream {
    /// `number` is written when all work queued so far is done, and what that wrote is seen by whoever sees the number.
    /// Does not block. Errors: NoStreamValues, Call.
    pub fn write_value(&self, value: &Value, number: u32) -> Result<(), CudaError> {
        let _current = self.device().enter()?;
        self.queue_write(value, number)
    }

    /// Later work on this stream starts when the value reaches `number`. Does not block. Errors: NoStreamValues, Call.
    pub fn wait_value(&self, value: &Value, number: u32) -> Result<(), CudaError> {
        let _current = self.device().enter()?;
        self.queue_wait(value, number)
    }

    /// Writes `number` to `ready` and waits for it in `done`. Does not block. Errors: NoStreamValues, Call: nothing is waited
    /// for then.
    pub fn hand_over(&self, ready: &Value, done: &Value, number: u32) -> Result<(), CudaError> {
        let _current = self.device().enter()?;
        self.queue_write(ready, number)?;
        self.queue_wait(done, number)
    }

    fn queue_write(&self, value: &Value, number: u32) -> Result<(), CudaError> {
        const FLAGS: c_uint = sys::CUstreamWriteValue_flags_enum::CU_STREAM_WRITE_VALUE_DEFAULT as c_uint;
        let driver = self.device().driver;
        let write = driver.later()?.cuStreamWriteValue32_v2;
        // SAFETY: the stream is live; the address is of page-locked memory, which nobody unregisters while a stream uses it.
        driver.check("cuStreamWriteValue32_v2", unsafe { write(self.handle(), value.address, number, FLAGS) })
    }

    fn queue_wait(&self, value: &Value, number: u32) -> Result<(), CudaError> {
        const FLAGS: c_uint = sys::CUstreamWaitValue_flags_enum::CU_STREAM_WAIT_VALUE_GEQ as c_uint;
        let driver = self.device().driver;
        let wait = driver.later()?.cuStreamWaitValue32_v2;
        // SAFETY: as in `queue_write`.
        driver.check("cuStreamWaitValue32_v2", unsafe { wait(self.handle(), value.address, number, FLAGS) })
    }
}
