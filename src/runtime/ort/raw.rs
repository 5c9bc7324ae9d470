//! Owned handles over ONNX Runtime's C API. Every function here is called after [`super::OrtRuntime::load`] succeeded,
//! so `ort::api()` does not look for a library of its own.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicPtr;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use ort::AsPointer;
use ort::environment::Environment;
use ort::session::builder::SessionBuilder;
use ort::sys;

use super::placement::Listener;
use crate::base::sync::lock;
use crate::cuda;
use crate::runtime::{RuntimeError, StopToken, Terminate};
use crate::shm::RawTensor;
use crate::tensor::{DType, TensorBuf, TensorDesc, TensorView};

/// Turns a status into a result.
pub(super) fn check(status: sys::OrtStatusPtr) -> ort::Result<()> {
    // SAFETY: the status comes from a call of the C API and is consumed here, once.
    unsafe { ort::Error::result_from_status(status) }
}

/// Version of the library, such as "1.31.1". `ort` reads it too but keeps it to itself. Errors: the loader's.
pub(super) fn version(library: &Path) -> Result<String, libloading::Error> {
    // SAFETY: the library is loaded already, so nothing of it is initialized here; the symbol's type is the C header's;
    // base and string are static in the library, which `ort` never unloads.
    unsafe {
        let library = libloading::Library::new(library)?;
        let base: libloading::Symbol<'_, unsafe extern "C" fn() -> *const sys::OrtApiBase> =
            library.get(b"OrtGetApiBase")?;
        let version = CStr::from_ptr(((*base()).GetVersionString)());
        Ok(version.to_string_lossy().into_owned())
    }
}

/// `SessionOptionsSetLoadCancellationFlag` of the C API.
type CancelLoading = unsafe extern "system" fn(*mut sys::OrtSessionOptions, bool) -> sys::OrtStatusPtr;

/// The one of the library that is loaded, where that is new enough.
static CANCEL_LOADING: OnceLock<Option<CancelLoading>> = OnceLock::new();

/// The version of the C API that has it, newer than the one that `ort` is asked for, and its place in the table, which
/// grows at its end alone (`ort-sys` lists it there, and [`Making`]'s test calls it).
const CANCEL_LOADING_API: u32 = 22;
const CANCEL_LOADING_AT: usize = 293;

/// Looks for what ends the making of a session, in a library of this version. Errors: the loader's.
pub(super) fn find_cancel_loading(library: &Path, version: &str) -> Result<(), libloading::Error> {
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or_default());
    let is_new = (numbers.next(), numbers.next()) >= (Some(1), Some(CANCEL_LOADING_API));
    if !is_new {
        return Ok(()); // asked for a version that it lacks, the library complains on the terminal
    }
    // SAFETY: library and symbol as in `version`. The table of an API version that the library has holds at least that
    // version's functions, one pointer each and static; this one is of that type.
    let found = unsafe {
        let library = libloading::Library::new(library)?;
        let base: libloading::Symbol<'_, unsafe extern "C" fn() -> *const sys::OrtApiBase> =
            library.get(b"OrtGetApiBase")?;
        let table: *const Option<CancelLoading> = ((*base()).GetApi)(CANCEL_LOADING_API).cast();
        if table.is_null() { None } else { *table.add(CANCEL_LOADING_AT) }
    };
    CANCEL_LOADING.get_or_init(|| found);
    Ok(())
}

/// A session that is being made, which what ends this thread's making ends.
struct Making(Mutex<AtomicPtr<sys::OrtSessionOptions>>);

impl Making {
    /// Of these options, which outlive it.
    fn begin(builder: &mut SessionBuilder) -> Option<Arc<Self>> {
        let stop = StopToken::of_making()?;
        let making = Arc::new(Self(Mutex::new(AtomicPtr::new(builder.ptr_mut()))));
        let weak: Weak<Self> = Arc::downgrade(&making);
        stop.register(weak);
        Some(making)
    }

    fn end(&self) {
        *lock(&self.0).get_mut() = ptr::null_mut();
    }
}

