//! NumPy's `.npz`: a zip of `.npy` files, plain or compressed, read whole; and `.npy` alone.

use std::io::Read as _;
use std::ops::Range;

use flate2::Crc;
use flate2::read::DeflateDecoder;

use crate::tensor::{DType, TensorBuf, TensorDesc};

const END: &[u8] = b"PK\x05\x06";
const ENTRY: &[u8] = b"PK\x01\x02";
const LOCAL: &[u8] = b"PK\x03\x04";
/// Bytes that a byte of deflate becomes, at most.
const DEFLATED: u64 = 1032;
/// Bytes of a `.npy` header: of a dtype and a shape.
const HEADER_BYTES: usize = 1 << 16;
/// In a 32-bit field: the number is 64-bit and stands in an extra field.
const IN_EXTRA: u64 = 0xffff_ffff;

/// Its arrays by name, in the order of the file. `at_most`: bytes that all of them may take. Errors: what of it is not as it
/// should be; nothing is unpacked before the whole list of entries is looked at.
pub(super) fn read(bytes: &[u8], at_most: u64) -> Result<Vec<(String, TensorBuf)>, String> {
    let entries = entries(bytes)?;
    check_places(bytes, &entries)?;
    let total = entries.iter().fold(0, |sum: u64, entry| sum.saturating_add(entry.unpacked));
    if total > at_most {
        return Err(format!("its arrays take {total} bytes, more than is given to feeds, {at_most}"));
    }
    let mut arrays = Vec::with_capacity(entries.len());
    for entry in &entries {
        let told = |why| format!("{}: {why}", entry.name);
        let tensor = entry.content(bytes).and_then(array).map_err(told)?;
        arrays.push((entry.name.trim_end_matches(".npy").to_owned(), tensor));
    }
    Ok(arrays)
}

/// The array of a `.npy` file, which has no name. Errors: as [`read`].
pub(super) fn read_array(bytes: &[u8], _: u64) -> Result<Vec<(String, TensorBuf)>, String> {
    Ok(vec![(String::new(), array(bytes.to_vec())?)])
}

/// All that its end tells of. Errors: there are fewer, or others.
fn entries(bytes: &[u8]) -> Result<Vec<Entry>, String> {
    let Directory { mut at, n_entries, end } = Directory::of(bytes)?;
    let mut entries = Vec::with_capacity(n_entries);
    while bytes.get(at..).is_some_and(|rest| rest.starts_with(ENTRY)) && at < end {
        let entry = Entry::read(bytes, at)?;
        at = entry.next;
        entries.push(entry);
    }
    match entries.len() == n_entries && at == end {
        true => Ok(entries),
        false => Err(format!("damaged: its list of arrays has {}, and its end tells of {n_entries}", entries.len())),
    }
}

/// Whether each array has bytes of its own. Errors: two entries share some.
fn check_places(bytes: &[u8], entries: &[Entry]) -> Result<(), String> {
    let place = |entry: &Entry| match entry.packed(bytes) {
        Ok(packed) => Ok((entry.local, packed.end as u64, entry.name.clone())),
        Err(why) => Err(format!("{}: {why}", entry.name)),
    };
    let mut places = entries.iter().map(place).collect::<Result<Vec<_>, _>>()?;
    places.sort();
    match places.windows(2).find(|pair| pair[1].0 < pair[0].1) {
        None => Ok(()),
        Some(pair) => Err(format!("{}: its bytes are also those of {}", pair[1].2, pair[0].2)),
    }
}

