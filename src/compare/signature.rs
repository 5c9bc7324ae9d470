//! Four letters that say roughly what a tensor holds, so that two lists of results can be aligned without names.

use super::wanted::Wanted;
use crate::base::parallel::in_parallel;
use crate::tensor::SharedTensor;

/// Number of letters.
const LENGTH: usize = 4;

/// The letters of a tensor of any rank: its row-major elements, widened to f64 and padded with zeros to a multiple of
/// four, are summed in four segments; each sum, truncated, modulo 26, is a letter from `A`; `?` stands for NaN and for
/// magnitudes of 1e10 and more. Up to four elements are taken as they are. "????" for complex and 8-bit float types.
/// Source: onnx-array-api's `make_summary`; sums are bit-identical to NumPy's, because a sum next to an integer decides
/// its letter.
pub fn signature<'a>(tensor: impl Into<SharedTensor<'a>>) -> String {
    signature_while(tensor.into(), Wanted::ALWAYS)
}

/// As [`signature`]; no letters where nobody waits for them any more.
fn signature_while(tensor: SharedTensor<'_>, wanted: Wanted<'_>) -> String {
    let n_elements = tensor.shape().n_elements();
    // A block at a time: a widened copy of a large tensor would cost more than its sum.
    let padded = |from: usize, len: usize| {
        let mut values = wanted.is().then(|| tensor.flat_f64(from.min(n_elements)..(from + len).min(n_elements)))??;
        values.resize(len, 0.);
        Some(values)
    };
    let segment_len = if n_elements <= LENGTH { 1 } else { n_elements.div_ceil(LENGTH) };
    let segment = |index| pairwise_sum(index * segment_len, segment_len, &padded).map_or('?', letter);
    in_parallel(LENGTH, tensor.bytes().len(), segment).into_iter().collect()
}

/// The letters of a tensor whose segments were added up elsewhere.
pub(super) fn letters(sums: [f64; LENGTH]) -> String {
    sums.into_iter().map(letter).collect()
}

/// Of dtypes that do not widen.
pub(super) const UNKNOWN: &str = "????";

/// The signatures of a pair, which are one where they are equal bit by bit.
pub fn signatures<'a>(reference: SharedTensor<'a>, candidate: SharedTensor<'a>) -> [String; 2] {
    signatures_while(reference, candidate, Wanted::ALWAYS)
}

/// As [`signatures`]; no letters where nobody waits for them any more.
pub(super) fn signatures_while(
    reference: SharedTensor<'_>,
    candidate: SharedTensor<'_>,
    wanted: Wanted<'_>,
) -> [String; 2] {
    let of_reference = signature_while(reference, wanted);
    let is_same = same_bits(reference, candidate, wanted);
    let of_candidate = if is_same { of_reference.clone() } else { signature_while(candidate, wanted) };
    [of_reference, of_candidate]
}

fn same_bits(one: SharedTensor<'_>, other: SharedTensor<'_>, wanted: Wanted<'_>) -> bool {
    const BLOCK: usize = 1 << 12;
    let n = one.bytes().len();
    let mut copies = [[0; BLOCK]; 2];
    let same = |from: usize| {
        if !wanted.is() {
            return false;
        }
        let range = from..(from + BLOCK).min(n);
        let [one_bytes, other_bytes] = copies.each_mut().map(|copy| &mut copy[..range.len()]);
        one.bytes().slice(range.clone()).copy_out(one_bytes);
        other.bytes().slice(range).copy_out(other_bytes);
        one_bytes == other_bytes
    };
    one.desc() == other.desc() && (0..n).step_by(BLOCK).all(same)
}

fn letter(sum: f64) -> char {
    if sum.abs() < 1e10 { char::from(b'A' + (sum.trunc() as i64).rem_euclid(26) as u8) } else { '?' }
}

/// Sum in the order of NumPy's `pairwise_sum_DOUBLE`: fewer than 8 elements one after the other (from -0), up to 128 in
/// eight accumulators, more split in halves of which the first is a multiple of 8. None when `values` gives none.
fn pairwise_sum(from: usize, len: usize, values: &impl Fn(usize, usize) -> Option<Vec<f64>>) -> Option<f64> {
    const FETCHED: usize = 1 << 13; // 64 KiB, widened
    if len <= FETCHED {
        return values(from, len).map(|values| pairwise_sum_of(&values));
    }
    let head = head_of(len);
    Some(pairwise_sum(from, head, values)? + pairwise_sum(from + head, len - head, values)?)
}

fn pairwise_sum_of(values: &[f64]) -> f64 {
    const BLOCK: usize = 128;
    if values.len() <= BLOCK {
        return block_sum(values);
    }
    let (head, tail) = values.split_at(head_of(values.len()));
    pairwise_sum_of(head) + pairwise_sum_of(tail)
}

