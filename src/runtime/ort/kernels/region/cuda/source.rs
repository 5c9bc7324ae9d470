//! A program as CUDA C++.
//!
//! A program that takes no row for a whole is a kernel whose threads have a few elements each. Else a block, or a warp where
//! rows are short, has a row, which it goes over as often as reductions need each other's results.

use std::fmt::Write as _;

use super::region::{AXES, BLOCK, DeviceRegion, Form, Rows, WARP};
use crate::onnx::{Extent, Op, Step};
use crate::tensor::DType;

/// What all kernels are made of.
pub(super) const PARTS: &str = include_str!("region.cu");

/// A kernel's source, and its name there.
pub(in crate::runtime::ort) struct KernelSource {
    pub(in crate::runtime::ort) text: String,
    pub(in crate::runtime::ort) name: String,
}

/// Of the kernel of a region. Equal kernels have one name.
pub(super) fn source(region: &DeviceRegion, form: Form) -> KernelSource {
    let Kernel { text, name } = kernel(region, form);
    KernelSource { text: format!("{PARTS}\n{text}"), name }
}

/// The kernel alone, without what it is made of.
pub(super) struct Kernel {
    pub(super) text: String,
    pub(super) name: String,
}

pub(super) fn kernel(region: &DeviceRegion, form: Form) -> Kernel {
    const NAME: &str = "NAME";
    let mut writer = Writer { region, text: String::new() };
    writer.task(NAME);
    match form {
        Form::Elements { wide } => writer.elements(NAME, wide),
        Form::Rows(rows) => writer.rows(NAME, &rows),
    }
    let name = format!("region_{}", &blake3::hash(writer.text.as_bytes()).to_hex()[..16]);
    Kernel { text: writer.text.replace(NAME, &name), name }
}

/// The name of an element type in the source.
fn element(dtype: DType) -> &'static str {
    match dtype {
        DType::BF16 => "BF16",
        DType::F16 => "F16",
        DType::Bool => "Bool",
        _ => "F32",
    }
}

/// What a step that does not reduce computes of its operands.
fn value(op: Op, [a, b, c]: [&str; 3]) -> String {
    match op {
        Op::Add => format!("{a} + {b}"),
        Op::Sub => format!("{a} - {b}"),
        Op::Mul | Op::And => format!("{a} * {b}"),
        Op::Div => format!("{a} / {b}"),
        Op::Max | Op::Or => format!("larger({a}, {b})"),
        Op::Min => format!("smaller({a}, {b})"),
        Op::Greater => format!("flag({a} > {b})"),
        Op::GreaterOrEqual => format!("flag({a} >= {b})"),
        Op::Less => format!("flag({a} < {b})"),
        Op::LessOrEqual => format!("flag({a} <= {b})"),
        Op::Equal => format!("flag({a} == {b})"),
        Op::Neg => format!("-{a}"),
        Op::Abs => format!("fabsf({a})"),
        Op::Exp => format!("expf({a})"),
        Op::Log => format!("logf({a})"),
        Op::Sqrt => format!("sqrtf({a})"),
        Op::Reciprocal => format!("1.0f / {a}"),
        Op::Sigmoid => format!("sigmoid({a})"),
        Op::Tanh => format!("tanhf({a})"),
        Op::Erf => format!("erff({a})"),
        // NaN and -0.0 stay.
        Op::Relu => format!("{a} < 0.0f ? 0.0f : {a}"),
        Op::Not => format!("1.0f - {a}"),
        Op::Square => format!("{a} * {a}"),
        Op::Cube => format!("{a} * {a} * {a}"),
        Op::RoundBFloat16 => format!("of_bf16(to_bf16({a}))"),
        Op::RoundFloat16 => format!("of_f16(to_f16({a}))"),
        Op::Where => format!("{a} != 0.0f ? {b} : {c}"),
        Op::Spread | Op::ReduceSum | Op::ReduceMean | Op::ReduceMax => a.to_owned(),
    }
}

/// What kind of a reduction it is in the source.
fn kind(op: Op) -> &'static str {
    if op == Op::ReduceMax { "Largest" } else { "Sum" }
}

struct Writer<'a> {
    region: &'a DeviceRegion,
    text: String,
}

