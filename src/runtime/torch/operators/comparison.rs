//! What gives bools.

use tch::Tensor;

use crate::runtime::torch::call::{Call, Outputs, Table};
use crate::runtime::torch::value::in_order;
use crate::tensor::DType;

pub(super) const TABLE: Table = &[
    ("", "And", |call| call.compare(Tensor::f_logical_and)),
    ("", "Equal", |call| call.compare(Tensor::f_eq_tensor)),
    ("", "Greater", |call| ordered(call, Tensor::f_gt_tensor)),
    ("", "GreaterOrEqual", |call| ordered(call, Tensor::f_ge_tensor)),
    ("", "IsInf", is_inf),
    ("", "IsNaN", |call| call.one_typed(call.tensor(0)?.f_isnan()?, DType::Bool)),
    ("", "Less", |call| ordered(call, Tensor::f_lt_tensor)),
    ("", "LessOrEqual", |call| ordered(call, Tensor::f_le_tensor)),
    ("", "Not", |call| call.one_typed(call.tensor(0)?.f_logical_not()?, DType::Bool)),
    ("", "Or", |call| call.compare(Tensor::f_logical_or)),
    ("", "Xor", |call| call.compare(Tensor::f_logical_xor)),
];

type Binary = fn(&Tensor, &Tensor) -> Result<Tensor, tch::TchError>;

fn ordered(call: &Call<'_>, function: Binary) -> Outputs {
    let dtype = call.value(0)?.dtype;
    call.compare(|x, y| function(&in_order(x, dtype)?, &in_order(y, dtype)?))
}

fn is_inf(call: &Call<'_>) -> Outputs {
    let x = call.tensor(0)?;
    let (positive, negative) = (call.flag("detect_positive", true)?, call.flag("detect_negative", true)?);
    // libtorch asks 8-bit floats nothing.
    let x = match call.value(0)?.dtype {
        DType::F32 | DType::F64 | DType::F16 | DType::BF16 => x.shallow_clone(),
        _ => x.f_totype(tch::Kind::Float)?,
    };
    let found = match (positive, negative) {
        (true, true) => x.f_isinf()?,
        (true, false) => x.f_isposinf()?,
        (false, true) => x.f_isneginf()?,
        (false, false) => x.f_isnan()?.f_logical_and(&x.f_isinf()?)?,
    };
    call.one_typed(found, DType::Bool)
}
