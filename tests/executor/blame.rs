//! A runtime with one wrong kernel, or optimizer, tests who is blamed.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rust_ort::blame::faults::Kind;
use rust_ort::blame::prove::{Effect, prove};
use rust_ort::blame::{
    Answer, Case, Contribution, Culprit, Layer, OptimizerKind, Own, Parts, Progress, Settings, Strategy, Values,
    examine,
};
use rust_ort::compare::{TensorVerdict, Tolerance, Verdict, judge};
use rust_ort::dump::{NODES_SCHEMA, NodeRow, NodeTable};
use rust_ort::onnx::{Descriptions, NamedTensor, decode, mentions};
use rust_ort::protocol::message::{Optimization, RunStats, SessionSpec, ValueSpec};
use rust_ort::runtime::ort::THREADS;
use rust_ort::runtime::{
    BoundCall, Constant, Model as RuntimeModel, Runtime, RuntimeError, Session, StopToken, leased,
};
use rust_ort::shm::Lease;
use rust_ort::tensor::{DType, TensorBuf};

use crate::common::{Dim, Model, runtime};

/// ONNX Runtime, but for what `wrong` says of a session.
struct Spoiled {
    wrong: fn(&SessionSpec, &RuntimeModel) -> bool,
    /// Added to the outputs of a wrong session, times the number of the run where it is to differ each time.
    by: f32,
    each_time: bool,
    /// Times the number of threads of a session that has its own.
    by_threads: bool,
}

struct SpoiledSession {
    inner: Arc<dyn Session>,
    by: f32,
    each_time: bool,
    n_runs: AtomicU32,
}

impl Runtime for Spoiled {
    fn version(&self) -> &str {
        "spoiled"
    }

    fn build_with(
        &self,
        model: &RuntimeModel,
        spec: &SessionSpec,
        constants: Vec<Constant>,
    ) -> Result<Arc<dyn Session>, RuntimeError> {
        let inner = runtime().build_with(model, spec, constants)?;
        if !(self.wrong)(spec, model) {
            return Ok(inner);
        }
        let threads = threads(spec).filter(|_| self.by_threads).unwrap_or(1);
        let by = self.by * threads as f32;
        Ok(Arc::new(SpoiledSession { inner, by, each_time: self.each_time, n_runs: AtomicU32::new(0) }))
    }

    fn optimized(&self, model: &RuntimeModel, spec: &SessionSpec) -> Result<Vec<u8>, RuntimeError> {
        runtime().optimized(model, spec)
    }
}

impl Session for SpoiledSession {
    fn inputs(&self) -> &[ValueSpec] {
        self.inner.inputs()
    }

    fn outputs(&self) -> &[ValueSpec] {
        self.inner.outputs()
    }

    fn fetch_until(&self, feeds: &Lease, stop: &StopToken) -> Result<(Vec<TensorBuf>, RunStats), RuntimeError> {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let (outputs, stats) = self.inner.fetch_until(feeds, stop)?;
        let own = self.n_runs.fetch_add(1, Ordering::Relaxed) + RUNS.fetch_add(1, Ordering::Relaxed);
        let by = if self.each_time { self.by * (1 + own) as f32 } else { self.by };
        let spoil = |output: TensorBuf| {
            let values = output.view().flat_f64(0..output.desc().shape.n_elements()).unwrap();
            let values: Vec<f32> = values.into_iter().map(|value| value as f32 + by).collect();
            TensorBuf::from_f32(output.desc().shape.dims().to_vec(), &values).unwrap()
        };
        let is_float = outputs.iter().all(|output| output.desc().dtype == DType::F32);
        Ok((if is_float { outputs.into_iter().map(spoil).collect() } else { outputs }, stats))
    }

    fn bind(self: Arc<Self>, _: Lease, _: &StopToken) -> Result<Box<dyn BoundCall>, RuntimeError> {
        unreachable!("blame fetches")
    }
}

/// Half a one too much, each time.
fn spoiled(wrong: fn(&SessionSpec, &RuntimeModel) -> bool) -> Spoiled {
    Spoiled { wrong, by: 0.5, each_time: false, by_threads: false }
}

