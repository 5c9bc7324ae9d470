//! A region's tensors: how its inputs broadcast together, and where a tile's values are.

use std::marker::PhantomData;

use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};

use crate::onnx::{Extent, HIGHEST_RANK};

/// Elements of an input. A bool is any byte but 0.
#[derive(Clone, Copy)]
pub(in crate::runtime::ort) enum Elements<'a> {
    F32(&'a [f32]),
    BF16(&'a [bf16]),
    F16(&'a [f16]),
    Bool(&'a [u8]),
}

impl Elements<'_> {
    pub(in crate::runtime::ort) fn len(&self) -> usize {
        match self {
            Self::F32(elements) => elements.len(),
            Self::BF16(elements) => elements.len(),
            Self::F16(elements) => elements.len(),
            Self::Bool(elements) => elements.len(),
        }
    }

    /// Those from `at` on, as float32.
    #[inline(always)]
    pub(super) fn read(&self, at: usize, to: &mut [f32]) {
        let n = to.len();
        match self {
            Self::F32(elements) => to.copy_from_slice(&elements[at..][..n]),
            Self::BF16(elements) => {
                for (to, from) in to.iter_mut().zip(&elements[at..][..n]) {
                    *to = f32::from_bits(u32::from(from.to_bits()) << 16);
                }
            }
            Self::F16(elements) => elements[at..][..n].convert_to_f32_slice(to),
            Self::Bool(elements) => {
                for (to, &from) in to.iter_mut().zip(&elements[at..][..n]) {
                    *to = if from != 0 { 1.0 } else { 0.0 };
                }
            }
        }
    }
}

/// An input's elements, and where they are.
#[derive(Clone, Copy)]
pub(super) struct Input<'a> {
    pub(super) elements: Elements<'a>,
    pub(super) layout: Layout,
}

/// How an input lies: the axes are those of [`Shape`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) extent: Extent,
    /// In elements, of each outer axis; 0 where it has one for the whole axis.
    pub(super) strides: [usize; HIGHEST_RANK],
    /// Of a row's elements, or of its one: those of the next row follow.
    pub(super) is_dense: bool,
    /// All rows have the same.
    pub(super) is_one_row: bool,
}

/// The whole: rows of n elements. Outer axes that all inputs go through alike are taken together, and, of a program that
/// takes no row for a whole, those rows, too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::runtime::ort) struct Shape {
    pub(super) n: usize,
    pub(super) n_rows: usize,
    /// Of the outer axes, the innermost first.
    pub(super) sizes: [usize; HIGHEST_RANK],
    pub(super) n_outer: usize,
}

/// The sizes that these broadcast to, with so many axes. None where they do not fit together.
pub(in crate::runtime::ort) fn broadcast(shapes: &[&[i64]], rank: usize) -> Option<[usize; HIGHEST_RANK]> {
    let mut sizes = [1; HIGHEST_RANK];
    for shape in shapes {
        let offset = rank.checked_sub(shape.len())?;
        for (at, &own) in shape.iter().enumerate() {
            let (own, size) = (usize::try_from(own).ok()?, &mut sizes[offset + at]);
            match (own, *size) {
                (1, _) => {}
                (own, 1) => *size = own,
                (own, size) if own == size => {}
                _ => return None,
            }
        }
    }
    Some(sizes)
}

