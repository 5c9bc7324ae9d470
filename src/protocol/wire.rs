//! The protobuf encoding of requests, replies and notices: the only place that knows the generated types. Bytes of a
//! peer become domain types here or an error that names the field; nothing behind this file sees an unchecked value.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use prost::Message as _;
use thiserror::Error;

use super::control::*;
use super::frame::{self, FrameKind};
use super::message::{ErrorCode, ErrorKind, Optimization, PartSpec, Prepared, SessionSpec, ValueSpec, WireError};
use crate::ids::{CallId, ClientId, ExecutorId, GraphId, PartHandle, SegmentId, StepId};
use crate::tensor::{CallRecord, DType, TensorDesc, TensorRef};

#[allow(missing_docs, clippy::all)]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/rust_ort.rs"));
}

/// Longest name of a graph, run, value or file in a message, in bytes.
pub const MAX_NAME_BYTES: usize = 1024;
/// Longest folder name (graph, run) in bytes: what file systems take, less our own endings.
pub const MAX_FOLDER_NAME_BYTES: usize = 200;

/// Why a body is no message.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DecodeError {
    /// Not protobuf of this schema.
    #[error("body: {0}; the peer was built from another protos/rust_ort.proto")]
    Protobuf(String),
    /// A field that must be present is not.
    #[error("{field}: missing; send it")]
    Missing {
        /// Its path in the schema.
        field: &'static str,
    },
    /// A field's value is refused.
    #[error("{field}: {why}")]
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
        WireError::new(ErrorKind::Client, error.code(), error.to_string())
    }
}

type Decoded<T> = Result<T, DecodeError>;

/// A request as it came: its id, which is known even when the rest is refused, and the rest.
pub fn decode_request(body: Bytes) -> (u64, Decoded<Request>) {
    let guess = leading_id(&body);
    match proto::Request::decode(body) {
        Ok(message) => (message.request_id, message.body.ok_or(missing("Request.body")).and_then(request)),
        Err(error) => (guess, Err(DecodeError::Protobuf(error.to_string()))),
    }
}

/// The request id of a body that is otherwise broken, when it stands first as every known encoder writes it; else 0.
fn leading_id(body: &[u8]) -> u64 {
    match body {
        [0x08, rest @ ..] => prost::encoding::decode_varint(&mut &rest[..]).unwrap_or(0),
        _ => 0,
    }
}

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
        },
        Body::ReportEager(report) => Request::ReportEager {
            graph: graph_id("ReportEager.graph_id", &report.graph_id)?,
            eager_nodes: report.eager_nodes,
        },
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
        compute_nodes: graph.compute_nodes,
        eager_nodes: graph.eager_nodes,
    })
}

fn prepare_part(part: proto::PreparePart) -> Decoded<PreparePart> {
    let session = part.session.ok_or(missing("PreparePart.session"))?;
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
    Ok(PreparePart {
        part: PartSpec {
            graph: graph_id("PreparePart.graph_id", &part.graph_id)?,
            part: part.part,
            model: part.model,
            session: SessionSpec {
                providers: providers.collect::<Decoded<_>>()?,
                optimization,
                config: session.config,
                disabled_optimizers: session.disabled_optimizers,
            },
            fx_values: part.fx_values,
        },
        provenance_json: part.provenance_json,
    })
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
    let reference = tensor_ref("TensorPair.reference", pair.reference.ok_or(missing("TensorPair.reference"))?)?;
    let candidate = tensor_ref("TensorPair.candidate", pair.candidate.ok_or(missing("TensorPair.candidate"))?)?;
    Ok((name, PairToCompare::Pair { reference, candidate }))
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
    if reference.offset >= TensorRef::OFFSET_LIMIT {
        return Err(bad_tensor(field, format!("offset {}: expected below 2^40", reference.offset)));
    }
    let dtype = DType::from_onnx(reference.dtype).map_err(|error| bad_tensor(field, error.to_string()))?;
    let desc = TensorDesc::new(dtype, reference.dims).map_err(|error| bad_tensor(field, error.to_string()))?;
    Ok(TensorRef { segment: segment(field, reference.segment)?, offset: reference.offset, desc })
}

fn tolerance(tolerance: proto::Tolerance) -> ToleranceTerms {
    let proto::Tolerance { atol, rtol, scale, equal_nan } = tolerance;
    ToleranceTerms { atol, rtol, scale, equal_nan }
}

fn segment(field: &'static str, segment: u32) -> Decoded<SegmentId> {
    if segment < SegmentId::LIMIT {
        Ok(SegmentId(segment))
    } else {
        let why = format!("expected a segment below 2^24, got {segment}");
        Err(DecodeError::Bad { field, code: ErrorCode::BadSegment, why })
    }
}

fn graph_id(field: &'static str, text: &str) -> Decoded<GraphId> {
    text.parse().map_err(|error: crate::ids::BadGraphId| bad(field, error.to_string()))
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
        }),
        Body::DumpOpened(opened) => Reply::DumpOpened { path: opened.path },
        Body::Observed(observed) => Reply::Observed(Observed {
            run_us: observed.run_us,
            verdicts: observed.comparison.map(verdicts).transpose()?,
            dump: observed.dump,
        }),
        Body::Comparison(comparison) => Reply::Comparison(verdicts(comparison)?),
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