/// What a pass over a pack of elements does.
struct Pass<'a> {
    /// Full registers that it computes, in order; inputs among them.
    computed: &'a [usize],
    /// Places of outputs that it gives.
    outputs: &'a [usize],
    /// Reductions that it does for.
    reduced: &'a [usize],
    /// After the name of an input's packs.
    index: &'a str,
}

macro_rules! line {
    ($writer:expr, $($argument:tt)*) => {{
        let _ = writeln!($writer.text, $($argument)*); // a String takes whatever is written
    }};
}

impl Writer<'_> {
    fn n_inputs(&self) -> usize {
        self.region.typed.inputs.len()
    }

    fn first(&self) -> usize {
        self.n_inputs() + self.region.typed.program.constants.len()
    }

    fn step(&self, register: usize) -> Option<&Step> {
        register.checked_sub(self.first()).map(|at| &self.region.typed.program.steps[at])
    }

    fn is_full(&self, register: usize) -> bool {
        self.region.extents[register] == Extent::Full
    }

    /// Inputs that something is computed of, and that have this extent.
    fn inputs(&self, wanted: impl Fn(Extent) -> bool) -> Vec<usize> {
        (0..self.n_inputs()).filter(|&at| self.region.live[at] && wanted(self.region.extents[at])).collect()
    }

    fn of_input(&self, at: usize) -> &'static str {
        element(self.region.typed.inputs[at])
    }

    fn of_output(&self, at: usize) -> &'static str {
        element(self.region.typed.outputs[at])
    }

    fn register(&self, register: usize) -> String {
        match register.checked_sub(self.n_inputs()).and_then(|at| self.region.typed.program.constants.get(at)) {
            Some(number) => format!("float_of({:#x}u)", number.to_bits()),
            None => format!("r{register}"),
        }
    }

    fn task(&mut self, name: &str) {
        let (n_inputs, n_outputs) = (self.n_inputs(), self.region.typed.outputs.len());
        line!(self, "struct task_of_{name} {{");
        line!(self, "  u64 n_rows, n, n_packs, n_outer, whole, sizes[{AXES}], strides[{n_inputs}][{AXES}];");
        line!(self, "  const void *in[{n_inputs}];\n  void *out[{n_outputs}];\n}};\n");
    }

    /// Where the row begins in each input that is no number.
    fn places(&mut self) {
        let inputs = self.inputs(|extent| extent != Extent::Number);
        if inputs.is_empty() {
            return;
        }
        let names: Vec<String> = inputs.iter().map(|at| format!("at{at} = 0")).collect();
        line!(self, "  u64 {};", names.join(", "));
        line!(self, "  Index left = row;");
        line!(self, "  for (u32 axis = 0; axis < task.n_outer; axis++) {{");
        line!(
            self,
            "    const Index size = (Index)task.sizes[axis], rest = axis + 1 < task.n_outer ? left / size : 0;"
        );
        line!(self, "    const u64 own = left - rest * size;");
        line!(self, "    left = rest;");
        for at in inputs {
            line!(self, "    at{at} += own * task.strides[{at}][axis];");
        }
        line!(self, "  }}");
    }

    /// Inputs that are one value of the row.
    fn values_of_row(&mut self) {
        for at in self.inputs(|extent| extent != Extent::Full) {
            let place = if self.region.extents[at] == Extent::Row { format!("at{at}") } else { "0".to_owned() };
            line!(self, "  const float r{at} = read(((const {} *)task.in[{at}])[{place}]);", self.of_input(at));
        }
    }

    /// Steps of a level that make one value of the row.
    fn steps_of_row(&mut self, level: usize) {
        for register in self.first()..self.region.extents.len() {
            let is_step = self.step(register).is_some_and(|step| !step.op.reduces());
            if is_step && !self.is_full(register) && self.region.live[register] && self.region.levels[register] == level
            {
                self.compute(register, "  ");
            }
        }
    }

    fn compute(&mut self, register: usize, indent: &str) {
        let Some(&Step { op, operands }) = self.step(register) else { return };
        let names = operands.map(|operand| self.register(operand));
        line!(self, "{indent}const float r{register} = {};", value(op, [&names[0], &names[1], &names[2]]));
    }

    /// Full registers, in order, that these are computed of, themselves included.
    fn behind(&self, wanted: impl Iterator<Item = usize>) -> Vec<usize> {
        let mut needed = vec![false; self.region.extents.len()];
        wanted.for_each(|register| needed[register] = true);
        for register in (0..needed.len()).rev().filter(|&register| self.is_full(register)) {
            if let Some(step) = self.step(register).filter(|_| needed[register]) {
                step.reads().iter().for_each(|&read| needed[read] = true);
            }
        }
        (0..needed.len()).filter(|&register| needed[register] && self.is_full(register)).collect()
    }

    fn load(&mut self, at: usize, to: &str) {
        let (name, width) = (self.of_input(at), self.region.width);
        line!(self, "    {to} = load<{name}, {width}>(task.in[{at}], at{at} + column, count, task.whole >> {at} & 1);");
    }

    fn loads(&mut self, computed: &[usize]) {
        let n_inputs = self.n_inputs();
        for &at in computed.iter().filter(|&&at| at < n_inputs) {
            let pack = format!("const Pack<{}, {}> p{at}", self.of_input(at), self.region.width);
            self.load(at, &pack);
        }
    }

    fn pack(&mut self, pass: &Pass<'_>) {
        let width = self.region.width;
        for &at in pass.outputs {
            line!(self, "    Pack<{}, {width}> q{at};", self.of_output(at));
        }
        for register in pass.reduced {
            line!(self, "    float l{register}[{width}];");
        }
        line!(self, "    UNROLL for (u32 i = 0; i < {width}; i++) {{");
        for &register in pass.computed {
            if register < self.n_inputs() {
                line!(self, "      const float r{register} = read(p{register}{}.at[i]);", pass.index);
            } else {
                self.compute(register, "      ");
            }
        }
        for &at in pass.outputs {
            line!(self, "      write(q{at}.at[i], {});", self.register(self.region.typed.program.outputs[at]));
        }
        for &register in pass.reduced {
            let Some(&Step { op, operands: [operand, ..] }) = self.step(register) else { continue };
            let operand = self.register(operand);
            line!(self, "      l{register}[i] = i < count ? {operand} : {}::none();", kind(op));
        }
        line!(self, "    }}");
        for &at in pass.outputs {
            let (name, bit) = (self.of_output(at), self.n_inputs() + at);
            let place = "(u64)row * n + column, count";
            line!(self, "    store<{name}, {width}>(task.out[{at}], {place}, task.whole >> {bit} & 1, q{at});");
        }
        for &register in pass.reduced {
            let Some(kind) = self.step(register).map(|step| kind(step.op)) else { continue };
            line!(self, "    s{register} = {kind}::of(s{register}, of_pack<{kind}, {width}>(l{register}));");
        }
    }

    fn head(&mut self, name: &str, block: usize, index: &str) {
        line!(self, "extern \"C\" __launch_bounds__({block}) __global__ void {name}(const task_of_{name} task) {{");
        line!(self, "  typedef {index} Index;");
    }

    fn elements(&mut self, name: &str, wide: bool) {
        let width = self.region.width;
        self.head(name, BLOCK, if wide { "u64" } else { "u32" });
        line!(
            self,
            "  const Index pack = (Index)blockIdx.x * blockDim.x + threadIdx.x, n_packs = (Index)task.n_packs;"
        );
        line!(self, "  if (pack >= (Index)task.n_rows * n_packs) return;");
        line!(self, "  const Index row = task.n_rows == 1 ? 0 : pack / n_packs;");
        line!(self, "  const u64 n = task.n, column = (u64)(pack - row * n_packs) * {width};");
        line!(self, "  const u32 count = n - column < {width}u ? (u32)(n - column) : {width}u;");
        self.places();
        self.values_of_row();
        self.steps_of_row(0);
        let outputs: Vec<usize> = (0..self.region.typed.outputs.len()).collect();
        let computed = self.behind(self.region.typed.program.outputs.iter().copied());
        line!(self, "  {{");
        self.loads(&computed);
        self.pack(&Pass { computed: &computed, outputs: &outputs, reduced: &[], index: "" });
        line!(self, "  }}\n}}");
    }

    fn rows(&mut self, name: &str, rows: &Rows) {
        let reductions: Vec<usize> = (self.first()..self.region.extents.len())
            .filter(|&register| self.region.live[register] && self.step(register).is_some_and(|step| step.op.reduces()))
            .collect();
        self.head(name, rows.block(), "u32");
        if !reductions.is_empty() {
            line!(self, "  __shared__ float shared[{}];", 32 * reductions.len());
        }
        if rows.threads == WARP {
            line!(self, "  const Index row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;");
            line!(self, "  if (row >= task.n_rows) return;");
            line!(self, "  const u32 thread = threadIdx.x % 32;");
        } else {
            line!(self, "  const Index row = blockIdx.x;\n  const u32 thread = threadIdx.x;");
        }
        match rows.n {
            Some(n) => line!(self, "  const u32 n = {n};"),
            None => line!(self, "  const u32 n = (u32)task.n;"),
        }
        self.places();
        self.values_of_row();
        if let Some(kept) = rows.kept {
            self.keep(rows, kept);
        }
        for level in 0..=self.region.levels.iter().copied().max().unwrap_or(0) {
            self.steps_of_row(level);
            self.pass(level, rows, &reductions);
        }
        for (at, &register) in self.region.typed.program.outputs.iter().enumerate() {
            if !self.is_full(register) {
                let (name, value) = (self.of_output(at), self.register(register));
                line!(self, "  if (thread == 0) write((({name} *)task.out[{at}])[row], {value});");
            }
        }
        line!(self, "}}");
    }

    /// `times`: how a thread goes over its packs, to `column` and `count`.
    fn each_pack(&mut self, rows: &Rows) {
        let (threads, width) = (rows.threads, self.region.width);
        match rows.kept {
            Some(kept) => {
                line!(self, "  UNROLL for (u32 k = 0; k < {kept}; k++) {{");
                line!(self, "    const u32 column = (k * {threads} + thread) * {width};");
            }
            None => {
                line!(self, "  for (u32 start = 0; start < n; start += {}) {{", threads * width);
                line!(self, "    const u32 column = start + thread * {width};");
            }
        }
        line!(self, "    if (column >= n) break;");
        line!(self, "    const u32 count = n - column < {width}u ? n - column : {width}u;");
    }

    fn keep(&mut self, rows: &Rows, kept: usize) {
        let inputs = self.inputs(|extent| extent == Extent::Full);
        for &at in &inputs {
            line!(self, "  Pack<{}, {}> p{at}[{kept}];", self.of_input(at), self.region.width);
        }
        self.each_pack(rows);
        for at in inputs {
            self.load(at, &format!("p{at}[k]"));
        }
        line!(self, "  }}");
    }

    /// One way over the row: for the reductions of the next level, and the outputs of this one.
    fn pass(&mut self, level: usize, rows: &Rows, reductions: &[usize]) {
        let levels = &self.region.levels;
        let reduced: Vec<usize> =
            reductions.iter().copied().filter(|&register| levels[register] == level + 1).collect();
        let given = &self.region.typed.program.outputs;
        let outputs: Vec<usize> =
            (0..given.len()).filter(|&at| self.is_full(given[at]) && levels[given[at]] == level).collect();
        if reduced.is_empty() && outputs.is_empty() {
            return;
        }
        let operands = reduced.iter().filter_map(|&register| self.step(register)).map(|step| step.operands[0]);
        let computed = self.behind(operands.chain(outputs.iter().map(|&at| given[at])));
        for &register in &reduced {
            let Some(kind) = self.step(register).map(|step| kind(step.op)) else { continue };
            line!(self, "  float s{register} = {kind}::none();");
        }
        self.each_pack(rows);
        if rows.kept.is_none() {
            self.loads(&computed);
        }
        let index = if rows.kept.is_some() { "[k]" } else { "" };
        self.pack(&Pass { computed: &computed, outputs: &outputs, reduced: &reduced, index });
        line!(self, "  }}");
        for register in reduced {
            let Some(&Step { op, .. }) = self.step(register) else { continue };
            let place = 32 * reductions.iter().position(|&other| other == register).unwrap_or(0);
            let (kind, mean) = (kind(op), if op == Op::ReduceMean { " / (float)n" } else { "" });
            line!(
                self,
                "  const float r{register} = of_row<{kind}, {}>(s{register}, shared + {place}){mean};",
                rows.threads
            );
        }
    }
}
