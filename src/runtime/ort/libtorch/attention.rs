//! The kernels that torch chooses from on CUDA, forward and gradient. Scores are never written to memory by any of them.

use std::ptr;

use super::library::{Element, Handle, check};
use super::tensor::{Device, Layout, Tensor};

/// A kernel of torch's, as `export/rules/attention.py` names the one that a graph had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::runtime::ort) enum Kernel {
    /// FlashAttention: half precision, without a mask.
    Flash,
    /// Memory-efficient attention: half precision and float32, a key head for each head.
    Efficient,
    /// cuDNN's: half precision.
    Cudnn,
}

impl Kernel {
    const ALL: [Self; 3] = [Self::Flash, Self::Efficient, Self::Cudnn];

    /// As in the attribute `kernel` of a call.
    pub(in crate::runtime::ort) const fn name(self) -> &'static str {
        match self {
            Self::Flash => "flash",
            Self::Efficient => "efficient",
            Self::Cudnn => "cudnn",
        }
    }

    /// The one of this name.
    pub(in crate::runtime::ort) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kernel| kernel.name() == name)
    }

    /// Whether it computes in this element type, with a mask or without.
    pub(in crate::runtime::ort) fn takes(self, element: Element, is_masked: bool) -> bool {
        let is_half = matches!(element, Element::F16 | Element::BF16);
        match self {
            Self::Flash => is_half && !is_masked,
            Self::Cudnn => is_half,
            Self::Efficient => is_half || element == Element::F32,
        }
    }
}

/// Scores of queries [batch, heads, length, size] and keys [batch, key heads, keys, size].
pub(in crate::runtime::ort) struct Scores<'a> {
    pub(in crate::runtime::ort) scale: f64,
    /// The first query sees the first key alone.
    pub(in crate::runtime::ort) is_causal: bool,
    /// Added to them: [batch, heads, length, keys] of the queries' element type, where it is broadcast with strides of 0.
    pub(in crate::runtime::ort) bias: Option<&'a Tensor>,
}

/// What `forward` computes from. Elements of a head lie side by side; else tensors may have any strides.
pub(in crate::runtime::ort) struct Forward<'a> {
    pub(in crate::runtime::ort) kernel: Kernel,
    pub(in crate::runtime::ort) element: Element,
    pub(in crate::runtime::ort) query: &'a Tensor,
    pub(in crate::runtime::ort) key: &'a Tensor,
    pub(in crate::runtime::ort) value: &'a Tensor,
    pub(in crate::runtime::ort) scores: Scores<'a>,
    pub(in crate::runtime::ort) wants_logsumexp: bool,
}

/// What `backward` computes from; see [`Forward`]. logsumexp: [batch, heads, length], contiguous float32.
pub(in crate::runtime::ort) struct Backward<'a> {
    pub(in crate::runtime::ort) kernel: Kernel,
    pub(in crate::runtime::ort) element: Element,
    pub(in crate::runtime::ort) grad_output: &'a Tensor,
    pub(in crate::runtime::ort) query: &'a Tensor,
    pub(in crate::runtime::ort) key: &'a Tensor,
    pub(in crate::runtime::ort) value: &'a Tensor,
    pub(in crate::runtime::ort) output: &'a Tensor,
    pub(in crate::runtime::ort) logsumexp: &'a Tensor,
    pub(in crate::runtime::ort) scores: Scores<'a>,
}

/// The memory-efficient kernel makes rows of logsumexp of a multiple of so many, infinite behind the last query, and reads
/// them so.
const LSE_ALIGNMENT: i64 = 32;
/// Rows of a bias begin at a multiple of so many elements for the memory-efficient kernel: what torch itself pads them to.
const BIAS_ALIGNMENT: i64 = 16;
/// Nothing is dropped: graphs with dropout have it in eager.
const DROPOUT: f64 = 0.0;

/// (output [batch, heads, length, size of values], logsumexp [batch, heads, length] where it is wanted), in layouts of
/// libtorch's choice. Errors: libtorch's.
pub(in crate::runtime::ort) fn forward(device: &Device, work: &Forward<'_>) -> ort::Result<(Tensor, Option<Tensor>)> {
    let (output, logsumexp) = match work.kernel {
        Kernel::Flash => flash(device, work),
        Kernel::Efficient => efficient(device, work),
        Kernel::Cudnn => cudnn(device, work),
    }?;
    if !work.wants_logsumexp {
        return Ok((output, None));
    }
    // Padded by one kernel, with an axis of 1 at the end by another.
    let [batch, heads, length, _] = output.layout::<4>()?.sizes;
    let strides = match work.kernel {
        Kernel::Cudnn => {
            let Layout { strides: [by_batch, by_head, by_row, _], .. } = logsumexp.layout::<4>()?;
            [by_batch, by_head, by_row]
        }
        _ => logsumexp.layout::<3>()?.strides,
    };
    let logsumexp = logsumexp.viewed(Layout { sizes: [batch, heads, length], strides })?;
    Ok((output, Some(logsumexp)))
}