impl Terminate for Making {
    /// The runtime looks between two steps of its optimizer.
    fn terminate(&self) {
        let mut options = lock(&self.0);
        let options = *options.get_mut();
        if let (false, Some(Some(cancel))) = (options.is_null(), CANCEL_LOADING.get()) {
            // SAFETY: the options live until `end`, which waits for this lock; the flag is an atomic that a session which is
            // made of them shares.
            if let Err(error) = check(unsafe { cancel(options, true) }) {
                tracing::warn!(%error, "the making of a session goes on");
            }
        }
    }
}

/// Gives what the C allocator keeps of freed memory back to the system: a model's packed weights lie between smaller
/// things, and stay with the process by themselves.
pub(super) fn give_back() {
    #[cfg(target_env = "gnu")]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        // SAFETY: glibc's, of this type; it may be called at any time from any thread and touches free memory alone.
        unsafe { malloc_trim(0) };
    }
}

/// Execution providers that the library was built with.
pub(super) fn available_providers() -> Vec<String> {
    let (mut names, mut len) = (ptr::null_mut(), 0);
    // SAFETY: out-pointers are valid; the answer is `len` C strings, given back below.
    if check(unsafe { (ort::api().GetAvailableProviders)(&mut names, &mut len) }).is_err() {
        return Vec::new();
    }
    let name = |index: usize| {
        // SAFETY: `index` is below `len`, each entry is a NUL-terminated string, alive until the release below.
        unsafe { CStr::from_ptr(*names.add(index)) }.to_string_lossy().into_owned()
    };
    let providers = (0..len as usize).map(name).collect();
    // SAFETY: what GetAvailableProviders gave, once. It cannot fail for it.
    let _ = check(unsafe { (ort::api().ReleaseAvailableProviders)(names, len) });
    providers
}

/// Adds a provider by the generic function, which knows it by its name without "ExecutionProvider", or where that is written
/// otherwise (AZURE, XNNPACK) by the whole.
pub(super) fn append_provider(
    builder: &mut SessionBuilder,
    name: &str,
    options: &BTreeMap<String, String>,
) -> ort::Result<()> {
    let short = name.strip_suffix("ExecutionProvider").unwrap_or(name);
    match append_by_name(builder, short, options) {
        Err(error) if short != name && error.to_string().contains("Unknown provider name") => {
            append_by_name(builder, name, options)
        }
        appended => appended,
    }
}

fn append_by_name(builder: &mut SessionBuilder, name: &str, options: &BTreeMap<String, String>) -> ort::Result<()> {
    let text = |text: &str| CString::new(text).map_err(ort::Error::wrap);
    let name = text(name)?;
    let keys = options.keys().map(|key| text(key)).collect::<ort::Result<Vec<_>>>()?;
    let values = options.values().map(|value| text(value)).collect::<ort::Result<Vec<_>>>()?;
    let pointers = |texts: &[CString]| texts.iter().map(|text| text.as_ptr()).collect::<Vec<*const c_char>>();
    let (keys, values) = (pointers(&keys), pointers(&values));
    // SAFETY: the options belong to the builder; the arrays hold `keys.len()` strings each, alive for the call.
    check(unsafe {
        (ort::api().SessionOptionsAppendExecutionProvider)(
            builder.ptr_mut(),
            name.as_ptr(),
            keys.as_ptr(),
            values.as_ptr(),
            keys.len(),
        )
    })
}

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident, $sys:ident, $release:ident $(, while $guard:expr)?) => {
        $(#[$doc])*
        pub(super) struct $name(NonNull<sys::$sys>);

        // SAFETY: the C API ties this object to no thread.
        unsafe impl Send for $name {}
        // SAFETY: through a shared reference it is only read by the C API, or, for RunOptions, told to terminate, which
        // the API allows from any thread.
        unsafe impl Sync for $name {}

        impl $name {
            pub(super) fn ptr(&self) -> *mut sys::$sys {
                self.0.as_ptr()
            }

            /// Takes what a creating function of the C API wrote.
            fn create(create: impl FnOnce(*mut *mut sys::$sys) -> sys::OrtStatusPtr) -> ort::Result<Self> {
                let mut created = ptr::null_mut();
                check(create(&mut created))?;
                NonNull::new(created)
                    .map(Self)
                    .ok_or_else(|| ort::Error::new(concat!("onnxruntime gave a null ", stringify!($sys))))
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                $(let _guard = $guard;)?
                // SAFETY: created by the C API, owned here, released once.
                unsafe { (ort::api().$release)(self.0.as_ptr()) };
            }
        }
    };
}

