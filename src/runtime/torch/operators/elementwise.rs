//! Element by element, with broadcasting.

use tch::{Kind, TchError, Tensor};

use crate::runtime::torch::call::{Call, Outputs, Table};
use crate::runtime::torch::failure::{Failure, fail};
use crate::runtime::torch::value::{Precision, Value, in_order};
use crate::tensor::{DType, TensorDesc, TensorView};

pub(super) const TABLE: Table = &[
    ("", "Abs", |call| match call.value(0)?.dtype {
        DType::U64 => Ok(vec![call.value(0)?.clone()]),
        _ => call.unary(Tensor::f_abs),
    }),
    ("", "Acos", |call| call.unary(Tensor::f_acos)),
    ("", "Acosh", |call| call.unary(Tensor::f_acosh)),
    ("", "Add", |call| call.binary(Tensor::f_add)),
    ("", "Asin", |call| call.unary(Tensor::f_asin)),
    ("", "Asinh", |call| call.unary(Tensor::f_asinh)),
    ("", "Atan", |call| call.unary(Tensor::f_atan)),
    ("", "Atanh", |call| call.unary(Tensor::f_atanh)),
    ("", "BitCast", bit_cast),
    ("", "BitShift", bit_shift),
    ("", "BitwiseAnd", |call| call.binary(Tensor::f_bitwise_and_tensor)),
    ("", "BitwiseNot", |call| call.unary(Tensor::f_bitwise_not)),
    ("", "BitwiseOr", |call| call.binary(Tensor::f_bitwise_or_tensor)),
    ("", "BitwiseXor", |call| call.binary(Tensor::f_bitwise_xor_tensor)),
    ("", "Cast", |call| match call.dtype("to")? {
        Some(dtype) => cast(call, dtype),
        None => fail("attribute \"to\" is left out"),
    }),
    ("", "CastLike", |call| cast(call, call.value(1)?.dtype)),
    ("", "Ceil", |call| call.unary(Tensor::f_ceil)),
    ("", "Clip", clip),
    ("", "Cos", |call| call.unary(Tensor::f_cos)),
    ("", "Cosh", |call| call.unary(Tensor::f_cosh)),
    ("", "Div", div),
    ("", "Dropout", dropout),
    ("", "Erf", |call| call.unary(Tensor::f_erf)),
    ("", "Exp", |call| call.unary(Tensor::f_exp)),
    ("", "Floor", |call| call.unary(Tensor::f_floor)),
    ("", "Identity", |call| Ok(vec![call.value(0)?.clone()])),
    ("", "Log", |call| call.unary(Tensor::f_log)),
    ("", "Max", |call| extreme(call, Tensor::f_maximum)),
    ("", "Mean", mean),
    ("", "Min", |call| extreme(call, Tensor::f_minimum)),
    ("", "Mod", modulo),
    ("", "Mul", |call| call.binary(Tensor::f_mul)),
    ("", "Neg", |call| call.unary(Tensor::f_neg)),
    ("", "Pow", pow),
    ("", "Reciprocal", |call| call.unary(Tensor::f_reciprocal)),
    ("", "Round", |call| call.unary(Tensor::f_round)),
    ("", "Sign", sign),
    ("", "Sin", |call| call.unary(Tensor::f_sin)),
    ("", "Sinh", |call| call.unary(Tensor::f_sinh)),
    ("", "Sqrt", |call| call.unary(Tensor::f_sqrt)),
    ("", "Sub", |call| call.binary(Tensor::f_sub)),
    ("", "Sum", |call| fold(call, Tensor::f_add)),
    ("", "Tan", |call| call.unary(Tensor::f_tan)),
    ("", "Where", |call| {
        let chosen = call.tensor(1)?.f_where_self(call.tensor(0)?, call.tensor(2)?)?;
        call.one_typed(chosen, call.value(1)?.dtype)
    }),
];

fn fold(call: &Call<'_>, function: impl Fn(&Tensor, &Tensor) -> Result<Tensor, TchError>) -> Outputs {
    let mut tensors = call.tensors()?.into_iter();
    let Some(first) = tensors.next() else { return fail("it has no inputs") };
    call.one(tensors.try_fold(first.shallow_clone(), |sum, tensor| function(&sum, tensor))?)
}

fn extreme(call: &Call<'_>, function: fn(&Tensor, &Tensor) -> Result<Tensor, TchError>) -> Outputs {
    let dtype = call.value(0)?.dtype;
    fold(call, |x, y| in_order(&function(&in_order(x, dtype)?, &in_order(y, dtype)?)?, dtype))
}

/// Of no number no number, where libtorch says 0.
fn sign(call: &Call<'_>) -> Outputs {
    match call.value(0)?.dtype {
        DType::U64 => call.unary(|x| x.f_ne(0)),
        _ => call.unary(|x| x.f_where_self(&x.f_isnan()?, &x.f_sign()?)),
    }
}

