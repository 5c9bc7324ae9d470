//! Requests.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::super::super::control::*;
use super::super::super::message::{
    CustomOpLibrary, DeviceSegmentSpec, ErrorCode, FrozenInput, LaneEventsSpec, NodeRuntime, Optimization, PartSpec,
    RuntimeRule, SessionSpec, SlotSpec,
};
use super::super::proto;
use super::field::{
    DecodeError, Decoded, absolute, bad, bad_option, clipped, folder_name, graph_id, missing, name, optional, required,
    segment, tensor_ref, tensor_refs,
};
use crate::base::ids::{CallId, DeviceUuid, PartHandle, StepId, Work};
use crate::base::limits;
use crate::base::process::CPU_BYTES;
use crate::cuda::IpcHandle;
use crate::onnx::{Descriptions, descriptions};
use crate::tensor::{CallRecord, DType};

pub(super) fn request(body: proto::request::Body) -> Decoded<Request> {
    use proto::request::Body;
    Ok(match body {
        Body::Hello(hello) => Request::Hello(Hello {
            protocol: hello.protocol,
            shim_version: name("Hello.shim_version", hello.shim_version)?,
            pid: hello.pid,
            python_version: name("Hello.python_version", hello.python_version)?,
            torch_version: name("Hello.torch_version", hello.torch_version)?,
            // A long command line is no reason to refuse a client.
            program: hello.program.chars().take(limits::NAME_BYTES / 4).collect(),
            pid_namespace: hello.pid_namespace,
            cpus: cpus(&hello.cpus)?,
        }),
        Body::AttachSegment(attach) => Request::AttachSegment {
            segment: segment("AttachSegment.segment", attach.segment)?,
            len_bytes: attach.len_bytes,
            lanes: match attach.kind() {
                proto::SegmentKind::Data => false,
                proto::SegmentKind::Lanes => true,
                proto::SegmentKind::Unspecified => {
                    return Err(bad(
                        "AttachSegment.kind",
                        format!("expected 1 (data) or 2 (lanes), got {}", attach.kind),
                    ));
                }
            },
        },
        Body::AttachDeviceSegment(attach) => Request::AttachDeviceSegment(DeviceSegmentSpec {
            segment: segment("AttachDeviceSegment.segment", attach.segment)?,
            len_bytes: attach.len_bytes,
            device: device("AttachDeviceSegment.device", &attach.device)?,
            handle: ipc_handle("AttachDeviceSegment.handle", &attach.handle)?,
        }),
        Body::DetachSegment(detach) => Request::DetachSegment(segment("DetachSegment.segment", detach.segment)?),
        Body::LeaseExecutor(lease) => Request::LeaseExecutor(LeaseSpec {
            onnxruntime_library: absolute("LeaseExecutor.onnxruntime_library", lease.onnxruntime_library)?,
            threads: lease.threads,
            allow_spinning: lease.allow_spinning,
            libtorch: match lease.libtorch.is_empty() {
                true => None,
                false => Some(absolute("LeaseExecutor.libtorch", lease.libtorch)?),
            },
            library_folders: library_folders(lease.library_folders)?,
            cuda_visible_devices: lease
                .cuda_visible_devices
                .map(|devices| name("LeaseExecutor.cuda_visible_devices", devices))
                .transpose()?,
            niceness: lease.niceness.map(niceness).transpose()?,
            environment: lease.environment.map(environment).transpose()?,
            custom_op_libraries: custom_op_libraries(
                "LeaseExecutor.custom_op_libraries.path",
                lease.custom_op_libraries,
            )?,
        }),
        Body::CancelCall(proto::CancelCall { call_id, request_id: 0 }) => {
            Request::CancelCall(Work::Call(CallId(call_id)))
        }
        Body::CancelCall(proto::CancelCall { request_id, .. }) => Request::CancelCall(Work::Request(request_id)),
        Body::OpenLane(open) => Request::OpenLane(open.lane),
        Body::OpenLaneEvents(open) => Request::OpenLaneEvents(LaneEventsSpec {
            lane: open.lane,
            device: device("OpenLaneEvents.device", &open.device)?,
            ready: ipc_handle("OpenLaneEvents.ready", &open.ready)?,
            done: ipc_handle("OpenLaneEvents.done", &open.done)?,
        }),
        Body::OpenSlot(open) => {
            Request::OpenSlot(SlotSpec { slot: open.slot, device: device("OpenSlot.device", &open.device)? })
        }
        Body::RegisterGraph(graph) => Request::RegisterGraph(Box::new(register_graph(graph)?)),
        Body::PreparePart(part) => Request::PreparePart(Box::new(prepare_part(part)?)),
        Body::OpenDump(open) => Request::OpenDump(open_dump(open)?),
        Body::CloseDump(_) => Request::CloseDump,
        Body::FlushDump(_) => Request::FlushDump,
        Body::RunObserved(run) => Request::RunObserved(Box::new(run_observed(run)?)),
        Body::CompareTensors(compare) => Request::CompareTensors {
            pairs: compare.pairs.into_iter().map(pair).collect::<Decoded<_>>()?,
            tolerance: compare.tolerance.map(tolerance),
            noise: compare.noise.map(noise).transpose()?,
            through: through("CompareTensors.through", compare.through)?,
            settles: (compare.settles)
                .map(|step| nodes_of("CompareTensors.settles", &step.graph_id, step.part, step.step))
                .transpose()?,
        },
        Body::ReportEager(report) => Request::ReportEager {
            graph: graph_id("ReportEager.graph_id", &report.graph_id)?,
            eager_nodes: report.eager_nodes,
        },
        Body::CompareNodes(compare) => Request::CompareNodes(Box::new(compare_nodes(compare)?)),
        Body::SettleNode(settle) => Request::SettleNode(Box::new(settle_node(settle)?)),
        Body::FinishNodes(finish) => Request::FinishNodes(FinishNodes {
            of: nodes_of("FinishNodes.graph_id", &finish.graph_id, finish.part, finish.step)?,
            dump: finish.dump,
            plain: finish.plain.into_iter().map(pair).collect::<Decoded<_>>()?,
            tolerance: finish.tolerance.map(tolerance),
            through: through("FinishNodes.through", finish.through)?,
        }),
        Body::GetPlan(get) => Request::GetPlan(graph_id("GetPlan.graph_id", &get.graph_id)?),
        Body::PutPlan(put) => Request::PutPlan { graph: graph_id("PutPlan.graph_id", &put.graph_id)?, plan: put.plan },
        Body::Release(release) => Request::Release(Release {
            handles: release.handles.into_iter().map(PartHandle).collect(),
            graphs: (release.graph_ids.iter().map(|id| graph_id("Release.graph_ids", id))).collect::<Decoded<_>>()?,
        }),
        Body::GetStatus(_) => Request::GetStatus,
        Body::Stop(stop) => Request::Stop { force: stop.force },
    })
}

