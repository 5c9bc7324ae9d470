//! One element at a time, for any dtype and any value. The fast pass (`simd.rs`) must agree with this.

use half::{bf16, f16};

use super::metrics::{ABOVE, Required};
use super::tolerance::Tolerance;
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

impl Pair<'_> {
    pub fn is_complex(&self) -> bool {
        matches!(self.dtype, DType::C64 | DType::C128)
    }

    /// Element type of the numbers compared: the part of a complex type.
    pub fn part_dtype(&self) -> DType {
        match self.dtype {
            DType::C64 => DType::F32,
            DType::C128 => DType::F64,
            other => other,
        }
    }

    pub fn n_numbers(&self) -> usize {
        self.reference.len() / self.part_dtype().size_bytes()
    }

    /// Reference and candidate at a position, widened.
    pub fn number(&self, index: usize) -> (f64, f64) {
        let (dtype, size) = (self.part_dtype(), self.part_dtype().size_bytes());
        let [reference, candidate] = [self.reference, self.candidate].map(|bytes| {
            let mut number = [0; 8];
            bytes.slice(index * size..(index + 1) * size).copy_out(&mut number[..size]);
            widen(dtype, u64::from_le_bytes(number))
        });
        (reference, candidate)
    }
}

impl Numbers<'_> {
    /// Position and bits of reference and candidate, in order.
    fn bits(&self) -> impl Iterator<Item = (u64, u64, u64)> {
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

fn widen(dtype: DType, bits: u64) -> f64 {
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
fn ulp(dtype: DType, reference_bits: u64, candidate_bits: u64) -> u64 {
    let sign = 1_u64 << (dtype.size_bytes() * 8 - 1);
    let on_line = |bits: u64| if bits & sign == 0 { bits as i64 } else { -((bits & !sign) as i64) };
    on_line(reference_bits).abs_diff(on_line(candidate_bits))
}

/// What one pass finds. "filled": after NaN and ±∞ were replaced as `MaxDiff` says.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Stats {
    pub measured: u64,
    pub max_abs: f64,
    pub argmax_abs: Option<u64>,
    pub max_rel: f64,
    pub max_reference: f64,
    pub max_ulp: u64,
    pub sum_abs: f64,
    pub sum_squares: f64,
    pub sum_reference: f64,
    pub sum_candidate: f64,
    pub sum_product: f64,
    pub above: [u64; ABOVE.len()],
    pub nan_disagreements: u64,
    pub inf_disagreements: u64,
    pub both_nan: u64,
    pub filled_max_abs: f64,
    pub filled_argmax: Option<u64>,
    pub filled_max_rel: f64,
    pub filled_sum: f64,
    pub filled_above: [u64; ABOVE.len()],
}

enum Kind {
    Finite(f64),
    EqualInfinities,
    BothNan,
    OneNan,
    Infinity,
}

fn kind(dtype: DType, reference_bits: u64, candidate_bits: u64) -> Kind {
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

impl Stats {
    /// Adds what was found further on.
    pub fn merge(&mut self, later: &Stats) {
        if later.max_abs > self.max_abs {
            (self.max_abs, self.argmax_abs) = (later.max_abs, later.argmax_abs);
        }
        if later.filled_max_abs > self.filled_max_abs {
            (self.filled_max_abs, self.filled_argmax) = (later.filled_max_abs, later.filled_argmax);
        }
        for (mine, theirs) in [
            (&mut self.max_rel, later.max_rel),
            (&mut self.max_reference, later.max_reference),
            (&mut self.filled_max_rel, later.filled_max_rel),
        ] {
            *mine = mine.max(theirs);
        }
        self.max_ulp = self.max_ulp.max(later.max_ulp);
        for (mine, theirs) in [
            (&mut self.sum_abs, later.sum_abs),
            (&mut self.sum_squares, later.sum_squares),
            (&mut self.sum_reference, later.sum_reference),
            (&mut self.sum_candidate, later.sum_candidate),
            (&mut self.sum_product, later.sum_product),
            (&mut self.filled_sum, later.filled_sum),
        ] {
            *mine += theirs;
        }
        self.measured += later.measured;
        self.nan_disagreements += later.nan_disagreements;
        self.inf_disagreements += later.inf_disagreements;
        self.both_nan += later.both_nan;
        for (mine, theirs) in self.above.iter_mut().zip(later.above) {
            *mine += theirs;
        }
        for (mine, theirs) in self.filled_above.iter_mut().zip(later.filled_above) {
            *mine += theirs;
        }
    }
}

/// Adds numbers, in order.
pub(super) fn add(numbers: &Numbers<'_>, tolerance: &Tolerance, stats: &mut Stats) {
    let dtype = numbers.dtype;
    let (with_ulp, fill_limit) = (has_ulp(dtype), Tolerance::fill_limit(dtype));
    for (index, r_bits, c_bits) in numbers.bits() {
        let (r, c) = (widen(dtype, r_bits), widen(dtype, c_bits));
        if r.abs() < fill_limit {
            stats.max_reference = stats.max_reference.max(r.abs());
        }
        let apart = match kind(dtype, r_bits, c_bits) {
            Kind::Finite(apart) => {
                stats.measured += 1;
                stats.sum_abs += apart;
                stats.sum_squares += apart * apart;
                stats.sum_reference += r * r;
                stats.sum_candidate += c * c;
                stats.sum_product += r * c;
                stats.max_rel = stats.max_rel.max(if apart == 0. { 0. } else { apart / r.abs() });
                if with_ulp {
                    stats.max_ulp = stats.max_ulp.max(ulp(dtype, r_bits, c_bits));
                }
                apart
            }
            Kind::EqualInfinities => {
                stats.measured += 1;
                0.
            }
            Kind::BothNan => {
                stats.both_nan += 1;
                if tolerance.equal_nan { 0. } else { f64::INFINITY }
            }
            Kind::OneNan => {
                stats.nan_disagreements += 1;
                f64::INFINITY
            }
            Kind::Infinity => {
                stats.inf_disagreements += 1;
                f64::INFINITY
            }
        };
        if apart > stats.max_abs {
            (stats.max_abs, stats.argmax_abs) = (apart, Some(index));
        }
        for (count, threshold) in stats.above.iter_mut().zip(ABOVE) {
            *count += u64::from(apart > threshold);
        }
        add_filled(
            stats,
            index,
            fill(r),
            if c.is_finite() && r.is_finite() { apart } else { (fill(c) - fill(r)).abs() },
        );
    }
}

/// `numpy.nan_to_num(value, nan=1e10)`.
fn fill(value: f64) -> f64 {
    if value.is_nan() { 1e10 } else { value.clamp(f64::MIN, f64::MAX) }
}

fn add_filled(stats: &mut Stats, index: u64, r: f64, apart: f64) {
    stats.filled_max_rel = stats.filled_max_rel.max(apart / (r.abs() + 1e-3));
    stats.filled_sum += apart;
    if apart > stats.filled_max_abs {
        (stats.filled_max_abs, stats.filled_argmax) = (apart, Some(index));
    }
    for (count, threshold) in stats.filled_above.iter_mut().zip(ABOVE) {
        *count += u64::from(apart > threshold);
    }
}

/// A tolerance whose max|r| is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    atol: f64,
    rtol: f64,
    /// scale·max|r|.
    pub floor: f64,
    equal_nan: bool,
}

impl Bounds {
    pub fn new(tolerance: &Tolerance, max_reference: f64) -> Self {
        let Tolerance { atol, rtol, scale, equal_nan } = *tolerance;
        Self { atol, rtol, floor: scale * max_reference, equal_nan }
    }
}

/// What it takes for one element to be inside.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    /// Distance beyond what is allowed; above 0 exactly when the element is outside.
    pub excess: f64,
    /// See [`Required`]; 0 or less when none is needed.
    pub atol: f64,
    pub rtol: f64,
}

