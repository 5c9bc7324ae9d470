//! Element types of what nodes compute, as ONNX's operators define them: ONNX's shape inference needs its library.

use crate::onnx::Attention;
use crate::onnx::proto::{AttributeProto, NodeProto, TypeProto, type_proto};
use crate::tensor::DType;

/// Code of an element type (TensorProto.DataType), of a tensor or of the tensors of a sequence.
pub(super) type Element = i32;

pub(super) const FLOAT: Element = DType::F32.onnx_code();
pub(super) const INT64: Element = DType::I64.onnx_code();
pub(super) const BOOL: Element = DType::Bool.onnx_code();

/// float16 or bfloat16.
pub(super) fn is_half(element: Element) -> bool {
    [DType::F16.onnx_code(), DType::BF16.onnx_code()].contains(&element)
}

/// Attributes that hold the element type of a result.
pub(super) const TYPE_ATTRIBUTES: &[&str] = &["dtype", "output_datatype", "output_dtype", "stash_type"];

/// Operators whose every result has the type of their first input.
#[rustfmt::skip]
const AS_FIRST_INPUT: &[&str] = &[
    "Abs", "Acos", "Acosh", "Add", "AffineGrid", "Asin", "Asinh", "Atan", "Atanh", "Attention", "AveragePool",
    "CausalConvWithState", "Ceil", "Celu", "CenterCropPad", "Clip", "Col2Im", "Compress", "Concat",
    "ConcatFromSequence", "Conv", "ConvTranspose", "Cos", "Cosh", "CumProd", "CumSum", "DFT", "DeformConv",
    "DepthToSpace", "Det", "Div", "Einsum", "Elu", "Erf", "Exp", "Expand", "Flatten", "Floor", "GRU", "Gather",
    "GatherElements", "GatherND", "Gelu", "Gemm", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "GridSample",
    "GroupNormalization", "HardSigmoid", "HardSwish", "Hardmax", "Identity", "InstanceNormalization", "LRN", "LSTM",
    "LeakyRelu", "LinearAttention", "Log", "LogSoftmax", "LpNormalization", "LpPool", "MatMul", "Max", "MaxRoiPool",
    "MaxUnpool", "Mean", "MeanVarianceNormalization", "Min", "Mish", "Mod", "Mul", "Neg", "NegativeLogLikelihoodLoss",
    "OptionalGetElement", "PRelu", "Pad", "Pow", "RNN", "Range", "Reciprocal", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu",
    "Reshape", "Resize", "ReverseSequence", "RoiAlign", "RotaryEmbedding", "Round", "STFT", "ScatterElements",
    "ScatterND", "Selu", "SequenceAt", "SequenceConstruct", "SequenceErase", "SequenceInsert", "Shrink", "Sigmoid",
    "Sign", "Sin", "Sinh", "Slice", "Softmax", "SoftmaxCrossEntropyLoss", "Softplus", "Softsign", "SpaceToDepth",
    "Split", "SplitToSequence", "Sqrt", "Squeeze", "Sub", "Sum", "SwiGLU", "Swish", "Tan", "Tanh", "TensorScatter",
    "ThresholdedRelu", "Tile", "Transpose", "Trilu", "Unsqueeze",
    "Upsample",
];

