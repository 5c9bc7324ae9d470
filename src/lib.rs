//! Run PyTorch graphs on ONNX Runtime behind a daemon, dump them and compare them with eager.
//!
//! The data's way: link → daemon → executor → runtime → compare → dump. A room uses rooms further up this list, and
//! itself; no two files need each other. `tests/layering.rs` holds that, docs/design/architecture.md draws it.

// names, files, locks, limits
pub mod base;
// walls around a process
pub mod confine;
// dtypes, shapes, tensors
pub mod tensor;
// NVIDIA's driver
pub mod cuda;
// models
pub mod onnx;
// frames and messages
pub mod protocol;
// metrics and verdicts
pub mod compare;
// memory shared between processes
pub mod shm;
// the way between two processes
pub mod link;
// what computes
pub mod runtime;
// the process that holds a runtime
pub mod executor;
// graphs and tensors on disk
pub mod dump;
// dumping and comparing while it runs
pub mod observe;
// which node, kernel or optimizer is to blame
pub mod blame;
// what to keep in float32
pub mod keep;
// numerical studies
pub mod study;
// a client of the daemon, for the command line
pub mod client;
// the service
pub mod daemon;
// subcommands
pub mod cli;
