//! Activations, and softmax.

use tch::Tensor;

use crate::runtime::torch::call::{Call, Outputs, Table, axis, counted};
use crate::runtime::torch::failure::{Failure, fail};
use crate::runtime::torch::value::Value;

pub(super) const TABLE: Table = &[
    ("", "Celu", |call| {
        let alpha = call.float("alpha", 1.0)?;
        call.unary(|x| {
            let below = x.f_div_scalar(alpha)?.f_expm1()?.f_mul_scalar(alpha)?.f_clamp_max(0.0)?;
            x.f_clamp_min(0.0)?.f_add(&below)
        })
    }),
    ("", "Elu", |call| {
        let alpha = call.float("alpha", 1.0)?;
        call.unary(|x| x.f_where_self(&x.f_gt(0.0)?, &x.f_expm1()?.f_mul_scalar(alpha)?))
    }),
    ("", "Gelu", |call| {
        let approximate = call.text("approximate", "none")?;
        call.unary(|x| x.f_gelu(approximate))
    }),
    ("", "HardSigmoid", |call| {
        let (alpha, beta) = (call.float("alpha", 0.2)?, call.float("beta", 0.5)?);
        call.unary(|x| x.f_mul_scalar(alpha)?.f_add_scalar(beta)?.f_clamp(0.0, 1.0))
    }),
    ("", "HardSwish", |call| call.unary(|x| x.f_div_scalar(6.0)?.f_add_scalar(0.5)?.f_clamp(0.0, 1.0)?.f_mul(x))),
    ("", "Hardmax", hardmax),
    ("", "LeakyRelu", |call| {
        let alpha = call.float("alpha", 0.01)?;
        call.unary(|x| x.f_where_self(&x.f_ge(0.0)?, &x.f_mul_scalar(alpha)?))
    }),
    ("", "LogSoftmax", |call| softmax(call, |x, axis| Ok(x.f_log_softmax(axis, None)?))),
    ("", "Mish", |call| call.unary(|x| x.f_softplus()?.f_tanh()?.f_mul(x))),
    ("", "PRelu", |call| call.binary(|x, slope| x.f_where_self(&x.f_ge(0.0)?, &x.f_mul(slope)?))),
    ("", "Relu", |call| call.unary(Tensor::f_relu)),
    ("", "Selu", |call| {
        let (alpha, gamma) = (call.float("alpha", 1.673_263_2)?, call.float("gamma", 1.050_701)?);
        call.unary(|x| x.f_where_self(&x.f_gt(0.0)?, &x.f_expm1()?.f_mul_scalar(alpha)?)?.f_mul_scalar(gamma))
    }),
    ("", "Shrink", |call| {
        let (bias, lambda) = (call.float("bias", 0.0)?, call.float("lambd", 0.5)?);
        call.unary(|x| {
            let zero = x.f_zeros_like()?;
            let above = x.f_sub_scalar(bias)?.f_where_self(&x.f_gt(lambda)?, &zero)?;
            x.f_add_scalar(bias)?.f_where_self(&x.f_lt(-lambda)?, &above)
        })
    }),
    ("", "Sigmoid", |call| call.unary(Tensor::f_sigmoid)),
    ("", "Softmax", |call| softmax(call, |x, axis| Ok(x.f_softmax(axis, None)?))),
    // libtorch's own is x itself above a threshold.
    ("", "Softplus", |call| call.unary(|x| x.f_logaddexp(&x.f_zeros_like()?))),
    ("", "Softsign", |call| call.unary(|x| x.f_div(&x.f_abs()?.f_add_scalar(1.0)?))),
    ("", "Swish", |call| {
        let alpha = call.float("alpha", 1.0)?;
        call.unary(|x| x.f_mul_scalar(alpha)?.f_sigmoid()?.f_mul(x))
    }),
    ("", "Tanh", |call| call.unary(Tensor::f_tanh)),
    ("", "ThresholdedRelu", |call| {
        let alpha = call.float("alpha", 1.0)?;
        call.unary(|x| x.f_where_self(&x.f_gt(alpha)?, &x.f_zeros_like()?))
    }),
];

/// Along an axis, or before opset 13 along it and all after it together.
fn along(call: &Call<'_>, function: impl Fn(&Tensor, i64) -> Result<Tensor, Failure>) -> Outputs {
    let (x, dims) = (call.tensor(0)?, call.value(0)?.dims());
    if dims.is_empty() {
        return call.one(function(&x.f_reshape([1])?, 0)?.f_reshape([0_i64; 0])?);
    }
    if call.opset >= 13 {
        return call.one(function(x, axis(call.int("axis", -1)?, dims.len())? as i64)?);
    }
    let at = call.int("axis", 1)?;
    let at = if at == dims.len() as i64 { dims.len() } else { axis(at, dims.len())? };
    let flat = x.f_reshape([dims[..at].iter().product::<i64>(), dims[at..].iter().product()])?;
    call.one(function(&flat, 1)?.f_reshape(&dims)?)
}

fn softmax(call: &Call<'_>, function: impl Fn(&Tensor, i64) -> Result<Tensor, Failure>) -> Outputs {
    along(call, function)
}

fn hardmax(call: &Call<'_>) -> Outputs {
    along(call, |x, axis| {
        let Some(&n) = x.size().get(axis as usize) else { return fail("no axis") };
        if n == 0 {
            return Ok(x.shallow_clone());
        }
        let first = x.f_argmax(axis, true)?;
        let all = counted(n, tch::Kind::Int64)?;
        let mut shape = vec![1; x.dim()];
        shape[axis as usize] = n;
        Ok(Value::new(all.f_reshape(&shape)?.f_eq_tensor(&first)?, call.value(0)?.dtype, call.precision)?.tensor)
    })
}
