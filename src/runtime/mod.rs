//! What computes: a runtime, to the rest ([`Executor`], [`Session`], [`BoundCall`]), and ONNX Runtime behind it ([`ort`]).

mod error;
mod model;
pub mod ort;
pub mod precision;
mod stop;
mod traits;

pub use error::{ExecutorError, NO_ERROR_CODE};
pub use model::{Model, ModelOutline};
pub use stop::{StopToken, Terminate};
use traits::check_values;
pub use traits::{BoundCall, Executor, Session};