fn register_graph(graph: proto::RegisterGraph) -> Decoded<RegisterGraph> {
    let direction = match graph.direction() {
        proto::Direction::Forward => Direction::Forward,
        proto::Direction::Backward => Direction::Backward,
        proto::Direction::Inference => Direction::Inference,
        proto::Direction::Unspecified => {
            return Err(bad("RegisterGraph.direction", format!("expected 1 to 3, got {}", graph.direction)));
        }
    };
    Ok(RegisterGraph {
        graph: graph_id("RegisterGraph.graph_id", &graph.graph_id)?,
        name: folder_name("RegisterGraph.name", graph.name)?,
        direction,
        dynamo_text: graph.dynamo_text,
        joint_text: graph.joint_text,
        fx_text: graph.fx_text,
        parts_json: graph.parts_json,
    })
}

fn prepare_part(part: proto::PreparePart) -> Decoded<PreparePart> {
    let session = session(part.session.ok_or(missing("PreparePart.session"))?)?;
    let described = match session.has_patterns() {
        true => descriptions(&part.provenance_json)
            .map_err(|error| bad("PreparePart.provenance_json", format!("patterns are looked for in it: {error}")))?,
        false => Descriptions::new(),
    };
    Ok(PreparePart {
        part: PartSpec {
            graph: graph_id("PreparePart.graph_id", &part.graph_id)?,
            part: part.part,
            model: part.model,
            session,
            fx_values: part.fx_values,
            named_values: part.named_values,
            described,
        },
        provenance_json: part.provenance_json,
        frozen: frozen_inputs(part.frozen)?,
    })
}

