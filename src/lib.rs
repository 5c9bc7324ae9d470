//! Run PyTorch graphs on ONNX Runtime behind a daemon, dump them and compare them with eager.
//!
//! The data's way: connection → protocol → session → executor → compare → dump → report. A module may use modules of a
//! smaller level only (the list below goes from level 0 upwards); `tests/layering.rs` holds that.

// level 0
pub mod footprint;
pub mod ids;
// level 1
pub mod tensor;
// level 2
pub mod compare;
pub mod onnx;
pub mod protocol;
pub mod shm;
// level 3
pub mod executor;
// level 4
pub mod dump;
pub mod plans;
pub mod session;
// level 5
pub mod nodes;
pub mod step;
pub mod worker;
// level 6
pub mod daemon;
// level 7
pub mod cli;
