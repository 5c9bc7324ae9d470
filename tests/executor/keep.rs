//! Values that are not rounded to half precision, on ONNX Runtime, and the search for the fewest of them.

use std::collections::HashMap;
use std::time::Duration;

use half::f16;
use rust_ort::compare::Tolerance;
use rust_ort::keep::{Answer, By, Call, Found, Limit, Settings, Strategy, Subject, Told, search, verify};
use rust_ort::onnx::{Described, NamedTensor, decode};
use rust_ort::protocol::message::{Optimization, SessionSpec};
use rust_ort::runtime::{RuntimeError, leased, session};
use rust_ort::tensor::{DType, TensorBuf, TensorDesc};

use crate::common::{Dim, Model, runtime};

fn halves(name: &str, values: &[f32]) -> NamedTensor {
    let bytes = values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect();
    let desc = TensorDesc::new(DType::F16, [values.len() as i64]).unwrap();
    NamedTensor::of(name, &TensorBuf::new(desc, bytes).unwrap())
}

/// Nodes of float16; every value is an FX node's, of the module `m.<value>`.
fn subject(model: Model, outputs: &[&str], feeds: &[(&str, &[f32])]) -> Subject {
    let dims = [Dim::Is(feeds[0].1.len() as i64)];
    let model = outputs.iter().fold(model, |model, name| model.output(name, DType::F16, &dims));
    let model = feeds.iter().fold(model, |model, (name, _)| model.input(name, DType::F16, &dims));
    let model = decode(model.build().into()).unwrap();
    let values = model.graph.as_ref().unwrap().node.iter().flat_map(|node| &node.output);
    let told = |name: &String| {
        let described = Described { fx: name.clone(), module: format!("m.{name}"), ..Described::default() };
        let told = Told { described, ..Told::default() };
        (name.clone(), told)
    };
    Subject {
        graph: "0_0-inference".to_owned(),
        part: 0,
        told: values.map(told).collect(),
        model,
        roles: HashMap::new(),
        spec: SessionSpec::default(),
        tolerance: None,
        calls: vec![Call { step: 0, feeds: feeds.iter().map(|(name, values)| halves(name, values)).collect() }],
    }
}

/// y = x·w/16, of which x·w overflows float16.
fn overflowing() -> Subject {
    let model = Model::default().node("Mul", &["x", "w"], &["h"]).node("Div", &["h", "d"], &["y"]);
    subject(model, &["y"], &[("x", &[300., 2., -1000.]), ("w", &[300., 3., 1000.]), ("d", &[16., 16., 64.])])
}

/// y = (x + big) − big beside z = x·x, where the sum rounds x away.
fn cancelling() -> Subject {
    let model = Model::default()
        .node("Add", &["x", "big"], &["sum"])
        .node("Sub", &["sum", "big"], &["rest"])
        .node("Mul", &["x", "x"], &["square"])
        .node("Add", &["rest", "square"], &["y"]);
    subject(model, &["y"], &[("x", &[0.3, -0.7, 1.1, 0.01]), ("big", &[700., 900., 1000., 555.])])
}

fn compiled(subject: &Subject, rules: &[&str]) -> Vec<f64> {
    let rules: Vec<String> = rules.iter().map(|&rule| rule.to_owned()).collect();
    let session = session(runtime(), &subject.compiled(&rules)).unwrap();
    let feeds: Vec<_> = subject.calls[0].feeds.iter().map(|feed| feed.view()).collect();
    let (outputs, _) = session.fetch(&leased(&feeds).unwrap()).unwrap();
    let output = outputs[0].view();
    assert_eq!(output.dtype(), DType::F16);
    output.flat_f64(0..output.shape().n_elements()).unwrap()
}

fn settings(limit: Limit) -> Settings {
    Settings { limit, by: By::Node, strategy: Strategy::Smallest, budget: Duration::from_secs(600) }
}

const DEFAULT: Limit = Limit::Tolerance(None);

