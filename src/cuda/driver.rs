//! libcuda.so.1, loaded when it is first needed: the functions that the room calls, and what their codes mean.
//!
//! Types and signatures are cudarc's; its functions are not called. They panic where the library or one of them is missing,
//! and answer with an enum, into which a code of a newer driver does not fit. Here a code is a number.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;

use cudarc::driver::sys;
use libloading::Library;

use super::error::CudaError;

/// By this name every program finds the driver that the kernel's module came with; `libcuda.so` may be a toolkit's stub.
const LIBRARY: &str = "libcuda.so.1";

/// CUresult: 0 is success.
pub(super) type Code = c_uint;

type ErrorText = unsafe extern "C" fn(Code, *mut *const c_char) -> Code;

macro_rules! driver_functions {
    ({ $($name:ident($($arg:ty),*);)* } { $($later:ident($($later_arg:ty),*);)* }) => {
        // Each row has the arguments of cudarc's binding.
        $(const _: unsafe fn($($arg),*) -> sys::CUresult = sys::$name;)*
        $(const _: unsafe fn($($later_arg),*) -> sys::CUresult = sys::$later;)*

        #[allow(non_snake_case)]
        pub(super) struct Driver {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> Code,)*
            /// Of a driver that has them all.
            later: Result<Later, String>,
            error_name: ErrorText,
            error_text: ErrorText,
        }

        /// Functions that a driver of CUDA 11.4 lacks.
        #[allow(non_snake_case)]
        pub(super) struct Later {
            $(pub(super) $later: unsafe extern "C" fn($($later_arg),*) -> Code,)*
        }

        impl Later {
            fn of(library: &'static Library) -> Result<Self, libloading::Error> {
                // SAFETY: as of `Driver::of`.
                Ok(unsafe { Self { $($later: *library.get(concat!(stringify!($later), "\0").as_bytes())?,)* } })
            }
        }

        impl Driver {
            fn of(library: &'static Library) -> Result<Self, libloading::Error> {
                // SAFETY: each function has the arguments that its row says, which are those of cuda.h as cudarc's bindings
                // have them (cuGetErrorName and cuGetErrorString: ErrorText), and answers a CUresult: a C enum without
                // negative values, an unsigned int. `library` is never unloaded.
                Ok(unsafe { Self {
                    $($name: *library.get(concat!(stringify!($name), "\0").as_bytes())?,)*
                    later: Later::of(library).map_err(|error| error.to_string()),
                    error_name: *library.get(b"cuGetErrorName\0")?,
                    error_text: *library.get(b"cuGetErrorString\0")?,
                } })
            }
        }
    };
}

driver_functions! { {
    cuInit(c_uint);
    cuDriverGetVersion(*mut c_int);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut sys::CUdevice, c_int);
    cuDeviceGetUuid_v2(*mut sys::CUuuid, sys::CUdevice);
    cuDeviceGetName(*mut c_char, c_int, sys::CUdevice);
    cuDeviceGetAttribute(*mut c_int, sys::CUdevice_attribute, sys::CUdevice);
    cuDevicePrimaryCtxRetain(*mut sys::CUcontext, sys::CUdevice);
    cuDevicePrimaryCtxRelease_v2(sys::CUdevice);
    cuCtxPushCurrent_v2(sys::CUcontext);
    cuCtxPopCurrent_v2(*mut sys::CUcontext);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemAlloc_v2(*mut sys::CUdeviceptr, usize);
    cuMemFree_v2(sys::CUdeviceptr);
    cuMemPoolCreate(*mut sys::CUmemoryPool, *const sys::CUmemPoolProps);
    cuMemPoolDestroy(sys::CUmemoryPool);
    cuMemPoolSetAttribute(sys::CUmemoryPool, sys::CUmemPool_attribute, *mut c_void);
    cuMemPoolTrimTo(sys::CUmemoryPool, usize);
    cuMemAllocFromPoolAsync(*mut sys::CUdeviceptr, usize, sys::CUmemoryPool, sys::CUstream);
    cuMemFreeAsync(sys::CUdeviceptr, sys::CUstream);
    cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    cuMemFreeHost(*mut c_void);
    cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    cuMemHostUnregister(*mut c_void);
    cuMemHostGetDevicePointer_v2(*mut sys::CUdeviceptr, *mut c_void, c_uint);
    cuPointerGetAttributes(c_uint, *mut sys::CUpointer_attribute, *mut *mut c_void, sys::CUdeviceptr);
    cuIpcGetMemHandle(*mut sys::CUipcMemHandle, sys::CUdeviceptr);
    cuIpcOpenMemHandle_v2(*mut sys::CUdeviceptr, sys::CUipcMemHandle, c_uint);
    cuIpcCloseMemHandle(sys::CUdeviceptr);
    cuIpcGetEventHandle(*mut sys::CUipcEventHandle, sys::CUevent);
    cuIpcOpenEventHandle(*mut sys::CUevent, sys::CUipcEventHandle);
    cuEventCreate(*mut sys::CUevent, c_uint);
    cuEventQuery(sys::CUevent);
    cuEventRecord(sys::CUevent, sys::CUstream);
    cuEventDestroy_v2(sys::CUevent);
    cuStreamCreate(*mut sys::CUstream, c_uint);
    cuStreamWaitEvent(sys::CUstream, sys::CUevent, c_uint);
    cuStreamQuery(sys::CUstream);
    cuStreamSynchronize(sys::CUstream);
    cuStreamDestroy_v2(sys::CUstream);
    cuStreamIsCapturing(sys::CUstream, *mut sys::CUstreamCaptureStatus);
    cuStreamEndCapture(sys::CUstream, *mut sys::CUgraph);
    cuGraphDestroy(sys::CUgraph);
    cuMemcpyDtoHAsync_v2(*mut c_void, sys::CUdeviceptr, usize, sys::CUstream);
    cuMemcpyHtoDAsync_v2(sys::CUdeviceptr, *const c_void, usize, sys::CUstream);
    cuMemcpyDtoDAsync_v2(sys::CUdeviceptr, sys::CUdeviceptr, usize, sys::CUstream);
    cuMemsetD8Async(sys::CUdeviceptr, c_uchar, usize, sys::CUstream);
    cuLaunchHostFunc(sys::CUstream, sys::CUhostFn, *mut c_void);
    cuModuleLoadData(*mut sys::CUmodule, *const c_void);
    cuModuleUnload(sys::CUmodule);
    cuModuleGetFunction(*mut sys::CUfunction, sys::CUmodule, *const c_char);
    cuLaunchKernel(sys::CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, sys::CUstream, *mut *mut c_void, *mut *mut c_void);
} {
    cuStreamWriteValue32_v2(sys::CUstream, sys::CUdeviceptr, c_uint, c_uint);
    cuStreamWaitValue32_v2(sys::CUstream, sys::CUdeviceptr, c_uint, c_uint);
} }

