//! A block of numbers of a pair, widened to f64.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::stats::Place;
use crate::tensor::DType;

/// Numbers in a block: six buffers of them fit the first-level cache.
pub(super) const BLOCK: usize = 512;
/// Bytes of the largest number.
pub(super) const MAX_SIZE: usize = 8;

pub(super) struct Block {
    pub(super) reference: [f64; BLOCK],
    pub(super) candidate: [f64; BLOCK],
    pub(super) max_ulp: u64,
}

impl Block {
    pub(super) const EMPTY: Self = Self { reference: [0.; BLOCK], candidate: [0.; BLOCK], max_ulp: 0 };

    /// Fills both sides; false when the fast way does not apply to this dtype or to one of these numbers.
    #[inline(always)]
    pub(super) fn widen(&mut self, dtype: DType, reference: &[u8], candidate: &[u8]) -> bool {
        if !(widen(dtype, reference, &mut self.reference) && widen(dtype, candidate, &mut self.candidate)) {
            return false;
        }
        self.max_ulp = max_ulp(dtype, reference, candidate);
        true
    }

    /// A number of the block, whose first one is `base` in its tensor.
    pub(super) fn place(&self, at: usize, base: usize) -> Place {
        Place { index: (base + at) as u64, reference: self.reference[at], candidate: self.candidate[at] }
    }

    /// Fills the reference, which the candidate equals bit by bit; as `widen`.
    #[inline(always)]
    pub(super) fn widen_equal(&mut self, dtype: DType, bytes: &[u8]) -> bool {
        widen(dtype, bytes, &mut self.reference)
    }
}

#[inline(always)]
fn widen(dtype: DType, bytes: &[u8], out: &mut [f64; BLOCK]) -> bool {
    match dtype {
        DType::F32 => widen_all(bytes, out, |b| f32::from_le_bytes(b).into()),
        DType::F64 => widen_all(bytes, out, f64::from_le_bytes),
        DType::F16 => widen_f16(bytes, out),
        // A signalling NaN is quieted by the conversion to f64; the block then goes to `scalar` anyway.
        DType::BF16 => widen_all(bytes, out, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16).into()),
        DType::I8 => widen_all(bytes, out, |[b]: [u8; 1]| (b as i8).into()),
        DType::U8 => widen_all(bytes, out, |[b]: [u8; 1]| b.into()),
        DType::Bool => widen_all(bytes, out, |[b]: [u8; 1]| f64::from(u8::from(b != 0))),
        DType::I16 => widen_all(bytes, out, |b| i16::from_le_bytes(b).into()),
        DType::U16 => widen_all(bytes, out, |b| u16::from_le_bytes(b).into()),
        DType::I32 => widen_all(bytes, out, |b| i32::from_le_bytes(b).into()),
        DType::U32 => widen_all(bytes, out, |b| u32::from_le_bytes(b).into()),
        DType::I64 => widen_exact(bytes, out, |b| exact_i64(i64::from_le_bytes(b))),
        DType::U64 => widen_exact(bytes, out, |b| exact_i64(u64::from_le_bytes(b).try_into().ok()?)),
        _ => false,
    }
}

#[inline(always)]
fn widen_all<const N: usize>(bytes: &[u8], out: &mut [f64; BLOCK], widen: impl Fn([u8; N]) -> f64) -> bool {
    for (bytes, out) in bytes.as_chunks::<N>().0.iter().zip(out) {
        *out = widen(*bytes);
    }
    true
}

/// Integers that f64 holds exactly; false when `widen` says that one is not.
#[inline(always)]
fn widen_exact<const N: usize>(bytes: &[u8], out: &mut [f64; BLOCK], widen: impl Fn([u8; N]) -> Option<f64>) -> bool {
    let mut exact = true;
    for (bytes, out) in bytes.as_chunks::<N>().0.iter().zip(out) {
        let value = widen(*bytes);
        exact &= value.is_some();
        *out = value.unwrap_or(0.);
    }
    exact
}

#[inline(always)]
fn exact_i64(value: i64) -> Option<f64> {
    (value.unsigned_abs() <= 1 << f64::MANTISSA_DIGITS).then_some(value as f64)
}

#[inline(always)]
fn widen_f16(bytes: &[u8], out: &mut [f64; BLOCK]) -> bool {
    let (mut narrow, mut single) = ([f16::ZERO; BLOCK], [0_f32; BLOCK]);
    let n = bytes.len() / size_of::<f16>();
    for (bytes, narrow) in bytes.as_chunks::<2>().0.iter().zip(&mut narrow) {
        *narrow = f16::from_le_bytes(*bytes);
    }
    narrow[..n].convert_to_f32_slice(&mut single[..n]);
    for (single, out) in single[..n].iter().zip(out) {
        *out = (*single).into();
    }
    true
}

/// Steps between the two numbers of a pair, the most of them; 0 of integers. See `element::ulp`.
#[inline(always)]
fn max_ulp(dtype: DType, reference: &[u8], candidate: &[u8]) -> u64 {
    match dtype {
        DType::F32 => {
            let ulp = |r, c| ulp_32(u32::from_le_bytes(r), u32::from_le_bytes(c));
            max_of(reference, candidate, ulp).into()
        }
        DType::F64 => max_of(reference, candidate, |r, c| ulp_64(u64::from_le_bytes(r), u64::from_le_bytes(c))),
        DType::F16 | DType::BF16 => {
            // Shifted to the upper half, a 16-bit float's bits are ordered as 32-bit ones are, 2^16 apart.
            let high = |bytes| u32::from(u16::from_le_bytes(bytes)) << 16;
            (max_of(reference, candidate, |r, c| ulp_32(high(r), high(c))) >> 16).into()
        }
        _ => 0,
    }
}

#[inline(always)]
fn max_of<const N: usize, T: Ord + Default + Copy>(
    reference: &[u8],
    candidate: &[u8],
    ulp: impl Fn([u8; N], [u8; N]) -> T,
) -> T {
    let pairs = reference.as_chunks::<N>().0.iter().zip(candidate.as_chunks::<N>().0);
    pairs.fold(T::default(), |max, (r, c)| max.max(ulp(*r, *c)))
}

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
