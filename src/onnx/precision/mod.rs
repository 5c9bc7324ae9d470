//! Half precision for a runtime without arithmetic of it.

mod casts;
mod double;
mod elements;
mod mention;
#[cfg(test)]
mod tests;
mod typed;
mod widen;

pub use double::double;
pub(super) use elements::{attribute, is};
pub use mention::mentions;
pub use typed::for_each_typed;
pub(super) use typed::of_values as element_types;
pub use widen::{widen, widen_around_attention};
