//! Attention: softmax(query · keyᵀ · scale + mask) · value, without the matrix of probabilities.
//!
//! Keys are taken in blocks; of the blocks so far, a query has the largest score, and relative to it the sum of weights
//! and the weighted sum of values, rescaled as a larger score comes (Milakov, Gimelshein 2018; Dao 2022).

use super::element::{Element, Real};
use super::heads::{Heads, HeadsMut, Scores, block};
use super::processor::Work;
use super::product::{Factors, pack_columns, pack_row, product};

/// Keys of a block.
const KEYS: usize = 512;
/// Queries whose scores with a block are there at once.
const QUERIES: usize = 48;

/// query: [batch, heads, length, size]; key, value: [batch, key heads, keys, size]; heads are a multiple of key heads, each
/// of which serves as many in a row. output as query, but of value's size; logsumexp: [batch, heads, length, 1].
///
/// A query that sees no key, or none whose score is not -inf, gives zeros, and 0 as logsumexp, as torch's kernel does.
pub(in crate::runtime::ort) struct Forward<'a, E: Element> {
    pub(in crate::runtime::ort) query: Heads<'a, E>,
    pub(in crate::runtime::ort) key: Heads<'a, E>,
    pub(in crate::runtime::ort) value: Heads<'a, E>,
    pub(in crate::runtime::ort) scores: Scores<'a, E::Real>,
    pub(in crate::runtime::ort) output: HeadsMut<'a, E>,
    pub(in crate::runtime::ort) logsumexp: HeadsMut<'a, E::Real>,
}

/// Memory of a task: the queries of a block, of all heads that share a key head.
pub(in crate::runtime::ort) struct Scratch<T> {
    queries: Vec<T>,
    /// Of the block of keys: panels of keyᵀ and of value.
    keys: Vec<T>,
    values: Vec<T>,
    /// Some rows, widened.
    rows: Vec<T>,
    /// Products, then scores, then weights.
    weights: Vec<T>,
    sums: Vec<T>,
    largest: Vec<T>,
    totals: Vec<T>,
}

/// A task's place.
struct Place {
    batch: usize,
    key_head: usize,
    /// Queries from here to there.
    from: usize,
    to: usize,
}

impl<E: Element> Forward<'_, E> {
    fn n_sharing(&self) -> usize {
        self.query.dims()[1] / self.key.dims()[1]
    }

    /// Columns of the weighted sums, whole panels.
    fn columns(&self) -> usize {
        self.value.dims()[3].next_multiple_of(E::Real::LANES)
    }

    fn place(&self, task: usize) -> Place {
        let ([_, _, length, _], [_, key_heads, ..]) = (self.query.dims(), self.key.dims());
        let n_blocks = length.div_ceil(block(length));
        // Those with the most keys first, that no thread is left with them.
        let (from, head) = ((n_blocks - 1 - task % n_blocks) * block(length), task / n_blocks);
        let to = (from + block(length)).min(length);
        Place { batch: head / key_heads, key_head: head % key_heads, from, to }
    }
}