/// Everything with a Mul in it, but in float64: the product's own kernel, and all it is part of.
fn is_mul(_: &SessionSpec, model: &RuntimeModel) -> bool {
    has(model, "Mul") && is_float32(model)
}

fn is_tanh(_: &SessionSpec, model: &RuntimeModel) -> bool {
    has(model, "Tanh") && is_float32(model)
}

fn threads(spec: &SessionSpec) -> Option<u32> {
    spec.config.get(THREADS).map(|threads| threads.parse().unwrap())
}

struct Silent(Vec<Contribution>);

impl Progress for Silent {
    fn at(&mut self, _: usize, _: usize) {}

    fn found(&mut self, contribution: &Contribution) {
        self.0.push(contribution.clone());
    }
}

/// a = tanh(x), b = a·a, c = b + x; every value is an FX node's.
fn model() -> Vec<u8> {
    let dims = [Dim::Is(4)];
    Model::default()
        .node("Tanh", &["x"], &["a"])
        .node("Mul", &["a", "a"], &["b"])
        .node("Add", &["b", "x"], &["c"])
        .input("x", DType::F32, &dims)
        .output("c", DType::F32, &dims)
        .build()
}

fn named(name: &str, values: &[f32]) -> NamedTensor {
    NamedTensor::of(name, &TensorBuf::from_f32([values.len() as i64], values).unwrap())
}

const X: [f32; 4] = [0.5, -1., 2., 0.25];

/// Called with `x`, of which eager had X, it gave what `spoiled` gives; `known`: nodes whose eager value is there.
fn case(spoiled: &Spoiled, x: &[f32; 4], known: &[&str]) -> Case {
    case_of(spoiled, x, known, Vec::new())
}

/// nodes: what comparing them found.
fn case_of(spoiled: &Spoiled, x: &[f32; 4], known: &[&str], nodes: Vec<NodeRow>) -> Case {
    let a = X.map(f32::tanh);
    let b = a.map(|a| a * a);
    let c = [0, 1, 2, 3].map(|at| b[at] + X[at]);
    let eager = [("a", a), ("b", b)].into_iter().filter(|(name, _)| known.contains(name));
    let given = eager.chain([("c", c), ("x", X)]).map(|(name, values)| named(name, &values)).collect();
    case_with(spoiled, model(), x, given, nodes)
}

/// Of a model from x to c, of which what begins with _ is no FX node's. given: eager's values.
fn case_with(spoiled: &Spoiled, model: Vec<u8>, x: &[f32; 4], given: Vec<NamedTensor>, nodes: Vec<NodeRow>) -> Case {
    let model = decode(model.into()).unwrap();
    let feeds = vec![named("x", x)];
    let session = spoiled.build(&RuntimeModel::encode(&model), &SessionSpec::default()).unwrap();
    let outputs = session.fetch(&leased(&[feeds[0].view()]).unwrap()).unwrap().0;
    let actuals = vec![NamedTensor::of("c", &outputs[0])];
    let values = model.graph.iter().flat_map(|graph| &graph.node).flat_map(|node| node.output.clone());
    let values = values.filter(|name| !name.starts_with('_')).collect();
    let table = NodeTable {
        schema: NODES_SCHEMA.to_owned(),
        run: String::new(),
        graph: "0_0-inference".to_owned(),
        part: 0,
        step: 0,
        plain: Vec::<TensorVerdict>::new(),
        nodes,
    };
    Case::new(Parts {
        model,
        named_values: values,
        described: Descriptions::new(),
        spec: SessionSpec::default(),
        judging: None,
        tolerance: None,
        feeds,
        actuals,
        values: Rc::new(Values::new(BTreeMap::new(), given, 1 << 20).unwrap()),
        table,
    })
    .unwrap()
}

fn settings(strategy: Option<Strategy>) -> Settings {
    Settings { strategy, output: None, budget: Duration::from_secs(600), follow: false }
}

fn blamed(spoiled: &Spoiled, case: &Case, strategy: Option<Strategy>) -> Answer {
    examine(case, spoiled, &settings(strategy), &[], &mut Silent(Vec::new())).unwrap()
}

fn has(model: &RuntimeModel, op: &str) -> bool {
    let proto = decode(model.bytes.clone()).unwrap();
    proto.graph.unwrap().node.iter().any(|node| node.op_type() == op)
}

