//! The library, loaded when a session first has attention on CUDA, and the functions called of it.

use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;
use std::time::Instant;

use libloading::Library;

/// What is looked for in the process's library folders, among which the client names its torch's.
const NAME: &str = "libtorch_cuda.so";

/// Versions of torch, (major, minor), whose functions have the signatures below: those that the Python package declares.
const VERSIONS: (u8, std::ops::RangeInclusive<u8>) = (2, 11..=15);

/// AOTITorchError: 0 is success.
pub(super) type Code = i32;

/// What AtenTensorHandle points to.
#[repr(C)]
pub(super) struct AtenTensor {
    _opaque: [u8; 0],
}

/// What CUDAStreamGuardHandle points to.
#[repr(C)]
pub(super) struct StreamGuard {
    _opaque: [u8; 0],
}

/// AtenTensorHandle.
pub(super) type Handle = *mut AtenTensor;

macro_rules! functions {
    ([$($name:ident($($arg:ty),*);)*] [$($constant:ident() -> $of:ty;)*]) => {
        /// Each by its own name.
        #[allow(non_snake_case)]
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> Code,)*
            $($constant: unsafe extern "C" fn() -> $of,)*
            what: Option<unsafe extern "C" fn() -> *const c_char>,
        }

        impl Functions {
            fn of(library: &'static Library) -> Result<Self, libloading::Error> {
                // SAFETY: each function has the arguments that its row says, which are those of torch's headers
                // (inductor/aoti_torch/c/shim.h and generated/c_shim_cuda.h of torch 2.13, where those of the same name keep
                // their signatures; other versions are refused once this one is asked), and answers an int32_t, but for the constants,
                // which take nothing. `library` is never unloaded. torch 2.13 and later have the last one.
                Ok(unsafe { Self {
                    $($name: *library.get(concat!(stringify!($name), "\0").as_bytes())?,)*
                    $($constant: *library.get(concat!(stringify!($constant), "\0").as_bytes())?,)*
                    what: library.get(b"torch_exception_get_what_without_backtrace\0").ok().map(|what| *what),
                } })
            }
        }
    };
}

functions! {
[
    aoti_torch_create_tensor_from_blob(*mut c_void, i64, *const i64, *const i64, i64, i32, i32, i32, *mut Handle);
    aoti_torch_empty_strided(i64, *const i64, *const i64, i32, i32, i32, *mut Handle);
    aoti_torch_new_uninitialized_tensor(*mut Handle);
    aoti_torch__reinterpret_tensor(Handle, i64, *const i64, *const i64, i64, *mut Handle);
    aoti_torch_delete_tensor_object(Handle);
    aoti_torch_get_dim(Handle, *mut i64);
    aoti_torch_get_sizes(Handle, *mut *mut i64);
    aoti_torch_get_strides(Handle, *mut *mut i64);
    aoti_torch_get_storage_offset(Handle, *mut i64);
    aoti_torch_copy_(Handle, Handle, i32);
    aoti_torch_cuda_fill__Scalar(Handle, f64);
    aoti_torch_create_cuda_stream_guard(*mut c_void, i32, *mut *mut StreamGuard);
    aoti_torch_delete_cuda_stream_guard(*mut StreamGuard);
    // (query, key, value, dropout_p, is_causal, return_debug_mask, scale; output, logsumexp, cum_seq_q, cum_seq_k, max_q,
    // max_k, rng_state, unused, debug_attn_mask)
    aoti_torch_cuda__scaled_dot_product_flash_attention(Handle, Handle, Handle, f64, i32, i32, *mut f64, *mut Handle, *mut Handle, *mut Handle, *mut Handle, *mut i64, *mut i64, *mut Handle, *mut Handle, *mut Handle);
    // (grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, philox_seed,
    // philox_offset, scale; grad_query, grad_key, grad_value)
    aoti_torch_cuda__scaled_dot_product_flash_attention_backward(Handle, Handle, Handle, Handle, Handle, Handle, Handle, Handle, i64, i64, f64, i32, Handle, Handle, *mut f64, *mut Handle, *mut Handle, *mut Handle);
    // (query, key, value, attn_bias, compute_log_sumexp, dropout_p, is_causal, scale; output, log_sumexp, philox_seed,
    // philox_offset)
    aoti_torch_cuda__scaled_dot_product_efficient_attention(Handle, Handle, Handle, *mut Handle, i32, f64, i32, *mut f64, *mut Handle, *mut Handle, *mut Handle, *mut Handle);
    // (grad_out, query, key, value, attn_bias, out, logsumexp, philox_seed, philox_offset, dropout_p, grad_input_mask, its
    // length, is_causal, scale; grad_query, grad_key, grad_value, grad_bias)
    aoti_torch_cuda__scaled_dot_product_efficient_attention_backward(Handle, Handle, Handle, Handle, Handle, Handle, Handle, Handle, Handle, f64, *const i32, i64, i32, *mut f64, *mut Handle, *mut Handle, *mut Handle, *mut Handle);
    // (query, key, value, attn_bias, compute_log_sumexp, dropout_p, is_causal, return_debug_mask, scale; as flash's)
    aoti_torch_cuda__scaled_dot_product_cudnn_attention(Handle, Handle, Handle, *mut Handle, i32, f64, i32, i32, *mut f64, *mut Handle, *mut Handle, *mut Handle, *mut Handle, *mut i64, *mut i64, *mut Handle, *mut Handle, *mut Handle);
    // (grad_out, query, key, value, out, logsumexp, philox_seed, philox_offset, attn_bias, cum_seq_q, cum_seq_k, max_q, max_k,
    // dropout_p, is_causal, scale; grad_query, grad_key, grad_value)
    aoti_torch_cuda__scaled_dot_product_cudnn_attention_backward(Handle, Handle, Handle, Handle, Handle, Handle, Handle, Handle, Handle, Handle, Handle, i64, i64, f64, i32, *mut f64, *mut Handle, *mut Handle, *mut Handle);
]
[
    aoti_torch_abi_version() -> u64;
    aoti_torch_device_type_cuda() -> i32;
    aoti_torch_dtype_float32() -> i32;
    aoti_torch_dtype_float16() -> i32;
    aoti_torch_dtype_bfloat16() -> i32;
    aoti_torch_dtype_int64() -> i32;
    aoti_torch_dtype_uint64() -> i32;
]
}

