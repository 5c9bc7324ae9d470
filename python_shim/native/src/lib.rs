//! The hot part of a call, for the Python package: reading torch's tensors, placing what is not in shared memory yet,
//! making outputs over blocks of it, and handing the call to the executor over a lane.

mod blocks;
mod device;
mod dlpack;
mod lanes;
mod order;
mod plan;
mod process;
mod segment;
mod tables;

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
    use tables::{adding_operators, dtypes, is_folder_name, passes, verdict_kinds, wrong_optimizers};

    #[pymodule_export]
    const ANSWERED_STEPS: usize = tables::ANSWERED_STEPS;

    #[pymodule_export]
    const LANES: u32 = tables::LANES;

    #[pymodule_export]
    const NAME_BYTES: usize = tables::NAME_BYTES;

    #[pymodule_export]
    const NOISE_FACTOR: f64 = tables::NOISE_FACTOR;

    #[pymodule_export]
    const ROUNDINGS: f64 = tables::ROUNDINGS;

    #[pymodule_export]
    const PATTERNS: usize = tables::PATTERNS;

    #[pymodule_export]
    const THREADS: u32 = tables::THREADS;

    /// Of the program that was built with this module.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
