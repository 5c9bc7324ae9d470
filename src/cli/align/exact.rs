//! Constants of types that torch does not have, which are compared element by element, bit by bit: of 4 and 2 bits,
//! float8e8m0, and text.

use crate::compare::{TensorVerdict, Verdict};
use crate::onnx::proto::TensorProto;
use crate::onnx::proto::tensor_proto::{DataLocation, DataType};

/// A constant.
#[derive(Debug)]
pub(super) struct Exact {
    /// As ONNX calls it, in small letters.
    pub(super) dtype: String,
    pub(super) dims: Vec<i64>,
    elements: Elements,
}

#[derive(Debug, PartialEq)]
enum Elements {
    /// Several a byte, the first in the lowest bits; bits behind the last one are 0.
    Packed(Vec<u8>),
    Text(Vec<Vec<u8>>),
}

impl Exact {
    /// None: it is of another type, in another file, or not what its dimensions say.
    pub(super) fn of(tensor: &TensorProto) -> Option<Self> {
        if tensor.data_location() == DataLocation::External || tensor.segment.is_some() {
            return None;
        }
        let data_type = DataType::try_from(tensor.data_type()).ok()?;
        let n = tensor.dims.iter().try_fold(1_usize, |n, &dim| n.checked_mul(usize::try_from(dim).ok()?))?;
        let elements = match data_type {
            DataType::String => Elements::Text((tensor.string_data.len() == n).then(|| tensor.string_data.clone())?),
            DataType::Int4 | DataType::Uint4 | DataType::Float4e2m1 => Elements::Packed(packed(tensor, n, 4)?),
            DataType::Int2 | DataType::Uint2 => Elements::Packed(packed(tensor, n, 2)?),
            DataType::Float8e8m0 => Elements::Packed(packed(tensor, n, 8)?),
            _ => return None,
        };
        Some(Self { dtype: data_type.as_str_name().to_lowercase(), dims: tensor.dims.clone(), elements })
    }

    /// The verdict on two, which has no metrics.
    pub(super) fn judged(&self, other: &Self, name: &str) -> TensorVerdict {
        let verdict = if self.dtype != other.dtype {
            Verdict::NotCompared(format!("dtypes differ: {}, {}", self.dtype, other.dtype))
        } else if self.dims != other.dims {
            Verdict::NotCompared(format!("shapes differ: {:?}, {:?}", self.dims, other.dims))
        } else if self.dims.contains(&0) {
            Verdict::NotCompared("it has no elements".to_owned())
        } else if self.elements == other.elements {
            Verdict::Match
        } else {
            Verdict::Mismatch
        };
        TensorVerdict { name: name.to_owned(), verdict, metrics: None, noise: None }
    }
}

/// The bytes of `n` elements of so many bits, from `raw_data` or the field that ONNX lays down for them, a byte in each of
/// its numbers. None: there are fewer or more.
fn packed(tensor: &TensorProto, n: usize, bits: usize) -> Option<Vec<u8>> {
    let n_bits = n.checked_mul(bits)?;
    let mut bytes = match &tensor.raw_data {
        Some(raw) if !raw.is_empty() || tensor.int32_data.is_empty() => raw.to_vec(),
        _ => tensor.int32_data.iter().map(|&number| number as u8).collect(),
    };
    if bytes.len() != n_bits.div_ceil(8) {
        return None;
    }
    if let Some(last) = bytes.last_mut().filter(|_| n_bits % 8 > 0) {
        *last &= (1 << (n_bits % 8)) - 1;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(data_type: DataType, dims: &[i64], raw: &[u8]) -> TensorProto {
        let raw_data = Some(raw.to_vec().into());
        TensorProto { data_type: Some(data_type as i32), dims: dims.to_vec(), raw_data, ..TensorProto::default() }
    }

    #[test]
    fn bits_are_compared_and_those_behind_the_last_element_are_not() {
        let judged = |one: &TensorProto, other: &TensorProto| {
            Exact::of(one).unwrap().judged(&Exact::of(other).unwrap(), "w").verdict
        };
        let of = |dims: &[i64], raw: &[u8]| tensor(DataType::Int4, dims, raw);
        assert_eq!(judged(&of(&[3], &[0x21, 0x03]), &of(&[3], &[0x21, 0xf3])), Verdict::Match);
        assert_eq!(judged(&of(&[3], &[0x21, 0x03]), &of(&[3], &[0x21, 0x04])), Verdict::Mismatch);
        let two = |raw| tensor(DataType::Uint2, &[5], raw);
        assert_eq!(judged(&two(&[0xe4, 0x01]), &two(&[0xe4, 0xfd])), Verdict::Match);
        assert_eq!(judged(&two(&[0xe4, 0x01]), &two(&[0xe5, 0x01])), Verdict::Mismatch);
        let in_numbers = TensorProto { raw_data: None, int32_data: vec![0x21, 0x03], ..of(&[3], &[]) };
        assert_eq!(judged(&in_numbers, &of(&[3], &[0x21, 0x03])), Verdict::Match);
        let other = [(of(&[1, 3], &[0x21, 0x03]), "shapes"), (tensor(DataType::Uint4, &[3], &[0x21, 0x03]), "dtypes")];
        for (other, why) in other {
            let verdict = judged(&of(&[3], &[0x21, 0x03]), &other);
            assert!(matches!(&verdict, Verdict::NotCompared(reason) if reason.starts_with(why)), "{verdict:?}");
        }
        assert!(matches!(judged(&of(&[0], &[]), &of(&[0], &[])), Verdict::NotCompared(_)), "nothing was compared");
    }

    #[test]
    fn text_is_compared_and_what_is_damaged_is_no_value() {
        let text = |words: &[&str]| TensorProto {
            data_type: Some(DataType::String as i32),
            dims: vec![2],
            string_data: words.iter().map(|word| word.as_bytes().to_vec()).collect(),
            ..TensorProto::default()
        };
        let one = Exact::of(&text(&["a", "b"])).unwrap();
        assert_eq!(one.judged(&Exact::of(&text(&["a", "b"])).unwrap(), "w").verdict, Verdict::Match);
        assert_eq!(one.judged(&Exact::of(&text(&["a", "c"])).unwrap(), "w").verdict, Verdict::Mismatch);
        assert!(Exact::of(&text(&["a"])).is_none());
        assert!(Exact::of(&tensor(DataType::Int4, &[3], &[0x21])).is_none());
        assert!(Exact::of(&tensor(DataType::Int4, &[-1], &[])).is_none());
        assert!(Exact::of(&tensor(DataType::Float, &[1], &[0; 4])).is_none());
    }
}
