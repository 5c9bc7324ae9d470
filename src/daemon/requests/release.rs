//! What a client names no more: its parts, and graphs without any other part.

use std::collections::BTreeSet;

use super::state::{Answer, Connected};
use crate::base::ids::{GraphId, PartHandle};
use crate::daemon::client::{Part, State};
use crate::link::message::LinkRequest;
use crate::protocol::control::{Release, Reply};
use crate::protocol::message::{ErrorCode, WireError};

/// Forgets graphs and parts of the client's; the executor ends the sessions that nothing else uses. What cannot go
/// keeps nothing else: it is named in the error. Errors: UnknownGraph for what is not there, BadState for a graph that
/// is in use.
pub fn release(at: &Connected<'_>, release: &Release) -> Answer {
    let (executor, gone, released, refused) = {
        let mut state = at.client.state();
        let (released, refused) = releasable(&state, release);
        let gone = take_released(&mut state, &released);
        (state.executor.clone(), gone, released, refused)
    };
    drop(gone);
    let handles = released.handles;
    if let Some(executor) = executor.filter(|executor| !executor.is_gone() && !handles.is_empty()) {
        match at.ask_quickly(&executor, (at.asked, &LinkRequest::Release { handles }), None) {
            Err(error) if !executor.is_gone() => return Err(error),
            _ => {}
        }
    }
    refused.map_or(Ok(Reply::Done), Err)
}
/// Handles that an error names, and what it names in all is twice that; it counts the others.
const NAMED: usize = 10;

/// What of it can go, each once, and the error that names the rest.
fn releasable(state: &State, release: &Release) -> (Release, Option<WireError>) {
    let asked: BTreeSet<PartHandle> = release.handles.iter().copied().collect();
    let (known, unknown) = asked.into_iter().partition(|handle| state.parts.contains_key(handle));
    let mut going = Release { handles: known, graphs: Vec::new() };
    let unknown: Vec<PartHandle> = unknown;
    let named = unknown.iter().take(NAMED).map(|handle| {
        let why = format!("handle {}: not of this lease; release what was prepared in it", handle.0);
        WireError::client(ErrorCode::UnknownGraph, why)
    });
    let mut refused: Vec<WireError> = named.collect();
    let mut n_left_out = unknown.len() - refused.len();
    for &graph in &release.graphs {
        match may_release(state, graph, &going.handles) {
            Ok(()) => going.graphs.push(graph),
            Err(error) if refused.len() < 2 * NAMED => refused.push(error),
            Err(_) => n_left_out += 1,
        }
    }
    let mut why: Vec<String> = refused.iter().map(|error| error.message.clone()).collect();
    if n_left_out > 0 {
        why.push(format!("and {n_left_out} more"));
    }
    let message = format!("Release: {}; whatever else it names is released", why.join("; "));
    (going, refused.into_iter().next().map(|first| WireError { message, ..first }))
}

/// `going`: in order. Errors: UnknownGraph, BadState for a graph that is in use.
fn may_release(state: &State, graph: GraphId, going: &[PartHandle]) -> Result<(), WireError> {
    let name = &state.known(graph)?.name;
    let of_graph = |part: &Part| part.spec.part.graph == graph;
    let stay = state.parts.iter().filter(|(handle, part)| of_graph(part) && going.binary_search(handle).is_err());
    let stay: Vec<PartHandle> = stay.map(|(handle, _)| *handle).collect();
    let n_left_out = stay.len().saturating_sub(NAMED);
    let mut stay: Vec<String> = stay.iter().take(NAMED).map(|handle| format!("handle {}", handle.0)).collect();
    if n_left_out > 0 {
        stay.push(format!("{n_left_out} more"));
    }
    if state.preparing.as_deref().is_some_and(of_graph) {
        stay.push("one that is being prepared".to_owned());
    }
    if stay.is_empty() {
        return Ok(());
    }
    let why = format!("graph {name} has parts that stay ({}); release their handles with it", stay.join(", "));
    Err(WireError { graph: name.clone(), ..WireError::client(ErrorCode::BadState, why) })
}

/// Takes out what [`releasable`] allowed: its end may take its time, which the lock shall not.
fn take_released(state: &mut State, release: &Release) -> impl Sized + use<> {
    let parts: Vec<_> = release.handles.iter().filter_map(|handle| state.parts.remove(handle)).collect();
    let graphs: Vec<_> = release.graphs.iter().filter_map(|graph| state.graphs.remove(graph)).collect();
    for graph in &release.graphs {
        state.dumped.remove(graph);
        state.node_tables.forget(*graph);
    }
    (parts, graphs)
}
