//! GPUs, each with its primary context: the one that torch and ONNX Runtime work in.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int};
use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::{Arc, Mutex, Weak};

use cudarc::driver::sys;

use super::capture::{Alone, Beside, beside_captures};
use super::driver::{Code, Driver, Raw, call};
use super::error::CudaError;
use super::held::Held;
use crate::base::bytes::Bytes;
use crate::base::ids::DeviceUuid;
use crate::base::sync::lock;

/// Those open in this process, by ordinal.
static OPEN: Mutex<BTreeMap<i32, Weak<Device>>> = Mutex::new(BTreeMap::new());

/// A GPU and its primary context, retained until the last user drops it. One a GPU and process.
pub struct Device {
    pub(super) driver: &'static Driver,
    raw: sys::CUdevice,
    context: Raw<sys::CUctx_st>,
    ordinal: i32,
    uuid: DeviceUuid,
    name: String,
}

impl Device {
    /// The GPU at this place among those that CUDA_VISIBLE_DEVICES leaves. Creates the primary context if nobody has.
    ///
    /// Errors: Library, Call (no such ordinal, no memory for a context).
    pub fn of_ordinal(ordinal: i32) -> Result<Arc<Self>, CudaError> {
        let driver = Driver::get()?;
        let mut open = lock(&OPEN);
        if let Some(device) = open.get(&ordinal).and_then(Weak::upgrade) {
            return Ok(device);
        }
        let device = Arc::new(Self::open(driver, ordinal)?);
        open.insert(ordinal, Arc::downgrade(&device));
        Ok(device)
    }

    /// The GPU of this name. Errors: NoDevice, with those that are visible; as [`Device::of_ordinal`].
    pub fn by_uuid(uuid: DeviceUuid) -> Result<Arc<Self>, CudaError> {
        let visible = Self::visible()?;
        match visible.iter().position(|other| *other == uuid) {
            Some(ordinal) => Self::of_ordinal(ordinal as i32),
            None => Err(CudaError::NoDevice { uuid, visible }),
        }
    }

    /// Those whose primary context this process holds now.
    pub fn open_here() -> Vec<Arc<Self>> {
        lock(&OPEN).values().filter_map(Weak::upgrade).collect()
    }

    /// Names of all that this process may use, by ordinal. Errors: Library, Call (CUDA_ERROR_NO_DEVICE without any).
    pub fn visible() -> Result<Vec<DeviceUuid>, CudaError> {
        let driver = Driver::get()?;
        (0..count(driver)?).map(|ordinal| uuid_of(driver, raw_of(driver, ordinal)?)).collect()
    }

    fn open(driver: &'static Driver, ordinal: i32) -> Result<Self, CudaError> {
        let raw = raw_of(driver, ordinal)?;
        let (uuid, name) = (uuid_of(driver, raw)?, name_of(driver, raw)?);
        let mut context = ptr::null_mut();
        // SAFETY: writes one pointer, which is released once, when Device drops.
        unsafe { call!(driver, cuDevicePrimaryCtxRetain(&mut context, raw)) }?;
        Ok(Self { driver, raw, context: Raw(context), ordinal, uuid, name })
    }

    /// Its place among those that this process sees.
    pub fn ordinal(&self) -> i32 {
        self.ordinal
    }

    /// Its name for every process.
    pub fn uuid(&self) -> DeviceUuid {
        self.uuid
    }

    /// Its name for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// (major, minor): which code its processors run.
    pub(super) fn compute_capability(&self) -> Result<(i32, i32), CudaError> {
        use sys::CUdevice_attribute as Attribute;
        let major = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        Ok((major, self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?))
    }

    /// What the driver says of it. Errors: Call, also for an attribute that the driver does not know.
    pub(super) fn attribute(&self, attribute: sys::CUdevice_attribute) -> Result<c_int, CudaError> {
        let mut value = 0;
        // SAFETY: writes one int; `raw` is of cuDeviceGet.
        unsafe { call!(self.driver, cuDeviceGetAttribute(&mut value, attribute, self.raw)) }.map(|()| value)
    }

