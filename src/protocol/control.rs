//! Domain types of the control protocol: what a client asks, what the daemon answers. No encoding here.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bytes::Bytes;

use crate::base::ids::{ClientId, ExecutorId, GraphId, PartHandle, SegmentId, StepId, ValueName, Work};
use crate::tensor::{CallRecord, DType, TensorRef};

use super::message::{
    CustomOpLibrary, DeviceSegmentSpec, FrozenInput, LaneEventsSpec, PartSpec, Prepared, SlotSpec, WireError,
};

/// Who connects, for status and logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// Version of messages the client speaks.
    pub protocol: u32,
    /// Version of the Python package, or of the command line.
    pub shim_version: String,
    /// Process id as the client sees it.
    pub pid: u32,
    /// Such as "3.11.9", or empty.
    pub python_version: String,
    /// Such as "2.13.0", or empty.
    pub torch_version: String,
    /// `sys.argv[0]`.
    pub program: String,
    /// Inode of the namespace of its pid; 0: not known.
    pub pid_namespace: u64,
    /// CPUs that it may run on, a bit each, the lowest of the first byte first; empty: not known.
    pub cpus: Vec<u8>,
}

/// Which executor a client wants. Executors with equal values are interchangeable, but for what they have loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseSpec {
    /// Absolute path of libonnxruntime.so*.
    pub onnxruntime_library: PathBuf,
    /// Intra-op threads of the global pool; 0 = one a core.
    pub threads: u32,
    /// Let the pool's threads spin.
    pub allow_spinning: bool,
    /// Absolute path of torch's `lib` folder, for an executor with libtorch.
    pub libtorch: Option<PathBuf>,
    /// Absolute paths of folders with what sessions on a device load: CUDA's libraries, and torch's.
    pub library_folders: Vec<PathBuf>,
    /// The client's CUDA_VISIBLE_DEVICES; None: it has none. The executor has the same.
    pub cuda_visible_devices: Option<String>,
    /// The client's niceness, −20 to 19; None: the daemon's.
    pub niceness: Option<i32>,
    /// The client's variables among [`of_client`](crate::protocol::control::of_client); None: the daemon's.
    pub environment: Option<BTreeMap<String, String>>,
    /// Libraries of custom operators that a warm one may have loaded for another client: it has no others.
    pub custom_op_libraries: Vec<CustomOpLibrary>,
}

/// Starts of names of the variables that rule a runtime, its threads, its memory and the devices that it sees.
const OF_CLIENT: &[&str] = &[
    "CUBLAS",
    "CUDA_",
    "CUDNN",
    "GLIBC_TUNABLES",
    "GOMP_",
    "KMP_",
    "LD_LIBRARY_PATH",
    "MALLOC_",
    "MKL_",
    "NVIDIA_",
    "OMP_",
    "OPENBLAS_",
    "ORT_",
    "TMPDIR",
];

/// Whether an executor has this variable of its client's, not of the daemon's, which another client may have started.
/// CUDA_VISIBLE_DEVICES has a field of its own: it rules executors on devices alone.
pub fn of_client(variable: &str) -> bool {
    variable != "CUDA_VISIBLE_DEVICES" && OF_CLIENT.iter().any(|start| variable.starts_with(start))
}

/// Pass of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Of a training step.
    Forward,
    /// Of a training step.
    Backward,
    /// Without gradients.
    Inference,
}

impl Direction {
    /// As in folder names.
    pub const fn name(self) -> &'static str {
        match self {
            Direction::Forward => "forward",
            Direction::Backward => "backward",
            Direction::Inference => "inference",
        }
    }
}

/// One AOT graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterGraph {
    /// Content hash.
    pub graph: GraphId,
    /// Its folder in a dump, such as "0_0-forward".
    pub name: String,
    /// Pass.
    pub direction: Direction,
    /// The graph as Dynamo captured it.
    pub dynamo_text: String,
    /// The joint graph.
    pub joint_text: String,
    /// The AOT graph.
    pub fx_text: String,
    /// Which nodes run where and why.
    pub parts_json: String,
}

