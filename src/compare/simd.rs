//! The fast pass: blocks of finite numbers, widened to f64 and measured in loops that the compiler turns into vectors.
//!
//! The same source is compiled twice, for the baseline of the target and (x86-64) for AVX2, FMA and F16C; which one runs
//! is decided at run time. Rust never contracts or reorders floating-point arithmetic, so both give the same bits. They
//! agree with `scalar` in everything but the order of the sums: here eight running sums per block of [`BLOCK`] numbers,
//! added as ((0+4)+(2+6)) + ((1+5)+(3+7)); blocks are added to their span of [`SPAN`] in order, spans in order. The
//! order depends on the length alone, not on the number of threads. A block with a NaN or an infinity goes to `scalar`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::metrics::ABOVE;
use super::scalar::{self, Pair, Stats};
use super::tolerance::Tolerance;
use crate::tensor::DType;

/// Numbers in a block: six buffers of them fit the first-level cache.
pub(super) const BLOCK: usize = 512;
/// Numbers in a span, the unit of work of a thread.
pub(super) const SPAN: usize = 128 * BLOCK;
/// Below so many bytes of reference one thread does it.
const PARALLEL_BYTES: usize = 4 << 20;
const MAX_THREADS: usize = 8;
const LANES: usize = 8;

/// Statistics of each span, in order.
pub(super) fn spans(pair: &Pair<'_>, tolerance: &Tolerance) -> Vec<Stats> {
    let n_spans = pair.n_numbers().div_ceil(SPAN);
    let threads = if pair.reference.len() < PARALLEL_BYTES { 1 } else { n_threads().min(n_spans) };
    if threads <= 1 {
        return (0..n_spans).map(|index| span(pair, index, tolerance)).collect();
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= n_spans {
                return done;
            }
            done.push((index, span(pair, index, tolerance)));
        }
    };
    let mut done: Vec<(usize, Stats)> = thread::scope(|scope| {
        let helpers: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut done = work();
        for helper in helpers {
            done.extend(helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, stats)| stats).collect()
}

fn n_threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS)
}

fn span(pair: &Pair<'_>, index: usize, tolerance: &Tolerance) -> Stats {
    let range = index * SPAN..((index + 1) * SPAN).min(pair.n_numbers());
    let mut stats = Stats::default();
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
        // SAFETY: the features that `span_avx2` is compiled for were just found on this processor.
        unsafe { span_avx2(pair, range, tolerance, &mut stats) };
        return stats;
    }
    span_portable(pair, range, tolerance, &mut stats);
    stats
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn span_avx2(pair: &Pair<'_>, range: std::ops::Range<usize>, tolerance: &Tolerance, stats: &mut Stats) {
    span_portable(pair, range, tolerance, stats);
}

#[inline(always)]
fn span_portable(pair: &Pair<'_>, range: std::ops::Range<usize>, tolerance: &Tolerance, stats: &mut Stats) {
    let size = pair.part_dtype().size_bytes();
    let fill_limit = Tolerance::fill_limit(pair.dtype);
    let mut block = Block { reference: [0.; BLOCK], candidate: [0.; BLOCK], max_ulp: 0 };
    let mut from = range.start;
    while from < range.end {
        let to = (from + BLOCK).min(range.end);
        let (reference, candidate) = (&pair.reference[from * size..to * size], &pair.candidate[from * size..to * size]);
        let n = to - from;
        let widened = match pair.part_dtype() {
            DType::F32 => widen_f32(reference, candidate, &mut block),
            DType::F64 => widen_f64(reference, candidate, &mut block),
            DType::F16 => widen_f16(reference, candidate, &mut block),
            DType::BF16 => widen_bf16(reference, candidate, &mut block),
            _ => false,
        };
        if !(widened && measure(&mut block, n, from, fill_limit, stats)) {
            scalar::add(pair, from..to, tolerance, stats);
        }
        from = to;
    }
}

struct Block {
    reference: [f64; BLOCK],
    candidate: [f64; BLOCK],
    max_ulp: u64,
}

/// Steps between two 32-bit floats; see `scalar::ulp`.
#[inline(always)]
fn ulp_32(reference: u32, candidate: u32) -> u32 {
    let on_line = |bits: u32| {
        let sign = (bits as i32) >> 31;
        ((bits & 0x7fff_ffff) as i32 ^ sign).wrapping_sub(sign)
    };
    let (reference, candidate) = (on_line(reference), on_line(candidate));
    (reference.max(candidate) as u32).wrapping_sub(reference.min(candidate) as u32)
}