impl Bounds {
    /// For finite numbers `apart` from each other, the reference of this `size`.
    #[inline(always)]
    pub fn needs(&self, apart: f64, size: f64) -> Needs {
        let excess = apart - (self.atol + self.rtol * size + self.floor);
        let over_floor = apart - self.floor;
        // Rounded up, so that what is reported does pass.
        let slack = 4. * f64::EPSILON * apart;
        let (atol, rtol) = (over_floor - self.rtol * size, over_floor - self.atol);
        Needs {
            excess,
            atol: if atol > 0. { atol + slack } else { 0. },
            rtol: if rtol > 0. { (rtol + slack) / size } else { 0. },
        }
    }
}

/// What the second pass finds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Outside {
    pub count: u64,
    pub first: Option<u64>,
    pub worst: Option<u64>,
    pub worst_excess: f64,
    pub required: Required,
}

impl Outside {
    /// Adds what was found further on.
    pub fn merge(&mut self, later: &Outside) {
        self.count += later.count;
        self.first = self.first.or(later.first);
        self.required.atol = self.required.atol.max(later.required.atol);
        self.required.rtol = self.required.rtol.max(later.required.rtol);
        if later.worst_excess > self.worst_excess {
            (self.worst, self.worst_excess) = (later.worst, later.worst_excess);
        }
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
            outside.first = outside.first.or(Some(index));
            if needs.excess > outside.worst_excess {
                (outside.worst, outside.worst_excess) = (Some(index), needs.excess);
            }
        }
    }
}
