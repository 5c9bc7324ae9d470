//! Dense row-major tensors: borrowed bytes ([`TensorView`]) and owned bytes ([`TensorBuf`]).

use std::ops::Range;

use half::f16;
use half::slice::HalfFloatSliceExt;
use ndarray::{ArrayD, IxDyn};
use serde::{Deserialize, Serialize};

use super::{BadTensor, DType, Shape, TensorDesc};

/// A dense row-major tensor over borrowed bytes. The bytes may have any alignment.
///
/// ```
/// use rust_ort::tensor::{BadTensor, DType, Shape, TensorView};
///
/// let (shape, bytes) = (Shape::new([2])?, [1.5_f32, -2.].map(f32::to_le_bytes));
/// let view = TensorView::new(DType::F32, &shape, bytes.as_flattened())?;
/// assert_eq!(view.flat_f64(0..2), Some(vec![1.5, -2.]));
/// assert_eq!(view.desc().to_string(), "float32[2]");
///
/// let short = TensorView::new(DType::F32, &shape, &[0; 7]);
/// assert!(matches!(short, Err(BadTensor::Length { expected: 8, got: 7, .. })));
/// # Ok::<(), BadTensor>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    dtype: DType,
    shape: &'a Shape,
    bytes: &'a [u8],
}

impl<'a> TensorView<'a> {
    /// Bytes as a tensor. Errors: [`BadTensor::Length`].
    pub fn new(dtype: DType, shape: &'a Shape, bytes: &'a [u8]) -> Result<Self, BadTensor> {
        let expected = shape.len_bytes(dtype);
        if bytes.len() != expected {
            let desc = TensorDesc { dtype, shape: shape.clone() };
            return Err(BadTensor::Length { desc, expected, got: bytes.len() });
        }
        Ok(Self { dtype, shape, bytes })
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Dimensions.
    pub fn shape(&self) -> &'a Shape {
        self.shape
    }

    /// dtype and shape, owned.
    pub fn desc(&self) -> TensorDesc {
        TensorDesc { dtype: self.dtype, shape: self.shape.clone() }
    }

    /// The elements, little-endian, row-major.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The one copy: what must outlive the call.
    pub fn to_owned(&self) -> TensorBuf {
        TensorBuf { desc: self.desc(), bytes: self.bytes.to_vec() }
    }

    /// Floating elements as float64; others as they are.
    pub fn in_float64(&self) -> TensorBuf {
        let values = self.dtype().is_float().then(|| self.flat_f64(0..self.shape().n_elements())).flatten();
        values.map_or_else(|| self.to_owned(), |values| TensorBuf::from_f64(self.shape().clone(), &values))
    }

    /// Elements of half precision as float32; others as they are.
    pub fn in_float32(&self) -> TensorBuf {
        let is_half = matches!(self.dtype(), DType::F16 | DType::BF16);
        let values = is_half.then(|| self.flat_f64(0..self.shape().n_elements())).flatten();
        values.map_or_else(|| self.to_owned(), |values| TensorBuf::rounded_to_f32(self.shape().clone(), &values))
    }

    /// Every element widened to f64, same shape. As [`TensorView::flat_f64`].
    pub fn to_f64(&self) -> Option<ArrayD<f64>> {
        let values = self.flat_f64(0..self.bytes.len() / self.dtype.size_bytes())?;
        let array = ArrayD::from_shape_vec(IxDyn(&self.shape.to_usize()), values);
        Some(array.expect("the length was checked against the shape"))
    }

    /// Elements of a range in row-major order, widened to f64 (exact for f16, bf16, f32 and integers up to 2^53; bool is
    /// 0 or 1). None for complex and 8-bit float types. Panics beyond the elements.
    pub fn flat_f64(&self, range: Range<usize>) -> Option<Vec<f64>> {
        let size = self.dtype.size_bytes();
        widen(self.dtype, &self.bytes[range.start * size..range.end * size])
    }
}

/// An owned dense tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorBuf {
    desc: TensorDesc,
    bytes: Vec<u8>,
}

impl TensorBuf {
    /// Bytes as a tensor. Errors: [`BadTensor::Length`].
    pub fn new(desc: TensorDesc, bytes: Vec<u8>) -> Result<Self, BadTensor> {
        TensorView::new(desc.dtype, &desc.shape, &bytes)?;
        Ok(Self { desc, bytes })
    }

