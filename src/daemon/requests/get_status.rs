//! What `rust-ort status` shows.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::base::limits;
use crate::base::process::resident_bytes;
use crate::cuda::InUse;
use crate::daemon::client::Client;
use crate::daemon::executors::Executor;
use crate::daemon::shared::Daemon;
use crate::daemon::status::{ClientStatus, DaemonStatus, ExecutorStatus, MemoryStatus, STATUS_SCHEMA, Status};
use crate::shm::Counter;

/// Everything, as of now.
fn status(daemon: &Daemon) -> Status {
    daemon.pool.count_device_memory();
    let executors: Vec<_> = daemon.pool.list().iter().map(|executor| of_executor(executor)).collect();
    Status {
        schema: STATUS_SCHEMA.to_owned(),
        daemon: own_status(daemon),
        clients: daemon.clients().iter().map(|client| of_client(client)).collect(),
        graphs: daemon.n_graphs(),
        memory: MemoryStatus {
            daemon_bytes: resident_bytes(std::process::id()),
            kept_bytes: daemon.ledgers.memory.held(),
            kept_limit_bytes: daemon.ledgers.memory.limit(),
            executor_bytes: executors.iter().map(|executor| executor.resident_bytes).sum(),
            device_bytes: executors.iter().map(|executor| executor.device_bytes).sum(),
            idle_limit_bytes: limits::IDLE_BYTES,
        },
        executors,
        counters: counters(daemon),
        last_steps: daemon.last_steps.list(),
        quarantine: daemon.post_mortem.quarantine.list(),
    }
}

/// The same, on the wire.
pub fn json(daemon: &Daemon) -> String {
    serde_json::to_string(&status(daemon)).expect("our types have string keys and write to memory")
}

fn own_status(daemon: &Daemon) -> DaemonStatus {
    DaemonStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        socket: daemon.socket.display().to_string(),
        log: daemon.log.display().to_string(),
        started_unix_s: unix_s(daemon.started_at),
        uptime_s: daemon.started.elapsed().as_secs(),
        idle_timeout_s: daemon.idle.timeout.as_secs(),
        idle_device_timeout_s: daemon.idle.on_device.as_secs(),
        program_replaced: daemon.program.is_replaced(),
    }
}

fn counters(daemon: &Daemon) -> BTreeMap<String, u64> {
    let mut counters: BTreeMap<&'static str, u64> =
        Counter::ALL.iter().map(|counter| (counter.name(), 0)).chain(daemon.pool.counters()).collect();
    for (name, n) in daemon.own_counters() {
        *counters.entry(name).or_default() += n;
    }
    counters.into_iter().map(|(name, n)| (name.to_owned(), n)).collect()
}

fn of_client(client: &Client) -> ClientStatus {
    let state = client.state();
    let segments = state.segments.segments();
    ClientStatus {
        id: client.id,
        pid: client.hello.pid,
        pid_namespace: client.hello.pid_namespace,
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

fn of_executor(executor: &Executor) -> ExecutorStatus {
    let spec = &executor.terms.spec;
    ExecutorStatus {
        id: executor.id,
        pid: executor.pid,
        library: spec.onnxruntime_library.display().to_string(),
        onnxruntime_version: executor.onnxruntime_version.clone(),
        libtorch: spec.libtorch.as_ref().map(|path| path.display().to_string()),
        threads: spec.threads,
        allow_spinning: spec.allow_spinning,
        leased_to: executor.leased_to(),
        sessions: executor.counters.get(Counter::SessionsLive),
        runs: executor.counters.get(Counter::Runs),
        resident_bytes: executor.resident_bytes(),
        device_bytes: match executor.counters.device_memory() {
            InUse::Nothing => Some(0),
            InUse::Bytes(bytes) => Some(bytes),
            InUse::Unknown => None,
        },
        confined: Some(executor.confined.clone()),
        log: executor.log.display().to_string(),
    }
}

fn unix_s(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