fn is_float32(model: &RuntimeModel) -> bool {
    !mentions(&decode(model.bytes.clone()).unwrap(), DType::F64)
}

const ALL: [&str; 2] = ["a", "b"];

#[test]
fn a_wrong_kernel_is_a_kernel_whichever_way_it_is_sought() {
    let spoiled = spoiled(is_mul);
    let case = case(&spoiled, &X, &ALL);
    for strategy in [None, Some(Strategy::Linear), Some(Strategy::Bisect), Some(Strategy::Delta)] {
        let answer = blamed(&spoiled, &case, strategy);
        let Culprit::Node { name, layer } = &answer.culprit else { panic!("{strategy:?}: {:?}", answer.culprit) };
        assert_eq!((name.as_str(), *layer), ("b", Layer::Kernel), "{strategy:?}");
        let first = &answer.nodes[0];
        assert_eq!((first.own, first.output.as_str()), (Own::Wrong, "c"));
        assert!((first.share - 1.).abs() < 1e-3, "{}", first.share);
        assert_eq!(answer.smallest.as_deref(), Some(&["b".to_owned()][..]));
        assert!(answer.complete && answer.notes.is_empty() && answer.n_runs > 0);
    }
}

#[test]
fn what_is_wrong_in_float64_too_is_the_translation() {
    let spoiled = spoiled(|_, _| false);
    let mut case = case(&spoiled, &X, &ALL);
    // Eager computed another b, and c from it: a product is not what was asked for.
    let (a, b) = (X.map(f32::tanh), X.map(|x| x.tanh() + 1.));
    let c = [0, 1, 2, 3].map(|at| b[at] + X[at]);
    let given = vec![named("a", &a), named("b", &b), named("c", &c), named("x", &X)];
    case.values = Rc::new(Values::new(BTreeMap::new(), given, 1 << 20).unwrap());
    let answer = blamed(&spoiled, &case, None);
    assert_eq!(answer.culprit, Culprit::Node { name: "b".to_owned(), layer: Layer::Exporter });
}

#[test]
fn a_kernel_that_gives_something_else_each_time_is_jitter_and_not_blamed() {
    let spoiled = Spoiled { each_time: true, ..spoiled(is_mul) };
    let case = case(&spoiled, &X, &ALL);
    let answer = blamed(&spoiled, &case, Some(Strategy::Linear));
    assert!(matches!(answer.culprit, Culprit::Nobody { .. }), "{:?}", answer.culprit);
    assert!(answer.nodes.iter().any(|node| node.name == "b" && node.own == Own::Jitter), "{:?}", answer.nodes);
}

#[test]
fn an_error_of_some_numbers_of_threads_is_jitter_and_says_which() {
    let is_off =
        |spec: &SessionSpec, model: &RuntimeModel| has(model, "Mul") && is_float32(model) && threads(spec) != Some(2);
    let spoiled = spoiled(is_off);
    let answer = blamed(&spoiled, &case(&spoiled, &X, &ALL), Some(Strategy::Linear));
    let Culprit::Nobody { why } = &answer.culprit else { panic!("{:?}", answer.culprit) };
    assert!(why.starts_with("b is jitter: ") && why.ends_with("threads, right with 2"), "{why}");
    let node = answer.nodes.iter().find(|node| node.name == "b").unwrap();
    let right: Vec<_> = node.again.iter().flat_map(|again| &again.runs).filter(|run| !run.wrong).collect();
    assert_eq!((node.own, right.len(), right[0].threads), (Own::Jitter, 1, Some(2)));
}

#[test]
fn what_is_wrong_with_any_number_of_threads_is_blamed_and_its_jitter_told() {
    let spoiled = Spoiled { by_threads: true, ..spoiled(is_mul) };
    let answer = blamed(&spoiled, &case(&spoiled, &X, &ALL), Some(Strategy::Linear));
    assert_eq!(answer.culprit, Culprit::Node { name: "b".to_owned(), layer: Layer::Kernel });
    let again = answer.nodes[0].again.as_ref().unwrap();
    let told: Vec<_> = again.runs.iter().map(|run| (run.threads, run.same, run.wrong)).collect();
    let expected = [(None, true), (None, true), (None, true), (Some(1), true), (Some(2), false), (Some(4), false)];
    assert_eq!(told, expected.map(|(threads, same)| (threads, same, true)));
    assert!(again.apart > 0.5 && again.to_string().starts_with("runs differ by up to "), "{again}");
}