fn verdicts(comparison: proto::Comparison) -> Decoded<Vec<VerdictSummary>> {
    let verdict = |verdict: proto::TensorVerdict| {
        let kind = match verdict.verdict() {
            proto::VerdictKind::Match => VerdictKind::Match,
            proto::VerdictKind::Mismatch => VerdictKind::Mismatch,
            proto::VerdictKind::NotCompared => VerdictKind::NotCompared,
            proto::VerdictKind::Failed => VerdictKind::Failed,
            proto::VerdictKind::Unspecified => {
                return Err(bad("TensorVerdict.verdict", format!("expected 1 to 4, got {}", verdict.verdict)));
            }
        };
        let proto::TensorVerdict { name, reason, metrics_json, max_abs, max_rel_to_max, outside, .. } = verdict;
        Ok(VerdictSummary { name, kind, reason, metrics_json, max_abs, max_rel_to_max, outside })
    };
    comparison.verdicts.into_iter().map(verdict).collect()
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
        }),
        Request::AttachSegment { segment, len_bytes, lanes } => Body::AttachSegment(proto::AttachSegment {
            segment: segment.0,
            len_bytes: *len_bytes,
            kind: if *lanes { proto::SegmentKind::Lanes } else { proto::SegmentKind::Data }.into(),
        }),
        Request::DetachSegment(segment) => Body::DetachSegment(proto::DetachSegment { segment: segment.0 }),
        Request::LeaseExecutor(lease) => Body::LeaseExecutor(proto::LeaseExecutor {
            onnxruntime_library: lease.onnxruntime_library.to_string_lossy().into_owned(),
            threads: lease.threads,
            allow_spinning: lease.allow_spinning,
        }),
        Request::OpenLane(lane) => Body::OpenLane(proto::OpenLane { lane: *lane }),
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
            compute_nodes: graph.compute_nodes,
            eager_nodes: graph.eager_nodes,
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
        }),
        Request::CompareTensors { pairs, tolerance } => Body::CompareTensors(proto::CompareTensors {
            pairs: pairs.iter().map(pair_to_proto).collect(),
            tolerance: tolerance.map(tolerance_to_proto),
        }),
        Request::ReportEager { graph, eager_nodes } => {
            Body::ReportEager(proto::ReportEager { graph_id: graph.to_string(), eager_nodes: *eager_nodes })
        }
        Request::GetStatus => Body::GetStatus(proto::GetStatus {}),
        Request::Stop { force } => Body::Stop(proto::Stop { force: *force }),
    }
}

fn prepare_part_to_proto(prepare: &PreparePart) -> proto::PreparePart {
    let PartSpec { graph, part, model, session, fx_values } = &prepare.part;
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
        }),
        provenance_json: prepare.provenance_json.clone(),
        fx_values: fx_values.clone(),
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
        PairToCompare::Pair { reference, candidate } => proto::TensorPair {
            name,
            reference: Some(tensor_ref_to_proto(reference)),
            candidate: Some(tensor_ref_to_proto(candidate)),
            not_compared: String::new(),
        },
        PairToCompare::NotCompared(reason) => {
            proto::TensorPair { name, reference: None, candidate: None, not_compared: reason.clone() }
        }
    }
}

fn tensor_ref_to_proto(reference: &TensorRef) -> proto::TensorRef {
    proto::TensorRef {
        segment: reference.segment.0,
        offset: reference.offset,
        dtype: reference.desc.dtype.onnx_code(),
        dims: reference.desc.shape.dims().to_vec(),
    }
}

