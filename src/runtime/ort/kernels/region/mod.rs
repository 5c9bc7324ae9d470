//! Regions: a program of elementwise steps and reductions of rows, tile by tile.
//!
//! A tile is a few rows, or a part of one where no step needs a whole row; each step goes over it before the next does, so
//! that what lies between is in the cache.

mod cuda;
mod functions;
mod plan;
mod steps;
mod tensors;
#[cfg(test)]
mod tests;

pub(in crate::runtime::ort) use cuda::{DeviceRegion, KernelSource};

use super::processor::Work;
use crate::onnx::{Extent, HIGHEST_RANK};
use plan::Place;
pub(in crate::runtime::ort) use plan::Plan;
use steps::{Source, compute};
pub(in crate::runtime::ort) use tensors::{Elements, broadcast};
use tensors::{Input, Output, Shape, of_row};

/// Elements of a tile: a dozen of them are in the nearest cache.
const TILE: usize = 512;
/// What a task costs at least, in elements times the cheapest steps: some microseconds.
const GRAIN: usize = 1 << 16;

/// A program over its tensors. Numbers are computed in float32; a sum of a row is no further off than pairwise summation.
pub(in crate::runtime::ort) struct Region<'a> {
    plan: &'a Plan,
    shape: Shape,
    inputs: Vec<Input<'a>>,
    outputs: Vec<Output<'a>>,
    /// Of each input that is a number.
    numbers: Vec<f32>,
    tile: [usize; 2],
}

/// A part of the whole.
#[derive(Clone, Copy)]
struct Tile {
    row: usize,
    n_rows: usize,
    column: usize,
    n_columns: usize,
}

impl<'a> Region<'a> {
    /// sizes: what the inputs broadcast to (see [`broadcast`]), as many as the program's rank. outputs: of the whole, or of
    /// a value a row. None where inputs or outputs are others than the program says.
    pub(in crate::runtime::ort) fn new(
        plan: &'a Plan,
        sizes: &[usize],
        inputs: &[(&[i64], Elements<'a>)],
        outputs: Vec<&'a mut [f32]>,
    ) -> Option<Self> {
        let expected = [plan.program.inputs.len(), plan.program.outputs.len(), plan.program.rank];
        if [inputs.len(), outputs.len(), sizes.len()] != expected || sizes.len() > HIGHEST_RANK {
            return None;
        }
        let shapes: Vec<&[i64]> = inputs.iter().map(|&(shape, _)| shape).collect();
        let n_elements = |shape: &[i64]| shape.iter().map(|&size| size as usize).product::<usize>();
        if inputs.iter().any(|(shape, elements)| n_elements(shape) != elements.len()) {
            return None;
        }
        let (shape, layouts) = Shape::of(&plan.program.inputs, plan.by_row, sizes, &shapes)?;
        let inputs: Vec<_> =
            inputs.iter().zip(layouts).map(|(&(_, elements), layout)| Input { elements, layout }).collect();
        let outputs: Vec<_> = outputs.into_iter().map(Output::new).collect();
        let fits = outputs.iter().zip(&plan.program.outputs).all(|(output, &register)| {
            let full = plan.extents[register] == Extent::Full;
            output.len() == if full { shape.n_elements() } else { shape.n_rows }
        });
        let number = |input: &Input<'_>| {
            let mut number = [0.0];
            if input.layout.extent == Extent::Number {
                input.elements.read(0, &mut number);
            }
            number[0]
        };
        let numbers = inputs.iter().map(number).collect();
        let n_rows = (TILE / shape.n.max(1)).clamp(1, shape.n_rows.max(1));
        let n_columns = if plan.by_row || n_rows > 1 { shape.n } else { shape.n.min(TILE) };
        fits.then_some(Self { plan, shape, inputs, outputs, numbers, tile: [n_rows, n_columns] })
    }

    /// Tiles of a row, and of all rows.
    fn n_tiles(&self) -> [usize; 2] {
        let across = self.shape.n.div_ceil(self.tile[1].max(1)).max(1);
        [across, across * self.shape.n_rows.div_ceil(self.tile[0])]
    }

    fn tiles_of_task(&self) -> usize {
        GRAIN.div_ceil((self.tile[0] * self.tile[1] * self.plan.cost).max(1))
    }

    fn tile(&self, at: usize) -> Tile {
        let ([across, _], [n_rows, n_columns]) = (self.n_tiles(), self.tile);
        let (row, column) = (at / across * n_rows, at % across * n_columns);
        Tile {
            row,
            n_rows: n_rows.min(self.shape.n_rows - row),
            column,
            n_columns: n_columns.min(self.shape.n - column),
        }
    }

    /// Whether an input is read where it is.
    #[inline(always)]
    fn is_direct(&self, input: &Input<'_>) -> bool {
        let lies = input.layout.is_dense || self.tile[0] == 1;
        input.layout.extent == Extent::Number || (lies && matches!(input.elements, Elements::F32(_)))
    }

    /// Whether an input's tiles are all the same.
    #[inline(always)]
    fn is_constant(&self, input: &Input<'_>) -> bool {
        input.layout.is_one_row && self.tile[1] == self.shape.n
    }

    /// Elements of a tile, at most, of this extent.
    fn most(&self, extent: Extent) -> usize {
        self.tile[0] * if extent == Extent::Full { self.tile[1] } else { 1 }
    }

    #[inline(always)]
    fn fill(&self, input: &Input<'_>, tile: &Tile, to: &mut [f32]) {
        let Tile { row, n_rows, column, n_columns } = *tile;
        let Input { elements, layout } = input;
        let (n, column) = if layout.extent == Extent::Full { (n_columns, column) } else { (1, 0) };
        if layout.is_dense && n == of_row(layout.extent, self.shape.n) {
            return elements.read(self.shape.start(layout, row), &mut to[..n_rows * n]);
        }
        for (at, to) in to.chunks_exact_mut(n.max(1)).take(n_rows).enumerate() {
            elements.read(self.shape.start(layout, row + at) + column, to);
        }
    }
}

impl Work for Region<'_> {
    type Scratch = Vec<f32>;

