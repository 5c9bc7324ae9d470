//! What float64 says of nodes.

use super::*;
use crate::support::{Home, code, refused};
use rust_ort::compare::Verdict;
use rust_ort::protocol::control::*;
use rust_ort::protocol::message::ErrorCode;
use rust_ort::tensor::{TensorDesc, TensorRef};

#[test]
fn a_third_opinion_settles_a_mismatch_either_way() {
    let home = Home::new();
    let mut bench = Bench::new(&home);
    let part = bench.open_dump(&home.folder.path().join("dumps"));
    let feeds = bench.feeds(1);
    let mut references = right();
    references[1].1[0] += 1.;
    references[3].1[0] += 1.;
    let values = bench.nodes(&[references[0], references[1], references[3]]);
    let (of_b, of_d) = match &values[..] {
        [_, NodeValue::Computed(b), NodeValue::Computed(d)] => (b.clone(), d.clone()),
        _ => panic!(),
    };
    let verdicts = bench.compare(bench.request(feeds, values)).unwrap();
    // d is 1 more than b, and the reference's b is 1 more than the kernel's.
    assert_eq!(kinds(&verdicts)[1], ("b", MISMATCH, MISMATCH));
    assert_eq!(kinds(&verdicts)[2].0, "d");
    let tensors = |node: &ComputedNode, exact| [exact, node.reference.clone(), node.local.clone().unwrap()];
    let eager_is_right = bench.doubles(references[1].1.map(f64::from));
    let stays = bench.settle("b", tensors(&of_b, eager_is_right)).unwrap();
    assert_eq!((stays.local.kind, stays.local.outside), (MISMATCH, 1));
    // Of the elements that decide alone, and of more than there are.
    let first = |n: i64, tensor: &TensorRef| {
        let desc = TensorDesc::new(tensor.desc.dtype, [n]).unwrap();
        TensorRef { desc, ..tensor.clone() }
    };
    let eager_is_right = bench.doubles(references[1].1.map(f64::from));
    let some = |n| tensors(&of_b, eager_is_right.clone()).map(|tensor| first(n, &tensor));
    assert_eq!(bench.settle("b", some(1)).unwrap().local.kind, MISMATCH);
    assert_eq!(code(bench.settle("b", some(5)).unwrap_err()), ErrorCode::BadTensor);
    let kernel_is_right = bench.doubles(right()[1].1.map(f64::from));
    let rounding = bench.settle("b", tensors(&of_b, kernel_is_right.clone())).unwrap();
    assert_eq!((rounding.local.kind, rounding.local.outside, rounding.cumulative.kind), (MATCH, 1, MISMATCH));

    let again = bench.settle("b", tensors(&of_b, kernel_is_right.clone())).unwrap_err();
    assert_eq!(code(again), ErrorCode::BadState);
    let unknown = refused(bench.settle("nothing", tensors(&of_d, kernel_is_right)).unwrap_err());
    assert_eq!((unknown.code, unknown.message.contains("\"nothing\"")), (ErrorCode::BadState, true));
    let single = bench.floats(X);
    assert_eq!(code(bench.settle("b", tensors(&of_b, single)).unwrap_err()), ErrorCode::BadTensor);

    bench.finish(true, Vec::new());
    let noise = table(&part).nodes[1].local.noise.unwrap();
    assert_eq!((noise.errors.reference_error, noise.errors.candidate_error), (1., 0.));
    assert_eq!(table(&part).nodes[1].local.verdict, Verdict::Match);
    assert!(!part.join("node_b_3").exists(), "rounding is no bug to reproduce");
}

#[test]
fn a_sum_is_settled_by_its_terms_and_a_choice_by_what_the_client_knows() {
    let home = Home::new();
    let mut bench = Bench::new(&home);
    let part = bench.open_dump(&home.folder.path().join("dumps"));
    // The reference's a and b are off by 1 % at one place, where float64 is with the reference.
    let mut references = right()[..2].to_vec();
    for (_, reference) in &mut references {
        reference[1] *= 1.01;
    }
    let (feeds, values) = (bench.feeds(1), bench.nodes(&references));
    let request = bench.request(feeds, values);
    let verdicts = bench.compare(request.clone()).unwrap();
    assert_eq!([verdicts[0].local.kind, verdicts[1].local.kind], [MISMATCH; 2]);
    let NodeValue::Computed(a) = &request.values[0] else { panic!() };
    let by = |exact, terms| {
        let (reference, local) = (a.reference.clone(), a.local.clone().unwrap());
        SettledBy::Float64(InFloat64 { exact, reference, local, terms: Some(terms) })
    };
    let exact = bench.doubles(references[0].1.map(f64::from));
    let wrong = bench.floats([1.; 4]);
    assert_eq!(code(bench.settle_by("a", by(exact.clone(), wrong)).unwrap_err()), ErrorCode::BadTensor);
    for (terms, expected) in [(1., MISMATCH), (1e9, MATCH)] {
        let terms = bench.doubles([terms; 4]);
        assert_eq!(bench.settle_by("a", by(exact.clone(), terms)).unwrap().local.kind, expected);
    }
    let why = || SettledBy::AsRight("equal keys".into());
    assert_eq!(bench.settle_by("b", why()).unwrap().local.kind, MATCH);
    assert_eq!(code(bench.settle_by("b", why()).unwrap_err()), ErrorCode::BadState, "a match already");
    bench.finish(true, Vec::new());
    assert_eq!(table(&part).nodes[1].as_right, "equal keys");
    assert_eq!(table(&part).first_local_mismatch(), None);
}

