//! Run PyTorch graphs on ONNX Runtime behind a daemon, dump them and compare them with eager.
//!
//! The data's way: connection → protocol → session → executor → compare → dump → report. A module may use modules of a
//! smaller level only (the list below goes from level 0 upwards); `tests/layering.rs` holds that.

// level 0
pub mod ids;
// level 1
pub mod tensor;
// level 2
pub mod compare;
pub mod onnx;
pub mod protocol;
// level 4
pub mod dump;
// level 7
pub mod cli;
