//! Why a node failed.

use std::any::Any;

use tch::TchError;

use crate::onnx::OnnxError;
use crate::runtime::RuntimeError;
use crate::runtime::error::OUT_OF_BOUNDS;

/// Why a node failed; which node it was is known where nodes are run.
#[derive(Debug)]
pub(super) enum Failure {
    /// What libtorch, or the operator, said.
    Said(String),
    /// An element of an index, as given, that is not in -size..size.
    Index {
        /// The element.
        index: i64,
        /// Of the dimension.
        size: i64,
    },
    /// A node of its body failed, which the error names; or the run was stopped.
    Inside(RuntimeError),
}

impl Failure {
    /// Of a panic. tch 0.26 frees a Scalar before it reads libtorch's error, and panics of that error: so do all kernels
    /// that take a number and fail.
    pub(super) fn of_panic(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("its kernel panicked");
        let said = text.split_once("Torch(\"").map_or(text, |(_, said)| said);
        Self::Said(said.split("\\n").next().unwrap_or_default().replace("\\\"", "\""))
    }

    /// Of a node. Errors of runs are BadIndex, BadOperand and RunFailed, which name it.
    pub(super) fn of_node(self, node: &str, operator: &str) -> RuntimeError {
        let named = |reason: String| format!("running {operator} node. Name:'{node}' Status Message: {reason}");
        match self {
            Self::Inside(error) => error,
            Self::Index { index, size } => {
                let range = format!("must be within the inclusive range [{},{}]", -size, size - 1);
                RuntimeError::run_failed(named(format!("{OUT_OF_BOUNDS}{index} {range}")))
            }
            Self::Said(reason) if reason.contains("ZeroDivisionError") => {
                RuntimeError::run_failed(named("Integer division by zero".to_owned()))
            }
            Self::Said(reason) => RuntimeError::RunFailed {
                reason: format!("{operator} of node {node:?}: {reason}"),
                node: node.to_owned(),
            },
        }
    }

    /// What went wrong.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Said(reason) => reason.clone(),
            Self::Index { index, size } => format!("index {index} of a dimension of {size}"),
            Self::Inside(error) => error.to_string(),
        }
    }

    /// libtorch has no kernel of the element type.
    pub(super) fn lacks_kernel(&self) -> bool {
        matches!(self, Self::Said(reason) if reason.contains("not implemented for"))
    }
}

impl From<TchError> for Failure {
    fn from(error: TchError) -> Self {
        let text = match error {
            TchError::Torch(text) => text,
            other => other.to_string(),
        };
        // The lines after it are where in libtorch.
        Self::Said(text.lines().next().unwrap_or_default().to_owned())
    }
}

impl From<OnnxError> for Failure {
    fn from(error: OnnxError) -> Self {
        Self::Said(error.to_string())
    }
}

/// An error in words.
pub(super) fn fail<T>(reason: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Said(reason.into()))
}
