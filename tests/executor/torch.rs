//! libtorch as a runtime: the suite over it, and what it alone does.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use rust_ort::protocol::message::SessionSpec;
use rust_ort::runtime::torch::{Precision, TorchRuntime};
use rust_ort::runtime::{Model, Runtime as _, RuntimeError, Session};
use rust_ort::tensor::{DType, TensorBuf};

use crate::common::{self, Dim, Memory};

#[path = "suite.rs"]
mod suite;

fn runtime() -> &'static TorchRuntime {
    static RUNTIME: OnceLock<TorchRuntime> = OnceLock::new();
    RUNTIME.get_or_init(|| TorchRuntime::load(2, Precision::AsDeclared).unwrap())
}

/// A session of a model's bytes.
fn built(model: &[u8], spec: &SessionSpec) -> Result<Arc<dyn Session>, RuntimeError> {
    runtime().build(&Model::read(Bytes::copy_from_slice(model))?, spec)
}

#[test]
fn its_version_is_that_of_the_torch_it_was_made_for() {
    assert!(runtime().version().starts_with("2.13"), "{}", runtime().version());
    assert!(TorchRuntime::library().unwrap().ends_with("libtorch_cpu.so"));
}

#[test]
fn an_operator_without_a_kernel_is_named_with_its_node_and_domain() {
    let model = common::Model::default().node("NoSuchOperator", &["x"], &["y"]).input("x", DType::F32, &[]);
    let error = built(&model.output("y", DType::F32, &[]).build(), &SessionSpec::default()).err().unwrap();
    let text = error.to_string();
    assert!(text.contains("node \"node_y\": no libtorch kernel for operator NoSuchOperator of ONNX's own"), "{text}");
}

/// z = −(x + y) in float32: the sum of 1 and 2⁻²⁵ is 1 there, and is not in float64.
fn sum() -> Vec<u8> {
    common::Model::default()
        .node("Add", &["x", "y"], &["sum"])
        .node("Neg", &["sum"], &["z"])
        .input("x", DType::F32, &[Dim::Is(1)])
        .input("y", DType::F32, &[Dim::Is(1)])
        .output("z", DType::F32, &[Dim::Is(1)])
        .build()
}

#[test]
fn in_float64_nothing_is_rounded_before_the_end() {
    let memory = Memory::new(1 << 20);
    let feeds = [memory.put(&[1], &[1.]), memory.put(&[1], &[2_f32.powi(-25)])];
    let lease = memory.table.lease(&feeds, &[]).unwrap();
    let model = Model::read(sum().into()).unwrap();
    let exact = -1.0 - 2_f64.powi(-25);
    for (precision, expected) in [(Precision::AsDeclared, -1.0), (Precision::Float64, exact)] {
        let runtime = TorchRuntime::load(2, precision).unwrap();
        let session = runtime.session(&model, &SessionSpec::default(), &[]).unwrap();
        let (rounded, _) = session.fetch(&lease).unwrap();
        assert_eq!(rounded, [TensorBuf::from_f32([1], &[expected as f32]).unwrap()]);
        let unrounded = session.fetch_float64(&lease).unwrap();
        assert_eq!(unrounded[0].desc().dtype, DType::F64);
        assert_eq!(unrounded[0].view().flat_f64(0..1), Some(vec![expected]));
    }
}

#[test]
fn outputs_that_the_model_declares_no_type_of_have_the_one_that_their_node_gives() {
    let model = common::Model::default()
        .node("Greater", &["x", "x"], &["more"])
        .node("Shape", &["x"], &["shape"])
        .node("Neg", &["x"], &["y"])
        .input("x", DType::F32, &[Dim::Named("n")])
        .output("y", DType::F32, &[Dim::Named("n")])
        .build();
    let mut proto = rust_ort::onnx::decode(model.into()).unwrap();
    rust_ort::onnx::expose_intermediates(&mut proto, &["more", "shape"]).unwrap();
    let session = runtime().build(&Model::encode(&proto), &SessionSpec::default()).unwrap();
    let dtypes: Vec<_> = session.outputs().iter().map(|output| output.dtype).collect();
    assert_eq!(dtypes, [DType::F32, DType::Bool, DType::I64]);
    let memory = Memory::new(1 << 20);
    let (outputs, _) = session.fetch(&memory.table.lease(&[memory.put(&[3], &[1.; 3])], &[]).unwrap()).unwrap();
    let dims: Vec<_> = outputs.iter().map(|output| output.desc().shape.dims().to_vec()).collect();
    assert_eq!(dims, [vec![3], vec![3], vec![1]]);
}
