//! Domain types → generated types.

use prost::Message as _;

use super::super::control::*;
use super::super::frame::{self, FrameKind};
use super::super::message::{
    CustomOpLibrary, FrozenInput, PartSpec, Placed, Placement, RuntimeRule, ValueSpec, WireError,
};
use super::proto;
use crate::base::ids::Work;
use crate::tensor::{CallRecord, DType, TensorRef};

/// A whole frame. Errors: [`frame::FrameError::Length`].
pub fn encode_request(request_id: u64, request: &Request) -> Result<Vec<u8>, frame::FrameError> {
    let message = proto::Request { request_id, body: Some(request_to_proto(request)) };
    frame::encode(FrameKind::Request, &message.encode_to_vec())
}

/// A whole frame. Errors: [`frame::FrameError::Length`].
pub fn encode_reply(request_id: u64, reply: &Reply) -> Result<Vec<u8>, frame::FrameError> {
    let message = proto::Reply { request_id, body: Some(reply_to_proto(reply)) };
    frame::encode(FrameKind::Reply, &message.encode_to_vec())
}

/// A whole frame. Errors: [`frame::FrameError::Length`].
pub fn encode_notice(notice: &Notice) -> Result<Vec<u8>, frame::FrameError> {
    let body = match notice {
        Notice::ExecutorLost { executor, calls, cause } => proto::notice::Body::ExecutorLost(proto::ExecutorLost {
            executor_id: executor.0,
            calls: calls.iter().map(error_to_proto).collect(),
            cause: cause.clone(),
        }),
        Notice::ShuttingDown { reason } => {
            proto::notice::Body::ShuttingDown(proto::ShuttingDown { reason: reason.clone() })
        }
    };
    frame::encode(FrameKind::Notice, &proto::Notice { body: Some(body) }.encode_to_vec())
}

