//! Reductions, and running sums.

use tch::{Device, Kind, TchError, Tensor};

use crate::runtime::torch::call::{Call, Outputs, Table, axes, axis};
use crate::runtime::torch::failure::{Failure, fail};
use crate::runtime::torch::value::in_order;
use crate::tensor::DType;

pub(super) const TABLE: Table = &[
    ("", "ArgMax", |call| arg(call, |x, axis, keep| x.f_argmax(axis, keep))),
    ("", "ArgMin", |call| arg(call, |x, axis, keep| x.f_argmin(axis, keep))),
    ("", "CumProd", |call| running(call, |x, axis, kind| x.f_cumprod(axis, kind))),
    ("", "CumSum", |call| running(call, |x, axis, kind| x.f_cumsum(axis, kind))),
    ("", "ReduceL1", |call| match call.value(0)?.dtype {
        DType::U64 => reduce(call, sum),
        _ => reduce(call, |x, axes, keep| sum(&x.f_abs()?, axes, keep)),
    }),
    ("", "ReduceL2", |call| reduce_floats(call, |x, axes, keep| sum(&x.f_mul(x)?, axes, keep)?.f_sqrt())),
    ("", "ReduceLogSum", |call| reduce_floats(call, |x, axes, keep| sum(x, axes, keep)?.f_log())),
    ("", "ReduceLogSumExp", |call| reduce_floats(call, |x, axes, keep| x.f_logsumexp(axes, keep))),
    ("", "ReduceMax", |call| extreme(call, true)),
    ("", "ReduceMean", |call| reduce_floats(call, |x, axes, keep| x.f_mean_dim(axes, keep, x.f_kind()?))),
    ("", "ReduceMin", |call| extreme(call, false)),
    ("", "ReduceProd", |call| reduce(call, product)),
    ("", "ReduceSum", |call| reduce(call, sum)),
    ("", "ReduceSumSquare", |call| reduce(call, |x, axes, keep| sum(&x.f_mul(x)?, axes, keep))),
];

/// The axes, from an input or an attribute: all where there are none, unless empty ones mean none (None).
fn reduced(call: &Call<'_>) -> Result<Option<Vec<i64>>, Failure> {
    let rank = call.tensor(0)?.dim();
    let given = match call.maybe_ints_of(1)? {
        Some(given) => Some(given),
        None => call.ints("axes")?,
    };
    match given.filter(|given| !given.is_empty()) {
        Some(given) => Ok(Some(axes(&given, rank)?.into_iter().map(|axis| axis as i64).collect())),
        None if call.flag("noop_with_empty_axes", false)? => Ok(None),
        None => Ok(Some((0..rank as i64).collect())),
    }
}

fn reduce(call: &Call<'_>, function: impl Fn(&Tensor, &[i64], bool) -> Result<Tensor, TchError>) -> Outputs {
    reduce_of(call, call.tensor(0)?, function)
}

/// Of integers in float64.
fn reduce_floats(call: &Call<'_>, function: impl Fn(&Tensor, &[i64], bool) -> Result<Tensor, TchError>) -> Outputs {
    reduce_of(call, &call.value(0)?.in_floats()?, function)
}

/// Over no axes the function sees the tensor with one of size 1 in front: every element is a sum of itself.
fn reduce_of(
    call: &Call<'_>,
    x: &Tensor,
    function: impl Fn(&Tensor, &[i64], bool) -> Result<Tensor, TchError>,
) -> Outputs {
    let keep = call.flag("keepdims", true)?;
    match reduced(call)? {
        Some(axes) if !axes.is_empty() => call.one(function(x, &axes, keep)?),
        _ => call.one(function(&x.f_unsqueeze(0)?, &[0], false)?),
    }
}

fn sum(x: &Tensor, axes: &[i64], keep: bool) -> Result<Tensor, TchError> {
    x.f_sum_dim_intlist(axes, keep, x.f_kind()?)
}

fn product(x: &Tensor, axes: &[i64], keep: bool) -> Result<Tensor, TchError> {
    let kind = x.f_kind()?;
    let mut sorted = axes.to_vec();
    sorted.sort_unstable();
    // The last first, so that the others stay where they are.
    sorted.iter().rev().try_fold(x.shallow_clone(), |x, &axis| x.f_prod_dim_int(axis, keep, kind))
}