#[inline(always)]
fn ulp_64(reference: u64, candidate: u64) -> u64 {
    let on_line = |bits: u64| {
        let sign = (bits as i64) >> 63;
        ((bits & (u64::MAX >> 1)) as i64 ^ sign).wrapping_sub(sign)
    };
    let (reference, candidate) = (on_line(reference), on_line(candidate));
    (reference.max(candidate) as u64).wrapping_sub(reference.min(candidate) as u64)
}

#[inline(always)]
fn widen_f32(reference: &[u8], candidate: &[u8], block: &mut Block) -> bool {
    let (reference, candidate) = (reference.as_chunks::<4>().0, candidate.as_chunks::<4>().0);
    let mut max_ulp = 0;
    for (((r, c), r_out), c_out) in reference.iter().zip(candidate).zip(&mut block.reference).zip(&mut block.candidate)
    {
        let (r, c) = (u32::from_le_bytes(*r), u32::from_le_bytes(*c));
        *r_out = f32::from_bits(r).into();
        *c_out = f32::from_bits(c).into();
        max_ulp = max_ulp.max(ulp_32(r, c));
    }
    block.max_ulp = max_ulp.into();
    true
}

#[inline(always)]
fn widen_f64(reference: &[u8], candidate: &[u8], block: &mut Block) -> bool {
    let (reference, candidate) = (reference.as_chunks::<8>().0, candidate.as_chunks::<8>().0);
    let mut max_ulp = 0;
    for (((r, c), r_out), c_out) in reference.iter().zip(candidate).zip(&mut block.reference).zip(&mut block.candidate)
    {
        let (r, c) = (u64::from_le_bytes(*r), u64::from_le_bytes(*c));
        (*r_out, *c_out) = (f64::from_bits(r), f64::from_bits(c));
        max_ulp = max_ulp.max(ulp_64(r, c));
    }
    block.max_ulp = max_ulp;
    true
}

/// Shifted to the upper half, a 16-bit float's bits are ordered as 32-bit ones are, 2^16 apart.
#[inline(always)]
fn max_ulp_16(reference: &[[u8; 2]], candidate: &[[u8; 2]]) -> u64 {
    let high = |bytes: &[u8; 2]| u32::from(u16::from_le_bytes(*bytes)) << 16;
    let max = reference.iter().zip(candidate).fold(0, |max: u32, (r, c)| max.max(ulp_32(high(r), high(c))));
    (max >> 16).into()
}

#[inline(always)]
fn widen_bf16(reference: &[u8], candidate: &[u8], block: &mut Block) -> bool {
    let (reference, candidate) = (reference.as_chunks::<2>().0, candidate.as_chunks::<2>().0);
    for (bytes, out) in [(reference, &mut block.reference), (candidate, &mut block.candidate)] {
        for (bytes, out) in bytes.iter().zip(out) {
            // A signalling NaN is quieted by the conversion to f64; the block then goes to `scalar` anyway.
            *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16).into();
        }
    }
    block.max_ulp = max_ulp_16(reference, candidate);
    true
}

#[inline(always)]
fn widen_f16(reference: &[u8], candidate: &[u8], block: &mut Block) -> bool {
    let (reference, candidate) = (reference.as_chunks::<2>().0, candidate.as_chunks::<2>().0);
    let mut narrow = [f16::ZERO; BLOCK];
    let mut single = [0_f32; BLOCK];
    for (bytes, out) in [(reference, &mut block.reference), (candidate, &mut block.candidate)] {
        for (bytes, narrow) in bytes.iter().zip(&mut narrow) {
            *narrow = f16::from_le_bytes(*bytes);
        }
        narrow[..bytes.len()].convert_to_f32_slice(&mut single[..bytes.len()]);
        for (single, out) in single[..bytes.len()].iter().zip(out) {
            *out = (*single).into();
        }
    }
    block.max_ulp = max_ulp_16(reference, candidate);
    true
}

#[inline(always)]
fn max(left: f64, right: f64) -> f64 {
    if left > right { left } else { right }
}

