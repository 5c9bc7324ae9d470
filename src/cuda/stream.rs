//! Order: streams, and events that one process records and another waits for.
#![allow(unsafe_code)]

use std::ffi::{c_uint, c_void};
use std::ptr;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys;

use super::capture::Alone;
use super::device::Device;
use super::driver::{Code, Raw, call};
use super::error::CudaError;
use super::handle::IpcHandle;
use super::kernel::Kernel;
use super::memory::{Pinned, Span};
use crate::base::sync::lock;

/// What `create` gives of the device. Errors: OutOfMemory, those of `create`.
fn created<T>(
    device: &Arc<Device>,
    create: impl FnOnce(&mut *mut T) -> Result<(), CudaError>,
) -> Result<Raw<T>, CudaError> {
    let made = || {
        let _current = device.enter()?;
        let mut raw = ptr::null_mut();
        create(&mut raw)?;
        Ok(Raw(raw))
    };
    device.with_memory(0, made())
}

/// A point in a stream's work, also in another process.
pub struct Event {
    device: Arc<Device>,
    raw: Raw<sys::CUevent_st>,
}

impl Event {
    /// One that other processes may open. Until it is recorded it counts as done. Errors: OutOfMemory, Call.
    pub fn interprocess(device: &Arc<Device>) -> Result<Self, CudaError> {
        // An interprocess event keeps no times; the driver refuses one that should.
        let flags =
            sys::CUevent_flags::CU_EVENT_INTERPROCESS as c_uint | sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;
        // SAFETY: writes one pointer, which Event destroys once.
        let raw = created(device, |raw| unsafe { call!(device.driver, cuEventCreate(raw, flags)) })?;
        Ok(Self { device: device.clone(), raw })
    }

    /// What another process opens it by. Errors: Call.
    pub fn handle(&self) -> Result<IpcHandle, CudaError> {
        let _current = self.device.enter()?;
        let mut handle = sys::CUipcEventHandle { reserved: [0; IpcHandle::LEN] };
        // SAFETY: writes 64 bytes; the event is live.
        unsafe { call!(self.device.driver, cuIpcGetEventHandle(&mut handle, self.raw.0)) }?;
        Ok(IpcHandle::of_array(handle.reserved.map(|byte| byte as u8)))
    }

    /// An event of another process, which must keep it until this one is dropped. Errors: OutOfMemory, Call.
    pub fn open(device: &Arc<Device>, handle: &IpcHandle) -> Result<Self, CudaError> {
        let handle = sys::CUipcEventHandle { reserved: handle.bytes().map(|byte| byte as _) };
        // SAFETY: writes one pointer, which Event destroys once; the driver validates the handle.
        let raw = created(device, |raw| unsafe { call!(device.driver, cuIpcOpenEventHandle(raw, handle)) })?;
        Ok(Self { device: device.clone(), raw })
    }

    /// Whether the work that it was last recorded after is done. Errors: Call, also those of that work.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        let _current = self.device.enter()?;
        // SAFETY: the event is live.
        let code = unsafe { (self.device.driver.cuEventQuery)(self.raw.0) };
        if code == sys::CUresult::CUDA_ERROR_NOT_READY as Code {
            return Ok(false);
        }
        self.device.driver.check("cuEventQuery", code).map(|()| true)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let destroy = || {
            let _current = self.device.enter()?;
            // SAFETY: `raw` is destroyed once; the driver keeps what queued work needs of it.
            unsafe { call!(self.device.driver, cuEventDestroy_v2(self.raw.0)) }
        };
        if let Err(error) = destroy() {
            tracing::warn!(%error, "CUDA clean-up failed");
        }
    }
}

/// Work that runs in order.
pub struct Stream {
    device: Arc<Device>,
    raw: Raw<sys::CUstream_st>,
    owned: bool,
    /// Host memory of queued copies.
    in_flight: Mutex<Vec<Pinned>>,
}

impl Stream {
    /// One that does not wait for the default stream. Errors: OutOfMemory, Call.
    pub fn new(device: &Arc<Device>) -> Result<Self, CudaError> {
        Self::with(device, sys::CUstream_flags::CU_STREAM_NON_BLOCKING)
    }

    /// One that waits for what is on the default stream, which waits for what is on this one: for libraries that put some
    /// of their work there. Errors: OutOfMemory, Call.
    pub fn beside_default(device: &Arc<Device>) -> Result<Self, CudaError> {
        Self::with(device, sys::CUstream_flags::CU_STREAM_DEFAULT)
    }

