//! Numbers for people: the one rule, of whatever prints them.
//!
//! In a sentence a number stands as people write it ([`significant`]): 1e-6, 0.03125, 1.624. In a column of distances it is
//! scientific ([`distance`]), so that sizes are seen at a glance down the column. `rust_ort/observe/digits.py` is the same in
//! Python; `tests/golden/numbers.json` holds both.

/// Digits of a distance or a tolerance in a sentence.
const FEW: usize = 4;

/// Of an element: as many as tell any two float32 apart.
const ELEMENT: usize = 9;

/// At most so many significant digits, scientific where that is shorter to grasp: below 1e-4, and where the digits do
/// not reach the unit.
///
/// `significant(-2.812594175338745e-7, 4)` is `-2.813e-7`, `significant(0.25, 4)` is `0.25`.
pub fn significant(value: f64, n_digits: usize) -> String {
    if value == 0. || !value.is_finite() {
        return value.to_string();
    }
    let scientific = format!("{value:.*e}", n_digits - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let places = n_digits as i32 - 1 - exponent;
    if exponent < -4 || places < 0 {
        return format!("{}e{exponent}", without_zeros(mantissa));
    }
    without_zeros(&format!("{value:.*}", places as usize)).to_owned()
}

fn without_zeros(number: &str) -> &str {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number }
}

/// A distance or a tolerance, in a sentence.
pub fn few(value: f64) -> String {
    significant(value, FEW)
}

/// As [`few`], of a number that is not below the value: a bound that is told has to hold.
pub fn few_up(value: f64) -> String {
    let text = few(value);
    if !text.parse().is_ok_and(|told: f64| told < value) {
        return text;
    }
    let step = 10_f64.powi(value.abs().log10().floor() as i32 + 1 - FEW as i32);
    few(value + step / 2.)
}

/// A distance or an error, for a column of them: three significant digits, always scientific, so that sizes are seen at
/// a glance; `0` where there is none.
pub fn distance(value: f64) -> String {
    if value == 0. || !value.is_finite() { value.abs().to_string() } else { format!("{value:.2e}") }
}

/// Two elements of tensors, with as many digits as tell them apart.
pub fn elements(one: f64, other: f64) -> [String; 2] {
    let texts = [one, other].map(|value| significant(value, ELEMENT));
    if texts[0] == texts[1] && one != other { [one, other].map(|value| significant(value, 17)) } else { texts }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_golden_numbers_are_told_as_in_python() {
        let golden: serde_json::Value = serde_json::from_str(include_str!("../../tests/golden/numbers.json")).unwrap();
        let rows = golden.as_array().unwrap();
        assert!(rows.len() > 10);
        for row in rows {
            let value: f64 = row["value"].as_str().unwrap().parse().unwrap();
            let digits = row["digits"].as_u64().unwrap() as usize;
            assert_eq!(significant(value, digits), row["significant"].as_str().unwrap());
            assert_eq!(distance(value), row["distance"].as_str().unwrap());
        }
    }

    #[test]
    fn a_bound_is_not_told_too_small() {
        for (value, expected) in
            [(0.437_65, "0.4377"), (0.437_64, "0.4377"), (1.0, "1"), (1.000_01, "1.001"), (2e-7, "2e-7")]
        {
            assert_eq!(few_up(value), expected);
        }
    }

    #[test]
    fn digits_are_few_and_scientific_where_apt() {
        for (value, n_digits, expected) in [
            (-0.000_000_281_259_417_533_874_5, 9, "-2.81259418e-7"),
            (0.873_202_025_890_350_3, 9, "0.873202026"),
            (-0.25, 9, "-0.25"),
            (0.000_1, 3, "0.0001"),
            (0.000_099_999, 9, "9.9999e-5"),
            (123_456.0, 5, "1.2346e5"),
            (12_345.0, 5, "12345"),
            (9.999_999_999_9, 9, "10"),
            (100.0, 3, "100"),
            (1e300, 9, "1e300"),
            (5e-324, 9, "4.94065646e-324"),
            (0.0, 9, "0"),
            (-0.0, 9, "-0"),
            (f64::NAN, 9, "NaN"),
            (f64::NEG_INFINITY, 9, "-inf"),
        ] {
            assert_eq!(significant(value, n_digits), expected);
        }
    }

    #[test]
    fn a_distance_shows_its_size() {
        for (value, expected) in
            [(0., "0"), (0.5, "5.00e-1"), (1.2345e-7, "1.23e-7"), (f64::INFINITY, "inf"), (f64::NAN, "NaN")]
        {
            assert_eq!(distance(value), expected);
        }
    }

    #[test]
    fn elements_that_differ_are_told_apart() {
        assert_eq!(elements(0.1, 0.25), ["0.1", "0.25"]);
        assert_eq!(elements(1e15, 1e15 + 1.), ["1000000000000000", "1000000000000001"]);
        assert_eq!(elements(1e15, 1e15), ["1e15", "1e15"]);
        assert_eq!(elements(f64::NAN, f64::NAN), ["NaN", "NaN"]);
    }
}
