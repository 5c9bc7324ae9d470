//! Small models made by hand, memory to run them on, and the runtime under test.
#![allow(dead_code)]

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use prost::Message as _;
use rust_ort::base::ids::SegmentId;
use rust_ort::onnx::proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto};
use rust_ort::onnx::value_info;
use rust_ort::protocol::message::{CustomOpLibrary, SessionSpec};
use rust_ort::runtime::ort::{OrtRuntime, ThreadPool, custom_op_library};
use rust_ort::runtime::{self, Runtime as _, RuntimeError, Session};
use rust_ort::shm::{Segment, SegmentTable};
use rust_ort::tensor::{DType, Location, TensorDesc, TensorRef};

/// The library that the tests run on.
pub fn library() -> PathBuf {
    std::env::var_os("RUST_ORT_TEST_ONNXRUNTIME").map(PathBuf::from).unwrap_or_else(|| {
        panic!(
            "set RUST_ORT_TEST_ONNXRUNTIME to the libonnxruntime.so* of an installed onnxruntime wheel \
             (<site-packages>/onnxruntime/capi/); `make test` does"
        )
    })
}

/// The library of tests/fixtures/custom_ops.rs.
pub fn custom_ops() -> CustomOpLibrary {
    let path = std::env::var_os("RUST_ORT_CUSTOM_OPS").map(PathBuf::from).unwrap_or_else(|| {
        panic!("set RUST_ORT_CUSTOM_OPS to libcustom_ops.so, built of the example custom_ops; `make test` does")
    });
    custom_op_library(&path).unwrap()
}

/// `y = Attempt(x)`, of so many elements: see the fixture.
pub fn attempts(n: usize) -> Vec<u8> {
    one_node("test.custom", "Attempt", n)
}

/// `y = op(x)` of float32, of so many elements. domain: "" for ONNX's own.
pub fn one_node(domain: &str, op: &str, n: usize) -> Vec<u8> {
    let info = |name: &str| value_info(name, &TensorDesc::new(DType::F32, [n as i64]).unwrap());
    let node = NodeProto {
        op_type: Some(op.into()),
        domain: (!domain.is_empty()).then(|| domain.into()),
        input: vec!["x".into()],
        output: vec!["y".into()],
        ..Default::default()
    };
    let graph = GraphProto {
        name: Some("g".into()),
        input: vec![info("x")],
        output: vec![info("y")],
        node: vec![node],
        ..Default::default()
    };
    let opset = |domain: &str, version| OperatorSetIdProto { domain: Some(domain.into()), version: Some(version) };
    let own = (!domain.is_empty()).then(|| opset(domain, 1));
    let opset_import = [opset("", 18)].into_iter().chain(own).collect();
    ModelProto { ir_version: Some(9), opset_import, graph: Some(graph), ..Default::default() }.encode_to_vec()
}

/// The process's one runtime.
pub fn runtime() -> &'static OrtRuntime {
    static RUNTIME: OnceLock<OrtRuntime> = OnceLock::new();
    let pool = ThreadPool { threads: 2, allow_spinning: false };
    RUNTIME.get_or_init(|| OrtRuntime::load(&library(), pool).unwrap())
}

/// A session of a model's bytes.
pub fn built(model: &[u8], spec: &SessionSpec) -> Result<Arc<dyn Session>, RuntimeError> {
    runtime().build(&runtime::Model::read(Bytes::copy_from_slice(model))?, spec)
}

/// A segment and its table; memory is handed out once and never again.
pub struct Memory {
    pub table: SegmentTable,
    pub peer: Segment,
    next: AtomicU64,
}

impl Memory {
    pub const ID: SegmentId = SegmentId(7);

    pub fn new(len_bytes: u64) -> Self {
        let segment = Segment::create(Self::ID, "test", len_bytes).unwrap();
        let peer = Segment::map(Self::ID, segment.try_clone_fd().unwrap(), len_bytes).unwrap();
        let mut table = SegmentTable::default();
        table.attach(segment).unwrap();
        Self { table, peer, next: AtomicU64::new(0) }
    }

    pub fn alloc(&self, dtype: DType, dims: &[i64]) -> TensorRef {
        let desc = TensorDesc::new(dtype, dims).unwrap();
        let len_bytes = (desc.len_bytes() as u64).next_multiple_of(64) + 64;
        let offset = self.next.fetch_add(len_bytes, Ordering::Relaxed);
        TensorRef { location: Location::new(Self::ID, offset).unwrap(), desc }
    }

    pub fn put(&self, dims: &[i64], values: &[f32]) -> TensorRef {
        let tensor = self.alloc(DType::F32, dims);
        self.set(&tensor, values);
        tensor
    }

