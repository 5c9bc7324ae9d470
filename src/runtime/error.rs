//! Why a runtime could not do as asked.

use std::path::PathBuf;

use thiserror::Error;

use crate::base::bytes::Bytes;
use crate::base::ids::DeviceUuid;
use crate::base::memory;
use crate::cuda::{CudaError, Held, Stream};
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
    /// libtorch is of another torch than this program was made for.
    #[error("libtorch {}: {reason}", library.display())]
    LibtorchMissing {
        /// Its path.
        library: PathBuf,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// A rule gives nodes to a runtime that is not in this process.
    #[error(
        "runtimes: a rule gives node {node:?} to {runtime}, and there is no libtorch in this process; use rust-ort-torch, \
         made by `make build-torch`, or leave the rule out"
    )]
    NoLibtorch {
        /// The runtime.
        runtime: &'static str,
        /// The first of them.
        node: String,
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
    /// Tensors on a device, and a library for the CPU.
    #[error(
        "the tensors are on {device}, and this onnxruntime library has no CUDAExecutionProvider (it has {}); install \
         onnxruntime-gpu in the place of onnxruntime (`pip uninstall onnxruntime; pip install onnxruntime-gpu`), of the \
         CUDA version that torch has", available.join(", ")
    )]
    NoCuda {
        /// Where they are.
        device: DeviceUuid,
        /// What there is.
        available: Vec<String>,
    },
    /// A call on a device, over a lane that nothing orders.
    #[error("a call on {device} came over a lane without what orders it; send OpenSlot or OpenLaneEvents first")]
    NotOrdered {
        /// The device.
        device: DeviceUuid,
    },
    /// What CUDA refuses.
    #[error("{0}")]
    Cuda(#[from] CudaError),
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
        /// Names and types of others that are none either, as far as is known.
        others: Vec<(String, String)>,
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
    /// Elements that the operator refuses, as eager does.
    #[error("{what}: {reason}")]
    BadOperand {
        /// In eager's words where it has some.
        what: &'static str,
        /// What the runtime said.
        reason: String,
        /// The node that refused it, where the runtime said so.
        node: String,
    },
    /// There is not as much memory as the run needs.
    #[error("not enough memory: {reason}; make the tensors of the call smaller")]
    OutOfMemory {
        /// What the runtime asked for, and what there is.
        reason: String,
        /// The node that asked for it, where the runtime said so.
        node: String,
    },
    /// The run went well, and an output's memory is as it was before.
    #[error(
        "onnxruntime did not write output {output:?}: its optimizers took the node away that gives it, or an operator of \
         custom_op_libraries wrote nothing; ort_optimization=\"disable\" tells which, and a dump holds the model"
    )]
    NotWritten {
        /// Its name in the model.
        output: String,
    },
    /// The client of the call is gone, or does not wait for it any more, or the daemon between them went away.
    #[error("run ended: the daemon is gone, or the client, or it waits no more; the next call finds another")]
    Stopped,
}

impl RuntimeError {
    /// A failed run; finds in the runtime's text the node's name, and whether it was the caller's values that were refused.
    pub(super) fn run_failed(reason: String) -> Self {
        // "Non-zero status code returned while running Add node. Name:'add_1' Status Message: ..."
        let node = reason.split_once("Name:'").and_then(|(_, rest)| rest.split_once('\'')).map_or("", |(name, _)| name);
        let node = node.to_owned();
        if let Some(index) = refused_index(&reason) {
            return Self::BadIndex { index, node, reason };
        }
        match REFUSED_OPERANDS.iter().find(|(told, _)| reason.contains(told)) {
            Some(&(_, what)) => Self::BadOperand { what, node, reason },
            None if is_want_of_memory(&reason) => Self::OutOfMemory { node, reason },
            None => Self::RunFailed { node, reason },
        }
    }

    /// With what memory the stream's device has, and who holds the rest, or what the machine has, where a run failed, or a
    /// session could not be made, for want of it.
    pub(super) fn with_memory(self, stream: Option<&Stream>) -> Self {
        let (node, reason) = match &self {
            Self::OutOfMemory { node, reason } => (node.clone(), reason),
            Self::BadModel { reason } if is_want_of_memory(reason) && stream.is_some() => (String::new(), reason),
            _ => return self,
        };
        let Some(device) = stream.map(Stream::device) else {
            let available =
                memory::available().map_or_else(String::new, |there| format!("; {} are available", Bytes(there)));
            // Without the place in its sources where ONNX Runtime said it.
            let told = reason.find(WANT_OF_MEMORY[0]).map_or(&**reason, |at| &reason[at..]);
            return Self::OutOfMemory { node, reason: format!("{}{available}", told.trim_end()) };
        };
        let Ok((free, total)) = device.memory() else { return self };
        let reason = format!(
            "{reason}; {} of {} of {} are free; {}; torch's cache (torch.cuda.empty_cache()) is the client's, and sessions are \
             the executor's (option providers: gpu_mem_limit)",
            Bytes(free),
            Bytes(total),
            device.name(),
            Held::now(device.uuid())
        );
        Self::OutOfMemory { node, reason }
    }

