//! Regions on CUDA: each one kernel, on the provider's stream.

use std::sync::Arc;

use ort::operator::{ComputeContext, Kernel, KernelContext, Operator, OperatorDomain, OperatorInput, OperatorOutput};
use ort::value::{DynTensor, DynTensorValueType, TensorElementType};

use super::region::{ADVICE, program_of};
use crate::cuda::{self, Stream};
use crate::onnx::{TYPED_REGION, TypedProgram, region};
use crate::protocol::message::CUDA_PROVIDER;
use crate::runtime::ort::device_kernels::DeviceKernels;
use crate::runtime::ort::kernels::{self, DeviceRegion};
use crate::tensor::DType;

/// The domain with its operator.
pub(super) fn add(domain: OperatorDomain, kernels: Arc<DeviceKernels>) -> ort::Result<OperatorDomain> {
    domain.add(OnDevice(kernels))
}

/// Inputs and outputs of the element types that its attributes say; see [`TypedProgram`].
struct OnDevice(Arc<DeviceKernels>);

fn wrong(reason: impl std::fmt::Display) -> ort::Error {
    ort::Error::new(format!("{TYPED_REGION}: {reason}"))
}

impl Operator for OnDevice {
    type Kernel<'attr> = Running;

    fn name(&self) -> &str {
        TYPED_REGION
    }

    fn execution_provider_type(&self) -> Option<&str> {
        (!cuda::on_host()).then_some(CUDA_PROVIDER)
    }

    fn inputs(&self) -> impl IntoIterator<Item = OperatorInput> {
        [OperatorInput::variadic(1)]
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        [OperatorOutput::variadic(1)]
    }

    fn create_kernel<'attr>(&self, context: &KernelContext<'attr>) -> ort::Result<Running> {
        let program = program_of(context).ok_or_else(|| wrong("its attributes are no program"))?;
        let types = context.get::<Vec<i64>>(region::TYPES).ok_or_else(|| wrong("it has no types"))?;
        let typed = TypedProgram::read(program, &types, context.get::<i64>(region::ROW));
        let region = typed.and_then(DeviceRegion::of).ok_or_else(|| wrong("its attributes are of no kernel"))?;
        let kernel = self.0.kernel(&region.source()).map_err(wrong)?;
        Ok(Running { kernels: Arc::clone(&self.0), region, kernel })
    }
}

struct Running {
    kernels: Arc<DeviceKernels>,
    region: DeviceRegion,
    kernel: Arc<cuda::Kernel>,
}

impl Kernel for Running {
    fn compute(&mut self, context: &ComputeContext) -> ort::Result<()> {
        let (typed, missing) = (self.region.typed(), || wrong("an input or output is missing"));
        if context.num_inputs()? < typed.inputs.len() || context.num_outputs()? != typed.outputs.len() {
            return Err(missing());
        }
        let inputs = typed.inputs.iter().enumerate().map(|(at, &dtype)| {
            let input = context.input(at)?.ok_or_else(missing)?.downcast::<DynTensorValueType>()?;
            check(&input, dtype)?;
            Ok(input)
        });
        let inputs = inputs.collect::<ort::Result<Vec<_>>>()?;
        let shapes: Vec<&[i64]> = inputs.iter().map(|input| &**input.shape()).collect();
        let rank = typed.program.rank;
        let sizes = kernels::broadcast(&shapes, rank)
            .ok_or_else(|| wrong(format!("shapes {shapes:?} do not broadcast to {rank} axes; {ADVICE}")))?;
        let sizes = &sizes[..rank];
        let fitted = self.region.fit(sizes, &shapes).map_err(|reason| {
            wrong(format!("shapes {shapes:?} are not those that the model tells ({reason}); {ADVICE}"))
        })?;
        let outputs = typed.outputs.iter().enumerate().map(|(at, &dtype)| {
            let shape = self.region.output_shape(at, sizes);
            let output = context.output(at, shape)?.ok_or_else(missing)?.downcast::<DynTensorValueType>()?;
            check(&output, dtype)?;
            Ok(output)
        });
        let outputs = outputs.collect::<ort::Result<Vec<_>>>()?;
        let read: Vec<u64> = inputs.iter().map(|input| input.data_ptr().addr() as u64).collect();
        let written: Vec<u64> = outputs.iter().map(|output| output.data_ptr().addr() as u64).collect();
        let Some(launch) = self.region.launch(&fitted, &read, &written) else { return Ok(()) };
        let wide = match fitted.is_wide() {
            true => Some(self.kernels.kernel(&self.region.wide_source()).map_err(wrong)?),
            false => None,
        };
        let stream = context.stream()?.map_or(0, |stream| stream.as_ptr().addr() as u64);
        let stream = Stream::borrowed(self.kernels.device(), stream);
        let kernel = wide.as_ref().unwrap_or(&self.kernel);
        // SAFETY: the task is laid out as the kernel's source says, which is of this region. Its addresses are those of
        // tensors of the shapes that it was fitted to; the provider gives their memory to nobody but what comes behind on its
        // stream, which this is.
        unsafe { stream.launch_in_run(kernel, launch.n_blocks, launch.n_threads, &launch.task) }.map_err(wrong)?;
        if cuda::on_host() {
            stream.synchronize().map_err(wrong)?; // the CPU provider goes on at once
        }
        Ok(())
    }
}

fn check(tensor: &DynTensor, expected: DType) -> ort::Result<()> {
    let found = *tensor.data_type();
    let fits = match expected {
        DType::F32 => found == TensorElementType::Float32,
        DType::BF16 => found == TensorElementType::Bfloat16,
        DType::F16 => found == TensorElementType::Float16,
        DType::Bool => found == TensorElementType::Bool,
        _ => false,
    };
    if fits { Ok(()) } else { Err(wrong(format!("a tensor of {found} in the place of {expected:?}; {ADVICE}"))) }
}
