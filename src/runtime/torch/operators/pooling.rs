//! Pools.

use tch::{Device, Kind, Tensor};

use super::windows::{Windows, spatial_axes};
use crate::runtime::torch::call::{Call, Outputs, Table, counted};
use crate::runtime::torch::failure::{Failure, fail};
use crate::tensor::DType;

pub(super) const TABLE: Table = &[
    ("", "AveragePool", average_pool),
    ("", "GlobalAveragePool", |call| global(call, |x, axes| x.f_mean_dim(axes, true, None))),
    ("", "GlobalMaxPool", |call| global(call, |x, axes| x.f_amax(axes, true))),
    ("", "LpPool", lp_pool),
    ("", "MaxPool", max_pool),
    ("", "MaxUnpool", max_unpool),
];

fn global(call: &Call<'_>, function: impl Fn(&Tensor, &[i64]) -> Result<Tensor, tch::TchError>) -> Outputs {
    let axes = spatial_axes(call)?;
    call.unary(|x| function(x, &axes))
}

fn windows(call: &Call<'_>) -> Result<(Windows, Vec<i64>), Failure> {
    let (dims, _) = (call.value(0)?.dims(), spatial_axes(call)?);
    let Some(kernel) = call.ints("kernel_shape")? else { return fail("attribute \"kernel_shape\" is left out") };
    Ok((Windows::new(call, &dims[2..], kernel)?, dims))
}

/// What is below every element of a type.
fn lowest(kind: Kind) -> Result<Tensor, Failure> {
    let lowest = match kind {
        Kind::Uint8 | Kind::Bool => 0,
        Kind::Int8 => i64::from(i8::MIN),
        Kind::Int16 => i64::from(i16::MIN),
        Kind::Int => i64::from(i32::MIN),
        Kind::Int64 => i64::MIN,
        _ => return Ok(Tensor::f_scalar_tensor(f64::NEG_INFINITY, (Kind::Double, Device::Cpu))?),
    };
    Ok(Tensor::f_scalar_tensor(lowest, (Kind::Int64, Device::Cpu))?)
}

fn max_pool(call: &Call<'_>) -> Outputs {
    let (windows, dims) = windows(call)?;
    let x = call.tensor(0)?;
    let elements = windows.elements(x, &lowest(x.f_kind()?)?)?;
    let (largest, which) = elements.f_max_dim(-1, false)?;
    if !call.gives(1) {
        return call.one(largest);
    }
    let spatial = &dims[2..];
    let places = windows.flat_places(spatial)?;
    let places = match call.int("storage_order", 0)? {
        0 => places,
        _ => column_major(&places, spatial)?,
    };
    let mut shape = dims[..2].to_vec();
    shape.extend(places.size());
    let places = places.f_unsqueeze(0)?.f_unsqueeze(0)?.f_expand(&shape, false)?;
    let there = places.f_gather(-1, &which.f_unsqueeze(-1)?, false)?.f_squeeze_dim(-1)?;
    // Counted through all planes.
    let planes = counted(dims[0] * dims[1], Kind::Int64)?;
    let mut along = vec![dims[0], dims[1]];
    along.extend(spatial.iter().map(|_| 1));
    let before = planes.f_mul_scalar(spatial.iter().product::<i64>())?.f_reshape(&along)?;
    Ok(vec![call.like(largest)?, call.typed(there.f_add(&before)?, DType::I64)?])
}

/// Places counted with the first spatial axis fastest.
fn column_major(places: &Tensor, dims: &[i64]) -> Result<Tensor, Failure> {
    let (mut left, mut stride) = (places.shallow_clone(), dims.iter().product::<i64>());
    let mut made = places.f_zeros_like()?;
    for &dim in dims.iter().rev() {
        stride /= dim.max(1);
        made = made.f_add(&left.f_remainder(dim)?.f_mul_scalar(stride)?)?;
        left = left.f_floor_divide_scalar(dim)?;
    }
    Ok(made)
}

