//! Corners of operators on libtorch, in both precisions: as ONNX Runtime gives them, or, where it has no kernel or traps, in
//! numbers of ONNX's specification.

use bytes::Bytes;
use prost::Message as _;
use rust_ort::onnx::proto::attribute_proto::AttributeType;
use rust_ort::onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TypeProto, ValueInfoProto, type_proto,
};
use rust_ort::onnx::value_info;
use rust_ort::protocol::message::SessionSpec;
use rust_ort::runtime::torch::{Precision, TorchRuntime};
use rust_ort::runtime::{Model, RuntimeError, Session, leased};
use rust_ort::tensor::{DType, TensorBuf, TensorDesc};

use crate::common;

/// One node, whose outputs declare no shape.
struct Case {
    node: NodeProto,
    inputs: Vec<(String, TensorBuf)>,
    outputs: Vec<DType>,
}

impl Case {
    /// Of one output, of the first input's type.
    fn new(operator: &str, inputs: Vec<TensorBuf>) -> Self {
        let output = inputs[0].desc().dtype;
        Self::sparse(operator, inputs.into_iter().map(Some).collect()).gives(&[output])
    }

    /// As [`Case::new`], with inputs left out.
    fn sparse(operator: &str, inputs: Vec<Option<TensorBuf>>) -> Self {
        let name = |at: usize, input: &Option<TensorBuf>| input.as_ref().map_or(String::new(), |_| format!("x{at}"));
        let node = NodeProto {
            op_type: Some(operator.to_owned()),
            name: Some("corner".to_owned()),
            input: inputs.iter().enumerate().map(|(at, input)| name(at, input)).collect(),
            ..Default::default()
        };
        let inputs = inputs.into_iter().enumerate();
        let inputs: Vec<_> = inputs.filter_map(|(at, input)| Some((format!("x{at}"), input?))).collect();
        let output = inputs[0].1.desc().dtype;
        Self { node, inputs, outputs: Vec::new() }.gives(&[output])
    }

    fn gives(mut self, outputs: &[DType]) -> Self {
        self.node.output = (0..outputs.len()).map(|at| format!("y{at}")).collect();
        self.outputs = outputs.to_vec();
        self
    }

