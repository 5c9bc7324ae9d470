//! Generated types → domain types. Every field of a peer is checked here.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use prost::Message as _;

use super::super::control::*;
use super::super::message::{
    CustomOpLibrary, ErrorCode, ErrorKind, FrozenInput, NodeRuntime, Optimization, PartSpec, Prepared, RuntimeRule,
    SessionSpec, ValueSpec, WireError,
};
use super::proto;
use crate::base::ids::{CallId, ClientId, ExecutorId, GraphId, PartHandle, SegmentId, StepId};
use crate::onnx::{Descriptions, descriptions};
use crate::tensor::{BadLocation, CallRecord, DType, Location, TensorDesc, TensorRef};

/// Longest name of a graph, run, value or file in a message, in bytes.
pub const MAX_NAME_BYTES: usize = 1024;
/// Most patterns of a rule.
pub const MAX_PATTERNS: usize = 65536;
/// Longest folder name (graph, run) in bytes: what file systems take, less our own endings.
pub const MAX_FOLDER_NAME_BYTES: usize = 200;

/// Why a body is no message.
#[derive(Clone, Debug, displaydoc::Display, thiserror::Error, PartialEq, Eq)]
pub enum DecodeError {
    /// body: {0}; the peer was built from another protos/rust_ort.proto
    Protobuf(String),
    /// {field}: missing; send it
    Missing {
        /// Its path in the schema.
        field: &'static str,
    },
    /// {field}: {why}
    Bad {
        /// Its path in the schema.
        field: &'static str,
        /// What the peer is told.
        code: ErrorCode,
        /// Expected and got.
        why: String,
    },
}

impl DecodeError {
    /// What the peer is told.
    pub fn code(&self) -> ErrorCode {
        match self {
            DecodeError::Protobuf(_) | DecodeError::Missing { .. } => ErrorCode::BadMessage,
            DecodeError::Bad { code, .. } => *code,
        }
    }
}

impl From<DecodeError> for WireError {
    fn from(error: DecodeError) -> Self {
        WireError::client(error.code(), error.to_string())
    }
}

pub(super) type Decoded<T> = Result<T, DecodeError>;

/// A request as it came: its id, which is known even when the rest is refused, and the rest.
pub fn decode_request(body: Bytes) -> (u64, Decoded<Request>) {
    let guess = request_id(&body);
    match proto::Request::decode(body) {
        Ok(message) => (message.request_id, message.body.ok_or(missing("Request.body")).and_then(request)),
        Err(error) => (guess, Err(DecodeError::Protobuf(error.to_string()))),
    }
}

/// The request id of a body that is otherwise broken or not read to its end, when it stands first as every known encoder
/// writes it; else 0.
pub fn request_id(body_start: &[u8]) -> u64 {
    match body_start {
        [0x08, rest @ ..] => prost::encoding::decode_varint(&mut &rest[..]).unwrap_or(0),
        _ => 0,
    }
}

/// The reply in a body, for clients written in Rust. Errors: [`DecodeError`].
pub fn decode_reply(body: Bytes) -> Decoded<(u64, Reply)> {
    let message = proto::Reply::decode(body).map_err(|error| DecodeError::Protobuf(error.to_string()))?;
    Ok((message.request_id, reply(message.body.ok_or(missing("Reply.body"))?)?))
}

/// The notice in a body, for clients written in Rust. Errors: [`DecodeError`].
pub fn decode_notice(body: Bytes) -> Decoded<Notice> {
    let message = proto::Notice::decode(body).map_err(|error| DecodeError::Protobuf(error.to_string()))?;
    match message.body.ok_or(missing("Notice.body"))? {
        proto::notice::Body::ExecutorLost(lost) => Ok(Notice::ExecutorLost {
            executor: ExecutorId(lost.executor_id),
            calls: lost.calls.into_iter().map(error).collect(),
            cause: lost.cause,
        }),
        proto::notice::Body::ShuttingDown(notice) => Ok(Notice::ShuttingDown { reason: notice.reason }),
    }
}

