//! Why a model cannot be handled as asked.

use std::io;
use std::path::{Path, PathBuf};

/// Why a model, or a tensor of one, cannot be read, written or changed as asked.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub enum OnnxError {
    /// {path}: cannot {action}: {source}
    Io {
        /// The file.
        path: PathBuf,
        /// "read", "write", …
        action: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// {place}: {n_bytes} bytes that are no ONNX {expected}: {source}; write the file again
    Decode {
        /// The file, or "model".
        place: String,
        /// "ModelProto" or "TensorProto".
        expected: &'static str,
        /// Bytes given.
        n_bytes: usize,
        /// What prost said.
        source: prost::DecodeError,
    },
    /// {place}: {n_bytes} bytes would take {needed} decoded, expected at most {limit}: few files are so, and none that we
    /// wrote; look where it comes from
    Expands {
        /// The file.
        place: String,
        /// Its bytes.
        n_bytes: usize,
        /// Of memory, at most.
        needed: usize,
        /// The limit.
        limit: usize,
    },
    /// model of {n_bytes} bytes: protobuf readers accept at most {limit}; save it with external data
    TooBig {
        /// Bytes of the encoded model.
        n_bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// the model has no graph; export it again
    NoGraph,
    /// tensor {name:?}: {reason}
    Tensor {
        /// Its name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// tensor {name:?}: external data {location:?}: {reason}
    External {
        /// The tensor.
        name: String,
        /// The file it names.
        location: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// {user} needs value {value:?}, which no node, input or initializer gives
    Undefined {
        /// The node or output.
        user: String,
        /// The value's name.
        value: String,
    },
    /// {user} reads value {value:?}, which is not among the feeds; send it as one
    NoFeed {
        /// The node or output.
        user: String,
        /// The value's name.
        value: String,
    },
    /// value {value:?} is given twice, the second time by {by}; ONNX values have one producer
    Duplicate {
        /// The value's name.
        value: String,
        /// The second producer.
        by: String,
    },
    /// the graph has a cycle through {node}
    Cycle {
        /// One node of it.
        node: String,
    },
    /// {node} reads half precision, and neither its operator nor the model's value_info tells the element types of all its
    /// results; declare them in value_info, or run the model on a provider with arithmetic of it
    ElementType {
        /// The node.
        node: String,
    },
    /// {node} has {n_inputs} inputs and {n_outputs} outputs: a cast takes one and gives one; export it again
    Arity {
        /// The node.
        node: String,
        /// Its inputs.
        n_inputs: usize,
        /// Its outputs.
        n_outputs: usize,
    },
    /// function {function:?}: {reason}
    Inline {
        /// `domain::name`.
        function: String,
        /// Why not.
        reason: String,
    },
}

impl OnnxError {
    /// What the file system said of a file.
    pub(super) fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), action, source }
    }
}
