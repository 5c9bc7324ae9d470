//! Why an examination could not be made.

use displaydoc::Display;
use thiserror::Error;

use crate::base::ids::ValueName;
use crate::dump::DumpError;
use crate::onnx::OnnxError;
use crate::runtime::{FeedsError, RuntimeError};

/// Why an examination, or one probe of it, could not be made.
#[derive(Debug, Display, Error)]
pub enum BlameError {
    /// {0}
    Onnx(#[from] OnnxError),
    /// {0}
    Dump(#[from] DumpError),
    /// {0}
    Runtime(#[from] RuntimeError),
    /// {0}
    Feeds(#[from] FeedsError),
    /// eager's value of {name:?} was not dumped; dump with compare="nodes" and dump_values=True
    NoValue {
        /// Of the value.
        name: ValueName,
    },
    /// the runtime gave {got} outputs, expected {expected}
    Outputs {
        /// Asked for.
        expected: usize,
        /// Given.
        got: usize,
    },
    /// no output is called {name:?}; there are {known}
    UnknownOutput {
        /// As asked for.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// the budget of seconds is used up
    Budget,
}
