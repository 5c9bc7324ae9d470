//! What is known of a program before its tensors: where each register is kept.

use crate::onnx::{Extent, Op, Program, Step};

/// Where the values of a register are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Input(usize),
    Constant(usize),
    /// A buffer of the scratch; buffers serve one register after the other.
    Buffer(usize),
    Output(usize),
}

/// A program, checked.
#[derive(Debug)]
pub(in crate::runtime::ort) struct Plan {
    pub(super) program: Program,
    /// Of each register.
    pub(super) extents: Vec<Extent>,
    /// Of each register.
    pub(super) places: Vec<Place>,
    /// What each buffer holds: Row or Full.
    pub(super) buffers: Vec<Extent>,
    /// Some step needs whole rows, or a row's value is given: tiles are whole rows.
    pub(super) by_row: bool,
    /// What an element costs, in the steps that are cheapest.
    pub(super) cost: usize,
}

impl Plan {
    pub(in crate::runtime::ort) fn program(&self) -> &Program {
        &self.program
    }

    /// What a register of the program holds.
    pub(in crate::runtime::ort) fn extent(&self, register: usize) -> Extent {
        self.extents[register]
    }

    /// None where the program is none, or gives a register twice.
    pub(in crate::runtime::ort) fn of(program: Program) -> Option<Self> {
        let extents = program.extents().filter(|_| !program.gives_twice())?;
        let (n_inputs, n_constants) = (program.inputs.len(), program.constants.len());
        let mut places: Vec<_> = (0..n_inputs).map(Place::Input).collect();
        places.extend((0..n_constants).map(Place::Constant));
        let first = places.len();
        let mut last_read = vec![0; extents.len()];
        for (at, step) in program.steps.iter().enumerate() {
            step.reads().iter().for_each(|&register| last_read[register] = at);
        }
        let (mut buffers, mut free) = (Vec::new(), Vec::<usize>::new());
        for (at, step) in program.steps.iter().enumerate() {
            let register = first + at;
            let place = match program.outputs.iter().position(|&output| output == register) {
                Some(output) => Place::Output(output),
                None => {
                    let fits = |&buffer: &usize| buffers[buffer] == extents[register];
                    let reused = free.iter().position(fits).map(|place| free.swap_remove(place));
                    Place::Buffer(reused.unwrap_or_else(|| {
                        buffers.push(extents[register]);
                        buffers.len() - 1
                    }))
                }
            };
            places.push(place);
            // Only now: what a step writes is nothing that it reads.
            let mut read = step.reads().to_vec();
            read.sort_unstable();
            read.dedup();
            let done = read.into_iter().filter(|&register| last_read[register] == at);
            free.extend(done.filter_map(|register| match places[register] {
                Place::Buffer(buffer) => Some(buffer),
                _ => None,
            }));
        }
        let reduces = program.steps.iter().any(|step| step.op.reduces());
        let gives_rows = program.outputs.iter().any(|&register| extents[register] == Extent::Row);
        let costs = program.steps.iter().zip(&extents[first..]).map(|(step, &extent)| cost(step, extent));
        let cost = costs.sum::<usize>() + n_inputs + program.outputs.len();
        Some(Self { by_row: reduces || gives_rows, extents, places, buffers, cost, program })
    }
}

/// What a step costs an element.
fn cost(step: &Step, extent: Extent) -> usize {
    match step.op {
        op if op.reduces() => 1,
        _ if extent != Extent::Full => 0,
        Op::Exp | Op::Log | Op::Sigmoid => 8,
        Op::Tanh | Op::Erf => 16,
        Op::Div | Op::Sqrt | Op::Reciprocal => 3,
        _ => 1,
    }
}
