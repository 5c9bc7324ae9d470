//! Other bytes of given ones.

/// Numbers that a seed decides.
pub struct Draws(u64);

impl Draws {
    /// The same numbers for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Splitmix64.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// One of 0 to n − 1; 0 of none.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// One of several.
    pub fn pick<T: Copy, const N: usize>(&mut self, list: [T; N]) -> T {
        list[self.below(N)]
    }

    /// A number at an edge of some type, or near one.
    pub fn edge(&mut self) -> u64 {
        let near = (self.below(5) as u64).wrapping_sub(2);
        let bits = self.pick([0, 1, 7, 8, 15, 16, 31, 32, 33, 40, 62, 63]);
        match self.below(4) {
            0 => self.next() >> self.below(64),
            1 => near,
            2 => u64::MAX.wrapping_add(near),
            _ => (1_u64 << bits).wrapping_add(near),
        }
    }
}

/// Texts that a reader of JSON may stumble over.
const TOKENS: [&str; 16] = [
    "null",
    "[]",
    "{}",
    "[[[[[[[[",
    "-1",
    "1e999",
    "1e-999",
    "18446744073709551616",
    "\"\"",
    "\"\\ud800\"",
    "..",
    "/",
    "\0",
    "true",
    ",",
    "\\",
];

/// One to six edits: bits, bytes, numbers at edges, pieces that go, come twice, move, or are the other's.
pub fn bytes(draws: &mut Draws, input: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=draws.below(6) {
        edit(draws, &mut bytes, other);
    }
    bytes
}

fn edit(draws: &mut Draws, bytes: &mut Vec<u8>, other: &[u8]) {
    let at = draws.below(bytes.len() + 1);
    // Where in what is longer than it pieces stay short.
    let most = draws.pick([4, 16, 256]);
    let len = draws.below(most).min(bytes.len() - at);
    match draws.below(10) {
        0 | 1 if at < bytes.len() => bytes[at] ^= 1 << draws.below(8),
        2 if at < bytes.len() => bytes[at] = draws.next() as u8,
        3 | 4 => {
            let (number, width) = (draws.edge().to_le_bytes(), draws.pick([1, 2, 4, 8]));
            let width = width.min(bytes.len() - at);
            bytes[at..at + width].copy_from_slice(&number[..width]);
        }
        5 => drop(bytes.drain(at..at + len)),
        6 => {
            let piece = bytes[at..at + len].to_vec();
            let to = draws.below(bytes.len() + 1);
            drop(bytes.splice(to..to, piece));
        }
        7 => {
            let from = draws.below(other.len() + 1);
            let piece = &other[from..(from + draws.below(64)).min(other.len())];
            drop(bytes.splice(at..at + len, piece.iter().copied()));
        }
        8 => drop(bytes.splice(at..at + len, draws.pick(TOKENS).bytes())),
        _ if draws.below(8) == 0 => bytes.truncate(at),
        _ => {}
    }
}