/// Gradients of query, key and value, in layouts of libtorch's choice. Errors: libtorch's.
pub(in crate::runtime::ort) fn backward(device: &Device, work: &Backward<'_>) -> ort::Result<[Tensor; 3]> {
    match work.kernel {
        Kernel::Flash => flash_backward(device, work),
        Kernel::Efficient => efficient_backward(device, work),
        Kernel::Cudnn => cudnn_backward(device, work),
    }
}

fn flash(device: &Device, work: &Forward<'_>) -> ort::Result<(Tensor, Tensor)> {
    let Forward { query, key, value, scores, .. } = work;
    let (mut made, mut lengths, mut scale) = ([ptr::null_mut(); 7], [0; 2], scores.scale);
    let (into, of_length) = (made.as_mut_ptr(), lengths.as_mut_ptr());
    // SAFETY: all handles are live; writes seven handles and two numbers, of which there are as many.
    unsafe {
        check!(
            device.libtorch,
            aoti_torch_cuda__scaled_dot_product_flash_attention(
                query.handle(),
                key.handle(),
                value.handle(),
                DROPOUT,
                scores.is_causal.into(),
                0,
                &raw mut scale,
                into,
                into.add(1),
                into.add(2),
                into.add(3),
                of_length,
                of_length.add(1),
                into.add(4),
                into.add(5),
                into.add(6),
            )
        )?;
        first_of(device, made)
    }
}

fn efficient(device: &Device, work: &Forward<'_>) -> ort::Result<(Tensor, Tensor)> {
    let Forward { query, key, value, scores, .. } = work;
    let bias = scores.bias.map(|bias| aligned(device, bias, work.element)).transpose()?;
    let mut bias = bias.as_ref().map(Tensor::handle);
    let (mut made, mut scale) = ([ptr::null_mut(); 4], scores.scale);
    let into = made.as_mut_ptr();
    // SAFETY: all handles are live; writes four handles, of which there are as many.
    unsafe {
        check!(
            device.libtorch,
            aoti_torch_cuda__scaled_dot_product_efficient_attention(
                query.handle(),
                key.handle(),
                value.handle(),
                or_null(&mut bias),
                work.wants_logsumexp.into(),
                DROPOUT,
                scores.is_causal.into(),
                &raw mut scale,
                into,
                into.add(1),
                into.add(2),
                into.add(3),
            )
        )?;
        first_of(device, made)
    }
}

fn cudnn(device: &Device, work: &Forward<'_>) -> ort::Result<(Tensor, Tensor)> {
    let Forward { query, key, value, scores, .. } = work;
    let bias = scores.bias.map(|bias| by_heads(device, bias, work.element)).transpose()?;
    let mut bias = bias.as_ref().map(Tensor::handle);
    let (mut made, mut lengths, mut scale) = ([ptr::null_mut(); 7], [0; 2], scores.scale);
    let (into, of_length) = (made.as_mut_ptr(), lengths.as_mut_ptr());
    // SAFETY: as in `flash`.
    unsafe {
        check!(
            device.libtorch,
            aoti_torch_cuda__scaled_dot_product_cudnn_attention(
                query.handle(),
                key.handle(),
                value.handle(),
                or_null(&mut bias),
                work.wants_logsumexp.into(),
                DROPOUT,
                scores.is_causal.into(),
                0,
                &raw mut scale,
                into,
                into.add(1),
                into.add(2),
                into.add(3),
                of_length,
                of_length.add(1),
                into.add(4),
                into.add(5),
                into.add(6),
            )
        )?;
        first_of(device, made)
    }
}

