//! Regions on CUDA: a kernel of each, compiled when a session is made.

mod region;
mod source;
#[cfg(test)]
mod tests;

use super::tensors::{Layout, Shape, of_row};
use crate::onnx::{Extent, TypedProgram};
use crate::tensor::DType;
pub(in crate::runtime::ort) use region::DeviceRegion;
use region::{BLOCK, Form, KEPT, LONGEST_ROW, Rows, WARP};
pub(in crate::runtime::ort) use source::KernelSource;

/// What a kernel is launched with.
#[derive(Debug)]
pub(in crate::runtime::ort) struct Launch {
    /// The kernel's one parameter.
    pub(in crate::runtime::ort) task: Vec<u64>,
    pub(in crate::runtime::ort) n_blocks: u32,
    pub(in crate::runtime::ort) n_threads: u32,
}

/// What inputs broadcast to, and how each lies.
pub(in crate::runtime::ort) struct Fitted {
    shape: Shape,
    layouts: Vec<Layout>,
    wide: bool,
}

impl Fitted {
    /// The kernel is that of [`DeviceRegion::wide_source`].
    pub(in crate::runtime::ort) fn is_wide(&self) -> bool {
        self.wide
    }
}

impl DeviceRegion {
    /// None where the program is none, or has more than a kernel's parameter holds.
    pub(in crate::runtime::ort) fn of(typed: TypedProgram) -> Option<Self> {
        let program = &typed.program;
        let mut extents = program.extents()?;
        if [typed.inputs.len(), typed.outputs.len()] != [program.inputs.len(), program.outputs.len()]
            || typed.inputs.iter().chain(&typed.outputs).any(|&dtype| !TypedProgram::takes(dtype))
            || program.inputs.len() > TypedProgram::MOST_TENSORS
            || program.outputs.len() > TypedProgram::MOST_TENSORS
        {
            return None;
        }
        if !extents.contains(&Extent::Full) {
            for extent in extents.iter_mut().filter(|extent| **extent == Extent::Row) {
                *extent = Extent::Full;
            }
        }
        let first = program.inputs.len() + program.constants.len();
        let mut levels = vec![0; first];
        for step in &program.steps {
            let level = step.reads().iter().map(|&register| levels[register]).max().unwrap_or(0);
            levels.push(level + usize::from(step.op.reduces()));
        }
        let mut live = vec![false; extents.len()];
        program.outputs.iter().for_each(|&register| live[register] = true);
        for (at, step) in program.steps.iter().enumerate().rev() {
            if live[first + at] {
                step.reads().iter().for_each(|&register| live[register] = true);
            }
        }
        let gives_rows = program.outputs.iter().any(|&register| extents[register] == Extent::Row);
        let by_row = gives_rows || program.steps.iter().any(|step| step.op.reduces());
        let is_half = |dtype: &DType| matches!(dtype, DType::BF16 | DType::F16);
        let width = if typed.inputs.iter().chain(&typed.outputs).any(is_half) { 8 } else { 4 };
        Some(Self { typed, extents, levels, live, by_row, width })
    }

    /// The program, with its types.
    pub(in crate::runtime::ort) fn typed(&self) -> &TypedProgram {
        &self.typed
    }

    /// The source of its kernel, and the kernel's name.
    pub(in crate::runtime::ort) fn source(&self) -> KernelSource {
        source::source(self, self.form(false))
    }

    /// The same for more elements than have numbers of 32 bits.
    pub(in crate::runtime::ort) fn wide_source(&self) -> KernelSource {
        source::source(self, self.form(true))
    }

    fn form(&self, wide: bool) -> Form {
        if !self.by_row {
            return Form::Elements { wide };
        }
        let Some(n) = self.typed.row.filter(|&n| n <= LONGEST_ROW) else {
            return Form::Rows(Rows { threads: BLOCK, kept: None, n: None });
        };
        let packs = n.div_ceil(self.width).max(1);
        let (threads, _) = [(WARP, 2), (128, 2), (256, 2), (512, 4)]
            .into_iter()
            .find(|&(threads, most)| packs <= threads * most)
            .unwrap_or((1024, 0));
        let of_input = |(at, dtype): (usize, &DType)| match self.live[at] && self.extents[at] == Extent::Full {
            true => (self.width * dtype.size_bytes()).div_ceil(4),
            false => 0,
        };
        let registers: usize = self.typed.inputs.iter().enumerate().map(of_input).sum();
        let times = packs.div_ceil(threads);
        Form::Rows(Rows { threads, kept: (times * registers <= KEPT).then_some(times), n: Some(n) })
    }

