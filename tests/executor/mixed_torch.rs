//! A part on ONNX Runtime and libtorch together: what it gives, and that each of them computes its share.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use proptest::prelude::*;
use rust_ort::onnx;
use rust_ort::protocol::message::{Division, ErrorCode, NodeRuntime, PartSpec, RuntimeRule, SessionSpec, WireError};
use rust_ort::runtime::{
    self, Constant, Model as RuntimeModel, Runtime, RuntimeError, Session, StopToken, leased, with_libtorch,
};
use rust_ort::tensor::{DType, TensorBuf, TensorDesc};

use super::mixed::{part, rule};
use crate::common::{Dim, Memory, Model, add, runtime as onnxruntime, slow};

/// ONNX Runtime, which the process has once.
struct OnnxRuntime;

impl Runtime for OnnxRuntime {
    fn version(&self) -> &str {
        onnxruntime().version()
    }

    fn build_with(
        &self,
        model: &RuntimeModel,
        spec: &SessionSpec,
        constants: Vec<Constant>,
    ) -> Result<Arc<dyn Session>, RuntimeError> {
        onnxruntime().build_with(model, spec, constants)
    }

    fn optimized(&self, model: &RuntimeModel, spec: &SessionSpec) -> Result<Vec<u8>, RuntimeError> {
        onnxruntime().optimized(model, spec)
    }
}

fn both() -> &'static dyn Runtime {
    static BOTH: OnceLock<Box<dyn Runtime>> = OnceLock::new();
    &**BOTH.get_or_init(|| with_libtorch(Box::new(OnnxRuntime), 2).unwrap())
}

fn built(part: &PartSpec, constants: Vec<Constant>) -> Result<(Arc<dyn Session>, Division), RuntimeError> {
    runtime::session_with(both(), part, onnx::decode(part.model.clone()).unwrap(), constants)
}

fn fetched(part: &PartSpec, feeds: &[TensorBuf]) -> (Vec<TensorBuf>, Division) {
    let (session, division) = built(part, Vec::new()).unwrap();
    let views: Vec<_> = feeds.iter().map(TensorBuf::view).collect();
    (session.fetch(&leased(&views).unwrap()).unwrap().0, division)
}

fn flat(tensor: &TensorBuf) -> Vec<f64> {
    tensor.view().flat_f64(0..tensor.desc().shape.n_elements()).unwrap()
}

fn near(one: &[TensorBuf], other: &[TensorBuf]) {
    assert_eq!(one.len(), other.len());
    for (one, other) in one.iter().zip(other) {
        assert_eq!(one.desc(), other.desc());
        for (one, other) in flat(one).into_iter().zip(flat(other)) {
            assert!((one - other).abs() <= 1e-5 * (1. + other.abs()), "{one} {other}");
        }
    }
}

const RUNTIMES: [NodeRuntime; 3] = [NodeRuntime::Ort, NodeRuntime::Torch, NodeRuntime::TorchF64];
const N: [Dim; 1] = [Dim::Named("n")];

/// One node of a random model: its operator, and which values before it it reads.
type Op = (usize, usize, usize, usize);

/// v0 is the input; each op gives one value more. Shapes go between runtimes, too.
fn model(ops: &[Op]) -> Vec<u8> {
    let mut model = Model::default().input("v0", DType::F32, &N);
    for (at, &(op, one, other, _)) in ops.iter().enumerate() {
        let (one, other, made) =
            (format!("v{}", one % (at + 1)), format!("v{}", other % (at + 1)), format!("v{}", at + 1));
        let shape = format!("s{}", at + 1);
        model = match op {
            0..4 => model.node(["Neg", "Tanh", "Sigmoid", "Abs"][op], &[&one], &[&made]),
            4..7 => model.node(["Add", "Sub", "Max"][op - 4], &[&one, &other], &[&made]),
            _ => model.node("Shape", &[&other], &[&shape]).node("Expand", &[&one, &shape], &[&made]),
        };
    }
    for value in [ops.len(), ops.len() / 2] {
        model = if value == 0 || value == ops.len() / 2 && ops.len() < 2 {
            model
        } else {
            model.output(&format!("v{value}"), DType::F32, &N)
        };
    }
    model.build()
}