fn flash_backward(device: &Device, work: &Backward<'_>) -> ort::Result<[Tensor; 3]> {
    let Backward { grad_output, query, key, value, output, logsumexp, scores, .. } = work;
    let (length, n_keys) = (length_of(query)?, length_of(key)?);
    let (seed, offset) = (device.empty(Layout::contiguous([2]), Element::U64)?, state(device, Element::U64)?);
    let (not_nested, mut made, mut scale) = (device.undefined()?, [ptr::null_mut(); 3], scores.scale);
    let into = made.as_mut_ptr();
    // SAFETY: all handles are live; writes three handles, of which there are as many.
    unsafe {
        check!(
            device.libtorch,
            aoti_torch_cuda__scaled_dot_product_flash_attention_backward(
                grad_output.handle(),
                query.handle(),
                key.handle(),
                value.handle(),
                output.handle(),
                logsumexp.handle(),
                not_nested.handle(),
                not_nested.handle(),
                length,
                n_keys,
                DROPOUT,
                scores.is_causal.into(),
                seed.handle(),
                offset.handle(),
                &raw mut scale,
                into,
                into.add(1),
                into.add(2),
            )
        )?;
        gradients(device, made)
    }
}

fn efficient_backward(device: &Device, work: &Backward<'_>) -> ort::Result<[Tensor; 3]> {
    const WANTED: [i32; 4] = [1, 1, 1, 0];
    let Backward { grad_output, query, key, value, scores, element, .. } = work;
    let bias = match scores.bias {
        Some(bias) => aligned(device, bias, *element)?,
        None => device.undefined()?,
    };
    let (output, logsumexp) = (by_row(device, work.output, *element)?, padded(device, work.logsumexp)?);
    let state = state(device, Element::I64)?;
    let (mut made, mut scale) = ([ptr::null_mut(); 4], scores.scale);
    let into = made.as_mut_ptr();
    // SAFETY: all handles are live; reads four numbers and writes four handles, of which there are as many.
    unsafe {
        check!(
            device.libtorch,
            aoti_torch_cuda__scaled_dot_product_efficient_attention_backward(
                grad_output.handle(),
                query.handle(),
                key.handle(),
                value.handle(),
                bias.handle(),
                output.handle(),
                logsumexp.handle(),
                state.handle(),
                state.handle(),
                DROPOUT,
                WANTED.as_ptr(),
                WANTED.len() as i64,
                scores.is_causal.into(),
                &raw mut scale,
                into,
                into.add(1),
                into.add(2),
                into.add(3),
            )
        )?;
        gradients(device, made)
    }
}

fn cudnn_backward(device: &Device, work: &Backward<'_>) -> ort::Result<[Tensor; 3]> {
    let Backward { grad_output, query, key, value, output, scores, element, .. } = work;
    let (length, n_keys) = (length_of(query)?, length_of(key)?);
    let bias = match scores.bias {
        Some(bias) => by_heads(device, bias, *element)?,
        None => device.undefined()?,
    };
    let (state, undefined) = (state(device, Element::I64)?, device.undefined()?);
    let Layout { sizes: [batch, heads, rows], strides: [by_batch, by_head, by_row] } = work.logsumexp.layout::<3>()?;
    let with_size = Layout { sizes: [batch, heads, rows, 1], strides: [by_batch, by_head, by_row, 1] };
    let logsumexp = work.logsumexp.viewed(with_size)?;
    let (mut made, mut scale) = ([ptr::null_mut(); 3], scores.scale);
    let into = made.as_mut_ptr();
    // SAFETY: all handles are live; writes three handles, of which there are as many.
    unsafe {
        check!(
            device.libtorch,
            aoti_torch_cuda__scaled_dot_product_cudnn_attention_backward(
                grad_output.handle(),
                query.handle(),
                key.handle(),
                value.handle(),
                output.handle(),
                logsumexp.handle(),
                state.handle(),
                state.handle(),
                bias.handle(),
                undefined.handle(),
                undefined.handle(),
                length,
                n_keys,
                DROPOUT,
                scores.is_causal.into(),
                &raw mut scale,
                into,
                into.add(1),
                into.add(2),
            )
        )?;
        gradients(device, made)
    }
}

fn length_of(heads: &Tensor) -> ort::Result<i64> {
    Ok(heads.layout::<4>()?.sizes[2])
}

/// An optional argument.
fn or_null(handle: &mut Option<Handle>) -> *mut Handle {
    handle.as_mut().map_or(ptr::null_mut(), ptr::from_mut)
}

/// In the place of a random generator's state, which nobody reads where nothing is dropped.
fn state(device: &Device, element: Element) -> ort::Result<Tensor> {
    device.empty(Layout::contiguous([]), element)
}

