//! Where sessions on a device have their memory from: one pool of the driver's a device, in the place of an arena for each
//! session, which would keep for itself what it took for its largest run.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex};

use ort::AsPointer as _;
use ort::environment::Environment;
use ort::sys;

use super::raw::{MemoryInfo, check};
use crate::base::sync::lock;
use crate::cuda::{CudaError, Pinned, Pool, Stream};

/// By this entry a session takes its memory from the environment's allocators, where they have one of its device.
pub(super) const SHARED_ALLOCATORS: (&str, &str) = ("session.use_env_allocators", "1");

/// The version of OrtAllocator that has Reserve, and nothing behind it.
const VERSION: u32 = 18;

/// ONNX Runtime's interface to a pool: the first field is what it sees.
#[repr(C)]
struct Allocator {
    raw: sys::OrtAllocator,
    info: MemoryInfo,
    pool: Pool,
    /// The one stream that all work of sessions on the device is on.
    stream: Arc<Stream>,
    /// By address, page-locked memory of the host that stands for what the device had no room for.
    on_host: Mutex<HashMap<usize, Pinned>>,
}

thread_local! {
    /// Of the work that this thread has ONNX Runtime do.
    static SHORTAGE: RefCell<Option<CudaError>> = const { RefCell::new(None) };
}

/// What ONNX Runtime does in `work` on this thread. Errors: the first allocation that the device had no room for; what was
/// computed is not to be used, then.
pub(super) fn with_room<T>(work: impl FnOnce() -> T) -> (T, Option<CudaError>) {
    SHORTAGE.take();
    let done = work();
    (done, SHORTAGE.take())
}

/// Has sessions of the environment that ask for [`SHARED_ALLOCATORS`] take memory of the stream's device from one pool, as
/// long as the process lives. Whether it could be had: a device may have no pools. Errors: CUDA's, ONNX Runtime's.
pub(super) fn share(environment: &Environment, stream: &Arc<Stream>, info: MemoryInfo) -> Result<bool, CudaError> {
    let Some(pool) = Pool::new(stream.device())? else { return Ok(false) };
    // SAFETY: the default is numbers and absent functions, each of which is set here.
    let mut raw = unsafe { sys::OrtAllocator::default() };
    raw.version = VERSION;
    raw.Alloc = Some(take);
    raw.Free = Some(give);
    raw.Info = Some(tell);
    raw.Reserve = Some(reserve);
    let allocator = Allocator { raw, info, pool, stream: Arc::clone(stream), on_host: Mutex::default() };
    // For good: sessions may end last of all.
    let allocator: *mut Allocator = Box::leak(Box::new(allocator));
    // SAFETY: the environment is alive; the allocator lives as long as the process.
    let registered = check(unsafe { (ort::api().RegisterAllocator)(environment.ptr().cast_mut(), allocator.cast()) });
    match registered {
        Ok(()) => Ok(true),
        Err(error) => {
            tracing::warn!(%error, "sessions on a device have an arena each: ONNX Runtime takes no allocator of ours");
            Ok(false)
        }
    }
}

/// # Safety
/// `this` is an [`Allocator`]'s first field.
unsafe fn of<'a>(this: *const sys::OrtAllocator) -> &'a Allocator {
    // SAFETY: the caller's; an Allocator is never dropped, and only read but for what has a lock.
    unsafe { &*this.cast::<Allocator>() }
}

unsafe extern "system" fn take(this: *mut sys::OrtAllocator, len_bytes: usize) -> *mut c_void {
    // SAFETY: ONNX Runtime calls this with the allocator that has it.
    unsafe { of(this) }.take(len_bytes)
}

unsafe extern "system" fn reserve(this: *const sys::OrtAllocator, len_bytes: usize) -> *mut c_void {
    // SAFETY: as in `take`.
    unsafe { of(this) }.take(len_bytes)
}

unsafe extern "system" fn give(this: *mut sys::OrtAllocator, address: *mut c_void) {
    // SAFETY: as in `take`.
    unsafe { of(this) }.give(address);
}

unsafe extern "system" fn tell(this: *const sys::OrtAllocator) -> *const sys::OrtMemoryInfo {
    // SAFETY: as in `take`.
    unsafe { of(this) }.info.ptr()
}

impl Allocator {
    /// ONNX Runtime does not look at what it gets: a kernel would write to no address, and the context would be lost with
    /// all that other sessions have in it. So page-locked memory of the host, where kernels can write, too, stands for what
    /// the device has no room for, until the run ends, which has failed then.
    fn take(&self, len_bytes: usize) -> *mut c_void {
        if len_bytes == 0 {
            return ptr::null_mut();
        }
        match self.pool.take(&self.stream, len_bytes) {
            Ok(address) => ptr::with_exposed_provenance_mut(address as usize),
            Err(error) => {
                tracing::warn!(%error, "a run has no room on its device; it goes on in memory of the host, and fails");
                SHORTAGE.with_borrow_mut(|first| *first = first.take().or(Some(error)));
                self.take_on_host(len_bytes)
            }
        }
    }

    fn take_on_host(&self, len_bytes: usize) -> *mut c_void {
        match Pinned::new(self.stream.device(), len_bytes) {
            Ok(mut memory) => {
                let address = memory.bytes_mut().as_mut_ptr();
                lock(&self.on_host).insert(address.addr(), memory);
                address.cast()
            }
            Err(error) => {
                tracing::error!(%error, "nor has the host");
                ptr::null_mut()
            }
        }
    }

    fn give(&self, address: *mut c_void) {
        if address.is_null() {
            return;
        }
        let on_host = lock(&self.on_host).remove(&address.addr());
        let given = match on_host {
            // What is queued may write there yet.
            Some(_) => self.stream.synchronize(),
            None => self.pool.give(&self.stream, address.expose_provenance() as u64),
        };
        if let Err(error) = given {
            tracing::warn!(%error, "memory of a device was not given back");
        }
    }
}
