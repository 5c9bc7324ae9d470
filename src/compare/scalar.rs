//! One element at a time, for any dtype and any value. The fast pass (`simd.rs`) must agree with this.

use super::element::{Kind, Numbers, has_ulp, kind, ulp, widen};
use super::stats::{ABOVE, Outside, Place, Stats};
use super::tolerance::{Bounds, Needs, Tolerance};

/// Adds numbers, in order.
pub(super) fn add(numbers: &Numbers<'_>, tolerance: &Tolerance, stats: &mut Stats) {
    let (dtype, fill_limit) = (numbers.dtype, Tolerance::fill_limit(numbers.dtype));
    for (index, r_bits, c_bits) in numbers.bits() {
        let (r, c) = (widen(dtype, r_bits), widen(dtype, c_bits));
        if r.abs() < fill_limit {
            stats.max_reference = stats.max_reference.max(r.abs());
        }
        let not_finite = [r.is_nan(), r.is_infinite(), c.is_nan(), c.is_infinite()];
        stats.not_finite.iter_mut().zip(not_finite).for_each(|(count, is)| *count += u64::from(is));
        stats.flushed += u64::from(c == 0. && r != 0.);
        let kind = kind(dtype, r_bits, c_bits);
        if matches!(kind, Kind::Finite(_)) && has_ulp(dtype) {
            stats.max_ulp = stats.max_ulp.max(ulp(dtype, r_bits, c_bits));
        }
        let apart = add_pair(stats, kind, (r, c), tolerance.equal_nan);
        let place = Place { index, reference: r, candidate: c };
        if apart > stats.max_abs {
            (stats.max_abs, stats.argmax_abs) = (apart, Some(place));
        }
        for (count, threshold) in stats.above.iter_mut().zip(ABOVE) {
            *count += u64::from(apart > threshold);
        }
        let filled = if c.is_finite() && r.is_finite() { apart } else { (fill(c) - fill(r)).abs() };
        add_filled(stats, place, filled);
    }
}

/// Counts a pair. Returns its distance.
fn add_pair(stats: &mut Stats, kind: Kind, (r, c): (f64, f64), equal_nan: bool) -> f64 {
    match kind {
        Kind::Finite(apart) => {
            stats.measured += 1;
            stats.sum_abs += apart;
            stats.sum_squares += apart * apart;
            stats.sum_reference += r * r;
            stats.sum_candidate += c * c;
            stats.sum_product += r * c;
            stats.max_rel = stats.max_rel.max(if apart == 0. { 0. } else { apart / r.abs() });
            apart
        }
        Kind::EqualInfinities => {
            stats.measured += 1;
            0.
        }
        Kind::BothNan => {
            stats.both_nan += 1;
            if equal_nan { 0. } else { f64::INFINITY }
        }
        Kind::OneNan => {
            stats.nan_disagreements += 1;
            f64::INFINITY
        }
        Kind::Infinity => {
            stats.inf_disagreements += 1;
            f64::INFINITY
        }
    }
}

/// `numpy.nan_to_num(value, nan=1e10)`.
fn fill(value: f64) -> f64 {
    if value.is_nan() { 1e10 } else { value.clamp(f64::MIN, f64::MAX) }
}

fn add_filled(stats: &mut Stats, place: Place, apart: f64) {
    stats.filled_max_rel = stats.filled_max_rel.max(apart / (fill(place.reference).abs() + 1e-3));
    stats.filled_sum += apart;
    if apart > stats.filled_max_abs {
        (stats.filled_max_abs, stats.filled_argmax) = (apart, Some(place));
    }
    for (count, threshold) in stats.filled_above.iter_mut().zip(ABOVE) {
        *count += u64::from(apart > threshold);
    }
}

/// Adds numbers, in order.
pub(super) fn add_outside(numbers: &Numbers<'_>, bounds: &Bounds, outside: &mut Outside) {
    let dtype = numbers.dtype;
    for (index, r_bits, c_bits) in numbers.bits() {
        let needs = match kind(dtype, r_bits, c_bits) {
            Kind::Finite(apart) => bounds.needs(apart, widen(dtype, r_bits).abs()),
            Kind::EqualInfinities => continue,
            Kind::BothNan if bounds.equal_nan => continue,
            _ => Needs { excess: f64::INFINITY, atol: f64::INFINITY, rtol: f64::INFINITY },
        };
        outside.required.atol = outside.required.atol.max(needs.atol);
        outside.required.rtol = outside.required.rtol.max(needs.rtol);
        if needs.excess > 0. {
            outside.count += 1;
            let [reference, candidate] = [r_bits, c_bits].map(|bits| widen(dtype, bits));
            let place = Place { index, reference, candidate };
            outside.first = outside.first.or(Some(place));
            if needs.excess > outside.worst_excess {
                (outside.worst, outside.worst_excess) = (Some(place), needs.excess);
            }
        }
    }
}