/// `call!(driver, cuInit(0))`, in an unsafe block: the function's code as a result that names it.
macro_rules! call {
    ($driver:expr, $name:ident($($arg:expr),*)) => {
        $driver.check(stringify!($name), ($driver.$name)($($arg),*))
    };
}
pub(super) use call;

impl Driver {
    /// The loaded driver, initialized. Errors: Library, Call (cuInit: no GPU, a kernel module of another version).
    pub(super) fn get() -> Result<&'static Self, CudaError> {
        static INITIALIZED: OnceLock<()> = OnceLock::new();
        let driver = Self::loaded()?;
        if INITIALIZED.get().is_none() {
            // SAFETY: takes a number, and may be called as often as one likes.
            unsafe { call!(driver, cuInit(0)) }?;
            let _ = INITIALIZED.set(());
        }
        Ok(driver)
    }

    fn loaded() -> Result<&'static Self, CudaError> {
        static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
        let load = || {
            // SAFETY: the initializers of NVIDIA's driver have no requirement on the caller. Another file of this name in
            // LD_LIBRARY_PATH runs its own with the rights of the user who set that.
            let library = unsafe { Library::new(LIBRARY) }.map_err(|error| error.to_string())?;
            // For good: the driver's threads run on in it.
            Self::of(Box::leak(Box::new(library))).map_err(|error| error.to_string())
        };
        DRIVER.get_or_init(load).as_ref().map_err(|reason| CudaError::Library { reason: reason.clone() })
    }

    /// What a driver of CUDA 11.4 lacks. Errors: NoStreamValues, which names one of them.
    pub(super) fn later(&self) -> Result<&Later, CudaError> {
        self.later.as_ref().map_err(|reason| CudaError::NoStreamValues { reason: reason.clone() })
    }

    /// Ok on success, else the error with the driver's own words.
    pub(super) fn check(&self, function: &'static str, code: Code) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        // "cuMemAlloc_v2" is what cuda.h makes of the manual's cuMemAlloc.
        let function = function.trim_end_matches("_v2");
        Err(CudaError::Call {
            function,
            code,
            name: text_of(self.error_name, code),
            text: text_of(self.error_text, code),
        })
    }

    /// Logs what a destructor cannot return.
    pub(super) fn check_in_drop(&self, function: &'static str, code: Code) {
        // While the process exits there is nothing left to clean up.
        if code == sys::CUresult::CUDA_ERROR_DEINITIALIZED as Code {
            return;
        }
        if let Err(error) = self.check(function, code) {
            tracing::warn!(%error, "CUDA clean-up failed");
        }
    }
}

fn text_of(function: ErrorText, code: Code) -> String {
    let mut text = ptr::null();
    // SAFETY: takes any number, and writes a static NUL-terminated text, or null (or nothing) for one that it does not know.
    unsafe {
        function(code, &mut text);
        if text.is_null() { "unknown".to_owned() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
    }
}

/// The highest CUDA version that the installed driver serves, as CUDA writes it: 13000 is 13.0. Needs no GPU.
///
/// Errors: Library, Call.
pub fn driver_version() -> Result<i32, CudaError> {
    let driver = Driver::loaded()?;
    let mut version = 0;
    // SAFETY: writes one int.
    unsafe { call!(driver, cuDriverGetVersion(&mut version)) }?;
    Ok(version)
}

/// An object of the driver that lives until it is destroyed.
#[derive(Clone, Copy)]
pub(super) struct Raw<T>(pub(super) *mut T);

// SAFETY: the pointer is the driver's, opaque here; its functions may be called with it on any thread at once.
unsafe impl<T> Send for Raw<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Raw<T> {}