impl Shape {
    /// Of inputs of these extents and shapes, that broadcast to `sizes`. by_row: a row is taken for a whole. None where one is
    /// no row's, or no number, where its extent says so.
    pub(super) fn of(
        extents: &[Extent],
        by_row: bool,
        sizes: &[usize],
        shapes: &[&[i64]],
    ) -> Option<(Self, Vec<Layout>)> {
        let rank = sizes.len();
        let own =
            |shape: &[i64], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |at| shape[at] as usize);
        let mut inputs = Vec::with_capacity(shapes.len());
        for (&extent, &shape) in extents.iter().zip(shapes) {
            let is_one = shape.iter().all(|&size| size == 1);
            if (extent == Extent::Number && !is_one) || (extent == Extent::Row && own(shape, rank - 1) != 1) {
                return None;
            }
            let strides = [0; HIGHEST_RANK];
            inputs.push(Layout { extent, strides, is_dense: false, is_one_row: false });
        }
        let n = sizes[rank - 1];
        for (input, &shape) in inputs.iter().zip(shapes) {
            if input.extent == Extent::Full && own(shape, rank - 1) != n {
                return None;
            }
        }
        // From the innermost outer axis on: (size, each input's stride).
        let mut shape = Self { n, n_rows: 1, sizes: [1; HIGHEST_RANK], n_outer: 0 };
        let mut counts: Vec<usize> = extents.iter().map(|&extent| of_row(extent, n)).collect();
        let mut is_flat = !by_row;
        for axis in (0..rank - 1).rev() {
            let size = sizes[axis];
            if size == 1 {
                continue;
            }
            let stride = |at: usize, counts: &[usize]| if own(shapes[at], axis) == 1 { 0 } else { counts[at] };
            let of_rows = |at: usize, input: &Layout| match input.extent {
                Extent::Number => true,
                Extent::Row => false,
                Extent::Full => stride(at, &counts) == shape.n,
            };
            is_flat &= shape.n_outer == 0 && inputs.iter().enumerate().all(|(at, input)| of_rows(at, input));
            if is_flat {
                shape.n *= size;
            } else {
                let last = shape.n_outer.wrapping_sub(1);
                let goes_on =
                    |at: usize, input: &Layout| stride(at, &counts) == input.strides[last] * shape.sizes[last];
                let merges = shape.n_outer > 0 && inputs.iter().enumerate().all(|(at, input)| goes_on(at, input));
                if merges {
                    shape.sizes[last] *= size;
                } else {
                    for (at, input) in inputs.iter_mut().enumerate() {
                        input.strides[shape.n_outer] = stride(at, &counts);
                    }
                    shape.sizes[shape.n_outer] = size;
                    shape.n_outer += 1;
                }
                shape.n_rows *= size;
            }
            for (at, count) in counts.iter_mut().enumerate() {
                *count *= own(shapes[at], axis);
            }
        }
        for input in &mut inputs {
            let mut expected = of_row(input.extent, shape.n);
            input.is_dense = (0..shape.n_outer).all(|axis| {
                let is_next = input.strides[axis] == expected;
                expected *= shape.sizes[axis];
                is_next
            });
            input.is_one_row = input.strides[..shape.n_outer].iter().all(|&stride| stride == 0);
        }
        Some((shape, inputs))
    }

    pub(super) fn n_elements(&self) -> usize {
        self.n * self.n_rows
    }

    /// Where a row of an input begins.
    #[inline(always)]
    pub(super) fn start(&self, input: &Layout, mut row: usize) -> usize {
        if input.is_dense {
            return row * of_row(input.extent, self.n);
        }
        let mut start = 0;
        for (&size, &stride) in self.sizes[..self.n_outer].iter().zip(&input.strides) {
            start += row % size * stride;
            row /= size;
        }
        start
    }
}

/// Elements that an input has of a row.
#[inline(always)]
pub(super) fn of_row(extent: Extent, n: usize) -> usize {
    match extent {
        Extent::Number => 0,
        Extent::Row => 1,
        Extent::Full => n,
    }
}

/// An output that tasks write, each its own part.
pub(super) struct Output<'a> {
    start: *mut f32,
    len: usize,
    of: PhantomData<&'a mut [f32]>,
}

// SAFETY: it is a mutable borrow of elements that may be sent; threads write parts of their own, as `part` demands.
unsafe impl Sync for Output<'_> {}

impl<'a> Output<'a> {
    pub(super) fn new(elements: &'a mut [f32]) -> Self {
        Self { start: elements.as_mut_ptr(), len: elements.len(), of: PhantomData }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// # Safety
    /// Nobody else has any of these elements while the part is there.
    #[expect(clippy::mut_from_ref, reason = "the caller promises that parts are apart")]
    #[inline(always)]
    pub(super) unsafe fn part(&self, at: usize, len: usize) -> &mut [f32] {
        assert!(at <= self.len && len <= self.len - at);
        // SAFETY: inside the borrowed elements; the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }
}
