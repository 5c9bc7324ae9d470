//! Verdicts of nodes, alone and as they drift.

use super::*;
use crate::common::{Dim, Model};
use crate::support::{Home, refused};
use rust_ort::base::ids::CallId;
use rust_ort::protocol::control::*;
use rust_ort::protocol::message::ErrorCode;
use rust_ort::tensor::{CallRecord, DType, TensorDesc};

#[test]
fn nodes_that_agree_match_alone_and_together() {
    let home = Home::new();
    let mut bench = Bench::new(&home);
    let (feeds, values) = (bench.feeds(1), bench.nodes(&right()));
    let request = bench.request(feeds, values);
    let verdicts = bench.compare(request.clone()).unwrap();
    assert_eq!(kinds(&verdicts), ["a", "b", "c", "d", "g", "h"].map(|name| (name, MATCH, MATCH)));
    for (value, (name, expected)) in request.values.iter().zip(right()) {
        let NodeValue::Computed(node) = value else { panic!() };
        assert_eq!(bench.client.floats(node.candidate.location.offset()), expected, "{name}");
        assert_eq!(bench.client.floats(node.local.as_ref().unwrap().location.offset()), expected, "{name}");
    }
    assert_eq!(home.status()["executors"][0]["sessions"], 1, "pieces are not cached");
}

#[test]
fn a_step_that_was_observed_and_compared_node_by_node_is_one_step_of_the_status() {
    let home = Home::new();
    let mut bench = Bench::new(&home);
    let [x, y, h] = [X, Y, [0.; 4]].map(|values| bench.floats(values));
    let i = bench.tensor(DType::I64, &[4]);
    let record = CallRecord {
        call: CallId(1),
        handle: bench.handle,
        eager_nodes: 0,
        inputs: vec![x, y, i],
        outputs: vec![h.clone()],
    };
    let mut run = bench.client.observed(record);
    (run.step, run.references) = (StepId(3), Some(vec![bench.floats([0.; 4])]));
    bench.client.observe(run).unwrap();
    bench.batch(1, &other());
    bench.finish(
        false,
        vec![(
            "h".to_owned(),
            PairToCompare::Pair { reference: h.clone(), candidate: h, terms: None, exact: None, excuse: None },
        )],
    );
    let status = home.status();
    let steps = status["last_steps"].as_array().unwrap();
    assert_eq!(steps.len(), 1, "{steps:?}");
    let count = |what: &str| steps[0][what]["match"].as_u64().unwrap() + steps[0][what]["mismatch"].as_u64().unwrap();
    assert_eq!([count("summary"), count("nodes"), count("observing")], [1, 4, 1], "{steps:?}");

    let output = home.command().arg("status").env("COLUMNS", "200").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.contains("0_0-inference")).unwrap();
    assert_eq!(text.matches("0_0-inference").count(), 1, "{text}");
    assert!(line.contains("3 match, 1 mismatch"), "{text}");
    assert!(!text.contains(['{', '}', '"']), "{text}");
    for heading in ["clients", "executors", "counters", "last observed steps", "quarantine: none"] {
        assert!(text.contains(heading), "{heading} not in {text}");
    }
}

#[test]
fn a_later_batch_reads_the_candidates_of_an_earlier_one() {
    let home = Home::new();
    let mut bench = Bench::new(&home);
    let (feeds, mut values) = (bench.feeds(1), bench.nodes(&other()));
    let NodeValue::Computed(d) = values.pop().unwrap() else { panic!() };
    let NodeValue::Computed(c) = values.pop().unwrap() else { panic!() };
    let c_feed = NodeFeed { name: "c".into(), reference: c.reference.clone(), candidate: c.candidate.clone() };
    values.push(NodeValue::Computed(ComputedNode { local: None, ..c }));
    values.insert(0, NodeValue::NotCompared { name: "size".into(), reason: "no tensor".into(), nothing: true });
    let verdicts = bench.compare(bench.request(feeds, values)).unwrap();
    let expected = [("size", NOT_COMPARED, NOT_COMPARED), ("a", MATCH, MATCH), ("b", MISMATCH, MISMATCH)];
    assert_eq!(kinds(&verdicts), expected, "c is only computed");
    let request = bench.request(vec![c_feed], vec![NodeValue::Computed(d)]);
    assert_eq!(kinds(&bench.compare(request.clone()).unwrap()), [("d", MATCH, MISMATCH)]);
    let again = refused(bench.compare(request).unwrap_err());
    assert_eq!((again.code, again.message.contains("\"d\"")), (ErrorCode::BadState, true), "{again}");
}