/// A row of the table as the comparison of nodes writes it. noise: what float64 says of the node alone.
fn row(local: &TensorVerdict, noise: &str) -> NodeRow {
    let noise = serde_json::json!({
        "kind": noise, "reference_error": 0.1, "candidate_error": 0.1, "reference_excess": 0.5, "candidate_excess": 0.5,
        "distance": 0.1, "condition": 0.5,
    });
    let local = TensorVerdict { noise: Some(serde_json::from_value(noise).unwrap()), ..local.clone() };
    let row = serde_json::json!({
        "index": 0, "name": local.name, "op": "", "onnx_ops": [], "onnx_index": 0, "module": "", "source": "",
        "role": "", "seq_nr": -1, "dtype": "float32", "dims": [4], "reference_signature": "", "candidate_signature": "",
        "reference_ns": 0, "candidate_ns": 0, "local": local, "cumulative": local, "no_float64": "", "as_right": "",
    });
    serde_json::from_value(row).unwrap()
}

#[test]
fn a_node_within_tolerance_that_float64_calls_worse_is_blamed() {
    let spoiled = Spoiled { by: 3e-7, ..spoiled(is_tanh) };
    let settings = Settings { follow: true, ..settings(None) };
    let asked = |case: &Case| examine(case, &spoiled, &settings, &[], &mut Silent(Vec::new())).unwrap();
    let unknown = asked(&case(&spoiled, &X, &ALL));
    let a = unknown.nodes.iter().find(|node| node.name == "a").unwrap();
    assert_eq!((&a.local.verdict, a.own), (&Verdict::Match, Own::Noise));
    assert!(matches!(unknown.culprit, Culprit::Nobody { .. }), "{:?}", unknown.culprit);
    for (noise, expected) in [("candidate_worse", Own::Wrong), ("noise", Own::Noise), ("reference_worse", Own::Noise)] {
        let rows = unknown.nodes.iter().map(|node| row(&node.local, if node.name == "a" { noise } else { "noise" }));
        let answer = asked(&case_of(&spoiled, &X, &ALL, rows.collect()));
        let a = answer.nodes.iter().find(|node| node.name == "a").unwrap();
        assert_eq!((a.own, answer.blames()), (expected, expected == Own::Wrong), "{noise}: {:?}", answer.culprit);
    }
    // Of another pair of tensors than what is examined the table says nothing.
    let mut other = a.local.clone();
    other.metrics.as_mut().unwrap().max_abs *= 2.;
    let answer = asked(&case_of(&spoiled, &X, &ALL, vec![row(&other, "candidate_worse")]));
    assert!(!answer.blames(), "{:?}", answer.culprit);
}

/// Σ over many elements, as `op` has it, with each number of threads: all that differs is the order.
#[test]
fn real_kernels_give_what_rounding_explains_with_any_number_of_threads() {
    let values: Vec<f32> = (0..1 << 20).map(|at| (at as f32 * 0.618_034).fract() - 0.5).collect();
    let (square, row) = (&[1024, 1024][..], &[1, 1 << 20][..]);
    for (op, dims, inputs, out) in [
        ("ReduceSum", row, &["x"][..], &[1, 1][..]),
        ("ReduceSum", square, &["x"][..], &[1, 1][..]),
        ("Softmax", row, &["x"][..], row),
        ("Softmax", square, &["x"][..], square),
        ("MatMul", square, &["x", "x"][..], square),
    ] {
        let of = |dims: &[i64]| dims.iter().map(|&dim| Dim::Is(dim)).collect::<Vec<_>>();
        let model = Model::default()
            .node(op, inputs, &["y"])
            .input("x", DType::F32, &of(dims))
            .output("y", DType::F32, &of(out))
            .build();
        let model = RuntimeModel::encode(&decode(model.into()).unwrap());
        let x = TensorBuf::from_f32(dims.to_vec(), &values).unwrap();
        let run = |threads: u32| {
            let config = BTreeMap::from([(THREADS.to_owned(), threads.to_string())]);
            let session = runtime().build(&model, &SessionSpec { config, ..SessionSpec::default() }).unwrap();
            session.fetch(&leased(&[x.view()]).unwrap()).unwrap().0.remove(0)
        };
        let one = run(1);
        for threads in [1, 2, 4] {
            let other = run(threads);
            let same = one.view().bytes() == other.view().bytes();
            let tolerance = Tolerance { atol: 2e-3, ..Tolerance::for_kernel(DType::F32) };
            let verdict = judge("y", &one.view(), &other.view(), Some(&tolerance));
            println!("{op} {dims:?}, {threads} threads: the same {same}: {verdict}");
            assert_eq!(verdict.verdict, Verdict::Match, "{op} {threads}: {verdict}");
            assert!(same || threads != 1, "{op}: one thread has one order");
        }
    }
}

