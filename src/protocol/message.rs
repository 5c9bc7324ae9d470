//! Domain types of requests, replies and errors. No encoding here.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::base::ids::{DeviceUuid, GraphId, PartHandle, SegmentId, ValueName};
use crate::cuda::IpcHandle;
use crate::onnx::Descriptions;
use crate::tensor::{DType, TensorRef};

macro_rules! codes {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $code:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[repr(u32)]
        pub enum $name {
            $($(#[$doc])* $variant = $code,)*
        }

        impl $name {
            /// Every value, in the order of the codes.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            /// The number on the wire.
            pub const fn code(self) -> u32 {
                self as u32
            }

            /// The value with this number; None for 0 and unknown ones.
            pub const fn from_code(code: u32) -> Option<Self> {
                match code {
                    $($code => Some($name::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// Whose error it is (`ErrorKind` of protos/rust_ort.proto).
    ErrorKind {
        /// The caller's mistake: correct the call.
        Client = 1,
        /// The daemon's or the executor's: see the log.
        Fault = 2,
    }
}

codes! {
    /// Stable names for programs (`ErrorCode` of protos/rust_ort.proto).
    ErrorCode {
        /// The peer speaks another version of the protocol.
        ProtocolVersion = 1,
        /// A frame whose header is wrong.
        BadFrame = 2,
        /// A good frame whose body is wrong.
        BadMessage = 3,
        /// A request at the wrong time, such as a run before a lease.
        BadState = 4,
        /// A limit was reached.
        Limit = 5,
        /// A segment that cannot be mapped, or an unknown one.
        BadSegment = 6,
        /// A tensor that is out of its segment, overlaps, or is not what the model expects.
        BadTensor = 7,
        /// A model that ONNX Runtime refuses.
        BadModel = 8,
        /// An option without a meaning.
        BadOption = 9,
        /// A graph or handle that was not registered.
        UnknownGraph = 10,
        /// A graph that killed its executor too often.
        Quarantined = 11,
        /// The onnxruntime library is absent or not loadable.
        RuntimeMissing = 12,
        /// ONNX Runtime failed a run.
        RunFailed = 13,
        /// The executor died.
        ExecutorLost = 14,
        /// A dump could not be written.
        Dump = 15,
        /// A bug of ours.
        Internal = 16,
        /// The operating system or our own rules forbid it.
        Permission = 17,
        /// An index of a tensor's elements beyond its dimension.
        BadIndex = 18,
        /// Elements that an operator refuses, as eager does.
        BadOperand = 19,
        /// There is not as much memory as a call needs.
        OutOfMemory = 20,
    }
}

/// Level of ONNX Runtime's graph optimizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Optimization {
    /// Everything, layout changes included.
    #[default]
    All,
    /// Fusions too.
    Extended,
    /// Semantics-preserving rewrites only: constant folding, elimination.
    Basic,
    /// None, but kernels of ours compute functions of ours.
    Kernels,
    /// None.
    Disable,
}

impl Optimization {
    /// Every level with its name on the wire and in the options.
    pub const NAMES: &'static [(&'static str, Optimization)] = &[
        ("all", Self::All),
        ("extended", Self::Extended),
        ("basic", Self::Basic),
        ("kernels", Self::Kernels),
        ("disable", Self::Disable),
    ];

    /// The level of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|&(_, level)| level)
    }

    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|&&(_, level)| level == self).expect("NAMES has every level").0
    }
}

/// ONNX Runtime's provider that is always there, behind all others.
pub const CPU_PROVIDER: &str = "CPUExecutionProvider";

/// ONNX Runtime's provider for NVIDIA's devices.
pub const CUDA_PROVIDER: &str = "CUDAExecutionProvider";
/// The option of CUDA's provider that asks for CUDA graphs.
pub const CUDA_GRAPHS: &str = "enable_cuda_graph";

/// An execution provider: name and options.
pub type Provider = (String, BTreeMap<String, String>);

/// Everything but the model that decides what a session does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SessionSpec {
    /// In order of preference; empty = CPU.
    pub providers: Vec<Provider>,
    /// Level of the graph optimizer.
    pub optimization: Optimization,
    /// Session config entries.
    pub config: BTreeMap<String, String>,
    /// Names of graph optimizers that stay off, besides those that are known to give wrong values.
    pub disabled_optimizers: Vec<String>,
    /// Where the model's custom operators are.
    pub custom_op_libraries: Vec<CustomOpLibrary>,
    /// Names of rewrites that stay off: what is done to the model before the graph optimizer has it.
    pub disabled_passes: Vec<String>,
    /// Which runtime computes which nodes: the first rule that fits a node decides; none: ONNX Runtime.
    pub runtimes: Vec<RuntimeRule>,
    /// Patterns of values of half precision that are not rounded to it (see [`crate::onnx::select_nodes`]).
    pub keep_float32: Vec<String>,
    /// The device that the CUDA provider runs on, by its stream that calls are ordered by; None: as its options say, and
    /// tensors lie in memory of the host.
    pub device: Option<DeviceUuid>,
}

