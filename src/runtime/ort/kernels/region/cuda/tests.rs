//! Kernels of random programs, compiled for the host and run over a loop of their threads, beside the CPU's region.

use std::ffi::c_void;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use half::{bf16, f16};
use libloading::Library;

use super::source::{Kernel, kernel};
use super::*;
use crate::base::parallel::in_parallel;
use crate::onnx::{Op, Program, Step};
use crate::runtime::ort::kernels::processor::Work as _;
use crate::runtime::ort::kernels::region::functions;
use crate::runtime::ort::kernels::region::tests::{Given, expected};
use crate::runtime::ort::kernels::region::{Elements, Plan, Region, broadcast};

/// Numbers that look random, the same each time.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

const DTYPES: [DType; 4] = [DType::F32, DType::BF16, DType::F16, DType::Bool];

/// Elements of a dtype in memory that begins where a pack may, or not.
struct Tensor {
    dtype: DType,
    words: Vec<u128>,
    offset: usize,
    n: usize,
}

impl Tensor {
    fn new(dtype: DType, values: &[f32], is_aligned: bool) -> Self {
        let offset = if is_aligned { 0 } else { dtype.size_bytes() };
        let mut tensor =
            Self { dtype, words: vec![0; values.len() * dtype.size_bytes() / 16 + 2], offset, n: values.len() };
        for (at, &value) in values.iter().enumerate() {
            let place = tensor.address() as *mut u8;
            // SAFETY: inside `words`, which has room for a unit more.
            unsafe {
                let place = place.add(at * dtype.size_bytes());
                match dtype {
                    DType::BF16 => place.cast::<bf16>().write_unaligned(bf16::from_f32(value)),
                    DType::F16 => place.cast::<f16>().write_unaligned(f16::from_f32(value)),
                    DType::Bool => place.write(if value != 0.0 { 7 } else { 0 }),
                    _ => place.cast::<f32>().write_unaligned(value),
                }
            }
        }
        tensor
    }

    fn address(&mut self) -> u64 {
        self.words.as_mut_ptr().addr() as u64 + self.offset as u64
    }

    fn elements(&self) -> Elements<'_> {
        // SAFETY: as above; elements are aligned to their own size.
        unsafe {
            let start = self.words.as_ptr().cast::<u8>().add(self.offset);
            match self.dtype {
                DType::BF16 => Elements::BF16(std::slice::from_raw_parts(start.cast(), self.n)),
                DType::F16 => Elements::F16(std::slice::from_raw_parts(start.cast(), self.n)),
                DType::Bool => Elements::Bool(std::slice::from_raw_parts(start, self.n)),
                _ => Elements::F32(std::slice::from_raw_parts(start.cast(), self.n)),
            }
        }
    }

    fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.n];
        self.elements().read(0, &mut values);
        values
    }

    /// What lies behind the last element.
    fn rest(&self) -> Vec<u8> {
        let bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let end = self.offset + self.n * self.dtype.size_bytes();
        [&bytes[..self.offset], &bytes[end..]].concat()
    }
}

/// A program, and what it is run on.
struct Case {
    typed: TypedProgram,
    sizes: Vec<usize>,
    shapes: Vec<Vec<i64>>,
    values: Vec<Vec<f32>>,
    wide: bool,
    aligned: Vec<bool>,
}

/// Of a register: multiples of `step`, at most `most`; None: any number. What is so is added up without rounding.
type Grid = Option<(f64, f64)>;

const ELEMENTWISE: [Op; 29] = [
    Op::Add,
    Op::Sub,
    Op::Mul,
    Op::Div,
    Op::Max,
    Op::Min,
    Op::Greater,
    Op::GreaterOrEqual,
    Op::Less,
    Op::LessOrEqual,
    Op::Equal,
    Op::And,
    Op::Or,
    Op::Neg,
    Op::Abs,
    Op::Exp,
    Op::Log,
    Op::Sqrt,
    Op::Reciprocal,
    Op::Sigmoid,
    Op::Tanh,
    Op::Erf,
    Op::Relu,
    Op::Not,
    Op::Square,
    Op::Cube,
    Op::RoundBFloat16,
    Op::RoundFloat16,
    Op::Where,
];

