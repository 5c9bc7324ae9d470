//! libtorch as a runtime: a model's graph, node by node, with libtorch's kernels.
//!
//! Nothing is fused, reordered or folded but Constant nodes: each node's result is what libtorch's kernel of ONNX's
//! meaning gives of its inputs, so that a model that ONNX Runtime runs otherwise can be asked about by node. What an
//! operator means is in `operators/`, one family a file. With [`Precision::Float64`] every float is computed in float64.

mod beside_ort;
mod call;
mod failure;
mod functions;
mod operators;
mod plan;
mod run;
mod runtime;
mod session;
mod types;
mod value;

pub use beside_ort::beside;
pub use functions::linear;
pub use runtime::TorchRuntime;
pub use session::TorchSession;
pub use value::Precision;