fn request_to_proto(request: &Request) -> proto::request::Body {
    use proto::request::Body;
    match request {
        Request::Hello(hello) => Body::Hello(proto::Hello {
            protocol: hello.protocol,
            shim_version: hello.shim_version.clone(),
            pid: hello.pid,
            python_version: hello.python_version.clone(),
            torch_version: hello.torch_version.clone(),
            program: hello.program.clone(),
            pid_namespace: hello.pid_namespace,
            cpus: hello.cpus.clone(),
        }),
        Request::AttachSegment { segment, len_bytes, lanes } => Body::AttachSegment(proto::AttachSegment {
            segment: segment.0,
            len_bytes: *len_bytes,
            kind: if *lanes { proto::SegmentKind::Lanes } else { proto::SegmentKind::Data }.into(),
        }),
        Request::AttachDeviceSegment(spec) => Body::AttachDeviceSegment(proto::AttachDeviceSegment {
            segment: spec.segment.0,
            len_bytes: spec.len_bytes,
            device: spec.device.0.to_vec(),
            handle: spec.handle.bytes().to_vec(),
        }),
        Request::DetachSegment(segment) => Body::DetachSegment(proto::DetachSegment { segment: segment.0 }),
        Request::LeaseExecutor(lease) => Body::LeaseExecutor(proto::LeaseExecutor {
            onnxruntime_library: lease.onnxruntime_library.to_string_lossy().into_owned(),
            threads: lease.threads,
            allow_spinning: lease.allow_spinning,
            libtorch: lease.libtorch.as_ref().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default(),
            cuda_visible_devices: lease.cuda_visible_devices.clone(),
            niceness: lease.niceness,
            environment: lease.environment.clone().map(|variables| proto::Environment { variables }),
            library_folders: lease.library_folders.iter().map(|path| path.to_string_lossy().into_owned()).collect(),
            custom_op_libraries: lease.custom_op_libraries.iter().map(custom_op_library_to_proto).collect(),
        }),
        Request::CancelCall(Work::Call(call)) => Body::CancelCall(proto::CancelCall { call_id: call.0, request_id: 0 }),
        Request::CancelCall(Work::Request(request_id)) => {
            Body::CancelCall(proto::CancelCall { call_id: 0, request_id: *request_id })
        }
        Request::OpenLane(lane) => Body::OpenLane(proto::OpenLane { lane: *lane }),
        Request::OpenLaneEvents(spec) => Body::OpenLaneEvents(proto::OpenLaneEvents {
            lane: spec.lane,
            device: spec.device.0.to_vec(),
            ready: spec.ready.bytes().to_vec(),
            done: spec.done.bytes().to_vec(),
        }),
        Request::OpenSlot(spec) => Body::OpenSlot(proto::OpenSlot { slot: spec.slot, device: spec.device.0.to_vec() }),
        Request::RegisterGraph(graph) => Body::RegisterGraph(proto::RegisterGraph {
            graph_id: graph.graph.to_string(),
            name: graph.name.clone(),
            direction: match graph.direction {
                Direction::Forward => proto::Direction::Forward,
                Direction::Backward => proto::Direction::Backward,
                Direction::Inference => proto::Direction::Inference,
            }
            .into(),
            dynamo_text: graph.dynamo_text.clone(),
            joint_text: graph.joint_text.clone(),
            fx_text: graph.fx_text.clone(),
            parts_json: graph.parts_json.clone(),
        }),
        Request::PreparePart(prepare) => Body::PreparePart(prepare_part_to_proto(prepare)),
        Request::OpenDump(open) => Body::OpenDump(proto::OpenDump {
            folder: open.folder.to_string_lossy().into_owned(),
            run: open.run.clone(),
            clean: open.clean,
            calls: match open.calls {
                CallsToDump::None => proto::DumpCalls::None,
                CallsToDump::First => proto::DumpCalls::First,
                CallsToDump::All => proto::DumpCalls::All,
            }
            .into(),
            run_json: open.run_json.clone(),
            umask: open.umask,
            answered: open.answered.iter().map(|path| path.to_string_lossy().into_owned()).collect(),
        }),
        Request::CloseDump => Body::CloseDump(proto::CloseDump {}),
        Request::FlushDump => Body::FlushDump(proto::FlushDump {}),
        Request::RunObserved(run) => Body::RunObserved(proto::RunObserved {
            call: Some(call_to_proto(&run.record)),
            graph_id: run.graph.to_string(),
            part: run.part,
            step: run.step.0,
            dump: run.dump,
            compare: run.references.is_some(),
            references: run.references.iter().flatten().map(tensor_ref_to_proto).collect(),
            tolerance: run.tolerance.map(tolerance_to_proto),
            through: through_to_proto(run.through),
            noise: run.noise.map(noise_to_proto),
        }),
        Request::CompareTensors { pairs, tolerance, noise, through, settles } => {
            Body::CompareTensors(proto::CompareTensors {
                pairs: pairs.iter().map(pair_to_proto).collect(),
                tolerance: tolerance.map(tolerance_to_proto),
                noise: noise.map(noise_to_proto),
                through: through_to_proto(*through),
                settles: settles.map(|of| proto::ObservedStep {
                    graph_id: of.graph.to_string(),
                    part: of.part,
                    step: of.step.0,
                }),
            })
        }
        Request::ReportEager { graph, eager_nodes } => {
            Body::ReportEager(proto::ReportEager { graph_id: graph.to_string(), eager_nodes: *eager_nodes })
        }
        Request::CompareNodes(compare) => Body::CompareNodes(compare_nodes_to_proto(compare)),
        Request::SettleNode(settle) => Body::SettleNode(proto::SettleNode {
            graph_id: settle.of.graph.to_string(),
            part: settle.of.part,
            step: settle.of.step.0,
            name: settle.name.clone(),
            ..settled_by_to_proto(&settle.by)
        }),
        Request::FinishNodes(finish) => Body::FinishNodes(proto::FinishNodes {
            graph_id: finish.of.graph.to_string(),
            part: finish.of.part,
            step: finish.of.step.0,
            dump: finish.dump,
            plain: finish.plain.iter().map(pair_to_proto).collect(),
            tolerance: finish.tolerance.map(tolerance_to_proto),
            through: through_to_proto(finish.through),
        }),
        Request::GetPlan(graph) => Body::GetPlan(proto::GetPlan { graph_id: graph.to_string() }),
        Request::PutPlan { graph, plan } => {
            Body::PutPlan(proto::PutPlan { graph_id: graph.to_string(), plan: plan.clone() })
        }
        Request::Release(release) => Body::Release(proto::Release {
            handles: release.handles.iter().map(|handle| handle.0).collect(),
            graph_ids: release.graphs.iter().map(ToString::to_string).collect(),
        }),
        Request::GetStatus => Body::GetStatus(proto::GetStatus {}),
        Request::Stop { force } => Body::Stop(proto::Stop { force: *force }),
    }
}

