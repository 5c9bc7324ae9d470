//! Attention and its gradient on the CUDA provider: calls of the functions that the exporter writes them as, by libtorch's
//! kernels.

use std::ffi::c_void;
use std::ops::Range;

use ort::operator::{ComputeContext, Kernel, KernelContext, Operator, OperatorDomain, OperatorInput, OperatorOutput};
use ort::value::{DynTensorValueType, TensorElementType, ValueRef, ValueRefMut};

use super::attention::{INPUTS_BY_ROW, IS_CAUSAL, OUTPUTS_BY_ROW};
use crate::cuda;
use crate::onnx::DOMAIN;
use crate::onnx::proto::NodeProto;
use crate::protocol::message::CUDA_PROVIDER;
use crate::runtime::ort::libtorch::{self, Device, Element, Layout, Libtorch, Tensor};
use crate::tensor::DType;

/// An element type: in torch, in ONNX Runtime, and the operators of the two directions. A name each, as of
/// [`super::select`].
pub(super) struct Kind {
    pub(super) dtype: DType,
    pub(super) element: Element,
    pub(super) names: [&'static str; 2],
    in_runtime: TensorElementType,
}

static KINDS: [Kind; 3] = [
    Kind {
        dtype: DType::F32,
        element: Element::F32,
        names: ["LibtorchAttentionFloat", "LibtorchAttentionGradientFloat"],
        in_runtime: TensorElementType::Float32,
    },
    Kind {
        dtype: DType::F16,
        element: Element::F16,
        names: ["LibtorchAttentionHalf", "LibtorchAttentionGradientHalf"],
        in_runtime: TensorElementType::Float16,
    },
    Kind {
        dtype: DType::BF16,
        element: Element::BF16,
        names: ["LibtorchAttentionBFloat16", "LibtorchAttentionGradientBFloat16"],
        in_runtime: TensorElementType::Bfloat16,
    },
];

/// What scores are multiplied by.
pub(super) const SCALE: &str = "scale";
/// The name of a [`libtorch::Kernel`].
pub(super) const KERNEL: &str = "kernel";
/// Somebody reads logsumexp; else it is not written.
pub(super) const WANTS_LOGSUMEXP: &str = "wants_logsumexp";

/// The operators of an element type; None where no kernel computes in it.
pub(super) fn kind_of(dtype: DType) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.dtype == dtype)
}

/// Whether libtorch computes a node: its allocator may give memory away that a CUDA graph has, so that no call with one is
/// captured.
pub(in crate::runtime::ort) fn is_of_libtorch(node: &NodeProto) -> bool {
    heads_of(node).is_some()
}

/// As [`super::attention::heads_of`].
pub(super) fn heads_of(node: &NodeProto) -> Option<[Range<usize>; 2]> {
    let is = |direction: usize| KINDS.iter().any(|kind| kind.names[direction] == node.op_type());
    match node.domain() == DOMAIN {
        true if is(0) => Some([0..3, 0..1]),
        true if is(1) => Some([0..5, 0..3]),
        _ => None,
    }
}

/// The domain with its operators.
pub(super) fn add(domain: OperatorDomain) -> ort::Result<OperatorDomain> {
    let operators = KINDS.iter().flat_map(|kind| [false, true].map(|is_gradient| Attend { kind, is_gradient }));
    operators.into_iter().try_fold(domain, OperatorDomain::add)
}

/// (query, key, value, mask?) to (output, logsumexp), or (grad_output, query, key, value, output, logsumexp, mask?) to
/// (grad_query, grad_key, grad_value). All are of one element type but logsumexp, which is float32.
#[derive(Clone, Copy)]
struct Attend {
    kind: &'static Kind,
    is_gradient: bool,
}

impl Operator for Attend {
    type Kernel<'attr> = Attending;

    fn name(&self) -> &str {
        self.kind.names[usize::from(self.is_gradient)]
    }

    fn execution_provider_type(&self) -> Option<&str> {
        (!cuda::on_host()).then_some(CUDA_PROVIDER)
    }