fn mean(call: &Call<'_>) -> Outputs {
    let n = call.n_inputs() as f64;
    let sum = fold(call, Tensor::f_add)?;
    let sum = sum.first().ok_or_else(|| Failure::Said("it has no inputs".to_owned()))?;
    call.one(sum.tensor.f_div_scalar(n)?)
}

/// Of integers rounded towards zero.
fn div(call: &Call<'_>) -> Outputs {
    match call.value(0)?.dtype {
        DType::U64 => of_uint64(call, u64::checked_div),
        _ if call.is_integer(0)? => call.binary(|x, y| {
            let (other, is_minus_one) = untrapped(y)?;
            let quotient = x.f_div_tensor_mode(&other, "trunc")?;
            quotient.f_neg()?.f_where_self(&is_minus_one, &quotient)
        }),
        _ => call.binary(Tensor::f_div),
    }
}

/// With the divisor's sign, or as C's fmod with the dividend's.
fn modulo(call: &Call<'_>) -> Outputs {
    let has_fmod = call.flag("fmod", false)?;
    let of = |x: &Tensor, y: &Tensor| if has_fmod { x.f_fmod_tensor(y) } else { x.f_remainder_tensor(y) };
    match call.value(0)?.dtype {
        DType::U64 => of_uint64(call, u64::checked_rem),
        // What is left of a division by −1 is 0, as it is by 1.
        _ if call.is_integer(0)? => call.binary(|x, y| of(x, &untrapped(y)?.0)),
        _ => call.binary(of),
    }
}

/// A signed divisor with 1 where it is −1, by which the least integer traps in the processor; and where that is. Of
/// uint8 the one is 255, whose quotients and remainders are others.
fn untrapped(divisor: &Tensor) -> Result<(Tensor, Tensor), TchError> {
    let is_minus_one = match divisor.f_kind()? {
        Kind::Uint8 => divisor.f_zeros_like()?.f_totype(Kind::Bool)?,
        _ => divisor.f_eq(-1)?,
    };
    Ok((divisor.f_masked_fill(&is_minus_one, 1)?, is_minus_one))
}

/// Of uint64, element by element: libtorch's kernels would take the larger half for negative. Errors: the function gives
/// none, for it divides by 0.
fn of_uint64(call: &Call<'_>, function: fn(u64, u64) -> Option<u64>) -> Outputs {
    let both = Tensor::f_broadcast_tensors(&[call.tensor(0)?, call.tensor(1)?])?;
    let ints = |at: usize| call.like(both[at].shallow_clone())?.to_ints();
    let pairs = ints(0)?.into_iter().zip(ints(1)?);
    let made = pairs.map(|(x, y)| Some(function(x as u64, y as u64)? as i64)).collect::<Option<Vec<_>>>();
    let Some(made) = made else { return fail("ZeroDivisionError") };
    call.one(Tensor::f_from_slice(&made)?.f_reshape(both[0].size())?)
}

/// In the base's type; of integers with a float exponent in float64.
fn pow(call: &Call<'_>) -> Outputs {
    let (base, exponent) = (call.tensor(0)?, call.tensor(1)?);
    let wide = |at: usize| call.value(at)?.to_kind(Kind::Double);
    if call.is_integer(0)? && call.is_integer(1)? {
        return call.one(base.f_pow(&exponent.f_totype(base.f_kind()?)?)?);
    }
    // An exponent of another type is not rounded to the base's.
    match call.is_integer(0)? || exponent.f_kind()? != base.f_kind()? {
        true => call.one(wide(0)?.f_pow(&wide(1)?)?),
        false => call.one(base.f_pow(exponent)?),
    }
}

/// Bounds are inputs, or before opset 11 attributes. Where they cross, the upper one counts.
fn clip(call: &Call<'_>) -> Outputs {
    if call.opset >= 11 {
        let dtype = call.value(0)?.dtype;
        let bound = |at: usize| call.maybe_tensor(at).map(|bound| in_order(bound, dtype)).transpose();
        let (low, high) = (bound(1)?, bound(2)?);
        if low.is_none() && high.is_none() {
            return Ok(vec![call.value(0)?.clone()]);
        }
        return call.unary(|x| in_order(&in_order(x, dtype)?.f_clamp_tensor(low.as_ref(), high.as_ref())?, dtype));
    }
    let (low, high) = (call.maybe_float("min")?, call.maybe_float("max")?);
    call.unary(|x| {
        let x = low.map_or_else(|| Ok(x.shallow_clone()), |low| x.f_clamp_min(low))?;
        high.map_or_else(|| Ok(x.shallow_clone()), |high| x.f_clamp_max(high))
    })
}

