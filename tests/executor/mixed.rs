//! A part on several runtimes: how it is divided, and what is refused. With libtorch: what it gives.

use std::collections::BTreeMap;

use rust_ort::base::ids::GraphId;
use rust_ort::onnx::{self, Described, Descriptions};
use rust_ort::protocol::message::{Division, ErrorCode, NodeRuntime, PartSpec, RuntimeRule, SessionSpec, WireError};
use rust_ort::runtime::{self, RuntimeError, StopToken};
use rust_ort::tensor::DType;

use crate::common::{Dim, Model, runtime as onnxruntime};

pub fn rule(runtime: NodeRuntime, pattern: &str) -> RuntimeRule {
    RuntimeRule { runtime, patterns: vec![pattern.to_owned()] }
}

pub fn part(model: Vec<u8>, runtimes: Vec<RuntimeRule>) -> PartSpec {
    PartSpec {
        graph: GraphId::from_bytes([0; 32]),
        part: 0,
        model: model.into(),
        session: SessionSpec { runtimes, ..SessionSpec::default() },
        fx_values: BTreeMap::new(),
        named_values: Vec::new(),
        described: Descriptions::new(),
    }
}

fn divided(part: &PartSpec) -> Result<Division, RuntimeError> {
    runtime::divide(onnx::decode(part.model.clone()).unwrap(), &part.session.runtimes, &part.described)
}

const N: [Dim; 1] = [Dim::Named("n")];

/// Two chains, Exp → Neg → Exp → Neg each, added up.
fn chains() -> Vec<u8> {
    let mut model = Model::default().input("x", DType::F32, &N).output("y", DType::F32, &N);
    for chain in ["a", "b"] {
        let name = |at: usize| if at == 0 { "x".to_owned() } else { format!("{chain}{at}") };
        for (at, op) in ["Exp", "Neg", "Exp", "Neg"].into_iter().enumerate() {
            model = model.node(op, &[&name(at)], &[&name(at + 1)]);
        }
    }
    model.node("Add", &["a4", "b4"], &["y"]).build()
}

#[test]
fn what_is_ready_on_one_runtime_runs_together() {
    let division = divided(&part(chains(), vec![rule(NodeRuntime::Torch, "Exp")])).unwrap();
    assert_eq!(division.nodes, BTreeMap::from([(NodeRuntime::Ort, 5), (NodeRuntime::Torch, 4)]));
    // Exp of both, Neg of both, Exp of both, and what is left.
    assert_eq!((division.segments, division.taken), (4, vec![4]));
    let division = divided(&part(chains(), vec![rule(NodeRuntime::Torch, "*")])).unwrap();
    assert_eq!((division.segments, division.taken), (1, vec![9]));
}

#[test]
fn the_first_rule_that_fits_decides_and_names_of_every_kind_fit() {
    let told = |fx: &str, op: &str, module: &str| Described { fx: fx.into(), op: op.into(), module: module.into() };
    let mut part = part(chains(), vec![rule(NodeRuntime::Ort, "a2"), rule(NodeRuntime::TorchF64, "*.norm")]);
    part.described = BTreeMap::from([
        ("a2".to_owned(), told("neg", "aten.neg.default", "model.norm")),
        ("b2".to_owned(), told("neg_1", "aten.neg.default", "model.norm")),
    ]);
    let division = divided(&part).unwrap();
    // Exp and Neg of each chain belong to a2 and to b2.
    assert_eq!(division.taken, [2, 2]);
    assert_eq!(division.nodes, BTreeMap::from([(NodeRuntime::Ort, 7), (NodeRuntime::TorchF64, 2)]));
    part.session.runtimes = vec![rule(NodeRuntime::Torch, "neg_?"), rule(NodeRuntime::Torch, "node_y")];
    assert_eq!(divided(&part).unwrap().taken, [2, 1]);
    part.session.runtimes = vec![rule(NodeRuntime::Torch, "LayerNorm*")];
    let division = divided(&part).unwrap();
    assert_eq!((division.taken, division.segments), (vec![0], 1));
}

#[test]
fn constants_are_where_they_are_read_and_count_nowhere() {
    let model = Model::default()
        .initializer("c", &[1], &[2.])
        .node("Neg", &["c"], &["d"])
        .node("Mul", &["x", "d"], &["a"])
        .node("Exp", &["a"], &["b"])
        .node("Mul", &["b", "d"], &["y"])
        .input("x", DType::F32, &N)
        .output("y", DType::F32, &N);
    let division = divided(&part(model.build(), vec![rule(NodeRuntime::Torch, "Exp")])).unwrap();
    assert_eq!(division.nodes, BTreeMap::from([(NodeRuntime::Ort, 2), (NodeRuntime::Torch, 1)]));
    assert_eq!(division.segments, 3);
}

#[test]
fn what_no_output_needs_is_in_no_segment() {
    let model = Model::default()
        .node("Exp", &["x"], &["a"])
        .node("Neg", &["a"], &["unread"])
        .node("Exp", &["unread"], &["unread too"])
        .node("Neg", &["a"], &["y"])
        .input("x", DType::F32, &N)
        .output("y", DType::F32, &N);
    let division = divided(&part(model.build(), vec![rule(NodeRuntime::Torch, "Exp")])).unwrap();
    assert_eq!(division.nodes, BTreeMap::from([(NodeRuntime::Ort, 1), (NodeRuntime::Torch, 1)]));
    assert_eq!((division.segments, division.taken), (2, vec![1]));
}

/// A sequence of x and −x, of which the second is taken out; Exp of it goes between `maker` and reader.
fn with_sequence(between: bool) -> Vec<u8> {
    let at = if between { "i2" } else { "i" };
    Model::default()
        .node("Neg", &["x"], &["minus"])
        .node("SequenceConstruct", &["x", "minus"], &["pair"])
        .node("SequenceLength", &["pair"], &["n"])
        .node("Identity", &["i"], &["i2"])
        .node("SequenceAt", &["pair", at], &["y"])
        .input("x", DType::F32, &N)
        .input("i", DType::I64, &[])
        .output("y", DType::F32, &N)
        .output("n", DType::I64, &[])
        .build()
}

#[test]
fn who_reads_a_sequence_runs_where_it_is_made() {
    let division = divided(&part(with_sequence(false), vec![rule(NodeRuntime::Torch, "SequenceAt")])).unwrap();
    assert_eq!((division.nodes[&NodeRuntime::Torch], division.taken), (3, vec![3]));
}

#[test]
fn a_rule_for_libtorch_without_libtorch_is_an_error_that_names_the_node() {
    let part = part(chains(), vec![rule(NodeRuntime::Torch, "node_a2")]);
    let error = runtime::session(onnxruntime(), &part).err().unwrap();
    let text = error.to_string();
    assert!(text.contains("\"node_a2\" to torch") && text.contains("make build-torch"), "{text}");
    assert_eq!(WireError::from(error).code, ErrorCode::RuntimeMissing);
}

#[test]
fn rules_for_onnxruntime_alone_need_no_libtorch() {
    let part = part(chains(), vec![rule(NodeRuntime::Ort, "*"), rule(NodeRuntime::Torch, "Exp")]);
    let model = onnx::decode(part.model.clone()).unwrap();
    let stop = StopToken::default();
    let (session, division) = runtime::session_with(onnxruntime(), &part, model, Vec::new(), &stop).unwrap();
    assert_eq!((session.outputs().len(), division.taken), (1, vec![9, 0]));
}
