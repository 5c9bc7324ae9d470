//! Sums in float64: what the pass `wide-sums` of `onnx::rewrite` makes.

use ort::operator::{ComputeContext, Kernel, KernelContext, Operator, OperatorDomain, OperatorInput, OperatorOutput};
use ort::value::{DynTensorValueType, TensorElementType};

use super::bits::{bits, bits_mut};
use crate::onnx::{AVERAGED, KEEPDIMS, LEFT_AXIS, WIDE_SUM};
use crate::runtime::ort::kernels::{self, WideSum};

/// The domain with its operator.
pub(super) fn add(domain: OperatorDomain) -> ort::Result<OperatorDomain> {
    domain.add(Sum)
}

/// See [`WIDE_SUM`].
struct Sum;

impl Operator for Sum {
    type Kernel<'attr> = Summing;

    fn name(&self) -> &str {
        WIDE_SUM
    }

    fn inputs(&self) -> impl IntoIterator<Item = OperatorInput> {
        [OperatorInput::required(TensorElementType::Float32)]
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        [OperatorOutput::required(TensorElementType::Float32)]
    }

    fn create_kernel<'attr>(&self, context: &KernelContext<'attr>) -> ort::Result<Summing> {
        let number = |name: &str| context.get::<i64>(name).unwrap_or(0);
        Ok(Summing { left_axis: number(LEFT_AXIS), keeps: number(KEEPDIMS) != 0, averaged: number(AVERAGED) != 0 })
    }
}

struct Summing {
    left_axis: i64,
    keeps: bool,
    averaged: bool,
}

impl Kernel for Summing {
    fn compute(&mut self, context: &ComputeContext) -> ort::Result<()> {
        let wrong = |reason: String| ort::Error::new(format!("{WIDE_SUM}: {reason}"));
        let missing = || wrong("an input or output is missing".to_owned());
        let input = context.input(0)?.ok_or_else(missing)?.downcast::<DynTensorValueType>()?;
        let shape = &input.shape()[..];
        let outside = || wrong(format!("no axis {} in a shape of {shape:?}", self.left_axis));
        let axis = usize::try_from(self.left_axis).ok().filter(|&axis| axis < shape.len()).ok_or_else(outside)?;
        let product = |sizes: &[i64]| sizes.iter().map(|&size| size as usize).product::<usize>();
        let sizes = [product(&shape[..axis]), shape[axis] as usize, product(&shape[axis + 1..])];
        let kept = |at: usize| if at == axis { shape[axis] } else { 1 };
        let result = if self.keeps { (0..shape.len()).map(kept).collect() } else { vec![shape[axis]] };
        let output = context.output(0, result)?.ok_or_else(missing)?;
        let mut output = output.downcast::<DynTensorValueType>()?;
        let factor = if self.averaged { 1.0 / (sizes[0] * sizes[2]) as f64 } else { 1.0 };
        let sum = WideSum::new(bits::<f32>(&input)?, sizes, factor, bits_mut(&mut output)?);
        kernels::run(&sum.ok_or_else(|| wrong(format!("lengths that do not fit {sizes:?}")))?, context)
    }
}
