//! Half precision for a runtime without arithmetic of it.

mod casts;
mod elements;
mod kernels;
mod mention;
mod one_type;
mod scope;
mod switched;
#[cfg(test)]
mod tests;
mod typed;
#[cfg(test)]
mod unrounded_tests;
mod widen;

pub(super) use elements::{attribute, is};
pub use kernels::{MISSING_KERNELS, MissingKernels, around_missing_kernels, refused_operator};
pub use mention::{half_of, mentions};
pub use one_type::{double, single};
pub use switched::{SWITCHES, Switched, switched};
pub(super) use typed::of_values as element_types;
pub use typed::{dtype_of, for_each_typed};
pub use widen::{Attend, Unrounded, Widened, widen, widen_but};