/// The ops that an output of [`model`] needs.
fn needed(ops: &[Op]) -> Vec<usize> {
    let mut values = vec![false; ops.len() + 1];
    (values[ops.len()], values[ops.len() / 2]) = (true, true);
    let mut needed = Vec::new();
    for (at, &(op, one, other, _)) in ops.iter().enumerate().rev() {
        if values[at + 1] {
            needed.push(at);
            values[one % (at + 1)] = true;
            values[other % (at + 1)] |= op >= 4;
        }
    }
    needed
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_assignment_gives_what_onnxruntime_alone_gives(
        ops in proptest::collection::vec((0_usize..8, any::<usize>(), any::<usize>(), 0_usize..3), 2..16),
    ) {
        let alone = part(model(&ops), Vec::new());
        let rules: Vec<RuntimeRule> =
            ops.iter().enumerate().map(|(at, op)| rule(RUNTIMES[op.3], &format!("node_v{}", at + 1))).collect();
        let mixed = part(model(&ops), rules);
        let feeds = [TensorBuf::from_f32([5], &[0.5, -1.5, 0., 3., -0.25]).unwrap()];
        let (expected, _) = fetched(&alone, &feeds);
        let (got, division) = fetched(&mixed, &feeds);
        near(&got, &expected);
        for runtime in [NodeRuntime::Torch, NodeRuntime::TorchF64] {
            let asked = needed(&ops).into_iter().filter(|&at| RUNTIMES[ops[at].3] == runtime).count() as u32;
            prop_assert_eq!(division.nodes.get(&runtime).copied().unwrap_or_default(), asked);
        }
    }
}

/// y = LayerNormalization(x · w) · w, where scale and bias are read by the norm alone.
fn normed(dtype: DType) -> Vec<u8> {
    let (rows, square, row) = ([Dim::Named("a"), Dim::Is(64)], [Dim::Is(64), Dim::Is(64)], [Dim::Is(64)]);
    Model::default()
        .node("MatMul", &["x", "w"], &["mm"])
        .node("LayerNormalization", &["mm", "scale", "bias"], &["norm"])
        .node("MatMul", &["norm", "w"], &["y"])
        .input("x", dtype, &rows)
        .input("w", dtype, &square)
        .input("scale", dtype, &row)
        .input("bias", dtype, &row)
        .output("y", dtype, &rows)
        .build()
}

fn drawn(dtype: DType, dims: &[i64], seed: u64) -> TensorBuf {
    let n = dims.iter().product::<i64>() as usize;
    let value = |at: usize| (((at as u64 * 2654435761 + seed * 40503) % 1000) as f64 / 500. - 1.) as f32;
    let values: Vec<f32> = (0..n).map(value).collect();
    let bytes = match dtype {
        DType::F32 => values.iter().flat_map(|it| it.to_le_bytes()).collect(),
        DType::F16 => values.iter().flat_map(|&it| half::f16::from_f32(it).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|&it| half::bf16::from_f32(it).to_le_bytes()).collect(),
    };
    TensorBuf::new(TensorDesc::new(dtype, dims.to_vec()).unwrap(), bytes).unwrap()
}

