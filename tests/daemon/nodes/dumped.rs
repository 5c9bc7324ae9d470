//! What of nodes stands in a dump.

use super::*;
use crate::support::{Home, code};
use rust_ort::compare::{BirthKind, Side};
use rust_ort::dump::reader;
use rust_ort::onnx;
use rust_ort::protocol::control::*;
use rust_ort::protocol::message::ErrorCode;

#[test]
fn a_wrong_kernel_is_named_at_its_node_and_drifts_downstream() {
    let home = Home::new();
    let mut bench = Bench::new(&home);
    let part = bench.open_dump(&home.folder.path().join("dumps"));
    let verdicts = bench.batch(1, &other());
    let expected = [("a", MATCH, MATCH), ("b", MISMATCH, MISMATCH), ("c", MATCH, MISMATCH), ("d", MATCH, MISMATCH)];
    assert_eq!(kinds(&verdicts), expected);
    let pair =
        |reference, candidate| PairToCompare::Pair { reference, candidate, terms: None, exact: None, excuse: None };
    let (x, same, y) = (bench.floats(X), bench.floats(X), bench.floats(Y));
    let plain = vec![("same".to_owned(), pair(x.clone(), same)), ("other".to_owned(), pair(x, y))];
    let verdicts = bench.finish(true, plain);
    assert_eq!(verdicts.iter().map(|verdict| verdict.kind).collect::<Vec<_>>(), [MATCH, MISMATCH]);

    let nodes = &home.status()["last_steps"][0]["nodes"];
    assert_eq!((&nodes["match"], &nodes["mismatch"]), (&3.into(), &1.into()), "{nodes}");

    let table = table(&part);
    assert_eq!((table.graph.as_str(), table.part, table.step, table.plain.len()), ("0_0-inference", 0, 3, 2));
    assert_eq!(table.nodes.iter().map(|node| node.index).collect::<Vec<_>>(), [0, 1, 2, 3]);
    let wrong = table.first_local_mismatch().unwrap();
    assert_eq!(table.first_cumulative_mismatch(), Some(wrong));
    assert_eq!((wrong.name.as_str(), wrong.op.as_str()), ("b", "aten.add.Tensor"));
    assert_eq!((wrong.onnx_ops.join(" "), wrong.onnx_index), ("Add Identity".to_owned(), 2));
    assert_eq!((wrong.module.as_str(), wrong.source.as_str(), wrong.seq_nr), ("layer.0", "m.py:3 in forward", 7));
    assert_eq!((wrong.dtype.as_str(), wrong.dims.as_slice(), wrong.reference_ns), ("float32", &[4][..], 5));
    assert_eq!((wrong.reference_signature.as_str(), wrong.candidate_signature.as_str()), ("UYYU", "MQDO"));
    assert!(wrong.candidate_ns > 0);
    assert_eq!((&*table.nodes[0].onnx_ops, table.nodes[0].seq_nr), (&["Mul".to_owned()][..], -1));

    let folder = part.join("node_b_3");
    let model = onnx::load(&folder.join("model.onnx")).unwrap().graph.unwrap();
    assert_eq!(model.node.iter().map(|node| node.op_type()).collect::<Vec<_>>(), ["Add", "Identity"]);
    let data = folder.join("test_data_set_0");
    let load = |file: &str| onnx::load_tensor(&data.join(file)).unwrap();
    let bytes = |values: [f32; 4]| values.map(f32::to_le_bytes).concat();
    // Inputs of the model come before its values.
    for (file, name, values) in [
        ("input_0.pb", "y", Y),
        ("input_1.pb", "a", doubled()),
        ("output_0.pb", "b", other()[1].1),
        ("actual_0.pb", "b", right()[1].1),
    ] {
        assert_eq!((load(file).name.as_str(), load(file).view().bytes()), (name, &bytes(values)[..]), "{file}");
    }
    assert_eq!(model.input.iter().map(|input| input.name()).collect::<Vec<_>>(), ["y", "a"]);
}

