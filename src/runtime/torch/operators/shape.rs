//! What moves elements without looking at them, and what makes tensors of numbers.

use tch::{Device, Kind, Tensor};

use crate::runtime::torch::call::{Call, Outputs, Table, axes, axis, counted};
use crate::runtime::torch::failure::{Failure, fail};
use crate::runtime::torch::value::Value;
use crate::tensor::DType;

pub(super) const TABLE: Table = &[
    ("", "CenterCropPad", center_crop_pad),
    ("", "Concat", concat),
    ("", "ConstantOfShape", constant_of_shape),
    ("", "DepthToSpace", depth_to_space),
    ("", "Expand", expand),
    ("", "EyeLike", eye_like),
    ("", "Flatten", flatten),
    ("", "OneHot", one_hot),
    ("", "Pad", pad),
    ("", "Range", range),
    ("", "Reshape", reshape),
    ("", "Shape", shape),
    ("", "Size", |call| call.one_typed(int(call.tensor(0)?.numel() as i64)?, DType::I64)),
    ("", "SpaceToDepth", space_to_depth),
    ("", "Split", split),
    ("", "Squeeze", squeeze),
    ("", "Tile", |call| {
        let repeats = call.ints_of(1)?;
        call.unary(|x| x.f_repeat(&repeats))
    }),
    ("", "Transpose", transpose),
    ("", "Trilu", trilu),
    ("", "Unsqueeze", unsqueeze),
];

/// What a block's size, or padding that is no constant, may be: elements are listed one by one.
const MOST: i64 = 1 << 26;

fn int(value: i64) -> Result<Tensor, Failure> {
    Ok(Tensor::f_scalar_tensor(value, (Kind::Int64, Device::Cpu))?)
}

fn concat(call: &Call<'_>) -> Outputs {
    let tensors = call.tensors()?;
    let Some(first) = tensors.first() else { return fail("it has no inputs") };
    let at = axis(call.int("axis", 0)?, first.dim())?;
    call.one(Tensor::f_cat(&tensors, at as i64)?)
}

fn constant_of_shape(call: &Call<'_>) -> Outputs {
    let dims = call.ints_of(0)?;
    match call.tensor_attribute("value")? {
        Some(value) => call.one_typed(
            value
                .tensor
                .f_reshape([1])?
                .f_expand([1], false)?
                .f_reshape([0_i64; 0])?
                .f_expand(&dims, false)?
                .f_contiguous()?,
            value.dtype,
        ),
        None => call.one_typed(Tensor::f_zeros(&dims, (Kind::Float, Device::Cpu))?, DType::F32),
    }
}

fn expand(call: &Call<'_>) -> Outputs {
    let (dims, asked) = (call.value(0)?.dims(), call.ints_of(1)?);
    let rank = dims.len().max(asked.len());
    let from_end = |dims: &[i64], at: usize| (at + dims.len()).checked_sub(rank).map_or(1, |at| dims[at]);
    // Sizes of 1 stretch on either side.
    let both: Vec<i64> = (0..rank)
        .map(|at| match (from_end(&dims, at), from_end(&asked, at)) {
            (1, asked) => asked,
            (dim, _) => dim,
        })
        .collect();
    if let Some(at) = (0..rank).find(|&at| from_end(&asked, at) != 1 && from_end(&asked, at) != both[at]) {
        return fail(format!("invalid expand shape: {dims:?} to {asked:?}, axis {at}"));
    }
    call.unary(|x| x.f_expand(&both, false))
}

fn eye_like(call: &Call<'_>) -> Outputs {
    let x = call.value(0)?;
    let &[rows, columns] = x.dims().as_slice() else { return fail("expected a matrix") };
    let indices = |n: i64| counted(n, Kind::Int64);
    let moved = indices(rows)?.f_add_scalar(call.int("k", 0)?)?.f_unsqueeze(1)?;
    let eye = moved.f_eq_tensor(&indices(columns)?.f_unsqueeze(0)?)?;
    call.one_typed(eye, call.dtype("dtype")?.unwrap_or(x.dtype))
}

fn flatten(call: &Call<'_>) -> Outputs {
    let dims = call.value(0)?.dims();
    let given = call.int("axis", 1)?;
    let at = if given == dims.len() as i64 { dims.len() } else { axis(given, dims.len())? };
    call.unary(|x| x.f_reshape([dims[..at].iter().product::<i64>(), dims[at..].iter().product()]))
}