fn prepare_part_to_proto(prepare: &PreparePart) -> proto::PreparePart {
    // What is described is read of the provenance.
    let PartSpec { graph, part, model, session, fx_values, named_values, described: _ } = &prepare.part;
    proto::PreparePart {
        graph_id: graph.to_string(),
        part: *part,
        model: model.clone(),
        session: Some(proto::SessionSpec {
            providers: session
                .providers
                .iter()
                .map(|(name, options)| proto::Provider { name: name.clone(), options: options.clone() })
                .collect(),
            optimization: session.optimization.name().to_owned(),
            config: session.config.clone(),
            disabled_optimizers: session.disabled_optimizers.clone(),
            custom_op_libraries: session.custom_op_libraries.iter().map(custom_op_library_to_proto).collect(),
            disabled_passes: session.disabled_passes.clone(),
            runtimes: session.runtimes.iter().map(runtime_rule_to_proto).collect(),
            keep_float32: session.keep_float32.clone(),
            device: session.device.map(|device| device.0.to_vec()).unwrap_or_default(),
        }),
        provenance_json: prepare.provenance_json.clone(),
        fx_values: fx_values.clone(),
        named_values: named_values.clone(),
        frozen: prepare.frozen.iter().map(frozen_input_to_proto).collect(),
    }
}

fn frozen_input_to_proto(frozen: &FrozenInput) -> proto::FrozenInput {
    proto::FrozenInput { input: frozen.input, tensor: Some(tensor_ref_to_proto(&frozen.tensor)) }
}

fn runtime_rule_to_proto(rule: &RuntimeRule) -> proto::RuntimeRule {
    proto::RuntimeRule { runtime: rule.runtime.name().to_owned(), patterns: rule.patterns.clone() }
}

fn custom_op_library_to_proto(library: &CustomOpLibrary) -> proto::CustomOpLibrary {
    proto::CustomOpLibrary {
        path: library.path.to_string_lossy().into_owned(),
        len_bytes: library.len_bytes,
        modified_ns: library.modified_ns,
    }
}

fn compare_nodes_to_proto(compare: &CompareNodes) -> proto::CompareNodes {
    proto::CompareNodes {
        handle: compare.handle.0,
        graph_id: compare.of.graph.to_string(),
        part: compare.of.part,
        step: compare.of.step.0,
        feeds: compare.feeds.iter().map(node_feed_to_proto).collect(),
        values: compare.values.iter().map(node_value_to_proto).collect(),
        tolerance: compare.tolerance.map(tolerance_to_proto),
        cumulative_tolerance: compare.cumulative_tolerance.map(tolerance_to_proto),
        dump_values: compare.dump_values,
        noise: compare.noise.map(noise_to_proto),
        through: through_to_proto(compare.through),
    }
}

fn node_feed_to_proto(feed: &NodeFeed) -> proto::NodeFeed {
    proto::NodeFeed {
        name: feed.name.clone(),
        reference: Some(tensor_ref_to_proto(&feed.reference)),
        candidate: Some(tensor_ref_to_proto(&feed.candidate)),
    }
}

fn node_value_to_proto(value: &NodeValue) -> proto::NodeValue {
    match value {
        NodeValue::Computed(node) => proto::NodeValue {
            name: node.name.clone(),
            reference: Some(tensor_ref_to_proto(&node.reference)),
            candidate: Some(tensor_ref_to_proto(&node.candidate)),
            local: node.local.as_ref().map(tensor_ref_to_proto),
            reference_ns: node.reference_ns,
            not_compared: String::new(),
            judge: node.local.is_some(),
            exact: node.float64.local.as_ref().map(tensor_ref_to_proto),
            exact_cumulative: node.float64.cumulative.as_ref().map(tensor_ref_to_proto),
            no_float64: node.float64.missing.clone(),
            nothing: false,
        },
        NodeValue::NotCompared { name, reason, nothing } => proto::NodeValue {
            name: name.clone(),
            not_compared: reason.clone(),
            nothing: *nothing,
            ..Default::default()
        },
    }
}

