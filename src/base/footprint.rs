//! How much memory a protobuf message takes once it is decoded, told from its bytes before it is: two bytes on the wire may
//! be an element of a kilobyte.
//!
//! The walk is told by tables of the schemas (build.rs) what is a message, a text or numbers, and reads nothing else. It
//! stops where the bytes are broken: decoding goes the same way, and ends there too. prost holds a length against the end of
//! all bytes, not of the message around it, and decodes what lies beyond that message before it looks; so does the walk.

/// What a message of a schema is in memory.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes of its struct.
    pub n_bytes: usize,
    /// Numbers of the fields that may allocate, at most 64, and what they are.
    pub fields: &'static [(u64, Field)],
}

/// A field that may allocate.
#[derive(Clone, Copy, Debug)]
pub enum Field {
    /// A message.
    Message {
        /// Its index in the table.
        shape: usize,
        /// In a vector; else in the struct, or boxed.
        repeated: bool,
    },
    /// Text, or bytes that are copied.
    Text {
        /// In a vector.
        repeated: bool,
    },
    /// A map from text to text.
    Map,
    /// Repeated numbers.
    Numbers {
        /// Of one in memory.
        n_bytes: usize,
        /// Of one on the wire; None: a varint.
        wire: Option<usize>,
    },
}

/// What decoding takes, at most, at any moment: `text_bytes + n_bytes`. The first are part of the message's own bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Messages, texts, numbers of repeated fields and entries of maps.
    pub n_elements: usize,
    /// Of texts, and of bytes that are copied.
    pub text_bytes: usize,
    /// Structs, vectors, maps, and what the allocator takes for each.
    pub n_bytes: usize,
}

/// Above what prost allows (100), so that decoding ends first.
const MAX_DEPTH: usize = 128;
/// What an allocation takes beside its bytes: the allocator's own, and the 8 bytes that a short text is given.
const ALLOCATION: usize = 32;
/// An entry of a `BTreeMap<String, String>`: the first takes a node of 11, and its two texts are allocations.
const MAP_ENTRY: usize = 11 * 2 * size_of::<String>() + 16 + 3 * ALLOCATION;

/// The footprint of a message in `bytes`, of the shape at `root` in the table.
pub fn of(bytes: &[u8], shapes: &[Shape], root: usize) -> Footprint {
    let mut sum = Footprint::default();
    // Where the bytes are broken, decoding has come no further either.
    let _ = sum.message(&mut Reader(bytes), 0, (shapes, root), 0);
    sum
}

impl Footprint {
    /// A message that ends where `n_behind` bytes are left. None: broken.
    fn message(
        &mut self,
        reader: &mut Reader<'_>,
        n_behind: usize,
        (shapes, at): (&[Shape], usize),
        depth: usize,
    ) -> Option<()> {
        let fields = shapes[at].fields;
        let mut seen = 0_u64;
        while reader.0.len() > n_behind {
            let (number, wire) = reader.key()?;
            let found = fields.iter().position(|&(known, _)| known == number);
            let (Some(index), true) = (found, wire == LEN || wire_is_number(wire)) else {
                reader.skip(wire)?;
                continue;
            };
            let field = fields[index].1;
            if wire != LEN {
                reader.skip(wire)?;
                if let Field::Numbers { n_bytes, .. } = field {
                    self.add(1, in_vector(n_bytes));
                }
                continue;
            }
            let len = reader.len()?;
            match field {
                Field::Message { shape, repeated } => {
                    let n_bytes = shapes[shape].n_bytes;
                    self.add(1, ALLOCATION + if repeated { in_vector(n_bytes) } else { n_bytes });
                    if depth == MAX_DEPTH {
                        return None;
                    }
                    let n_behind = reader.0.len() - len;
                    self.message(reader, n_behind, (shapes, shape), depth + 1)?;
                }
                Field::Text { repeated } => {
                    self.add(1, ALLOCATION + if repeated { in_vector(size_of::<String>()) } else { 0 });
                    reader.take(len)?;
                    // A longer one in the same place: the place grows by doubling.
                    let again = !repeated && seen & 1 << index != 0;
                    self.text_bytes += len;
                    self.n_bytes += if again { len } else { 0 };
                }
                Field::Map => {
                    self.add(1, MAP_ENTRY);
                    let n_before = reader.0.len();
                    let ended = reader.skip_until(n_before - len);
                    let n_read = n_before - reader.0.len();
                    self.text_bytes += n_read;
                    // A key or value that comes twice in one entry.
                    self.n_bytes += n_read;
                    ended?;
                }
                Field::Numbers { n_bytes, wire } => {
                    let payload = reader.take(len)?;
                    let (n, is_cut) = match wire {
                        Some(wire) => (len / wire, len % wire != 0),
                        None => {
                            let n_ends = payload.iter().filter(|&&byte| byte < 0x80).count();
                            (n_ends, payload.last().is_some_and(|&byte| byte >= 0x80))
                        }
                    };
                    // One that is cut is completed by what lies behind, and then refused.
                    let n = n + usize::from(is_cut);
                    self.add(n, n.saturating_mul(in_vector(n_bytes)));
                    if is_cut {
                        return None;
                    }
                }
            }
            seen |= 1 << index;
        }
        (reader.0.len() == n_behind).then_some(())
    }