fn searched(subject: &Subject, settings: &Settings) -> Answer {
    search(subject, runtime(), settings, &mut |_, _, _| {}).unwrap().unwrap()
}

fn rules(names: &[&str]) -> Found {
    Found::Rules { float32: names.iter().map(|&name| name.to_owned()).collect() }
}

#[test]
fn a_kept_value_does_not_overflow_at_any_level() {
    for &(_, optimization) in Optimization::NAMES {
        let mut subject = overflowing();
        subject.spec.optimization = optimization;
        let infinite = compiled(&subject, &[]);
        assert_eq!(infinite, [f64::INFINITY, 0.375, f64::NEG_INFINITY], "{optimization:?}");
        for rule in ["h", "m.h", "Mul", "*"] {
            let expected = [5624., 0.375, -15624.];
            assert_eq!(compiled(&subject, &[rule]), expected, "{optimization:?} {rule}");
        }
    }
}

#[test]
fn what_is_not_kept_is_rounded_where_it_was() {
    let round = |value: f32| f16::from_f32(value).to_f32();
    let subject = cancelling();
    let feeds = |at: usize| subject.calls[0].feeds[at].view().flat_f64(0..4).unwrap();
    let expected = |keeps: [bool; 3]| -> Vec<f64> {
        let [sum, rest, square] = keeps.map(|kept| move |value: f32| if kept { value } else { round(value) });
        let one = |(x, big): (f64, f64)| {
            let (x, big) = (x as f32, big as f32);
            f64::from(round(rest(sum(x + big) - big) + square(x * x)))
        };
        feeds(0).into_iter().zip(feeds(1)).map(one).collect()
    };
    for (kept, keeps) in [
        (&[][..], [false; 3]),
        (&["sum"], [true, false, false]),
        (&["rest", "square"], [false, true, true]),
        (&["sum", "m.square"], [true, false, true]),
        (&["*"], [true; 3]),
        (&["nothing of this name"], [false; 3]),
    ] {
        assert_eq!(compiled(&subject, kept), expected(keeps), "{kept:?}");
    }
}

#[test]
fn other_providers_than_the_cpus_refuse_rules() {
    let mut subject = overflowing();
    subject.spec.providers = vec![("CUDAExecutionProvider".to_owned(), Default::default())];
    let refused = session(runtime(), &subject.compiled(&["h".to_owned()])).err().unwrap();
    assert!(matches!(&refused, RuntimeError::BadOption { name, .. } if name == "precision_rules"), "{refused}");
}

#[test]
fn what_overflows_is_found() {
    let answer = searched(&overflowing(), &settings(DEFAULT));
    assert_eq!((&answer.found, answer.reference.as_str()), (&rules(&["h"]), "float64"));
    assert_eq!((answer.culprits[0].pattern.as_str(), answer.culprits[0].n_infinite), ("h", 2));
    let output = &answer.outputs[0];
    assert_eq!((output.before.within, output.before.times), (false, None));
    assert!(output.after.as_ref().unwrap().within && output.everything.within);
    let by_module = Settings { by: By::Module, ..settings(DEFAULT) };
    assert_eq!(searched(&overflowing(), &by_module).found, rules(&["m.h"]));
}

#[test]
fn what_makes_the_error_is_kept_and_nothing_else() {
    for strategy in [Strategy::Greedy, Strategy::Smallest] {
        let answer = searched(&cancelling(), &Settings { strategy, ..settings(DEFAULT) });
        assert_eq!(answer.found, rules(&["sum"]), "{strategy:?}");
        let first = &answer.culprits[0];
        assert_eq!((first.pattern.as_str(), first.module.as_str(), first.n_infinite), ("sum", "m.sum", 0));
        assert!((0.99..1.01).contains(&first.share), "{}", first.share);
        assert!(answer.complete && answer.culprits.len() == 4, "{answer:#?}");
    }
    // Nothing brings an output nearer than it is with everything kept.
    let most = searched(&cancelling(), &settings(DEFAULT)).outputs[0].everything.times.unwrap();
    assert_eq!(searched(&cancelling(), &settings(Limit::Times(1.001 * most))).found, rules(&["sum"]));
    assert_eq!(searched(&cancelling(), &settings(Limit::Times(0.999 * most))).found, Found::Impossible);
}

