//! `Where`: ONNX Runtime's adds what either side gave, and zero where it gave nothing, so that -0.0 becomes 0.0.

use std::iter::repeat;
use std::sync::Mutex;

use ort::operator::{ComputeContext, Kernel, KernelContext, Operator, OperatorDomain, OperatorInput, OperatorOutput};
use ort::value::{DynTensorValueType, TensorElementType};

use super::bits::{Bits, bits, bits_mut};
use super::broadcast::{Broadcast, Operand};
use crate::base::sync::lock;
use crate::onnx::proto::NodeProto;
use crate::tensor::DType;

/// Elements that one thread does at a time.
const BLOCK: usize = 1 << 15;

/// The operator in the place of a node that is ONNX's Where of floats; None of others: integers have one zero.
/// inputs: element types of what the node reads.
pub(super) fn in_place_of(node: &NodeProto, inputs: &[Option<i32>]) -> Option<&'static str> {
    let is_where = node.op_type() == "Where" && matches!(node.domain(), "" | "ai.onnx");
    let element = inputs.iter().skip(1).find_map(|&element| element)?;
    FLOATS.into_iter().find(|&(dtype, ..)| is_where && dtype.onnx_code() == element).map(|(_, name, _)| name)
}

/// (What it is of, operator, what ONNX Runtime calls the element type.) A name each: of operators with the same name,
/// ONNX Runtime takes the first one's result for all.
const FLOATS: [(DType, &str, TensorElementType); 2] =
    [(DType::F32, "WhereFloat", TensorElementType::Float32), (DType::F64, "WhereDouble", TensorElementType::Float64)];

/// The domain with its operators.
pub(super) fn add(domain: OperatorDomain) -> ort::Result<OperatorDomain> {
    FLOATS.into_iter().try_fold(domain, |domain, (_, name, element)| domain.add(Select { name, element }))
}

/// (condition, x, y), broadcast together, to x where the condition holds and y elsewhere, bit by bit. It infers no shape:
/// to an operator of this kind, ONNX Runtime shows an unknown shape as that of a number.
#[derive(Clone, Copy)]
struct Select {
    name: &'static str,
    element: TensorElementType,
}

impl Operator for Select {
    type Kernel<'attr> = Self;

    fn name(&self) -> &str {
        self.name
    }

    fn inputs(&self) -> impl IntoIterator<Item = OperatorInput> {
        [TensorElementType::Bool, self.element, self.element].map(OperatorInput::required)
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        [OperatorOutput::required(self.element)]
    }

    fn create_kernel<'attr>(&self, _: &KernelContext<'attr>) -> ort::Result<Self> {
        Ok(*self)
    }
}

impl Kernel for Select {
    fn compute(&mut self, context: &ComputeContext) -> ort::Result<()> {
        match self.element {
            TensorElementType::Float64 => compute::<u64>(context),
            _ => compute::<u32>(context),
        }
    }
}

fn compute<T: Bits>(context: &ComputeContext) -> ort::Result<()> {
    let missing = || ort::Error::new("Where: an input or output is missing");
    let input = |at: usize| context.input(at)?.ok_or_else(missing)?.downcast::<DynTensorValueType>();
    let (condition, x, y) = (input(0)?, input(1)?, input(2)?);
    let shapes: [&[i64]; 3] = [&condition, &x, &y].map(|operand| &**operand.shape());
    let broadcast = Broadcast::of(shapes)
        .ok_or_else(|| ort::Error::new(format!("Where: shapes {shapes:?} do not broadcast together")))?;
    let output = context.output(0, broadcast.shape.clone())?.ok_or_else(missing)?;
    let mut output = output.downcast::<DynTensorValueType>()?;
    let (condition, x, y) = (bits::<u8>(&condition)?, bits::<T>(&x)?, bits::<T>(&y)?);
    let blocks: Vec<Mutex<&mut [T]>> = bits_mut::<T>(&mut output)?.chunks_mut(BLOCK).map(Mutex::new).collect();
    let fill = |block: usize| {
        let (mut guard, mut at) = (lock(&blocks[block]), block * BLOCK);
        let mut out = &mut **guard;
        while !out.is_empty() {
            let run = broadcast.run(at, out.len());
            let (filled, left) = out.split_at_mut(run.length);
            let [of_condition, of_x, of_y] = run.operands;
            merge(filled, of_condition.of(condition), of_x.of(x), of_y.of(y));
            (out, at) = (left, at + run.length);
        }
    };
    match blocks.len() {
        0 => Ok(()),
        1 => {
            fill(0);
            Ok(())
        }
        several => context.par_for(several, 0, fill),
    }
}

/// A run of an operand: one element for all of it, or one for each.
enum Elements<'a, T> {
    One(T),
    Each(&'a [T]),
}

impl Operand {
    fn of<T: Copy>(self, elements: &[T]) -> Elements<'_, T> {
        match self {
            Self::One(at) => Elements::One(elements[at]),
            Self::Each(range) => Elements::Each(&elements[range]),
        }
    }
}

/// Any byte but 0 holds, whatever wrote it.
fn merge<T: Copy>(out: &mut [T], condition: Elements<'_, u8>, x: Elements<'_, T>, y: Elements<'_, T>) {
    let condition = match condition {
        Elements::Each(condition) => condition,
        Elements::One(holds) => {
            return match if holds != 0 { x } else { y } {
                Elements::One(value) => out.fill(value),
                Elements::Each(values) => out.copy_from_slice(values),
            };
        }
    };
    match (x, y) {
        (Elements::One(x), Elements::One(y)) => choose(out, condition, repeat(x), repeat(y)),
        (Elements::One(x), Elements::Each(y)) => choose(out, condition, repeat(x), y.iter().copied()),
        (Elements::Each(x), Elements::One(y)) => choose(out, condition, x.iter().copied(), repeat(y)),
        (Elements::Each(x), Elements::Each(y)) => choose(out, condition, x.iter().copied(), y.iter().copied()),
    }
}

fn choose<T>(out: &mut [T], condition: &[u8], x: impl Iterator<Item = T>, y: impl Iterator<Item = T>) {
    for (((out, &holds), x), y) in out.iter_mut().zip(condition).zip(x).zip(y) {
        *out = if holds != 0 { x } else { y };
    }
}
