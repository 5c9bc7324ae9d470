//! What puts elements by index.

use tch::Tensor;

use super::index::{flat_index, from_zero};
use crate::runtime::torch::call::{Call, Outputs, Table, axis};
use crate::runtime::torch::failure::{Failure, fail};
use crate::runtime::torch::value::in_order;
use crate::tensor::DType;

pub(super) const TABLE: Table = &[
    ("", "Scatter", scatter_elements),
    ("", "ScatterElements", scatter_elements),
    ("", "ScatterND", scatter_nd),
    ("", "TensorScatter", tensor_scatter),
];

/// x with updates at indices along an axis; where several meet, the last stays, or all are reduced one after the other.
fn put(call: &Call<'_>, x: &Tensor, axis: i64, indices: &Tensor, updates: &Tensor) -> Result<Tensor, Failure> {
    let (reduction, dtype) = (call.text("reduction", "none")?, call.value(0)?.dtype);
    let extreme = |how: &str| {
        let (x, updates) = (in_order(x, dtype)?, in_order(updates, dtype)?);
        in_order(&x.f_internal_scatter_reduce(axis, indices, &updates, how, true)?, dtype)
    };
    Ok(match reduction {
        "none" => x.f_scatter(axis, indices, updates)?,
        "add" if dtype == DType::Bool => x.f_scatter(axis, indices, updates)?,
        "add" => x.f_scatter_add(axis, indices, updates)?,
        "mul" => x.f_internal_scatter_reduce(axis, indices, updates, "prod", true)?,
        "max" => extreme("amax")?,
        "min" => extreme("amin")?,
        other => return fail(format!("attribute \"reduction\" is {other:?}: expected none, add, mul, max or min")),
    })
}

fn scatter_elements(call: &Call<'_>) -> Outputs {
    let (x, dims) = (call.tensor(0)?, call.value(0)?.dims());
    let at = axis(call.int("axis", 0)?, dims.len())?;
    let indices = from_zero(call.tensor(1)?, dims[at])?;
    call.one(put(call, x, at as i64, &indices, call.tensor(2)?)?)
}

fn scatter_nd(call: &Call<'_>) -> Outputs {
    let (x, dims) = (call.tensor(0)?, call.value(0)?.dims());
    let (indices, updates) = (call.tensor(1)?, call.tensor(2)?);
    let index_dims = indices.size();
    let Some((&depth, rest)) = index_dims.split_last() else { return fail("indices of rank 0") };
    if depth as usize > dims.len() {
        return fail(format!("indices {index_dims:?} of {dims:?}"));
    }
    let (outer, inner) = dims.split_at(depth as usize);
    let (places, n, len) = (outer.iter().product::<i64>(), rest.iter().product::<i64>(), inner.iter().product::<i64>());
    let expected: Vec<i64> = rest.iter().chain(inner).copied().collect();
    if updates.size() != expected {
        return fail(format!("updates tensor should have shape equal to {expected:?}, got {:?}", updates.size()));
    }
    let flat = flat_index(&indices.f_reshape([n, depth])?, outer)?.f_unsqueeze(1)?.f_expand([n, len], false)?;
    let made = put(call, &x.f_reshape([places, len])?, 0, &flat, &updates.f_reshape([n, len])?)?;
    call.one(made.f_reshape(&dims)?)
}

/// A cache with an update written along an axis from each batch's index on.
fn tensor_scatter(call: &Call<'_>) -> Outputs {
    let (x, dims) = (call.tensor(0)?, call.value(0)?.dims());
    let update = call.tensor(1)?;
    let at = axis(call.int("axis", -2)?, dims.len())?;
    let Some(&n) = update.size().get(at) else { return fail(format!("an update of {:?} to {dims:?}", update.size())) };
    let batches = dims.first().copied().unwrap_or(0);
    let starts = call.maybe_ints_of(2)?.unwrap_or_else(|| vec![0; batches as usize]);
    let circular = call.text("mode", "linear")? == "circular";
    let mut pieces = Vec::with_capacity(starts.len());
    for (batch, &start) in starts.iter().enumerate() {
        let place = |i: i64| if circular { (start + i).rem_euclid(dims[at]) } else { start + i };
        let places: Vec<i64> = (0..n).map(place).collect();
        let places = from_zero(&Tensor::f_from_slice(&places)?, dims[at])?;
        let (into, from) = (x.f_narrow(0, batch as i64, 1)?, update.f_narrow(0, batch as i64, 1)?);
        pieces.push(into.f_index_copy(at as i64, &places, &from)?);
    }
    call.one(Tensor::f_cat(&pieces, 0)?)
}
