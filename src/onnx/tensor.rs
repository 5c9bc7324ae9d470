//! TensorProto from and to dense tensors.

use std::path::Path;

use bytes::Bytes;
use prost::Message;

use super::footprint::tensor_footprint;
use super::proto::{TensorProto, tensor_proto::DataLocation};
use super::{OnnxError, load};
use crate::tensor::{DType, Shape, SharedTensor, TensorBuf, TensorDesc, TensorView};

/// A TensorProto's name, description and elements. The elements share memory with the message when they stand in its
/// `raw_data`.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTensor {
    /// Name of the value, or "".
    pub name: String,
    /// dtype and shape.
    pub desc: TensorDesc,
    bytes: Bytes,
}

impl NamedTensor {
    /// Any of the dtypes in [`DType::ALL`], from `raw_data` or the typed field that ONNX lays down for it.
    /// Errors: [`OnnxError::Tensor`] when fields do not fit together, the dtype is none of torch's, the tensor is a
    /// segment, or its data is external (read it with [`super::read_external`] first).
    pub fn from_proto(proto: &TensorProto) -> Result<Self, OnnxError> {
        let fail = |reason: String| OnnxError::Tensor { name: proto.name().to_owned(), reason };
        if proto.data_location() == DataLocation::External {
            return Err(fail("its data is in another file; load the model from its folder".to_owned()));
        }
        if proto.segment.is_some() {
            return Err(fail("it is one segment of a tensor; only whole tensors are read".to_owned()));
        }
        let dtype = DType::from_onnx(proto.data_type()).map_err(|error| fail(error.to_string()))?;
        let desc = TensorDesc::new(dtype, proto.dims.as_slice()).map_err(|error| fail(error.to_string()))?;
        let bytes = match &proto.raw_data {
            // An empty raw_data beside a filled typed field is what some writers leave.
            Some(raw) if !raw.is_empty() || typed_is_empty(proto) => raw.clone(),
            _ => Bytes::from(typed_bytes(proto, dtype).map_err(fail)?),
        };
        if bytes.len() != desc.len_bytes() {
            let (expected, got) = (desc.len_bytes(), bytes.len());
            return Err(fail(format!("{desc} needs {expected} bytes, got {got}; write the tensor again")));
        }
        Ok(Self { name: proto.name().to_owned(), desc, bytes })
    }

    /// A tensor with a name; its elements are copied.
    pub fn of(name: &str, tensor: &TensorBuf) -> Self {
        let bytes = Bytes::copy_from_slice(tensor.view().bytes());
        Self { name: name.to_owned(), desc: tensor.desc().clone(), bytes }
    }

    /// Borrowed.
    pub fn view(&self) -> TensorView<'_> {
        TensorView::new(self.desc.dtype, &self.desc.shape, &self.bytes).expect("from_proto checked the length")
    }
}

/// The tensor as a message: name, dims, dtype and `raw_data` (one copy of the elements).
pub fn tensor_proto(name: &str, tensor: &TensorView<'_>) -> TensorProto {
    let raw_data = Some(Bytes::copy_from_slice(tensor.bytes()));
    TensorProto { raw_data, ..described(name, tensor.dtype(), tensor.shape()) }
}

/// The bytes that stand before the elements in a TensorProto: `header ++ elements` is the whole encoded message, so a
/// writer needs no copy of the elements.
pub fn tensor_header<'a>(name: &str, tensor: impl Into<SharedTensor<'a>>) -> Vec<u8> {
    const RAW_DATA_KEY: u8 = 9 << 3 | 2;
    let tensor = tensor.into();
    let mut header = described(name, tensor.dtype(), tensor.shape()).encode_to_vec();
    header.push(RAW_DATA_KEY);
    prost::encoding::encode_varint(tensor.bytes().len() as u64, &mut header);
    header
}

/// How long a tensor's file is that begins like this, as a TensorProto whose elements stand last ([`tensor_header`]); None
/// where its name is longer than what is given. Errors: it does not begin so, and why.
pub fn tensor_file_len(start: &[u8]) -> Result<Option<u64>, String> {
    use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
    let told = |error: prost::DecodeError| error.to_string();
    let mut rest = start;
    loop {
        let (field, kind) = decode_key(&mut rest).map_err(told)?;
        if kind == WireType::LengthDelimited {
            let n_bytes = decode_varint(&mut &rest[..]).map_err(told)?;
            if field == 9 {
                decode_varint(&mut rest).map_err(told)?;
                return Ok(Some((start.len() - rest.len()) as u64 + n_bytes));
            }
            if n_bytes > rest.len() as u64 {
                return Ok(None);
            }
        }
        skip_field(kind, field, &mut rest, DecodeContext::default()).map_err(told)?;
    }
}