fn number(bytes: &[u8], at: usize, len: usize) -> Result<u64, String> {
    let field = at.checked_add(len).and_then(|end| bytes.get(at..end)).ok_or("it ends in the middle of an entry")?;
    Ok(field.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

/// The list of entries.
struct Directory {
    at: usize,
    n_entries: usize,
    end: usize,
}

impl Directory {
    /// As the end of the file tells. Errors: the file has no such end; it is larger than the fields can tell.
    fn of(bytes: &[u8]) -> Result<Self, String> {
        const LEN: usize = 22;
        // A comment of at most 64 KiB may stand behind it.
        let last = bytes.len().checked_sub(LEN).ok_or("no zip: it is too short")?;
        let from = last.saturating_sub(1 << 16);
        let is_end = |at: &usize| bytes[*at..].starts_with(END);
        let end = (from..=last).rev().find(is_end).ok_or("no zip: it has no list of entries")?;
        let (n_entries, len, at) =
            (number(bytes, end + 10, 2)?, number(bytes, end + 12, 4)?, number(bytes, end + 16, 4)?);
        if at == IN_EXTRA || len == IN_EXTRA || n_entries == 0xffff {
            let text = "a zip of more than 4 GiB, or of 65,535 arrays; write the arrays into a .safetensors file";
            return Err(text.to_owned());
        }
        let (at, n_entries) = (at as usize, n_entries as usize);
        match at.checked_add(len as usize).filter(|&stop| stop <= end) {
            Some(end) => Ok(Self { at, n_entries, end }),
            None => Err("damaged: its list of arrays is not where its end says".to_owned()),
        }
    }
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

    /// Where its bytes are, packed. Errors: they are not in the file.
    fn packed(&self, bytes: &[u8]) -> Result<Range<usize>, String> {
        let local =
            usize::try_from(self.local).ok().filter(|&at| bytes.get(at..).is_some_and(|b| b.starts_with(LOCAL)));
        let local = local.ok_or("its entry is not where the list says")?;
        let skipped = 30 + number(bytes, local + 26, 2)? + number(bytes, local + 28, 2)?;
        let from = local + skipped as usize;
        let to = usize::try_from(self.packed).ok().and_then(|len| from.checked_add(len));
        to.filter(|&to| to <= bytes.len()).map(|to| from..to).ok_or_else(|| "it ends before its content".to_owned())
    }

    /// Its bytes, unpacked: as many as are told.
    fn content(&self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let packed = &bytes[self.packed(bytes)?];
        let mut content = Vec::with_capacity((self.unpacked + 1).min(packed.len() as u64 * DEFLATED) as usize);
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
fn array(mut bytes: Vec<u8>) -> Result<TensorBuf, String> {
    let (desc, is_fortran, from) = header(&bytes)?;
    bytes.drain(..from);
    let tensor = TensorBuf::new(desc, bytes).map_err(|error| error.to_string())?;
    Ok(if is_fortran { row_major(&tensor) } else { tensor })
}

/// What its header tells: dtype and shape, whether elements stand column by column, and where they begin.
fn header(bytes: &[u8]) -> Result<(TensorDesc, bool, usize), String> {
    if !bytes.starts_with(b"\x93NUMPY") {
        return Err("no .npy file".to_owned());
    }
    let (from, size): (usize, usize) = if bytes.get(6) == Some(&1) { (10, 2) } else { (12, 4) };
    let len = number(bytes, 8, size)? as usize;
    if len > HEADER_BYTES {
        return Err(format!("its header has {len} bytes; expected at most {HEADER_BYTES}"));
    }
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
    Ok((desc, is_fortran, from + len))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A stored array of so many bytes, as it stands in the file and in its list.
    fn stored(name: &str, n: usize, at: usize) -> [Vec<u8>; 2] {
        let text = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({n},), }}\n");
        let content =
            [b"\x93NUMPY\x01\x00", &(text.len() as u16).to_le_bytes()[..], text.as_bytes(), &vec![7; n]].concat();
        let mut crc = Crc::new();
        crc.update(&content);
        let len = (content.len() as u32).to_le_bytes();
        let facts = [&[0; 4][..], &crc.sum().to_le_bytes(), &len, &len, &(name.len() as u16).to_le_bytes()].concat();
        let local = [LOCAL, &[20, 0, 0, 0, 0, 0], &facts, &[0; 2], name.as_bytes(), &content].concat();
        let tail = [&[0; 12][..], &(at as u32).to_le_bytes(), name.as_bytes()].concat();
        [local, [ENTRY, &[20, 0, 20, 0, 0, 0, 0, 0], &facts, &tail].concat()]
    }

    fn zip(content: &[u8], list: &[u8], n_entries: u16) -> Vec<u8> {
        let n = n_entries.to_le_bytes();
        let ends = [(list.len() as u32).to_le_bytes(), (content.len() as u32).to_le_bytes()].concat();
        [content, list, END, &[0; 4], &n, &n, &ends, &[0; 2]].concat()
    }

    #[test]
    fn arrays_have_bytes_of_their_own_and_are_bounded_together() {
        let [a, of_a] = stored("a.npy", 5, 0);
        let [b, of_b] = stored("b.npy", 9, a.len());
        let two = zip(&[&a[..], &b].concat(), &[&of_a[..], &of_b].concat(), 2);
        let read_two = read(&two, 1 << 10).unwrap();
        let lens: Vec<_> = read_two.iter().map(|(name, array)| (name.as_str(), array.view().bytes().len())).collect();
        assert_eq!(lens, [("a", 5), ("b", 9)]);
        assert!(read(&two, 100).unwrap_err().contains("more than is given to feeds, 100"));
        let again = stored("again.npy", 5, 0)[1].clone();
        let shared = zip(&a, &[of_a.clone(), again].concat(), 2);
        assert_eq!(read(&shared, 1 << 10).unwrap_err(), "again.npy: its bytes are also those of a.npy");
    }

    /// Not dropped in silence.
    #[test]
    fn an_array_that_the_list_lost_is_an_error() {
        let [a, of_a] = stored("a.npy", 5, 0);
        let [b, mut of_b] = stored("b.npy", 9, a.len());
        of_b[2] ^= 1;
        let content = [a, b].concat();
        let list = [of_a.clone(), of_b].concat();
        let error = read(&zip(&content, &list, 2), 1 << 10).unwrap_err();
        assert_eq!(error, "damaged: its list of arrays has 1, and its end tells of 2");
        for n in [0, 2, 0xfffe] {
            assert!(read(&zip(&content, &of_a, n), 1 << 10).unwrap_err().starts_with("damaged: its list"), "{n}");
        }
        assert!(read(&zip(&content, &of_a, 0xffff), 1 << 10).unwrap_err().contains("65,535"));
    }
}