handle!(
    /// Where memory lives.
    MemoryInfo, OrtMemoryInfo, ReleaseMemoryInfo
);
handle!(
    /// A tensor over memory that someone else owns.
    Value, OrtValue, ReleaseValue
);
handle!(
    /// Names bound to tensors.
    Binding, OrtIoBinding, ReleaseIoBinding
);
handle!(
    /// Options of a run, among them its end.
    RunOptions, OrtRunOptions, ReleaseRunOptions
);

impl MemoryInfo {
    pub(super) fn cpu() -> Self {
        // SAFETY: the out-pointer is valid.
        Self::create(|out| unsafe {
            let (allocator, memory) = (sys::OrtAllocatorType::OrtDeviceAllocator, sys::OrtMemType::OrtMemTypeDefault);
            (ort::api().CreateCpuMemoryInfo)(allocator, memory, out)
        })
        .expect("describing CPU memory allocates a few bytes and does nothing else")
    }

    /// Memory of CUDA's device of this number.
    pub(super) fn of_device(ordinal: i32) -> Self {
        if cuda::on_host() {
            return Self::cpu();
        }
        // SAFETY: the out-pointer is valid, and the name a NUL-terminated string, which is copied.
        Self::create(|out| unsafe {
            let (allocator, memory) = (sys::OrtAllocatorType::OrtDeviceAllocator, sys::OrtMemType::OrtMemTypeDefault);
            (ort::api().CreateMemoryInfo)(c"Cuda".as_ptr(), allocator, ordinal, memory, out)
        })
        .expect("describing a device's memory allocates a few bytes and does nothing else")
    }
}

impl Value {
    /// # Safety
    /// The memory of `tensor` must outlive the value.
    pub(super) unsafe fn over(memory: &MemoryInfo, tensor: RawTensor<'_>) -> ort::Result<Self> {
        let dims = tensor.desc.shape.dims();
        // SAFETY: every DType is a variant of the C enum with the same number, which is repr(i32).
        let dtype: sys::ONNXTensorElementDataType = unsafe { std::mem::transmute(tensor.desc.dtype.onnx_code()) };
        // SAFETY: `start` is valid for `len_bytes`; the shape is copied; the caller keeps the memory.
        Self::create(|out| unsafe {
            let (start, len_bytes) = (tensor.start.as_ptr().cast(), tensor.desc.len_bytes());
            (ort::api().CreateTensorWithDataAsOrtValue)(
                memory.ptr(),
                start,
                len_bytes,
                dims.as_ptr(),
                dims.len(),
                dtype,
                out,
            )
        })
    }
}

/// Names, as the C API takes them.
pub(super) struct Names {
    texts: Vec<CString>,
    pointers: Vec<*const c_char>,
}

// SAFETY: the pointers are to the texts, which nobody changes.
unsafe impl Send for Names {}
// SAFETY: as above.
unsafe impl Sync for Names {}