/// A part to make ready, with what a dump says about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparePart {
    /// For the executor.
    pub part: PartSpec,
    /// For the dump.
    pub provenance_json: String,
    /// Inputs that become constants, in rising order.
    pub frozen: Vec<FrozenInput>,
}

/// Which calls a dump keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallsToDump {
    /// Graphs only.
    None,
    /// The first call of each graph.
    First,
    /// Every call.
    All,
}

/// Where a dump goes and what it keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenDump {
    /// Absolute.
    pub folder: PathBuf,
    /// Name of the run's folder below it: one path component.
    pub run: String,
    /// Remove the run's folder first.
    pub clean: bool,
    /// Which calls.
    pub calls: CallsToDump,
    /// Versions, devices, options, start: a JSON object.
    pub run_json: String,
    /// The client's; None: nobody else may read the files.
    pub umask: Option<u32>,
    /// Folders of data sets that a daemon which has ended told of; absolute.
    pub answered: Vec<PathBuf>,
}

/// Terms of a tolerance: |c − r| ≤ atol + rtol·|r| + scale·max|r|.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ToleranceTerms {
    /// Absolute.
    pub atol: f64,
    /// Times |r|.
    pub rtol: f64,
    /// Times max|r| of the tensor.
    pub scale: f64,
    /// NaN equals NaN.
    pub equal_nan: bool,
}

/// What counts as noise against float64.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NoiseTerms {
    /// How much further from float64 than the reference the candidate may be, from 1.
    pub factor: f64,
    /// Not read: it follows from the half-precision type that values were computed through.
    pub step: f64,
}

/// One call through the daemon.
#[derive(Clone, Debug, PartialEq)]
pub struct RunObserved {
    /// The call.
    pub record: CallRecord,
    /// Its graph.
    pub graph: GraphId,
    /// Its part.
    pub part: u32,
    /// Position among the calls of the graph.
    pub step: StepId,
    /// Write inputs, outputs and verdicts to the open dump.
    pub dump: bool,
    /// Reference outputs, one an output: judge. None: do not.
    pub references: Option<Vec<TensorRef>>,
    /// None: defaults by dtype.
    pub tolerance: Option<ToleranceTerms>,
    /// Half-precision type that floats were computed through.
    pub through: Option<DType>,
    /// Of outputs that are looked at once more. None: the defaults.
    pub noise: Option<NoiseTerms>,
}

/// What a client will name no more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Release {
    /// Parts of the lease.
    pub handles: Vec<PartHandle>,
    /// Registered graphs, of which no other part is prepared.
    pub graphs: Vec<GraphId>,
}

/// Two tensors to judge, or the reason why there are not two.
#[derive(Clone, Debug, PartialEq)]
pub enum PairToCompare {
    /// Both exist.
    Pair {
        /// Eager's.
        reference: TensorRef,
        /// ONNX Runtime's.
        candidate: TensorRef,
        /// Float64: Σ|terms| of each element, where it is known to be a sum.
        terms: Option<TensorRef>,
        /// Float64: the same value, computed in float64.
        exact: Option<TensorRef>,
        /// Why a mismatch is none.
        excuse: Option<Excuse>,
    },
    /// Why not.
    NotCompared(String),
}

/// What makes a value outside tolerance as right as the reference.
#[derive(Clone, Debug, PartialEq)]
pub enum Excuse {
    /// It comes of a choice between equals, and of which.
    Tie(String),
    /// It is in another order, which is left open, and by whom.
    OpenOrder(String),
    /// Every node alone is right, and rounding moves the value by so much: with its float64, which tells the rest.
    Rounding(SpreadTerms),
}

/// How far rounding moves a value: errors against float64 with every operation off by up to one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpreadTerms {
    /// The largest.
    pub largest: f64,
    /// Root mean square.
    pub rms: f64,
}

/// One part's comparison of nodes in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodesOf {
    /// The graph.
    pub graph: GraphId,
    /// Its part.
    pub part: u32,
    /// Position among the calls of the graph.
    pub step: StepId,
}

