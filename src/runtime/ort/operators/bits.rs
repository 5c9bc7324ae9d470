//! The elements of the runtime's tensors, as what any bits are one of: those of a bool may be any byte a peer wrote, which
//! no `bool` may be.

use half::{bf16, f16};
use ort::value::{DynTensor, DynTensorValueType, ValueRefMut};

/// What any bits of its width are one of: an unsigned integer, or a float.
pub(super) trait Bits: Copy + Send + Sync {}

impl Bits for u8 {}
impl Bits for u32 {}
impl Bits for u64 {}
impl Bits for i64 {}
impl Bits for f16 {}
impl Bits for bf16 {}
impl Bits for f32 {}
impl Bits for f64 {}

/// The elements of a tensor of such a width. Errors: another width.
pub(super) fn bits<T: Bits>(tensor: &DynTensor) -> ort::Result<&[T]> {
    let len = length::<T>(tensor)?;
    if len == 0 {
        return Ok(&[]); // its pointer may be null
    }
    // SAFETY: the runtime's tensor has `len` elements of this width, aligned to it, for as long as it is borrowed; any
    // bits are one of these.
    Ok(unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast(), len) })
}

/// The elements of an output of such a width. Errors: another width.
pub(super) fn bits_mut<'a, T: Bits>(tensor: &'a mut ValueRefMut<'_, DynTensorValueType>) -> ort::Result<&'a mut [T]> {
    let len = length::<T>(tensor)?;
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: as in `bits`; an output is its kernel's alone until that returns, and borrowed mutably here.
    Ok(unsafe { std::slice::from_raw_parts_mut(tensor.data_ptr().cast_mut().cast(), len) })
}

fn length<T>(tensor: &DynTensor) -> ort::Result<usize> {
    let (element, width) = (tensor.data_type(), size_of::<T>());
    match element.byte_size(1) == Some(width) {
        true => Ok(tensor.shape().iter().map(|&size| size as usize).product()),
        false => Err(ort::Error::new(format!("an element of {element} is not {width} bytes wide"))),
    }
}