fn average_pool(call: &Call<'_>) -> Outputs {
    let (windows, dims) = windows(call)?;
    let zero = Tensor::f_scalar_tensor(0.0, (Kind::Double, Device::Cpu))?;
    let sums = windows.elements(call.tensor(0)?, &zero)?.f_sum_dim_intlist(&[-1_i64][..], false, call.kind()?)?;
    let inside = match call.flag("count_include_pad", false)? {
        // What lies beyond the padding, in a window of ceil_mode, does not count.
        true => {
            let within =
                (0..dims.len() - 2).map(|at| {
                    let (begin, end) = windows.pads[at];
                    let counts = windows.places(at).into_iter().map(|i| (-begin..dims[at + 2] + end).contains(&i));
                    let within: Vec<bool> = counts.collect();
                    Tensor::f_from_slice(&within)?
                        .f_reshape([windows.counts[at], windows.kernel[at]])?
                        .f_sum_dim_intlist(&[1_i64][..], false, Kind::Double)
                });
            product(within.collect::<Result<Vec<_>, _>>()?)?
        }
        false => windows.flat_places(&dims[2..])?.f_ge(0)?.f_sum_dim_intlist(&[-1_i64][..], false, Kind::Double)?,
    };
    call.one(sums.f_div(&inside.f_totype(sums.f_kind()?)?)?)
}

/// Of one vector an axis: their outer product.
fn product(vectors: Vec<Tensor>) -> Result<Tensor, Failure> {
    let rank = vectors.len();
    let mut made = Tensor::f_scalar_tensor(1.0, (Kind::Double, Device::Cpu))?;
    for (at, vector) in vectors.into_iter().enumerate() {
        let mut shape = vec![1; rank];
        shape[at] = -1;
        made = made.f_mul(&vector.f_reshape(&shape)?)?;
    }
    Ok(made)
}

fn lp_pool(call: &Call<'_>) -> Outputs {
    let (windows, _) = windows(call)?;
    let p = call.int("p", 2)? as f64;
    let zero = Tensor::f_scalar_tensor(0.0, (Kind::Double, Device::Cpu))?;
    let powers = windows.elements(call.tensor(0)?, &zero)?.f_abs()?.f_pow_tensor_scalar(p)?;
    call.one(powers.f_sum_dim_intlist(&[-1_i64][..], false, call.kind()?)?.f_pow_tensor_scalar(1.0 / p)?)
}

fn max_unpool(call: &Call<'_>) -> Outputs {
    let (x, dims) = (call.tensor(0)?, call.value(0)?.dims());
    let Some(kernel) = call.ints("kernel_shape")? else { return fail("attribute \"kernel_shape\" is left out") };
    let rank = kernel.len();
    let strides = call.ints("strides")?.unwrap_or_else(|| vec![1; rank]);
    let pads = call.ints("pads")?.unwrap_or_else(|| vec![0; 2 * rank]);
    if dims.len() != rank + 2 || strides.len() != rank || pads.len() != 2 * rank {
        return fail(format!("kernel {kernel:?}, strides {strides:?}, pads {pads:?} of {dims:?}"));
    }
    let size = |at: usize| (dims[at + 2] - 1) * strides[at] + kernel[at] - pads[at] - pads[rank + at];
    let whole: Vec<i64> = dims[..2].iter().copied().chain((0..rank).map(size)).collect();
    let asked = call.maybe_ints_of(2)?.unwrap_or_else(|| whole.clone());
    let flat = Tensor::f_zeros([whole.iter().product::<i64>()], (x.f_kind()?, Device::Cpu))?;
    let made = flat.f_scatter(0, &call.tensor(1)?.f_reshape([-1])?, &x.f_reshape([-1])?)?.f_reshape(&whole)?;
    let more: Vec<(i64, i64)> = whole.iter().zip(&asked).map(|(whole, asked)| (0, asked - whole)).collect();
    call.one(super::shape::padded(&made, &more, &Tensor::f_scalar_tensor(0.0, (Kind::Double, Device::Cpu))?)?)
}
