//! How the distances of a pair of tensors are distributed, and which tolerances pass: enough to judge the pair again without
//! its elements.

use std::collections::BTreeMap;

use serde::Serialize;

use super::metrics::{Element, place};
use super::tolerance::Tolerance;
use crate::tensor::{DType, Shape, TensorView};

/// Shares of the elements at which quantiles are taken.
pub const QUANTILES: [f64; 6] = [0.5, 0.9, 0.99, 0.999, 0.9999, 1.];
/// Elements that are widened at a time.
const CHUNK: usize = 1 << 16;
/// Bins of a histogram of values.
const N_BINS: usize = 48;
/// Elements that are told by themselves.
const N_WORST: usize = 8;
/// Above this an integer of 64 bits is rounded when it is widened.
const EXACT_INTEGER: f64 = 9_007_199_254_740_992.;
/// Low bits of a float64 that a bin of quantiles drops: its width is 1/128 of its numbers.
const FINE: u32 = 45;
/// The same of a bin that is kept: 1/4.
const COARSE: u32 = 50;

/// Distances of a pair of tensors, summed up. Numbers that are infinite are None.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Distribution {
    /// Pairs with a finite distance: both finite, or the same infinity, or two NaN.
    pub measured: u64,
    /// Pairs of which one is NaN, or an infinity against another number: outside whatever the tolerance.
    pub disagreements: u64,
    /// Pairs of two NaN.
    pub both_nan: u64,
    /// Pairs that are equal.
    pub equal: u64,
    /// |c − r| at [`QUANTILES`] of the measured pairs, rounded up by 1/128 at most; the last is exact.
    pub distance_quantiles: Vec<f64>,
    /// |c − r| / (atol + rtol·|r| + scale·max|r|) at the same; None: above every bound, as the bound is 0.
    pub of_bound_quantiles: Vec<Option<f64>>,
    /// Pairs that are not equal by |c − r|: [upper edge, how many], edges growing by 1/4 at most.
    pub distances: Vec<(f64, u64)>,
    /// Corners of the hull of all (|r|, |c − r|), |r| ascending: the pair passes exactly when it has no disagreement (nor, with
    /// `equal_nan` off, two NaN) and every corner has |c − r| ≤ atol + rtol·|r| + scale·max|r|.
    pub frontier: Vec<(f64, f64)>,
    /// The finite values of both sides.
    pub values: Values,
    /// The elements most outside, or nearest to it, the worst first.
    pub worst: Vec<Element>,
}

/// Histograms of both sides over one range.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Values {
    /// Least finite value of either side.
    pub low: f64,
    /// Largest.
    pub high: f64,
    /// Counts in bins of equal width.
    pub reference: Vec<u64>,
    /// Likewise.
    pub candidate: Vec<u64>,
}

/// The distribution of a pair of equal dtype and shape under a tolerance, of a tensor whose `max_reference` is known. Two
/// passes. None for types that are not widened exactly: complex, 8-bit floats, large integers of 64 bits.
///
/// ```
/// use rust_ort::compare::{Tolerance, distribution};
/// use rust_ort::tensor::{BadTensor, TensorBuf};
///
/// let [eager, ort] = [[1_f32, 2., 4.], [1., 2.5, 4.]].map(|values| TensorBuf::from_f32([3], &values).expect("3 elements"));
/// let found = distribution(&eager.view(), &ort.view(), &Tolerance::EXACT, 4.).expect("float32 is widened");
/// assert_eq!((found.equal, found.frontier), (2, vec![(2., 0.5)]));
/// # Ok::<(), BadTensor>(())
/// ```
pub fn distribution(
    reference: &TensorView<'_>,
    candidate: &TensorView<'_>,
    tolerance: &Tolerance,
    max_reference: f64,
) -> Option<Distribution> {
    let n = reference.shape().n_elements();
    let mut found = Found::new(*tolerance, max_reference);
    for start in (0..n).step_by(CHUNK) {
        let [r, c] = [reference, candidate].map(|side| side.flat_f64(start..n.min(start + CHUNK)));
        let (r, c) = (r?, c?);
        if matches!(reference.dtype(), DType::I64 | DType::U64) && r.iter().chain(&c).any(|v| v.abs() > EXACT_INTEGER) {
            return None;
        }
        found.chunk(start, &r, &c);
    }
    let mut values = Values { low: found.low, high: found.high, ..Values::default() };
    if found.low <= found.high {
        values.reference = histogram(reference, n, &values)?;
        values.candidate = histogram(candidate, n, &values)?;
    } else {
        (values.low, values.high) = (0., 0.);
    }
    Some(found.finish(values, reference.shape()))
}