/// The largest number of units whose sums are float32s.
const EXACT: f64 = (1 << 23) as f64;

fn grid(op: Op, operands: &[Grid], n: usize) -> Grid {
    let a = operands[0];
    let both = || Some((a?, (*operands.get(1)?)?));
    match op {
        Op::Add | Op::Sub => both().map(|(a, b)| (a.0 + b.0, a.1.min(b.1))),
        Op::Mul | Op::And => both().map(|(a, b)| (a.0 * b.0, a.1 * b.1)),
        Op::Max | Op::Min | Op::Or => both().map(|(a, b)| (a.0.max(b.0), a.1.min(b.1))),
        Op::Where => {
            let (x, y) = (operands[1]?, operands[2]?);
            Some((x.0.max(y.0), x.1.min(y.1)))
        }
        Op::Greater | Op::GreaterOrEqual | Op::Less | Op::LessOrEqual | Op::Equal => Some((1.0, 1.0)),
        Op::Neg | Op::Abs | Op::Relu | Op::Spread | Op::ReduceMax => a,
        Op::Not => a.map(|a| (a.0 + 1.0, a.1.min(1.0))),
        Op::Square => a.map(|a| (a.0 * a.0, a.1 * a.1)),
        Op::RoundBFloat16 | Op::RoundFloat16 => a.map(|a| (a.0 * 2.0, a.1)),
        Op::ReduceSum => a.map(|a| (a.0 * n as f64, a.1)),
        _ => None,
    }
    .filter(|(most, step)| most / step < EXACT)
}

