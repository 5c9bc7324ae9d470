//! To integers with a scale, and back.

use tch::{Kind, Tensor};

use crate::runtime::torch::call::{Call, Outputs, Table, axis};
use crate::runtime::torch::failure::{Failure, fail};
use crate::tensor::DType;

pub(super) const TABLE: Table =
    &[("", "DequantizeLinear", dequantize), ("", "DynamicQuantizeLinear", dynamic), ("", "QuantizeLinear", quantize)];

/// What quotients and products are computed in, whatever the types: float32, or float64 in its place.
fn wide(call: &Call<'_>) -> Kind {
    call.precision.kind(DType::F32)
}

/// A scale, or zero point, against the tensor: one for all, one for each along an axis, or one for each block of it.
fn along(call: &Call<'_>, at: usize) -> Result<Tensor, Failure> {
    let (dims, x) = (call.value(0)?.dims(), call.tensor(at)?.f_totype(wide(call))?);
    if x.numel() == 1 && x.dim() <= 1 {
        return Ok(x.f_reshape([0_i64; 0])?);
    }
    let axis = axis(call.int("axis", 1)?, dims.len())?;
    let block = call.int("block_size", 0)?;
    if block > 0 {
        let whole = x.f_repeat_interleave_self_int(block, axis as i64, None)?;
        return Ok(whole.f_narrow(axis as i64, 0, dims[axis])?);
    }
    let mut shape = vec![1; dims.len()];
    shape[axis] = -1;
    Ok(x.f_reshape(&shape)?)
}

fn dequantize(call: &Call<'_>) -> Outputs {
    let x = call.tensor(0)?.f_totype(wide(call))?;
    let x = if call.maybe(2).is_some() { x.f_sub(&along(call, 2)?)? } else { x };
    call.one_typed(x.f_mul(&along(call, 1)?)?, call.value(1)?.dtype)
}

fn bounds(dtype: DType) -> Result<(f64, f64), Failure> {
    Ok(match dtype {
        DType::U8 => (0.0, 255.0),
        DType::I8 => (-128.0, 127.0),
        DType::U16 => (0.0, 65535.0),
        DType::I16 => (-32768.0, 32767.0),
        DType::F8E4M3FN => (-448.0, 448.0),
        DType::F8E4M3FNUZ => (-240.0, 240.0),
        DType::F8E5M2 | DType::F8E5M2FNUZ => (-57344.0, 57344.0),
        other => return fail(format!("no quantization to {other}")),
    })
}

fn quantize(call: &Call<'_>) -> Outputs {
    let x = call.tensor(0)?.f_totype(wide(call))?;
    let dtype = match call.maybe(2) {
        Some(zero) => zero.dtype,
        None => call.dtype("output_dtype")?.unwrap_or(DType::U8),
    };
    let (low, high) = bounds(dtype)?;
    let steps = x.f_div(&along(call, 1)?)?;
    let is_whole = !matches!(dtype, DType::F8E4M3FN | DType::F8E4M3FNUZ | DType::F8E5M2 | DType::F8E5M2FNUZ);
    let steps = if is_whole { steps.f_round()? } else { steps };
    let moved = if call.maybe(2).is_some() { steps.f_add(&along(call, 2)?)? } else { steps };
    call.one_typed(moved.f_clamp(low, high)?, dtype)
}

fn dynamic(call: &Call<'_>) -> Outputs {
    let x = call.tensor(0)?;
    let (low, high) = (x.f_min()?.f_clamp_max(0.0)?, x.f_max()?.f_clamp_min(0.0)?);
    // Of zeros alone ONNX Runtime's is 1.
    let scale = high.f_sub(&low)?.f_div_scalar(255.0)?.f_masked_fill(&high.f_eq_tensor(&low)?, 1.0)?;
    let zero = low.f_neg()?.f_div(&scale)?.f_round()?.f_clamp(0.0, 255.0)?;
    let made = x.f_div(&scale)?.f_round()?.f_add(&zero)?.f_clamp(0.0, 255.0)?;
    Ok(vec![call.typed(made, DType::U8)?, call.like(scale)?, call.typed(zero, DType::U8)?])
}
