//! Kernels of regions that real models have, beside the CPU's, and how fast they are: what `rust-ort cuda-probe` asks.

use std::sync::Arc;
use std::time::Instant;

use half::{bf16, f16};
use serde::Serialize;

use super::device_kernels::DeviceKernels;
use super::kernels::{self, DeviceRegion, Elements, Parallel, Plan, Region, broadcast};
use crate::cuda::{CudaError, Device, Kernel, Memory, Pinned, Stream};
use crate::onnx::{Extent, Program, TypedProgram};
use crate::tensor::DType;

/// A region, and shapes to look at it with.
struct Case {
    name: &'static str,
    extents: &'static str,
    constants: &'static [f32],
    steps: &'static str,
    outputs: &'static [i64],
    inputs: &'static [DType],
    given: &'static [DType],
    /// Of each input, in few elements and in many; those of row and number follow from the first.
    shapes: [&'static [&'static [i64]]; 2],
}

const F32: DType = DType::F32;
const BF16: DType = DType::BF16;
const F16: DType = DType::F16;
const BOOL: DType = DType::Bool;

const CASES: &[Case] = &[
    Case {
        name: "gate",
        extents: "ff",
        constants: &[1.0],
        steps: "Neg 0; Exp 3; Add 4 2; Div 0 5; RoundBFloat16 6; Mul 7 1; RoundBFloat16 8",
        outputs: &[9],
        inputs: &[BF16, BF16],
        given: &[BF16],
        shapes: [&[&[3, 5, 344], &[3, 5, 344]], &[&[2, 2048, 8192], &[2, 2048, 8192]]],
    },
    Case {
        name: "residual and norm",
        extents: "fff",
        constants: &[1e-6],
        steps: "Add 0 1; Square 4; ReduceMean 5; Add 6 3; Sqrt 7; Reciprocal 8; Mul 4 9; Mul 10 2; RoundBFloat16 11",
        outputs: &[4, 9, 12],
        inputs: &[F32, BF16, F32],
        given: &[F32, F32, BF16],
        shapes: [&[&[3, 5, 300], &[3, 5, 300], &[300]], &[&[8, 2048, 2048], &[8, 2048, 2048], &[2048]]],
    },
    Case {
        name: "norm's gradient",
        extents: "fffr",
        constants: &[-0.5, 2.0],
        steps: "Mul 0 2; Mul 6 1; ReduceSum 7; Cube 3; Mul 8 4; Mul 10 9; Mul 1 5; Mul 11 12; Mul 6 3; Add 13 14",
        outputs: &[15],
        inputs: &[BF16, F32, F32, F32],
        given: &[BF16],
        shapes: [
            &[&[3, 5, 300], &[3, 5, 300], &[300], &[3, 5, 1]],
            &[&[8, 2048, 2048], &[8, 2048, 2048], &[2048], &[8, 2048, 1]],
        ],
    },
    Case {
        name: "log softmax",
        extents: "f",
        constants: &[],
        steps: "ReduceMax 0; Sub 0 1; Exp 2; ReduceSum 3; Log 4; Sub 2 5",
        outputs: &[6],
        inputs: &[BF16],
        given: &[F32],
        shapes: [&[&[7, 1003]], &[&[4096, 32_000]]],
    },
    Case {
        name: "log softmax's gradient",
        extents: "ff",
        constants: &[],
        steps: "ReduceSum 0; Exp 1; Mul 3 2; Sub 0 4; RoundBFloat16 5",
        outputs: &[6],
        inputs: &[F32, F32],
        given: &[BF16],
        shapes: [&[&[7, 1003], &[7, 1003]], &[&[4096, 32_000], &[4096, 32_000]]],
    },
    Case {
        name: "softmax of odd rows",
        extents: "f",
        constants: &[],
        steps: "ReduceMax 0; Sub 0 1; Exp 2; ReduceSum 3; Div 3 4; RoundFloat16 5",
        outputs: &[6],
        inputs: &[F16],
        given: &[F16],
        shapes: [&[&[5, 2, 77]], &[&[2048, 50_257]]],
    },
    Case {
        name: "short rows",
        extents: "f",
        constants: &[],
        steps: "ReduceMax 0; Sub 0 1; Exp 2; ReduceSum 3; Div 3 4",
        outputs: &[5],
        inputs: &[F32],
        given: &[F32],
        shapes: [&[&[9, 33]], &[&[1 << 20, 128]]],
    },
    Case {
        name: "GELU",
        extents: "ff",
        constants: &[0.5, 0.707_106_77, 1.0],
        steps: "Add 0 1; Mul 5 3; Erf 6; Add 7 4; Mul 5 2; Mul 9 8",
        outputs: &[10],
        inputs: &[F32, F32],
        given: &[F32],
        shapes: [&[&[3, 5, 77], &[77]], &[&[2, 2048, 8192], &[8192]]],
    },
    Case {
        name: "rotary",
        extents: "ffff",
        constants: &[],
        steps: "Mul 0 2; Mul 1 3; Add 4 5; RoundBFloat16 6",
        outputs: &[7],
        inputs: &[BF16, BF16, F32, F32],
        given: &[BF16],
        shapes: [
            &[&[2, 4, 9, 32], &[2, 4, 9, 32], &[1, 1, 9, 32], &[9, 32]],
            &[&[4, 32, 2048, 128], &[4, 32, 2048, 128], &[1, 1, 2048, 128], &[2048, 128]],
        ],
    },
    Case {
        name: "dropout",
        extents: "ff",
        constants: &[1.25, 0.0],
        steps: "Where 0 1 3; Mul 4 2; Tanh 5; RoundFloat16 6; Greater 7 3",
        outputs: &[7, 8],
        inputs: &[BOOL, F16],
        given: &[F16, BOOL],
        shapes: [&[&[3, 5, 77], &[3, 5, 77]], &[&[2, 2048, 8192], &[2, 2048, 8192]]],
    },
];

