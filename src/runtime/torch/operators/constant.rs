//! Constant nodes.

use tch::Tensor;

use crate::onnx::NamedTensor;
use crate::onnx::proto::NodeProto;
use crate::runtime::torch::failure::{Failure, fail};
use crate::runtime::torch::value::{Precision, Value};
use crate::tensor::DType;

/// What a Constant node gives. Errors: it has no attribute that is a tensor, a number or numbers.
pub(in crate::runtime::torch) fn constant(node: &NodeProto, precision: Precision) -> Result<Value, Failure> {
    let Some(attribute) = node.attribute.first() else { return fail("it has no attribute") };
    let ints = |ints: &[i64]| Tensor::f_from_slice(ints);
    let floats = |floats: &[f32]| Tensor::f_from_slice(floats);
    let (tensor, dtype) = match attribute.name() {
        "value" => {
            let Some(proto) = &attribute.t else { return fail("its attribute \"value\" holds no tensor") };
            return Value::read_view(&NamedTensor::from_proto(proto)?.view(), precision);
        }
        "value_int" => (ints(&[attribute.i()])?.f_reshape([0_i64; 0])?, DType::I64),
        "value_ints" => (ints(&attribute.ints)?, DType::I64),
        "value_float" => (floats(&[attribute.f()])?.f_reshape([0_i64; 0])?, DType::F32),
        "value_floats" => (floats(&attribute.floats)?, DType::F32),
        other => return fail(format!("attribute {other:?}: no libtorch tensor of it")),
    };
    Value::new(tensor, dtype, precision)
}
