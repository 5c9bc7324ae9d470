//! CUDA memory and events of another process, by CUDA IPC, over a libcudart that is loaded when needed.
//!
//! The client exports; this side opens, orders its own stream behind the client's by an event, reads or writes, and
//! records an event that the client's stream waits for. Nothing goes through the host but what is asked to.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

use libloading::Library;

/// Why CUDA IPC did not work.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub enum CudaError {
    /// CUDA runtime {path}: {reason}; name the libcudart.so that torch loaded (nvidia/cu13/lib beside torch)
    Library {
        /// As asked for.
        path: PathBuf,
        /// The loader's text.
        reason: String,
    },
    /// {function} failed with {code} ({name}): {text}
    Call {
        /// Name of the CUDA function.
        function: &'static str,
        /// Its cudaError_t.
        code: i32,
        /// That number's name.
        name: String,
        /// CUDA's own explanation.
        text: String,
    },
    /// CUDA IPC {what}: {reason}
    Handle {
        /// Memory handle or event handle.
        what: &'static str,
        /// What is wrong with it and what to change.
        reason: String,
    },
    /// {len_bytes} bytes at offset {offset} of a CUDA block: outside the {limit} bytes that were shared
    Range {
        /// In bytes, from the start.
        offset: u64,
        /// Asked for.
        len_bytes: u64,
        /// Shared.
        limit: u64,
    },
}

/// cudaIpcMemHandle_t and cudaIpcEventHandle_t: 64 opaque bytes, passed by value.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpcHandle([u8; 64]);

impl IpcHandle {
    const LEN: usize = 64;

    /// The memory handle inside what torch's `UntypedStorage._share_cuda_()` gives: 64 raw bytes, or a version byte (2 up
    /// to torch 2.12, 3 from 2.13: same payload), a type byte (`c` cudaMalloc, `e` expandable segment) and 64 bytes.
    ///
    /// Errors: an expandable segment or another length.
    pub fn memory_from_torch(bytes: &[u8]) -> Result<Self, CudaError> {
        let refuse = |reason: String| CudaError::Handle { what: "memory handle", reason };
        match bytes {
            [_version, b'e', ..] if bytes.len() != Self::LEN => Err(refuse(
                "the tensor lies in an expandable segment, which CUDA IPC cannot open; start the client without \
                 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
                    .to_owned(),
            )),
            [_version, b'c', raw @ ..] if raw.len() == Self::LEN => Self::raw("memory handle", raw),
            _ => Self::raw("memory handle", bytes),
        }
    }

    /// An event handle, as `torch.cuda.Event(interprocess=True).ipc_handle()` gives it.
    pub fn event(bytes: &[u8]) -> Result<Self, CudaError> {
        Self::raw("event handle", bytes)
    }

    fn raw(what: &'static str, bytes: &[u8]) -> Result<Self, CudaError> {
        bytes.try_into().map(Self).map_err(|_| CudaError::Handle {
            what,
            reason: format!(
                "expected 64 bytes, got {}; torch's default CUDA allocator is needed (not cudaMallocAsync)",
                bytes.len()
            ),
        })
    }
}

type RawStream = *mut c_void;
type RawEvent = *mut c_void;
type HostFn = unsafe extern "C" fn(*mut c_void);

macro_rules! cuda_functions {
    ($($name:ident: fn($($arg:ty),*) -> $ret:ty;)*) => {
        #[allow(non_snake_case)]
        struct Functions { $($name: unsafe extern "C" fn($($arg),*) -> $ret,)* }

        #[allow(non_snake_case)]
        impl Functions {
            fn load(library: &Library, path: &Path) -> Result<Self, CudaError> {
                $(
                    // SAFETY: the type is CUDA's declaration of this function, unchanged from CUDA 11 to 13; the pointer
                    // is used only while `library` is loaded, because Cuda owns both.
                    let $name = *unsafe {
                        library.get::<unsafe extern "C" fn($($arg),*) -> $ret>(concat!(stringify!($name), "\0").as_bytes())
                    }.map_err(|error| CudaError::Library { path: path.to_owned(), reason: error.to_string() })?;
                )*
                Ok(Self { $($name,)* })
            }
        }
    };
}