#[inline(always)]
fn add_up(sums: [f64; LANES]) -> f64 {
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// Measures the first `n` numbers of a block and adds them to `stats`; false, and nothing done, when one is not finite.
#[inline(always)]
fn measure(block: &mut Block, n: usize, base: usize, fill_limit: f64, stats: &mut Stats) -> bool {
    // Equal zeros change no maximum and no sum.
    let padded = n.next_multiple_of(LANES);
    block.reference[n..padded].fill(0.);
    block.candidate[n..padded].fill(0.);
    let references = block.reference[..padded].as_chunks::<LANES>().0;
    let candidates = block.candidate[..padded].as_chunks::<LANES>().0;

    let mut sums = [[0_f64; LANES]; 5];
    let (mut max_apart, mut max_reference, mut max_rel, mut max_filled_rel) =
        ([0_f64; LANES], [0_f64; LANES], [0_f64; LANES], [0_f64; LANES]);
    // 0·x is 0 for finite x, NaN for others.
    let mut finite = [0_f64; LANES];
    for (reference, candidate) in references.iter().zip(candidates) {
        for lane in 0..LANES {
            let (r, c) = (reference[lane], candidate[lane]);
            let (apart, size) = ((c - r).abs(), r.abs());
            finite[lane] += 0. * r + 0. * c;
            sums[0][lane] += apart;
            sums[1][lane] += apart * apart;
            sums[2][lane] += r * r;
            sums[3][lane] += c * c;
            sums[4][lane] += r * c;
            max_apart[lane] = max(apart, max_apart[lane]);
            max_reference[lane] = max(if size < fill_limit { size } else { 0. }, max_reference[lane]);
        }
    }
    if finite.iter().any(|zero| zero.is_nan()) {
        return false;
    }
    let max_apart = max_apart.into_iter().fold(0., max);
    stats.measured += n as u64;
    stats.sum_abs += add_up(sums[0]);
    stats.sum_squares += add_up(sums[1]);
    stats.sum_reference += add_up(sums[2]);
    stats.sum_candidate += add_up(sums[3]);
    stats.sum_product += add_up(sums[4]);
    stats.filled_sum += add_up(sums[0]);
    stats.max_reference = max(max_reference.into_iter().fold(0., max), stats.max_reference);
    stats.max_ulp = stats.max_ulp.max(block.max_ulp);
    if max_apart == 0. {
        return true;
    }
    for (reference, candidate) in references.iter().zip(candidates) {
        for lane in 0..LANES {
            let (apart, size) = ((candidate[lane] - reference[lane]).abs(), reference[lane].abs());
            // 0/0 is NaN, which `max` passes over.
            max_rel[lane] = max(apart / size, max_rel[lane]);
            max_filled_rel[lane] = max(apart / (size + 1e-3), max_filled_rel[lane]);
        }
    }
    stats.max_rel = max(max_rel.into_iter().fold(0., max), stats.max_rel);
    stats.filled_max_rel = max(max_filled_rel.into_iter().fold(0., max), stats.filled_max_rel);
    count_above(references, candidates, max_apart, stats);
    if max_apart > stats.max_abs || max_apart > stats.filled_max_abs {
        let pairs = block.reference[..n].iter().zip(&block.candidate[..n]);
        let at = pairs.map(|(r, c)| (c - r).abs()).position(|apart| apart == max_apart);
        let at = at.map(|at| (base + at) as u64);
        if max_apart > stats.max_abs {
            (stats.max_abs, stats.argmax_abs) = (max_apart, at);
        }
        if max_apart > stats.filled_max_abs {
            (stats.filled_max_abs, stats.filled_argmax) = (max_apart, at);
        }
    }
    true
}

#[inline(always)]
fn count_above(references: &[[f64; LANES]], candidates: &[[f64; LANES]], max_apart: f64, stats: &mut Stats) {
    for (index, threshold) in ABOVE.into_iter().enumerate() {
        if max_apart <= threshold {
            return;
        }
        let mut counts = [0_u64; LANES];
        for (reference, candidate) in references.iter().zip(candidates) {
            for lane in 0..LANES {
                counts[lane] += u64::from((candidate[lane] - reference[lane]).abs() > threshold);
            }
        }
        let count = counts.iter().sum::<u64>();
        stats.above[index] += count;
        stats.filled_above[index] += count;
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use proptest::prelude::*;

    use super::*;

    /// Bit patterns, most of them numbers one meets, some of them those that break things.
    fn words(dtype: DType) -> impl Strategy<Value = (u64, u64)> {
        let of = move |value: f64| match dtype {
            DType::F64 => value.to_bits(),
            DType::F32 => (value as f32).to_bits().into(),
            DType::F16 => f16::from_f64(value).to_bits().into(),
            _ => bf16::from_f64(value).to_bits().into(),
        };
        let special = prop::sample::select(vec![0., -0., 1., -1., 1e-310, 1e-42, 6e-8, -6e-8, 1e4, 1e38, -1e308]);
        let odd = prop::sample::select(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY]);
        let usual = || (-100.0..100.0_f64, -1e-3..1e-3_f64).prop_map(move |(r, apart)| (of(r), of(r + apart)));
        prop_oneof![
            200 => usual(),
            20 => (special.clone(), special.clone()).prop_map(move |(r, c)| (of(r), of(c))),
            20 => any::<u64>().prop_map(|bits| (bits, bits)),
            1 => (odd.clone(), odd).prop_map(move |(r, c)| (of(r), of(c))),
            1 => any::<(u64, u64)>(),
        ]
    }

    fn close(left: f64, right: f64) -> bool {
        left == right
            || (left.is_nan() && right.is_nan())
            || (left - right).abs() <= 1e-12 * left.abs().max(right.abs())
    }

    fn assert_agree(fast: &Stats, slow: &Stats) {
        let sums = |stats: &Stats| {
            let Stats { sum_abs, sum_squares, sum_reference, sum_candidate, filled_sum, .. } = *stats;
            [sum_abs, sum_squares, sum_reference, sum_candidate, filled_sum]
        };
        for (fast, slow) in sums(fast).into_iter().zip(sums(slow)) {
            assert!(close(fast, slow), "{fast} {slow}");
        }
        // Products may cancel.
        let size = (slow.sum_reference * slow.sum_candidate).sqrt();
        let product = (fast.sum_product - slow.sum_product).abs();
        assert!(!size.is_finite() || !product.is_finite() || product <= 1e-12 * size);
        let without_sums = |stats: &Stats| Stats {
            sum_abs: 0.,
            sum_squares: 0.,
            sum_reference: 0.,
            sum_candidate: 0.,
            sum_product: 0.,
            filled_sum: 0.,
            ..stats.clone()
        };
        assert_eq!(without_sums(fast), without_sums(slow));
    }

    fn check(dtype: DType, words: &[(u64, u64)], misalign: usize, equal_nan: bool) {
        let size = dtype.size_bytes();
        let bytes = |word: fn(&(u64, u64)) -> u64| {
            let elements = words.iter().flat_map(|pair| word(pair).to_le_bytes().into_iter().take(size));
            std::iter::repeat_n(0, misalign).chain(elements).collect::<Vec<u8>>()
        };
        let (reference, candidate) = (bytes(|pair| pair.0), bytes(|pair| pair.1));
        let pair = Pair { dtype, reference: &reference[misalign..], candidate: &candidate[misalign..] };
        let tolerance = Tolerance { equal_nan, ..Tolerance::EXACT };
        let mut slow = Stats::default();
        scalar::add(&pair, 0..words.len(), &tolerance, &mut slow);
        let mut portable = Stats::default();
        span_portable(&pair, 0..words.len(), &tolerance, &mut portable);
        assert_agree(&portable, &slow);
        if words.len() <= SPAN && !words.is_empty() {
            // Debug text, because NaN sums are not equal to themselves.
            assert_eq!(format!("{:?}", spans(&pair, &tolerance)), format!("{:?}", [portable]), "not the same bits");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn fast_pass_agrees_with_scalar(
            (dtype, words) in prop::sample::select(vec![DType::F32, DType::F64, DType::F16, DType::BF16])
                .prop_flat_map(|dtype| (Just(dtype), prop::collection::vec(words(dtype), 0..1500))),
            misalign in 0_usize..8,
            equal_nan: bool,
        ) {
            check(dtype, &words, misalign, equal_nan);
        }
    }

    #[test]
    fn every_16_bit_float_agrees_with_scalar() {
        for dtype in [DType::F16, DType::BF16] {
            let words: Vec<_> = (0..=u64::from(u16::MAX)).map(|bits| (bits, bits ^ 1)).collect();
            check(dtype, &words, 1, false);
        }
    }

    #[test]
    fn threads_do_not_change_the_sums() {
        let values: Vec<u8> = (0..3 << 20).flat_map(|i: u32| (i as f32).sin().to_le_bytes()).collect();
        let others: Vec<u8> = (0..3 << 20).flat_map(|i: u32| ((i as f32).sin() * 1.000_001).to_le_bytes()).collect();
        let pair = Pair { dtype: DType::F32, reference: &values, candidate: &others };
        let tolerance = Tolerance::EXACT;
        let together = spans(&pair, &tolerance);
        let one_by_one: Vec<_> = (0..together.len()).map(|index| span(&pair, index, &tolerance)).collect();
        assert_eq!(together.len(), 48);
        assert_eq!(together, one_by_one);
    }
}
