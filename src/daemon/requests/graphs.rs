//! Graphs that the client names, and what of them runs in eager.

use super::state::{Answer, Connected};
use crate::base::ids::{GraphId, Work};
use crate::protocol::control::{RegisterGraph, Reply};

/// Makes a graph known; one that is dumped is written down.
pub fn register(at: &Connected<'_>, mut graph: RegisterGraph) -> Answer {
    let id = graph.graph;
    let known = at.daemon.has_graph(id);
    // One that came twice has room for the longer one.
    let RegisterGraph { name, dynamo_text, joint_text, fx_text, parts_json, .. } = &mut graph;
    [name, dynamo_text, joint_text, fx_text, parts_json].into_iter().for_each(String::shrink_to_fit);
    let again = at.client.state().known(id).is_ok_and(|known| known.name == graph.name);
    let mut before = None;
    if !again {
        let held = at.hold(format_args!("texts of graph {}", graph.name), graph.kept_bytes())?;
        before = at.client.state().register(graph, held)?;
    }
    if let Some(dumping) = at.dumping() {
        dumping.known(id, Work::Request(at.id)).inspect_err(|_| {
            if !again {
                at.client.state().unregister(id, before);
            }
        })?;
    }
    Ok(Reply::Registered { known })
}

/// Counts nodes that ran in eager.
pub fn report_eager(at: &Connected<'_>, graph: GraphId, eager_nodes: u32) -> Answer {
    at.client.state().known(graph)?;
    at.daemon.count_eager(eager_nodes);
    Ok(Reply::Done)
}