/// A value that a batch of nodes may read and that was there before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFeed {
    /// Of the model.
    pub name: ValueName,
    /// Eager's.
    pub reference: TensorRef,
    /// ONNX Runtime's, as it drifted.
    pub candidate: TensorRef,
}

/// A node of a batch, by the value that it makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeValue {
    /// A value to compute.
    Computed(ComputedNode),
    /// There is nothing to compare.
    NotCompared {
        /// FX name.
        name: ValueName,
        /// Why.
        reason: String,
        /// Whoever looks: memory that nobody wrote. Else something of ours was not compared.
        nothing: bool,
    },
}

/// A value to compute, and its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComputedNode {
    /// Of the part's `named_values`.
    pub name: ValueName,
    /// Eager's.
    pub reference: TensorRef,
    /// Written: the value as it drifted, from the candidates of the feeds.
    pub candidate: TensorRef,
    /// Written: what the node's own kernel makes of the references. None: only computed, because something later
    /// reads it.
    pub local: Option<TensorRef>,
    /// Time in eager.
    pub reference_ns: u64,
    /// Where it was asked for.
    pub float64: Box<NodeFloat64>,
}

/// What a node gives in float64.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFloat64 {
    /// Of the references, widened.
    pub local: Option<TensorRef>,
    /// Of values that drifted in float64.
    pub cumulative: Option<TensorRef>,
    /// Why one of these is missing; or empty.
    pub missing: String,
}

/// Nodes of a part to run and judge, in graph order.
#[derive(Clone, Debug, PartialEq)]
pub struct CompareNodes {
    /// Of the lease.
    pub handle: PartHandle,
    /// What is compared.
    pub of: NodesOf,
    /// What the nodes may read.
    pub feeds: Vec<NodeFeed>,
    /// The nodes.
    pub values: Vec<NodeValue>,
    /// None: defaults by dtype.
    pub tolerance: Option<ToleranceTerms>,
    /// Of floats as they drifted. None: as `tolerance`.
    pub cumulative_tolerance: Option<ToleranceTerms>,
    /// Half-precision type that values drifted through.
    pub through: Option<DType>,
    /// Write the references to the open dump: of judged values, and of the part's inputs where the candidate differs.
    pub dump_values: bool,
    /// None: the defaults.
    pub noise: Option<NoiseTerms>,
}

/// What is known of a mismatch beside the two values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettleNode {
    /// What is compared.
    pub of: NodesOf,
    /// The node.
    pub name: ValueName,
    /// What is known of it.
    pub by: SettledBy,
}

/// What settles a mismatch: the local one, or that of the value as it drifted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettledBy {
    /// The local one: its value in float64.
    Float64(InFloat64),
    /// The value as it drifted: what it adds up.
    Terms(DriftedSum),
    /// The local one: why what the kernel gives is as right as what eager gives.
    AsRight(String),
}

/// A sum as it drifted, and what it adds up. All of one shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriftedSum {
    /// Eager's.
    pub reference: TensorRef,
    /// ONNX Runtime's.
    pub candidate: TensorRef,
    /// Float64: Σ|terms| of each element.
    pub terms: TensorRef,
}

/// A node's value in float64 beside the two that differ. All of one shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFloat64 {
    /// What the node gives in float64.
    pub exact: TensorRef,
    /// Eager's.
    pub reference: TensorRef,
    /// The kernel's.
    pub local: TensorRef,
    /// Float64: Σ|terms| of each element, where it is known to be a sum.
    pub terms: Option<TensorRef>,
}

/// The end of a comparison of nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct FinishNodes {
    /// What was compared.
    pub of: NodesOf,
    /// Write the table to the open dump.
    pub dump: bool,
    /// Outputs of the part: the instrumented session's as reference, the plain session's as candidate.
    pub plain: Vec<(String, PairToCompare)>,
    /// None: defaults by dtype.
    pub tolerance: Option<ToleranceTerms>,
    /// Half-precision type that floats were computed through.
    pub through: Option<DType>,
}

