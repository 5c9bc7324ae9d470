//! What was dumped, to be run again in this process: for `replay` and `blame`.

mod arguments;
mod runtime;
mod target;

pub(super) use arguments::{Arguments, Which};
pub(super) use runtime::{Model, Ran, Runtime};
pub(super) use target::{Target, find, tensors};
