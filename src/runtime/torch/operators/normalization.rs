//! Normalizations.

use tch::{Kind, Tensor};

use super::windows::spatial_axes;
use crate::runtime::torch::call::{Call, Outputs, Table, axes, axis};
use crate::runtime::torch::failure::{Failure, fail};
use crate::runtime::torch::value::Value;
use crate::tensor::DType;

pub(super) const TABLE: Table = &[
    ("", "BatchNormalization", batch),
    ("", "GroupNormalization", group),
    ("", "InstanceNormalization", instance),
    ("", "LRN", lrn),
    ("", "LayerNormalization", layer),
    ("", "LpNormalization", |call| {
        let (at, p) = (axis(call.int("axis", -1)?, call.tensor(0)?.dim())? as i64, call.int("p", 2)?);
        call.unary(|x| {
            let norm = match p {
                1 => x.f_abs()?.f_sum_dim_intlist(&[at][..], true, None)?,
                _ => x.f_mul(x)?.f_sum_dim_intlist(&[at][..], true, None)?.f_sqrt()?,
            };
            // Of zeros it gives zeros.
            let zero = x.f_zeros_like()?;
            x.f_div(&norm)?.f_where_self(&norm.f_ne(0.0)?, &zero)
        })
    }),
    ("", "MeanVarianceNormalization", |call| {
        let along = call.ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
        let along: Vec<i64> = axes(&along, call.tensor(0)?.dim())?.into_iter().map(|at| at as i64).collect();
        call.unary(|x| {
            let centered = x.f_sub(&x.f_mean_dim(&along[..], true, None)?)?;
            let deviation = centered.f_mul(&centered)?.f_mean_dim(&along[..], true, None)?.f_sqrt()?;
            centered.f_div(&deviation.f_add_scalar(1e-9)?)
        })
    }),
    ("", "RMSNormalization", rms),
];

/// Float32, or what is wider: in which means and variances of half precision are computed.
pub(super) fn wide(x: &Tensor) -> Result<Tensor, Failure> {
    Ok(match x.f_kind()? {
        Kind::Half | Kind::BFloat16 => x.f_totype(Kind::Float)?,
        _ => x.shallow_clone(),
    })
}

/// (x − mean) / √(variance + epsilon) over axes; mean; 1 / √(variance + epsilon). In x's type.
pub(super) fn standardized(x: &Tensor, axes: &[i64], epsilon: f64) -> Result<(Tensor, Tensor, Tensor), Failure> {
    let mean = x.f_mean_dim(axes, true, None)?;
    let centered = x.f_sub(&mean)?;
    let variance = centered.f_mul(&centered)?.f_mean_dim(axes, true, None)?;
    let inverse = variance.f_add_scalar(epsilon)?.f_rsqrt()?;
    Ok((centered.f_mul(&inverse)?, mean, inverse))
}

/// One vector along axis 1.
fn by_channel(x: &Tensor, rank: usize) -> Result<Tensor, Failure> {
    if rank < 2 {
        return fail(format!("a tensor of rank {rank} has no channels"));
    }
    let mut along = vec![1; rank];
    along[1] = -1;
    Ok(wide(x)?.f_reshape(&along)?)
}

fn batch(call: &Call<'_>) -> Outputs {
    let x = wide(call.tensor(0)?)?;
    let rank = x.dim();
    let (scale, bias) = (by_channel(call.tensor(1)?, rank)?, by_channel(call.tensor(2)?, rank)?);
    let (mean, variance) = (call.value(3)?, call.value(4)?);
    let epsilon = call.float("epsilon", 1e-5)?;
    let applied = |mean: &Tensor, variance: &Tensor| -> Result<Tensor, Failure> {
        let deviation = by_channel(variance, rank)?.f_add_scalar(epsilon)?.f_sqrt()?;
        Ok(x.f_sub(&by_channel(mean, rank)?)?.f_div(&deviation)?.f_mul(&scale)?.f_add(&bias)?)
    };
    if !call.flag("training_mode", false)? {
        return call.one(applied(&mean.tensor, &variance.tensor)?);
    }
    let momentum = call.float("momentum", 0.9)?;
    let along: Vec<i64> = (0..rank as i64).filter(|&at| at != 1).collect();
    let now_mean = x.f_mean_dim(&along[..], false, None)?;
    let centered = x.f_sub(&by_channel(&now_mean, rank)?)?;
    let now_variance = centered.f_mul(&centered)?.f_mean_dim(&along[..], false, None)?;
    let made = call.like(applied(&now_mean, &now_variance)?)?;
    let moved = |old: &Value, now: &Tensor| {
        let moved = wide(&old.tensor)?.f_mul_scalar(momentum)?.f_add(&now.f_mul_scalar(1.0 - momentum)?)?;
        call.typed(moved, old.dtype)
    };
    Ok(vec![made, moved(mean, &now_mean)?, moved(variance, &now_variance)?])
}