#[test]
fn float64_tells_noise_alone_and_along_the_way_from_what_is_worse() {
    let home = Home::new();
    let mut bench = Bench::new(&home);
    let part = bench.open_dump(home.folder.path());
    let feeds = bench.feeds(1);
    let mut values = bench.nodes(&right()[..4]);
    let exact = |value: [f32; 4]| value.map(f64::from);
    let set = |value: &mut NodeValue, local, cumulative, missing: &str| {
        let NodeValue::Computed(node) = value else { panic!() };
        *node.float64 = NodeFloat64 { local, cumulative, missing: missing.into() };
    };
    let (a, b) = (exact(right()[0].1), exact(right()[1].1));
    let (alone, along) = (bench.doubles(a), bench.doubles(a.map(|a| a + 1e-3)));
    set(&mut values[0], Some(alone), Some(along), "");
    let alone = bench.doubles(b);
    set(&mut values[1], Some(alone), None, "not known from 'a' on");
    set(&mut values[2], None, None, "");
    let mut request = CompareNodes { through: Some(DType::BF16), ..bench.request(feeds, values) };
    let verdicts = bench.compare(request.clone()).unwrap();
    let kind = |json: &str| serde_json::from_str::<serde_json::Value>(json).unwrap()["kind"].clone();
    assert_eq!(kind(&verdicts[0].local.noise_json), "noise");
    assert_eq!(kind(&verdicts[0].cumulative.noise_json), "noise");
    assert_eq!((verdicts[1].cumulative.noise_json.as_str(), verdicts[2].local.noise_json.as_str()), ("", ""));
    bench.finish(true, Vec::new());
    let rows = table(&part).nodes;
    let noise = rows[0].cumulative.noise.unwrap();
    assert!((noise.errors.reference_error - 1e-3).abs() < 1e-9 && noise.ratio == 1. && noise.errors.condition < 1.);
    assert_eq!(rows[0].local.noise.unwrap().errors.candidate_error, 0.);
    assert_eq!((rows[1].no_float64.as_str(), rows[1].cumulative.noise), ("not known from 'a' on", None));

    let NodeValue::Computed(node) = &mut request.values[0] else { panic!() };
    node.float64.local = Some(node.reference.clone());
    let error = refused(bench.compare(request).unwrap_err());
    assert!(error.message.contains("exact is float32[4], expected float64[4]"), "{error}");
}

/// A centred input's mean: both sides hold rounding, and what is added up tells how much that may be.
#[test]
fn a_value_that_drifted_is_settled_by_what_it_adds_up() {
    let home = Home::new();
    let mut bench = Bench::new(&home);
    let part = bench.open_dump(&home.folder.path().join("dumps"));
    let mut references = right()[..2].to_vec();
    references[0].1[1] *= 1.01;
    let (feeds, values) = (bench.feeds(1), bench.nodes(&references));
    let request = bench.request(feeds, values);
    assert_eq!(bench.compare(request.clone()).unwrap()[0].cumulative.kind, MISMATCH);
    let [NodeValue::Computed(a), NodeValue::Computed(b)] = &request.values[..] else { panic!() };
    let by = |of: &ComputedNode, terms| {
        let (reference, candidate) = (of.reference.clone(), of.candidate.clone());
        SettledBy::Terms(DriftedSum { reference, candidate, terms })
    };
    let [narrow, short] = [bench.floats([1.; 4]), bench.tensor(DType::F64, &[2])];
    for terms in [narrow, short] {
        assert_eq!(code(bench.settle_by("a", by(a, terms)).unwrap_err()), ErrorCode::BadTensor);
    }
    for (terms, expected) in [(1e-3, MISMATCH), (1e9, MATCH)] {
        let terms = bench.doubles([terms; 4]);
        let settled = bench.settle_by("a", by(a, terms)).unwrap();
        assert_eq!((settled.cumulative.kind, settled.local.kind), (expected, MISMATCH), "its own kernel stays accused");
    }
    let terms = bench.doubles([1e9; 4]);
    for (name, of) in [("a", a), ("b", b)] {
        let again = bench.settle_by(name, by(of, terms.clone())).unwrap_err();
        assert_eq!(code(again), ErrorCode::BadState, "{name} matches");
    }
    bench.finish(true, Vec::new());
    let table = table(&part);
    assert_eq!(table.nodes[0].cumulative.metrics.as_ref().unwrap().max_terms, Some(1e9));
    assert_eq!(table.first_cumulative_mismatch(), None);
}
