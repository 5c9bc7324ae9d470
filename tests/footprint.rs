//! What decoding takes is never more than was told from the bytes before: measured by an allocator that counts.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use proptest::prelude::*;
use rust_ort::base::footprint::Footprint;
use rust_ort::observe::nodes::PartNodes;
use rust_ort::{onnx, protocol::wire};

#[path = "common/counting.rs"]
mod counting;

use counting::most;

/// For an error's words.
const WORDS: usize = 4096;

#[track_caller]
fn check(bytes: &[u8]) {
    let told = |footprint: Footprint| footprint.text_bytes + footprint.n_bytes + WORDS;
    let shared = Bytes::copy_from_slice(bytes);
    let (request, limit) = (most(|| wire::decode_request(shared.clone())), told(wire::footprint(bytes)));
    assert!(request <= limit, "request: {request} bytes, told at most {limit}: {bytes:x?}");
    let (model, limit) = (most(|| onnx::decode(shared.clone())), told(onnx::footprint(bytes)));
    assert!(model <= limit, "model: {model} bytes, told at most {limit}: {bytes:x?}");
    let limit = PartNodes::footprint(bytes, &[], "{}") + WORDS;
    let nodes = most(|| PartNodes::read(&shared, &[], "{}"));
    assert!(nodes <= limit, "nodes: {nodes} bytes, told at most {limit}: {bytes:x?}");
}