/// What a kernel did. Of one that failed only the name and why.
#[derive(Debug, Default, Serialize)]
pub struct ProbedRegion {
    /// Of the region.
    pub name: &'static str,
    /// Why it could not be compiled or run.
    pub error: Option<String>,
    /// With its code at hand, too.
    pub compile_ms: f64,
    /// The largest |device − CPU| / (|CPU| + 0.1), in few elements.
    pub worst: f64,
    /// Whether that is no more than what functions of float32, or a rounding of half precision, may be off.
    pub is_near: bool,
    /// What is read and written of many elements, in gigabytes a second; 0 where nobody asked.
    pub gb_per_s: f64,
}

/// Each region on the device. many: also how fast it is, of some gigabytes.
pub fn probe_regions(device: &Arc<Device>, many: bool) -> Vec<ProbedRegion> {
    let kernels = DeviceKernels::new(Arc::clone(device), None);
    let probe = |case: &Case| {
        let mut found = ProbedRegion { name: case.name, ..ProbedRegion::default() };
        found.error = case.probe(&kernels, many, &mut found).err().map(|error| error.to_string());
        found
    };
    CASES.iter().map(probe).collect()
}

/// One task after the other.
struct InOrder;

impl Parallel for InOrder {
    fn each(&self, total: usize, function: &(dyn Fn(usize) + Sync)) -> ort::Result<()> {
        (0..total).for_each(function);
        Ok(())
    }
}

impl Case {
    fn region(&self, row: usize, rank: usize) -> (Program, DeviceRegion) {
        let (constants, rank) = (self.constants.to_vec(), rank as i64);
        let program = Program::read(self.extents, constants, self.steps, self.outputs, rank).expect("a program");
        let (inputs, outputs) = (self.inputs.to_vec(), self.given.to_vec());
        let typed = TypedProgram { program: program.clone(), inputs, outputs, row: Some(row) };
        (program, DeviceRegion::of(typed).expect("a kernel's program"))
    }