fn session(session: proto::SessionSpec) -> Decoded<SessionSpec> {
    let optimization = Optimization::from_name(&session.optimization).ok_or_else(|| {
        let known: Vec<_> = Optimization::NAMES.iter().map(|(name, _)| *name).collect();
        bad_option(
            "PreparePart.session.optimization",
            format!("expected one of {}, got {:?}", known.join(", "), clipped(&session.optimization)),
        )
    })?;
    let providers = session.providers.into_iter().map(|provider| {
        let name = name("PreparePart.session.providers.name", provider.name)?;
        if name.is_empty() {
            return Err(bad_option("PreparePart.session.providers.name", "expected a provider's name, got \"\""));
        }
        Ok((name, provider.options))
    });
    let libraries = custom_op_libraries("PreparePart.session.custom_op_libraries.path", session.custom_op_libraries)?;
    Ok(SessionSpec {
        providers: providers.collect::<Decoded<_>>()?,
        optimization,
        config: session.config,
        disabled_optimizers: session.disabled_optimizers,
        custom_op_libraries: libraries,
        disabled_passes: session.disabled_passes,
        runtimes: session.runtimes.into_iter().map(runtime_rule).collect::<Decoded<_>>()?,
        keep_float32: patterns("PreparePart.session.keep_float32", session.keep_float32)?,
        device: match session.device.is_empty() {
            true => None,
            false => Some(device("PreparePart.session.device", &session.device)?),
        },
    })
}

/// field: of their paths.
fn custom_op_libraries(field: &'static str, libraries: Vec<proto::CustomOpLibrary>) -> Decoded<Vec<CustomOpLibrary>> {
    let decoded = libraries.into_iter().map(|proto::CustomOpLibrary { path, len_bytes, modified_ns }| {
        Ok(CustomOpLibrary { path: absolute(field, path)?, len_bytes, modified_ns })
    });
    decoded.collect()
}

/// Most folders of a lease.
const MAX_FOLDERS: usize = 32;

fn library_folders(folders: Vec<String>) -> Decoded<Vec<PathBuf>> {
    const FIELD: &str = "LeaseExecutor.library_folders";
    if folders.len() > MAX_FOLDERS || folders.iter().any(|folder| folder.contains(':')) {
        return Err(bad(FIELD, format!("expected at most {MAX_FOLDERS} folders without a colon in their names")));
    }
    folders.into_iter().map(|folder| absolute(FIELD, folder)).collect()
}

fn cpus(bits: &[u8]) -> Decoded<Vec<u8>> {
    match bits.len() <= CPU_BYTES {
        true => Ok(bits.to_vec()),
        false => Err(bad("Hello.cpus", format!("expected at most {} bytes, got {}", CPU_BYTES, bits.len()))),
    }
}

fn niceness(niceness: i32) -> Decoded<i32> {
    match (-20..20).contains(&niceness) {
        true => Ok(niceness),
        false => Err(bad("LeaseExecutor.niceness", format!("expected -20 to 19, got {niceness}"))),
    }
}

/// Variables that rule a runtime, of a client for its own executor: executors with others are others.
fn environment(environment: proto::Environment) -> Decoded<BTreeMap<String, String>> {
    const FIELD: &str = "LeaseExecutor.environment";
    let variables = environment.variables;
    let bytes: usize = variables.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > limits::ENVIRONMENT_BYTES {
        return Err(bad(FIELD, format!("expected at most {} bytes, got {bytes}", limits::ENVIRONMENT_BYTES)));
    }
    let is_wrong =
        |(name, value): (&String, &String)| !of_client(name) || name.contains(['=', '\0']) || value.contains('\0');
    match variables.iter().find(|&variable| is_wrong(variable)) {
        Some((name, _)) => {
            Err(bad(FIELD, format!("{:?} is no variable of a client's for its executor", clipped(name))))
        }
        None => Ok(variables),
    }
}