/// exact: whatever is added up is so without rounding. special: with NaN, infinities and -0.
fn case(draw: &mut Draw, exact: bool, special: bool) -> Case {
    let n = match draw.below(40) {
        0 if exact => 0,
        1 => 5000,
        2..10 => draw.of(&[255, 256, 257, 1000, 1024, 2048]),
        10..18 => 1 + draw.below(70),
        _ => draw.of(&[1, 3, 4, 8, 24, 31, 33]),
    };
    let leading: Vec<usize> = match n {
        1000.. => vec![draw.below(3)],
        _ => (0..draw.below(4)).map(|_| draw.of(&[1, 2, 3, 5, 0, 2, 3])).collect(),
    };
    let sizes: Vec<usize> = leading.iter().copied().chain([n]).collect();
    let (rank, only_rows) = (sizes.len(), n == 1 && draw.one_in(3));
    let (mut shapes, mut extents, mut values, mut dtypes, mut grids) = (vec![], vec![], vec![], vec![], vec![]);
    for input in 0..1 + draw.below(5) {
        let extent = match input {
            _ if only_rows => draw.of(&[Extent::Row, Extent::Number]),
            0 => Extent::Full,
            _ => draw.of(&[Extent::Full, Extent::Full, Extent::Row, Extent::Number]),
        };
        // The first tells the sizes.
        let extent = if input == 0 && only_rows { Extent::Row } else { extent };
        let whole = input == 0 || draw.one_in(2);
        let mut shape: Vec<usize> =
            leading.iter().map(|&size| if whole || draw.one_in(2) { size } else { 1 }).collect();
        shape.push(if extent == Extent::Full { n } else { 1 });
        if extent == Extent::Number {
            shape.fill(1);
        }
        let ones = if input == 0 { 0 } else { shape[..rank - 1].iter().take_while(|&&size| size == 1).count() };
        shape.drain(..draw.below(ones + 1));
        let dtype = draw.of(&DTYPES);
        let value = |draw: &mut Draw| match dtype {
            _ if special && draw.one_in(5) => draw.of(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0]),
            DType::Bool => draw.below(2) as f32,
            _ if exact => draw.below(17) as f32 / 4.0 - 2.0,
            _ => draw.below(4001) as f32 / 2000.0 - 1.0,
        };
        values.push((0..shape.iter().product()).map(|_| value(draw)).collect::<Vec<f32>>());
        grids.push(Some(if dtype == DType::Bool { (1.0, 1.0) } else { (2.0, 0.25) }));
        shapes.push(shape.into_iter().map(|size| size as i64).collect::<Vec<i64>>());
        extents.push(extent);
        dtypes.push(dtype);
    }
    let mut program = Program { inputs: extents, constants: vec![0.0, -1.5], rank, ..Program::default() };
    program.constants.truncate(1 + draw.below(2));
    grids.extend(program.constants.iter().map(|_| Some((1.5, 0.5))));
    let first = grids.len();
    let (zero, wanted) = (program.inputs.len(), 1 + draw.below(10));
    let mut hidden = Vec::new();
    while program.steps.len() < wanted {
        let op = match draw.below(6) {
            0 => draw.of(&[Op::ReduceSum, Op::ReduceMean, Op::ReduceMax]),
            1 => Op::Spread,
            _ if exact => draw.of(&ELEMENTWISE),
            _ => draw.of(&[
                Op::Add,
                Op::Sub,
                Op::Mul,
                Op::Max,
                Op::Min,
                Op::Neg,
                Op::Abs,
                Op::Sigmoid,
                Op::Tanh,
                Op::Relu,
            ]),
        };
        let readable: Vec<usize> = (0..grids.len()).filter(|register| !hidden.contains(register)).collect();
        let mut operands = [0; 3];
        for operand in &mut operands[..op.arity()] {
            // Often what was computed last, so that programs are deep.
            *operand = if draw.one_in(3) { readable[readable.len() - 1] } else { draw.of(&readable) };
        }
        let read: Vec<Grid> = operands[..op.arity()].iter().map(|&register| grids[register]).collect();
        let is_exact = read[0].is_some_and(|(most, step)| most * n as f64 / step < EXACT);
        if exact && matches!(op, Op::ReduceSum | Op::ReduceMean) && !is_exact {
            continue;
        }
        program.steps.push(Step { op, operands });
        if program.extents().is_none() {
            program.steps.pop();
            continue;
        }
        grids.push(grid(op, &read, n));
        if op == Op::ReduceMax {
            // Which of two zeros it is depends on the order: what is read is the sum with another.
            hidden.push(grids.len() - 1);
            program.steps.push(Step { op: Op::Add, operands: [grids.len() - 1, zero, 0] });
            grids.push(grids[grids.len() - 1]);
        }
    }
    let extents = program.extents().unwrap();
    let last = extents.len() - 1;
    program.outputs = (first..=last)
        .filter(|register| !hidden.contains(register))
        .filter(|&register| register == last || draw.one_in(3))
        .collect();
    let outputs = program.outputs.iter().map(|_| draw.of(&DTYPES)).collect();
    let row = (!draw.one_in(3)).then_some(n);
    let aligned = (0..program.inputs.len() + program.outputs.len()).map(|_| !draw.one_in(3)).collect();
    let typed = TypedProgram { program, inputs: dtypes, outputs, row };
    Case { typed, sizes, shapes, values, wide: draw.one_in(4), aligned }
}

impl Case {
    fn region(&self) -> DeviceRegion {
        DeviceRegion::of(self.typed.clone()).unwrap()
    }

    fn kernel(&self) -> Kernel {
        let region = self.region();
        kernel(&region, region.form(self.wide))
    }

    fn shapes(&self) -> Vec<&[i64]> {
        self.shapes.iter().map(Vec::as_slice).collect()
    }

    fn inputs(&self) -> Vec<Tensor> {
        let tensors = self.typed.inputs.iter().zip(&self.values).zip(&self.aligned);
        tensors.map(|((&dtype, values), &is_aligned)| Tensor::new(dtype, values, is_aligned)).collect()
    }

    fn n_of_output(&self, at: usize) -> usize {
        let sizes = &self.sizes;
        let is_full = self.region().typed.program.extents().unwrap()[self.typed.program.outputs[at]] == Extent::Full;
        sizes[..sizes.len() - 1].iter().product::<usize>() * if is_full { sizes[sizes.len() - 1] } else { 1 }
    }