    fn inputs(&self) -> impl IntoIterator<Item = OperatorInput> {
        let element = self.kind.in_runtime;
        let mut required = vec![element; if self.is_gradient { 5 } else { 3 }];
        required.extend(self.is_gradient.then_some(TensorElementType::Float32));
        let required = required.into_iter().map(OperatorInput::required);
        required.chain([OperatorInput::optional(element)]).collect::<Vec<_>>()
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        let element = self.kind.in_runtime;
        let elements = if self.is_gradient { vec![element; 3] } else { vec![element, TensorElementType::Float32] };
        elements.into_iter().map(OperatorOutput::required)
    }

    fn create_kernel<'attr>(&self, context: &KernelContext<'attr>) -> ort::Result<Attending> {
        let places = |name: &str| context.get::<Vec<i64>>(name).unwrap_or_default();
        let wrong = || ort::Error::new(format!("{}: its attributes name no kernel, or no scale", self.name()));
        let kernel = context.get::<String>(KERNEL).and_then(|name| libtorch::Kernel::named(&name));
        Ok(Attending {
            operator: *self,
            libtorch: Libtorch::get().map_err(ort::Error::new)?,
            kernel: kernel.ok_or_else(wrong)?,
            scale: context.get::<f32>(SCALE).ok_or_else(wrong)?.into(),
            is_causal: context.get::<i64>(IS_CAUSAL) == Some(1),
            wants_logsumexp: context.get::<i64>(WANTS_LOGSUMEXP) == Some(1),
            inputs_by_row: places(INPUTS_BY_ROW),
            outputs_by_row: places(OUTPUTS_BY_ROW),
        })
    }
}

struct Attending {
    operator: Attend,
    libtorch: &'static Libtorch,
    kernel: libtorch::Kernel,
    scale: f64,
    is_causal: bool,
    wants_logsumexp: bool,
    inputs_by_row: Vec<i64>,
    outputs_by_row: Vec<i64>,
}

impl Kernel for Attending {
    fn compute(&mut self, context: &ComputeContext) -> ort::Result<()> {
        let call = Call { node: self, context };
        let done = if self.operator.is_gradient { call.backward() } else { call.forward() };
        done.map_err(|error| ort::Error::new(format!("{}: {error}", self.operator.name())))
    }
}

struct Call<'a> {
    node: &'a Attending,
    context: &'a ComputeContext,
}

type Input<'a> = ValueRef<'a, DynTensorValueType>;
type Output<'a> = ValueRefMut<'a, DynTensorValueType>;

/// Sizes of query, key and value, each [batch, heads, length, size].
struct Sizes {
    query: [i64; 4],
    key: [i64; 4],
    value: [i64; 4],
}

impl Sizes {
    fn output(&self) -> [i64; 4] {
        let ([batch, heads, length, _], [.., size]) = (self.query, self.value);
        [batch, heads, length, size]
    }

    fn logsumexp(&self) -> [i64; 3] {
        let [batch, heads, length, _] = self.query;
        [batch, heads, length]
    }

    fn scores(&self) -> [i64; 4] {
        let ([batch, heads, length, _], [_, _, n_keys, _]) = (self.query, self.key);
        [batch, heads, length, n_keys]
    }
}