    fn n_tasks(&self) -> usize {
        self.n_tiles()[1].div_ceil(self.tiles_of_task())
    }

    fn scratch(&self) -> Vec<f32> {
        Vec::new()
    }

    #[inline(always)]
    fn task<const FMA: bool>(&self, task: usize, scratch: &mut Vec<f32>) {
        let extents = &self.plan.buffers;
        let copied: Vec<usize> = (0..self.inputs.len()).filter(|&at| !self.is_direct(&self.inputs[at])).collect();
        let all = extents.iter().copied().chain(copied.iter().map(|&at| self.inputs[at].layout.extent));
        let sizes: Vec<usize> = all.map(|extent| self.most(extent)).collect();
        scratch.resize(sizes.iter().sum(), 0.0);
        let mut buffers: Vec<&mut [f32]> = Vec::with_capacity(sizes.len());
        let mut left = scratch.as_mut_slice();
        for size in sizes {
            let (buffer, rest) = left.split_at_mut(size);
            buffers.push(buffer);
            left = rest;
        }
        let from = task * self.tiles_of_task();
        let to = (from + self.tiles_of_task()).min(self.n_tiles()[1]);
        let mut parts = Vec::with_capacity(self.outputs.len());
        for at in from..to {
            let tile = self.tile(at);
            for (place, &input) in copied.iter().enumerate() {
                let input = &self.inputs[input];
                if at == from || !self.is_constant(input) {
                    self.fill(input, &tile, buffers[extents.len() + place]);
                }
            }
            parts.clear();
            for (output, &register) in self.outputs.iter().zip(&self.plan.program.outputs) {
                let (at, len) = match self.plan.extents[register] {
                    Extent::Full => (tile.row * self.shape.n + tile.column, tile.n_rows * tile.n_columns),
                    _ => (tile.row, tile.n_rows),
                };
                // SAFETY: tiles are apart, and the last one's parts are gone. Of a row that comes in several tiles no
                // value of the row is given (`Plan::by_row`).
                parts.push(unsafe { output.part(at, len) });
            }
            self.steps::<FMA>(&tile, &copied, &mut buffers, &mut parts);
        }
    }
}

impl Region<'_> {
    #[inline(always)]
    fn steps<'b, const FMA: bool>(
        &self,
        tile: &Tile,
        copied: &[usize],
        buffers: &mut [&'b mut [f32]],
        parts: &mut [&'b mut [f32]],
    ) {
        let first = self.plan.extents.len() - self.plan.program.steps.len();
        let len = |extent: Extent| tile.n_rows * if extent == Extent::Full { tile.n_columns } else { 1 };
        for (at, step) in self.plan.program.steps.iter().enumerate() {
            let (place, extent) = (self.plan.places[first + at], self.plan.extents[first + at]);
            let out = match place {
                Place::Buffer(buffer) => std::mem::take(&mut buffers[buffer]),
                Place::Output(output) => std::mem::take(&mut parts[output]),
                _ => unreachable!("a step's register is a buffer or an output"),
            };
            let is_row = extent == Extent::Row && !step.op.reduces();
            let source = |register: usize| {
                let extent = self.plan.extents[register];
                let values: &[f32] = match self.plan.places[register] {
                    Place::Constant(constant) => return Source::One(self.plan.program.constants[constant]),
                    Place::Input(input) if extent == Extent::Number => return Source::One(self.numbers[input]),
                    Place::Input(input) => match (self.inputs[input].elements, copied.binary_search(&input)) {
                        (_, Ok(copy)) => &buffers[self.plan.buffers.len() + copy][..len(extent)],
                        (Elements::F32(elements), _) => {
                            let column = if extent == Extent::Full { tile.column } else { 0 };
                            let start = self.shape.start(&self.inputs[input].layout, tile.row) + column;
                            &elements[start..][..len(extent)]
                        }
                        _ => unreachable!("other elements are copied"),
                    },
                    Place::Buffer(buffer) => &buffers[buffer][..len(extent)],
                    Place::Output(output) => &*parts[output],
                };
                match extent {
                    Extent::Full => Source::Each(values),
                    _ if is_row => Source::Each(values),
                    _ => Source::Rows(values),
                }
            };
            let [a, b, c] = step.operands;
            // Those that the operator does not take read its first.
            let arity = step.op.arity();
            let sources = [source(a), source(if arity > 1 { b } else { a }), source(if arity > 2 { c } else { a })];
            let n = if is_row { 1 } else { tile.n_columns };
            compute::<FMA>(step.op, sources, n, &mut out[..len(extent)]);
            match place {
                Place::Buffer(buffer) => buffers[buffer] = out,
                Place::Output(output) => parts[output] = out,
                _ => {}
            }
        }
    }
}
