//! What was dumped, to be run again in this process: for `replay` and `blame`.

mod arguments;
mod idle;
mod rules;
mod runtime;
mod target;
mod trust;
mod walls;

pub(super) use arguments::{Arguments, Which};
pub(super) use idle::refuse_idle;
pub(super) use rules::text_of;
pub(super) use runtime::{Divided, Model, Ran, Runtime};
pub(super) use target::{RAN_WITH_FILE, Target, find, of_libtorch, tensors, whole};
pub(super) use walls::{around_libraries, explained};
