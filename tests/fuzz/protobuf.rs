//! Other messages of given ones: a field somewhere inside changes, and the lengths around it still hold.

use crate::mutate::{self, Draws};

/// A field as it stands in a message: its key, and the bytes behind that.
struct Field<'a> {
    number: u64,
    value: Value<'a>,
}

enum Value<'a> {
    Varint(u64),
    /// Of 4 or 8 bytes.
    Fixed(&'a [u8]),
    Len(&'a [u8]),
}

/// A message with one field changed, at any depth. Bytes that are no message are changed as bytes.
pub fn message(draws: &mut Draws, input: &[u8], other: &[u8]) -> Vec<u8> {
    let Some(mut fields) = fields(input).filter(|fields| !fields.is_empty()) else {
        return mutate::bytes(draws, input, other);
    };
    let at = draws.below(fields.len());
    let mut changed = Vec::new();
    match draws.below(12) {
        0 => drop(fields.remove(at)),
        1 => {
            let to = draws.below(fields.len());
            fields.swap(at, to);
        }
        2 => fields[at].number = draws.edge() >> 3 & 0x1f,
        3 => {
            let most = draws.pick([3, 40]);
            for _ in 0..draws.below(most) {
                put(&fields[at], &mut changed);
            }
        }
        4 => changed = self::fields(other).map(|theirs| all(&theirs)).unwrap_or_default(),
        _ => {}
    }
    let Some(field) = fields.get_mut(at) else { return all(&fields) };
    let number = draws.edge();
    let inside = match field.value {
        Value::Len(bytes) => message(draws, bytes, other),
        _ => Vec::new(),
    };
    let fixed = number.to_le_bytes();
    field.value = match field.value {
        Value::Varint(_) => Value::Varint(number),
        Value::Fixed(bytes) => Value::Fixed(&fixed[..bytes.len()]),
        Value::Len(_) => Value::Len(&inside),
    };
    [all(&fields), changed].concat()
}

fn all(fields: &[Field<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    fields.iter().for_each(|field| put(field, &mut out));
    out
}

fn put(field: &Field<'_>, out: &mut Vec<u8>) {
    match field.value {
        Value::Varint(value) => {
            put_varint(field.number << 3, out);
            put_varint(value, out);
        }
        Value::Fixed(bytes) => {
            put_varint(field.number << 3 | if bytes.len() == 8 { 1 } else { 5 }, out);
            out.extend(bytes);
        }
        Value::Len(bytes) => {
            put_varint(field.number << 3 | 2, out);
            put_varint(bytes.len() as u64, out);
            out.extend(bytes);
        }
    }
}

fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// None where the bytes are no message.
fn fields(mut bytes: &[u8]) -> Option<Vec<Field<'_>>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let value = match key & 7 {
            0 => Value::Varint(varint(&mut bytes)?),
            1 => Value::Fixed(split(&mut bytes, 8)?),
            2 => {
                let len = varint(&mut bytes)?;
                Value::Len(split(&mut bytes, usize::try_from(len).ok()?)?)
            }
            5 => Value::Fixed(split(&mut bytes, 4)?),
            _ => return None,
        };
        fields.push(Field { number: key >> 3, value });
    }
    fields.iter().all(|field| field.number > 0).then_some(fields)
}

fn split<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (head, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(head)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}