impl<E: Element> Work for Forward<'_, E> {
    type Scratch = Scratch<E::Real>;

    fn n_tasks(&self) -> usize {
        let ([_, _, length, _], [batch, key_heads, ..]) = (self.query.dims(), self.key.dims());
        batch * key_heads * length.div_ceil(block(length))
    }

    fn scratch(&self) -> Self::Scratch {
        let ([_, _, length, size], [_, _, n_keys, _]) = (self.query.dims(), self.key.dims());
        let n_rows = self.n_sharing() * length.min(block(length));
        let n_keys = n_keys.min(KEYS).next_multiple_of(E::Real::LANES);
        let zeros = |n: usize| vec![E::Real::ZERO; n];
        Scratch {
            queries: zeros(n_rows * size),
            keys: zeros(n_keys * size),
            values: zeros(n_keys * self.columns()),
            rows: zeros(E::Real::LANES * size.max(self.columns())),
            weights: zeros(n_rows.min(QUERIES) * n_keys),
            sums: zeros(n_rows * self.columns()),
            largest: zeros(n_rows),
            totals: zeros(n_rows),
        }
    }

    #[inline(always)]
    fn task<const FMA: bool>(&self, task: usize, scratch: &mut Self::Scratch) {
        let (place, [_, _, n_keys, _]) = (self.place(task), self.key.dims());
        let n_rows = self.n_sharing() * (place.to - place.from);
        scratch.sums[..n_rows * self.columns()].fill(E::Real::ZERO);
        scratch.largest[..n_rows].fill(E::Real::NEG_INFINITY);
        scratch.totals[..n_rows].fill(E::Real::ZERO);
        self.widen_queries(&place, scratch);
        let seen = if self.scores.is_causal { n_keys.min(place.to) } else { n_keys };
        for first in (0..seen).step_by(KEYS) {
            let n_keys = (seen - first).min(KEYS);
            let finite = self.pack(&place, first, n_keys, scratch);
            for row in (0..n_rows).step_by(QUERIES) {
                let rows = row..(row + QUERIES).min(n_rows);
                self.add_keys::<FMA>(&place, rows, first..first + n_keys, finite, scratch);
            }
        }
        self.write(&place, scratch);
    }
}

impl<E: Element> Forward<'_, E> {
    /// Head and query of a row of the scratch.
    #[inline(always)]
    fn of_row(&self, place: &Place, row: usize) -> (usize, usize) {
        let n_queries = place.to - place.from;
        (place.key_head * self.n_sharing() + row / n_queries, place.from + row % n_queries)
    }

    #[inline(always)]
    fn widen_queries(&self, place: &Place, scratch: &mut Scratch<E::Real>) {
        let [_, _, _, size] = self.query.dims();
        for row in 0..self.n_sharing() * (place.to - place.from) {
            let (head, query) = self.of_row(place, row);
            E::widen(self.query.row(place.batch, head, query), &mut scratch.queries[row * size..][..size]);
        }
    }

    /// Keys and values into panels; whether all values are finite.
    #[inline(always)]
    fn pack(&self, place: &Place, first: usize, n_keys: usize, scratch: &mut Scratch<E::Real>) -> bool {
        let ([_, _, _, size], [_, _, _, value_size]) = (self.key.dims(), self.value.dims());
        let Scratch { keys, values, rows, .. } = scratch;
        let mut finite = true;
        for at in (0..n_keys).step_by(E::Real::LANES) {
            let n = (n_keys - at).min(E::Real::LANES);
            for (lane, row) in rows.chunks_exact_mut(size.max(1)).take(n).enumerate() {
                E::widen(self.key.row(place.batch, place.key_head, first + at + lane), row);
            }
            pack_columns(&rows[..n * size], at, size, keys);
            for lane in 0..n {
                let row = &mut rows[..value_size];
                E::widen(self.value.row(place.batch, place.key_head, first + at + lane), row);
                finite &= row.iter().fold(true, |finite, value| finite & value.is_finite());
                pack_row(row, at + lane, n_keys, values);
            }
        }
        finite
    }

    /// A block of keys, for some rows of the scratch. finite: its values are.
    #[inline(always)]
    fn add_keys<const FMA: bool>(
        &self,
        place: &Place,
        rows: std::ops::Range<usize>,
        keys: std::ops::Range<usize>,
        finite: bool,
        scratch: &mut Scratch<E::Real>,
    ) {
        let ([_, _, _, size], lanes, columns) = (self.query.dims(), E::Real::LANES, self.columns());
        let n_keys = keys.len();
        // What no row sees is left out, but for what is not finite.
        let n_seen = if self.scores.is_causal && finite {
            let last = rows.clone().map(|row| self.of_row(place, row).1).max().unwrap_or(0);
            (last + 1).saturating_sub(keys.start).min(n_keys)
        } else {
            n_keys
        };
        if n_seen == 0 {
            return;
        }
        let (n_panels, stride) = (n_seen.div_ceil(lanes), n_keys.next_multiple_of(lanes));
        let products = Factors {
            left: &scratch.queries[rows.start * size..],
            steps: [size, 1],
            n_rows: rows.len(),
            depth: size,
            panels: &scratch.keys,
            n_panels,
            panel: size * lanes,
        };
        product::<E::Real, FMA>(&products, &mut scratch.weights, stride, false);
        for (weights, row) in scratch.weights.chunks_exact_mut(stride).zip(rows.clone()) {
            let (head, query) = self.of_row(place, row);
            let weights = &mut weights[..n_seen];
            let seen = self.scores.of([place.batch, head, query, keys.start], weights);
            let (weights, unseen) = weights.split_at_mut(seen);
            unseen.fill(E::Real::ZERO);
            let before = scratch.largest[row];
            let largest = largest_of(weights, before);
            let total = exponentials::<E::Real, FMA>(weights, shift(largest));
            let factor = (before - shift(largest)).exponential::<FMA>();
            scratch.largest[row] = largest;
            scratch.totals[row] = scratch.totals[row].times_plus::<FMA>(factor, total);
            if before < largest {
                let sums = &mut scratch.sums[row * columns..][..columns];
                sums.iter_mut().for_each(|sum| *sum = *sum * factor);
            }
        }
        let weighted = Factors {
            left: &scratch.weights,
            steps: [stride, 1],
            n_rows: rows.len(),
            depth: n_seen,
            panels: &scratch.values,
            n_panels: columns / lanes,
            panel: n_keys * lanes,
        };
        product::<E::Real, FMA>(&weighted, &mut scratch.sums[rows.start * columns..], columns, true);
    }

    #[inline(always)]
    fn write(&self, place: &Place, scratch: &mut Scratch<E::Real>) {
        let (size, columns) = (self.value.dims()[3], self.columns());
        for row in 0..self.n_sharing() * (place.to - place.from) {
            let (head, query) = self.of_row(place, row);
            let total = scratch.totals[row];
            let total = if total == E::Real::ZERO { E::Real::ONE } else { total };
            let sums = &mut scratch.sums[row * columns..][..size];
            sums.iter_mut().for_each(|sum| *sum = *sum / total);
            let logsumexp = [shift(scratch.largest[row]) + total.logarithm()];
            // SAFETY: tasks are of other batches, heads or queries.
            unsafe {
                self.output.write(place.batch, head, query, sums);
                self.logsumexp.write(place.batch, head, query, &logsumexp);
            }
        }
    }
}