    /// What the CPU's region gives, rounded to the outputs' types.
    fn on_cpu(&self) -> Vec<Vec<f32>> {
        let inputs = self.inputs();
        let given: Vec<_> = self.shapes().into_iter().zip(inputs.iter().map(Tensor::elements)).collect();
        let plan = Plan::of(self.typed.program.clone()).unwrap();
        let mut made: Vec<Vec<f32>> = (0..self.typed.outputs.len()).map(|at| vec![0.0; self.n_of_output(at)]).collect();
        let region = Region::new(&plan, &self.sizes, &given, made.iter_mut().map(Vec::as_mut_slice).collect()).unwrap();
        let mut scratch = region.scratch();
        (0..region.n_tasks()).for_each(|task| region.task::<false>(task, &mut scratch));
        drop(region);
        let rounded = |(values, &dtype): (Vec<f32>, &DType)| Tensor::new(dtype, &values, true).values();
        made.into_iter().zip(&self.typed.outputs).map(rounded).collect()
    }

    fn on_device(&self, compiled: &Compiled, name: &str) -> Vec<Vec<f32>> {
        let region = self.region();
        let sizes = broadcast(&self.shapes(), self.sizes.len()).unwrap();
        assert_eq!(sizes[..self.sizes.len()], self.sizes);
        let mut fitted = region.fit(&self.sizes, &self.shapes()).unwrap();
        fitted.wide |= self.wide && !region.by_row;
        let mut inputs = self.inputs();
        let n_inputs = inputs.len();
        let mut outputs: Vec<Tensor> = (self.typed.outputs.iter().enumerate())
            .map(|(at, &dtype)| Tensor::new(dtype, &vec![1.0; self.n_of_output(at)], self.aligned[n_inputs + at]))
            .collect();
        let around: Vec<_> = outputs.iter().map(Tensor::rest).collect();
        let read: Vec<u64> = inputs.iter_mut().map(Tensor::address).collect();
        let written: Vec<u64> = outputs.iter_mut().map(Tensor::address).collect();
        if let Some(launch) = region.launch(&fitted, &read, &written) {
            compiled.run(name, &launch);
        }
        assert_eq!(outputs.iter().map(Tensor::rest).collect::<Vec<_>>(), around, "{:?}", self.typed);
        outputs.iter().map(Tensor::values).collect()
    }
}

/// Kernels compiled for the host.
struct Compiled(Library);

macro_rules! functions {
    ($($name:ident $ours:ident)*) => {
        const NAMES: &[&str] = &[$(stringify!($name)),*];

        /// CUDA's own functions are the CPU's region's here, so that results can be compared to the last bit.
        fn set_functions(library: &Library) {
            $(
                extern "C" fn $name(x: f32) -> f32 {
                    functions::$ours::<false>(x)
                }
                // SAFETY: the symbol is a pointer to such a function.
                unsafe {
                    let place = library.get::<*mut extern "C" fn(f32) -> f32>(concat!("host_", stringify!($name)).as_bytes());
                    **place.unwrap() = $name;
                }
            )*
        }
    };
}

functions! { expf exp logf log tanhf tanh erff erf }

impl Compiled {
    fn new(folder: &Path, kernels: &[Kernel]) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut text = format!("#include \"{}\"\n", root.join("tests/fixtures/on_host.h").display());
        for name in NAMES {
            let _ = writeln!(text, "extern \"C\" {{ float (*host_{name})(float); }}\n#define {name} host_{name}");
        }
        text += source::PARTS;
        for Kernel { text: kernel, name } in kernels {
            let run = if kernel.contains("__shared__") { "by_turns" } else { "in_order" };
            let _ = writeln!(
                text,
                "{kernel}\nextern \"C\" void run_{name}(const void *task, unsigned blocks, unsigned threads) {{\n  \
                 on_host::{run}([](const void *task) {{ {name}(*(const task_of_{name} *)task); }}, task, blocks, threads);\n}}"
            );
        }
        let (source, library) = (folder.join("kernels.cpp"), folder.join("kernels.so"));
        std::fs::write(&source, text).unwrap();
        let mut command = Command::new("c++");
        command.args("-std=c++17 -shared -fPIC -O0 -ffp-contract=off -Wall -Wextra -Werror -o".split(' '));
        let made = command.arg(&library).arg(&source).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        // SAFETY: what was compiled has no initializer.
        let library = unsafe { Library::new(&library) }.unwrap();
        set_functions(&library);
        Self(library)
    }

    fn run(&self, name: &str, launch: &Launch) {
        type Run = unsafe extern "C" fn(*const c_void, u32, u32);
        // SAFETY: the function has these arguments; the task's addresses are those of tensors that are there.
        unsafe {
            let run = self.0.get::<Run>(format!("run_{name}").as_bytes()).unwrap();
            run(launch.task.as_ptr().cast(), launch.n_blocks, launch.n_threads);
        }
    }
}

