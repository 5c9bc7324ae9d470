//! Recurrent layers, a step at a time.

use tch::{Device, Tensor};

use crate::runtime::torch::call::{Call, Outputs, Table};
use crate::runtime::torch::failure::{Failure, fail};

pub(super) const TABLE: Table =
    &[("", "GRU", |call| layer(call, 3)), ("", "LSTM", |call| layer(call, 4)), ("", "RNN", |call| layer(call, 1))];

/// One direction's weights.
struct Cell<'a> {
    call: &'a Call<'a>,
    input: Tensor,
    recurrent: Tensor,
    /// Of the input's product and of the recurrent one.
    biases: (Tensor, Tensor),
    /// Of LSTM: of input, output and forget gates.
    peepholes: Vec<Tensor>,
}

impl Cell<'_> {
    /// (hidden, cell) after an element of the sequence.
    fn step(&self, x: &Tensor, hidden: &Tensor, cell: &Tensor) -> Result<(Tensor, Tensor), Failure> {
        let of_input = x.f_matmul(&self.input)?.f_add(&self.biases.0)?;
        let of_hidden = hidden.f_matmul(&self.recurrent)?.f_add(&self.biases.1)?;
        match self.call.node.op_type() {
            "RNN" => Ok((of_input.f_add(&of_hidden)?.f_tanh()?, cell.shallow_clone())),
            "GRU" => Ok((self.gru(&of_input, &of_hidden, hidden)?, cell.shallow_clone())),
            _ => self.lstm(&of_input.f_add(&of_hidden)?, cell),
        }
    }

    fn gru(&self, of_input: &Tensor, of_hidden: &Tensor, hidden: &Tensor) -> Result<Tensor, Failure> {
        let (i, h) = (of_input.f_chunk(3, -1)?, of_hidden.f_chunk(3, -1)?);
        let update = i[0].f_add(&h[0])?.f_sigmoid()?;
        let reset = i[1].f_add(&h[1])?.f_sigmoid()?;
        let new = if self.call.flag("linear_before_reset", false)? {
            i[2].f_add(&reset.f_mul(&h[2])?)?
        } else {
            let (weights, biases) = (self.recurrent.f_chunk(3, 1)?, self.biases.1.f_chunk(3, -1)?);
            i[2].f_add(&reset.f_mul(hidden)?.f_matmul(&weights[2])?)?.f_add(&biases[2])?
        };
        let new = new.f_tanh()?;
        Ok(new.f_add(&update.f_mul(&hidden.f_sub(&new)?)?)?)
    }

    fn lstm(&self, gates: &Tensor, cell: &Tensor) -> Result<(Tensor, Tensor), Failure> {
        let gates = gates.f_chunk(4, -1)?;
        let peeped = |gate: usize, peephole: usize, cell: &Tensor| -> Result<Tensor, Failure> {
            match self.peepholes.get(peephole) {
                Some(weights) => Ok(gates[gate].f_add(&weights.f_mul(cell)?)?.f_sigmoid()?),
                None => Ok(gates[gate].f_sigmoid()?),
            }
        };
        let (input, forget) = (peeped(0, 0, cell)?, peeped(2, 2, cell)?);
        let cell = forget.f_mul(cell)?.f_add(&input.f_mul(&gates[3].f_tanh()?)?)?;
        Ok((peeped(1, 1, &cell)?.f_mul(&cell.f_tanh()?)?, cell))
    }
}

/// Weights as ONNX has them: [directions, gates × hidden, …].
fn layer(call: &Call<'_>, gates: i64) -> Outputs {
    let plain = ["activations", "activation_alpha", "activation_beta", "clip"];
    if let Some(given) = call.node.attribute.iter().find(|given| plain.contains(&given.name())) {
        let is_default =
            given.name() == "activations" && given.strings.iter().all(|name| matches!(&name[..], b"Sigmoid" | b"Tanh"));
        if !is_default {
            return fail(format!("attribute {:?}: no libtorch kernel for other activations", given.name()));
        }
    }
    let batch_first = call.int("layout", 0)? == 1;
    let oriented = |x: &Tensor| if batch_first { x.f_transpose(0, 1) } else { Ok(x.shallow_clone()) };
    let x = oriented(call.tensor(0)?)?;
    let shorter =
        call.maybe_ints_of(4)?.is_some_and(|lengths| lengths.iter().any(|length| x.size().first() != Some(length)));
    if call.flag("input_forget", false)? || shorter {
        return fail("input_forget, and sequences of several lengths: no libtorch kernel for them");
    }
    let (input, recurrent) = (call.tensor(1)?, call.tensor(2)?);
    let (x_dims, kind) = (x.size(), x.f_kind()?);
    if x_dims.len() != 3 {
        return fail(format!("{x_dims:?}: expected rank 3"));
    }
    let &[directions, _, hidden] = recurrent.size().as_slice() else {
        return fail("recurrent weights of another rank");
    };
    let direction = call.text("direction", "forward")?;
    let initial = |at: usize| match call.maybe_tensor(at) {
        Some(given) => oriented(given),
        None => Tensor::f_zeros([directions, x_dims[1], hidden], (kind, Device::Cpu)),
    };
    let (hiddens, cells) = (initial(5)?, initial(6)?);
    let (mut all, mut last_hidden, mut last_cell) = (Vec::new(), Vec::new(), Vec::new());
    for at in 0..directions {
        let biases = match call.maybe_tensor(3) {
            Some(given) => given.f_select(0, at)?,
            None => Tensor::f_zeros([2 * gates * hidden], (kind, Device::Cpu))?,
        };
        let peepholes = call.maybe_tensor(7).map(|given| given.f_select(0, at)?.f_chunk(3, -1)).transpose()?;
        let cell = Cell {
            call,
            input: input.f_select(0, at)?.f_transpose(0, 1)?,
            recurrent: recurrent.f_select(0, at)?.f_transpose(0, 1)?,
            biases: (biases.f_narrow(0, 0, gates * hidden)?, biases.f_narrow(0, gates * hidden, gates * hidden)?),
            peepholes: peepholes.unwrap_or_default(),
        };
        let backward = direction == "reverse" || at == 1;
        let (mut hidden, mut state) = (hiddens.f_select(0, at)?, cells.f_select(0, at)?);
        let mut steps = Vec::new();
        for n in 0..x_dims[0] {
            let n = if backward { x_dims[0] - 1 - n } else { n };
            (hidden, state) = cell.step(&x.f_select(0, n)?, &hidden, &state)?;
            steps.push(hidden.shallow_clone());
        }
        if backward {
            steps.reverse();
        }
        all.push(Tensor::f_stack(&steps, 0)?);
        last_hidden.push(hidden);
        last_cell.push(state);
    }
    // [length, directions, batch, hidden].
    let all = Tensor::f_stack(&all, 1)?;
    let all = if batch_first { all.f_permute([2, 0, 1, 3])? } else { all };
    let together = |states: &[Tensor]| -> Result<Tensor, Failure> { Ok(oriented(&Tensor::f_stack(states, 0)?)?) };
    let mut made = vec![call.like(all)?, call.like(together(&last_hidden)?)?];
    if gates == 4 {
        made.push(call.like(together(&last_cell)?)?);
    }
    Ok(made)
}