    /// How inputs of these shapes lie; `sizes`: what they broadcast to. Errors: why they are not those that the program says.
    pub(in crate::runtime::ort) fn fit(&self, sizes: &[usize], shapes: &[&[i64]]) -> Result<Fitted, &'static str> {
        if [shapes.len(), sizes.len()] != [self.typed.inputs.len(), self.typed.program.rank] {
            return Err("their number is another");
        }
        let extents = &self.extents[..self.typed.inputs.len()];
        let (shape, layouts) =
            Shape::of(extents, self.by_row, sizes, shapes).ok_or("one is no row's, no number, or no whole")?;
        let n_packs = shape.n.div_ceil(self.width);
        let wide = [Some(shape.n), shape.n_rows.checked_mul(n_packs), Some(shape.n_rows)]
            .into_iter()
            .any(|n| n.is_none_or(|n| n >= u32::MAX as usize));
        if !self.by_row {
            return Ok(Fitted { shape, layouts, wide });
        }
        if shape.n > LONGEST_ROW || shape.n_rows >= i32::MAX as usize {
            return Err("a row has too many elements, or there are too many rows");
        }
        match self.form(false) {
            Form::Rows(Rows { n: Some(n), .. }) if n != shape.n => Err("a row has another length"),
            _ => Ok(Fitted { shape, layouts, wide: false }),
        }
    }

    /// The shape of an output, of tensors that broadcast to `sizes`.
    pub(in crate::runtime::ort) fn output_shape(&self, output: usize, sizes: &[usize]) -> Vec<i64> {
        let mut shape: Vec<i64> = sizes.iter().map(|&size| size as i64).collect();
        let is_row = self.extents[self.typed.program.outputs[output]] == Extent::Row;
        if let Some(last) = shape.last_mut().filter(|_| is_row) {
            *last = 1;
        }
        shape
    }

    /// What the kernel is launched with; None where there is nothing to do. Addresses of inputs and outputs.
    pub(in crate::runtime::ort) fn launch(&self, fitted: &Fitted, inputs: &[u64], outputs: &[u64]) -> Option<Launch> {
        let Fitted { shape, layouts, wide } = fitted;
        let n_packs = shape.n.div_ceil(self.width);
        let (n_blocks, n_threads) = match self.form(*wide) {
            Form::Elements { .. } => ((shape.n_rows * n_packs).div_ceil(BLOCK), BLOCK),
            Form::Rows(rows) => (shape.n_rows.div_ceil(rows.block() / rows.threads), rows.block()),
        };
        let n_blocks = u32::try_from(n_blocks).ok().filter(|&n| n > 0)?;
        let mut task = vec![shape.n_rows as u64, shape.n as u64, n_packs as u64, shape.n_outer as u64];
        task.push(self.whole(fitted, inputs, outputs));
        task.extend(shape.sizes.iter().map(|&size| size as u64));
        task.extend(layouts.iter().flat_map(|layout| layout.strides).map(|stride| stride as u64));
        task.extend(inputs.iter().chain(outputs));
        Some(Launch { task, n_blocks, n_threads: n_threads as u32 })
    }

    /// A bit for each tensor whose packs lie where a pack may be taken at once.
    fn whole(&self, fitted: &Fitted, inputs: &[u64], outputs: &[u64]) -> u64 {
        let Fitted { shape, layouts, .. } = fitted;
        let lies = |address: u64, dtype: DType, mut strides: std::slice::Iter<'_, usize>| {
            let bytes = |n: usize| n * dtype.size_bytes();
            let pack = bytes(self.width).min(16);
            address.is_multiple_of(pack as u64) && strides.all(|&stride| bytes(stride).is_multiple_of(pack))
        };
        let of_inputs = (inputs.iter().zip(&self.typed.inputs).zip(layouts))
            .map(|((&address, &dtype), layout)| lies(address, dtype, layout.strides[..shape.n_outer].iter()));
        let between_rows = if shape.n_rows > 1 { of_row(Extent::Full, shape.n) } else { 0 };
        let of_outputs = (outputs.iter().zip(&self.typed.outputs))
            .map(|(&address, &dtype)| lies(address, dtype, [between_rows].iter()));
        of_inputs.chain(of_outputs).enumerate().fold(0, |bits, (at, lies)| bits | u64::from(lies) << at)
    }
}
