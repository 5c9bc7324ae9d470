//! What takes elements by index.

use tch::{Device, Kind, Tensor};

use crate::runtime::torch::call::{Call, Outputs, Table, axes, axis, counted};
use crate::runtime::torch::failure::{Failure, fail};
use crate::runtime::torch::value::in_order;
use crate::tensor::DType;

pub(super) const TABLE: Table = &[
    ("", "Compress", compress),
    ("", "Gather", gather),
    ("", "GatherElements", gather_elements),
    ("", "GatherND", gather_nd),
    ("", "NonZero", |call| {
        // A scalar is a vector of one.
        let x = call.tensor(0)?;
        let x = if x.dim() == 0 { x.f_reshape([1])? } else { x.shallow_clone() };
        call.one_typed(x.f_nonzero()?.f_transpose(0, 1)?, DType::I64)
    }),
    ("", "ReverseSequence", reverse_sequence),
    ("", "Slice", slice),
    ("", "TopK", top_k),
    ("", "Unique", unique),
];

/// Indices from 0, in int64. Errors: BadIndex for one outside of -size..size.
pub(super) fn from_zero(indices: &Tensor, size: i64) -> Result<Tensor, Failure> {
    let indices = indices.f_totype(Kind::Int64)?;
    if indices.numel() == 0 {
        return Ok(indices);
    }
    let ends = [indices.f_min()?.f_int64_value(&[])?, indices.f_max()?.f_int64_value(&[])?];
    if let Some(&index) = ends.iter().find(|&&index| index < -size || index >= size) {
        return Err(Failure::Index { index, size });
    }
    if ends[0] >= 0 { Ok(indices) } else { Ok(indices.f_remainder(size)?) }
}

fn gather(call: &Call<'_>) -> Outputs {
    let (x, dims) = (call.tensor(0)?, call.value(0)?.dims());
    let at = axis(call.int("axis", 0)?, dims.len())?;
    let indices = from_zero(call.tensor(1)?, dims[at])?;
    let taken = x.f_index_select(at as i64, &indices.f_reshape([-1])?)?;
    let shape: Vec<i64> =
        dims[..at].iter().copied().chain(indices.size()).chain(dims[at + 1..].iter().copied()).collect();
    call.one(taken.f_reshape(&shape)?)
}

fn gather_elements(call: &Call<'_>) -> Outputs {
    let (x, dims) = (call.tensor(0)?, call.value(0)?.dims());
    let at = axis(call.int("axis", 0)?, dims.len())?;
    let indices = from_zero(call.tensor(1)?, dims[at])?;
    call.one(x.f_gather(at as i64, &indices, false)?)
}

fn gather_nd(call: &Call<'_>) -> Outputs {
    let (x, dims) = (call.tensor(0)?, call.value(0)?.dims());
    let indices = call.tensor(1)?.f_totype(Kind::Int64)?;
    let index_dims = indices.size();
    let n_batch = call.int("batch_dims", 0)?.max(0) as usize;
    let Some((&depth, rest)) = index_dims.split_last() else { return fail("indices of rank 0") };
    let depth = depth as usize;
    if n_batch + depth > dims.len() || n_batch > rest.len() {
        return fail(format!("indices {index_dims:?} of {dims:?}, {n_batch} axes of batches"));
    }
    let batch: i64 = dims[..n_batch].iter().product();
    let inner = &dims[n_batch + depth..];
    let n_rows = rest[n_batch..].iter().product::<i64>();
    let flat = flat_index(&indices.f_reshape([batch * n_rows, depth as i64])?, &dims[n_batch..n_batch + depth])?;
    let places: i64 = dims[n_batch..n_batch + depth].iter().product();
    let of_batch = counted(batch, Kind::Int64)?.f_mul_scalar(places)?.f_unsqueeze(1)?;
    let flat = flat.f_reshape([batch, n_rows])?.f_add(&of_batch)?.f_reshape([-1])?;
    let rows = x.f_reshape([batch * places, inner.iter().product()])?;
    let shape: Vec<i64> = rest.iter().chain(inner).copied().collect();
    call.one(rows.f_index_select(0, &flat)?.f_reshape(&shape)?)
}

/// Row-major places of index tuples, [n, depth] to [n], in dimensions `dims`. Errors: BadIndex.
pub(super) fn flat_index(tuples: &Tensor, dims: &[i64]) -> Result<Tensor, Failure> {
    let n = tuples.size().first().copied().unwrap_or(0);
    let mut flat = Tensor::f_zeros([n], (Kind::Int64, Device::Cpu))?;
    for (at, &dim) in dims.iter().enumerate() {
        flat = flat.f_mul_scalar(dim)?.f_add(&from_zero(&tuples.f_select(1, at as i64)?, dim)?)?;
    }
    Ok(flat)
}

fn compress(call: &Call<'_>) -> Outputs {
    let x = call.tensor(0)?;
    let chosen = call.tensor(1)?.f_nonzero()?.f_reshape([-1])?;
    match call.maybe_int("axis")? {
        Some(at) => call.one(x.f_index_select(axis(at, x.dim())? as i64, &chosen)?),
        None => call.one(x.f_reshape([-1])?.f_index_select(0, &chosen)?),
    }
}