/// What is taken off scores: their largest, but of scores that are all -inf nothing.
#[inline(always)]
fn shift<T: Real>(largest: T) -> T {
    if largest == T::NEG_INFINITY { T::ZERO } else { largest }
}

/// The larger of `least` and the largest score; NaN aside.
#[inline(always)]
fn largest_of<T: Real>(scores: &[T], least: T) -> T {
    let larger = |a: T, b: T| if b > a { b } else { a };
    let mut lanes = [least; 32];
    let (blocks, rest) = scores.as_chunks::<32>();
    for block in blocks {
        for (lane, &score) in lanes.iter_mut().zip(block) {
            *lane = larger(*lane, score);
        }
    }
    rest.iter().chain(&lanes).fold(least, |largest, &score| larger(largest, score))
}

/// Each to e to the power of it less `shift`; their sum.
#[inline(always)]
fn exponentials<T: Real, const FMA: bool>(scores: &mut [T], shift: T) -> T {
    let mut lanes = [T::ZERO; 32];
    let (blocks, rest) = scores.as_chunks_mut::<32>();
    for block in blocks {
        for (lane, score) in lanes.iter_mut().zip(block) {
            *score = (*score - shift).exponential::<FMA>();
            *lane = *lane + *score;
        }
    }
    for (lane, score) in lanes.iter_mut().zip(rest) {
        *score = (*score - shift).exponential::<FMA>();
        *lane = *lane + *score;
    }
    lanes.iter().fold(T::ZERO, |sum, &lane| sum + lane)
}