/// Element types of the tensors that are handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::runtime::ort) enum Element {
    F32,
    F16,
    BF16,
    /// Of what stands for a random generator's state.
    I64,
    /// As `I64`.
    U64,
}

/// The process's libtorch.
pub(in crate::runtime::ort) struct Libtorch {
    pub(super) functions: Functions,
}

impl Libtorch {
    /// The process's one, loaded by the first call; why there is none, as one sentence with what to do, which the log says
    /// once.
    pub(in crate::runtime::ort) fn get() -> Result<&'static Self, &'static str> {
        static LIBTORCH: OnceLock<Result<Libtorch, String>> = OnceLock::new();
        let loaded = LIBTORCH.get_or_init(|| {
            let loaded = Self::load();
            if let Err(reason) = &loaded {
                tracing::warn!(reason, "attention on CUDA runs as the plain ONNX nodes of its function");
            }
            loaded
        });
        loaded.as_ref().map_err(String::as_str)
    }

    fn load() -> Result<Self, String> {
        let start = Instant::now();
        // SAFETY: torch's libraries register what they have when they are loaded, as in every process that imports torch, and
        // require nothing of the caller; another file of this name in LD_LIBRARY_PATH runs its own with the rights of the user
        // who set that.
        let library = unsafe { Library::new(NAME) }.map_err(|error| {
            format!("libtorch: {error}; run by torch's client, or name the lib folder of a torch with CUDA in LD_LIBRARY_PATH")
        })?;
        // For good: it has threads, and registered what is in it.
        let functions = Functions::of(Box::leak(Box::new(library)));
        let functions =
            functions.map_err(|error| format!("libtorch lacks a function that torch 2.11 to 2.15 have: {error}"))?;
        let libtorch = Self { functions };
        let (major, minor, patch) = libtorch.version();
        let (known, minors) = VERSIONS;
        if major != known || !minors.contains(&minor) {
            let (first, last) = (minors.start(), minors.end());
            return Err(format!(
                "libtorch {major}.{minor}.{patch} is not known here, {known}.{first} to {known}.{last} are"
            ));
        }
        let (version, load_ms) = (format!("{major}.{minor}.{patch}"), start.elapsed().as_millis());
        tracing::info!(version, load_ms, "libtorch loaded, for attention on CUDA");
        Ok(libtorch)
    }

    fn version(&self) -> (u8, u8, u8) {
        // SAFETY: takes nothing, and gives a number: major, minor and patch in its three highest bytes.
        let [major, minor, patch, ..] = unsafe { (self.functions.aoti_torch_abi_version)() }.to_be_bytes();
        (major, minor, patch)
    }

    pub(super) fn device_type(&self) -> i32 {
        // SAFETY: takes nothing, and gives a number.
        unsafe { (self.functions.aoti_torch_device_type_cuda)() }
    }

    pub(super) fn dtype(&self, element: Element) -> i32 {
        let functions = &self.functions;
        let dtype = match element {
            Element::F32 => functions.aoti_torch_dtype_float32,
            Element::F16 => functions.aoti_torch_dtype_float16,
            Element::BF16 => functions.aoti_torch_dtype_bfloat16,
            Element::I64 => functions.aoti_torch_dtype_int64,
            Element::U64 => functions.aoti_torch_dtype_uint64,
        };
        // SAFETY: takes nothing, and gives a number.
        unsafe { dtype() }
    }

    /// A function's code as a result that names it, with what libtorch says of this thread's last error.
    pub(super) fn check(&self, function: &str, code: Code) -> ort::Result<()> {
        if code == 0 {
            return Ok(());
        }
        let what = self.functions.what.map(|what| {
            // SAFETY: takes nothing; gives a NUL-terminated text that stays until this thread's next error, or null.
            unsafe {
                let text = what();
                if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
            }
        });
        let what = what.filter(|what| !what.is_empty()).unwrap_or_else(|| "the executor's log says why".to_owned());
        Err(ort::Error::new(format!("libtorch: {function} failed: {}", what.trim_end())))
    }
}

/// `check!(libtorch, aoti_torch_copy_(…))`, in an unsafe block: the function's code as a result that names it.
macro_rules! check {
    ($libtorch:expr, $name:ident($($arg:expr),* $(,)?)) => {
        $libtorch.check(stringify!($name), ($libtorch.functions.$name)($($arg),*))
    };
}

pub(super) use check;
