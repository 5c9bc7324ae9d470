//! The gradients of attention, its probabilities computed anew from the scores and their logsumexp.
//!
//! With P the probabilities and D the sums over each row of grad_output · output:
//! grad_value = Pᵀ · grad_output, grad_scores = P ∘ (grad_output · valueᵀ − D), grad_query = grad_scores · key · scale,
//! grad_key = grad_scoresᵀ · query · scale.

use super::element::{Element, Real};
use super::heads::{Heads, HeadsMut, Scores, block};
use super::processor::Work;
use super::product::{Factors, pack_columns, pack_row, product};

/// Keys of a block.
const KEYS: usize = 256;
/// Queries whose probabilities for a block are there at once.
const QUERIES: usize = 64;

/// As of [`super::Forward`]; gradients as what they are of. All that one key head has a part in is one task, so that sums
/// are always in the same order.
pub(in crate::runtime::ort) struct Backward<'a, E: Element> {
    pub(in crate::runtime::ort) grad_output: Heads<'a, E>,
    pub(in crate::runtime::ort) query: Heads<'a, E>,
    pub(in crate::runtime::ort) key: Heads<'a, E>,
    pub(in crate::runtime::ort) value: Heads<'a, E>,
    pub(in crate::runtime::ort) output: Heads<'a, E>,
    pub(in crate::runtime::ort) logsumexp: Heads<'a, E::Real>,
    pub(in crate::runtime::ort) scores: Scores<'a, E::Real>,
    pub(in crate::runtime::ort) grad_query: HeadsMut<'a, E>,
    pub(in crate::runtime::ort) grad_key: HeadsMut<'a, E>,
    pub(in crate::runtime::ort) grad_value: HeadsMut<'a, E>,
}

/// Some rows of a head: as they are, and in panels of a matrix with these rows.
struct Rows<T> {
    plain: Vec<T>,
    panels: Vec<T>,
}

pub(in crate::runtime::ort) struct Scratch<T> {
    /// Of the block of keys: panels of keyᵀ, key and valueᵀ, and the gradients so far.
    keys_across: Vec<T>,
    keys: Vec<T>,
    values_across: Vec<T>,
    grad_key: Vec<T>,
    grad_value: Vec<T>,
    queries: Rows<T>,
    grad_outputs: Rows<T>,
    probabilities: Vec<T>,
    grad_scores: Vec<T>,
    /// Of all queries of all heads that share the key head.
    grad_query: Vec<T>,
    sums: Vec<T>,
    /// Some rows, widened.
    rows: Vec<T>,
}

/// Some keys of a task.
struct Keys {
    first: usize,
    n: usize,
}

/// Some queries of one head.
struct Queries {
    batch: usize,
    head: usize,
    /// Among those that share the key head.
    sharing: usize,
    from: usize,
    n: usize,
}

impl<E: Element> Backward<'_, E> {
    fn n_sharing(&self) -> usize {
        self.query.dims()[1] / self.key.dims()[1]
    }

    /// Sizes of a query and of a value, in whole panels.
    fn columns(&self) -> [usize; 2] {
        [self.query, self.value].map(|heads| heads.dims()[3].next_multiple_of(E::Real::LANES))
    }
}

impl<E: Element> Work for Backward<'_, E> {
    type Scratch = Scratch<E::Real>;

    fn n_tasks(&self) -> usize {
        let [batch, key_heads, ..] = self.key.dims();
        batch * key_heads
    }

    fn scratch(&self) -> Self::Scratch {
        let ([_, _, length, size], [_, _, n_keys, _]) = (self.query.dims(), self.key.dims());
        let ([columns, value_columns], value_size) = (self.columns(), self.value.dims()[3]);
        let (n_keys, n_queries) = (n_keys.min(KEYS).next_multiple_of(E::Real::LANES), length.min(QUERIES));
        let zeros = |n: usize| vec![E::Real::ZERO; n];
        let rows = |size, columns| Rows { plain: zeros(n_queries * size), panels: zeros(n_queries * columns) };
        Scratch {
            keys_across: zeros(n_keys * size),
            keys: zeros(n_keys * columns),
            values_across: zeros(n_keys * value_size),
            grad_key: zeros(n_keys * columns),
            grad_value: zeros(n_keys * value_columns),
            queries: rows(size, columns),
            grad_outputs: rows(value_size, value_columns),
            probabilities: zeros(n_queries * n_keys),
            grad_scores: zeros(n_queries * n_keys),
            grad_query: zeros(self.n_sharing() * length * columns),
            sums: zeros(self.n_sharing() * length),
            rows: zeros(E::Real::LANES * size.max(value_size)),
        }
    }

    #[inline(always)]
    fn task<const FMA: bool>(&self, task: usize, scratch: &mut Self::Scratch) {
        let ([_, _, length, size], [_, key_heads, n_keys, _]) = (self.query.dims(), self.key.dims());
        let ([columns, _], n_sharing) = (self.columns(), self.n_sharing());
        let (batch, key_head) = (task / key_heads, task % key_heads);
        let heads = key_head * n_sharing..(key_head + 1) * n_sharing;
        // None goes over the end of a block of torch's kernel.
        let step = QUERIES.min(block(length));
        scratch.grad_query.fill(E::Real::ZERO);
        let finite = self.sums::<FMA>(batch, key_head, scratch);
        for first in (0..n_keys).step_by(KEYS) {
            let keys = Keys { first, n: (n_keys - first).min(KEYS) };
            self.pack(batch, key_head, &keys, scratch);
            for (sharing, head) in heads.clone().enumerate() {
                for from in (0..length).step_by(step) {
                    let n = (length - from).min(step);
                    let queries = Queries { batch, head, sharing, from, n };
                    self.add::<FMA>(&keys, &queries, finite, scratch);
                }
            }
            self.write_keys(batch, key_head, &keys, scratch);
        }
        for (sharing, head) in heads.enumerate() {
            for at in 0..length {
                let row = &scratch.grad_query[(sharing * length + at) * columns..][..size];
                // SAFETY: tasks are of other batches or heads.
                unsafe { self.grad_query.write(batch, head, at, row) };
            }
        }
    }
}