fn head_of(len: usize) -> usize {
    let half = len / 2;
    half - half % 8
}

fn block_sum(values: &[f64]) -> f64 {
    if values.len() < 8 {
        return values.iter().fold(-0., |sum, value| sum + value);
    }
    let (chunks, rest) = values.as_chunks::<8>();
    let mut sums = chunks[0];
    for chunk in &chunks[1..] {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *sum += value;
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    rest.iter().fold(((a + b) + (c + d)) + ((e + f) + (g + h)), |sum, value| sum + value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{DType, TensorBuf, TensorDesc};

    #[test]
    fn a_pair_has_the_signatures_of_each() {
        let tensor = |dtype: DType, values: &[f32]| {
            let desc = TensorDesc::new(dtype, [values.len() as i64]).unwrap();
            TensorBuf::new(desc, values.iter().flat_map(|value| value.to_le_bytes()).collect()).unwrap()
        };
        let values: Vec<f32> = (0..5000).map(|i| i as f32).collect();
        let mut other = values.clone();
        other[4999] = f32::NAN;
        for (reference, candidate) in [(&values, &values), (&values, &other), (&other, &other)] {
            let pair = [tensor(DType::F32, reference), tensor(DType::F32, candidate)];
            let expected = pair.each_ref().map(|tensor| signature(tensor.shared()));
            assert_eq!(signatures(pair[0].shared(), pair[1].shared()), expected);
        }
        let (floats, integers) = (tensor(DType::F32, &values), tensor(DType::I32, &values));
        assert_ne!(signatures(floats.shared(), integers.shared())[1], signature(floats.shared()), "the bits are equal");
    }

    fn of_values(values: &[f64]) -> String {
        let desc = TensorDesc::new(DType::F64, [values.len() as i64]).unwrap();
        signature(&TensorBuf::new(desc, values.iter().flat_map(|value| value.to_le_bytes()).collect()).unwrap().view())
    }

    /// A linear congruential generator, so that NumPy can be given the same numbers.
    fn numbers(n: usize) -> Vec<f64> {
        let mut state = 1_u64;
        let next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / 2_f64.powi(53) - 0.5
        };
        std::iter::repeat_with(next).take(n).collect()
    }

    #[test]
    fn letters_are_those_of_make_summary() {
        let arange = |n: i32, f: fn(f64) -> f64| (0..n).map(|i| f(i.into())).collect::<Vec<_>>();
        for (values, letters) in [
            (vec![], "AAAA"),
            (vec![0.5], "AAAA"),
            (vec![-0.5, -1., -1.5, 26.], "AZZA"),
            (arange(6, |i| i), "BFJA"),
            (arange(5, |i| i - 2.), "XBCA"),
            (vec![f64::NAN, 1., 2., 3.], "?BCD"),
            (vec![1e10, 9.9e9, -1e10, f64::INFINITY], "?U??"),
            (arange(100, |i| i / 100.), "DJPV"),
        ] {
            assert_eq!(of_values(&values), letters, "{values:?}");
        }
        // NumPy 2.4: make_summary(numbers(n) * 1000).
        for (n, letters) in
            [(5, "LFJA"), (33, "KSPV"), (1000, "QZUG"), (1030, "YOCA"), (4099, "MNIN"), (100_003, "LFOS")]
        {
            let values: Vec<_> = numbers(n).iter().map(|value| value * 1000.).collect();
            assert_eq!(of_values(&values), letters, "{n}");
        }
    }

    #[test]
    fn sums_have_the_bits_of_numpy() {
        // NumPy 2.4: numpy.sum(numbers(n)).view(numpy.uint64).
        for (n, bits) in [
            (1, 0xbfb3a89053bc0300),
            (7, 0x3fd41436e5a1b25c),
            (8, 0xbfbeefd27c046ef0),
            (9, 0x3fcc043beb422708),
            (127, 0xbfe57e2acf48256a),
            (128, 0xbfd09eccf26054ec),
            (129, 0xbfe33c31e7ae6c12),
            (130, 0xbfe7db593a872916),
            (257, 0xbffae9c2cfbac574),
            (1000, 0x401fc8a01aff5a56),
            (4099, 0x401ad107ee758a3a),
            (100_003, 0x4017b25b812f7d88_u64),
        ] {
            let values = numbers(n);
            let sum = pairwise_sum(0, n, &|from, len| Some(values[from..from + len].to_vec())).unwrap();
            assert_eq!(sum.to_bits(), bits, "{n}");
        }
    }

    #[test]
    fn dtypes_that_do_not_widen_are_unknown() {
        let tensor = |dtype| TensorBuf::zeros(TensorDesc::new(dtype, [2]).unwrap());
        assert_eq!(signature(&tensor(DType::C64).view()), "????");
        assert_eq!(signature(&tensor(DType::Bool).view()), "AAAA");
    }
}
