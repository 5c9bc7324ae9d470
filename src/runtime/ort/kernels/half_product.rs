//! Products of few rows by a matrix of half precision, which is widened where it is read: a block of it is in the nearest
//! cache then, and the whole is never written wide.

use std::sync::Mutex;

use super::element::{Element, Real};
use super::processor::Work;
use crate::base::sync::lock;

/// Rows of a matrix that are widened at once.
const BATCH: usize = 4;
/// Sums side by side of one result: a vector of AVX2.
const LANES: usize = 8;
/// Elements of the matrix that a task reads, or more.
const TASK: usize = 1 << 15;
/// Columns of the result that a task gives, or more.
const COLUMNS: usize = 64;

/// rows (n × depth, float32) by a matrix to a result (n × columns, float32). Sums are of float32, of each result in the same
/// order whatever the number of threads.
pub(in crate::runtime::ort) struct HalfProduct<'a, T> {
    rows: &'a [f32],
    matrix: &'a [T],
    depth: usize,
    columns: usize,
    /// The matrix is columns × depth; else depth × columns.
    is_turned: bool,
    /// Columns that a task gives; the last one's may be fewer.
    columns_a_task: usize,
    /// Of each task, its columns of each row.
    results: Vec<Mutex<Vec<&'a mut [f32]>>>,
}

impl<'a, T: Element<Real = f32>> HalfProduct<'a, T> {
    /// None where lengths do not fit.
    pub(in crate::runtime::ort) fn new(
        rows: &'a [f32],
        matrix: &'a [T],
        [depth, columns]: [usize; 2],
        is_turned: bool,
        result: &'a mut [f32],
    ) -> Option<Self> {
        let n_rows = result.len().checked_div(columns).unwrap_or(0);
        let fits = depth.checked_mul(columns) == Some(matrix.len()) && n_rows * columns == result.len();
        if !fits || n_rows * depth != rows.len() && columns > 0 {
            return None;
        }
        let columns_a_task = TASK.div_ceil(depth.max(1)).next_multiple_of(BATCH).max(COLUMNS);
        let mut results: Vec<Vec<&mut [f32]>> = Vec::new();
        results.resize_with(columns.div_ceil(columns_a_task), Vec::new);
        for row in result.chunks_exact_mut(columns.max(1)) {
            for (task, part) in results.iter_mut().zip(row.chunks_mut(columns_a_task)) {
                task.push(part);
            }
        }
        let results = results.into_iter().map(Mutex::new).collect();
        Some(Self { rows, matrix, depth, columns, is_turned, columns_a_task, results })
    }

    fn row(&self, row: usize) -> &[f32] {
        &self.rows[row * self.depth..][..self.depth]
    }

    /// Columns from `first` on, each a row of the matrix: dot products.
    #[inline(always)]
    fn dot<const FMA: bool>(&self, first: usize, results: &mut [&mut [f32]], wide: &mut [f32]) {
        let n_columns = results.first().map_or(0, |row| row.len());
        for at in (0..n_columns).step_by(BATCH) {
            let n = BATCH.min(n_columns - at);
            let narrow = &self.matrix[(first + at) * self.depth..][..n * self.depth];
            T::widen(narrow, &mut wide[..narrow.len()]);
            // What is left of an earlier batch is computed with, too, and not used.
            let mut parts = wide.chunks_exact(self.depth.max(1));
            let batch: [&[f32]; BATCH] = std::array::from_fn(|_| parts.next().unwrap_or(&[]));
            let mut row = 0;
            while row < results.len() {
                if let [one, other, ..] = &mut results[row..] {
                    let sums = dots::<FMA, 2>([self.row(row), self.row(row + 1)], batch);
                    one[at..][..n].copy_from_slice(&sums[0][..n]);
                    other[at..][..n].copy_from_slice(&sums[1][..n]);
                } else {
                    let [sums] = dots::<FMA, 1>([self.row(row)], batch);
                    results[row][at..][..n].copy_from_slice(&sums[..n]);
                }
                row += 2;
            }
        }
    }

