//! Device memory that is taken and given back in a stream's order, out of a pool of the driver's.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys;

use super::device::Device;
use super::driver::{Raw, call};
use super::error::CudaError;
use super::stream::Stream;

/// A pool of one device's memory. What is given back is taken again by who asks next in the stream's order, whatever its
/// size: the driver maps pages, so that nothing is lost between blocks. Nothing waits.
pub struct Pool {
    device: Arc<Device>,
    raw: Raw<sys::CUmemPoolHandle_st>,
}

impl Pool {
    /// One that keeps what it has until [`Pool::trim`]; None: the device has no pools. Errors: OutOfMemory, Call.
    pub fn new(device: &Arc<Device>) -> Result<Option<Self>, CudaError> {
        use sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED as SUPPORTED;
        if device.attribute(SUPPORTED)? == 0 {
            return Ok(None);
        }
        let properties = sys::CUmemPoolProps {
            allocType: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location: sys::CUmemLocation {
                type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                id: device.ordinal(),
            },
            win32SecurityAttributes: ptr::null_mut(),
            reserved: [0; 64],
        };
        let made = || {
            let _current = device.enter()?;
            let mut raw = ptr::null_mut();
            // SAFETY: writes one pointer, which Pool destroys once; reads the properties.
            unsafe { call!(device.driver, cuMemPoolCreate(&mut raw, &properties)) }?;
            Ok(Self { device: device.clone(), raw: Raw(raw) })
        };
        let pool = device.with_memory(0, made())?;
        pool.keep_all()?;
        Ok(Some(pool))
    }

    /// By itself a pool gives all that is free to the device whenever a stream comes to rest.
    fn keep_all(&self) -> Result<(), CudaError> {
        use sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD as THRESHOLD;
        let mut most = u64::MAX;
        // SAFETY: the pool is live; reads 8 bytes, the cuuint64_t that the attribute is.
        unsafe {
            call!(self.device.driver, cuMemPoolSetAttribute(self.raw.0, THRESHOLD, ptr::from_mut(&mut most).cast()))
        }
    }

    /// Address of `len_bytes` (at least 1), for work on `stream` from now on and for what is ordered behind it. Aligned to
    /// 256. Errors: OutOfMemory, Call.
    pub fn take(&self, stream: &Stream, len_bytes: usize) -> Result<u64, CudaError> {
        let taken = || {
            let _current = self.device.enter()?;
            let mut address = 0;
            // SAFETY: writes one address; pool and stream are live, and of one device, as `Stream::device` tells.
            unsafe {
                call!(
                    self.device.driver,
                    cuMemAllocFromPoolAsync(&mut address, len_bytes.max(1), self.raw.0, stream.handle())
                )
            }?;
            Ok(address)
        };
        self.device.with_memory(len_bytes as u64, taken())
    }

    /// Gives back what [`Pool::take`] gave, once; work that was put on `stream` before may still use it. Errors: Call.
    pub fn give(&self, stream: &Stream, address: u64) -> Result<(), CudaError> {
        let _current = self.device.enter()?;
        // SAFETY: the driver refuses an address that is none of a pool's; the rest is the caller's.
        unsafe { call!(self.device.driver, cuMemFreeAsync(address, stream.handle())) }
    }

    /// Gives the device what nobody has taken, as far as streams have come to its end. Errors: Call.
    pub fn trim(&self) -> Result<(), CudaError> {
        let _current = self.device.enter()?;
        // SAFETY: the pool is live.
        unsafe { call!(self.device.driver, cuMemPoolTrimTo(self.raw.0, 0)) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let destroy = || {
            let _current = self.device.enter()?;
            // SAFETY: created by cuMemPoolCreate, destroyed once; the driver keeps what is taken until it is given back.
            unsafe { call!(self.device.driver, cuMemPoolDestroy(self.raw.0)) }
        };
        if let Err(error) = destroy() {
            tracing::warn!(%error, "CUDA clean-up failed");
        }
    }
}