cuda_functions! {
    cudaGetErrorName: fn(c_int) -> *const c_char;
    cudaGetErrorString: fn(c_int) -> *const c_char;
    cudaRuntimeGetVersion: fn(*mut c_int) -> c_int;
    cudaDriverGetVersion: fn(*mut c_int) -> c_int;
    cudaGetDeviceCount: fn(*mut c_int) -> c_int;
    cudaSetDevice: fn(c_int) -> c_int;
    cudaIpcOpenMemHandle: fn(*mut *mut c_void, IpcHandle, c_uint) -> c_int;
    cudaIpcCloseMemHandle: fn(*mut c_void) -> c_int;
    cudaIpcOpenEventHandle: fn(*mut RawEvent, IpcHandle) -> c_int;
    cudaEventRecord: fn(RawEvent, RawStream) -> c_int;
    cudaEventDestroy: fn(RawEvent) -> c_int;
    cudaStreamCreateWithFlags: fn(*mut RawStream, c_uint) -> c_int;
    cudaStreamWaitEvent: fn(RawStream, RawEvent, c_uint) -> c_int;
    cudaStreamSynchronize: fn(RawStream) -> c_int;
    cudaStreamDestroy: fn(RawStream) -> c_int;
    cudaMemcpyAsync: fn(*mut c_void, *const c_void, usize, c_int, RawStream) -> c_int;
    cudaLaunchHostFunc: fn(RawStream, HostFn, *mut c_void) -> c_int;
    cudaHostAlloc: fn(*mut *mut c_void, usize, c_uint) -> c_int;
    cudaFreeHost: fn(*mut c_void) -> c_int;
}

const LAZY_ENABLE_PEER_ACCESS: c_uint = 1;
const NON_BLOCKING: c_uint = 1;
const HOST_TO_DEVICE: c_int = 1;
const DEVICE_TO_HOST: c_int = 2;

/// A loaded CUDA runtime.
pub struct Cuda {
    functions: Functions,
    _library: Library,
}

/// Version numbers as CUDA writes them: 13000 is 13.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// Of libcudart.
    pub runtime: i32,
    /// Highest CUDA version that the installed driver serves; 0 without a driver.
    pub driver: i32,
}

impl Cuda {
    /// Load `path`, e.g. `libcudart.so.13` or an absolute path. Errors: Library.
    pub fn load(path: &Path) -> Result<Self, CudaError> {
        // SAFETY: libcudart's initializers have no requirement on the caller. A path to something else runs that
        // library's initializers with the rights of the user who named it.
        let library = unsafe { Library::new(path) }
            .map_err(|error| CudaError::Library { path: path.to_owned(), reason: error.to_string() })?;
        let functions = Functions::load(&library, path)?;
        Ok(Self { functions, _library: library })
    }

    /// Ok on cudaSuccess, else the error with CUDA's own words.
    fn check(&self, function: &'static str, code: c_int) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: both take any integer and return a static string or null.
        let (name, text) =
            unsafe { ((self.functions.cudaGetErrorName)(code), (self.functions.cudaGetErrorString)(code)) };
        Err(CudaError::Call { function, code, name: text_of(name), text: text_of(text) })
    }

    /// Logs what a destructor cannot return.
    fn check_in_drop(&self, function: &'static str, code: c_int) {
        if let Err(error) = self.check(function, code) {
            tracing::warn!(%error, "CUDA clean-up failed");
        }
    }

    /// Of the runtime and the driver.
    pub fn versions(&self) -> Result<Versions, CudaError> {
        let mut versions = Versions { runtime: 0, driver: 0 };
        // SAFETY: each writes one int.
        unsafe {
            self.check("cudaRuntimeGetVersion", (self.functions.cudaRuntimeGetVersion)(&mut versions.runtime))?;
            self.check("cudaDriverGetVersion", (self.functions.cudaDriverGetVersion)(&mut versions.driver))?;
        }
        Ok(versions)
    }

