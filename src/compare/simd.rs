//! The fast pass: blocks of finite numbers, widened to f64 and measured in loops that the compiler turns into vectors.
//!
//! The same source is compiled thrice, for the baseline of the target and (x86-64) for AVX2, FMA and F16C and for AVX-512,
//! whose registers hold all running sums; which one runs is decided at run time. Rust never contracts or reorders
//! floating-point arithmetic, so all give the same bits. They agree with `scalar` in everything but the order of the sums: here eight running sums per block of [`BLOCK`] numbers,
//! added as ((0+4)+(2+6)) + ((1+5)+(3+7)); blocks are added to their span of [`SPAN`] in order, spans in order. The
//! order depends on the length alone, not on the number of threads. A block with a NaN, an infinity or an integer beyond
//! 2^53 goes to `scalar`, and so do 8-bit floats. Both read one private copy of the block: the tensors may lie in memory
//! that a client writes meanwhile.

use std::ops::Range;

use super::block::{BLOCK, Block, MAX_SIZE};
use super::element::{Numbers, Pair};
use super::scalar;
use super::stats::{ABOVE, Outside, Stats};
use super::tolerance::{Bounds, Tolerance};
use super::wanted::Wanted;
use crate::base::parallel::in_parallel;

/// Numbers in a span, the unit of work of a thread.
pub(super) const SPAN: usize = 128 * BLOCK;
const LANES: usize = 8;

/// Statistics of each span, in order: the first pass.
pub(super) fn spans(pair: &Pair<'_>, tolerance: &Tolerance, wanted: Wanted<'_>) -> Vec<Stats> {
    let indices: Vec<_> = (0..pair.n_numbers().div_ceil(SPAN)).collect();
    each(pair, &indices, &First::new(pair, tolerance), wanted)
}

/// What is outside, in those of the spans that may hold something outside, or something that only atol or rtol passes.
/// These are read a second time: their statistics become those of what was read then, so that each number is judged by
/// the bytes that it is measured by.
pub(super) fn outside(
    pair: &Pair<'_>,
    tolerance: &Tolerance,
    bounds: &Bounds,
    spans: &mut [Stats],
    wanted: Wanted<'_>,
) -> Outside {
    let beyond_floor = spans.iter().enumerate().filter(|(_, span)| bounds.may_be_beyond(span.max_abs));
    let indices: Vec<_> = beyond_floor.map(|(index, _)| index).collect();
    let mut outside = Outside::default();
    let again = each(pair, &indices, &Second { first: First::new(pair, tolerance), bounds }, wanted);
    for (index, judged) in indices.into_iter().zip(again) {
        outside.merge(&judged.outside);
        spans[index] = judged.stats;
    }
    outside
}

/// What is done with a block of numbers, by value or, where the fast way does not apply, by `scalar`.
trait Pass: Sync {
    type Found: Default + Send;

    /// The first `n` numbers of `block`, which are those from `base` on; false, and nothing done, when one is not finite.
    fn block(&self, block: &mut Block, n: usize, base: usize, found: &mut Self::Found) -> bool;

    /// As `block`, where each candidate equals its reference bit by bit, and is not in the block.
    fn equal(&self, block: &mut Block, n: usize, found: &mut Self::Found) -> bool;

    fn scalar(&self, numbers: &Numbers<'_>, found: &mut Self::Found);
}

struct First<'a> {
    tolerance: &'a Tolerance,
    fill_limit: f64,
}

impl<'a> First<'a> {
    fn new(pair: &Pair<'_>, tolerance: &'a Tolerance) -> Self {
        Self { tolerance, fill_limit: Tolerance::fill_limit(pair.dtype) }
    }
}

impl Pass for First<'_> {
    type Found = Stats;

    #[inline(always)]
    fn block(&self, block: &mut Block, n: usize, base: usize, found: &mut Stats) -> bool {
        measure(block, n, base, self.fill_limit, found)
    }

    #[inline(always)]
    fn equal(&self, block: &mut Block, n: usize, found: &mut Stats) -> bool {
        measure_equal(block, n, self.fill_limit, found)
    }

    fn scalar(&self, numbers: &Numbers<'_>, found: &mut Stats) {
        scalar::add(numbers, self.tolerance, found);
    }
}

struct Second<'a> {
    first: First<'a>,
    bounds: &'a Bounds,
}

