//! e to the power of x, in a form that compilers make vectors of: 2 to the power of n, times a Taylor polynomial of
//! what is left, at most ln 2 / 2 from zero, whose next term is below half a unit in the last place.

/// The reciprocals of the factorials of 0 to 13.
const TAYLOR: [f64; 14] = {
    let (mut terms, mut factorial, mut n) = ([1.0; 14], 1.0, 1);
    while n < 14 {
        factorial *= n as f64;
        terms[n] = 1.0 / factorial;
        n += 1;
    }
    terms
};

macro_rules! exponential {
    ($real:ident, $bits:ident, degree $degree:literal, ln_2 $high:literal + $low:literal, least $least:literal, most $most:literal) => {
        /// At most one unit in the last place from e to the power of x, two without FMA; NaN goes through, -inf gives 0.
        #[inline(always)]
        pub(super) fn $real<const FMA: bool>(x: $real) -> $real {
            const DIGITS: u32 = $real::MANTISSA_DIGITS - 1;
            // Beside a number as large, what is added to it is rounded to an integer: its lowest bits.
            const ROUNDS: $real = 1.5 * (1_u64 << DIGITS) as $real;
            const BIAS: $bits = $real::MAX_EXP as $bits - 1;
            let times_plus = |a: $real, b: $real, c: $real| if FMA { a.mul_add(b, c) } else { a * b + c };
            // Unlike `clamp` and `max` these compare once, and leave NaN as it is.
            let x = if x < $least { $least } else { x };
            let x = if x > $most { $most } else { x };
            let rounded = times_plus(x, std::$real::consts::LOG2_E, ROUNDS);
            let n = rounded - ROUNDS;
            // The high part has so few digits that its product is exact.
            let rest = times_plus(n, -$low, times_plus(n, -$high, x));
            let mut sum = TAYLOR[$degree] as $real;
            let mut term = $degree;
            while term > 0 {
                term -= 1;
                sum = times_plus(sum, rest, TAYLOR[term] as $real);
            }
            let n = (rounded.to_bits() as $bits).wrapping_sub(ROUNDS.to_bits() as $bits);
            // In two steps, as neither end of the range has a power of 2 of its own.
            let (first, second) = (n >> 1, n.wrapping_sub(n >> 1));
            let power = |n: $bits| $real::from_bits((n.wrapping_add(BIAS) << DIGITS) as _);
            sum * power(first) * power(second)
        }
    };
}

exponential!(f32, i32, degree 7, ln_2 0.693_359_4 + -2.121_944_4e-4, least -104.0, most 89.0);
exponential!(f64, i64, degree 13, ln_2 0.693_145_751_953_125 + 1.428_606_820_309_417_2e-6, least -746.0, most 710.0);

#[cfg(test)]
mod tests {
    #[test]
    fn it_is_right_to_the_last_digit_or_next_to_it() {
        for n in -1_040_000..880_000 {
            let x = n as f32 * 1e-4;
            let expected = f64::from(x).exp();
            for (made, units) in [(super::f32::<true>(x), 1.0), (super::f32::<false>(x), 2.0)] {
                let unit = f64::from((expected as f32).next_up()) - f64::from(expected as f32);
                assert!((f64::from(made) - expected).abs() <= units * unit, "{x}: {made}, expected {expected}");
            }
        }
        for n in -74_500..70_900 {
            let x = f64::from(n) * 0.01;
            let expected = x.exp();
            for made in [super::f64::<true>(x), super::f64::<false>(x)] {
                assert!((made - expected).abs() <= 2.0 * (expected.next_up() - expected), "{x}: {made}, {expected}");
            }
        }
    }

    #[test]
    fn the_ends_are_the_standard_librarys() {
        let given = [0.0, -0.0, 1e-30, -103.0, -103.97, -104.0, -1e30, 88.7, 88.8, 1e30];
        for x in given.into_iter().chain([f32::INFINITY, f32::NEG_INFINITY, f32::MIN, f32::MAX, f32::MIN_POSITIVE]) {
            for made in [super::f32::<true>(x), super::f32::<false>(x)] {
                let expected = f64::from(x).exp() as f32;
                let near = made == expected || (made - expected).abs() <= expected.next_up() - expected;
                assert!(near, "{x}: {made}, expected {expected}");
            }
        }
        assert!(super::f32::<true>(f32::NAN).is_nan() && super::f64::<false>(f64::NAN).is_nan());
        assert_eq!((super::f64::<true>(f64::NEG_INFINITY), super::f64::<true>(-745.2)), (0.0, 0.0));
        assert_eq!(super::f64::<true>(f64::INFINITY), f64::INFINITY);
    }
}