    /// GPUs that this process may use. Errors: Call, with cudaErrorNoDevice or cudaErrorInsufficientDriver without any.
    pub fn device_count(&self) -> Result<i32, CudaError> {
        let mut count = 0;
        // SAFETY: writes one int.
        self.check("cudaGetDeviceCount", unsafe { (self.functions.cudaGetDeviceCount)(&mut count) })?;
        Ok(count)
    }

    /// Make `device` the calling thread's.
    pub fn set_device(&self, device: i32) -> Result<(), CudaError> {
        // SAFETY: takes any integer.
        self.check("cudaSetDevice", unsafe { (self.functions.cudaSetDevice)(device) })
    }

    /// A stream that does not wait for the default stream.
    pub fn stream(&self) -> Result<Stream<'_>, CudaError> {
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer, which Stream destroys.
        self.check("cudaStreamCreateWithFlags", unsafe {
            (self.functions.cudaStreamCreateWithFlags)(&mut raw, NON_BLOCKING)
        })?;
        Ok(Stream { cuda: self, raw, in_flight: RefCell::default() })
    }

    /// An event of another process; whoever created it must keep it until this one is dropped.
    pub fn open_event(&self, handle: IpcHandle) -> Result<Event<'_>, CudaError> {
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer, which Event destroys; CUDA validates the handle.
        self.check("cudaIpcOpenEventHandle", unsafe { (self.functions.cudaIpcOpenEventHandle)(&mut raw, handle) })?;
        Ok(Event { cuda: self, raw })
    }

    /// `len_bytes` at `offset` of a block that another process allocated with cudaMalloc; it must keep it until the
    /// mapping is dropped. The extent is the exporter's word: CUDA checks copies against the block, not the tensor.
    /// Errors: Range on overflow, Call (cudaErrorDeviceUninitialized and the like when the exporter is this process).
    pub fn open_memory(&self, handle: IpcHandle, offset: u64, len_bytes: u64) -> Result<Mapping<'_>, CudaError> {
        let range = CudaError::Range { offset, len_bytes, limit: isize::MAX as u64 };
        let Some(start) =
            offset.checked_add(len_bytes).filter(|end| *end <= isize::MAX as u64).map(|_| offset as usize)
        else {
            return Err(range);
        };
        let mut base = ptr::null_mut();
        // SAFETY: writes one pointer, which Mapping closes; CUDA validates the handle.
        self.check("cudaIpcOpenMemHandle", unsafe {
            (self.functions.cudaIpcOpenMemHandle)(&mut base, handle, LAZY_ENABLE_PEER_ACCESS)
        })?;
        Ok(Mapping { cuda: self, base, start, len_bytes: len_bytes as usize })
    }

    /// Page-locked host memory, zeroed: copies from and to it are asynchronous.
    pub fn pinned(&self, len_bytes: usize) -> Result<Pinned<'_>, CudaError> {
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer, which Pinned frees. A length of 0 would give null, so at least one byte.
        self.check("cudaHostAlloc", unsafe { (self.functions.cudaHostAlloc)(&mut raw, len_bytes.max(1), 0) })?;
        // SAFETY: cudaHostAlloc gave len_bytes writable bytes.
        unsafe { ptr::write_bytes(raw.cast::<u8>(), 0, len_bytes) };
        Ok(Pinned { cuda: self, raw: raw.cast(), len_bytes })
    }
}

fn text_of(text: *const c_char) -> String {
    if text.is_null() {
        return "unknown".to_owned();
    }
    // SAFETY: CUDA returns static NUL-terminated strings.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// An event opened from another process.
pub struct Event<'c> {
    cuda: &'c Cuda,
    raw: RawEvent,
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        // SAFETY: `raw` came from cudaIpcOpenEventHandle and is destroyed once; CUDA defers it while work uses it.
        self.cuda.check_in_drop("cudaEventDestroy", unsafe { (self.cuda.functions.cudaEventDestroy)(self.raw) });
    }
}