#[test]
fn rules_are_checked_by_running_the_part_with_them() {
    let (subject, settings) = (overflowing(), settings(DEFAULT));
    let mut answer = searched(&subject, &settings);
    assert!(verify(&subject, runtime(), &settings, &["h".to_owned()], &mut answer).unwrap());
    assert!(!verify(&subject, runtime(), &settings, &["y".to_owned()], &mut answer).unwrap());
    assert_eq!(answer.outputs[0].after.as_ref().unwrap().times, None);
}

#[test]
fn nothing_is_kept_where_nothing_need_be_or_nothing_helps() {
    let fine =
        subject(Model::default().node("Neg", &["x"], &["a"]).node("Abs", &["a"], &["y"]), &["y"], &[("x", &[1., 2.])]);
    let answer = searched(&fine, &settings(DEFAULT));
    assert_eq!((answer.found, answer.outputs[0].after.is_none()), (Found::Within, true));
    let exact = Limit::Tolerance(Some(Tolerance::EXACT));
    let answer = searched(&cancelling(), &settings(exact));
    assert_eq!((answer.found, answer.beyond), (Found::Impossible, vec!["y".to_owned()]));
    assert_eq!(answer.culprits[0].pattern, "sum");
    let no_time = Settings { budget: Duration::ZERO, ..settings(DEFAULT) };
    let answer = searched(&cancelling(), &no_time);
    assert_eq!((answer.found, answer.complete, answer.culprits.len()), (Found::Unknown, false, 0));
}

#[test]
fn an_output_that_overflows_itself_keeps_no_other_from_its_rules() {
    let model = Model::default().node("Mul", &["x", "w"], &["h"]).node("Div", &["h", "d"], &["y"]);
    let both = subject(model, &["h", "y"], &[("x", &[300., 2.]), ("w", &[300., 3.]), ("d", &[16., 16.])]);
    let mut answer = searched(&both, &settings(DEFAULT));
    assert_eq!((&answer.found, &answer.beyond), (&rules(&["h"]), &vec!["h".to_owned()]));
    assert_eq!(answer.infinite_inputs, [""; 0]);
    let within: Vec<_> = answer.outputs.iter().map(|output| output.after.as_ref().unwrap().within).collect();
    assert_eq!(within, [false, true]);
    assert!(verify(&both, runtime(), &settings(DEFAULT), &["h".to_owned()], &mut answer).unwrap());
}

#[test]
fn inputs_that_are_infinite_are_told() {
    let mut subject = overflowing();
    subject.calls[0].feeds[1] = halves("w", &[f32::INFINITY, 1., f32::NAN]);
    let answer = searched(&subject, &settings(DEFAULT));
    assert_eq!((answer.infinite_inputs, answer.found), (vec!["w".to_owned()], Found::Within));
}

#[test]
fn all_calls_of_a_part_are_within_their_limit_together() {
    let mut subject = overflowing();
    let harmless = [("x", [1., 2., 3.]), ("w", [1., 1., 1.]), ("d", [1., 2., 4.])];
    subject.calls.insert(0, Call { step: 7, feeds: harmless.map(|(name, values)| halves(name, &values)).to_vec() });
    let answer = searched(&subject, &settings(DEFAULT));
    assert_eq!((answer.steps, answer.found), (vec![7, 0], rules(&["h"])));
}

#[test]
fn a_part_without_half_precision_has_nothing_to_keep() {
    let mut whole = overflowing();
    let dims = [Dim::Is(2)];
    let model =
        Model::default().node("Neg", &["x"], &["y"]).input("x", DType::F32, &dims).output("y", DType::F32, &dims);
    whole.model = decode(model.build().into()).unwrap();
    assert!(search(&whole, runtime(), &settings(DEFAULT), &mut |_, _, _| {}).unwrap().is_none());
}
