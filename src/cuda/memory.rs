//! Device memory: whose allocation an address lies in, blocks of this process and of others, page-locked host memory.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use cudarc::driver::sys;
use sys::CUpointer_attribute as Attribute;

use super::device::Device;
use super::driver::{Driver, Raw, call};
use super::error::CudaError;
use super::handle::IpcHandle;

/// What the driver allocated at once, and a tensor lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Allocation {
    /// CU_POINTER_ATTRIBUTE_BUFFER_ID: never given twice in a process, while addresses are.
    pub id: u64,
    /// Address of its first byte.
    pub base: u64,
    /// Its length.
    pub len_bytes: u64,
    /// Of the device that it lies on.
    pub ordinal: i32,
}

impl Allocation {
    /// The allocation that `address` lies in. One call of the driver; needs no device to be current.
    ///
    /// Errors: Library, Handle where the address is no device memory of this process.
    pub fn at(address: u64) -> Result<Self, CudaError> {
        let [memory_type, id, base, len_bytes, ordinal] = attributes(
            address,
            [
                Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID,
                Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            ],
        )?;
        let wrong = |what: &str| CudaError::Handle {
            what: "address",
            reason: format!("{address:#x} is {what}; expected device memory of this process"),
        };
        match memory_type as c_uint {
            device if device == sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as c_uint => {
                Ok(Self { id, base, len_bytes, ordinal: ordinal as c_int })
            }
            host if host == sys::CUmemorytype::CU_MEMORYTYPE_HOST as c_uint => Err(wrong("page-locked host memory")),
            // The driver answers nothing, not an error, for an address that it does not know.
            0 => Err(wrong("none of CUDA's, or freed")),
            other => Err(wrong(&format!("memory of type {other}"))),
        }
    }

    /// What another process opens it by. It may be exported any number of times; it must stay allocated while another
    /// process has it open.
    ///
    /// Errors: NotExportable, Handle where it has been freed since [`Allocation::at`], Call.
    pub fn export(&self) -> Result<IpcHandle, CudaError> {
        let [id, capable, pool] = attributes(
            self.base,
            [
                Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID,
                Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                Attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
            ],
        )?;
        if id != self.id {
            return Err(CudaError::Handle {
                what: "allocation",
                reason: format!("{:#x} was freed since it was looked up; look it up again", self.base),
            });
        }
        if pool != 0 {
            return Err(CudaError::pool());
        }
        if capable as c_int == 0 {
            return Err(CudaError::expandable_segment());
        }
        let device = Device::of_ordinal(self.ordinal)?;
        let _current = device.enter()?;
        let mut handle = sys::CUipcMemHandle { reserved: [0; IpcHandle::LEN] };
        // SAFETY: writes 64 bytes; the driver validates the address.
        unsafe { call!(device.driver, cuIpcGetMemHandle(&mut handle, self.base)) }?;
        Ok(IpcHandle::of_array(handle.reserved.map(|byte| byte as u8)))
    }
}

/// The attributes of what lies at an address, 0 where the driver knows none.
fn attributes<const N: usize>(address: u64, mut wanted: [Attribute; N]) -> Result<[u64; N], CudaError> {
    let driver = Driver::get()?;
    let mut values = [0_u64; N];
    let mut places: [*mut c_void; N] = values.each_mut().map(|value| ptr::from_mut(value).cast());
    // SAFETY: reads N attributes and writes the value of each, at most 8 bytes, to its place. Narrower ones leave the high
    // bytes, which are 0, as they are; of those that may be negative only the low ones are read.
    unsafe { call!(driver, cuPointerGetAttributes(N as c_uint, wanted.as_mut_ptr(), places.as_mut_ptr(), address)) }?;
    Ok(values)
}

/// A range of a block, for a copy.
#[derive(Clone, Copy, Debug)]
pub struct Span<'b> {
    pub(super) address: u64,
    pub(super) len_bytes: usize,
    block: PhantomData<&'b ()>,
}

impl Span<'_> {
    fn of(base: u64, limit: u64, offset: u64, len_bytes: u64) -> Result<Self, CudaError> {
        match offset.checked_add(len_bytes) {
            Some(end) if end <= limit => {
                Ok(Self { address: base + offset, len_bytes: len_bytes as usize, block: PhantomData })
            }
            _ => Err(CudaError::Range { offset, len_bytes, limit }),
        }
    }

    /// A range of it. Errors: Range.
    pub fn part(&self, offset: u64, len_bytes: u64) -> Result<Self, CudaError> {
        Self::of(self.address, self.len_bytes as u64, offset, len_bytes)
    }

    /// Its first byte, an address of the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes in it.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

fn non_null(function: &'static str, address: u64) -> Result<NonNull<u8>, CudaError> {
    NonNull::new(ptr::with_exposed_provenance_mut(address as usize)).ok_or_else(|| CudaError::Handle {
        what: "driver",
        reason: format!("{function} succeeded and gave no address"),
    })
}

/// Device memory of another process.
#[derive(Debug)]
pub struct Mapping {
    device: Arc<Device>,
    start: u64,
    len_bytes: u64,
    open: bool,
}

impl Mapping {
    /// Open what [`Allocation::export`] gave in another process, `len_bytes` long, in the device's primary context. Opened
    /// twice, it lies at the same address and is unmapped when both are dropped: the driver counts. A process cannot open what
    /// it exported itself.
    ///
    /// Whoever exported it must keep it allocated until this is dropped, and no work that uses it may be queued by then.
    ///
    /// Errors: Handle where it is shorter than `len_bytes`, OutOfMemory, Call.
    pub fn open(device: &Arc<Device>, handle: &IpcHandle, len_bytes: u64) -> Result<Self, CudaError> {
        let opened = device.with_memory(0, Self::opened(device, handle, len_bytes))?;
        non_null("cuIpcOpenMemHandle", opened.start)?;
        let [known] = attributes(opened.start, [Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE])?;
        if known != 0 && known < len_bytes {
            return Err(CudaError::Handle {
                what: "memory handle",
                reason: format!("expected {len_bytes} bytes behind it, found {known}"),
            });
        }
        Ok(opened)
    }

