//! What was written is read, and what a peer should not send is refused by name.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message as _;

use super::super::control::*;
use super::super::frame;
use super::super::message::{ErrorCode, WireError};
use super::decode::Decoded;
use super::*;

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
fn a_graph_with_the_counts_that_older_clients_send_is_registered() {
    let graph = proto::RegisterGraph {
        graph_id: "0".repeat(64),
        name: "0_0-forward".into(),
        direction: proto::Direction::Forward.into(),
        ..Default::default()
    };
    // compute_nodes (8) is 12, eager_nodes (9) is 3.
    let graph = [graph.encode_to_vec(), vec![8 << 3, 12, 9 << 3, 3]].concat();
    let body = [&[0x08, 9, 7 << 3 | 2, graph.len() as u8][..], &graph].concat();
    let (id, decoded) = decode_request(Bytes::from(body));
    assert!(id == 9 && matches!(decoded, Ok(Request::RegisterGraph(_))), "{decoded:?}");
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
    let (folder, run) = ("/tmp".to_owned(), "x".to_owned());
    let open = proto::OpenDump { folder, run, calls: 1, umask: Some(0o1777), ..Default::default() };
    assert!(refused(proto::request::Body::OpenDump(open)).1.contains("at most 0777, got 1777"));
    let open = proto::OpenDump { folder: "dumps".into(), run: "x".into(), calls: 1, ..Default::default() };
    assert_eq!(refused(proto::request::Body::OpenDump(open)).0, ErrorCode::BadOption);
}

#[test]
fn an_executor_is_given_no_variable_but_those_of_a_client() {
    let lease = |name: &str, value: &str| {
        let variables = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        proto::request::Body::LeaseExecutor(proto::LeaseExecutor {
            onnxruntime_library: "/x".into(),
            environment: Some(proto::Environment { variables }),
            ..Default::default()
        })
    };
    for (name, value) in [("LD_PRELOAD", "/x"), ("OMP_=", "1"), ("OMP_X", "a\0b"), ("OMP_X", &"x".repeat(3 << 20))] {
        let (code, text) = refused(lease(name, value));
        assert!(code == ErrorCode::BadMessage && text.starts_with("LeaseExecutor.environment"), "{text}");
    }
    let lease = proto::LeaseExecutor { onnxruntime_library: "/x".into(), niceness: Some(20), ..Default::default() };
    assert!(refused(proto::request::Body::LeaseExecutor(lease)).1.contains("-20 to 19, got 20"));
    let hello = proto::Hello { cpus: vec![1; 129], ..Default::default() };
    assert!(refused(proto::request::Body::Hello(hello)).1.contains("at most 128 bytes, got 129"));
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
        let compare =
            proto::CompareTensors { pairs: vec![pair], tolerance: None, noise: None, through: 0, settles: None };
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
    assert!(text.contains("all, extended, basic, kernels, disable") && text.contains("\"full\""), "{text}");
}

#[test]
fn a_library_of_custom_operators_has_an_absolute_path() {
    let library = proto::CustomOpLibrary { path: "custom.so".into(), ..Default::default() };
    let session =
        proto::SessionSpec { optimization: "all".into(), custom_op_libraries: vec![library], ..Default::default() };
    let part = proto::PreparePart { graph_id: "0".repeat(64), session: Some(session), ..Default::default() };
    let (code, text) = refused(proto::request::Body::PreparePart(part));
    assert_eq!(code, ErrorCode::BadOption);
    assert!(text.contains("custom_op_libraries.path") && text.contains("absolute path, got \"custom.so\""), "{text}");
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
        let error = WireError::fault(ErrorCode::RunFailed, text.clone());
        let verdict = VerdictSummary {
            noise_json: "{}".into(),
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
