//! What every runtime must do. It stands in the tests once for each, beside `built`, which makes a runtime's sessions.

use std::sync::Arc;
use std::time::Duration;

use super::built;
use crate::common::{Dim, Memory, Model, add, gather, slow};
use rust_ort::protocol::message::{ErrorCode, Optimization, SessionSpec, WireError};
use rust_ort::runtime::{BoundCall, RuntimeError, Session, StopToken};
use rust_ort::tensor::{DType, TensorBuf, TensorRef};

fn session(model: &[u8]) -> Arc<dyn Session> {
    built(model, &SessionSpec::default()).unwrap()
}

fn bind(
    session: &Arc<dyn Session>,
    memory: &Memory,
    inputs: &[TensorRef],
    outputs: &[TensorRef],
) -> Result<Box<dyn BoundCall>, RuntimeError> {
    Arc::clone(session).bind(memory.table.lease(inputs, outputs).unwrap(), &StopToken::default())
}

fn run(model: &[u8], memory: &Memory, inputs: &[TensorRef], outputs: &[TensorRef]) -> Result<(), RuntimeError> {
    bind(&session(model), memory, inputs, outputs)?.run().map(drop)
}

fn code(error: RuntimeError) -> ErrorCode {
    WireError::from(error).code
}

#[test]
fn add_writes_the_sum_into_the_callers_memory() {
    let memory = Memory::new(1 << 20);
    let (x, y) = (memory.put(&[3], &[1., 2., 3.]), memory.put(&[3], &[10., 20., 30.]));
    let z = memory.alloc(DType::F32, &[3]);
    run(&add(), &memory, &[x, y], std::slice::from_ref(&z)).unwrap();
    assert_eq!(memory.get(&z), [11., 22., 33.]);
}

#[test]
fn a_bound_call_sees_inputs_that_change_between_runs() {
    let memory = Memory::new(1 << 20);
    let (x, y) = (memory.put(&[2], &[1., 2.]), memory.put(&[2], &[0., 0.]));
    let z = memory.alloc(DType::F32, &[2]);
    let mut call = bind(&session(&add()), &memory, &[x.clone(), y], std::slice::from_ref(&z)).unwrap();
    for value in [5., -7.] {
        memory.set(&x, &[value, 2. * value]);
        call.run().unwrap();
        assert_eq!(memory.get(&z), [value, 2. * value]);
    }
}

#[test]
fn several_outputs_and_one_tensor_as_several_inputs() {
    let dims = [Dim::Is(2)];
    let model = Model::default()
        .node("Add", &["x", "y"], &["sum"])
        .node("Mul", &["sum", "y"], &["product"])
        .input("x", DType::F32, &dims)
        .input("y", DType::F32, &dims)
        .output("product", DType::F32, &dims)
        .output("sum", DType::F32, &dims)
        .build();
    let memory = Memory::new(1 << 20);
    let x = memory.put(&[2], &[2., 3.]);
    let (product, sum) = (memory.alloc(DType::F32, &[2]), memory.alloc(DType::F32, &[2]));
    run(&model, &memory, &[x.clone(), x], &[product.clone(), sum.clone()]).unwrap();
    assert_eq!((memory.get(&product), memory.get(&sum)), (vec![8., 18.], vec![4., 6.]));
}

#[test]
fn tensors_without_elements_and_of_rank_0() {
    let memory = Memory::new(1 << 20);
    let empty = || memory.alloc(DType::F32, &[0]);
    run(&add(), &memory, &[empty(), empty()], &[empty()]).unwrap();

    let neg = Model::default().node("Neg", &["x"], &["y"]).input("x", DType::F32, &[]).output("y", DType::F32, &[]);
    let (x, y) = (memory.put(&[], &[4.]), memory.alloc(DType::F32, &[]));
    run(&neg.build(), &memory, &[x], std::slice::from_ref(&y)).unwrap();
    assert_eq!(memory.get(&y), [-4.]);
}

