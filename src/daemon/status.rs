//! What `rust-ort status` shows: made by the daemon, read by the command line.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::base::ids::{ClientId, ExecutorId, StepId};
use crate::base::limits;
use crate::base::process::resident_bytes;
use crate::base::sync::lock;
use crate::compare::{self, Summary, TensorVerdict};
use crate::daemon::client::Client;
pub use crate::daemon::executors::Death;
use crate::daemon::executors::Executor;
use crate::daemon::shared::Daemon;
use crate::dump::NodeTable;
use crate::protocol::control::RunObserved;
use crate::shm::Counter;

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
    /// Where it logs.
    pub log: String,
}

/// Resident bytes.
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

impl StepRecord {
    /// Of a step that ran.
    pub fn new(client: ClientId, graph: &str, run: &RunObserved, outcome: &crate::observe::call::Outcome) -> Self {
        Self {
            client,
            graph: graph.to_owned(),
            part: run.part,
            step: run.step,
            run_us: outcome.stats.run_ns / 1000,
            outputs: run.record.outputs.len(),
            nodes: None,
            observing: None,
            summary: outcome.verdicts.as_deref().map(compare::summary),
            dump: outcome.dump.as_ref().map(|dump| dump.display().to_string()),
        }
    }

    /// Of a comparison of nodes.
    pub fn of_nodes(client: ClientId, table: &NodeTable, dump: Option<String>) -> Self {
        let locals: Vec<TensorVerdict> = table.nodes.iter().map(|node| node.local.clone()).collect();
        Self {
            client,
            graph: table.graph.clone(),
            part: table.part,
            step: StepId(table.step),
            run_us: table.nodes.iter().map(|node| node.candidate_ns).sum::<u64>() / 1000,
            outputs: table.plain.len(),
            nodes: Some(compare::summary(&locals)),
            observing: Some(compare::summary(&table.plain)),
            summary: None,
            dump,
        }
    }

    fn is_of(&self, other: &Self) -> bool {
        (self.client, &self.graph, self.part, self.step) == (other.client, &other.graph, other.part, other.step)
    }
}

/// The newest steps; a step that ran and whose nodes were compared then is one.
#[derive(Debug, Default)]
pub struct LastSteps(Mutex<VecDeque<StepRecord>>);

impl LastSteps {
    /// Above [`limits::LAST_STEPS`] the oldest goes.
    pub fn add(&self, step: StepRecord) {
        let mut steps = lock(&self.0);
        let ran = steps.iter_mut().rev().find(|known| known.is_of(&step)).filter(|known| known.nodes.is_none());
        if let (Some(ran), Some(_)) = (ran, step.nodes) {
            (ran.nodes, ran.observing) = (step.nodes, step.observing);
            ran.dump = ran.dump.take().or(step.dump);
            return;
        }
        if steps.len() == limits::LAST_STEPS {
            steps.pop_front();
        }
        steps.push_back(step);
    }

    /// The oldest first.
    pub fn list(&self) -> Vec<StepRecord> {
        lock(&self.0).iter().cloned().collect()
    }
}

impl Daemon {
    /// Everything, as of now.
    fn status(&self) -> Status {
        let executors: Vec<_> = self.pool.list().iter().map(|executor| ExecutorStatus::of(executor)).collect();
        Status {
            schema: STATUS_SCHEMA.to_owned(),
            daemon: self.own_status(),
            clients: self.clients().iter().map(|client| ClientStatus::of(client)).collect(),
            graphs: self.n_graphs(),
            memory: MemoryStatus {
                daemon_bytes: resident_bytes(std::process::id()),
                kept_bytes: self.ledgers.memory.held(),
                kept_limit_bytes: self.ledgers.memory.limit(),
                executor_bytes: executors.iter().map(|executor| executor.resident_bytes).sum(),
                idle_limit_bytes: limits::IDLE_BYTES,
            },
            executors,
            counters: self.counters(),
            last_steps: self.last_steps.list(),
            quarantine: self.quarantine.list(),
        }
    }

    /// The same, on the wire.
    pub fn status_json(&self) -> String {
        serde_json::to_string(&self.status()).expect("our types have string keys and write to memory")
    }

