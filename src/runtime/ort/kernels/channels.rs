//! Convolutions that give a channel from channels of its own ("depthwise"), and what their gradients are: float32, of two
//! spatial dimensions.
//!
//! A plane is laid out so that each element of the kernel meets one run of elements: windows that move by s rows and
//! columns read s² smaller planes, one after the other, with the margin's zeros in them. Between two rows of the result
//! stand numbers that nobody reads.

use std::sync::Mutex;

use super::element::Real as _;
use super::processor::Work;
use crate::base::sync::lock;

/// Elements of a result that are in registers at once, and to which the end of a run is rounded up.
const RUN: usize = 64;
/// Sums side by side of one dot product: a vector of AVX2.
const LANES: usize = 8;
/// Dot products at once.
const DOTS: usize = 8;
/// Products that are added up in a row before the sum goes to the others'.
const BLOCK: usize = 512;
/// Most elements of a result whose plane is computed as dot products, where its kernel has more.
const MOST_DOTS: usize = 100;
/// Products that a task computes, or more.
const TASK: usize = 1 << 16;

/// Rows and columns.
type Two = [usize; 2];

/// How a kernel moves over a plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::runtime::ort) struct Window {
    /// Elements from one place of the kernel to the next.
    pub(in crate::runtime::ort) stride: Two,
    /// Elements of the plane from one of the kernel's elements to the next.
    pub(in crate::runtime::ort) dilation: Two,
    /// Zeros before the plane's first row and column.
    pub(in crate::runtime::ort) before: Two,
}

/// Sizes of an input [batch, channels × inner, rows, columns], a weight [channels, inner, rows, columns] and an output
/// [batch, channels, rows, columns].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::runtime::ort) struct Sizes {
    pub(in crate::runtime::ort) batch: usize,
    pub(in crate::runtime::ort) channels: usize,
    /// Channels of the input that a channel of the output is made of; 1 of a transposed convolution.
    pub(in crate::runtime::ort) inner: usize,
    pub(in crate::runtime::ort) input: Two,
    pub(in crate::runtime::ort) kernel: Two,
    pub(in crate::runtime::ort) output: Two,
}

/// Which way a kernel goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::runtime::ort) enum Direction {
    /// Each element of the output is a sum over a window of the input.
    Plain,
    /// Each element of the input is spread over a window of the output.
    Transposed,
}

/// A convolution of each channel, plain or transposed, with a bias or none. Sums of an element are of float32, in the same
/// order whatever the number of threads. What a margin's zeros meet is not multiplied where it is not finite.
pub(in crate::runtime::ort) struct Channels<'a> {
    input: &'a [f32],
    weight: &'a [f32],
    bias: Option<&'a [f32]>,
    sizes: Sizes,
    window: Window,
    direction: Direction,
    way: Way,
    planes_a_task: usize,
    /// Of each task, its planes of the output.
    outputs: Vec<Mutex<&'a mut [f32]>>,
}

/// How a plane is computed, from an input that is laid out.
struct Way {
    read: Phases,
    sums: Sums,
}

enum Sums {
    /// All of a run of the output at once, one element of the kernel after the other.
    Runs(Vec<Run>),
    /// Each element of the output as a dot product of what the kernel covers; where each starts to read.
    Dots(Vec<usize>),
}

/// A part of the output whose elements stand in one run, and what gives it.
struct Run {
    /// Rows and columns; elements from one row to the next.
    sizes: Two,
    pitch: usize,
    /// Elements of the output from one of the run to the next, by row and column; the first one's place, with the margin.
    step: Two,
    first: Two,
    margin: Two,
    /// (Where a kernel's element starts to read, its index in the kernel.)
    taps: Vec<(usize, usize)>,
}

/// Planes each of which has every `step`th element of a larger one's rows and columns.
#[derive(Clone, Copy)]
struct Phases {
    step: Two,
    /// Rows of each; elements from one row to the next.
    rows: usize,
    pitch: usize,
    /// Place of the plane's first element in the larger one, whose others are zero.
    before: Two,
}

impl Phases {
    /// Those of a plane of which windows read the first `extent` rows and columns, margin included.
    fn of(extent: Two, step: Two, before: Two) -> Self {
        Self { step, rows: extent[0].div_ceil(step[0]), pitch: extent[1].div_ceil(step[1]), before }
    }