    pub fn set(&self, tensor: &TensorRef, values: &[f32]) {
        assert_eq!(tensor.desc.shape.n_elements(), values.len());
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.peer.write(tensor.location.offset(), &bytes).unwrap();
    }

    pub fn get(&self, tensor: &TensorRef) -> Vec<f32> {
        let bytes = self.peer.read(tensor.location.offset(), tensor.desc.len_bytes()).unwrap();
        bytes.as_chunks().0.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect()
    }
}

/// A dimension of a declared value.
#[derive(Clone, Copy)]
pub enum Dim {
    Is(i64),
    Named(&'static str),
}

/// A ModelProto, field by field (numbers of onnx.proto).
#[derive(Default)]
pub struct Model {
    graph: Vec<u8>,
}

impl Model {
    pub fn node(mut self, op: &str, inputs: &[&str], outputs: &[&str]) -> Self {
        let mut node = Vec::new();
        inputs.iter().for_each(|name| bytes(&mut node, 1, name.as_bytes()));
        outputs.iter().for_each(|name| bytes(&mut node, 2, name.as_bytes()));
        bytes(&mut node, 3, format!("node_{}", outputs[0]).as_bytes());
        bytes(&mut node, 4, op.as_bytes());
        bytes(&mut self.graph, 1, &node);
        self
    }

    pub fn initializer(mut self, name: &str, dims: &[i64], values: &[f32]) -> Self {
        let mut tensor = Vec::new();
        dims.iter().for_each(|&dim| int(&mut tensor, 1, dim as u64));
        int(&mut tensor, 2, DType::F32.onnx_code() as u64);
        bytes(&mut tensor, 8, name.as_bytes());
        let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        bytes(&mut tensor, 9, &raw);
        bytes(&mut self.graph, 5, &tensor);
        self
    }

    pub fn input(self, name: &str, dtype: DType, dims: &[Dim]) -> Self {
        self.value(11, name, dtype, dims)
    }

    pub fn output(self, name: &str, dtype: DType, dims: &[Dim]) -> Self {
        self.value(12, name, dtype, dims)
    }

    pub fn build(self) -> Vec<u8> {
        let (mut graph, mut opset, mut model) = (self.graph, Vec::new(), Vec::new());
        bytes(&mut graph, 2, b"g");
        int(&mut opset, 2, 18);
        int(&mut model, 1, 8);
        bytes(&mut model, 8, &opset);
        bytes(&mut model, 7, &graph);
        model
    }

    fn value(mut self, field: u64, name: &str, dtype: DType, dims: &[Dim]) -> Self {
        let (mut shape, mut tensor, mut kind, mut value) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for &dim in dims {
            let mut encoded = Vec::new();
            match dim {
                Dim::Is(size) => int(&mut encoded, 1, size as u64),
                Dim::Named(name) => bytes(&mut encoded, 2, name.as_bytes()),
            }
            bytes(&mut shape, 1, &encoded);
        }
        int(&mut tensor, 1, dtype.onnx_code() as u64);
        bytes(&mut tensor, 2, &shape);
        bytes(&mut kind, 1, &tensor);
        bytes(&mut value, 1, name.as_bytes());
        bytes(&mut value, 2, &kind);
        bytes(&mut self.graph, field, &value);
        self
    }
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn int(out: &mut Vec<u8>, field: u64, value: u64) {
    varint(out, field << 3);
    varint(out, value);
}

fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    varint(out, field << 3 | 2);
    varint(out, value.len() as u64);
    out.extend(value);
}

/// z = x + y on vectors of any one length.
pub fn add() -> Vec<u8> {
    let dims = [Dim::Named("n")];
    Model::default()
        .node("Add", &["x", "y"], &["z"])
        .input("x", DType::F32, &dims)
        .input("y", DType::F32, &dims)
        .output("z", DType::F32, &dims)
        .build()
}

/// y = x[i] for vectors of any length; an index beyond x fails in node "node_y".
pub fn gather() -> Vec<u8> {
    Model::default()
        .node("Gather", &["x", "i"], &["y"])
        .input("x", DType::F32, &[Dim::Named("n")])
        .input("i", DType::I64, &[Dim::Named("m")])
        .output("y", DType::F32, &[Dim::Named("m")])
        .build()
}

/// A chain of `n` square matrix products: about a second for each 100 of size 1024 on two cores.
pub fn slow(n: usize) -> Vec<u8> {
    let dims = [Dim::Is(1024), Dim::Is(1024)];
    let mut model = Model::default().input("x0", DType::F32, &dims).output(&format!("x{n}"), DType::F32, &dims);
    for i in 0..n {
        model = model.node("MatMul", &[&format!("x{i}"), "x0"], &[&format!("x{}", i + 1)]);
    }
    model.build()
}
