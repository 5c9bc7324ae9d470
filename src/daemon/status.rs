//! What `rust-ort status` shows: made by the daemon, read by the command line.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::base::ids::{ClientId, ExecutorId, GraphId, StepId};
use crate::compare::Summary;
use crate::confine::Confined;

/// Names the fields below; another number is another meaning of one of them.
pub const STATUS_SCHEMA: &str = "rust_ort/status/1";

/// Everything, as of one moment. What a daemon of another build leaves out is empty.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// [`STATUS_SCHEMA`].
    pub schema: String,
    /// Itself.
    pub daemon: DaemonStatus,
    /// Connections after `Hello`, by age.
    pub clients: Vec<ClientStatus>,
    /// By age.
    pub executors: Vec<ExecutorStatus>,
    /// Graphs that were registered since it started.
    pub graphs: usize,
    /// Of the daemon and its executors.
    pub memory: MemoryStatus,
    /// By name, since it started.
    pub counters: BTreeMap<String, u64>,
    /// Observed or compared node by node, the newest last.
    pub last_steps: Vec<StepRecord>,
    /// Parts that were running when an executor died.
    pub quarantine: Vec<Death>,
}

/// The daemon.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DaemonStatus {
    /// Of the package.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Where it listens.
    pub socket: String,
    /// Where it logs.
    pub log: String,
    /// When it started.
    pub started_unix_s: u64,
    /// Since it started.
    pub uptime_s: u64,
    /// It ends without a client for so long.
    pub idle_timeout_s: u64,
    /// An executor that holds memory of a device ends without a client for so long.
    pub idle_device_timeout_s: u64,
    /// Another program is in its file's place, or none: it ends when its last client leaves.
    pub program_replaced: bool,
}

/// A client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClientStatus {
    /// Its name.
    pub id: ClientId,
    /// Its process.
    pub pid: u32,
    /// Inode of the namespace of its pid; 0: not known.
    pub pid_namespace: u64,
    /// What it says it runs.
    pub program: String,
    /// Of its package.
    pub shim_version: String,
    /// Of its interpreter.
    pub python_version: String,
    /// Of its torch.
    pub torch_version: String,
    /// When it came.
    pub since_unix_s: u64,
    /// What it holds.
    pub executor: Option<ExecutorId>,
    /// Graphs that it registered.
    pub graphs: usize,
    /// Parts that it prepared.
    pub parts: usize,
    /// Segments that it shares.
    pub segments: usize,
    /// Their bytes together.
    pub segment_bytes: u64,
    /// Bytes of models and texts that the daemon keeps for it.
    pub kept_bytes: u64,
    /// Folder of its open dump.
    pub dump: Option<String>,
}

/// An executor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExecutorStatus {
    /// Its name.
    pub id: ExecutorId,
    /// Its process.
    pub pid: u32,
    /// The onnxruntime library that it loaded.
    pub library: String,
    /// Of that library.
    pub onnxruntime_version: String,
    /// Folder of the libtorch that it loaded beside; None: it has none.
    #[serde(default)]
    pub libtorch: Option<String>,
    /// Of its pool; 0 = one a core.
    pub threads: u32,
    /// They spin between operators.
    pub allow_spinning: bool,
    /// Its holder; None: warm.
    pub leased_to: Option<ClientId>,
    /// Sessions that it has.
    pub sessions: u64,
    /// Calls that it ran.
    pub runs: u64,
    /// Its memory.
    pub resident_bytes: u64,
    /// What it holds of the memory of devices, all together; 0: it has no context on any; None: nobody tells.
    #[serde(default)]
    pub device_bytes: Option<u64>,
    /// What holds it; None: a daemon of another build does not tell.
    #[serde(default)]
    pub confined: Option<Confined>,
    /// Where it logs.
    pub log: String,
}

/// Resident bytes, and bytes of devices.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryStatus {
    /// Of the daemon.
    pub daemon_bytes: u64,
    /// Of clients' models, texts and tensors that the daemon keeps.
    pub kept_bytes: u64,
    /// Above it the daemon takes nothing more.
    pub kept_limit_bytes: u64,
    /// Of all executors.
    pub executor_bytes: u64,
    /// Of devices, by all executors; None: of one it is not known.
    pub device_bytes: Option<u64>,
    /// Idle executors above it end.
    pub idle_limit_bytes: u64,
}

/// One of the last steps that were looked at.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StepRecord {
    /// Whose.
    pub client: ClientId,
    /// Its name, such as "0_0-forward".
    pub graph: String,
    /// Of the graph.
    pub part: u32,
    /// Of the graph.
    pub step: StepId,
    /// In the runtime.
    pub run_us: u64,
    /// How many there are.
    pub outputs: usize,
    /// Of the nodes' own kernels; None: nodes were not compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Summary>,
    /// Of the outputs with nothing fused against those of the session that is used: what observing changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observing: Option<Summary>,
    /// Of the outputs against eager's; None: they were not compared.
    pub summary: Option<Summary>,
    /// Folder of its data set, or of its run.
    pub dump: Option<String>,
}

/// What status shows of one part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Death {
    /// Content hash of the graph.
    pub graph: GraphId,
    /// Its name, such as "0_0-forward".
    pub name: String,
    /// Its part.
    pub part: u32,
    /// Deaths without a lease in between that used the part and ended well.
    pub deaths_in_a_row: u32,
    /// Folder of the newest death: model and inputs.
    pub dump: String,
    /// Of the newest death, such as "ONNX Runtime or a custom operator crashed (signal 11, SIGSEGV)".
    pub cause: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_of_another_build_reads_as_far_as_it_goes() {
        let status: Status = serde_json::from_str(r#"{"daemon": {"pid": 7}, "graphs": 3, "later": true}"#).unwrap();
        assert_eq!((status.daemon.pid, status.graphs, status.clients.len()), (7, 3, 0));
    }
}