    fn with(mut self, name: &str, r#type: AttributeType, set: impl FnOnce(&mut AttributeProto)) -> Self {
        let mut attribute =
            AttributeProto { name: Some(name.to_owned()), r#type: Some(r#type as i32), ..Default::default() };
        set(&mut attribute);
        self.node.attribute.push(attribute);
        self
    }

    fn int(self, name: &str, int: i64) -> Self {
        self.with(name, AttributeType::Int, |attribute| attribute.i = Some(int))
    }

    fn float(self, name: &str, float: f32) -> Self {
        self.with(name, AttributeType::Float, |attribute| attribute.f = Some(float))
    }

    fn ints(self, name: &str, ints: &[i64]) -> Self {
        self.with(name, AttributeType::Ints, |attribute| attribute.ints = ints.to_vec())
    }

    fn text(self, name: &str, text: &str) -> Self {
        self.with(name, AttributeType::String, |attribute| attribute.s = Some(text.as_bytes().to_vec()))
    }

    fn model(&self) -> Vec<u8> {
        let typed = |(at, dtype): (usize, &DType)| {
            let tensor = type_proto::Tensor { elem_type: Some(dtype.onnx_code()), shape: None };
            let r#type = TypeProto { value: Some(type_proto::Value::TensorType(tensor)), denotation: None };
            ValueInfoProto { name: Some(format!("y{at}")), r#type: Some(r#type), ..Default::default() }
        };
        let graph = GraphProto {
            name: Some("g".to_owned()),
            node: vec![self.node.clone()],
            input: self.inputs.iter().map(|(name, tensor)| value_info(name, tensor.desc())).collect(),
            output: self.outputs.iter().enumerate().map(typed).collect(),
            ..Default::default()
        };
        let opset = OperatorSetIdProto { domain: None, version: Some(20) };
        ModelProto { ir_version: Some(9), opset_import: vec![opset], graph: Some(graph), ..Default::default() }
            .encode_to_vec()
    }

    fn fetched(&self, session: &dyn Session) -> Result<Vec<TensorBuf>, RuntimeError> {
        let views: Vec<_> = self.inputs.iter().map(|(_, tensor)| tensor.view()).collect();
        Ok(session.fetch(&leased(&views).unwrap())?.0)
    }

    fn on_libtorch(&self, precision: Precision) -> Result<Vec<TensorBuf>, RuntimeError> {
        let runtime = TorchRuntime::load(2, precision).unwrap();
        let model = Model::read(Bytes::from(self.model())).unwrap();
        self.fetched(&runtime.session(&model, &SessionSpec::default(), &[]).unwrap())
    }

    fn on_onnxruntime(&self) -> Vec<TensorBuf> {
        self.fetched(&*common::built(&self.model(), &SessionSpec::default()).unwrap()).unwrap()
    }

    fn what(&self) -> String {
        let inputs = self.inputs.iter().map(|(name, tensor)| format!("{name} {} {:?}", tensor.desc(), flat(tensor)));
        let attribute = |it: &AttributeProto| format!("{} {:?} {:?} {:?} {:?}", it.name(), it.i, it.f, it.ints, it.s);
        let attributes = self.node.attribute.iter().map(attribute);
        format!("{} of {:?}", self.node.op_type(), inputs.chain(attributes).collect::<Vec<_>>())
    }

    /// It gives this to the bit, but for a NaN's; floats may be off by `rtol` of 1 and their size.
    fn is_within(&self, rtol: f64, precision: Precision, expected: &[TensorBuf]) {
        let made = self.on_libtorch(precision).unwrap_or_else(|error| panic!("{}: {error}", self.what()));
        assert_eq!(made.len(), expected.len());
        for (made, expected) in made.iter().zip(expected) {
            let what = || format!("{} in {precision:?}: {:?}, expected {:?}", self.what(), flat(made), flat(expected));
            assert_eq!(made.desc(), expected.desc(), "{}", what());
            if !made.desc().dtype.is_float() {
                assert_eq!(made.view().bytes(), expected.view().bytes(), "{}", what());
            }
            for (made, expected) in flat(made).into_iter().zip(flat(expected)) {
                let is_same = made == expected || (made.is_nan() && expected.is_nan());
                assert!(is_same || (made - expected).abs() <= rtol * (1.0 + expected.abs()), "{}", what());
            }
        }
    }

    /// In both precisions it gives this.
    fn is(&self, expected: &[TensorBuf]) {
        for precision in BOTH {
            self.is_within(0.0, precision, expected);
        }
    }

    /// In both precisions it gives what ONNX Runtime gives, within `rtol`.
    fn is_near_onnxruntime(&self, rtol: f64) {
        let expected = self.on_onnxruntime();
        for precision in BOTH {
            self.is_within(rtol, precision, &expected);
        }
    }

    fn is_as_onnxruntime(&self) {
        self.is_near_onnxruntime(0.0);
    }

    /// In both precisions it is an error that names the node and says this.
    fn is_refused(&self, reason: &str) {
        for precision in BOTH {
            let error = self.on_libtorch(precision).err().unwrap_or_else(|| panic!("{} is not refused", self.what()));
            let text = error.to_string();
            assert!(text.contains("corner") && text.contains(reason), "{}: {text}", self.what());
        }
    }
}

const BOTH: [Precision; 2] = [Precision::AsDeclared, Precision::Float64];

fn flat(tensor: &TensorBuf) -> Vec<f64> {
    tensor.view().flat_f64(0..tensor.desc().shape.n_elements()).unwrap()
}

macro_rules! tensors {
    ($($name:ident: $element:ty, $dtype:ident;)*) => {$(
        fn $name(dims: &[i64], values: &[$element]) -> TensorBuf {
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            TensorBuf::new(TensorDesc::new(DType::$dtype, dims).unwrap(), bytes).unwrap()
        }
    )*};
}

tensors! {
    f32s: f32, F32;
    f64s: f64, F64;
    i8s: i8, I8;
    i32s: i32, I32;
    i64s: i64, I64;
    u8s: u8, U8;
    u64s: u64, U64;
}

/// 0, 1, …, shuffled about 0.
fn numbers(dims: &[i64]) -> TensorBuf {
    let n = dims.iter().product::<i64>();
    f32s(dims, &(0..n).map(|at| (at as f32 * 0.73).sin() * 3.0).collect::<Vec<_>>())
}

const HALF: u64 = 1 << 63;
const LARGE: [u64; 4] = [1, HALF + 5, u64::MAX, 7];
const OTHER: [u64; 4] = [2, 3, 5, HALF + 1];

#[test]
fn uint64_beyond_int64_is_no_negative_number() {
    let (x, y) = (|| u64s(&[4], &LARGE), || u64s(&[4], &OTHER));
    for operator in ["Max", "Min", "Div", "Mod"] {
        Case::new(operator, vec![x(), y()]).is_as_onnxruntime();
        Case::new(operator, vec![y(), x()]).is_as_onnxruntime();
        Case::new(operator, vec![x(), u64s(&[], &[HALF + 2])]).is_as_onnxruntime();
    }
    // ONNX Runtime computes fmod of what float64 has of them.
    Case::new("Mod", vec![x(), y()]).int("fmod", 1).is(&[u64s(&[4], &[1, 1, 0, 7])]);
    Case::new("Clip", vec![x(), u64s(&[], &[2]), u64s(&[], &[HALF + 1])]).is_as_onnxruntime();
    Case::new("Sign", vec![u64s(&[3], &[0, 3, u64::MAX])]).is_as_onnxruntime();
    Case::new("Abs", vec![x()]).is_as_onnxruntime();
    for reduction in ["max", "min"] {
        let put = Case::new("ScatterElements", vec![x(), i64s(&[4], &[0, 1, 2, 3]), y()]);
        put.text("reduction", reduction).is_as_onnxruntime();
    }
    // ONNX Runtime has none of these.
    let int = |n: i64| i64s(&[1], &[n]);
    Case::new("ArgMax", vec![x()]).gives(&[DType::I64]).is(&[int(2)]);
    Case::new("ArgMin", vec![u64s(&[3], &[HALF, u64::MAX, 7])]).gives(&[DType::I64]).is(&[int(2)]);
    Case::new("ReduceMax", vec![x()]).is(&[u64s(&[1], &[u64::MAX])]);
    Case::new("ReduceL1", vec![u64s(&[2], &[HALF + 5, 7])]).is(&[u64s(&[1], &[HALF + 12])]);
    Case::new("ReduceMean", vec![u64s(&[2], &[HALF + 4096, HALF + 8192])]).is(&[u64s(&[1], &[HALF + 6144])]);
    let unique = Case::new("Unique", vec![u64s(&[4], &[u64::MAX, 7, HALF, 7])]);
    unique.is(&[u64s(&[3], &[7, HALF, u64::MAX])]);
    Case::new("Resize", vec![x()]).sizes(&[8]).is(&[u64s(&[8], &LARGE.map(|n| [n, n]).concat())]);
    let hot = Case::new("OneHot", vec![u64s(&[2], &[1, u64::MAX]), i64s(&[], &[3]), f32s(&[2], &[0., 1.])]);
    hot.gives(&[DType::F32]).is(&[f32s(&[2, 3], &[0., 1., 0., 0., 0., 0.])]);
}

#[test]
fn uint64_is_cast_to_floats_and_back_rounded_once() {
    let to =
        |x: TensorBuf, dtype: DType| Case::new("Cast", vec![x]).int("to", dtype.onnx_code().into()).gives(&[dtype]);
    // By way of float64 the first would be a tie, which goes down.
    let large = || u64s(&[3], &[HALF + (1 << 39) + 1, u64::MAX, 7]);
    let narrow = to(large(), DType::F32);
    narrow.is_within(0.0, Precision::AsDeclared, &narrow.on_onnxruntime());
    to(large(), DType::F64).is_as_onnxruntime();
    to(f32s(&[4], &[1., 1e19, 1.8e19, 3e9]), DType::U64).is_as_onnxruntime();
    to(f64s(&[4], &[1., 1e19, 1.8e19, 3e9]), DType::U64).is_as_onnxruntime();
}

#[test]
fn the_sign_of_no_number_is_none() {
    Case::new("Sign", vec![f32s(&[5], &[f32::NAN, -0.0, f32::NEG_INFINITY, 2.0, -1e-45])]).is_as_onnxruntime();
    Case::new("Sign", vec![i32s(&[3], &[-5, 0, 7])]).is_as_onnxruntime();
}

#[test]
fn the_least_integer_by_minus_one_wraps_around() {
    // ONNX Runtime's process ends of it.
    let of = |operator: &str| Case::new(operator, vec![i64s(&[2], &[i64::MIN, 7]), i64s(&[], &[-1])]);
    of("Div").is(&[i64s(&[2], &[i64::MIN, -7])]);
    of("Mod").is(&[i64s(&[2], &[0, 0])]);
    of("Mod").int("fmod", 1).is(&[i64s(&[2], &[0, 0])]);
    Case::new("Div", vec![i32s(&[2], &[i32::MIN, 7]), i32s(&[2], &[-1, -2])]).is(&[i32s(&[2], &[i32::MIN, -3])]);
    Case::new("Mod", vec![i32s(&[2], &[i32::MIN, 7]), i32s(&[2], &[-1, -2])]).is(&[i32s(&[2], &[0, -1])]);
    Case::new("Div", vec![i8s(&[2], &[i8::MIN, 7]), i8s(&[], &[-1])]).is_as_onnxruntime();
    // The one byte that looks like −1.
    Case::new("Div", vec![u8s(&[2], &[255, 7]), u8s(&[], &[255])]).is_as_onnxruntime();
    Case::new("Mod", vec![u8s(&[2], &[254, 7]), u8s(&[], &[255])]).is_as_onnxruntime();
    for x in [i64s(&[1], &[5]), u64s(&[1], &[5])] {
        let zero = TensorBuf::zeros(x.desc().clone());
        Case::new("Div", vec![x.clone(), zero.clone()]).is_refused("Integer division by zero");
        Case::new("Mod", vec![x, zero]).is_refused("Integer division by zero");
    }
}

#[test]
fn sizes_that_no_memory_holds_are_errors() {
    let int = |n: i64| i64s(&[], &[n]);
    Case::new("Range", vec![int(0), int(i64::MAX), int(1)]).is_refused("Storage size");
    Case::new("Range", vec![int(i64::MIN), int(i64::MAX), int(1)]).is_refused("Storage size");
    Case::new("Range", vec![f32s(&[], &[0.]), f32s(&[], &[3e38]), f32s(&[], &[1e-3])]).is_refused("Storage size");
    Case::new("Range", vec![f32s(&[], &[f32::NAN]), f32s(&[], &[1.]), f32s(&[], &[1.])]).is_refused("from NaN");
    Case::new("Range", vec![int(i64::MAX), int(i64::MIN), int(i64::MIN)]).is(&[i64s(&[2], &[i64::MAX, -1])]);
    let one_hot = |depth: TensorBuf| {
        Case::new("OneHot", vec![i64s(&[1], &[1]), depth, f32s(&[2], &[0., 1.])]).gives(&[DType::F32])
    };
    one_hot(int(-3)).is_refused("depth [-3.0]: expected one number, not below 0");
    one_hot(f32s(&[], &[f32::NAN])).is_refused("depth [NaN]");
    one_hot(int(1 << 50)).is_refused("memory");
    one_hot(int(3)).is_as_onnxruntime();
    for window in ["HannWindow", "HammingWindow", "BlackmanWindow"] {
        let of = |size: i64| Case::new(window, vec![int(size)]).gives(&[DType::F32]);
        of(-4).is_refused("negative dimension");
        of(1 << 50).is_refused("memory");
        of(0).is_as_onnxruntime();
        of(5).is_near_onnxruntime(1e-6);
    }
    let split = |n: i64| Case::new("Split", vec![numbers(&[4])]).int("num_outputs", n).gives(&[DType::F32; 2]);
    split(i64::MAX).is_refused("num_outputs 9223372036854775807: the node has 2");
    split(2).is_as_onnxruntime();
}

#[test]
fn a_kernel_that_fails_of_a_number_is_an_error_and_no_panic() {
    // libtorch compares no 8-bit float with a number.
    let eight = TensorBuf::new(TensorDesc::new(DType::F8E5M2, [1]).unwrap(), vec![0]).unwrap();
    Case::new("LeakyRelu", vec![eight]).float("alpha", 0.5).is_refused("\"ge_cpu\" not implemented for");
}

impl Case {
    /// A Resize to these sizes.
    fn sizes(mut self, sizes: &[i64]) -> Self {
        self.node.input.extend([String::new(), String::new(), "x3".to_owned()]);
        self.inputs.push(("x3".to_owned(), i64s(&[sizes.len() as i64], sizes)));
        self
    }

    /// A Resize by these scales.
    fn scales(mut self, scales: &[f32]) -> Self {
        self.node.input.extend([String::new(), "x2".to_owned()]);
        self.inputs.push(("x2".to_owned(), f32s(&[scales.len() as i64], scales)));
        self
    }
}

#[test]
fn a_resize_goes_by_the_scale_that_is_given() {
    let scales = [1. / 3., 0.6, 2.3, 1.7, 0.7, 0.1, 3.0, 5. / 9.];
    for transform in ["asymmetric", "half_pixel", "pytorch_half_pixel", "half_pixel_symmetric"] {
        let by = |scale: f32| {
            let x = f32s(&[1, 1, 30], &(0..30_u8).map(f32::from).collect::<Vec<_>>());
            let case = Case::new("Resize", vec![x]).text("coordinate_transformation_mode", transform);
            case.scales(&[1., 1., scale])
        };
        for scale in scales {
            for nearest in ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"] {
                by(scale).text("nearest_mode", nearest).is_as_onnxruntime();
            }
            for mode in ["linear", "cubic"] {
                let square = Case::new("Resize", vec![numbers(&[1, 1, 8, 9])]).text("mode", mode);
                let square = square.text("coordinate_transformation_mode", transform).scales(&[1., 1., scale, scale]);
                square.is_near_onnxruntime(1e-5);
            }
        }
    }
}

#[test]
fn a_resize_to_sizes_takes_the_nearest_as_onnxruntime_does() {
    let transforms = ["asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"];
    for transform in transforms {
        for size in [3, 7, 11, 13, 29, 60] {
            for nearest in ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"] {
                let x = f32s(&[1, 1, 30], &(0..30_u8).map(f32::from).collect::<Vec<_>>());
                let case = Case::new("Resize", vec![x]).text("coordinate_transformation_mode", transform);
                case.text("nearest_mode", nearest).sizes(&[1, 1, size]).is_as_onnxruntime();
            }
        }
    }
    for (mode, size) in [("linear", 1), ("nearest", 1), ("linear", 12), ("nearest", 12)] {
        let (x, roi) = (f32s(&[1, 1, 6], &[0., 1., 2., 3., 4., 5.]), f32s(&[2], &[0.1, 0.9]));
        let mut case = Case::new("Resize", vec![x, roi]).text("mode", mode).ints("axes", &[2]);
        case.node.input.extend([String::new(), "x3".to_owned()]);
        case.inputs.push(("x3".to_owned(), i64s(&[1], &[size])));
        case.text("coordinate_transformation_mode", "tf_crop_and_resize").is_near_onnxruntime(1e-5);
    }
    // What is taken is not computed with.
    let x = f32s(&[1, 1, 3], &[f32::INFINITY, f32::NAN, 1.0]);
    Case::new("Resize", vec![x]).sizes(&[1, 1, 6]).is_as_onnxruntime();
}

