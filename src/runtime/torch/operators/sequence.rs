//! Sequences of tensors.

use tch::{Device, Kind, Tensor};

use crate::runtime::torch::call::{Call, Outputs, Table, axis};
use crate::runtime::torch::failure::{Failure, fail};
use crate::runtime::torch::value::Value;
use crate::tensor::DType;

pub(super) const TABLE: Table = &[
    ("", "ConcatFromSequence", concat),
    ("", "SequenceAt", |call| {
        let parts = &call.value(0)?.parts;
        let at = place(call, 1, parts.len())?;
        Ok(vec![parts[at].clone()])
    }),
    ("", "SequenceConstruct", |call| {
        let parts = (0..call.n_inputs()).map(|at| call.value(at).cloned()).collect::<Result<_, _>>()?;
        Ok(vec![sequence(parts)?])
    }),
    ("", "SequenceEmpty", |_| Ok(vec![sequence(Vec::new())?])),
    ("", "SequenceErase", |call| {
        let mut parts = call.value(0)?.parts.clone();
        let at = if call.maybe(1).is_some() { place(call, 1, parts.len())? } else { parts.len().saturating_sub(1) };
        if at < parts.len() {
            parts.remove(at);
        }
        Ok(vec![sequence(parts)?])
    }),
    ("", "SequenceInsert", |call| {
        let mut parts = call.value(0)?.parts.clone();
        let at = if call.maybe(2).is_some() { place(call, 2, parts.len() + 1)? } else { parts.len() };
        parts.insert(at, call.value(1)?.clone());
        Ok(vec![sequence(parts)?])
    }),
    ("", "SequenceLength", |call| {
        let n = call.value(0)?.parts.len() as i64;
        call.one_typed(Tensor::f_scalar_tensor(n, (Kind::Int64, Device::Cpu))?, DType::I64)
    }),
    ("", "SplitToSequence", split),
];

fn sequence(parts: Vec<Value>) -> Result<Value, Failure> {
    let dtype = parts.first().map_or(DType::F32, |first| first.dtype);
    Ok(Value { tensor: Tensor::f_zeros([0_i64], (Kind::Float, Device::Cpu))?, dtype, parts })
}

/// The index in an input, from 0.
fn place(call: &Call<'_>, at: usize, size: usize) -> Result<usize, Failure> {
    let (index, size) = (call.int_of(at)?, size as i64);
    match index {
        0.. if index < size => Ok(index as usize),
        _ if index < 0 && index >= -size => Ok((index + size) as usize),
        _ => Err(Failure::Index { index, size }),
    }
}

fn split(call: &Call<'_>) -> Outputs {
    let (x, dims) = (call.tensor(0)?, call.value(0)?.dims());
    let at = axis(call.int("axis", 0)?, dims.len())?;
    let (mut sizes, mut keep) = (vec![1; dims[at] as usize], call.flag("keepdims", true)?);
    if let Some(asked) = call.maybe(1) {
        keep = true;
        let asked_sizes = asked.to_ints()?;
        sizes = match (asked.dims().is_empty(), asked_sizes.as_slice()) {
            (true, &[size]) if size > 0 => {
                (0..dims[at]).step_by(size as usize).map(|from| size.min(dims[at] - from)).collect()
            }
            (false, _) => asked_sizes,
            _ => return fail(format!("split of {asked_sizes:?}")),
        };
    }
    let pieces = x
        .f_split_with_sizes(&sizes, at as i64)?
        .into_iter()
        .map(|piece| call.like(if keep { piece } else { piece.f_squeeze_dim(at as i64)? }));
    Ok(vec![sequence(pieces.collect::<Result<_, _>>()?)?])
}

fn concat(call: &Call<'_>) -> Outputs {
    let value = call.value(0)?;
    let tensors: Vec<&Tensor> = value.parts.iter().map(|part| &part.tensor).collect();
    let Some(first) = tensors.first() else { return fail("a sequence without tensors") };
    let new = call.flag("new_axis", false)?;
    let at = axis(call.int("axis", 0)?, first.dim() + usize::from(new))? as i64;
    call.one_typed(if new { Tensor::f_stack(&tensors, at)? } else { Tensor::f_cat(&tensors, at)? }, value.dtype)
}