    fn len(&self) -> usize {
        self.step[0] * self.step[1] * self.rows * self.pitch
    }

    /// Where the element of a row and column, margin included, stands.
    fn place(&self, [row, column]: Two) -> usize {
        let phase = row % self.step[0] * self.step[1] + column % self.step[1];
        (phase * self.rows + row / self.step[0]) * self.pitch + column / self.step[1]
    }

    /// Lays out a plane. into: zero where nothing of a plane of these sizes comes to stand.
    #[inline(always)]
    fn fill(&self, plane: &[f32], [rows, columns]: Two, into: &mut [f32]) {
        let width = columns.min((self.pitch * self.step[1]).saturating_sub(self.before[1]));
        let height = rows.min((self.rows * self.step[0]).saturating_sub(self.before[0]));
        if width == 0 {
            return;
        }
        for (row, elements) in plane.chunks_exact(columns).take(height).enumerate() {
            let elements = &elements[..width];
            for phase in 0..self.step[1].min(width) {
                let to = &mut into[self.place([row + self.before[0], phase + self.before[1]])..];
                match self.step[1] {
                    1 => to[..width].copy_from_slice(elements),
                    2 => every::<2>(&elements[phase..], to),
                    step => every_of(&elements[phase..], step, to),
                }
            }
        }
    }
}

/// Every STEPth element, from the first on: as the next, which compilers know no vectors for.
#[inline(always)]
fn every<const STEP: usize>(elements: &[f32], to: &mut [f32]) {
    let (groups, rest) = elements.as_chunks::<STEP>();
    let (whole, last) = to.split_at_mut(groups.len());
    for (to, group) in whole.iter_mut().zip(groups) {
        *to = group[0];
    }
    if let (Some(element), Some(to)) = (rest.first(), last.first_mut()) {
        *to = *element;
    }
}

/// Elements in a row to every STEPth, from the first on.
#[inline(always)]
fn to_every<const STEP: usize>(elements: &[f32], to: &mut [f32]) {
    let (groups, rest) = to.as_chunks_mut::<STEP>();
    let n_groups = groups.len();
    for (group, &element) in groups.iter_mut().zip(elements) {
        group[0] = element;
    }
    if let (Some(to), Some(element)) = (rest.first_mut(), elements.get(n_groups)) {
        *to = *element;
    }
}

#[inline(always)]
fn every_of(elements: &[f32], step: usize, to: &mut [f32]) {
    for (to, &element) in to.iter_mut().zip(elements.iter().step_by(step)) {
        *to = element;
    }
}

/// A thread's memory.
pub(in crate::runtime::ort) struct Scratch {
    /// A plane of the input, laid out.
    read: Vec<f32>,
    /// A run of the output, or a plane of the kernel, laid out.
    run: Vec<f32>,
    /// (Where an element of the kernel starts to read, the element.)
    taps: Vec<(usize, f32)>,
}