/// The first pass.
struct Found {
    tolerance: Tolerance,
    /// scale·max|r|.
    floor: f64,
    measured: u64,
    disagreements: u64,
    both_nan: u64,
    equal: u64,
    largest: f64,
    largest_of_bound: f64,
    distances: BTreeMap<u64, u64>,
    of_bound: BTreeMap<u64, u64>,
    frontier: Vec<(f64, f64)>,
    low: f64,
    high: f64,
    /// (excess, flat index, reference, candidate), the worst first.
    worst: Vec<(f64, usize, f64, f64)>,
}

impl Found {
    fn new(tolerance: Tolerance, max_reference: f64) -> Self {
        Self {
            floor: tolerance.scale * max_reference,
            tolerance,
            measured: 0,
            disagreements: 0,
            both_nan: 0,
            equal: 0,
            largest: 0.,
            largest_of_bound: 0.,
            distances: BTreeMap::new(),
            of_bound: BTreeMap::new(),
            frontier: Vec::new(),
            low: f64::INFINITY,
            high: f64::NEG_INFINITY,
            worst: Vec::new(),
        }
    }

    fn chunk(&mut self, start: usize, reference: &[f64], candidate: &[f64]) {
        let mut corners = Vec::new();
        for (at, (&r, &c)) in reference.iter().zip(candidate).enumerate() {
            for value in [r, c].into_iter().filter(|value| value.is_finite()) {
                self.low = self.low.min(value);
                self.high = self.high.max(value);
            }
            let both_nan = r.is_nan() && c.is_nan();
            let apart = if both_nan || r == c { 0. } else { (c - r).abs() };
            self.both_nan += u64::from(both_nan);
            let bound = self.tolerance.atol + self.tolerance.rtol * r.abs() + self.floor;
            if !apart.is_finite() {
                self.disagreements += 1;
                self.keep_worst((f64::INFINITY, start + at, r, c));
                continue;
            }
            self.measured += 1;
            if apart == 0. {
                self.equal += 1;
                continue;
            }
            let of_bound = apart / bound;
            *self.distances.entry(apart.to_bits() >> FINE).or_default() += 1;
            *self.of_bound.entry(of_bound.to_bits() >> FINE).or_default() += 1;
            self.largest = self.largest.max(apart);
            self.largest_of_bound = self.largest_of_bound.max(of_bound);
            self.keep_worst((apart - bound, start + at, r, c));
            corners.push((r.abs(), apart));
        }
        corners.append(&mut self.frontier);
        self.frontier = hull(corners);
    }

    fn keep_worst(&mut self, one: (f64, usize, f64, f64)) {
        if self.worst.len() < N_WORST || self.worst.last().is_some_and(|last| one.0 > last.0) {
            let place = self.worst.partition_point(|known| known.0 >= one.0);
            self.worst.insert(place, one);
            self.worst.truncate(N_WORST);
        }
    }

