//! What a target is.

use std::fmt::Display;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::mutate::Draws;

/// A function of bytes. It panics where an invariant does not hold.
pub type Read = Box<dyn FnMut(&[u8]) -> Reached>;

/// Something that reads bytes of others.
pub struct Target {
    /// Also of its folder in the corpus.
    pub name: &'static str,
    /// Inputs that are accepted, by file name.
    pub seeds: fn() -> Vec<(String, Vec<u8>)>,
    /// Makes what one run over many inputs keeps, and returns the function of them.
    pub open: fn() -> Read,
    /// Another input, of one and a part of a second.
    pub mutate: fn(&mut Draws, &[u8], &[u8]) -> Vec<u8>,
    /// The most bytes that an input of so many may take in this process while it is read.
    pub most_bytes: fn(usize) -> usize,
}

/// How far an input came. Inputs that reach something new are mutated further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reached {
    /// Whether it was taken for what it claims to be.
    pub accepted: bool,
    place: u64,
}

impl Reached {
    /// It was read; `what` tells one kind from another.
    pub fn accepted(what: impl Display) -> Self {
        Self { accepted: true, place: place(&what.to_string()) }
    }

    /// It was refused.
    pub fn refused(why: impl Display) -> Self {
        Self { accepted: false, place: place(&why.to_string()) }
    }
}

/// Of a text's words: numbers and what is quoted are the input's own.
fn place(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (at, piece) in text.split(['"', '`']).enumerate().step_by(2) {
        at.hash(&mut hasher);
        piece.chars().filter(|c| c.is_ascii_alphabetic()).for_each(|c| c.hash(&mut hasher));
    }
    hasher.finish()
}

/// The name and the content of an input whose first line names a file.
pub fn named(input: &[u8]) -> Option<(&str, &[u8])> {
    let end = input.iter().position(|&byte| byte == b'\n')?;
    Some((std::str::from_utf8(&input[..end]).ok()?, &input[end + 1..]))
}