impl Names {
    pub(super) fn new(texts: Vec<CString>) -> Self {
        let pointers = texts.iter().map(|text| text.as_ptr()).collect();
        Self { texts, pointers }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &CStr> {
        self.texts.iter().map(CString::as_c_str)
    }

    /// As many as there are names, each valid as long as this is.
    pub(super) fn pointers(&self) -> &[*const c_char] {
        &self.pointers
    }
}

/// Tensors, as the C API takes them.
pub(super) struct Values {
    _owned: Vec<Value>,
    pointers: Vec<*mut sys::OrtValue>,
}

// SAFETY: the pointers are to the values, which may go to other threads.
unsafe impl Send for Values {}

impl From<Vec<Value>> for Values {
    fn from(owned: Vec<Value>) -> Self {
        let pointers = owned.iter().map(Value::ptr).collect();
        Self { _owned: owned, pointers }
    }
}

impl Values {
    /// Valid as long as this is. A run writes no pointer that is not null.
    pub(super) fn pointers(&mut self) -> &mut [*mut sys::OrtValue] {
        &mut self.pointers
    }
}

impl Value {
    /// # Safety
    /// The tensor must outlive the value and whatever the value is handed to, which must not write into it.
    pub(super) unsafe fn over_constant(memory: &MemoryInfo, tensor: TensorView<'_>) -> ort::Result<Self> {
        let (bytes, desc) = (tensor.bytes(), tensor.desc());
        let start = match bytes.len() {
            0 => NonNull::<u128>::dangling().cast(),
            _ => NonNull::from(bytes).cast::<u8>(),
        };
        // The allocator's memory is aligned to more than any element; it promises less.
        if !start.addr().get().is_multiple_of(desc.dtype.align_bytes()) {
            return Err(ort::Error::new("a constant is not aligned to its element"));
        }
        // SAFETY: the caller keeps the tensor; `start` is valid for its bytes, and aligned.
        unsafe { Self::over(memory, RawTensor { start, desc: &desc, device: None }) }
    }
}

/// Has a session use these values for initializers whose data the model says to be elsewhere.
///
/// # Safety
/// The memory of the values must outlive the builder and its sessions: they point into it.
pub(super) unsafe fn add_external_initializers(
    builder: &mut SessionBuilder,
    values: &[(CString, Value)],
) -> ort::Result<()> {
    let names: Vec<*const c_char> = values.iter().map(|(name, _)| name.as_ptr()).collect();
    let pointers: Vec<*const sys::OrtValue> = values.iter().map(|(_, value)| value.ptr().cast_const()).collect();
    // SAFETY: the options belong to the builder; the arrays hold `names.len()` strings, which are copied, and live values,
    // whose descriptors are shared; the caller keeps their memory.
    check(unsafe {
        (ort::api().AddExternalInitializers)(builder.ptr_mut(), names.as_ptr(), pointers.as_ptr(), names.len())
    })
}

/// Has what a session logs go to a listener, everything that it says; warnings and errors go to this program's log as they
/// do without. Runs log what their own options ask for (see [`RunOptions::log_warnings`]).
///
/// # Safety
/// The listener must outlive the builder and its sessions, which call it on any thread.
pub(super) unsafe fn log_to(builder: &mut SessionBuilder, listener: &Arc<Listener>) -> ort::Result<()> {
    let options = builder.ptr_mut();
    let param = Arc::as_ptr(listener).cast_mut().cast();
    // SAFETY: the options belong to the builder; the function takes `param` as the listener that it is, which the caller
    // keeps, and only shares it.
    check(unsafe { (ort::api().SetUserLoggingFunction)(options, hear, param) })?;
    let verbose = sys::OrtLoggingLevel::ORT_LOGGING_LEVEL_VERBOSE as c_int;
    // SAFETY: the options belong to the builder.
    check(unsafe { (ort::api().SetSessionLogSeverityLevel)(options, verbose) })
}

/// An OrtLoggingFunction over a [`Listener`].
unsafe extern "system" fn hear(
    listener: *mut c_void,
    severity: sys::OrtLoggingLevel,
    _category: *const c_char,
    _id: *const c_char,
    location: *const c_char,
    message: *const c_char,
) {
    use sys::OrtLoggingLevel as Level;
    if listener.is_null() || message.is_null() {
        return;
    }
    // SAFETY: what `log_to` gave, and its caller keeps.
    let listener = unsafe { &*listener.cast_const().cast::<Listener>() };
    // SAFETY: NUL-terminated strings of ONNX Runtime's, alive for this call.
    let text = |start: *const c_char| unsafe { CStr::from_ptr(start) }.to_string_lossy();
    let location = || if location.is_null() { "".into() } else { text(location) };
    match severity {
        Level::ORT_LOGGING_LEVEL_VERBOSE | Level::ORT_LOGGING_LEVEL_INFO => listener.hear(&text(message)),
        Level::ORT_LOGGING_LEVEL_WARNING => tracing::warn!(location = %location(), "{}", text(message)),
        _ => tracing::error!(location = %location(), "{}", text(message)),
    }
}

handle!(
    /// Element type and shape of a tensor.
    TensorInfo, OrtTensorTypeAndShapeInfo, ReleaseTensorTypeAndShapeInfo
);

impl Value {
    /// Takes what a run wrote; None for a null pointer.
    pub(super) fn made(pointer: *mut sys::OrtValue) -> Option<Self> {
        NonNull::new(pointer).map(Self)
    }

