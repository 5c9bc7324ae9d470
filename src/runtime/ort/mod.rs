//! ONNX Runtime, loaded from the client's own wheel.
//!
//! The C API is called directly where a call is bound and run: `ort` 2.0.0-rc.15's safe `IoBinding::bind_input` deadlocks
//! on borrowed tensors, its `Session::run` takes `&mut self` though the runtime allows concurrent runs, and costs twice as
//! much for a small model.
#![allow(unsafe_code)]

mod call;
mod device_kernels;
mod device_memory;
mod devices;
mod graphs;
mod host_memory;
mod kernels;
mod libraries;
mod libtorch;
mod missing;
mod operators;
mod options;
mod placement;
mod raw;
mod region_probe;
mod runtime;
mod session;

pub use libraries::custom_op_library;
pub use options::{
    ALLOWED_OPTIMIZERS, OPTIMIZERS, THREADS, ThreadPool, WRONG_OPTIMIZERS, provider_options, runtime_config,
};
pub use region_probe::{ProbedRegion, probe_regions};
pub use runtime::OrtRuntime;
