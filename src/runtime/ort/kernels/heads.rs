//! The tensors of attention: rows of heads, wherever they are in memory.

use std::marker::PhantomData;

use super::element::{Element, Real};

/// [batch, heads, length, size]; rows are whole in memory.
#[derive(Clone, Copy)]
pub(in crate::runtime::ort) struct Heads<'a, E> {
    elements: &'a [E],
    layout: Layout,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Layout {
    batch: usize,
    heads: usize,
    length: usize,
    size: usize,
    is_by_row: bool,
}

impl Layout {
    /// is_by_row: in memory it is [batch, length, heads, size].
    fn of([batch, heads, length, size]: [usize; 4], is_by_row: bool) -> Self {
        Self { batch, heads, length, size, is_by_row }
    }

    fn n_elements(&self) -> usize {
        self.batch * self.heads * self.length * self.size
    }

    #[inline(always)]
    fn start(&self, batch: usize, head: usize, at: usize) -> usize {
        assert!(batch < self.batch && head < self.heads && at < self.length);
        let row = match self.is_by_row {
            true => (batch * self.length + at) * self.heads + head,
            false => (batch * self.heads + head) * self.length + at,
        };
        row * self.size
    }
}

impl<'a, E: Element> Heads<'a, E> {
    /// dims: [batch, heads, length, size]. is_by_row: in memory it is [batch, length, heads, size]. None where there are
    /// not as many elements.
    pub(in crate::runtime::ort) fn new(elements: &'a [E], dims: [usize; 4], is_by_row: bool) -> Option<Self> {
        let layout = Layout::of(dims, is_by_row);
        (elements.len() == layout.n_elements()).then_some(Self { elements, layout })
    }

    pub(super) fn dims(&self) -> [usize; 4] {
        [self.layout.batch, self.layout.heads, self.layout.length, self.layout.size]
    }

    #[inline(always)]
    pub(super) fn row(&self, batch: usize, head: usize, at: usize) -> &'a [E] {
        &self.elements[self.layout.start(batch, head, at)..][..self.layout.size]
    }
}

/// [batch, heads, length, size] that tasks write, each its own rows.
pub(in crate::runtime::ort) struct HeadsMut<'a, E> {
    start: *mut E,
    layout: Layout,
    of: PhantomData<&'a mut [E]>,
}

// SAFETY: it is a mutable borrow of elements that may be sent; threads write rows of their own, as `write` demands.
unsafe impl<E: Send> Sync for HeadsMut<'_, E> {}

impl<'a, E: Element> HeadsMut<'a, E> {
    /// As [`Heads::new`].
    pub(in crate::runtime::ort) fn new(elements: &'a mut [E], dims: [usize; 4], is_by_row: bool) -> Option<Self> {
        let layout = Layout::of(dims, is_by_row);
        let fits = elements.len() == layout.n_elements();
        fits.then_some(Self { start: elements.as_mut_ptr(), layout, of: PhantomData })
    }

    /// # Safety
    /// No other thread writes this row meanwhile.
    #[inline(always)]
    pub(super) unsafe fn write(&self, batch: usize, head: usize, at: usize, row: &[E::Real]) {
        let start = self.layout.start(batch, head, at);
        // SAFETY: the elements are borrowed for as long as this lives; the row is one of them, as `start` asserts, and
        // by the caller's promise this thread's alone.
        let place = unsafe { std::slice::from_raw_parts_mut(self.start.add(start), self.layout.size) };
        E::narrow(row, place);
    }
}

/// What is added to the scores: broadcast to [batch, heads, queries, keys].
#[derive(Clone, Copy)]
pub(in crate::runtime::ort) struct Mask<'a, T> {
    elements: &'a [T],
    /// In elements; 0 where it has one for all.
    steps: [usize; 4],
}

impl<'a, T: Real> Mask<'a, T> {
    /// dims: the mask's, as many as elements. None where it does not broadcast to `scores`.
    pub(in crate::runtime::ort) fn new(elements: &'a [T], dims: &[i64], scores: [usize; 4]) -> Option<Self> {
        let left_out = 4_usize.checked_sub(dims.len())?;
        let (mut steps, mut step) = ([0; 4], 1);
        for (axis, &size) in dims.iter().enumerate().rev() {
            let (size, wanted) = (usize::try_from(size).ok()?, scores[left_out + axis]);
            if size != 1 && size != wanted {
                return None;
            }
            steps[left_out + axis] = if size == 1 { 0 } else { step };
            step *= size;
        }
        (step == elements.len()).then_some(Self { elements, steps })
    }

    /// Adds to the scores of one query with the keys from `key` on.
    #[inline(always)]
    fn add(&self, [batch, head, query, key]: [usize; 4], scores: &mut [T]) {
        let [of_batch, of_head, of_query, of_key] = self.steps;
        let start = batch * of_batch + head * of_head + query * of_query + key * of_key;
        if of_key == 0 {
            let one = self.elements[start];
            scores.iter_mut().for_each(|score| *score = *score + one);
        } else {
            let row = &self.elements[start..][..scores.len()];
            scores.iter_mut().zip(row).for_each(|(score, &own)| *score = *score + own);
        }
    }
}

/// How scores come of products of queries and keys.
#[derive(Clone, Copy)]
pub(in crate::runtime::ort) struct Scores<'a, T> {
    pub(in crate::runtime::ort) scale: T,
    /// A query sees the keys up to its own place.
    pub(in crate::runtime::ort) is_causal: bool,
    pub(in crate::runtime::ort) mask: Option<Mask<'a, T>>,
}

impl<T: Real> Scores<'_, T> {
    /// Products to scores, of one query with the keys from `key` on; how many of them it sees, the rest is left.
    #[inline(always)]
    pub(super) fn of(&self, at: [usize; 4], products: &mut [T]) -> usize {
        let [_, _, query, key] = at;
        let seen = if self.is_causal { (query + 1).saturating_sub(key).min(products.len()) } else { products.len() };
        let seen_products = &mut products[..seen];
        seen_products.iter_mut().for_each(|product| *product = *product * self.scale);
        if let Some(mask) = &self.mask {
            mask.add(at, seen_products);
        }
        seen
    }
}

/// Queries that torch's kernel takes together: as far as a query does not see them, keys of such a block go in with
/// probability zero, and zero times infinity is NaN.
pub(super) fn block(n_queries: usize) -> usize {
    match n_queries {
        768.. => 256,
        192.. => 64,
        _ => 32,
    }
}