fn call_to_proto(record: &CallRecord) -> proto::Call {
    proto::Call {
        call_id: record.call.0,
        handle: record.handle.0,
        eager_nodes: record.eager_nodes,
        inputs: record.inputs.iter().map(tensor_ref_to_proto).collect(),
        outputs: record.outputs.iter().map(tensor_ref_to_proto).collect(),
    }
}

fn pair_to_proto((name, pair): &(String, PairToCompare)) -> proto::TensorPair {
    let name = name.clone();
    match pair {
        PairToCompare::Pair { reference, candidate, terms, exact, excuse } => proto::TensorPair {
            name,
            tie: if let Some(Excuse::Tie(why)) = excuse { why.clone() } else { String::new() },
            open_order: if let Some(Excuse::OpenOrder(why)) = excuse { why.clone() } else { String::new() },
            reference: Some(tensor_ref_to_proto(reference)),
            candidate: Some(tensor_ref_to_proto(candidate)),
            not_compared: String::new(),
            terms: terms.as_ref().map(tensor_ref_to_proto),
            exact: exact.as_ref().map(tensor_ref_to_proto),
            spread: match excuse {
                Some(Excuse::Rounding(SpreadTerms { largest, rms })) => {
                    Some(proto::Spread { largest: *largest, rms: *rms })
                }
                _ => None,
            },
        },
        PairToCompare::NotCompared(reason) => {
            proto::TensorPair { name, not_compared: reason.clone(), ..Default::default() }
        }
    }
}

fn settled_by_to_proto(by: &SettledBy) -> proto::SettleNode {
    match by {
        SettledBy::Float64(InFloat64 { exact, reference, local, terms }) => proto::SettleNode {
            exact: Some(tensor_ref_to_proto(exact)),
            reference: Some(tensor_ref_to_proto(reference)),
            local: Some(tensor_ref_to_proto(local)),
            terms: terms.as_ref().map(tensor_ref_to_proto),
            ..Default::default()
        },
        SettledBy::Terms(DriftedSum { reference, candidate, terms }) => proto::SettleNode {
            reference: Some(tensor_ref_to_proto(reference)),
            candidate: Some(tensor_ref_to_proto(candidate)),
            terms: Some(tensor_ref_to_proto(terms)),
            ..Default::default()
        },
        SettledBy::AsRight(why) => proto::SettleNode { as_right: why.clone(), ..Default::default() },
    }
}

fn tensor_ref_to_proto(reference: &TensorRef) -> proto::TensorRef {
    proto::TensorRef {
        segment: reference.location.segment().0,
        offset: reference.location.offset(),
        dtype: reference.desc.dtype.onnx_code(),
        dims: reference.desc.shape.dims().to_vec(),
    }
}

fn tolerance_to_proto(tolerance: ToleranceTerms) -> proto::Tolerance {
    let ToleranceTerms { atol, rtol, scale, equal_nan } = tolerance;
    proto::Tolerance { atol, rtol, scale, equal_nan }
}

fn through_to_proto(through: Option<DType>) -> i32 {
    through.map_or(0, DType::onnx_code)
}

fn noise_to_proto(noise: NoiseTerms) -> proto::NoiseTerms {
    let NoiseTerms { factor, step } = noise;
    proto::NoiseTerms { factor, step }
}

