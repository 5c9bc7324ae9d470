//! ONNX's attention, and rotary embedding.

use tch::{Device, Kind, Tensor};

use super::normalization::wide;
use crate::runtime::torch::call::{Call, Outputs, Table, counted};
use crate::runtime::torch::failure::{Failure, fail};
use crate::tensor::DType;

pub(super) const TABLE: Table = &[("", "Attention", attention), ("", "RotaryEmbedding", rotary)];

/// [batch, heads, length, size] of either rank.
fn by_heads(x: &Tensor, heads: i64) -> Result<Tensor, Failure> {
    match x.size().as_slice() {
        [_, _, _, _] => Ok(x.shallow_clone()),
        &[batch, length, hidden] if heads > 0 => {
            Ok(x.f_reshape([batch, length, heads, hidden / heads])?.f_permute([0, 2, 1, 3])?)
        }
        other => fail(format!("{other:?} with {heads} heads: expected rank 4, or rank 3 and a number of heads")),
    }
}

fn number(value: f64) -> Result<Tensor, Failure> {
    Ok(Tensor::f_scalar_tensor(value, (Kind::Double, Device::Cpu))?)
}

/// 0 where it is allowed, −∞ elsewhere.
fn bias(allowed: &Tensor, kind: Kind) -> Result<Tensor, Failure> {
    let zero = number(0.0)?;
    Ok(zero.f_where_self(allowed, &number(f64::NEG_INFINITY)?)?.f_totype(kind)?)
}

fn attention(call: &Call<'_>) -> Outputs {
    let (q_heads, kv_heads) = (call.int("q_num_heads", 0)?, call.int("kv_num_heads", 0)?);
    let is_flat = call.tensor(0)?.dim() == 3;
    let q = by_heads(call.tensor(0)?, q_heads)?;
    let (mut k, mut v) = (by_heads(call.tensor(1)?, kv_heads)?, by_heads(call.tensor(2)?, kv_heads)?);
    let mut past = 0;
    if let (Some(past_k), Some(past_v)) = (call.maybe_tensor(4), call.maybe_tensor(5)) {
        past = past_k.size().get(2).copied().unwrap_or(0);
        (k, v) = (Tensor::f_cat(&[past_k, &k], 2)?, Tensor::f_cat(&[past_v, &v], 2)?);
    }
    let present = (k.shallow_clone(), v.shallow_clone());
    let kind = q.f_kind()?;
    let (q_dims, k_dims) = (q.size(), k.size());
    let bias = masks(call, kind, &q_dims, k_dims[2], past)?;
    if q_dims[1] != k_dims[1] && k_dims[1] > 0 {
        let each = q_dims[1] / k_dims[1];
        (k, v) = (k.f_repeat_interleave_self_int(each, 1, None)?, v.f_repeat_interleave_self_int(each, 1, None)?);
    }
    let scale = call.maybe_float("scale")?.unwrap_or_else(|| 1.0 / (q_dims[3] as f64).sqrt()).sqrt();
    // Of the inputs' type, as in the operator's definition.
    let scale = number(scale)?.f_totype(kind)?;
    let mut scores = q.f_mul(&scale)?.f_matmul(&k.f_transpose(2, 3)?.f_mul(&scale)?)?;
    let cap = call.float("softcap", 0.0)?;
    if cap > 0.0 {
        scores = scores.f_div_scalar(cap)?.f_tanh()?.f_mul_scalar(cap)?;
    }
    let biased = match &bias {
        Some(bias) => scores.f_add(bias)?,
        None => scores.shallow_clone(),
    };
    let softmax_kind = call.dtype("softmax_precision")?.map(|dtype| call.precision.kind(dtype));
    let wide = softmax_kind.map_or_else(|| wide(&biased), |kind| Ok(biased.f_totype(kind)?))?;
    let mut shares = wide.f_softmax(-1, None)?;
    if let Some(bias) = &bias {
        // A query that sees no key takes nothing of any.
        let unseen = bias.f_isneginf()?.f_all_dim(-1, true)?;
        shares = shares.f_masked_fill(&unseen, 0.0)?;
    }
    let shares = shares.f_totype(kind)?;
    let made = shares.f_matmul(&v)?;
    let shown = match call.int("qk_matmul_output_mode", 0)? {
        2 => biased,
        3 => shares,
        _ => scores,
    };
    let made = match is_flat {
        true => made.f_permute([0, 2, 1, 3])?.f_reshape([q_dims[0], q_dims[2], -1])?,
        false => made,
    };
    let (present_k, present_v) = present;
    Ok(vec![call.like(made)?, call.like(present_k)?, call.like(present_v)?, call.like(shown)?])
}

