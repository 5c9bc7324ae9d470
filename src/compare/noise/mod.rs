//! How near two results are to the exact one: whether they differ by no more than their type's own noise.

mod errors;
mod excused;
mod kind;
mod measure;
#[cfg(test)]
mod tests;

pub use errors::{Errors, Noise, Spread};
pub use excused::Excused;
pub use kind::{NoiseKind, NoiseSummary};
pub use measure::Explained;
pub(super) use measure::Scales;