impl<'a> Channels<'a> {
    /// Errors: lengths and sizes that do not fit together, in words.
    pub(in crate::runtime::ort) fn new(
        [input, weight]: [&'a [f32]; 2],
        bias: Option<&'a [f32]>,
        output: &'a mut [f32],
        sizes: Sizes,
        window: Window,
        direction: Direction,
    ) -> Result<Self, String> {
        let product = |all: &[usize]| all.iter().try_fold(1_usize, |all, &one| all.checked_mul(one));
        let Sizes { batch, channels, inner, input: [h, w], kernel, output: [rows, columns] } = sizes;
        let fits = product(&[batch, channels, inner, h, w]) == Some(input.len())
            && product(&[channels, inner, kernel[0], kernel[1]]) == Some(weight.len())
            && product(&[batch, channels, rows, columns]) == Some(output.len())
            && bias.is_none_or(|bias| bias.len() == channels)
            && (direction == Direction::Plain || inner == 1)
            && window.stride.iter().chain(&window.dilation).chain(&kernel).all(|&size| size > 0);
        if !fits {
            return Err(format!("{sizes:?}, {window:?} with {} and {} elements", input.len(), weight.len()));
        }
        let (plane, of_kernel) = (rows * columns, kernel[0] * kernel[1]);
        let way = match direction {
            Direction::Transposed => transposed(sizes, window),
            Direction::Plain if plane <= MOST_DOTS && of_kernel > plane => dots(sizes, window),
            Direction::Plain => plain(sizes, window),
        };
        let products = (plane * of_kernel * inner).max(1);
        let planes_a_task = TASK.div_ceil(products);
        let outputs = output.chunks_mut((planes_a_task * plane).max(1)).map(Mutex::new).collect();
        Ok(Self { input, weight, bias, sizes, window, direction, way, planes_a_task, outputs })
    }

    /// A plane of the output. number: of it, channel by channel within each of the batch.
    #[inline(always)]
    fn plane<const FMA: bool>(&self, number: usize, output: &mut [f32], scratch: &mut Scratch) {
        let Sizes { channels, inner, input: [rows, columns], kernel, .. } = self.sizes;
        let channel = number % channels;
        let of_input = inner * rows * columns;
        let input = &self.input[(number / channels * channels + channel) * of_input..][..of_input];
        let of_weight = inner * kernel[0] * kernel[1];
        let weight = &self.weight[channel * of_weight..][..of_weight];
        let bias = self.bias.map_or(0.0, |bias| bias[channel]);
        match &self.way.sums {
            // Where a weight is not finite a margin's zeros would give NaN.
            Sums::Runs(runs) if weight.iter().all(|weight| weight.is_finite()) => {
                for (at, run) in runs.iter().enumerate() {
                    self.run::<FMA>(run, [input, weight], bias, at == 0, scratch);
                    run.spread(&scratch.run, output, self.sizes.output);
                }
            }
            Sums::Runs(_) => self.one_by_one([input, weight], bias, output),
            Sums::Dots(starts) => {
                self.dots::<FMA>(starts, [input, weight], output, scratch);
                // The zeros between the kernel's rows were multiplied by elements that it does not meet.
                if output.iter().all(|sum| sum.is_finite()) {
                    output.iter_mut().for_each(|sum| *sum += bias);
                } else {
                    self.one_by_one([input, weight], bias, output);
                }
            }
        }
    }

    /// All elements of a run. is_first: of those that are made of one plane.
    #[inline(always)]
    fn run<const FMA: bool>(
        &self,
        run: &Run,
        [input, weight]: [&[f32]; 2],
        bias: f32,
        is_first: bool,
        scratch: &mut Scratch,
    ) {
        let Sizes { input: sizes, kernel, .. } = self.sizes;
        let sums = &mut scratch.run[..run.len().next_multiple_of(RUN)];
        sums.fill(0.0);
        let planes = input.chunks_exact((sizes[0] * sizes[1]).max(1));
        for (plane, weight) in planes.zip(weight.chunks_exact(kernel[0] * kernel[1])) {
            if is_first || self.sizes.inner > 1 {
                self.way.read.fill(plane, sizes, &mut scratch.read);
            }
            scratch.taps.clear();
            scratch.taps.extend(run.taps.iter().map(|&(start, element)| (start, weight[element])));
            for (number, lanes) in sums.as_chunks_mut::<RUN>().0.iter_mut().enumerate() {
                let mut kept = *lanes;
                for &(start, weight) in &scratch.taps {
                    let elements = &scratch.read[start + number * RUN..][..RUN];
                    for (sum, &element) in kept.iter_mut().zip(elements) {
                        *sum = weight.times_plus::<FMA>(element, *sum);
                    }
                }
                *lanes = kept;
            }
        }
        // At last, as ONNX Runtime adds it: sums begin at 0, which -0 is not.
        sums.iter_mut().for_each(|sum| *sum += bias);
    }

    /// All elements of a plane, without the bias.
    #[inline(always)]
    fn dots<const FMA: bool>(
        &self,
        starts: &[usize],
        [input, weight]: [&[f32]; 2],
        output: &mut [f32],
        Scratch { read, run, .. }: &mut Scratch,
    ) {
        let (Sizes { input: sizes, kernel: [rows, columns], .. }, pitch) = (self.sizes, self.way.read.pitch);
        let laid_out = &mut run[..((rows - 1) * pitch + columns).next_multiple_of(LANES)];
        output.fill(0.0);
        let planes = input.chunks_exact((sizes[0] * sizes[1]).max(1));
        for (plane, weight) in planes.zip(weight.chunks_exact(rows * columns)) {
            self.way.read.fill(plane, sizes, read);
            for (row, weight) in weight.chunks_exact(columns).enumerate() {
                laid_out[row * pitch..][..columns].copy_from_slice(weight);
            }
            for (starts, sums) in starts.chunks(DOTS).zip(output.chunks_mut(DOTS)) {
                // Where fewer are left, the first is computed more than once.
                let start: [usize; DOTS] = std::array::from_fn(|at| *starts.get(at).unwrap_or(&starts[0]));
                for (at, weights) in laid_out.chunks(BLOCK).enumerate() {
                    let block = dot_products::<FMA>(weights, start.map(|start| &read[start + at * BLOCK..]));
                    for (sum, block) in sums.iter_mut().zip(block) {
                        *sum += block;
                    }
                }
            }
        }
    }

    /// Slow, without what the margin's zeros would be multiplied by.
    fn one_by_one(&self, [input, weight]: [&[f32]; 2], bias: f32, output: &mut [f32]) {
        let Sizes { input: sizes, kernel, output: out, .. } = self.sizes;
        let Window { stride, dilation, before } = self.window;
        let is_plain = self.direction == Direction::Plain;
        output.fill(0.0);
        let (small, large) = if is_plain { (out, sizes) } else { (sizes, out) };
        let planes = input.chunks_exact((sizes[0] * sizes[1]).max(1));
        for (plane, weight) in planes.zip(weight.chunks_exact(kernel[0] * kernel[1])) {
            for (at, &weight) in weight.iter().enumerate() {
                let tap = [at / kernel[1] * dilation[0], at % kernel[1] * dilation[1]];
                for (row, column) in (0..small[0]).flat_map(|row| (0..small[1]).map(move |column| (row, column))) {
                    let met = [row * stride[0] + tap[0], column * stride[1] + tap[1]];
                    let [Some(y), Some(x)] = [0, 1].map(|axis| met[axis].checked_sub(before[axis])) else { continue };
                    if y >= large[0] || x >= large[1] {
                        continue;
                    }
                    let (small, large) = (row * small[1] + column, y * large[1] + x);
                    let (to, from) = if is_plain { (small, large) } else { (large, small) };
                    output[to] += weight * plane[from];
                }
            }
        }
        output.iter_mut().for_each(|sum| *sum += bias);
    }
}

/// Of each of the runs, the sum of its elements' products with the weights, as many as these are: a multiple of LANES.
#[inline(always)]
fn dot_products<const FMA: bool>(weights: &[f32], runs: [&[f32]; DOTS]) -> [f32; DOTS] {
    let runs = runs.map(|run| run[..weights.len()].as_chunks::<LANES>().0);
    let mut sums = [[0.0_f32; LANES]; DOTS];
    for (at, weights) in weights.as_chunks::<LANES>().0.iter().enumerate() {
        for (sums, run) in sums.iter_mut().zip(runs) {
            let elements = run[at];
            *sums = std::array::from_fn(|lane| weights[lane].times_plus::<FMA>(elements[lane], sums[lane]));
        }
    }
    sums.map(|sums| sums.iter().sum())
}

/// Rows or columns that the windows of `n_places` places cover.
fn extent(n_places: usize, step: usize, n_kernel: usize, dilation: usize) -> usize {
    n_places.saturating_sub(1) * step + (n_kernel - 1) * dilation + 1
}

fn plain(sizes: Sizes, Window { stride, dilation, before }: Window) -> Way {
    let covered = [0, 1].map(|axis| extent(sizes.output[axis], stride[axis], sizes.kernel[axis], dilation[axis]));
    let read = Phases::of(covered, stride, before);
    let starts = places(sizes.kernel).map(|tap| read.place([tap[0] * dilation[0], tap[1] * dilation[1]]));
    let taps = starts.enumerate().map(|(at, start)| (start, at)).collect();
    let run = Run { sizes: sizes.output, pitch: read.pitch, step: [1; 2], first: [0; 2], margin: [0; 2], taps };
    Way { read, sums: Sums::Runs(vec![run]) }
}

/// Stride and dilation change places: the kernel's elements stand in a run.
fn dots(sizes: Sizes, Window { stride, dilation, before }: Window) -> Way {
    let covered = [0, 1].map(|axis| extent(sizes.output[axis], stride[axis], sizes.kernel[axis], dilation[axis]));
    let read = Phases::of(covered, dilation, before);
    let starts = places(sizes.output).map(|at| read.place([at[0] * stride[0], at[1] * stride[1]])).collect();
    Way { read, sums: Sums::Dots(starts) }
}

/// Every `stride`th row and column of the output is a run: the same elements of the kernel give it.
fn transposed(sizes: Sizes, Window { stride, dilation, before }: Window) -> Way {
    let reach = [0, 1].map(|axis| (sizes.kernel[axis] - 1) * dilation[axis] / stride[axis]);
    let of_run = [0, 1].map(|axis| (before[axis] + sizes.output[axis]).saturating_sub(1) / stride[axis] + 1);
    let read = Phases::of([of_run[0] + reach[0], of_run[1] + reach[1]], [1; 2], reach);
    let run = |first: Two| {
        let met = places(sizes.kernel).map(|tap| [tap[0] * dilation[0], tap[1] * dilation[1]]);
        let taps = met.enumerate().filter(|(_, met)| (0..2).all(|axis| met[axis] % stride[axis] == first[axis]));
        let start = |met: Two| read.place([0, 1].map(|axis| reach[axis] - met[axis] / stride[axis]));
        let taps = taps.map(|(at, met)| (start(met), at)).collect();
        Run { sizes: of_run, pitch: read.pitch, step: stride, first, margin: before, taps }
    };
    Way { read, sums: Sums::Runs(places(stride).map(run).collect()) }
}

/// All rows and columns, row by row.
fn places([rows, columns]: Two) -> impl Iterator<Item = Two> {
    (0..rows).flat_map(move |row| (0..columns).map(move |column| [row, column]))
}

impl Run {
    fn len(&self) -> usize {
        self.sizes[0].saturating_sub(1) * self.pitch + self.sizes[1]
    }

