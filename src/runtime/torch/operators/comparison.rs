//! What gives bools.

use tch::Tensor;

use crate::runtime::torch::call::{Call, Outputs, Table};
use crate::tensor::DType;

pub(super) const TABLE: Table = &[
    ("", "And", |call| call.compare(Tensor::f_logical_and)),
    ("", "Equal", |call| call.compare(Tensor::f_eq_tensor)),
    ("", "Greater", |call| call.compare(|x, y| ordered(call, x, y, Tensor::f_gt_tensor))),
    ("", "GreaterOrEqual", |call| call.compare(|x, y| ordered(call, x, y, Tensor::f_ge_tensor))),
    ("", "IsInf", is_inf),
    ("", "IsNaN", |call| call.one_typed(call.tensor(0)?.f_isnan()?, DType::Bool)),
    ("", "Less", |call| call.compare(|x, y| ordered(call, x, y, Tensor::f_lt_tensor))),
    ("", "LessOrEqual", |call| call.compare(|x, y| ordered(call, x, y, Tensor::f_le_tensor))),
    ("", "Not", |call| call.one_typed(call.tensor(0)?.f_logical_not()?, DType::Bool)),
    ("", "Or", |call| call.compare(Tensor::f_logical_or)),
    ("", "Xor", |call| call.compare(Tensor::f_logical_xor)),
];

type Binary = fn(&Tensor, &Tensor) -> Result<Tensor, tch::TchError>;

/// uint64 is held in int64's bits: with its highest bit turned over it has int64's order.
fn ordered(call: &Call<'_>, x: &Tensor, y: &Tensor, function: Binary) -> Result<Tensor, tch::TchError> {
    match call.maybe(0).map(|value| value.dtype) {
        Some(DType::U64) => function(&x.f_bitwise_xor(i64::MIN)?, &y.f_bitwise_xor(i64::MIN)?),
        _ => function(x, y),
    }
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