    fn add(&mut self, n_elements: usize, n_bytes: usize) {
        self.n_elements = self.n_elements.saturating_add(n_elements);
        self.n_bytes = self.n_bytes.saturating_add(n_bytes);
    }
}

/// What an element takes in a vector that grows by doubling, old and new side by side: a vector of one has room for four
/// (eight of a byte), large elements excepted.
const fn in_vector(n_bytes: usize) -> usize {
    match n_bytes {
        1 => 8,
        2..=1024 => 4 * n_bytes,
        _ => 3 * n_bytes,
    }
}

const VARINT: u64 = 0;
const I64: u64 = 1;
const LEN: u64 = 2;
const START_GROUP: u64 = 3;
const END_GROUP: u64 = 4;
const I32: u64 = 5;

fn wire_is_number(wire: u64) -> bool {
    matches!(wire, VARINT | I64 | I32)
}

/// What is left to read. Accepts all that prost accepts, and more.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for n in 0..10 {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << (7 * n);
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    /// Field number and wire type.
    fn key(&mut self) -> Option<(u64, u64)> {
        let key = self.varint()?;
        Some((key >> 3, key & 7))
    }

    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    /// A length that there are bytes for.
    fn len(&mut self) -> Option<usize> {
        let len = usize::try_from(self.varint()?).ok()?;
        (len <= self.0.len()).then_some(len)
    }

    /// Behind all fields until `n_behind` bytes are left.
    fn skip_until(&mut self, n_behind: usize) -> Option<()> {
        while self.0.len() > n_behind {
            let (_, wire) = self.key()?;
            self.skip(wire)?;
        }
        (self.0.len() == n_behind).then_some(())
    }

    /// Behind a field that decoding does not look into. A group goes with all in it.
    fn skip(&mut self, wire: u64) -> Option<()> {
        let mut open = 0_usize;
        let mut wire = wire;
        loop {
            match wire {
                VARINT => drop(self.varint()?),
                I64 => drop(self.take(8)?),
                I32 => drop(self.take(4)?),
                LEN => {
                    let len = self.len()?;
                    self.take(len)?;
                }
                START_GROUP => open += 1,
                END_GROUP => open = open.checked_sub(1)?,
                _ => return None,
            }
            if open == 0 {
                return Some(());
            }
            wire = self.key()?.1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1: text, 2: repeated message of this shape, 3: repeated int64, 4: map, 5: repeated float, 6: repeated text.
    const SHAPES: &[Shape] = &[Shape {
        n_bytes: 100,
        fields: &[
            (1, Field::Text { repeated: false }),
            (2, Field::Message { shape: 0, repeated: true }),
            (3, Field::Numbers { n_bytes: 8, wire: None }),
            (4, Field::Map),
            (5, Field::Numbers { n_bytes: 4, wire: Some(4) }),
            (6, Field::Text { repeated: true }),
        ],
    }];

    fn footprint(bytes: &[u8]) -> (usize, usize, usize) {
        let Footprint { n_elements, text_bytes, n_bytes } = of(bytes, SHAPES, 0);
        (n_elements, text_bytes, n_bytes)
    }

    #[test]
    fn each_field_counts_as_what_it_is() {
        for (bytes, expected) in [
            (&[][..], (0, 0, 0)),
            (&[0x0a, 2, b'a', b'b'], (1, 2, 32)),
            (&[0x0a, 1, b'a', 0x0a, 2, b'a', b'b'], (2, 3, 66)),
            (&[0x12, 0, 0x12, 0], (2, 0, 864)),
            (&[0x12, 2, 0x12, 0], (2, 0, 864)),
            (&[0x18, 1, 0x18, 0xff, 1], (2, 0, 64)),
            (&[0x1a, 3, 1, 0xff, 1], (2, 0, 64)),
            (&[0x22, 2, 0x0a, 0], (1, 2, MAP_ENTRY + 2)),
            (&[0x2a, 8, 0, 0, 0, 0, 0, 0, 0, 0], (2, 0, 32)),
            (&[0x32, 0], (1, 0, 128)),
            (&[0x3a, 2, 0x12, 0], (0, 0, 0)),
        ] {
            assert_eq!(footprint(bytes), expected, "{bytes:x?}");
        }
    }

    #[test]
    fn what_is_in_a_group_is_skipped_and_what_follows_is_not() {
        // 7: a group that holds a broken message 2 and a group; then a message.
        let bytes = [0x3b, 0x12, 1, 0xff, 0x43, 0x44, 0x3c, 0x12, 0];
        assert_eq!(footprint(&bytes), (1, 0, 432));
    }

    #[test]
    fn a_broken_message_counts_as_far_as_it_goes() {
        for broken in [&[0x12, 5, 0][..], &[0x80], &[0x3c], &[0x0e], &[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 1]] {
            assert_eq!(footprint(&[&[0x12, 0][..], broken].concat()).0, 1, "{broken:x?}");
        }
    }

    /// The message says two bytes, what is in it more: prost decodes that before it finds the message too long.
    #[test]
    fn what_lies_beyond_its_message_is_decoded_and_counts() {
        for (bytes, expected) in [
            (&[0x12, 2, 0x1a, 3, 1, 1, 1][..], (4, 0, 432 + 3 * 32)),
            (&[0x12, 2, 0x0a, 3, b'a', b'b', b'c'], (2, 3, 432 + 32)),
            (&[0x12, 2, 0x12, 2, 0x12, 0], (3, 0, 3 * 432)),
            (&[0x12, 2, 0x22, 4, 0x0a, 2, b'a', b'b'], (2, 4, 432 + MAP_ENTRY + 4)),
            // A key whose length is beyond the entry's end.
            (&[0x22, 2, 0x0a, 3, b'a', b'b', b'c'], (1, 5, MAP_ENTRY + 5)),
            // A number that is cut, and completed behind.
            (&[0x12, 4, 0x1a, 2, 1, 0x80, 1], (3, 0, 432 + 2 * 32)),
        ] {
            assert_eq!(footprint(bytes), expected, "{bytes:x?}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        let mut bytes = Vec::new();
        for _ in 0..1000 {
            let mut outer = vec![0x12];
            prost::encoding::encode_varint(bytes.len() as u64, &mut outer);
            outer.append(&mut bytes);
            bytes = outer;
        }
        assert_eq!(footprint(&bytes).0, MAX_DEPTH + 1);
    }
}
