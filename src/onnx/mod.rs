//! ONNX models: read, write, order, look into, cut.
//!
//! A model may come from anywhere: nothing here panics on a hostile one, and nothing allocates by a number that the
//! model merely claims. What recurses (walks over bodies, types, encoding, dropping) recurses as deep as messages nest:
//! decoding refuses more than 100 levels, and functions put in place may not add more (see [`inline_functions`]).

mod graph;
mod inline;
mod io;
mod isolate;
mod precision;
mod print;
mod tensor;

use std::path::PathBuf;

use thiserror::Error;

pub use graph::{count_nodes, cut, expose_intermediates, order, producers, read_by, sort, value_info};
pub use inline::inline_functions;
pub use io::{decode, footprint, load, read_external, save, save_with_external};
pub use isolate::{Isolator, Piece};
pub use precision::{mentions, widen};
pub use print::{model_text, preview, type_text};
pub use tensor::{NamedTensor, load_tensor, tensor_header, tensor_proto};

/// The messages of `protos/onnx.proto`. `raw_data` is [`bytes::Bytes`]: decoding from `Bytes` copies no tensor.
#[allow(missing_docs, clippy::all)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/onnx.rs"));
}

/// Why a model, or a tensor of one, cannot be read, written or changed as asked.
#[derive(Debug, Error)]
pub enum OnnxError {
    /// The file system said no.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// "read", "write", …
        action: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// The bytes are no protobuf message of the kind expected.
    #[error("{}: {n_bytes} bytes that are no ONNX {expected}: {source}; write the file again", place(path))]
    Decode {
        /// The file, when there is one.
        path: Option<PathBuf>,
        /// "ModelProto" or "TensorProto".
        expected: &'static str,
        /// Bytes given.
        n_bytes: usize,
        /// What prost said.
        source: prost::DecodeError,
    },
    /// The message is more than protobuf readers accept.
    #[error("model of {n_bytes} bytes: protobuf readers accept at most {limit}; save it with external data")]
    TooBig {
        /// Bytes of the encoded model.
        n_bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A model without a graph.
    #[error("the model has no graph; export it again")]
    NoGraph,
    /// A tensor whose fields do not fit together, or whose type torch does not have.
    #[error("tensor {name:?}: {reason}")]
    Tensor {
        /// Its name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A tensor whose elements stand in another file that cannot, or must not, be read.
    #[error("tensor {name:?}: external data {location:?}: {reason}")]
    External {
        /// The tensor.
        name: String,
        /// The file it names.
        location: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A value that a node or an output needs and nothing gives.
    #[error("{user} needs value {value:?}, which no node, input or initializer gives")]
    Undefined {
        /// The node or output.
        user: String,
        /// The value's name.
        value: String,
    },
    /// A value that a piece of a model reads and that nobody feeds.
    #[error("{user} reads value {value:?}, which is not among the feeds; send it as one")]
    NoFeed {
        /// The node or output.
        user: String,
        /// The value's name.
        value: String,
    },
    /// Two nodes (or a node and an input) give the same value.
    #[error("value {value:?} is given twice, the second time by {by}; ONNX values have one producer")]
    Duplicate {
        /// The value's name.
        value: String,
        /// The second producer.
        by: String,
    },
    /// Nodes that wait for each other.
    #[error("the graph has a cycle through {node}")]
    Cycle {
        /// One node of it.
        node: String,
    },
    /// What a node makes of bfloat16 is not known.
    #[error(
        "{node} reads bfloat16, and neither its operator nor the model's value_info tells the element types of all its \
         results; declare them in value_info, or run the model on a provider with bfloat16 arithmetic"
    )]
    ElementType {
        /// The node.
        node: String,
    },
    /// A cast that does not cast one value.
    #[error("{node} has {n_inputs} inputs and {n_outputs} outputs: a cast takes one and gives one; export it again")]
    Arity {
        /// The node.
        node: String,
        /// Its inputs.
        n_inputs: usize,
        /// Its outputs.
        n_outputs: usize,
    },
    /// A model-local function that cannot be put in its caller's place.
    #[error("function {function:?}: {reason}")]
    Inline {
        /// `domain::name`.
        function: String,
        /// Why not.
        reason: String,
    },
}

fn place(path: &Option<PathBuf>) -> String {
    path.as_ref().map_or_else(|| "model".to_owned(), |path| path.display().to_string())
}