    fn probe(&self, kernels: &DeviceKernels, many: bool, found: &mut ProbedRegion) -> Result<(), CudaError> {
        let stream = Stream::new(kernels.device())?;
        let [few, large] = self.shapes;
        let run = Run::new(self, few, kernels, &stream)?;
        found.compile_ms = run.compile_ms;
        run.time(&stream, 1)?;
        (found.worst, found.is_near) = run.compare(&stream)?;
        if many {
            let run = Run::new(self, large, kernels, &stream)?;
            run.time(&stream, 1)?;
            found.gb_per_s = run.n_bytes() as f64 / run.time(&stream, 20)? / 1e9;
        }
        Ok(())
    }
}

/// Elements in host memory.
enum Values {
    F32(Vec<f32>),
    BF16(Vec<bf16>),
    F16(Vec<f16>),
    Bool(Vec<u8>),
}

impl Values {
    /// Numbers that look random, the same each time.
    fn new(dtype: DType, n: usize, seed: usize) -> Self {
        let number = |at: usize| ((at * 7919 + seed * 104_729) % 65_521) as f32 / 16_380.25 - 2.0;
        match dtype {
            DType::BF16 => Self::BF16((0..n).map(|at| bf16::from_f32(number(at))).collect()),
            DType::F16 => Self::F16((0..n).map(|at| f16::from_f32(number(at))).collect()),
            DType::Bool => Self::Bool((0..n).map(|at| u8::from(number(at) > 0.0)).collect()),
            _ => Self::F32((0..n).map(number).collect()),
        }
    }

    fn elements(&self) -> Elements<'_> {
        match self {
            Self::F32(values) => Elements::F32(values),
            Self::BF16(values) => Elements::BF16(values),
            Self::F16(values) => Elements::F16(values),
            Self::Bool(values) => Elements::Bool(values),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::F32(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Self::BF16(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Self::F16(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Self::Bool(values) => values.clone(),
        }
    }
}

fn widened(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let halves = || bytes.as_chunks::<2>().0.iter().map(|&bytes| u16::from_le_bytes(bytes));
    match dtype {
        DType::BF16 => halves().map(|bits| bf16::from_bits(bits).to_f32()).collect(),
        DType::F16 => halves().map(|bits| f16::from_bits(bits).to_f32()).collect(),
        DType::Bool => bytes.iter().map(|&byte| f32::from(byte != 0)).collect(),
        _ => bytes.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect(),
    }
}

/// A region over tensors of the device.
struct Run<'a> {
    case: &'a Case,
    program: Program,
    region: DeviceRegion,
    kernel: Arc<Kernel>,
    shapes: &'a [&'a [i64]],
    sizes: Vec<usize>,
    compile_ms: f64,
    inputs: Vec<Memory>,
    outputs: Vec<Memory>,
}

/// Elements of an input that are not a repetition.
const DISTINCT: usize = 1 << 20;