impl Call<'_> {
    fn forward(&self) -> ort::Result<()> {
        let [query, key, value] = [self.input(0)?, self.input(1)?, self.input(2)?];
        let mask = self.optional_input(3)?;
        let sizes = self.sizes([(0, &query), (1, &key), (2, &value)])?;
        let (output, logsumexp) = (self.output(0, &sizes.output())?, self.output(1, &sizes.logsumexp())?);
        if sizes.output().contains(&0) {
            return Ok(());
        }
        let device = self.device(&query)?;
        let bias = mask.as_ref().map(|mask| self.bias(&device, mask, sizes.scores())).transpose()?;
        let work = libtorch::Forward {
            kernel: self.node.kernel,
            element: self.element(),
            query: &self.heads(&device, 0, &query, sizes.query)?,
            key: &self.heads(&device, 1, &key, sizes.key)?,
            value: &self.heads(&device, 2, &value, sizes.value)?,
            scores: self.scores(bias.as_ref()),
            wants_logsumexp: self.node.wants_logsumexp,
        };
        let (of_kernel, sums) = libtorch::forward(&device, &work)?;
        self.heads_out(&device, 0, &output, sizes.output())?.copy_from(&of_kernel)?;
        let Some(sums) = sums else { return Ok(()) };
        let layout = Layout::contiguous(sizes.logsumexp());
        // SAFETY: an output of the shape that it was asked for with; see `heads_out`.
        unsafe { device.over(start_of(&logsumexp), layout, Element::F32) }?.copy_from(&sums)
    }

    fn backward(&self) -> ort::Result<()> {
        let [grad_output, query, key, value] = [self.input(0)?, self.input(1)?, self.input(2)?, self.input(3)?];
        let (output, logsumexp, mask) = (self.input(4)?, self.input(5)?, self.optional_input(6)?);
        let sizes = self.sizes([(1, &query), (2, &key), (3, &value)])?;
        let of_outputs = [sizes.query, sizes.key, sizes.value];
        let outputs = [self.output(0, &sizes.query)?, self.output(1, &sizes.key)?, self.output(2, &sizes.value)?];
        if of_outputs.iter().all(|sizes| sizes.contains(&0)) {
            return Ok(());
        }
        if logsumexp.shape()[..] != sizes.logsumexp() {
            let (got, expected) = (logsumexp.shape(), sizes.logsumexp());
            return Err(ort::Error::new(format!("logsumexp of shape {got:?}, expected {expected:?}")));
        }
        let device = self.device(&query)?;
        let bias = mask.as_ref().map(|mask| self.bias(&device, mask, sizes.scores())).transpose()?;
        let layout = Layout::contiguous(sizes.logsumexp());
        // SAFETY: an input of this shape; see `heads`.
        let sums = unsafe { device.over(start_of(&logsumexp), layout, Element::F32) }?;
        let work = libtorch::Backward {
            kernel: self.node.kernel,
            element: self.element(),
            grad_output: &self.heads(&device, 0, &grad_output, sizes.output())?,
            query: &self.heads(&device, 1, &query, sizes.query)?,
            key: &self.heads(&device, 2, &key, sizes.key)?,
            value: &self.heads(&device, 3, &value, sizes.value)?,
            output: &self.heads(&device, 4, &output, sizes.output())?,
            logsumexp: &sums,
            scores: self.scores(bias.as_ref()),
        };
        let gradients = libtorch::backward(&device, &work)?;
        for (at, ((output, sizes), gradient)) in outputs.iter().zip(of_outputs).zip(&gradients).enumerate() {
            self.heads_out(&device, at, output, sizes)?.copy_from(gradient)?;
        }
        Ok(())
    }

    fn element(&self) -> Element {
        self.node.operator.kind.element
    }

    fn scores<'b>(&self, bias: Option<&'b Tensor>) -> libtorch::Scores<'b> {
        libtorch::Scores { scale: self.node.scale, is_causal: self.node.is_causal, bias }
    }

    /// The stream that the session computes on, as this thread's.
    fn device(&self, input: &Input<'_>) -> ort::Result<Device> {
        let ordinal = input.memory_info().device_id();
        let stream = self.context.stream()?.map_or(std::ptr::null_mut(), |stream| stream.as_ptr().cast::<c_void>());
        // SAFETY: the stream that the provider computes on, which lives as long as the session, whose end waits for its work.
        unsafe { Device::enter(self.node.libtorch, ordinal, stream) }
    }

    fn input(&self, at: usize) -> ort::Result<Input<'_>> {
        self.optional_input(at)?.ok_or_else(|| ort::Error::new(format!("input {at} is missing")))
    }

    fn optional_input(&self, at: usize) -> ort::Result<Option<Input<'_>>> {
        if at >= self.context.num_inputs()? {
            return Ok(None);
        }
        self.context.input(at)?.map(|value| value.downcast()).transpose()
    }

    /// Of this shape, as far as attention knows it.
    fn output(&self, at: usize, sizes: &[i64]) -> ort::Result<Output<'_>> {
        let mut shape = sizes.to_vec();
        if self.node.outputs_by_row.contains(&(at as i64)) {
            shape.swap(1, 2);
        }
        let output = self.context.output(at, shape)?;
        output.ok_or_else(|| ort::Error::new(format!("output {at} is missing")))?.downcast()
    }

    /// Of query, key and value, each with its place among the inputs. Errors: shapes that do not fit together.
    fn sizes(&self, heads: [(usize, &Input<'_>); 3]) -> ort::Result<Sizes> {
        let shapes = heads.map(|(_, heads)| heads.shape().to_vec());
        let unfit = || ort::Error::new(format!("query, key and value of shapes {shapes:?} do not fit together"));
        let mut sizes = [[0; 4]; 3];
        for ((sizes, shape), (at, _)) in sizes.iter_mut().zip(&shapes).zip(heads) {
            *sizes = shape.clone().try_into().map_err(|_| unfit())?;
            if self.node.inputs_by_row.contains(&(at as i64)) {
                sizes.swap(1, 2);
            }
        }
        let [query, key, value] = sizes;
        let fit = [key[0], value[0]] == [query[0]; 2]
            && (value[1], value[2], key[3]) == (key[1], key[2], query[3])
            && query[1].checked_rem(key[1]).unwrap_or(query[1]) == 0;
        if fit { Ok(Sizes { query, key, value }) } else { Err(unfit()) }
    }

    /// How [batch, heads, length, size] lies in memory, and the shape that says so.
    fn layout(sizes: [i64; 4], is_by_row: bool) -> (Layout<4>, [i64; 4]) {
        let [batch, heads, length, size] = sizes;
        match is_by_row {
            true => (Layout::by_row(sizes), [batch, length, heads, size]),
            false => (Layout::contiguous(sizes), sizes),
        }
    }

    fn heads(&self, device: &Device, at: usize, input: &Input<'_>, sizes: [i64; 4]) -> ort::Result<Tensor> {
        let (layout, expected) = Self::layout(sizes, self.node.inputs_by_row.contains(&(at as i64)));
        if input.shape()[..] != expected {
            let got = input.shape();
            return Err(ort::Error::new(format!("input {at} of shape {got:?}, expected {expected:?}")));
        }
        // SAFETY: the runtime's tensor has these elements, in the memory of the device that the provider computes on; what
        // the runtime puts into it later is put on the same stream.
        unsafe { device.over(start_of(input), layout, self.element()) }
    }

    fn heads_out(&self, device: &Device, at: usize, output: &Output<'_>, sizes: [i64; 4]) -> ort::Result<Tensor> {
        let (layout, _) = Self::layout(sizes, self.node.outputs_by_row.contains(&(at as i64)));
        // SAFETY: as in `heads`, of an output, which has the shape that it was asked for with and is this kernel's alone.
        unsafe { device.over(start_of(output), layout, self.element()) }
    }

    /// A mask as it is broadcast over the scores. Errors: one that does not broadcast to them.
    fn bias(&self, device: &Device, mask: &Input<'_>, scores: [i64; 4]) -> ort::Result<Tensor> {
        let shape = mask.shape();
        let unfit = || ort::Error::new(format!("a mask of shape {shape:?} does not broadcast to {scores:?}"));
        let mut own = [1; 4];
        own.get_mut(4_usize.wrapping_sub(shape.len())..).ok_or_else(unfit)?.copy_from_slice(&shape[..]);
        let mut layout = Layout { sizes: scores, ..Layout::contiguous(own) };
        for ((stride, &size), expected) in layout.strides.iter_mut().zip(&own).zip(scores) {
            match size {
                _ if size == expected => {}
                1 => *stride = 0,
                _ => return Err(unfit()),
            }
        }
        // SAFETY: as in `heads`; a stride of 0 stays where it is.
        unsafe { device.over(start_of(mask), layout, self.element()) }
    }
}

/// Where a tensor's elements begin.
fn start_of(tensor: &ort::value::DynTensor) -> *mut c_void {
    tensor.data_ptr().cast_mut().cast()
}