#[test]
fn a_norm_on_libtorch_gives_what_libtorch_gives_of_what_onnxruntime_gave() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let feeds =
            [drawn(dtype, &[8, 64], 1), drawn(dtype, &[64, 64], 2), drawn(dtype, &[64], 3), drawn(dtype, &[64], 4)];
        let mut mixed = part(normed(dtype), vec![rule(NodeRuntime::Torch, "LayerNormalization")]);
        mixed.named_values = ["mm", "norm", "y"].map(str::to_owned).to_vec();
        let (got, division) = fetched(&mixed, &feeds);
        assert_eq!((division.nodes[&NodeRuntime::Torch], division.segments), (1, 3), "{dtype}");
        // By hand: each model on its own runtime.
        let whole = onnx::decode(mixed.model.clone()).unwrap();
        let by_hand = |inputs: &[&str], output: &str, runtimes: &[RuntimeRule], feeds: &[TensorBuf]| {
            let mut cut = onnx::cut(&whole, inputs, &[output]).unwrap();
            let graph = cut.graph.as_mut().unwrap();
            for (info, feed) in graph.input.iter_mut().zip(feeds) {
                *info = onnx::value_info(info.name(), feed.desc());
            }
            let piece = PartSpec {
                model: RuntimeModel::encode(&cut).bytes,
                named_values: mixed.named_values.clone(),
                ..part(Vec::new(), runtimes.to_vec())
            };
            fetched(&piece, feeds).0.remove(0)
        };
        let [x, w, scale, bias] = feeds.clone();
        let mm = by_hand(&["x", "w"], "mm", &[], &[x, w.clone()]);
        let torch = [rule(NodeRuntime::Torch, "*")];
        let norm = by_hand(&["mm", "scale", "bias"], "norm", &torch, &[mm, scale, bias]);
        let y = by_hand(&["norm", "w"], "y", &[], &[norm, w]);
        assert_eq!(got, [y], "{dtype}");
    }
}

#[test]
fn float64_is_rounded_where_its_segment_ends() {
    let dims = [Dim::Is(1)];
    let model = Model::default()
        .node("Add", &["x", "y"], &["sum"])
        .node("Sub", &["sum", "x"], &["left"])
        .node("Neg", &["left"], &["z"])
        .input("x", DType::F32, &dims)
        .input("y", DType::F32, &dims)
        .output("z", DType::F32, &dims)
        .build();
    let small = 2_f32.powi(-25);
    let feeds = [TensorBuf::from_f32([1], &[1.]).unwrap(), TensorBuf::from_f32([1], &[small]).unwrap()];
    let z = |rules: &[RuntimeRule]| flat(&fetched(&part(model.clone(), rules.to_vec()), &feeds).0[0])[0];
    let f64_rule = |pattern| rule(NodeRuntime::TorchF64, pattern);
    assert_eq!(z(&[rule(NodeRuntime::Torch, "Neg")]), 0.);
    assert_eq!(z(&[f64_rule("Add"), f64_rule("Sub")]), f64::from(-small), "both in one segment");
    assert_eq!(z(&[f64_rule("Add")]), 0., "rounded between");
}

#[test]
fn outputs_that_are_inputs_or_initializers_and_bound_memory() {
    let dims = [Dim::Is(2)];
    let model = Model::default()
        .node("Neg", &["x"], &["m"])
        .node("Mul", &["m", "c"], &["y"])
        .initializer("c", &[2], &[5., 6.])
        .input("x", DType::F32, &dims)
        .output("x", DType::F32, &dims)
        .output("y", DType::F32, &dims)
        .output("m", DType::F32, &dims)
        .output("c", DType::F32, &dims)
        .build();
    for rules in [vec![rule(NodeRuntime::Torch, "Neg")], vec![rule(NodeRuntime::Torch, "Mul")]] {
        let (session, _) = built(&part(model.clone(), rules), Vec::new()).unwrap();
        let memory = Memory::new(1 << 20);
        let x = memory.put(&[2], &[1., 2.]);
        let outputs = [(); 4].map(|()| memory.put(&[2], &[-9.; 2]));
        let lease = memory.table.lease(std::slice::from_ref(&x), &outputs).unwrap();
        let mut call = session.bind(lease, &StopToken::default()).unwrap();
        call.run().unwrap();
        let expected = [[1., 2.], [-5., -12.], [-1., -2.], [5., 6.]];
        assert_eq!(outputs.clone().map(|output| memory.get(&output)), expected);
        memory.set(&x, &[3., 4.]);
        call.run().unwrap();
        assert_eq!(memory.get(&outputs[1]), [-15., -24.]);
    }
}