    fn finish(self, values: Values, shape: &Shape) -> Distribution {
        let finite = |value: f64| value.is_finite().then_some(value);
        let mut coarse: BTreeMap<u64, u64> = BTreeMap::new();
        for (bin, n) in &self.distances {
            *coarse.entry(bin >> (COARSE - FINE)).or_default() += n;
        }
        let edge = |bin: u64| f64::from_bits((bin + 1) << COARSE).min(self.largest);
        let element = |&(_, index, reference, candidate): &(f64, usize, f64, f64)| Element {
            index: index as u64,
            at: place(shape, index as u64),
            imaginary: false,
            reference,
            candidate,
        };
        Distribution {
            distance_quantiles: quantiles(&self.distances, self.equal, self.largest),
            of_bound_quantiles: quantiles(&self.of_bound, self.equal, self.largest_of_bound)
                .into_iter()
                .map(finite)
                .collect(),
            distances: coarse.into_iter().map(|(bin, n)| (edge(bin), n)).collect(),
            measured: self.measured,
            disagreements: self.disagreements,
            both_nan: self.both_nan,
            equal: self.equal,
            frontier: self.frontier,
            worst: self.worst.iter().map(element).collect(),
            values,
        }
    }
}

/// Upper edges of the bins in which the quantiles are, the largest being known. equal: how many are 0.
fn quantiles(bins: &BTreeMap<u64, u64>, equal: u64, largest: f64) -> Vec<f64> {
    let total = equal + bins.values().sum::<u64>();
    let at = |share: f64| {
        let rank = (share * total as f64).ceil() as u64;
        if rank <= equal {
            return 0.;
        }
        let mut below = equal;
        for (bin, n) in bins {
            below += n;
            if below >= rank {
                let edge = f64::from_bits((bin + 1) << FINE);
                return if edge.is_nan() { largest } else { edge.min(largest) };
            }
        }
        largest
    };
    QUANTILES.iter().map(|&share| at(share)).collect()
}

/// The points of which one is largest in y − k·x for some k from 0, by x ascending: the upper left of their hull.
fn hull(mut points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    points.sort_by(|one, other| one.0.total_cmp(&other.0).then(other.1.total_cmp(&one.1)));
    let mut hull: Vec<(f64, f64)> = Vec::new();
    for point in points {
        if hull.last().is_some_and(|last| point.1 <= last.1) {
            continue;
        }
        while let [.., first, second] = hull.as_slice() {
            // Below the line from the one before to the new one, or on it.
            let is_below = (second.1 - first.1) * (point.0 - first.0) <= (point.1 - first.1) * (second.0 - first.0);
            if !is_below {
                break;
            }
            hull.pop();
        }
        hull.push(point);
    }
    hull
}

