//! Attention and its gradient: calls of the functions that the exporter writes them as, by kernels of ours.

use std::ops::Range;

use half::{bf16, f16};
use ort::operator::{ComputeContext, Kernel, KernelContext, Operator, OperatorDomain, OperatorInput, OperatorOutput};
use ort::value::{DynTensor, DynTensorValueType, TensorElementType, ValueRef, ValueRefMut};

use super::bits::{Bits, bits, bits_mut};
use crate::onnx::proto::NodeProto;
use crate::onnx::{Attention, DOMAIN};
use crate::runtime::ort::kernels::{self, Backward, Element, Forward, Heads, HeadsMut, Mask, Parallel, Real, Scores};
use crate::tensor::DType;

/// (What it is of, operators of the two directions, what ONNX Runtime calls the element types that it reads and computes
/// in.) A name each, as of [`super::select`].
const KINDS: [(DType, [&str; 2], [TensorElementType; 2]); 4] = [
    (DType::F32, ["AttentionFloat", "AttentionGradientFloat"], [TensorElementType::Float32; 2]),
    (DType::F64, ["AttentionDouble", "AttentionGradientDouble"], [TensorElementType::Float64; 2]),
    (DType::F16, ["AttentionHalf", "AttentionGradientHalf"], [TensorElementType::Float16, TensorElementType::Float32]),
    (
        DType::BF16,
        ["AttentionBFloat16", "AttentionGradientBFloat16"],
        [TensorElementType::Bfloat16, TensorElementType::Float32],
    ),
];

/// Whether a query sees the keys up to its own place only.
pub(super) const IS_CAUSAL: &str = "is_causal";
/// Places of inputs, and of outputs, that are [batch, length, heads, size] in memory.
pub(super) const INPUTS_BY_ROW: &str = "inputs_by_row";
/// See [`INPUTS_BY_ROW`].
pub(super) const OUTPUTS_BY_ROW: &str = "outputs_by_row";

/// The operator in the place of a call; None where the element type is not known.
/// inputs: element types of what the node reads.
pub(super) fn in_place_of(node: &NodeProto, inputs: &[Option<i32>]) -> Option<(Attention, &'static str)> {
    let attention = Attention::called_by(node)?;
    let element = inputs.first().copied().flatten()?;
    let (_, names, _) = KINDS.iter().find(|(dtype, ..)| dtype.onnx_code() == element)?;
    Some((attention, names[usize::from(attention.is_gradient)]))
}

/// Places of the inputs and outputs of one of our operators that are [batch, heads, length, size]; None of other nodes.
pub(super) fn heads_of(node: &NodeProto) -> Option<[Range<usize>; 2]> {
    let is = |direction: usize| KINDS.iter().any(|(_, names, _)| names[direction] == node.op_type());
    match node.domain() == DOMAIN {
        true if is(0) => Some([0..3, 0..1]),
        true if is(1) => Some([0..5, 0..3]),
        _ => None,
    }
}

/// The domain with its operators.
pub(super) fn add(domain: OperatorDomain) -> ort::Result<OperatorDomain> {
    let operators = KINDS.into_iter().flat_map(|(_, names, elements)| {
        let operator = move |is_gradient: bool| Attend { name: names[usize::from(is_gradient)], elements, is_gradient };
        [operator(false), operator(true)]
    });
    operators.into_iter().try_fold(domain, OperatorDomain::add)
}

/// (query, key, value, scale, mask?) to (output, logsumexp), or
/// (grad_output, query, key, value, output, logsumexp, scale, mask?) to (grad_query, grad_key, grad_value); see [`Forward`]
/// and [`Backward`].
#[derive(Clone, Copy)]
struct Attend {
    name: &'static str,
    elements: [TensorElementType; 2],
    is_gradient: bool,
}

impl Operator for Attend {
    type Kernel<'attr> = Attending;

    fn name(&self) -> &str {
        self.name
    }

    fn inputs(&self) -> impl IntoIterator<Item = OperatorInput> {
        let [element, wide] = self.elements;
        let heads =
            if self.is_gradient { vec![element, element, element, element, element, wide] } else { vec![element; 3] };
        let required = heads.into_iter().chain([wide]).map(OperatorInput::required);
        required.chain([OperatorInput::optional(wide)]).collect::<Vec<_>>()
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        let [element, wide] = self.elements;
        let elements = if self.is_gradient { vec![element; 3] } else { vec![element, wide] };
        elements.into_iter().map(OperatorOutput::required)
    }

