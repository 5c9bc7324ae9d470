//! An executor for the client.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use super::state::{Answer, Connected};
use crate::base::sync::lock;
use crate::daemon::executors::Executor;
use crate::link::message::LinkRequest;
use crate::protocol::control::{LeaseSpec, Leased, Reply};
use crate::protocol::message::{ErrorCode, WireError};

/// Lends an executor; what the client has attached is shown to it.
pub fn lease(at: &Connected<'_>, spec: &LeaseSpec) -> Answer {
    let held = at.client.state().executor.clone();
    if let Some(held) = held {
        if !held.is_gone() {
            let why = format!("executor {} is leased already; one connection holds one executor", held.id.0);
            return Err(WireError::client(ErrorCode::BadState, why));
        }
        // Its post-mortem reads this client's calls: it must be over before the next executor serves them.
        held.lost();
        at.client.state().end_lease();
    }
    let (executor, warm) = at.daemon.pool.lease(spec, at.client.id)?;
    if let Err(error) = take(at, &executor) {
        at.daemon.pool.give_back(&executor);
        return Err(error);
    }
    Ok(Reply::Leased(Leased {
        executor: executor.id,
        pid: executor.pid,
        warm,
        onnxruntime_version: executor.onnxruntime_version.clone(),
        log: executor.log.display().to_string(),
    }))
}

/// Shows the client's segments to its new executor. Errors: the executor's; BadState when the client left meanwhile.
fn take(at: &Connected<'_>, executor: &Arc<Executor>) -> Result<(), WireError> {
    let _in_turn = lock(&at.client.showing);
    let serve = LinkRequest::Serve { pid: at.client.visible_pid(), cpus: at.client.hello.cpus.clone() };
    at.ask_quickly(executor, ("whom to serve", &serve), None)?;
    hand_segments(at, executor)?;
    let mut state = at.client.state();
    if state.gone {
        return Err(WireError::client(ErrorCode::BadState, "the client has left"));
    }
    state.executor = Some(Arc::clone(executor));
    Ok(())
}

fn hand_segments(at: &Connected<'_>, executor: &Executor) -> Result<(), WireError> {
    let mut segments = Vec::new();
    {
        let state = at.client.state();
        let out_of_fds = |error: std::io::Error| WireError::fault(ErrorCode::Internal, error.to_string());
        if let Some(lanes) = &state.lanes {
            let segment = lanes.segment();
            segments.push((segment.id(), segment.len_bytes(), true, segment.try_clone_fd().map_err(out_of_fds)?));
        }
        for segment in state.segments.iter() {
            segments.push((segment.id(), segment.len_bytes(), false, segment.try_clone_fd().map_err(out_of_fds)?));
        }
    }
    for (segment, len_bytes, lanes, fd) in segments {
        let attach = LinkRequest::Attach { segment, len_bytes, lanes };
        at.ask_quickly(executor, ("a segment", &attach), Some(fd.as_fd()))?;
    }
    Ok(())
}
