//! Why nothing could be searched.

use displaydoc::Display;
use thiserror::Error;

use crate::onnx::OnnxError;
use crate::runtime::{FeedsError, RuntimeError};

/// Why a search, or one run of it, could not be made.
#[derive(Debug, Display, Error)]
pub enum KeepError {
    /// {0}
    Onnx(#[from] OnnxError),
    /// {0}
    Runtime(#[from] RuntimeError),
    /// {0}
    Feeds(#[from] FeedsError),
    /// the runtime gave {got} outputs, expected {expected}
    Outputs {
        /// Asked for.
        expected: usize,
        /// Given.
        got: usize,
    },
    /// the budget of seconds is used up
    Budget,
}