    fn opened(device: &Arc<Device>, handle: &IpcHandle, len_bytes: u64) -> Result<Self, CudaError> {
        let _current = device.enter()?;
        let raw = sys::CUipcMemHandle { reserved: handle.bytes().map(|byte| byte as _) };
        let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as c_uint;
        let mut start = 0;
        // SAFETY: writes one address, which Mapping closes once; the driver validates the handle.
        unsafe { call!(device.driver, cuIpcOpenMemHandle_v2(&mut start, raw, flags)) }?;
        Ok(Self { device: device.clone(), start, len_bytes, open: true })
    }

    /// Its first byte, an address of the device: nothing that the host may read.
    pub fn start(&self) -> NonNull<u8> {
        non_null("cuIpcOpenMemHandle", self.start).expect("`open` looked")
    }

    /// Its length.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// A range of it. Errors: Range.
    pub fn span(&self, offset: u64, len_bytes: u64) -> Result<Span<'_>, CudaError> {
        Span::of(self.start, self.len_bytes, offset, len_bytes)
    }

    /// Unmap, with the driver's verdict.
    pub fn close(mut self) -> Result<(), CudaError> {
        self.unmap()
    }

    fn unmap(&mut self) -> Result<(), CudaError> {
        if !self.open {
            return Ok(());
        }
        let _current = self.device.enter()?;
        self.open = false;
        // SAFETY: `start` came from cuIpcOpenMemHandle, and is closed once: it is not open any more.
        unsafe { call!(self.device.driver, cuIpcCloseMemHandle(self.start)) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Err(error) = self.unmap() {
            tracing::warn!(%error, "CUDA clean-up failed");
        }
    }
}

/// Device memory of this process, an allocation of its own.
#[derive(Debug)]
pub struct Memory {
    device: Arc<Device>,
    start: u64,
    len_bytes: u64,
}

impl Memory {
    /// `len_bytes` on `device`, not initialized, aligned to at least 256. Errors: OutOfMemory, Call.
    pub fn new(device: &Arc<Device>, len_bytes: u64) -> Result<Self, CudaError> {
        let allocate = || {
            let _current = device.enter()?;
            let mut start = 0;
            // SAFETY: writes one address, which Memory frees once. None is given for 0 bytes, so at least one is asked.
            unsafe { call!(device.driver, cuMemAlloc_v2(&mut start, len_bytes.max(1) as usize)) }?;
            Ok(Self { device: device.clone(), start, len_bytes })
        };
        let memory: Self = device.with_memory(len_bytes, allocate())?;
        non_null("cuMemAlloc", memory.start)?;
        Ok(memory)
    }

    /// Its first byte, an address of the device.
    pub fn start(&self) -> NonNull<u8> {
        non_null("cuMemAlloc", self.start).expect("`new` looked")
    }

    /// Its length.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// A range of it. Errors: Range.
    pub fn span(&self, offset: u64, len_bytes: u64) -> Result<Span<'_>, CudaError> {
        Span::of(self.start, self.len_bytes, offset, len_bytes)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let free = || {
            let _current = self.device.enter()?;
            // SAFETY: `start` came from cuMemAlloc and is freed once.
            unsafe { call!(self.device.driver, cuMemFree_v2(self.start)) }
        };
        if let Err(error) = free() {
            tracing::warn!(%error, "CUDA clean-up failed");
        }
    }
}

/// Page-locked host memory: copies from and to it are asynchronous.
pub struct Pinned {
    device: Arc<Device>,
    raw: Raw<u8>,
    len_bytes: usize,
}

impl Pinned {
    /// `len_bytes`, zeroed. Errors: OutOfMemory, Call.
    pub fn new(device: &Arc<Device>, len_bytes: usize) -> Result<Self, CudaError> {
        let allocate = || {
            let _current = device.enter()?;
            let mut raw = ptr::null_mut();
            // SAFETY: writes one pointer, which Pinned frees once. None is given for 0 bytes, so at least one is asked.
            unsafe { call!(device.driver, cuMemHostAlloc(&mut raw, len_bytes.max(1), 0)) }?;
            Ok(Self { device: device.clone(), raw: Raw(raw.cast()), len_bytes })
        };
        let pinned: Self = device.with_memory(len_bytes as u64, allocate())?;
        // SAFETY: cuMemHostAlloc gave len_bytes writable bytes.
        unsafe { ptr::write_bytes(pinned.raw.0, 0, len_bytes) };
        Ok(pinned)
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: initialized in `new`, len_bytes long. No copy is queued: Stream::read hands a Pinned out when its copy is
        // done, and Stream::write takes one away.
        unsafe { std::slice::from_raw_parts(self.raw.0, self.len_bytes) }
    }

    /// Its bytes, writable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.raw.0, self.len_bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let free = || {
            let _current = self.device.enter()?;
            // SAFETY: `raw` came from cuMemHostAlloc and is freed once; no copy is queued, as in `bytes`.
            unsafe { call!(self.device.driver, cuMemFreeHost(self.raw.0.cast())) }
        };
        if let Err(error) = free() {
            tracing::warn!(%error, "CUDA clean-up failed");
        }
    }
}
