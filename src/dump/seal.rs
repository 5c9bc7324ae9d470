//! Seals: the last field of a JSON file that we wrote tells whether the bytes before it are those that were written.
//!
//! `"seal"` is the blake3 of every byte before the comma that stands before the field. It is appended as text, so a
//! client's own JSON needs no second form. A seal tells of accidents: a lost block, a torn copy, an editor. Whoever
//! means to deceive seals again.

use std::io::{self, Write};

const FIELD: &[u8] = b",\n  \"seal\": \"";
const END: &[u8] = b"\"\n}\n";
/// How an object ends that has no seal yet, as [`super::layout::write_json`] writes it.
const OPEN_END: &[u8] = b"\n}\n";
const HASH_LEN: usize = 2 * blake3::OUT_LEN;
const SEAL_LEN: usize = FIELD.len() + HASH_LEN + END.len();

/// What the end of a file says of the bytes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seal {
    /// They are those that were written.
    Whole,
    /// They are not, or the seal is not.
    Broken,
    /// It has none: of an earlier version, or somebody else's.
    None,
}

impl Seal {
    /// Of a file's content.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let Some(at) = bytes.len().checked_sub(SEAL_LEN) else { return Seal::None };
        let (content, seal) = bytes.split_at(at);
        let hash = seal.strip_prefix(FIELD).and_then(|rest| rest.strip_suffix(END));
        match hash {
            None => Seal::None,
            Some(hash) if hash == blake3::hash(content).to_hex().as_bytes() => Seal::Whole,
            Some(_) => Seal::Broken,
        }
    }
}

/// Seals an object that is written through it, without the whole text in memory. The object has a field, and ends as
/// [`super::layout::write_json`] ends it.
pub(super) struct Sealing<W> {
    out: W,
    hasher: blake3::Hasher,
    /// The last bytes, which may be the object's end.
    held: Vec<u8>,
}

impl<W: Write> Sealing<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, hasher: blake3::Hasher::new(), held: Vec::with_capacity(OPEN_END.len()) }
    }

    /// Writes the seal and the end. Errors: the writer's; InvalidData when it was no object with a field.
    pub(super) fn end(mut self) -> io::Result<W> {
        if self.held != OPEN_END {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "only an object with a field is sealed"));
        }
        let hash = self.hasher.finalize().to_hex();
        for piece in [FIELD, hash.as_bytes(), END] {
            self.out.write_all(piece)?;
        }
        Ok(self.out)
    }
}

impl<W: Write> Write for Sealing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.held.extend_from_slice(bytes);
        let surplus = self.held.len().saturating_sub(OPEN_END.len());
        self.hasher.update(&self.held[..surplus]);
        self.out.write_all(&self.held[..surplus])?;
        self.held.drain(..surplus);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::to_json;
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_sealed_object_is_json_with_its_fields_and_the_seal_last() {
        let bytes = to_json(&json!({ "schema": "x/1", "a": [1, { "b": "\n}\n" }] }));
        assert_eq!(Seal::of(&bytes), Seal::Whole);
        let value: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!((&value["a"][0], value["seal"].as_str().unwrap().len()), (&json!(1), HASH_LEN));
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.trim_end().trim_end_matches(['}', '\n', '"']).ends_with(value["seal"].as_str().unwrap()));
    }

    #[test]
    fn no_flipped_bit_and_no_cut_leaves_a_whole_seal() {
        let bytes = to_json(&json!({ "schema": "x/1", "a": [1, 2.5, "text"] }));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(Seal::of(&flipped), Seal::Whole, "bit {bit}");
        }
        assert!((0..bytes.len()).all(|len| Seal::of(&bytes[..len]) != Seal::Whole));
    }

    #[test]
    fn pieces_of_any_length_are_sealed_alike() {
        let text = b"{\n  \"a\": 1\n}\n";
        let sealed = |len: usize| {
            let mut sealing = Sealing::new(Vec::new());
            text.chunks(len).for_each(|piece| sealing.write_all(piece).unwrap());
            sealing.end().unwrap()
        };
        assert!((1..text.len()).all(|len| sealed(len) == sealed(text.len())));
        assert_eq!(Seal::of(&sealed(1)), Seal::Whole);
        let mut list = Sealing::new(Vec::new());
        list.write_all(b"[]\n").unwrap();
        assert!(list.end().is_err());
    }

    #[test]
    fn what_has_no_seal_is_told_from_a_broken_one() {
        for text in [&b""[..], b"{}", b"{\n  \"seal\": \"\"\n}\n", b"[1]"] {
            assert_eq!(Seal::of(text), Seal::None);
        }
        let mut bytes = to_json(&json!({ "a": 1 }));
        let at = bytes.iter().position(|&byte| byte == b'1').unwrap();
        bytes[at] = b'2';
        assert_eq!(Seal::of(&bytes), Seal::Broken);
    }
}
