//! What is refused, and a node that ends the executor.

use std::path::Path;

use super::*;
use crate::support::{Home, code, crash, is_held, refused, wait_for};
use rust_ort::base::limits;
use rust_ort::onnx;
use rust_ort::protocol::control::*;
use rust_ort::protocol::message::ErrorCode;
use rust_ort::tensor::{DType, Location, TensorDesc};

#[test]
fn hostile_requests_are_refused() {
    let home = Home::new();
    let mut bench = Bench::new(&home);
    let (feeds, values) = (bench.feeds(1), bench.nodes(&right()));
    let good = bench.request(feeds, values);
    let with = |change: &dyn Fn(&mut CompareNodes)| {
        let mut request = good.clone();
        change(&mut request);
        request
    };
    let node = |request: &mut CompareNodes, change: &dyn Fn(&mut ComputedNode)| {
        let NodeValue::Computed(node) = &mut request.values[0] else { panic!() };
        change(node);
    };
    let skipped = |name: String| NodeValue::NotCompared { name, reason: "why".into(), nothing: false };
    let three = TensorDesc::new(DType::F32, [3]).unwrap();
    let outside = Location::new(SegmentId(1), 1 << 30).unwrap();
    for (expected, request) in [
        (ErrorCode::UnknownGraph, with(&|request| request.handle.0 += 99)),
        (ErrorCode::UnknownGraph, with(&|request| request.of.part = 1)),
        (ErrorCode::BadMessage, with(&|request| request.feeds[0].name = "sum".into())),
        (ErrorCode::BadMessage, with(&|request| request.feeds[0].name = "y".into())),
        (ErrorCode::BadMessage, with(&|request| node(request, &|node| node.name = "../up".into()))),
        (ErrorCode::BadMessage, with(&|request| node(request, &|node| node.name = "x".into()))),
        (ErrorCode::BadTensor, with(&|request| node(request, &|node| node.candidate.desc = three.clone()))),
        (ErrorCode::BadTensor, with(&|request| node(request, &|node| node.reference.desc = three.clone()))),
        (ErrorCode::BadTensor, with(&|request| node(request, &|node| node.candidate = node.reference.clone()))),
        (ErrorCode::BadTensor, with(&|request| node(request, &|node| node.local = Some(node.candidate.clone())))),
        (ErrorCode::BadTensor, with(&|request| node(request, &|node| node.local.as_mut().unwrap().location = outside))),
        (
            ErrorCode::Limit,
            with(&|request| {
                request.values = (0..=limits::NODE_ROWS).map(|n| skipped(format!("n{n}"))).collect();
            }),
        ),
    ] {
        let error = refused(bench.compare(request).unwrap_err());
        assert_eq!(error.code, expected, "{error}");
    }
    for step in 0..limits::NODE_TABLES as u64 {
        let mut request = bench.request(Vec::new(), vec![skipped("n".into())]);
        request.of.step = StepId(100 + step);
        bench.compare(request).unwrap();
    }
    assert_eq!(code(bench.compare(good.clone()).unwrap_err()), ErrorCode::Limit);
    let of = NodesOf { step: StepId(100), ..of() };
    let finish =
        |dump| Request::FinishNodes(FinishNodes { of, dump, plain: Vec::new(), tolerance: None, through: None });
    assert_eq!(code(bench.client.peer.ask(&finish(true)).unwrap_err()), ErrorCode::BadState, "no dump is open");
    assert_eq!(bench.client.peer.ask(&finish(false)).unwrap(), Reply::Comparison(Vec::new()));
    assert_eq!(bench.compare(good).unwrap().len(), 6);
}

#[test]
fn executor_killed_in_a_batch_names_the_node_and_keeps_its_model() {
    let home = Home::new();
    let mut bench = Bench::new(&home);
    bench.batch(1, &other());
    let victim = home.status()["executors"][0]["pid"].as_u64().unwrap() as u32;
    std::fs::write(home.hold(), b"").unwrap();
    let hold = home.hold();
    let killer = std::thread::spawn(move || {
        wait_for("the node is inside", || is_held(&hold));
        crash(victim);
    });
    let (feeds, values) = (bench.feeds(1), bench.nodes(&right()[5..]));
    let g = NodeFeed { name: "g".into(), ..feeds[0].clone() };
    let request = bench.request(vec![g], values);
    let error = refused(bench.compare(request).unwrap_err());
    killer.join().unwrap();
    std::fs::remove_file(home.hold()).unwrap();
    let found = (error.code, error.graph.as_str(), error.node.as_str());
    assert_eq!(found, (ErrorCode::ExecutorLost, "0_0-inference", "h"), "{error:?}");
    let part = Path::new(&error.dump).join("0_0-inference/part_0");
    let saved = onnx::load(&part.join("model.onnx")).unwrap().graph.unwrap();
    assert_eq!(saved.node.iter().map(|node| node.op_type()).collect::<Vec<_>>(), ["Neg"]);
    assert_eq!(onnx::load_tensor(&part.join("test_data_set_0/input_0.pb")).unwrap().name, "g");

    bench.prepare();
    assert_eq!(bench.batch(1, &right()).len(), 6, "what was compared went with the lease");
}
