//! com.microsoft: what ONNX Runtime's optimizer makes of nodes.

use tch::{Kind, Tensor};

use super::convolution::conv;
use super::matrix::{gemm_of, scaled};
use super::normalization::{by_root_mean_square, standardized, wide};
use crate::runtime::torch::call::{Call, Outputs, Table, axis};
use crate::runtime::torch::failure::{Failure, fail};
use crate::runtime::torch::value::Value;

const MICROSOFT: &str = "com.microsoft";

pub(super) const TABLE: Table = &[
    (MICROSOFT, "BiasGelu", |call| call.one(call.tensor(0)?.f_add(call.tensor(1)?)?.f_gelu("none")?)),
    (MICROSOFT, "FastGelu", |call| {
        let x = call.tensor(0)?;
        let x = call.maybe_tensor(1).map_or_else(|| Ok(x.shallow_clone()), |bias| x.f_add(bias))?;
        call.one(x.f_gelu("tanh")?)
    }),
    (MICROSOFT, "FusedConv", |call| {
        let made = conv(call, call.tensor(0)?, call.tensor(1)?, call.maybe_tensor(2))?;
        let made = call.maybe_tensor(3).map_or_else(|| Ok(made.shallow_clone()), |more| made.f_add(more))?;
        let parameters = call.floats("activation_params")?.unwrap_or_default();
        call.one(activated(call.text("activation", "")?, &parameters, &made)?)
    }),
    (MICROSOFT, "FusedGemm", |call| {
        let parameters = [call.float("activation_alpha", 0.01)?, call.float("activation_beta", 0.5)?];
        call.one(activated(call.text("activation", "")?, &parameters, &gemm_of(call)?)?)
    }),
    (MICROSOFT, "FusedMatMul", fused_product),
    (MICROSOFT, "Gelu", |call| call.unary(|x| x.f_gelu("none"))),
    (MICROSOFT, "QuickGelu", |call| {
        let alpha = call.float("alpha", 1.702)?;
        call.unary(|x| x.f_mul_scalar(alpha)?.f_sigmoid()?.f_mul(x))
    }),
    (MICROSOFT, "SkipLayerNormalization", |call| skip(call, false)),
    (MICROSOFT, "SkipSimplifiedLayerNormalization", |call| skip(call, true)),
    (MICROSOFT, "TransposeMatMul", fused_product),
    // ONNX Runtime has it in ONNX's own domain.
    ("", "SimplifiedLayerNormalization", simplified),
    (MICROSOFT, "SimplifiedLayerNormalization", simplified),
];

/// alpha·A·B, the last two axes of each turned, or its first one moved before the last.
fn fused_product(call: &Call<'_>) -> Outputs {
    let oriented = |at: usize, batch: &str, turned: &str| -> Result<Tensor, Failure> {
        let mut x = call.tensor(at)?.shallow_clone();
        let rank = x.dim() as i64;
        if call.flag(batch, false)? && rank > 2 {
            // [a, b, …, m] to [b, …, a, m].
            let order: Vec<i64> = (1..rank - 1).chain([0, rank - 1]).collect();
            x = x.f_permute(&order)?;
        }
        Ok(if call.flag(turned, false)? && rank > 1 { x.f_transpose(-2, -1)? } else { x })
    };
    let (a, b) = (oriented(0, "transBatchA", "transA")?, oriented(1, "transBatchB", "transB")?);
    call.one(scaled(&a.f_matmul(&b)?, call.float("alpha", 1.0)?)?)
}

fn activated(name: &str, parameters: &[f64], x: &Tensor) -> Result<Tensor, Failure> {
    let parameter = |at: usize, default: f64| parameters.get(at).copied().unwrap_or(default);
    Ok(match name {
        "" => x.shallow_clone(),
        "Relu" => x.f_relu()?,
        "Sigmoid" => x.f_sigmoid()?,
        "Tanh" => x.f_tanh()?,
        "LeakyRelu" => x.f_where_self(&x.f_ge(0.0)?, &x.f_mul_scalar(parameter(0, 0.01))?)?,
        "Clip" => x.f_clamp(parameter(0, f64::NEG_INFINITY), parameter(1, f64::INFINITY))?,
        "HardSigmoid" => x.f_mul_scalar(parameter(0, 0.2))?.f_add_scalar(parameter(1, 0.5))?.f_clamp(0.0, 1.0)?,
        other => return fail(format!("attribute \"activation\" is {other:?}: no libtorch kernel for it")),
    })
}

fn simplified(call: &Call<'_>) -> Outputs {
    let x = wide(call.tensor(0)?)?;
    let along: Vec<i64> = (axis(call.int("axis", -1)?, x.dim())? as i64..x.dim() as i64).collect();
    let epsilon = call.float("epsilon", 1e-5)?;
    let inverse = x.f_mul(&x)?.f_mean_dim(&along[..], true, None)?.f_add_scalar(epsilon)?.f_rsqrt()?;
    let made = by_root_mean_square(&x, &along, epsilon)?.f_totype(call.kind()?)?.f_mul(call.tensor(1)?)?;
    Ok(vec![call.like(made)?, call.typed(inverse, crate::tensor::DType::F32)?])
}

/// The sum of two inputs and a bias, normalized; mean; inverse deviation; the sum.
fn skip(call: &Call<'_>, simplified: bool) -> Outputs {
    let bias_at = if simplified { 3 } else { 4 };
    let sum = call.tensor(0)?.f_add(call.tensor(1)?)?;
    let sum = call.maybe_tensor(bias_at).map_or_else(|| Ok(sum.shallow_clone()), |bias| sum.f_add(bias))?;
    let (x, last) = (wide(&sum)?, [sum.dim() as i64 - 1]);
    let epsilon = call.float("epsilon", if simplified { 1e-6 } else { 1e-12 })?;
    let (normal, mean, inverse) = match simplified {
        true => {
            let inverse = x.f_mul(&x)?.f_mean_dim(&last[..], true, None)?.f_add_scalar(epsilon)?.f_rsqrt()?;
            (x.f_mul(&inverse)?, inverse.f_zeros_like()?, inverse)
        }
        false => standardized(&x, &last, epsilon)?,
    };
    let made = normal.f_totype(call.kind()?)?.f_mul(call.tensor(2)?)?;
    let made = match call.maybe_tensor(3).filter(|_| !simplified) {
        Some(beta) => made.f_add(beta)?,
        None => made,
    };
    let float =
        |x: Tensor| -> Result<Value, Failure> { call.typed(x.f_totype(Kind::Float)?, crate::tensor::DType::F32) };
    Ok(vec![call.like(made)?, float(mean)?, float(inverse)?, call.like(sum)?])
}