fn described(name: &str, dtype: DType, shape: &Shape) -> TensorProto {
    TensorProto {
        name: Some(name.to_owned()),
        dims: shape.dims().to_vec(),
        data_type: Some(dtype.onnx_code()),
        ..TensorProto::default()
    }
}

/// A tensor from a `.pb` file. Errors: [`OnnxError::Io`], [`OnnxError::Decode`], [`OnnxError::Tensor`].
pub fn load_tensor(path: &Path) -> Result<NamedTensor, OnnxError> {
    decode_tensor(load::read(path)?, path)
}

/// As [`load_tensor`], from the bytes that [`read`](super::read) gave of the file. Errors: also [`OnnxError::Expands`].
pub fn decode_tensor(bytes: Bytes, path: &Path) -> Result<NamedTensor, OnnxError> {
    let n_bytes = bytes.len();
    load::check_footprint(tensor_footprint(&bytes), n_bytes, path)?;
    let proto = TensorProto::decode(bytes).map_err(|source| OnnxError::Decode {
        place: path.display().to_string(),
        expected: "TensorProto",
        n_bytes,
        source,
    })?;
    NamedTensor::from_proto(&proto)
}

fn typed_is_empty(proto: &TensorProto) -> bool {
    proto.float_data.is_empty()
        && proto.int32_data.is_empty()
        && proto.int64_data.is_empty()
        && proto.double_data.is_empty()
        && proto.uint64_data.is_empty()
}

