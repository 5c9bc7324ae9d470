//! Requests: one function each, which takes the state that it is legal in ([`state`]) and answers. No transport.
//!
//! Those that take long ([`takes_long`]) come one at a time, in the order of coming; the others also while one of those is
//! served.

mod compare;
mod dump_contents;
pub(super) mod dumps;
mod get_status;
mod graphs;
mod lease;
mod nodes;
mod observed;
mod on_device;
mod plans;
mod prepare;
mod release;
mod segments;
mod state;
mod stop;

use std::os::fd::OwnedFd;

pub use state::{Answer, Connected};

use crate::daemon::verdicts::policy;
use crate::protocol::control::{Reply, Request};
use crate::protocol::message::{ErrorCode, WireError};

/// Whether a request may wait for a disk or a runtime, or compute: it is then served one at a time, in the order of
/// coming. The others are answered at once, also while such a one is served.
pub fn takes_long(request: &Request) -> bool {
    match request {
        Request::Hello(_)
        | Request::AttachSegment { .. }
        | Request::AttachDeviceSegment(_)
        | Request::DetachSegment(_)
        | Request::OpenLane(_)
        | Request::OpenLaneEvents(_)
        | Request::OpenSlot(_)
        | Request::ReportEager { .. }
        | Request::Release(_)
        | Request::CancelCall(_)
        | Request::GetStatus
        | Request::Stop { .. } => false,
        Request::LeaseExecutor(_)
        | Request::RegisterGraph(_)
        | Request::PreparePart(_)
        | Request::OpenDump(_)
        | Request::CloseDump
        | Request::FlushDump
        | Request::RunObserved(_)
        | Request::CompareTensors { .. }
        | Request::CompareNodes(_)
        | Request::SettleNode(_)
        | Request::FinishNodes(_)
        | Request::GetPlan(_)
        | Request::PutPlan { .. } => true,
    }
}

/// The reply to a request; `fd` came with it. Errors: what the client is told; nothing has changed then.
pub fn answer(at: &Connected<'_>, request: Request, fd: Option<OwnedFd>) -> Answer {
    if fd.is_some() && !matches!(request, Request::AttachSegment { .. }) {
        let why = format!("{} came with a descriptor; send one with AttachSegment only", request.name());
        return Err(WireError::client(ErrorCode::BadMessage, why));
    }
    match request {
        Request::Hello(_) => Err(at.bad_state("answered already; send it once")),
        Request::AttachSegment { segment, len_bytes, lanes } => segments::attach(at, (segment, len_bytes, lanes), fd),
        Request::DetachSegment(segment) => segments::detach(at, segment),
        Request::LeaseExecutor(spec) => lease::lease(at, &spec),
        Request::AttachDeviceSegment(spec) => segments::attach_device(&at.leased()?, spec),
        Request::OpenLane(lane) => segments::open_lane(&at.leased()?, lane),
        Request::OpenLaneEvents(spec) => segments::open_lane_events(&at.leased()?, spec),
        Request::OpenSlot(spec) => segments::open_slot(&at.leased()?, spec),
        Request::RegisterGraph(graph) => graphs::register(at, *graph),
        Request::PreparePart(part) => prepare::prepare(&at.leased()?, *part),
        Request::OpenDump(open) => dumps::open(at, open),
        Request::CloseDump => dumps::close(at),
        Request::FlushDump => dumps::flush(at),
        Request::RunObserved(run) => observed::run_observed(&at.leased()?, &run),
        Request::CompareTensors { pairs, tolerance, noise, through, settles } => {
            compare::compare(at, &pairs, policy(tolerance, through, noise), settles)
        }
        Request::ReportEager { graph, eager_nodes } => graphs::report_eager(at, graph, eager_nodes),
        Request::CompareNodes(compare) => nodes::compare_nodes(&at.leased()?, &compare),
        Request::SettleNode(settle) => nodes::settle_node(at, &settle),
        Request::FinishNodes(finish) => nodes::finish_nodes(at, finish),
        Request::GetPlan(graph) => plans::get_plan(at, graph),
        Request::PutPlan { graph, plan } => plans::put_plan(at, graph, &plan),
        Request::Release(release) => release::release(at, &release),
        Request::CancelCall(work) => observed::cancel(&at.leased()?, work),
        Request::GetStatus => Ok(Reply::Status(get_status::json(at.daemon))),
        Request::Stop { force } => stop::stop(at, force),
    }
}