/// Of the second pass, both of the same bytes.
#[derive(Default)]
struct Judged {
    stats: Stats,
    outside: Outside,
}

impl Pass for Second<'_> {
    type Found = Judged;

    #[inline(always)]
    fn block(&self, block: &mut Block, n: usize, base: usize, found: &mut Judged) -> bool {
        self.first.block(block, n, base, &mut found.stats)
            && measure_outside(block, n, base, self.bounds, &mut found.outside)
    }

    /// What is equal and finite is inside and needs no tolerance.
    #[inline(always)]
    fn equal(&self, block: &mut Block, n: usize, found: &mut Judged) -> bool {
        self.first.equal(block, n, &mut found.stats)
    }

    fn scalar(&self, numbers: &Numbers<'_>, found: &mut Judged) {
        self.first.scalar(numbers, &mut found.stats);
        scalar::add_outside(numbers, self.bounds, &mut found.outside);
    }
}

/// What a pass finds in each of these spans, in their order: nothing in those that nobody waits for.
fn each<P: Pass>(pair: &Pair<'_>, indices: &[usize], pass: &P, wanted: Wanted<'_>) -> Vec<P::Found> {
    let len_bytes = indices.len().saturating_mul(SPAN * pair.part_dtype().size_bytes()).min(pair.reference.len());
    in_parallel(
        indices.len(),
        len_bytes,
        |at| {
            if wanted.is() { span(pair, indices[at], pass) } else { P::Found::default() }
        },
    )
}

fn span<P: Pass>(pair: &Pair<'_>, index: usize, pass: &P) -> P::Found {
    let range = index * SPAN..((index + 1) * SPAN).min(pair.n_numbers());
    let mut found = P::Found::default();
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
        if has_avx512() {
            // SAFETY: the features that `span_avx512` is compiled for were just found on this processor.
            unsafe { span_avx512(pair, range, pass, &mut found) };
            return found;
        }
        // SAFETY: the features that `span_avx2` is compiled for were just found on this processor.
        unsafe { span_avx2(pair, range, pass, &mut found) };
        return found;
    }
    span_portable(pair, range, pass, &mut found);
    found
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn span_avx512<P: Pass>(pair: &Pair<'_>, range: Range<usize>, pass: &P, found: &mut P::Found) {
    span_portable(pair, range, pass, found);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn span_avx2<P: Pass>(pair: &Pair<'_>, range: Range<usize>, pass: &P, found: &mut P::Found) {
    span_portable(pair, range, pass, found);
}

#[inline(always)]
fn span_portable<P: Pass>(pair: &Pair<'_>, range: Range<usize>, pass: &P, found: &mut P::Found) {
    let (dtype, size) = (pair.part_dtype(), pair.part_dtype().size_bytes());
    let mut block = Block::EMPTY;
    let mut copies = [[0; BLOCK * MAX_SIZE]; 2];
    let mut from = range.start;
    while from < range.end {
        let to = (from + BLOCK).min(range.end);
        let [reference, candidate] = &mut copies;
        let (reference, candidate) = (&mut reference[..(to - from) * size], &mut candidate[..(to - from) * size]);
        pair.reference.slice(from * size..to * size).copy_out(reference);
        pair.candidate.slice(from * size..to * size).copy_out(candidate);
        let (reference, candidate): (&[u8], &[u8]) = (reference, candidate);
        let (n, base) = (to - from, from);
        let done = if reference == candidate {
            block.widen_equal(dtype, reference) && pass.equal(&mut block, n, found)
        } else {
            block.widen(dtype, reference, candidate) && pass.block(&mut block, n, base, found)
        };
        if !done {
            pass.scalar(&Numbers { dtype, base: from, reference, candidate }, found);
        }
        from = to;
    }
}

#[inline(always)]
fn max(left: f64, right: f64) -> f64 {
    if left > right { left } else { right }
}

/// Which quotients cannot exceed the largest so far, told without dividing, which costs more than all else of a pass.
#[derive(Clone, Copy)]
struct Quotients {
    /// A bit less than the largest.
    below: f64,
}

impl Quotients {
    /// Smaller products may have been rounded by more than `below` is smaller.
    const SMALLEST: f64 = 1e-290;

    #[inline(always)]
    fn up_to(largest: f64) -> Self {
        Self { below: largest * (1. - 4. * f64::EPSILON) }
    }

    /// `over` where over / under might be more than the largest; else 0. Neither is negative. Of large float64, `over` and
    /// the product may be infinite, which tells nothing.
    #[inline(always)]
    fn beyond(self, over: f64, under: f64) -> f64 {
        let product = self.below * under;
        let tells = (Self::SMALLEST..f64::INFINITY).contains(&product);
        if tells && over <= product { 0. } else { over }
    }
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
    let (mut max_apart, mut max_reference) = ([0_f64; LANES], [0_f64; LANES]);
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
    if max_apart > 0. {
        measure_apart(block, n, base, max_apart, stats);
    }
    true
}

/// As `measure`, of numbers that are equal on both sides: the same sums, to the last bit.
#[inline(always)]
fn measure_equal(block: &mut Block, n: usize, fill_limit: f64, stats: &mut Stats) -> bool {
    let padded = n.next_multiple_of(LANES);
    block.reference[n..padded].fill(0.);
    let (mut squares, mut max_reference, mut finite) = ([0_f64; LANES], [0_f64; LANES], [0_f64; LANES]);
    for numbers in block.reference[..padded].as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            let (number, size) = (numbers[lane], numbers[lane].abs());
            finite[lane] += 0. * number;
            squares[lane] += number * number;
            max_reference[lane] = max(if size < fill_limit { size } else { 0. }, max_reference[lane]);
        }
    }
    if finite.iter().any(|zero| zero.is_nan()) {
        return false;
    }
    let squares = add_up(squares);
    stats.measured += n as u64;
    stats.sum_reference += squares;
    stats.sum_candidate += squares;
    stats.sum_product += squares;
    stats.max_reference = max(max_reference.into_iter().fold(0., max), stats.max_reference);
    true
}

