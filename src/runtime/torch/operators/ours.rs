//! Our own domain: what our rewrites make of nodes. Functions of it are put in their callers' place before.

use tch::{Device, Kind, Tensor};

use super::index::from_zero;
use crate::onnx::region::{CONSTANTS, INPUTS, OUTPUTS, RANK, STEPS};
use crate::onnx::{BELOW, DOMAIN, Extent, Op, Program, REGION, RowReduction};
use crate::runtime::torch::call::{Call, Outputs, Table};
use crate::runtime::torch::failure::{Failure, fail};
use crate::runtime::torch::value::Precision;
use crate::tensor::DType;

pub(super) const TABLE: Table = &[
    (DOMAIN, "AddRows", |call| reduced_rows(call, RowReduction::Sum)),
    (DOMAIN, "MaxRows", |call| reduced_rows(call, RowReduction::Max)),
    (DOMAIN, "MinRows", |call| reduced_rows(call, RowReduction::Min)),
    (DOMAIN, REGION, region),
    (DOMAIN, "WhereDouble", select),
    (DOMAIN, "WhereFloat", select),
];

fn select(call: &Call<'_>) -> Outputs {
    let chosen = call.tensor(1)?.f_where_self(call.tensor(0)?, call.tensor(2)?)?;
    call.one_typed(chosen, call.value(1)?.dtype)
}

/// (indices, updates, shape of 2 numbers) to sums or extremes of rows.
fn reduced_rows(call: &Call<'_>, reduction: RowReduction) -> Outputs {
    let (indices, updates, shape) = (call.tensor(0)?.f_totype(Kind::Int64)?, call.tensor(1)?, call.ints_of(2)?);
    let &[n_rows, n_columns] = shape.as_slice() else { return fail(format!("a shape of {} numbers", shape.len())) };
    // Of negative indices something was taken away, for what eager refuses to be out of every range.
    let below = call.int(BELOW, 0)?;
    let given = indices.f_sub_scalar(below)?;
    let indices = if below == 0 { indices } else { given.f_where_self(&indices.f_lt(below / 2)?, &indices)? };
    let rows = from_zero(&indices.f_reshape([-1])?, n_rows)?;
    let (updates, kind) = (updates.f_reshape([-1, n_columns])?, updates.f_kind()?);
    let start = Tensor::f_full([n_rows, n_columns], f64::from(reduction.start()), (kind, Device::Cpu))?;
    let reduced = match reduction {
        RowReduction::Sum => start.f_index_add(0, &rows, &updates)?,
        RowReduction::Max => start.f_index_reduce(0, &rows, &updates, "amax", true)?,
        RowReduction::Min => start.f_index_reduce(0, &rows, &updates, "amin", true)?,
    };
    call.one_typed(reduced, call.value(1)?.dtype)
}

/// A program over rows, in float32.
fn region(call: &Call<'_>) -> Outputs {
    let constants = call.floats(CONSTANTS)?.unwrap_or_default().into_iter().map(|number| number as f32).collect();
    let (outputs, rank) = (call.ints(OUTPUTS)?.unwrap_or_default(), call.int(RANK, 0)?);
    let program = Program::read(call.text(INPUTS, "")?, constants, call.text(STEPS, "")?, &outputs, rank);
    let Some(program) = program else { return fail("its attributes are of no program") };
    let kind = call.precision.kind(DType::F32);
    let mut registers = Vec::with_capacity(program.inputs.len() + program.constants.len() + program.steps.len());
    for at in 0..program.inputs.len() {
        registers.push(call.tensor(at)?.f_totype(kind)?);
    }
    for &number in &program.constants {
        registers.push(Tensor::f_scalar_tensor(f64::from(number), (kind, Device::Cpu))?);
    }
    let Some(extents) = program.extents() else { return fail("its attributes are of no program") };
    let full = full_dims(&registers, &extents[..program.inputs.len()], program.rank)?;
    for step in &program.steps {
        let read: Vec<&Tensor> = step.reads().iter().map(|&register| &registers[register]).collect();
        let made = computed(call.precision, step.op, &read, &full)?;
        registers.push(made.f_totype(kind)?);
    }
    let output = |&register: &usize| {
        let mut dims = full.clone();
        if let (Some(last), true) = (dims.last_mut(), extents[register] != Extent::Full) {
            *last = 1;
        }
        call.typed(registers[register].f_expand(&dims, false)?.f_contiguous()?, DType::F32)
    };
    program.outputs.iter().map(output).collect()
}

/// Dimensions of the whole: those of all inputs together.
fn full_dims(registers: &[Tensor], extents: &[Extent], rank: usize) -> Result<Vec<i64>, Failure> {
    let mut full = vec![1; rank];
    for (register, _) in registers.iter().zip(extents) {
        let dims = register.size();
        if dims.len() > rank {
            return fail(format!("an input of {dims:?} in a region of rank {rank}"));
        }
        let first = rank - dims.len();
        for (at, &dim) in dims.iter().enumerate().filter(|&(_, &dim)| dim != 1) {
            full[first + at] = dim;
        }
    }
    Ok(full)
}

fn computed(precision: Precision, op: Op, read: &[&Tensor], full: &[i64]) -> Result<Tensor, Failure> {
    let (x, last) = (read[0], [-1_i64]);
    let y = || read[1];
    let whole = |x: &Tensor| x.f_expand(full, false);
    let rounded = |kind: Kind| match precision {
        Precision::AsDeclared => x.f_totype(kind),
        Precision::Float64 => Ok(x.shallow_clone()),
    };
    Ok(match op {
        Op::Add => x.f_add(y())?,
        Op::Sub => x.f_sub(y())?,
        Op::Mul => x.f_mul(y())?,
        Op::Div => x.f_div(y())?,
        Op::Max => x.f_maximum(y())?,
        Op::Min => x.f_minimum(y())?,
        Op::Greater => x.f_gt_tensor(y())?,
        Op::GreaterOrEqual => x.f_ge_tensor(y())?,
        Op::Less => x.f_lt_tensor(y())?,
        Op::LessOrEqual => x.f_le_tensor(y())?,
        Op::Equal => x.f_eq_tensor(y())?,
        Op::And => x.f_logical_and(y())?,
        Op::Or => x.f_logical_or(y())?,
        Op::Neg => x.f_neg()?,
        Op::Abs => x.f_abs()?,
        Op::Exp => x.f_exp()?,
        Op::Log => x.f_log()?,
        Op::Sqrt => x.f_sqrt()?,
        Op::Reciprocal => x.f_reciprocal()?,
        Op::Sigmoid => x.f_sigmoid()?,
        Op::Tanh => x.f_tanh()?,
        Op::Erf => x.f_erf()?,
        Op::Relu => x.f_relu()?,
        Op::Not => x.f_logical_not()?,
        Op::Square => x.f_mul(x)?,
        Op::Cube => x.f_mul(x)?.f_mul(x)?,
        Op::RoundBFloat16 => rounded(Kind::BFloat16)?,
        Op::RoundFloat16 => rounded(Kind::Half)?,
        Op::Spread => whole(x)?,
        Op::Where => read[1].f_where_self(&x.f_ne(0.0)?, read[2])?,
        Op::ReduceSum => whole(x)?.f_sum_dim_intlist(&last[..], true, None)?,
        Op::ReduceMean => whole(x)?.f_mean_dim(&last[..], true, None)?,
        Op::ReduceMax => whole(x)?.f_amax(&last[..], true)?,
    })
}