    /// The tensor, copied. Errors: RunFailed when it is no dense CPU tensor of a type that torch has.
    pub(super) fn copy(&self) -> Result<TensorBuf, RuntimeError> {
        let failed = |error: ort::Error| RuntimeError::run_failed(error.to_string());
        let unusable =
            |reason: String| RuntimeError::run_failed(format!("an output is no tensor of torch's: {reason}"));
        let (code, dims) = self.code_and_dims().map_err(failed)?;
        let dtype = DType::from_onnx(code).map_err(|error| unusable(error.to_string()))?;
        let desc = TensorDesc::new(dtype, dims).map_err(|error| unusable(error.to_string()))?;
        let mut bytes = vec![0; desc.len_bytes()];
        let mut start = ptr::null_mut();
        // SAFETY: the value is alive and a tensor, which `code_and_dims` has seen; the out-pointer is valid.
        check(unsafe { (ort::api().GetTensorMutableData)(self.ptr(), &mut start) }).map_err(failed)?;
        if !bytes.is_empty() {
            // SAFETY: a tensor of this type and shape has so many bytes, which nobody writes after the run; the target
            // is a fresh allocation of that size.
            unsafe { ptr::copy_nonoverlapping(start.cast::<u8>().cast_const(), bytes.as_mut_ptr(), bytes.len()) };
        }
        TensorBuf::new(desc, bytes).map_err(|error| unusable(error.to_string()))
    }