#[test]
fn an_output_of_another_shape_than_computed_fails() {
    let model = onnx::decode(add().into()).unwrap();
    let mut two = model.clone();
    let graph = two.graph.as_mut().unwrap();
    let mut neg = graph.node[0].clone();
    (neg.op_type, neg.name) = (Some("Neg".to_owned()), Some("neg".to_owned()));
    (neg.input, neg.output) = (vec!["s".to_owned()], vec!["z".to_owned()]);
    graph.node[0].output = vec!["s".to_owned()];
    graph.node.push(neg);
    let bytes = RuntimeModel::encode(&two).bytes.to_vec();
    for on in ["Neg", "Add"] {
        let (session, _) = built(&part(bytes.clone(), vec![rule(NodeRuntime::Torch, on)]), Vec::new()).unwrap();
        let memory = Memory::new(1 << 20);
        let (x, z) = (memory.put(&[4], &[1.; 4]), memory.alloc(DType::F32, &[3]));
        let lease = memory.table.lease(&[x.clone(), x], &[z]).unwrap();
        let error = session.bind(lease, &StopToken::default()).unwrap().run().unwrap_err();
        let text = error.to_string();
        assert!(text.contains("output \"z\"") && text.contains("[4]") && text.contains("[3]"), "{text}");
        assert_eq!(WireError::from(error).code, ErrorCode::RunFailed);
    }
}

#[test]
fn a_constant_of_the_session_reaches_each_segment_that_reads_it() {
    let model = Model::default()
        .node("Mul", &["x", "w"], &["a"])
        .node("Tanh", &["a"], &["b"])
        .node("Mul", &["b", "w"], &["y"])
        .input("x", DType::F32, &N)
        .input("w", DType::F32, &N)
        .output("y", DType::F32, &N)
        .build();
    let w = Arc::new(TensorBuf::from_f32([2], &[2., 3.]).unwrap());
    let x = TensorBuf::from_f32([2], &[0.5, -0.5]).unwrap();
    let mixed = part(model, vec![rule(NodeRuntime::Torch, "node_y"), rule(NodeRuntime::Torch, "Tanh")]);
    let constants = vec![Constant { name: "w".to_owned(), tensor: Arc::clone(&w) }];
    let (session, _) = built(&mixed, constants).unwrap();
    let names: Vec<_> = session.inputs().iter().map(|input| input.name.as_str()).collect();
    assert_eq!(names, ["x"]);
    let (frozen, _) = session.fetch(&leased(&[x.view()]).unwrap()).unwrap();
    let (fed, _) = fetched(&mixed, &[x, TensorBuf::clone(&w)]);
    assert_eq!(frozen, fed);
}

#[test]
fn a_stopped_run_ends_inside_a_segment() {
    for rules in [
        vec![rule(NodeRuntime::Torch, "node_x1")],
        vec![rule(NodeRuntime::Ort, "node_x1"), rule(NodeRuntime::Torch, "MatMul")],
    ] {
        let memory = Memory::new(16 << 20);
        let dims = [1024, 1024];
        let (x, y) = (memory.alloc(DType::F32, &dims), memory.alloc(DType::F32, &dims));
        let lease = memory.table.lease(&[x], &[y]).unwrap();
        let stop = StopToken::default();
        let (session, division) = built(&part(slow(2000), rules), Vec::new()).unwrap();
        assert_eq!(division.segments, 2);
        let mut call = session.bind(lease, &stop).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(300));
                stop.stop();
            });
            assert_eq!(call.run().unwrap_err(), RuntimeError::Stopped);
        });
        assert_eq!(call.run().unwrap_err(), RuntimeError::Stopped);
    }
}

#[test]
fn what_libtorch_has_no_kernel_of_is_the_rules_fault() {
    let model = Model::default()
        .node("Neg", &["x"], &["m"])
        .node("NonMaxSuppression", &["m", "s"], &["y"])
        .input("x", DType::F32, &[Dim::Is(1), Dim::Is(6), Dim::Is(4)])
        .input("s", DType::F32, &[Dim::Is(1), Dim::Is(1), Dim::Is(6)])
        .output("y", DType::I64, &[Dim::Named("n"), Dim::Is(3)])
        .build();
    let error = built(&part(model, vec![rule(NodeRuntime::Torch, "NonMax*")]), Vec::new()).err().unwrap();
    assert!(error.to_string().contains("no libtorch kernel for operator NonMaxSuppression"), "{error}");
    assert_eq!(WireError::from(error).code, ErrorCode::BadOption);
}
