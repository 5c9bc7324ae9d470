//! Studies of how numbers of one formula differ by runtime, kernel and order, in this program: models, data, results.
//!
//! [`gemm`] and [`layernorm`] are two examples of onnx-diagnostic made again, [`reduction`] is what both quote. Each takes
//! what computes ([`Runtimes`]) and sizes, and gives a result to be printed, written as JSON or drawn ([`plot`]); which of
//! the examples' findings hold here is computed from the numbers ([`Finding`]). Nothing here prints.

pub mod averages;
mod error;
mod finding;
pub mod gemm;
mod graph;
pub mod layernorm;
mod matrix;
mod number;
pub mod plot;
mod random;
pub mod reduction;
mod run;
mod sums;

pub use error::StudyError;
pub use finding::{Finding, Holds, OWN};
pub use matrix::{Errors, Matrix};
pub use number::Number;
pub use random::Random;
pub use run::{Libtorch, Linear, Ran, Runtimes, Setup};
