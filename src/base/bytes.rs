//! Numbers of bytes for people.

use std::fmt;

/// A number of bytes, written with one decimal of the largest unit that it fills: "512 B", "1.5 MiB", "41.0 GiB".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        match UNITS.iter().find(|(bits, _)| self.0 >> bits > 0) {
            Some((bits, unit)) => write!(f, "{:.1} {unit}", self.0 as f64 / (1_u64 << bits) as f64),
            None => write!(f, "{} B", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_is_the_largest_that_is_filled() {
        for (bytes, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (3 << 19, "1.5 MiB"),
            (80 << 30, "80.0 GiB"),
            (1 << 40, "1.0 TiB"),
            (u64::MAX, "16777216.0 TiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), expected);
        }
    }
}