fn one_hot(call: &Call<'_>) -> Outputs {
    let indices = call.tensor(0)?.f_totype(Kind::Int64)?;
    let depth = match call.value(1)?.to_floats()?.as_slice() {
        // What is no number is not.
        &[depth] if depth >= 0.0 => depth as i64,
        depth => return fail(format!("depth {depth:?}: expected one number, not below 0")),
    };
    let values = call.value(2)?;
    let at = axis(call.int("axis", -1)?, indices.dim() + 1)?;
    let all = counted(depth, Kind::Int64)?;
    // uint64's larger half looks negative, and is beyond any depth.
    let wrapped = match call.value(0)?.dtype {
        DType::U64 => indices.shallow_clone(),
        _ => indices.f_add_scalar(depth)?.f_where_self(&indices.f_lt(0)?, &indices)?,
    };
    let mut along = vec![1; indices.dim() + 1];
    along[at] = depth;
    let hot = wrapped.f_unsqueeze(at as i64)?.f_eq_tensor(&all.f_reshape(&along)?)?;
    let (off, on) = (values.tensor.f_select(0, 0)?, values.tensor.f_select(0, 1)?);
    call.one_typed(on.f_where_self(&hot, &off)?, values.dtype)
}

/// Begins, then ends, of the axes that are padded; below 0 they crop.
fn pads(call: &Call<'_>, rank: usize) -> Result<Vec<(i64, i64)>, Failure> {
    let given = match call.ints("pads")? {
        Some(given) => given,
        None => call.ints_of(1)?,
    };
    let along = match call.maybe_ints_of(3)? {
        Some(along) => axes(&along, rank)?,
        None => (0..rank).collect(),
    };
    if given.len() != 2 * along.len() {
        return fail(format!("{} pads for {} axes", given.len(), along.len()));
    }
    let mut pads = vec![(0, 0); rank];
    for (n, &at) in along.iter().enumerate() {
        pads[at] = (given[n], given[along.len() + n]);
    }
    Ok(pads)
}

fn pad(call: &Call<'_>) -> Outputs {
    let (x, dims) = (call.tensor(0)?, call.value(0)?.dims());
    let pads = pads(call, dims.len())?;
    let mode = call.text("mode", "constant")?;
    if mode == "constant" {
        let value = match call.maybe(2) {
            Some(value) => value.tensor.f_reshape([0_i64; 0])?,
            None => Tensor::f_scalar_tensor(call.float("value", 0.0)?, (Kind::Double, Device::Cpu))?,
        };
        return call.one(padded(x, &pads, &value)?);
    }
    let mut x = cropped(x, &pads)?;
    for (at, (&(begin, end), n)) in pads.iter().zip(x.size()).enumerate() {
        let (begin, end) = (begin.max(0), end.max(0));
        if begin > MOST || end > MOST {
            return fail(format!("pads {begin} and {end}: more than {MOST}"));
        }
        if (begin, end) != (0, 0) {
            let source = (-begin..n + end).map(|i| source(mode, i, n)).collect::<Result<Vec<_>, _>>()?;
            x = x.f_index_select(at as i64, &Tensor::f_from_slice(&source)?)?;
        }
    }
    call.one(x)
}

/// Where an element outside comes from.
fn source(mode: &str, i: i64, n: i64) -> Result<i64, Failure> {
    if n == 0 {
        return fail("an axis without elements has none to pad with");
    }
    Ok(match mode {
        "edge" => i.clamp(0, n - 1),
        "wrap" => i.rem_euclid(n),
        "reflect" if n == 1 => 0,
        "reflect" => {
            let there = i.rem_euclid(2 * (n - 1));
            there.min(2 * (n - 1) - there)
        }
        other => return fail(format!("attribute \"mode\" is {other:?}: expected constant, reflect, edge or wrap")),
    })
}

/// Without what pads below 0 cut off, which goes before all padding. Errors: there is less.
fn cropped(x: &Tensor, pads: &[(i64, i64)]) -> Result<Tensor, Failure> {
    let mut x = x.shallow_clone();
    for (at, (&(begin, end), dim)) in pads.iter().zip(x.size()).enumerate() {
        let (from, to) = (begin.min(0).checked_neg(), dim.checked_add(end.min(0)));
        match (from, to) {
            (Some(from), Some(to)) if from <= to => x = x.f_narrow(at as i64, from, to - from)?,
            _ => return fail(format!("pads {begin} and {end} cut off more than the {dim} of axis {at}")),
        }
    }
    Ok(x)
}

