//! What `rust-ort status` shows, as JSON.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Value, json};

use super::process::resident_bytes;
use super::{Daemon, limits};
use crate::compare::{self, Summary, TensorVerdict};
use crate::dump::NodeTable;
use crate::ids::{ClientId, StepId};
use crate::protocol::control::RunObserved;
use crate::shm::Counter;
use crate::step;

/// One of the last observed steps.
#[derive(Clone, Debug, Serialize)]
pub struct StepRecord {
    client: ClientId,
    graph: String,
    part: u32,
    step: StepId,
    run_us: u64,
    outputs: usize,
    /// Of the nodes' own kernels, when nodes were compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<Summary>,
    /// None: nothing was compared.
    summary: Option<Summary>,
    dump: Option<String>,
}

impl StepRecord {
    /// Of a step that ran.
    pub fn new(client: ClientId, graph: &str, run: &RunObserved, outcome: &step::Outcome) -> Self {
        Self {
            client,
            graph: graph.to_owned(),
            part: run.part,
            step: run.step,
            run_us: outcome.stats.run_ns / 1000,
            outputs: run.record.outputs.len(),
            nodes: None,
            summary: outcome.verdicts.as_deref().map(compare::summary),
            dump: outcome.dump.as_ref().map(|dump| dump.display().to_string()),
        }
    }
}

impl StepRecord {
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
            summary: Some(compare::summary(&table.plain)),
            dump,
        }
    }
}

impl Daemon {
    /// Everything, as of now.
    pub fn status(&self) -> Value {
        let clients: Vec<Value> = self
            .clients()
            .iter()
            .map(|client| {
                let state = client.state();
                json!({
                    "id": client.id,
                    "pid": client.hello.pid,
                    "program": client.hello.program,
                    "shim_version": client.hello.shim_version,
                    "python_version": client.hello.python_version,
                    "torch_version": client.hello.torch_version,
                    "since_unix_s": client.since.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
                    "executor": state.executor.as_ref().map(|executor| executor.id),
                    "graphs": state.graphs.len(),
                    "parts": state.parts.len(),
                    "segments": state.segments.segments().len(),
                    "segment_bytes": state.segments.segments().iter().map(|&(_, len_bytes)| len_bytes).sum::<u64>(),
                    "kept_bytes": state.kept_bytes,
                    "dump": state.dump.as_ref().map(|run| run.path().display().to_string()),
                })
            })
            .collect();
        let executors: Vec<Value> = self
            .pool
            .list()
            .iter()
            .map(|executor| {
                json!({
                    "id": executor.id,
                    "pid": executor.pid,
                    "library": executor.terms.spec.onnxruntime_library.display().to_string(),
                    "onnxruntime_version": executor.onnxruntime_version,
                    "threads": executor.terms.spec.threads,
                    "allow_spinning": executor.terms.spec.allow_spinning,
                    "leased_to": executor.leased_to(),
                    "sessions": executor.counters.get(Counter::SessionsLive),
                    "runs": executor.counters.get(Counter::Runs),
                    "resident_bytes": executor.resident_bytes(),
                    "log": executor.log.display().to_string(),
                })
            })
            .collect();
        let executor_bytes: u64 = executors.iter().filter_map(|executor| executor["resident_bytes"].as_u64()).sum();
        let own_bytes = resident_bytes(std::process::id());
        json!({
            "daemon": {
                "version": env!("CARGO_PKG_VERSION"),
                "pid": std::process::id(),
                "socket": self.socket.display().to_string(),
                "log": self.log.display().to_string(),
                "started_unix_s": self.started_at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
                "uptime_s": self.started.elapsed().as_secs(),
                "idle_timeout_s": self.idle_timeout.as_secs(),
            },
            "clients": clients,
            "executors": executors,
            "graphs": self.n_graphs(),
            "memory": {
                "daemon_bytes": own_bytes,
                "executor_bytes": executor_bytes,
                "idle_limit_bytes": limits::IDLE_BYTES,
            },
            "counters": self.counters(),
            "last_steps": self.last_steps(),
            "quarantine": self.quarantine.list(),
        })
    }

    fn counters(&self) -> BTreeMap<&'static str, u64> {
        let mut counters: BTreeMap<&'static str, u64> =
            Counter::ALL.iter().map(|counter| (counter.name(), 0)).chain(self.pool.counters()).collect();
        for (name, n) in self.own_counters() {
            *counters.entry(name).or_default() += n;
        }
        counters
    }
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

    #[test]
    fn days_become_dates() {
        for (days, date) in [(0, (1970, 1, 1)), (59, (1970, 3, 1)), (11_016, (2000, 2, 29)), (20_454, (2026, 1, 1))] {
            assert_eq!(civil(days), date);
        }
    }
}
