//! Hugging Face's `.safetensors`: a JSON header, and bytes.

use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::tensor::{DType, TensorBuf, TensorDesc};

/// Bytes of a header. Source: safetensors' MAX_HEADER_SIZE.
const HEADER_BYTES: usize = 100_000_000;
/// Bytes of memory for a byte of the header, at most.
const HEADER_FACTOR: u64 = 8;

/// The tensors of a `.safetensors` file, by name, in the order of their bytes. `at_most`: bytes that all of them may take.
/// Errors: what of it is not as it should be, as safetensors' own reader says: every byte behind the header is one tensor's.
pub(super) fn read(bytes: &[u8], at_most: u64) -> Result<Vec<(String, TensorBuf)>, String> {
    let len = bytes.first_chunk().map(|len| u64::from_le_bytes(*len)).ok_or("it is too short")?;
    let len = usize::try_from(len).ok().filter(|&len| len <= HEADER_BYTES).ok_or("its header is too long")?;
    let from = len.checked_add(8).ok_or("its header is too long")?;
    let header = bytes.get(8..from).ok_or("it ends in its header")?;
    if (len as u64).saturating_mul(HEADER_FACTOR) > at_most {
        return Err(format!("its header of {len} bytes takes more memory than is given to feeds, {at_most} bytes"));
    }
    let Header(mut told) = serde_json::from_slice(header).map_err(|error| format!("its header: {error}"))?;
    let data = &bytes[from..];
    told.sort_by(|(name, one), (other, another)| (one.data_offsets, name).cmp(&(another.data_offsets, other)));
    check_places(&told, data.len())?;
    if data.len() as u64 > at_most {
        return Err(format!("its tensors are {} bytes, more than is given to feeds, {at_most}", data.len()));
    }
    let mut tensors = Vec::with_capacity(told.len());
    for (name, one) in told {
        let tensor = one.tensor(data).map_err(|why| format!("{name}: {why}"))?;
        tensors.push((name, tensor));
    }
    Ok(tensors)
}

/// Names, and what the header tells of each.
struct Header(Vec<(String, Told)>);

/// Of a tensor.
#[derive(Deserialize)]
struct Told {
    dtype: String,
    shape: Vec<i64>,
    data_offsets: (usize, usize),
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut told = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        told.push((name, map.next_value()?));
                    }
                }
                Ok(Header(told))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// Whether each byte of the data is one tensor's. told: in their order. Errors: it is none's, or several's; two have one name.
fn check_places(told: &[(String, Told)], len_bytes: usize) -> Result<(), String> {
    let mut at = 0;
    let mut names = HashSet::new();
    for (name, Told { data_offsets: (from, to), .. }) in told {
        if *from != at || to < from {
            return Err(format!("{name}: its bytes are {from} to {to}, where those before end at {at}"));
        }
        if *to > len_bytes {
            return Err(format!("{name}: its bytes are not in the file"));
        }
        if !names.insert(name) {
            return Err(format!("{name}: two tensors have this name"));
        }
        at = *to;
    }
    match at == len_bytes {
        true => Ok(()),
        false => Err(format!("{} bytes at its end are no tensor's", len_bytes - at)),
    }
}

impl Told {
    /// data: in which its bytes are.
    fn tensor(self, data: &[u8]) -> Result<TensorBuf, String> {
        let dtype =
            dtype(&self.dtype).ok_or_else(|| format!("dtype {:?} is none of ONNX's and torch's", self.dtype))?;
        let desc = TensorDesc::new(dtype, self.shape).map_err(|error| error.to_string())?;
        let content = &data[self.data_offsets.0..self.data_offsets.1];
        if desc.len_bytes() != content.len() {
            return Err(format!("{desc} takes {} bytes, it has {}", desc.len_bytes(), content.len()));
        }
        TensorBuf::new(desc, content.to_vec()).map_err(|error| error.to_string())
    }
}

fn dtype(name: &str) -> Option<DType> {
    use DType::*;
    let known = [
        ("F16", F16),
        ("F32", F32),
        ("F64", F64),
        ("I8", I8),
        ("I16", I16),
        ("I32", I32),
        ("I64", I64),
        ("U8", U8),
        ("U16", U16),
        ("U32", U32),
        ("U64", U64),
        ("BOOL", Bool),
        ("BF16", BF16),
        ("F8_E4M3", F8E4M3FN),
        ("F8_E5M2", F8E5M2),
        ("C64", C64),
    ];
    known.iter().find(|(known, _)| *known == name).map(|(_, dtype)| *dtype)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, n_bytes: usize) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![7; n_bytes]].concat()
    }

    fn entry(name: &str, n: usize, from: usize, to: usize) -> String {
        format!(r#""{name}":{{"dtype":"U8","shape":[{n}],"data_offsets":[{from},{to}]}}"#)
    }

    fn refused(entries: &[String], n_bytes: usize) -> String {
        read(&file(&format!("{{{}}}", entries.join(",")), n_bytes), 1 << 20).unwrap_err()
    }

    #[test]
    fn every_byte_is_one_tensors() {
        let whole = [entry("b", 3, 2, 5), entry("none", 0, 2, 2), entry("a", 2, 0, 2)].join(",");
        let read = read(&file(&format!(r#"{{"__metadata__":{{"a":[1,2]}},{whole}}}"#), 5), 1 << 20).unwrap();
        let names: Vec<_> = read.iter().map(|(name, tensor)| (name.as_str(), tensor.view().bytes().len())).collect();
        assert_eq!(names, [("a", 2), ("none", 0), ("b", 3)]);
        for (entries, n_bytes, expected) in [
            (vec![entry("a", 4, 0, 4), entry("b", 4, 0, 4)], 4, "b: its bytes are 0 to 4, where those before end at 4"),
            (vec![entry("a", 4, 0, 4), entry("b", 2, 3, 5)], 5, "b: its bytes are 3 to 5, where those before end at 4"),
            (vec![entry("a", 4, 0, 4), entry("b", 1, 5, 6)], 6, "b: its bytes are 5 to 6"),
            (vec![entry("a", 4, 0, 4)], 5, "1 bytes at its end are no tensor's"),
            (vec![entry("a", 4, 0, 4)], 3, "a: its bytes are not in the file"),
            (vec![entry("a", 4, 4, 0)], 4, "a: its bytes are 4 to 0"),
            (vec![entry("a", 5, 0, 4)], 4, "a: uint8[5] takes 5 bytes, it has 4"),
            (vec![entry("a", 2, 0, 2), entry("a", 2, 2, 4)], 4, "a: two tensors have this name"),
        ] {
            let error = refused(&entries, n_bytes);
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn header_and_tensors_are_bounded_before_they_are_taken() {
        let header = format!("{{{}}}", entry("a", 4, 0, 4));
        assert!(read(&file(&header, 4), 8 * header.len() as u64).is_ok());
        assert!(read(&file(&header, 4), 8 * header.len() as u64 - 1).unwrap_err().contains("its header"));
        let header = format!("{{{}}}", entry("a", 1 << 20, 0, 1 << 20));
        assert!(read(&file(&header, 1 << 20), (1 << 20) - 1).unwrap_err().contains("more than is given to feeds"));
        let long = [&(HEADER_BYTES as u64 + 1).to_le_bytes()[..], &vec![b' '; HEADER_BYTES + 1]].concat();
        assert_eq!(read(&long, u64::MAX).unwrap_err(), "its header is too long");
    }
}
