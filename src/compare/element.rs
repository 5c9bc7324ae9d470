//! One element of reference and candidate: its bits, widened to f64, and how far apart the two are.

use half::{bf16, f16};

use super::wanted::Wanted;
use crate::tensor::{DType, SharedBytes};

/// Two tensors of one dtype and length, whose bytes may change meanwhile: each pass copies what it judges, once.
#[derive(Clone, Copy)]
pub(super) struct Pair<'a> {
    pub dtype: DType,
    pub reference: SharedBytes<'a>,
    pub candidate: SharedBytes<'a>,
}

/// Private numbers of both, those of a tensor from `base` on, as bytes of any alignment.
#[derive(Clone, Copy)]
pub(super) struct Numbers<'a> {
    /// Of the numbers: a part of a complex type.
    pub dtype: DType,
    pub base: usize,
    pub reference: &'a [u8],
    pub candidate: &'a [u8],
}

/// Element type of the numbers that are compared: the part of a complex type.
pub(super) fn part_of(dtype: DType) -> DType {
    match dtype {
        DType::C64 => DType::F32,
        DType::C128 => DType::F64,
        other => other,
    }
}

impl Pair<'_> {
    /// See [`part_of`].
    pub fn part_dtype(&self) -> DType {
        part_of(self.dtype)
    }

    pub fn n_numbers(&self) -> usize {
        self.reference.len() / self.part_dtype().size_bytes()
    }

    /// References that are not zero.
    pub fn not_zero(&self, wanted: Wanted<'_>) -> u64 {
        let dtype = self.part_dtype();
        let mut count = 0;
        // Whoever is not waited for counts no further.
        let _ = self.reference.for_each_block(|block| {
            let numbers = 0..block.len() / dtype.size_bytes();
            count += numbers.filter(|&index| widen(dtype, bits_at(block, dtype, index)) != 0.).count() as u64;
            if wanted.is() { Ok(()) } else { Err(()) }
        });
        count
    }
}

impl Numbers<'_> {
    /// Position and bits of reference and candidate, in order.
    pub fn bits(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        (0..self.reference.len() / self.dtype.size_bytes()).map(move |index| {
            let bits = |bytes| bits_at(bytes, self.dtype, index);
            ((self.base + index) as u64, bits(self.reference), bits(self.candidate))
        })
    }
}

fn bits_at(bytes: &[u8], dtype: DType, index: usize) -> u64 {
    let size = dtype.size_bytes();
    let mut word = [0; 8];
    word[..size].copy_from_slice(&bytes[index * size..][..size]);
    u64::from_le_bytes(word)
}

pub(super) fn widen(dtype: DType, bits: u64) -> f64 {
    match dtype {
        DType::F64 => f64::from_bits(bits),
        DType::F32 => f32::from_bits(bits as u32).into(),
        DType::F16 => f16::from_bits(bits as u16).to_f64(),
        DType::BF16 => bf16::from_bits(bits as u16).to_f64(),
        DType::I8 => (bits as i8).into(),
        DType::I16 => (bits as i16).into(),
        DType::I32 => (bits as i32).into(),
        DType::I64 => bits as i64 as f64,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => bits as f64,
        DType::Bool => f64::from(u8::from(bits != 0)),
        DType::F8E4M3FN => eight_bits(bits as u8, 3, 7, |magnitude| (magnitude == 0x7f).then_some(f64::NAN)),
        DType::F8E5M2 => eight_bits(bits as u8, 2, 15, |magnitude| match magnitude {
            0x7c => Some(f64::INFINITY),
            0x7d.. => Some(f64::NAN),
            _ => None,
        }),
        DType::F8E4M3FNUZ | DType::F8E5M2FNUZ if bits == 0x80 => f64::NAN,
        DType::F8E4M3FNUZ => eight_bits(bits as u8, 3, 8, |_| None),
        DType::F8E5M2FNUZ => eight_bits(bits as u8, 2, 16, |_| None),
        DType::C64 | DType::C128 => unreachable!("complex tensors are compared as pairs of their parts"),
    }
}

/// An 8-bit float with so many mantissa bits and this exponent bias; `special` knows the magnitudes that are no number.
fn eight_bits(bits: u8, mantissa_bits: u32, bias: i32, special: impl Fn(u8) -> Option<f64>) -> f64 {
    let magnitude = bits & 0x7f;
    let (exponent, mantissa) = (i32::from(magnitude >> mantissa_bits), magnitude & ((1 << mantissa_bits) - 1));
    let mantissa = f64::from(mantissa) / f64::from(1 << mantissa_bits);
    let value = special(magnitude).unwrap_or_else(|| match exponent {
        0 => mantissa * 2_f64.powi(1 - bias),
        _ => (1. + mantissa) * 2_f64.powi(exponent - bias),
    });
    if bits & 0x80 == 0 { value } else { -value }
}

/// |c − r|, exact where f64 can hold it (64-bit integers are subtracted before they are rounded).
fn distance(dtype: DType, reference_bits: u64, candidate_bits: u64) -> f64 {
    match dtype {
        DType::I64 => (candidate_bits as i64).abs_diff(reference_bits as i64) as f64,
        DType::U64 => candidate_bits.abs_diff(reference_bits) as f64,
        _ => (widen(dtype, candidate_bits) - widen(dtype, reference_bits)).abs(),
    }
}

pub(super) fn has_ulp(dtype: DType) -> bool {
    dtype.is_float() || matches!(dtype, DType::C64 | DType::C128)
}

/// Steps between two finite floats of `dtype`, on the line where -0 and 0 are one point.
pub(super) fn ulp(dtype: DType, reference_bits: u64, candidate_bits: u64) -> u64 {
    let sign = 1_u64 << (dtype.size_bytes() * 8 - 1);
    let on_line = |bits: u64| if bits & sign == 0 { bits as i64 } else { -((bits & !sign) as i64) };
    on_line(reference_bits).abs_diff(on_line(candidate_bits))
}

/// What a pair of elements is to each other.
pub(super) enum Kind {
    /// Both finite, so far apart.
    Finite(f64),
    EqualInfinities,
    BothNan,
    OneNan,
    /// An infinity against another number.
    Infinity,
}

pub(super) fn kind(dtype: DType, reference_bits: u64, candidate_bits: u64) -> Kind {
    let (reference, candidate) = (widen(dtype, reference_bits), widen(dtype, candidate_bits));
    match (reference.is_nan(), candidate.is_nan()) {
        (true, true) => Kind::BothNan,
        (false, false) if reference.is_finite() && candidate.is_finite() => {
            Kind::Finite(distance(dtype, reference_bits, candidate_bits))
        }
        (false, false) if reference == candidate => Kind::EqualInfinities,
        (false, false) => Kind::Infinity,
        _ => Kind::OneNan,
    }
}