#[test]
fn a_model_is_not_cut_at_a_value_without_a_reference() {
    let home = Home::new();
    let mut bench = Bench::new(&home);
    let (feeds, mut values) = (bench.feeds(1), bench.nodes(&right()[1..3]));
    values.insert(0, NodeValue::NotCompared { name: "a".into(), reason: "no reference".into(), nothing: false });
    let verdicts = bench.compare(bench.request(feeds, values)).unwrap();
    assert_eq!(kinds(&verdicts), [("a", NOT_COMPARED, NOT_COMPARED), ("b", MATCH, MATCH), ("c", MATCH, MATCH)]);
    assert_eq!(verdicts[0].local.reason, "no reference");
    let values = bench.nodes(&right()[5..]);
    let verdicts = bench.compare(bench.request(Vec::new(), values)).unwrap();
    assert_eq!(kinds(&verdicts), [("h", FAILED, FAILED)]);
    assert!(verdicts[0].local.reason.contains("(Neg \"node_h\") reads value \"g\""), "{}", verdicts[0].local.reason);
}

#[test]
fn a_failing_node_costs_its_own_verdict_only() {
    let home = Home::new();
    let mut bench = Bench::new(&home);
    let verdicts = bench.batch(9, &right());
    let mut expected = ["a", "b", "c", "d", "g", "h"].map(|name| (name, MATCH, MATCH));
    expected[4] = ("g", FAILED, FAILED);
    assert_eq!(kinds(&verdicts), expected);
    let NodeVerdictSummary { local, cumulative, .. } = &verdicts[4];
    assert!(local.reason.contains("node_g"), "{}", local.reason);
    assert!(cumulative.reason.ends_with("later nodes go on with the reference's value"), "{}", cumulative.reason);
}

/// u = 2·x + y and v = (2·x)[i]: what has no name, and both read, runs once for both.
#[test]
fn of_values_that_run_together_one_that_fails_costs_its_own_verdict_only() {
    let dims = [Dim::Is(4)];
    let shared = || {
        Model::default()
            .input("x", DType::F32, &dims)
            .input("y", DType::F32, &dims)
            .input("i", DType::I64, &dims)
            .initializer("two", &[], &[2.])
            .node("Mul", &["x", "two"], &["t"])
            .node("Add", &["t", "y"], &["u"])
            .node("Gather", &["t", "i"], &["v"])
            .output("u", DType::F32, &dims)
            .output("v", DType::F32, &dims)
            .build()
    };
    let (u, v) = (std::array::from_fn(|at| 2. * X[at] + Y[at]), [2. * X[1]; 4]);
    for (index, of_v) in [(1, MATCH), (9, FAILED)] {
        let home = Home::new();
        let mut bench = Bench::of(&home, shared(), &["u", "v"]);
        let verdicts = bench.batch(index, &[("u", u), ("v", v)]);
        assert_eq!(kinds(&verdicts), [("u", MATCH, MATCH), ("v", of_v, of_v)], "index {index}");
    }
    let home = Home::new();
    let mut bench = Bench::of(&home, shared(), &["u", "v"]);
    let verdicts = bench.batch(1, &[("u", u), ("v", X)]);
    assert_eq!(kinds(&verdicts), [("u", MATCH, MATCH), ("v", MISMATCH, MISMATCH)]);
}

#[test]
fn a_kernel_that_gives_another_shape_fails_at_its_node() {
    let home = Home::new();
    let mut bench = Bench::new(&home);
    let (feeds, mut values) = (bench.feeds(1), bench.nodes(&right()[..3]));
    for value in &mut values[1..] {
        let NodeValue::Computed(node) = value else { panic!() };
        for tensor in [&mut node.reference, &mut node.candidate, node.local.as_mut().unwrap()] {
            tensor.desc = TensorDesc::new(DType::F32, [2, 2]).unwrap();
        }
    }
    let verdicts = bench.compare(bench.request(feeds, values)).unwrap();
    assert_eq!(kinds(&verdicts), [("a", MATCH, MATCH), ("b", FAILED, FAILED), ("c", MATCH, MATCH)]);
    assert!(verdicts[1].local.reason.contains("[2, 2]"), "{}", verdicts[1].local.reason);
}
