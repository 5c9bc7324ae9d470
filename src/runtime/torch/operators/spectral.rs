//! Fourier transforms, and windows for them.

use tch::{Kind, Tensor};

use crate::runtime::torch::call::{Call, Outputs, Table, axis, counted};
use crate::runtime::torch::failure::fail;
use crate::runtime::torch::value::Value;
use crate::tensor::DType;

pub(super) const TABLE: Table = &[
    ("", "BlackmanWindow", |call| window(call, &[0.42, -0.5, 0.08])),
    ("", "DFT", transform),
    ("", "HammingWindow", |call| window(call, &[25.0 / 46.0, -21.0 / 46.0])),
    ("", "HannWindow", |call| window(call, &[0.5, -0.5])),
];

/// Σ coefficient · cos(2π·k·n / N), of N numbers, or where it is not periodic N − 1.
fn window(call: &Call<'_>, coefficients: &[f64]) -> Outputs {
    let size = call.int_of(0)?;
    let period = if call.flag("periodic", true)? { size } else { size - 1 };
    let places = counted(size, Kind::Double)?.f_mul_scalar(std::f64::consts::TAU / period as f64)?;
    let mut made = places.f_zeros_like()?;
    for (k, &coefficient) in coefficients.iter().enumerate() {
        made = made.f_add(&places.f_mul_scalar(k as f64)?.f_cos()?.f_mul_scalar(coefficient)?)?;
    }
    call.one_typed(made, call.dtype("output_datatype")?.unwrap_or(DType::F32))
}

/// Of real numbers [… , 1] or complex ones [… , 2]; the axis is an input since opset 20.
fn transform(call: &Call<'_>) -> Outputs {
    let (x, dims) = (call.tensor(0)?, call.value(0)?.dims());
    let given = match call.maybe(2).map(Value::to_ints).transpose()? {
        Some(given) => given.first().copied().unwrap_or(-2),
        None => call.int("axis", if call.opset < 20 { 1 } else { -2 })?,
    };
    let at = axis(given, dims.len())? as i64;
    let length = match call.maybe_ints_of(1)?.as_deref() {
        Some(&[length]) => Some(length),
        _ => None,
    };
    let (inverse, onesided) = (call.flag("inverse", false)?, call.flag("onesided", false)?);
    // In float64, whatever the type: libtorch transforms half precision on no CPU, and sums of many numbers gain by it.
    let wide = x.f_totype(Kind::Double)?;
    let numbers: Tensor = match dims.last() {
        Some(1) => wide.f_squeeze_dim(-1)?,
        Some(2) => wide.f_contiguous()?.f_view_as_complex()?,
        _ => return fail(format!("{dims:?}: the last axis is of real numbers (1) or complex ones (2)")),
    };
    if inverse && onesided {
        return call.one(numbers.f_fft_irfft(length, at, "backward")?.f_unsqueeze(-1)?);
    }
    let made = if inverse {
        numbers.f_fft_ifft(length, at, "backward")?
    } else {
        numbers.f_fft_fft(length, at, "backward")?
    };
    let n = made.size().get(at as usize).copied().unwrap_or(0);
    let made = if onesided { made.f_narrow(at, 0, n / 2 + 1)? } else { made };
    call.one(made.f_view_as_real()?)
}
