//! Which values of a half-precision part to keep in float32, so that its outputs are within tolerance.
//!
//! What an output should be is told by the same model in float64. What a rounding contributes is found by making it alone
//! while nothing else is rounded: roundings are independent, so that squares of their effects add up to the squared error
//! of the output; projecting effects on the error would find nothing, for in a run that has drifted the same value is
//! rounded another way. Kept are as few as possible of those that contribute most.

mod answer;
mod board;
mod error;
mod groups;
mod judge;
mod rank;
mod search;
mod subject;

pub use answer::{Answer, Culprit, Found, Output, SCHEMA};
pub use error::KeepError;
pub use groups::By;
pub use judge::{Judged, Limit};
pub use search::{Progress, Settings, Strategy, search, verify};
pub use subject::{Call, Subject, Told};
