//! Products.

use tch::{Kind, Tensor};

use crate::runtime::torch::call::{Call, Outputs, Table};
use crate::runtime::torch::failure::{Failure, fail};
use crate::tensor::DType;

pub(super) const TABLE: Table = &[
    ("", "Det", |call| call.unary(Tensor::f_linalg_det)),
    ("", "Einsum", |call| {
        let equation = call.text("equation", "")?;
        call.one(Tensor::f_einsum(equation, &call.tensors()?, None::<i64>)?)
    }),
    ("", "Gemm", gemm),
    ("", "MatMul", |call| call.binary(Tensor::f_matmul)),
    ("", "MatMulInteger", |call| {
        let (x, y) = (less_zero_point(call, 0, 2, -2)?, less_zero_point(call, 1, 3, -1)?);
        call.one_typed(x.f_matmul(&y)?, DType::I32)
    }),
];

/// alpha·A·B + beta·C.
pub(super) fn gemm(call: &Call<'_>) -> Outputs {
    call.one(gemm_of(call)?)
}

pub(super) fn gemm_of(call: &Call<'_>) -> Result<Tensor, Failure> {
    let oriented = |at: usize, name: &str| -> Result<Tensor, Failure> {
        let x = call.tensor(at)?;
        if x.dim() != 2 {
            return fail(format!("input {at} has rank {}: expected a matrix", x.dim()));
        }
        Ok(if call.flag(name, false)? { x.f_transpose(0, 1)? } else { x.shallow_clone() })
    };
    let (alpha, beta) = (call.float("alpha", 1.0)?, call.float("beta", 1.0)?);
    let (a, b) = (oriented(0, "transA")?, oriented(1, "transB")?);
    // Times 0 it is not read, as BLAS has it: no number in C leaves the result alone.
    let c = call.maybe_tensor(2).filter(|_| beta != 0.0);
    // In half precision the kernel of both rounds once, as eager's linear layers do.
    if let (Some(c), true) = (c, alpha == 1.0 && beta == 1.0) {
        return Ok(c.f_addmm(&a, &b)?);
    }
    let product = scaled(&a.f_matmul(&b)?, alpha)?;
    match c {
        None => Ok(product),
        Some(c) => Ok(product.f_add(&scaled(c, beta)?)?),
    }
}

/// x·factor, in x's type.
pub(super) fn scaled(x: &Tensor, factor: f64) -> Result<Tensor, Failure> {
    if factor == 1.0 {
        return Ok(x.shallow_clone());
    }
    let kind = x.f_kind()?;
    Ok(x.f_mul_scalar(factor)?.f_totype(kind)?)
}

/// An integer input in int32 without its zero point, which stands along `axis` where it is one a row or column.
pub(super) fn less_zero_point(call: &Call<'_>, at: usize, zero: usize, axis: i64) -> Result<Tensor, Failure> {
    let x = call.tensor(at)?.f_totype(Kind::Int)?;
    let Some(zero) = call.maybe_tensor(zero) else { return Ok(x) };
    let zero = zero.f_totype(Kind::Int)?;
    let zero = if zero.dim() == 1 && zero.numel() > 1 && axis == -2 { zero.f_unsqueeze(-1)? } else { zero };
    Ok(x.f_sub(&zero)?)
}