    fn create_kernel<'attr>(&self, context: &KernelContext<'attr>) -> ort::Result<Attending> {
        let places = |name: &str| context.get::<Vec<i64>>(name).unwrap_or_default();
        Ok(Attending {
            operator: *self,
            is_causal: context.get::<i64>(IS_CAUSAL) == Some(1),
            inputs_by_row: places(INPUTS_BY_ROW),
            outputs_by_row: places(OUTPUTS_BY_ROW),
        })
    }
}

struct Attending {
    operator: Attend,
    is_causal: bool,
    inputs_by_row: Vec<i64>,
    outputs_by_row: Vec<i64>,
}

impl Kernel for Attending {
    fn compute(&mut self, context: &ComputeContext) -> ort::Result<()> {
        let call = Call { node: self, context };
        match self.operator.elements[0] {
            TensorElementType::Float64 => call.compute::<f64>(),
            TensorElementType::Float16 => call.compute::<f16>(),
            TensorElementType::Bfloat16 => call.compute::<bf16>(),
            _ => call.compute::<f32>(),
        }
    }
}

impl Parallel for ComputeContext {
    fn each(&self, total: usize, function: &(dyn Fn(usize) + Sync)) -> ort::Result<()> {
        self.par_for(total, 0, function)
    }
}

struct Call<'a> {
    node: &'a Attending,
    context: &'a ComputeContext,
}

type Input<'a> = ValueRef<'a, DynTensorValueType>;
type Output<'a> = ValueRefMut<'a, DynTensorValueType>;

