//! Sums of float32 over all axes but one, added up in float64.

use std::sync::Mutex;

use super::processor::Work;
use crate::base::sync::lock;

/// Sums side by side of one result: two vectors of AVX2, four times.
const LANES: usize = 32;
/// Channels side by side that a row is read of at a time: memory is read in whole pages, and their sums stay in the first
/// cache.
const TILE: usize = 256;
/// Elements that a task adds up, or more.
const TASK: usize = 1 << 15;

/// input [outer, channels, inner] to results [channels]: sums, each in the same order whatever the number of threads, times
/// a factor in float64.
pub(in crate::runtime::ort) struct WideSum<'a> {
    input: &'a [f32],
    channels: usize,
    inner: usize,
    factor: f64,
    channels_a_task: usize,
    results: Vec<Mutex<&'a mut [f32]>>,
}

impl<'a> WideSum<'a> {
    /// None where lengths do not fit.
    pub(in crate::runtime::ort) fn new(
        input: &'a [f32],
        [outer, channels, inner]: [usize; 3],
        factor: f64,
        results: &'a mut [f32],
    ) -> Option<Self> {
        let len = outer.checked_mul(channels)?.checked_mul(inner)?;
        if len != input.len() || channels != results.len() {
            return None;
        }
        // Of channels side by side a task reads whole vectors.
        let least = if inner == 1 { TILE } else { 1 };
        let channels_a_task = TASK.div_ceil((outer * inner).max(1)).next_multiple_of(least);
        let results = results.chunks_mut(channels_a_task).map(Mutex::new).collect();
        Some(Self { input, channels, inner, factor, channels_a_task, results })
    }
}

impl Work for WideSum<'_> {
    type Scratch = ();

    fn n_tasks(&self) -> usize {
        self.results.len()
    }

    fn scratch(&self) {}

    #[inline(always)]
    fn task<const FMA: bool>(&self, task: usize, (): &mut ()) {
        let mut results = lock(&self.results[task]);
        let first = task * self.channels_a_task;
        let images = || self.input.chunks_exact((self.channels * self.inner).max(1));
        if self.inner == 1 {
            for (at, results) in results.chunks_mut(TILE).enumerate() {
                self.columns(first + at * TILE, results);
            }
            return;
        }
        for (channel, result) in (first..).zip(&mut **results) {
            let mut sums = [0.0_f64; LANES];
            for image in images() {
                let (vectors, rest) = image[channel * self.inner..][..self.inner].as_chunks::<LANES>();
                for vector in vectors {
                    sums.iter_mut().zip(vector).for_each(|(sum, &element)| *sum += f64::from(element));
                }
                sums.iter_mut().zip(rest).for_each(|(sum, &element)| *sum += f64::from(element));
            }
            *result = (sums.iter().sum::<f64>() * self.factor) as f32;
        }
    }
}

impl WideSum<'_> {
    /// Sums of up to [`TILE`] columns of a matrix, four rows at a time.
    #[inline(always)]
    fn columns(&self, first: usize, results: &mut [f32]) {
        let n_columns = results.len();
        let mut sums = [0.0_f64; TILE];
        let sums = &mut sums[..n_columns];
        let mut fours = self.input.chunks_exact(4 * self.channels);
        for rows in &mut fours {
            let [one, two, three, four] = std::array::from_fn(|row| &rows[row * self.channels + first..][..n_columns]);
            for ((((sum, &one), &two), &three), &four) in sums.iter_mut().zip(one).zip(two).zip(three).zip(four) {
                *sum += (f64::from(one) + f64::from(two)) + (f64::from(three) + f64::from(four));
            }
        }
        for row in fours.remainder().chunks_exact(self.channels) {
            let elements = &row[first..][..n_columns];
            sums.iter_mut().zip(elements).for_each(|(sum, &element)| *sum += f64::from(element));
        }
        results.iter_mut().zip(sums).for_each(|(result, sum)| *result = (*sum * self.factor) as f32);
    }
}
