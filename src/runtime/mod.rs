//! What computes: a runtime, to the rest ([`Runtime`], [`Session`], [`BoundCall`]), ONNX Runtime behind it ([`ort`]), and
//! with the feature `torch` libtorch (`torch`). A part's session ([`session`]) may be divided among them (`mixed/`).

mod error;
mod feeds;
mod mixed;
mod model;
pub mod ort;
mod parts;
pub mod precision;
mod shared_process;
mod stop;
#[cfg(feature = "torch")]
pub mod torch;
mod traits;
mod types;

pub use error::RuntimeError;
pub use feeds::{FeedsError, leased};
pub use mixed::divide;
pub use model::{Constant, Model, ModelOutline};
pub use parts::{session, session_with};
pub use shared_process::with_libtorch;
pub use stop::{StopToken, Terminate};
pub use traits::{BoundCall, Runtime, Session};
