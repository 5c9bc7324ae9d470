//! Replies and notices, for clients written in Rust.

use super::super::super::control::*;
use super::super::super::message::{
    Division, ErrorCode, ErrorKind, NodeRuntime, Placed, Placement, Prepared, ValueSpec, WireError,
};
use super::super::proto;
use super::field::{DecodeError, Decoded, bad, bad_tensor, missing};
use crate::base::ids::{ClientId, ExecutorId, PartHandle};
use crate::tensor::DType;

pub(super) fn reply(body: proto::reply::Body) -> Decoded<Reply> {
    use proto::reply::Body;
    Ok(match body {
        Body::Error(message) => Reply::Error(error(message)),
        Body::Welcome(welcome) => Reply::Welcome(Welcome {
            protocol: welcome.protocol,
            daemon_version: welcome.daemon_version,
            client: ClientId(welcome.client_id),
            daemon_pid: welcome.daemon_pid,
            log: welcome.log,
            pid_namespace: welcome.pid_namespace,
        }),
        Body::Done(_) => Reply::Done,
        Body::Leased(leased) => Reply::Leased(Leased {
            executor: ExecutorId(leased.executor_id),
            pid: leased.pid,
            warm: leased.warm,
            onnxruntime_version: leased.onnxruntime_version,
            log: leased.log,
        }),
        Body::Registered(registered) => Reply::Registered { known: registered.known },
        Body::Prepared(prepared) => Reply::Prepared(Prepared {
            handle: PartHandle(prepared.handle),
            built: prepared.built,
            fx_nodes: prepared.fx_nodes,
            onnx_nodes: prepared.onnx_nodes,
            inputs: prepared.inputs.into_iter().map(value_spec).collect::<Decoded<_>>()?,
            outputs: prepared.outputs.into_iter().map(value_spec).collect::<Decoded<_>>()?,
            build_us: prepared.build_us,
            frozen_inputs: prepared.frozen_inputs,
            division: Division {
                nodes: prepared.runtime_nodes.into_iter().map(runtime_nodes).collect::<Decoded<_>>()?,
                taken: prepared.rule_nodes,
                segments: prepared.segments,
            },
            placement: placement(prepared.placed, prepared.placement_unknown),
        }),
        Body::DumpOpened(opened) => Reply::DumpOpened { path: opened.path },
        Body::Observed(observed) => Reply::Observed(Observed {
            run_us: observed.run_us,
            verdicts: observed.comparison.map(verdicts).transpose()?,
            dump: observed.dump,
        }),
        Body::Comparison(comparison) => Reply::Comparison(verdicts(comparison)?),
        Body::NodesCompared(compared) => {
            Reply::NodesCompared(compared.verdicts.into_iter().map(node_verdict).collect::<Decoded<_>>()?)
        }
        Body::Plan(plan) => Reply::Plan(plan.found.then_some(plan.plan)),
        Body::Status(status) => Reply::Status(status.json),
    })
}

fn runtime_nodes(of: proto::RuntimeNodes) -> Decoded<(NodeRuntime, u32)> {
    let unknown = || {
        let why = format!("expected ort, torch or torch-f64, got {:?}", of.runtime);
        DecodeError::Bad { field: "Prepared.runtime_nodes.runtime", code: ErrorCode::BadMessage, why }
    };
    Ok((NodeRuntime::from_name(&of.runtime).ok_or_else(unknown)?, of.nodes))
}

fn placement(placed: Vec<proto::PlacedNodes>, unknown: bool) -> Placement {
    let of_one = |proto::PlacedNodes { provider, nodes, ops }| {
        (provider, Placed { nodes, ops: ops.into_iter().map(|proto::OpNodes { op, nodes }| (op, nodes)).collect() })
    };
    match (unknown, placed.is_empty()) {
        (true, _) => Placement::Unknown,
        (false, true) => Placement::CpuOnly,
        (false, false) => Placement::Told(placed.into_iter().map(of_one).collect()),
    }
}

fn error(error: proto::Error) -> WireError {
    WireError {
        kind: ErrorKind::from_code(error.kind as u32).unwrap_or(ErrorKind::Fault),
        code: ErrorCode::from_code(error.code as u32).unwrap_or(ErrorCode::Internal),
        message: error.message,
        graph: error.graph,
        node: error.node,
        dump: error.dump,
        log: error.log,
    }
}

fn value_spec(value: proto::ValueSpec) -> Decoded<ValueSpec> {
    let dtype = DType::from_onnx(value.dtype).map_err(|error| bad_tensor("ValueSpec.dtype", error.to_string()))?;
    Ok(ValueSpec { name: value.name, dtype, dims: value.dims })
}

fn node_verdict(verdict: proto::NodeVerdict) -> Decoded<NodeVerdictSummary> {
    Ok(NodeVerdictSummary {
        local: tensor_verdict(verdict.local.ok_or(missing("NodeVerdict.local"))?)?,
        cumulative: tensor_verdict(verdict.cumulative.ok_or(missing("NodeVerdict.cumulative"))?)?,
        births_json: verdict.births_json,
    })
}

fn verdicts(comparison: proto::Comparison) -> Decoded<Vec<VerdictSummary>> {
    comparison.verdicts.into_iter().map(tensor_verdict).collect()
}

fn tensor_verdict(verdict: proto::TensorVerdict) -> Decoded<VerdictSummary> {
    let kind = match verdict.verdict() {
        proto::VerdictKind::Match => VerdictKind::Match,
        proto::VerdictKind::Mismatch => VerdictKind::Mismatch,
        proto::VerdictKind::NotCompared => VerdictKind::NotCompared,
        proto::VerdictKind::Failed => VerdictKind::Failed,
        proto::VerdictKind::Noise => VerdictKind::Noise,
        proto::VerdictKind::Tie => VerdictKind::Tie,
        proto::VerdictKind::OpenOrder => VerdictKind::OpenOrder,
        proto::VerdictKind::Unspecified => {
            return Err(bad("TensorVerdict.verdict", format!("expected 1 to 7, got {}", verdict.verdict)));
        }
    };
    let proto::TensorVerdict { name, reason, metrics_json, max_abs, max_rel_to_max, outside, noise_json, .. } = verdict;
    Ok(VerdictSummary { name, kind, reason, metrics_json, max_abs, max_rel_to_max, outside, noise_json })
}

pub(super) fn notice(body: proto::notice::Body) -> Notice {
    match body {
        proto::notice::Body::ExecutorLost(lost) => Notice::ExecutorLost {
            executor: ExecutorId(lost.executor_id),
            calls: lost.calls.into_iter().map(error).collect(),
            cause: lost.cause,
        },
        proto::notice::Body::ShuttingDown(notice) => Notice::ShuttingDown { reason: notice.reason },
    }
}
