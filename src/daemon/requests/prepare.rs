//! Parts of graphs: a session each, in the client's executor.

use std::sync::Arc;

use bytes::Bytes;

use super::state::{Answer, Connected, Leased, unexpected};
use crate::base::ids::Work;
use crate::base::limits;
use crate::daemon::client::Part;
use crate::link::message::{LinkReply, LinkRequest};
use crate::protocol::control::{PreparePart, Reply};
use crate::protocol::message::{ErrorCode, WireError};

/// Makes a part's session; a part that is dumped is written down before, and what became of it after.
pub fn prepare(leased: &Leased<'_>, mut prepare: PreparePart) -> Answer {
    let at = leased.at;
    let name = may_prepare(at, &prepare)?;
    keep_alone(&mut prepare, at.len_bytes);
    let part = Arc::new(Part::new(prepare, Vec::new(), Vec::new(), None));
    let what = format_args!("model of graph {name}, part {}", part.spec.part.part).to_string();
    let held = at.hold(format_args!("{what}"), part.kept_bytes())?;
    let dumping = at.dumping();
    let folder = dumping.as_ref().map(|dumping| dumping.part(&part)).transpose()?;
    let new = dumping.as_ref().zip(folder.as_ref()).filter(|(_, folder)| folder.new);
    leased.executor.loads(&part.spec.part.session.custom_op_libraries);
    at.client.state().preparing = Some(Arc::clone(&part));
    if let Some((dumping, folder)) = new {
        dumping.precision(leased, folder, &part, Work::Request(at.id));
    }
    let (of_executor, frozen) = (part.spec.part.clone(), part.spec.frozen.clone());
    let reply = leased.ask(&LinkRequest::Prepare { request: at.id, part: of_executor, frozen });
    at.client.state().preparing = None;
    let prepared = match reply {
        Ok(LinkReply::Prepared(prepared)) => Ok(prepared),
        Ok(other) => Err(unexpected("Prepare", &other)),
        // The executor knows the hash only.
        Err(error) => Err(WireError { graph: name, ..error }),
    };
    // Another model may come in this one's place.
    let prepared = prepared.inspect_err(|_| dumping.iter().for_each(|dumping| dumping.forget(&part)))?;
    if let Some((dumping, folder)) = new {
        dumping.optimized(leased, folder, &part, Work::Request(at.id));
    }
    for library in &part.spec.part.session.custom_op_libraries {
        at.daemon.libraries.remember_soon(&library.path);
    }
    let (inputs, outputs) = (prepared.inputs.clone(), prepared.outputs.clone());
    let part = Part::new(part.spec.clone(), inputs, outputs, Some(held));
    at.client.state().parts.insert(prepared.handle, Arc::new(part));
    Ok(Reply::Prepared(prepared))
}

/// The model is a part of its request's bytes, which would all stay with it: copied where that is much more. A text that
/// came twice has room for the longer one.
fn keep_alone(prepare: &mut PreparePart, request_bytes: usize) {
    let model = &mut prepare.part.model;
    if request_bytes > model.len() + model.len() / 8 {
        *model = Bytes::copy_from_slice(model);
    }
    prepare.provenance_json.shrink_to_fit();
}

/// The name of the part's graph. Errors: UnknownGraph, Quarantined, Limit.
fn may_prepare(at: &Connected<'_>, prepare: &PreparePart) -> Result<String, WireError> {
    let (graph, index) = (prepare.part.graph, prepare.part.part);
    let state = at.client.state();
    let name = state.known(graph)?.name.clone();
    at.daemon.post_mortem.quarantine.check(graph, index)?;
    if state.parts.len() >= limits::PARTS {
        let why =
            format!("{} parts are prepared already; drop compiled functions (torch._dynamo.reset())", limits::PARTS);
        return Err(WireError::client(ErrorCode::Limit, why));
    }
    Ok(name)
}