#[test]
fn an_axis_without_elements_is_resized_to_none_alone() {
    let empty = || Case::new("Resize", vec![f32s(&[1, 0], &[])]);
    for mode in ["nearest", "linear"] {
        empty().text("mode", mode).sizes(&[1, 4]).is_refused("an axis of 0 to 4");
        empty().text("mode", mode).scales(&[1., 2.]).is(&[f32s(&[1, 0], &[])]);
    }
    empty().sizes(&[1, 0]).is_as_onnxruntime();
    let four = || Case::new("Resize", vec![numbers(&[1, 4])]);
    four().scales(&[1., 0.1]).is_as_onnxruntime();
    four().scales(&[1., f32::NAN]).is_refused("expected more than 0");
    four().scales(&[1., 1e30]).is_refused("an axis of 4 to 9223372036854775807");
}

#[test]
fn what_counts_zero_times_is_not_read_where_onnxruntime_does_not() {
    let x = || f32s(&[2, 2], &[f32::NAN, 1., 2., 3.]);
    let y = || f32s(&[2, 2], &[1., 2., 3., 4.]);
    let gemm = |a: TensorBuf, c: f32| Case::new("Gemm", vec![a, y(), f32s(&[2], &[c, 1.])]);
    gemm(y(), f32::NAN).float("beta", 0.0).is_as_onnxruntime();
    gemm(y(), f32::INFINITY).float("beta", 0.0).float("alpha", 0.5).is_as_onnxruntime();
    gemm(y(), f32::NAN).is_as_onnxruntime();
    // Alpha's product is.
    gemm(x(), 1.0).float("alpha", 0.0).is_as_onnxruntime();
    gemm(x(), 1.0).float("alpha", 0.0).float("beta", 0.5).is_as_onnxruntime();
}