fn device(field: &'static str, bytes: &[u8]) -> Decoded<DeviceUuid> {
    let uuid = bytes.try_into().map_err(|_| bad(field, format!("a UUID has 16 bytes, got {}", bytes.len())))?;
    Ok(DeviceUuid(uuid))
}

fn ipc_handle(field: &'static str, bytes: &[u8]) -> Decoded<IpcHandle> {
    IpcHandle::from_bytes(bytes).map_err(|error| bad(field, error.to_string()))
}

fn runtime_rule(rule: proto::RuntimeRule) -> Decoded<RuntimeRule> {
    let runtime = NodeRuntime::from_name(&rule.runtime).ok_or_else(|| {
        let known: Vec<_> = NodeRuntime::NAMES.iter().map(|(name, _)| *name).collect();
        bad_option(
            "PreparePart.session.runtimes.runtime",
            format!("expected one of {}, got {:?}", known.join(", "), clipped(&rule.runtime)),
        )
    })?;
    Ok(RuntimeRule { runtime, patterns: patterns("PreparePart.session.runtimes.patterns", rule.patterns)? })
}

/// Looked for in every node: few and short.
fn patterns(field: &'static str, patterns: Vec<String>) -> Decoded<Vec<String>> {
    if patterns.len() > limits::PATTERNS {
        let why = format!("expected at most {} patterns, got {}", limits::PATTERNS, patterns.len());
        return Err(DecodeError::Bad { field, code: ErrorCode::Limit, why });
    }
    patterns.into_iter().map(|pattern| name(field, pattern)).collect()
}

fn frozen_inputs(frozen: Vec<proto::FrozenInput>) -> Decoded<Vec<FrozenInput>> {
    const FIELD: &str = "PreparePart.frozen";
    if frozen.len() > CallRecord::MAX_VALUES {
        let (max, got) = (CallRecord::MAX_VALUES, frozen.len());
        let why = format!("expected at most {max} inputs, got {got}");
        return Err(DecodeError::Bad { field: FIELD, code: ErrorCode::Limit, why });
    }
    if let Some(pair) = frozen.windows(2).find(|pair| pair[0].input >= pair[1].input) {
        return Err(bad(FIELD, format!("expected rising positions, got {} before {}", pair[0].input, pair[1].input)));
    }
    let one = |frozen: proto::FrozenInput| {
        let tensor = frozen.tensor.ok_or(missing("PreparePart.frozen.tensor"))?;
        Ok(FrozenInput { input: frozen.input, tensor: tensor_ref("PreparePart.frozen.tensor", tensor)? })
    };
    frozen.into_iter().map(one).collect()
}

fn open_dump(open: proto::OpenDump) -> Decoded<OpenDump> {
    let calls = match open.calls() {
        proto::DumpCalls::None => CallsToDump::None,
        proto::DumpCalls::First => CallsToDump::First,
        proto::DumpCalls::All => CallsToDump::All,
        proto::DumpCalls::Unspecified => {
            return Err(bad("OpenDump.calls", format!("expected 1 to 3, got {}", open.calls)));
        }
    };
    Ok(OpenDump {
        folder: absolute("OpenDump.folder", open.folder)?,
        run: folder_name("OpenDump.run", open.run)?,
        clean: open.clean,
        calls,
        run_json: open.run_json,
        umask: match open.umask {
            Some(umask) if umask > 0o777 => {
                return Err(bad("OpenDump.umask", format!("expected at most 0777, got {umask:o}")));
            }
            umask => umask,
        },
        answered: match open.answered.len() <= limits::ANSWERED_STEPS {
            true => {
                open.answered.into_iter().map(|path| absolute("OpenDump.answered", path)).collect::<Decoded<_>>()?
            }
            false => {
                let (n, most) = (open.answered.len(), limits::ANSWERED_STEPS);
                return Err(bad("OpenDump.answered", format!("expected at most {most} folders, got {n}")));
            }
        },
    })
}