/// Counts of the finite values in bins of equal width; None where the type is not widened.
fn histogram(tensor: &TensorView<'_>, n: usize, range: &Values) -> Option<Vec<u64>> {
    let mut bins = vec![0; N_BINS];
    let width = (range.high / 2. - range.low / 2.) / (N_BINS as f64 / 2.);
    for start in (0..n).step_by(CHUNK) {
        for value in tensor.flat_f64(start..n.min(start + CHUNK))?.into_iter().filter(|value| value.is_finite()) {
            let bin = if width > 0. { ((value - range.low) / width) as usize } else { 0 };
            bins[bin.min(N_BINS - 1)] += 1;
        }
    }
    Some(bins)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{Verdict, judge};
    use crate::tensor::{TensorBuf, TensorDesc};

    fn of(reference: &[f32], candidate: &[f32], tolerance: &Tolerance) -> Distribution {
        let [r, c] = [reference, candidate].map(|side| TensorBuf::from_f32([side.len() as i64], side).unwrap());
        let max = judge("v", &r.view(), &c.view(), Some(tolerance)).metrics.unwrap().max_reference;
        distribution(&r.view(), &c.view(), tolerance, max).unwrap()
    }

    /// Numbers that look drawn by chance, of many sizes, and are the same each time.
    fn drawn(n: usize, seed: u64) -> (Vec<f32>, Vec<f32>) {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1_u64 << 24) as f32
        };
        let reference: Vec<f32> = (0..n).map(|_| (next() - 0.5) * 10_f32.powf(next() * 6. - 4.)).collect();
        let candidate = reference.iter().map(|r| r * (1. + (next() - 0.5) * 0.01) + (next() - 0.5) * 0.001).collect();
        (reference, candidate)
    }

    #[test]
    fn the_frontier_judges_as_all_elements_do() {
        for seed in 0..20 {
            let (reference, candidate) = drawn(500, seed);
            let found = of(&reference, &candidate, &Tolerance::EXACT);
            assert!(found.frontier.len() < 40, "{}", found.frontier.len());
            let [r, c] = [&reference, &candidate].map(|side| TensorBuf::from_f32([500], side).unwrap());
            let mut kinds = [0; 2];
            for step in 0..400 {
                let [atol, rtol, scale] = [step % 20, (step / 20) % 20, (step * 7) % 5]
                    .map(|exponent| if exponent == 0 { 0. } else { 10_f64.powf(f64::from(exponent) / 4. - 6.) });
                let tolerance = Tolerance { atol, rtol, scale, equal_nan: true };
                let judged = judge("v", &r.view(), &c.view(), Some(&tolerance));
                let max = judged.metrics.unwrap().max_reference;
                let passes = found.frontier.iter().all(|(size, apart)| *apart <= atol + rtol * size + scale * max);
                assert_eq!(passes, judged.verdict == Verdict::Match, "{tolerance:?}");
                kinds[usize::from(passes)] += 1;
            }
            assert!(kinds.iter().all(|&n| n > 0), "{kinds:?}");
        }
    }

    #[test]
    fn chunks_come_to_the_same_hull() {
        let (reference, candidate) = drawn(3 * CHUNK + 5, 1);
        let found = of(&reference, &candidate, &Tolerance::EXACT);
        let points = reference.iter().zip(&candidate).filter(|(r, c)| r != c);
        let points = points.map(|(&r, &c)| (f64::from(r).abs(), (f64::from(c) - f64::from(r)).abs())).collect();
        assert_eq!(found.frontier, hull(points));
    }

    #[test]
    fn quantiles_are_rounded_up_a_little() {
        let reference = vec![0_f32; 1000];
        let candidate: Vec<f32> = (0..1000).map(|at| at as f32).collect();
        let bound = Tolerance { atol: 2., ..Tolerance::EXACT };
        let found = of(&reference, &candidate, &bound);
        for ((share, distance), of_bound) in
            QUANTILES.iter().zip(&found.distance_quantiles).zip(found.of_bound_quantiles.iter().flatten())
        {
            let expected = (share * 1000.).ceil() - 1.;
            assert!(*distance >= expected && *distance <= expected * (1. + 1. / 64.), "{share}: {distance}");
            assert!(*of_bound >= expected / 2. && *of_bound <= expected / 2. * (1. + 1. / 64.), "{share}: {of_bound}");
        }
        assert_eq!(found.distances.iter().map(|(_, n)| n).sum::<u64>(), 999);
        assert_eq!(found.equal, 1);
        assert_eq!((found.worst[0].index, found.worst[0].at.as_slice(), found.worst.len()), (999, &[999][..], N_WORST));
    }

    #[test]
    fn nan_and_infinity_disagree_and_are_in_no_histogram() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        let found = of(&[1., nan, nan, inf, inf, 2.], &[nan, nan, 1., inf, -inf, 2.], &Tolerance::EXACT);
        assert_eq!((found.measured, found.disagreements, found.both_nan, found.equal), (3, 3, 1, 3));
        assert_eq!((found.values.low, found.values.high), (1., 2.));
        assert_eq!(found.values.reference.iter().sum::<u64>(), 2);
        assert!(found.frontier.is_empty() && found.distances.is_empty());
        // Above every bound, as the bound is 0.
        assert_eq!(of(&[1.], &[2.], &Tolerance::EXACT).of_bound_quantiles[0], None);
    }

    #[test]
    fn nothing_and_what_is_not_widened() {
        let empty = of(&[], &[], &Tolerance::EXACT);
        assert_eq!((empty.measured, empty.worst.len(), empty.distance_quantiles), (0, 0, vec![0.; 6]));
        let desc = TensorDesc { dtype: DType::I64, shape: Shape::new([1]).unwrap() };
        let large = TensorBuf::new(desc, i64::MAX.to_le_bytes().to_vec()).unwrap();
        assert_eq!(distribution(&large.view(), &large.view(), &Tolerance::EXACT, 1.), None);
    }
}
