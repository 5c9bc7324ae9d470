//! Why the driver did not do what it was asked.

use super::held::Held;
use crate::base::bytes::Bytes;
use crate::base::ids::DeviceUuid;

/// Why CUDA did not work.
#[derive(Clone, Debug, PartialEq, Eq, displaydoc::Display, thiserror::Error)]
pub enum CudaError {
    /// NVIDIA's driver: {reason}; install a driver of CUDA 11.4 or later, or name its folder in LD_LIBRARY_PATH
    Library {
        /// The loader's text: no libcuda.so.1, or a function that it lacks.
        reason: String,
    },
    /// {function} failed with {code} ({name}): {text}
    Call {
        /// The driver's function, as its manual names it.
        function: &'static str,
        /// Its CUresult.
        code: u32,
        /// That number's name.
        name: String,
        /// The driver's own explanation.
        text: String,
    },
    /// {function} on {device}: asked {asked}, {free} of {total} free; {held}
    OutOfMemory {
        /// The driver's function.
        function: &'static str,
        /// Where.
        device: DeviceUuid,
        /// What the call asked for; 0 where the driver alone knows (a mapping, an event, a stream).
        asked: Bytes,
        /// Of the device, after the call.
        free: Bytes,
        /// Of the device.
        total: Bytes,
        /// Who has the rest.
        held: Held,
    },
    /// no {uuid} here: visible are {visible:?}; give this process the same CUDA_VISIBLE_DEVICES as the client
    NoDevice {
        /// Asked for.
        uuid: DeviceUuid,
        /// In the driver's order.
        visible: Vec<DeviceUuid>,
    },
    /// CUDA memory that no other process can open: {reason}
    NotExportable {
        /// What it is and what to change.
        reason: String,
    },
    /// CUDA {what}: {reason}
    Handle {
        /// Which of those that travel.
        what: &'static str,
        /// What is wrong with it and what to change.
        reason: String,
    },
    /// values in memory cannot order streams: {reason}
    NoStreamValues {
        /// What is missing: a function, the device's part, or that a stream saw the value.
        reason: String,
    },
    /// CUDA's compiler: {reason}
    Compiler {
        /// Why there is none, or what it says of the source.
        reason: String,
    },
    /// {len_bytes} bytes at offset {offset} of a CUDA block: outside its {limit} bytes
    Range {
        /// In bytes, from the block's start.
        offset: u64,
        /// Asked for.
        len_bytes: u64,
        /// The block's.
        limit: u64,
    },
}

/// CUDA_ERROR_ALREADY_MAPPED
const ALREADY_MAPPED: u32 = 208;

impl CudaError {
    /// Another allocation that was at the address is still mapped.
    pub fn is_in_the_way(&self) -> bool {
        matches!(self, Self::Call { code: ALREADY_MAPPED, .. })
    }

    /// What ends a process's context for good: a kernel that read where nothing is, a device that fell off.
    pub fn is_sticky(&self) -> bool {
        // CUDA_ERROR_ECC_UNCORRECTABLE, _NVLINK_UNCORRECTABLE, _CONTAINED, _ILLEGAL_ADDRESS, _LAUNCH_TIMEOUT,
        // _CONTEXT_IS_DESTROYED, _ASSERT, _HARDWARE_STACK_ERROR to _LAUNCH_FAILED
        matches!(self, Self::Call { code: 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719, .. })
    }

    /// Of torch's expandable segments.
    pub(super) fn expandable_segment() -> Self {
        Self::NotExportable {
            reason: "it is no cudaMalloc block of this process, but an expandable segment of torch's allocator (start \
                     the client with PYTORCH_CUDA_ALLOC_CONF without expandable_segments:True), or managed memory or \
                     another process's (clone the tensor)"
                .to_owned(),
        }
    }

    /// Of cudaMallocAsync's pools.
    pub(super) fn pool() -> Self {
        Self::NotExportable {
            reason: "it lies in a pool of cudaMallocAsync; start the client with PYTORCH_CUDA_ALLOC_CONF without \
                     backend:cudaMallocAsync"
                .to_owned(),
        }
    }
}