/// Adds what depends on distances, of a block whose numbers are finite, padded, and at most `max_apart` from each other.
#[inline(always)]
fn measure_apart(block: &Block, n: usize, base: usize, max_apart: f64, stats: &mut Stats) {
    let padded = n.next_multiple_of(LANES);
    let references = block.reference[..padded].as_chunks::<LANES>().0;
    let candidates = block.candidate[..padded].as_chunks::<LANES>().0;
    let [quotients, filled_quotients] = [stats.max_rel, stats.filled_max_rel].map(Quotients::up_to);
    let (mut beyond, mut flushed) = ([0_f64; LANES], [0_f64; LANES]);
    for (reference, candidate) in references.iter().zip(candidates) {
        for lane in 0..LANES {
            let (apart, size) = ((candidate[lane] - reference[lane]).abs(), reference[lane].abs());
            flushed[lane] += f64::from(u8::from(candidate[lane] == 0. && size > 0.));
            let of_both = max(quotients.beyond(apart, size), filled_quotients.beyond(apart, size + 1e-3));
            beyond[lane] = max(of_both, beyond[lane]);
        }
    }
    stats.flushed += add_up(flushed) as u64;
    if beyond.iter().any(|&apart| apart > 0.) {
        measure_relative(references, candidates, stats);
    }
    count_above(references, candidates, max_apart, stats);
    if max_apart > stats.max_abs || max_apart > stats.filled_max_abs {
        let pairs = block.reference[..n].iter().zip(&block.candidate[..n]);
        let at = pairs.map(|(r, c)| (c - r).abs()).position(|apart| apart == max_apart);
        let at = at.map(|at| block.place(at, base));
        if max_apart > stats.max_abs {
            (stats.max_abs, stats.argmax_abs) = (max_apart, at);
        }
        if max_apart > stats.filled_max_abs {
            (stats.filled_max_abs, stats.filled_argmax) = (max_apart, at);
        }
    }
}

/// The part of [`measure_apart`] that divides.
#[inline(always)]
fn measure_relative(references: &[[f64; LANES]], candidates: &[[f64; LANES]], stats: &mut Stats) {
    let (mut max_rel, mut max_filled_rel) = ([0_f64; LANES], [0_f64; LANES]);
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
}

