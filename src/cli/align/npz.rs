//! NumPy's `.npz`: a zip of `.npy` files, plain or compressed, read whole.

use std::io::Read as _;

use flate2::Crc;
use flate2::read::DeflateDecoder;

use crate::tensor::{DType, TensorBuf, TensorDesc};

const END: &[u8] = b"PK\x05\x06";
const ENTRY: &[u8] = b"PK\x01\x02";
const LOCAL: &[u8] = b"PK\x03\x04";
/// In a 32-bit field: the number is 64-bit and stands in an extra field.
const IN_EXTRA: u64 = 0xffff_ffff;

/// Its arrays by name, in the order of the file. `at_most`: bytes that one may take. Errors: what of it is not as it
/// should be.
pub(super) fn read(bytes: &[u8], at_most: u64) -> Result<Vec<(String, TensorBuf)>, String> {
    let mut at = directory(bytes)?;
    let mut arrays = Vec::new();
    while bytes.get(at..at + 4) == Some(ENTRY) {
        let entry = Entry::read(bytes, at)?;
        let content = entry.content(bytes, at_most).map_err(|why| format!("{}: {why}", entry.name))?;
        let tensor = array(&content).map_err(|why| format!("{}: {why}", entry.name))?;
        arrays.push((entry.name.trim_end_matches(".npy").to_owned(), tensor));
        at = entry.next;
    }
    Ok(arrays)
}