fn run_observed(run: proto::RunObserved) -> Decoded<RunObserved> {
    let record = call(run.call.ok_or(missing("RunObserved.call"))?)?;
    let references = if run.compare {
        let references = tensor_refs("RunObserved.references", run.references)?;
        if references.len() != record.outputs.len() {
            let (expected, got) = (record.outputs.len(), references.len());
            return Err(bad(
                "RunObserved.references",
                format!("expected one an output, {expected} in all, got {got}; compare needs every reference"),
            ));
        }
        Some(references)
    } else {
        None
    };
    Ok(RunObserved {
        record,
        graph: graph_id("RunObserved.graph_id", &run.graph_id)?,
        part: run.part,
        step: StepId(run.step),
        dump: run.dump,
        references,
        tolerance: run.tolerance.map(tolerance),
        through: through("RunObserved.through", run.through)?,
        noise: run.noise.map(noise).transpose()?,
    })
}

fn compare_nodes(compare: proto::CompareNodes) -> Decoded<CompareNodes> {
    const MAX: usize = CallRecord::MAX_VALUES;
    for (field, got) in [("CompareNodes.feeds", compare.feeds.len()), ("CompareNodes.values", compare.values.len())] {
        if got > MAX {
            let why = format!("expected at most {MAX}, got {got}; send smaller batches");
            return Err(DecodeError::Bad { field, code: ErrorCode::Limit, why });
        }
    }
    Ok(CompareNodes {
        handle: PartHandle(compare.handle),
        of: nodes_of("CompareNodes.graph_id", &compare.graph_id, compare.part, compare.step)?,
        feeds: compare.feeds.into_iter().map(node_feed).collect::<Decoded<_>>()?,
        values: compare.values.into_iter().map(node_value).collect::<Decoded<_>>()?,
        tolerance: compare.tolerance.map(tolerance),
        cumulative_tolerance: compare.cumulative_tolerance.map(tolerance),
        dump_values: compare.dump_values,
        noise: compare.noise.map(noise).transpose()?,
        through: through("CompareNodes.through", compare.through)?,
    })
}

fn nodes_of(field: &'static str, graph: &str, part: u32, step: u64) -> Decoded<NodesOf> {
    Ok(NodesOf { graph: graph_id(field, graph)?, part, step: StepId(step) })
}

fn node_feed(feed: proto::NodeFeed) -> Decoded<NodeFeed> {
    Ok(NodeFeed {
        name: name("NodeFeed.name", feed.name)?,
        reference: required("NodeFeed.reference", feed.reference)?,
        candidate: required("NodeFeed.candidate", feed.candidate)?,
    })
}

fn node_value(value: proto::NodeValue) -> Decoded<NodeValue> {
    let name = name("NodeValue.name", value.name)?;
    if !value.not_compared.is_empty() {
        return Ok(NodeValue::NotCompared { name, reason: value.not_compared, nothing: value.nothing });
    }
    let local = if value.judge { Some(required("NodeValue.local", value.local)?) } else { None };
    Ok(NodeValue::Computed(ComputedNode {
        name,
        reference: required("NodeValue.reference", value.reference)?,
        candidate: required("NodeValue.candidate", value.candidate)?,
        local,
        reference_ns: value.reference_ns,
        float64: Box::new(NodeFloat64 {
            local: optional("NodeValue.exact", value.exact)?,
            cumulative: optional("NodeValue.exact_cumulative", value.exact_cumulative)?,
            missing: value.no_float64,
        }),
    }))
}

