//! The protobuf encoding of requests, replies and notices: the only place that knows the generated types. Bytes of a
//! peer become domain types here or an error that names the field; nothing behind this file sees an unchecked value.

mod decode;
mod encode;

use bytes::Bytes;
use prost::Message as _;
use thiserror::Error;

use super::control::*;
use super::frame::{self, FrameKind};
use super::message::{ErrorCode, ErrorKind, WireError};
use crate::base::footprint::{self, Footprint};
use crate::base::ids::ExecutorId;
use decode::{error, missing, reply, request};
use encode::{error_to_proto, reply_to_proto, request_to_proto};

// ExportPlan is for clients alone.
#[allow(missing_docs, dead_code, clippy::all)]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/rust_ort.rs"));
}

mod shapes {
    use super::proto;
    use crate::base::footprint::{Field, Shape};
    include!(concat!(env!("OUT_DIR"), "/rust_ort_shapes.rs"));
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
    let guess = request_id(&body);
    match proto::Request::decode(body) {
        Ok(message) => (message.request_id, message.body.ok_or(missing("Request.body")).and_then(request)),
        Err(error) => (guess, Err(DecodeError::Protobuf(error.to_string()))),
    }
}

/// What [`decode_request`] takes beside the body's own bytes, at most: the generated message and, made of it, ours.
pub fn footprint(body: &[u8]) -> Footprint {
    let Footprint { n_elements, text_bytes, n_bytes } = footprint::of(body, shapes::SHAPES, shapes::ROOT);
    Footprint { n_elements, text_bytes, n_bytes: n_bytes.saturating_mul(2) }
}

/// The request id of a body that is otherwise broken or not read to its end, when it stands first as every known encoder
/// writes it; else 0.
pub fn request_id(body_start: &[u8]) -> u64 {
    match body_start {
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
    fn a_library_of_custom_operators_has_an_absolute_path() {
        let library = proto::CustomOpLibrary { path: "custom.so".into(), ..Default::default() };
        let session =
            proto::SessionSpec { optimization: "all".into(), custom_op_libraries: vec![library], ..Default::default() };
        let part = proto::PreparePart { graph_id: "0".repeat(64), session: Some(session), ..Default::default() };
        let (code, text) = refused(proto::request::Body::PreparePart(part));
        assert_eq!(code, ErrorCode::BadOption);
        assert!(
            text.contains("custom_op_libraries.path") && text.contains("absolute path, got \"custom.so\""),
            "{text}"
        );
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
