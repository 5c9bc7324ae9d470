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
    /// An element of an index is beyond its dimension.
    #[error("index {}is out of bounds: {reason}", index.map(|index| format!("{index} ")).unwrap_or_default())]
    BadIndex {
        /// As the caller gave it, where the runtime said so.
        index: Option<i64>,
        /// What the runtime said.
        reason: String,
        /// The node that refused it, where the runtime said so.
        node: String,
    },
    /// The client of the call is gone.
    #[error("run ended: its client is gone")]
    Stopped,
}

impl RuntimeError {
    /// A failed run; finds in the runtime's text the node's name, and whether an index was refused.
    pub(super) fn run_failed(reason: String) -> Self {
        // "Non-zero status code returned while running Add node. Name:'add_1' Status Message: ..."
        let node = reason.split_once("Name:'").and_then(|(_, rest)| rest.split_once('\'')).map_or("", |(name, _)| name);
        let node = node.to_owned();
        match refused_index(&reason) {
            Some(index) => Self::BadIndex { index, node, reason },
            None => Self::RunFailed { node, reason },
        }
    }

    fn kind_and_code(&self) -> (ErrorKind, ErrorCode) {
        use ErrorKind::{Client, Fault};
        match self {
            Self::RuntimeMissing { .. } => (Client, ErrorCode::RuntimeMissing),
            Self::LoadedAlready { .. } => (Fault, ErrorCode::BadState),
            Self::BadModel { .. } | Self::UnsupportedValue { .. } => (Client, ErrorCode::BadModel),
            Self::UnknownProvider { .. } | Self::BadOption { .. } => (Client, ErrorCode::BadOption),
            Self::ValueCount { .. } | Self::BadValue { .. } => (Client, ErrorCode::BadTensor),
            Self::BadIndex { .. } => (Client, ErrorCode::BadIndex),
            Self::RunFailed { .. } | Self::Stopped => (Fault, ErrorCode::RunFailed),
        }
    }
}

/// What the exporter adds to negative indices that torch refuses (`export/rules/indexing.py`): out of every range.
const BELOW: i64 = -(1 << 62);
/// Where it sends an element of a flat tensor for an index that is refused (`export/rules/scattering.py`), about.
const FAR: i64 = 1 << 58;

/// The index that a kernel refused, as the caller gave it: outside None, where it was something else that failed;
/// inside None, where the text does not tell.
fn refused_index(reason: &str) -> Option<Option<i64>> {
    let told = [
        "indices element out of data bounds, idx=",
        "invalid indice found, indice = ",
        "invalid index found, index = ",
    ];
    if let Some((_, rest)) = told.iter().find_map(|&before| reason.split_once(before)) {
        let end = rest.find(|c: char| c != '-' && !c.is_ascii_digit()).unwrap_or(rest.len());
        let index: Option<i64> = rest[..end].parse().ok();
        let given = index.map(|index| if index < BELOW / 2 { index - BELOW } else { index });
        return Some(given.filter(|index| index.abs() < FAR / 2));
    }
    reason.contains("Out of range value in index tensor").then_some(None)
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
        let node = match error {
            RuntimeError::RunFailed { node, .. } | RuntimeError::BadIndex { node, .. } => node,
            _ => String::new(),
        };
        WireError { node, ..WireError::new(kind, code, message) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_index_is_the_callers_mistake_and_named_as_given() {
        let failed =
            |text: &str| RuntimeError::run_failed(format!("running Gather node. Name:'take' Status Message: {text}"));
        for (text, expected) in [
            ("indices element out of data bounds, idx=7 must be within the inclusive range [-5,4]", "index 7 is"),
            ("indices element out of data bounds, idx=-4611686018427387907 must be within [-5,4]", "index -3 is"),
            ("invalid indice found, indice = -8", "index -8 is"),
            ("indices element out of data bounds, idx=288230376151711740 must be within [-20,19]", "index is"),
            ("GatherElements op: Out of range value in index tensor", "index is"),
        ] {
            let error = WireError::from(failed(text));
            assert_eq!((error.kind, error.code, error.node.as_str()), (ErrorKind::Client, ErrorCode::BadIndex, "take"));
            assert!(error.message.starts_with(expected), "{}", error.message);
        }
        assert!(matches!(failed("out of memory"), RuntimeError::RunFailed { .. }));
    }
}