#[test]
fn one_session_runs_at_any_size_of_a_symbolic_dimension() {
    let (memory, session) = (Memory::new(1 << 20), session(&add()));
    for n in [1, 7, 1000] {
        let values: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let (x, z) = (memory.put(&[n], &values), memory.alloc(DType::F32, &[n]));
        bind(&session, &memory, &[x.clone(), x], std::slice::from_ref(&z)).unwrap().run().unwrap();
        assert_eq!(memory.get(&z), values.iter().map(|value| 2. * value).collect::<Vec<_>>());
    }
}

#[test]
fn a_tensor_that_is_not_what_the_model_declares_is_refused_by_name() {
    let dims = [Dim::Is(2), Dim::Named("n")];
    let model =
        Model::default().node("Neg", &["x"], &["y"]).input("x", DType::F32, &dims).output("y", DType::F32, &dims);
    let (memory, session) = (Memory::new(1 << 20), session(&model.build()));
    let tensor = |dtype, dims: &[i64]| memory.alloc(dtype, dims);
    let good = || tensor(DType::F32, &[2, 5]);
    let cases = [
        (tensor(DType::F64, &[2, 5]), good(), "input", "float64[2, 5]"),
        (tensor(DType::F32, &[3, 5]), good(), "input", "float32[3, 5]"),
        (tensor(DType::F32, &[2]), good(), "input", "float32[2]"),
        (good(), tensor(DType::I32, &[2, 5]), "output", "int32[2, 5]"),
    ];
    for (x, y, kind, got) in cases {
        let error = bind(&session, &memory, &[x], &[y]).err().unwrap();
        let (text, name) = (error.to_string(), if kind == "input" { "\"x\"" } else { "\"y\"" });
        assert!([kind, name, "float32[2, -1]", got].iter().all(|part| text.contains(part)), "{text}");
        assert_eq!(code(error), ErrorCode::BadTensor);
    }
    let error = bind(&session, &memory, &[good(), good()], &[good()]).err().unwrap();
    assert_eq!(error, RuntimeError::ValueCount { kind: "input", expected: 1, got: 2 });
}

#[test]
fn an_output_of_another_shape_than_computed_fails_and_nothing_else_is_written() {
    let memory = Memory::new(1 << 20);
    let x = memory.put(&[4], &[1.; 4]);
    for n in [1, 3, 5] {
        let (before, z, after) =
            (memory.put(&[2], &[9.; 2]), memory.alloc(DType::F32, &[n]), memory.put(&[2], &[9.; 2]));
        let error = run(&add(), &memory, &[x.clone(), x.clone()], &[z]).unwrap_err();
        assert_eq!(code(error), ErrorCode::RunFailed);
        assert_eq!((memory.get(&before), memory.get(&after)), (vec![9.; 2], vec![9.; 2]));
    }
}

#[test]
fn a_failing_node_is_named() {
    let memory = Memory::new(1 << 20);
    let (x, y, z) = (memory.put(&[2], &[0.; 2]), memory.put(&[3], &[0.; 3]), memory.alloc(DType::F32, &[3]));
    let error = WireError::from(run(&add(), &memory, &[x, y], &[z]).unwrap_err());
    assert_eq!((error.code, error.node.as_str()), (ErrorCode::RunFailed, "node_z"), "{error}");
}

#[test]
fn outputs_that_are_inputs_or_initializers_are_written() {
    let dims = [Dim::Is(2)];
    let model = Model::default()
        .node("Neg", &["x"], &["y"])
        .initializer("c", &[2], &[5., 6.])
        .input("x", DType::F32, &dims)
        .output("x", DType::F32, &dims)
        .output("y", DType::F32, &dims)
        .output("c", DType::F32, &dims)
        .build();
    let memory = Memory::new(1 << 20);
    let x = memory.put(&[2], &[1., 2.]);
    let outputs = [(); 3].map(|()| memory.put(&[2], &[-9.; 2]));
    run(&model, &memory, &[x], &outputs).unwrap();
    assert_eq!(outputs.map(|output| memory.get(&output)), [[1., 2.], [-1., -2.], [5., 6.]]);
}