    fn with(device: &Arc<Device>, flags: sys::CUstream_flags) -> Result<Self, CudaError> {
        // SAFETY: writes one pointer, which Stream destroys once.
        let raw = created(device, |raw| unsafe { call!(device.driver, cuStreamCreate(raw, flags as c_uint)) })?;
        Ok(Self { device: device.clone(), raw, owned: true, in_flight: Mutex::default() })
    }

    /// Somebody else's on this device, torch's own for one; 0 is the default stream. It is not destroyed here, and must not be
    /// elsewhere while this lives: the driver does not check a stream's number.
    pub fn borrowed(device: &Arc<Device>, raw: u64) -> Self {
        let raw = Raw(ptr::with_exposed_provenance_mut(raw as usize));
        Self { device: device.clone(), raw, owned: false, in_flight: Mutex::default() }
    }

    /// Where it runs.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Whether all queued work is done. Errors: Call, with the first error of that work.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        let _current = self.device.enter()?;
        // SAFETY: the stream is live.
        let code = unsafe { (self.device.driver.cuStreamQuery)(self.raw.0) };
        if code == sys::CUresult::CUDA_ERROR_NOT_READY as Code {
            return Ok(false);
        }
        self.device.driver.check("cuStreamQuery", code).map(|()| true)
    }

    /// The number that torch, ONNX Runtime and the driver know it by.
    pub fn raw(&self) -> u64 {
        self.raw.0.expose_provenance() as u64
    }

    pub(super) fn handle(&self) -> sys::CUstream {
        self.raw.0
    }

    /// Later work on this stream starts after what `event` recorded last, by the time of this call. Does not block.
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        let _current = self.device.enter()?;
        // SAFETY: both objects are live.
        unsafe { call!(self.device.driver, cuStreamWaitEvent(self.raw.0, event.raw.0, 0)) }
    }

    /// `event` happens when all work queued so far is done. Does not block.
    pub fn record(&self, event: &Event) -> Result<(), CudaError> {
        let _current = self.device.enter()?;
        // SAFETY: both objects are live.
        unsafe { call!(self.device.driver, cuEventRecord(event.raw.0, self.raw.0)) }
    }

    /// Ends a capture that a run of this thread left going on when it failed: what is put on the stream would go into it and
    /// never run. Whether there was one. Errors: Call.
    pub fn end_capture(&self, alone: &Alone) -> Result<bool, CudaError> {
        let _current = self.device.enter_alone(alone)?;
        let driver = self.device.driver;
        let mut status: Code = 0;
        // SAFETY: the stream is live; writes a C enum without negative values, an unsigned int.
        unsafe { call!(driver, cuStreamIsCapturing(self.raw.0, (&raw mut status).cast())) }?;
        if status == sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as Code {
            return Ok(false);
        }
        let mut graph = ptr::null_mut();
        // SAFETY: the stream is live; writes one pointer, null where the capture is invalid: then the call ends it and fails.
        let ended = unsafe { call!(driver, cuStreamEndCapture(self.raw.0, &mut graph)) };
        if !graph.is_null() {
            // SAFETY: the graph that the call gave, destroyed once.
            unsafe { call!(driver, cuGraphDestroy(graph)) }?;
        }
        // SAFETY: as above.
        unsafe { call!(driver, cuStreamIsCapturing(self.raw.0, (&raw mut status).cast())) }?;
        match status == sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as Code {
            true => Ok(true),
            false => ended.map(|()| true),
        }
    }

    /// Block until all queued work is done. Errors: Call, with the first error of that work.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let _current = self.device.enter()?;
        // Freed after the call, and not what another thread queues meanwhile.
        let _done = std::mem::take(&mut *lock(&self.in_flight));
        // SAFETY: the stream is live.
        unsafe { call!(self.device.driver, cuStreamSynchronize(self.raw.0)) }
    }

    /// Queue `n_threads` threads of a kernel (at least 1), in blocks of 256: the last one has some more. Its one parameter is
    /// `task`. Does not block. Errors: Call.
    ///
    /// # Safety
    /// `T` is laid out as the kernel's parameter is. What its addresses name must be there, as long as the kernel says and
    /// of this stream's device, until the queued work is done.
    pub unsafe fn launch<T: Copy>(&self, kernel: &Kernel, n_threads: u64, task: &T) -> Result<(), CudaError> {
        const BLOCK: u64 = 256;
        let too_many = |_| CudaError::Range { offset: 0, len_bytes: n_threads, limit: BLOCK * u64::from(c_uint::MAX) };
        let n_blocks = c_uint::try_from(n_threads.div_ceil(BLOCK)).map_err(too_many)?;
        let _current = self.device.enter()?;
        // SAFETY: the caller's.
        unsafe { self.put(kernel, [n_blocks, BLOCK as c_uint], ptr::from_ref(task).cast()) }
    }

    /// Queue blocks of a kernel, each of so many threads (both at least 1), as part of a run: by a thread that has a place
    /// beside others ([`super::beside_captures`]), or is alone and captures. The kernel's one parameter is `task`. Does not
    /// block. Errors: Call.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn launch_in_run(
        &self,
        kernel: &Kernel,
        n_blocks: u32,
        n_threads: u32,
        task: &[u64],
    ) -> Result<(), CudaError> {
        let _current = self.device.enter_in_run()?;
        // SAFETY: the caller's.
        unsafe { self.put(kernel, [n_blocks, n_threads], task.as_ptr().cast()) }
    }

    /// # Safety
    /// As [`Stream::launch`], `task` being the address of the parameter; the device is the thread's.
    unsafe fn put(
        &self,
        kernel: &Kernel,
        [n_blocks, n_threads]: [c_uint; 2],
        task: *const c_void,
    ) -> Result<(), CudaError> {
        let (mut parameters, none, stream) = ([task.cast_mut()], ptr::null_mut(), self.raw.0);
        let parameters = parameters.as_mut_ptr();
        // SAFETY: function and stream are live; the driver copies the one parameter, as many bytes as the function has,
        // before it returns; the rest is the caller's.
        unsafe {
            call!(
                self.device.driver,
                cuLaunchKernel(kernel.raw(), n_blocks, 1, 1, n_threads, 1, 1, 0, stream, parameters, none)
            )
        }
    }

    /// What device memory holds after all queued work, in host memory. Blocks. Errors: OutOfMemory, Call.
    pub fn read(&self, from: Span<'_>) -> Result<Pinned, CudaError> {
        self.read_to(from, Pinned::new(&self.device, from.len_bytes)?)
    }

    /// As [`Stream::read`], into the first bytes of `host`, which comes back. Errors: also Range, where it is shorter.
    pub fn read_to(&self, from: Span<'_>, mut host: Pinned) -> Result<Pinned, CudaError> {
        if host.bytes().len() < from.len_bytes {
            let (len_bytes, limit) = (from.len_bytes as u64, host.bytes().len() as u64);
            return Err(CudaError::Range { offset: 0, len_bytes, limit });
        }
        let copied = self.copy_out(from, &mut host).and_then(|()| self.synchronize());
        match copied {
            Ok(()) => Ok(host),
            // The copy may be queued yet.
            Err(error) => {
                lock(&self.in_flight).push(host);
                Err(error)
            }
        }
    }

    /// As [`Stream::read`], in pieces, which `take` gets with their offsets, in order: no more page-locked memory than one of
    /// them.
    pub fn read_in_pieces(&self, from: Span<'_>, mut take: impl FnMut(usize, &[u8])) -> Result<(), CudaError> {
        const PIECE: usize = 8 << 20;
        let mut host = Pinned::new(&self.device, PIECE.min(from.len_bytes))?;
        for offset in (0..from.len_bytes).step_by(PIECE) {
            let len_bytes = PIECE.min(from.len_bytes - offset);
            host = self.read_to(from.part(offset as u64, len_bytes as u64)?, host)?;
            take(offset, &host.bytes()[..len_bytes]);
        }
        Ok(())
    }

    fn copy_out(&self, from: Span<'_>, host: &mut Pinned) -> Result<(), CudaError> {
        let to = host.bytes_mut().as_mut_ptr().cast::<c_void>();
        let _current = self.device.enter()?;
        // SAFETY: both hold len_bytes; `read_to` and `round_trip` keep `host` from everybody until the stream was synchronized.
        unsafe { call!(self.device.driver, cuMemcpyDtoHAsync_v2(to, from.address, from.len_bytes, self.raw.0)) }
    }

    /// Queue a copy of host memory to the device, then what `work` queues, then a copy of device memory to the host; blocks
    /// until all is done. Both are as long as their spans, or longer, and come back. Errors: Range, Call, those of `work`:
    /// nothing is queued any more then, unless the device failed.
    pub fn round_trip(
        &self,
        (to, given): (Span<'_>, Pinned),
        work: impl FnOnce() -> Result<(), CudaError>,
        (from, mut taken): (Span<'_>, Pinned),
    ) -> Result<[Pinned; 2], CudaError> {
        for (span, host) in [(to, &given), (from, &taken)] {
            let (len_bytes, limit) = (span.len_bytes as u64, host.bytes().len() as u64);
            if len_bytes > limit {
                return Err(CudaError::Range { offset: 0, len_bytes, limit });
            }
        }
        let queued = self.copy_in(to, &given).and_then(|()| work()).and_then(|()| self.copy_out(from, &mut taken));
        match (queued, self.synchronize()) {
            (Ok(()), Ok(())) => Ok([given, taken]),
            (Err(error), Ok(())) => Err(error),
            // A copy may be going on yet.
            (queued, Err(error)) => {
                lock(&self.in_flight).extend([given, taken]);
                Err(queued.err().unwrap_or(error))
            }
        }
    }

    fn copy_in(&self, to: Span<'_>, host: &Pinned) -> Result<(), CudaError> {
        let from = host.bytes().as_ptr().cast::<c_void>();
        let _current = self.device.enter()?;
        // SAFETY: both hold len_bytes; `round_trip` keeps `host` from everybody until the stream was synchronized.
        unsafe { call!(self.device.driver, cuMemcpyHtoDAsync_v2(to.address, from, to.len_bytes, self.raw.0)) }
    }

    /// Queue a copy of `host` to device memory, which must stay until it is done. Does not block. Errors: Range unless
    /// both are equally long, Call.
    pub fn write(&self, to: Span<'_>, host: Pinned) -> Result<(), CudaError> {
        let from = host.bytes().as_ptr().cast::<c_void>();
        same_length(to, host.bytes().len())?;
        let _current = self.device.enter()?;
        let mut in_flight = lock(&self.in_flight);
        in_flight.push(host);
        // SAFETY: both hold len_bytes; `host` is in `in_flight`, which is locked, until the stream was synchronized.
        unsafe { call!(self.device.driver, cuMemcpyHtoDAsync_v2(to.address, from, to.len_bytes, self.raw.0)) }
    }

    /// Queue that each byte of device memory becomes `byte`; it must stay until that is done. Does not block. Errors: Call.
    pub fn fill(&self, to: Span<'_>, byte: u8) -> Result<(), CudaError> {
        let _current = self.device.enter()?;
        // SAFETY: it holds len_bytes; nothing of the host is touched.
        unsafe { call!(self.device.driver, cuMemsetD8Async(to.address, byte, to.len_bytes, self.raw.0)) }
    }

    /// Queue a copy from device memory to device memory, both of which must stay until it is done. Errors: as
    /// `write`.
    pub fn copy(&self, to: Span<'_>, from: Span<'_>) -> Result<(), CudaError> {
        same_length(to, from.len_bytes)?;
        let _current = self.device.enter()?;
        // SAFETY: both hold len_bytes; nothing of the host is touched.
        unsafe { call!(self.device.driver, cuMemcpyDtoDAsync_v2(to.address, from.address, to.len_bytes, self.raw.0)) }
    }

    /// Queue a pause of `delay_ms`. Does not block.
    pub fn pause(&self, delay_ms: u32) -> Result<(), CudaError> {
        unsafe extern "C" fn sleep(delay_ms: *mut c_void) {
            std::thread::sleep(std::time::Duration::from_millis(delay_ms.addr() as u64));
        }
        let _current = self.device.enter()?;
        // SAFETY: `sleep` reads its argument as a number, never as an address, calls no CUDA function and cannot unwind.
        unsafe {
            let delay = ptr::without_provenance_mut(delay_ms as usize);
            call!(self.device.driver, cuLaunchHostFunc(self.raw.0, Some(sleep), delay))
        }
    }
}

fn same_length(span: Span<'_>, len_bytes: usize) -> Result<(), CudaError> {
    if span.len_bytes == len_bytes {
        return Ok(());
    }
    Err(CudaError::Range { offset: 0, len_bytes: len_bytes as u64, limit: span.len_bytes as u64 })
}

impl Drop for Stream {
    fn drop(&mut self) {
        if (self.owned || !lock(&self.in_flight).is_empty())
            && let Err(error) = self.synchronize()
        {
            tracing::warn!(%error, "work on a CUDA stream failed");
        }
        if !self.owned {
            return;
        }
        let destroy = || {
            let _current = self.device.enter()?;
            // SAFETY: `raw` came from cuStreamCreate and is destroyed once.
            unsafe { call!(self.device.driver, cuStreamDestroy_v2(self.raw.0)) }
        };
        if let Err(error) = destroy() {
            tracing::warn!(%error, "CUDA clean-up failed");
        }
    }
}
