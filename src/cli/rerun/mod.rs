//! What was dumped, to be run again in this process: for `replay` and `blame`.

mod arguments;
mod idle;
mod rules;
mod runtime;
mod target;
mod trust;
mod walls;

use super::exit::Failure;

pub(super) use arguments::{Arguments, Which};
pub(super) use idle::refuse_idle;
pub(super) use rules::text_of;
pub(super) use runtime::{Divided, Model, Ran, Runtime};
pub(super) use target::{RAN_WITH_FILE, Target, of_libtorch, tensors, whole};
pub(super) use walls::{around_libraries, explained};

/// The data sets that were asked for, to be run. Errors: there is none, or none of that step; what tells of them is damaged;
/// what they ran with cannot be confined, and nobody but the dump asks for it.
pub(super) fn find(args: &Arguments) -> Result<Vec<Target>, Failure> {
    let targets = target::find(args)?;
    walls::refuse_unconfined(args, &targets)?;
    Ok(targets)
}