#[test]
fn a_number_of_threads_that_is_none_is_refused() {
    for asked in ["", "0", "two", "-1", "100000"] {
        let config = BTreeMap::from([(THREADS.to_owned(), asked.to_owned())]);
        let model = RuntimeModel::encode(&decode(model().into()).unwrap());
        let built = runtime().build(&model, &SessionSpec { config, ..SessionSpec::default() });
        let text = built.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(text.contains("rust_ort.threads") && text.contains("from 1 to 1024"), "{asked:?}: {text}");
    }
}

#[test]
fn a_pass_or_an_optimizer_is_named_and_needs_no_values_of_nodes() {
    let is_on = |spec: &SessionSpec| matches!(spec.optimization, Optimization::All | Optimization::Extended);
    let pass = spoiled(|spec, _| {
        matches!(spec.optimization, Optimization::All) && !spec.disabled_passes.contains(&"regions".to_owned())
    });
    assert!(is_on(&SessionSpec::default()));
    let answer = blamed(&pass, &case(&pass, &X, &[]), None);
    let Culprit::Optimizer { names, what, .. } = &answer.culprit else { panic!("{:?}", answer.culprit) };
    assert_eq!((names.as_slice(), *what), (&["regions".to_owned()][..], OptimizerKind::Pass));
    let optimizer = spoiled(|spec, _| {
        let off = |name: &str| spec.disabled_optimizers.iter().any(|other| other == name);
        spec.optimization == Optimization::All && !(off("GeluFusionL2") && off("ReshapeFusion"))
    });
    let answer = blamed(&optimizer, &case(&optimizer, &X, &[]), None);
    let Culprit::Optimizer { names, what, .. } = &answer.culprit else { panic!("{:?}", answer.culprit) };
    assert_eq!((names.len(), *what), (2, OptimizerKind::Optimizer), "{names:?}");
    let level = spoiled(|spec, _| spec.optimization == Optimization::All);
    let answer = blamed(&level, &case(&level, &X, &[]), None);
    let Culprit::Optimizer { names, what, .. } = &answer.culprit else { panic!("{:?}", answer.culprit) };
    assert_eq!((names.as_slice(), *what), (&["all".to_owned()][..], OptimizerKind::Level));
}

#[test]
fn what_came_in_is_not_the_parts_fault() {
    let right = spoiled(|_, _| false);
    let answer = blamed(&right, &case(&right, &[0.5, -1., 2.5, 0.25], &ALL), None);
    assert_eq!(answer.culprit, Culprit::Inputs { names: vec!["x".to_owned()] });
    let answer = blamed(&right, &case(&right, &X, &ALL), None);
    assert!(answer.complaints.is_empty() && matches!(answer.culprit, Culprit::Nobody { .. }));
}

#[test]
fn an_error_within_tolerance_is_followed_when_others_made_more_of_it() {
    let spoiled = Spoiled { by: 1e-6, ..spoiled(is_mul) };
    let case = case(&spoiled, &X, &ALL);
    assert!(blamed(&spoiled, &case, None).complaints.is_empty());
    let settings = Settings { follow: true, ..settings(None) };
    let answer = examine(&case, &spoiled, &settings, &[], &mut Silent(Vec::new())).unwrap();
    assert_eq!((answer.complaints.len(), answer.nodes[0].name.as_str()), (1, "b"), "{:?}", answer.nodes);
}