/// A node's two verdicts as they travel.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeVerdictSummary {
    /// Of its kernel alone.
    pub local: VerdictSummary,
    /// Of the value as it drifted.
    pub cumulative: VerdictSummary,
    /// NaN and infinities that are born in it as JSON, or empty.
    pub births_json: String,
}

/// From a client.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// The first request.
    Hello(Hello),
    /// Map a segment; carries its descriptor.
    AttachSegment {
        /// Chosen by the client.
        segment: SegmentId,
        /// Its length.
        len_bytes: u64,
        /// It holds lanes, not data.
        lanes: bool,
    },
    /// Map memory of a device.
    AttachDeviceSegment(DeviceSegmentSpec),
    /// Forget a segment.
    DetachSegment(SegmentId),
    /// Ask for an executor.
    LeaseExecutor(LeaseSpec),
    /// Serve a lane.
    OpenLane(u32),
    /// Order the streams of an open lane's calls on a device.
    OpenLaneEvents(LaneEventsSpec),
    /// Order the calls of a stream of the client's by numbers.
    OpenSlot(SlotSpec),
    /// Make a graph known.
    RegisterGraph(Box<RegisterGraph>),
    /// Make a part ready.
    PreparePart(Box<PreparePart>),
    /// Begin a dump.
    OpenDump(OpenDump),
    /// End it.
    CloseDump,
    /// Wait until it is on disk.
    FlushDump,
    /// Run one call and watch it.
    RunObserved(Box<RunObserved>),
    /// Judge tensors.
    CompareTensors {
        /// Name and pair.
        pairs: Vec<(String, PairToCompare)>,
        /// None: defaults by dtype.
        tolerance: Option<ToleranceTerms>,
        /// Of those whose float64 is there. None: the defaults.
        noise: Option<NoiseTerms>,
        /// Half-precision type that floats were computed through.
        through: Option<DType>,
        /// The call whose outputs these are, looked at once more.
        settles: Option<NodesOf>,
    },
    /// Count nodes that ran in eager beside no part.
    ReportEager {
        /// Their graph.
        graph: GraphId,
        /// How many.
        eager_nodes: u32,
    },
    /// Run and judge nodes of a part.
    CompareNodes(Box<CompareNodes>),
    /// Judge a node again.
    SettleNode(Box<SettleNode>),
    /// End a comparison of nodes.
    FinishNodes(FinishNodes),
    /// Ask for what was exported of a graph.
    GetPlan(GraphId),
    /// Keep what was exported of a graph.
    PutPlan {
        /// The graph.
        graph: GraphId,
        /// For the client alone to read.
        plan: Bytes,
    },
    /// Forget graphs and parts.
    Release(Release),
    /// End what nobody waits for.
    CancelCall(Work),
    /// Ask for the daemon's state.
    GetStatus,
    /// Ask the daemon to end.
    Stop {
        /// Even while other clients are connected.
        force: bool,
    },
}

impl Request {
    /// For logs and errors.
    pub const fn name(&self) -> &'static str {
        match self {
            Request::Hello(_) => "Hello",
            Request::AttachSegment { .. } => "AttachSegment",
            Request::AttachDeviceSegment(_) => "AttachDeviceSegment",
            Request::DetachSegment(_) => "DetachSegment",
            Request::LeaseExecutor(_) => "LeaseExecutor",
            Request::OpenLane(_) => "OpenLane",
            Request::OpenLaneEvents(_) => "OpenLaneEvents",
            Request::OpenSlot(_) => "OpenSlot",
            Request::RegisterGraph(_) => "RegisterGraph",
            Request::PreparePart(_) => "PreparePart",
            Request::OpenDump(_) => "OpenDump",
            Request::CloseDump => "CloseDump",
            Request::FlushDump => "FlushDump",
            Request::RunObserved(_) => "RunObserved",
            Request::CompareTensors { .. } => "CompareTensors",
            Request::ReportEager { .. } => "ReportEager",
            Request::CompareNodes(_) => "CompareNodes",
            Request::SettleNode(_) => "SettleNode",
            Request::FinishNodes(_) => "FinishNodes",
            Request::GetPlan(_) => "GetPlan",
            Request::PutPlan { .. } => "PutPlan",
            Request::Release(_) => "Release",
            Request::CancelCall(_) => "CancelCall",
            Request::GetStatus => "GetStatus",
            Request::Stop { .. } => "Stop",
        }
    }
}