impl Call<'_> {
    fn compute<E: Element + Bits>(&self) -> ort::Result<()>
    where
        E::Real: Bits,
    {
        if self.node.operator.is_gradient { self.backward::<E>() } else { self.forward::<E>() }
    }

    fn forward<E: Element + Bits>(&self) -> ort::Result<()>
    where
        E::Real: Bits,
    {
        let (query, key, value, scale) = (self.input(0)?, self.input(1)?, self.input(2)?, self.input(3)?);
        let mask = self.optional_input(4)?;
        let dims = self.dims([(0, &query), (1, &key), (2, &value)])?;
        let [[batch, heads, length, _], _, [.., value_size]] = dims;
        let shape = [batch, heads, length, value_size];
        let (mut output, mut logsumexp) = (self.output(0, &shape)?, self.output(1, &[batch, heads, length])?);
        let work = Forward::<E> {
            query: self.heads(0, &query, dims[0])?,
            key: self.heads(1, &key, dims[1])?,
            value: self.heads(2, &value, dims[2])?,
            scores: self.scores(&scale, mask.as_ref(), &dims)?,
            output: self.heads_mut(0, &mut output, shape)?,
            logsumexp: self.heads_mut(1, &mut logsumexp, [batch, heads, length, 1])?,
        };
        kernels::run(&work, self.context)
    }

    fn backward<E: Element + Bits>(&self) -> ort::Result<()>
    where
        E::Real: Bits,
    {
        let [grad_output, query, key, value] = [self.input(0)?, self.input(1)?, self.input(2)?, self.input(3)?];
        let (output, logsumexp, scale, mask) =
            (self.input(4)?, self.input(5)?, self.input(6)?, self.optional_input(7)?);
        let dims = self.dims([(1, &query), (2, &key), (3, &value)])?;
        let [[batch, heads, length, _], _, [.., value_size]] = dims;
        let of_output = [batch, heads, length, value_size];
        let mut grads = [self.output(0, &dims[0])?, self.output(1, &dims[1])?, self.output(2, &dims[2])?];
        let [grad_query, grad_key, grad_value] = &mut grads;
        let work = Backward::<E> {
            grad_output: self.heads(0, &grad_output, of_output)?,
            query: self.heads(1, &query, dims[0])?,
            key: self.heads(2, &key, dims[1])?,
            value: self.heads(3, &value, dims[2])?,
            output: self.heads(4, &output, of_output)?,
            logsumexp: self.heads(5, &logsumexp, [batch, heads, length, 1])?,
            scores: self.scores(&scale, mask.as_ref(), &dims)?,
            grad_query: self.heads_mut(0, grad_query, dims[0])?,
            grad_key: self.heads_mut(1, grad_key, dims[1])?,
            grad_value: self.heads_mut(2, grad_value, dims[2])?,
        };
        kernels::run(&work, self.context)
    }

    fn input(&self, at: usize) -> ort::Result<Input<'_>> {
        self.optional_input(at)?.ok_or_else(|| self.wrong(&format!("input {at} is missing")))
    }

    fn optional_input(&self, at: usize) -> ort::Result<Option<Input<'_>>> {
        if at >= self.context.num_inputs()? {
            return Ok(None);
        }
        self.context.input(at)?.map(|value| value.downcast()).transpose()
    }

    /// Of this shape, as far as attention knows it.
    fn output(&self, at: usize, dims: &[usize]) -> ort::Result<Output<'_>> {
        let mut shape: Vec<i64> = dims.iter().map(|&size| size as i64).collect();
        if self.node.outputs_by_row.contains(&(at as i64)) {
            shape.swap(1, 2);
        }
        let output = self.context.output(at, shape)?;
        output.ok_or_else(|| self.wrong(&format!("output {at} is missing")))?.downcast()
    }

    /// [batch, heads, length, size] of query, key and value, each with its place among the inputs.
    fn dims(&self, heads: [(usize, &Input<'_>); 3]) -> ort::Result<[[usize; 4]; 3]> {
        let shapes = heads.map(|(_, heads)| heads.shape().to_vec());
        let unfit = || self.wrong(&format!("query, key and value of shapes {shapes:?} do not fit together"));
        let mut dims = [[0; 4]; 3];
        for ((dims, shape), (at, _)) in dims.iter_mut().zip(&shapes).zip(heads) {
            let sizes: Vec<usize> = shape.iter().map(|&size| size as usize).collect();
            *dims = sizes.try_into().map_err(|_| unfit())?;
            if self.node.inputs_by_row.contains(&(at as i64)) {
                dims.swap(1, 2);
            }
        }
        let [
            [batch, heads, _, size],
            [key_batch, key_heads, n_keys, key_size],
            [value_batch, value_heads, n_values, value_size],
        ] = dims;
        let fit = [key_batch, value_batch] == [batch; 2]
            && (value_heads, n_values, key_size) == (key_heads, n_keys, size)
            && heads.checked_rem(key_heads).unwrap_or(heads) == 0
            && (size == 0) == (value_size == 0);
        if fit { Ok(dims) } else { Err(unfit()) }
    }

    fn heads<'a, E: Element + Bits>(
        &self,
        at: usize,
        input: &'a DynTensor,
        dims: [usize; 4],
    ) -> ort::Result<Heads<'a, E>> {
        let is_by_row = self.node.inputs_by_row.contains(&(at as i64));
        let [batch, heads, length, size] = dims.map(|size| size as i64);
        let expected = if is_by_row { [batch, length, heads, size] } else { [batch, heads, length, size] };
        // logsumexp has no size.
        let fits = input.shape().len() != 4 || input.shape()[..] == expected;
        let heads = Heads::new(bits::<E>(input)?, dims, is_by_row).filter(|_| fits);
        heads.ok_or_else(|| self.wrong(&format!("input {at} of shape {:?}, expected {dims:?}", input.shape())))
    }

    fn heads_mut<'a, E: Element + Bits>(
        &self,
        at: usize,
        output: &'a mut Output<'_>,
        dims: [usize; 4],
    ) -> ort::Result<HeadsMut<'a, E>> {
        let heads = HeadsMut::new(bits_mut::<E>(output)?, dims, self.node.outputs_by_row.contains(&(at as i64)));
        heads.ok_or_else(|| self.wrong(&format!("output {at}, expected {dims:?}")))
    }

    fn scores<'a, T: Real + Bits>(
        &self,
        scale: &DynTensor,
        mask: Option<&'a Input<'_>>,
        dims: &[[usize; 4]; 3],
    ) -> ort::Result<Scores<'a, T>> {
        let &[scale] = bits::<T>(scale)? else { return Err(self.wrong("scale is no number")) };
        let [[batch, heads, length, _], [_, _, n_keys, _], _] = *dims;
        let scores = [batch, heads, length, n_keys];
        let of_mask = |mask: &'a Input<'_>| {
            let unfit = || self.wrong(&format!("a mask of shape {:?} does not broadcast to {scores:?}", mask.shape()));
            Mask::new(bits::<T>(mask)?, mask.shape(), scores).ok_or_else(unfit)
        };
        Ok(Scores { scale, is_causal: self.node.is_causal, mask: mask.map(of_mask).transpose()? })
    }

    fn wrong(&self, reason: &str) -> ort::Error {
        ort::Error::new(format!("{}: {reason}", self.node.operator.name))
    }
}