#[test]
fn without_values_of_nodes_it_is_said_and_not_complete() {
    let spoiled = spoiled(|_, model| has(model, "Mul"));
    let answer = blamed(&spoiled, &case(&spoiled, &X, &[]), None);
    let Culprit::Nobody { why } = &answer.culprit else { panic!("{:?}", answer.culprit) };
    assert!(why.contains("dump_values") && !answer.complete, "{why}");
}

#[test]
fn what_an_earlier_examination_found_is_not_looked_at_again() {
    let spoiled = spoiled(is_mul);
    let case = case(&spoiled, &X, &ALL);
    let settings = settings(Some(Strategy::Linear));
    let mut first = Silent(Vec::new());
    let whole = examine(&case, &spoiled, &settings, &[], &mut first).unwrap();
    let again = examine(&case, &spoiled, &settings, &first.0, &mut Silent(Vec::new())).unwrap();
    assert!(again.n_runs < whole.n_runs, "{} of {}", again.n_runs, whole.n_runs);
    assert_eq!(again.culprit, whole.culprit);
    let nothing = Settings { budget: Duration::ZERO, ..settings };
    let answer = examine(&case, &spoiled, &nothing, &[], &mut Silent(Vec::new())).unwrap();
    assert!(!answer.complete && answer.notes[0].contains("budget"), "{:?}", answer.notes);
    let unknown = Settings { output: Some("d".to_owned()), ..nothing };
    let error = examine(&case, &spoiled, &unknown, &[], &mut Silent(Vec::new())).unwrap_err();
    assert_eq!(error.to_string(), "no output is called \"d\"; there are c");
}

#[test]
fn outputs_are_judged_by_the_steps_of_the_half_precision_that_took_part() {
    let right = spoiled(|_, _| false);
    let case = case(&right, &X, &ALL);
    let (reference, candidate) = (named("c", &[1.; 4]), named("c", &[1.001; 4]));
    let strict = judge("c", &reference.view(), &candidate.view(), None);
    assert_eq!(case.judge("c", &reference.view(), &candidate.view()), strict);
}

/// a = x·x, c = tanh(a).
fn squashed() -> Vec<u8> {
    squashed_by(&[("Mul", &["x", "x"], "a")])
}

/// The same, a by these nodes.
fn squashed_by(nodes: &[(&str, &[&str], &str)]) -> Vec<u8> {
    let dims = [Dim::Is(4)];
    let model = nodes.iter().fold(Model::default(), |model, (op, inputs, output)| model.node(op, inputs, &[output]));
    model.node("Tanh", &["a"], &["c"]).input("x", DType::F32, &dims).output("c", DType::F32, &dims).build()
}

/// Eager's values of it.
fn squashed_values(x: [f32; 4]) -> Vec<NamedTensor> {
    let a = x.map(|x| x * x);
    vec![named("x", &x), named("a", &a), named("c", &a.map(f32::tanh))]
}

/// A row of each value that equals eager's.
fn equal_rows(values: &[NamedTensor]) -> Vec<NodeRow> {
    let equal = |value: &NamedTensor| judge(&value.name, &value.view(), &value.view(), None);
    values.iter().map(|value| row(&equal(value), "noise")).collect()
}

#[test]
fn a_planted_fault_beside_a_huge_element_is_acquitted_only_where_no_element_is_told_from_another() {
    // bfloat16 has 256² itself.
    let (right, x) = (spoiled(|_, _| false), [256., 0.3, -1.1, 0.7]);
    let values = squashed_values(x);
    for (nodes, found_of_a) in [
        (&[("Mul", &["x", "x"][..], "a")][..], true),
        // What moves elements, too, is measured by the largest: beside it what bfloat16 does to the product is rounding.
        (&[("Transpose", &["x"], "_x"), ("Mul", &["_x", "_x"], "a")], false),
    ] {
        let case = case_with(&right, squashed_by(nodes), &x, squashed_values(x), equal_rows(&values[1..]));
        let proofs = prove(&case, &right, 8, 1, Duration::from_secs(600), &mut |_| {}).unwrap();
        let found: BTreeMap<_, _> = (proofs.proofs.iter())
            .filter(|proof| proof.site.kind == Kind::Rounded && proof.counts())
            .map(|proof| (proof.site.op.as_str(), (proof.found_by_sbs(), proof.found_by_blame())))
            .collect();
        // By steps alone both are wrong.
        let expected = BTreeMap::from([("Mul", (found_of_a, found_of_a)), ("Tanh", (true, true))]);
        assert_eq!(found, expected, "{nodes:?}: {proofs:?}");
    }
}