/// Adds what is outside among the first `n` numbers of a block; false, and nothing done, when one is not finite.
#[inline(always)]
fn measure_outside(block: &mut Block, n: usize, base: usize, bounds: &Bounds, outside: &mut Outside) -> bool {
    // Equal zeros are inside and need no tolerance.
    let padded = n.next_multiple_of(LANES);
    block.reference[n..padded].fill(0.);
    block.candidate[n..padded].fill(0.);
    let references = block.reference[..padded].as_chunks::<LANES>().0;
    let candidates = block.candidate[..padded].as_chunks::<LANES>().0;

    let mut finite = [0_f64; LANES];
    let mut counts = [0_u64; LANES];
    let (mut max_excess, mut max_atol, mut beyond) = ([0_f64; LANES], [0_f64; LANES], [0_f64; LANES]);
    let quotients = Quotients::up_to(outside.required.rtol);
    for (reference, candidate) in references.iter().zip(candidates) {
        for lane in 0..LANES {
            let (r, c) = (reference[lane], candidate[lane]);
            finite[lane] += 0. * r + 0. * c;
            let (apart, size) = ((c - r).abs(), r.abs());
            let needs = bounds.needs_undivided(apart, size);
            counts[lane] += u64::from(needs.excess > 0.);
            max_excess[lane] = max(needs.excess, max_excess[lane]);
            max_atol[lane] = max(needs.atol, max_atol[lane]);
            beyond[lane] = max(quotients.beyond(needs.rtol_of_size, size), beyond[lane]);
        }
    }
    if finite.iter().any(|zero| zero.is_nan()) {
        return false;
    }
    outside.required.atol = max(max_atol.into_iter().fold(0., max), outside.required.atol);
    if beyond.iter().any(|&over| over > 0.) {
        outside.required.rtol = max(required_rtol(references, candidates, bounds), outside.required.rtol);
    }
    outside.count += counts.iter().sum::<u64>();
    let max_excess = max_excess.into_iter().fold(0., max);
    let find = |wanted: &dyn Fn(f64) -> bool| {
        let mut pairs = block.reference[..n].iter().zip(&block.candidate[..n]);
        let at = pairs.position(|(r, c)| wanted(bounds.needs((c - r).abs(), r.abs()).excess));
        at.map(|at| block.place(at, base))
    };
    if max_excess > 0. && outside.first.is_none() {
        outside.first = find(&|excess| excess > 0.);
    }
    if max_excess > outside.worst_excess {
        (outside.worst, outside.worst_excess) = (find(&|excess| excess == max_excess), max_excess);
    }
    true
}