    /// Writes it into the output.
    #[inline(always)]
    fn spread(&self, run: &[f32], output: &mut [f32], [rows, columns]: Two) {
        // The first column that is not in the margin, and where it stands.
        let skipped = self.margin[1].saturating_sub(self.first[1]).div_ceil(self.step[1]);
        let first = skipped * self.step[1] + self.first[1] - self.margin[1];
        for (number, run) in run.chunks(self.pitch).take(self.sizes[0]).enumerate() {
            let row = (number * self.step[0] + self.first[0]).wrapping_sub(self.margin[0]);
            let (Some(run), true) = (run[..self.sizes[1]].get(skipped..), row < rows) else { continue };
            let Some(output) = output[row * columns..][..columns].get_mut(first..) else { continue };
            match self.step[1] {
                1 => {
                    let n = output.len().min(run.len());
                    output[..n].copy_from_slice(&run[..n]);
                }
                2 => to_every::<2>(run, output),
                step => output.iter_mut().step_by(step).zip(run).for_each(|(output, &element)| *output = element),
            }
        }
    }
}

impl Work for Channels<'_> {
    type Scratch = Scratch;

    fn n_tasks(&self) -> usize {
        self.outputs.len()
    }

    fn scratch(&self) -> Scratch {
        let Sizes { kernel: [rows, columns], .. } = self.sizes;
        let run = match &self.way.sums {
            Sums::Runs(runs) => runs.iter().map(Run::len).max().unwrap_or(0),
            Sums::Dots(_) => (rows - 1) * self.way.read.pitch + columns,
        };
        // What is rounded up to whole runs is read, and not used.
        let read = vec![0.0; self.way.read.len() + RUN];
        Scratch { read, run: vec![0.0; run.next_multiple_of(RUN)], taps: Vec::with_capacity(rows * columns) }
    }

    #[inline(always)]
    fn task<const FMA: bool>(&self, task: usize, scratch: &mut Scratch) {
        let Sizes { output: [rows, columns], .. } = self.sizes;
        let mut planes = lock(&self.outputs[task]);
        for (number, plane) in planes.chunks_exact_mut((rows * columns).max(1)).enumerate() {
            self.plane::<FMA>(task * self.planes_a_task + number, plane, scratch);
        }
    }
}
