//! After an executor died: what was it doing? Written down before anyone is told.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::base::exit_status::{By, Ended};
use crate::base::files::{Umask, folder_of, sync};
use crate::base::ids::{StepId, ValueName};
use crate::base::limits;
use crate::daemon::client::{Client, Part, RunningNodes};
use crate::daemon::executors::process::Executor;
use crate::daemon::executors::quarantine::Quarantine;
use crate::daemon::old_state;
use crate::daemon::paths;
use crate::daemon::status::Death;
use crate::dump::{self, DumpError};
use crate::protocol::control::{CallsToDump, Notice, RegisterGraph};
use crate::protocol::message::{ErrorCode, WireError};
use crate::tensor::{CallRecord, SharedTensor, TensorRef};

/// What is written down of a death, and counted.
#[derive(Debug)]
pub struct PostMortem {
    /// Of the daemon; the folder `quarantine` is in it.
    state_folder: PathBuf,
    /// Deaths by part.
    pub quarantine: Quarantine,
    /// Number of the next folder. Daemons on other sockets may share the state folder: each has numbers of its own.
    n_folders: AtomicU64,
}

/// A part that was being prepared (no call) or run.
struct Victim {
    part: Arc<Part>,
    graph: Arc<RegisterGraph>,
    call: Option<CallRecord>,
    /// When it is a piece of a part: the node, or the first and the last of several. Else empty.
    node: String,
}

impl PostMortem {
    /// No death so far.
    pub fn new(state_folder: PathBuf) -> Self {
        Self {
            state_folder,
            quarantine: Quarantine::default(),
            n_folders: AtomicU64::new(u64::from(std::process::id()) << 20),
        }
    }

    /// Writes down what `client` was running on `executor` where that may have crashed it, tells the client, returns an error
    /// a call.
    pub fn examine(&self, client: &Client, executor: &Executor, ended: Ended) -> Vec<WireError> {
        let cause = &executor.cause(ended);
        let calls: Vec<WireError> = victims(client, executor.counters.piece())
            .into_iter()
            .map(|victim| {
                if ended.by() != By::Crash {
                    return lost_in(executor, &victim, cause, "");
                }
                let saved = self.save(client, &victim, cause).unwrap_or_else(|error| {
                    tracing::error!(graph = victim.graph.name, %error, "quarantine: could not be written");
                    Saved { folder: String::new(), inputs_left_out: None }
                });
                self.bury(executor, &victim, cause, saved)
            })
            .collect();
        client.notify(&Notice::ExecutorLost { executor: executor.id, calls: calls.clone(), cause: cause.to_owned() });
        calls
    }

    fn save(&self, client: &Client, victim: &Victim, cause: &str) -> Result<Saved, DumpError> {
        let Victim { part, graph, call, node } = victim;
        let inputs_left_out = call.as_ref().and_then(|call| {
            constants_alone(part, call)
                .or_else(|| on_device(client, call))
                .or_else(|| too_large(&self.state_folder, call, part.spec.part.model.len()))
        });
        let run_json = serde_json::json!({
            "program": client.hello.program,
            "torch_version": client.hello.torch_version,
            "cause": cause,
            "call": call.as_ref().map(|call| call.call),
            "node": node,
            "inputs_left_out": inputs_left_out,
            // Deaths are rare, and what crashes an executor may crash the machine.
            "durable": true,
        });
        let run = self.open(graph, run_json.to_string())?;
        // The client's own texts may be no JSON: what they say is then less important than the model.
        let folder = run
            .graph(&graph.record())
            .or_else(|_| run.graph(&dump::GraphRecord { parts_json: "{}", ..graph.record() }))?;
        let (index, model) = (part.spec.part.part, &part.spec.part.model);
        run.part(&folder, index, model, &part.provenance_json()).or_else(|_| run.part(&folder, index, model, "{}"))?;
        // As exported and nothing else: no pass runs here over a model that has just killed a process.
        match (call, &inputs_left_out) {
            (_, Some(why)) => tracing::warn!(graph = graph.name, why, "quarantine: inputs left out"),
            (Some(call), None) => inputs(client, part, call, &run, &folder)?,
            (None, None) => {}
        }
        let report = run.flush();
        if let Some(lost) = report.lost.first() {
            tracing::warn!(lost, n = report.lost.len(), "quarantine: incomplete");
        }
        Ok(Saved { folder: run.path().display().to_string(), inputs_left_out })
    }

    /// A run of its own in `quarantine/`, both open to nobody else.
    fn open(&self, graph: &RegisterGraph, run_json: String) -> Result<dump::Run, DumpError> {
        let quarantine = self.state_folder.join("quarantine");
        let name = format!("{}-{}-{}", stamp(), graph.graph.short(), self.n_folders.fetch_add(1, Ordering::Relaxed));
        let folder = quarantine.join(&name);
        for private in [&quarantine, &folder] {
            let made = paths::make_private(private).and_then(|()| sync(folder_of(private)));
            made.map_err(|source| io_error(private, source))?;
        }
        old_state::remove_surplus_quarantine(&quarantine);
        let (clean, calls) = (false, CallsToDump::All);
        let umask = Umask::PRIVATE;
        dump::Run::open(&dump::RunSpec { folder: quarantine, run: name, clean, calls, run_json, umask })
    }

    fn bury(&self, executor: &Executor, victim: &Victim, cause: &str, saved: Saved) -> WireError {
        let Saved { folder: dump, inputs_left_out } = saved;
        let (name, index) = (&victim.graph.name, victim.part.spec.part.part);
        let deaths = self.quarantine.record(Death {
            graph: victim.graph.graph,
            name: name.clone(),
            part: index,
            deaths_in_a_row: 0,
            dump: dump.clone(),
            cause: cause.to_owned(),
        });
        let what = match inputs_left_out {
            None => "model and inputs are".to_owned(),
            Some(why) => format!("the model, without its inputs ({why}), is"),
        };
        tracing::error!(graph = name, part = index, deaths, dump, "quarantined");
        let kept = format!(" (death {deaths} in a row of this part); {what} in {dump}");
        WireError { dump, ..lost_in(executor, victim, cause, &kept) }
    }
}

