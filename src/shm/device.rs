//! Memory of a device that a client allocated, mapped into this process.

use std::ptr::NonNull;
use std::sync::Arc;

use super::segment::OutOfRange;
use crate::base::ids::SegmentId;
use crate::cuda::{CudaError, Device, Mapping};
use crate::protocol::message::DeviceSegmentSpec;

/// An allocation of a client's on a device. Its bytes are never read by this process's code but for what is asked for
/// explicitly: a runtime gets device addresses.
#[derive(Debug)]
pub struct DeviceSegment {
    id: SegmentId,
    device: Arc<Device>,
    pub(super) mapping: Mapping,
}

impl DeviceSegment {
    /// Maps it. Errors: CUDA's; NoDevice where this process may not use the device.
    pub fn map(spec: &DeviceSegmentSpec) -> Result<Self, CudaError> {
        let device = Device::by_uuid(spec.device)?;
        let mapping = Mapping::open(&device, &spec.handle, spec.len_bytes)?;
        Ok(Self { id: spec.segment, device, mapping })
    }

    /// As given by the client.
    pub fn id(&self) -> SegmentId {
        self.id
    }

    /// Where it is.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Device address of `len_bytes` from `offset`. Errors: [`OutOfRange`].
    pub(super) fn range(&self, offset: u64, len_bytes: usize) -> Result<NonNull<u8>, OutOfRange> {
        let limit = self.mapping.len_bytes();
        let fits = offset.checked_add(len_bytes as u64).is_some_and(|end| end <= limit);
        match fits {
            true => Ok(self.mapping.start().map_addr(|start| start.saturating_add(offset as usize))),
            false => Err(OutOfRange { segment: self.id, offset, needed: len_bytes as u64, len_bytes: limit }),
        }
    }
}