/// What is added to the scores; None where every query sees every key.
fn masks(call: &Call<'_>, kind: Kind, q_dims: &[i64], n_keys: i64, past: i64) -> Result<Option<Tensor>, Failure> {
    let n_queries = q_dims[2];
    let lengths = call.maybe_tensor(6).map(|lengths| lengths.f_totype(Kind::Int64)?.f_reshape([-1, 1, 1, 1]));
    let lengths = lengths.transpose()?;
    let mut all: Vec<Tensor> = Vec::new();
    if let Some(mask) = call.maybe(3) {
        let is_bool = mask.dtype == DType::Bool;
        let mask = if is_bool { bias(&mask.tensor, kind)? } else { mask.tensor.shallow_clone() };
        let missing = n_keys - mask.size().last().copied().unwrap_or(n_keys);
        let mut pads = vec![(0, 0); mask.dim()];
        if let Some(last) = pads.last_mut() {
            last.1 = missing.max(0);
        }
        all.push(super::shape::padded(&mask, &pads, &number(f64::NEG_INFINITY)?)?);
    }
    let along = |n: i64| counted(n, Kind::Int64);
    let (queries, keys) = (along(n_queries)?.f_unsqueeze(1)?, along(n_keys)?.f_unsqueeze(0)?);
    // Of the first query: how many keys are before it.
    let places = match &lengths {
        Some(lengths) => queries.f_add(&lengths.f_sub_scalar(n_queries)?)?,
        None => queries.f_add_scalar(past)?,
    };
    if call.flag("is_causal", false)? {
        all.push(bias(&keys.f_le_tensor(&places)?, kind)?);
    }
    let (left, right) = (call.int("left_window_size", -1)?, call.int("right_window_size", -1)?);
    if left >= 0 {
        all.push(bias(&places.f_sub_scalar(left)?.f_le_tensor(&keys)?, kind)?);
    }
    if right >= 0 {
        all.push(bias(&keys.f_le_tensor(&places.f_add_scalar(right)?)?, kind)?);
    }
    if let Some(lengths) = &lengths {
        all.push(bias(&keys.f_lt_tensor(lengths)?, kind)?);
    }
    let mut all = all.into_iter();
    let Some(first) = all.next() else { return Ok(None) };
    let sum = all.try_fold(first, |sum, one| sum.f_add(&one))?;
    let rows = Tensor::f_zeros([n_queries, n_keys], (kind, Device::Cpu))?;
    Ok(Some(sum.f_add(&rows)?))
}

/// Pairs of elements turned by angles, whose cosines and sines stand by position.
fn rotary(call: &Call<'_>) -> Outputs {
    let (x, dims) = (call.tensor(0)?, call.value(0)?.dims());
    let by_head = by_heads(x, call.int("num_heads", 0)?)?.f_permute([0, 2, 1, 3])?;
    let size = by_head.size()[3];
    let turned = match call.int("rotary_embedding_dim", 0)? {
        0 => size,
        some => some.clamp(0, size),
    };
    let (rotating, rest) = (by_head.f_narrow(3, 0, turned)?, by_head.f_narrow(3, turned, size - turned)?);
    let angles = |at: usize| -> Result<Tensor, Failure> {
        let cache = call.tensor(at)?;
        let Some(positions) = call.maybe_tensor(3) else { return Ok(cache.f_unsqueeze(2)?) };
        let rows = cache.f_index_select(0, &positions.f_totype(Kind::Int64)?.f_reshape([-1])?)?;
        let mut shape = positions.size();
        shape.push(cache.size().last().copied().unwrap_or(0));
        Ok(rows.f_reshape(&shape)?.f_unsqueeze(2)?)
    };
    let (cos, sin) = (angles(1)?, angles(2)?);
    let interleaved = call.flag("interleaved", false)?;
    let half = turned / 2;
    let (a, b) = match interleaved {
        true => (rotating.f_slice(3, 0, turned, 2)?, rotating.f_slice(3, 1, turned, 2)?),
        false => (rotating.f_narrow(3, 0, half)?, rotating.f_narrow(3, half, half)?),
    };
    let real = cos.f_mul(&a)?.f_sub(&sin.f_mul(&b)?)?;
    let imaginary = sin.f_mul(&a)?.f_add(&cos.f_mul(&b)?)?;
    let made = match interleaved {
        true => Tensor::f_stack(&[real, imaginary], 4)?.f_reshape(rotating.size())?,
        false => Tensor::f_cat(&[real, imaginary], 3)?,
    };
    let made = Tensor::f_cat(&[made, rest], 3)?;
    call.one(if dims.len() == 3 { made.f_reshape(&dims)? } else { made.f_permute([0, 2, 1, 3])? })
}
