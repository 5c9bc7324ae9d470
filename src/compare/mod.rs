//! How a candidate differs from its reference: metrics, tolerances, verdicts, and the alignment of two lists of results.
//!
//! Words: `reference` is what eager gave, `candidate` what ONNX Runtime gave. Everything here is pure: tensors in,
//! facts out. The rule and the reasons for its numbers are in `docs/design/decisions/0002-tolerance.md`.

mod alignment;
mod birth;
mod block;
mod blocks;
mod device;
mod digits;
mod distribution;
mod element;
mod metrics;
mod noise;
pub(crate) mod number;
mod pair;
mod policy;
mod range;
mod rounding;
mod scalar;
mod signature;
#[allow(unsafe_code)]
mod simd;
mod stats;
mod sums;
#[cfg(test)]
mod tests;
mod tolerance;
mod verdict;
mod wanted;

pub use alignment::{Alignment, Dim, Kind, RunResult, align, distance};
pub use birth::{Birth, BirthKind, ReadValue, Side};
pub use device::{DeviceMeter, DevicePair};
pub use digits::{distance as distance_text, elements, few, significant};
pub use distribution::{Distribution, QUANTILES, Values, distribution};
pub use metrics::{Element, MaxDiff, Measured, Metrics};
pub use noise::{Errors, Excused, Explained, Noise, NoiseKind, NoiseSummary, Spread};
pub use pair::{Compared, Exact, Pair};
pub use policy::Policy;
pub use range::{Range, largest_of};
pub use rounding::Rounding;
pub use signature::{signature, signatures};
pub use stats::{ABOVE, Counts, Required};
pub use sums::judge_sums;
pub use tolerance::{BadTolerance, Tolerance};
pub use verdict::{Summary, TensorVerdict, Verdict, comparable, judge, judge_measured, summary};
pub use wanted::Wanted;