fn group(call: &Call<'_>) -> Outputs {
    let x = wide(call.tensor(0)?)?;
    let (dims, groups) = (x.size(), call.int("num_groups", 1)?);
    if dims.len() < 2 || groups < 1 || dims[1] % groups != 0 {
        return fail(format!("{groups} groups of the channels of {dims:?}"));
    }
    let apart = x.f_reshape([dims[0], groups, -1])?;
    let (normal, ..) = standardized(&apart, &[2], call.float("epsilon", 1e-5)?)?;
    let normal = normal.f_reshape(&dims)?;
    // Before opset 21 a scale is a group's.
    let spread = |x: &Tensor| -> Result<Tensor, Failure> {
        let of_group = x.numel() as i64 == groups && groups != dims[1];
        let each =
            if of_group { x.f_repeat_interleave_self_int(dims[1] / groups, 0, None)? } else { x.shallow_clone() };
        by_channel(&each, dims.len())
    };
    call.one(normal.f_mul(&spread(call.tensor(1)?)?)?.f_add(&spread(call.tensor(2)?)?)?)
}

fn instance(call: &Call<'_>) -> Outputs {
    let x = wide(call.tensor(0)?)?;
    let rank = x.dim();
    let (normal, ..) = standardized(&x, &spatial_axes(call)?, call.float("epsilon", 1e-5)?)?;
    call.one(normal.f_mul(&by_channel(call.tensor(1)?, rank)?)?.f_add(&by_channel(call.tensor(2)?, rank)?)?)
}

fn lrn(call: &Call<'_>) -> Outputs {
    let (x, dims) = (call.tensor(0)?, call.value(0)?.dims());
    let (alpha, beta, bias) = (call.float("alpha", 1e-4)?, call.float("beta", 0.75)?, call.float("bias", 1.0)?);
    let size = call.int("size", 1)?;
    if size < 1 || dims.len() < 2 {
        return fail(format!("sums of {size} channels of {dims:?}"));
    }
    let squares = x.f_mul(x)?;
    let channels = dims.get(1).copied().unwrap_or(0);
    let mut sums = Vec::with_capacity(channels as usize);
    for c in 0..channels {
        let (from, to) = ((c - (size - 1) / 2).max(0), (c + size - 1 - (size - 1) / 2).min(channels - 1));
        sums.push(squares.f_narrow(1, from, to - from + 1)?.f_sum_dim_intlist(&[1_i64][..], true, None)?);
    }
    let sums = Tensor::f_cat(&sums, 1)?;
    let factor = sums.f_mul_scalar(alpha / size as f64)?.f_add_scalar(bias)?.f_pow_tensor_scalar(beta)?;
    call.one(x.f_div(&factor)?)
}

/// The axes from the attribute `axis` on.
fn trailing(call: &Call<'_>) -> Result<Vec<i64>, Failure> {
    let rank = call.tensor(0)?.dim();
    Ok((axis(call.int("axis", -1)?, rank)? as i64..rank as i64).collect())
}

/// Computed in float32 where it is half precision, or in float64.
fn layer(call: &Call<'_>) -> Outputs {
    let x = call.tensor(0)?;
    let (normal, mean, inverse) = standardized(&wide(x)?, &trailing(call)?, call.float("epsilon", 1e-5)?)?;
    let made = scaled_and_moved(call, normal, call.maybe_tensor(1), call.maybe_tensor(2))?;
    let of_means = call.dtype("stash_type")?.unwrap_or(DType::F32);
    Ok(vec![made, call.typed(mean, of_means)?, call.typed(inverse, of_means)?])
}

/// Rounded to x's type before scale and bias, which are of that type, as ONNX lays it down.
fn scaled_and_moved(
    call: &Call<'_>,
    normal: Tensor,
    scale: Option<&Tensor>,
    bias: Option<&Tensor>,
) -> Result<Value, Failure> {
    let mut made = normal.f_totype(call.kind()?)?;
    if let Some(scale) = scale {
        made = made.f_mul(scale)?;
    }
    if let Some(bias) = bias {
        made = made.f_add(bias)?;
    }
    call.like(made)
}

fn rms(call: &Call<'_>) -> Outputs {
    let x = wide(call.tensor(0)?)?;
    let normal = by_root_mean_square(&x, &trailing(call)?, call.float("epsilon", 1e-5)?)?;
    let made = normal.f_totype(call.kind()?)?.f_mul(call.tensor(1)?)?;
    call.one_typed(made, call.value(1)?.dtype)
}

/// x / √(mean(x²) + epsilon).
pub(super) fn by_root_mean_square(x: &Tensor, axes: &[i64], epsilon: f64) -> Result<Tensor, Failure> {
    let mean = x.f_mul(x)?.f_mean_dim(axes, true, None)?;
    Ok(x.f_mul(&mean.f_add_scalar(epsilon)?.f_rsqrt()?)?)
}