/// Surrounded by one value; pads below 0 crop.
pub(super) fn padded(x: &Tensor, pads: &[(i64, i64)], value: &Tensor) -> Result<Tensor, Failure> {
    let mut x = cropped(x, pads)?;
    let kind = x.f_kind()?;
    for (at, &(begin, end)) in pads.iter().enumerate() {
        let (axis, dim) = (at as i64, x.size()[at]);
        let whole = dim.checked_add(begin.max(0)).and_then(|whole| whole.checked_add(end.max(0)));
        if whole.is_none() {
            return fail(format!("pads {begin} and {end} of the {dim} of axis {at}: no int64 holds the size"));
        }
        let filled = |n: i64| {
            let mut dims = x.size();
            dims[at] = n;
            value.f_totype(kind)?.f_expand(&dims, false)
        };
        if begin > 0 || end > 0 {
            x = Tensor::f_cat(&[filled(begin.max(0))?, x.shallow_clone(), filled(end.max(0))?], axis)?;
        }
    }
    Ok(x)
}

fn center_crop_pad(call: &Call<'_>) -> Outputs {
    let (x, dims) = (call.tensor(0)?, call.value(0)?.dims());
    let asked = call.ints_of(1)?;
    let along = match call.ints("axes")? {
        Some(along) => axes(&along, dims.len())?,
        None => (0..dims.len()).collect(),
    };
    if asked.len() != along.len() || asked.iter().any(|&n| n < 0) {
        return fail(format!("to {asked:?} on {} axes", along.len()));
    }
    let mut pads = vec![(0, 0); dims.len()];
    for (&at, &n) in along.iter().zip(&asked) {
        let more = n - dims[at];
        // The odd one goes to the end where it pads, and is cut there too.
        let begin = if more >= 0 { more / 2 } else { -(-more / 2) };
        pads[at] = (begin, more - begin);
    }
    call.one(padded(x, &pads, &Tensor::f_scalar_tensor(0.0, (Kind::Double, Device::Cpu))?)?)
}

fn range(call: &Call<'_>) -> Outputs {
    let dtype = call.value(0)?.dtype;
    if !dtype.is_float() {
        let (start, limit, step) = (call.int_of(0)?, call.int_of(1)?, call.int_of(2)?);
        if step == 0 {
            return fail("delta is 0");
        }
        let (span, by) = (i128::from(limit) - i128::from(start), i128::from(step));
        let n = span / by + i128::from(span % by != 0 && (span < 0) == (by < 0));
        let all = counted(i64::try_from(n.max(0)).unwrap_or(i64::MAX), Kind::Int64)?;
        return call.one(all.f_mul_scalar(step)?.f_add_scalar(start)?);
    }
    let number =
        |at: usize| -> Result<f64, Failure> { Ok(call.value(at)?.to_floats()?.first().copied().unwrap_or(0.0)) };
    let (start, limit, step) = (number(0)?, number(1)?, number(2)?);
    let n = ((limit - start) / step).ceil();
    if !n.is_finite() {
        return fail(format!("from {start} to {limit} by {step}"));
    }
    let all = counted(n.max(0.0) as i64, Kind::Double)?;
    call.one(all.f_mul_scalar(step)?.f_add_scalar(start)?)
}

fn reshape(call: &Call<'_>) -> Outputs {
    let dims = call.value(0)?.dims();
    let mut asked = match call.ints("shape")? {
        Some(asked) => asked,
        None => call.ints_of(1)?,
    };
    if !call.flag("allowzero", false)? {
        for (at, asked) in asked.iter_mut().enumerate().filter(|(_, asked)| **asked == 0) {
            let Some(&dim) = dims.get(at) else { return fail(format!("dimension {at} is to be kept of {dims:?}")) };
            *asked = dim;
        }
    }
    // libtorch leaves -1 open where there are no elements.
    if let Some(open) = asked.iter().position(|&dim| dim == -1) {
        let others: i64 = asked.iter().filter(|&&dim| dim != -1).product();
        let n: i64 = dims.iter().product();
        asked[open] = if others == 0 { 0 } else { n / others };
    }
    call.unary(|x| x.f_reshape(&asked))
}

fn shape(call: &Call<'_>) -> Outputs {
    let dims = call.value(0)?.dims();
    let rank = dims.len() as i64;
    let bound = |given: i64| (if given < 0 { given + rank } else { given }).clamp(0, rank) as usize;
    let (start, end) = (bound(call.int("start", 0)?), bound(call.int("end", rank)?));
    let dims = &dims[start..end.max(start)];
    call.one_typed(Tensor::f_from_slice(dims)?, DType::I64)
}