#[test]
fn an_output_that_a_fusion_would_take_away_is_written() {
    let matrix = [Dim::Is(2), Dim::Is(2)];
    let model = Model::default()
        .node("Transpose", &["x"], &["t"])
        .node("Transpose", &["v"], &["w"])
        .node("Gemm", &["t", "w", "c"], &["y"])
        .initializer("c", &[2], &[0., 100.])
        .input("x", DType::F32, &matrix)
        .input("v", DType::F32, &matrix)
        .output("t", DType::F32, &matrix)
        .output("y", DType::F32, &matrix)
        .build();
    let memory = Memory::new(1 << 20);
    let inputs = [memory.put(&[2, 2], &[1., 2., 3., 4.]), memory.put(&[2, 2], &[1., 0., 0., 1.])];
    let outputs = [(); 2].map(|()| memory.put(&[2, 2], &[-9.; 4]));
    run(&model, &memory, &inputs, &outputs).unwrap();
    assert_eq!(outputs.map(|output| memory.get(&output)), [[1., 3., 2., 4.], [1., 103., 2., 104.]]);
}

#[test]
fn an_identity_and_a_reshape_reach_their_output() {
    let model = Model::default()
        .node("Identity", &["x"], &["y"])
        .node("Flatten", &["x"], &["z"])
        .input("x", DType::F32, &[Dim::Is(2), Dim::Is(1)])
        .output("y", DType::F32, &[Dim::Is(2), Dim::Is(1)])
        .output("z", DType::F32, &[Dim::Is(2), Dim::Is(1)])
        .build();
    let memory = Memory::new(1 << 20);
    let x = memory.put(&[2, 1], &[1., 2.]);
    let (y, z) = (memory.alloc(DType::F32, &[2, 1]), memory.alloc(DType::F32, &[2, 1]));
    run(&model, &memory, &[x], &[y.clone(), z.clone()]).unwrap();
    assert_eq!((memory.get(&y), memory.get(&z)), (vec![1., 2.], vec![1., 2.]));
}

#[test]
fn what_is_no_model_is_refused() {
    let unknown_op = Model::default()
        .node("NoSuchOperator", &["x"], &["y"])
        .input("x", DType::F32, &[])
        .output("y", DType::F32, &[])
        .build();
    let cut = &add()[..add().len() - 3];
    for model in [&b""[..], b"garbage", &[0xff; 100], &unknown_op, cut] {
        let error = built(model, &SessionSpec::default()).err().unwrap();
        assert_eq!(code(error), ErrorCode::BadModel);
    }
}

#[test]
fn options_that_mean_nothing_are_refused() {
    let build = |spec: SessionSpec| built(&add(), &spec).err().unwrap();
    let provider = |name: &str, options: &[(&str, &str)]| SessionSpec {
        providers: vec![(name.to_owned(), options.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect())],
        ..SessionSpec::default()
    };
    let error = build(provider("NoSuchExecutionProvider", &[]));
    assert!(error.to_string().contains("CPUExecutionProvider"), "{error}");
    assert_eq!(code(error), ErrorCode::BadOption);
    assert_eq!(code(build(provider("CPUExecutionProvider", &[("arena", "1")]))), ErrorCode::BadOption);
    let config = [("session.use_ort_model_bytes_directly".to_owned(), "1".to_owned())].into();
    assert_eq!(code(build(SessionSpec { config, ..SessionSpec::default() })), ErrorCode::BadOption);
}

#[test]
fn every_optimization_level_computes_a_transposed_product_with_a_vector() {
    let model = Model::default()
        .node("Transpose", &["a"], &["t"])
        .node("MatMul", &["t", "v"], &["y"])
        .input("a", DType::F32, &[Dim::Is(3), Dim::Is(2)])
        .input("v", DType::F32, &[Dim::Is(3)])
        .output("y", DType::F32, &[Dim::Is(2)])
        .build();
    let memory = Memory::new(1 << 20);
    let (a, v) = (memory.put(&[3, 2], &[1., 2., 3., 4., 5., 6.]), memory.put(&[3], &[1., 10., 100.]));
    for &(_, optimization) in Optimization::NAMES {
        let session = built(&model, &SessionSpec { optimization, ..SessionSpec::default() }).unwrap();
        let y = memory.put(&[2], &[0.; 2]);
        bind(&session, &memory, &[a.clone(), v.clone()], std::slice::from_ref(&y)).unwrap().run().unwrap();
        assert_eq!(memory.get(&y), [531., 642.], "{optimization:?}");
    }
}