impl<'a> Run<'a> {
    fn new(
        case: &'a Case,
        shapes: &'a [&'a [i64]],
        kernels: &DeviceKernels,
        stream: &Stream,
    ) -> Result<Self, CudaError> {
        let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(1);
        let sizes = broadcast(shapes, rank).expect("shapes that fit")[..rank].to_vec();
        let (program, region) = case.region(sizes[rank - 1], rank);
        let started = Instant::now();
        let kernel = kernels.kernel(&region.source())?;
        let compile_ms = started.elapsed().as_secs_f64() * 1e3;
        let device = kernels.device();
        let mut inputs = Vec::new();
        for (at, (&dtype, shape)) in case.inputs.iter().zip(shapes).enumerate() {
            let (n, size) = (n_elements(shape), dtype.size_bytes());
            let memory = Memory::new(device, (n * size) as u64)?;
            let bytes = Values::new(dtype, n.min(DISTINCT), at).bytes();
            for start in (0..n * size).step_by(bytes.len()) {
                let len = bytes.len().min(n * size - start);
                let mut host = Pinned::new(device, len)?;
                host.bytes_mut().copy_from_slice(&bytes[..len]);
                stream.write(memory.span(start as u64, len as u64)?, host)?;
            }
            inputs.push(memory);
        }
        let mut outputs = Vec::new();
        for (at, &dtype) in case.given.iter().enumerate() {
            let n = n_elements(&region.output_shape(at, &sizes));
            outputs.push(Memory::new(device, (n * dtype.size_bytes()) as u64)?);
        }
        Ok(Self { case, program, region, kernel, shapes, sizes, compile_ms, inputs, outputs })
    }

    /// Seconds that each of so many launches takes, one behind the other.
    fn time(&self, stream: &Stream, times: u32) -> Result<f64, CudaError> {
        let started = Instant::now();
        let launched = (0..times).try_for_each(|_| self.launch(stream));
        stream.synchronize()?; // whatever comes of it: the tensors and the code stay until then
        launched.map(|()| started.elapsed().as_secs_f64() / f64::from(times))
    }

    fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        let fitted = self.region.fit(&self.sizes, self.shapes).expect("shapes of the case");
        let addresses =
            |all: &[Memory]| all.iter().map(|memory| memory.start().addr().get() as u64).collect::<Vec<_>>();
        let (read, written) = (addresses(&self.inputs), addresses(&self.outputs));
        let Some(launch) = self.region.launch(&fitted, &read, &written) else { return Ok(()) };
        let _beside = crate::cuda::beside_captures();
        // SAFETY: the task is laid out as the kernel's source says, which is of this region; the tensors are of the shapes
        // that it was fitted to, and `self` keeps them; `time` waits for what is queued.
        unsafe { stream.launch_in_run(&self.kernel, launch.n_blocks, launch.n_threads, &launch.task) }
    }

    fn n_bytes(&self) -> u64 {
        self.inputs.iter().chain(&self.outputs).map(Memory::len_bytes).sum()
    }

    /// How far the outputs are from the CPU's, and whether that is near.
    fn compare(&self, stream: &Stream) -> Result<(f64, bool), CudaError> {
        let values: Vec<Values> = (self.case.inputs.iter().zip(self.shapes).enumerate())
            .map(|(at, (&dtype, shape))| Values::new(dtype, n_elements(shape), at))
            .collect();
        let given: Vec<_> = self.shapes.iter().copied().zip(values.iter().map(Values::elements)).collect();
        let plan = Plan::of(self.program.clone()).expect("a program");
        let n = |&register: &i64| {
            let whole: usize = self.sizes.iter().product();
            let is_full = plan.extent(register as usize) == Extent::Full;
            if is_full { whole } else { whole / self.sizes[self.sizes.len() - 1] }
        };
        let mut expected: Vec<Vec<f32>> = self.case.outputs.iter().map(|register| vec![0.0; n(register)]).collect();
        let taken = expected.iter_mut().map(Vec::as_mut_slice).collect();
        let region = Region::new(&plan, &self.sizes, &given, taken).expect("shapes of the case");
        kernels::run(&region, &InOrder).expect("nothing that fails");
        drop(region);
        let (mut worst, mut is_near) = (0.0_f64, true);
        for ((memory, &dtype), expected) in self.outputs.iter().zip(self.case.given).zip(expected) {
            let host = stream.read(memory.span(0, memory.len_bytes())?)?;
            let off = match dtype {
                DType::BF16 => 1.0 / 128.0,
                DType::F16 => 1.0 / 1024.0,
                _ => 1e-5,
            };
            for (made, expected) in widened(dtype, host.bytes()).into_iter().zip(expected) {
                let apart = f64::from((made - expected).abs()) / (f64::from(expected.abs()) + 0.1);
                worst = worst.max(apart);
                is_near &= apart <= off;
            }
        }
        Ok((worst, is_near))
    }
}

fn n_elements(shape: &[i64]) -> usize {
    shape.iter().map(|&size| size as usize).product()
}
