//! Regions: what the pass `regions` of `onnx::rewrite` makes one operator of.

use half::{bf16, f16};
use ort::operator::{ComputeContext, Kernel, KernelContext, Operator, OperatorDomain, OperatorInput, OperatorOutput};
use ort::value::{DynTensor, DynTensorValueType, TensorElementType};

use super::bits::{bits, bits_mut};
use crate::onnx::{Extent, Program, REGION, region};
use crate::runtime::ort::kernels::{self, Elements, Plan, Region};

/// Whoever changed a model by hand, and left in what it said of its values, can run it so.
pub(super) const ADVICE: &str = "take out its value_info where it is not true, or give disable_passes=(\"regions\",)";

/// The domain with its operator.
pub(super) fn add(domain: OperatorDomain) -> ort::Result<OperatorDomain> {
    domain.add(RegionFloat)
}

/// Inputs of float32, bfloat16, float16 and bool to outputs of float32; see [`Program`].
struct RegionFloat;

impl Operator for RegionFloat {
    type Kernel<'attr> = Running;

    fn name(&self) -> &str {
        REGION
    }

    fn inputs(&self) -> impl IntoIterator<Item = OperatorInput> {
        [OperatorInput::variadic(1)]
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        [OperatorOutput::variadic(1).homogenous(TensorElementType::Float32)]
    }

    fn create_kernel<'attr>(&self, context: &KernelContext<'attr>) -> ort::Result<Running> {
        let program = program_of(context).and_then(Plan::of);
        program.map(Running).ok_or_else(|| ort::Error::new(format!("{REGION}: its attributes are no program")))
    }
}

/// Of a node's attributes.
pub(super) fn program_of(context: &KernelContext<'_>) -> Option<Program> {
    let constants = context.get::<Vec<f32>>(region::CONSTANTS).unwrap_or_default();
    let (inputs, steps) = (context.get::<String>(region::INPUTS)?, context.get::<String>(region::STEPS)?);
    let (outputs, rank) = (context.get::<Vec<i64>>(region::OUTPUTS)?, context.get::<i64>(region::RANK)?);
    Program::read(&inputs, constants, &steps, &outputs, rank)
}

struct Running(Plan);

impl Kernel for Running {
    fn compute(&mut self, context: &ComputeContext) -> ort::Result<()> {
        let (Self(plan), program) = (&*self, self.0.program());
        let wrong = |reason: String| ort::Error::new(format!("{REGION}: {reason}"));
        let missing = || wrong("an input or output is missing".to_owned());
        if [context.num_inputs()?, context.num_outputs()?] != [program.inputs.len(), program.outputs.len()] {
            return Err(missing());
        }
        let inputs = (0..program.inputs.len()).map(|at| {
            let input = context.input(at)?.ok_or_else(missing)?;
            input.downcast::<DynTensorValueType>()
        });
        let inputs = inputs.collect::<ort::Result<Vec<_>>>()?;
        let shapes: Vec<&[i64]> = inputs.iter().map(|input| &**input.shape()).collect();
        let sizes = kernels::broadcast(&shapes, program.rank)
            .ok_or_else(|| wrong(format!("shapes {shapes:?} do not broadcast to {} axes; {ADVICE}", program.rank)))?;
        let sizes = &sizes[..program.rank];
        let outputs = (program.outputs.iter().enumerate()).map(|(at, &register)| {
            let mut shape: Vec<i64> = sizes.iter().map(|&size| size as i64).collect();
            if plan.extent(register) == Extent::Row {
                shape[program.rank - 1] = 1;
            }
            context.output(at, shape)?.ok_or_else(missing)?.downcast::<DynTensorValueType>()
        });
        let mut outputs = outputs.collect::<ort::Result<Vec<_>>>()?;
        let given = inputs.iter().zip(&shapes).map(|(input, &shape)| Ok((shape, elements(input)?)));
        let given = given.collect::<ort::Result<Vec<_>>>()?;
        let taken = outputs.iter_mut().map(bits_mut::<f32>).collect::<ort::Result<Vec<_>>>()?;
        let region = Region::new(plan, sizes, &given, taken)
            .ok_or_else(|| wrong(format!("shapes {shapes:?} are not those that the model tells; {ADVICE}")))?;
        kernels::run(&region, context)
    }
}

fn elements(input: &DynTensor) -> ort::Result<Elements<'_>> {
    match *input.data_type() {
        TensorElementType::Float32 => bits::<f32>(input).map(Elements::F32),
        TensorElementType::Bfloat16 => bits::<bf16>(input).map(Elements::BF16),
        TensorElementType::Float16 => bits::<f16>(input).map(Elements::F16),
        TensorElementType::Bool => bits::<u8>(input).map(Elements::Bool),
        other => Err(ort::Error::new(format!("{REGION}: an input of {other}"))),
    }
}
