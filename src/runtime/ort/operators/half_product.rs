//! Products that read half precision: what the pass `half-products` of `onnx::rewrite` makes.

use half::{bf16, f16};
use ort::operator::{ComputeContext, Kernel, KernelContext, Operator, OperatorDomain, OperatorInput, OperatorOutput};
use ort::value::{DynTensor, DynTensorValueType, TensorElementType};

use super::bits::{Bits, bits, bits_mut};
use crate::onnx::{HALF_PRODUCT, TURNED};
use crate::runtime::ort::kernels::{self, Element, HalfProduct};

/// The domain with its operator.
pub(super) fn add(domain: OperatorDomain) -> ort::Result<OperatorDomain> {
    domain.add(Product)
}

/// See [`HALF_PRODUCT`].
struct Product;

impl Operator for Product {
    type Kernel<'attr> = Multiplying;

    fn name(&self) -> &str {
        HALF_PRODUCT
    }

    fn inputs(&self) -> impl IntoIterator<Item = OperatorInput> {
        [OperatorInput::required(TensorElementType::Float32), OperatorInput::variadic(1)]
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        [OperatorOutput::required(TensorElementType::Float32)]
    }

    fn create_kernel<'attr>(&self, context: &KernelContext<'attr>) -> ort::Result<Multiplying> {
        Ok(Multiplying { is_turned: context.get::<i64>(TURNED).unwrap_or(0) != 0 })
    }
}

struct Multiplying {
    is_turned: bool,
}

impl Kernel for Multiplying {
    fn compute(&mut self, context: &ComputeContext) -> ort::Result<()> {
        let wrong = |reason: String| ort::Error::new(format!("{HALF_PRODUCT}: {reason}"));
        let missing = || wrong("an input or output is missing".to_owned());
        let input = |at: usize| context.input(at)?.ok_or_else(missing)?.downcast::<DynTensorValueType>();
        let (rows, matrix) = (input(0)?, input(1)?);
        let mut shape = rows.shape().to_vec();
        let sizes = match (&matrix.shape()[..], self.is_turned) {
            (&[columns, depth], true) | (&[depth, columns], false) => Some([depth, columns]),
            _ => None,
        };
        let fitting = sizes.filter(|[depth, _]| shape.last() == Some(depth));
        let ([depth, columns], Some(last)) = (
            fitting.ok_or_else(|| {
                let turned = if self.is_turned { " turned" } else { "" };
                wrong(format!("a product of {:?} and {:?}{turned}", rows.shape(), matrix.shape()))
            })?,
            shape.last_mut(),
        ) else {
            return Err(missing());
        };
        *last = columns;
        let output = context.output(0, shape)?.ok_or_else(missing)?;
        let mut output = output.downcast::<DynTensorValueType>()?;
        let sizes = [depth as usize, columns as usize];
        match *matrix.data_type() {
            TensorElementType::Bfloat16 => {
                self.multiply::<bf16>(context, &rows, &matrix, sizes, bits_mut(&mut output)?)
            }
            TensorElementType::Float16 => self.multiply::<f16>(context, &rows, &matrix, sizes, bits_mut(&mut output)?),
            other => Err(wrong(format!("a matrix of {other}, expected float16 or bfloat16"))),
        }
    }
}

impl Multiplying {
    fn multiply<T: Bits + Element<Real = f32>>(
        &self,
        context: &ComputeContext,
        rows: &DynTensor,
        matrix: &DynTensor,
        sizes: [usize; 2],
        result: &mut [f32],
    ) -> ort::Result<()> {
        let product = HalfProduct::new(bits::<f32>(rows)?, bits::<T>(matrix)?, sizes, self.is_turned, result);
        let product = product.ok_or_else(|| ort::Error::new(format!("{HALF_PRODUCT}: lengths that do not fit")))?;
        kernels::run(&product, context)
    }
}
