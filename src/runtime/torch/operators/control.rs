//! Nodes with bodies.

use tch::{Device, Kind, Tensor};

use crate::runtime::torch::call::{Call, Outputs, Table, axis};
use crate::runtime::torch::failure::{Failure, fail};
use crate::runtime::torch::value::Value;
use crate::tensor::DType;

pub(super) const TABLE: Table = &[("", "If", choose), ("", "Loop", repeat), ("", "Scan", scan)];

fn holds(value: &Value) -> Result<bool, Failure> {
    match value.to_ints()?.as_slice() {
        &[one] => Ok(one != 0),
        several => fail(format!("a condition of {} elements", several.len())),
    }
}

fn choose(call: &Call<'_>) -> Outputs {
    call.bodies.run(if holds(call.value(0)?)? { "then_branch" } else { "else_branch" }, Vec::new())
}

/// Values of all rounds, one after the other along an axis.
fn stacked(call: &Call<'_>, rounds: &[Value], axis: i64, reversed: bool) -> Result<Value, Failure> {
    let Some(first) = rounds.first() else {
        // What each round would have given is not known.
        return call.typed(Tensor::f_zeros([0_i64], (Kind::Float, Device::Cpu))?, DType::F32);
    };
    let mut tensors: Vec<&Tensor> = rounds.iter().map(|value| &value.tensor).collect();
    if reversed {
        tensors.reverse();
    }
    call.typed(Tensor::f_stack(&tensors, axis)?, first.dtype)
}

fn repeat(call: &Call<'_>) -> Outputs {
    let most = call.maybe(0).map(Value::to_ints).transpose()?.and_then(|most| most.first().copied());
    let mut goes_on = call.maybe(1).map(holds).transpose()?.unwrap_or(true);
    let mut carried: Vec<Value> = (2..call.n_inputs()).map(|at| call.value(at).cloned()).collect::<Result<_, _>>()?;
    let n_carried = carried.len();
    let n_scanned = call.node.output.len().saturating_sub(n_carried);
    let mut scanned: Vec<Vec<Value>> = vec![Vec::new(); n_scanned];
    let mut round = 0_i64;
    while goes_on && most.is_none_or(|most| round < most) {
        let number = call.typed(Tensor::f_scalar_tensor(round, (Kind::Int64, Device::Cpu))?, DType::I64)?;
        let condition = call.typed(Tensor::f_scalar_tensor(1_i64, (Kind::Int64, Device::Cpu))?, DType::Bool)?;
        let inputs = [number, condition].into_iter().chain(carried).collect();
        let mut made = call.bodies.run("body", inputs)?.into_iter();
        goes_on = holds(&made.next().ok_or_else(|| Failure::Said("the body gives no condition".to_owned()))?)?;
        carried = made.by_ref().take(n_carried).collect();
        for (all, one) in scanned.iter_mut().zip(made) {
            all.push(one);
        }
        round += 1;
    }
    let scanned = scanned.iter().map(|rounds| stacked(call, rounds, 0, false));
    carried.into_iter().map(Ok).chain(scanned).collect()
}

/// What a Scan goes over.
struct Scanned {
    states: Vec<Value>,
    /// (value, axis, backward).
    inputs: Vec<(Value, i64, bool)>,
}

fn scan(call: &Call<'_>) -> Outputs {
    let listed = |name: &str| -> Result<Vec<i64>, Failure> { Ok(call.ints(name)?.unwrap_or_default()) };
    let n_scanned = call.int("num_scan_inputs", 0)?.max(0) as usize;
    if call.opset < 9 {
        return scan_batches(call, n_scanned, &listed("directions")?);
    }
    let n_states = call.n_inputs().saturating_sub(n_scanned);
    let (input_axes, input_ways) = (listed("scan_input_axes")?, listed("scan_input_directions")?);
    let states = (0..n_states).map(|at| call.value(at).cloned()).collect::<Result<_, _>>()?;
    let mut inputs = Vec::with_capacity(n_scanned);
    for n in 0..n_scanned {
        let value = call.value(n_states + n)?;
        let at = axis(input_axes.get(n).copied().unwrap_or(0), value.tensor.dim())? as i64;
        inputs.push((value.clone(), at, input_ways.get(n) == Some(&1)));
    }
    let (axes, ways) = (listed("scan_output_axes")?, listed("scan_output_directions")?);
    scan_once(call, Scanned { states, inputs }, &axes, &ways)
}

/// Of opset 8: (lengths, states, inputs), each but the first with an axis of batches before its own.
fn scan_batches(call: &Call<'_>, n_scanned: usize, ways: &[i64]) -> Outputs {
    let n_states = call.n_inputs().saturating_sub(n_scanned + 1);
    let n_batches = call.value(1)?.dims().first().copied().unwrap_or(0);
    let lengths = call.maybe_ints_of(0)?;
    let mut batches: Vec<Vec<Value>> = Vec::new();
    for batch in 0..n_batches {
        let of_batch = |at: usize| {
            let value = call.value(1 + at)?;
            call.typed(value.tensor.f_select(0, batch)?, value.dtype)
        };
        let states = (0..n_states).map(of_batch).collect::<Result<_, Failure>>()?;
        let length = lengths.as_ref().and_then(|lengths| lengths.get(batch as usize)).copied();
        let input = |n: usize| {
            let value = of_batch(n_states + n)?;
            let tensor = length
                .map_or_else(|| Ok(value.tensor.shallow_clone()), |length| value.tensor.f_narrow(0, 0, length))?;
            Ok((call.typed(tensor, value.dtype)?, 0, ways.get(n) == Some(&1)))
        };
        let inputs = (0..n_scanned).map(input).collect::<Result<_, Failure>>()?;
        batches.push(scan_once(call, Scanned { states, inputs }, &[], &[])?);
    }
    let n_outputs = batches.first().map_or(0, Vec::len);
    let together = |at: usize| {
        let values: Vec<Value> = batches.iter().filter_map(|batch| batch.get(at).cloned()).collect();
        stacked(call, &values, 0, false)
    };
    (0..n_outputs).map(together).collect()
}

fn scan_once(call: &Call<'_>, scanned: Scanned, axes: &[i64], ways: &[i64]) -> Outputs {
    let Scanned { mut states, inputs } = scanned;
    let n_states = states.len();
    let size = |(value, at, _): &(Value, i64, bool)| value.tensor.size().get(*at as usize).copied().unwrap_or(0);
    let length = inputs.first().map_or(0, size);
    let n_outputs = call.node.output.len().saturating_sub(n_states);
    let mut outputs: Vec<Vec<Value>> = vec![Vec::new(); n_outputs];
    for round in 0..length {
        let slice = |(value, at, backward): &(Value, i64, bool)| {
            let round = if *backward { length - 1 - round } else { round };
            call.typed(value.tensor.f_select(*at, round)?, value.dtype)
        };
        let slices = inputs.iter().map(slice).collect::<Result<Vec<_>, Failure>>()?;
        let mut made = call.bodies.run("body", states.into_iter().chain(slices).collect())?.into_iter();
        states = made.by_ref().take(n_states).collect();
        for (all, one) in outputs.iter_mut().zip(made) {
            all.push(one);
        }
    }
    let stack = |(n, rounds): (usize, &Vec<Value>)| {
        let rank = rounds.first().map_or(1, |value| value.tensor.dim() + 1);
        let at = axis(axes.get(n).copied().unwrap_or(0), rank)? as i64;
        stacked(call, rounds, at, ways.get(n) == Some(&1))
    };
    states.into_iter().map(Ok).chain(outputs.iter().enumerate().map(stack)).collect()
}