    fn kind_and_code(&self) -> (ErrorKind, ErrorCode) {
        use ErrorKind::{Client, Fault};
        match self {
            Self::RuntimeMissing { .. }
            | Self::LibtorchMissing { .. }
            | Self::NoLibtorch { .. }
            | Self::NoCuda { .. } => (Client, ErrorCode::RuntimeMissing),
            Self::Cuda(error) => {
                let WireError { kind, code, .. } = error.clone().into();
                (kind, code)
            }
            Self::LoadedAlready { .. } => (Fault, ErrorCode::BadState),
            Self::NotOrdered { .. } => (Client, ErrorCode::BadState),
            Self::BadModel { .. } | Self::UnsupportedValue { .. } => (Client, ErrorCode::BadModel),
            Self::UnknownProvider { .. } | Self::BadOption { .. } => (Client, ErrorCode::BadOption),
            Self::ValueCount { .. } | Self::BadValue { .. } => (Client, ErrorCode::BadTensor),
            Self::BadIndex { .. } => (Client, ErrorCode::BadIndex),
            Self::BadOperand { .. } => (Client, ErrorCode::BadOperand),
            Self::OutOfMemory { .. } => (Fault, ErrorCode::OutOfMemory),
            Self::RunFailed { .. } | Self::NotWritten { .. } => (Fault, ErrorCode::RunFailed),
            // A client that reads it did not stop it: its daemon went away while it waited.
            Self::Stopped => (Fault, ErrorCode::ExecutorLost),
        }
    }
}

/// What the exporter adds to negative indices that torch refuses (`export/rules/indexing.py`): out of every range.
const BELOW: i64 = -(1 << 62);
/// Where it sends an element of a flat tensor for an index that is refused (`export/rules/scattering.py`), about.
const FAR: i64 = 1 << 58;

/// What ONNX Runtime's kernels, and ours, say before an index that is outside of a tensor.
pub(super) const OUT_OF_BOUNDS: &str = "indices element out of data bounds, idx=";

/// The index that a kernel refused, as the caller gave it: outside None, where it was something else that failed;
/// inside None, where the text does not tell.
fn refused_index(reason: &str) -> Option<Option<i64>> {
    let told = [OUT_OF_BOUNDS, "invalid indice found, indice = ", "invalid index found, index = "];
    if let Some((_, rest)) = told.iter().find_map(|&before| reason.split_once(before)) {
        let end = rest.find(|c: char| c != '-' && !c.is_ascii_digit()).unwrap_or(rest.len());
        let index: Option<i64> = rest[..end].parse().ok();
        let given = index.map(|index| if index < BELOW / 2 { index - BELOW } else { index });
        return Some(given.filter(|index| index.abs() < FAR / 2));
    }
    reason.contains("Out of range value in index tensor").then_some(None)
}

const UNFIT: &str = "there are not as many values as places for them";

/// (what a kernel says, what is said of it). Shapes that a model states are checked when its session is made, so a shape
/// that ScatterND or Expand refuses in a run is one that the values made: of a mask, of indices.
const REFUSED_OPERANDS: [(&str, &str); 4] = [
    ("Integer division by zero", "ZeroDivisionError: an integer is divided by zero"),
    ("Integer modulo by zero", "ZeroDivisionError: an integer is divided by zero"),
    ("updates tensor should have shape equal to", UNFIT),
    ("invalid expand shape", UNFIT),
];

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
            RuntimeError::RunFailed { node, .. }
            | RuntimeError::OutOfMemory { node, .. }
            | RuntimeError::BadIndex { node, .. }
            | RuntimeError::BadOperand { node, .. } => node,
            RuntimeError::NotWritten { output } => output,
            _ => String::new(),
        };
        WireError { node, ..WireError::new(kind, code, message) }
    }
}

/// "Failed to allocate memory for requested buffer of size 1073741824", or CUDA's own words.
fn is_want_of_memory(reason: &str) -> bool {
    WANT_OF_MEMORY.iter().any(|told| reason.contains(told))
}

const WANT_OF_MEMORY: [&str; 3] = ["Failed to allocate memory", "out of memory", "std::bad_alloc"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_values_are_the_callers_mistake_and_named_as_given() {
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
        for (text, expected) in [
            ("element_wise_ops.cc:692 Compute Integer division by zero", "ZeroDivisionError: an integer is"),
            ("element_wise_ops.cc:2256 operator() Integer modulo by zero", "ZeroDivisionError: an integer is"),
            ("updates tensor should have shape equal to indices.shape[:-1] + ...", UNFIT),
            ("invalid expand shape", UNFIT),
        ] {
            let error = WireError::from(failed(text));
            let kind = (error.kind, error.code, error.node.as_str());
            assert_eq!(kind, (ErrorKind::Client, ErrorCode::BadOperand, "take"));
            assert!(error.message.starts_with(expected), "{}", error.message);
        }
        assert!(matches!(failed("out of patience"), RuntimeError::RunFailed { .. }));
    }

    #[test]
    fn want_of_memory_is_known_by_what_the_runtime_says() {
        let said =
            "bfc_arena.cc:376 AllocateRawInternal Failed to allocate memory for requested buffer of size 1073741824";
        assert!(is_want_of_memory(said));
        assert!(is_want_of_memory("CUDA failure 2: out of memory ; GPU=0 ; expr=cudaMalloc"));
        assert!(!is_want_of_memory("Type Error: Type 'tensor(int64)' of input parameter (x) is invalid"));
        let error = WireError::from(RuntimeError::run_failed(said.to_owned()).with_memory(None));
        assert_eq!((error.kind, error.code), (ErrorKind::Fault, ErrorCode::OutOfMemory));
        assert!(error.message.starts_with("not enough memory: Failed to allocate"), "{}", error.message);
        assert!(error.message.contains("are available; make the tensors"), "{}", error.message);
        let bad = RuntimeError::BadModel { reason: said.to_owned() };
        assert_eq!(bad.clone().with_memory(None), bad, "what a session lacks on the host, eager may have");
    }
}