/// The largest or smallest; of no elements the smallest or largest that there is.
fn extreme(call: &Call<'_>, largest: bool) -> Outputs {
    let dtype = call.value(0)?.dtype;
    reduce(call, |x, axes, keep| {
        let dims = x.size();
        if axes.iter().any(|&axis| dims.get(axis as usize) == Some(&0)) {
            let left = sum(&x.f_totype(Kind::Double)?, axes, keep)?;
            return bound(dtype, left, x.f_kind()?, largest);
        }
        let x = in_order(x, dtype)?;
        in_order(&if largest { x.f_amax(axes, keep)? } else { x.f_amin(axes, keep)? }, dtype)
    })
}

fn bound(dtype: DType, like: Tensor, kind: Kind, lowest: bool) -> Result<Tensor, TchError> {
    let dims = like.size();
    let (low, high) = match dtype {
        DType::I8 => (i64::from(i8::MIN), i64::from(i8::MAX)),
        DType::I16 => (i64::from(i16::MIN), i64::from(i16::MAX)),
        DType::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        DType::I64 => (i64::MIN, i64::MAX),
        DType::U8 => (0, i64::from(u8::MAX)),
        DType::U16 => (0, i64::from(u16::MAX)),
        DType::U32 => (0, i64::from(u32::MAX)),
        DType::U64 => (0, -1),
        DType::Bool => (0, 1),
        _ => {
            let infinity = if lowest { f64::NEG_INFINITY } else { f64::INFINITY };
            return Tensor::f_full(dims, infinity, (kind, Device::Cpu));
        }
    };
    Tensor::f_full(dims, if lowest { low } else { high }, (kind, Device::Cpu))
}

fn arg(call: &Call<'_>, function: impl Fn(&Tensor, i64, bool) -> Result<Tensor, TchError>) -> Outputs {
    let (x, dims) = (in_order(call.tensor(0)?, call.value(0)?.dtype)?, call.value(0)?.dims());
    if dims.is_empty() {
        return call.one_typed(Tensor::f_zeros([0_i64; 0], (Kind::Int64, Device::Cpu))?, DType::I64);
    }
    let at = axis(call.int("axis", 0)?, dims.len())?;
    let (keep, axis) = (call.flag("keepdims", true)?, at as i64);
    // Of equals libtorch promises none: the first is asked for, or the last.
    let last = call.flag("select_last_index", false)?;
    let x = if last { x.f_flip([axis])? } else { x };
    let best = x.f_gather(axis, &function(&x, axis, true)?, false)?;
    let is_best = match x.f_kind()? {
        Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16 => {
            x.f_eq_tensor(&best)?.f_logical_or(&x.f_isnan()?.f_logical_and(&best.f_isnan()?)?)?
        }
        _ => x.f_eq_tensor(&best)?,
    };
    let first = is_best.f_totype(Kind::Uint8)?.f_cumsum(axis, Kind::Int64)?.f_eq(0)?.f_sum_dim_intlist(
        &[axis][..],
        keep,
        Kind::Int64,
    )?;
    let first = if last { first.f_rsub_scalar(dims[at] - 1)? } else { first };
    call.one_typed(first, DType::I64)
}

/// Sums, or products, of what comes before along an axis.
fn running(call: &Call<'_>, function: impl Fn(&Tensor, i64, Kind) -> Result<Tensor, TchError>) -> Outputs {
    let x = call.tensor(0)?;
    let (at, kind) = (axis(call.int_of(1)?, x.dim())? as i64, x.f_kind()?);
    let (reverse, exclusive) = (call.flag("reverse", false)?, call.flag("exclusive", false)?);
    let oriented = if reverse { x.f_flip([at])? } else { x.shallow_clone() };
    let mut sums = function(&oriented, at, kind)?;
    if exclusive {
        let Some(&n) = x.size().get(at as usize) else { return fail("no axis") };
        let none = match call.node.op_type() {
            "CumProd" => oriented.f_narrow(at, 0, n.min(1))?.f_ones_like()?,
            _ => oriented.f_narrow(at, 0, n.min(1))?.f_zeros_like()?,
        };
        sums = Tensor::f_cat(&[none, sums.f_narrow(at, 0, (n - 1).max(0))?], at)?;
    }
    call.one(if reverse { sums.f_flip([at])? } else { sums })
}