#[test]
fn a_planted_fault_counts_by_outputs_that_are_right_without_it() {
    let x = [0.3, -1.1, 0.7, 0.45];
    for (spoiled, n_right) in [(spoiled(|_, _| false), 1), (spoiled(is_tanh), 0)] {
        let values = squashed_values(x);
        let case = case_with(&spoiled, squashed(), &x, squashed_values(x), equal_rows(&values[1..]));
        let proofs = prove(&case, &spoiled, 8, 1, Duration::from_secs(600), &mut |_| {}).unwrap();
        let rounded: Vec<_> = proofs.proofs.iter().filter(|proof| proof.site.kind == Kind::Rounded).collect();
        let expected = if n_right == 0 { Effect::None } else { Effect::Wrong { n_outputs: n_right } };
        assert_eq!(rounded.iter().map(|proof| &proof.effect).collect::<Vec<_>>(), [&expected; 2], "{proofs:?}");
    }
}

/// What is wrong of a is small beside its largest element.
#[test]
fn what_one_large_element_would_acquit_is_not_settled_without_a_table() {
    let x = [300., 0.5, -1., 0.25];
    let spoiled = Spoiled { by: 1e-2, ..spoiled(is_mul) };
    let case = case_with(&spoiled, squashed(), &x, squashed_values(x), Vec::new());
    let answer = blamed(&spoiled, &case, None);
    let a = answer.nodes.iter().find(|node| node.name == "a").unwrap();
    assert_eq!((&a.local.verdict, a.own), (&Verdict::Mismatch, Own::Unsettled), "{answer:?}");
    let Culprit::Nobody { why } = &answer.culprit else { panic!("{:?}", answer.culprit) };
    assert!(!answer.complete && why.starts_with("not known: a is outside its tolerance"), "{why}");
    assert!(why.contains("compare=\"nodes\"") && why.contains("dump_values=True"), "{why}");
    // The table measured the same, element by element: what it says is the answer.
    let mut known = row(&a.local, "noise");
    assert_eq!(
        blamed(&spoiled, &case_with(&spoiled, squashed(), &x, squashed_values(x), vec![known.clone()]), None).nodes[0]
            .own,
        Own::Wrong
    );
    known.local.verdict = Verdict::Match;
    let settled = blamed(&spoiled, &case_with(&spoiled, squashed(), &x, squashed_values(x), vec![known]), None);
    assert!(settled.complete && !settled.blames(), "{:?}", settled.culprit);
}

#[test]
fn a_search_that_explains_little_of_the_error_is_not_complete() {
    let right = spoiled(|_, _| false);
    // Eager's a is one more, which c makes most of; its c is half a one more than of its b.
    let a = X.map(|x| x.tanh() + 1.);
    let b = a.map(|a| a * a);
    let c = [0, 1, 2, 3].map(|at| b[at] + X[at] + 0.5);
    let given = vec![named("x", &X), named("a", &a), named("b", &b), named("c", &c)];
    let case = case_with(&right, model(), &X, given, Vec::new());
    let halved = blamed(&right, &case, Some(Strategy::Bisect));
    assert_eq!(halved.nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(), ["c"]);
    assert!(halved.nodes[0].share < 0.25 && !halved.complete, "{halved:?}");
    assert!(
        halved.notes[0].contains("--strategy linear") && halved.notes[0].contains("dump_values"),
        "{:?}",
        halved.notes
    );
    let linear = blamed(&right, &case, Some(Strategy::Linear));
    assert!(matches!(&linear.culprit, Culprit::Node { name, .. } if name == "a"), "{:?}", linear.culprit);
    assert!(linear.complete && linear.notes.is_empty(), "{:?}", linear.notes);
}
