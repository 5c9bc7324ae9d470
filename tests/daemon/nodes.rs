//! Nodes of a part against eager, through a daemon and its executor.

use std::path::{Path, PathBuf};

use crate::common::{Dim, Model};
use crate::support::{Client, Home, code, exists, graph, kill, part, refused, wait_for};
use rust_ort::base::ids::{CallId, PartHandle, SegmentId, StepId};
use rust_ort::base::limits;
use rust_ort::client::PeerError;
use rust_ort::compare::{BirthKind, Side, Verdict};
use rust_ort::dump::{NodeTable, reader};
use rust_ort::onnx;
use rust_ort::protocol::control::*;
use rust_ort::protocol::message::ErrorCode;
use rust_ort::tensor::{CallRecord, DType, Location, TensorDesc, TensorRef};

const X: [f32; 4] = [1., -2., 3.5, 0.25];
const Y: [f32; 4] = [10., 20., -30., 40.];
const NOT_COMPARED: VerdictKind = VerdictKind::NotCompared;
const MATCH: VerdictKind = VerdictKind::Match;
const MISMATCH: VerdictKind = VerdictKind::Mismatch;
const FAILED: VerdictKind = VerdictKind::Failed;

/// a = 2·x, b = a + y, c = b, d = relu(c), g = d[i], h = −g.
fn model() -> Vec<u8> {
    let dims = [Dim::Is(4)];
    Model::default()
        .input("x", DType::F32, &dims)
        .input("y", DType::F32, &dims)
        .input("i", DType::I64, &dims)
        .initializer("two", &[], &[2.])
        .node("Mul", &["x", "two"], &["a"])
        .node("Add", &["a", "y"], &["sum"])
        .node("Identity", &["sum"], &["b"])
        .node("Identity", &["b"], &["c"])
        .node("Relu", &["c"], &["d"])
        .node("Gather", &["d", "i"], &["g"])
        .node("Neg", &["g"], &["h"])
        .output("h", DType::F32, &dims)
        .build()
}

const PROVENANCE: &str = r#"{
    "values": {"b": {"fx": "b", "op": "aten.add.Tensor", "module": "layer.0", "source": "m.py:3 in forward", "seq_nr": 7}},
    "outputs": [{"name": "h", "fx": "h", "role": "PlainAOTOutput", "of": "weight"}],
    "nodes": {"node_sum": "b", "node_b": "b"}
}"#;

/// A client with a lease and the model, and memory handed out piece by piece.
struct Bench {
    client: Client,
    handle: PartHandle,
    next: u64,
    model: Vec<u8>,
    named: Vec<String>,
}

impl Bench {
    fn new(home: &Home) -> Self {
        Self::of(home, model(), &["a", "b", "c", "d", "g", "h"])
    }

    /// named: values of the model.
    fn of(home: &Home, model: Vec<u8>, named: &[&str]) -> Self {
        let named = named.iter().map(|&name| name.to_owned()).collect();
        let mut bench = Self { client: Client::connect(home), handle: PartHandle(0), next: 0, model, named };
        bench.prepare();
        bench
    }

    fn prepare(&mut self) {
        self.client.lease().unwrap();
        self.client.register();
        let mut prepare = part();
        prepare.part.model = self.model.clone().into();
        prepare.part.named_values.clone_from(&self.named);
        prepare.provenance_json = PROVENANCE.to_owned();
        self.handle = self.client.prepare_part(prepare).unwrap().handle;
    }

    fn tensor(&mut self, dtype: DType, dims: &[i64]) -> TensorRef {
        let location = Location::new(SegmentId(1), self.next).unwrap();
        self.next += 64;
        TensorRef { location, desc: TensorDesc::new(dtype, dims).unwrap() }
    }

    fn floats(&mut self, values: [f32; 4]) -> TensorRef {
        let tensor = self.tensor(DType::F32, &[4]);
        self.client.data.write(tensor.location.offset(), values.map(f32::to_le_bytes).as_flattened()).unwrap();
        tensor
    }

    fn doubles(&mut self, values: [f64; 4]) -> TensorRef {
        let tensor = self.tensor(DType::F64, &[4]);
        self.client.data.write(tensor.location.offset(), values.map(f64::to_le_bytes).as_flattened()).unwrap();
        tensor
    }

