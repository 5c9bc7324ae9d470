//! After an executor died: what was it doing? Written down before anyone is told.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::base::ids::{StepId, ValueName};
use crate::base::limits;
use crate::daemon::client::{Client, Part, RunningNodes};
use crate::daemon::errors::fault;
use crate::daemon::executors::process::Executor;
use crate::daemon::executors::quarantine::Death;
use crate::daemon::old_state;
use crate::daemon::paths;
use crate::daemon::shared::Daemon;
use crate::daemon::status::stamp;
use crate::dump::{self, DumpError};
use crate::protocol::control::{CallsToDump, Notice, RegisterGraph};
use crate::protocol::message::{ErrorCode, WireError};
use crate::tensor::{CallRecord, SharedTensor};

/// A part that was being prepared (no call) or run.
struct Victim {
    part: Arc<Part>,
    graph: Arc<RegisterGraph>,
    call: Option<CallRecord>,
    /// When it is a piece of a part: the node, or the first and the last of several. Else empty.
    node: String,
}

/// Writes down what `client` was running on `executor`, tells the client, returns an error a call.
pub fn examine(daemon: &Daemon, client: &Client, executor: &Executor, cause: &str) -> Vec<WireError> {
    let calls: Vec<WireError> = victims(client)
        .into_iter()
        .map(|victim| {
            let saved = save(daemon, client, &victim, cause).unwrap_or_else(|error| {
                tracing::error!(graph = victim.graph.name, %error, "quarantine: could not be written");
                Saved { folder: String::new(), inputs_left_out: None }
            });
            bury(daemon, executor, &victim, cause, saved)
        })
        .collect();
    client.notify(&Notice::ExecutorLost { executor: executor.id, calls: calls.clone(), cause: cause.to_owned() });
    calls
}

/// The call that the connection waits for comes first.
fn victims(client: &Client) -> Vec<Victim> {
    let state = client.state();
    let graph_of = |part: &Arc<Part>| state.graphs.get(&part.spec.part.graph).map(|known| Arc::clone(&known.graph));
    let nodes = state.running_nodes.clone().into_iter().filter_map(|RunningNodes { node, part, record }| {
        Some(Victim { graph: graph_of(&part)?, part, call: Some(record), node })
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

fn save(daemon: &Daemon, client: &Client, victim: &Victim, cause: &str) -> Result<Saved, DumpError> {
    let Victim { part, graph, call, node } = victim;
    let inputs_left_out =
        call.as_ref().and_then(|call| too_large(&daemon.state_folder, call, part.spec.part.model.len()));
    let run_json = serde_json::json!({
        "program": client.hello.program,
        "torch_version": client.hello.torch_version,
        "cause": cause,
        "call": call.as_ref().map(|call| call.call),
        "node": node,
        "inputs_left_out": inputs_left_out,
    });
    let run = open(daemon, graph, run_json.to_string())?;
    // The client's own texts may be no JSON: what they say is then less important than the model.
    let folder =
        run.graph(&graph.record()).or_else(|_| run.graph(&dump::GraphRecord { parts_json: "{}", ..graph.record() }))?;
    let (index, model) = (part.spec.part.part, &part.spec.part.model);
    run.part(&folder, index, model, &part.spec.provenance_json).or_else(|_| run.part(&folder, index, model, "{}"))?;
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
fn open(daemon: &Daemon, graph: &RegisterGraph, run_json: String) -> Result<dump::Run, DumpError> {
    let quarantine = daemon.state_folder.join("quarantine");
    let name = format!("{}-{}-{}", stamp(), graph.graph.short(), daemon.next_number());
    let folder = quarantine.join(&name);
    for private in [&quarantine, &folder] {
        paths::make_private(private).map_err(|source| io_error(private, source))?;
    }
    old_state::remove_surplus_quarantine(&quarantine);
    let (clean, calls) = (false, CallsToDump::All);
    dump::Run::open(&dump::RunSpec { folder: quarantine, run: name, clean, calls, run_json })
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

fn bury(daemon: &Daemon, executor: &Executor, victim: &Victim, cause: &str, saved: Saved) -> WireError {
    let Saved { folder: dump, inputs_left_out } = saved;
    let (name, index) = (&victim.graph.name, victim.part.spec.part.part);
    let deaths = daemon.quarantine.record(Death {
        graph: victim.graph.graph,
        name: name.clone(),
        part: index,
        deaths_in_a_row: 0,
        dump: dump.clone(),
        cause: cause.to_owned(),
    });
    let doing = match &victim.call {
        Some(_) if !victim.node.is_empty() => {
            format!("comparing node {} of graph {name}, part {index}, with eager", victim.node)
        }
        Some(call) => format!("in call {} of graph {name}, part {index}", call.call.0),
        None => format!("while making the session of graph {name}, part {index}"),
    };
    let what = match inputs_left_out {
        None => "model and inputs are".to_owned(),
        Some(why) => format!("the model, without its inputs ({why}), is"),
    };
    let message = format!(
        "executor {} (pid {}) died {doing}: {cause} (death {deaths} in a row of this part); {what} in {dump}; run again, \
         a new executor starts by itself",
        executor.id.0, executor.pid
    );
    tracing::error!(graph = name, part = index, deaths, dump, "quarantined");
    let mut error = fault(ErrorCode::ExecutorLost, message);
    error.node.clone_from(&victim.node);
    (error.graph, error.dump, error.log) = (name.clone(), dump, executor.log.display().to_string());
    error
}