/// Memory of a device that a client allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSegmentSpec {
    /// Chosen by the client.
    pub segment: SegmentId,
    /// Of the whole allocation.
    pub len_bytes: u64,
    /// Where it is.
    pub device: DeviceUuid,
    /// By which another process maps it.
    pub handle: IpcHandle,
}

/// The events that order the streams of client and executor in a lane's calls on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneEventsSpec {
    /// Index in the lanes segment.
    pub lane: u32,
    /// Whose streams.
    pub device: DeviceUuid,
    /// Recorded by the client before a call, waited for by the executor.
    pub ready: IpcHandle,
    /// Recorded by the executor behind a call's work, waited for by the client.
    pub done: IpcHandle,
}

/// A pair of numbers in the lanes' header page that orders the calls of one stream of the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotSpec {
    /// Chosen by the client, not 0.
    pub slot: u32,
    /// Where its stream is.
    pub device: DeviceUuid,
}

/// What computes a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NodeRuntime {
    /// ONNX Runtime.
    #[default]
    Ort,
    /// libtorch's kernels.
    Torch,
    /// As Torch, every float in float64.
    TorchF64,
}

impl NodeRuntime {
    /// Every runtime with its name on the wire and in the options.
    pub const NAMES: &'static [(&'static str, NodeRuntime)] =
        &[("ort", Self::Ort), ("torch", Self::Torch), ("torch-f64", Self::TorchF64)];

    /// The runtime of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|&(_, runtime)| runtime)
    }

    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|&&(_, runtime)| runtime == self).expect("NAMES has every runtime").0
    }
}

/// Nodes that a runtime computes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RuntimeRule {
    /// The runtime.
    pub runtime: NodeRuntime,
    /// Of the nodes (see [`crate::onnx::select_nodes`]).
    pub patterns: Vec<String>,
}

/// How rules divided a part's model among runtimes; nothing where there are no rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Division {
    /// Nodes by runtime, constants not counted.
    pub nodes: BTreeMap<NodeRuntime, u32>,
    /// Of each rule, how many nodes it decided over.
    pub taken: Vec<u32>,
    /// Sessions that run one after the other.
    pub segments: u32,
}

/// Which execution providers ONNX Runtime gave a session's nodes to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Placement {
    /// The session has the CPU's alone.
    #[default]
    CpuOnly,
    /// ONNX Runtime did not tell, or in words that are not known.
    Unknown,
    /// By provider.
    Told(BTreeMap<String, Placed>),
}

/// Nodes of one provider, after ONNX Runtime's optimizers, those of bodies (If, Loop, Scan) too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// How many.
    pub nodes: u32,
    /// Of each operator; empty where one provider has all nodes, of which ONNX Runtime tells the number alone.
    pub ops: BTreeMap<String, u32>,
}

impl Placement {
    /// Of two sessions together: what one of them does not know is not known of both.
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::CpuOnly, other) | (other, Self::CpuOnly) => other,
            (Self::Told(mut all), Self::Told(other)) => {
                for (provider, Placed { nodes, ops }) in other {
                    let placed = all.entry(provider).or_default();
                    placed.nodes += nodes;
                    ops.into_iter().for_each(|(op, n)| *placed.ops.entry(op).or_default() += n);
                }
                Self::Told(all)
            }
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
        }
    }
}

/// A shared library of custom operators, as it was when someone looked: another file is another session.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CustomOpLibrary {
    /// Absolute.
    pub path: PathBuf,
    /// Its size.
    pub len_bytes: u64,
    /// When it was last written, in nanoseconds since the epoch.
    pub modified_ns: i64,
}

impl SessionSpec {
    /// No other provider than the CPU's.
    pub fn cpu_only(&self) -> bool {
        self.providers.iter().all(|(name, _)| name == CPU_PROVIDER)
    }

    /// Its calls may become CUDA graphs: its tensors are on a device, and the provider's option asks for them.
    pub fn has_cuda_graphs(&self) -> bool {
        let asks = |(name, options): &Provider| name == CUDA_PROVIDER && asks_for_cuda_graphs(options);
        self.device.is_some() && self.providers.iter().any(asks)
    }

    /// The same without one of our passes.
    pub fn without_pass(&self, name: &str) -> Self {
        let mut spec = self.clone();
        spec.disabled_passes.push(name.to_owned());
        spec
    }

    /// The same without CUDA graphs: for a session that runs once.
    pub fn without_cuda_graphs(&self) -> Self {
        let mut spec = self.clone();
        spec.providers.iter_mut().for_each(|(_, options)| drop(options.remove(CUDA_GRAPHS)));
        spec
    }