/// What is told of a call that was running. kept: what was written down of it.
fn lost_in(executor: &Executor, victim: &Victim, cause: &str, kept: &str) -> WireError {
    let (name, index) = (&victim.graph.name, victim.part.spec.part.part);
    let doing = match &victim.call {
        Some(_) if !victim.node.is_empty() => {
            format!("comparing node {} of graph {name}, part {index}, with eager", victim.node)
        }
        Some(call) => format!("in call {} of graph {name}, part {index}", call.call.0),
        None => format!("while making the session of graph {name}, part {index}"),
    };
    let message = format!(
        "executor {} (pid {}) died {doing}: {cause}{kept}; run again, a new executor starts by itself",
        executor.id.0, executor.pid
    );
    let mut error = WireError::fault(ErrorCode::ExecutorLost, message);
    error.node.clone_from(&victim.node);
    (error.graph, error.log) = (name.clone(), executor.log.display().to_string());
    error
}

/// The call that the connection waits for comes first. piece: of those that it was running.
fn victims(client: &Client, piece: usize) -> Vec<Victim> {
    let state = client.state();
    let graph_of = |part: &Arc<Part>| state.graphs.get(&part.spec.part.graph).map(|known| Arc::clone(&known.graph));
    let nodes = state.running_nodes.clone().into_iter().filter_map(|RunningNodes { whole, pieces }| {
        let piece = pieces.get(piece).or(pieces.last())?;
        let (part, call, node) = (Arc::new(whole.piece(piece)), Some(piece.record.clone()), piece.node.clone());
        Some(Victim { graph: graph_of(&whole)?, part, call, node })
    });
    let preparing = state.preparing.iter().map(|part| (Arc::clone(part), None));
    let lanes = state.lanes.iter().flat_map(|lanes| lanes.running());
    let on_lanes = lanes.filter(|(lane, _)| state.open_lanes.contains(lane)).map(|(_, record)| record);
    let calls = state.observing.iter().cloned().chain(on_lanes);
    let running = calls.filter_map(|record| Some((Arc::clone(state.parts.get(&record.handle)?), Some(record))));
    let whole = preparing
        .chain(running)
        .filter_map(|(part, call)| Some(Victim { graph: graph_of(&part)?, part, call, node: String::new() }));
    nodes.chain(whole).collect()
}

/// What was written down.
struct Saved {
    /// Where; empty when nothing could be.
    folder: String,
    /// Why the inputs are not there.
    inputs_left_out: Option<String>,
}

fn inputs(client: &Client, part: &Part, call: &CallRecord, run: &dump::Run, folder: &str) -> Result<(), DumpError> {
    let lease = match client.state().segments.lease(&call.inputs, &[]) {
        Ok(lease) => lease,
        Err(error) => {
            tracing::warn!(%error, "quarantine: inputs left out");
            return Ok(());
        }
    };
    let views = lease.inputs();
    let names = (0..views.len()).map(|i| part.inputs.get(i).map_or_else(|| format!("input_{i}"), |v| v.name.clone()));
    let inputs: Vec<(ValueName, SharedTensor<'_>)> = names.zip(views.iter().copied()).collect();
    let step = run.begin_step(folder, part.spec.part.part, StepId(0), &inputs)?;
    run.finish(&step);
    Ok(())
}

/// Why the inputs of a call cannot be written down: those that are constants of its session went with the executor.
fn constants_alone(part: &Part, call: &CallRecord) -> Option<String> {
    let constants = part.inputs.len().saturating_sub(call.inputs.len());
    let why = "went with the executor; without freeze_parameters, or where the call is compared, they are written";
    (constants > 0 && !part.spec.frozen.is_empty()).then(|| format!("{constants} are constants, which {why}"))
}

/// Why the inputs of a call cannot be written down: the executor alone reached them.
fn on_device(client: &Client, call: &CallRecord) -> Option<String> {
    let state = client.state();
    let lies_there = |input: &&TensorRef| state.device_segments.contains_key(&input.location.segment());
    let n_inputs = call.inputs.iter().filter(lies_there).count();
    (n_inputs > 0).then(|| format!("{n_inputs} lie on a device; those of a call that is dumped are in the dump"))
}

/// Why the inputs of a call are not written down. Asked before anything of them is read.
fn too_large(state_folder: &Path, call: &CallRecord, model_bytes: usize) -> Option<String> {
    let sizes = call.inputs.iter().map(|input| input.desc.len_bytes() as u64);
    let inputs = sizes.fold(0, u64::saturating_add);
    if inputs > limits::REPRODUCTION_BYTES {
        return Some(format!("{inputs} bytes: at most {} are written down", limits::REPRODUCTION_BYTES));
    }
    let needed = inputs.saturating_add(model_bytes as u64).saturating_add(limits::DISK_LEFT_BYTES);
    // A disk that does not tell is tried.
    let free = rustix::fs::statvfs(state_folder).ok()?;
    let free = free.f_bavail.saturating_mul(free.f_frsize);
    let left = limits::DISK_LEFT_BYTES;
    (free < needed).then(|| format!("{inputs} bytes: the disk has {free} free, and {left} stay free"))
}

fn io_error(path: &Path, source: io::Error) -> DumpError {
    DumpError::Io { path: path.to_owned(), action: "make private", source }
}

/// Now, for folder names: "20260131-235959", UTC.
fn stamp() -> String {
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
