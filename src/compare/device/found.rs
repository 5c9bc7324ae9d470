//! What kernels.cu writes, as what the rest of the room works with.

use crate::compare::stats::{ABOVE, Outside, Required, Stats};

/// Words that one thread leaves, in their order.
pub(super) trait Found: Default {
    /// How many.
    const WORDS: usize;

    /// What a thread found.
    fn of(words: &mut Words<'_>) -> Self;

    /// Adds what another thread found.
    fn merge(&mut self, other: &Self);
}

/// The words of one of `n_threads` threads.
pub(super) struct Words<'a> {
    bytes: &'a [u8],
    n_threads: usize,
    at: usize,
}

impl<'a> Words<'a> {
    /// What all threads found, merged. bytes: word by word, of each all threads'.
    pub fn merged<F: Found>(bytes: &'a [u8]) -> F {
        let n_threads = bytes.len() / (F::WORDS * size_of::<u64>());
        let found = |thread| F::of(&mut Words { bytes, n_threads, at: thread });
        (0..n_threads).map(found).fold(F::default(), |mut merged, found| {
            merged.merge(&found);
            merged
        })
    }

    fn int(&mut self) -> u64 {
        let from = self.at * size_of::<u64>();
        self.at += self.n_threads;
        u64::from_le_bytes(self.bytes[from..from + size_of::<u64>()].try_into().expect("a word has 8 bytes"))
    }

    fn float(&mut self) -> f64 {
        f64::from_bits(self.int())
    }

    fn ints<const N: usize>(&mut self) -> [u64; N] {
        std::array::from_fn(|_| self.int())
    }

    /// An index, or none.
    fn place(&mut self) -> Option<u64> {
        Some(self.int()).filter(|&index| index != u64::MAX)
    }
}

/// [`Stats`], and the references that are not zero.
#[derive(Default)]
pub(super) struct DeviceStats {
    pub stats: Stats,
    pub not_zero: u64,
}

impl Found for DeviceStats {
    const WORDS: usize = 10 + 2 * ABOVE.len() + 6 + 3 + 1 + 4;

    fn of(words: &mut Words<'_>) -> Self {
        let [measured, nan_disagreements, inf_disagreements, both_nan] = words.ints();
        let not_finite = words.ints();
        let [flushed, not_zero] = words.ints();
        let (above, filled_above) = (words.ints(), words.ints());
        let [sum_abs, sum_squares, sum_reference, sum_candidate, sum_product, filled_sum] =
            std::array::from_fn(|_| words.float());
        let [max_rel, max_reference, filled_max_rel] = std::array::from_fn(|_| words.float());
        let max_ulp = words.int();
        let [max_abs, filled_max_abs] = std::array::from_fn(|_| words.float());
        let [argmax_abs, filled_argmax] = std::array::from_fn(|_| words.place());
        let stats = Stats {
            measured,
            max_abs,
            argmax_abs,
            max_rel,
            max_reference,
            max_ulp,
            sum_abs,
            sum_squares,
            sum_reference,
            sum_candidate,
            sum_product,
            above,
            nan_disagreements,
            inf_disagreements,
            both_nan,
            not_finite,
            flushed,
            filled_max_abs,
            filled_argmax,
            filled_max_rel,
            filled_sum,
            filled_above,
        };
        Self { stats, not_zero }
    }

    fn merge(&mut self, other: &Self) {
        self.stats.merge(&other.stats);
        self.not_zero += other.not_zero;
    }
}

impl Found for Outside {
    const WORDS: usize = 6;

    fn of(words: &mut Words<'_>) -> Self {
        let count = words.int();
        let required = Required { atol: words.float(), rtol: words.float() };
        let (worst_excess, worst) = (words.float(), words.place());
        Self { count, first: words.place(), worst, worst_excess, required }
    }

    fn merge(&mut self, other: &Self) {
        Outside::merge(self, other);
    }
}
