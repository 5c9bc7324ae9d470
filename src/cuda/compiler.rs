//! NVRTC, CUDA's compiler as a library: it comes with torch's wheels, and is loaded when it is first needed.
//!
//! As with the driver, types and signatures are cudarc's, and its functions are not called.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::ptr;
use std::sync::OnceLock;

use cudarc::nvrtc::sys;
use libloading::Library;

use super::code_folder::{CodeFolder, code_key};
use super::device::Device;
use super::driver::driver_version;
use super::error::CudaError;

/// Major versions, the newest first. A driver runs what compilers of its own major version and before made.
const VERSIONS: [(i32, &str); 3] = [(13, "libnvrtc.so.13"), (12, "libnvrtc.so.12"), (11, "libnvrtc.so.11.2")];

/// nvrtcResult: 0 is success.
type Code = c_uint;

macro_rules! compiler_functions {
    ($($name:ident($($arg:ty),*);)*) => {
        // Each row has the arguments of cudarc's binding.
        $(const _: unsafe fn($($arg),*) -> sys::nvrtcResult = sys::$name;)*

        #[allow(non_snake_case)]
        struct Compiler {
            $($name: unsafe extern "C" fn($($arg),*) -> Code,)*
            error_text: unsafe extern "C" fn(Code) -> *const c_char,
        }

        impl Compiler {
            fn of(library: &'static Library) -> Result<Self, libloading::Error> {
                // SAFETY: each function has the arguments that its row says, which are those of nvrtc.h as cudarc's bindings
                // have them, and answers an nvrtcResult: a C enum without negative values, an unsigned int;
                // nvrtcGetErrorString takes one. `library` is never unloaded.
                Ok(unsafe { Self {
                    $($name: *library.get(concat!(stringify!($name), "\0").as_bytes())?,)*
                    error_text: *library.get(b"nvrtcGetErrorString\0")?,
                } })
            }
        }
    };
}

compiler_functions! {
    nvrtcVersion(*mut c_int, *mut c_int);
    nvrtcCreateProgram(*mut sys::nvrtcProgram, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char);
    nvrtcCompileProgram(sys::nvrtcProgram, c_int, *const *const c_char);
    nvrtcDestroyProgram(*mut sys::nvrtcProgram);
    nvrtcGetCUBINSize(sys::nvrtcProgram, *mut usize);
    nvrtcGetCUBIN(sys::nvrtcProgram, *mut c_char);
    nvrtcGetProgramLogSize(sys::nvrtcProgram, *mut usize);
    nvrtcGetProgramLog(sys::nvrtcProgram, *mut c_char);
}

/// `check!(compiler, nvrtcDestroyProgram(…))`, in an unsafe block: the function's code as a result that names it.
macro_rules! call {
    ($compiler:expr, $name:ident($($arg:expr),*)) => {
        $compiler.check(stringify!($name), ($compiler.$name)($($arg),*))
    };
}

impl Compiler {
    fn get() -> Result<&'static Self, CudaError> {
        static COMPILER: OnceLock<Result<Compiler, String>> = OnceLock::new();
        let compiler = COMPILER.get_or_init(|| Self::load(driver_version().map_err(|error| error.to_string())? / 1000));
        compiler.as_ref().map_err(|reason| CudaError::Compiler { reason: reason.clone() })
    }

    fn load(driver: i32) -> Result<Self, String> {
        let names: Vec<_> = VERSIONS.iter().filter(|(major, _)| *major <= driver).map(|(_, name)| *name).collect();
        let mut last = format!("no NVRTC is known that a driver of CUDA {driver} runs the code of");
        for name in &names {
            // SAFETY: NVIDIA's library has no initializer that requires anything of the caller; another file of this name in
            // LD_LIBRARY_PATH runs its own with the rights of the user who set that.
            match unsafe { Library::new(name) } {
                // For good: what it made may point into it.
                Ok(library) => return Self::of(Box::leak(Box::new(library))).map_err(|error| error.to_string()),
                Err(error) => last = error.to_string(),
            }
        }
        Err(format!("none of {} was found ({last}); install torch with CUDA, whose wheels bring it", names.join(", ")))
    }

    /// `"13.0"`.
    fn version(&self) -> Result<String, CudaError> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: writes two numbers.
        unsafe { call!(self, nvrtcVersion(&mut major, &mut minor)) }?;
        Ok(format!("{major}.{minor}"))
    }

    fn check(&self, function: &str, code: Code) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: takes any number, and gives a static NUL-terminated text.
        let text = unsafe {
            let text = (self.error_text)(code);
            if text.is_null() { "unknown".into() } else { CStr::from_ptr(text).to_string_lossy() }
        };
        Err(CudaError::Compiler { reason: format!("{function} failed with {code} ({text})") })
    }
}