fn missing(field: &'static str) -> DecodeError {
    DecodeError::Missing { field }
}

fn bad(field: &'static str, why: impl Into<String>) -> DecodeError {
    DecodeError::Bad { field, code: ErrorCode::BadMessage, why: why.into() }
}

fn bad_option(field: &'static str, why: impl Into<String>) -> DecodeError {
    DecodeError::Bad { field, code: ErrorCode::BadOption, why: why.into() }
}

fn bad_tensor(field: &'static str, why: impl Into<String>) -> DecodeError {
    DecodeError::Bad { field, code: ErrorCode::BadTensor, why: why.into() }
}

fn request(body: proto::request::Body) -> Decoded<Request> {
    use proto::request::Body;
    Ok(match body {
        Body::Hello(hello) => Request::Hello(Hello {
            protocol: hello.protocol,
            shim_version: name("Hello.shim_version", hello.shim_version)?,
            pid: hello.pid,
            python_version: name("Hello.python_version", hello.python_version)?,
            torch_version: name("Hello.torch_version", hello.torch_version)?,
            // A long command line is no reason to refuse a client.
            program: hello.program.chars().take(MAX_NAME_BYTES / 4).collect(),
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
        Body::DetachSegment(detach) => Request::DetachSegment(segment("DetachSegment.segment", detach.segment)?),
        Body::LeaseExecutor(lease) => Request::LeaseExecutor(LeaseSpec {
            onnxruntime_library: absolute("LeaseExecutor.onnxruntime_library", lease.onnxruntime_library)?,
            threads: lease.threads,
            allow_spinning: lease.allow_spinning,
            libtorch: match lease.libtorch.is_empty() {
                true => None,
                false => Some(absolute("LeaseExecutor.libtorch", lease.libtorch)?),
            },
        }),
        Body::OpenLane(open) => Request::OpenLane(open.lane),
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
    let libraries = session.custom_op_libraries.into_iter().map(|library| {
        Ok(CustomOpLibrary {
            path: absolute("PreparePart.session.custom_op_libraries.path", library.path)?,
            len_bytes: library.len_bytes,
            modified_ns: library.modified_ns,
        })
    });
    Ok(SessionSpec {
        providers: providers.collect::<Decoded<_>>()?,
        optimization,
        config: session.config,
        disabled_optimizers: session.disabled_optimizers,
        custom_op_libraries: libraries.collect::<Decoded<_>>()?,
        disabled_passes: session.disabled_passes,
        runtimes: session.runtimes.into_iter().map(runtime_rule).collect::<Decoded<_>>()?,
        keep_float32: patterns("PreparePart.session.keep_float32", session.keep_float32)?,
    })
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
    if patterns.len() > MAX_PATTERNS {
        let why = format!("expected at most {MAX_PATTERNS} patterns, got {}", patterns.len());
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
        return Ok(NodeValue::NotCompared { name, reason: value.not_compared });
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
        by: match settle.as_right {
            why if why.is_empty() => SettledBy::Float64(InFloat64 {
                exact: required("SettleNode.exact", settle.exact)?,
                reference: required("SettleNode.reference", settle.reference)?,
                local: required("SettleNode.local", settle.local)?,
                terms: optional("SettleNode.terms", settle.terms)?,
            }),
            why => SettledBy::AsRight(name("SettleNode.as_right", why)?),
        },
    })
}

fn optional(field: &'static str, reference: Option<proto::TensorRef>) -> Decoded<Option<TensorRef>> {
    reference.map(|reference| tensor_ref(field, reference)).transpose()
}

fn required(field: &'static str, reference: Option<proto::TensorRef>) -> Decoded<TensorRef> {
    tensor_ref(field, reference.ok_or(missing(field))?)
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
    Ok((name, PairToCompare::Pair { reference, candidate, terms, exact }))
}

fn tensor_refs(field: &'static str, references: Vec<proto::TensorRef>) -> Decoded<Vec<TensorRef>> {
    if references.len() > CallRecord::MAX_VALUES {
        let (max, got) = (CallRecord::MAX_VALUES, references.len());
        return Err(DecodeError::Bad {
            field,
            code: ErrorCode::Limit,
            why: format!("expected at most {max} tensors, got {got}"),
        });
    }
    references.into_iter().map(|reference| tensor_ref(field, reference)).collect()
}

fn tensor_ref(field: &'static str, reference: proto::TensorRef) -> Decoded<TensorRef> {
    let location = location(field, SegmentId(reference.segment), reference.offset)?;
    let dtype = DType::from_onnx(reference.dtype).map_err(|error| bad_tensor(field, error.to_string()))?;
    let desc = TensorDesc::new(dtype, reference.dims).map_err(|error| bad_tensor(field, error.to_string()))?;
    Ok(TensorRef { location, desc })
}

fn tolerance(tolerance: proto::Tolerance) -> ToleranceTerms {
    let proto::Tolerance { atol, rtol, scale, equal_nan } = tolerance;
    ToleranceTerms { atol, rtol, scale, equal_nan }
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

fn segment(field: &'static str, segment: u32) -> Decoded<SegmentId> {
    Ok(location(field, SegmentId(segment), 0)?.segment())
}

fn location(field: &'static str, segment: SegmentId, offset: u64) -> Decoded<Location> {
    Location::new(segment, offset).map_err(|error| {
        let code = match error {
            BadLocation::Segment(_) => ErrorCode::BadSegment,
            BadLocation::Offset(_) => ErrorCode::BadTensor,
        };
        DecodeError::Bad { field, code, why: error.to_string() }
    })
}

fn graph_id(field: &'static str, text: &str) -> Decoded<GraphId> {
    text.parse().map_err(|error: crate::base::ids::BadGraphId| bad(field, error.to_string()))
}

fn name(field: &'static str, text: String) -> Decoded<String> {
    if text.len() <= MAX_NAME_BYTES {
        Ok(text)
    } else {
        Err(bad(field, format!("expected at most {MAX_NAME_BYTES} bytes, got {}", text.len())))
    }
}

/// One path component of letters, digits, `_`, `-`, `.`, `=`, `+` and spaces inside, not beginning with a dot.
fn folder_name(field: &'static str, text: String) -> Decoded<String> {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '=' | '+' | ' ');
    let fits = !text.is_empty() && text.len() <= MAX_FOLDER_NAME_BYTES && !text.starts_with(['.', ' ']);
    if fits && text.chars().all(plain) {
        Ok(text)
    } else {
        let got = clipped(&text);
        Err(bad(
            field,
            format!(
                "expected one folder name of 1 to {MAX_FOLDER_NAME_BYTES} bytes (letters, digits, \"_-.=+ \", not \
                 beginning with a dot or space), got {got:?}"
            ),
        ))
    }
}

fn absolute(field: &'static str, text: String) -> Decoded<PathBuf> {
    if Path::new(&text).is_absolute() && !text.contains('\0') && text.len() <= 4095 {
        Ok(PathBuf::from(text))
    } else {
        Err(bad_option(field, format!("expected an absolute path, got {:?}", clipped(&text))))
    }
}

fn clipped(text: &str) -> String {
    text.chars().take(80).collect()
}

fn reply(body: proto::reply::Body) -> Decoded<Reply> {
    use proto::reply::Body;
    Ok(match body {
        Body::Error(message) => Reply::Error(error(message)),
        Body::Welcome(welcome) => Reply::Welcome(Welcome {
            protocol: welcome.protocol,
            daemon_version: welcome.daemon_version,
            client: ClientId(welcome.client_id),
            daemon_pid: welcome.daemon_pid,
            log: welcome.log,
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
        proto::VerdictKind::Unspecified => {
            return Err(bad("TensorVerdict.verdict", format!("expected 1 to 4, got {}", verdict.verdict)));
        }
    };
    let proto::TensorVerdict { name, reason, metrics_json, max_abs, max_rel_to_max, outside, noise_json, .. } = verdict;
    Ok(VerdictSummary { name, kind, reason, metrics_json, max_abs, max_rel_to_max, outside, noise_json })
}