fn typed_bytes(proto: &TensorProto, dtype: DType) -> Result<Vec<u8>, String> {
    fn each<T: Copy, const N: usize>(values: &[T], to_bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
        values.iter().flat_map(|&value| to_bytes(value)).collect()
    }
    /// Narrowed to `T`; a value that is not one of `T`'s is an error, not cut.
    fn narrow<S, T, const N: usize>(values: &[S], to_bytes: impl Fn(T) -> [u8; N]) -> Result<Vec<u8>, String>
    where
        S: Copy + std::fmt::Display,
        T: TryFrom<S>,
    {
        let mut bytes = Vec::with_capacity(values.len() * N);
        for &value in values {
            let narrowed = T::try_from(value).map_err(|_| format!("element {value} is out of its dtype's range"))?;
            bytes.extend(to_bytes(narrowed));
        }
        Ok(bytes)
    }
    match dtype {
        DType::F32 | DType::C64 => Ok(each(&proto.float_data, f32::to_le_bytes)),
        DType::F64 | DType::C128 => Ok(each(&proto.double_data, f64::to_le_bytes)),
        DType::I64 => Ok(each(&proto.int64_data, i64::to_le_bytes)),
        DType::U64 => Ok(each(&proto.uint64_data, u64::to_le_bytes)),
        DType::U32 => narrow(&proto.uint64_data, u32::to_le_bytes),
        DType::I32 => Ok(each(&proto.int32_data, i32::to_le_bytes)),
        DType::I16 => narrow(&proto.int32_data, i16::to_le_bytes),
        DType::I8 => narrow(&proto.int32_data, i8::to_le_bytes),
        DType::U16 | DType::F16 | DType::BF16 => narrow(&proto.int32_data, u16::to_le_bytes),
        DType::Bool => Ok(each(&proto.int32_data, |value| [u8::from(value != 0)])),
        DType::U8 | DType::F8E4M3FN | DType::F8E4M3FNUZ | DType::F8E5M2 | DType::F8E5M2FNUZ => {
            narrow(&proto.int32_data, u8::to_le_bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn typed(dtype: DType, fill: impl Fn(&mut TensorProto)) -> Vec<u8> {
        let mut proto = TensorProto { data_type: Some(dtype.onnx_code()), dims: vec![2], ..Default::default() };
        fill(&mut proto);
        NamedTensor::from_proto(&proto).unwrap().view().bytes().to_vec()
    }

    #[test]
    fn every_dtype_is_read_from_its_typed_field() {
        use DType::*;
        assert_eq!(typed(F32, |p| p.float_data = vec![1., -2.]), [0, 0, 128, 63, 0, 0, 0, 192]);
        assert_eq!(typed(F64, |p| p.double_data = vec![1., -2.])[8..], (-2_f64).to_le_bytes());
        assert_eq!(typed(C64, |p| p.float_data = vec![1., 2., 3., 4.]).len(), 16);
        assert_eq!(typed(C128, |p| p.double_data = vec![1., 2., 3., 4.]).len(), 32);
        assert_eq!(typed(I64, |p| p.int64_data = vec![1, -2])[8], 254);
        assert_eq!(typed(U64, |p| p.uint64_data = vec![1, u64::MAX])[8..], [255; 8]);
        assert_eq!(typed(U32, |p| p.uint64_data = vec![1, 4294967295])[4..], [255; 4]);
        assert_eq!(typed(I32, |p| p.int32_data = vec![1, -2])[4..], [254, 255, 255, 255]);
        assert_eq!(typed(I16, |p| p.int32_data = vec![1, -2]), [1, 0, 254, 255]);
        assert_eq!(typed(I8, |p| p.int32_data = vec![1, -2]), [1, 254]);
        assert_eq!(typed(U16, |p| p.int32_data = vec![1, 65535]), [1, 0, 255, 255]);
        assert_eq!(typed(F16, |p| p.int32_data = vec![0x3c00, 0xc000]), [0, 0x3c, 0, 0xc0]);
        assert_eq!(typed(BF16, |p| p.int32_data = vec![0x3f80, 0xc000]), [0x80, 0x3f, 0, 0xc0]);
        assert_eq!(typed(Bool, |p| p.int32_data = vec![7, 0]), [1, 0]);
        for dtype in [U8, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ] {
            assert_eq!(typed(dtype, |p| p.int32_data = vec![1, 255]), [1, 255]);
        }
    }

    #[test]
    fn what_does_not_fit_together_is_refused_with_its_name() {
        let base = TensorProto { name: Some("w".into()), dims: vec![2], data_type: Some(1), ..Default::default() };
        let cases = [
            (TensorProto { float_data: vec![1.], ..base.clone() }, "needs 8 bytes, got 4"),
            (TensorProto { dims: vec![-1], ..base.clone() }, "dimension 0 is -1"),
            (TensorProto { dims: vec![i64::MAX, i64::MAX], ..base.clone() }, "overflows"),
            (TensorProto { dims: vec![1; 65], ..base.clone() }, "rank 65"),
            (TensorProto { data_type: Some(8), ..base.clone() }, "dtype code 8"),
            (TensorProto { data_type: None, ..base.clone() }, "dtype code 0"),
            (TensorProto { data_type: Some(3), int32_data: vec![1, 300], ..base.clone() }, "element 300"),
            (TensorProto { data_location: Some(1), ..base.clone() }, "another file"),
            (TensorProto { segment: Some(Default::default()), ..base.clone() }, "segment"),
        ];
        for (proto, expected) in cases {
            let text = NamedTensor::from_proto(&proto).unwrap_err().to_string();
            assert!(text.contains(expected) && text.contains("\"w\""), "{text}");
        }
    }

    #[test]
    fn raw_data_is_shared_and_not_copied() {
        let raw = Bytes::from(vec![1_u8; 1 << 20]);
        let proto =
            TensorProto { data_type: Some(2), dims: vec![1 << 20], raw_data: Some(raw.clone()), ..Default::default() };
        let encoded = Bytes::from(proto.encode_to_vec());
        let range = encoded.as_ptr_range();
        let decoded = NamedTensor::from_proto(&TensorProto::decode(encoded.clone()).unwrap()).unwrap();
        assert!(range.contains(&decoded.view().bytes().as_ptr()));
    }

    proptest! {
        #[test]
        fn every_tensor_reads_back_as_written(
            index in 0..DType::ALL.len(), dims in proptest::collection::vec(0_i64..5, 0..4), seed in any::<u8>(),
            name in ".{0,12}",
        ) {
            let (dtype, shape) = (DType::ALL[index], Shape::new(dims).unwrap());
            let bytes: Vec<u8> = (0..shape.len_bytes(dtype)).map(|i| (i as u8).wrapping_mul(31) ^ seed).collect();
            let view = TensorView::new(dtype, &shape, &bytes).unwrap();
            let proto = tensor_proto(&name, &view);
            let mut encoded = tensor_header(&name, &view);
            encoded.extend(&bytes);
            prop_assert_eq!(&TensorProto::decode(&encoded[..]).unwrap(), &proto);
            let read = NamedTensor::from_proto(&proto).unwrap();
            prop_assert_eq!(&read.name, &name);
            prop_assert_eq!(read.view().to_owned(), view.to_owned());
        }

        #[test]
        fn mutated_tensors_never_panic(
            cut in 0_usize..200, edits in proptest::collection::vec((0_usize..200, any::<u8>()), 0..8),
        ) {
            let proto = TensorProto {
                name: Some("weight".into()), dims: vec![2, 3], data_type: Some(1), float_data: vec![1.; 6],
                int32_data: vec![5; 3], uint64_data: vec![9], raw_data: Some(Bytes::from_static(&[1; 24])),
                ..Default::default()
            };
            let mut bytes = proto.encode_to_vec();
            bytes.truncate(bytes.len().saturating_sub(cut / 8));
            for (at, value) in edits {
                let n = bytes.len().max(1);
                if let Some(byte) = bytes.get_mut(at % n) { *byte = value; }
            }
            if let Ok(proto) = TensorProto::decode(&bytes[..])
                && let Ok(tensor) = NamedTensor::from_proto(&proto)
            {
                prop_assert_eq!(tensor.view().bytes().len(), tensor.desc.len_bytes());
            }
        }
    }
}