#[test]
fn threads_run_one_session_at_once() {
    let (memory, session) = (Memory::new(1 << 22), session(&add()));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (memory, session) = (&memory, &session);
            scope.spawn(move || {
                let (x, y) = (memory.put(&[100], &[0.; 100]), memory.put(&[100], &[thread as f32; 100]));
                let z = memory.alloc(DType::F32, &[100]);
                let inputs = [x.clone(), y];
                let mut call = bind(session, memory, &inputs, std::slice::from_ref(&z)).unwrap();
                for i in 0..500 {
                    memory.set(&x, &[i as f32; 100]);
                    call.run().unwrap();
                    assert_eq!(memory.get(&z), [(i + thread) as f32; 100]);
                }
            });
        }
    });
}

#[test]
fn a_stopped_run_ends_with_stopped() {
    let memory = Memory::new(16 << 20);
    let dims = [1024, 1024];
    let (x, y) = (memory.alloc(DType::F32, &dims), memory.alloc(DType::F32, &dims));
    let lease = memory.table.lease(&[x], &[y]).unwrap();
    let stop = StopToken::default();
    let mut call = session(&slow(2000)).bind(lease, &stop).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            stop.stop();
        });
        assert_eq!(call.run().unwrap_err(), RuntimeError::Stopped);
    });
    assert_eq!(call.run().unwrap_err(), RuntimeError::Stopped);
}

#[test]
fn fetched_tensors_have_whatever_shape_comes() {
    let memory = Memory::new(1 << 20);
    let tensors = [memory.put(&[2], &[1., 2.]), memory.put(&[2], &[10., 20.])];
    let (outputs, stats) = session(&add()).fetch(&memory.table.lease(&tensors, &[]).unwrap()).unwrap();
    assert_eq!(outputs, [TensorBuf::from_f32([2], &[11., 22.]).unwrap()]);
    assert!(stats.run_ns > 0);
    let empty = [memory.alloc(DType::F32, &[0]), memory.alloc(DType::F32, &[0])];
    let (outputs, _) = session(&add()).fetch(&memory.table.lease(&empty, &[]).unwrap()).unwrap();
    assert_eq!(outputs[0].desc().shape.dims(), [0]);
    // An output that is an input.
    let dims = [Dim::Is(2)];
    let same = Model::default().node("Neg", &["x"], &["y"]).input("x", DType::F32, &dims);
    let same = same.output("y", DType::F32, &dims).output("x", DType::F32, &dims).build();
    let (outputs, _) = session(&same).fetch(&memory.table.lease(&tensors[..1], &[]).unwrap()).unwrap();
    assert_eq!(outputs[1], TensorBuf::from_f32([2], &[1., 2.]).unwrap());
}

#[test]
fn a_fetch_that_fails_names_its_node() {
    let memory = Memory::new(1 << 20);
    let (x, i) = (memory.put(&[2], &[1., 2.]), memory.alloc(DType::I64, &[1]));
    memory.peer.write(i.location.offset(), &5_i64.to_le_bytes()).unwrap();
    let error = session(&gather()).fetch(&memory.table.lease(&[x.clone(), i], &[]).unwrap()).unwrap_err();
    assert!(matches!(&error, RuntimeError::BadIndex { node, index: Some(5), .. } if node == "node_y"), "{error}");
    let error = session(&gather()).fetch(&memory.table.lease(&[x], &[]).unwrap()).unwrap_err();
    assert!(matches!(error, RuntimeError::ValueCount { expected: 2, got: 1, .. }), "{error}");
}