/// Answer to `Hello`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Version of messages the daemon speaks.
    pub protocol: u32,
    /// Of the binary.
    pub daemon_version: String,
    /// Name of this connection.
    pub client: ClientId,
    /// The daemon's process.
    pub daemon_pid: u32,
    /// The daemon's log file.
    pub log: String,
    /// Inode of the namespace of its pid, and of its executors'; 0: not known.
    pub pid_namespace: u64,
}

/// Answer to `LeaseExecutor`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leased {
    /// The executor.
    pub executor: ExecutorId,
    /// Its process.
    pub pid: u32,
    /// It served a client before.
    pub warm: bool,
    /// Such as "1.31.1".
    pub onnxruntime_version: String,
    /// The executor's log file.
    pub log: String,
}

/// How a comparison ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum VerdictKind {
    /// All inside tolerance.
    Match = 1,
    /// Some outside.
    Mismatch = 2,
    /// No pair.
    NotCompared = 3,
    /// Not comparable.
    Failed = 4,
    /// Some outside, and no further from float64 than the reference.
    Noise = 5,
    /// Some outside, where the reference chose between equals.
    Tie = 6,
    /// Equal but for an order that is open.
    OpenOrder = 7,
}

/// A verdict as it travels.
#[derive(Clone, Debug, PartialEq)]
pub struct VerdictSummary {
    /// Name of the value.
    pub name: String,
    /// What it came to.
    pub kind: VerdictKind,
    /// Of `NotCompared` and `Failed`; a sentence for `Mismatch`.
    pub reason: String,
    /// All metrics as JSON, or empty.
    pub metrics_json: String,
    /// max |c − r|.
    pub max_abs: f64,
    /// max |c − r| / max |r|.
    pub max_rel_to_max: f64,
    /// Elements outside tolerance.
    pub outside: u64,
    /// How far both are from float64 as JSON, or empty.
    pub noise_json: String,
}

/// Answer to `RunObserved`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// Time inside the runtime.
    pub run_us: u64,
    /// One an output, when asked.
    pub verdicts: Option<Vec<VerdictSummary>>,
    /// Folder of the data set, or empty.
    pub dump: String,
}

/// From the daemon: answers one request.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// The request failed; the connection goes on.
    Error(WireError),
    /// To `Hello`.
    Welcome(Welcome),
    /// To requests without an answer of their own.
    Done,
    /// To `LeaseExecutor`.
    Leased(Leased),
    /// To `RegisterGraph`.
    Registered {
        /// A client has this graph already.
        known: bool,
    },
    /// To `PreparePart`.
    Prepared(Prepared),
    /// To `OpenDump`.
    DumpOpened {
        /// The run's folder.
        path: String,
    },
    /// To `RunObserved`.
    Observed(Observed),
    /// To `CompareTensors`.
    Comparison(Vec<VerdictSummary>),
    /// To `CompareNodes`, `SettleNode`.
    NodesCompared(Vec<NodeVerdictSummary>),
    /// To `GetPlan`.
    Plan(Option<Bytes>),
    /// To `GetStatus`: a JSON object.
    Status(String),
}

/// From the daemon, unasked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The client's executor died.
    ExecutorLost {
        /// Which.
        executor: ExecutorId,
        /// One for each call that was running.
        calls: Vec<WireError>,
        /// Such as "killed from outside (signal 9, SIGKILL)".
        cause: String,
    },
    /// The daemon ends.
    ShuttingDown {
        /// Why.
        reason: String,
    },
}