fn bit_shift(call: &Call<'_>) -> Outputs {
    let (x, by) = (call.tensor(0)?, call.tensor(1)?);
    match call.text("direction", "")? {
        "LEFT" => call.one(x.f_bitwise_left_shift(by)?),
        "RIGHT" if call.value(0)?.dtype == DType::U64 => {
            // What comes in from above is the sign of int64, in whose bits it is held.
            let from_above = by.f_rsub_scalar(64)?;
            let kept = Tensor::f_full_like(x, -1)?.f_bitwise_left_shift(&from_above)?.f_bitwise_not()?;
            let shifted = x.f_bitwise_right_shift(by)?;
            call.one(shifted.f_bitwise_and_tensor(&kept)?.f_where_self(&by.f_ne(0)?, x)?)
        }
        "RIGHT" => call.one(x.f_bitwise_right_shift(by)?),
        other => fail(format!("attribute \"direction\" is {other:?}: expected \"LEFT\" or \"RIGHT\"")),
    }
}

/// The same bytes as another type. Errors: floats are computed in float64, and have no bytes of their own.
fn bit_cast(call: &Call<'_>) -> Outputs {
    let (x, to) = (call.value(0)?, call.dtype("to")?);
    let Some(to) = to else { return fail("attribute \"to\" is left out") };
    if call.precision == Precision::Float64 && (x.dtype.is_float() || to.is_float()) {
        return fail("bits of a float that is computed in float64");
    }
    let (tensor, dims) = (x.write()?, x.dims());
    let said = |error: &dyn std::fmt::Display| Failure::Said(error.to_string());
    let desc = TensorDesc::new(to, dims).map_err(|error| said(&error))?;
    let view = TensorView::new(to, &desc.shape, tensor.view().bytes()).map_err(|error| said(&error))?;
    Ok(vec![Value::read_view(&view, call.precision)?])
}

/// Outside of training, which no graph of ours asks for: what goes in, and a mask that keeps all.
fn dropout(call: &Call<'_>) -> Outputs {
    let training = call.maybe(2).map(Value::to_ints).transpose()?.is_some_and(|flag| flag.first() == Some(&1));
    let ratio = call.maybe(1).map(Value::to_floats).transpose()?.and_then(|ratio| ratio.first().copied());
    if training && ratio.unwrap_or(0.5) != 0.0 {
        return fail("training_mode draws random numbers: no libtorch kernel draws ONNX Runtime's");
    }
    let x = call.value(0)?;
    let mask = call.typed(x.tensor.f_ones_like()?, DType::Bool)?;
    Ok(vec![x.clone(), mask])
}

/// Largest finite number of an 8-bit float type.
fn largest(dtype: DType) -> Option<f64> {
    match dtype {
        DType::F8E4M3FN => Some(448.0),
        DType::F8E4M3FNUZ => Some(240.0),
        DType::F8E5M2 | DType::F8E5M2FNUZ => Some(57344.0),
        _ => None,
    }
}

/// To nearest, ties to even; 8-bit floats saturate unless told otherwise; floats to integers towards zero.
pub(super) fn cast(call: &Call<'_>, dtype: DType) -> Outputs {
    let x = call.value(0)?;
    let is_float = |dtype: DType| dtype.is_float() || largest(dtype).is_some();
    if let Some(largest) = largest(dtype) {
        // By way of float32, of which alone libtorch's 8-bit casts are exact.
        let wide = x.to_kind(Kind::Float)?;
        if call.flag("saturate", true)? {
            return call.one_typed(wide.f_clamp(-largest, largest)?, dtype);
        }
        // Without an infinity, what would be rounded beyond the largest number is no number: from half a step on.
        let beyond = match dtype {
            DType::F8E4M3FN => wide.f_abs()?.f_gt(464.0)?,
            DType::F8E4M3FNUZ => wide.f_abs()?.f_ge(248.0)?,
            DType::F8E5M2FNUZ => wide.f_abs()?.f_ge(61440.0)?,
            _ => return call.one_typed(wide, dtype),
        };
        return call.one_typed(wide.f_masked_fill(&beyond, f64::NAN)?, dtype);
    }
    if is_float(x.dtype) && matches!(dtype, DType::U8 | DType::U16 | DType::U32 | DType::I8 | DType::I16 | DType::I32) {
        // C++ leaves it open what a number beyond the type becomes; by way of int64 it wraps around.
        return call.one_typed(x.tensor.f_totype(Kind::Int64)?, dtype);
    }
    match is_float(dtype) {
        true => call.one_typed(x.to_kind(call.precision.kind(dtype))?, dtype),
        false => call.one_typed(x.tensor.shallow_clone(), dtype),
    }
}