    /// A rank-1 or higher f32 tensor. Errors: [`BadTensor`].
    pub fn from_f32(dims: impl Into<Vec<i64>>, values: &[f32]) -> Result<Self, BadTensor> {
        let desc = TensorDesc::new(DType::F32, dims)?;
        Self::new(desc, values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    /// A float64 tensor. Panics when there are not as many values as elements.
    pub fn from_f64(shape: Shape, values: &[f64]) -> Self {
        assert_eq!(shape.n_elements(), values.len(), "the number of elements");
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self { desc: TensorDesc { dtype: DType::F64, shape }, bytes }
    }

    /// A float32 tensor of the values nearest to these. Panics when there are not as many values as elements.
    pub fn rounded_to_f32(shape: Shape, values: &[f64]) -> Self {
        assert_eq!(shape.n_elements(), values.len(), "the number of elements");
        let bytes = values.iter().flat_map(|&value| (value as f32).to_le_bytes()).collect();
        Self { desc: TensorDesc { dtype: DType::F32, shape }, bytes }
    }

    /// All zero bytes.
    pub fn zeros(desc: TensorDesc) -> Self {
        let bytes = vec![0; desc.len_bytes()];
        Self { desc, bytes }
    }

    /// dtype and shape.
    pub fn desc(&self) -> &TensorDesc {
        &self.desc
    }

    /// Borrowed.
    pub fn view(&self) -> TensorView<'_> {
        TensorView { dtype: self.desc.dtype, shape: &self.desc.shape, bytes: &self.bytes }
    }
}

/// See [`TensorView::flat_f64`].
#[inline(always)]
pub(super) fn widen(dtype: DType, bytes: &[u8]) -> Option<Vec<f64>> {
    fn each<const N: usize>(bytes: &[u8], f: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.as_chunks::<N>().0.iter().map(|chunk| f(*chunk)).collect()
    }
    Some(match dtype {
        DType::F32 => each(bytes, |b| f32::from_le_bytes(b).into()),
        DType::F64 => each(bytes, f64::from_le_bytes),
        DType::F16 => widen_f16(bytes),
        DType::BF16 => each(bytes, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16).into()),
        DType::I8 => each(bytes, |b| i8::from_le_bytes(b).into()),
        DType::U8 => each(bytes, |b| u8::from_le_bytes(b).into()),
        DType::I16 => each(bytes, |b| i16::from_le_bytes(b).into()),
        DType::U16 => each(bytes, |b| u16::from_le_bytes(b).into()),
        DType::I32 => each(bytes, |b| i32::from_le_bytes(b).into()),
        DType::U32 => each(bytes, |b| u32::from_le_bytes(b).into()),
        DType::I64 => each(bytes, |b| i64::from_le_bytes(b) as f64),
        DType::U64 => each(bytes, |b| u64::from_le_bytes(b) as f64),
        DType::Bool => each(bytes, |[b]| f64::from(u8::from(b != 0))),
        _ => return None,
    })
}

/// Many at a time: one by one, each is a call.
fn widen_f16(bytes: &[u8]) -> Vec<f64> {
    const AT_ONCE: usize = 256;
    let mut wide = Vec::with_capacity(bytes.len() / 2);
    let (mut narrow, mut single) = ([f16::ZERO; AT_ONCE], [0_f32; AT_ONCE]);
    for block in bytes.as_chunks::<2>().0.chunks(AT_ONCE) {
        let (narrow, single) = (&mut narrow[..block.len()], &mut single[..block.len()]);
        narrow.iter_mut().zip(block).for_each(|(narrow, bytes)| *narrow = f16::from_le_bytes(*bytes));
        narrow.convert_to_f32_slice(single);
        wide.extend(single.iter().map(|&single| f64::from(single)));
    }
    wide
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    #[test]
    fn every_16_bit_float_widens_as_one_by_one() {
        type One = fn(u16) -> f64;
        let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let one_by_one: [(DType, One); 2] =
            [(DType::F16, |bits| f16::from_bits(bits).to_f64()), (DType::BF16, |bits| bf16::from_bits(bits).to_f64())];
        for (dtype, one) in one_by_one {
            let wide = widen(dtype, &all).unwrap();
            assert_eq!(wide.len(), 1 << 16);
            for (bits, wide) in (0..=u16::MAX).zip(wide) {
                assert!(
                    wide.to_bits() == one(bits).to_bits() || wide.is_nan() && one(bits).is_nan(),
                    "{dtype} {bits:x}"
                );
            }
        }
    }

    #[test]
    fn length_must_fit() {
        let shape = Shape::new([2, 3]).unwrap();
        let error = TensorView::new(DType::F32, &shape, &[0; 20]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("float32[2, 3]") && text.contains("24") && text.contains("20"), "{text}");
    }

    #[test]
    fn widens_every_numeric_type() {
        let one_and_minus_two: &[(DType, Vec<u8>)] = &[
            (DType::F32, [1_f32, -2.].iter().flat_map(|v| v.to_le_bytes()).collect()),
            (DType::F64, [1_f64, -2.].iter().flat_map(|v| v.to_le_bytes()).collect()),
            (DType::F16, [1., -2.].iter().flat_map(|&v| f16::from_f64(v).to_le_bytes()).collect()),
            (DType::BF16, [1., -2.].iter().flat_map(|&v| bf16::from_f64(v).to_le_bytes()).collect()),
            (DType::I8, vec![1, 254]),
            (DType::I16, [1_i16, -2].iter().flat_map(|v| v.to_le_bytes()).collect()),
            (DType::I32, [1_i32, -2].iter().flat_map(|v| v.to_le_bytes()).collect()),
            (DType::I64, [1_i64, -2].iter().flat_map(|v| v.to_le_bytes()).collect()),
        ];
        for (dtype, bytes) in one_and_minus_two {
            let shape = Shape::new([2]).unwrap();
            let view = TensorView::new(*dtype, &shape, bytes).unwrap();
            assert_eq!(view.to_f64().unwrap().as_slice(), Some(&[1., -2.][..]), "{dtype}");
        }
    }
}