fn reverse_sequence(call: &Call<'_>) -> Outputs {
    let (x, dims) = (call.tensor(0)?, call.value(0)?.dims());
    let lengths = call.ints_of(1)?;
    let time = axis(call.int("time_axis", 0)?, dims.len())?;
    let batch = axis(call.int("batch_axis", 1)?, dims.len())?;
    if batch == time || lengths.len() as i64 != dims[batch] {
        return fail(format!("{} lengths for {dims:?}", lengths.len()));
    }
    let mut pieces = Vec::with_capacity(lengths.len());
    for (at, &length) in lengths.iter().enumerate() {
        let order: Vec<i64> = (0..dims[time]).map(|t| if t < length { length - 1 - t } else { t }).collect();
        let piece = x.f_narrow(batch as i64, at as i64, 1)?;
        pieces.push(piece.f_index_select(time as i64, &Tensor::f_from_slice(&order)?)?);
    }
    call.one(Tensor::f_cat(&pieces, batch as i64)?)
}

/// Starts, ends, axes and steps are inputs, or before opset 10 attributes.
fn slice(call: &Call<'_>) -> Outputs {
    let (mut x, dims) = (call.tensor(0)?.shallow_clone(), call.value(0)?.dims());
    let given = |at: usize, name: &str| match call.maybe_ints_of(at)? {
        Some(given) => Ok(Some(given)),
        None => call.ints(name),
    };
    let (Some(starts), Some(ends)) = (given(1, "starts")?, given(2, "ends")?) else { return fail("no starts or ends") };
    let along = match given(3, "axes")? {
        Some(along) => axes(&along, dims.len())?,
        None => (0..starts.len()).collect(),
    };
    let steps = call.maybe_ints_of(4)?.unwrap_or_else(|| vec![1; starts.len()]);
    if starts.len() != ends.len()
        || starts.len() != along.len()
        || starts.len() != steps.len()
        || starts.len() > dims.len()
    {
        return fail(format!("starts {starts:?}, ends {ends:?}, axes {along:?}, steps {steps:?}"));
    }
    for (n, &at) in along.iter().enumerate() {
        let (dim, step) = (dims[at], steps[n]);
        let wrapped = |i: i64| if i < 0 { i.saturating_add(dim) } else { i };
        let (start, end) = (wrapped(starts[n]), wrapped(ends[n]));
        x = match step {
            0 => return fail("a step of 0"),
            1.. => {
                let (start, end) = (start.clamp(0, dim), end.clamp(0, dim));
                x.f_slice(at as i64, start, end.max(start), step)?
            }
            _ => {
                let (start, end) = (start.clamp(-1, dim - 1), end.clamp(-1, dim - 1));
                let places =
                    std::iter::successors(Some(start), |&i| i.checked_add(step)).take_while(|&i| i > end && i >= 0);
                let places: Vec<i64> = places.collect();
                x.f_index_select(at as i64, &Tensor::f_from_slice(&places)?)?
            }
        };
    }
    call.one(x)
}

/// Of equal elements the one with the lower index comes first.
fn top_k(call: &Call<'_>) -> Outputs {
    let x = call.tensor(0)?;
    let k = match call.maybe(1) {
        Some(k) => k.to_ints()?.first().copied().unwrap_or(0),
        None => call.int("k", 0)?,
    };
    let at = axis(call.int("axis", -1)?, x.dim())? as i64;
    let size = x.size().get(at as usize).copied().unwrap_or(0);
    if k < 0 || k > size {
        return fail(format!("k is {k}, the axis has {size}"));
    }
    let (_, indices) = in_order(x, call.value(0)?.dtype)?.f_sort_stable(true, at, call.flag("largest", true)?)?;
    let indices = indices.f_narrow(at, 0, k)?;
    Ok(vec![call.like(x.f_gather(at, &indices, false)?)?, call.typed(indices, DType::I64)?])
}

/// Sorted, or in the order in which each comes first.
fn unique(call: &Call<'_>) -> Outputs {
    let x = call.tensor(0)?;
    let (x, at) = match call.maybe_int("axis")? {
        Some(given) => (x.shallow_clone(), axis(given, x.dim())? as i64),
        None => (x.f_reshape([-1])?, 0),
    };
    let size = x.size().get(at as usize).copied().unwrap_or(0);
    let dtype = call.value(0)?.dtype;
    let (values, inverse, counts) = in_order(&x, dtype)?.f_unique_dim(at, true, true, true)?;
    let values = in_order(&values, dtype)?;
    let n = counts.size().first().copied().unwrap_or(0);
    let places = counted(size, Kind::Int64)?;
    let first = Tensor::f_full([n], size, (Kind::Int64, Device::Cpu))?
        .f_internal_scatter_reduce(0, &inverse, &places, "amin", true)?;
    let (values, first, inverse, counts) = match call.flag("sorted", true)? {
        true => (values, first, inverse, counts),
        false => {
            let (_, order) = first.f_sort_stable(true, 0, false)?;
            let (_, rank) = order.f_sort_stable(true, 0, false)?;
            let by_order = |x: &Tensor, axis: i64| x.f_index_select(axis, &order);
            (by_order(&values, at)?, by_order(&first, 0)?, rank.f_index_select(0, &inverse)?, by_order(&counts, 0)?)
        }
    };
    let int = |x: Tensor| call.typed(x, DType::I64);
    Ok(vec![call.like(values)?, int(first)?, int(inverse)?, int(counts)?])
}