fn settle_node(settle: proto::SettleNode) -> Decoded<SettleNode> {
    Ok(SettleNode {
        of: nodes_of("SettleNode.graph_id", &settle.graph_id, settle.part, settle.step)?,
        name: name("SettleNode.name", settle.name)?,
        by: match (settle.as_right, settle.candidate) {
            (why, None) if why.is_empty() => SettledBy::Float64(InFloat64 {
                exact: required("SettleNode.exact", settle.exact)?,
                reference: required("SettleNode.reference", settle.reference)?,
                local: required("SettleNode.local", settle.local)?,
                terms: optional("SettleNode.terms", settle.terms)?,
            }),
            (why, Some(candidate)) if why.is_empty() => SettledBy::Terms(DriftedSum {
                reference: required("SettleNode.reference", settle.reference)?,
                candidate: required("SettleNode.candidate", Some(candidate))?,
                terms: required("SettleNode.terms", settle.terms)?,
            }),
            (why, _) => SettledBy::AsRight(name("SettleNode.as_right", why)?),
        },
    })
}

fn call(call: proto::Call) -> Decoded<CallRecord> {
    Ok(CallRecord {
        call: CallId(call.call_id),
        handle: PartHandle(call.handle),
        eager_nodes: call.eager_nodes,
        inputs: tensor_refs("Call.inputs", call.inputs)?,
        outputs: tensor_refs("Call.outputs", call.outputs)?,
    })
}

fn pair(pair: proto::TensorPair) -> Decoded<(String, PairToCompare)> {
    let name = name("TensorPair.name", pair.name)?;
    if !pair.not_compared.is_empty() {
        return Ok((name, PairToCompare::NotCompared(pair.not_compared)));
    }
    let reference = required("TensorPair.reference", pair.reference)?;
    let candidate = required("TensorPair.candidate", pair.candidate)?;
    let terms = optional("TensorPair.terms", pair.terms)?;
    let exact = optional("TensorPair.exact", pair.exact)?;
    let excuse = match (pair.tie, pair.open_order, pair.spread) {
        (tie, ..) if !tie.is_empty() => Some(Excuse::Tie(tie)),
        (_, order, _) if !order.is_empty() => Some(Excuse::OpenOrder(order)),
        (.., Some(moved)) => Some(Excuse::Rounding(spread(moved)?)),
        _ => None,
    };
    Ok((name, PairToCompare::Pair { reference, candidate, terms, exact, excuse }))
}

fn spread(spread: proto::Spread) -> Decoded<SpreadTerms> {
    let proto::Spread { largest, rms } = spread;
    let is_size = |value: f64| value.is_finite() && value >= 0.;
    if !is_size(largest) || !is_size(rms) {
        let why = format!("expected finite numbers from 0, got {largest} and {rms}");
        return Err(bad_option("TensorPair.spread", why));
    }
    Ok(SpreadTerms { largest, rms })
}

fn tolerance(tolerance: proto::Tolerance) -> ToleranceTerms {
    let proto::Tolerance { atol, rtol, scale, equal_nan } = tolerance;
    ToleranceTerms { atol, rtol, scale, equal_nan }
}

/// 0 is none; else a type of half precision.
fn through(field: &'static str, code: i32) -> Decoded<Option<DType>> {
    match DType::from_onnx(code) {
        _ if code == 0 => Ok(None),
        Ok(half @ (DType::F16 | DType::BF16)) => Ok(Some(half)),
        _ => Err(bad_option(
            field,
            format!("expected 0, {} or {}, got {code}", DType::F16.onnx_code(), DType::BF16.onnx_code()),
        )),
    }
}

fn noise(noise: proto::NoiseTerms) -> Decoded<NoiseTerms> {
    let proto::NoiseTerms { factor, step } = noise;
    // Below 1 the reference itself would be worse than itself.
    for (field, value, least) in [("NoiseTerms.factor", factor, 1.), ("NoiseTerms.step", step, 0.)] {
        if !(value.is_finite() && value >= least) {
            return Err(bad_option(field, format!("expected a finite number from {least}, got {value}")));
        }
    }
    Ok(NoiseTerms { factor, step })
}