/// Memory of another process, mapped.
pub struct Mapping<'c> {
    cuda: &'c Cuda,
    base: *mut c_void,
    start: usize,
    len_bytes: usize,
}

impl Mapping<'_> {
    /// Bytes that were shared.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Unmap, with CUDA's verdict. No work that uses the mapping may be pending: synchronize the stream first.
    pub fn close(self) -> Result<(), CudaError> {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `base` came from cudaIpcOpenMemHandle; ManuallyDrop keeps Drop from closing it again.
        this.cuda.check("cudaIpcCloseMemHandle", unsafe { (this.cuda.functions.cudaIpcCloseMemHandle)(this.base) })
    }

    fn at_start(&self) -> *mut c_void {
        self.base.wrapping_byte_add(self.start)
    }

    fn holds(&self, len_bytes: usize) -> Result<(), CudaError> {
        if len_bytes <= self.len_bytes {
            return Ok(());
        }
        Err(CudaError::Range { offset: 0, len_bytes: len_bytes as u64, limit: self.len_bytes as u64 })
    }
}

impl Drop for Mapping<'_> {
    fn drop(&mut self) {
        // SAFETY: `base` came from cudaIpcOpenMemHandle and is closed once.
        self.cuda
            .check_in_drop("cudaIpcCloseMemHandle", unsafe { (self.cuda.functions.cudaIpcCloseMemHandle)(self.base) });
    }
}

/// Page-locked host memory.
pub struct Pinned<'c> {
    cuda: &'c Cuda,
    raw: *mut u8,
    len_bytes: usize,
}

impl Pinned<'_> {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: initialized by Cuda::pinned, len_bytes long. No copy is pending: `read` ends before it returns and
        // `write` takes the buffer away.
        unsafe { std::slice::from_raw_parts(self.raw, self.len_bytes) }
    }

    /// Its bytes, writable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.raw, self.len_bytes) }
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        // SAFETY: `raw` came from cudaHostAlloc and is freed once; no copy is pending (Stream keeps what it copies from until
        // it has synchronized).
        self.cuda.check_in_drop("cudaFreeHost", unsafe { (self.cuda.functions.cudaFreeHost)(self.raw.cast()) });
    }
}

/// A stream of this process. What is queued on it runs in order.
pub struct Stream<'c> {
    cuda: &'c Cuda,
    raw: RawStream,
    in_flight: RefCell<Vec<Pinned<'c>>>,
}

impl<'c> Stream<'c> {
    /// Later work on this stream starts after what `event` recorded last.
    pub fn wait(&self, event: &Event<'_>) -> Result<(), CudaError> {
        // SAFETY: both objects are live.
        self.cuda
            .check("cudaStreamWaitEvent", unsafe { (self.cuda.functions.cudaStreamWaitEvent)(self.raw, event.raw, 0) })
    }

    /// `event` happens when all work queued so far is done.
    pub fn record(&self, event: &Event<'_>) -> Result<(), CudaError> {
        // SAFETY: both objects are live.
        self.cuda.check("cudaEventRecord", unsafe { (self.cuda.functions.cudaEventRecord)(event.raw, self.raw) })
    }

    /// Copy the mapping's first bytes into `host`, after all queued work. Blocks. Errors: Range, Call.
    pub fn read(&self, mapping: &Mapping<'_>, host: &mut Pinned<'_>) -> Result<(), CudaError> {
        mapping.holds(host.len_bytes)?;
        self.copy(host.raw.cast(), mapping.at_start(), host.len_bytes, DEVICE_TO_HOST)?;
        self.synchronize()
    }

    /// Queue a copy of `host` onto the mapping's first bytes. Does not block. Errors: Range, Call.
    pub fn write(&self, mapping: &Mapping<'_>, host: Pinned<'c>) -> Result<(), CudaError> {
        mapping.holds(host.len_bytes)?;
        let (raw, len_bytes) = (host.raw, host.len_bytes);
        self.in_flight.borrow_mut().push(host);
        self.copy(mapping.at_start(), raw.cast(), len_bytes, HOST_TO_DEVICE)
    }

