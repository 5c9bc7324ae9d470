//! Why a study could not be made.

use displaydoc::Display;
use thiserror::Error;

use crate::blame::BlameError;
use crate::onnx::OnnxError;
use crate::runtime::{FeedsError, RuntimeError};
use crate::tensor::{BadShape, BadTensor};

/// Why a study could not be made.
#[derive(Debug, Display, Error)]
pub enum StudyError {
    /// {0}
    Runtime(#[from] RuntimeError),
    /// {0}
    Feeds(#[from] FeedsError),
    /// {0}
    Onnx(#[from] OnnxError),
    /// {0}
    Tensor(#[from] BadTensor),
    /// {0}
    Shape(#[from] BadShape),
    /// blame: {0}
    Blame(#[from] BlameError),
    /// {what}: the runtime gave {got} outputs, expected {expected}
    Outputs {
        /// The model.
        what: &'static str,
        /// Of the model.
        expected: usize,
        /// Given.
        got: usize,
    },
}
