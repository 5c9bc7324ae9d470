//! What computes: a runtime, to the rest ([`Runtime`], [`Session`], [`BoundCall`]), ONNX Runtime behind it ([`ort`]), and
//! with the feature `torch` libtorch (`torch`).

mod error;
mod feeds;
mod model;
pub mod ort;
pub mod precision;
mod stop;
#[cfg(feature = "torch")]
pub mod torch;
mod traits;

pub use error::RuntimeError;
pub use feeds::{FeedsError, leased};
pub use model::{Constant, Model, ModelOutline};
pub use stop::{StopToken, Terminate};
use traits::check_values;
pub use traits::{BoundCall, Runtime, Session};