fn block(call: &Call<'_>) -> Result<(i64, [i64; 4]), Failure> {
    let dims = call.value(0)?.dims();
    let size = call.int("blocksize", 0)?;
    match dims.as_slice() {
        &[n, c, h, w] if (1..=MOST).contains(&size) => Ok((size, [n, c, h, w])),
        _ => fail(format!("blocks of {size} in {dims:?}: expected rank 4")),
    }
}

fn depth_to_space(call: &Call<'_>) -> Outputs {
    let (b, [n, c, h, w]) = block(call)?;
    let depth = c / (b * b);
    let x = call.tensor(0)?;
    let moved = match call.text("mode", "DCR")? {
        "CRD" => x.f_reshape([n, depth, b, b, h, w])?.f_permute([0, 1, 4, 2, 5, 3])?,
        _ => x.f_reshape([n, b, b, depth, h, w])?.f_permute([0, 3, 4, 1, 5, 2])?,
    };
    call.one(moved.f_reshape([n, depth, h * b, w * b])?)
}

fn space_to_depth(call: &Call<'_>) -> Outputs {
    let (b, [n, c, h, w]) = block(call)?;
    let apart = call.tensor(0)?.f_reshape([n, c, h / b, b, w / b, b])?;
    let moved = match call.text("mode", "DCR")? {
        "CRD" => apart.f_permute([0, 1, 3, 5, 2, 4])?,
        _ => apart.f_permute([0, 3, 5, 1, 2, 4])?,
    };
    call.one(moved.f_reshape([n, c * b * b, h / b, w / b])?)
}

fn split(call: &Call<'_>) -> Outputs {
    let (x, dims) = (call.tensor(0)?, call.value(0)?.dims());
    let at = axis(call.int("axis", 0)?, dims.len())?;
    let given = match call.maybe_ints_of(1)? {
        Some(given) => Some(given),
        None => call.ints("split")?,
    };
    let sizes = given.map_or_else(
        || {
            let n = call.node.output.len() as i64;
            if let Some(asked) = call.maybe_int("num_outputs")?.filter(|&asked| asked != n) {
                return fail(format!("num_outputs {asked}: the node has {n}"));
            }
            // The last is smaller where they are not even.
            let size = (dims[at] + n - 1) / n;
            Ok((0..n).map(|piece| (dims[at] - piece * size).clamp(0, size)).collect::<Vec<_>>())
        },
        Ok::<_, Failure>,
    )?;
    x.f_split_with_sizes(&sizes, at as i64)?.into_iter().map(|piece| call.like(piece)).collect()
}

fn squeeze(call: &Call<'_>) -> Outputs {
    let dims = call.value(0)?.dims();
    let given = match call.maybe_ints_of(1)? {
        Some(given) => Some(given),
        None => call.ints("axes")?,
    };
    let gone = match given {
        Some(given) => axes(&given, dims.len())?,
        None => (0..dims.len()).filter(|&at| dims[at] == 1).collect(),
    };
    if let Some(&at) = gone.iter().find(|&&at| dims[at] != 1) {
        return fail(format!("axis {at} of {dims:?} is not 1"));
    }
    let left: Vec<i64> = (0..dims.len()).filter(|at| !gone.contains(at)).map(|at| dims[at]).collect();
    call.unary(|x| x.f_reshape(&left))
}

fn transpose(call: &Call<'_>) -> Outputs {
    let rank = call.tensor(0)?.dim() as i64;
    let order = call.ints("perm")?.unwrap_or_else(|| (0..rank).rev().collect());
    call.unary(|x| x.f_permute(&order))
}

fn trilu(call: &Call<'_>) -> Outputs {
    let k = call.maybe(1).map(Value::to_ints).transpose()?.and_then(|k| k.first().copied()).unwrap_or(0);
    let upper = call.flag("upper", true)?;
    call.unary(|x| if upper { x.f_triu(k) } else { x.f_tril(k) })
}

fn unsqueeze(call: &Call<'_>) -> Outputs {
    let dims = call.value(0)?.dims();
    let given = match call.ints("axes")? {
        Some(given) => given,
        None => call.ints_of(1)?,
    };
    let new = axes(&given, dims.len() + given.len())?;
    let mut old = dims.iter();
    let made: Vec<i64> = (0..dims.len() + given.len())
        .map(|at| if new.contains(&at) { 1 } else { old.next().copied().unwrap_or(1) })
        .collect();
    call.unary(|x| x.f_reshape(&made))
}