    /// (free, total) bytes.
    pub fn memory(&self) -> Result<(u64, u64), CudaError> {
        let _current = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two numbers.
        unsafe { call!(self.driver, cuMemGetInfo_v2(&mut free, &mut total)) }?;
        Ok((free as u64, total as u64))
    }

    /// Make it the calling thread's device until the guard drops. Waits while a graph is captured.
    pub(super) fn enter(&self) -> Result<Current<'_>, CudaError> {
        self.entered(Some(beside_captures()))
    }

    /// As [`Device::enter`], for who is alone.
    pub(super) fn enter_alone<'d>(&'d self, _alone: &'d Alone) -> Result<Current<'d>, CudaError> {
        self.entered(None)
    }

    /// As [`Device::enter`], for a thread that has a place already: in a run, which may be one that captures.
    pub(super) fn enter_in_run(&self) -> Result<Current<'_>, CudaError> {
        self.entered(None)
    }

    fn entered(&self, beside: Option<Beside>) -> Result<Current<'_>, CudaError> {
        // SAFETY: the context is retained while self lives.
        unsafe { call!(self.driver, cuCtxPushCurrent_v2(self.context.0)) }?;
        Ok(Current { driver: self.driver, device: PhantomData, _beside: beside })
    }

    /// `result`, with what memory there is, and who has the rest, where it failed for want of it.
    pub(super) fn with_memory<T>(&self, asked_bytes: u64, result: Result<T, CudaError>) -> Result<T, CudaError> {
        const OUT_OF_MEMORY: Code = sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY as Code;
        match result {
            Err(error @ CudaError::Call { function, code: OUT_OF_MEMORY, .. }) => Err(match self.memory() {
                Ok((free, total)) => CudaError::OutOfMemory {
                    function,
                    device: self.uuid,
                    asked: Bytes(asked_bytes),
                    free: Bytes(free),
                    total: Bytes(total),
                    held: Held::now(self.uuid),
                },
                Err(_) => error,
            }),
            other => other,
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}, {}, {})", self.ordinal, self.uuid, self.name)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: retained once, in `open`. What lives in the context holds the Device.
        self.driver.check_in_drop("cuDevicePrimaryCtxRelease", unsafe {
            (self.driver.cuDevicePrimaryCtxRelease_v2)(self.raw)
        });
    }
}

/// A device that is the thread's until this drops. Not Send: it is of one thread.
pub(super) struct Current<'d> {
    driver: &'static Driver,
    device: PhantomData<(&'d Device, *const ())>,
    _beside: Option<Beside>,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut popped = ptr::null_mut();
        // SAFETY: writes one pointer; `enter` pushed what this pops, on this thread.
        self.driver.check_in_drop("cuCtxPopCurrent", unsafe { (self.driver.cuCtxPopCurrent_v2)(&mut popped) });
    }
}

fn count(driver: &Driver) -> Result<i32, CudaError> {
    let mut count = 0;
    // SAFETY: writes one int.
    unsafe { call!(driver, cuDeviceGetCount(&mut count)) }?;
    Ok(count)
}

fn raw_of(driver: &Driver, ordinal: i32) -> Result<sys::CUdevice, CudaError> {
    let mut raw = 0;
    // SAFETY: writes one int.
    unsafe { call!(driver, cuDeviceGet(&mut raw, ordinal)) }?;
    Ok(raw)
}

fn uuid_of(driver: &Driver, raw: sys::CUdevice) -> Result<DeviceUuid, CudaError> {
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: writes 16 bytes; `raw` is of cuDeviceGet.
    unsafe { call!(driver, cuDeviceGetUuid_v2(&mut uuid, raw)) }?;
    Ok(DeviceUuid(uuid.bytes.map(|byte| byte as u8)))
}

fn name_of(driver: &Driver, raw: sys::CUdevice) -> Result<String, CudaError> {
    let mut name = [0; 256];
    // SAFETY: writes at most as many bytes as it is told, with a NUL at the end; `raw` is of cuDeviceGet.
    unsafe { call!(driver, cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, raw)) }?;
    let bytes = name.map(|byte| byte as u8);
    Ok(CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy().into_owned())
}