    fn code_and_dims(&self) -> ort::Result<CodeAndDims> {
        let mut is_tensor = 0;
        // SAFETY: the value is alive, the out-pointer is valid.
        check(unsafe { (ort::api().IsTensor)(self.ptr(), &mut is_tensor) })?;
        if is_tensor == 0 {
            return Err(ort::Error::new("it is a sequence, a map or a sparse tensor"));
        }
        // SAFETY: as above.
        let info = TensorInfo::create(|out| unsafe { (ort::api().GetTensorTypeAndShape)(self.ptr(), out) })?;
        // SAFETY: the info is alive.
        unsafe { code_and_dims(info.ptr()) }
    }
}

/// Number of an element type, and dimensions.
type CodeAndDims = (i32, Vec<i64>);

/// Number of the element type and dimensions, −1 where they are symbolic. The number is read as one: a newer runtime has
/// types that the header of `ort` does not, and an enum of another value would be undefined behaviour.
///
/// # Safety
/// The info is alive.
unsafe fn code_and_dims(info: *const sys::OrtTensorTypeAndShapeInfo) -> ort::Result<CodeAndDims> {
    let (mut code, mut rank) = (0_i32, 0);
    // SAFETY: the caller's promise; the out-pointer is valid, and the C enum is an i32 (`repr(i32)` in `sys`).
    check(unsafe { (ort::api().GetTensorElementType)(info, (&raw mut code).cast()) })?;
    // SAFETY: the caller's promise; the out-pointer is valid.
    check(unsafe { (ort::api().GetDimensionsCount)(info, &mut rank) })?;
    let mut dims = vec![0_i64; rank];
    // SAFETY: as above; `dims` has room for `rank` numbers.
    check(unsafe { (ort::api().GetDimensions)(info, dims.as_mut_ptr(), rank) })?;
    Ok((code, dims))
}

handle!(
    /// A model, ready to run.
    Session, OrtSession, ReleaseSession, while cuda::beside_captures()
);
handle!(
    /// What an input or output is.
    TypeInfo, OrtTypeInfo, ReleaseTypeInfo
);

/// An input or output as the runtime tells it.
#[derive(Debug)]
pub(super) struct Declared {
    pub(super) name: String,
    /// Number of its kind of value (ONNXType).
    pub(super) kind: i32,
    /// Of a tensor: number of its element type, and dimensions, −1 where they are symbolic.
    pub(super) tensor: Option<CodeAndDims>,
}

type CountOf = unsafe extern "system" fn(*const sys::OrtSession, *mut usize) -> sys::OrtStatusPtr;
type NameOf = unsafe extern "system" fn(
    *const sys::OrtSession,
    usize,
    *mut sys::OrtAllocator,
    *mut *mut c_char,
) -> sys::OrtStatusPtr;
type TypeOf = unsafe extern "system" fn(*const sys::OrtSession, usize, *mut *mut sys::OrtTypeInfo) -> sys::OrtStatusPtr;

impl Session {
    /// Not by `ort`, which reads the types of inputs and outputs into enums; see [`code_and_dims`]. The environment must
    /// outlive the session. Errors: the runtime's.
    /// shares_threads: it takes the environment's pool, and has none of its own.
    pub(super) fn of_model(
        environment: &Environment,
        builder: &mut SessionBuilder,
        model: &[u8],
        shares_threads: bool,
    ) -> ort::Result<Self> {
        if shares_threads {
            // SAFETY: the options belong to the builder. The environment has the one thread pool.
            check(unsafe { (ort::api().DisablePerSessionThreads)(builder.ptr_mut()) })?;
        }
        let making = Making::begin(builder);
        // SAFETY: all handles are alive; the runtime keeps no pointer into the model's bytes (the options that would make
        // it do so are refused).
        let made = Self::create(|out| unsafe {
            let (start, len) = (model.as_ptr().cast(), model.len());
            (ort::api().CreateSessionFromArray)(environment.ptr(), start, len, builder.ptr(), out)
        });
        making.iter().for_each(|making| making.end());
        made
    }

    pub(super) fn inputs(&self) -> ort::Result<Vec<Declared>> {
        let api = ort::api();
        self.declared(api.SessionGetInputCount, api.SessionGetInputName, api.SessionGetInputTypeInfo)
    }

    pub(super) fn outputs(&self) -> ort::Result<Vec<Declared>> {
        let api = ort::api();
        self.declared(api.SessionGetOutputCount, api.SessionGetOutputName, api.SessionGetOutputTypeInfo)
    }

    fn declared(&self, count: CountOf, name: NameOf, info: TypeOf) -> ort::Result<Vec<Declared>> {
        let mut n = 0;
        // SAFETY: the session is alive, the out-pointer is valid.
        check(unsafe { count(self.ptr(), &mut n) })?;
        let declared = |index| {
            let name = self.name(name, index)?;
            // SAFETY: as above; the index is below the count.
            let info = TypeInfo::create(|out| unsafe { info(self.ptr(), index, out) })?;
            let (kind, tensor) = info.kind_and_tensor()?;
            Ok(Declared { name, kind, tensor })
        };
        (0..n).map(declared).collect()
    }

