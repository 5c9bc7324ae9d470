//! What a node's own error is.

use serde::{Deserialize, Serialize};

/// What a node's own error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Own {
    /// More than rounding explains.
    Wrong,
    /// Another result each time, or right with other numbers of threads: never blamed.
    Jitter,
    /// Rounding.
    Noise,
    /// Another result than eager's, such as one of two equal choices, that the comparison of nodes found as right: never
    /// blamed.
    AsRight,
    /// More than its tolerance, and float64 does not tell element by element whether that is rounding: not blamed.
    Unsettled,
}
