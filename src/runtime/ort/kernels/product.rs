//! Products of small matrices: the left one read where it is, the right one in panels.

use super::element::Real;

/// Rows of the result that are computed at once: with two vectors a row, they fill the registers of AVX2.
const ROWS: usize = 6;

/// A (n_rows × depth) and B (depth × n_panels · LANES).
#[derive(Clone, Copy)]
pub(super) struct Factors<'a, T> {
    pub(super) left: &'a [T],
    /// Elements of `left` from one row to the next, and from one column to the next.
    pub(super) steps: [usize; 2],
    pub(super) n_rows: usize,
    pub(super) depth: usize,
    /// LANES columns of B after the other, each row by row.
    pub(super) panels: &'a [T],
    pub(super) n_panels: usize,
    /// Elements from one panel to the next.
    pub(super) panel: usize,
}

/// result (n_rows × n_panels · LANES, its rows `stride` elements apart) = A · B, or += where it adds. The sum of a
/// result's products is in their order.
#[inline(always)]
pub(super) fn product<T: Real, const FMA: bool>(factors: &Factors<'_, T>, result: &mut [T], stride: usize, adds: bool) {
    match T::LANES {
        16 => product_of::<T, FMA, 16>(factors, result, stride, adds),
        8 => product_of::<T, FMA, 8>(factors, result, stride, adds),
        lanes => unreachable!("no panels of {lanes} columns"),
    }
}

#[inline(always)]
fn product_of<T: Real, const FMA: bool, const LANES: usize>(
    factors: &Factors<'_, T>,
    result: &mut [T],
    stride: usize,
    adds: bool,
) {
    let Factors { left, steps: [down, across], n_rows, depth, panels, n_panels, panel } = *factors;
    if n_rows == 0 || n_panels == 0 {
        return;
    }
    assert!(depth == 0 || (n_rows - 1) * down + (depth - 1) * across < left.len());
    assert!((n_panels - 1) * panel + depth * LANES <= panels.len() && n_panels * LANES <= stride);
    assert!((n_rows - 1) * stride + n_panels * LANES <= result.len());
    let tiles = Tiles { steps: [down, across], depth, stride, adds };
    for at in 0..n_panels {
        for row in (0..n_rows).step_by(ROWS) {
            // SAFETY: by the assertions above, `left` has all elements of rows below n_rows and columns below depth,
            // the panel has depth · LANES elements, and each of these rows of the result LANES from its column on;
            // `result` is borrowed mutably, the others are apart from it.
            unsafe {
                let left = left.as_ptr().add(row * down);
                let panel = panels.as_ptr().add(at * panel);
                let result = result.as_mut_ptr().add(row * stride + at * LANES);
                match n_rows - row {
                    1 => tiles.tile::<T, FMA, 1, LANES>(left, panel, result),
                    2 => tiles.tile::<T, FMA, 2, LANES>(left, panel, result),
                    3 => tiles.tile::<T, FMA, 3, LANES>(left, panel, result),
                    4 => tiles.tile::<T, FMA, 4, LANES>(left, panel, result),
                    5 => tiles.tile::<T, FMA, 5, LANES>(left, panel, result),
                    _ => tiles.tile::<T, FMA, ROWS, LANES>(left, panel, result),
                }
            }
        }
    }
}

struct Tiles {
    steps: [usize; 2],
    depth: usize,
    stride: usize,
    adds: bool,
}

impl Tiles {
    /// # Safety
    /// `left` has N_ROWS rows and `depth` columns at `steps`, `panel` depth · LANES elements; `result` has N_ROWS rows of
    /// LANES elements `stride` apart, which nobody else uses.
    #[inline(always)]
    unsafe fn tile<T: Real, const FMA: bool, const N_ROWS: usize, const LANES: usize>(
        &self,
        left: *const T,
        panel: *const T,
        result: *mut T,
    ) {
        let [down, across] = self.steps;
        let mut sums = [[T::ZERO; LANES]; N_ROWS];
        for step in 0..self.depth {
            // SAFETY: as the caller says; an array has the alignment of its elements.
            let lanes = unsafe { *panel.add(step * LANES).cast::<[T; LANES]>() };
            for (row, sums) in sums.iter_mut().enumerate() {
                // SAFETY: as the caller says.
                let factor = unsafe { *left.add(row * down + step * across) };
                for (sum, lane) in sums.iter_mut().zip(lanes) {
                    *sum = factor.times_plus::<FMA>(lane, *sum);
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            // SAFETY: as the caller says.
            let result = unsafe { &mut *result.add(row * self.stride).cast::<[T; LANES]>() };
            for (result, &sum) in result.iter_mut().zip(sums) {
                *result = if self.adds { *result + sum } else { sum };
            }
        }
    }
}

/// Row `at` of B into panels of `depth` rows, zeros after it.
#[inline(always)]
pub(super) fn pack_row<T: Real>(row: &[T], at: usize, depth: usize, panels: &mut [T]) {
    for (lanes, panel) in row.chunks(T::LANES).zip(panels.chunks_exact_mut(depth * T::LANES)) {
        let (place, left) = panel[at * T::LANES..][..T::LANES].split_at_mut(lanes.len());
        place.copy_from_slice(lanes);
        left.fill(T::ZERO);
    }
}

/// Columns of B from `at` on, at most LANES, all of one panel, each a row of `columns` (n × depth): zeros after them.
/// at: a multiple of LANES.
#[inline(always)]
pub(super) fn pack_columns<T: Real>(columns: &[T], at: usize, depth: usize, panels: &mut [T]) {
    let n_columns = columns.len() / depth.max(1);
    let panel = &mut panels[at * depth..][..depth * T::LANES];
    if n_columns < T::LANES {
        panel.fill(T::ZERO);
    }
    for (lane, column) in columns.chunks_exact(depth.max(1)).enumerate() {
        for (place, &element) in panel[lane..].iter_mut().step_by(T::LANES).zip(column) {
            *place = element;
        }
    }
}
