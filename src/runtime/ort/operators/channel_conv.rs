//! Convolutions each of whose groups gives one channel: what the pass `channel-convolutions` of `onnx::rewrite` makes.

use ort::operator::{ComputeContext, Kernel, KernelContext, Operator, OperatorDomain, OperatorInput, OperatorOutput};
use ort::value::{DynTensorValueType, TensorElementType};

use super::bits::{bits, bits_mut};
use crate::onnx::ChannelConvolution;
use crate::runtime::ort::kernels::{self, Channels, Direction, Sizes, Window};

/// The domain with its operators.
pub(super) fn add(domain: OperatorDomain) -> ort::Result<OperatorDomain> {
    ChannelConvolution::ALL.into_iter().try_fold(domain, |domain, kind| domain.add(Convolve(kind)))
}

/// See [`ChannelConvolution`]. float32.
#[derive(Clone, Copy)]
struct Convolve(ChannelConvolution);

impl Operator for Convolve {
    type Kernel<'attr> = Convolving;

    fn name(&self) -> &str {
        self.0.operator()
    }

    fn inputs(&self) -> impl IntoIterator<Item = OperatorInput> {
        let float = TensorElementType::Float32;
        [OperatorInput::required(float), OperatorInput::required(float), OperatorInput::optional(float)]
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        [OperatorOutput::required(TensorElementType::Float32)]
    }

    fn create_kernel<'attr>(&self, context: &KernelContext<'attr>) -> ort::Result<Convolving> {
        let sizes = |name: &str| context.get::<Vec<i64>>(name).unwrap_or_default();
        Ok(Convolving {
            kind: self.0,
            group: context.get::<i64>("group").unwrap_or(1),
            strides: sizes("strides"),
            dilations: sizes("dilations"),
            pads: sizes("pads"),
            output_padding: sizes("output_padding"),
        })
    }
}

/// A list is empty where the node has none.
struct Convolving {
    kind: ChannelConvolution,
    group: i64,
    strides: Vec<i64>,
    dilations: Vec<i64>,
    pads: Vec<i64>,
    output_padding: Vec<i64>,
}

impl Kernel for Convolving {
    fn compute(&mut self, context: &ComputeContext) -> ort::Result<()> {
        let wrong = |reason: String| ort::Error::new(format!("{}: {reason}", self.kind.operator()));
        let missing = || wrong("an input or output is missing".to_owned());
        let input = |at: usize| context.input(at)?.map(|value| value.downcast::<DynTensorValueType>()).transpose();
        let (read, weight) = (input(0)?.ok_or_else(missing)?, input(1)?.ok_or_else(missing)?);
        let bias = input(2)?;
        let (read_shape, weight_shape) = (&read.shape()[..], &weight.shape()[..]);
        let (sizes, window) = self.sizes(read_shape, weight_shape).ok_or_else(|| {
            let group = self.group;
            wrong(format!("an input of shape {read_shape:?} and a weight of {weight_shape:?} in {group} groups"))
        })?;
        let mut shape = vec![read_shape[0], self.group];
        shape.extend(sizes.output[4 - read_shape.len()..].iter().map(|&size| size as i64));
        let output = context.output(0, shape)?.ok_or_else(missing)?;
        let mut output = output.downcast::<DynTensorValueType>()?;
        let direction = match self.kind {
            ChannelConvolution::Plain => Direction::Plain,
            ChannelConvolution::Transposed => Direction::Transposed,
        };
        let bias = bias.as_ref().map(|bias| bits::<f32>(bias)).transpose()?;
        let inputs = [bits::<f32>(&read)?, bits::<f32>(&weight)?];
        let channels = Channels::new(inputs, bias, bits_mut(&mut output)?, sizes, window, direction).map_err(wrong)?;
        kernels::run(&channels, context)
    }
}

impl Convolving {
    /// As two spatial dimensions, the first of which is 1 where there is one. None for shapes that do not fit.
    fn sizes(&self, input: &[i64], weight: &[i64]) -> Option<(Sizes, Window)> {
        let (&[batch, read, ref plane @ ..], &[channels, inner, ref kernel @ ..]) = (input, weight) else {
            return None;
        };
        let spatial = plane.len();
        if !(1..=2).contains(&spatial) || kernel.len() != spatial || channels != self.group {
            return None;
        }
        let two = |sizes: &[i64], missing: i64| match *sizes {
            [rows, columns] => Some([rows, columns]),
            [columns] => Some([missing, columns]),
            _ => None,
        };
        // Of an attribute, what is true of a dimension that the node does not have.
        let set = |sizes: &[i64], missing: i64| match sizes.len() {
            0 => Some([missing; 2]),
            n if n == spatial => two(sizes, missing),
            _ => None,
        };
        let (plane, kernel) = (two(plane, 1)?, two(kernel, 1)?);
        let (strides, dilations) = (set(&self.strides, 1)?, set(&self.dilations, 1)?);
        let none = vec![0; 2 * spatial];
        let pads = if self.pads.is_empty() { &none } else { &self.pads };
        if pads.len() != 2 * spatial {
            return None;
        }
        let (before, after, outer) =
            (two(&pads[..spatial], 0)?, two(&pads[spatial..], 0)?, set(&self.output_padding, 0)?);
        let is_plain = self.kind == ChannelConvolution::Plain;
        let size = |axis: usize| {
            let reach = dilations[axis].checked_mul(kernel[axis] - 1)?;
            let margin = before[axis] + after[axis];
            if is_plain {
                let left = plane[axis] + margin - reach - 1;
                (left >= 0).then(|| left / strides[axis] + 1)
            } else {
                let whole = strides[axis].checked_mul((plane[axis] - 1).max(0))? + reach + 1 + outer[axis];
                Some((whole - margin).max(0))
            }
        };
        let output = [size(0)?, size(1)?];
        let inner = if is_plain { inner } else { 1 };
        let fits = read == channels.checked_mul(inner)? && (is_plain || weight[1] == 1);
        let number = |size: i64| usize::try_from(size).ok();
        let both = |sizes: [i64; 2]| Some([number(sizes[0])?, number(sizes[1])?]);
        let sizes = Sizes {
            batch: number(batch)?,
            channels: number(channels)?,
            inner: number(inner)?,
            input: both(plane)?,
            kernel: both(kernel)?,
            output: both(output)?,
        };
        fits.then_some((sizes, Window { stride: both(strides)?, dilation: both(dilations)?, before: both(before)? }))
    }
}
