//! What was exported of a graph, for later processes.

use super::state::{Answer, Connected};
use crate::base::ids::GraphId;
use crate::protocol::control::Reply;

/// The plan of a graph, if there is one.
pub fn get_plan(at: &Connected<'_>, graph: GraphId) -> Answer {
    let plan = at.daemon.plan(graph);
    // Held until it is sent.
    let held = at.hold(format_args!("plan of graph {graph}"), plan.as_ref().map_or(0, bytes::Bytes::len))?;
    at.body.set(Some(held));
    Ok(Reply::Plan(plan))
}

/// Keeps a plan. An export counts where it is of a registered graph; what else a client keeps here was not exported.
pub fn put_plan(at: &Connected<'_>, graph: GraphId, plan: &[u8]) -> Answer {
    if at.client.state().graphs.contains_key(&graph) {
        at.daemon.count_export();
    }
    // An empty one says that it holds for this process alone.
    if !plan.is_empty() {
        at.daemon.plans.put(graph, plan);
    }
    Ok(Reply::Done)
}