fn reply_to_proto(reply: &Reply) -> proto::reply::Body {
    use proto::reply::Body;
    match reply {
        Reply::Error(error) => Body::Error(error_to_proto(error)),
        Reply::Welcome(welcome) => Body::Welcome(proto::Welcome {
            protocol: welcome.protocol,
            daemon_version: welcome.daemon_version.clone(),
            client_id: welcome.client.0,
            daemon_pid: welcome.daemon_pid,
            log: welcome.log.clone(),
            pid_namespace: welcome.pid_namespace,
        }),
        Reply::Done => Body::Done(proto::Done {}),
        Reply::Leased(leased) => Body::Leased(proto::Leased {
            executor_id: leased.executor.0,
            pid: leased.pid,
            warm: leased.warm,
            onnxruntime_version: leased.onnxruntime_version.clone(),
            log: leased.log.clone(),
        }),
        Reply::Registered { known } => Body::Registered(proto::Registered { known: *known }),
        Reply::Prepared(prepared) => Body::Prepared(proto::Prepared {
            handle: prepared.handle.0,
            built: prepared.built,
            fx_nodes: prepared.fx_nodes,
            onnx_nodes: prepared.onnx_nodes,
            inputs: prepared.inputs.iter().map(value_spec_to_proto).collect(),
            outputs: prepared.outputs.iter().map(value_spec_to_proto).collect(),
            build_us: prepared.build_us,
            frozen_inputs: prepared.frozen_inputs,
            runtime_nodes: (prepared.division.nodes.iter())
                .map(|(runtime, &nodes)| proto::RuntimeNodes { runtime: runtime.name().to_owned(), nodes })
                .collect(),
            rule_nodes: prepared.division.taken.clone(),
            segments: prepared.division.segments,
            placed: placed_to_proto(&prepared.placement),
            placement_unknown: prepared.placement == Placement::Unknown,
        }),
        Reply::DumpOpened { path } => Body::DumpOpened(proto::DumpOpened { path: path.clone() }),
        Reply::Observed(observed) => Body::Observed(proto::Observed {
            run_us: observed.run_us,
            comparison: observed.verdicts.as_deref().map(comparison_to_proto),
            dump: observed.dump.clone(),
        }),
        Reply::Comparison(verdicts) => Body::Comparison(comparison_to_proto(verdicts)),
        Reply::NodesCompared(verdicts) => {
            Body::NodesCompared(proto::NodesCompared { verdicts: verdicts.iter().map(node_verdict_to_proto).collect() })
        }
        Reply::Plan(plan) => Body::Plan(proto::Plan { found: plan.is_some(), plan: plan.clone().unwrap_or_default() }),
        Reply::Status(json) => Body::Status(proto::Status { json: json.clone() }),
    }
}

fn placed_to_proto(placement: &Placement) -> Vec<proto::PlacedNodes> {
    let Placement::Told(placed) = placement else { return Vec::new() };
    let of_one = |(provider, Placed { nodes, ops }): (&String, &Placed)| proto::PlacedNodes {
        provider: provider.clone(),
        nodes: *nodes,
        ops: ops.iter().map(|(op, &nodes)| proto::OpNodes { op: op.clone(), nodes }).collect(),
    };
    placed.iter().map(of_one).collect()
}

fn error_to_proto(error: &WireError) -> proto::Error {
    proto::Error {
        kind: error.kind.code() as i32,
        code: error.code.code() as i32,
        message: error.message.clone(),
        graph: error.graph.clone(),
        node: error.node.clone(),
        dump: error.dump.clone(),
        log: error.log.clone(),
    }
}

fn value_spec_to_proto(value: &ValueSpec) -> proto::ValueSpec {
    proto::ValueSpec { name: value.name.clone(), dtype: value.dtype.onnx_code(), dims: value.dims.clone() }
}

fn comparison_to_proto(verdicts: &[VerdictSummary]) -> proto::Comparison {
    proto::Comparison { verdicts: verdicts.iter().map(verdict_to_proto).collect() }
}

fn node_verdict_to_proto(verdict: &NodeVerdictSummary) -> proto::NodeVerdict {
    proto::NodeVerdict {
        local: Some(verdict_to_proto(&verdict.local)),
        cumulative: Some(verdict_to_proto(&verdict.cumulative)),
        births_json: verdict.births_json.clone(),
    }
}

fn verdict_to_proto(verdict: &VerdictSummary) -> proto::TensorVerdict {
    proto::TensorVerdict {
        name: verdict.name.clone(),
        verdict: verdict.kind as i32,
        reason: verdict.reason.clone(),
        metrics_json: verdict.metrics_json.clone(),
        max_abs: verdict.max_abs,
        max_rel_to_max: verdict.max_rel_to_max,
        outside: verdict.outside,
        noise_json: verdict.noise_json.clone(),
    }
}