fn number(bytes: &[u8], at: usize, len: usize) -> Result<u64, String> {
    let field = at.checked_add(len).and_then(|end| bytes.get(at..end)).ok_or("it ends in the middle of an entry")?;
    Ok(field.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

/// Where the list of entries begins.
fn directory(bytes: &[u8]) -> Result<usize, String> {
    const LEN: usize = 22;
    // A comment of at most 64 KiB may stand behind it.
    let last = bytes.len().checked_sub(LEN).ok_or("no zip: it is too short")?;
    let from = last.saturating_sub(1 << 16);
    let end =
        (from..=last).rev().find(|&at| bytes[at..].starts_with(END)).ok_or("no zip: it has no list of entries")?;
    let offset = number(bytes, end + 16, 4)?;
    if offset == IN_EXTRA {
        return Err("a zip of more than 4 GiB; write the arrays into a .safetensors file".to_owned());
    }
    Ok(offset as usize)
}

struct Entry {
    name: String,
    is_deflated: bool,
    crc: u32,
    packed: u64,
    unpacked: u64,
    local: u64,
    next: usize,
}

impl Entry {
    fn read(bytes: &[u8], at: usize) -> Result<Self, String> {
        let field = |offset: usize, len: usize| number(bytes, at + offset, len);
        let lens = [field(28, 2)?, field(30, 2)?, field(32, 2)?].map(|len| len as usize);
        let name = bytes.get(at + 46..at + 46 + lens[0]).ok_or("it ends in the middle of a name")?;
        let name = String::from_utf8_lossy(name).into_owned();
        let (mut packed, mut unpacked, mut local) = (field(20, 4)?, field(24, 4)?, field(42, 4)?);
        // Of a file that NumPy streams: sizes of 64 bits, in this order, those alone that did not fit.
        let mut extra = at + 46 + lens[0];
        let end = extra + lens[1];
        while extra + 4 <= end {
            let (id, len) = (number(bytes, extra, 2)?, number(bytes, extra + 2, 2)? as usize);
            let mut place = extra + 4;
            for large in [&mut unpacked, &mut packed, &mut local] {
                if id == 1 && *large == IN_EXTRA {
                    *large = number(bytes, place, 8)?;
                    place += 8;
                }
            }
            extra += 4 + len;
        }
        let is_deflated = match (field(8, 2)? & 1, field(10, 2)?) {
            (0, 0) => false,
            (0, 8) => true,
            (1, _) => return Err(format!("{name}: it is encrypted")),
            (_, method) => return Err(format!("{name}: compressed by method {method}; expected none or deflate")),
        };
        let crc = field(16, 4)? as u32;
        Ok(Self { name, is_deflated, crc, packed, unpacked, local, next: end + lens[2] })
    }

    fn content(&self, bytes: &[u8], at_most: u64) -> Result<Vec<u8>, String> {
        let local =
            usize::try_from(self.local).ok().filter(|&at| bytes.get(at..).is_some_and(|b| b.starts_with(LOCAL)));
        let local = local.ok_or("its entry is not where the list says")?;
        let skipped = 30 + number(bytes, local + 26, 2)? + number(bytes, local + 28, 2)?;
        let from = local + skipped as usize;
        let to = usize::try_from(self.packed).ok().and_then(|len| from.checked_add(len));
        let packed = to.and_then(|to| bytes.get(from..to)).ok_or("it ends before its content")?;
        if self.unpacked > at_most {
            return Err(format!("it takes {} bytes, more than this machine has", self.unpacked));
        }
        let mut content = Vec::new();
        match self.is_deflated {
            false => content.extend_from_slice(packed),
            // One byte more than is told shows a content that goes on.
            true => {
                let mut decoder = DeflateDecoder::new(packed).take(self.unpacked + 1);
                decoder.read_to_end(&mut content).map_err(|error| format!("damaged: {error}"))?;
            }
        }
        let mut crc = Crc::new();
        crc.update(&content);
        match content.len() as u64 == self.unpacked && crc.sum() == self.crc {
            true => Ok(content),
            false => Err("damaged: its bytes are not those that were written".to_owned()),
        }
    }
}

/// A `.npy` file.
fn array(bytes: &[u8]) -> Result<TensorBuf, String> {
    if !bytes.starts_with(b"\x93NUMPY") {
        return Err("no .npy file".to_owned());
    }
    let (from, size): (usize, usize) = if bytes.get(6) == Some(&1) { (10, 2) } else { (12, 4) };
    let len = number(bytes, 8, size)? as usize;
    let header = from.checked_add(len).and_then(|end| bytes.get(from..end)).ok_or("it ends in its header")?;
    let header = std::str::from_utf8(header).map_err(|_| "its header is no text")?;
    let after = |key: &str| header.split_once(key).map(|(_, rest)| rest.trim_start_matches([' ', ':']));
    let descr = after("'descr'").unwrap_or_default();
    let descr = descr.strip_prefix('\'').and_then(|rest| rest.split('\'').next()).unwrap_or("of several fields");
    let dims = after("'shape'").and_then(|rest| rest.strip_prefix('(')?.split_once(')')).ok_or("it has no shape")?.0;
    let dims = dims.split(',').map(str::trim).filter(|dim| !dim.is_empty());
    let dims: Vec<i64> =
        dims.map(|dim| dim.parse().map_err(|_| format!("shape: {dim:?}"))).collect::<Result<_, _>>()?;
    let desc = TensorDesc::new(dtype(descr)?, dims).map_err(|error| error.to_string())?;
    let is_fortran = after("'fortran_order'").is_some_and(|rest| rest.starts_with("True"));
    let content = bytes[from + len..].to_vec();
    let tensor = TensorBuf::new(desc, content).map_err(|error| error.to_string())?;
    Ok(if is_fortran { row_major(&tensor) } else { tensor })
}

fn dtype(descr: &str) -> Result<DType, String> {
    use DType::*;
    let known = [
        ("f2", F16),
        ("f4", F32),
        ("f8", F64),
        ("i1", I8),
        ("i2", I16),
        ("i4", I32),
        ("i8", I64),
        ("u1", U8),
        ("u2", U16),
        ("u4", U32),
        ("u8", U64),
        ("b1", Bool),
        ("c8", C64),
        ("c16", C128),
        // ml_dtypes' bfloat16, whose name NumPy does not write.
        ("V2", BF16),
    ];
    let native = descr.strip_prefix(['<', '|', '=']);
    let found = known.iter().find(|(name, _)| native == Some(*name)).map(|(_, dtype)| *dtype);
    found.ok_or_else(|| format!("dtype {descr:?}; expected a little-endian number or bool"))
}

/// Elements that stand column by column, row by row.
fn row_major(tensor: &TensorBuf) -> TensorBuf {
    let (desc, view) = (tensor.desc(), tensor.view());
    let (dims, size) = (desc.shape.to_usize(), desc.dtype.size_bytes());
    let mut index = vec![0; dims.len()];
    let mut bytes = Vec::with_capacity(view.bytes().len());
    for _ in 0..desc.shape.n_elements() {
        let (mut at, mut stride) = (0, 1);
        for (i, dim) in index.iter().zip(&dims) {
            at += i * stride;
            stride *= dim;
        }
        bytes.extend_from_slice(&view.bytes()[at * size..(at + 1) * size]);
        for axis in (0..dims.len()).rev() {
            index[axis] += 1;
            if index[axis] < dims[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    TensorBuf::new(desc.clone(), bytes).expect("as many elements as before")
}