/// A source that was handed over; ended when it drops.
struct Program {
    compiler: &'static Compiler,
    raw: sys::nvrtcProgram,
}

impl Program {
    fn new(compiler: &'static Compiler, source: &CStr, name: &CStr) -> Result<Self, CudaError> {
        let (mut raw, none) = (ptr::null_mut(), ptr::null());
        // SAFETY: writes one pointer, which Program destroys once; both texts end with NUL and are copied; no headers.
        unsafe { call!(compiler, nvrtcCreateProgram(&mut raw, source.as_ptr(), name.as_ptr(), 0, none, none)) }?;
        Ok(Self { compiler, raw })
    }

    fn compile(&self, options: &[CString]) -> Result<Vec<u8>, CudaError> {
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program is live; the array holds as many NUL-terminated texts as it says.
        let compiled =
            unsafe { call!(self.compiler, nvrtcCompileProgram(self.raw, pointers.len() as c_int, pointers.as_ptr())) };
        compiled.map_err(|error| match (error, self.log()) {
            (CudaError::Compiler { reason }, Ok(log)) => {
                CudaError::Compiler { reason: format!("{reason}: {}", log.trim_end()) }
            }
            (error, _) => error,
        })?;
        let mut len = 0;
        // SAFETY: the program is live and compiled; the first writes one number, the second as many bytes as that says.
        unsafe {
            call!(self.compiler, nvrtcGetCUBINSize(self.raw, &mut len))?;
            let mut code = vec![0_u8; len];
            call!(self.compiler, nvrtcGetCUBIN(self.raw, code.as_mut_ptr().cast()))?;
            Ok(code)
        }
    }

    fn log(&self) -> Result<String, CudaError> {
        let mut len = 0;
        // SAFETY: as in `compile`; the bytes end with NUL.
        unsafe {
            call!(self.compiler, nvrtcGetProgramLogSize(self.raw, &mut len))?;
            let mut log = vec![0_u8; len];
            call!(self.compiler, nvrtcGetProgramLog(self.raw, log.as_mut_ptr().cast()))?;
            Ok(String::from_utf8_lossy(log.strip_suffix(&[0]).unwrap_or(&log)).into_owned())
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created by nvrtcCreateProgram, destroyed once.
        if let Err(error) = unsafe { call!(self.compiler, nvrtcDestroyProgram(&mut self.raw)) } {
            tracing::warn!(%error, "CUDA clean-up failed");
        }
    }
}

/// Machine code for the device of CUDA C++ that includes nothing. `name`: of the source, for messages; `folder`: where code is
/// kept. Products are not contracted with sums: a result is that of the same source on a CPU. Errors: Compiler, Library, Call.
pub(super) fn compile(
    source: &str,
    name: &str,
    device: &Device,
    folder: Option<&CodeFolder>,
) -> Result<Vec<u8>, CudaError> {
    let (major, minor) = device.compute_capability()?;
    let text = |text: &str| CString::new(text).map_err(|_| CudaError::Compiler { reason: format!("{name} has a NUL") });
    let options =
        [format!("--gpu-architecture=sm_{major}{minor}"), "--fmad=false".to_owned(), "--std=c++17".to_owned()];
    let compiler = Compiler::get()?;
    let key = code_key(&compiler.version()?, &options, source);
    if let Some(code) = folder.and_then(|folder| folder.read(&key)) {
        return Ok(code);
    }
    let options = options.iter().map(|option| text(option)).collect::<Result<Vec<_>, _>>()?;
    let code = Program::new(compiler, &text(source)?, &text(name)?)?.compile(&options)?;
    if let Some(folder) = folder {
        folder.write(&key, &code);
    }
    Ok(code)
}