/// Type of output `index` of a node of ONNX's own domain, or ours, from the types of its inputs. None when it cannot be
/// told.
pub(super) fn of_result(node: &NodeProto, index: usize, inputs: &[Option<Element>]) -> Option<Element> {
    let input = |at: usize| inputs.get(at).copied().flatten();
    if !is_onnx(node) {
        return input(Attention::called_by(node)?.typed_as(index));
    }
    let asked = |name: &str| attribute(node, name).and_then(|attribute| attribute.i).map(|code| code as Element);
    match (node.op_type(), index) {
        ("Cast" | "BitCast", _) => asked("to"),
        ("CastLike" | "RMSNormalization", _) => input(1),
        ("Constant", _) => of_constant(node),
        ("ConstantOfShape", _) => {
            Some(attribute(node, "value").map_or(FLOAT, |value| tensor_type(value).unwrap_or(FLOAT)))
        }
        ("EyeLike" | "RandomNormalLike" | "RandomUniformLike" | "Bernoulli", _) => asked("dtype").or(input(0)),
        ("RandomNormal" | "RandomUniform" | "SequenceEmpty", _) => asked("dtype").or(Some(FLOAT)),
        ("Multinomial", _) => asked("dtype").or(Some(DType::I32.onnx_code())),
        ("BlackmanWindow" | "HammingWindow" | "HannWindow" | "MelWeightMatrix", _) => {
            asked("output_datatype").or(Some(FLOAT))
        }
        ("Equal" | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" | "IsNaN" | "IsInf", _) => Some(BOOL),
        ("And" | "Or" | "Xor" | "Not" | "OptionalHasElement", _) | ("Dropout", 1) => Some(BOOL),
        ("Shape" | "Size" | "ArgMax" | "ArgMin" | "NonZero" | "SequenceLength", _) => Some(INT64),
        ("TopK" | "MaxPool", 1) | ("Unique", 1..) => Some(INT64),
        ("LayerNormalization", 1..) => asked("stash_type").or(Some(FLOAT)),
        ("BatchNormalization", 1..) => input(3),
        ("Where", _) => input(1).or(input(2)),
        ("OneHot", _) => input(2),
        ("QuantizeLinear", _) => {
            asked("output_dtype").filter(|&to| to != 0).or(input(2)).or(Some(DType::U8.onnx_code()))
        }
        ("DequantizeLinear", _) => asked("output_dtype").filter(|&to| to != 0).or(input(1)),
        ("Dropout" | "TopK" | "MaxPool" | "Unique" | "LayerNormalization" | "BatchNormalization", 0) => input(0),
        ("Optional", _) => input(0).or_else(|| of_type(attribute(node, "type")?.tp.as_ref())),
        (op, _) if AS_FIRST_INPUT.contains(&op) => input(0),
        _ => None,
    }
}

fn of_constant(node: &NodeProto) -> Option<Element> {
    let value = node.attribute.first()?;
    match value.name() {
        "value" => tensor_type(value),
        "sparse_value" => value.sparse_tensor.as_ref()?.values.as_ref()?.data_type,
        "value_float" | "value_floats" => Some(FLOAT),
        "value_int" | "value_ints" => Some(INT64),
        _ => None,
    }
}

/// Operators whose result is of rank 0 where all that they read is.
pub(super) const OF_NUMBERS: &[&str] =
    &["Add", "Cast", "CastLike", "Div", "Exp", "Identity", "Log", "Mul", "Neg", "Pow", "Reciprocal", "Sqrt", "Sub"];

/// Whether the node gives a constant of rank 0.
pub(super) fn is_number(node: &NodeProto) -> bool {
    let of_rank_0 = |value: &AttributeProto| match value.name() {
        "value" => value.t.as_ref().is_some_and(|tensor| tensor.dims.is_empty()),
        name => matches!(name, "value_float" | "value_int"),
    };
    node.op_type() == "Constant" && node.attribute.first().is_some_and(of_rank_0)
}

fn tensor_type(attribute: &AttributeProto) -> Option<Element> {
    attribute.t.as_ref()?.data_type
}

/// The node's attribute of this name.
pub(in crate::onnx) fn attribute<'a>(node: &'a NodeProto, name: &str) -> Option<&'a AttributeProto> {
    node.attribute.iter().find(|attribute| attribute.name() == name)
}

/// Of a declared type: a tensor's, or that of the tensors in a sequence or an optional.
pub(super) fn of_type(declared: Option<&TypeProto>) -> Option<Element> {
    match declared?.value.as_ref()? {
        type_proto::Value::TensorType(tensor) => tensor.elem_type,
        type_proto::Value::SparseTensorType(tensor) => tensor.elem_type,
        type_proto::Value::SequenceType(sequence) => of_type(sequence.elem_type.as_deref()),
        type_proto::Value::OptionalType(optional) => of_type(optional.elem_type.as_deref()),
        _ => None,
    }
}

/// Whether a node is of ONNX's own operator of this name.
pub(in crate::onnx) fn is(node: &NodeProto, op: &str) -> bool {
    node.op_type() == op && is_onnx(node)
}

pub(in crate::onnx) fn is_onnx(node: &NodeProto) -> bool {
    matches!(node.domain(), "" | "ai.onnx")
}