/// The first two; the others are let go of.
///
/// # Safety
/// The handles are live or null, and nobody else deletes them.
unsafe fn first_of<const N: usize>(device: &Device, made: [Handle; N]) -> ort::Result<(Tensor, Tensor)> {
    // SAFETY: as the caller says.
    let mut given = made.map(|handle| unsafe { Tensor::given(device.libtorch, handle) }).into_iter();
    let missing = || Err(ort::Error::new("libtorch gave too few tensors"));
    Ok((given.next().unwrap_or_else(missing)?, given.next().unwrap_or_else(missing)?))
}

/// The first three; the others, of which one may be null, are let go of.
///
/// # Safety
/// As `first_of`.
unsafe fn gradients<const N: usize>(device: &Device, made: [Handle; N]) -> ort::Result<[Tensor; 3]> {
    // SAFETY: as the caller says.
    let mut given = made.map(|handle| unsafe { Tensor::given(device.libtorch, handle) }).into_iter();
    let mut next = || given.next().unwrap_or_else(|| Err(ort::Error::new("libtorch gave too few tensors")));
    Ok([next()?, next()?, next()?])
}

/// A bias as cuDNN reads it: of one head where all have the same.
fn by_heads(device: &Device, bias: &Tensor, element: Element) -> ort::Result<Tensor> {
    let bias = dense(device, bias, element, 1)?;
    let mut layout = bias.layout::<4>()?;
    if layout.strides[1] == 0 {
        layout.sizes[1] = 1;
    }
    bias.viewed(layout)
}

/// A bias as the memory-efficient kernel reads it.
fn aligned(device: &Device, bias: &Tensor, element: Element) -> ort::Result<Tensor> {
    dense(device, bias, element, BIAS_ALIGNMENT)
}

/// A bias whose keys lie side by side and whose rows begin at a multiple of so many elements; what else is broadcast stays so.
fn dense(device: &Device, bias: &Tensor, element: Element, alignment: i64) -> ort::Result<Tensor> {
    let Layout { sizes, strides } = bias.layout::<4>()?;
    if strides[3] == 1 && strides[..3].iter().all(|stride| stride % alignment == 0) {
        return bias.viewed(Layout { sizes, strides });
    }
    let [batch, heads, length] = [0, 1, 2].map(|axis| if strides[axis] == 0 { 1 } else { sizes[axis] });
    let (n_keys, row) = (sizes[3], up_to_multiple(sizes[3], alignment));
    let own = [batch, heads, length, n_keys];
    let Layout { strides: of_made, .. } = Layout::contiguous([batch, heads, length, row]);
    let made = device.empty(Layout::contiguous([batch, heads, length, row]), element)?;
    let read = bias.viewed(Layout { sizes: own, strides })?;
    made.viewed(Layout { sizes: own, strides: of_made })?.copy_from(&read)?;
    let [by_batch, by_head, by_row] = [0, 1, 2].map(|axis| if strides[axis] == 0 { 0 } else { of_made[axis] });
    made.viewed(Layout { sizes, strides: [by_batch, by_head, by_row, 1] })
}

/// logsumexp as the memory-efficient kernel reads it.
fn padded(device: &Device, logsumexp: &Tensor) -> ort::Result<Tensor> {
    let layout = logsumexp.layout::<3>()?;
    let [batch, heads, length] = layout.sizes;
    let row = up_to_multiple(length, LSE_ALIGNMENT);
    if row == length {
        return logsumexp.viewed(layout);
    }
    let whole = Layout::contiguous([batch, heads, row]);
    let made = device.empty(whole, Element::F32)?;
    made.fill(f64::INFINITY)?;
    made.viewed(Layout { sizes: layout.sizes, strides: whole.strides })?.copy_from(logsumexp)?;
    Ok(made)
}

/// An output as the memory-efficient kernel gave it, [batch, length, heads, size] in memory: its gradient takes that for
/// granted, and does not look at the strides.
fn by_row(device: &Device, output: &Tensor, element: Element) -> ort::Result<Tensor> {
    let layout = output.layout::<4>()?;
    let wanted = Layout::by_row(layout.sizes);
    if layout == wanted {
        return output.viewed(layout);
    }
    let made = device.empty(wanted, element)?;
    made.copy_from(output)?;
    Ok(made)
}

fn up_to_multiple(size: i64, of: i64) -> i64 {
    size.div_euclid(of) * of + if size % of == 0 { 0 } else { of }
}
