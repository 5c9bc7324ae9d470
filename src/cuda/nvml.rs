//! libnvidia-ml.so.1, which comes with the driver, loaded when it is first asked: which processes hold a device's memory.
//!
//! Types and signatures are nvml-wrapper-sys's. Its table has each function, or why the library has it not: what an older
//! driver lacks is an error of the call that needs it. Its functions are not called, since they panic then.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_uint};
use std::ptr;
use std::sync::OnceLock;

use nvml_wrapper_sys::bindings as sys;

use crate::base::ids::DeviceUuid;

/// By this name every program finds the library that the kernel's module came with.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// A process with a context on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// As the library knows it: in a container without the host's processes that may be none, or another's number.
    pub pid: u32,
    /// Bytes of the device's memory; None where the driver does not tell.
    pub bytes: Option<u64>,
}

/// Why nobody tells who holds a device's memory.
#[derive(Clone, Debug, PartialEq, Eq, displaydoc::Display, thiserror::Error)]
pub enum NvmlError {
    /// NVIDIA's management library: {reason}
    Library {
        /// The loader's text: no libnvidia-ml.so.1, or a function that it lacks.
        reason: String,
    },
    /// {function} failed with {code}: {text}
    Call {
        /// As the library's manual names it.
        function: &'static str,
        /// Its nvmlReturn_t.
        code: u32,
        /// The library's own explanation.
        text: String,
    },
}

/// What more than fits is asked for again so often, each time with room for those that there were, and some more.
const TRIES: usize = 4;

/// The processes with a context on the device, in any order. Errors: [`NvmlError`].
pub fn holders(device: DeviceUuid) -> Result<Vec<Holder>, NvmlError> {
    let library = initialized()?;
    let device = handle_of(library, device)?;
    let name = "nvmlDeviceGetComputeRunningProcesses";
    // Before CUDA 11.6 by another name, with the same arguments; the first one of all had a shorter struct.
    let list = function(name, &library.nvmlDeviceGetComputeRunningProcesses_v3);
    let list = list.or_else(|_| function(name, &library.nvmlDeviceGetComputeRunningProcesses_v2))?;
    let nobody = sys::nvmlProcessInfo_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };
    let mut found = vec![nobody; 16];
    for tries_left in (0..TRIES).rev() {
        let mut count = found.len() as c_uint;
        // SAFETY: writes at most `count` structs, and a number; the handle is of this library.
        let code = unsafe { list(device, &mut count, found.as_mut_ptr()) };
        if code == sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE && tries_left > 0 {
            found.resize(count as usize + 16, nobody);
            continue;
        }
        check(library, name, code)?;
        found.truncate(count as usize);
        break;
    }
    Ok(found.iter().map(holder).collect())
}

fn holder(info: &sys::nvmlProcessInfo_t) -> Holder {
    // NVML_VALUE_NOT_AVAILABLE: all bits set.
    let bytes = Some(info.usedGpuMemory).filter(|&bytes| bytes != u64::MAX);
    Holder { pid: info.pid, bytes }
}

fn handle_of(library: &sys::NvmlLib, device: DeviceUuid) -> Result<sys::nvmlDevice_t, NvmlError> {
    let by_uuid = function("nvmlDeviceGetHandleByUUID", &library.nvmlDeviceGetHandleByUUID)?;
    let name = device.to_string();
    // CUDA does not tell of which kind the device is whose UUID it gives.
    let instance = name.replacen("GPU", "MIG", 1);
    let mut raw = ptr::null_mut();
    let mut code = 0;
    for name in [name, instance] {
        let name = CString::new(name).expect("hexadecimal digits");
        // SAFETY: reads a NUL-terminated text, writes one pointer, which is the library's for good.
        code = unsafe { by_uuid(name.as_ptr(), &mut raw) };
        if code != sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND {
            break;
        }
    }
    check(library, "nvmlDeviceGetHandleByUUID", code)?;
    Ok(raw)
}

fn initialized() -> Result<&'static sys::NvmlLib, NvmlError> {
    static INITIALIZED: OnceLock<()> = OnceLock::new();
    let library = loaded()?;
    if INITIALIZED.get().is_none() {
        let init = function("nvmlInit", &library.nvmlInit_v2)?;
        // SAFETY: takes nothing, and may be called as often as one likes. It is never shut down.
        check(library, "nvmlInit", unsafe { init() })?;
        let _ = INITIALIZED.set(());
    }
    Ok(library)
}

fn loaded() -> Result<&'static sys::NvmlLib, NvmlError> {
    static LOADED: OnceLock<Result<sys::NvmlLib, String>> = OnceLock::new();
    let load = || {
        // SAFETY: the initializers of NVIDIA's library have no requirement on the caller. Another file of this name in
        // LD_LIBRARY_PATH runs its own with the rights of the user who set that. Each function has the arguments that
        // nvml.h gives it, as the bindings have them. What is static is never unloaded.
        unsafe { sys::NvmlLib::new(LIBRARY) }.map_err(|error| error.to_string())
    };
    LOADED.get_or_init(load).as_ref().map_err(|reason| NvmlError::Library { reason: reason.clone() })
}

/// A function of the table, or that this library lacks it.
fn function<F: Copy, E: std::fmt::Display>(name: &'static str, entry: &Result<F, E>) -> Result<F, NvmlError> {
    entry.as_ref().copied().map_err(|error| NvmlError::Library { reason: format!("it has no {name}: {error}") })
}

fn check(library: &sys::NvmlLib, function: &'static str, code: sys::nvmlReturn_t) -> Result<(), NvmlError> {
    if code == sys::nvmlReturn_enum_NVML_SUCCESS {
        return Ok(());
    }
    let text = library.nvmlErrorString.as_ref().map_or(ptr::null(), |text_of| {
        // SAFETY: takes any number and gives a static NUL-terminated text.
        unsafe { text_of(code) }
    });
    let text = match text.is_null() {
        true => "unknown".to_owned(),
        // SAFETY: not null, so a static NUL-terminated text.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
    };
    Err(NvmlError::Call { function, code, text })
}