#[test]
fn eagers_values_are_dumped_with_the_inputs_that_drifted() {
    let home = Home::new();
    let mut bench = Bench::new(&home);
    let feeds = bench.feeds(1);
    let values = bench.nodes(&right()[..2]);
    let request = CompareNodes { dump_values: true, ..bench.request(feeds, values) };
    let error = bench.compare(request.clone()).unwrap_err();
    assert_eq!(code(error), ErrorCode::BadState, "no dump is open");

    let part = bench.open_dump(home.folder.path());
    let mut request = request;
    // Eager was given another y; the x's are equal, though not in one place.
    request.feeds[0].candidate = bench.floats(X);
    request.feeds[1].candidate = bench.floats(Y.map(|y| y + 1.));
    bench.compare(request).unwrap();
    assert_eq!(reader::values(&part, 3).unwrap(), None, "the comparison goes on");
    let feeds = [("b", right()[1].1)].map(|(name, value)| {
        let [reference, candidate] = [value, value].map(|value| bench.floats(value));
        NodeFeed { name: name.into(), reference, candidate }
    });
    let mut values = bench.nodes(&right()[2..4]);
    values.push(NodeValue::NotCompared { name: "g".into(), reason: "none".into(), nothing: false });
    let NodeValue::Computed(only_computed) = &mut values[0] else { panic!() };
    only_computed.local = None;
    bench.compare(CompareNodes { dump_values: true, ..bench.request(feeds.into(), values) }).unwrap();
    bench.finish(true, Vec::new());
    let found = reader::values(&part, 3).unwrap().expect("whole");
    let expected = [("a", right()[0].1), ("b", right()[1].1), ("d", right()[3].1), ("y", Y)];
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.map(|(name, _)| name));
    for (name, value) in expected {
        let read = found[name].load().unwrap();
        assert_eq!(read.view().bytes(), value.map(f32::to_le_bytes).as_flattened(), "{name}");
    }
    let inputs = reader::value_set(&part, 3).unwrap().unwrap().inputs;
    assert_eq!(inputs.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>(), ["y"]);
    assert_eq!(table(&part).nodes.len(), 4);
}

#[test]
fn nan_and_infinity_are_born_where_nothing_that_was_read_holds_one() {
    let home = Home::new();
    let mut bench = Bench::new(&home);
    let part = bench.open_dump(home.folder.path());
    let mut feeds = bench.feeds(1);
    let (x, y) = ([3e38, 1., 1., 1.], [f32::NEG_INFINITY, 0., 0., 0.]);
    for (feed, values) in feeds.iter_mut().zip([x, y]) {
        feed.reference = bench.floats(values);
        feed.candidate = feed.reference.clone();
    }
    // Eager's `a` is finite: there the infinity comes from y, and no NaN from it.
    let (a, b) = ([3e38, 2., 2., 2.], [f32::NEG_INFINITY, 2., 2., 2.]);
    let values = bench.nodes(&[("a", a), ("b", b), ("c", b)]);
    let verdicts = bench.compare(bench.request(feeds, values)).unwrap();
    let texts: Vec<_> = verdicts.iter().map(|verdict| verdict.births_json.is_empty()).collect();
    assert_eq!(texts, [false, false, true]);
    bench.finish(true, Vec::new());
    let table = table(&part);
    let births: Vec<_> =
        table.nodes.iter().flat_map(|node| node.births.iter().map(|birth| (&node.name, birth))).collect();
    let found: Vec<_> = births.iter().map(|(name, birth)| (name.as_str(), birth.side, birth.kind)).collect();
    assert_eq!(found, [("a", Side::Candidate, BirthKind::Infinity), ("b", Side::Candidate, BirthKind::Nan)]);
    let read = &births[0].1.read;
    assert_eq!((read.len(), read[0].name.as_str(), read[0].dims.as_slice()), (1, "x", &[4][..]));
    assert_eq!((read[0].range.min, read[0].range.nan, births[0].1.value.inf), (1., 0, 1));
    let names: Vec<_> = births[1].1.read.iter().map(|read| (read.name.as_str(), read.range.inf)).collect();
    assert_eq!(names, [("y", 1), ("a", 1)]);
    let metrics = table.nodes[1].cumulative.metrics.as_ref().unwrap();
    assert_eq!((metrics.reference_inf, metrics.candidate_nan, metrics.reference_nan), (1, 1, 0));
    let firsts: Vec<_> =
        table.first_births().into_iter().map(|(node, birth)| (node.name.as_str(), birth.side)).collect();
    assert_eq!(firsts, [("b", Side::Candidate), ("a", Side::Candidate)]);
}
