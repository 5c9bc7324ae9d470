//! What the daemon keeps for a client is what it says it keeps.

use std::time::Duration;

use rust_ort::base::ids::{GraphId, StepId};
use rust_ort::client::Peer;
use rust_ort::protocol::control::*;
use rust_ort::protocol::frame::{self, FrameKind, HEADER_LEN};
use rust_ort::protocol::wire;

use crate::support::{Client, Home, graph, part};

const MIB: usize = 1 << 20;

fn varint(n: usize, out: &mut Vec<u8>) {
    prost::encoding::encode_varint(n as u64, out);
}

/// The request with `text` as a first value of its message's text field `number`, before the real one.
fn with_first(id: u8, request: &Request, number: usize, text: &str) -> Vec<u8> {
    let whole = wire::encode_request(id.into(), request).unwrap();
    let body = &whole[HEADER_LEN..];
    let mut message = &body[3..];
    prost::encoding::decode_varint(&mut message).unwrap();
    let mut fields = Vec::new();
    varint(number << 3 | 2, &mut fields);
    varint(text.len(), &mut fields);
    fields.extend(text.as_bytes());
    fields.extend(message);
    let mut frame = body[..3].to_vec();
    varint(fields.len(), &mut frame);
    frame.extend(fields);
    frame::encode(FrameKind::Request, &frame).unwrap()
}

/// MiB that it says it keeps, and that it has.
fn mebibytes(home: &Home) -> (u64, u64) {
    let status = home.status();
    let of = |name: &str| status["memory"][name].as_u64().unwrap() >> 20;
    (of("kept_bytes"), of("daemon_bytes"))
}

#[test]
fn a_text_that_comes_twice_is_kept_once() {
    // name and fx_text of RegisterGraph.
    for field in [2, 6] {
        let home = Home::new();
        let (mut peer, _) = Peer::connect(&home.socket(), "a test").unwrap();
        let long = "x".repeat(32 * MIB);
        for n in 0..8 {
            let graph = RegisterGraph { graph: GraphId::from_bytes([n; 32]), ..graph() };
            let request = Request::RegisterGraph(Box::new(graph));
            peer.send_raw(&with_first(100, &request, field, &long), None).unwrap();
            let answer = peer.next_answer(Duration::from_secs(60)).unwrap();
            assert!(format!("{answer:?}").contains("Registered"), "{answer:?}");
        }
        let (kept, has) = mebibytes(&home);
        assert!(kept == 0 && has < 128, "field {field}: it says {kept} MiB and has {has}");
    }
}

#[test]
fn rows_count_with_their_texts() {
    let home = Home::new();
    let mut client = Client::connect(&home);
    client.lease().unwrap();
    client.register();
    let mut part = part();
    part.part.named_values = vec!["y".into()];
    part.provenance_json = format!("{{\"values\":{{\"y\":{{\"source\":\"{}\"}}}}}}", "s".repeat(8 * MIB));
    let graph = part.part.graph;
    let handle = client.prepare_part(part).unwrap().handle;
    let (before, _) = mebibytes(&home);
    for step in 0..4 {
        let value = NodeValue::NotCompared { name: "y".into(), reason: "r".repeat(8 * MIB), nothing: false };
        let request = CompareNodes {
            of: NodesOf { graph, part: 0, step: StepId(step) },
            handle,
            feeds: vec![],
            values: vec![value],
            tolerance: None,
            cumulative_tolerance: None,
            through: None,
            dump_values: false,
            noise: None,
        };
        client.peer.ask(&Request::CompareNodes(Box::new(request))).unwrap();
    }
    // Each has the line of its source, and the reason in both of its verdicts.
    let (kept, _) = mebibytes(&home);
    assert!(kept >= before + 4 * 3 * 8, "before {before} MiB, then {kept}");
}