impl<E: Element> Backward<'_, E> {
    /// The sums of grad_output · output of the rows; whether all that the task reads is finite, as far as it counts.
    #[inline(always)]
    fn sums<const FMA: bool>(&self, batch: usize, key_head: usize, scratch: &mut Scratch<E::Real>) -> bool {
        let ([_, _, length, size], [_, _, _, value_size]) = (self.query.dims(), self.value.dims());
        let (counts, mut finite) = (self.scores.is_causal, true);
        for sharing in 0..self.n_sharing() {
            let head = key_head * self.n_sharing() + sharing;
            for at in 0..length {
                let (grads, outputs) = scratch.rows[..2 * value_size].split_at_mut(value_size);
                E::widen(self.grad_output.row(batch, head, at), grads);
                E::widen(self.output.row(batch, head, at), outputs);
                scratch.sums[sharing * length + at] = dot::<E::Real, FMA>(grads, outputs);
                if counts {
                    finite &= all_finite(grads);
                    E::widen(self.query.row(batch, head, at), &mut scratch.rows[..size]);
                    finite &= all_finite(&scratch.rows[..size]);
                }
            }
        }
        for at in 0..if counts { self.key.dims()[2] } else { 0 } {
            for heads in [&self.key, &self.value] {
                let row = &mut scratch.rows[..heads.dims()[3]];
                E::widen(heads.row(batch, key_head, at), row);
                finite &= all_finite(row);
            }
        }
        finite
    }

    #[inline(always)]
    fn pack(&self, batch: usize, key_head: usize, keys: &Keys, scratch: &mut Scratch<E::Real>) {
        let ([_, _, _, size], [_, _, _, value_size]) = (self.key.dims(), self.value.dims());
        let [columns, value_columns] = self.columns();
        scratch.grad_key[..keys.n * columns].fill(E::Real::ZERO);
        scratch.grad_value[..keys.n * value_columns].fill(E::Real::ZERO);
        for at in (0..keys.n).step_by(E::Real::LANES) {
            let n = (keys.n - at).min(E::Real::LANES);
            for (lane, row) in scratch.rows.chunks_exact_mut(size.max(1)).take(n).enumerate() {
                E::widen(self.key.row(batch, key_head, keys.first + at + lane), row);
                pack_row(row, at + lane, keys.n, &mut scratch.keys);
            }
            pack_columns(&scratch.rows[..n * size], at, size, &mut scratch.keys_across);
            for (lane, row) in scratch.rows.chunks_exact_mut(value_size.max(1)).take(n).enumerate() {
                E::widen(self.value.row(batch, key_head, keys.first + at + lane), row);
            }
            pack_columns(&scratch.rows[..n * value_size], at, value_size, &mut scratch.values_across);
        }
    }

    /// What some queries have to do with a block of keys.
    #[inline(always)]
    fn add<const FMA: bool>(&self, keys: &Keys, queries: &Queries, finite: bool, scratch: &mut Scratch<E::Real>) {
        let ([_, _, length, size], value_size) = (self.query.dims(), self.value.dims()[3]);
        let (lanes, [columns, value_columns]) = (E::Real::LANES, self.columns());
        let Queries { batch, head, sharing, from, n } = *queries;
        let n_seen = self.n_seen(keys, from + n, finite);
        if n_seen == 0 {
            return;
        }
        take::<E>(&self.query, queries, &mut scratch.queries);
        take::<E>(&self.grad_output, queries, &mut scratch.grad_outputs);
        let (n_panels, stride) = (n_seen.div_ceil(lanes), keys.n.next_multiple_of(lanes));
        let scores = Factors {
            left: &scratch.queries.plain,
            steps: [size, 1],
            n_rows: n,
            depth: size,
            panels: &scratch.keys_across,
            n_panels,
            panel: size * lanes,
        };
        product::<E::Real, FMA>(&scores, &mut scratch.probabilities, stride, false);
        let of_values = Factors {
            left: &scratch.grad_outputs.plain,
            steps: [value_size, 1],
            depth: value_size,
            panels: &scratch.values_across,
            panel: value_size * lanes,
            ..scores
        };
        product::<E::Real, FMA>(&of_values, &mut scratch.grad_scores, stride, false);
        let rows = scratch.probabilities.chunks_exact_mut(stride).zip(scratch.grad_scores.chunks_exact_mut(stride));
        for (at, (probabilities, grad_scores)) in (from..from + n).zip(rows) {
            let [logsumexp] = *self.logsumexp.row(batch, head, at) else { return };
            let seen = self.scores.of([batch, head, at, keys.first], &mut probabilities[..n_seen]);
            let sum = scratch.sums[sharing * length + at];
            probabilities[seen..n_seen].fill(E::Real::ZERO);
            for probability in &mut probabilities[..seen] {
                *probability = (*probability - logsumexp).exponential::<FMA>();
            }
            for (grad, &probability) in grad_scores[..n_seen].iter_mut().zip(&probabilities[..n_seen]) {
                *grad = probability * (*grad - sum) * self.scores.scale;
            }
        }
        let of_value = Factors {
            left: &scratch.probabilities,
            steps: [1, stride],
            n_rows: n_seen,
            depth: n,
            panels: &scratch.grad_outputs.panels,
            n_panels: value_columns / lanes,
            panel: n * lanes,
        };
        product::<E::Real, FMA>(&of_value, &mut scratch.grad_value, value_columns, true);
        let of_key = Factors {
            left: &scratch.grad_scores,
            panels: &scratch.queries.panels,
            n_panels: columns / lanes,
            ..of_value
        };
        product::<E::Real, FMA>(&of_key, &mut scratch.grad_key, columns, true);
        let of_query = Factors {
            left: &scratch.grad_scores,
            steps: [stride, 1],
            n_rows: n,
            depth: n_seen,
            panels: &scratch.keys,
            n_panels: columns / lanes,
            panel: keys.n * lanes,
        };
        let grad_query = &mut scratch.grad_query[(sharing * length + from) * columns..];
        product::<E::Real, FMA>(&of_query, grad_query, columns, true);
    }

    /// Keys of the block that go into a product with the queries before `to`.
    #[inline(always)]
    fn n_seen(&self, keys: &Keys, to: usize, finite: bool) -> usize {
        let length = self.query.dims()[2];
        match (self.scores.is_causal, finite) {
            (false, _) => keys.n,
            (true, true) => to.saturating_sub(keys.first).min(keys.n),
            (true, false) => to.next_multiple_of(block(length)).saturating_sub(keys.first).min(keys.n),
        }
    }

    #[inline(always)]
    fn write_keys(&self, batch: usize, key_head: usize, keys: &Keys, scratch: &Scratch<E::Real>) {
        let [columns, value_columns] = self.columns();
        for at in 0..keys.n {
            let of_key = &scratch.grad_key[at * columns..][..self.key.dims()[3]];
            let of_value = &scratch.grad_value[at * value_columns..][..self.value.dims()[3]];
            // SAFETY: tasks are of other batches or heads.
            unsafe {
                self.grad_key.write(batch, key_head, keys.first + at, of_key);
                self.grad_value.write(batch, key_head, keys.first + at, of_value);
            }
        }
    }
}

#[inline(always)]
fn take<E: Element>(heads: &Heads<'_, E>, queries: &Queries, rows: &mut Rows<E::Real>) {
    let size = heads.dims()[3];
    for at in 0..queries.n {
        let row = &mut rows.plain[at * size..][..size];
        E::widen(heads.row(queries.batch, queries.head, queries.from + at), row);
        pack_row(row, at, queries.n, &mut rows.panels);
    }
}

#[inline(always)]
fn all_finite<T: Real>(row: &[T]) -> bool {
    row.iter().fold(true, |finite, element| finite & element.is_finite())
}

/// In the order of [`product`]: where one key has all the weight, its product with the gradient is this sum to the bit, and
/// their difference 0.
#[inline(always)]
fn dot<T: Real, const FMA: bool>(left: &[T], right: &[T]) -> T {
    left.iter().zip(right).fold(T::ZERO, |sum, (&left, &right)| left.times_plus::<FMA>(right, sum))
}