fn tolerance_to_proto(tolerance: ToleranceTerms) -> proto::Tolerance {
    let ToleranceTerms { atol, rtol, scale, equal_nan } = tolerance;
    proto::Tolerance { atol, rtol, scale, equal_nan }
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
        }),
        Reply::DumpOpened { path } => Body::DumpOpened(proto::DumpOpened { path: path.clone() }),
        Reply::Observed(observed) => Body::Observed(proto::Observed {
            run_us: observed.run_us,
            comparison: observed.verdicts.as_deref().map(comparison_to_proto),
            dump: observed.dump.clone(),
        }),
        Reply::Comparison(verdicts) => Body::Comparison(comparison_to_proto(verdicts)),
        Reply::Status(json) => Body::Status(proto::Status { json: json.clone() }),
    }
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
    let verdicts = verdicts.iter().map(|verdict| proto::TensorVerdict {
        name: verdict.name.clone(),
        verdict: verdict.kind as i32,
        reason: verdict.reason.clone(),
        metrics_json: verdict.metrics_json.clone(),
        max_abs: verdict.max_abs,
        max_rel_to_max: verdict.max_rel_to_max,
        outside: verdict.outside,
    });
    proto::Comparison { verdicts: verdicts.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn body(frame: &[u8]) -> Bytes {
        Bytes::copy_from_slice(&frame[frame::HEADER_LEN..])
    }

    fn decode(message: proto::request::Body) -> Decoded<Request> {
        let (id, decoded) =
            decode_request(Bytes::from(proto::Request { request_id: 9, body: Some(message) }.encode_to_vec()));
        assert_eq!(id, 9);
        decoded
    }

    fn refused(message: proto::request::Body) -> (ErrorCode, String) {
        let error = decode(message).unwrap_err();
        (error.code(), error.to_string())
    }

    #[test]
    fn unknown_body_is_missing_and_names_it() {
        let (id, decoded) = decode_request(Bytes::from_static(&[0x08, 0x05]));
        assert_eq!((id, decoded), (5, Err(DecodeError::Missing { field: "Request.body" })));
    }

    #[test]
    fn broken_body_keeps_its_request_id() {
        let (id, decoded) = decode_request(Bytes::from_static(&[0x08, 0x96, 0x01, 0x12, 0xff]));
        assert_eq!(id, 150);
        assert!(matches!(decoded, Err(DecodeError::Protobuf(_))));
    }

    #[test]
    fn names_that_leave_the_dump_folder_are_refused() {
        for run in ["", ".", "..", "../x", "a/b", ".hidden", "a\0b", &"x".repeat(201)] {
            let open = proto::OpenDump { folder: "/tmp".into(), run: run.into(), calls: 1, ..Default::default() };
            let (code, text) = refused(proto::request::Body::OpenDump(open));
            assert!(code == ErrorCode::BadMessage && text.starts_with("OpenDump.run"), "{text}");
        }
        let open = proto::OpenDump { folder: "dumps".into(), run: "x".into(), calls: 1, ..Default::default() };
        assert_eq!(refused(proto::request::Body::OpenDump(open)).0, ErrorCode::BadOption);
    }

    #[test]
    fn tensors_are_checked_one_by_one() {
        let reference =
            |segment, offset, dtype, dims: &[i64]| proto::TensorRef { segment, offset, dtype, dims: dims.to_vec() };
        for (hostile, code) in [
            (reference(1 << 24, 0, 1, &[1]), ErrorCode::BadSegment),
            (reference(0, 1 << 40, 1, &[1]), ErrorCode::BadTensor),
            (reference(0, 0, 8, &[1]), ErrorCode::BadTensor),
            (reference(0, 0, 1, &[-1]), ErrorCode::BadTensor),
            (reference(0, 0, 1, &[i64::MAX, 3]), ErrorCode::BadTensor),
            (reference(0, 0, 1, &[1; 65]), ErrorCode::BadTensor),
        ] {
            let pair = proto::TensorPair { reference: Some(hostile), ..Default::default() };
            let compare = proto::CompareTensors { pairs: vec![pair], tolerance: None };
            let (got, text) = refused(proto::request::Body::CompareTensors(compare));
            assert!(got == code && text.starts_with("TensorPair.reference"), "{text}");
        }
    }

    #[test]
    fn unknown_optimization_lists_the_known_ones() {
        let part = proto::PreparePart {
            graph_id: "0".repeat(64),
            session: Some(proto::SessionSpec { optimization: "full".into(), ..Default::default() }),
            ..Default::default()
        };
        let (code, text) = refused(proto::request::Body::PreparePart(part));
        assert_eq!(code, ErrorCode::BadOption);
        assert!(text.contains("all, extended, basic, disable") && text.contains("\"full\""), "{text}");
    }

    #[test]
    fn compare_without_a_reference_for_each_output_is_refused() {
        let run = proto::RunObserved {
            call: Some(proto::Call {
                outputs: vec![proto::TensorRef { dtype: 1, ..Default::default() }],
                ..Default::default()
            }),
            compare: true,
            graph_id: "0".repeat(64),
            ..Default::default()
        };
        let (code, text) = refused(proto::request::Body::RunObserved(run));
        assert!(code == ErrorCode::BadMessage && text.starts_with("RunObserved.references"), "{text}");
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(bytes: Vec<u8>) {
            let _ = decode_request(Bytes::from(bytes.clone()));
            let _ = decode_reply(Bytes::from(bytes.clone()));
            let _ = decode_notice(Bytes::from(bytes));
        }

        #[test]
        fn replies_read_what_was_written(id: u64, text in ".{0,40}", n: u64, x in -1e300_f64..1e300) {
            let error = WireError::new(ErrorKind::Fault, ErrorCode::RunFailed, text.clone());
            let verdict = VerdictSummary {
                name: text.clone(), kind: VerdictKind::Mismatch, reason: text.clone(), metrics_json: "{}".into(),
                max_abs: x, max_rel_to_max: -x, outside: n,
            };
            for reply in [
                Reply::Error(error),
                Reply::Done,
                Reply::Registered { known: true },
                Reply::Comparison(vec![verdict.clone()]),
                Reply::Observed(Observed { run_us: n, verdicts: Some(vec![verdict]), dump: text.clone() }),
                Reply::Status(text),
            ] {
                prop_assert_eq!(decode_reply(body(&encode_reply(id, &reply).unwrap())), Ok((id, reply)));
            }
        }
    }
}