    /// x, y and the index, equal on both sides.
    fn feeds(&mut self, index: i64) -> Vec<NodeFeed> {
        let i = self.tensor(DType::I64, &[4]);
        self.client.data.write(i.location.offset(), [index; 4].map(i64::to_le_bytes).as_flattened()).unwrap();
        let (x, y) = (self.floats(X), self.floats(Y));
        [("x", x), ("y", y), ("i", i)]
            .map(|(name, tensor)| NodeFeed { name: name.into(), reference: tensor.clone(), candidate: tensor })
            .to_vec()
    }

    fn node(&mut self, name: &str, reference: [f32; 4]) -> ComputedNode {
        let [candidate, local] = [(); 2].map(|()| self.floats([f32::NAN; 4]));
        let reference = self.floats(reference);
        ComputedNode {
            name: name.into(),
            reference,
            candidate,
            local: Some(local),
            reference_ns: 5,
            float64: Box::default(),
        }
    }

    fn nodes(&mut self, references: &[(&str, [f32; 4])]) -> Vec<NodeValue> {
        references.iter().map(|&(name, reference)| NodeValue::Computed(self.node(name, reference))).collect()
    }

    fn request(&self, feeds: Vec<NodeFeed>, values: Vec<NodeValue>) -> CompareNodes {
        let (tolerance, cumulative_tolerance) = (None, None);
        CompareNodes {
            handle: self.handle,
            of: of(),
            feeds,
            values,
            tolerance,
            cumulative_tolerance,
            dump_values: false,
            noise: None,
        }
    }

    fn compare(&mut self, request: CompareNodes) -> Result<Vec<NodeVerdictSummary>, PeerError> {
        match self.client.peer.ask(&Request::CompareNodes(Box::new(request)))? {
            Reply::NodesCompared(verdicts) => Ok(verdicts),
            other => panic!("{other:?}"),
        }
    }

    fn batch(&mut self, index: i64, references: &[(&str, [f32; 4])]) -> Vec<NodeVerdictSummary> {
        let feeds = self.feeds(index);
        let values = self.nodes(references);
        self.compare(self.request(feeds, values)).unwrap()
    }

    fn open_dump(&mut self, folder: &Path) -> PathBuf {
        let (run, calls) = ("run".to_owned(), CallsToDump::All);
        let open = OpenDump { folder: folder.to_owned(), run, clean: true, calls, run_json: "{}".into() };
        assert!(matches!(self.client.peer.ask(&Request::OpenDump(open)), Ok(Reply::DumpOpened { .. })));
        folder.join("run/0_0-inference/part_0")
    }

    fn finish(&mut self, dump: bool, plain: Vec<(String, PairToCompare)>) -> Vec<VerdictSummary> {
        let reply = self
            .client
            .peer
            .ask(&Request::FinishNodes(FinishNodes { of: of(), dump, plain, tolerance: None }))
            .unwrap();
        let Reply::Comparison(verdicts) = reply else { panic!("{reply:?}") };
        if dump {
            assert_eq!(self.client.peer.ask(&Request::FlushDump).unwrap(), Reply::Done);
        }
        verdicts
    }

    fn settle(&mut self, name: &str, tensors: [TensorRef; 3]) -> Result<NodeVerdictSummary, PeerError> {
        let [exact, reference, local] = tensors;
        self.settle_by(name, SettledBy::Float64(InFloat64 { exact, reference, local, terms: None }))
    }

    fn settle_by(&mut self, name: &str, by: SettledBy) -> Result<NodeVerdictSummary, PeerError> {
        let request = SettleNode { of: of(), name: name.into(), by };
        match self.client.peer.ask(&Request::SettleNode(Box::new(request)))? {
            Reply::NodesCompared(mut verdicts) if verdicts.len() == 1 => Ok(verdicts.remove(0)),
            other => panic!("{other:?}"),
        }
    }
}

fn of() -> NodesOf {
    NodesOf { graph: graph().graph, part: 0, step: StepId(3) }
}

fn table(part: &Path) -> NodeTable {
    reader::nodes(part, 3).unwrap().expect("a table")
}

