//! What tensors hold, and what is computed in.

use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};

use super::exponential;

/// What kernels compute in. `FMA`: the processor has a fused multiply-add, which is then used.
pub(in crate::runtime::ort) trait Real:
    Copy
    + Send
    + Sync
    + PartialOrd
    + std::fmt::Debug
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + 'static
{
    const ZERO: Self;
    const ONE: Self;
    const NEG_INFINITY: Self;
    /// Columns of a panel: two vectors of eight float32 or four float64.
    const LANES: usize;

    /// `self · by + to`.
    fn times_plus<const FMA: bool>(self, by: Self, to: Self) -> Self;

    /// e to the power of self, to the last digit or next to it. NaN goes through, -inf gives 0.
    fn exponential<const FMA: bool>(self) -> Self;

    /// The natural logarithm.
    fn logarithm(self) -> Self;

    fn is_finite(self) -> bool;
}

macro_rules! real {
    ($real:ident, $lanes:literal) => {
        impl Real for $real {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const NEG_INFINITY: Self = $real::NEG_INFINITY;
            const LANES: usize = $lanes;

            #[inline(always)]
            fn times_plus<const FMA: bool>(self, by: Self, to: Self) -> Self {
                if FMA { self.mul_add(by, to) } else { self * by + to }
            }

            #[inline(always)]
            fn exponential<const FMA: bool>(self) -> Self {
                exponential::$real::<FMA>(self)
            }

            fn logarithm(self) -> Self {
                self.ln()
            }

            #[inline(always)]
            fn is_finite(self) -> bool {
                self.is_finite()
            }
        }
    };
}

real!(f32, 16);
real!(f64, 8);

/// An element of a tensor.
pub(in crate::runtime::ort) trait Element: Copy + Send + Sync + 'static {
    /// What is computed in.
    type Real: Real + Element<Real = Self::Real>;

    /// Exactly. Both: of one length.
    fn widen(from: &[Self], to: &mut [Self::Real]);

    /// To the nearest, ties to even. Both: of one length.
    fn narrow(from: &[Self::Real], to: &mut [Self]);
}

macro_rules! element {
    ($real:ident) => {
        impl Element for $real {
            type Real = Self;

            #[inline(always)]
            fn widen(from: &[Self], to: &mut [Self]) {
                to.copy_from_slice(from);
            }

            #[inline(always)]
            fn narrow(from: &[Self], to: &mut [Self]) {
                to.copy_from_slice(from);
            }
        }
    };
    ($half:ident of half, $widen:expr) => {
        impl Element for $half {
            type Real = f32;

            #[inline(always)]
            fn widen(from: &[Self], to: &mut [f32]) {
                $widen(from, to);
            }

            fn narrow(from: &[f32], to: &mut [Self]) {
                to.convert_from_f32_slice(from);
            }
        }
    };
}

element!(f32);
element!(f64);
element!(f16 of half, |from: &[f16], to| from.convert_to_f32_slice(to));
// The upper half of a float32, in a loop that is compiled for the processor that it runs on.
element!(bf16 of half, |from: &[bf16], to: &mut [f32]| {
    for (to, from) in to.iter_mut().zip(from) {
        *to = f32::from_bits(u32::from(from.to_bits()) << 16);
    }
});