    fn name(&self, name: NameOf, index: usize) -> ort::Result<String> {
        let (mut allocator, mut text) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the out-pointer is valid; the default allocator belongs to the runtime for good.
        check(unsafe { (ort::api().GetAllocatorWithDefaultOptions)(&mut allocator) })?;
        // SAFETY: handles are alive, the index is below the count, the out-pointer is valid.
        check(unsafe { name(self.ptr(), index, allocator, &mut text) })?;
        // SAFETY: a NUL-terminated string, alive until it is freed below.
        let owned = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        // SAFETY: what the allocator gave, once. It cannot fail for it.
        let _ = check(unsafe { (ort::api().AllocatorFree)(allocator, text.cast()) });
        Ok(owned)
    }
}

impl TypeInfo {
    fn kind_and_tensor(&self) -> ort::Result<(i32, Option<CodeAndDims>)> {
        let mut kind = 0_i32;
        // SAFETY: the info is alive, the out-pointer is valid, and the C enum is an i32 (`repr(i32)` in `sys`).
        check(unsafe { (ort::api().GetOnnxTypeFromTypeInfo)(self.ptr(), (&raw mut kind).cast()) })?;
        if kind != sys::ONNXType::ONNX_TYPE_TENSOR as i32 {
            return Ok((kind, None));
        }
        let mut tensor = ptr::null();
        // SAFETY: as above; what is given belongs to the info.
        check(unsafe { (ort::api().CastTypeInfoToTensorInfo)(self.ptr(), &mut tensor) })?;
        // SAFETY: it is a tensor's, and lives as long as the info does.
        Ok((kind, Some(unsafe { code_and_dims(tensor) }?)))
    }
}

impl Binding {
    pub(super) fn new(session: &Session) -> ort::Result<Self> {
        // SAFETY: the session is alive; binding does not change it.
        Self::create(|out| unsafe { (ort::api().CreateIoBinding)(session.ptr(), out) })
    }

    pub(super) fn bind_input(&mut self, name: &CStr, value: &Value) -> ort::Result<()> {
        // SAFETY: handles are alive; the binding shares ownership of the value's descriptor, not of its memory.
        check(unsafe { (ort::api().BindInput)(self.ptr(), name.as_ptr(), value.ptr()) })
    }

    pub(super) fn bind_output(&mut self, name: &CStr, value: &Value) -> ort::Result<()> {
        // SAFETY: as in `bind_input`.
        check(unsafe { (ort::api().BindOutput)(self.ptr(), name.as_ptr(), value.ptr()) })
    }
}

impl RunOptions {
    pub(super) fn new() -> ort::Result<Self> {
        // SAFETY: the out-pointer is valid.
        Self::create(|out| unsafe { (ort::api().CreateRunOptions)(out) })
    }

    /// Of runs that capture a CUDA graph or replay one, under this id: see `graphs.rs`.
    pub(super) fn under_graph(self, id: i32) -> ort::Result<Self> {
        let (key, value) = (c"gpu_graph_id", CString::new(id.to_string()).map_err(ort::Error::wrap)?);
        // SAFETY: the handle is alive; both are NUL-terminated strings, which are copied.
        check(unsafe { (ort::api().AddRunConfigEntry)(self.ptr(), key.as_ptr(), value.as_ptr()) })?;
        Ok(self)
    }

    /// Of runs that return when their work is on the device's stream, rather than when it is done.
    pub(super) fn without_waiting(self) -> ort::Result<Self> {
        let (key, value) = (c"disable_synchronize_execution_providers", c"1");
        // SAFETY: the handle is alive; both are NUL-terminated strings, which are copied.
        check(unsafe { (ort::api().AddRunConfigEntry)(self.ptr(), key.as_ptr(), value.as_ptr()) })?;
        Ok(self)
    }
}

impl RunOptions {
    /// Of runs that log no more than warnings, whatever their session logs.
    pub(super) fn log_warnings(self) -> ort::Result<Self> {
        let level = sys::OrtLoggingLevel::ORT_LOGGING_LEVEL_WARNING as c_int;
        // SAFETY: the handle is alive.
        check(unsafe { (ort::api().RunOptionsSetRunLogSeverityLevel)(self.ptr(), level) })?;
        Ok(self)
    }
}

impl Terminate for RunOptions {
    fn terminate(&self) {
        // SAFETY: the handle is alive; the C API documents this call for use while a run is going on.
        let _ = check(unsafe { (ort::api().RunOptionsSetTerminate)(self.ptr()) });
    }
}