    fn copy(&self, to: *mut c_void, from: *mut c_void, len_bytes: usize, kind: c_int) -> Result<(), CudaError> {
        // SAFETY: both ranges hold len_bytes (checked by the callers against the mapping); a range outside the device
        // block is refused by CUDA. The host side is borrowed until `read` has synchronized, or kept in `in_flight`.
        self.cuda.check("cudaMemcpyAsync", unsafe {
            (self.cuda.functions.cudaMemcpyAsync)(to, from, len_bytes, kind, self.raw)
        })
    }

    /// Queue a pause of `delay_ms` on the stream, without blocking the caller.
    pub fn pause(&self, delay_ms: u32) -> Result<(), CudaError> {
        unsafe extern "C" fn sleep(delay_ms: *mut c_void) {
            std::thread::sleep(std::time::Duration::from_millis(delay_ms.addr() as u64));
        }
        // SAFETY: `sleep` reads its argument as a number, never as an address, calls no CUDA function and cannot unwind.
        self.cuda.check("cudaLaunchHostFunc", unsafe {
            (self.cuda.functions.cudaLaunchHostFunc)(self.raw, sleep, ptr::without_provenance_mut(delay_ms as usize))
        })
    }

    /// Block until all queued work is done. Errors: Call, with the first error of that work.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the stream is live.
        let result =
            self.cuda.check("cudaStreamSynchronize", unsafe { (self.cuda.functions.cudaStreamSynchronize)(self.raw) });
        self.in_flight.borrow_mut().clear();
        result
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.synchronize() {
            tracing::warn!(%error, "work on a CUDA stream failed");
        }
        // SAFETY: `raw` came from cudaStreamCreateWithFlags and is destroyed once.
        self.cuda.check_in_drop("cudaStreamDestroy", unsafe { (self.cuda.functions.cudaStreamDestroy)(self.raw) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_handle_is_read_in_each_form_torch_writes() {
        let raw: Vec<u8> = (0..64).collect();
        let expected = IpcHandle(raw.clone().try_into().unwrap());
        assert_eq!(IpcHandle::memory_from_torch(&raw).unwrap(), expected);
        for version in [2, 3] {
            let wrapped = [&[version, b'c'][..], &raw].concat();
            assert_eq!(IpcHandle::memory_from_torch(&wrapped).unwrap(), expected);
        }
    }

    #[test]
    fn raw_memory_handle_that_looks_like_an_expandable_segment_is_still_raw() {
        let mut raw = vec![7; 64];
        raw[1] = b'e';
        assert!(IpcHandle::memory_from_torch(&raw).is_ok());
    }

    #[test]
    fn expandable_segment_is_refused_with_the_setting_to_change() {
        let error = IpcHandle::memory_from_torch(&[&[3, b'e'][..], &[0; 90]].concat()).unwrap_err();
        assert!(error.to_string().contains("expandable_segments"), "{error}");
    }

    #[test]
    fn handle_of_another_length_is_refused() {
        for len in [0, 1, 2, 63, 65, 67, 1000] {
            assert!(IpcHandle::memory_from_torch(&vec![b'c'; len]).is_err(), "{len}");
            assert!(IpcHandle::event(&vec![b'c'; len]).is_err(), "{len}");
        }
    }

    #[test]
    fn missing_library_is_an_error_that_names_it() {
        let error = Cuda::load(Path::new("/nowhere/libcudart.so.13")).err().unwrap();
        assert!(error.to_string().contains("/nowhere/libcudart.so.13"), "{error}");
    }

    #[test]
    fn library_that_is_no_cuda_runtime_is_an_error_that_names_the_missing_function() {
        let error = Cuda::load(Path::new("libc.so.6")).err().unwrap();
        assert!(error.to_string().contains("cudaGetErrorName"), "{error}");
    }
}
