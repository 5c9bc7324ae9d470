//! Tensors on a device: in which allocations they lie, which the executor maps whole.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use rust_ort::base::ids::SegmentId;
use rust_ort::cuda::{Allocation, CudaError, Device};
use rust_ort::tensor::Location;

use crate::segment::{next_id, value_error};

pub fn cuda_error(error: CudaError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

/// An allocation of this process that calls' tensors lie in, as other processes are told of it.
#[pyclass(frozen)]
pub struct DeviceSegment {
    allocation: Allocation,
    /// By which a location names it.
    #[pyo3(get)]
    id: u32,
    /// Of the whole allocation.
    #[pyo3(get)]
    len_bytes: u64,
    /// UUID of where it is.
    #[pyo3(get)]
    device: [u8; 16],
    /// By which another process maps it.
    #[pyo3(get)]
    handle: Vec<u8>,
}

/// Allocations whose tensors were sent, by the driver's id of them: addresses are used again, ids never.
#[pyclass(frozen)]
#[derive(Default)]
pub struct DeviceBlocks(Mutex<HashMap<u64, (SegmentId, Allocation)>>);

impl DeviceBlocks {
    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<u64, (SegmentId, Allocation)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To find tensors that all live as long as this does.
    pub fn finder(&self) -> Finder<'_> {
        Finder { blocks: self, found: Vec::new() }
    }
}

/// Finds the locations of tensors: the driver is asked once for each allocation that they lie in, which lives as long as one
/// of them.
pub struct Finder<'b> {
    blocks: &'b DeviceBlocks,
    found: Vec<(SegmentId, Allocation)>,
}

impl Finder<'_> {
    /// Location of an address in an allocation that was sent before; None for any other.
    pub fn location(&mut self, address: usize) -> Option<u64> {
        let has = |(_, found): &&(SegmentId, Allocation)| {
            (address as u64).checked_sub(found.base).is_some_and(|offset| offset < found.len_bytes)
        };
        if let Some((segment, allocation)) = self.found.iter().find(has) {
            return location_of(*segment, allocation, address);
        }
        let allocation = Allocation::at(address as u64).ok()?;
        let (segment, _) = *self.blocks.known().get(&allocation.id)?;
        self.found.push((segment, allocation));
        location_of(segment, &allocation, address)
    }
}

fn location_of(segment: SegmentId, allocation: &Allocation, address: usize) -> Option<u64> {
    Location::new(segment, address as u64 - allocation.base).ok().map(Location::bits)
}

#[pymethods]
impl DeviceBlocks {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Location of a device address; an allocation that is not known yet comes with it, to be added. Errors: RuntimeError
    /// with what CUDA refuses, ValueError.
    fn locate(&self, address: usize) -> PyResult<(u64, Option<DeviceSegment>)> {
        let allocation = Allocation::at(address as u64).map_err(cuda_error)?;
        let beyond = || value_error(format!("an allocation of {} bytes is too large to share", allocation.len_bytes));
        if let Some(&(segment, _)) = self.known().get(&allocation.id) {
            return Ok((location_of(segment, &allocation, address).ok_or_else(beyond)?, None));
        }
        let handle = allocation.export().map_err(cuda_error)?;
        let device = Device::of_ordinal(allocation.ordinal).map_err(cuda_error)?;
        let segment = next_id();
        let location = location_of(segment, &allocation, address).ok_or_else(beyond)?;
        let told = DeviceSegment {
            allocation,
            id: segment.0,
            len_bytes: allocation.len_bytes,
            device: device.uuid().0,
            handle: handle.bytes().to_vec(),
        };
        Ok((location, Some(told)))
    }

    /// Makes an allocation known: calls name it from now on, so that whoever is to show it to the executor has it already.
    fn add(&self, segment: &DeviceSegment) {
        self.known().insert(segment.allocation.id, (SegmentId(segment.id), segment.allocation));
    }

    /// Forgets the allocations that were freed; their segments' ids.
    fn forget_freed(&self) -> Vec<u32> {
        let is_freed = |known: &Allocation| !Allocation::at(known.base).is_ok_and(|now| now.id == known.id);
        let mut known = self.known();
        known.extract_if(|_, (_, known)| is_freed(known)).map(|(_, (segment, _))| segment.0).collect()
    }
}

/// The UUID of the device that CUDA gives this number in this process. Errors: RuntimeError with what CUDA says.
#[pyfunction]
pub fn device_uuid(ordinal: i32) -> PyResult<[u8; 16]> {
    Ok(Device::of_ordinal(ordinal).map_err(cuda_error)?.uuid().0)
}