/// Cases, each with its kernel.
fn each(cases: &[Case], check: impl Fn(&Case, &[Vec<f32>]) + Sync) {
    const AT_ONCE: usize = 250;
    let batches: Vec<&[Case]> = cases.chunks(AT_ONCE).collect();
    in_parallel(batches.len(), usize::MAX, |at| {
        let folder = tempfile::tempdir().unwrap();
        let all: Vec<Kernel> = batches[at].iter().map(Case::kernel).collect();
        let names: Vec<String> = all.iter().map(|kernel| kernel.name.clone()).collect();
        let mut known = std::collections::HashSet::new();
        let kernels: Vec<Kernel> = all.into_iter().filter(|kernel| known.insert(kernel.name.clone())).collect();
        let compiled = Compiled::new(folder.path(), &kernels);
        for (case, name) in batches[at].iter().zip(&names) {
            check(case, &case.on_device(&compiled, name));
        }
    });
}

#[test]
fn ten_thousand_programs_give_what_the_cpus_region_gives() {
    let mut draw = Draw(1);
    let cases: Vec<Case> = (0..10_000).map(|at| case(&mut draw, true, at % 4 == 0)).collect();
    let reduces = |case: &&Case| case.typed.program.steps.iter().any(|step| step.op.reduces());
    let n_reducing = cases.iter().filter(reduces).count();
    assert!((2000..9000).contains(&n_reducing), "{n_reducing}");
    each(&cases, |case, made| {
        for (at, (made, wanted)) in made.iter().zip(case.on_cpu()).enumerate() {
            assert_eq!(made.len(), wanted.len());
            for (place, (made, wanted)) in made.iter().zip(wanted).enumerate() {
                let same = made.to_bits() == wanted.to_bits() || (made.is_nan() && wanted.is_nan());
                assert!(same, "{:?} {:?} {at} {place}: {made}, expected {wanted}", case.typed, case.shapes);
            }
        }
    });
}

#[test]
fn sums_that_round_are_as_near_as_those_of_float32_are() {
    let mut draw = Draw(2);
    let mut cases: Vec<Case> = (0..1000).map(|_| case(&mut draw, false, false)).collect();
    for case in &mut cases {
        case.typed.outputs.fill(DType::F32);
    }
    each(&cases, |case, made| {
        let kind = |dtype: &DType| [DType::F32, DType::F16, DType::BF16, DType::Bool].iter().position(|it| it == dtype);
        let given = |((values, shape), dtype): ((&Vec<f32>, &Vec<i64>), &DType)| Given {
            sizes: shape.clone(),
            values: values.clone(),
            kind: kind(dtype).unwrap(),
        };
        let inputs: Vec<Given> = case.values.iter().zip(&case.shapes).zip(&case.typed.inputs).map(given).collect();
        for (made, wanted) in made.iter().zip(expected(&case.typed.program, &inputs)) {
            assert_eq!(made.len(), wanted.len());
            let largest = wanted.iter().fold(1.0_f64, |largest, x| largest.max(x.abs()));
            for (&made, &wanted) in made.iter().zip(&wanted) {
                let near = (f64::from(made) - wanted).abs() <= 1e-4 * largest || (made.is_nan() && wanted.is_nan());
                assert!(near || largest > 1e6, "{:?} {:?}: {made}, expected {wanted}", case.typed, case.shapes);
            }
        }
    });
}
