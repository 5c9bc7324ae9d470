//! libtorch's kernels of attention on CUDA, inside the process that ONNX Runtime computes in.
//!
//! What is called is the C interface that torch's own compiled models use (AOTInductor's): functions that take handles,
//! return a code instead of throwing, and keep their signatures from version to version. [`library`] has the table of them,
//! [`tensor`] what handles are, [`attention`] the kernels.

mod attention;
mod library;
mod tensor;

pub(super) use attention::{Backward, Forward, Kernel, Scores, backward, forward};
pub(super) use library::{Element, Libtorch};
pub(super) use tensor::{Device, Layout, Tensor};
