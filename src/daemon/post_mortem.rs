//! After an executor died: what was it doing? Written down before anyone is told.

use std::sync::Arc;

use super::client::{Client, Part, RunningNodes};
use super::errors::fault;
use super::executor::Executor;
use super::quarantine::Death;
use super::{Daemon, stamp};
use crate::dump::{self, DumpError};
use crate::ids::{StepId, ValueName};
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
            let folder = match save(daemon, client, &victim, cause) {
                Ok(folder) => folder,
                Err(error) => {
                    tracing::error!(graph = victim.graph.name, %error, "quarantine: could not be written");
                    String::new()
                }
            };
            bury(daemon, executor, &victim, cause, folder)
        })
        .collect();
    client.notify(&Notice::ExecutorLost { executor: executor.id, calls: calls.clone(), cause: cause.to_owned() });
    calls
}

/// The call that the connection waits for comes first.
fn victims(client: &Client) -> Vec<Victim> {
    let state = client.state();
    let graph_of = |part: &Arc<Part>| state.graphs.get(&part.spec.part.graph).cloned();
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

fn save(daemon: &Daemon, client: &Client, victim: &Victim, cause: &str) -> Result<String, DumpError> {
    let Victim { part, graph, call, node } = victim;
    let run_json = serde_json::json!({
        "program": client.hello.program,
        "torch_version": client.hello.torch_version,
        "cause": cause,
        "call": call.as_ref().map(|call| call.call),
        "node": node,
    });
    let run = dump::Run::open(&dump::RunSpec {
        folder: daemon.state_folder.join("quarantine"),
        run: format!("{}-{}-{}", stamp(), graph.graph.short(), daemon.next_number()),
        clean: false,
        calls: CallsToDump::All,
        run_json: run_json.to_string(),
        keep_steps: None,
    })?;
    // The client's own texts may be no JSON: what they say is then less important than the model.
    let folder =
        run.graph(&graph.record()).or_else(|_| run.graph(&dump::GraphRecord { parts_json: "{}", ..graph.record() }))?;
    let (index, model) = (part.spec.part.part, &part.spec.part.model);
    run.part(&folder, index, model, &part.spec.provenance_json).or_else(|_| run.part(&folder, index, model, "{}"))?;
    // As exported and nothing else: no pass runs here over a model that has just killed a process.
    if let Some(call) = call {
        let lease = client.state().segments.lease(&call.inputs, &[]);
        match lease {
            Ok(lease) => {
                let views = lease.inputs();
                let names = (0..views.len())
                    .map(|i| part.inputs.get(i).map_or_else(|| format!("input_{i}"), |v| v.name.clone()));
                let inputs: Vec<(ValueName, SharedTensor<'_>)> = names.zip(views.iter().copied()).collect();
                let step = run.begin_step(&folder, index, StepId(0), &inputs)?;
                run.finish(&step);
            }
            Err(error) => tracing::warn!(%error, "quarantine: inputs left out"),
        }
    }
    let report = run.flush();
    if let Some(lost) = report.lost.first() {
        tracing::warn!(lost, n = report.lost.len(), "quarantine: incomplete");
    }
    Ok(run.path().display().to_string())
}

fn bury(daemon: &Daemon, executor: &Executor, victim: &Victim, cause: &str, dump: String) -> WireError {
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
    let message = format!(
        "executor {} (pid {}) died {doing}: {cause} (death {deaths} in a row of this part); model and inputs are in \
         {dump}; run again, a new executor starts by itself",
        executor.id.0, executor.pid
    );
    tracing::error!(graph = name, part = index, deaths, dump, "quarantined");
    let mut error = fault(ErrorCode::ExecutorLost, message);
    error.node.clone_from(&victim.node);
    (error.graph, error.dump, error.log) = (name.clone(), dump, executor.log.display().to_string());
    error
}
