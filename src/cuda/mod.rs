//! NVIDIA's driver as this project needs it: devices, allocations that travel between processes, events and streams.
//!
//! One process exports the block that a tensor lies in ([`Allocation::export`]) and an event ([`Event::handle`]), another
//! opens both ([`Mapping::open`], [`Event::open`]) and has its stream wait for the event before it reads or writes, or for a
//! number in memory that both map ([`Value`]). Nothing goes through the host but what is asked to. docs/design/decisions/0010-cuda.md says why the driver's API and what its rules on
//! memory of other processes cost.
//!
//! Every function may be called on any thread and leaves that thread's current device as it was.

mod capture;
mod code_folder;
mod compiler;
mod device;
mod driver;
mod error;
mod handle;
mod held;
mod in_use;
mod kernel;
mod memory;
mod nvml;
mod pool;
mod stream;
mod value;

use std::sync::LazyLock;

pub use capture::{Alone, Beside, alone, beside_captures};
pub use code_folder::CodeFolder;
pub use device::Device;
pub use driver::driver_version;
pub use error::CudaError;
pub use handle::IpcHandle;
pub use held::{By, Held, Who, serve};
pub use in_use::{InUse, library_uses_devices};
pub use kernel::{Kernel, Kernels};
pub use memory::{Allocation, Mapping, Memory, Pinned, Span};
pub use nvml::NvmlError;
pub use pool::Pool;
pub use stream::{Event, Stream};
pub use value::{HostMemory, PageLocked, Value};

/// Test-only: device memory is that of the stand-in for the driver, which the host can read, and what runs on a device runs
/// on the CPU.
pub fn on_host() -> bool {
    static SET: LazyLock<bool> = LazyLock::new(|| std::env::var_os("RUST_ORT_TEST_CUDA_ON_HOST").is_some());
    *SET
}