fn varint(mut value: usize, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A length-delimited field.
fn field(number: usize, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    varint(number << 3 | 2, &mut out);
    varint(content.len(), &mut out);
    out.extend_from_slice(content);
    out
}

#[test]
fn two_bytes_of_a_message_may_take_hundreds() {
    assert_eq!(most(|| vec![0_u8; 1000]), 1000);
    let pairs = Bytes::from(field(12, &field(1, b"").repeat(10_000)));
    let training = Bytes::from(field(20, b"").repeat(10_000));
    let (request, model) = (most(|| wire::decode_request(pairs.clone())), most(|| onnx::decode(training.clone())));
    assert!(request > 50 * pairs.len() && model > 100 * training.len(), "{request} {model}");
    // Told as no more than some times what it takes.
    assert!(wire::footprint(&pairs).n_bytes < 8 * request && onnx::footprint(&training).n_bytes < 4 * model);
}

#[test]
fn no_field_three_levels_deep_takes_more_than_was_told() {
    for outer in 1..=25 {
        for middle in 1..=21 {
            for inner in 1..=21 {
                for (content, n) in [(&[][..], 9), (b"a", 5), (&[0x0a, 0, 0x12, 0], 3)] {
                    let inner = field(inner, content).repeat(n);
                    check(&field(outer, &field(middle, &inner).repeat(n)));
                }
            }
        }
    }
}

#[test]
fn many_of_each_field_take_no_more_than_was_told() {
    for outer in 1..=25 {
        for inner in 1..=21 {
            for n in [1, 2, 4, 5, 1025, 3000] {
                check(&field(outer, &field(inner, b"").repeat(n)));
                check(&field(outer, &field(inner, b"x").repeat(n)));
                check(&field(outer, &field(inner, &[1; 40]).repeat(n)));
                check(&field(outer, &field(inner, &[1].repeat(n))));
            }
        }
    }
}

/// A field that says it has three bytes, whatever is in it.
fn too_short(number: usize, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    varint(number << 3 | 2, &mut out);
    out.push(3);
    out.extend_from_slice(content);
    out
}

/// prost holds a length against the end of everything.
#[test]
fn what_lies_beyond_its_message_takes_no_more_than_was_told() {
    for outer in 1..=25 {
        for inner in 1..=21 {
            for (content, n) in [(&[1; 600][..], 1), (&[0x0a, 0].repeat(300), 1), (&[0x80; 601], 1), (&[7; 40], 9)] {
                let bytes = too_short(outer, &field(inner, content).repeat(n));
                check(&bytes);
                check(&field(12, &bytes));
            }
        }
    }
}

#[test]
fn texts_that_grow_take_no_more_than_was_told() {
    for number in 1..=8 {
        let growing: Vec<u8> = (1..200).flat_map(|n| field(number, "x".repeat(n * 50).as_bytes())).collect();
        for outer in 1..=25 {
            check(&field(outer, &growing));
        }
    }
}

#[test]
fn maps_take_no_more_than_was_told() {
    for n in [1, 11, 12, 13, 1000] {
        let entries: Vec<u8> =
            (0..n).flat_map(|n| field(6, &[field(1, format!("{n:04}").as_bytes()), field(2, b"y")].concat())).collect();
        check(&field(8, &entries));
        let options: Vec<u8> = (0..n).flat_map(|n| field(1, &field(2, &field(1, format!("{n}").as_bytes())))).collect();
        check(&field(8, &field(4, &options)));
    }
}

/// A chain of `n` nodes: node_k makes value_k+1 of value_k.
fn chain(n: usize) -> Bytes {
    let node = |n: usize| {
        let fields = [field(1, name(n).as_bytes()), field(2, name(n + 1).as_bytes()), field(4, b"Neg")];
        field(1, &[field(3, format!("node_{n}").as_bytes()), fields.concat()].concat())
    };
    let input = field(11, &field(1, name(0).as_bytes()));
    let graph = [(0..n).flat_map(node).collect(), input].concat();
    field(7, &graph).into()
}

fn name(n: usize) -> String {
    format!("value_{n}")
}

#[track_caller]
fn check_part(model: &Bytes, named: &[String], provenance: &str) {
    PartNodes::read(model, named, provenance).unwrap();
    let limit = PartNodes::footprint(model, named, provenance) + WORDS;
    let nodes = most(|| PartNodes::read(model, named, provenance));
    assert!(nodes <= limit, "{} values: {nodes} bytes, told at most {limit}", named.len());
}

#[test]
fn what_is_read_of_a_part_takes_no_more_than_was_told() {
    for n in [1, 3, 100, 3000] {
        let named: Vec<String> = (1..=n).map(name).collect();
        let facts: Vec<String> = (1..=n).map(|n| format!("\"value_{n}\":{{\"fx\":\"value_{n}\"}}")).collect();
        let nodes: Vec<String> = (0..n).map(|n| format!("\"node_{n}\":\"value_{}\"", n + 1)).collect();
        let outputs: Vec<String> = (1..=n).map(|n| format!("{{\"name\":\"value_{n}\",\"role\":\"grad\"}}")).collect();
        let provenance = format!(
            "{{\"values\":{{{}}},\"nodes\":{{{}}},\"outputs\":[{}]}}",
            facts.join(","),
            nodes.join(","),
            outputs.join(",")
        );
        for (named, provenance) in [(&named[..], provenance.as_str()), (&[], "{}"), (&named, "{}"), (&[], &provenance)]
        {
            check_part(&chain(n), named, provenance);
        }
    }
}

#[test]
fn values_of_one_fx_node_take_no_more_than_was_told() {
    for n in [1, 100, 3000] {
        let named: Vec<String> = (1..=n).map(name).collect();
        let facts: Vec<String> = (1..=n).map(|n| format!("\"value_{n}\":{{\"fx\":\"mm\"}}")).collect();
        let nodes: Vec<String> = (0..n).map(|n| format!("\"node_{n}\":\"mm\"")).collect();
        let provenance = format!("{{\"values\":{{{}}},\"nodes\":{{{}}}}}", facts.join(","), nodes.join(","));
        check_part(&chain(n), &named, &provenance);
    }
}

#[test]
fn values_of_one_onnx_node_take_no_more_than_was_told() {
    let named: Vec<String> = (1..=1000).map(name).collect();
    let outputs: Vec<u8> = named.iter().flat_map(|name| field(2, name.as_bytes())).collect();
    let node = field(1, &[outputs, field(4, "Split".repeat(10_000).as_bytes())].concat());
    check_part(&field(7, &node).into(), &named, "{}");
}

#[test]
fn long_texts_of_a_provenance_take_no_more_than_was_told() {
    let long = "x".repeat(1 << 20);
    let escaped = format!("{long}\\n");
    for (text, of) in [(&long, ""), (&long, "y"), (&escaped, "")].map(|(text, of)| (text.as_str(), of)) {
        for provenance in [
            format!("{{\"outputs\":[{{\"name\":\"value_1\",\"role\":\"{text}\",\"of\":\"{of}\"}}]}}"),
            format!("{{\"values\":{{\"value_1\":{{\"fx\":\"{text}\"}}}}}}"),
            format!("{{\"values\":{{\"value_1\":{{\"source\":\"{text}\"}}}}}}"),
            format!("{{\"nodes\":{{\"node_0\":\"{text}\"}}}}"),
        ] {
            check_part(&chain(1), &[name(1)], &provenance);
        }
    }
}

/// A message of nobody's schema: fields of all kinds, messages in messages.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let number = 1_usize..26;
    let scalar = (number.clone(), any::<u32>()).prop_map(|(number, value)| {
        let mut out = Vec::new();
        varint(number << 3, &mut out);
        varint(value as usize, &mut out);
        out
    });
    let text = (number.clone(), proptest::collection::vec(0_u8..0x80, 0..12)).prop_map(|(n, text)| field(n, &text));
    let leaf = prop_oneof![scalar, text];
    leaf.prop_recursive(5, 200, 12, move |inner| {
        let inner = proptest::collection::vec(inner, 0..12);
        (number.clone(), inner, 1_usize..6).prop_map(|(n, inner, times)| field(n, &inner.concat()).repeat(times))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn no_message_takes_more_than_was_told(bytes in message(), junk in proptest::collection::vec(any::<u8>(), 0..20)) {
        check(&bytes);
        check(&[bytes, junk].concat());
    }
}