    /// Columns from `first` on, of a matrix whose rows are added up.
    #[inline(always)]
    fn add_up<const FMA: bool>(&self, first: usize, results: &mut [&mut [f32]], wide: &mut [f32]) {
        let n_columns = results.first().map_or(0, |row| row.len());
        results.iter_mut().for_each(|row| row.fill(0.0));
        for at in (0..self.depth).step_by(BATCH) {
            let n = BATCH.min(self.depth - at);
            for (row, wide) in wide.chunks_exact_mut(n_columns.max(1)).enumerate().take(n) {
                T::widen(&self.matrix[(at + row) * self.columns + first..][..n_columns], wide);
            }
            let rows = |row: usize| &wide[row * n_columns..][..n_columns];
            for (number, result) in results.iter_mut().enumerate() {
                let factors = &self.row(number)[at..][..n];
                if let &[a, b, c, d] = factors {
                    let pairs = rows(0).iter().zip(rows(1)).zip(rows(2)).zip(rows(3));
                    for (sum, (((&w, &x), &y), &z)) in result.iter_mut().zip(pairs) {
                        let two = a.times_plus::<FMA>(w, *sum);
                        let two = b.times_plus::<FMA>(x, two);
                        *sum = d.times_plus::<FMA>(z, c.times_plus::<FMA>(y, two));
                    }
                    continue;
                }
                for (row, factor) in factors.iter().enumerate() {
                    for (sum, &element) in result.iter_mut().zip(rows(row)) {
                        *sum = factor.times_plus::<FMA>(element, *sum);
                    }
                }
            }
        }
    }
}

impl<T: Element<Real = f32>> Work for HalfProduct<'_, T> {
    type Scratch = Vec<f32>;

    fn n_tasks(&self) -> usize {
        self.results.len()
    }

    fn scratch(&self) -> Vec<f32> {
        let width = if self.is_turned { self.depth } else { self.columns_a_task.min(self.columns) };
        vec![0.0; BATCH * width]
    }

    #[inline(always)]
    fn task<const FMA: bool>(&self, task: usize, scratch: &mut Vec<f32>) {
        let (first, results) = (task * self.columns_a_task, &mut *lock(&self.results[task]));
        match self.is_turned {
            true => self.dot::<FMA>(first, results, scratch),
            false => self.add_up::<FMA>(first, results, scratch),
        }
    }
}

/// Each row times each column. All: of one length, or empty columns.
#[inline(always)]
fn dots<const FMA: bool, const N: usize>(rows: [&[f32]; N], columns: [&[f32]; BATCH]) -> [[f32; BATCH]; N] {
    let n = columns.iter().map(|column| column.len()).min().unwrap_or(0) / LANES;
    let whole = |of: &[f32]| -> usize { of.len() / LANES };
    assert!(rows.iter().all(|row| whole(row) >= n));
    let rows_of = rows.map(|row| &row.as_chunks::<LANES>().0[..n]);
    let columns_of = columns.map(|column| &column.as_chunks::<LANES>().0[..n]);
    let mut sums = [[[0.0_f32; LANES]; BATCH]; N];
    for at in 0..n {
        for (column, of_column) in columns_of.iter().enumerate() {
            for (row, of_row) in rows_of.iter().enumerate() {
                for ((sum, &element), &factor) in sums[row][column].iter_mut().zip(&of_column[at]).zip(&of_row[at]) {
                    *sum = element.times_plus::<FMA>(factor, *sum);
                }
            }
        }
    }
    let mut result = [[0.0; BATCH]; N];
    for (row, result) in result.iter_mut().enumerate() {
        for (column, result) in result.iter_mut().enumerate() {
            let rest = rows[row][n * LANES..].iter().zip(columns[column].get(n * LANES..).unwrap_or(&[]));
            let rest = rest.fold(0.0, |sum, (&row, &column)| row.times_plus::<FMA>(column, sum));
            let [a, b, c, d, e, f, g, h] = sums[row][column];
            *result = ((a + e) + (b + f)) + ((c + g) + (d + h)) + rest;
        }
    }
    result
}
