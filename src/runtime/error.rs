//! Why a runtime could not do as asked.

use std::path::PathBuf;

use thiserror::Error;

use crate::onnx::OnnxError;
use crate::protocol::message::{ErrorCode, ErrorKind, ValueSpec, WireError};
use crate::tensor::TensorDesc;

/// Why a runtime could not do as asked.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RuntimeError {
    /// The library is absent, too old, or not loadable.
    #[error(
        "onnxruntime library {}: {reason}; install onnxruntime 1.25.1 or later in the program's environment \
         (`pip install onnxruntime`) and check that the file exists", library.display()
    )]
    RuntimeMissing {
        /// Its path.
        library: PathBuf,
        /// What the loader said.
        reason: String,
    },
    /// The runtime is loaded once a process.
    #[error("onnxruntime is loaded already from {}; a process loads it once", library.display())]
    LoadedAlready {
        /// The path asked for now.
        library: PathBuf,
    },
    /// The runtime refuses the model.
    #[error("model: {reason}")]
    BadModel {
        /// What it said.
        reason: String,
    },
    /// An execution provider that the library does not have.
    #[error("execution provider {name:?} is not in this onnxruntime library; it has {}", available.join(", "))]
    UnknownProvider {
        /// As asked for.
        name: String,
        /// What there is.
        available: Vec<String>,
    },
    /// An option that the runtime refuses.
    #[error("option {name:?}: {reason}")]
    BadOption {
        /// Its name.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// An input or output that is no tensor of a type torch has.
    #[error(
        "{kind} {name:?} of the model is {declared}: expected a tensor of a type that torch has; leave it to eager"
    )]
    UnsupportedValue {
        /// "input" or "output".
        kind: &'static str,
        /// Its name.
        name: String,
        /// Its type.
        declared: String,
    },
    /// The call has another number of tensors than the model.
    #[error("the call has {got} {kind}s: the model has {expected}")]
    ValueCount {
        /// "input" or "output".
        kind: &'static str,
        /// Of the model.
        expected: usize,
        /// Of the call.
        got: usize,
    },
    /// A tensor is not what the model declares.
    #[error("{kind} {expected}: got {got}; make the part for these types and shapes")]
    BadValue {
        /// "input" or "output".
        kind: &'static str,
        /// As declared.
        expected: ValueSpec,
        /// As called.
        got: TensorDesc,
    },
    /// The run failed inside the runtime.
    #[error("run failed: {reason}")]
    RunFailed {
        /// What it said.
        reason: String,
        /// The node that failed, where it said so.
        node: String,
    },
    /// The client of the call is gone.
    #[error("run ended: its client is gone")]
    Stopped,
}

impl RuntimeError {
    /// A failed run; finds the node's name in the runtime's text.
    pub(super) fn run_failed(reason: String) -> Self {
        // "Non-zero status code returned while running Add node. Name:'add_1' Status Message: ..."
        let node = reason.split_once("Name:'").and_then(|(_, rest)| rest.split_once('\'')).map_or("", |(name, _)| name);
        Self::RunFailed { node: node.to_owned(), reason }
    }

    fn kind_and_code(&self) -> (ErrorKind, ErrorCode) {
        use ErrorKind::{Client, Fault};
        match self {
            Self::RuntimeMissing { .. } => (Client, ErrorCode::RuntimeMissing),
            Self::LoadedAlready { .. } => (Fault, ErrorCode::BadState),
            Self::BadModel { .. } | Self::UnsupportedValue { .. } => (Client, ErrorCode::BadModel),
            Self::UnknownProvider { .. } | Self::BadOption { .. } => (Client, ErrorCode::BadOption),
            Self::ValueCount { .. } | Self::BadValue { .. } => (Client, ErrorCode::BadTensor),
            Self::RunFailed { .. } | Self::Stopped => (Fault, ErrorCode::RunFailed),
        }
    }
}

impl From<OnnxError> for RuntimeError {
    fn from(error: OnnxError) -> Self {
        let reason = match error {
            // BadModel says "model:" itself.
            OnnxError::Decode { source, .. } => format!("no ModelProto: {source}"),
            other => other.to_string(),
        };
        Self::BadModel { reason }
    }
}

impl From<RuntimeError> for WireError {
    fn from(error: RuntimeError) -> Self {
        let (kind, code) = error.kind_and_code();
        let message = error.to_string();
        let node = if let RuntimeError::RunFailed { node, .. } = error { node } else { String::new() };
        WireError { node, ..WireError::new(kind, code, message) }
    }
}
