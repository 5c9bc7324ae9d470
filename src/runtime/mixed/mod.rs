//! One part on several runtimes: its model divided by rules into segments of neighbouring nodes, each a model and a session
//! of its own, run one after the other.
//!
//! What goes from one segment to another is a tensor of the type that the model gives it: a value of half precision is
//! rounded there, whatever computes on the other side. ONNX Runtime's segments have every pass that a part has, libtorch's
//! run as exported. Nothing falls back: a rule that asks for a runtime that is not here is an error.

mod build;
mod plan;
mod segment;
mod sequences;
mod session;

pub(super) use build::build;
pub use build::divide;