/// The largest that an element of a block needs.
#[inline(always)]
fn required_rtol(references: &[[f64; LANES]], candidates: &[[f64; LANES]], bounds: &Bounds) -> f64 {
    let mut max_rtol = [0_f64; LANES];
    for (reference, candidate) in references.iter().zip(candidates) {
        for lane in 0..LANES {
            let (r, c) = (reference[lane], candidate[lane]);
            max_rtol[lane] = max(bounds.needs((c - r).abs(), r.abs()).rtol, max_rtol[lane]);
        }
    }
    max_rtol.into_iter().fold(0., max)
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
    use half::{bf16, f16};
    use proptest::prelude::*;

    use super::*;
    use crate::tensor::DType;

    /// Bit patterns, most of them numbers one meets, some of them those that break things.
    fn words(dtype: DType) -> impl Strategy<Value = (u64, u64)> {
        let of = move |value: f64| match dtype {
            DType::F64 => value.to_bits(),
            DType::F32 => (value as f32).to_bits().into(),
            DType::F16 => f16::from_f64(value).to_bits().into(),
            DType::BF16 => bf16::from_f64(value).to_bits().into(),
            _ => value as i64 as u64,
        };
        let special = prop::sample::select(vec![
            0., -0., 1., -1., 1e-310, 1e-42, 6e-8, -6e-8, 1e4, 1e38, -1e308, 1.7e308, -1.7e308,
        ]);
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
        assert_eq!(format!("{:?}", without_sums(fast)), format!("{:?}", without_sums(slow)));
    }

    fn check(dtype: DType, words: &[(u64, u64)], misalign: usize, equal_nan: bool) {
        let size = dtype.size_bytes();
        let bytes = |word: fn(&(u64, u64)) -> u64| {
            let elements = words.iter().flat_map(|pair| word(pair).to_le_bytes().into_iter().take(size));
            std::iter::repeat_n(0, misalign).chain(elements).collect::<Vec<u8>>()
        };
        let (reference, candidate) = (bytes(|pair| pair.0), bytes(|pair| pair.1));
        let (reference, candidate) = (&reference[misalign..], &candidate[misalign..]);
        let pair = Pair { dtype, reference: reference.into(), candidate: candidate.into() };
        let numbers = Numbers { dtype, base: 0, reference, candidate };
        let tolerance = Tolerance { equal_nan, ..Tolerance::EXACT };
        let mut slow = Stats::default();
        scalar::add(&numbers, &tolerance, &mut slow);
        let mut portable = Stats::default();
        let first = First::new(&pair, &tolerance);
        span_portable(&pair, 0..words.len(), &first, &mut portable);
        assert_agree(&portable, &slow);
        for (atol, rtol, scale) in [(0., 0., 0.), (1e-4, 1e-5, 0.), (0., 1e-3, 1e-6)] {
            let bounds = Bounds::new(&Tolerance { atol, rtol, scale, equal_nan }, slow.max_reference);
            let (mut fast, mut slow_outside) = (Judged::default(), Outside::default());
            scalar::add_outside(&numbers, &bounds, &mut slow_outside);
            let second = Second { first: First::new(&pair, &tolerance), bounds: &bounds };
            span_portable(&pair, 0..words.len(), &second, &mut fast);
            // Debug text here and below, because NaN is not equal to itself.
            assert_eq!(format!("{:?}", fast.outside), format!("{slow_outside:?}"));
            assert_eq!(format!("{:?}", fast.stats), format!("{portable:?}"), "of the first pass");
            if words.len() <= SPAN {
                let found = outside(&pair, &tolerance, &bounds, &mut [portable.clone()], Wanted::ALWAYS);
                assert_eq!(format!("{found:?}"), format!("{slow_outside:?}"));
            }
        }
        if words.len() <= SPAN && !words.is_empty() {
            assert_eq!(
                format!("{:?}", spans(&pair, &tolerance, Wanted::ALWAYS)),
                format!("{:?}", [portable]),
                "not the same bits"
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn fast_pass_agrees_with_scalar(
            (dtype, words) in prop::sample::select(DType::ALL.to_vec())
                .prop_filter("compared as their parts", |dtype| !matches!(dtype, DType::C64 | DType::C128))
                .prop_flat_map(|dtype| (Just(dtype), prop::collection::vec(words(dtype), 0..1500))),
            misalign in 0_usize..8,
            equal_nan: bool,
        ) {
            check(dtype, &words, misalign, equal_nan);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn equal_blocks_agree_with_scalar(
            (dtype, words) in prop::sample::select(vec![DType::F32, DType::F64, DType::F16, DType::BF16, DType::I64, DType::I8])
                .prop_flat_map(|dtype| (Just(dtype), prop::collection::vec(words(dtype), 1..1500))),
            different: prop::sample::Index,
        ) {
            let mut equal: Vec<_> = words.iter().map(|&(reference, _)| (reference, reference)).collect();
            check(dtype, &equal, 0, false);
            let at = different.index(equal.len());
            equal[at] = words[at];
            check(dtype, &equal, 0, true);
        }
    }

    proptest! {
        /// Of any magnitudes, and where the quotient is the largest one but for a rounding.
        #[test]
        fn no_quotient_beyond_the_largest_is_passed_over(over: f64, under: f64, largest: f64, steps in -4_i64..4) {
            let (over, under) = (over.abs(), under.abs());
            prop_assume!(!over.is_nan() && !under.is_nan());
            let near = f64::from_bits((over / under).abs().to_bits().saturating_add_signed(steps));
            for largest in [largest.abs(), near, 0.].into_iter().filter(|largest| !largest.is_nan()) {
                if over / under > largest {
                    prop_assert_eq!(Quotients::up_to(largest).beyond(over, under), over);
                }
            }
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
        let pair = Pair { dtype: DType::F32, reference: values.as_slice().into(), candidate: others.as_slice().into() };
        let tolerance = Tolerance::EXACT;
        let together = spans(&pair, &tolerance, Wanted::ALWAYS);
        let first = First::new(&pair, &tolerance);
        let one_by_one: Vec<_> = (0..together.len()).map(|index| span(&pair, index, &first)).collect();
        assert_eq!(together.len(), 48);
        assert_eq!(together, one_by_one);
    }
}
