//! The hot part of a call, for the Python package: reading torch's tensors, placing what is not in shared memory yet,
//! making outputs over blocks of it, and handing the call to the executor over a lane.

mod blocks;
mod device;
mod dlpack;
mod lanes;
mod limits;
mod order;
mod plan;
mod process;
mod segment;

use pyo3::prelude::*;

/// `rust_ort._native`.
#[pymodule]
mod _native {
    use super::*;

    #[pymodule_export]
    use blocks::{Blocks, PyBlock, block_bytes};
    #[pymodule_export]
    use device::{DeviceBlocks, DeviceSegment, device_uuid};
    #[pymodule_export]
    use lanes::{Lane, Lanes};
    #[pymodule_export]
    use order::{DeviceNumbers, DeviceWork, LaneEvents, StreamSlot};
    #[pymodule_export]
    use plan::{Call, Plan, tensor};
    #[pymodule_export]
    use process::{cpus, environment, pid_namespace, umask};
    #[pymodule_export]
    use segment::Segment;

    #[pymodule_export]
    const DEVICE_ALIGN_BYTES: usize = plan::DEVICE_ALIGN_BYTES;

    #[pymodule_export]
    const LARGE_BLOCK_BYTES: usize = blocks::LARGE_BLOCK_BYTES;

    #[pymodule_export]
    use limits::is_folder_name;

    #[pymodule_export]
    const ANSWERED_STEPS: usize = limits::ANSWERED_STEPS;

    #[pymodule_export]
    const LANES: u32 = limits::LANES;

    #[pymodule_export]
    const NAME_BYTES: usize = limits::NAME_BYTES;

    #[pymodule_export]
    const NOISE_FACTOR: f64 = limits::NOISE_FACTOR;

    #[pymodule_export]
    const PATTERNS: usize = limits::PATTERNS;

    #[pymodule_export]
    const THREADS: u32 = limits::THREADS;

    /// Of the program that was built with this module.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
