//! Convolutions.

use tch::{Device, Kind, Tensor};

use super::shape::padded;
use super::windows::Windows;
use crate::runtime::torch::call::{Call, Outputs, Table};
use crate::runtime::torch::failure::{Failure, fail};
use crate::tensor::DType;

pub(super) const TABLE: Table = &[
    ("", "Col2Im", col2im),
    ("", "Conv", |call| call.one(conv(call, call.tensor(0)?, call.tensor(1)?, call.maybe_tensor(2))?)),
    ("", "ConvInteger", conv_integer),
    ("", "ConvTranspose", conv_transpose),
];

fn zero() -> Result<Tensor, Failure> {
    Ok(Tensor::f_scalar_tensor(0.0, (Kind::Double, Device::Cpu))?)
}

/// Conv's result, with the call's attributes.
pub(super) fn conv(call: &Call<'_>, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, Failure> {
    let (dims, weight_dims) = (x.size(), weight.size());
    if dims.len() < 3 || weight_dims.len() != dims.len() {
        return fail(format!("weight {weight_dims:?} over {dims:?}"));
    }
    let windows = Windows::new(call, &dims[2..], weight_dims[2..].to_vec())?;
    let rank = dims.len() - 2;
    let is_even = windows.pads.iter().all(|&(begin, end)| begin == end && begin >= 0);
    let (x, padding) = if is_even {
        (x.shallow_clone(), windows.pads.iter().map(|&(begin, _)| begin).collect())
    } else {
        let mut pads = vec![(0, 0), (0, 0)];
        pads.extend(&windows.pads);
        (padded(x, &pads, &zero()?)?, vec![0; rank])
    };
    let (stride, dilation, none) = (&windows.strides, &windows.dilations, vec![0; rank]);
    Ok(x.f_convolution(weight, bias, stride, &padding, dilation, false, &none, call.int("group", 1)?)?)
}

fn conv_integer(call: &Call<'_>) -> Outputs {
    let less = |at: usize, zero: usize| -> Result<Tensor, Failure> {
        let x = call.tensor(at)?.f_totype(Kind::Double)?;
        let Some(zero) = call.maybe_tensor(zero) else { return Ok(x) };
        let zero = zero.f_totype(Kind::Double)?;
        if zero.numel() == 1 {
            return Ok(x.f_sub(&zero.f_reshape([0_i64; 0])?)?);
        }
        let along: Vec<i64> = (0..x.dim()).map(|at| if at == 0 { -1 } else { 1 }).collect();
        Ok(x.f_sub(&zero.f_reshape(&along)?)?)
    };
    // Products of 8-bit numbers and their sums are exact in float64.
    call.one_typed(conv(call, &less(0, 2)?, &less(1, 3)?, None)?, DType::I32)
}

fn conv_transpose(call: &Call<'_>) -> Outputs {
    let (x, weight) = (call.tensor(0)?, call.tensor(1)?);
    let (dims, weight_dims) = (x.size(), weight.size());
    if dims.len() < 3 || weight_dims.len() != dims.len() {
        return fail(format!("weight {weight_dims:?} over {dims:?}"));
    }
    let rank = dims.len() - 2;
    let ones = || vec![1; rank];
    let (strides, dilations) =
        (call.ints("strides")?.unwrap_or_else(ones), call.ints("dilations")?.unwrap_or_else(ones));
    let more = call.ints("output_padding")?.unwrap_or_else(|| vec![0; rank]);
    let given = call.ints("pads")?.unwrap_or_else(|| vec![0; 2 * rank]);
    let auto = call.text("auto_pad", "NOTSET")?;
    let asked = call.ints("output_shape")?;
    if strides.len() != rank || dilations.len() != rank || more.len() != rank || given.len() != 2 * rank {
        return fail(format!("strides {strides:?}, dilations {dilations:?}, pads {given:?} on {rank} axes"));
    }
    let none = vec![0; rank];
    let whole =
        x.f_convolution(weight, None::<&Tensor>, &strides, &none, &dilations, true, &none, call.int("group", 1)?)?;
    let mut pads = vec![(0, 0), (0, 0)];
    for at in 0..rank {
        let full = (dims[at + 2] - 1) * strides[at] + dilations[at] * (weight_dims[at + 2] - 1) + 1 + more[at];
        let target = match &asked {
            Some(asked) => asked.get(asked.len() - rank + at).copied(),
            None if auto.starts_with("SAME") => Some(dims[at + 2] * strides[at]),
            None => None,
        };
        let (begin, end) = match target {
            None => (given[at], given[rank + at]),
            Some(target) => {
                let total = full - target;
                if total < 0 {
                    (0, total)
                } else if auto == "SAME_UPPER" {
                    (total / 2, total - total / 2)
                } else {
                    (total - total / 2, total / 2)
                }
            }
        };
        // What the kernel gives lacks output_padding; pads cut it.
        pads.push((-begin, more[at] - end));
    }
    let made = padded(&whole, &pads, &zero()?)?;
    match call.maybe_tensor(2) {
        None => call.one(made),
        Some(bias) => {
            let mut along = vec![1; dims.len()];
            along[1] = -1;
            call.one(made.f_add(&bias.f_reshape(&along)?)?)
        }
    }
}

/// Columns of blocks, added up where they overlap.
fn col2im(call: &Call<'_>) -> Outputs {
    let (x, dims) = (call.tensor(0)?, call.value(0)?.dims());
    let (image, block) = (call.ints_of(1)?, call.ints_of(2)?);
    let windows = Windows::new(call, &image, block)?;
    let n_block: i64 = windows.kernel.iter().product();
    let &[batch, columns, _] = dims.as_slice() else { return fail(format!("{dims:?}: expected rank 3")) };
    let (channels, n_image) = (columns / n_block.max(1), image.iter().product::<i64>());
    // [windows, block] to [block, windows], as the columns are; what is outside goes to a place of its own.
    let places = windows.flat_places(&image)?.f_reshape([-1, n_block])?.f_transpose(0, 1)?.f_reshape([-1])?;
    let outside = Tensor::f_scalar_tensor(n_image, (Kind::Int64, Device::Cpu))?;
    let places = outside.f_where_self(&places.f_lt(0)?, &places)?;
    let sums = Tensor::f_zeros([batch, channels, n_image + 1], (x.f_kind()?, Device::Cpu))?;
    let sums = sums.f_index_add(2, &places, &x.f_reshape([batch, channels, -1])?)?.f_narrow(2, 0, n_image)?;
    let mut shape = vec![batch, channels];
    shape.extend(&image);
    call.one(sums.f_reshape(&shape)?)
}