    fn own_status(&self) -> DaemonStatus {
        DaemonStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            socket: self.socket.display().to_string(),
            log: self.log.display().to_string(),
            started_unix_s: unix_s(self.started_at),
            uptime_s: self.started.elapsed().as_secs(),
            idle_timeout_s: self.idle_timeout.as_secs(),
            program_replaced: self.program.is_replaced(),
        }
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        let mut counters: BTreeMap<&'static str, u64> =
            Counter::ALL.iter().map(|counter| (counter.name(), 0)).chain(self.pool.counters()).collect();
        for (name, n) in self.own_counters() {
            *counters.entry(name).or_default() += n;
        }
        counters.into_iter().map(|(name, n)| (name.to_owned(), n)).collect()
    }
}

impl ClientStatus {
    fn of(client: &Client) -> Self {
        let state = client.state();
        let segments = state.segments.segments();
        Self {
            id: client.id,
            pid: client.hello.pid,
            program: client.hello.program.clone(),
            shim_version: client.hello.shim_version.clone(),
            python_version: client.hello.python_version.clone(),
            torch_version: client.hello.torch_version.clone(),
            since_unix_s: unix_s(client.since),
            executor: state.executor.as_ref().map(|executor| executor.id),
            graphs: state.graphs.len(),
            parts: state.parts.len(),
            segments: segments.len(),
            segment_bytes: segments.iter().map(|&(_, len_bytes)| len_bytes).sum(),
            kept_bytes: client.memory.held(),
            dump: state.dump.as_ref().map(|run| run.path().display().to_string()),
        }
    }
}

impl ExecutorStatus {
    fn of(executor: &Executor) -> Self {
        let spec = &executor.terms.spec;
        Self {
            id: executor.id,
            pid: executor.pid,
            library: spec.onnxruntime_library.display().to_string(),
            onnxruntime_version: executor.onnxruntime_version.clone(),
            threads: spec.threads,
            allow_spinning: spec.allow_spinning,
            leased_to: executor.leased_to(),
            sessions: executor.counters.get(Counter::SessionsLive),
            runs: executor.counters.get(Counter::Runs),
            resident_bytes: executor.resident_bytes(),
            log: executor.log.display().to_string(),
        }
    }
}

fn unix_s(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Now, for folder names: "20260131-235959", UTC.
pub fn stamp() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

/// Gregorian date of a day since 1970. Source: Howard Hinnant, chrono-compatible low-level date algorithms.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(client: u64, nodes: Option<usize>) -> StepRecord {
        let count = |matched| Summary { matched, ..Summary::default() };
        let summary = nodes.is_none().then(|| count(1));
        StepRecord {
            client: ClientId(client),
            graph: "0_0-forward".into(),
            part: 0,
            step: StepId(3),
            run_us: 7,
            outputs: 1,
            nodes: nodes.map(count),
            observing: None,
            summary,
            dump: None,
        }
    }

    #[test]
    fn nodes_join_the_newest_step_that_they_are_of() {
        let steps = LastSteps::default();
        for (client, nodes) in [(1, None), (1, None), (2, None), (1, Some(4)), (3, Some(5))] {
            steps.add(step(client, nodes));
        }
        let nodes: Vec<_> = steps.list().iter().map(|step| step.nodes.map(|nodes| nodes.matched)).collect();
        assert_eq!(nodes, [None, Some(4), None, Some(5)]);
        assert_eq!(steps.list()[1].summary.unwrap().matched, 1);
        assert_eq!(steps.list()[3].summary, None);
    }

    #[test]
    fn the_oldest_step_goes_first() {
        let steps = LastSteps::default();
        (0..=limits::LAST_STEPS as u64).for_each(|client| steps.add(step(client, None)));
        let clients: Vec<u64> = steps.list().iter().map(|step| step.client.0).collect();
        assert_eq!(clients, (1..=limits::LAST_STEPS as u64).collect::<Vec<_>>());
    }

    #[test]
    fn a_status_of_another_build_reads_as_far_as_it_goes() {
        let status: Status = serde_json::from_str(r#"{"daemon": {"pid": 7}, "graphs": 3, "later": true}"#).unwrap();
        assert_eq!((status.daemon.pid, status.graphs, status.clients.len()), (7, 3, 0));
    }

    #[test]
    fn days_become_dates() {
        for (days, date) in [(0, (1970, 1, 1)), (59, (1970, 3, 1)), (11_016, (2000, 2, 29)), (20_454, (2026, 1, 1))] {
            assert_eq!(civil(days), date);
        }
    }
}