/// (name, local, cumulative).
fn kinds(verdicts: &[NodeVerdictSummary]) -> Vec<(&str, VerdictKind, VerdictKind)> {
    verdicts.iter().map(|node| (node.local.name.as_str(), node.local.kind, node.cumulative.kind)).collect()
}

fn doubled() -> [f32; 4] {
    X.map(|x| 2. * x)
}

fn zip(f: impl Fn(f32, f32) -> f32, a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

/// What the model gives, with index 1.
fn right() -> Vec<(&'static str, [f32; 4])> {
    let a = doubled();
    let b = zip(|a, y| a + y, a, Y);
    let d = b.map(|b| b.max(0.));
    vec![("a", a), ("b", b), ("c", b), ("d", d), ("g", [d[1]; 4]), ("h", [-d[1]; 4])]
}

/// What eager would give if `b` were a · y.
fn other() -> Vec<(&'static str, [f32; 4])> {
    let a = doubled();
    let b = zip(|a, y| a * y, a, Y);
    vec![("a", a), ("b", b), ("c", b), ("d", b.map(|b| b.max(0.)))]
}

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
        vec![("h".to_owned(), PairToCompare::Pair { reference: h.clone(), candidate: h, terms: None, exact: None })],
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
fn a_wrong_kernel_is_named_at_its_node_and_drifts_downstream() {
    let home = Home::new();
    let mut bench = Bench::new(&home);
    let part = bench.open_dump(&home.folder.path().join("dumps"));
    let verdicts = bench.batch(1, &other());
    let expected = [("a", MATCH, MATCH), ("b", MISMATCH, MISMATCH), ("c", MATCH, MISMATCH), ("d", MATCH, MISMATCH)];
    assert_eq!(kinds(&verdicts), expected);
    let pair = |reference, candidate| PairToCompare::Pair { reference, candidate, terms: None, exact: None };
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
fn a_later_batch_reads_the_candidates_of_an_earlier_one() {
    let home = Home::new();
    let mut bench = Bench::new(&home);
    let (feeds, mut values) = (bench.feeds(1), bench.nodes(&other()));
    let NodeValue::Computed(d) = values.pop().unwrap() else { panic!() };
    let NodeValue::Computed(c) = values.pop().unwrap() else { panic!() };
    let c_feed = NodeFeed { name: "c".into(), reference: c.reference.clone(), candidate: c.candidate.clone() };
    values.push(NodeValue::Computed(ComputedNode { local: None, ..c }));
    values.insert(0, NodeValue::NotCompared { name: "size".into(), reason: "no tensor".into() });
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
    values.insert(0, NodeValue::NotCompared { name: "a".into(), reason: "no reference".into() });
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
    let skipped = |name: String| NodeValue::NotCompared { name, reason: "why".into() };
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
    let finish = |dump| Request::FinishNodes(FinishNodes { of, dump, plain: Vec::new(), tolerance: None });
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
        wait_for("the node is inside", || exists(&hold.with_extension("held")));
        kill(victim);
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
    values.push(NodeValue::NotCompared { name: "g".into(), reason: "none".into() });
    let NodeValue::Computed(only_computed) = &mut values[0] else { panic!() };
    only_computed.local = None;
    bench.compare(CompareNodes { dump_values: true, ..bench.request(feeds.into(), values) }).unwrap();
    bench.finish(true, Vec::new());
    let found = reader::values(&part, 3).unwrap().expect("whole");
    let expected = [("a", right()[0].1), ("b", right()[1].1), ("d", right()[3].1), ("y", Y)];
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.map(|(name, _)| name));
    for (name, value) in expected {
        let read = onnx::load_tensor(&found[name]).unwrap();
        assert_eq!(read.view().bytes(), value.map(f32::to_le_bytes).as_flattened(), "{name}");
    }
    let inputs = reader::value_set(&part, 3).unwrap().unwrap().inputs;
    assert_eq!(inputs.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>(), ["y"]);
    assert_eq!(table(&part).nodes.len(), 4);
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
    let mut request =
        CompareNodes { noise: Some(NoiseTerms { factor: 1.5, step: 0.0078125 }), ..bench.request(feeds, values) };
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