#[test]
fn pools_of_every_rank_and_windows_that_reach_beyond_the_axis() {
    for dims in [&[2, 3, 11][..], &[2, 3, 9, 8], &[2, 3, 5, 6, 4]] {
        let rank = dims.len() - 2;
        Case::new("GlobalAveragePool", vec![numbers(dims)]).is_near_onnxruntime(1e-6);
        Case::new("GlobalMaxPool", vec![numbers(dims)]).is_as_onnxruntime();
        for (stride, dilation, ceil) in [(1, 1, 0), (2, 1, 1), (2, 2, 0), (3, 2, 1)] {
            let pool = |operator: &str| {
                let case = Case::new(operator, vec![numbers(dims)]).ints("kernel_shape", &vec![3; rank]);
                let case = case.ints("strides", &vec![stride; rank]).ints("dilations", &vec![dilation; rank]);
                case.int("ceil_mode", ceil)
            };
            pool("MaxPool").gives(&[DType::F32, DType::I64]).is_as_onnxruntime();
            for include in [0, 1] {
                pool("AveragePool").int("count_include_pad", include).is_near_onnxruntime(1e-6);
            }
        }
    }
    let pool = |kernel: i64, stride: i64| {
        Case::new("MaxPool", vec![numbers(&[1, 1, 4])]).ints("kernel_shape", &[kernel]).ints("strides", &[stride])
    };
    pool(7, 4).is_as_onnxruntime();
    pool(9, 2).is_refused("a window of 9 on an axis of 4");
    pool(i64::MAX, 1).is_refused("not in 1..=1073741824");
    pool(2, 1).ints("pads", &[i64::MAX, i64::MAX]).is_refused("beyond 1073741824");
    for operator in ["GlobalAveragePool", "GlobalMaxPool"] {
        Case::new(operator, vec![numbers(&[2, 3])]).is_refused("[2, 3] has no spatial axes");
    }
    let instance = vec![numbers(&[2, 3]), numbers(&[3]), numbers(&[3])];
    Case::new("InstanceNormalization", instance).is_refused("[2, 3] has no spatial axes");
}