    /// The same with nothing optimized: what pieces of a model run with, so that each of its nodes is where the model has it.
    pub fn unoptimized(&self) -> Self {
        let optimization = match self.optimization {
            Optimization::Disable => Optimization::Disable,
            _ => Optimization::Kernels,
        };
        Self { optimization, ..self.clone() }
    }

    /// Rules ask for nodes or values by pattern, so that a part needs their descriptions.
    pub fn has_patterns(&self) -> bool {
        !(self.runtimes.is_empty() && self.keep_float32.is_empty())
    }
}

/// Whether options of CUDA's provider ask for graphs; ONNX Runtime refuses what is none of its texts for yes and no.
pub fn asks_for_cuda_graphs(options: &BTreeMap<String, String>) -> bool {
    options.get(CUDA_GRAPHS).is_some_and(|text| !matches!(text.as_str(), "0" | "false" | "False"))
}

/// A part of a graph, to be made ready to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartSpec {
    /// Its graph.
    pub graph: GraphId,
    /// Index of the part in the graph.
    pub part: u32,
    /// ModelProto.
    pub model: Bytes,
    /// How to run it.
    pub session: SessionSpec,
    /// FX compute nodes that the part stands for: FX name to a value of the model.
    pub fx_values: BTreeMap<String, ValueName>,
    /// Every value of the model, inputs excluded, that carries an FX node's name: where the model may be cut to look at
    /// one node, and where a value of low precision is rounded.
    pub named_values: Vec<ValueName>,
    /// What patterns of the session are looked for in; empty where it has none.
    pub described: Descriptions,
}

/// An input of a model that becomes a constant of its session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrozenInput {
    /// Position among the model's inputs.
    pub input: u32,
    /// Where its value lies while the session is made.
    pub tensor: TensorRef,
}

/// An input or output of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueSpec {
    /// Its name in the graph.
    pub name: ValueName,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, −1 where symbolic.
    pub dims: Vec<i64>,
}

impl fmt::Display for ValueSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}{:?}", self.name, self.dtype, self.dims)
    }
}

/// A part that is ready to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepared {
    /// What calls name it by, in this lease.
    pub handle: PartHandle,
    /// False: a warm session was reused.
    pub built: bool,
    /// Those of `fx_values` that a node of the model produces.
    pub fx_nodes: u32,
    /// Nodes of the model's main graph, before optimization.
    pub onnx_nodes: u32,
    /// In the model's order, those that are constants of the session too.
    pub inputs: Vec<ValueSpec>,
    /// In the model's order.
    pub outputs: Vec<ValueSpec>,
    /// Time to make the session; 0 when it was reused.
    pub build_us: u64,
    /// Inputs that are constants of the session.
    pub frozen_inputs: u32,
    /// What the session's rules made of its nodes.
    pub division: Division,
    /// Which execution providers have its nodes.
    pub placement: Placement,
}

/// What one run cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunStats {
    /// Time inside the runtime.
    pub run_ns: u64,
    /// Of a session on a device: bytes of its tensors on the host.
    pub host_bytes: u64,
}

/// An error as it travels (`Error` of protos/rust_ort.proto).
#[derive(Clone, Debug, Error, PartialEq, Eq, Serialize, Deserialize)]
#[error("{message}")]
pub struct WireError {
    /// Whose it is.
    pub kind: ErrorKind,
    /// For programs.
    pub code: ErrorCode,
    /// For people: what, where, expected and got, what to do next.
    pub message: String,
    /// `0_0-forward`, or empty.
    pub graph: String,
    /// Node of the model, or empty.
    pub node: String,
    /// Folder holding the reproduction, or empty.
    pub dump: String,
    /// Log file that tells more, or empty.
    pub log: String,
}

impl WireError {
    /// An error without a place; the layer that knows graph, node, dump or log adds them.
    pub fn new(kind: ErrorKind, code: ErrorCode, message: impl Into<String>) -> Self {
        let nowhere = String::new;
        Self { kind, code, message: message.into(), graph: nowhere(), node: nowhere(), dump: nowhere(), log: nowhere() }
    }

    /// The caller's mistake, without a place.
    pub fn client(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Client, code, message)
    }

    /// Ours, without a place.
    pub fn fault(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Fault, code, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_round_trip() {
        for &code in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_code(code.code()), Some(code));
        }
        for code in [0, 21, u32::MAX] {
            assert_eq!(ErrorCode::from_code(code), None);
        }
        for &(name, level) in Optimization::NAMES {
            assert_eq!((Optimization::from_name(name), level.name()), (Some(level), name));
        }
        assert_eq!(Optimization::from_name("ALL"), None);
    }
}