#[test]
fn a_local_response_is_of_channels_before_and_behind() {
    let lrn = |x: TensorBuf, size: i64| Case::new("LRN", vec![x]).int("size", size).float("alpha", 2.0);
    for size in [1, 3, 5, 21] {
        lrn(numbers(&[2, 7, 3, 3]), size).float("beta", 0.75).float("bias", 1.5).is_near_onnxruntime(1e-6);
    }
    // Of even sizes, which ONNX Runtime refuses, one more channel behind: 1 + (1 + 4), 1 + (4 + 9), 1 + 9.
    let two = lrn(f32s(&[1, 3, 1], &[1., 2., 3.]), 2).float("beta", 1.0);
    for precision in BOTH {
        two.is_within(1e-7, precision, &[f32s(&[1, 3, 1], &[1. / 6., 2. / 14., 3. / 10.])]);
    }
    for size in [0, i64::MIN] {
        lrn(numbers(&[1, 3, 2, 2]), size).is_refused("sums of");
    }
}

#[test]
fn pads_crop_before_they_pad() {
    let pad = |mode: &str, begin: i64, end: i64| {
        Case::new("Pad", vec![f32s(&[4], &[1., 2., 3., 4.]), i64s(&[2], &[begin, end])]).text("mode", mode)
    };
    for (begin, end) in [(-1, 2), (2, -1), (3, 3), (0, 0), (-2, 1), (-1, -2)] {
        for mode in ["constant", "edge", "reflect", "wrap"] {
            pad(mode, begin, end).is_as_onnxruntime();
        }
    }
    for (begin, end) in [(5, 7), (4, 4), (-2, 3), (-3, 5), (9, -1)] {
        for mode in ["constant", "edge", "wrap"] {
            pad(mode, begin, end).is_as_onnxruntime();
        }
    }
    for mode in ["constant", "edge", "reflect", "wrap"] {
        for (begin, end) in [(-3, -3), (-5, 0), (i64::MIN, i64::MIN), (0, i64::MIN)] {
            pad(mode, begin, end).is_refused("cut off more than the 4 of axis 0");
        }
        let reason = if mode == "constant" { "no int64 holds the size" } else { "more than 67108864" };
        pad(mode, i64::MAX, i64::MAX).is_refused(reason);
    }
    for mode in ["edge", "wrap"] {
        pad(mode, -4, 2).is_refused("an axis without elements has none to pad with");
    }
    Case::new("CenterCropPad", vec![numbers(&[4]), i64s(&[1], &[i64::MIN])]).is_refused("on 1 axes");
}

#[test]
fn tensors_without_elements_and_of_zeros() {
    for dims in [[2, 0], [0, 3]] {
        Case::new("Hardmax", vec![f32s(&dims, &[])]).is_as_onnxruntime();
    }
    let quantized = |x: &[f32]| {
        let case = Case::new("DynamicQuantizeLinear", vec![f32s(&[x.len() as i64], x)]);
        case.gives(&[DType::U8, DType::F32, DType::U8])
    };
    quantized(&[0., 0., 0.]).is_as_onnxruntime();
    quantized(&[0., -0.]).is_as_onnxruntime();
}

#[test]
fn a_quotient_of_float64_is_not_rounded_to_float32() {
    // 0.35 by 0.1 is 3.5 in float32, which goes to 4; of the numbers that float32 has for them it is below 3.5.
    let (x, scale) = (|| f32s(&[1], &[0.35]), || f32s(&[], &[0.1]));
    let case = Case::new("QuantizeLinear", vec![x(), scale(), u8s(&[], &[0])]).gives(&[DType::U8]);
    case.is_within(0.0, Precision::AsDeclared, &case.on_onnxruntime());
    case.is_within(0.0, Precision::AsDeclared, &[u8s(&[1], &[4])]);
    case.is_within(0.0, Precision::Float64, &[u8s(&[1], &[3])]);
}
